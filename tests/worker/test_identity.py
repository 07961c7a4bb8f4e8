from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from suite.errors import LaunchError
from suite.records import Arm, HostSlots
from suite.worker.identity import (
    Identity,
    device_index,
    identify,
    launch_environment,
    own_slots,
    refuse_skewing,
    visible_devices,
)
from suite.worker.transport import TALKATIVE
from tests.worker.conftest import make_spec

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}
MPIRUN = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}


def test_the_launcher_is_told_by_its_variables() -> None:
    assert identify(TORCHRUN) == Identity(3, 4, 1, "torchrun")
    assert identify(MPIRUN) == Identity(2, 4, 0, "mpirun")
    assert identify({}) == Identity(0, 1, 0, "none")


def test_mpirun_wins_over_variables_that_its_ranks_inherited() -> None:
    assert identify({**TORCHRUN, **MPIRUN}).launcher == "mpirun"


def test_both_launchers_give_the_same_environment_except_for_the_meeting_point(tmp_path: Path) -> None:
    spec = make_spec(tmp_path, threads=2, environment={"A": "launch"}, arm=Arm("x", "gloo", {"A": "arm"}))
    by_torchrun = launch_environment(spec, identify(TORCHRUN))
    by_mpirun = launch_environment(spec, identify(MPIRUN))
    meeting = {k: by_mpirun.pop(k) for k in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK")}
    assert by_torchrun == by_mpirun
    assert meeting["MASTER_PORT"] == str(spec.master_port)
    assert by_mpirun["OMP_NUM_THREADS"] == by_mpirun["MKL_NUM_THREADS"] == "2"
    assert by_mpirun["GLOO_SOCKET_IFNAME"] == "lo"
    assert by_mpirun["NCCL_SOCKET_IFNAME"] == "=lo"  # NCCL would take any interface whose name begins so
    assert by_mpirun["A"] == "arm"


def test_a_hosts_own_variables_win_over_all_others(tmp_path: Path) -> None:
    host = HostSlots("local", "127.0.0.1", 2, "lo", environment={"GLOO_SOCKET_IFNAME": "eth9"})
    spec = make_spec(tmp_path, hosts=(host,), environment={"GLOO_SOCKET_IFNAME": "eth1"})
    assert launch_environment(spec, identify(TORCHRUN))["GLOO_SOCKET_IFNAME"] == "eth9"


def test_no_interface_leaves_the_choice_to_the_backend(tmp_path: Path) -> None:
    spec = make_spec(tmp_path, hosts=(HostSlots("local", "127.0.0.1", 2),))
    assert "GLOO_SOCKET_IFNAME" not in launch_environment(spec, identify(TORCHRUN))


def test_devices_are_visible_by_uuid_and_taken_by_local_rank(tmp_path: Path) -> None:
    host = HostSlots("local", "a", 2, devices=("GPU-1", "GPU-2"))
    spec = make_spec(tmp_path, device="cuda", hosts=(host,))
    assert launch_environment(spec, identify(TORCHRUN))["CUDA_VISIBLE_DEVICES"] == "GPU-1,GPU-2"
    assert [device_index(host, rank) for rank in (0, 1)] == [0, 1]


def test_a_device_named_twice_is_shared() -> None:
    host = HostSlots("local", "a", 2, devices=("GPU-1", "GPU-1"))
    assert visible_devices(host) == ("GPU-1",)
    assert [device_index(host, rank) for rank in (0, 1)] == [0, 0]


def test_more_ranks_than_named_devices_are_refused() -> None:
    with pytest.raises(LaunchError, match="local rank 2 has no device, only 1"):
        device_index(HostSlots("h1", "a", 3, devices=("0",)), 2)


def test_a_cpu_launch_sees_no_gpu(tmp_path: Path) -> None:
    assert launch_environment(make_spec(tmp_path), identify(TORCHRUN))["CUDA_VISIBLE_DEVICES"] == ""


def test_only_a_pilot_makes_the_backend_talk(tmp_path: Path) -> None:
    spec = make_spec(tmp_path, backend="nccl")
    assert "NCCL_DEBUG" not in launch_environment(spec, identify(TORCHRUN))
    assert launch_environment(replace(spec, kind="pilot"), identify(TORCHRUN))["NCCL_DEBUG"] == "INFO"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NCCL_BLOCKING_WAIT", "1"),
        ("TORCH_NCCL_BLOCKING_WAIT", "1"),
        ("NCCL_DEBUG", "info"),
        ("NCCL_DEBUG", "TRACE"),
        ("CUDA_LAUNCH_BLOCKING", "1"),
        ("TORCH_DISTRIBUTED_DEBUG", "DETAIL"),
        ("OMPI_MCA_pml_base_verbose", "10"),
        ("OMPI_MCA_btl_base_verbose", "max"),
        ("OMPI_MCA_btl_tcp_verbose", "1"),
        ("PRTE_MCA_plm_base_verbose", "5"),
        ("PMIX_MCA_ptl_base_verbose", "debug"),
        ("UCX_LOG_LEVEL", "info"),
    ],
)
def test_what_skews_a_timing_is_refused_by_name(name: str, value: str) -> None:
    for kind in ("train", "single", "collectives", "article"):
        with pytest.raises(LaunchError, match=f"{name}={value} is set, which skews what a {kind} launch times"):
            refuse_skewing({name: value}, kind)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NCCL_BLOCKING_WAIT", "0"),
        ("NCCL_DEBUG", "WARN"),
        ("TORCH_DISTRIBUTED_DEBUG", "OFF"),
        ("NCCL_DEBUG", ""),
        ("CUDA_LAUNCH_BLOCKING", "0"),
        ("OMPI_MCA_btl_base_verbose", "0"),
        ("OMPI_MCA_pml_base_verbose", "-1"),
        ("OMPI_MCA_coll_base_verbose", "error"),
        ("OMPI_MCA_btl_tcp_if_include", "eth0"),
        ("UCX_LOG_LEVEL", "warn"),
    ],
)
def test_harmless_values_of_the_same_variables_pass(name: str, value: str) -> None:
    refuse_skewing({name: value}, "train")


@pytest.mark.parametrize("backend", ["nccl", "mpi", "gloo"])
def test_what_a_pilot_is_told_to_say_is_refused_in_every_timed_launch(backend: str) -> None:
    refuse_skewing(TALKATIVE[backend], "pilot")
    if TALKATIVE[backend]:
        with pytest.raises(LaunchError, match="skews what a train launch times"):
            refuse_skewing(TALKATIVE[backend], "train")


def test_a_pilot_may_log_but_not_wait_otherwise() -> None:
    refuse_skewing({"NCCL_DEBUG": "INFO", "OMPI_MCA_btl_base_verbose": "100", "UCX_LOG_LEVEL": "debug"}, "pilot")
    with pytest.raises(LaunchError):
        refuse_skewing({"NCCL_BLOCKING_WAIT": "1"}, "pilot")


def test_a_host_that_the_launch_does_not_know_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="called 'h9', the launch knows only local"):
        own_slots(make_spec(tmp_path, host="h9"))
