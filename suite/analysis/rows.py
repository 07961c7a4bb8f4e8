"""One row: all launches of one arm of one workload at one world size, from arrays to the numbers of METHOD.md.

Everything here is seconds, bytes and bytes per second. A value is None where it was not measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from suite.analysis import collectives, statistics, steps
from suite.analysis.load import LaunchData, Samples
from suite.analysis.steps import Floats, JobSteps
from suite.records import LaunchOutcome
from suite.summary import EquivalenceResult, Estimate, Launches, LinkResult, Row, StepSeconds

FREE_RUNNING_LIMIT = 0.02  # synchronised and free-running may differ by this before both are printed


@dataclass(frozen=True)
class LaunchMeasures:
    """What one usable launch of kind "train" or "single" gives.

    ``value`` is T_sync, ``nosync`` T_nosync, ``free`` seconds per free-running step, ``communication`` C,
    ``bucket`` the largest bucket's size and all-reduce time. ``phases`` are medians of the max over ranks.
    """

    launch: str
    arm: str
    block: int
    job: JobSteps
    value: float
    nosync: float | None
    free: float | None
    communication: float | None
    bucket: tuple[int, float] | None
    samples_per_step: int
    warmup_steps: int
    phases: Mapping[str, float]

    @property
    def exposed(self) -> float | None:
        """E = T_sync − T_nosync of this launch; may be negative, never clipped."""
        return None if self.nosync is None else self.value - self.nosync


def measure(launch: LaunchData) -> LaunchMeasures | None:
    """The measures of a usable launch; None where it has no synchronised steps."""
    if not launch.usable or launch.synchronised is None or launch.synchronised.steps == 0:
        return None
    first = launch.ranks[0]
    job = steps.job_steps(seconds(launch.synchronised.total_ns))
    nosync = launch.nosync.total_ns if launch.nosync is not None and launch.nosync.steps else None
    return LaunchMeasures(
        launch=launch.outcome.launch,
        arm=launch.outcome.arm,
        block=launch.outcome.block,
        job=job,
        value=steps.launch_value(job.seconds),
        nosync=None if nosync is None else steps.launch_value(seconds(nosync).max(axis=0)),
        free=_free_running(launch),
        communication=collectives.communication_seconds(launch),
        bucket=collectives.largest_bucket(launch),
        samples_per_step=first.facts.batch_size * first.world_size,
        warmup_steps=int(launch.synchronised.warmup_total_ns.shape[1]),
        phases=_phases(launch.synchronised),
    )


def seconds(nanoseconds: collectives.Nanoseconds) -> Floats:
    """Integer nanoseconds as seconds, same shape."""
    return nanoseconds / 1e9


def _free_running(launch: LaunchData) -> float | None:
    """Seconds per step when K steps are timed as one: max over ranks, median over repetitions."""
    runs = [[run.total_ns / run.steps for run in rank.free_running if run.steps > 0] for rank in launch.ranks]
    repetitions = min((len(run) for run in runs), default=0)
    if repetitions == 0:
        return None
    slowest = [max(run[i] for run in runs) for i in range(repetitions)]
    return float(np.median(slowest)) / 1e9


def _phases(samples: Samples) -> dict[str, float]:
    named = (
        ("forward", samples.forward_ns),
        ("backward", samples.backward_ns),
        ("optimizer", samples.optimizer_ns),
    )
    return {name: float(np.median(ns.max(axis=0))) / 1e9 for name, ns in named if ns.size}


def estimate(values: Sequence[float | None]) -> Estimate | None:
    """Median over launches with its exact interval; None where no launch has a value."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    interval = statistics.median_interval(known)
    return Estimate(float(np.median(known)), None if interval is None else interval.as_tuple())


def middle(values: Sequence[float | None]) -> float | None:
    """Median over launches; None where no launch has a value."""
    found = estimate(values)
    return None if found is None else found.median


def by_block(measures: Sequence[LaunchMeasures], blocks: Sequence[int]) -> list[float]:
    """Launch values in the order of ``blocks``, NaN where the launch is missing."""
    values = {measure.block: measure.value for measure in measures}
    return [values.get(block, float("nan")) for block in blocks]


