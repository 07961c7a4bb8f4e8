"""The one seam between CPU and CUDA: synchronise, mark phases, read the memory peak.

Times are taken by the host's ``perf_counter_ns`` with the device synchronised around a whole step. Within a
step the device is left alone: on CUDA the borders of the phases are events in the stream, read afterwards, so
that measuring a phase does not change the step. The step loop is the same code for both.
"""

from __future__ import annotations

import resource
import time
from itertools import pairwise
from typing import Protocol

import torch

from suite.errors import LaunchError
from suite.worker import nvml

MARKS_PER_STEP = 4  # before forward, after forward, after backward, after optimizer


class PhaseMarks(Protocol):
    """The borders of the phases of a series of steps."""

    def mark(self) -> None:
        """The next border is here. Must be called ``MARKS_PER_STEP`` times a step."""

    def phases_ns(self) -> tuple[list[int], list[int], list[int]]:
        """Forward, backward and optimizer of each step, nanoseconds; after ``synchronise`` only."""


class Device:
    """The CPU, where every operation has ended when it returns."""

    kind = "cpu"
    identity = "cpu"  # what tells this device from another on the same host
    uuid: str | None = None

    def __init__(self) -> None:
        self.torch_device = torch.device("cpu")

    def synchronise(self) -> None:
        """Wait until everything queued on the device is done. On CPU nothing is ever queued."""

    def marks(self, steps: int) -> PhaseMarks:
        """Room for the borders of ``steps`` steps, allocated before they run."""
        return _HostMarks(steps)

    def reset_peak(self) -> None:
        """Start a new memory peak, where the device can."""

    def peak_bytes(self) -> int:
        """Largest memory in use: this process's resident set since its start."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class CudaDevice(Device):
    """One CUDA device.

    Args:
        index: which of the visible devices.

    Raises:
        LaunchError: there is no such device.
    """

    kind = "cuda"

    def __init__(self, index: int) -> None:
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if index >= count:
            raise LaunchError(
                f"CUDA device {index} was asked for, {count} are visible.",
                fix="check the host's devices and slots in the cluster file, and the container's GPU access.",
            )
        torch.cuda.set_device(index)
        self.torch_device = torch.device("cuda", index)
        self.uuid = device_uuid(index)
        self.identity = self.uuid or f"cuda:{index}"

    def synchronise(self) -> None:
        torch.cuda.synchronize(self.torch_device)

    def marks(self, steps: int) -> PhaseMarks:
        return _EventMarks(steps)

    def reset_peak(self) -> None:
        torch.cuda.reset_peak_memory_stats(self.torch_device)

    def peak_bytes(self) -> int:
        """Largest memory that torch's allocator had in use on the device since ``reset_peak``."""
        return int(torch.cuda.max_memory_allocated(self.torch_device))


def device_uuid(index: int) -> str | None:
    """The UUID of a visible CUDA device, by its name in ``CUDA_VISIBLE_DEVICES``, by torch, or by nvidia-smi."""
    named = nvml.named_uuid(index)
    if named:
        return named
    told = getattr(torch.cuda.get_device_properties(index), "uuid", None)  # older torch does not tell it
    return f"GPU-{told}" if told else nvml.listed_uuid(index)


class _HostMarks:
    def __init__(self, steps: int) -> None:
        self._stamps = [0] * (MARKS_PER_STEP * steps)
        self._next = 0

    def mark(self) -> None:
        self._stamps[self._next] = time.perf_counter_ns()
        self._next += 1

    def phases_ns(self) -> tuple[list[int], list[int], list[int]]:
        start, forward, backward, optimizer = (self._stamps[i::MARKS_PER_STEP] for i in range(MARKS_PER_STEP))
        return _differences(start, forward), _differences(forward, backward), _differences(backward, optimizer)


class _EventMarks:
    def __init__(self, steps: int) -> None:
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(MARKS_PER_STEP * steps)]
        self._next = 0

    def mark(self) -> None:
        self._events[self._next].record()
        self._next += 1

    def phases_ns(self) -> tuple[list[int], list[int], list[int]]:
        if self._events:
            self._events[-1].synchronize()
        series = [self._events[i::MARKS_PER_STEP] for i in range(MARKS_PER_STEP)]
        forward, backward, optimizer = (
            [round(a.elapsed_time(b) * 1e6) for a, b in zip(before, after, strict=True)]
            for before, after in pairwise(series)
        )
        return forward, backward, optimizer


def _differences(before: list[int], after: list[int]) -> list[int]:
    return [b - a for a, b in zip(before, after, strict=True)]


def make_device(kind: str, index: int) -> Device:
    """The device of one rank, with its numerics fixed: no TF32, no autotuning, the same for every backend.

    Raises:
        LaunchError: the CUDA device is not there.
    """
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    return CudaDevice(index) if kind == "cuda" else Device()
