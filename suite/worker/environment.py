"""The environment record: everything METHOD.md lists, flat, unknown facts as None.

The names, their meaning and what a difference does to a comparison are one table: ``suite.policy.FACTS``.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

import suite
from suite.policy import ENVIRONMENT_PREFIX, VARIABLES, mask
from suite.records import LaunchSpec
from suite.worker import mpi, nvml
from suite.worker.device import Device
from suite.worker.identity import Identity, own_slots
from suite.worker.machine import interface_facts, machine_facts, momentary_facts


def environment_facts(spec: LaunchSpec, identity: Identity, device: Device) -> dict[str, Any]:
    """All facts that are known before the launch measures anything."""
    host = own_slots(spec)
    return {
        **machine_facts(),
        **momentary_facts("before"),
        **interface_facts(host.interface),
        **library_facts(),
        **_launch_facts(spec, identity),
        **gpu_facts(device),
        **nvml.momentary_facts(reading(device), "before"),
        **allowed_variables(os.environ),
    }


def facts_after(device: Device) -> dict[str, Any]:
    """What has changed at the end."""
    return {
        **momentary_facts("after"),
        **nvml.momentary_facts(reading(device), "after"),
        "memory_peak_bytes": device.peak_bytes(),
        "blas_library": blas_library(),
    }


def reading(device: Device) -> nvml.Reading:
    """What NVML says of this rank's GPU; nothing for the CPU."""
    return nvml.query(device.uuid) if device.kind == "cuda" else {}


def gpu_facts(device: Device) -> dict[str, Any]:
    """NVML's facts, with torch's where NVML has none."""
    facts = nvml.static_facts(reading(device))
    facts["gpu_capability"] = None
    if device.kind == "cuda":
        properties = torch.cuda.get_device_properties(device.torch_device)
        facts["gpu_capability"] = f"{properties.major}.{properties.minor}"
        facts["gpu_model"] = facts["gpu_model"] or properties.name
        facts["gpu_memory_bytes"] = facts["gpu_memory_bytes"] or properties.total_memory
        facts["gpu_uuid"] = facts["gpu_uuid"] or device.uuid
    return facts


def library_facts() -> dict[str, Any]:
    """Versions and build options of what computes and communicates."""
    cuda: Any = torch.backends.cuda
    cudnn: Any = torch.backends.cudnn
    return {
        "python_version": platform.python_version(),
        "torch_version": torch.__version__,
        "torch_git": torch.version.git_version,
        "torch_config": " ".join(torch.__config__.show().split()),
        "torch_default_dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "numpy_version": _numpy_version(),
        "cuda_version": torch.version.cuda,
        "cudnn_version": str(cudnn.version()) if torch.version.cuda and cudnn.is_available() else None,
        "nccl_version": _nccl_version(),
        "mpi_version": mpi.library_version(),
        "mpi_cuda_aware": mpi.cuda_aware(),
        "tf32_matmul": bool(cuda.matmul.allow_tf32),
        "tf32_cudnn": bool(cudnn.allow_tf32),
        "cudnn_benchmark": bool(cudnn.benchmark),
        "cudnn_deterministic": bool(cudnn.deterministic),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
    }


def _launch_facts(spec: LaunchSpec, identity: Identity) -> dict[str, Any]:
    ddp = spec.arm.ddp
    return {
        "suite_version": suite.__version__,
        "timing_mode": "perf_counter_ns, device synchronised once a step",
        "warmup_steps": spec.warmup_steps,
        "garbage_collection": "off while timed",
        "world_size": spec.world_size,
        "rank_map": " ".join(host.name for host in spec.hosts for _ in range(host.slots)),
        "workload": spec.workload,
        "seed": spec.seed,
        "ddp_bucket_mb": ddp.bucket_mb,
        "ddp_broadcast_buffers": ddp.broadcast_buffers,
        "ddp_gradient_as_bucket_view": ddp.gradient_as_bucket_view,
        "ddp_static_graph": ddp.static_graph,
        "ddp_find_unused_parameters": ddp.find_unused_parameters,
        "ddp_communication_hook": _hook(spec),
        "launcher": identity.launcher,
        "mpi_single_copy": mpi.single_copy(os.environ),
    }


def _hook(spec: LaunchSpec) -> str:
    if spec.arm.backend != "mpi" or spec.device != "cuda":
        return "none"
    buffers = "; the same before the broadcast of buffers" if spec.arm.ddp.broadcast_buffers else ""
    return "synchronise device, then all_reduce" + buffers


def allowed_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The allow-listed variables as "env.NAME", never the whole environment; what looks secret is masked."""
    return {
        f"{ENVIRONMENT_PREFIX}{name}": mask(name, value)
        for name, value in sorted(environ.items())
        if name.startswith(VARIABLES)
    }


def blas_library() -> str | None:
    """The BLAS that this process has loaded, by file name, e.g. "libopenblasp-r0.3.29.so"; None for a built-in one."""
    try:
        maps = Path("/proc/self/maps").read_text(errors="replace")
    except OSError:
        return None
    names = {Path(line.split(maxsplit=5)[-1]).name for line in maps.splitlines() if ".so" in line}
    found = sorted(n for n in names if re.match(r"lib(openblas|blas|mkl_core|mkl_rt|blis|cublas\.)", n))
    return ", ".join(found) or None


def _numpy_version() -> str | None:
    try:
        import numpy  # noqa: PLC0415  # torch works without it
    except ImportError:
        return None
    return str(numpy.__version__)


def _nccl_version() -> str | None:
    try:
        version: Any = torch.cuda.nccl.version()
    except (AttributeError, RuntimeError, ImportError):
        return None
    return ".".join(map(str, version)) if isinstance(version, tuple) else str(version)