def build_row(
    *,
    workload: str,
    arm: str,
    backend: str,
    device: str,
    world_size: int,
    outcomes: Sequence[LaunchOutcome],
    measures: Sequence[LaunchMeasures],
    status: str,
    reason: str | None,
    equivalence: EquivalenceResult,
    transport: str,
    single: Sequence[LaunchMeasures] = (),
    blocks: int = 0,
    link: LinkResult | None = None,
    article_seconds: float | None = None,
    warnings: Sequence[str] = (),
) -> Row:
    """A row without its rank among others.

    Args:
        outcomes: the launches that were tried, interrupted ones excluded.
        measures: those that count, in block order.
        single: the launches of T_1 of the same workload.
        blocks: complete blocks that the arm is part of.
        link: B at this world size.
    """
    ordered = sorted(measures, key=lambda measure: measure.block)
    launches = Launches(len(ordered), len(outcomes))
    if not ordered:
        return Row(
            workload, backend, arm, device, world_size, status, reason, launches,
            equivalence=equivalence, transport=transport, article_seconds=article_seconds,
            warnings=tuple(warnings),
        )  # fmt: skip
    times = [measure.job.seconds for measure in ordered]
    step = step_seconds(ordered)
    exposed = estimate([measure.exposed for measure in ordered])
    communication = middle([measure.communication for measure in ordered])
    one = middle([measure.value for measure in single])
    busbw = row_busbw(ordered, world_size)
    return Row(
        workload=workload,
        backend=backend,
        arm=arm,
        device=device,
        world_size=world_size,
        status=status,
        reason=reason,
        launches=launches,
        steps_per_launch=int(np.median([series.size for series in times])),
        warmup_steps=max(measure.warmup_steps for measure in ordered),
        step_seconds=step,
        between_launch_cv=steps.between_launch_cv([measure.value for measure in ordered]),
        within_launch_iqr_seconds=steps.within_launch_iqr(times),
        outliers=sum(steps.outlier_count(series) for series in times),
        samples_per_second=steps.samples_per_second(ordered[0].samples_per_step, times) or None,
        compute_seconds=middle([measure.nosync for measure in ordered]),
        single_process_seconds=one,
        exposed_communication_seconds=exposed,
        exposed_share=None if exposed is None else exposed.median / step.median,
        communication_seconds=communication,
        hidden_share=None if exposed is None or not communication else 1 - exposed.median / communication,
        weak_scaling_efficiency=None if one is None else one / step.median,
        free_running_seconds=middle([measure.free for measure in ordered]),
        busbw_bytes_per_second=busbw,
        link_fraction=collectives.share_of_link(busbw, link),
        skew_seconds=float(np.median(np.concatenate([measure.job.skew_seconds for measure in ordered]))),
        equivalence=equivalence,
        transport=transport,
        article_seconds=article_seconds,
        blocks=blocks,
        launch_values=tuple(measure.value for measure in ordered),
        warnings=tuple(warnings),
    )


def step_seconds(measures: Sequence[LaunchMeasures]) -> StepSeconds:
    """Median and interval over launch values; percentiles and extremes over the pooled steps."""
    middle_value = estimate([measure.value for measure in measures])
    pooled = steps.spread(np.concatenate([measure.job.seconds for measure in measures]))
    assert middle_value is not None  # there is at least one launch, or there would be no row
    return StepSeconds(
        median=middle_value.median,
        ci=middle_value.ci,
        p95=pooled.p95,
        p99=pooled.p99,
        min=pooled.minimum,
        max=pooled.maximum,
    )


def row_busbw(measures: Sequence[LaunchMeasures], world_size: int) -> float | None:
    """busbw of the isolated all-reduce at the workload's largest bucket, median over launches."""
    values = [
        None if m.bucket is None else collectives.bus_bandwidth("all_reduce", m.bucket[0], m.bucket[1], world_size)
        for m in measures
    ]
    return middle(values)


def free_running_differs(row: Row) -> bool:
    """Whether the two timing modes differ by more than METHOD.md allows, so that both must be shown."""
    if row.step_seconds is None or row.free_running_seconds is None or row.step_seconds.median <= 0:
        return False
    return abs(row.free_running_seconds / row.step_seconds.median - 1) > FREE_RUNNING_LIMIT
