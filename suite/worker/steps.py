"""The measured loop, as thin as it can be, and DDP around a workload.

One step is zero_grad, forward, loss, backward (with DDP's all-reduce) and the optimizer's step, on data that
are on the device already. ``benchmarks/fidelity.py`` compares this loop with a bare one.
"""

from __future__ import annotations

import contextlib
import gc
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from suite.records import DdpOptions, FreeRun, StepSamples
from suite.worker.device import Device
from suite.worker.groups import Groups
from suite.worker.workloads import LossFunction, Workload

# A step's phases by the device's clock may exceed its time by the host's by no more than the clocks' grain.
PLAUSIBLE = 0.95


@dataclass(frozen=True)
class Trainee:
    """A workload that is ready to be stepped: its model, with DDP around it or without, and its optimizer."""

    model: nn.Module
    inputs: Any
    targets: Any
    loss_fn: LossFunction
    optimizer: torch.optim.Optimizer
    reduction: Reduction | None = None  # the communication hook, where one was needed from the start

    def step(self) -> torch.Tensor:
        """One step, untimed; returns its loss."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss_fn(self.model(self.inputs), self.targets)
        loss.backward()
        self.optimizer.step()
        return loss


def plain(workload: Workload) -> Trainee:
    """The workload in one process, without DDP."""
    return _trainee(workload.model, workload)


def distributed(workload: Workload, groups: Groups, options: DdpOptions) -> Trainee:
    """The workload under DDP on the measured group.

    Where the device must be synchronised before a collective, DDP's broadcast of buffers is done here: its own packs
    them on the device and sends them at once. Its constructor broadcasts the weights in the same way, which nothing can
    get between; ``launch`` therefore compares them afterwards.
    """
    device = workload_device(workload)
    groups.before_collective()
    with warnings.catch_warnings():
        # The newest torch has another name for broadcast_buffers; the old one is known to all versions.
        warnings.simplefilter("ignore", FutureWarning)
        model = DistributedDataParallel(
            workload.model,
            device_ids=[device.index] if device.type == "cuda" else None,
            process_group=groups.measured,
            broadcast_buffers=options.broadcast_buffers and not groups.needs_synchronise,
            gradient_as_bucket_view=options.gradient_as_bucket_view,
            static_graph=options.static_graph,
            find_unused_parameters=options.find_unused_parameters,
            **_bucket_cap(options),
        )
    reduction = Reduction(groups) if groups.needs_synchronise else None
    if reduction:
        _register(model, reduction)
        if options.broadcast_buffers:
            model.register_forward_pre_hook(BufferBroadcast(groups, workload.model))
    groups.before_collective()
    return _trainee(model, workload, reduction)


def _bucket_cap(options: DdpOptions) -> dict[str, float]:
    """DDP's bucket size, left out where it is DDP's own.

    In torch 2.6 (not in 2.0.1) a size that is given, were it the default, takes away the small first bucket: giving it
    would measure another DDP than everybody has. The record's buckets show what was built.
    """
    return {} if options.bucket_mb == DdpOptions.bucket_mb else {"bucket_cap_mb": options.bucket_mb}


def workload_device(workload: Workload) -> torch.device:
    """Where the workload's parameters are."""
    return next(workload.model.parameters()).device


def _trainee(model: nn.Module, workload: Workload, reduction: Reduction | None = None) -> Trainee:
    return Trainee(
        model=model,
        inputs=workload.inputs,
        targets=workload.targets,
        loss_fn=workload.loss_fn,
        optimizer=workload.optimizer(model.parameters()),
        reduction=reduction,
    )


