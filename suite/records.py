"""The raw data that crosses a process boundary: what a launch is told, and what each rank says afterwards.

Everything is a frozen dataclass of plain values, so that it becomes JSON by ``dataclasses.asdict`` and comes
back by ``suite.codec``. Only the standard library is imported here: this module runs inside every container
and on GPU machines that have torch and little else.

Units: names end in ``_ns`` (nanoseconds, integers, from ``time.perf_counter_ns`` of one host),
``_seconds`` or ``_bytes``. Wall-clock instants are POSIX seconds in UTC, never subtracted across hosts.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any

FORMAT_VERSION = 1

BACKENDS = ("nccl", "gloo", "mpi")
# Kinds of a launch. "single" is the same workload in one process without DDP (T_1).
KINDS = ("pilot", "train", "single", "collectives", "article")


@dataclass(frozen=True)
class HostSlots:
    """One host of a launch: its name in the cluster file, how to reach it, and how many ranks it takes.

    ``interface`` is the network interface towards the peers, ``devices`` the CUDA devices by index or UUID
    (one a rank; empty on CPU), ``environment`` what only this host's ranks get.
    """

    name: str
    address: str
    slots: int = 1
    interface: str | None = None
    devices: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class DdpOptions:
    """The DistributedDataParallel flags, the same for every backend unless an arm overrides them."""

    bucket_mb: float = 25.0  # MiB, as DDP's bucket_cap_mb counts
    broadcast_buffers: bool = False
    gradient_as_bucket_view: bool = False
    static_graph: bool = False
    find_unused_parameters: bool = False


@dataclass(frozen=True)
class Arm:
    """One side of a comparison: a backend with overrides. The plain backend is an arm of its own name."""

    name: str
    backend: str
    environment: dict[str, str] = field(default_factory=dict)
    ddp: DdpOptions = field(default_factory=DdpOptions)


@dataclass(frozen=True)
class Sweep:
    """What a ``collectives`` launch measures.

    ``repeats`` counts measured calls per size for small messages; large ones get fewer, down to
    ``min_repeats``, so that one size takes about ``seconds_per_size``.
    """

    collectives: tuple[str, ...] = (
        "all_reduce",
        "broadcast",
        "all_gather",
        "reduce_scatter",
        "all_to_all",
        "barrier",
        "send_recv",
    )
    sizes_bytes: tuple[int, ...] = ()
    warmup: int = 3
    repeats: int = 50
    min_repeats: int = 5
    seconds_per_size: float = 0.5
    raw_mpi: bool = True  # mpi4py's Allreduce beside the mpi backend


@dataclass(frozen=True)
class LaunchSpec:
    """All that a launch is told. Each host gets a copy in which ``host`` is its own name.

    ``seed`` is the block's: the same for every arm of a block. ``steps`` counts measured steps in the
    synchronised mode, ``nosync_steps`` those under ``no_sync``, ``free_steps`` those timed as one,
    ``equivalence_steps`` the untimed ones of the gate. ``environment`` is set in every rank before torch
    is imported. ``inject`` names a deliberate fault ("corrupt-gradient@RANK", "raise@RANK", ...).
    """

    run: str
    launch: str  # "<nnnn>-<workload>-<arm>", also the folder's name
    index: int
    kind: str
    arm: Arm
    workload: str
    batch_size: int | None  # samples per rank and step; None: the workload's own
    device: str  # "cpu" or "cuda"
    world_size: int
    hosts: tuple[HostSlots, ...]
    block: int
    seed: int
    warmup_steps: int
    steps: int
    nosync_steps: int
    free_steps: int
    equivalence_steps: int
    threads: int
    master_address: str
    master_port: int
    deadline_seconds: float
    output_folder: str  # where the ranks write, inside the container
    host: str = ""
    distinct_hosts: bool = True
    allreduce_repeats: int = 10  # isolated all-reduces at the actual bucket sizes
    environment: dict[str, str] = field(default_factory=dict)
    sweep: Sweep | None = None
    inject: str | None = None
    format: int = FORMAT_VERSION


@dataclass(frozen=True)
class StepSamples:
    """Raw step times of one rank in one mode: arrays of equal length, nanoseconds, in the order of the steps.

    ``warmup_total_ns`` are the steps before; they are kept and never analysed as results. ``forward``,
    ``backward`` and ``optimizer`` are phases of the step; zero_grad and the loops' own cost are the rest.
    """

    total_ns: tuple[int, ...] = ()
    forward_ns: tuple[int, ...] = ()
    backward_ns: tuple[int, ...] = ()
    optimizer_ns: tuple[int, ...] = ()
    warmup_total_ns: tuple[int, ...] = ()


@dataclass(frozen=True)
class FreeRun:
    """``steps`` steps timed as one, without synchronising in between."""

    steps: int
    total_ns: int


@dataclass(frozen=True)
class CollectiveSamples:
    """Raw times of one collective at one size on one rank.

    ``size_bytes`` is S of METHOD.md: the full buffer a rank holds (all_reduce, broadcast, send_recv), or the
    sum over ranks (all_gather, reduce_scatter, all_to_all). ``implementation`` is "torch" or "mpi4py".
    ``wrong`` counts wrong elements over all checked calls. ``unavailable`` says why there are no samples.
    ``purpose`` is "sweep", or "bucket" for the isolated all-reduces of a train launch, or "link" for B.
    """

    collective: str
    size_bytes: int
    ns: tuple[int, ...] = ()
    wrong: int = 0
    implementation: str = "torch"
    purpose: str = "sweep"
    unavailable: str | None = None


@dataclass(frozen=True)
class Equivalence:
    """What the gate saw on this rank, before timing.

    ``worst_error`` is the largest |error| ÷ bound over all elements and steps; above 1 fails. ``losses`` are
    the first losses of this rank, compared between backends afterwards. ``parameter_hashes`` are this
    rank's after every step.
    """

    status: str  # "pass", "fail", "not run"
    detail: str = ""
    worst_error: float | None = None
    losses: tuple[float, ...] = ()
    parameter_hashes: tuple[str, ...] = ()


@dataclass(frozen=True)
class WorkloadFacts:
    """What was really trained: sizes in bytes, buckets as DDP built them, in the order of its reduction."""

    parameters: int = 0
    parameter_bytes: int = 0
    gradient_bytes: int = 0
    buckets_bytes: tuple[int, ...] = ()
    batch_size: int = 0
    dtype: str = "float32"
    seed: int = 0
    description: str = ""


@dataclass(frozen=True)
class Failure:
    """Why a rank or a launch failed: ``stage`` is what it was doing, ``cause`` one plain line."""

    stage: str
    cause: str
    host: str | None = None
    rank: int | None = None
    fix: str = ""
    log_tail: tuple[str, ...] = ()
    secondary: bool = False  # a peer's death seen from here, not the first cause
    at: float = 0.0


@dataclass(frozen=True)
class RankRecord:
    """All that one rank says of one launch: ``rank-<r>.json``.

    ``environment`` holds the facts of METHOD.md, flat, unknown ones as None; keys are listed in
    ``suite.worker.environment``. ``marks`` are seconds of this process's life by stage ("import",
    "rendezvous", "setup", "equivalence", "warmup", "measure", "total").
    """

    run: str
    launch: str
    kind: str
    arm: str
    backend: str
    workload: str
    block: int
    device: str
    world_size: int
    rank: int
    local_rank: int
    host: str
    facts: WorkloadFacts = field(default_factory=WorkloadFacts)
    synchronised: StepSamples = field(default_factory=StepSamples)
    nosync: StepSamples = field(default_factory=StepSamples)
    free_running: tuple[FreeRun, ...] = ()
    collectives: tuple[CollectiveSamples, ...] = ()
    equivalence: Equivalence = field(default_factory=lambda: Equivalence("not run"))
    article_seconds: float | None = None
    transport: str = "unknown"
    environment: dict[str, Any] = field(default_factory=dict)
    marks: dict[str, float] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    failure: Failure | None = None
    started_at: float = 0.0
    format: int = FORMAT_VERSION


@dataclass(frozen=True)
class HostProbe:
    """What the worker on one host can do, asked once per run before the plan is made.

    ``backends`` maps each backend to None (can run) or to the reason why not, on this host. ``code`` is the
    digest of the suite's code there, "" where it is not told. ``packages`` is what is installed there, version by name
    ("deb/debian/libc6", "pypi/torch"); a ledger keeps those of one host, because all run the same image.
    """

    host: str
    backends: dict[str, str | None]
    cuda_devices: tuple[str, ...] = ()
    cores: int = 0
    memory_bytes: int = 0
    torch: str = ""
    python: str = ""
    mpi: str = ""  # e.g. "Open MPI 5.0.7"
    workloads: tuple[str, ...] = ()
    environment: dict[str, Any] = field(default_factory=dict)
    code: str = ""
    packages: dict[str, str] = field(default_factory=dict)
    format: int = FORMAT_VERSION


@dataclass(frozen=True)
class LaunchOutcome:
    """What the controller saw of one launch; the raw times are in the ranks' records."""

    launch: str
    index: int
    kind: str
    arm: str
    backend: str
    workload: str
    world_size: int
    block: int
    status: str  # "ok", "failed", "interrupted"
    failure: Failure | None = None
    wall_seconds: float = 0.0
    started_at: float = 0.0
    commands: dict[str, str] = field(default_factory=dict)  # host -> the command as it was run
    digests: dict[str, str] = field(default_factory=dict)  # file -> SHA-256
    output_folder: str = ""  # where the ranks wrote, on their hosts


