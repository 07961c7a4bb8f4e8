"""What a host says about itself, asked in one go over SSH. Facts only; ``rules`` judges them."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from suite.cluster.engine import Engine
from suite.errors import HostError
from suite.numerals import natural

PROBE_SECONDS = 30.0
# Fixed text; what varies (a folder, the peers' addresses) comes as arguments.
_SCRIPT = r"""
export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"
part() { printf '\n### %s\n' "$1"; }
part hostname; uname -n
part machine-id; cat /etc/machine-id
part boot-id; cat /proc/sys/kernel/random/boot_id
part shm; df --output=avail -B1 /dev/shm | tail -n 1
part disk; df --output=avail -B1 -- "$1" | tail -n 1
shift
part addresses; ip -j address
for peer; do part "route $peer"; ip -j route get "$peer"; done
part tcp; cat /proc/net/tcp
part tcp6; cat /proc/net/tcp6
part holders; ss -Hltnp
part users; getent passwd
"""
_PART = re.compile(r"^### (.+)$", re.MULTILINE)
_LISTENING = "0A"


@dataclass(frozen=True)
class Clock:
    """The host's clock against this machine's: offset ± uncertainty, seconds; half the round trip each way."""

    offset: float
    uncertainty: float


@dataclass(frozen=True)
class HostFacts:
    """What one host said. Missing answers are empty or None, never guessed.

    ``addresses`` maps interfaces to "address/prefix" texts, those that are up only; ``routes`` maps a peer's
    address to (interface, source address, gateway or ""); ``listening`` maps ports to user IDs; ``holders``
    ports to what ``ss`` says of the process, where it may.
    """

    host: str
    hostname: str = ""
    machine_id: str = ""
    boot_id: str = ""
    shm_free_bytes: int | None = None
    disk_free_bytes: int | None = None
    addresses: dict[str, tuple[str, ...]] = field(default_factory=dict)
    routes: dict[str, tuple[str, str, str]] = field(default_factory=dict)
    route_errors: dict[str, str] = field(default_factory=dict)
    listening: dict[int, int] = field(default_factory=dict)
    holders: dict[int, str] = field(default_factory=dict)
    users: dict[int, str] = field(default_factory=dict)
    clock: Clock | None = None
    engine: dict[str, Any] = field(default_factory=dict)

    def holder(self, port: int) -> str:
        """Who listens on a port, as far as it can be known."""
        if port in self.holders:
            return self.holders[port]
        uid = self.listening.get(port)
        return f"a process of user {self.users.get(uid, uid)}" if uid is not None else "an unknown process"


def ask(remote: Engine, engine: dict[str, Any], peers: Sequence[str], *, clock_tries: int = 3) -> HostFacts:
    """Probe a host.

    Args:
        remote: the host.
        engine: what its Docker engine said about itself (``docker info``), or an empty dict.
        peers: addresses to ask routes for.
        clock_tries: round trips to take for the clock; 0 leaves it unknown.

    Raises:
        HostError: it did not answer.
    """
    folder = str(engine.get("DockerRootDir") or "/")
    answer = remote.run(["sh", "-c", _SCRIPT, "sh", folder, *peers], PROBE_SECONDS)
    if not answer.ok and not answer.stdout:
        raise HostError(remote.name, f"cannot be asked about itself: {answer.complaint}")
    return parse(remote.name, answer.stdout.decode(errors="replace"), engine, clock(remote, clock_tries))


def clock(remote: Engine, tries: int) -> Clock | None:
    """The clock of a host against this machine's, by the quickest of some round trips. Raises HostError."""
    best: Clock | None = None
    for _ in range(tries):
        before, start = time.time(), time.monotonic()
        answer = remote.run(["date", "+%s.%N"], PROBE_SECONDS)
        took = time.monotonic() - start
        try:
            there = float(answer.text)
        except ValueError:
            return None
        if best is None or took / 2 < best.uncertainty:
            best = Clock(there - (before + took / 2), took / 2)
    return best


def parse(host: str, text: str, engine: dict[str, Any], clock: Clock | None) -> HostFacts:
    """Facts from the probe's output."""
    pieces = _PART.split("\n" + text)
    parts = dict(zip(pieces[1::2], (piece.strip() for piece in pieces[2::2]), strict=False))
    routes, route_errors = _routes(parts)
    return HostFacts(
        host=host,
        hostname=parts.get("hostname", ""),
        machine_id=parts.get("machine-id", ""),
        boot_id=parts.get("boot-id", ""),
        shm_free_bytes=natural(parts.get("shm")),
        disk_free_bytes=natural(parts.get("disk")),
        addresses=_addresses(parts.get("addresses", "")),
        routes=routes,
        route_errors=route_errors,
        listening=_listening(parts.get("tcp", "") + "\n" + parts.get("tcp6", "")),
        holders=_holders(parts.get("holders", "")),
        users=_users(parts.get("users", "")),
        clock=clock,
        engine=engine,
    )


def _json_list(text: str) -> list[Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return []
    return found if isinstance(found, list) else []


def _addresses(text: str) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for entry in _json_list(text):
        if not isinstance(entry, dict) or "UP" not in (entry.get("flags") or []):
            continue
        name = str(entry.get("ifname", "")).partition("@")[0]
        found[name] = tuple(
            f"{address.get('local')}/{address.get('prefixlen')}"
            for address in entry.get("addr_info") or []
            if isinstance(address, dict)
        )
    return found


def _routes(parts: dict[str, str]) -> tuple[dict[str, tuple[str, str, str]], dict[str, str]]:
    routes: dict[str, tuple[str, str, str]] = {}
    errors: dict[str, str] = {}
    for title, text in parts.items():
        if not title.startswith("route "):
            continue
        peer = title[len("route ") :]
        answers = [entry for entry in _json_list(text) if isinstance(entry, dict) and entry.get("dev")]
        if answers:
            first = answers[0]
            routes[peer] = (str(first["dev"]), str(first.get("prefsrc", "")), str(first.get("gateway", "")))
        else:
            errors[peer] = text.splitlines()[-1] if text else "the host has no `ip` command, or it said nothing"
    return routes, errors


def _listening(text: str) -> dict[int, int]:
    """Ports in state LISTEN in /proc/net/tcp or tcp6, with the user ID that opened each."""
    found: dict[int, int] = {}
    for line in text.splitlines():
        fields = line.split()
        if len(fields) > 7 and fields[3] == _LISTENING and (user := natural(fields[7])) is not None:
            port = fields[1].rpartition(":")[2]
            if re.fullmatch(r"[0-9A-Fa-f]{4}", port):
                found[int(port, 16)] = user
    return found


def _holders(text: str) -> dict[int, str]:
    """Port -> "iperf3, process 123" from ``ss -Hltnp``; it names only processes that the user may see."""
    found: dict[int, str] = {}
    for line in text.splitlines():
        fields = line.split()
        named = re.search(r'\(\("([^"]+)",pid=(\d+)', line)
        if len(fields) > 3 and named:
            port = natural(fields[3].rpartition(":")[2])
            if port is not None:
                found[port] = f"{named.group(1)}, process {named.group(2)}"
    return found


def _users(text: str) -> dict[int, str]:
    found: dict[int, str] = {}
    for line in text.splitlines():
        fields = line.split(":")
        if len(fields) > 2 and (number := natural(fields[2])) is not None:
            found.setdefault(number, fields[0])
    return found
