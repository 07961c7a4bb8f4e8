"""Checks of hosts with NVIDIA GPUs, from what ``nvidia-smi`` and the container toolkit say.

Not run here: this was written from nvidia-smi's documented output and is tested on texts of that form; no host
with a GPU has been checked with it yet.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from suite.cluster.engine import Engine
from suite.cluster.findings import Finding, fail, ok, skipped, warn
from suite.cluster.inventory import Cluster, Host
from suite.console import printable
from suite.numerals import natural, version_numbers
from suite.policy import GPU_IDLE_BYTES

QUERY_SECONDS = 30.0
_POWER_FIX = "set the limit the same on every host (`sudo nvidia-smi -pl`)"
_PERSISTENCE_FIX = "switch persistence mode on (`sudo nvidia-smi -pm 1`)"
# CUDA 11.8 on GeForce cards: NVIDIA's release notes ask for driver 520.61.05 on Linux.
OLDEST_DRIVER = "520.61.05"
_FIELDS = (
    "index,uuid,name,driver_version,persistence_mode,power.limit,power.default_limit,"
    "memory.total,memory.used,utilization.gpu"
)
QUERY = ["nvidia-smi", f"--query-gpu={_FIELDS}", "--format=csv,noheader,nounits"]
APPS = ["nvidia-smi", "--query-compute-apps=gpu_uuid,pid,process_name,used_memory", "--format=csv,noheader,nounits"]
TOPOLOGY = ["nvidia-smi", "topo", "-m"]
PEERS = ["nvidia-smi", "topo", "-p2p", "r"]  # whether one card may read another's memory
IN_CONTAINER = ["nvidia-smi", "-L"]
# The forward-compatibility driver, when the loader would take it, makes GeForce cards fail with error 804.
COMPAT = ["sh", "-c", 'ldconfig -p | grep -F /compat/libcuda.so; printf "%s\\n" "$LD_LIBRARY_PATH"']
BUSY_PERCENT = 10.0
CHECKS = ("gpu driver", "gpu model", "gpu toolkit", "gpu idle", "gpu power", "gpu links", "gpu compat")


@dataclass(frozen=True)
class Gpu:
    """One card. Powers in watts, memory in MiB; None where nvidia-smi says [N/A] or the like."""

    index: int
    uuid: str
    name: str
    driver: str
    persistence: bool | None
    power_limit: float | None
    default_limit: float | None
    memory_total: float | None
    memory_used: float | None
    utilization: float | None


@dataclass(frozen=True)
class Process:
    """A process that computes on a card."""

    uuid: str
    pid: int
    name: str
    memory: float | None


@dataclass(frozen=True)
class GpuFacts:
    """What one host said of its GPUs. ``problem`` says why there is nothing; None fields were not asked."""

    problem: str = ""
    cards: tuple[Gpu, ...] = ()
    processes: tuple[Process, ...] = ()
    links: tuple[tuple[str, str, str], ...] = ()  # (card, card, kind of link)
    peers: tuple[tuple[str, str, str], ...] = ()  # (card, card, "OK" or why there is no peer access)
    runtimes: tuple[str, ...] = ()
    cdi: bool = False  # the engine has found NVIDIA's devices described as CDI (Container Device Interface)
    seen_in_container: tuple[str, ...] | None = None  # UUIDs
    compat: str = ""


def ask(remote: Engine, host: Host, info: Mapping[str, Any], container: str | None) -> GpuFacts:
    """Ask a host. Raises HostError when it does not answer."""
    query = remote.run(QUERY, QUERY_SECONDS)
    if not query.ok:
        return GpuFacts(problem=printable(query.complaint))
    inside: tuple[str, ...] | None = None
    compat = ""
    if container is not None:
        listed = remote.exec_run(container, IN_CONTAINER)
        inside = parse_list(listed.stdout.decode(errors="replace")) if listed.ok else ()
        compat = remote.exec_run(container, COMPAT).text
    several = len(host.devices) != 1  # a host that lists none gives its container all it has

    def pairs(command: list[str]) -> tuple[tuple[str, str, str], ...]:
        return parse_topology(remote.run(command, QUERY_SECONDS).stdout.decode(errors="replace")) if several else ()

    return GpuFacts(
        cards=parse_cards(query.stdout.decode(errors="replace")),
        processes=parse_processes(remote.run(APPS, QUERY_SECONDS).stdout.decode(errors="replace")),
        links=pairs(TOPOLOGY),
        peers=pairs(PEERS),
        runtimes=tuple(info.get("Runtimes") or ()),
        cdi=_has_cdi(info),
        seen_in_container=inside,
        compat=compat,
    )


def _has_cdi(info: Mapping[str, Any]) -> bool:
    """Whether `docker info` (28.2 and newer) lists an NVIDIA GPU among the devices that it has found."""
    found = info.get("DiscoveredDevices") or ()
    return any(str(device.get("ID", "")).startswith("nvidia.com/gpu=") for device in found if isinstance(device, dict))


def _rows(text: str) -> Iterator[list[str]]:
    for row in csv.reader(printable(text).splitlines(), skipinitialspace=True):
        yield [cell.strip() for cell in row]


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def parse_cards(text: str) -> tuple[Gpu, ...]:
    """The cards in the answer to ``QUERY``; lines that are no card are left out."""
    cards = []
    for row in _rows(text):
        if len(row) == len(_FIELDS.split(",")) and (index := natural(row[0])) is not None:
            persistence = {"Enabled": True, "Disabled": False}.get(row[4])
            cards.append(Gpu(index, row[1], row[2], row[3], persistence, *map(_number, row[5:])))
    return tuple(cards)


def parse_processes(text: str) -> tuple[Process, ...]:
    """The processes in the answer to ``APPS``. A process's name may hold commas."""
    found = []
    for row in _rows(text):
        if len(row) >= 4 and (pid := natural(row[1])) is not None:
            found.append(Process(row[0], pid, ", ".join(row[2:-1]), _number(row[-1])))
    return tuple(found)


