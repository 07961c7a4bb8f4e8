"""The few probability functions that verdicts need: normal, fair coin, Student's t.

Written out because importing scipy for them cost every command a third of a second. Student's t follows
the closed form of Abramowitz & Stegun, Handbook of Mathematical Functions (1964); the tests hold all against scipy.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_NORMAL = NormalDist()


def normal_cdf(x: Floats) -> Floats:
    """Φ of each value: any shape → the same shape."""
    halves = [0.5 * math.erfc(-value / math.sqrt(2)) for value in np.ravel(x).tolist()]  # exact in both tails
    return np.array(halves, dtype=np.float64).reshape(np.shape(x))


def normal_quantile(probability: float) -> float:
    """z with Φ(z) = ``probability``.

    Raises:
        ValueError: a probability that is not strictly between 0 and 1.
    """
    if not 0 < probability < 1:
        raise ValueError(f"a quantile needs a probability strictly between 0 and 1, not {probability}")
    return _NORMAL.inv_cdf(probability)


@lru_cache(maxsize=1024)
def coin_tail_count(n: int, probability: float) -> int:
    """How many of P(X ≤ 0), P(X ≤ 1), … are at most ``probability``, for X the heads of n fair coins.

    Counted in whole numbers, so that a probability met exactly counts.
    """
    if probability >= 1:
        return n + 1
    limit = math.floor(Fraction(probability) * 2**n)
    count, ways, below = 0, 1, 0
    while (below := below + ways) <= limit:
        count += 1
        ways = ways * (n - count + 1) // count  # C(n, count)
    return count


@lru_cache(maxsize=1024)
def student_t_quantile(probability: float, degrees: int) -> float:
    """t with P(T ≤ t) = ``probability``, T of Student's distribution with ``degrees`` ≥ 1 degrees of freedom.

    Raises:
        ValueError: fewer than one degree of freedom, or a probability that is not strictly between 0 and 1.
    """
    if degrees < 1 or not 0 < probability < 1:
        raise ValueError(f"no quantile of Student's t at {probability} with {degrees} degrees of freedom")
    inside = abs(2 * probability - 1)  # P(|T| ≤ |t|)
    low, high = 0.0, math.pi / 2  # of θ = arctan(t/√ν), which is bounded where t is not
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if _student_t_inside(middle, degrees) < inside else (low, middle)
    return math.copysign(math.tan((low + high) / 2) * math.sqrt(degrees), probability - 0.5)


def _student_t_inside(theta: float, degrees: int) -> float:
    """P(|T| ≤ √ν tan θ) as a finite sum (26.7.3 for odd ν, 26.7.4 for even ν)."""
    square = math.cos(theta) ** 2
    odd = degrees % 2
    term = math.cos(theta) if odd else 1.0
    total = 0.0
    for power in range(odd, degrees - 1, 2):  # powers of cos θ up to ν − 2
        total += term
        term *= square * (power + 1) / (power + 2)
    total *= math.sin(theta)
    return 2 / math.pi * (theta + total) if odd else total
