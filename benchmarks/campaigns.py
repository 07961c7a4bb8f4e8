"""Thousands of simulated campaigns at a time, decided by the suite's own statistics.

A campaign is an array of launch values, shape (blocks, arms). Here many are held as (campaigns, blocks, arms)
and taken through stopping rule, intervals, Holm and verdicts together. The rank statistics are the functions
of ``suite.analysis.statistics``; tests compare single campaigns with ``compare``, ``should_stop`` and
``judge``.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter

from suite.analysis import statistics
from suite.analysis.pairs import ALPHA, EQUIVALENCE_ALPHA
from suite.analysis.stopping import MAX_BLOCKS, MIN_BLOCKS, STANDARD_TARGET, minimum_blocks
from suite.analysis.verdicts import DELTA

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Counts = NDArray[np.int64]

SHAPES = ("normal", "skewed", "heavy")


@dataclass(frozen=True)
class Noise:
    """What disturbs the step times, each as the standard deviation of a logarithm (0.02 for 2%).

    ``block`` is common to the launches of a block, ``launch`` to the steps of a launch, ``step`` to one step;
    steps are correlated with the one before by ``correlation`` (AR(1)). ``shape`` is that of launch and step
    noise, with median 0: "normal", "skewed" (exponential: slow launches and steps stick out), "heavy"
    (Student's t, 3 degrees of freedom). ``first_arm`` multiplies the launch noise of arm 0.
    """

    block: float = 0.05
    launch: float = 0.02
    step: float = 0.05
    correlation: float = 0.5
    steps: int = 50
    shape: str = "normal"
    first_arm: float = 1.0


@dataclass(frozen=True)
class Launches:
    """Simulated launches, all of shape (campaigns, blocks, arms), logarithms of relative time.

    ``median`` is the launch value of the suite; ``mean`` and ``variance`` of the steps are what a naive
    analysis that pools all steps would use.
    """

    median: Floats
    mean: Floats
    variance: Floats
    steps: int


@dataclass(frozen=True)
class Decided:
    """Where the campaigns ended: ``blocks`` (campaigns,), the rest (campaigns, pairs), pairs as (0,1), (0,2),
    ...

    ``low`` and ``high`` bound ln(ratio) at 95%, ``equal_low`` and ``equal_high`` at 90%; ``different`` and
    ``equivalent`` are the verdicts in their order (never both); ``raw`` says whether the uncorrected, nominal
    test rejects.
    """

    blocks: Counts
    estimate: Floats
    low: Floats
    high: Floats
    holm_p: Floats
    different: Flags
    equivalent: Flags
    raw: Flags


def simulate(
    rng: np.random.Generator, campaigns: int, log_means: Floats, noise: Noise, blocks: int = MAX_BLOCKS
) -> Launches:
    """Draw launches of arms whose true ln(time) differ by ``log_means``, shape (arms,)."""
    shape = (campaigns, blocks, log_means.size)
    level = rng.standard_normal((campaigns, blocks, 1)) * noise.block + log_means
    spread = np.full(log_means.size, noise.launch)
    spread[0] *= noise.first_arm
    level = level + spread * _draw(rng, shape, noise.shape)
    rho = noise.correlation
    shocks = _draw(rng, (*shape, noise.steps), noise.shape)
    shocks[..., 0] /= math.sqrt(1 - rho**2)  # so that the first step is as spread as any other
    steps = lfilter([math.sqrt(1 - rho**2)], [1.0, -rho], shocks, axis=-1) * noise.step
    return Launches(
        level + np.median(steps, axis=-1),
        level + steps.mean(axis=-1),
        steps.var(axis=-1),
        noise.steps,
    )


def decide(
    launch_values: Floats,
    *,
    target: float = STANDARD_TARGET,
    min_blocks: int = MIN_BLOCKS,
    max_blocks: int | None = None,
    sequential: bool = True,
    delta: float = DELTA,
) -> Decided:
    """Run the stopping rule over campaigns (campaigns, blocks, arms) and judge every pair where each ends.

    ``sequential=False`` judges all campaigns after ``max_blocks``, at nominal levels.
    """
    campaigns, available, arms = launch_values.shape
    last = min(available, max_blocks or available)
    pairs = list(itertools.combinations(range(arms), 2))
    first = min(last, minimum_blocks(len(pairs), min_blocks)) if sequential else last
    d = np.stack([launch_values[..., a] - launch_values[..., b] for a, b in pairs], axis=1)
    scale = statistics.SEQUENTIAL_LEVEL if sequential else 1.0
    blocks = np.zeros(campaigns, dtype=np.int64)
    found = {name: np.zeros((campaigns, len(pairs))) for name in ("estimate", "low", "high", "p", "e_low", "e_high")}
    running = np.arange(campaigns)
    for n in range(first, last + 1):
        walsh = statistics.walsh_averages(d[running, :, :n])
        low, high = _bounds(walsh, n, ALPHA * scale)
        stops = ((high - low) / 2 <= target).all(axis=1) if n < last else np.ones(running.size, dtype=bool)
        ended = running[stops]
        walsh, blocks[ended] = walsh[stops], n
        found["low"][ended], found["high"][ended] = low[stops], high[stops]
        found["e_low"][ended], found["e_high"][ended] = _bounds(walsh, n, EQUIVALENCE_ALPHA * scale)
        found["estimate"][ended] = statistics.middle_of_sorted(walsh)
        positive = np.minimum((walsh >= 0).sum(axis=-1), (walsh <= 0).sum(axis=-1))
        found["p"][ended] = np.minimum(1.0, 2 * statistics.signed_rank_cdf(n)[positive])
        running = running[~stops]
    holm_p = _holm(np.minimum(1.0, found["p"] / scale))
    different = holm_p < ALPHA
    margin = math.log1p(delta)
    equivalent = (found["e_low"] >= -margin) & (found["e_high"] <= margin) & ~different
    return Decided(
        blocks=blocks,
        estimate=found["estimate"],
        low=found["low"],
        high=found["high"],
        holm_p=holm_p,
        different=different,
        equivalent=equivalent,
        raw=_holm(found["p"]) < ALPHA,
    )


def pooled_rejections(launches: Launches, blocks: Counts) -> Flags:
    """What a z-test over all steps, as if they were independent, says of arms 0 and 1."""
    mask = np.arange(launches.mean.shape[1])[None, :] < blocks[:, None]
    count = blocks[:, None] * launches.steps
    weights = mask[..., None]
    means = (launches.mean * weights).sum(axis=1) / blocks[:, None]
    squares = ((launches.variance + launches.mean**2) * weights).sum(axis=1) / blocks[:, None]
    variances = (squares - means**2) / count
    z = (means[:, 0] - means[:, 1]) / np.sqrt(variances[:, 0] + variances[:, 1])
    return np.asarray(np.abs(z) > 1.959964)


def _draw(rng: np.random.Generator, shape: tuple[int, ...], kind: str) -> Floats:
    """Noise of variance 1 and median 0."""
    if kind == "normal":
        return rng.standard_normal(shape)
    if kind == "skewed":
        return rng.standard_exponential(shape) - math.log(2)
    if kind == "heavy":
        return np.asarray(rng.standard_t(3, size=shape) / math.sqrt(3))
    raise ValueError(f"noise of shape {kind!r} is not known; shapes are {', '.join(SHAPES)}")


def _bounds(walsh: Floats, n: int, alpha: float) -> tuple[Floats, Floats]:
    index = statistics.signed_rank_index(n, alpha)
    if index is None:
        infinite = np.full(walsh.shape[:-1], np.inf)
        return -infinite, infinite
    return walsh[..., index - 1], walsh[..., walsh.shape[-1] - index]


def _holm(p: Floats) -> Floats:
    """Holm along the last axis; the same as ``statistics.holm`` row by row."""
    order = np.argsort(p, axis=-1)
    factors = np.arange(p.shape[-1], 0, -1)
    stepped = np.maximum.accumulate(np.minimum(1.0, np.take_along_axis(p, order, axis=-1) * factors), axis=-1)
    adjusted = np.empty_like(stepped)
    np.put_along_axis(adjusted, order, stepped, axis=-1)
    return adjusted
