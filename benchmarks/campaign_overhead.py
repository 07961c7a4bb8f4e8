"""What does a launch cost beyond the lives of its rank processes?

    python -m benchmarks.campaign_overhead [--quick] [--json PATH] [--lab FOLDER]

Four simulated hosts, a real campaign of short launches, gloo and mpi in turn. The hosts run on this machine's
kernel, so every process of a launch is watched from outside, on one clock: the supervisors (the first and last
thing of the suite's on a host), the launchers (torchrun, mpirun) and the ranks. The wall time of a launch, from the
call to its judged outcome with every record here, is cut into

    controller   before the first supervisor began and after the last one ended: specification, start, exit
                 codes, records, ledger, choice of the port: what the suite adds
    launcher     torchrun's or mpirun's own: between supervisors and ranks, before and after
    ranks        from the first rank's beginning to the last one's end; of this, import of torch and rendezvous
                 are shown, as the ranks record them
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import Limit, Options, columns, document, finish, median, parse_options
from benchmarks.labs import deployed_lab, execute, plan_for
from benchmarks.process_watch import Life, ProcessWatch, now
from suite import codec
from suite.cluster.executor import Executor
from suite.options import RunOptions
from suite.paths import rank_file
from suite.records import HostProbe, LaunchOutcome, LaunchSpec, RankRecord

OVERHEAD_SECONDS = 0.5
# The supervisor comes first: its command line holds the launcher's words and the rank's.
KINDS = (("supervisor", "supervise"), ("launcher", "torch.distributed.run"), ("launcher", "mpirun"), ("rank", "--spec"))
STAGES = ("import", "rendezvous", "total")


@dataclass(frozen=True)
class Launch:
    """One launch, seconds. ``between`` is from the last one's end to this one's call: ledger, port, choice.

    ``stages`` holds the slowest rank's import, rendezvous and total as it recorded them itself.
    """

    backend: str
    kind: str
    wall: float
    before: float
    after: float
    launcher: float
    ranks: float
    between: float | None
    stages: dict[str, float]

    @property
    def controller(self) -> float:
        """The suite's own part of the wall time."""
        return self.before + self.after


def split(called: float, returned: float, lives: Sequence[Life]) -> dict[str, float] | None:
    """The wall time's parts from the processes' lives; None when supervisors or ranks were not all seen."""
    supervisors = [life for life in lives if life.kind == "supervisor" and life.ended is not None]
    ranks = [life for life in lives if life.kind == "rank" and life.ended is not None]
    if not supervisors or not ranks:
        return None
    first, last = min(s.began for s in supervisors), max(s.ended or 0.0 for s in supervisors)
    begin, end = min(r.began for r in ranks), max(r.ended or 0.0 for r in ranks)
    return {
        "wall": returned - called,
        "before": first - called,
        "launcher": (begin - first) + (last - end),
        "ranks": end - begin,
        "after": returned - last,
    }


class Watched:
    """An executor that notes every launch's wall time and its processes' lives."""

    def __init__(self, inner: Executor, watch: ProcessWatch) -> None:
        self._inner, self._watch = inner, watch
        self._returned: float | None = None
        self.launches: list[Launch] = []

    def probe(self, device: str) -> tuple[HostProbe, ...]:
        return self._inner.probe(device)

    def launch(self, spec: LaunchSpec, folder: Path) -> LaunchOutcome:
        """See ``Executor.launch``."""
        between = None if self._returned is None else now() - self._returned
        called = now()
        outcome = self._inner.launch(spec, folder)
        returned = now()
        # Others may run launches on this machine too: this one's processes name its folder.
        lives = [life for life in self._watch.take() if spec.output_folder in life.command]
        parts = split(called, returned, lives)
        if outcome.status == "ok" and parts is not None:
            records = [codec.read(folder / rank_file(rank), RankRecord) for rank in range(spec.world_size)]
            stages = {stage: max(record.marks.get(stage, 0.0) for record in records) for stage in STAGES}
            self.launches.append(Launch(spec.arm.name, spec.kind, between=between, stages=stages, **parts))
        self._returned = now()
        return outcome

    def output_folder(self, launch: str) -> str:
        return self._inner.output_folder(launch)

    def master_port(self) -> int:
        return self._inner.master_port()

    def close(self) -> None:
        self._inner.close()


def run(options: Options) -> list[Launch]:
    """A campaign on the lab; its train launches, in order."""
    seen: list[Watched] = []
    blocks = "2" if options.quick else "10"
    with (
        deployed_lab(options) as deployed,
        tempfile.TemporaryDirectory(prefix="bench-") as folder,
        ProcessWatch(KINDS) as watch,
    ):

        def watched(executor: Executor) -> Executor:
            seen.append(Watched(executor, watch))
            return seen[0]

        chosen = RunOptions(backend="gloo,mpi", workload="linear", plan="quick", blocks=blocks, steps="20", seed="3")
        execute(deployed, plan_for(deployed, chosen), Path(folder), watched)
    return [launch for launch in seen[0].launches if launch.kind == "train"]


def summary(launches: Sequence[Launch]) -> dict[str, dict[str, float | None]]:
    """Medians by backend."""
    found = {}
    for backend in sorted({launch.backend for launch in launches}):
        mine = [launch for launch in launches if launch.backend == backend]
        found[backend] = {
            "launches": float(len(mine)),
            "wall": median([x.wall for x in mine]),
            "controller": median([x.controller for x in mine]),
            "before": median([x.before for x in mine]),
            "after": median([x.after for x in mine]),
            "between": median([x.between for x in mine if x.between is not None]),
            "launcher": median([x.launcher for x in mine]),
            "ranks": median([x.ranks for x in mine]),
            **{stage: median([x.stages[stage] for x in mine]) for stage in STAGES},
        }
    return found


def limits(medians: dict[str, dict[str, float | None]]) -> list[Limit]:
    """The suite's own part, and all that is not the ranks' lives."""
    found = []
    for backend, values in medians.items():
        wall, ranks = values["wall"], values["ranks"]
        rest = wall - ranks if wall is not None and ranks is not None else None
        found += [
            Limit(f"{backend}: the controller's part of a launch", values["controller"], None, OVERHEAD_SECONDS, "s"),
            Limit(
                f"{backend}: wall time less the ranks' lives, the launcher's own part included",
                rest,
                None,
                OVERHEAD_SECONDS,
                "s",
            ),
        ]
    return found


def table(outcomes: dict[str, Any]) -> str:
    """One line per backend, seconds."""
    names = (
        "launches",
        "wall",
        "controller",
        "before",
        "after",
        "between",
        "launcher",
        "ranks",
        "import",
        "rendezvous",
    )
    rows = [
        [backend, *(_cell(name, values.get(name)) for name in names)] for backend, values in outcomes["medians"].items()
    ]
    return "Seconds, medians over launches\n" + columns(["backend", *names], rows)


def _cell(name: str, value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.0f}" if name == "launches" else f"{value:.2f}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and judge; exit 1 when a limit is missed."""
    options = parse_options(__doc__, arguments)
    before = os.getloadavg()
    launches = run(options)
    medians = summary(launches)
    outcomes = {"medians": medians, "launches": [asdict(launch) for launch in launches]}
    result = document("campaign_overhead", options, before, limits(medians), outcomes)
    return finish(result, table(outcomes), options)


if __name__ == "__main__":
    raise SystemExit(main())
