"""What a lab has on this machine's Docker engine: image, network, one container and one volume per host.

A host is a container with sshd and a Docker engine of its own. It is not privileged: it has the capabilities
that dockerd needs, and devices for a disk of its own size. Its network has no way out of the machine.
"""

from __future__ import annotations

import hashlib
import ipaddress
import time
from collections.abc import Callable, Sequence
from typing import Any

import docker
import docker.errors
import docker.types

from suite.cluster import archive, transport
from suite.cluster.attached import Completed, run_in
from suite.cluster.engine import engine_errors
from suite.cluster.keys import KeyPair
from suite.cluster.lab_parts import HOST_LABEL, LAB_LABEL, USER, LabFiles, LabHost
from suite.errors import DeployError, HostError, UsageError
from suite.paths import project_root

IMAGE = "ddp-backend-suite:lab-host"
SOURCES = ("Dockerfile.lab-host", "lab-host", "lab-fault")
SOURCE_LABEL = "ddp-backend-suite.source"
# RFC 2544 sets this range aside for benchmarks of network devices: no LAN uses it.
ADDRESSES = ipaddress.ip_network("198.18.0.0/15")
FIRST_ADDRESS = 11  # of a host within its subnet
HOST_DISK_MIB = 8192  # sparse: a host takes what it stores
THIS_MACHINE = "this machine"
ENGINE_SECONDS = 60
COMMAND_SECONDS = 60.0
BUILD_SECONDS = 900
BENCH = (1000, 1000)  # the user of Dockerfile.lab-host
ROOT = (0, 0)


