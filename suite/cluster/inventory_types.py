"""What a cluster file says, as plain values."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from suite.errors import UsageError

DEFAULT_SHM_BYTES = 2 << 30


@dataclass(frozen=True)
class Host:
    """One host of a cluster file.

    ``shm_bytes`` None: the container shares the host's own /dev/shm. ``rdma``: it gets the host's InfiniBand or
    RoCE devices.
    """

    name: str
    address: str
    data_address: str
    user: str
    port: int = 22
    key: Path | None = None
    known_hosts: Path | None = None
    interface: str | None = None
    slots: int = 1
    devices: tuple[str, ...] = ()
    shm_bytes: int | None = DEFAULT_SHM_BYTES
    rdma: bool = False
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Cluster:
    """A cluster file. ``ports`` is the first and the last rendezvous port, both included."""

    name: str
    path: Path
    hosts: tuple[Host, ...]
    container_ssh_port: int = 2222
    ports: tuple[int, int] = (29500, 29999)
    image: str | None = None
    read_only: bool = True

    @property
    def gpu(self) -> bool:
        """Whether any host lists CUDA devices."""
        return any(host.devices for host in self.hosts)

    def host(self, name: str) -> Host:
        """The host of that name. Raises UsageError when there is none."""
        for host in self.hosts:
            if host.name == name:
                return host
        known = ", ".join(host.name for host in self.hosts)
        raise UsageError(f"{self.path}: there is no host {name!r}.", fix=f"name one of {known}.")
