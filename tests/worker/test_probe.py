from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.worker.conftest import ROOT, worker_environment


@pytest.fixture(scope="module")
def probed(torch_here: Any) -> dict[str, Any]:
    words = [sys.executable, "-m", "suite.worker", "probe", "--host", "h1"]
    done = subprocess.run(
        words, cwd=ROOT, env=worker_environment(), capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.count("\n") == 1  # one document, nothing else
    return dict(json.loads(done.stdout))


def test_the_probe_says_what_can_run_and_why_the_rest_cannot(probed: dict[str, Any]) -> None:
    import torch.distributed as dist

    assert probed["host"] == "h1"
    assert set(probed["backends"]) == {"nccl", "gloo", "mpi"}
    assert probed["backends"]["gloo"] is None
    if not dist.is_mpi_available():
        assert probed["backends"]["mpi"] == "this torch has no mpi backend"
    else:
        assert probed["backends"]["mpi"] is None
        assert probed["mpi"].startswith("Open MPI ")
    if not dist.is_nccl_available():
        assert probed["backends"]["nccl"] == "this torch has no nccl backend"
    elif not probed["cuda_devices"]:
        assert probed["backends"]["nccl"] == "no CUDA device"


def test_the_probe_lists_workloads_and_facts(probed: dict[str, Any]) -> None:
    assert {"linear", "transformer", "transformer-tiny"} <= set(probed["workloads"])
    assert probed["cores"] >= 1
    assert probed["memory_bytes"] > 0
    assert probed["environment"]["torch_version"] == probed["torch"]


def test_a_run_on_the_cpu_has_no_nccl_whatever_the_host_has(torch_here: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from suite.worker import mpi, probe

    monkeypatch.setattr(probe, "missing_backend", lambda backend: None)
    monkeypatch.setattr(probe, "cuda_devices", lambda: ("GPU-1",))
    monkeypatch.setattr(mpi, "library_version", lambda: "Open MPI 4.1.8")
    monkeypatch.setattr(mpi, "cuda_aware", lambda: False)
    assert probe.why_not("nccl", on_cpu=True) == "nccl needs CUDA tensors, this run is on the CPU"
    assert probe.why_not("nccl", on_cpu=False) is None
    assert probe.why_not("mpi", on_cpu=True) is None
    assert probe.why_not("mpi", on_cpu=False) == "Open MPI without CUDA support"