def parse_list(text: str) -> tuple[str, ...]:
    """The UUIDs in the answer to ``nvidia-smi -L``."""
    return tuple(re.findall(r"\(UUID: ((?:GPU|MIG)-[0-9a-fA-F-]+)\)", text))


def parse_topology(text: str) -> tuple[tuple[str, str, str], ...]:
    """Pairs of cards and how they are linked (NV#, PIX, PXB, PHB, NODE, SYS), from ``nvidia-smi topo -m``.

    ``nvidia-smi topo -p2p r`` has the same form; it says whether a pair has peer access (OK, CNS, GNS, TNS, NS, U).
    """
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    header: list[str] = []
    links = []
    for line in plain.splitlines():
        words = line.split()
        if not header:
            header = [word for word in words if re.fullmatch(r"GPU[0-9]{1,4}", word)]
        elif words and re.fullmatch(r"GPU[0-9]{1,4}", words[0]):
            for other, kind in zip(header, words[1:], strict=False):
                if int(words[0][3:]) < int(other[3:]):
                    links.append((words[0], other, kind))
    return tuple(links)


def wanted(host: Host, facts: GpuFacts) -> tuple[Gpu, ...]:
    """The cards of the host that the cluster file lists; all of them when it lists none."""
    if not host.devices:
        return facts.cards
    return tuple(card for card in facts.cards if str(card.index) in host.devices or card.uuid in host.devices)


