"""Two arms of a comparison, block by block: how many times as long one takes as the other, and how sure.

For arms a and b, d_j = ln m_{a,j} − ln m_{b,j} over the blocks j in which both launches are valid. What a
block does to both cancels. Ratio = exp(Hodges–Lehmann(d)), interval = exp(signed-rank interval), p-values
adjusted by Holm over the pairs that were fixed before the run.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from suite.analysis import statistics
from suite.analysis.statistics import Interval

Floats = NDArray[np.float64]

ALPHA = 0.05
EQUIVALENCE_ALPHA = 0.10  # two one-sided tests at 5% each: the 90% interval must lie inside the margin


@dataclass(frozen=True)
class Pair:
    """Arm ``a`` takes ``ratio`` times as long as arm ``b``. All ratios are of times, without unit.

    ``blocks`` counts complete blocks, of ``attempted`` ones. What cannot be estimated from so few is None:
    ``ratio`` without a block, the 95% ``interval``, ``p`` and ``bootstrap`` below six blocks,
    ``equivalence_interval`` (90%) below six as well. ``holm_p`` is the adjusted ``p`` and ``family`` the
    number of pairs it was adjusted for. ``sequential`` says that levels and p are corrected for the stopping
    rule.
    """

    a: str
    b: str
    blocks: int
    attempted: int
    ratio: float | None
    interval: Interval | None
    equivalence_interval: Interval | None
    bootstrap: Interval | None
    p: float | None
    holm_p: float | None
    family: int
    sequential: bool

    def reversed(self) -> Pair:
        """The same comparison with the arms exchanged: ratios become their inverses, p stays."""
        return replace(
            self,
            a=self.b,
            b=self.a,
            ratio=None if self.ratio is None else 1 / self.ratio,
            interval=_inverse(self.interval),
            equivalence_interval=_inverse(self.equivalence_interval),
            bootstrap=_inverse(self.bootstrap),
        )


def log_ratios(a: Floats | Sequence[float], b: Floats | Sequence[float]) -> Floats:
    """d_j = ln a_j − ln b_j over the blocks where both are there.

    Args:
        a, b: launch values, seconds, one per block in the same order; NaN where a launch is missing or
            invalid (an incomplete block).

    Raises:
        ValueError: different lengths, or a value that is not positive.
    """
    left, right = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if left.shape != right.shape or left.ndim != 1:
        raise ValueError(f"launch values of shapes {left.shape} and {right.shape} cannot be paired by block")
    complete = ~(np.isnan(left) | np.isnan(right))
    left, right = left[complete], right[complete]
    if not (np.isfinite(left).all() and np.isfinite(right).all() and (left > 0).all() and (right > 0).all()):
        raise ValueError("a launch value is not a finite, positive number of seconds")
    return np.log(left) - np.log(right)


def compare(
    values: Mapping[str, Floats | Sequence[float]],
    *,
    seed: int,
    sequential: bool = True,
    family: int | None = None,
    alpha: float = ALPHA,
) -> tuple[Pair, ...]:
    """Compare every arm with every later one.

    Args:
        values: arm → launch values by block, all of equal length, NaN where a launch is missing.
        seed: of the secondary bootstrap; the run's seed.
        sequential: the stopping rule could end the run (plans standard and thorough); False for a number of
            blocks that was fixed beforehand.
        family: pairs fixed before the run, when some arm never gave a value and is not in ``values``.
        alpha: 1 − confidence of ``interval`` and of ``bootstrap``.
    """
    names = list(itertools.combinations(values, 2))
    differences = [log_ratios(values[a], values[b]) for a, b in names]
    p_values = [statistics.signed_rank_p(d, sequential=sequential) for d in differences]
    size = len(names) if family is None else family
    adjusted = statistics.holm(p_values, size)
    return tuple(
        Pair(
            a=a,
            b=b,
            blocks=int(d.size),
            attempted=len(values[a]),
            ratio=_exp(statistics.hodges_lehmann(d)),
            interval=_ratio_interval(d, alpha, sequential),
            equivalence_interval=_ratio_interval(d, EQUIVALENCE_ALPHA, sequential),
            bootstrap=_exp_interval(statistics.bootstrap_interval(d, seed, alpha)),
            p=p,
            holm_p=holm_p,
            family=size,
            sequential=sequential,
        )
        for (a, b), d, p, holm_p in zip(names, differences, p_values, adjusted, strict=True)
    )


def resolution_floor(differences: Floats | Sequence[float], *, sequential: bool = True) -> float | None:
    """What two copies of one arm can differ by, on ln(ratio): the end of the A/A interval farther from 0.

    A difference between two backends that is smaller than this cannot be told from the method's own noise.

    Args:
        differences: d_j of the A/A arm against the arm that it copies (``log_ratios``).

    Returns:
        The floor (0.01 for about 1%), or None below six blocks.
    """
    interval = statistics.signed_rank_interval(differences, ALPHA, sequential=sequential)
    return None if interval is None else max(abs(interval.low), abs(interval.high))


def _ratio_interval(d: Floats, alpha: float, sequential: bool) -> Interval | None:
    if d.size < statistics.MIN_LAUNCHES:
        return None
    return _exp_interval(statistics.signed_rank_interval(d, alpha, sequential=sequential))


def _exp(value: float | None) -> float | None:
    return None if value is None else float(np.exp(value))


def _exp_interval(interval: Interval | None) -> Interval | None:
    return None if interval is None else interval.exp()


def _inverse(interval: Interval | None) -> Interval | None:
    return None if interval is None else Interval(1 / interval.high, 1 / interval.low, interval.level)
