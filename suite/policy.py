"""What the facts of a rank's environment are called, what they mean, and what a difference does to a comparison.

Shared by the worker, which collects the facts, and by the analysis, which compares them: standard library only.

``refuse``: results with different values must not be compared. ``warn``: they may, with a warning; so may
values that one side does not know. ``info``: recorded for the reader. Names end in their unit, where they have
one. A fact that cannot be found on a machine is None: unknown, and unknown is not equal.
"""

from __future__ import annotations

import re
from typing import NamedTuple

# How a rank begins or words what belongs to its row; all else that it warns of belongs to the run.
CONTAMINATED = "Contaminated:"
SILENT_FALL_BACK = "a silent fall-back"
# What a rank says of a transport that it could not see.
NOT_TOLD = "not told"
# An idle GPU has a few MiB in use; whoever has CUDA open on it takes a hundred and more.
GPU_IDLE_BYTES = 64 << 20
NO_TCP = "no TCP connection: within one host, or not over TCP"


class Fact(NamedTuple):
    """``policy`` is "refuse", "warn" or "info"; ``meaning`` is for a reader of the record."""

    policy: str
    meaning: str


FACTS: dict[str, Fact] = {
    # The suite and the way it timed.
    "suite_version": Fact("refuse", "version of this suite"),
    "timing_mode": Fact("refuse", "clock and the places where the device is synchronised"),
    "warmup_steps": Fact("refuse", "steps before the measured ones"),
    "garbage_collection": Fact("refuse", "whether Python collects garbage while steps are timed"),
    # What was trained.
    "world_size": Fact("refuse", "number of ranks"),
    "rank_map": Fact("refuse", "the host of each rank, in rank order"),
    "workload": Fact("refuse", "name of the workload"),
    "parameters": Fact("refuse", "number of parameters"),
    "batch_size": Fact("refuse", "samples per rank and step"),
    "dtype": Fact("refuse", "type of parameters and gradients"),
    "seed": Fact("info", "seed of weights and data: the block's"),
    "ddp_bucket_mb": Fact("refuse", "DDP bucket_cap_mb, MiB"),
    "ddp_broadcast_buffers": Fact("refuse", "DDP broadcast_buffers"),
    "ddp_gradient_as_bucket_view": Fact("refuse", "DDP gradient_as_bucket_view"),
    "ddp_static_graph": Fact("refuse", "DDP static_graph"),
    "ddp_find_unused_parameters": Fact("refuse", "DDP find_unused_parameters"),
    "ddp_communication_hook": Fact("info", "hook between DDP and the backend; none but for mpi with CUDA tensors"),
    # Libraries.
    "python_version": Fact("warn", "Python"),
    "torch_version": Fact("refuse", "PyTorch"),
    "torch_git": Fact("refuse", "commit that PyTorch was built from"),
    "torch_config": Fact("refuse", "PyTorch's build configuration"),
    "torch_default_dtype": Fact("refuse", "torch.get_default_dtype()"),
    "blas_library": Fact("refuse", "the BLAS library that is loaded, by file name"),
    "numpy_version": Fact("info", "numpy"),
    "cuda_version": Fact("refuse", "CUDA that PyTorch was built with"),
    "cudnn_version": Fact("refuse", "cuDNN"),
    "nccl_version": Fact("warn", "NCCL"),
    "mpi_version": Fact("warn", "MPI library"),
    "mpi_cuda_aware": Fact("warn", "whether Open MPI was built with CUDA support"),
    "mpi_single_copy": Fact("info", "how Open MPI copies between processes of one host (CMA needs ptrace rights)"),
    "launcher": Fact("info", "what started the rank: torchrun, mpirun or none"),
    "tf32_matmul": Fact("refuse", "whether matrix products may use TF32"),
    "tf32_cudnn": Fact("refuse", "whether convolutions may use TF32"),
    "cudnn_benchmark": Fact("refuse", "whether cuDNN tries algorithms"),
    "cudnn_deterministic": Fact("refuse", "whether cuDNN uses deterministic algorithms only"),
    "float32_matmul_precision": Fact("refuse", "torch.get_float32_matmul_precision()"),
    # Threads and binding.
    "threads": Fact("refuse", "torch's intra-operation threads"),
    "interop_threads": Fact("warn", "torch's inter-operation threads"),
    "omp_num_threads": Fact("refuse", "OMP_NUM_THREADS"),
    "affinity": Fact("refuse", "CPUs this process may use"),
    # The machine.
    "hostname": Fact("info", "the machine's own name"),
    "boot_id": Fact("info", "the kernel's boot ID: equal on simulated hosts that share one machine"),
    "cpu_model": Fact("refuse", "CPU"),
    "cpu_count": Fact("warn", "logical CPUs of the machine"),
    "cpu_quota": Fact("warn", "CPUs that the control group allows; None without a limit"),
    "cpu_governor": Fact("warn", "frequency governor"),
    "smt": Fact("warn", "simultaneous multithreading"),
    "numa_nodes": Fact("info", "NUMA nodes"),
    "virtualised": Fact("info", "whether the CPU says that it runs under a hypervisor"),
    "memory_bytes": Fact("warn", "memory of the machine"),
    "memory_limit_bytes": Fact("warn", "memory that the control group allows; None without a limit"),
    "shm_bytes": Fact("warn", "size of /dev/shm"),
    "memory_peak_bytes": Fact("info", "largest memory in use: GPU memory of torch, or resident set"),
    "operating_system": Fact("info", "distribution inside the container"),
    "kernel": Fact("warn", "kernel release"),
    "clocksource": Fact("warn", "the kernel's clock source"),
    "yama_ptrace_scope": Fact("info", "kernel.yama.ptrace_scope"),
    # The network.
    "interface": Fact("refuse", "network interface towards the peers, as the launch was told"),
    "interface_address": Fact("info", "its address"),
    "interface_mtu": Fact("warn", "its MTU, bytes"),
    "interface_speed_bits_per_second": Fact("warn", "its link speed as the driver says"),
    "interface_driver": Fact("warn", "its driver"),
    "infiniband_ports_up": Fact("warn", "active InfiniBand or RoCE ports"),
    "connections": Fact("info", "TCP connections of the measured backend: local to remote addresses"),
    # The GPU.
    "gpu_model": Fact("refuse", "GPU"),
    "gpu_uuid": Fact("refuse", "the GPU's UUID"),
    "gpu_driver": Fact("refuse", "NVIDIA driver"),
    "gpu_memory_bytes": Fact("refuse", "memory of the GPU"),
    "gpu_capability": Fact("refuse", "compute capability"),
    "gpu_power_limit_watts": Fact("warn", "power limit"),
    "gpu_persistence": Fact("warn", "persistence mode"),
    "gpu_clock_max_mhz": Fact("warn", "largest SM clock"),
    "gpu_topology": Fact("info", "how the GPUs of the host are connected"),
    "gpu_samples": Fact("info", "number of samples taken while the rank ran, by a process of its own"),
    "gpu_busy_samples": Fact(
        "info", "how many of them under the steps while the GPU was busy; 0: its clocks are unknown"
    ),
    "gpu_memory_before_bytes": Fact("info", "GPU memory in use before the rank used it, the driver's own left out"),
    "gpu_clock_mhz_during": Fact("warn", "median SM clock while the GPU was busy"),
    "gpu_clock_mhz_lowest": Fact("warn", "lowest SM clock while the GPU was busy"),
    "gpu_power_watts_during": Fact("warn", "median power while the GPU was busy"),
    "gpu_temperature_during": Fact("warn", "highest temperature while the GPU was busy, degrees Celsius"),
    "gpu_throttle_reasons": Fact("warn", "reasons for lowered clocks that were seen while it was busy"),
    "gpu_other_processes": Fact(
        "warn", "whether another process used the GPU; in a container, as far as the driver shows it processes outside"
    ),
    "gpu_events_seconds": Fact("info", "median step by CUDA events, to check the host's clock against"),
    # Before and after.
    "load_before": Fact("warn", "load average of the last minute, before"),
    "load_after": Fact("warn", "load average of the last minute, after"),
    "cpu_mhz_before": Fact("warn", "mean CPU clock, before"),
    "cpu_mhz_after": Fact("warn", "mean CPU clock, after"),
    "temperature_before": Fact("warn", "hottest thermal zone, degrees Celsius, before"),
    "temperature_after": Fact("warn", "hottest thermal zone, degrees Celsius, after"),
    "gpu_clock_mhz_before": Fact("warn", "SM clock, before"),
    "gpu_clock_mhz_after": Fact("warn", "SM clock, after"),
    "gpu_temperature_before": Fact("warn", "GPU temperature, degrees Celsius, before"),
    "gpu_temperature_after": Fact("warn", "GPU temperature, degrees Celsius, after"),
    "gpu_power_watts_before": Fact("warn", "power, before"),
    "gpu_power_watts_after": Fact("warn", "power, after"),
    "memory_available_before_bytes": Fact("info", "memory available, before"),
}

