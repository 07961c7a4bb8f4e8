# ruff: noqa: E402  # without torch the whole file is skipped, and that must come before imports that need it
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from suite.errors import LaunchError
from suite.records import DdpOptions
from suite.worker import launch
from suite.worker.device import Device
from suite.worker.groups import Groups
from suite.worker.steps import bucket_sizes, distributed
from suite.worker.workloads import Workload, build

MIB = 1 << 20


def tiny() -> Workload:
    return build("transformer-tiny", seed=1, rank=0, device=torch.device("cpu"), batch_size=1)


def buckets_of_plain_ddp(workload: Workload, groups: Groups, **options: Any) -> list[int]:
    """What DDP reduces in its third step, as a script would see it that knows nothing of the suite."""
    sizes: list[int] = []

    # DDP compares a hook's annotations with its own types, and fails on those that are text in this module.
    def hook(state, bucket):  # type: ignore[no-untyped-def]
        state.append(bucket.buffer().numel() * bucket.buffer().element_size())
        done = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    model = DistributedDataParallel(workload.model, process_group=groups.measured, **options)
    model.register_comm_hook(sizes, hook)
    for _ in range(3):
        sizes.clear()
        workload.loss_fn(model(workload.inputs), workload.targets).backward()
    return sizes


def buckets_of_the_suite(workload: Workload, groups: Groups, options: DdpOptions) -> list[int]:
    trainee = distributed(workload, groups, options)
    for _ in range(2):
        trainee.step()
    return list(bucket_sizes(trainee, groups))


def test_without_options_the_suite_trains_with_the_buckets_of_plain_ddp(one_rank: Callable[[], Groups]) -> None:
    groups = one_rank()
    found = buckets_of_the_suite(tiny(), groups, DdpOptions())
    assert found == buckets_of_plain_ddp(tiny(), groups)
    # Its small first bucket, one tensor over 1 MiB at most here, then the rest of the model.
    assert len(found) == 2
    assert MIB <= found[0] < 2 * MIB < found[1]


def test_a_bucket_size_is_given_to_ddp_as_it_is(one_rank: Callable[[], Groups]) -> None:
    groups = one_rank()
    found = buckets_of_the_suite(tiny(), groups, DdpOptions(bucket_mb=5.0))
    assert found == buckets_of_plain_ddp(tiny(), groups, bucket_cap_mb=5.0)
    assert len(found) > 2


def test_the_device_is_synchronised_for_mpi_on_cuda_only() -> None:
    for backend, kind, needed in (("mpi", "cuda", True), ("mpi", "cpu", False), ("nccl", "cuda", False)):
        groups = object.__new__(Groups)  # without processes to group
        groups.backend, groups.device = backend, Device()
        groups.device.kind = kind
        assert groups.needs_synchronise is needed, (backend, kind)


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happens to device and group, in order, as if gloo on the CPU were mpi on a GPU."""
    happened: list[str] = []

    def told(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **more: Any) -> Any:
            happened.append(name)
            return real(*arguments, **more)

        return call

    monkeypatch.setattr(Groups, "needs_synchronise", property(lambda groups: True))
    monkeypatch.setattr(Device, "synchronise", told("synchronise", Device.synchronise))
    monkeypatch.setattr(DistributedDataParallel, "__init__", told("DDP", DistributedDataParallel.__init__))
    for name in ("all_reduce", "broadcast"):
        monkeypatch.setattr(dist, name, told(name, getattr(dist, name)))
    return happened


def with_buffers() -> Workload:
    """A workload whose model has buffers of two types, as batch normalisation has."""
    workload = build("linear", seed=1, rank=0, device=torch.device("cpu"), batch_size=8)
    width = workload.inputs.shape[1]
    return replace(workload, model=nn.Sequential(nn.BatchNorm1d(width), workload.model))


def test_where_it_is_needed_the_device_is_synchronised_around_ddp_and_before_each_collective_of_a_step(
    one_rank: Callable[[], Groups], events: list[str]
) -> None:
    groups = one_rank()
    events.clear()
    trainee = distributed(with_buffers(), groups, DdpOptions(broadcast_buffers=True))
    assert events == ["synchronise", "DDP", "synchronise"]
    assert not trainee.model.broadcast_buffers
    events.clear()
    trainee.step()
    # Buffers of float and of whole numbers, then the one bucket.
    assert events == ["synchronise", "broadcast"] * 2 + ["synchronise", "all_reduce"] * events.count("all_reduce")
    assert "all_reduce" in events
    events.clear()
    assert isinstance(trainee.model, DistributedDataParallel)
    with trainee.model.no_sync():
        trainee.step()
    assert events == []


def test_buffers_are_the_first_ranks_where_the_suite_broadcasts_them(
    one_rank: Callable[[], Groups], events: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = one_rank()
    trainee = distributed(with_buffers(), groups, DdpOptions(broadcast_buffers=True))
    trainee.model.eval()  # so that the forward leaves the buffers as they were broadcast

    def from_rank_0(tensor: Any, source: int, group: Any) -> None:
        assert (source, group) == (0, groups.measured)
        tensor.copy_(torch.arange(tensor.numel()))

    monkeypatch.setattr(dist, "broadcast", from_rank_0)
    trainee.model(trainee.inputs)
    mean, variance, batches = trainee.model.buffers()
    assert torch.equal(torch.cat([mean, variance]), torch.arange(2.0 * mean.numel()))
    assert (batches.shape, int(batches)) == ((), 0)


def test_elsewhere_ddp_broadcasts_its_buffers_itself_and_nothing_is_synchronised(
    one_rank: Callable[[], Groups], events: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Groups, "needs_synchronise", property(lambda groups: False))
    groups = one_rank()
    events.clear()
    trainee = distributed(with_buffers(), groups, DdpOptions(broadcast_buffers=True))
    assert trainee.model.broadcast_buffers
    trainee.step()
    assert events == ["DDP"]


def test_weights_that_differ_after_ddps_broadcast_fail_the_launch(
    one_rank: Callable[[], Groups], events: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = one_rank()
    trainee = distributed(tiny(), groups, DdpOptions())
    launch._check_weights(trainee, groups)
    monkeypatch.setattr(groups, "gather", lambda value: [value, value, "other"])
    with pytest.raises(LaunchError, match="those of rank 2 differ from rank 0's"):
        launch._check_weights(trainee, groups)