class Reduction:
    """DDP's own averaging as a communication hook, for the two cases that need one.

    The upstream mpi backend needs the device synchronised before its collective (see ``Groups``), and the
    sizes of the buckets that DDP really reduces are seen nowhere else. All other training runs without a hook.
    """

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self._sizes: list[int] = []

    def __call__(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Average one bucket over the measured group."""
        buffer = bucket.buffer()
        self._sizes.append(buffer.numel() * buffer.element_size())
        buffer.div_(self._groups.world_size)
        self._groups.before_collective()
        work = dist.all_reduce(buffer, group=self._groups.measured, async_op=True)
        return work.get_future().then(lambda future: future.value()[0])

    def take_sizes(self) -> tuple[int, ...]:
        """Bytes of the buckets reduced since the last call, in the order of their reduction."""
        sizes = tuple(self._sizes)
        self._sizes.clear()
        return sizes


class BufferBroadcast:
    """DDP's broadcast of the first rank's buffers before a forward, with the device synchronised before each.

    A forward pre-hook of the DDP module. As DDP does, it packs the buffers of one type into one message, and leaves
    them alone under ``no_sync()``.
    """

    def __init__(self, groups: Groups, module: nn.Module) -> None:
        self._groups = groups
        self._module = module

    def __call__(self, model: nn.Module, inputs: Any) -> None:
        """Broadcast before the forward of ``model``, the DDP module around this one."""
        del inputs
        if not model.require_backward_grad_sync:
            return
        by_type: dict[torch.dtype, list[torch.Tensor]] = {}
        for buffer in self._module.buffers():
            by_type.setdefault(buffer.dtype, []).append(buffer.detach())
        for buffers in by_type.values():
            packed = torch.cat([buffer.reshape(-1) for buffer in buffers])
            self._groups.before_collective()
            dist.broadcast(packed, 0, group=self._groups.measured)
            for buffer, part in zip(buffers, packed.split([b.numel() for b in buffers]), strict=True):
                buffer.copy_(part.view_as(buffer))


# DDP compares a hook's annotations with its own types, and fails on those that are text in this module.
def _reduce(reduction, bucket):  # type: ignore[no-untyped-def]
    return reduction(bucket)


def bucket_sizes(trainee: Trainee, groups: Groups) -> tuple[int, ...]:
    """Bytes of the buckets that DDP reduces in one more step, in the order of their reduction.

    Call it after the measurements, and after the second step (DDP rebuilds its buckets then): a hook cannot be
    taken off again.
    """
    reduction = trainee.reduction
    if reduction is None:
        reduction = Reduction(groups)
        _register(trainee.model, reduction)
    reduction.take_sizes()
    trainee.step()
    return reduction.take_sizes()


def _register(model: nn.Module, reduction: Reduction) -> None:
    assert isinstance(model, DistributedDataParallel)
    model.register_comm_hook(reduction, _reduce)


@contextlib.contextmanager
def quiet(ready: Callable[[], object]) -> Iterator[None]:
    """No garbage collection while something is timed; the same for every backend.

    ``ready`` is called last, e.g. a barrier: the collection before it takes each rank its own time.
    """
    gc.collect()
    gc.disable()
    ready()
    try:
        yield
    finally:
        gc.enable()


def alone() -> None:
    """Ready at once: there is nobody to wait for."""


def timed_steps(trainee: Trainee, device: Device, count: int, ready: Callable[[], object] = alone) -> StepSamples:
    """``count`` steps, each timed with the device synchronised at its end, with phases.

    A step's time runs from the end of the step before, so nothing is left out between two steps. ``ready`` is
    called right before the first.
    """
    model, inputs, targets, loss_fn = trainee.model, trainee.inputs, trainee.targets, trainee.loss_fn
    zero_grad, optimizer_step = trainee.optimizer.zero_grad, trainee.optimizer.step
    marks = device.marks(count)
    mark, synchronise, now = marks.mark, device.synchronise, time.perf_counter_ns
    totals = [0] * count
    with quiet(ready):
        synchronise()
        start = now()
        for i in range(count):
            zero_grad(set_to_none=True)
            mark()
            loss = loss_fn(model(inputs), targets)
            mark()
            loss.backward()
            mark()
            optimizer_step()
            mark()
            synchronise()
            end = now()
            totals[i] = end - start
            start = end
    forward, backward, optimizer = marks.phases_ns()
    return StepSamples(tuple(totals), tuple(forward), tuple(backward), tuple(optimizer))


def implausible(samples: StepSamples) -> str | None:
    """Why the steps' times cannot be true: less time on the host's clock than the device was busy; else None.

    That is what a step looks like whose end was not waited for. On CPU the phases are parts of the total.
    """
    if not samples.total_ns:
        return None
    phases = zip(samples.forward_ns, samples.backward_ns, samples.optimizer_ns, strict=True)
    total, busy = statistics.median(samples.total_ns), statistics.median(map(sum, phases))
    if total >= PLAUSIBLE * busy:
        return None
    return (
        f"Implausible: a step takes {total / 1e6:.3f} ms by the host's clock, but its phases took {busy / 1e6:.3f} ms "
        "on the device: the device was not synchronised at the end of the step."
    )


def free_steps(trainee: Trainee, device: Device, count: int, ready: Callable[[], object] = alone) -> FreeRun:
    """``count`` steps timed as one, without synchronising in between."""
    step = trainee.step
    with quiet(ready):
        device.synchronise()
        start = time.perf_counter_ns()
        for _ in range(count):
            step()
        device.synchronise()
        total = time.perf_counter_ns() - start
    return FreeRun(count, total)
