"""An executor without processes: the campaign, the records and the analysis are real, the training is not.

A stand-in only for time: a real executor takes seconds a launch, and these tests are about hundreds of launches.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from suite.cluster.executor import LauncherResult, judge, rank_hosts
from suite.paths import rank_file
from suite.records import (
    Equivalence,
    Failure,
    HostProbe,
    LaunchOutcome,
    LaunchSpec,
    RankRecord,
    StepSamples,
    WorkloadFacts,
    to_json,
)


@dataclass
class FakeExecutor:
    """Launches that take no time. ``seconds`` is each arm's step time; ``fail`` says which launches fail."""

    seconds: dict[str, float]
    spread: float = 0.002
    backends: dict[str, str | None] = field(
        default_factory=lambda: {"gloo": None, "mpi": None, "nccl": "no CUDA device"}
    )
    fail: Callable[[LaunchSpec], str | None] = lambda _spec: None
    before: Callable[[LaunchSpec], None] = lambda _spec: None
    specs: list[LaunchSpec] = field(default_factory=list)
    hosts: tuple[str, ...] = ("h1", "h2")
    code: str = ""
    launch_seconds: float = 2.0

    def probe(self, _device: str) -> tuple[HostProbe, ...]:
        packages = {"pypi/torch": "2.6.0"}
        return tuple(
            HostProbe(host, dict(self.backends), cores=2, code=self.code, packages=packages) for host in self.hosts
        )

    def output_folder(self, launch: str) -> str:
        return f"/nowhere/{launch}"

    def master_port(self) -> int:
        return 29500

    def launch(self, spec: LaunchSpec, folder: Path) -> LaunchOutcome:
        self.before(spec)
        self.specs.append(spec)
        cause = self.fail(spec)
        for rank, host in enumerate(rank_hosts(spec)):
            failure = Failure("measure", cause, host, rank) if cause and rank == 1 else None
            (folder / rank_file(rank)).write_text(to_json(self._record(spec, rank, host, failure)))
        code = 1 if cause else 0
        results = [LauncherResult(host.name, code) for host in spec.hosts]
        return judge(spec, folder, results, wall_seconds=self.launch_seconds, started_at=0.0, commands={})

    def _record(self, spec: LaunchSpec, rank: int, host: str, failure: Failure | None) -> RankRecord:
        noise = random.Random(f"{spec.seed}/{spec.arm.name}/{spec.index}")
        launch = self.seconds[spec.arm.name] * (1 + noise.gauss(0, self.spread))

        def times(count: int) -> tuple[int, ...]:
            return tuple(round(1e9 * launch * (1 + abs(noise.gauss(0, 0.01)))) for _ in range(count))

        total = times(spec.steps)
        return RankRecord(
            run=spec.run,
            launch=spec.launch,
            kind=spec.kind,
            arm=spec.arm.name,
            backend=spec.arm.backend,
            workload=spec.workload,
            block=spec.block,
            device=spec.device,
            world_size=spec.world_size,
            rank=rank,
            local_rank=0,
            host=host,
            facts=WorkloadFacts(1000, 4000, 4000, (4000,), 64, seed=spec.seed),
            synchronised=StepSamples(total, total, total, total, times(spec.warmup_steps)),
            nosync=StepSamples(times(spec.nosync_steps)),
            equivalence=Equivalence("pass", losses=(1.0,) * 10) if spec.kind == "train" else Equivalence("not run"),
            failure=failure,
        )

    def close(self) -> None:
        pass
