"""Runs made of numbers that are known beforehand: real files, written as ranks and the campaign write them.

A ``Truth`` says what a run should show. Times are made so that medians come out exactly: within a launch the
job's steps alternate around the launch value, and rank 0 is always the slowest by a fixed factor.
"""

from __future__ import annotations

import dataclasses
import hashlib
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from suite import codec, paths
from suite.paths import RunPaths
from suite.plan import COLLECTIVES, PROTOCOLS, SINGLE_ARM, Plan
from suite.records import (
    Arm,
    CollectiveSamples,
    Equivalence,
    Failure,
    FreeRun,
    HostSlots,
    LaunchOutcome,
    Manifest,
    RankRecord,
    Settings,
    StepSamples,
    WorkloadFacts,
)

CREATED = "2026-01-02T03:04:05Z"
BUCKETS = (1_048_576, 3_145_728)
BATCH = 64
SWEEP_SIZES = tuple(1 << exponent for exponent in range(10, 25, 2))
Change = Callable[[RankRecord], RankRecord]


@dataclass(frozen=True)
class ArmTruth:
    """What one arm takes: seconds a step, seconds without communication, and α and busbw β of its all-reduce."""

    step: float
    nosync: float
    alpha: float = 1e-4
    beta: float = 100e6
    backend: str | None = None
    losses_shift: float = 0.0
    gate: str = "pass"


@dataclass(frozen=True)
class Truth:
    """A whole run. ``unavailable`` maps arms to reasons; ``failed`` holds (arm, block) of failed launches."""

    arms: Mapping[str, ArmTruth]
    workloads: tuple[str, ...] = ("linear",)
    worlds: tuple[int, ...] = (4,)
    hosts: int = 4
    blocks: int = 8
    plan: str = "standard"
    steps: int = 50
    warmup: int = 20
    block_effect: float = 0.01
    launch_effect: float = 0.002
    single: float | None = 0.030
    link: float = 125e6
    sweep: bool = False
    unavailable: Mapping[str, str] = field(default_factory=dict)
    failed: frozenset[tuple[str, int]] = frozenset()
    environment: Mapping[str, Any] = field(default_factory=dict)
    arm_environment: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    aa: bool = False
    stop_reason: str = "target"
    seed: int = 1
    host_names: tuple[str, ...] = ()


TWO_ARMS: Mapping[str, ArmTruth] = {
    "gloo": ArmTruth(0.0418, 0.036, 1e-4, 110e6),
    "mpi": ArmTruth(0.0967, 0.036, 2e-4, 50e6),
}


def write_run(root: Path, truth: Truth, run: str = "20260102-030405-synthetic", change: Change | None = None) -> RunPaths:
    """Write the run below ``root``; ``change`` may alter any record before it is written."""
    run_paths = RunPaths(root / run)
    hosts = _hosts(truth)
    plan = _plan(truth, run, hosts)
    run_paths.root.mkdir(parents=True)
    paths.write_new(run_paths.plan, codec.encode(plan, indent=1))
    outcomes = _write_launches(run_paths, truth, plan, change)
    settings = tuple(
        Settings(workload, world, truth.warmup, truth.steps, dict.fromkeys(truth.arms, True), "synthetic")
        for workload in truth.workloads
        for world in truth.worlds
    )
    manifest = Manifest(
        run=run, cluster=plan.cluster, created=CREATED, suite_version="0.1.0", suite_commit="0" * 40, suite_dirty=False,
        image_id="sha256:" + "1" * 64, hosts=hosts, unavailable=dict(truth.unavailable), settings=settings,
        launches=tuple(outcomes), stop_reason=truth.stop_reason,
    )  # fmt: skip
    paths.replace(run_paths.manifest, codec.encode(manifest, indent=1))
    return run_paths


def all_reduce_seconds(arm: ArmTruth, size_bytes: int, world_size: int) -> float:
    """α + 2(n−1)/n · S/β: β is the busbw that large messages reach."""
    return arm.alpha + 2 * (world_size - 1) / world_size * size_bytes / arm.beta


def edit_manifest(run: RunPaths, **changes: Any) -> Manifest:
    """Change fields of the ledger on disk."""
    manifest = dataclasses.replace(codec.read(run.manifest, Manifest), **changes)
    paths.replace(run.manifest, codec.encode(manifest))
    return manifest


