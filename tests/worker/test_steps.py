# ruff: noqa: E402  # without torch the whole file is skipped, and that must come before imports that need it
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from torch.nn.parallel import DistributedDataParallel

from suite.records import DdpOptions
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