def judge(cluster: Cluster, facts: Mapping[str, GpuFacts | None]) -> list[Finding]:
    """The findings of all GPU checks, for the hosts that answered."""
    known = {name: answer for name, answer in facts.items() if answer is not None}
    drivers = Counter(card.driver for answer in known.values() for card in answer.cards[:1])
    listed = [card for host in cluster.hosts if host.name in known for card in wanted(host, known[host.name])]
    models = Counter(card.name for card in listed)
    power = _limits(listed)
    findings: list[Finding] = []
    for host in cluster.hosts:
        if host.name not in known:
            continue
        answer = known[host.name]
        if answer.problem or not answer.cards:
            cause = f"nvidia-smi says: {answer.problem or 'no card'}."
            findings.append(
                fail(host.name, "gpu driver", "none", cause, "install NVIDIA's driver there, and load it (reboot).")
            )
            findings += [skipped(host.name, check, "gpu driver failed") for check in CHECKS[1:]]
            continue
        findings += [
            _driver(host, answer, drivers),
            _model(host, answer, models),
            _toolkit(host, answer),
            _idle(host, answer),
            _power(host, answer, power),
            _links(host, answer),
            _compat(host, answer),
        ]
    return findings


def _driver(host: Host, facts: GpuFacts, drivers: Counter[str]) -> Finding:
    version = facts.cards[0].driver
    if version_numbers(version) < version_numbers(OLDEST_DRIVER):
        cause = f"driver {version} is older than {OLDEST_DRIVER}, which CUDA 11.8 needs."
        return fail(host.name, "gpu driver", version, cause, "install a newer driver there.")
    common = drivers.most_common(1)[0][0]
    if len(drivers) > 1 and (version != common or drivers[common] * 2 <= sum(drivers.values())):
        others = ", ".join(sorted(other for other in drivers if other != version))
        cause = f"its driver is {version}, other hosts have {others}."
        return fail(host.name, "gpu driver", version, cause, "install the same driver on every host.")
    return ok(host.name, "gpu driver", version)


def _model(host: Host, facts: GpuFacts, models: Counter[str]) -> Finding:
    cards = wanted(host, facts)
    missing = [d for d in host.devices if all(d not in (str(card.index), card.uuid) for card in facts.cards)]
    if missing:
        there = ", ".join(f"{card.index} ({card.uuid})" for card in facts.cards)
        cause = f"there is no device {', '.join(missing)}; there are {there}."
        return fail(host.name, "gpu model", "missing", cause, "correct devices in the cluster file.")
    names = Counter(card.name for card in cards)
    seen = ", ".join(f"{count}× {name}" if count > 1 else name for name, count in names.items())
    if len(models) > 1:
        cause = f"the cards differ: {seen} here, {', '.join(sorted(models))} in all; the slowest sets the pace."
        return warn(host.name, "gpu model", seen, cause, "list equal cards only (devices).")
    return ok(host.name, "gpu model", seen)


def _toolkit(host: Host, facts: GpuFacts) -> Finding:
    fix = "install the NVIDIA Container Toolkit there, `sudo nvidia-ctk runtime configure`, restart Docker."
    if facts.seen_in_container is not None:
        expected = {card.uuid for card in wanted(host, facts)}
        if set(facts.seen_in_container) == expected:
            return ok(host.name, "gpu toolkit", f"{len(expected)} in the container")
        cause = f"the container sees {len(facts.seen_in_container)} of the {len(expected)} cards that it should."
        return fail(host.name, "gpu toolkit", "wrong cards", cause, "run `fab deploy --force`; else " + fix)
    if "nvidia" in facts.runtimes:
        return ok(host.name, "gpu toolkit", "configured")
    if facts.cdi:
        cause = (
            "Docker has no runtime nvidia, only CDI's description of the cards, which not every version takes for it."
        )
        return warn(host.name, "gpu toolkit", "CDI only", cause, "where `fab deploy` fails, " + fix)
    cause = "Docker has no runtime nvidia, and no card is described to it by CDI."
    return fail(host.name, "gpu toolkit", "missing", cause, fix)