def _hosts(truth: Truth) -> tuple[HostSlots, ...]:
    names = truth.host_names or tuple(f"h{i + 1}" for i in range(truth.hosts))
    return tuple(HostSlots(name, f"192.0.2.{i + 11}", 1, "eth0") for i, name in enumerate(names))


def _plan(truth: Truth, run: str, hosts: tuple[HostSlots, ...]) -> Plan:
    arms = tuple(Arm(name, arm.backend or name) for name, arm in truth.arms.items())
    arms += tuple(Arm(name, name) for name in truth.unavailable if name not in truth.arms)
    protocol = dataclasses.replace(PROTOCOLS[truth.plan], aa=truth.aa)
    workloads = (*truth.workloads, *((COLLECTIVES,) if truth.sweep else ()))
    return Plan(
        run=run, name=truth.plan, cluster="synthetic", seed=truth.seed, arms=arms, asked=(), workloads=workloads,
        worlds=truth.worlds, hosts=hosts, device="cpu", protocol=protocol,
    )  # fmt: skip


def _write_launches(
    run: RunPaths, truth: Truth, plan: Plan, change: Change | None
) -> list[LaunchOutcome]:
    noise = random.Random(truth.seed)
    outcomes: list[LaunchOutcome] = []
    arms = dict(truth.arms)
    if truth.aa:
        arms["aa"] = dataclasses.replace(arms["gloo"], backend="gloo")

    def launch(kind: str, workload: str, world: int, block: int, arm: str, records: Callable[[str], list[RankRecord]]) -> None:
        index = len(outcomes) + 1
        name = f"{index:04d}-{workload}-{arm}"
        failed = (arm, block) in truth.failed
        digests = {}
        for record in records(name):
            if failed:
                record = dataclasses.replace(  # noqa: PLW2901
                    record, synchronised=StepSamples(), nosync=StepSamples(), collectives=(),
                    failure=Failure("measure", "ConnectionError: peer closed", record.host, record.rank),
                )  # fmt: skip
            record = change(record) if change else record  # noqa: PLW2901
            data = codec.encode(record)
            path = run.rank(name, record.rank)
            paths.write_new(path, data)
            digests[path.name] = hashlib.sha256(data).hexdigest()
        outcomes.append(
            LaunchOutcome(
                launch=name, index=index, kind=kind, arm=arm, backend=arms[arm].backend or arm if arm in arms else "gloo",
                workload=workload, world_size=world, block=block, status="failed" if failed else "ok",
                failure=Failure("measure", "ConnectionError: peer closed", "h1", 0) if failed else None,
                wall_seconds=3600.0, started_at=1_767_323_045.0 + index, digests=digests,
            )
        )  # fmt: skip

    for block in range(truth.blocks):
        for w, workload in enumerate(truth.workloads):
            for world in truth.worlds:
                shared = 1 + truth.block_effect * noise.uniform(-1, 1)
                for name, arm in arms.items():
                    pace = shared * (1 + truth.launch_effect * noise.uniform(-1, 1))
                    scale = pace * (1 + w) * (1 if world == max(truth.worlds) else 0.9)
                    launch(
                        "train", workload, world, block, name,
                        lambda launch_name, a=arm, n=name, s=scale, wl=workload, b=block, r=world: [
                            _train_record(truth, plan, launch_name, wl, r, b, n, a, s, rank) for rank in range(r)
                        ],
                    )  # fmt: skip
                if truth.single is not None and world == max(truth.worlds):
                    launch(
                        "single", workload, 1, block, SINGLE_ARM,
                        lambda launch_name, s=truth.single * shared * (1 + w), wl=workload, b=block: [
                            _train_record(
                                truth, plan, launch_name, wl, 1, b, SINGLE_ARM, ArmTruth(1.0, 1.0, backend="gloo"), s, 0
                            )
                        ],
                    )  # fmt: skip
        if truth.sweep and block < 6:
            for world in (w for w in truth.worlds if w > 1):
                for name, arm in truth.arms.items():
                    launch(
                        COLLECTIVES, COLLECTIVES, world, block, name,
                        lambda launch_name, a=arm, n=name, b=block, r=world: [
                            _sweep_record(truth, plan, launch_name, r, b, n, a, rank) for rank in range(r)
                        ],
                    )  # fmt: skip
    return outcomes


