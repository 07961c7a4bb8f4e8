"""Does the suite's measured loop show what a bare loop shows? Both, interleaved, in one process group.

    PYTHONPATH=. torchrun --nproc_per_node=2 benchmarks/fidelity.py --backend gloo --json fidelity-gloo.json
    PYTHONPATH=. mpirun -np 2 --bind-to none python3 benchmarks/fidelity.py --backend mpi --json fidelity-mpi.json

Rounds alternate between the suite's loop and one written by hand on a model of its own, in alternating order. A
step's time is the largest over the ranks. Printed: the median of each, and of the ratios of the rounds, whose two
halves a busy machine slows alike, the median with its exact binomial interval. The same for an all-reduce. What takes
little time gets more rounds and more calls in a round. Exit code 1 when a ratio is off by more than 2%.
"""

# ruff: noqa: E402  # the threads must be set before torch is imported

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from suite.analysis.statistics import median_interval
from suite.records import DdpOptions, Sweep
from suite.worker.collectives import find_maker
from suite.worker.device import make_device
from suite.worker.groups import Groups
from suite.worker.identity import identify
from suite.worker.steps import distributed, timed_steps
from suite.worker.timing import measure
from suite.worker.workloads import Workload, build

LIMIT = 0.02
ALL_REDUCE_BYTES = (4096, 1 << 20, 16 << 20)
ROUND_SECONDS, MOST_STEPS = 0.1, 500  # of one loop in one round
ROUNDS = (20, 500)  # fewest and most
Series = Callable[[int], list[int]]  # a number of repeats -> nanoseconds of each


def main() -> int:
    """Run all comparisons; rank 0 prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--backend", choices=("gloo", "mpi", "nccl"), default="gloo")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--workload", nargs="*", default=["linear", "transformer-tiny"])
    parser.add_argument(
        "--seconds", type=float, default=90.0, help="for one comparison of steps, about; an all-reduce gets a third"
    )
    parser.add_argument(
        "--bare-first", action="store_true", help="build the bare loop's model and buffer before the suite's"
    )
    parser.add_argument("--steps", type=int, default=8, help="steps of one round, at least")
    parser.add_argument("--json", type=Path, help="write the result there")
    options = parser.parse_args()
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29555")
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    identity = identify(os.environ)
    device = make_device(options.device, identity.local_rank)
    groups = Groups(options.backend, identity.rank, identity.world_size, device, 600.0)
    rows = [
        compare(f"{name}, step", *step_loops(name, groups, options.bare_first), groups, options.seconds, options.steps)
        for name in options.workload
    ]
    for size in ALL_REDUCE_BYTES:
        loops = all_reduce_loops(size, groups, options.bare_first)
        rows.append(compare(f"all_reduce, {size} bytes", *loops, groups, options.seconds / 3, options.steps))
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


def step_loops(name: str, groups: Groups, bare_first: bool) -> tuple[Series, Series]:
    """The suite's loop and a bare one, each on a model of its own with the same weights and data.

    Where in memory a model comes to lie depends on what was built before, so either may be built first.
    """

    def built() -> Workload:
        place = groups.device.torch_device
        return build(name, seed=1, rank=groups.rank, device=place, batch_size=None)

    def by_hand() -> tuple[Workload, DistributedDataParallel]:
        bare = built()
        return bare, DistributedDataParallel(bare.model, process_group=groups.measured)

    if bare_first:
        workload, model = by_hand()
        trainee = distributed(built(), groups, DdpOptions())
    else:
        trainee = distributed(built(), groups, DdpOptions())
        workload, model = by_hand()
    optimizer = workload.optimizer(model.parameters())
    inputs, targets, loss_fn = workload.inputs, workload.targets, workload.loss_fn

    def suites(count: int) -> list[int]:
        return list(timed_steps(trainee, groups.device, count, groups.barrier).total_ns)

    def bare(count: int) -> list[int]:
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

    return suites, bare


def all_reduce_loops(size: int, groups: Groups, bare_first: bool) -> tuple[Series, Series]:
    """The suite's timing of an all-reduce and a bare one, each on a buffer of its own."""
    make = find_maker(groups, "all_reduce")

    def by_hand() -> torch.Tensor:
        return torch.zeros(size // 4, device=groups.device.torch_device)

    if bare_first:
        buffer = by_hand()
        call = make(groups, size)
    else:
        call = make(groups, size)
        buffer = by_hand()

    def suites(count: int) -> list[int]:
        return list(measure(groups, call, Sweep(warmup=1, repeats=count, min_repeats=count)).ns)

    def bare(count: int) -> list[int]:
        for _ in range(2):
            dist.all_reduce(buffer, group=groups.measured)
        groups.barrier()
        times = []
        for _ in range(count):
            start = time.perf_counter_ns()
            dist.all_reduce(buffer, group=groups.measured)
            groups.device.synchronise()
            times.append(time.perf_counter_ns() - start)
        return times

    return suites, bare


def compare(what: str, suites: Series, bare: Series, groups: Groups, seconds: float, steps: int) -> dict[str, Any]:
    """Interleave both for about ``seconds``; all ranks get the same result, from the largest time over the ranks."""
    warm_up = [t for loop in (suites, bare) for t in loop(steps)]
    step = groups.largest(statistics.median(warm_up)) / 1e9  # the same on all ranks, and so the counts below
    steps = max(steps, min(MOST_STEPS, int(ROUND_SECONDS / step)))
    rounds = max(ROUNDS[0], min(ROUNDS[1], int(seconds / (2 * steps * step))))
    times: dict[Series, list[list[int]]] = {suites: [], bare: []}
    for number in range(rounds):
        for loop in (suites, bare) if number % 2 else (bare, suites):
            own = loop(steps)
            times[loop].append([max(step) for step in zip(*groups.gather(own), strict=True)])
    medians = {loop: statistics.median(t for series in times[loop] for t in series) for loop in times}
    ratios = [statistics.median(a) / statistics.median(b) for a, b in zip(times[suites], times[bare], strict=True)]
    known = median_interval(ratios)
    assert known is not None  # ROUNDS[0] are enough
    return {
        "what": what,
        "suite_seconds": medians[suites] / 1e9,
        "bare_seconds": medians[bare] / 1e9,
        "ratio": statistics.median(ratios),
        "interval": known.as_tuple(),
        "rounds": rounds,
        "steps_per_round": steps,
    }


def table(result: dict[str, Any]) -> str:
    """The result for a reader."""
    lines = [
        f"torch {result['torch']}, {result['backend']}, {result['device']}, world size {result['world_size']}, "
        f"{result['threads']} thread(s) a rank, load {result['load']:.1f}",
        f"  {'':28}{'suite':>12}{'bare loop':>12}{'ratio':>8}   95% interval of the rounds",
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
