# ruff: noqa: E402  # without torch the whole file is skipped, and that must come before imports that need it
"""The seam between CPU and CUDA, on the CPU; tests/gpu runs the same code on a GPU."""

from __future__ import annotations

import time
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from suite.errors import LaunchError
from suite.records import StepSamples
from suite.worker.device import CudaDevice, Device, make_device
from suite.worker.steps import Trainee, free_steps, implausible, plain, timed_steps
from suite.worker.workloads import build


def sleeping(seconds: float) -> Trainee:
    """A trainee whose forward sleeps."""
    workload = build("linear", seed=1, rank=0, device=torch.device("cpu"), batch_size=1)
    trainee = plain(workload)

    def slow(outputs: Any, targets: Any) -> Any:
        time.sleep(seconds)
        return workload.loss_fn(outputs, targets)

    return Trainee(trainee.model, trainee.inputs, trainee.targets, slow, trainee.optimizer)


def test_the_time_of_a_step_is_where_it_was_spent() -> None:
    samples = timed_steps(sleeping(0.02), Device(), 3)
    assert all(ns >= 20e6 for ns in samples.forward_ns)
    assert all(
        f + b + o <= t
        for f, b, o, t in zip(
            samples.forward_ns, samples.backward_ns, samples.optimizer_ns, samples.total_ns, strict=True
        )
    )


def test_the_steps_times_add_up_to_the_time_of_the_loop() -> None:
    began = time.perf_counter_ns()
    samples = timed_steps(sleeping(0.01), Device(), 5)
    assert sum(samples.total_ns) <= time.perf_counter_ns() - began
    assert sum(samples.total_ns) >= 5 * 10e6


def test_free_steps_are_timed_as_one() -> None:
    run = free_steps(sleeping(0.005), Device(), 4)
    assert run.steps == 4
    assert run.total_ns >= 4 * 5e6


def test_no_steps_are_no_samples() -> None:
    assert timed_steps(sleeping(0), Device(), 0) == StepSamples()


def test_a_step_whose_device_was_not_waited_for_is_implausible() -> None:
    true = StepSamples((10_000_000,) * 3, (3_000_000,) * 3, (5_000_000,) * 3, (1_000_000,) * 3)
    assert implausible(true) is None
    queued = StepSamples((1_000_000,) * 3, (3_000_000,) * 3, (5_000_000,) * 3, (1_000_000,) * 3)
    text = implausible(queued)
    assert text is not None
    assert text.startswith("Implausible: a step takes 1.000 ms by the host's clock, but its phases took 9.000 ms")
    assert implausible(StepSamples()) is None


def test_a_missing_gpu_is_named_with_what_to_check() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(LaunchError, match="CUDA device 0 was asked for, 0 are visible"):
        CudaDevice(0)


def test_numerics_are_fixed_for_every_device() -> None:
    torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    device = make_device("cpu", 0)
    assert device.kind == device.identity == "cpu"
    assert not torch.backends.cudnn.allow_tf32
    assert not torch.backends.cudnn.benchmark
    assert not torch.backends.cuda.matmul.allow_tf32


def test_the_memory_peak_is_this_process_own() -> None:
    assert 1 << 24 < Device().peak_bytes() < 1 << 40
