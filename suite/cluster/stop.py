"""The end of a deployment: containers, volumes and keys gone from every host that answers; images too when asked."""

from __future__ import annotations

from collections.abc import Mapping

from suite.cluster import images
from suite.cluster.containers import CLUSTER, ROLE, WORKER
from suite.cluster.deploy import Remotes
from suite.cluster.engine import Engine, engine_errors
from suite.cluster.fanout import fan_out
from suite.cluster.inventory import Cluster
from suite.cluster.workers import remove_marked

STOP_SECONDS = 120.0


def stop(cluster: Cluster, remotes: Remotes) -> dict[str, bool | Exception]:
    """Remove this cluster's containers and volumes from every host.

    Returns, by host, whether there was anything to remove, or why that host could not be served. Doing it again
    does no harm.
    """
    return fan_out(_hosts(cluster, remotes), lambda remote: _remove(remote, cluster.name), STOP_SECONDS)


def clean(cluster: Cluster, remotes: Remotes) -> dict[str, bool | Exception]:
    """As ``stop``, for whatever cluster name the suite's containers there have, and the suite's images with it."""

    def remove_everything(remote: Engine) -> bool:
        found = _remove(remote, None)
        return bool(images.remove_all(remote)) or found

    return fan_out(_hosts(cluster, remotes), remove_everything, STOP_SECONDS)


def _hosts(cluster: Cluster, remotes: Remotes) -> list[Engine]:
    return [remotes[host.name] for host in cluster.hosts]


def _remove(remote: Engine, cluster: str | None) -> bool:
    """Remove the containers and volumes of one cluster, or of every one (None)."""
    marks = [f"{ROLE}={WORKER}", *([f"{CLUSTER}={cluster}"] if cluster is not None else [])]
    with engine_errors(remote.name, "listing containers and volumes"):
        containers = remote.api.containers(all=True, filters={"label": marks})
        volumes: Mapping[str, list[dict[str, str]] | None] = remote.api.volumes(filters={"label": marks})
    names = [volume["Name"] for volume in volumes.get("Volumes") or []]
    return remove_marked(remote, {str(entry["Id"]) for entry in containers}, names)
