"""When a campaign has enough blocks, and how many steps a launch is worth.

The stopping rule looks at precision only, never at p: a campaign stops after the first block in which every
pair's interval is narrow enough. That rule still favours blocks in which the spread was underestimated; the
sequential correction of ``suite.analysis.statistics`` pays for it, here and in the verdicts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from suite.analysis import statistics

Floats = NDArray[np.float64]

STANDARD_TARGET = math.log(1.02)
THOROUGH_TARGET = math.log(1.01)
MIN_BLOCKS = 8
MAX_BLOCKS = 30
MIN_STEPS = 20
MAX_STEPS = 2000
ASSUMED_BETWEEN_CV = 0.01  # where no two pilot launches of an arm exist: launches differ by 1%
NEGLIGIBLE_BETWEEN_CV = 0.001  # launches that differ by less need no more steps to show it


@dataclass(frozen=True)
class StopDecision:
    """Whether to stop, and why: ``reason`` is "target", "plan" or, while running, None.

    ``half_widths`` are those on ln(ratio), one per pair in the order given; None where not estimable.
    """

    stop: bool
    reason: str | None
    half_widths: tuple[float | None, ...]


@dataclass(frozen=True)
class VarianceComponents:
    """Relative variances (of ln seconds) of one arm's pilots.

    ``within``: variance that one step contributes to the launch median, so that the median of n steps has
    variance within/n; autocorrelation and outliers are in it. ``between``: variance of launches beyond that,
    None with fewer than two pilots. ``resolution``: the standard error of ``between`` were it zero.
    """

    within: float
    between: float | None
    resolution: float


def minimum_blocks(family: int, min_blocks: int = MIN_BLOCKS, alpha: float = 0.05) -> int:
    """Blocks below which Holm could reject nothing in a family of that many pairs, at least ``min_blocks``.

    The smallest p of n blocks is 2^(1−n), over ``SEQUENTIAL_LEVEL``, times the family: 8 blocks are enough
    for 4 pairs, 9 for 9.
    """
    blocks = min_blocks
    while family * statistics.smallest_p(blocks, sequential=True) >= alpha:
        blocks += 1
    return blocks


def should_stop(
    differences: Sequence[Floats],
    target: float = STANDARD_TARGET,
    min_blocks: int = MIN_BLOCKS,
    max_blocks: int = MAX_BLOCKS,
    *,
    blocks: int | None = None,
    family: int | None = None,
    alpha: float = 0.05,
) -> StopDecision:
    """Decide after a block whether every pair is known well enough. Takes a millisecond at 30 blocks.

    Args:
        differences: d_j on ln(ratio) of each pair over its complete blocks. A pair without any complete block
            (an arm that always fails) cannot become precise and does not keep the others running.
        target: largest half-width on ln(ratio).
        min_blocks, max_blocks: bounds on the blocks run; the lower one grows with the family, so that
            Holm can decide (``minimum_blocks``), as far as the upper one allows.
        blocks: blocks run so far, incomplete ones included; default: the longest of ``differences``.
        family: pairs fixed before the run; default: those given.
    """
    run = max((len(d) for d in differences), default=0) if blocks is None else blocks
    intervals = [statistics.signed_rank_interval(d, alpha, sequential=True) for d in differences]
    widths = tuple(None if interval is None else interval.half_width for interval in intervals)
    lower = minimum_blocks(len(differences) if family is None else family, min_blocks, alpha)
    measurable = [width for width, d in zip(widths, differences, strict=True) if len(d)]
    precise = bool(measurable) and all(width is not None and width <= target for width in measurable)
    if precise and run >= min(lower, max_blocks):
        return StopDecision(True, "target", widths)
    if run >= max_blocks:
        return StopDecision(True, "plan", widths)
    return StopDecision(False, None, widths)


def variance_components(launches: Sequence[Floats | Sequence[float]]) -> VarianceComponents:
    """Split the variance of one arm's pilot launches into steps and launches.

    Steps follow each other and are not independent, so their plain variance says too little about the
    launch median. Each launch of n steps is cut into batches of ⌊√n⌋ consecutive steps; the variance of the
    batch medians times the batch length estimates what a step contributes (the method of batch means, with
    medians). It is averaged over launches. Between = variance of the launch medians − within/n.

    Args:
        launches: the T_i after warm-up of each pilot launch, seconds; each at least 4 steps.

    Raises:
        ValueError: no launch, or one with too few steps.
    """
    if not launches or min(len(steps) for steps in launches) < 4:
        raise ValueError("variance components need at least one pilot launch, each of at least 4 steps")
    logs = [np.log(np.asarray(steps, dtype=np.float64)) for steps in launches]
    within = float(np.mean([_per_step_variance(x) for x in logs]))
    steps_per_launch = float(np.mean([x.size for x in logs]))
    medians = np.array([np.median(x) for x in logs])
    noise = within / steps_per_launch
    if medians.size < 2:
        return VarianceComponents(within, None, noise)
    between = max(0.0, float(medians.var(ddof=1)) - noise)
    return VarianceComponents(within, between, noise * math.sqrt(2 / (medians.size - 1)))


def steps_per_launch(components: VarianceComponents, launch_seconds: float, step_seconds: float) -> int:
    """Steps that make the most of the time: ceil(sqrt(c · s²_within / s²_between)), within 20 and 2000.

    c = launch cost ÷ step cost (Kalibera & Jones 2013). Use the largest number over the arms for all.

    The estimate of s²_between is never taken below what the pilots could tell from zero, nor below a spread
    of 0.1% between launches; without two pilots a spread of 1% is assumed.

    Args:
        components: of one arm.
        launch_seconds: what a launch costs besides its measured steps, warm-up included.
        step_seconds: what a measured step costs.

    Raises:
        ValueError: a cost is not positive.
    """
    if launch_seconds <= 0 or step_seconds <= 0:
        raise ValueError(f"costs must be positive, not {launch_seconds} s a launch and {step_seconds} s a step")
    if components.between is None:
        between = ASSUMED_BETWEEN_CV**2
    else:
        between = max(components.between, components.resolution, NEGLIGIBLE_BETWEEN_CV**2)
    best = math.sqrt(launch_seconds / step_seconds * components.within / between)
    return min(MAX_STEPS, max(MIN_STEPS, math.ceil(best)))


def _per_step_variance(log_seconds: Floats) -> float:
    length = math.isqrt(log_seconds.size)
    batches = log_seconds.size // length
    medians = np.median(log_seconds[: batches * length].reshape(batches, length), axis=1)
    return float(medians.var(ddof=1)) * length
