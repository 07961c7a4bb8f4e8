"""Does the suite's measured loop show what a bare loop shows? Both, interleaved, in one process group.

    PYTHONPATH=. torchrun --nproc_per_node=2 benchmarks/fidelity.py --backend gloo --json fidelity-gloo.json
    PYTHONPATH=. mpirun -np 2 --bind-to none python3 benchmarks/fidelity.py --backend mpi --json fidelity-mpi.json

There are two models with the same weights and data, one built by the suite and one by hand: where in memory a model
lies may show in its steps' time. The suite's loop and one written by hand run on both in every round, in all orders
alike, so that the loops are compared on the same memory, and the models by the same loops. Both loops start after a
garbage collection: what a rank did just before, or that it slept, can show in short rounds by several percent.

A step's time is the largest over the ranks. Printed: the median of each side, and of the ratios of the rounds, whose
parts a busy machine slows alike, the median with its exact binomial interval. The same for an all-reduce, without a
comparison of its two buffers. What takes little time gets more rounds and more calls in a round. Exit code 1 when a
ratio is off by more than 2%.
"""

# ruff: noqa: E402  # the threads must be set before torch is imported

from __future__ import annotations

import argparse
import gc
import itertools
import json
import math
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from suite.analysis.statistics import median_interval
from suite.records import DdpOptions, Sweep
from suite.worker.collectives import Call, find_maker
from suite.worker.device import make_device
from suite.worker.groups import Groups
from suite.worker.identity import identify
from suite.worker.steps import Trainee, distributed, timed_steps
from suite.worker.timing import measure
from suite.worker.workloads import build

LIMIT = 0.02
ALL_REDUCE_BYTES = (4096, 1 << 20, 16 << 20)
ROUND_SECONDS, MOST_STEPS = 0.2, 500  # of one loop on one model in one round
ROUNDS = (20, 500)  # fewest and most
Series = Callable[[int], list[int]]  # a number of repeats -> nanoseconds of each


class Loops(NamedTuple):
    """Both loops on the same model or buffer."""

    suite: Series
    by_hand: Series


def main() -> int:
    """Run all comparisons; rank 0 prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--backend", choices=("gloo", "mpi", "nccl"), default="gloo")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--workload", nargs="*", default=["linear", "transformer-tiny"])
    parser.add_argument(
        "--seconds", type=float, default=90.0, help="for one workload, about; an all-reduce gets a third"
    )
    parser.add_argument("--bare-first", action="store_true", help="build the model by hand before the suite's")
    parser.add_argument("--steps", type=int, default=8, help="steps of one round, at least")
    parser.add_argument("--json", type=Path, help="write the result there")
    options = parser.parse_args()
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29555")
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    identity = identify(os.environ)
    device = make_device(options.device, identity.local_rank)
    groups = Groups(options.backend, identity.rank, identity.world_size, device, 600.0)
    rows: list[dict[str, Any]] = []
    for name in options.workload:
        models = step_loops(name, groups, options.bare_first)
        rows += compare(f"{name}, step", f"{name}, model", models, groups, options.seconds, options.steps)
    for size in ALL_REDUCE_BYTES:
        buffers = all_reduce_loops(size, groups, options.bare_first)
        rows += compare(f"all_reduce, {size} bytes", None, buffers, groups, options.seconds / 3, options.steps)
    result = {
        "backend": options.backend,
        "device": options.device,
        "world_size": groups.world_size,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "seconds": options.seconds,
        "load": os.getloadavg()[0],
        "limit": LIMIT,
        "rows": rows,
    }
    if groups.rank == 0:
        print(table(result), flush=True)
        if options.json:
            options.json.write_text(json.dumps(result, indent=2) + "\n")
    groups.close()
    return int(any(abs(row["ratio"] - 1) > LIMIT for row in rows))


def step_loops(name: str, groups: Groups, bare_first: bool) -> tuple[Loops, Loops]:
    """Both loops on the suite's model, and on one built by hand with the same weights and data.

    Where in memory a model comes to lie depends on what was built before: either may be built first.
    """

    def of_the_suite() -> Trainee:
        place = groups.device.torch_device
        return distributed(build(name, seed=1, rank=groups.rank, device=place, batch_size=None), groups, DdpOptions())

    def by_hand() -> Trainee:
        place = groups.device.torch_device
        bare = build(name, seed=1, rank=groups.rank, device=place, batch_size=None)
        model = DistributedDataParallel(bare.model, process_group=groups.measured)
        return Trainee(model, bare.inputs, bare.targets, bare.loss_fn, bare.optimizer(model.parameters()))

    def loops(trainee: Trainee) -> Loops:
        model, optimizer = trainee.model, trainee.optimizer
        inputs, targets, loss_fn = trainee.inputs, trainee.targets, trainee.loss_fn

        def suites(count: int) -> list[int]:
            return list(timed_steps(trainee, groups.device, count, groups.barrier).total_ns)

        def bare(count: int) -> list[int]:
            gc.collect()
            groups.barrier()
            times = []
            for _ in range(count):
                start = time.perf_counter_ns()
                optimizer.zero_grad()
                loss = loss_fn(model(inputs), targets)
                loss.backward()
                optimizer.step()
                groups.device.synchronise()
                times.append(time.perf_counter_ns() - start)
            return times

        return Loops(suites, bare)

    if bare_first:
        second = by_hand()
        first = of_the_suite()
    else:
        first = of_the_suite()
        second = by_hand()
    return loops(first), loops(second)


def all_reduce_loops(size: int, groups: Groups, bare_first: bool) -> tuple[Loops, Loops]:
    """The suite's timing of an all-reduce and a bare one, both on each of two buffers."""
    make = find_maker(groups, "all_reduce")

    def loops(call: Call) -> Loops:
        buffer = getattr(call.clear, "__self__", None)  # what it zeroes; the call has it nowhere else
        assert isinstance(buffer, torch.Tensor)

        def suites(count: int) -> list[int]:
            return list(measure(groups, call, Sweep(warmup=1, repeats=count, min_repeats=count)).ns)

        def bare(count: int) -> list[int]:
            buffer.zero_()
            for _ in range(2):
                dist.all_reduce(buffer, group=groups.measured)
            gc.collect()
            groups.barrier()
            times = []
            for _ in range(count):
                start = time.perf_counter_ns()
                dist.all_reduce(buffer, group=groups.measured)
                groups.device.synchronise()
                times.append(time.perf_counter_ns() - start)
            return times

        return Loops(suites, bare)

    one, other = make(groups, size), make(groups, size)
    return (loops(other), loops(one)) if bare_first else (loops(one), loops(other))


