"""The worker container of a host: what it may do, and how it is found again. Pure functions.

It shares the host's network, because the ranks of all hosts talk to each other; everything else is kept from
it: an ordinary user, no capabilities (single-copy through CMA stays off, so not even SYS_PTRACE), no new
privileges, a read-only root, no Docker socket.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from suite.cluster.archive import VOLUME
from suite.cluster.inventory import Cluster, Host

# What marks everything of this suite on a host: containers, volumes, images.
PREFIX = "ddp-backend-suite"
ROLE, CLUSTER, HOST = f"{PREFIX}.role", f"{PREFIX}.cluster", f"{PREFIX}.host"
DEPLOYMENT, DIGEST, IMAGE = f"{PREFIX}.deployment", f"{PREFIX}.digest", f"{PREFIX}.image"
VARIANT = f"{PREFIX}.variant"  # on the images themselves
WORKER = "worker"
RDMA = "/dev/infiniband"
# Of NVIDIA's container toolkit: what CUDA and NVML need in the container, not graphics.
_GPU_CAPABILITIES = ["compute", "utility"]


def container_name(cluster: Cluster) -> str:
    """The name of the cluster's container, the same on each host."""
    return f"ddp-suite-{cluster.name}"


def volume_name(cluster: Cluster) -> str:
    """The name of the volume that holds keys, specifications and records on each host."""
    return f"ddp-suite-{cluster.name}"


def container_options(host: Host, cluster: Cluster, gpu: bool) -> dict[str, Any]:
    """The body of the engine's request to create the container, without image and labels.

    Args:
        host: where it runs.
        cluster: for the names and addresses of all hosts.
        gpu: whether it gets the host's CUDA devices, through the NVIDIA Container Toolkit.
    """
    limits: dict[str, Any] = {
        "NetworkMode": "host",
        "IpcMode": "host" if host.shm_bytes is None else "private",
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges:true"],
        "Privileged": False,
        "ReadonlyRootfs": cluster.read_only,
        "Tmpfs": {
            "/tmp": "rw,nosuid,nodev,noexec,mode=1777,size=1g",  # noqa: S108 - inside the container
            "/run": "rw,nosuid,nodev,noexec,mode=0755,size=16m",
        },
        "Mounts": [
            {
                "Type": "volume",
                "Source": volume_name(cluster),
                "Target": VOLUME,
                "VolumeOptions": {"Labels": {ROLE: WORKER, CLUSTER: cluster.name}},
            }
        ],
        "ExtraHosts": [f"{peer.name}:{peer.data_address}" for peer in cluster.hosts],
        "RestartPolicy": {"Name": "no"},
        "LogConfig": {"Type": "json-file", "Config": {"max-size": "10m", "max-file": "1"}},
    }
    if host.shm_bytes is not None:
        limits["ShmSize"] = host.shm_bytes
    if gpu or host.rdma:
        # Pinned buffers of CUDA and RDMA; without either the host's own limits do.
        limits["Ulimits"] = [{"Name": "memlock", "Soft": -1, "Hard": -1}]
    if host.rdma:
        limits["Devices"] = [{"PathOnHost": RDMA, "PathInContainer": RDMA, "CgroupPermissions": "rw"}]
    if gpu:
        devices: dict[str, Any] = {"DeviceIDs": list(host.devices)} if host.devices else {"Count": -1}
        limits["DeviceRequests"] = [{"Driver": "nvidia", **devices, "Capabilities": [["gpu", *_GPU_CAPABILITIES]]}]
    return {
        # The name of the cluster file, which the hosts file below resolves to the right address: the machine's
        # own name often resolves to 127.0.1.1.
        "Hostname": host.name,
        "Env": [f"SUITE_HOST={host.name}"],
        "HostConfig": limits,
    }


def devices_inside(host: Host) -> tuple[str, ...]:
    """The host's devices as its container names them: it has these only, and counts them anew.

    A UUID stays what it is. Indices follow the PCI bus inside as outside, so that devices 3 and 1 of the host are
    1 and 0 in there.
    """
    if not all(device.isdigit() for device in host.devices):
        return host.devices
    inside = sorted(map(int, host.devices))
    return tuple(str(inside.index(int(device))) for device in host.devices)


def digest(options: dict[str, Any], image_id: str, cluster: Cluster) -> str:
    """What a running container must match to be kept: its options, image and the cluster's sshd."""
    text = json.dumps([options, image_id, cluster.container_ssh_port], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def labels(host: Host, cluster: Cluster, deployment: str, image_id: str, gpu: bool) -> dict[str, str]:
    """The labels of a host's container. ``image_id`` is the image's ID on the machine that deployed it."""
    return {
        ROLE: WORKER,
        CLUSTER: cluster.name,
        HOST: host.name,
        DEPLOYMENT: deployment,
        IMAGE: image_id,
        DIGEST: digest(container_options(host, cluster, gpu), image_id, cluster),
    }