def _idle(host: Host, facts: GpuFacts) -> Finding:
    cards = {card.uuid: card for card in wanted(host, facts)}
    for process in facts.processes:
        if process.uuid in cards:
            memory = f", {process.memory:.0f} MiB" if process.memory is not None else ""
            cause = f"{process.name} (process {process.pid}{memory}) computes on device {cards[process.uuid].index}."
            return fail(host.name, "gpu idle", "in use", cause, "end it, or wait until it is done.")
    busy = [card for card in cards.values() if (card.utilization or 0) > BUSY_PERCENT]
    if busy:
        cause = f"device {busy[0].index} is {busy[0].utilization:.0f}% busy with something that is no computation."
        return warn(host.name, "gpu idle", "busy", cause, "end what draws on it (a desktop session, for one).")
    held = [card for card in cards.values() if (card.memory_used or 0) > GPU_IDLE_BYTES >> 20]
    if held:
        cause = (
            f"device {held[0].index} has {held[0].memory_used:.0f} MiB in use, and no process is seen to compute on it."
        )
        return warn(
            host.name, "gpu idle", "held", cause, "end what has it open: a desktop session, a process left over."
        )
    return ok(host.name, "gpu idle", "idle")


def _power(host: Host, facts: GpuFacts, everywhere: set[float]) -> Finding:
    cards = wanted(host, facts)
    limits = _watts(_limits(cards))
    lowered = [
        card
        for card in cards
        if card.power_limit is not None and card.default_limit is not None and card.power_limit < card.default_limit
    ]
    wrong = []  # cause and fix; a limit that is lowered on purpose must not hide what else is wrong
    if lowered:
        card = lowered[0]
        watts, default = card.power_limit, card.default_limit
        wrong.append(
            (f"the power limit of device {card.index} is {watts:.0f} W, its default {default:.0f} W", _POWER_FIX)
        )
    elif len(everywhere) > 1:  # cards of one model come with different limits of their makers
        wrong.append((f"the power limits differ: {limits} here, {_watts(everywhere)} in all", _POWER_FIX))
    if any(card.persistence is False for card in cards):
        wrong.append(("persistence mode is off: the first use of a card takes seconds more", _PERSISTENCE_FIX))
    if wrong:
        causes, fixes = zip(*wrong, strict=True)
        return warn(host.name, "gpu power", limits, "; ".join(causes) + ".", "; ".join(fixes) + ".")
    return ok(host.name, "gpu power", limits or "unknown")


def _limits(cards: Iterable[Gpu]) -> set[float]:
    return {card.power_limit for card in cards if card.power_limit is not None}


def _watts(limits: set[float]) -> str:
    return ", ".join(f"{limit:.0f} W" for limit in sorted(limits))


def _links(host: Host, facts: GpuFacts) -> Finding:
    if len(wanted(host, facts)) < 2:
        return ok(host.name, "gpu links", "one card")
    indices = {f"GPU{card.index}" for card in wanted(host, facts)}
    kinds = Counter(kind for one, other, kind in facts.links if {one, other} <= indices)
    if not kinds:
        return warn(host.name, "gpu links", "unknown", "`nvidia-smi topo -m` shows no links between the cards.")
    seen = ", ".join(f"{count}× {kind}" for kind, count in kinds.most_common())
    access = [state for one, other, state in facts.peers if {one, other} <= indices]
    if access:
        seen += f"; peer access: {access.count('OK')} of {len(access)} pairs"
    return ok(host.name, "gpu links", seen)


def _compat(host: Host, facts: GpuFacts) -> Finding:
    if facts.seen_in_container is None:
        return skipped(host.name, "gpu compat", "not deployed yet")
    if "/compat" in facts.compat and any("GeForce" in card.name for card in wanted(host, facts)):
        cause = "the image's library path holds CUDA's forward-compatibility driver; GeForce refuses it (error 804)."
        fix = "remove /usr/local/cuda/compat from the image's library path and build it again."
        return fail(host.name, "gpu compat", "in the way", cause, fix)
    return ok(host.name, "gpu compat", "not in the way")