class LabEngine:
    """The lab of one folder, on this machine's engine. Every call raises HostError when the engine fails."""

    def __init__(self, files: LabFiles) -> None:
        self.files = files
        with engine_errors(THIS_MACHINE, "looking for a Docker engine"):
            self._api = transport.local_engine(ENGINE_SECONDS)

    def close(self) -> None:
        """Give back the connections."""
        self._api.close()

    def hosts(self) -> dict[str, str]:
        """The lab's hosts that exist, by name in numerical order, with their container's state."""
        with engine_errors(THIS_MACHINE, "listing the lab"):
            found = self._api.containers(all=True, filters={"label": f"{LAB_LABEL}={self.files.identity}"})
        states = {c["Labels"][HOST_LABEL]: str(c["State"]) for c in found}
        return dict(sorted(states.items(), key=lambda item: (len(item[0]), item[0])))

    def chosen(self, host: str | None) -> tuple[str, ...]:
        """That host, or all of them for None. Raises UsageError: there is no lab, or no such host in it."""
        names = tuple(self.hosts())
        if not names:
            raise UsageError("There is no lab.", fix="start one with `fab lab.up`.")
        if host is not None and host not in names:
            raise UsageError(f"The lab has no host {host!r}.", fix=f"name one of {', '.join(names)}.")
        return names if host is None else (host,)

    def run(self, host: str, *argv: str, timeout: float = COMMAND_SECONDS) -> Completed:
        """Run a program on a host as root, through the machine's engine: no network of the lab is needed.

        Raises:
            HostError: it could not be run or had not ended in time. (Its own failure is in the result.)
        """
        with engine_errors(host, f"running {argv[0]}"):
            return run_in(self._api, self.files.container(host), argv, timeout=timeout)

    def command(self, host: str, *argv: str, timeout: float = COMMAND_SECONDS) -> str:
        """The same, but its failure raises HostError too; returns what it printed."""
        done = self.run(host, *argv, timeout=timeout)
        if not done.ok:
            raise HostError(host, f"{' '.join(argv)} failed (exit {done.code}): {done.complaint}")
        return done.text

    def signal(self, host: str, what: str) -> None:
        """``pause``, ``unpause``, ``kill`` or ``start`` a host's container."""
        with engine_errors(host, what):
            getattr(self._api, what)(self.files.container(host))

    # The image

    def provide_image(self, progress: Callable[[str], None]) -> None:
        """Build the hosts' image unless it was built from the same files.

        Raises:
            DeployError: the build failed; with its last lines.
        """
        folder = project_root() / "docker"
        digest = hashlib.sha256(b"".join((folder / name).read_bytes() for name in SOURCES)).hexdigest()
        with engine_errors(THIS_MACHINE, "looking for the hosts' image"):
            found = self._api.images(filters={"label": f"{SOURCE_LABEL}={digest}", "reference": IMAGE})
        if found:
            return
        progress("building the image of the simulated hosts (about 20 s)")
        started = time.monotonic()
        lines: list[str] = []
        with engine_errors(THIS_MACHINE, "building the hosts' image"):
            for event in self._api.build(
                path=str(project_root()),
                dockerfile="docker/Dockerfile.lab-host",
                tag=IMAGE,
                labels={SOURCE_LABEL: digest},
                rm=True,
                forcerm=True,
                decode=True,
                timeout=ENGINE_SECONDS * 5,
            ):
                lines.append(str(event.get("stream") or event.get("error") or ""))
                if "error" in event or time.monotonic() - started > BUILD_SECONDS:
                    break
            else:
                return
        tail = "".join(lines[-15:]).strip()
        raise DeployError(
            f"the image of the simulated hosts was not built within {BUILD_SECONDS} s or failed:\n{tail}",
            fix="docker/engine-debian.sh, run as root, provides the base image; its package mirror must answer.",
        )

    # Making and removing

    def make_network(self) -> ipaddress.IPv4Network:
        """Make the lab's network on the first free subnet. Raises HostError when none is free."""
        with engine_errors(THIS_MACHINE, "making the lab's network"):
            taken = _subnets(self._api.networks())
            for subnet in ADDRESSES.subnets(new_prefix=24):
                if any(subnet.overlaps(other) for other in taken):
                    continue
                try:
                    self._make_network_on(str(subnet))
                except docker.errors.APIError as error:
                    if "overlaps" not in str(error.explanation):  # another lab was quicker
                        raise
                else:
                    assert isinstance(subnet, ipaddress.IPv4Network)
                    return subnet
        raise HostError(THIS_MACHINE, f"no subnet of {ADDRESSES} is free.", fix="remove unused Docker networks.")

    def _make_network_on(self, subnet: str) -> None:
        self._api.create_network(
            self.files.network,
            driver="bridge",
            internal=True,
            ipam=docker.types.IPAMConfig(pool_configs=[docker.types.IPAMPool(subnet=subnet)]),
            labels={LAB_LABEL: self.files.identity},
            check_duplicate=True,
        )

    def make_host(self, host: LabHost, peers: Sequence[LabHost], login: KeyPair, own_key: KeyPair) -> None:
        """Make and start one host; its keys are in place before its sshd starts."""
        labels = {LAB_LABEL: self.files.identity, HOST_LABEL: host.name}
        with engine_errors(host.name, "starting the simulated host"):
            self._api.create_volume(host.container, labels=labels)
            endpoint = self._api.create_endpoint_config(ipv4_address=host.address)
            self._api.create_container(
                IMAGE,
                name=host.container,
                hostname=host.name,
                labels=labels,
                environment={"LAB_DISK_MIB": str(HOST_DISK_MIB)},
                networking_config=self._api.create_networking_config({self.files.network: endpoint}),  # type: ignore[arg-type]
                host_config=self._api.create_host_config(
                    # Not privileged, and not everything: the engine of a machine that is itself confined cannot
                    # give SYS_RESOURCE away.
                    cap_add=["ALL"],
                    cap_drop=["SYS_RESOURCE"],
                    security_opt=["seccomp=unconfined", "apparmor=unconfined"],
                    device_cgroup_rules=["b 7:* rwm", "c 10:237 rwm"],  # loop devices
                    binds=[f"{host.container}:/var/lib/lab-store"],
                    tmpfs={"/run": "", "/tmp": "exec"},  # noqa: S108 # the host's own
                    extra_hosts={peer.name: peer.address for peer in peers if peer != host},
                ),
            )
            keys = archive.pack({"ssh_host_ed25519_key": archive.File(own_key.private)}, owner=ROOT)
            self._api.put_archive(host.container, "/etc/ssh", keys)
            allowed = archive.pack({"authorized_keys": archive.File(f"{login.public}\n".encode())}, owner=BENCH)
            self._api.put_archive(host.container, f"/home/{USER}/.ssh", allowed)
            self._api.start(host.container)

    def remove_host(self, host: str) -> None:
        """Remove a host's container, running or not; nothing happens where there is none."""
        with engine_errors(host, "removing the simulated host"):
            _unless_gone(lambda: self._api.remove_container(self.files.container(host), force=True, v=True))

    def remove_rest(self) -> None:
        """Remove the lab's volumes and network. The containers must be gone."""
        label = {"label": f"{LAB_LABEL}={self.files.identity}"}
        with engine_errors(THIS_MACHINE, "removing the lab's volumes and network"):
            for volume in self._api.volumes(filters=label).get("Volumes") or []:
                _unless_gone(lambda name=volume["Name"]: self._api.remove_volume(name, force=True))  # type: ignore[misc]
            for network in self._api.networks(filters=label):
                _unless_gone(lambda number=network["Id"]: self._api.remove_network(number))  # type: ignore[misc]


def _subnets(networks: Sequence[dict[str, Any]]) -> list[ipaddress.IPv4Network]:
    """The IPv4 subnets of Docker networks."""
    found = []
    for network in networks:
        for pool in (network.get("IPAM") or {}).get("Config") or []:
            subnet = ipaddress.ip_network(pool.get("Subnet") or "::/0", strict=False)
            if isinstance(subnet, ipaddress.IPv4Network):
                found.append(subnet)
    return found


def _unless_gone(remove: Callable[[], object]) -> None:
    try:
        remove()
    except docker.errors.NotFound:
        pass
    except docker.errors.APIError as error:
        # Someone else is removing it at this moment: as good as done.
        if "already in progress" not in str(error.explanation):
            raise
