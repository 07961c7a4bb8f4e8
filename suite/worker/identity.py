"""Who this process is in the launch, and the environment that it must have before torch is imported.

Both launchers must give every backend the same environment, so it is not left to them: what matters is set
here, from the launch's description, in one place for torchrun and mpirun alike.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from suite.errors import LaunchError
from suite.records import HostSlots, LaunchSpec
from suite.worker.transport import TALKATIVE


def _is_on(value: str) -> bool:
    return value not in ("", "0")


def _talks(value: str) -> bool:
    """Whether Open MPI's or PRRTE's verbosity is above that of errors: a number above zero, or a level's name."""
    try:
        return int(value) > 0
    except ValueError:
        return value.lower() not in ("", "none", "error")


class Skew(NamedTuple):
    """Variables that change what is timed, by a pattern of whole names, and which of their values do.

    ``logs``: they only make a library talk. A pilot may, since its times are no result.
    """

    names: str
    skews: Callable[[str], bool]
    logs: bool = False


# Left set, these change what is timed (blocking waits, logging in the path, collective checks).
SKEWING = (
    Skew(r"(TORCH_)?NCCL_BLOCKING_WAIT", _is_on),
    Skew(r"CUDA_LAUNCH_BLOCKING", _is_on),
    Skew(r"TORCH_DISTRIBUTED_DEBUG", lambda value: value.upper() == "DETAIL"),
    Skew(r"NCCL_DEBUG", lambda value: value.upper() in ("INFO", "TRACE"), logs=True),
    Skew(r"(OMPI|PRTE|PMIX)_MCA_\w+_verbose", _talks, logs=True),
    Skew(r"UCX_LOG_LEVEL", lambda value: value.upper() not in ("", "FATAL", "ERROR", "WARN"), logs=True),
)

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True)
class Identity:
    """Rank, world size and local rank as the launcher gave them; ``launcher`` is torchrun, mpirun or none."""

    rank: int
    world_size: int
    local_rank: int
    launcher: str


def identify(environ: Mapping[str, str]) -> Identity:
    """Read the launcher's variables. mpirun's come first: its ranks may inherit RANK from a caller."""
    if "OMPI_COMM_WORLD_RANK" in environ:
        return Identity(
            rank=int(environ["OMPI_COMM_WORLD_RANK"]),
            world_size=int(environ["OMPI_COMM_WORLD_SIZE"]),
            local_rank=int(environ["OMPI_COMM_WORLD_LOCAL_RANK"]),
            launcher="mpirun",
        )
    if "RANK" in environ:
        return Identity(
            rank=int(environ["RANK"]),
            world_size=int(environ["WORLD_SIZE"]),
            local_rank=int(environ["LOCAL_RANK"]),
            launcher="torchrun",
        )
    return Identity(rank=0, world_size=1, local_rank=0, launcher="none")


def own_slots(spec: LaunchSpec) -> HostSlots:
    """This host's entry of the launch.

    Raises:
        LaunchError: ``spec.host`` is not one of its hosts.
    """
    for host in spec.hosts:
        if host.name == spec.host:
            return host
    known = ", ".join(host.name for host in spec.hosts)
    raise LaunchError(f"This host is called {spec.host!r}, the launch knows only {known}.")


def visible_devices(host: HostSlots) -> tuple[str, ...]:
    """The host's CUDA devices without repetition: a device named twice is shared by two ranks on purpose."""
    return tuple(dict.fromkeys(host.devices))


def device_index(host: HostSlots, local_rank: int) -> int:
    """Which of the visible CUDA devices this local rank takes.

    Raises:
        LaunchError: more ranks than devices were named.
    """
    if not host.devices:
        return local_rank
    if local_rank >= len(host.devices):
        raise LaunchError(
            f"{host.name}: local rank {local_rank} has no device, only {len(host.devices)} are named.",
            fix="give the host as many devices as slots in the cluster file.",
        )
    return visible_devices(host).index(host.devices[local_rank])


def launch_environment(spec: LaunchSpec, identity: Identity) -> dict[str, str]:
    """All variables this rank needs before torch is imported; the same for every launcher.

    What the user asked for (launch, arm, host) wins over what the suite derives.
    """
    host = own_slots(spec)
    wanted = dict.fromkeys(THREAD_VARIABLES, str(spec.threads))
    if host.interface:
        wanted["NCCL_SOCKET_IFNAME"] = f"={host.interface}"  # without "=" a prefix: bond0 would also take bond0.100
        wanted["GLOO_SOCKET_IFNAME"] = host.interface
    if spec.device == "cpu":
        wanted["CUDA_VISIBLE_DEVICES"] = ""
    elif host.devices:
        wanted["CUDA_VISIBLE_DEVICES"] = ",".join(visible_devices(host))
    wanted["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # numbers as nvidia-smi counts
    if spec.kind == "pilot":
        wanted.update(TALKATIVE.get(spec.arm.backend, {}))
    wanted.update(spec.environment)
    wanted.update(spec.arm.environment)
    wanted.update(host.environment)
    if identity.launcher != "torchrun":  # torchrun's ranks meet in the store of its own agent
        wanted.update(
            MASTER_ADDR=spec.master_address,
            MASTER_PORT=str(spec.master_port),
            RANK=str(identity.rank),
            WORLD_SIZE=str(identity.world_size),
            LOCAL_RANK=str(identity.local_rank),
        )
    return wanted


def refuse_skewing(environ: Mapping[str, str], kind: str) -> None:
    """Refuse to time anything under a setting that changes the time.

    Args:
        environ: the rank's environment.
        kind: the launch's kind; a pilot may log what its libraries choose, since its times are no result.

    Raises:
        LaunchError: names the variable and its value.
    """
    for name, value in sorted(environ.items()):
        if any(
            re.fullmatch(skew.names, name) and skew.skews(value) and not (kind == "pilot" and skew.logs)
            for skew in SKEWING
        ):
            raise LaunchError(
                f"{name}={value} is set, which skews what a {kind} launch times.",
                fix=f"unset {name} in the cluster file, the arm and the container.",
            )
