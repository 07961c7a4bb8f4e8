"""A simulated cluster on this machine: hosts with sshd, a Docker engine, an address and a disk of their own.

    up      start the hosts, wait until each answers over SSH, write hosts/lab.toml
    down    remove everything
    link    limit what a host's network interface sends
    status  what is there
    fault, heal  break a host and mend it (``suite.cluster.lab_faults``)

What it is for: everything from ``check`` to ``report`` can be tried and tested without servers. What it is not:
a measurement of a cluster. The hosts share this machine's cores, memory, disk, kernel and clock.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from suite.cluster.fanout import Begun, fan_out, results
from suite.cluster.keys import key_pair
from suite.cluster.lab_engine import ENGINE_SECONDS, FIRST_ADDRESS, LabEngine
from suite.cluster.lab_faults import DEFAULT_PORT, KINDS, PORT_TAKEN, fault, heal
from suite.cluster.lab_parts import MAX_HOSTS, LabFiles, LabHost
from suite.cluster.remote import RemoteHost
from suite.errors import HostError, UsageError

__all__ = ["DEFAULT_PORT", "KINDS", "PORT_TAKEN", "HostStatus", "down", "fault", "heal", "link", "status", "up"]

READY_SECONDS = 90.0
DOWN_SECONDS = 90.0
_POLL_SECONDS = 0.25
_RATE = re.compile(r"[1-9][0-9]{0,5}(kbit|mbit|gbit)|off")

Progress = Callable[[str], None]


@dataclass(frozen=True)
class HostStatus:
    """One simulated host as it is now. ``link`` is the limit set with ``link``, or "off"."""

    name: str
    state: str  # Docker's word: running, paused, exited ...
    ready: bool
    detail: str  # why it is not ready, else empty
    link: str


@dataclass(frozen=True)
class _Named:
    name: str


def _quiet(_line: str) -> None:
    pass


def up(hosts: int = 4, *, root: Path, progress: Progress = _quiet) -> Path:
    """Start a lab of ``hosts`` simulated hosts named h1, h2 ... and write ``root``/hosts/lab.toml.

    A sound lab of that size is left as it is; what remains of another one is removed first. When anything
    fails, or on Ctrl-C, everything is removed again.

    Returns:
        the cluster file.

    Raises:
        UsageError: ``hosts`` is out of range, or lab.toml is somebody's own file.
        HostError: no engine answers here, or a host did not become ready; says which and why.
        DeployError: the hosts' image could not be built.
    """
    if not 1 <= hosts <= MAX_HOSTS:
        raise UsageError(f"A lab of {hosts} hosts cannot be made.", fix=f"ask for 1 to {MAX_HOSTS} hosts.")
    files = LabFiles(root)
    files.refuse_foreign_cluster_file()
    engine = LabEngine(files)
    try:
        before = engine.hosts()
        if list(before) == _names(hosts) and files.cluster.exists() and all(s.ready for s in status(root=root)):
            progress(f"the lab is up already: {', '.join(before)}")
            return files.cluster
        if before or files.secrets.exists():
            progress("removing what is left of an earlier lab")
        _remove(engine, files)
        engine.provide_image(progress)
        try:
            _start(engine, files, hosts, progress)
        except BaseException:
            progress("the lab could not be started: removing its parts")
            _remove(engine, files)
            raise
    finally:
        engine.close()
    return files.cluster


def down(*, root: Path, progress: Progress = _quiet) -> None:
    """Remove the lab of ``root``: containers, volumes, network, keys, cluster file. Safe to call twice.

    Raises:
        HostError: the engine does not answer, or something could not be removed; call it again then.
    """
    files = LabFiles(root)
    engine = LabEngine(files)
    try:
        there = engine.hosts()
        _remove(engine, files)
        progress(f"removed {', '.join(there)}" if there else "there was no lab")
    finally:
        engine.close()


def link(rate: str, host: str | None = None, *, root: Path) -> None:
    """Limit what ``host`` (None: every host) sends to ``rate``: "1gbit", "200mbit", "off".

    A token bucket (tbf) on the host's eth0, so it is the sender that is limited, in each direction of a pair by
    its own; what several senders together send to one host is not. Kept until the next ``link``, also
    over a restart of the host.

    Raises:
        UsageError: the rate or the host is unknown, or there is no lab.
        HostError: the limit could not be set.
    """
    if not _RATE.fullmatch(rate):
        raise UsageError(f"{rate!r} is no rate.", fix="write a whole number and kbit, mbit or gbit, or off.")
    engine = LabEngine(LabFiles(root))
    try:
        for name in engine.chosen(host):
            engine.command(name, "lab-host", "link", rate)
    finally:
        engine.close()


def status(*, root: Path) -> tuple[HostStatus, ...]:
    """Every host of the lab as it is now; empty when there is no lab. Raises HostError: no engine here."""
    engine = LabEngine(LabFiles(root))
    try:
        return tuple(_host_status(engine, name, state) for name, state in engine.hosts().items())
    finally:
        engine.close()


def _host_status(engine: LabEngine, name: str, state: str) -> HostStatus:
    if state != "running":
        return HostStatus(name, state, False, f"its container is {state}", "unknown")
    ready = engine.run(name, "lab-host", "ready")
    rate = engine.command(name, "lab-host", "rate")
    return HostStatus(name, state, ready.ok, "" if ready.ok else ready.complaint, rate)


def _names(hosts: int) -> list[str]:
    return [f"h{number}" for number in range(1, hosts + 1)]


def _start(engine: LabEngine, files: LabFiles, hosts: int, progress: Progress) -> None:
    subnet = engine.make_network()
    lab = [
        LabHost(name, str(subnet[FIRST_ADDRESS + number]), files.container(name))
        for number, name in enumerate(_names(hosts))
    ]
    login = key_pair()
    host_keys = {host.address: key_pair() for host in lab}
    files.write_keys(login, host_keys)
    progress(f"starting {', '.join(h.name for h in lab)} on {subnet}")
    deadline = time.monotonic() + READY_SECONDS
    making = Begun()

    def bring_up(host: LabHost) -> str:
        with making.work(host.name):
            engine.make_host(host, lab, login, host_keys[host.address])
        return _wait_until_ready(engine, files, host, deadline)

    try:
        versions = results(fan_out(lab, bring_up, READY_SECONDS + 30), "starting")
    except BaseException:
        # A host that is just being made would outlive the removal that follows.
        making.give_up()
        for host in lab:
            making.wait(host.name, ENGINE_SECONDS)
        raise
    files.write_cluster(lab)
    progress(f"every host answers over SSH with Docker {', '.join(sorted(set(versions.values())))}")


def _wait_until_ready(engine: LabEngine, files: LabFiles, host: LabHost, deadline: float) -> str:
    """Wait, then log in as the controller will, and return the version of the host's engine."""
    while not (ready := engine.run(host.name, "lab-host", "ready")).ok:
        if time.monotonic() > deadline:
            raise HostError(
                host.name,
                f"was not ready after {READY_SECONDS:.0f} s: {ready.complaint}",
                fix="see whether this machine is overloaded or short of memory, then try fewer hosts.",
            )
        time.sleep(_POLL_SECONDS)
    remote = RemoteHost(files.as_remote(host))
    try:
        return str(remote.api.version()["Version"])
    finally:
        remote.close()


def _remove(engine: LabEngine, files: LabFiles) -> None:
    files.remove()
    results(
        fan_out([_Named(name) for name in engine.hosts()], lambda h: engine.remove_host(h.name), DOWN_SECONDS),
        "being removed",
    )
    engine.remove_rest()
