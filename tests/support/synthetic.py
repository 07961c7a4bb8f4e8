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
from suite.limits import COLLECTIVES
from suite.paths import RunPaths
from suite.plan import PROTOCOLS, SINGLE_ARM, Plan, Slot
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
SWEEP_BLOCKS = 6
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


def write_run(
    root: Path, truth: Truth, run: str = "20260102-030405-synthetic", change: Change | None = None
) -> RunPaths:
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


def _write_launches(run: RunPaths, truth: Truth, plan: Plan, change: Change | None) -> list[LaunchOutcome]:
    noise = random.Random(truth.seed)
    outcomes: list[LaunchOutcome] = []
    arms = dict(truth.arms)
    if truth.aa:
        arms["aa"] = dataclasses.replace(arms["gloo"], backend="gloo")

    def launch(slot: Slot, arm: ArmTruth, scale: float) -> None:
        index = len(outcomes) + 1
        name = f"{index:04d}-{slot.workload}-{slot.arm}"
        failed = (slot.arm, slot.block) in truth.failed
        digests = {}
        for rank in range(slot.world_size):
            make = _sweep_record if slot.kind == COLLECTIVES else _train_record
            record = make(truth, plan, name, slot, arm, scale, rank)
            if failed:
                record = dataclasses.replace(
                    record, synchronised=StepSamples(), nosync=StepSamples(), collectives=(),
                    failure=Failure("measure", "ConnectionError: peer closed", record.host, record.rank),
                )  # fmt: skip
            record = change(record) if change else record
            data = codec.encode(record)
            path = run.rank(name, rank)
            paths.write_new(path, data)
            digests[path.name] = hashlib.sha256(data).hexdigest()
        outcomes.append(
            LaunchOutcome(
                launch=name, index=index, kind=slot.kind, arm=slot.arm, backend=arm.backend or slot.arm,
                workload=slot.workload, world_size=slot.world_size, block=slot.block,
                status="failed" if failed else "ok",
                failure=Failure("measure", "ConnectionError: peer closed", "h1", 0) if failed else None,
                wall_seconds=3600.0, started_at=1_767_323_045.0 + index, digests=digests,
            )
        )  # fmt: skip

    for block in range(truth.blocks):
        for place, workload in enumerate(truth.workloads):
            for world in truth.worlds:
                largest = world == max(truth.worlds)
                shared = (1 + place) * (1 + truth.block_effect * noise.uniform(-1, 1))
                for name, arm in arms.items():
                    pace = shared * (1 + truth.launch_effect * noise.uniform(-1, 1)) * (1.0 if largest else 0.9)
                    launch(Slot("train", workload, world, block, name), arm, pace)
                if truth.single is not None and largest:
                    single = ArmTruth(truth.single, truth.single, backend="gloo")
                    launch(Slot("single", workload, 1, block, SINGLE_ARM), single, shared)
        for world in (w for w in truth.worlds if w > 1 and truth.sweep and block < SWEEP_BLOCKS):
            for name, arm in truth.arms.items():
                launch(Slot(COLLECTIVES, COLLECTIVES, world, block, name), arm, 1.0)
    return outcomes


def _base(truth: Truth, plan: Plan, launch: str, slot: Slot, backend: str, rank: int) -> RankRecord:
    host = plan.hosts[rank % len(plan.hosts)]
    hosts = " ".join(plan.hosts[r % len(plan.hosts)].name for r in range(slot.world_size))
    environment = {
        "boot_id": f"machine-{host.name}", "cpu_count": 8, "torch_version": "2.6.0", "threads": 1, "load_before": 0.1,
        "suite_version": "0.1.0", "rank_map": hosts, "kernel": "6.1.0", "warmup_steps": truth.warmup,
        "interface": "eth0", "affinity": "0-7", "hostname": f"secret-{host.name}.example",
        "interface_address": host.address, **truth.environment, **truth.arm_environment.get(slot.arm, {}),
    }  # fmt: skip
    return RankRecord(
        run=plan.run, launch=launch, kind=slot.kind, arm=slot.arm, backend=backend, workload=slot.workload,
        block=slot.block, device="cpu", world_size=slot.world_size, rank=rank, local_rank=0, host=host.name,
        transport="tcp (eth0)", environment=environment, started_at=1_767_323_045.0,
    )  # fmt: skip


