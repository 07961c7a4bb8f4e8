"""The time of a collective as a function of its size: t(S) = α + S/β, one pair per backend and collective.

α (seconds) is what an empty message costs, β (bytes per second) the rate at which large ones go: algbw for
S → ∞. Sizes span five decades and errors are relative, so Σ (ln t − ln(α + S/β))² is minimised: every size
counts alike, and 10% at 1 KiB weighs what 10% at 256 MiB does.

The interval adds two variances: what the line misses from size to size (a sandwich estimate, HC3, of
MacKinnon & White 1985), since libraries change their algorithm with the size and no line follows that; and
how launches differ as a whole (variance of per-launch estimates ÷ launches). Noise inside a launch is in
both, so the interval is rather too wide than too narrow; Student's t with (sizes − 2) degrees of freedom.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from suite.analysis.bandwidth import busbw_factor
from suite.analysis.distributions import student_t_quantile
from suite.analysis.statistics import Interval, hodges_lehmann

Floats = NDArray[np.float64]

MIN_SIZES = 3
_GRID = 200  # points
_BEYOND = math.log(1e6)
MISFIT_LIMIT = 0.25  # above, the line is a poor description of that backend, and the report says so


@dataclass(frozen=True)
class CollectiveModel:
    """A fitted t(S) = alpha + S/beta of one collective at one world size.

    ``alpha`` in seconds, ``beta`` in bytes per second, 95% intervals. ``worst_misfit`` is the largest
    |t/t(S) − 1| over sizes, at ``worst_bytes``. ``min_bytes`` … ``max_bytes`` and ``measured_world_size`` are
    what was measured; ``world_size`` differs from the latter after ``at_world_size``.
    """

    collective: str
    world_size: int
    measured_world_size: int
    alpha: float
    beta: float
    alpha_interval: Interval | None
    beta_interval: Interval | None
    min_bytes: int
    max_bytes: int
    worst_misfit: float
    worst_bytes: int

    def seconds(self, size_bytes: Floats | float) -> Floats:
        """t(S) for sizes in bytes, same shape."""
        return np.asarray(self.alpha + np.asarray(size_bytes, dtype=np.float64) / self.beta)

    @property
    def poor(self) -> bool:
        """Whether some size is farther from the line than ``MISFIT_LIMIT``."""
        return self.worst_misfit > MISFIT_LIMIT

    def at_world_size(self, world_size: int) -> CollectiveModel:
        """The model scaled to another number of ranks as a ring would: α by rounds, 1/β by bytes per link.

        An all-reduce has 2(n−1) rounds and moves 2(n−1)/n · S over each link; all_gather, reduce_scatter and
        all_to_all half of that; broadcast and reduce ⌈log₂ n⌉ rounds of S. Trees (NCCL at scale, some
        Open MPI choices) have an α that grows with log₂ n only: for them this α is an upper bound.
        Several ranks on one host share its link, which is scaled only if the measured hosts did the same.

        Raises:
            ValueError: measured with one rank, where nothing was communicated.
        """
        if self.measured_world_size < 2:
            raise ValueError("a collective measured with one rank says nothing about more")
        if world_size < 2:
            raise ValueError(f"a collective over {world_size} rank moves nothing; there is no model of it")
        latency = rounds(self.collective, world_size) / rounds(self.collective, self.world_size)
        here, there = (
            busbw_factor(self.collective, self.world_size),
            busbw_factor(self.collective, world_size),
        )
        traffic = 1.0 if here is None or there is None else there / here
        return replace(
            self,
            world_size=world_size,
            alpha=self.alpha * latency,
            beta=self.beta / traffic,
            alpha_interval=_scaled(self.alpha_interval, latency),
            beta_interval=_scaled(self.beta_interval, 1 / traffic),
        )


def fit(
    collective: str,
    world_size: int,
    sizes_bytes: Sequence[int],
    seconds: Floats | Sequence[Sequence[float]],
) -> CollectiveModel | None:
    """Fit α and β to a sweep; None with fewer than three sizes measured.

    Args:
        sizes_bytes: S of each column, strictly positive.
        seconds: shape (launches, sizes): each launch's median time at that size, max over ranks; NaN where it
            was not measured.

    Raises:
        ValueError: shapes do not match, or a size or time is not positive.
    """
    sizes = np.asarray(sizes_bytes, dtype=np.float64)
    times = np.atleast_2d(np.asarray(seconds, dtype=np.float64))
    if times.shape[1:] != sizes.shape:
        raise ValueError(f"times of shape {times.shape} do not match {sizes.size} sizes")
    measured = ~np.isnan(times).all(axis=0)
    sizes, times = sizes[measured], times[:, measured]
    if np.unique(sizes).size < MIN_SIZES:
        return None
    if not ((sizes > 0).all() and (times[~np.isnan(times)] > 0).all()):
        raise ValueError("sizes and times of a sweep must be positive")
    logs = np.log(times)
    # Hodges–Lehmann per size: as safe from one odd launch as a median, nearly as precise as a mean.
    centre = np.array([hodges_lehmann(column[~np.isnan(column)]) for column in logs.T], dtype=np.float64)
    log_alpha, log_inverse = _minimise(sizes, centre)
    alpha, beta = math.exp(log_alpha), math.exp(-log_inverse)
    line = np.log(alpha + sizes / beta)
    deviations = _standard_errors(sizes, alpha, beta, centre - line, logs - line)
    quantile = student_t_quantile(0.975, sizes.size - 2)
    misfit = np.abs(np.expm1(centre - line))
    worst = int(np.argmax(misfit))
    return CollectiveModel(
        collective=collective,
        world_size=world_size,
        measured_world_size=world_size,
        alpha=alpha,
        beta=beta,
        alpha_interval=_log_interval(alpha, deviations[0] * quantile),
        beta_interval=_log_interval(beta, deviations[1] * quantile),
        min_bytes=int(sizes.min()),
        max_bytes=int(sizes.max()),
        worst_misfit=float(misfit[worst]),
        worst_bytes=int(sizes[worst]),
    )


def rounds(collective: str, world_size: int) -> int:
    """Messages that follow each other in a ring (or, for broadcast, reduce and barrier, in a binary tree)."""
    if collective == "all_reduce":
        return 2 * (world_size - 1)
    if collective in {"all_gather", "reduce_scatter", "all_to_all"}:
        return world_size - 1
    return 1 if collective == "send_recv" else math.ceil(math.log2(world_size))


def _minimise(sizes: Floats, log_seconds: Floats) -> tuple[float, float]:
    """Least squares of the logarithms: (ln α, ln 1/β), of which neither can turn negative.

    With r = αβ, the size at which both terms are equal, ln t(S) = ln 1/β + ln(r + S): for a given r the best ln 1/β
    is a mean, and what is left to find is where one number's derivative vanishes. The lowest point of a grid is
    bracketed and bisected, so a second valley does not mislead it.
    """
    log_sizes = np.log(sizes)
    # ln r; outside, one term is below 10⁻⁶ of the other at every size
    points = np.linspace(math.log(sizes.min()) - _BEYOND, math.log(sizes.max()) + _BEYOND, _GRID)

    def errors(log_r: float) -> Floats:
        error = log_seconds - np.logaddexp(log_r, log_sizes)
        return np.asarray(error - error.mean())

    def rises(log_r: float) -> bool:
        return float(errors(log_r) @ (np.exp(log_r) / (np.exp(log_r) + sizes))) < 0

    best = int(np.argmin([float(np.sum(errors(point) ** 2)) for point in points]))
    low, high = float(points[max(best - 1, 0)]), float(points[min(best + 1, _GRID - 1)])
    while low < (middle := (low + high) / 2) < high:
        low, high = (low, middle) if rises(middle) else (middle, high)
    log_inverse = float(np.mean(log_seconds - np.logaddexp(middle, log_sizes)))
    return middle + log_inverse, log_inverse


def _jacobian(sizes: Floats, alpha: float, beta: float) -> Floats:
    """∂ ln t / ∂(ln α, ln 1/β), shape (sizes, 2): the shares of the two terms, which add up to 1."""
    share = alpha / (alpha + sizes / beta)
    return np.stack((share, 1 - share), axis=1)


def _standard_errors(
    sizes: Floats, alpha: float, beta: float, misfit: Floats, launch_residuals: Floats
) -> tuple[float, float]:
    """Standard errors of ln α and ln β: infinite where the sizes do not determine one of them."""
    jacobian = _jacobian(sizes, alpha, beta)
    information = jacobian.T @ jacobian
    if np.linalg.cond(information) > 1e10:
        return math.inf, math.inf
    inverse = np.linalg.inv(information)
    leverage = np.einsum("ij,jk,ik->i", jacobian, inverse, jacobian)
    weighted = jacobian * (misfit / np.maximum(1 - leverage, 1e-3))[:, None]
    variance = np.diag(inverse @ (weighted.T @ weighted) @ inverse)
    shifts = []
    for residual in launch_residuals:
        there = ~np.isnan(residual)
        if np.linalg.matrix_rank(jacobian[there]) == 2:
            shifts.append(np.linalg.lstsq(jacobian[there], residual[there], rcond=None)[0])
    if len(shifts) > 1:
        variance = variance + np.var(np.array(shifts), axis=0, ddof=1) / len(shifts)
    return math.sqrt(variance[0]), math.sqrt(variance[1])


def _log_interval(value: float, half_width: float) -> Interval | None:
    if not math.isfinite(half_width) or half_width > 20:  # nine decades are no interval
        return None
    return Interval(value * math.exp(-half_width), value * math.exp(half_width), 0.95)


def _scaled(interval: Interval | None, factor: float) -> Interval | None:
    return None if interval is None else Interval(interval.low * factor, interval.high * factor, interval.level)
