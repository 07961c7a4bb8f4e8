"""What a step would take for another model size, workload or number of hosts, from a run with a sweep.

Three things are put together by ``suite.analysis.prediction``: the run's fitted all-reduce (α + S/β), the compute
time of a measured workload (T_nosync by phases), and bucket sizes. Inside DDP a bucket takes another time than in
an isolated sweep, so the all-reduce is scaled by what a measured workload needed: another workload than the
predicted one wherever the run has one, so that a prediction of a measured workload can be held against its
measurement.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from suite.analysis import prediction, rows, statistics, sweep
from suite.analysis.load import LaunchData, RunData
from suite.analysis.model import CollectiveModel
from suite.analysis.prediction import ComputeTime, Prediction
from suite.errors import UsageError
from suite.records import WorkloadFacts

FLOAT_BYTES = 4  # parameters and gradients are fp32


@dataclass(frozen=True)
class Forecast:
    """A predicted step of one arm. ``measured_seconds``: the run's own, where it has that workload at that world size.

    ``calibrated_on`` names the workload whose exposed communication scaled the all-reduce, by
    ``communication_scale``; None where none could. ``notes`` say what was assumed or extrapolated.
    """

    arm: str
    backend: str
    what: str
    world_size: int
    result: Prediction
    measured_seconds: float | None
    calibrated_on: str | None
    communication_scale: float
    notes: tuple[str, ...]

    @property
    def error(self) -> float | None:
        """Predicted over measured, minus 1."""
        return None if self.measured_seconds is None else self.result.step_seconds / self.measured_seconds - 1


@dataclass(frozen=True)
class _Basis:
    """One arm's measurements of one workload at one world size."""

    workload: str
    world_size: int
    facts: WorkloadFacts
    compute: ComputeTime
    step_seconds: float
    exposed_seconds: float


def predict(
    data: RunData,
    *,
    parameters: float | None = None,
    workload: str | None = None,
    hosts: int | None = None,
    batch_size: int | None = None,
) -> tuple[Forecast, ...]:
    """Predict the step of every arm that the run has a sweep of.

    Args:
        data: a run with training and a sweep of collectives.
        parameters: of the model; its compute is scaled from ``workload``, or the largest measured one.
        workload: a workload of the run; default: the largest measured one.
        hosts: one rank each; default: the largest world size of the run.
        batch_size: samples per rank; default: as measured.

    Raises:
        UsageError: the run has no sweep or no such workload, or a number is out of range.
    """
    models = {key: found for key, found in sweep.fitted(data.launches).items() if key[2] == "all_reduce"}
    if not models:
        raise UsageError(
            f"{data.manifest.run} has no sweep of all_reduce with at least three sizes.",
            fix="run it with --workload linear,collectives.",
        )
    if (parameters is not None and parameters < 1) or (hosts is not None and hosts < 1):
        raise UsageError("A model has at least one parameter, and a job at least one host.")
    bases = _bases(data)
    known = {basis.workload: basis.facts.parameters for found in bases.values() for basis in found}
    name = workload or max(known, key=lambda w: known[w], default=None)
    if name is None or name not in known:
        raise UsageError(
            f"{data.manifest.run} did not measure {name or 'any workload'} with no_sync steps.",
            fix=f"use one of {', '.join(known) or 'the workloads of another run'}.",
        )
    found = []
    for arm in dict.fromkeys(key[1] for key in models):
        mine = bases.get(arm, [])
        target = [basis for basis in mine if basis.workload == name]
        if target:
            sizes = {key[3]: found_model for key, found_model in models.items() if key[1] == arm}
            backend = next(key[0] for key in models if key[1] == arm)
            found.append(_forecast(data, arm, backend, sizes, mine, target, parameters, hosts, batch_size))
    return tuple(found)


def _bases(data: RunData) -> dict[str, list[_Basis]]:
    """Arm → what was measured of it, each workload and world size."""
    groups: dict[tuple[str, str, int], list[LaunchData]] = {}
    for launch in data.launches:
        o = launch.outcome
        if launch.usable and o.kind == "train" and launch.nosync is not None and launch.nosync.steps:
            groups.setdefault((o.arm, o.workload, o.world_size), []).append(launch)
    found: dict[str, list[_Basis]] = {}
    for (arm, workload, world_size), launches in sorted(groups.items()):
        measures = [m for launch in launches if (m := rows.measure(launch)) is not None]
        exposed = [m.exposed for m in measures if m.exposed is not None]
        facts = launches[0].ranks[0].facts
        if measures and exposed and facts.buckets_bytes:
            step = float(np.median([m.value for m in measures]))
            basis = _Basis(workload, world_size, facts, _compute(launches), step, float(np.median(exposed)))
            found.setdefault(arm, []).append(basis)
    return found


