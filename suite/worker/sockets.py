"""This process's own TCP connections, as the kernel lists them: proof of the way a backend's data takes."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import NamedTuple

_ESTABLISHED = "01"


class Connection(NamedTuple):
    """One established connection of this process: both addresses, and the socket's number."""

    local: str
    remote: str
    inode: int


def connections() -> frozenset[Connection]:
    """All established TCP connections of this process; empty where /proc does not tell."""
    own = _own_sockets()
    found = set()
    for path in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        try:
            lines = Path(path).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            inode = int(fields[9])
            if fields[3] == _ESTABLISHED and inode in own:
                found.add(Connection(decode(fields[1]), decode(fields[2]), inode))
    return frozenset(found)


def decode(text: str) -> str:
    """An address of /proc/net/tcp ("0100007F:1F90") without its port; IPv4 in IPv6 is written as IPv4."""
    digits = text.partition(":")[0]
    # The kernel prints each 32-bit word in the machine's byte order, little-endian on what torch runs on.
    words = [bytes.fromhex(digits[i : i + 8])[::-1] for i in range(0, len(digits), 8)]
    packed = b"".join(words)
    if len(packed) == 4:
        return socket.inet_ntop(socket.AF_INET, packed)
    if packed.startswith(b"\0" * 10 + b"\xff\xff"):
        return socket.inet_ntop(socket.AF_INET, packed[12:])
    return socket.inet_ntop(socket.AF_INET6, packed)


def _own_sockets() -> set[int]:
    inodes = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            target = str(descriptor.readlink())
        except OSError:
            continue
        if target.startswith("socket:["):
            inodes.add(int(target[8:-1]))
    return inodes
