"""The generated commands against recorded text: a change of a word here is a change of what is measured."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest

from suite.launcher import host_commands, mpi_major, supervised
from suite.records import Arm, HostSlots, LaunchSpec

HOSTS = (HostSlots("h1", "198.18.0.11", 2, "eth0"), HostSlots("h2", "198.18.0.12", 2, "eth1"))


def spec(backend: str, hosts: tuple[HostSlots, ...] = HOSTS, kind: str = "train") -> LaunchSpec:
    return LaunchSpec(
        run="r",
        launch=f"0001-linear-{backend}",
        index=1,
        kind=kind,
        arm=Arm(backend, backend),
        workload="linear",
        batch_size=None,
        device="cpu",
        world_size=sum(h.slots for h in hosts),
        hosts=hosts,
        block=0,
        seed=1,
        warmup_steps=10,
        steps=20,
        nosync_steps=0,
        free_steps=0,
        equivalence_steps=0,
        threads=1,
        master_address="198.18.0.11",
        master_port=29501,
        deadline_seconds=120.0,
        output_folder="/o",
    )


def commands(backend: str, major: int, **changes: object) -> dict[str, str]:
    words = host_commands(replace(spec(backend), **changes), python="python3", mpi_major=major)  # type: ignore[arg-type]
    return {host: shlex.join(command) for host, command in words.items()}


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_torchrun_starts_on_every_host_with_a_static_rendezvous_at_the_first(backend: str) -> None:
    rest = (
        "--nproc_per_node=2 --master_addr=198.18.0.11 --master_port=29501 --max_restarts=0"
        " -m suite.worker run --spec /o/spec.json"
    )
    assert commands(backend, 5) == {
        "h1": f"python3 -m torch.distributed.run --nnodes=2 --node_rank=0 {rest}",
        "h2": f"python3 -m torch.distributed.run --nnodes=2 --node_rank=1 {rest}",
    }


def test_mpirun_of_open_mpi_5_starts_once_and_names_hosts() -> None:
    assert commands("mpi", 5) == {
        "h1": "mpirun -np 4 -H h1:2,h2:2 --bind-to none --map-by slot --timeout 120 --mca smsc '^cma'"
        " --prtemca plm_ssh_agent /usr/local/bin/suite-mpi-ssh --prtemca oob_tcp_keepalive_time 5"
        " --prtemca oob_tcp_keepalive_intvl 3 --prtemca oob_tcp_keepalive_probes 4 --prtemca prte_if_include eth0,eth1"
        " --mca btl_tcp_if_include eth0,eth1 -x PATH -x PYTHONPATH -x LD_LIBRARY_PATH -x HOME -x USE_LIBUV"
        " python3 -m suite.worker run --spec /o/spec.json"
    }


def test_mpirun_of_open_mpi_4_has_the_names_of_its_own() -> None:
    assert commands("mpi", 4) == {
        "h1": "mpirun -np 4 -H h1:2,h2:2 --bind-to none --map-by slot --timeout 120"
        " --mca btl_vader_single_copy_mechanism none --mca plm_rsh_agent /usr/local/bin/suite-mpi-ssh"
        " --mca oob_tcp_keepalive_time 5 --mca oob_tcp_keepalive_intvl 3 --mca oob_tcp_keepalive_probes 4"
        " --mca oob_tcp_if_include eth0,eth1 --mca btl_tcp_if_include eth0,eth1"
        " -x PATH -x PYTHONPATH -x LD_LIBRARY_PATH -x HOME -x USE_LIBUV"
        " python3 -m suite.worker run --spec /o/spec.json"
    }


def test_on_one_machine_mpirun_needs_no_agent_and_no_interface() -> None:
    local = (HostSlots("local", "127.0.0.1", 2, "lo"),)
    words = host_commands(spec("mpi", local), python="py", mpi_major=5, as_root=True, agent=None)["local"]
    line = shlex.join(words)
    assert "-H localhost:2" in line
    assert "--allow-run-as-root" in line
    assert "agent" not in line
    assert "if_include" not in line


def test_one_process_starts_without_a_launcher() -> None:
    assert host_commands(spec("gloo", HOSTS[:1], "single"), python="py", mpi_major=5) == {
        "h1": ["py", "-m", "suite.worker", "run", "--spec", "/o/spec.json"]
    }


def test_the_supervisor_gets_the_deadline_and_some_grace() -> None:
    words = supervised(["x", "a b"], 120.0, python="py", lease=True)
    assert words == [
        "py",
        "-m",
        "suite.worker",
        "supervise",
        "--deadline",
        "125",
        "--lease",
        "--",
        "x",
        "a b",
    ]


@pytest.mark.parametrize(("text", "major"), [("Open MPI 5.0.7", 5), ("Open MPI 4.1.8", 4), ("", 5)])
def test_the_major_version_is_read_from_what_mpi_calls_itself(text: str, major: int) -> None:
    assert mpi_major(text) == major