# Allow-listed environment variables are recorded as "env.NAME". Launchers set some of these themselves, so that
# backends differ in them; what matters of them has a fact of its own above.
ENVIRONMENT_PREFIX = "env."
# What an arm or a cluster file may set is what is recorded of a rank's environment, so that what was set can always be
# seen in the results: never LD_PRELOAD or PATH.
VARIABLES = ("NCCL_", "GLOO_", "OMPI_", "PRTE_", "UCX_", "OMP_", "TORCH_", "CUDA_")
_VARIABLE = re.compile(r"(?=.{1,100}$)[A-Z][A-Z0-9]*(_[A-Za-z0-9_]*)?")  # Open MPI's own are like OMPI_MCA_pml
ENVIRONMENT_POLICY = "info"

MASK = "(masked)"
_SECRET_NAME = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|PRIVATE|AUTH|APIKEY|API_KEY|ACCESS_KEY|COOKIE", re.IGNORECASE)
# Long words of letters and digits that are no path, list, number or device: what tokens and keys look like.
_TOKEN = re.compile(r"(?=[^\s]*\d)(?=[^\s]*[A-Za-z])[A-Za-z0-9+_=-]{24,}")
_DEVICE = re.compile(r"(GPU|MIG)-[0-9a-fA-F-]+(,(GPU|MIG)-[0-9a-fA-F-]+)*")
_USER_INFO = re.compile(r"://[^/\s]*@")

POLICY: dict[str, str] = {name: fact.policy for name, fact in FACTS.items()}


def is_settable(name: str) -> bool:
    """Whether that is the name of an environment variable that may be set and is recorded."""
    return bool(_VARIABLE.fullmatch(name)) and name.startswith(VARIABLES)


def looks_secret(name: str, value: str) -> bool:
    """Whether a variable's name, or the look of its value, is that of a password, a token or a key."""
    if _SECRET_NAME.search(name) or _USER_INFO.search(value):
        return True
    return not _DEVICE.fullmatch(value) and bool(_TOKEN.search(value))


def mask(name: str, value: str) -> str:
    """The value, or a mask where its name or look is that of a secret."""
    return MASK if looks_secret(name, value) else value


def policy_of(name: str) -> str:
    """The policy of any fact's name; "warn" for one that this version does not know."""
    if name.startswith(ENVIRONMENT_PREFIX):
        return ENVIRONMENT_POLICY
    return POLICY.get(name, "warn")
