"""Whole launches with CUDA tensors over every backend that this torch has."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from suite.records import HostSlots, Sweep
from tests.worker.conftest import Finished, make_spec, run_mpi, run_ranks

WORKLOADS = ("linear", "transformer-tiny")


def gpu_spec(folder: Path, *, ranks: int, **changes: Any) -> Any:
    """A CUDA launch; with more ranks than GPUs they share the first one, on purpose."""
    import torch

    visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(torch.cuda.device_count())))
    names = visible.split(",")
    devices = tuple(names[rank if ranks <= len(names) else 0] for rank in range(ranks))
    hosts = (HostSlots("local", "127.0.0.1", ranks, "lo", devices),)
    changes = {"workload": "linear", "steps": 20, "warmup_steps": 10, **changes}
    return make_spec(folder, world_size=ranks, device="cuda", hosts=hosts, **changes)


def start(folder: Path, backend: str, *, ranks: int, **changes: Any) -> Finished:
    """Run one launch; skips where this torch has no such backend, or the backend no such launch."""
    import torch
    import torch.distributed as dist

    from suite.worker import mpi

    if backend == "nccl":
        if not dist.is_nccl_available():
            pytest.skip("this torch has no nccl backend")
        if ranks > torch.cuda.device_count():
            pytest.skip(f"nccl needs a GPU for each of {ranks} ranks")
    if backend == "mpi" and mpi.cuda_aware() is not True:
        pytest.skip("there is no Open MPI with CUDA support")
    spec = gpu_spec(folder, ranks=ranks, backend=backend, **changes)
    return run_mpi(spec) if backend == "mpi" else run_ranks(spec)


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize(
    ("backend", "ranks"), [("nccl", 1), ("nccl", 2), ("gloo", 1), ("gloo", 2), ("mpi", 1), ("mpi", 2)]
)
def test_a_training_launch_is_complete_and_equivalent(backend: str, ranks: int, workload: str, tmp_path: Path) -> None:
    finished = start(tmp_path, backend, ranks=ranks, workload=workload)
    assert [r["failure"] for r in finished.records] == [None] * ranks
    assert finished.codes == (0,) * ranks
    for record in finished.records:
        assert record["equivalence"]["status"] == "pass", record["equivalence"]["detail"]
        assert len(record["synchronised"]["total_ns"]) == 20
        assert sum(record["facts"]["buckets_bytes"]) == record["facts"]["gradient_bytes"]
        assert not [text for text in record["warnings"] if text.startswith("Implausible")]
        assert (backend == "mpi") is ("CUDA-aware: yes" in record["transport"])
    hashes = {tuple(r["equivalence"]["parameter_hashes"]) for r in finished.records}
    assert len(hashes) == 1


def test_a_corrupted_gradient_on_the_gpu_fails_the_gate(tmp_path: Path) -> None:
    finished = start(tmp_path, "gloo", ranks=2, inject="corrupt-gradient@1", equivalence_steps=2)
    assert [r["equivalence"]["status"] for r in finished.records] == ["fail", "fail"]
    assert "rank 1, step 0: the gradient of module.weight is off by" in finished.record(0)["equivalence"]["detail"]


def test_the_gpus_metadata_are_recorded(tmp_path: Path) -> None:
    import torch

    record = start(tmp_path, "gloo", ranks=1).record(0)
    facts = record["environment"]
    properties = torch.cuda.get_device_properties(0)
    assert facts["gpu_model"]
    assert facts["gpu_capability"] == f"{properties.major}.{properties.minor}"
    assert facts["gpu_memory_bytes"] >= properties.total_memory * 0.95
    assert facts["cuda_version"] == torch.version.cuda
    assert facts["tf32_matmul"] is facts["tf32_cudnn"] is facts["cudnn_benchmark"] is False
    assert facts["memory_peak_bytes"] >= record["facts"]["parameter_bytes"]
    assert 0 < facts["gpu_events_seconds"] < 10
    assert record["transport"].endswith("staged through host memory") or "no connection" in record["transport"]


def test_the_driver_tells_clocks_and_temperature(tmp_path: Path) -> None:
    from suite.worker import nvml

    if not nvml.query(None):
        pytest.skip("neither nvidia-ml-py nor nvidia-smi is here")
    facts = start(tmp_path, "gloo", ranks=1).record(0)["environment"]
    assert facts["gpu_uuid"].startswith(("GPU-", "MIG-"))
    assert facts["gpu_driver"]
    for when in ("before", "after"):
        assert facts[f"gpu_clock_mhz_{when}"] is None or facts[f"gpu_clock_mhz_{when}"] > 0
    assert facts["gpu_samples"] >= facts["gpu_busy_samples"] >= 0
    assert facts["gpu_samples"] >= 1
    assert facts["gpu_memory_before_bytes"] is None or 0 <= facts["gpu_memory_before_bytes"] < facts["gpu_memory_bytes"]


def test_ranks_that_share_a_gpu_are_warned_of(tmp_path: Path) -> None:
    import torch

    if torch.cuda.device_count() > 1:
        pytest.skip("there are GPUs enough for two ranks")
    warnings = start(tmp_path, "gloo", ranks=2).record(0)["warnings"]
    assert any("2 ranks share one GPU" in text for text in warnings)


@pytest.mark.parametrize(("backend", "ranks"), [("nccl", 1), ("nccl", 2), ("gloo", 2), ("mpi", 2)])
def test_collectives_on_the_gpu_have_no_wrong_element_or_a_reason(backend: str, ranks: int, tmp_path: Path) -> None:
    sweep = Sweep(sizes_bytes=(4096, 1 << 20), repeats=10, min_repeats=2, seconds_per_size=0.5)
    finished = start(tmp_path, backend, ranks=ranks, kind="collectives", sweep=sweep)
    assert finished.codes == (0,) * ranks
    for record in finished.records:
        assert {c["collective"] for c in record["collectives"]} >= set(sweep.collectives)
        assert sum(c["wrong"] for c in record["collectives"]) == 0
        reduced = [c for c in record["collectives"] if c["collective"] == "all_reduce" and c["purpose"] == "sweep"]
        assert all(c["ns"] for c in reduced)


@pytest.mark.parametrize("ranks", [1, 2])
def test_an_nccl_pilot_tells_its_network_and_measures_its_links(ranks: int, tmp_path: Path) -> None:
    record = start(tmp_path, "nccl", ranks=ranks, kind="pilot", warmup_steps=0).record(0)
    assert record["failure"] is None
    assert len([c for c in record["collectives"] if c["purpose"] == "link"]) == ranks - 1
    assert record["transport"].startswith("nccl: ")
    assert record["transport"] != "nccl: not told"


def test_a_launch_on_one_gpu_alone(tmp_path: Path) -> None:
    record = run_ranks(gpu_spec(tmp_path, ranks=1, kind="single")).record(0)
    assert record["failure"] is None
    assert len(record["synchronised"]["total_ns"]) == 20
