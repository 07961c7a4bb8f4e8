"""The files of a lab on the controller: its cluster file, its key pair, its hosts' keys; and its names.

All of it lies below ``hosts/`` of one folder (the project, or a test's own), and a lab belongs to that folder:
two folders on one machine can have a lab each.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from suite.cluster.inventory import Host
from suite.cluster.keys import KeyPair
from suite.errors import UsageError
from suite.paths import replace

USER = "bench"
MARK = "# Written by `fab lab.up`, removed by `fab lab.down`: simulated hosts on this machine.\n"
# Labels of everything a lab owns on the machine's engine.
LAB_LABEL = "ddp-backend-suite.lab"
HOST_LABEL = "ddp-backend-suite.lab-host"
MAX_HOSTS = 64


@dataclass(frozen=True)
class LabHost:
    """One simulated host: its name, its address on the lab's network, its container on the machine's engine."""

    name: str
    address: str
    container: str


@dataclass(frozen=True)
class LabFiles:
    """The files of the lab of one folder."""

    root: Path

    @property
    def identity(self) -> str:
        """Eight characters that name this folder's lab on the engine."""
        return hashlib.sha256(str(self.root.resolve()).encode()).hexdigest()[:8]

    @property
    def cluster(self) -> Path:
        return self.root / "hosts" / "lab.toml"

    @property
    def secrets(self) -> Path:
        return self.root / "hosts" / ".lab"

    @property
    def key(self) -> Path:
        return self.secrets / "id_ed25519"

    @property
    def known_hosts(self) -> Path:
        return self.secrets / "known_hosts"

    def container(self, host: str) -> str:
        """The name of a host's container and of its volume."""
        return f"suite-lab-{self.identity}-{host}"

    @property
    def network(self) -> str:
        return f"suite-lab-{self.identity}"

    def refuse_foreign_cluster_file(self) -> None:
        """Raises UsageError when hosts/lab.toml exists and was not written by a lab."""
        if self.cluster.exists() and not self.cluster.read_text(encoding="utf-8").startswith(MARK):
            raise UsageError(
                f"{self.cluster} was not written by `fab lab.up`, and it would be replaced.",
                fix="give that cluster file another name.",
            )

    def write_keys(self, login: KeyPair, host_keys: dict[str, KeyPair]) -> None:
        """Write the login key (0600) and the known hosts, by address, into a folder of mode 0700."""
        self.remove()
        self.secrets.mkdir(mode=0o700, parents=True)
        self.key.touch(mode=0o600)
        self.key.write_bytes(login.private)
        lines = [f"{address} {key.public}\n" for address, key in host_keys.items()]
        self.known_hosts.touch(mode=0o600)
        self.known_hosts.write_text("".join(lines), encoding="utf-8")

    def write_cluster(self, hosts: Sequence[LabHost]) -> None:
        """Write hosts/lab.toml: the last step of starting a lab, so that the file means a lab that answers."""
        replace(self.cluster, cluster_text(hosts))

    def remove(self) -> None:
        """Remove the cluster file and the keys; nothing happens where there are none."""
        self.cluster.unlink(missing_ok=True)
        shutil.rmtree(self.secrets, ignore_errors=True)

    def as_remote(self, host: LabHost) -> Host:
        """The host as the cluster file describes it."""
        return Host(
            name=host.name,
            address=host.address,
            data_address=host.address,
            user=USER,
            key=self.key,
            known_hosts=self.known_hosts,
        )


def cluster_text(hosts: Sequence[LabHost]) -> str:
    """The cluster file of a lab, paths relative to itself."""
    parts = [
        MARK,
        "\n[defaults]\n",
        f'user = "{USER}"\nport = 22\nkey = ".lab/id_ed25519"\nknown_hosts = ".lab/known_hosts"\nslots = 1\n',
    ]
    parts += [f'\n[[hosts]]\nname = "{host.name}"\naddress = "{host.address}"\n' for host in hosts]
    return "".join(parts)
