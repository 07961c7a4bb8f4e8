"""Exact, distribution-free intervals and tests for few launches, and what corrects them for many looks.

Nothing here assumes normal data; the signed-rank procedures assume that the paired differences are
symmetric about their centre, which holds for the difference of two launches whose noise has the same shape.
Where one arm's launches are skewed and several times wider than the other's, the centre is not the ratio of
medians any more: by half a percent for exponential launch noise of 4.5% against 0.5%.

* Median: the binomial interval from order statistics (e.g. Conover, Practical Nonparametric Statistics, 3.2).
* Centre of paired differences: Hodges & Lehmann 1963, the median of the Walsh averages (d_i + d_j)/2, i ≤ j;
  the interval is the set of centres that the exact Wilcoxon signed-rank test does not reject (Tukey 1949),
  which are the values between two of the sorted Walsh averages.
* Ties and zeros: Walsh averages that equal the tested centre count against rejecting, on both sides. The
  closed interval then keeps at least its level for discrete data (Noether 1967), the p-value never claims
  more than the interval does, and p < α exactly when the interval of level 1 − α excludes 0.
* A campaign that looks after every block and stops once the interval is narrow stops more often than it
  should when the spread is underestimated. In simulation the nominal 5% become up to 7%
  (benchmarks/statistics_simulation.py shows it), so sequential campaigns compute at ``SEQUENTIAL_LEVEL``
  times the nominal α, and multiply p by its inverse: reported levels then hold again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from suite.analysis.distributions import coin_tail_count, normal_cdf

Floats = NDArray[np.float64]

MIN_LAUNCHES = 6  # 2·2⁻⁶ is the first two-sided probability below 5%
SEQUENTIAL_LEVEL = 0.75  # 0.05 → 0.0375; found by simulation, see the module's text
EXACT_LIMIT = 500  # above, the normal approximation of the signed-rank distribution is used
BOOTSTRAP_RESAMPLES = 2000
_CHUNK = 4_000_000  # Walsh averages held at a time: 32 MB


@dataclass(frozen=True)
class Interval:
    """A closed interval, in the unit of the data, with its nominal confidence level (0.95 for 95%)."""

    low: float
    high: float
    level: float

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2

    def contains(self, value: float) -> bool:
        return self.low <= value <= self.high

    def as_tuple(self) -> tuple[float, float]:
        return (self.low, self.high)

    def exp(self) -> Interval:
        """The interval of exp(x), for x a logarithm of a ratio."""
        return Interval(float(np.exp(self.low)), float(np.exp(self.high)), self.level)


def binomial_index(n: int, alpha: float = 0.05) -> int | None:
    """Largest l with P(Bin(n, ½) ≤ l − 1) ≤ α/2, counted from 1; None where there is no such l.

    [x_(l), x_(n+1−l)] of the sorted values then holds the median with probability at least 1 − α.
    """
    _check_alpha(alpha)
    return coin_tail_count(n, alpha / 2) or None


def median_interval(values: Floats | Sequence[float], alpha: float = 0.05) -> Interval | None:
    """Exact interval for the median of independent values; None ("not estimable") below n = 6.

    Args:
        values: one number per launch, any order and unit.
        alpha: 1 − confidence. Levels other than 95% may need more than six values.
    """
    ordered = np.sort(_one_dimension(values))
    n = ordered.size
    index = binomial_index(n, alpha) if n >= MIN_LAUNCHES else None
    if index is None:
        return None
    return Interval(float(ordered[index - 1]), float(ordered[n - index]), 1 - alpha)


def walsh_averages(differences: Floats) -> Floats:
    """Sorted averages of all pairs, each value with itself included: (..., n) → (..., n(n+1)/2)."""
    averages = _pair_averages(np.asarray(differences, dtype=np.float64))
    averages.sort(axis=-1)
    return averages


def hodges_lehmann(differences: Floats | Sequence[float]) -> float | None:
    """Median of the Walsh averages: the estimate that belongs to the signed-rank test. None for no value."""
    d = _one_dimension(differences)
    return middle_of_sorted(walsh_averages(d)).item() if d.size else None


def middle_of_sorted(ordered: Floats) -> Floats:
    """Median along the last axis of values that are sorted already: (..., m) → (...)."""
    m = ordered.shape[-1]
    return np.asarray((ordered[..., (m - 1) // 2] + ordered[..., m // 2]) / 2)


@lru_cache(maxsize=64)
def signed_rank_cdf(n: int) -> Floats:
    """P(W ≤ w) for w = 0 … n(n+1)/2, W the signed-rank sum of n differences symmetric about 0.

    Exact by counting sign patterns up to ``EXACT_LIMIT``; above, normal with continuity correction
    (its error there is below 2·10⁻⁴).
    """
    total = n * (n + 1) // 2
    if n > EXACT_LIMIT:
        scale = np.sqrt(n * (n + 1) * (2 * n + 1) / 24)
        cdf: Floats = normal_cdf((np.arange(total + 1) + 0.5 - total / 2) / scale)
    else:
        chance = np.zeros(total + 1)
        chance[0] = 1.0
        for rank in range(1, n + 1):  # rank joins the sum, or not, with probability ½ each
            chance *= 0.5
            chance[rank:] = chance[rank:] + chance[:-rank]
        cdf = np.minimum(np.cumsum(chance), 1.0)
    cdf.setflags(write=False)
    return cdf


@lru_cache(maxsize=4096)
def signed_rank_index(n: int, alpha: float = 0.05) -> int | None:
    """Largest k with P(W ≤ k − 1) ≤ α/2, counted from 1; None where there is no such k.

    The interval of level 1 − α is [w_(k), w_(m+1−k)] of the m = n(n+1)/2 sorted Walsh averages.
    """
    _check_alpha(alpha)
    index = int(np.searchsorted(signed_rank_cdf(n), alpha / 2, side="right"))
    return index if index >= 1 else None


def signed_rank_interval(
    differences: Floats | Sequence[float], alpha: float = 0.05, *, sequential: bool = False
) -> Interval | None:
    """Interval of level 1 − α for the centre of the differences; None where n is too small for that level.

    Args:
        differences: one per complete block, in the unit of the result (logarithms of ratios, as a rule).
        sequential: the number of blocks was chosen by the stopping rule (see the module's text).
    """
    d = _one_dimension(differences)
    index = signed_rank_index(d.size, alpha * SEQUENTIAL_LEVEL if sequential else alpha)
    if index is None:
        return None
    averages = walsh_averages(d)
    return Interval(float(averages[index - 1]), float(averages[averages.size - index]), 1 - alpha)


def signed_rank_p(differences: Floats | Sequence[float], *, sequential: bool = False) -> float | None:
    """Two-sided p-value of "the centre is 0", exact; None below six differences.

    Without ties or zeros this is Wilcoxon's exact test. With them it is the largest α whose closed interval
    still holds 0, so it never rejects more than the interval.
    """
    d = _one_dimension(differences)
    if d.size < MIN_LAUNCHES:
        return None
    averages = walsh_averages(d)
    not_below = averages.size - np.searchsorted(averages, 0.0, side="left")
    not_above = np.searchsorted(averages, 0.0, side="right")
    p = 2 * float(signed_rank_cdf(d.size)[min(not_below, not_above)])
    return min(1.0, p / SEQUENTIAL_LEVEL if sequential else p)


def smallest_p(n: int, *, sequential: bool = False) -> float:
    """The smallest p-value that n differences can give: all of one sign."""
    p = 2.0 ** (1 - n)
    return min(1.0, p / SEQUENTIAL_LEVEL if sequential else p)


def holm(p_values: Sequence[float | None], family: int | None = None) -> tuple[float | None, ...]:
    """Holm's step-down adjustment (1979): controls the chance of any false rejection in the family.

    Args:
        p_values: None where a pair has no p-value; it stays None.
        family: size of the family fixed before the run; default: all of ``p_values``, None ones included,
            so that a pair that failed does not make the others look better.

    Raises:
        ValueError: the family is smaller than the number of p-values.
    """
    size = len(p_values) if family is None else family
    if size < len(p_values):
        raise ValueError(f"a family of {size} cannot hold {len(p_values)} p-values")
    known = sorted((p, place) for place, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    reached = 0.0
    for order, (p, place) in enumerate(known):
        reached = max(reached, min(1.0, (size - order) * p))
        adjusted[place] = reached
    return tuple(adjusted)


def bootstrap_interval(
    differences: Floats | Sequence[float],
    seed: int,
    alpha: float = 0.05,
    resamples: int = BOOTSTRAP_RESAMPLES,
) -> Interval | None:
    """Percentile bootstrap of the Hodges–Lehmann estimate over whole blocks; None below six blocks.

    A block is drawn with all its launches, so what the launches of a block share stays shared: the same
    seed and number of blocks draw the same blocks for every pair. Secondary, and said to be so: with few
    blocks it is too narrow, and it knows nothing of the stopping rule.
    """
    d = _one_dimension(differences)
    if d.size < MIN_LAUNCHES:
        return None
    draws = np.random.default_rng(seed).integers(0, d.size, size=(resamples, d.size))
    rows = max(1, _CHUNK // (d.size * (d.size + 1) // 2))
    estimates = np.concatenate(
        [
            np.median(_pair_averages(d[draws[at : at + rows]]), axis=-1, overwrite_input=True)
            for at in range(0, resamples, rows)
        ]
    )
    low, high = np.quantile(estimates, (alpha / 2, 1 - alpha / 2)).tolist()
    return Interval(low, high, 1 - alpha)


def _pair_averages(d: Floats) -> Floats:
    i, j = _pair_indices(d.shape[-1])
    averages = np.asarray(d[..., i] + d[..., j])
    averages *= 0.5
    return averages


@lru_cache(maxsize=64)
def _pair_indices(n: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    i, j = np.triu_indices(n)
    return i, j


def _one_dimension(values: Floats | Sequence[float]) -> Floats:
    data = np.asarray(values, dtype=np.float64)
    if data.ndim != 1 or not np.isfinite(data).all():
        raise ValueError(f"needed is a row of finite numbers, not shape {data.shape} or missing values")
    return data


def _check_alpha(alpha: float) -> None:
    if not 0 < alpha < 1:
        raise ValueError(f"alpha is {alpha}; it must lie between 0 and 1")
