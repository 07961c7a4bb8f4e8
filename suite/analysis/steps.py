"""From the raw step times of a launch to its value, its spread, and the time that the ranks waste waiting.

All times are seconds. Clocks of different hosts are never subtracted: only durations are compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

P99_MIN_SAMPLES = 100  # with fewer, the 99th percentile is little else than the maximum
TUKEY_FENCE = 1.5  # outliers lie more than this many interquartile ranges outside the quartiles
SUM_CHECK_LIMIT = 0.02  # per-rank totals and job totals may differ by 2% before the report warns


@dataclass(frozen=True)
class JobSteps:
    """What the ranks' step times say of the job.

    ``seconds`` has shape (steps,): T_i = max over ranks. ``skew_seconds``, same shape: max − median over
    ranks. ``sum_excess`` = Σ_i T_i ÷ max_r Σ_i t_{r,i} − 1: how much the sum of the slowest rank's steps
    exceeds the slowest rank's sum. Above ``SUM_CHECK_LIMIT`` different ranks are slow in different steps, or
    the ranks' boundaries are shifted against each other, and Σ T_i overstates the job's duration.
    """

    seconds: Floats
    skew_seconds: Floats
    sum_excess: float

    @property
    def sum_check_failed(self) -> bool:
        """Whether the two ways to add up the job differ by more than the limit."""
        return self.sum_excess > SUM_CHECK_LIMIT


@dataclass(frozen=True)
class Spread:
    """Order statistics of pooled steps, in the unit of the input. Outliers are counted and kept.

    ``p99`` is None below 100 samples. ``outliers`` counts values outside Tukey's fences.
    """

    samples: int
    median: float
    p95: float
    p99: float | None
    minimum: float
    maximum: float
    iqr: float
    outliers: int


def job_steps(rank_seconds: Floats | Sequence[Sequence[float]]) -> JobSteps:
    """Combine the ranks' step times, shape (ranks, steps), seconds.

    Raises:
        ValueError: not two-dimensional, empty, or a time is not finite and positive.
    """
    times = np.asarray(rank_seconds, dtype=np.float64)
    if times.ndim != 2 or times.size == 0:
        raise ValueError(f"step times have shape {times.shape}; needed is (ranks, steps), both at least 1")
    _require_positive(times)
    slowest = times.max(axis=0)
    skew = slowest - np.median(times, axis=0)
    longest_rank = float(times.sum(axis=1).max())
    return JobSteps(slowest, skew, float(slowest.sum()) / longest_rank - 1.0)


def launch_value(step_seconds: Floats | Sequence[float]) -> float:
    """The value of one launch: the median of its T_i. The launch is the unit of replication.

    Raises:
        ValueError: empty, or a time is not finite and positive.
    """
    times = np.asarray(step_seconds, dtype=np.float64)
    if times.size == 0:
        raise ValueError("a launch without steps has no value")
    _require_positive(times)
    return float(np.median(times))


def spread(values: Floats | Sequence[float]) -> Spread:
    """Order statistics of any number of pooled values.

    Quantiles interpolate linearly between order statistics (Hyndman & Fan's type 7).

    Raises:
        ValueError: empty or not finite.
    """
    data = np.asarray(values, dtype=np.float64).ravel()
    if data.size == 0 or not np.isfinite(data).all():
        raise ValueError("the spread of no values, or of values that are not finite, is not defined")
    low, q1, median, q3, p95, p99, high = np.quantile(data, (0.0, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)).tolist()
    return Spread(
        samples=int(data.size),
        median=median,
        p95=p95,
        p99=p99 if data.size >= P99_MIN_SAMPLES else None,
        minimum=low,
        maximum=high,
        iqr=q3 - q1,
        outliers=_outside_fences(data, q1, q3),
    )


def outlier_count(values: Floats | Sequence[float]) -> int:
    """How many values lie outside Tukey's fences, q1 − 1.5·IQR and q3 + 1.5·IQR."""
    data = np.asarray(values, dtype=np.float64).ravel()
    if data.size == 0:
        return 0
    q1, q3 = np.quantile(data, (0.25, 0.75)).tolist()
    return _outside_fences(data, q1, q3)


def within_launch_iqr(launches: Sequence[Floats]) -> float | None:
    """Median over launches of the interquartile range of their steps, seconds; None without a launch."""
    ranges = [float(np.subtract(*np.quantile(steps, (0.75, 0.25)))) for steps in launches if len(steps)]
    return float(np.median(ranges)) if ranges else None


def between_launch_cv(launch_values: Floats | Sequence[float]) -> float | None:
    """Standard deviation (n − 1) of the launch values over their mean; None below two launches."""
    values = np.asarray(launch_values, dtype=np.float64)
    if values.size < 2:
        return None
    return float(values.std(ddof=1) / values.mean())


def samples_per_second(samples_per_step: int, launches: Sequence[Floats]) -> float | None:
    """Throughput of the job over all launches: total samples ÷ total time, never a mean of rates.

    Args:
        samples_per_step: over all ranks, so per-rank batch × world size.
        launches: each the T_i of one launch, seconds.
    """
    steps = sum(len(times) for times in launches)
    seconds = float(sum(np.sum(times) for times in launches))
    return samples_per_step * steps / seconds if steps else None


def geometric_mean(ratios: Mapping[str, float]) -> float | None:
    """Geometric mean of one ratio per workload; the only mean of ratios that may be printed, by that name."""
    if not ratios:
        return None
    return float(np.exp(np.mean(np.log(list(ratios.values())))))


def _outside_fences(data: Floats, q1: float, q3: float) -> int:
    margin = TUKEY_FENCE * (q3 - q1)
    return int(np.count_nonzero((data < q1 - margin) | (data > q3 + margin)))


def _require_positive(times: Floats) -> None:
    if not (np.isfinite(times).all() and (times > 0).all()):
        raise ValueError("a step time is not a finite, positive number of seconds")
