"""Two sets of launches that share no blocks, such as those of two runs: ratio and interval.

Shift = median of all differences ln b_j − ln a_i (Hodges & Lehmann 1963, the two-sample case); the interval is the
set of shifts that the exact Mann–Whitney test does not reject, which are the differences between two ranks of the
sorted m·n (e.g. Conover, Practical Nonparametric Statistics, 5.4). Without blocks whatever changed between the runs
(temperature, other work, time of day) is in the ratio, so it says less than a pair of one run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from suite.analysis.distributions import normal_cdf
from suite.analysis.statistics import Interval

Floats = NDArray[np.float64]

EXACT_LIMIT = 4000  # m·n up to which the distribution is counted; above, its normal approximation


@dataclass(frozen=True)
class Unpaired:
    """``ratio``: how many times as long b takes as a. Intervals and p are None where too few launches exist."""

    ratio: float
    interval: Interval | None
    equivalence_interval: Interval | None
    p: float | None


def compare_unpaired(a: Sequence[float] | Floats, b: Sequence[float] | Floats, alpha: float = 0.05) -> Unpaired:
    """Compare launch values (seconds, positive) of two runs.

    Raises:
        ValueError: a side without launches, or a value that is not a finite, positive number.
    """
    left, right = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    for side in (left, right):
        if side.size == 0 or not np.isfinite(side).all() or (side <= 0).any():
            raise ValueError("each side needs at least one launch value, finite and positive")
    shifts = np.sort((np.log(right)[None, :] - np.log(left)[:, None]).ravel())
    cdf = mann_whitney_cdf(left.size, right.size)
    return Unpaired(
        ratio=float(np.exp(np.median(shifts))),
        interval=_interval(shifts, cdf, alpha),
        equivalence_interval=_interval(shifts, cdf, 2 * alpha),
        p=_p_value(shifts, cdf, alpha),
    )


def _interval(shifts: Floats, cdf: Floats, alpha: float) -> Interval | None:
    index = int(np.searchsorted(cdf, alpha / 2, side="right"))
    if index < 1:
        return None
    return Interval(float(np.exp(shifts[index - 1])), float(np.exp(shifts[shifts.size - index])), 1 - alpha)


def _p_value(shifts: Floats, cdf: Floats, alpha: float) -> float | None:
    """Two-sided p of "no shift"; ties count against rejecting. None where not even the clearest data reach α."""
    if 2 * cdf[0] > alpha:
        return None
    not_below = shifts.size - int(np.searchsorted(shifts, 0.0, side="left"))
    not_above = int(np.searchsorted(shifts, 0.0, side="right"))
    return min(1.0, 2 * float(cdf[min(not_below, not_above)]))


@lru_cache(maxsize=256)
def mann_whitney_cdf(m: int, n: int) -> Floats:
    """P(U ≤ u) for u = 0 … m·n under no shift, without ties.

    Counted by the Gaussian binomial coefficient, Π_{i=1..m} (1 − q^(n+i)) / (1 − q^i), whose coefficient of q^u is the
    number of orders with that U.
    """
    if m * n > EXACT_LIMIT:
        scale = np.sqrt(m * n * (m + n + 1) / 12)
        approximate: Floats = normal_cdf((np.arange(m * n + 1) + 0.5 - m * n / 2) / scale)
        return approximate
    counts = [1] + [0] * (m * n)
    for i in range(1, m + 1):
        for u in range(m * n, n + i - 1, -1):  # times (1 − q^(n+i)), in place from the top
            counts[u] -= counts[u - n - i]
        for u in range(i, m * n + 1):  # divided by (1 − q^i), in place from the bottom
            counts[u] += counts[u - i]
    total = sum(counts)
    running = np.cumsum(np.array(counts, dtype=object))
    cdf: Floats = np.array([float(value) / total for value in running], dtype=np.float64)
    cdf.setflags(write=False)
    return cdf
