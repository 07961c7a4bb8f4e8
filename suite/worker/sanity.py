"""Before anything is timed: is this the launch that was planned, on the hosts and devices that were meant?"""

from __future__ import annotations

import os
import socket
from collections import Counter
from dataclasses import dataclass

import torch

from suite.errors import LaunchError
from suite.records import LaunchSpec
from suite.worker.device import Device
from suite.worker.groups import Groups
from suite.worker.machine import read_text
from suite.worker.recorder import Recorder


@dataclass(frozen=True)
class Place:
    """Where one rank runs: host, device, threads, usable CPUs, torch.

    ``machine`` is the machine's own name and its kernel's boot ID: cloned servers may share a name, simulated
    hosts share a kernel, but not both.
    """

    host: str
    machine: str
    device: str
    threads: int
    cpus: int
    torch: str


def check(spec: LaunchSpec, device: Device, groups: Groups, recorder: Recorder) -> None:
    """Compare what all ranks say with the plan.

    Raises:
        LaunchError: another world size, a rank on the wrong host, two hosts that are one machine, two ranks on
            one device, unequal threads or torch versions. Every rank raises the same.
    """
    if groups.world_size != spec.world_size:
        raise LaunchError(f"World size {groups.world_size} was started, {spec.world_size} was planned.")
    mine = Place(
        host=spec.host,
        machine=f"{socket.gethostname()} {read_text('/proc/sys/kernel/random/boot_id') or ''}",
        device=device.identity,
        threads=torch.get_num_threads(),
        cpus=len(os.sched_getaffinity(0)),
        torch=torch.__version__,
    )
    places: list[Place] = groups.gather(mine)
    planned = [host.name for host in spec.hosts for _ in range(host.slots)]
    found = [place.host for place in places]
    if found != planned:
        raise LaunchError(f"Ranks 0 to {len(found) - 1} run on {', '.join(found)}; planned: {', '.join(planned)}.")
    _check_machines(spec, places)
    _check_equal(places)
    _check_devices(spec, device, places, recorder)
    for text in (*_unequal_cpus(places), *_oversubscription(places)):
        recorder.warn(text)


def _check_machines(spec: LaunchSpec, places: list[Place]) -> None:
    if not spec.distinct_hosts:
        return
    names: dict[str, set[str]] = {}
    for place in places:
        names.setdefault(place.machine, set()).add(place.host)
    for machine, hosts in names.items():
        if len(hosts) > 1:
            raise LaunchError(
                f"Hosts {', '.join(sorted(hosts))} are one machine, {machine.split()[0]};"
                " distinct hosts were asked for.",
                fix="correct the addresses in the cluster file.",
            )


def _check_equal(places: list[Place]) -> None:
    for what in ("threads", "torch"):
        values = [str(getattr(place, what)) for place in places]
        if len(set(values)) > 1:
            listed = ", ".join(f"rank {rank} has {value}" for rank, value in enumerate(values))
            raise LaunchError(f"The ranks' {what} differ: {listed}.", fix="use one image and one setting everywhere.")


def _check_devices(spec: LaunchSpec, device: Device, places: list[Place], recorder: Recorder) -> None:
    if device.kind != "cuda":
        return
    meant = {(host.name, name): count for host in spec.hosts for name, count in Counter(host.devices).items()}
    shared_on_purpose = any(count > 1 for count in meant.values())
    for (host, name), count in Counter((place.host, place.device) for place in places).items():
        if count == 1:
            continue
        if not shared_on_purpose:
            raise LaunchError(
                f"{count} ranks share {name} on {host}; one rank per device was planned.",
                fix="give each slot of the host a device of its own in the cluster file.",
            )
        recorder.warn(f"{count} ranks share one GPU on {host}: these times are not comparable.")


def _unequal_cpus(places: list[Place]) -> list[str]:
    """A warning where the ranks may use different numbers of CPUs: bound by a launcher, or on unequal hosts."""
    if len({place.cpus for place in places}) == 1:
        return []
    listed = ", ".join(f"rank {rank} may use {place.cpus}" for rank, place in enumerate(places))
    return [f"The ranks' numbers of CPUs differ: {listed}."]


def _oversubscription(places: list[Place]) -> list[str]:
    """One warning for each machine with more threads than usable CPUs; the machine's name says which."""
    texts = []
    for machine in sorted({place.machine for place in places}):
        ranks = [place for place in places if place.machine == machine]
        threads = sum(place.threads for place in ranks)
        cpus = max(place.cpus for place in ranks)
        if threads > cpus:
            texts.append(
                f"{len(ranks)} ranks with {threads} threads on {cpus} cores of {machine.split()[0]}: oversubscribed."
            )
    return texts