def _base(truth: Truth, plan: Plan, launch: str, kind: str, workload: str, world: int, block: int, arm: str, backend: str, rank: int) -> RankRecord:
    host = plan.hosts[rank % len(plan.hosts)].name
    environment = {
        "boot_id": f"machine-{host}", "cpu_count": 8, "torch.version": "2.6.0", "threads": 1, "load_before": 0.1,
        **truth.environment, **truth.arm_environment.get(arm, {}),
    }  # fmt: skip
    return RankRecord(
        run=plan.run, launch=launch, kind=kind, arm=arm, backend=backend, workload=workload, block=block, device="cpu",
        world_size=world, rank=rank, local_rank=0, host=host, transport="tcp (eth0)", environment=environment,
        started_at=1_767_323_045.0,
    )  # fmt: skip


def _train_record(
    truth: Truth, plan: Plan, launch: str, workload: str, world: int, block: int, name: str, arm: ArmTruth, scale: float, rank: int
) -> RankRecord:
    # Times of rank 0 are the job's; the others are faster by 1%, so skew = 1% of the step. The gate was passed.
    pace = scale * (1.0 if rank == 0 else 0.99)
    step, nosync = arm.step * pace, arm.nosync * pace
    pattern = [1.0, 0.99, 1.01, 0.995, 1.005]
    total = tuple(round(step * pattern[i % 5] * 1e9) for i in range(truth.steps))
    return dataclasses.replace(
        _base(truth, plan, launch, "single" if name == SINGLE_ARM else "train", workload, world, block, name, arm.backend or name, rank),
        facts=WorkloadFacts(1_049_600, 4_198_400, 4_198_400, BUCKETS, BATCH, "float32", block, workload),
        synchronised=StepSamples(
            total_ns=total,
            forward_ns=tuple(round(t * 0.3) for t in total),
            backward_ns=tuple(round(t * 0.6) for t in total),
            optimizer_ns=tuple(round(t * 0.05) for t in total),
            warmup_total_ns=tuple(round(step * (1.5 if i == 0 else 1.02) * 1e9) for i in range(truth.warmup)),
        ),
        nosync=StepSamples(total_ns=tuple(round(nosync * pattern[i % 5] * 1e9) for i in range(20)))
        if name != SINGLE_ARM
        else StepSamples(),
        free_running=(FreeRun(20, round(20 * step * 1e9)),),
        collectives=tuple(
            CollectiveSamples("all_reduce", size, (round(all_reduce_seconds(arm, size, world) * 1e9),) * 5, 0, "torch", "bucket")
            for size in BUCKETS
        )
        if name != SINGLE_ARM and world > 1
        else (),
        equivalence=Equivalence(
            arm.gate,
            "" if arm.gate == "pass" else "gradient of weight: error 812 times the bound",
            0.01 if arm.gate == "pass" else 812.0,
            tuple((1.0 + 0.1 * block + 0.01 * rank) / (i + 1) * (1 + arm.losses_shift) for i in range(10)),
        )
        if name != SINGLE_ARM
        else Equivalence("not run"),
    )  # fmt: skip


def _sweep_record(truth: Truth, plan: Plan, launch: str, world: int, block: int, name: str, arm: ArmTruth, rank: int) -> RankRecord:
    noise = random.Random(f"{truth.seed}/{launch}")
    pace = 1 + 0.01 * noise.uniform(-1, 1)

    def one(collective: str, size: int, factor: float = 1.0) -> CollectiveSamples:
        seconds = all_reduce_seconds(arm, size, world) if factor == 1.0 else arm.alpha + factor * size / arm.beta
        ns = round(seconds * pace * 1e9)
        return CollectiveSamples(collective, size, (ns, ns, ns), 0)

    samples = [one("all_reduce", size) for size in SWEEP_SIZES]
    samples += [one("broadcast", size, 1.1) for size in SWEEP_SIZES]
    samples.append(CollectiveSamples("barrier", 0, (round(arm.alpha * 1e9),) * 3))
    if name == "mpi":
        samples.append(CollectiveSamples("reduce_scatter", SWEEP_SIZES[0], unavailable="mpi has no reduce_scatter"))
    if rank == 0:
        size = 16 << 20
        samples.append(CollectiveSamples("send_recv", size, (round(size / truth.link * 1e9),) * 3, purpose="link"))
    return dataclasses.replace(
        _base(truth, plan, launch, COLLECTIVES, COLLECTIVES, world, block, name, arm.backend or name, rank),
        collectives=tuple(samples),
    )
