from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from suite import policy
from suite.records import Arm, DdpOptions
from suite.worker import machine, mpi
from tests.worker.conftest import make_spec


def test_every_policy_is_one_of_three_and_every_fact_is_explained() -> None:
    assert set(policy.POLICY.values()) == {"refuse", "warn", "info"}
    assert all(fact.meaning for fact in policy.FACTS.values())


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("threads", "refuse"),
        ("torch_version", "refuse"),
        ("interface", "refuse"),
        ("gpu_driver", "refuse"),
        ("affinity", "refuse"),
        ("kernel", "warn"),
        ("load_before", "warn"),
        ("launcher", "info"),
        ("env.NCCL_ALGO", "info"),
        ("a fact of a later version", "warn"),
    ],
)
def test_a_difference_does_what_the_method_says(name: str, expected: str) -> None:
    assert policy.policy_of(name) == expected


def test_the_policy_imports_nothing_that_a_laptop_lacks() -> None:
    lines = [line for line in Path(policy.__file__).read_text().splitlines() if line.startswith(("import", "from"))]
    assert {line.split()[1] for line in lines} <= {"__future__", *sys.stdlib_module_names}


def test_cpu_numbers_are_written_as_the_kernel_does() -> None:
    assert machine.cpu_list({0, 1, 2, 5}) == "0-2,5"
    assert machine.cpu_list({3}) == "3"
    assert machine.cpu_list(set()) == ""


def test_the_machine_tells_what_linux_shows() -> None:
    facts = machine.machine_facts()
    assert facts["cpu_count"] == os.cpu_count()
    assert facts["memory_bytes"] > 1 << 28
    assert facts["kernel"] == os.uname().release
    assert facts["affinity"] == machine.cpu_list(os.sched_getaffinity(0))


def test_the_loopback_interface_is_known_and_a_missing_one_is_unknown() -> None:
    facts = machine.interface_facts("lo")
    assert (facts["interface"], facts["interface_address"]) == ("lo", "127.0.0.1")
    assert facts["interface_mtu"] >= 1500
    missing = machine.interface_facts("nope0")
    assert missing["interface"] == "nope0"
    assert {v for k, v in missing.items() if k != "interface"} == {None}
    assert set(machine.interface_facts(None).values()) == {None}


def test_load_is_asked_before_and_after() -> None:
    assert machine.momentary_facts("before")["load_before"] >= 0
    assert "load_after" in machine.momentary_facts("after")


def test_the_single_copy_setting_is_read_from_what_mpirun_hands_on() -> None:
    assert mpi.single_copy({"OMPI_MCA_smsc": "^cma"}) == "smsc=^cma"
    older = {"OMPI_MCA_btl_vader_single_copy_mechanism": "none"}
    assert mpi.single_copy(older) == "btl_vader_single_copy_mechanism=none"
    assert mpi.single_copy({}) is None


def test_open_mpis_own_words_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        "ompi:version:full:5.0.7\n"
        "mca:opal:base:param:opal_built_with_cuda_support:value:false\n"
        "mca:mpi:base:param:mpi_built_with_cuda_support:help:x\n"
    )
    monkeypatch.setattr(mpi, "ompi_info", lambda: text)
    assert mpi.library_version() == "Open MPI 5.0.7"
    assert mpi.cuda_aware() is False
    monkeypatch.setattr(mpi, "ompi_info", lambda: "mca:mpi:base:param:mpi_built_with_cuda_support:value:true\n")
    assert mpi.cuda_aware() is True
    monkeypatch.setattr(mpi, "ompi_info", lambda: "")
    assert (mpi.library_version(), mpi.cuda_aware()) == (None, None)


class TestVariables:
    """The allow-list. The module needs torch."""

    @pytest.fixture(autouse=True)
    def _module(self) -> None:
        pytest.importorskip("torch", reason="needs torch")

    def test_only_allow_listed_variables_are_recorded(self) -> None:
        from suite.worker.environment import allowed_variables

        environ = {"NCCL_ALGO": "Ring", "HOME": "/root", "AWS_SECRET_ACCESS_KEY": "x", "OMP_NUM_THREADS": "2"}
        assert allowed_variables(environ) == {"env.NCCL_ALGO": "Ring", "env.OMP_NUM_THREADS": "2"}

    def test_a_variable_that_looks_secret_is_recorded_without_its_value(self) -> None:
        from suite.worker.environment import allowed_variables

        assert allowed_variables({"OMPI_AUTH_TOKEN": "abc"}) == {"env.OMPI_AUTH_TOKEN": "(masked)"}

    def test_the_libraries_tell_their_versions(self) -> None:
        import torch

        from suite.worker.environment import library_facts

        facts = library_facts()
        assert facts["torch_version"] == torch.__version__
        assert facts["threads"] == torch.get_num_threads()
        assert "PyTorch built with" in facts["torch_config"]


@pytest.mark.parametrize(
    ("backend", "device", "buffers", "hook"),
    [
        ("mpi", "cpu", True, "none"),
        ("nccl", "cuda", True, "none"),
        ("mpi", "cuda", False, "synchronise device, then all_reduce"),
        ("mpi", "cuda", True, "synchronise device, then all_reduce; the same before the broadcast of buffers"),
    ],
)
def test_what_stands_between_ddp_and_mpi_on_a_gpu_is_recorded(
    backend: str, device: str, buffers: bool, hook: str, torch_here: Any, tmp_path: Path
) -> None:
    from suite.worker import environment

    arm = Arm("arm", backend, ddp=DdpOptions(broadcast_buffers=buffers))
    assert environment._hook(make_spec(tmp_path, arm=arm, device=device)) == hook
