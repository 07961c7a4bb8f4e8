"""``summary.json``: the machine-readable contract of a finished run.

Times are in seconds, sizes in bytes, bandwidths in bytes per second. A value that could not be measured or
estimated is null, never a guess; a backend that could not run has a row all the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

SUMMARY_FORMAT = 1


@dataclass(frozen=True)
class Estimate:
    """A median with its 95% interval; ``ci`` is null where the interval is not estimable."""

    median: float
    ci: tuple[float, float] | None = None


@dataclass(frozen=True)
class StepSeconds:
    """Step time of the job (max over ranks): median of launch values, exact interval, and pooled extremes.

    ``p99`` is null below 100 samples.
    """

    median: float
    ci: tuple[float, float] | None
    p95: float | None
    p99: float | None
    min: float
    max: float


@dataclass(frozen=True)
class Ratio:
    """A row's step time over the fastest row's. ``verdict``: fastest, slower, equivalent, unresolved."""

    estimate: float
    ci: tuple[float, float] | None
    p: float | None
    verdict: str


@dataclass(frozen=True)
class Launches:
    """How many launches count, and how many were tried."""

    valid: int
    attempted: int


@dataclass(frozen=True)
class EquivalenceResult:
    """``status``: pass, fail, not run."""

    status: str
    detail: str = ""


@dataclass(frozen=True)
class Row:
    """One arm of one workload at one world size.

    ``arm`` equals ``backend`` unless the run compared arms. ``exposed_communication_seconds`` may be
    negative inside its interval and is never clipped. ``hidden_share`` = 1 − E/C.
    """

    workload: str
    backend: str
    arm: str
    device: str
    world_size: int
    status: str  # ok, failed, unavailable, invalid
    reason: str | None
    launches: Launches
    steps_per_launch: int | None = None
    warmup_steps: int | None = None
    step_seconds: StepSeconds | None = None
    between_launch_cv: float | None = None
    within_launch_iqr_seconds: float | None = None
    outliers: int | None = None
    samples_per_second: float | None = None
    ratio_to_fastest: Ratio | None = None
    compute_seconds: float | None = None  # T_nosync
    single_process_seconds: float | None = None  # T_1
    exposed_communication_seconds: Estimate | None = None
    exposed_share: float | None = None
    communication_seconds: float | None = None  # C: isolated all-reduces at the actual buckets
    hidden_share: float | None = None
    weak_scaling_efficiency: float | None = None  # T_1 / T_sync
    free_running_seconds: float | None = None
    busbw_bytes_per_second: float | None = None
    link_fraction: float | None = None
    skew_seconds: float | None = None
    equivalence: EquivalenceResult = field(default_factory=lambda: EquivalenceResult("not run"))
    transport: str = "unknown"
    article_seconds: float | None = None
    blocks: int = 0  # complete blocks that this row is part of
    launch_values: tuple[float, ...] = ()  # median step seconds of each valid launch, in block order
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class PairResult:
    """Two arms of one workload and world size: ratio = time of ``a`` over time of ``b``.

    ``p`` is Holm-adjusted. ``verdict`` speaks of ``a``: slower, faster, equivalent, unresolved; or "not
    comparable" where fields differ that must be equal. ``blocks_needed`` only when unresolved.
    ``within_delta``: whatever the verdict, the 90% interval lies inside the margin of equivalence.
    ``below_floor``: the difference is no larger than that of two copies of one arm (A/A).
    """

    workload: str
    world_size: int
    a: str
    b: str
    ratio: float | None
    ci: tuple[float, float] | None
    p: float | None
    verdict: str
    blocks: int = 0
    blocks_needed: int | None = None
    bootstrap_ci: tuple[float, float] | None = None
    p_raw: float | None = None
    within_delta: bool = False
    below_floor: bool = False


@dataclass(frozen=True)
class CollectiveResult:
    """One collective at one size: median over launches of the max over ranks."""

    backend: str
    arm: str
    collective: str
    bytes: int
    world_size: int
    seconds: float | None
    ci: tuple[float, float] | None
    algbw: float | None
    busbw: float | None
    wrong: int
    implementation: str = "torch"
    purpose: str = "sweep"
    link_fraction: float | None = None
    status: str = "ok"  # ok, unavailable, invalid
    reason: str | None = None


@dataclass(frozen=True)
class LinkResult:
    """B: point-to-point bandwidth between two hosts as the suite measured it, bytes per second."""

    backend: str
    world_size: int
    bytes_per_second: float
    ci: tuple[float, float] | None = None


@dataclass(frozen=True)
class ModelResult:
    """t(S) = alpha + S / beta for one collective; alpha in seconds, beta in bytes per second.

    ``worst_misfit`` is the largest |measured ÷ line − 1| over the sizes, at ``worst_bytes``.
    """

    backend: str
    arm: str
    collective: str
    world_size: int
    alpha: float
    alpha_ci: tuple[float, float] | None
    beta: float
    beta_ci: tuple[float, float] | None
    min_bytes: int
    max_bytes: int
    worst_misfit: float | None = None
    worst_bytes: int | None = None


@dataclass(frozen=True)
class Summary:
    """The whole of ``summary.json``."""

    run: str
    cluster: str
    created: str
    plan: str
    stop_reason: str
    environment: dict[str, Any]
    rows: tuple[Row, ...]
    pairs: tuple[PairResult, ...]
    collectives: tuple[CollectiveResult, ...] = ()
    links: tuple[LinkResult, ...] = ()
    models: tuple[ModelResult, ...] = ()
    resolution_floor: dict[str, float] = field(default_factory=dict)  # workload/world -> ln ratio from A/A
    delta: float = 0.03
    suite_version: str = ""
    warnings: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()  # records that could not be used, each naming its file
    format: int = SUMMARY_FORMAT


@dataclass(frozen=True)
class BundleInfo:
    """``bundle.json``: what made the bundle. ``report_code`` is the digest of the code that rendered the texts."""

    name: str
    run: str
    anonymous: bool
    suite_version: str
    report_code: str
    format: int = SUMMARY_FORMAT
