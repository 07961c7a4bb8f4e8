"""What a DDP step would take: compute time, gradient buckets and a fitted all-reduce, put together.

DDP reduces a bucket as soon as the gradients in it exist, one bucket after the other, while the backward pass
goes on. The composition follows that, bucket by bucket:

* Backward produces gradients at a steady rate of bytes, so bucket i is ready once its share of the gradient
  bytes, and all buckets before it, are done.
* Bucket i starts when it is ready and bucket i − 1 has ended, and takes α + S_i/β at the wanted world size.
* The optimizer starts when the backward pass and the last bucket have ended. What lies between the two ends
  is the exposed communication.

Where it fails: layers whose gradient bytes are not in proportion to their backward time (an embedding is
large and cheap, a convolution small and dear); CPUs that compute and communicate at the same time
(``overlap`` below 1, or ``communication_scale`` calibrated on a measured step, account for that as a whole);
a network with more ranks per link, or another topology, than the one measured; a library that changes its
algorithm with size or rank count. Stragglers are in the measured numbers only as far as the sweep had them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from suite.analysis.model import CollectiveModel
from suite.analysis.statistics import Interval

Floats = NDArray[np.float64]

MIB = 1 << 20
DEFAULT_BUCKET_BYTES = 25 * MIB
FIRST_BUCKET_BYTES = MIB  # DDP starts with a small bucket, to communicate early
ASSUMED_BACKWARD_SHARE = 2 / 3  # of compute, where no phases were measured: backward is about twice forward
DRAWS = 2000


@dataclass(frozen=True)
class ComputeTime:
    """A step without communication (T_nosync) by phases, seconds; ``optimizer`` includes all the rest.

    ``interval`` is that of the total; ``parameters`` the count it was measured with, None where unknown.
    """

    forward: float
    backward: float
    optimizer: float
    interval: Interval | None = None
    parameters: float | None = None

    @property
    def total(self) -> float:
        return self.forward + self.backward + self.optimizer

    @classmethod
    def from_total(
        cls, seconds: float, interval: Interval | None = None, parameters: float | None = None
    ) -> ComputeTime:
        """Split a total whose phases were not measured: two thirds backward, the rest before it."""
        backward = seconds * ASSUMED_BACKWARD_SHARE
        return cls(seconds - backward, backward, 0.0, interval, parameters)

    def scaled(self, parameters: float) -> ComputeTime:
        """Compute for another parameter count, in proportion, as for matrices at the same batch.

        Raises:
            ValueError: it is not known for how many parameters this was measured.
        """
        if not self.parameters or parameters <= 0:
            raise ValueError("compute can be scaled only from a known to a positive number of parameters")
        k = parameters / self.parameters
        interval = self.interval and Interval(self.interval.low * k, self.interval.high * k, self.interval.level)
        return ComputeTime(self.forward * k, self.backward * k, self.optimizer * k, interval, self.parameters)


@dataclass(frozen=True)
class Extrapolation:
    """A quantity outside what was measured: "bucket_bytes", "world_size" or "parameters"."""

    quantity: str
    value: float
    measured_low: float
    measured_high: float


@dataclass(frozen=True)
class Prediction:
    """A predicted step, seconds. The 95% intervals are those of α, β and compute, not of the composition.

    ``without_overlap_seconds`` is the step if no communication hid behind the backward pass: an upper bound
    wherever the sweep's times hold. ``communication_seconds`` is C; ``hidden_share`` = 1 − E/C, None without
    communication. An empty ``extrapolations`` means that everything lies inside what was measured.
    """

    step_seconds: float
    interval: Interval | None
    exposed_seconds: float
    exposed_interval: Interval | None
    communication_seconds: float
    hidden_share: float | None
    without_overlap_seconds: float
    extrapolations: tuple[Extrapolation, ...]


def assumed_buckets(
    gradient_bytes: int, cap_bytes: int = DEFAULT_BUCKET_BYTES, first_bytes: int = FIRST_BUCKET_BYTES
) -> tuple[int, ...]:
    """Bucket sizes of a model of which only the size is known, in the order of reduction.

    As DDP would fill them were its parameters fine-grained: a small first bucket, then full ones. Real
    buckets end at a tensor's boundary; use recorded ones where they exist.
    """
    if gradient_bytes <= 0 or cap_bytes <= 0 or first_bytes <= 0:
        raise ValueError("gradient and bucket sizes must be positive")
    first = min(gradient_bytes, first_bytes, cap_bytes)
    full, last = divmod(gradient_bytes - first, cap_bytes)
    return (first, *([cap_bytes] * full), *([last] if last else []))


def predict(
    model: CollectiveModel,
    compute: ComputeTime,
    buckets_bytes: Sequence[int],
    world_size: int,
    *,
    parameters: float | None = None,
    communication_scale: float = 1.0,
    overlap: float = 1.0,
    seed: int = 0,
) -> Prediction:
    """Compose a step; see the module's text for how, and for where that fails.

    Args:
        model: all-reduce of the backend, at the world size it was measured with; it is scaled from there.
        compute: for the wanted workload (already ``scaled`` where need be).
        buckets_bytes: in the order of reduction.
        world_size: ranks wanted; 1 communicates nothing.
        parameters: of the wanted workload, to tell whether compute was extrapolated.
        communication_scale: from ``calibrate_communication``.
        overlap: rate of communication while the backward pass runs, between 0 (waits) and 1 (undisturbed).
        seed: of the 2,000 draws from which the intervals come.

    Raises:
        ValueError: not an all-reduce, no bucket, or an argument outside its range.
    """
    if model.collective != "all_reduce":
        raise ValueError(f"DDP reduces its gradients by all_reduce, not by {model.collective}")
    buckets = np.asarray(buckets_bytes, dtype=np.float64)
    if buckets.size == 0 or (buckets <= 0).any() or not 0 <= overlap <= 1 or communication_scale < 0:
        raise ValueError("needed are buckets of positive sizes, an overlap in [0, 1] and a scale of at least 0")
    extrapolations = _extrapolations(model, compute, buckets, world_size, parameters)
    if world_size == 1:
        total = compute.total
        return Prediction(total, compute.interval, 0.0, None, 0.0, None, total, extrapolations)
    scaled = model.at_world_size(world_size)
    seconds = communication_scale * scaled.seconds(buckets)
    exposed = float(_exposed(compute, buckets, seconds, overlap))
    total = float(seconds.sum())
    interval = exposed_interval = None
    if scaled.alpha_interval and scaled.beta_interval:
        rng = np.random.default_rng(seed)
        alpha = _draws(scaled.alpha, scaled.alpha_interval, rng)
        beta = _draws(scaled.beta, scaled.beta_interval, rng)
        pace = _draws(compute.total, compute.interval, rng) / compute.total
        # Exposure is homogeneous: a backward pass slower by ``pace`` is communication faster by it.
        # One bucket at a time: all draws of all buckets of a large model at once would not fit into memory.
        drawn = (communication_scale * (alpha + size / beta) / pace for size in buckets)
        drawn_exposed = pace * _exposed(compute, buckets, drawn, overlap)
        interval = _percentiles(pace * compute.total + drawn_exposed)
        exposed_interval = _percentiles(drawn_exposed)
    return Prediction(
        step_seconds=compute.total + exposed,
        interval=interval,
        exposed_seconds=exposed,
        exposed_interval=exposed_interval,
        communication_seconds=total,
        hidden_share=1 - exposed / total if total > 0 else None,
        without_overlap_seconds=compute.total + total,
        extrapolations=extrapolations,
    )


def calibrate_communication(
    model: CollectiveModel,
    compute: ComputeTime,
    buckets_bytes: Sequence[int],
    world_size: int,
    measured_exposed_seconds: float,
    *,
    overlap: float = 1.0,
) -> float | None:
    """The factor on all-reduce times with which the composition gives a measured exposed communication.

    Inside DDP a bucket takes another time than in an isolated sweep: ranks arrive at different moments,
    gradients are copied, cores are shared. One measured workload gives the factor, others are predicted with
    it.

    Returns:
        None where the exposed communication measured is not positive, which fits any small factor.
    """
    if measured_exposed_seconds <= 0 or world_size == 1:
        return None
    buckets = np.asarray(buckets_bytes, dtype=np.float64)
    seconds = model.at_world_size(world_size).seconds(buckets)
    low, high = 0.0, 1.0
    while _exposed(compute, buckets, high * seconds, overlap) < measured_exposed_seconds:
        high *= 2
    for _ in range(60):  # exposure grows with the factor, so bisection finds it
        middle = (low + high) / 2
        below = _exposed(compute, buckets, middle * seconds, overlap) < measured_exposed_seconds
        low, high = (middle, high) if below else (low, middle)
    return high


def _exposed(compute: ComputeTime, buckets: Floats, seconds: Iterable[Floats], overlap: float) -> Floats:
    """Time from the end of backward to the end of the last bucket; ``seconds`` are each bucket's, one or all draws.

    Time counts from the start of backward. While it runs, communication advances at rate ``overlap``.
    """
    ready = compute.backward * np.cumsum(buckets) / buckets.sum()
    ended: Floats = np.zeros(())
    for due, work in zip(ready, seconds, strict=True):
        start = np.maximum(due, ended)
        during = np.maximum(compute.backward - start, 0.0) * overlap
        hidden_end = start + (work / overlap if overlap > 0 else 0.0)
        ended = np.where(work <= during, hidden_end, np.maximum(start, compute.backward) + work - during)
    return np.asarray(np.maximum(ended - compute.backward, 0.0))


def _extrapolations(
    model: CollectiveModel, compute: ComputeTime, buckets: Floats, world_size: int, parameters: float | None
) -> tuple[Extrapolation, ...]:
    found = []
    if world_size > 1:
        outside = buckets[(buckets < model.min_bytes) | (buckets > model.max_bytes)]
        if outside.size:
            farthest = outside[np.argmax(np.abs(np.log(outside) - math.log(model.max_bytes)))]
            found.append(Extrapolation("bucket_bytes", float(farthest), model.min_bytes, model.max_bytes))
        measured = model.measured_world_size
        if world_size != measured:
            found.append(Extrapolation("world_size", world_size, measured, measured))
    if parameters is not None and compute.parameters is not None and parameters != compute.parameters:
        found.append(Extrapolation("parameters", parameters, compute.parameters, compute.parameters))
    return tuple(found)


def _draws(value: float, interval: Interval | None, rng: np.random.Generator) -> Floats:
    """Log-normal draws whose central 95% are the interval's; the value itself where there is none."""
    if interval is None:
        return np.full(DRAWS, value)
    sigma = math.log(interval.high / interval.low) / (2 * 1.959964)
    return np.asarray(value * np.exp(sigma * rng.standard_normal(DRAWS)))


def _percentiles(values: Floats) -> Interval:
    low, high = np.quantile(values, (0.025, 0.975)).tolist()
    return Interval(low, high, 0.95)