def _compute(launches: Sequence[LaunchData]) -> ComputeTime:
    """T_nosync of some launches by phases: medians over launches of medians of the max over ranks."""
    totals, forwards, backwards = [], [], []
    for launch in launches:
        assert launch.nosync is not None
        totals.append(float(np.median(launch.nosync.total_ns.max(axis=0))) / 1e9)
        if launch.nosync.forward_ns.size and launch.nosync.backward_ns.size:
            forwards.append(float(np.median(launch.nosync.forward_ns.max(axis=0))) / 1e9)
            backwards.append(float(np.median(launch.nosync.backward_ns.max(axis=0))) / 1e9)
    total, interval = float(np.median(totals)), statistics.median_interval(totals)
    parameters = float(launches[0].ranks[0].facts.parameters) or None
    if not forwards:
        return ComputeTime.from_total(total, interval, parameters)
    forward, backward = float(np.median(forwards)), float(np.median(backwards))
    return ComputeTime(forward, backward, max(0.0, total - forward - backward), interval, parameters)


def _forecast(
    data: RunData,
    arm: str,
    backend: str,
    models: dict[int, CollectiveModel],
    bases: Sequence[_Basis],
    target: Sequence[_Basis],
    parameters: float | None,
    hosts: int | None,
    batch_size: int | None,
) -> Forecast:
    world = hosts or max(basis.world_size for basis in target)
    base = min(target, key=lambda basis: (abs(basis.world_size - world), -basis.world_size))
    model = models[min(models, key=lambda size: (abs(size - world), -size))]
    notes = []
    compute, buckets = base.compute, base.facts.buckets_bytes
    what = base.workload
    if parameters is not None:
        compute = compute.scaled(parameters)
        bucket_bytes = int(_bucket_megabytes(data, arm) * (1 << 20))
        buckets = prediction.assumed_buckets(round(parameters * FLOAT_BYTES), bucket_bytes)
        what = f"{parameters:.3g} parameters"
        notes.append(f"compute scaled in proportion to the parameters, from {base.workload}; buckets assumed full")
    if batch_size is not None and batch_size != base.facts.batch_size:
        compute = _other_batch(compute, batch_size / base.facts.batch_size)
        notes.append(f"compute scaled in proportion to the batch, from {base.facts.batch_size} samples per rank")
    calibration = _calibration(model, bases, base.workload)
    scale = calibration[1] if calibration else 1.0
    result = prediction.predict(
        model, compute, buckets, world, parameters=parameters, communication_scale=scale, seed=data.plan.seed
    )
    notes += [_extrapolation_text(e) for e in result.extrapolations]
    if model.poor:
        notes.append(
            f"α + S/β misses the measured all-reduce by {model.worst_misfit:.0%} at {model.worst_bytes} bytes: this"
            " backend changes its algorithm with the size, and the prediction is as coarse as that"
        )
    same = parameters is None and batch_size in (None, base.facts.batch_size) and base.world_size == world
    return Forecast(
        arm=arm,
        backend=backend,
        what=what,
        world_size=world,
        result=result,
        measured_seconds=base.step_seconds if same else None,
        calibrated_on=calibration[0] if calibration else None,
        communication_scale=scale,
        notes=tuple(notes),
    )


def _bucket_megabytes(data: RunData, arm: str) -> float:
    return next((known.ddp.bucket_mb for known in data.plan.arms if known.name == arm), 25.0)


def _other_batch(compute: ComputeTime, factor: float) -> ComputeTime:
    """Forward and backward grow with the batch; the optimizer does not."""
    scaled = dataclasses.replace(compute, forward=compute.forward * factor, backward=compute.backward * factor)
    pace = scaled.total / compute.total
    if compute.interval is None:
        return scaled
    low, high = (end * pace for end in compute.interval.as_tuple())
    return dataclasses.replace(scaled, interval=dataclasses.replace(compute.interval, low=low, high=high))


def _calibration(model: CollectiveModel, bases: Sequence[_Basis], workload: str) -> tuple[str, float] | None:
    """(workload, scale of the all-reduce), from a measured step with exposed communication.

    Preferred is another workload than the predicted one, at the model's own world size. The predicted one itself serves
    only at another world size, or where there is no other.
    """
    usable = [basis for basis in bases if basis.world_size > 1]
    usable.sort(key=lambda b: (b.workload == workload, abs(b.world_size - model.measured_world_size)))
    for basis in usable:
        scale = prediction.calibrate_communication(
            model, basis.compute, basis.facts.buckets_bytes, basis.world_size, basis.exposed_seconds
        )
        if scale is not None:
            return f"{basis.workload} at world size {basis.world_size}", scale
    return None


def _extrapolation_text(e: prediction.Extrapolation) -> str:
    measured = (
        f"{e.measured_low:.4g}"
        if e.measured_low == e.measured_high
        else f"{e.measured_low:.4g} to {e.measured_high:.4g}"
    )
    names = {"bucket_bytes": "bucket size in bytes", "world_size": "world size", "parameters": "number of parameters"}
    return f"extrapolated: {names.get(e.quantity, e.quantity)} {e.value:.4g}, measured {measured}"
