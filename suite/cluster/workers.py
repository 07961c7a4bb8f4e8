"""The worker containers of a cluster on its hosts: found by their labels, reached, restarted, removed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import docker
import docker.errors

from suite.cluster.containers import (
    CLUSTER,
    DEPLOYMENT,
    DIGEST,
    HOST,
    IMAGE,
    ROLE,
    WORKER,
    container_options,
    digest,
    volume_name,
)
from suite.cluster.engine import Engine, engine_errors
from suite.cluster.fanout import fan_out
from suite.cluster.inventory import Cluster, Host
from suite.console import printable
from suite.errors import HostError

MESH_SECONDS = 60.0
_SSHD_SECONDS = 10.0
# Reaches each named host once, in parallel, over the in-container sshd: "NAME CODE what ssh said". The names
# are arguments, never part of the text.
_REACH = (
    'for peer; do (said=$(suite-mpi-ssh "$peer" true 2>&1); printf "%s %s %s\\n" "$peer" "$?" "$said") & done; wait'
)


@dataclass(frozen=True)
class Worker:
    """A worker container as its host lists it.

    ``image_id`` is the host's name for the image it runs, ``wanted_image`` the deploying machine's.
    """

    id: str
    deployment: str
    digest: str
    image_id: str
    wanted_image: str
    running: bool

    def fits(self, host: Host, cluster: Cluster) -> bool:
        """Whether the cluster file still asks for a container like this one, with or without GPUs."""
        return self.digest in {
            digest(container_options(host, cluster, gpu), self.wanted_image, cluster) for gpu in (False, True)
        }


def list_workers(remote: Engine, cluster: Cluster) -> list[Worker]:
    """The host's containers of this cluster, newest first. Raises HostError."""
    with engine_errors(remote.name, "listing containers"):
        listed = remote.api.containers(all=True, filters={"label": [f"{ROLE}={WORKER}", f"{CLUSTER}={cluster.name}"]})
    found = []
    for entry in listed:
        marks: dict[str, str] = entry.get("Labels") or {}
        found.append(
            Worker(
                id=str(entry["Id"]),
                deployment=marks.get(DEPLOYMENT, "") if marks.get(HOST) == remote.name else "",
                digest=marks.get(DIGEST, ""),
                image_id=str(entry.get("ImageID", "")),
                wanted_image=marks.get(IMAGE, ""),
                running=entry.get("State") == "running",
            )
        )
    return found


def restart(remote: Engine, container: str) -> None:
    """End everything in a host's container for certain, and wait until its sshd answers again.

    Raises:
        HostError: the engine did not answer, or sshd did not come back.
    """
    with engine_errors(remote.name, "restarting the container"):
        remote.api.restart(container, timeout=0)
    wait_for_sshd(remote, container)


def wait_for_sshd(remote: Engine, container: str) -> None:
    """Wait until the container's own sshd lets its own key in. Raises HostError with the container's last words."""
    deadline = time.monotonic() + _SSHD_SECONDS
    said = ""
    while _is_running(remote, container):
        answer = remote.exec_run(container, ["suite-mpi-ssh", remote.name, "true"], timeout=20)
        if answer.ok:
            return
        said = answer.complaint
        if time.monotonic() > deadline:
            break
        time.sleep(0.1)
    else:
        said = "the container has ended"
    with engine_errors(remote.name, "reading the container's log"):
        log = bytes(remote.api.logs(container, tail=3)).decode(errors="replace").strip()
    said = printable(f"{said}; its log ends: {'; '.join(log.splitlines())}" if log else said)
    fix = "see `docker logs` of the container on that host."
    if "in use" in said:
        fix = "end what holds the port, or set another container_ssh_port in the cluster file."
    raise HostError(remote.name, f"the sshd inside the container did not answer: {said}", fix=fix)


def _is_running(remote: Engine, container: str) -> bool:
    with engine_errors(remote.name, "looking at the container"):
        state = remote.api.inspect_container(container)["State"]
    return bool(state.get("Running"))


def unreached(
    cluster: Cluster, remotes: Mapping[str, Engine], containers: Mapping[str, str], *, ring: bool
) -> dict[str, dict[str, str]]:
    """Which host does not reach which over the in-container sshd: host -> peer -> what ssh said.

    Every pair is tried, or with ``ring`` each host only from the one before it. A host that could not be asked
    does not reach any.
    """
    names = [host.name for host in cluster.hosts if host.name in containers]

    def peers(name: str) -> list[str]:
        return [names[(names.index(name) + 1) % len(names)]] if ring else names

    def reach(remote: Engine) -> dict[str, str]:
        words = ["sh", "-c", _REACH, "sh", *peers(remote.name)]
        answer = remote.exec_run(containers[remote.name], words, timeout=MESH_SECONDS)
        reached: dict[str, tuple[str, str]] = {}
        for line in answer.stdout.decode(errors="replace").splitlines():
            peer, _, rest = line.partition(" ")
            code, _, said = rest.partition(" ")
            reached.setdefault(peer, (code, said))
        missed = {}
        for peer in peers(remote.name):
            code, said = reached.get(peer, ("", "no answer"))
            if code != "0":
                missed[peer] = printable(said) or f"exit code {code}"
        return missed

    gaps: dict[str, dict[str, str]] = {}
    for name, answer in fan_out([remotes[name] for name in names], reach, MESH_SECONDS + 10).items():
        missed = dict.fromkeys(peers(name), str(answer)) if isinstance(answer, Exception) else answer
        if missed:
            gaps[name] = missed
    return gaps


def remove(remote: Engine, cluster: Cluster) -> bool:
    """Remove the cluster's container and volume from a host; whether there was any. Raises HostError."""
    return remove_marked(remote, {container.id for container in list_workers(remote, cluster)}, [volume_name(cluster)])


def remove_marked(remote: Engine, containers: set[str], volumes: list[str]) -> bool:
    """Remove containers and volumes, whichever of them are there. Raises HostError."""
    removed = False
    calls: list[Callable[[], Any]] = [
        *(lambda c=c: remote.api.remove_container(c, v=True, force=True) for c in containers),
        *(lambda v=v: remote.api.remove_volume(v, force=True) for v in volumes),
    ]
    with engine_errors(remote.name, "removing the container"):
        for call in calls:
            try:
                call()
                removed = True
            except docker.errors.NotFound:
                pass
            except docker.errors.APIError as error:
                if error.status_code != 409 or "in progress" not in str(error.explanation):
                    raise
    return removed
