"""What one host can run, asked before the plan is made; printed as one HostProbe on standard output."""

from __future__ import annotations

import os
import sys
from typing import Any

import torch

from suite.provenance import code_digest
from suite.records import HostProbe, to_json
from suite.worker import mpi, nvml
from suite.worker.device import device_uuid
from suite.worker.environment import library_facts
from suite.worker.groups import missing_backend
from suite.worker.machine import machine_facts
from suite.worker.packages import packages
from suite.worker.workloads import BUILT_IN, unavailable

OWN_BACKENDS = ("nccl", "gloo", "mpi")


def main(host: str, device: str = "auto") -> int:
    """Print the probe and nothing else: whatever libraries print goes to standard error."""
    out = os.dup(1)
    os.dup2(2, 1)
    line = to_json(probe(host, device)) + "\n"
    os.write(out, line.encode())
    sys.stdout.flush()
    return 0


def probe(host: str, device: str = "auto") -> HostProbe:
    """Ask this host. A reason says what is missing, so that it can be a row of the report.

    Args:
        host: its name in the cluster file.
        device: what will be trained on: "cpu", "cuda", or "auto" for cuda where there is one.
    """
    on_cpu = device == "cpu" or (device == "auto" and not cuda_devices())
    facts: dict[str, Any] = {**machine_facts(), **library_facts(), **nvml.static_facts(nvml.query(None))}
    return HostProbe(
        host=host,
        backends={backend: why_not(backend, on_cpu=on_cpu) for backend in OWN_BACKENDS},
        cuda_devices=cuda_devices(),
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=facts["memory_bytes"] or 0,
        torch=torch.__version__,
        python=facts["python_version"],
        mpi=facts["mpi_version"] or "",
        workloads=tuple(name for name in BUILT_IN if unavailable(name) is None),
        environment=facts,
        code=code_digest(),
        packages=packages(),
    )


def why_not(backend: str, *, on_cpu: bool) -> str | None:
    """Why a backend cannot run here; None when it can."""
    missing = missing_backend(backend)
    if missing:
        return missing
    if backend == "nccl" and not cuda_devices():
        return "no CUDA device"
    if backend == "mpi" and mpi.library_version() is None:
        return "there is no Open MPI on this host (no ompi_info)"
    if backend == "nccl" and on_cpu:
        return "nccl needs CUDA tensors, this run is on the CPU"
    if backend == "mpi" and not on_cpu and mpi.cuda_aware() is False:
        return "Open MPI without CUDA support"
    return None


def cuda_devices() -> tuple[str, ...]:
    """The visible CUDA devices by UUID, or by index where no UUID is told."""
    if not torch.cuda.is_available():
        return ()
    return tuple(device_uuid(index) or str(index) for index in range(torch.cuda.device_count()))
