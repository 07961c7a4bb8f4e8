"""From a pair's intervals to one of four verdicts, and to what it would take when there is none.

In this order, the first that applies:

1. **slower** / **faster**: the Holm-adjusted p-value is below 0.05. Which of the two, the estimate says.
2. **equivalent within δ**: the 90% interval of the ratio lies inside [1/(1+δ), 1+δ] (two one-sided tests at
   5% each, Schuirmann 1987; per pair, not adjusted for the family, since a family of pairs has no common
   claim of equivalence).
3. **unresolved**: neither could be shown. A large p alone never means "the same".

A difference can be certain *and* smaller than δ. The verdict is then slower or faster, because that is what
was shown and the order above says so, and ``within_delta`` is set, so that a sentence can add "though by less
than 3%". The other way round, no certain difference is ever hidden behind "equivalent". Likewise
``below_floor``: certain, yet no larger than what two copies of one arm differ by in the same run (A/A), so
not to be blamed on the backend.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from suite.analysis import statistics
from suite.analysis.distributions import normal_quantile
from suite.analysis.pairs import ALPHA, EQUIVALENCE_ALPHA, Pair

DELTA = 0.03
POWER = 0.8  # chance of a verdict that ``blocks_needed`` aims at
SLOWER, FASTER, EQUIVALENT, UNRESOLVED, FASTEST = "slower", "faster", "equivalent", "unresolved", "fastest"


@dataclass(frozen=True)
class Verdict:
    """What is known of arm ``a`` against arm ``b`` of a pair.

    ``kind``: "slower", "faster", "equivalent", "unresolved" (or "fastest", for the first row of a ranking).
    ``within_delta``: the 90% interval lies inside the margin. ``below_floor``: the estimated difference does
    not exceed the A/A floor; False where there is no floor. ``blocks_needed``: only when unresolved, None
    also where too few blocks exist to estimate it.
    """

    kind: str
    delta: float
    within_delta: bool = False
    below_floor: bool = False
    blocks_needed: int | None = None


def judge(pair: Pair, delta: float = DELTA, *, alpha: float = ALPHA, floor: float | None = None) -> Verdict:
    """The verdict on ``pair.a`` against ``pair.b``.

    Args:
        pair: from ``suite.analysis.pairs.compare``.
        delta: margin of equivalence, as a ratio − 1.
        alpha: for the Holm-adjusted p-value.
        floor: the A/A floor on ln(ratio) (``resolution_floor``), if there is one.

    Raises:
        ValueError: delta is not positive.
    """
    if not delta > 0:
        raise ValueError(f"delta is {delta}; a margin of equivalence is a positive number such as 0.03")
    margin = math.log1p(delta)
    interval = pair.equivalence_interval
    within = interval is not None and math.log(interval.low) >= -margin and math.log(interval.high) <= margin
    below = floor is not None and pair.ratio is not None and abs(math.log(pair.ratio)) <= floor
    if pair.ratio is not None and pair.holm_p is not None and pair.holm_p < alpha:
        kind = SLOWER if pair.ratio > 1 else FASTER
    elif within:
        kind = EQUIVALENT
    else:
        return Verdict(UNRESOLVED, delta, within, below, blocks_needed(pair, delta, alpha=alpha))
    return Verdict(kind, delta, within, below)


def blocks_needed(pair: Pair, delta: float = DELTA, *, alpha: float = ALPHA) -> int | None:
    """Complete blocks after which a verdict is likely (80%), were the true ratio the estimated one.

    σ of one block's ln(ratio) is taken from the 95% interval: its half-width is about z·σ/√n, z for the level
    that it was computed at. With L = |ln ratio|, the blocks for "slower" or "faster" are ((z_{1−α′/2} +
    z_{0.8})·σ/L)², α′ = α ÷ family (Holm's first step), those for "equivalent" ((z_{0.95} +
    z_{0.9})·σ/(ln(1+δ) − L))², where L lies inside the margin; z_{0.9}, because both sides must hold. The
    smaller of the two, at least one more than there are, and at least as many as the exact test needs to
    reject at α′. An estimate from few blocks: read it as an order of magnitude.

    Returns:
        None where the pair has no interval yet.
    """
    if pair.ratio is None or pair.interval is None:
        return None
    scale = statistics.SEQUENTIAL_LEVEL if pair.sequential else 1.0
    low, high = math.log(pair.interval.low), math.log(pair.interval.high)
    sigma = (high - low) / 2 * math.sqrt(pair.blocks) / normal_quantile(1 - (1 - pair.interval.level) * scale / 2)
    distance = abs(math.log(pair.ratio))
    room = math.log1p(delta) - distance
    level = alpha * scale / pair.family
    options = []
    if distance > 0:
        differs = ((normal_quantile(1 - level / 2) + normal_quantile(POWER)) * sigma / distance) ** 2
        first = pair.blocks
        while statistics.smallest_p(first) >= level:
            first += 1
        options.append(max(differs, first))
    if room > 0:
        equal_level = EQUIVALENCE_ALPHA / 2 * scale
        options.append(((normal_quantile(1 - equal_level) + normal_quantile(1 - (1 - POWER) / 2)) * sigma / room) ** 2)
    if not options:
        return None
    return max(pair.blocks + 1, math.ceil(min(options)))


def fastest(pairs: Sequence[Pair], medians: Mapping[str, float]) -> str | None:
    """The arm that the paired estimates put first; by medians where no pair has an estimate.

    It is the arm with the smallest mean of ln(ratio) over its pairs, so that the ranking rests on the same
    blocks as the verdicts. That it *is* fastest only the verdicts can say.

    Args:
        pairs: of one workload and world size.
        medians: arm → median of launch values, seconds.
    """
    if not medians:
        return None
    scores: dict[str, list[float]] = {name: [] for name in medians}
    for pair in pairs:
        if pair.ratio is not None and pair.a in scores and pair.b in scores:
            scores[pair.a].append(math.log(pair.ratio))
            scores[pair.b].append(-math.log(pair.ratio))
    if len(scores) > 1 and all(scores.values()):
        return min(scores, key=lambda name: (float(np.mean(scores[name])), medians[name]))
    return min(medians, key=lambda name: medians[name])


def against(reference: str, pairs: Sequence[Pair]) -> dict[str, Pair]:
    """The pairs that hold ``reference``, by the other arm, each turned so that ``reference`` is ``b``."""
    turned = (pair.reversed() if pair.a == reference else pair for pair in pairs if reference in {pair.a, pair.b})
    return {pair.a: pair for pair in turned}
