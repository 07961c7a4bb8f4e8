# ruff: noqa: E402  # without torch the whole file is skipped, and that must come before imports that need it
"""The seam between CPU and CUDA, on the CPU; tests/gpu runs the same code on a GPU.

For CUDA's side a stand-in takes the place of the few functions of ``torch.cuda`` that it calls.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from suite.errors import LaunchError
from suite.records import HostSlots, StepSamples, Sweep
from suite.worker import launch, nvml
from suite.worker.collectives import Call
from suite.worker.device import MARKS_PER_STEP, CudaDevice, Device, make_device
from suite.worker.groups import Groups
from suite.worker.identity import identify
from suite.worker.recorder import Recorder
from suite.worker.steps import Trainee, free_steps, implausible, plain, timed_steps
from suite.worker.timing import measure
from suite.worker.workloads import build
from tests.worker.conftest import make_spec


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


class Cuda:
    """Stands in for a machine's CUDA devices: a stream of work that takes time only when it is waited for.

    ``clock`` is what the device has done, in seconds; events note it when they are recorded.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, count: int = 2, **properties: Any) -> None:
        self.clock = 0.0
        self.calls: list[str] = []
        cuda = self

        class Event:
            """An event with timing."""

            def __init__(self, *, enable_timing: bool) -> None:
                assert enable_timing
                self.at: float | None = None

            def record(self) -> None:
                cuda.calls.append("record")
                self.at = cuda.clock

            def synchronize(self) -> None:
                cuda.calls.append("wait for event")

            def elapsed_time(self, later: Event) -> float:
                assert self.at is not None and later.at is not None, "an event that was never recorded"
                return (later.at - self.at) * 1000  # milliseconds

        def note(name: str, value: Any = None) -> Callable[..., Any]:
            def call(*arguments: Any) -> Any:
                self.calls.append(" ".join([name, *map(str, arguments)]))
                return value

            return call

        for name, replacement in {
            "is_available": lambda: count > 0,
            "device_count": lambda: count,
            "get_device_properties": lambda index: SimpleNamespace(**properties),
            "Event": Event,
            "set_device": note("set_device"),
            "synchronize": note("synchronize"),
            "reset_peak_memory_stats": note("reset_peak"),
            "max_memory_allocated": note("max_memory", 12345),
        }.items():
            monkeypatch.setattr(torch.cuda, name, replacement)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        monkeypatch.setattr(nvml, "_nvidia_smi", lambda *words: "GPU-0\nGPU-1\n")


def test_a_cuda_device_is_chosen_synchronised_and_asked_by_its_index(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = Cuda(monkeypatch)
    device = make_device("cuda", 1)
    device.synchronise()
    device.reset_peak()
    assert device.peak_bytes() == 12345
    assert device.kind == "cuda"
    assert device.torch_device == torch.device("cuda", 1)
    assert cuda.calls == ["set_device 1", "synchronize cuda:1", "reset_peak cuda:1", "max_memory cuda:1"]
    with pytest.raises(LaunchError, match="CUDA device 2 was asked for, 2 are visible"):
        CudaDevice(2)


def test_a_cuda_device_is_known_by_the_best_name_that_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    Cuda(monkeypatch)
    assert CudaDevice(1).identity == "GPU-1"  # by nvidia-smi: torch 2.0 tells none
    Cuda(monkeypatch, uuid="torch-knows")
    assert CudaDevice(1).identity == "GPU-torch-knows"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-x,GPU-y")
    assert CudaDevice(1).identity == "GPU-y"
    Cuda(monkeypatch)
    monkeypatch.setattr(nvml, "_nvidia_smi", lambda *words: "")
    device = CudaDevice(1)
    assert (device.uuid, device.identity) == (None, "cuda:1")


def test_phases_on_cuda_are_the_times_between_events_in_nanoseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = Cuda(monkeypatch)
    marks = CudaDevice(0).marks(2)
    cuda.calls.clear()
    for seconds in (0.001, 0.002, 0.004, 0.1, 0.003, 0.005, 0.0000005, 0.1):
        marks.mark()
        cuda.clock += seconds
    assert cuda.calls == ["record"] * MARKS_PER_STEP * 2  # nothing is waited for between two borders
    assert marks.phases_ns() == ([1_000_000, 3_000_000], [2_000_000, 5_000_000], [4_000_000, 500])
    assert cuda.calls[-1] == "wait for event"
    assert CudaDevice(0).marks(0).phases_ns() == ([], [], [])


def test_steps_on_cuda_are_synchronised_once_each_and_marked_without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = Cuda(monkeypatch)
    device = CudaDevice(0)
    cuda.calls.clear()
    samples = timed_steps(sleeping(0.001), device, 3, lambda: cuda.calls.append("ready"))
    step = ["record"] * MARKS_PER_STEP + ["synchronize cuda:0"]
    assert cuda.calls == ["ready", "synchronize cuda:0", *step * 3, "wait for event"]
    assert len(samples.total_ns) == len(samples.forward_ns) == 3
    cuda.calls.clear()
    free_steps(sleeping(0), device, 3)
    assert cuda.calls == ["synchronize cuda:0"] * 2


def test_a_step_on_cuda_that_was_not_waited_for_is_found_by_its_events(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = Cuda(monkeypatch)
    trainee = sleeping(0)

    def slow_on_the_device(outputs: Any, targets: Any) -> Any:
        cuda.clock += 1.0
        return trainee.loss_fn(outputs, targets)

    queued = Trainee(trainee.model, trainee.inputs, trainee.targets, slow_on_the_device, trainee.optimizer)
    samples = timed_steps(queued, CudaDevice(0), 3)
    assert samples.forward_ns == (1_000_000_000,) * 3
    assert (implausible(samples) or "").startswith("Implausible")


def test_every_timed_collective_ends_with_the_device_synchronised(
    one_rank: Callable[[], Groups], monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = one_rank()
    cuda = Cuda(monkeypatch)
    groups.device = CudaDevice(0)
    cuda.calls.clear()
    call = Call("all_reduce", 4, lambda: cuda.calls.append("run"))
    samples = measure(groups, call, Sweep(repeats=5, min_repeats=2, warmup=1, seconds_per_size=1.0))
    groups.device = Device()  # for the end of the groups
    runs = [number for number, what in enumerate(cuda.calls) if what == "run"]
    assert len(samples.ns) == 5
    assert len(runs) == 1 + 1 + 5 + 1  # the first, the warm-up, the timed ones, the one whose result is checked
    assert all(cuda.calls[number + 1] == "synchronize cuda:0" for number in runs)


@pytest.mark.parametrize(("devices", "asked"), [(("GPU-0", "GPU-1"), True), (("GPU-0", "GPU-0"), False)])
def test_the_memory_in_use_is_asked_for_before_cuda_is_used_and_only_by_a_rank_that_has_its_gpu_alone(
    devices: tuple[str, str], asked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[str] = []

    def note(name: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            happened.append(" ".join([name, *map(str, arguments)]))
            if name == "make_device":
                raise LaunchError("far enough")

        return call

    monkeypatch.setattr(launch, "make_device", note("make_device"))
    monkeypatch.setattr(nvml, "memory_in_use", note("memory_in_use"))
    host = HostSlots("local", "127.0.0.1", 2, "lo", devices=devices)
    spec = make_spec(tmp_path, device="cuda", hosts=(host,))
    identity = identify({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"})
    with pytest.raises(LaunchError, match="far enough"):
        launch.run_launch(spec, identity, Recorder(spec, identity, tmp_path))
    assert happened == (["memory_in_use 1", "make_device cuda 1"] if asked else ["make_device cuda 0"])
