"""The way that each backend's data really takes, by evidence rather than by configuration.

Every launch looks at the TCP connections that the measured group made. A pilot, whose times are no result, may
also make NCCL and Open MPI tell what they chose, and reads that from its own log.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from suite.policy import NO_TCP, NOT_TOLD, SILENT_FALL_BACK
from suite.worker.machine import infiniband_ports_up, interface_of
from suite.worker.sockets import Connection

# What makes a backend tell; only ever set in a pilot.
TALKATIVE = {
    "nccl": {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET,GRAPH"},
    "mpi": {"OMPI_MCA_pml_base_verbose": "10", "OMPI_MCA_btl_base_verbose": "100"},
    "gloo": {},
}
_BTL = "OMPI_MCA_btl"  # how somebody says which of Open MPI's transports may be used


@dataclass(frozen=True)
class Transport:
    """``text`` is for the row; ``connections`` for the environment record; ``warnings`` for the reader."""

    text: str
    connections: str
    warnings: tuple[str, ...] = field(default=())


def describe(
    backend: str,
    log: str,
    made: Iterable[Connection],
    *,
    device: str = "cpu",
    interface: str | None = None,
    ports_up: int | None = None,
    cuda_aware: bool | None = None,
) -> Transport:
    """What a backend used.

    Args:
        backend: nccl, gloo or mpi.
        log: what this rank has printed; says nothing unless the backend was made talkative.
        made: the TCP connections that were made by the measured group.
        device: "cpu" or "cuda", where the tensors are.
        interface: the interface that was asked for.
        ports_up: active InfiniBand ports; None: look.
        cuda_aware: whether Open MPI was built with CUDA support; None: unknown.
    """
    ports = infiniband_ports_up() if ports_up is None else ports_up
    pairs = sorted({(connection.local, connection.remote) for connection in made})
    if backend == "mpi":  # ranks also talk to mpirun's daemon on their own host, which is no transport
        pairs = [(local, remote) for local, remote in pairs if local != remote]
    listed = ", ".join(f"{local} to {remote}" for local, remote in pairs)
    over_tcp = _tcp(pairs)
    if backend == "nccl":
        used = _nccl(log, listed, ports)
    elif backend == "mpi":
        used = _mpi(log, over_tcp, listed, ports)
    else:
        used = _gloo(over_tcp, pairs, listed, ports)
    text = used.text + (_on_cuda(backend, cuda_aware) if device == "cuda" else "")
    strays = sorted({local for local, _ in pairs if interface and interface_of(local) != interface})
    warnings = used.warnings
    if strays:
        warnings = (*warnings, f"{backend} uses {', '.join(strays)}, which is not on {interface} as asked for.")
    return Transport(text, listed, warnings)


def _tcp(pairs: list[tuple[str, str]]) -> str:
    """E.g. "TCP on eth0 (10.0.0.1)"."""
    places = sorted({local for local, _ in pairs})
    return "TCP on " + ", ".join(f"{interface_of(place) or 'unknown interface'} ({place})" for place in places)


def _on_cuda(backend: str, cuda_aware: bool | None) -> str:
    """What becomes of a GPU's memory on its way; part of the row."""
    if backend == "gloo":
        return ", staged through host memory"
    if backend == "mpi":
        aware = {True: "yes", False: "no", None: "unknown"}[cuda_aware]
        return f", CUDA-aware: {aware}, device synchronised before each collective"
    return ""


def _gloo(over_tcp: str, pairs: list[tuple[str, str]], listed: str, ports_up: int) -> Transport:
    if not pairs:
        return Transport("gloo: no connection (one rank)", listed)
    text = f"gloo: {over_tcp}"
    if ports_up and any(local != remote for local, remote in pairs):
        # Without a warning: as torch builds it gloo has nothing but TCP, so this is no fall-back.
        text += ", its only way beside InfiniBand or RoCE"
    return Transport(text, listed)


def _mpi(log: str, over_tcp: str, listed: str, ports_up: int) -> Transport:
    # Open MPI 4.1 and 5.0 write these lines alike, whatever stands between them.
    selected = re.search(r"select: component (\w+) selected", log)
    used = {kind for kind in re.findall(r"mca: bml: Using (\w+) btl for send to", log) if kind != "self"}
    parts = []
    if selected:
        parts.append(f"pml {selected.group(1)}")
    if used:
        parts.append("btl " + ", ".join(sorted(used)))
    if listed:
        parts.append(over_tcp)
    elif not used:
        parts.append(NO_TCP)
    warnings = []
    if ports_up and listed and not _tcp_was_asked_for():
        warnings.append(
            f"Open MPI uses TCP although {ports_up} InfiniBand or RoCE port(s) are up: {SILENT_FALL_BACK}. That of "
            "this suite's images has nothing else between hosts. Put nccl over sockets beside it (--arm "
            f'nccl-tcp=nccl,NCCL_IB_DISABLE=1); if TCP is meant, set {_BTL} to "self,vader,tcp" in the cluster file.'
        )
    return Transport("mpi: " + ", ".join(parts), listed, tuple(warnings))


def _nccl(log: str, listed: str, ports_up: int) -> Transport:
    # Its ranks meet over TCP whatever carries the data, so its connections say nothing; only its log does:
    # "NET/Socket : Using [0]eth0:10.0.0.1<0>", "NET/IB : Using [0]mlx5_0:1/IB ..."; "... via P2P/IPC",
    # "via NET/IB/0", "via NET/IB/0/GDRDMA", and with a proxy's rank "via NET/IB/0(1)/GDRDMA".
    using = re.findall(r"NET/(\w+) : Using ((?:\[\d+\]\S+ ?)+)", log)
    via = re.findall(r" via ([A-Z0-9]+/\w+)(?:/\d+(?:\(\d+\))?)?(/GDRDMA)?", log)
    ways = sorted({way + direct for way, direct in via})
    parts = []
    if ways:
        parts.append("via " + ", ".join(ways))
    parts += [f"NET/{net} {' '.join(names.split())}" for net, names in using]
    if not parts:
        parts.append(NOT_TOLD)
    warnings = []
    between_hosts = not ways or any(way.startswith("NET/") for way in ways)
    if ports_up and between_hosts and {net for net, _ in using} == {"Socket"} and not _sockets_were_asked_for():
        warnings.append(
            f"NCCL uses sockets although {ports_up} InfiniBand or RoCE port(s) are up: {SILENT_FALL_BACK}. "
            "Set rdma = true for these hosts in the cluster file, and see that anyone may open /dev/infiniband/uverbs*."
        )
    return Transport("nccl: " + ", ".join(parts), listed, tuple(warnings))


def _tcp_was_asked_for() -> bool:
    chosen = os.environ.get(_BTL, "")
    return not chosen.startswith("^") and "tcp" in chosen.split(",")


def _sockets_were_asked_for() -> bool:
    return os.environ.get("NCCL_IB_DISABLE", "0") != "0" or os.environ.get("NCCL_NET") == "Socket"
