"""Timing collectives: how often, in which order, and with the results checked outside the timed region."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from suite.records import CollectiveSamples, Sweep
from suite.worker import rawmpi
from suite.worker.collectives import Call, UnavailableError, find_maker
from suite.worker.groups import Groups
from suite.worker.steps import quiet


def sweep(groups: Groups, plan: Sweep) -> Iterator[CollectiveSamples]:
    """Measure every collective of the plan at every size, in order. Collective: all ranks together."""
    for collective in plan.collectives:
        sizes = (0,) if collective == "barrier" else plan.sizes_bytes
        try:
            make = find_maker(groups, collective)
        except UnavailableError as reason:
            # One line says it for all sizes: what a backend lacks does not depend on the size.
            yield CollectiveSamples(collective, sizes[0] if sizes else 0, unavailable=str(reason))
            continue
        for size in sizes:
            yield measure(groups, make(groups, size), plan)
            if collective == "all_reduce" and groups.backend == "mpi" and plan.raw_mpi:
                yield _raw_all_reduce(groups, size, plan)


def bucket_all_reduces(groups: Groups, sizes: Iterable[int], repeats: int) -> Iterator[CollectiveSamples]:
    """Isolated all-reduces at the sizes of DDP's buckets, each distinct size once, in order of first use."""
    plan = Sweep(warmup=2, repeats=repeats, min_repeats=min(3, repeats), seconds_per_size=2.0)
    make = find_maker(groups, "all_reduce")
    for size in dict.fromkeys(sizes):
        yield measure(groups, make(groups, size), plan, purpose="bucket")


def measure(groups: Groups, call: Call, plan: Sweep, *, purpose: str = "sweep") -> CollectiveSamples:
    """Time one call many times, back to back, and check results outside the timing: the first always, and one
    after the timed ones where a call costs little.

    The number of repeats is agreed: all ranks derive it from the slowest rank's warm-up.
    """
    device, now = groups.device, time.perf_counter_ns

    def timed() -> int:
        start = now()
        call.run()
        device.synchronise()
        return now() - start

    groups.barrier()
    call.fill()
    device.synchronise()
    slowest = groups.largest(timed())
    wrong = call.wrong()
    call.clear()
    device.synchronise()
    if slowest < plan.seconds_per_size * 1e9 / 4:
        slowest = groups.largest(min([timed() for _ in range(plan.warmup)], default=slowest))
    affordable = int(plan.seconds_per_size * 1e9 / max(slowest, 1.0))
    repeats = max(plan.min_repeats, min(plan.repeats, affordable))
    times = [0] * repeats
    with quiet(groups.barrier):
        for i in range(repeats):
            times[i] = timed()
    if repeats > plan.min_repeats:
        call.fill()
        call.run()
        device.synchronise()
        wrong += call.wrong()
    return CollectiveSamples(call.collective, call.size_bytes, tuple(times), wrong, call.implementation, purpose)


def _raw_all_reduce(groups: Groups, size: int, plan: Sweep) -> CollectiveSamples:
    """mpi4py's Allreduce on a buffer of the same kind and size: what PyTorch's layer costs."""
    try:
        call = rawmpi.make_all_reduce(groups, size)
    except UnavailableError as reason:
        return CollectiveSamples("all_reduce", size, implementation="mpi4py", unavailable=str(reason))
    return measure(groups, call, plan)