def compare(
    loops_name: str,
    models_name: str | None,
    models: tuple[Loops, Loops],
    groups: Groups,
    seconds: float,
    steps: int,
) -> list[dict[str, Any]]:
    """Interleave all four for about ``seconds``; all ranks get the same rows, from the largest time over the ranks.

    One row compares the loops, over both models; one, where it has a name, the models, over both loops.
    """
    series = [loop for model in models for loop in model]
    warm_up = [t for one in series for t in one(steps)]
    step = groups.largest(statistics.median(warm_up)) / 1e9  # the same on all ranks, and so the counts below
    steps = max(steps, min(MOST_STEPS, int(ROUND_SECONDS / step)))
    rounds = max(ROUNDS[0], min(ROUNDS[1], int(seconds / (len(series) * steps * step))))
    orders = list(itertools.permutations(range(len(series))))
    random.Random(1).shuffle(orders)  # noqa: S311 - alike on all ranks
    times: list[list[list[int]]] = [[] for _ in series]
    for order in itertools.islice(itertools.cycle(orders), rounds):
        for i in order:
            own = series[i](steps)
            times[i].append([max(step) for step in zip(*groups.gather(own), strict=True)])
    # Both loops on the suite's model are the first two series, both on the other the last two.
    rows = [_row(loops_name, times, (0, 2), (1, 3), steps)]
    if models_name:
        rows.append(_row(models_name, times, (0, 1), (2, 3), steps))
    return rows


def _row(
    what: str, times: list[list[list[int]]], numerator: tuple[int, int], denominator: tuple[int, int], steps: int
) -> dict[str, Any]:
    """The geometric mean of two series ÷ that of two others, by rounds; ``times`` is [series][round][step] in ns."""
    rounds = [[statistics.median(of_round) for of_round in one] for one in times]
    ratios = [
        math.sqrt((a * b) / (c * d))
        for a, b, c, d in zip(*(rounds[i] for i in (*numerator, *denominator)), strict=True)
    ]
    known = median_interval(ratios)
    assert known is not None  # ROUNDS[0] are enough
    seconds = [
        statistics.median(t for i in side for of_round in times[i] for t in of_round) / 1e9
        for side in (numerator, denominator)
    ]
    return {
        "what": what,
        "suite_seconds": seconds[0],
        "bare_seconds": seconds[1],
        "ratio": statistics.median(ratios),
        "interval": known.as_tuple(),
        "rounds": len(ratios),
        "steps_per_round": steps,
    }


def table(result: dict[str, Any]) -> str:
    """The result for a reader."""
    lines = [
        f"torch {result['torch']}, {result['backend']}, {result['device']}, world size {result['world_size']}, "
        f"{result['threads']} thread(s) a rank, load {result['load']:.1f}",
        f"  {'':28}{'suite':>12}{'by hand':>12}{'ratio':>8}   95% interval of the rounds",
    ]
    for row in result["rows"]:
        suites, bare = (f"{row[key] * 1e3:.3f} ms" for key in ("suite_seconds", "bare_seconds"))
        low, high = row["interval"]
        verdict = "" if abs(row["ratio"] - 1) <= LIMIT else f"   off by more than {LIMIT:.0%}"
        lines.append(
            f"  {row['what']:28}{suites:>12}{bare:>12}{row['ratio']:8.3f}   [{low:.3f}, {high:.3f}] of "
            f"{row['rounds']} rounds of {row['steps_per_round']}{verdict}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
