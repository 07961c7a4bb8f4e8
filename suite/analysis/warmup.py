"""How many steps of a launch are warm-up, and whether a launch settled.

Successive windows are compared as pyperf does when it calibrates its warm-up: the first value of a window is
no outlier of what follows, the quartiles of two neighbouring windows differ by at most 5%, their median
absolute deviations (MAD) by at most 10%. The first pair of windows that agree ends the warm-up.

Two additions. Neighbouring windows hardly differ during a slow drift, so the first window must also agree
with the second half of the pilot. And twenty steps estimate a quartile or a MAD only roughly: two windows of
one steady process have MADs that differ by more than 10% in three cases of four, so that a literal rule ends
where chance ends it. Each limit is therefore widened to what sampling alone does to windows of that length
(two standard errors, from the later window's spread, which a drift inflates least). Long windows are judged
by the 5% and 10%.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

MIN_WARMUP = 10  # DDP rebuilds its buckets after the first step, allocators and clocks take some more
WINDOW = 20
MIN_WINDOW = 5  # shorter windows decide nothing
QUARTILE_LIMIT = 0.05
MAD_LIMIT = 0.10
NEGLIGIBLE_MAD = 0.01  # of the median: spreads that differ by less than this share of a step do not matter
STANDARD_ERRORS = 2.0  # for the pilot: a false alarm costs a few more warm-up steps
CHECK_STANDARD_ERRORS = 3.0  # for the check afterwards: a false alarm marks a good launch
MAX_CORRELATION = 0.8  # autocorrelation above this is taken for drift
# Asymptotic standard errors for normal data, times √n: a quartile 1.3626 σ = 1.0101 IQR; ln MAD 1.1664.
_QUARTILE_ERROR_PER_IQR = 1.0101
_LOG_MAD_ERROR = 1.1664


@dataclass(frozen=True)
class WarmupResult:
    """``count`` steps to leave out at the start; ``settled``: whether the windows after them agreed.

    Not settled: ``count`` is the largest that could be tried, and the launch is marked, not dropped.
    """

    count: int
    settled: bool


def warmup_count(
    step_seconds: Floats | Sequence[float], minimum: int = MIN_WARMUP, window: int = WINDOW
) -> WarmupResult:
    """Find the warm-up of a pilot launch. Takes about 20 ms for 10,000 steps.

    Args:
        step_seconds: T_i of the whole launch from its first step on, shape (steps,).
        minimum: fewest warm-up steps.
        window: steps per window; shorter where the launch has fewer than ``minimum`` + 2 windows.

    Raises:
        ValueError: not one row of finite, positive numbers.
    """
    times = _checked(step_seconds)
    window = min(window, (times.size - minimum) // 2)
    if window < MIN_WINDOW:
        return WarmupResult(min(minimum, times.size), False)
    windows = sliding_window_view(times[minimum:], window)
    earlier, later = windows[:-window], windows[window:]
    rest = times[None, minimum + (times.size - minimum) // 2 :]
    agree = (
        _windows_agree(earlier, later, STANDARD_ERRORS)
        & _windows_agree(earlier, rest, STANDARD_ERRORS)
        & _first_is_no_outlier(earlier, later)
    )
    place = int(np.argmax(agree))
    if not agree[place]:
        return WarmupResult(times.size - 2 * window, False)
    return WarmupResult(minimum + place, True)


def settled(step_seconds: Floats | Sequence[float], window: int = WINDOW) -> bool:
    """Check a launch after its warm-up: its start is like its rest, and its first half like its second.

    Takes the steps after the warm-up only. A single slow step is an outlier, counted elsewhere; here only
    whole windows count, by the same limits, widened by three standard errors and by the autocorrelation of
    the second half (for an AR(1) process errors grow by √((1+ρ)/(1−ρ))). False for fewer than ten steps,
    which show nothing.
    """
    times = _checked(step_seconds)
    half = times.size // 2
    if half < MIN_WINDOW:
        return False
    start = min(window, half)
    rho = _lag_one_correlation(times[half:])
    errors = CHECK_STANDARD_ERRORS * float(np.sqrt((1 + rho) / (1 - rho)))
    parts = ((times[:start], times[start:]), (times[:half], times[half:]))
    return all(bool(_windows_agree(first[None], second[None], errors)[0]) for first, second in parts)


def common_warmup(results: Mapping[str, WarmupResult], minimum: int = MIN_WARMUP) -> int:
    """The largest warm-up over the backends: every launch of every backend leaves out that many."""
    return max((result.count for result in results.values()), default=minimum)


def _windows_agree(earlier: Floats, later: Floats, errors: float) -> Flags:
    """Compare row by row: (k, n) and (k or 1, m) → (k,). ``errors``: how many standard errors are chance."""
    q1, _, q3, mad = _summary(earlier)
    later_q1, later_median, later_q3, later_mad = _summary(later)
    steps = 1 / earlier.shape[1] + 1 / later.shape[1]  # of the variance of a difference
    by_chance = errors * _QUARTILE_ERROR_PER_IQR * (later_q3 - later_q1) * np.sqrt(steps)
    quartiles = (np.abs(q1 - later_q1) <= np.maximum(QUARTILE_LIMIT * later_q1, by_chance)) & (
        np.abs(q3 - later_q3) <= np.maximum(QUARTILE_LIMIT * later_q3, by_chance)
    )
    widest = max(1 + MAD_LIMIT, float(np.exp(errors * _LOG_MAD_ERROR * np.sqrt(steps))))
    spreads = (np.maximum(mad, later_mad) <= widest * np.minimum(mad, later_mad)) | (
        np.abs(mad - later_mad) <= NEGLIGIBLE_MAD * later_median
    )
    return np.asarray(quartiles & spreads)


def _first_is_no_outlier(earlier: Floats, later: Floats) -> Flags:
    """Only a slow first value speaks of warm-up; a fast one does not."""
    q1, q3 = np.quantile(np.concatenate((earlier[:, 1:], later), axis=1), (0.25, 0.75), axis=1)
    return np.asarray(earlier[:, 0] <= q3 + 1.5 * (q3 - q1))


def _lag_one_correlation(times: Floats) -> float:
    """Of the ranks, which outliers do not rule; between 0 and ``MAX_CORRELATION``."""
    ranks = np.argsort(np.argsort(times)).astype(np.float64)
    ranks -= ranks.mean()
    rho = float(np.sum(ranks[1:] * ranks[:-1]) / np.sum(ranks**2))
    return min(MAX_CORRELATION, max(0.0, rho))


def _summary(windows: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    q1, median, q3 = np.quantile(windows, (0.25, 0.5, 0.75), axis=1)
    mad = np.median(np.abs(windows - median[:, None]), axis=1)
    return q1, median, q3, np.asarray(mad)


def _checked(step_seconds: Floats | Sequence[float]) -> Floats:
    times = np.asarray(step_seconds, dtype=np.float64)
    if times.ndim != 1 or not (np.isfinite(times).all() and (times > 0).all()):
        raise ValueError("warm-up is judged on one row of finite, positive step times")
    return times
