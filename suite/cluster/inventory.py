"""Cluster files: which hosts there are, and how each is reached. TOML, read strictly.

    [cluster]                       # all of it optional
    name = "rtx3090"                # default: the file's name
    container_ssh_port = 2222       # port of the sshd inside the containers
    ports = "29500-29999"           # rendezvous ports
    image = "ddp-backend-suite:cuda"        # default: the variant's own tag
    read_only = true                # the containers' root file system

    [defaults]                      # any key of a host but name and address
    user = "bench"
    key = "~/.ssh/id_ed25519"       # relative to this file; without it: the SSH agent, then ~/.ssh
    known_hosts = "known_hosts"     # default: ~/.ssh/known_hosts

    [[hosts]]
    name = "gpu1"                   # the name of the host in tables and inside the containers
    address = "192.0.2.11"          # where SSH connects to
    data_address = "198.51.100.11"  # where the peers connect to; default: address
    port = 22
    interface = "enp65s0"           # default: the one that routes to the peers
    slots = 1                       # ranks of this host; default: one per device
    devices = [0]                   # CUDA devices by index or UUID
    shm_size = "2g"                 # the containers' /dev/shm; "host" shares the host's
    rdma = false                    # whether the containers get /dev/infiniband
    environment = { NCCL_IB_HCA = "mlx5_0" }   # for this host's ranks only

Nothing here touches a host or a name server: parsing is a function of the file alone.
"""

from __future__ import annotations

import os
from pathlib import Path

from suite.cluster.inventory_parse import MAX_FILE_BYTES, parse
from suite.cluster.inventory_types import Cluster, Host
from suite.cluster.inventory_values import near
from suite.errors import ConfigurationError, UsageError
from suite.paths import is_safe_name

__all__ = ["Cluster", "Host", "find", "load", "parse"]


def load(path: Path) -> Cluster:
    """Read a cluster file.

    Raises:
        ConfigurationError: it cannot be read or used; names file, host and key, and what to write instead.
    """
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ConfigurationError(path, "", f"cannot be read: {reason}.", fix="check --cluster and the file.") from None
    return parse(data, path)


def find(name: str | None, folder: Path) -> Path:
    """The cluster file for ``--cluster NAME``: that name's; else SUITE_CLUSTER's; else the only one there.

    Files whose names begin with "example" are never chosen by themselves.

    Raises:
        UsageError: there is none, or more than one; lists them.
    """
    files = sorted(path for path in folder.glob("*.toml") if path.is_file()) if folder.is_dir() else []
    known = ", ".join(path.stem for path in files) or "none"
    source = "--cluster"
    if name is None and os.environ.get("SUITE_CLUSTER"):
        name, source = os.environ["SUITE_CLUSTER"], "SUITE_CLUSTER"
    if name is not None:
        if not is_safe_name(name):
            raise UsageError(
                f"{source}: {name!r} cannot name a cluster file.",
                fix=f"give the name of a file in hosts/, without .toml: {known}.",
            )
        path = folder / f"{name}.toml"
        if path.is_file():
            return path
        raise UsageError(f"{source}: there is no cluster file {path}.", fix=near(name, [p.stem for p in files], known))
    own = [path for path in files if not path.stem.startswith("example")]
    if len(own) == 1:
        return own[0]
    if not own:
        raise UsageError(
            f"There is no cluster file in {folder}.",
            fix="write one after hosts/example-rtx3090.toml, or simulate a cluster with `fab lab.up`.",
        )
    raise UsageError(
        f"There are {len(own)} cluster files: {', '.join(path.stem for path in own)}.",
        fix="name one with --cluster, or in the environment variable SUITE_CLUSTER.",
    )
