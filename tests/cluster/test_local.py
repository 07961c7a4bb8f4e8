"""This machine as the host of a plan, with and without CUDA devices, as its worker's probe tells them."""

from __future__ import annotations

import pytest

from suite.cluster.local import local_host
from suite.errors import UsageError
from suite.records import HostProbe, HostSlots

TWO = ("GPU-5a1c2d3e-0000-1111-2222-333344445555", "GPU-6b1c2d3e-0000-1111-2222-333344445555")


def host(device: str, *worlds: int, devices: tuple[str, ...] = ()) -> HostSlots:
    def probe(asked: str) -> tuple[HostProbe, ...]:
        assert asked == "cuda", "nothing has to be asked for any other device"
        return (HostProbe(host="local", backends={}, cuda_devices=devices, torch="2.0.1", mpi="", environment={}),)

    return local_host(device, worlds, probe)


@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_on_the_cpu_there_are_as_many_ranks_as_asked_for_or_two(device: str) -> None:
    assert host(device, 2, 4) == HostSlots("local", "127.0.0.1", 4, "lo")
    assert host(device).slots == 2


def test_on_cuda_every_rank_has_a_device_named_by_its_uuid() -> None:
    assert host("cuda", 1, devices=TWO) == HostSlots("local", "127.0.0.1", 1, "lo", devices=TWO[:1])
    assert host("cuda", 1, 2, devices=TWO).devices == TWO
    assert host("cuda", devices=TWO) == HostSlots("local", "127.0.0.1", 2, "lo", devices=TWO)


def test_where_no_uuid_is_told_the_ranks_take_the_visible_devices_in_order() -> None:
    assert host("cuda", devices=("0", "1")) == HostSlots("local", "127.0.0.1", 2, "lo")


def test_more_ranks_than_devices_are_refused_before_anything_is_run() -> None:
    with pytest.raises(UsageError, match=r"World size 3 on 2 CUDA device\(s\)") as caught:
        host("cuda", 1, 3, devices=TWO)
    assert caught.value.fix == "use --world 2 or less, or --device cpu."


def test_cuda_without_a_device_is_refused() -> None:
    with pytest.raises(UsageError, match="torch sees no CUDA device here") as caught:
        host("cuda", 1)
    assert "nvidia-smi" in caught.value.fix