@dataclass(frozen=True)
class Settings:
    """What the pilots decided for one workload and world size, the same for every arm."""

    workload: str
    world_size: int
    warmup_steps: int
    steps: int
    settled: dict[str, bool] = field(default_factory=dict)
    reason: str = ""
    buckets_bytes: tuple[int, ...] = ()  # DDP's buckets of the workload, for the sweep


@dataclass(frozen=True)
class Manifest:
    """The ledger of a run: rewritten after every launch, so that a kill loses at most the one in flight."""

    run: str
    cluster: str
    created: str  # ISO 8601, UTC, "Z"
    suite_version: str
    suite_commit: str
    suite_dirty: bool
    image_id: str
    hosts: tuple[HostSlots, ...]
    probes: tuple[HostProbe, ...] = ()
    unavailable: dict[str, str] = field(default_factory=dict)  # arm -> reason
    settings: tuple[Settings, ...] = ()
    launches: tuple[LaunchOutcome, ...] = ()
    stop_reason: str | None = None  # "target", "budget", "plan", "interrupted"; None while running
    warnings: tuple[str, ...] = ()
    format: int = FORMAT_VERSION


def to_json(record: Any) -> str:
    """A record as one line of JSON. Raises ValueError on NaN or infinity: no record may hold them."""
    return json.dumps(dataclasses.asdict(record), allow_nan=False, separators=(",", ":"))
