"""Does a slower link expose communication, and leave the computation as it was?

    python -m benchmarks.slow_link [--quick] [--json PATH] [--lab FOLDER]

Two simulated hosts of four, one rank each, because this machine has few cores. The links are limited to 1 Gbit/s and
to 200 Mbit/s in turn (fast, slow, slow, fast), so that whatever else changes meanwhile changes for both; each time
one campaign of `linear` and `transformer-tiny` over gloo and mpi. Reported are, per workload and backend, the
exposed communication and T_nosync at each rate as medians over launches, and their ratios slow ÷ fast with the
suite's own interval for two sets of launches that share no blocks.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import Limit, Options, columns, document, finish, median, parse_options
from benchmarks.labs import Deployed, deployed_lab, execute, plan_for
from suite.analysis.load import load_run
from suite.analysis.rows import LaunchMeasures, measure
from suite.analysis.statistics import Interval
from suite.analysis.unpaired import compare_unpaired
from suite.cluster import lab
from suite.options import RunOptions

FAST, SLOW = "1gbit", "200mbit"
WORKLOADS = ("linear", "transformer-tiny")
BACKENDS = ("gloo", "mpi")
UNCHANGED = (0.9, 1.1)
Key = tuple[str, str, str]  # workload, backend, rate


@dataclass(frozen=True)
class Change:
    """One workload and backend. Seconds, medians over ``launches`` at each rate; ratios are slow ÷ fast.

    ``compute`` is T_nosync. Intervals are None where there are too few launches.
    """

    workload: str
    backend: str
    launches: int
    exposed_fast: float
    exposed_slow: float
    compute_fast: float
    compute_slow: float
    exposed_ratio: float | None
    exposed_interval: tuple[float, float] | None
    compute_ratio: float
    compute_interval: tuple[float, float] | None


def turns(rounds: int) -> list[str]:
    """The rates in turn, each pair in the other order than the one before."""
    return [rate for i in range(rounds) for rate in ((FAST, SLOW) if i % 2 == 0 else (SLOW, FAST))]


def measured(deployed: Deployed, folder: Path, *, quick: bool) -> dict[Key, list[LaunchMeasures]]:
    """Every launch's measures, by workload, backend and rate."""
    found: dict[Key, list[LaunchMeasures]] = {}
    for number, rate in enumerate(turns(1 if quick else 2)):
        lab.link(rate, root=deployed.lab.root)
        options = RunOptions(
            backend=",".join(BACKENDS), workload=",".join(WORKLOADS), world="2", blocks="2" if quick else "3",
            steps="20" if quick else "40", seed=str(number + 1), deadline="5m",
        )  # fmt: skip
        run, _ = execute(deployed, plan_for(deployed, options), folder / str(number))
        for launch in load_run(run).launches:
            one = measure(launch) if launch.outcome.kind == "train" else None
            if one is not None:
                found.setdefault((launch.outcome.workload, launch.outcome.backend, rate), []).append(one)
    return found


def change(workload: str, backend: str, fast: Sequence[LaunchMeasures], slow: Sequence[LaunchMeasures]) -> Change:
    """What the slower link did to one workload over one backend.

    Raises:
        ValueError: a rate without usable launches.
    """
    exposed = [[m.exposed for m in side if m.exposed is not None] for side in (fast, slow)]
    compute = [[m.nosync for m in side if m.nosync is not None] for side in (fast, slow)]
    of_compute = compare_unpaired(compute[0], compute[1])
    # A ratio needs positive numbers, and exposed communication may be hidden altogether.
    of_exposed = compare_unpaired(exposed[0], exposed[1]) if min(map(min, exposed)) > 0 else None
    return Change(
        workload=workload,
        backend=backend,
        launches=min(map(len, compute)),
        exposed_fast=median(exposed[0]) or 0.0,
        exposed_slow=median(exposed[1]) or 0.0,
        compute_fast=median(compute[0]) or 0.0,
        compute_slow=median(compute[1]) or 0.0,
        exposed_ratio=of_exposed.ratio if of_exposed else None,
        exposed_interval=_ends(of_exposed.interval) if of_exposed else None,
        compute_ratio=of_compute.ratio,
        compute_interval=_ends(of_compute.interval),
    )


def _ends(interval: Interval | None) -> tuple[float, float] | None:
    return interval.as_tuple() if interval else None


def changes(found: dict[Key, list[LaunchMeasures]]) -> list[Change]:
    """Every workload and backend that was measured at both rates."""
    pairs = [(w, b) for w in WORKLOADS for b in BACKENDS if (w, b, FAST) in found and (w, b, SLOW) in found]
    return [change(w, b, found[w, b, FAST], found[w, b, SLOW]) for w, b in pairs]


def limits(found: Sequence[Change]) -> list[Limit]:
    """Communication must come out from behind the computation, which must stay as it was."""
    by_name = {(one.workload, one.backend): one for one in found}
    judged = []
    for workload in WORKLOADS:
        for backend in BACKENDS:
            one = by_name.get((workload, backend))
            low = one.exposed_interval[0] if one and one.exposed_interval else None
            judged += [
                Limit(f"{workload}, {backend}: exposed communication, slow ÷ fast, lower end", low, 1.0, None, " x"),
                Limit(
                    f"{workload}, {backend}: T_nosync, slow ÷ fast",
                    one.compute_ratio if one else None,
                    *UNCHANGED,
                    " x",
                ),
            ]
    return judged


def table(outcomes: dict[str, Any]) -> str:
    """A line per workload and backend; times in ms."""
    header = ["workload", "backend", "launches", f"exposed {FAST}", SLOW, "ratio", f"T_nosync {FAST}", SLOW, "ratio"]
    rows = [
        [
            one["workload"], one["backend"], f"{one['launches']} + {one['launches']}",
            f"{one['exposed_fast'] * 1e3:.1f} ms", f"{one['exposed_slow'] * 1e3:.1f} ms",
            _ratio(one["exposed_ratio"], one["exposed_interval"]),
            f"{one['compute_fast'] * 1e3:.2f} ms", f"{one['compute_slow'] * 1e3:.2f} ms",
            _ratio(one["compute_ratio"], one["compute_interval"]),
        ]
        for one in outcomes["changes"]
    ]  # fmt: skip
    return columns(header, rows, left=2)


def _ratio(ratio: float | None, interval: Sequence[float] | None) -> str:
    if ratio is None:
        return "–"
    return f"{ratio:.3f}" + (f" [{interval[0]:.3f}, {interval[1]:.3f}]" if interval else "")


def run(options: Options) -> list[Change]:
    """Both rates on one lab."""
    with deployed_lab(options) as deployed, tempfile.TemporaryDirectory(prefix="bench-") as folder:
        return changes(measured(deployed, Path(folder), quick=options.quick))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and judge; exit 1 when a limit is missed."""
    options = parse_options(__doc__, arguments)
    before = os.getloadavg()
    found = run(options)
    outcomes = {"changes": [asdict(one) for one in found]}
    return finish(document("slow_link", options, before, limits(found), outcomes), table(outcomes), options)


if __name__ == "__main__":
    raise SystemExit(main())