def _train_record(
    truth: Truth, plan: Plan, launch: str, slot: Slot, arm: ArmTruth, scale: float, rank: int
) -> RankRecord:
    # Times of rank 0 are the job's; the others are faster by 1%, so skew = 1% of the step.
    pace = scale * (1.0 if rank == 0 else 0.99)
    pattern = (1.0, 0.99, 1.01, 0.995, 1.005)
    total = tuple(round(arm.step * pace * pattern[i % 5] * 1e9) for i in range(truth.steps))
    base = dataclasses.replace(
        _base(truth, plan, launch, slot, arm.backend or slot.arm, rank),
        facts=WorkloadFacts(1_049_600, 4_198_400, 4_198_400, BUCKETS, BATCH, "float32", slot.block, slot.workload),
        synchronised=StepSamples(
            total_ns=total,
            forward_ns=tuple(round(t * 0.3) for t in total),
            backward_ns=tuple(round(t * 0.6) for t in total),
            optimizer_ns=tuple(round(t * 0.05) for t in total),
            warmup_total_ns=tuple(
                round(arm.step * pace * (1.5 if i == 0 else 1.02) * 1e9) for i in range(truth.warmup)
            ),
        ),
        free_running=(FreeRun(20, round(20 * arm.step * pace * 1e9)),),
    )
    if slot.kind == "single":
        return base
    failed = arm.gate != "pass"
    buckets = [round(all_reduce_seconds(arm, size, slot.world_size) * 1e9) for size in BUCKETS]
    return dataclasses.replace(
        base,
        nosync=StepSamples(total_ns=tuple(round(arm.nosync * pace * pattern[i % 5] * 1e9) for i in range(20))),
        collectives=tuple(
            CollectiveSamples("all_reduce", size, (ns,) * 5, purpose="bucket")
            for size, ns in zip(BUCKETS, buckets, strict=True)
            if slot.world_size > 1
        ),
        equivalence=Equivalence(
            arm.gate,
            "gradient of weight: error 812 times the bound" if failed else "",
            812.0 if failed else 0.01,
            tuple((1 + 0.1 * slot.block + 0.01 * rank) / (i + 1) * (1 + arm.losses_shift) for i in range(10)),
        ),
    )


def _sweep_record(
    truth: Truth, plan: Plan, launch: str, slot: Slot, arm: ArmTruth, scale: float, rank: int
) -> RankRecord:
    pace = scale * (1 + 0.01 * random.Random(f"{truth.seed}/{launch}").uniform(-1, 1))

    def one(collective: str, size: int, seconds: float) -> CollectiveSamples:
        return CollectiveSamples(collective, size, (round(seconds * pace * 1e9),) * 3)

    samples = [one("all_reduce", size, all_reduce_seconds(arm, size, slot.world_size)) for size in SWEEP_SIZES]
    samples += [one("broadcast", size, arm.alpha + 1.1 * size / arm.beta) for size in SWEEP_SIZES]
    samples.append(one("barrier", 0, arm.alpha))
    if slot.arm == "mpi":
        samples.append(CollectiveSamples("reduce_scatter", SWEEP_SIZES[0], unavailable="mpi has no reduce_scatter"))
    window = 16 << 20
    samples.append(CollectiveSamples("send_recv", window, (round(window / truth.link * 1e9),) * 3, purpose="link"))
    return dataclasses.replace(
        _base(truth, plan, launch, slot, arm.backend or slot.arm, rank), collectives=tuple(samples)
    )
