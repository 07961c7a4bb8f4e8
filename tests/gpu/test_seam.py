"""The seam between CPU and CUDA on a real device: the clock tells the truth, and a lie is noticed."""

# ruff: noqa: E402  # without torch the whole file is skipped, and that must come before imports that need it

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from suite.errors import LaunchError
from suite.worker.device import CudaDevice, Device, make_device
from suite.worker.steps import Trainee, free_steps, implausible, plain, timed_steps
from suite.worker.workloads import build


class Unsynchronised(CudaDevice):
    """A device that never waits: the mistake of the published script."""

    def synchronise(self) -> None:
        """Do nothing."""


def heavy(device: Device) -> Trainee:
    """A trainee whose step keeps the GPU busy much longer than queueing it takes."""
    workload = build("linear", seed=1, rank=0, device=device.torch_device, batch_size=8)
    trainee = plain(workload)
    matrix = torch.randn(4096, 4096, device=device.torch_device) / 64

    def loss(outputs: Any, targets: Any) -> Any:
        product = matrix
        for _ in range(20):
            product = product @ matrix
        return workload.loss_fn(outputs, targets) + 0 * product.sum()

    return Trainee(trainee.model, trainee.inputs, trainee.targets, loss, trainee.optimizer)


def test_a_synchronised_step_is_plausible_and_agrees_with_the_events() -> None:
    device = make_device("cuda", 0)
    trainee = heavy(device)
    timed_steps(trainee, device, 3)
    samples = timed_steps(trainee, device, 10)
    assert implausible(samples) is None
    phases = [sum(step) for step in zip(samples.forward_ns, samples.backward_ns, samples.optimizer_ns, strict=True)]
    assert sorted(phases)[5] == pytest.approx(sorted(samples.total_ns)[5], rel=0.25)


def test_a_step_timed_without_synchronising_is_found_implausible() -> None:
    device = Unsynchronised(0)
    trainee = heavy(device)
    timed_steps(trainee, device, 3)
    torch.cuda.synchronize()
    text = implausible(timed_steps(trainee, device, 10))
    torch.cuda.synchronize()
    assert text is not None
    assert "the device was not synchronised" in text


def test_free_steps_wait_for_the_device_at_the_end() -> None:
    device = make_device("cuda", 0)
    trainee = heavy(device)
    timed_steps(trainee, device, 3)
    one_by_one = sum(timed_steps(trainee, device, 10).total_ns)
    assert free_steps(trainee, device, 10).total_ns > 0.5 * one_by_one


def test_the_memory_peak_is_the_devices() -> None:
    device = make_device("cuda", 0)
    device.reset_peak()
    held = torch.zeros(1 << 20, device=device.torch_device)
    assert device.peak_bytes() >= held.numel() * 4


def test_a_gpu_that_is_not_there_is_named() -> None:
    count = torch.cuda.device_count()
    with pytest.raises(LaunchError, match=f"CUDA device {count} was asked for, {count} are visible"):
        CudaDevice(count)


def test_float32_products_are_not_computed_in_tf32() -> None:
    device = make_device("cuda", 0)
    a = torch.randn(512, 512, device=device.torch_device)
    exact = a.double() @ a.double()
    assert float(((a @ a).double() - exact).abs().max()) < 1e-3
