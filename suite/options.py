"""From the texts of the command line to a plan. Every wrong text is a UsageError that names its option."""

from __future__ import annotations

import datetime
import math
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace

from suite.errors import UsageError
from suite.limits import (
    COLLECTIVES,
    FAULTS,
    KNOWN_WORKLOADS,
    LARGEST_MESSAGE,
    LEAST_STEPS,
    LONGEST_DEADLINE,
    MAX_BATCH,
    MAX_BLOCKS,
    MAX_SEED,
    MAX_STEPS,
    MAX_THREADS,
    MAX_WORLD,
    SHORTEST_DEADLINE,
    SMALLEST_MESSAGE,
    is_workload,
)
from suite.paths import is_safe_name
from suite.plan import (
    PROTOCOLS,
    Plan,
    Protocol,
    default_worlds,
    hosts_for_world,
    override_ddp,
    parse_arms,
)
from suite.records import BACKENDS, DdpOptions, HostSlots, Sweep

_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_BYTES = {
    "": 1,
    "b": 1,
    "kib": 1 << 10,
    "k": 1 << 10,
    "mib": 1 << 20,
    "m": 1 << 20,
    "gib": 1 << 30,
    "g": 1 << 30,
}


@dataclass(frozen=True)
class RunOptions:
    """The options of ``run`` and ``local`` as they were typed."""

    backend: str = "all"
    arm: Sequence[str] = ()
    workload: str = "linear"
    plan: str = "quick"
    device: str = "auto"
    world: str = ""
    blocks: str = ""
    budget: str = ""
    seed: str = ""
    threads: str = ""
    batch: str = ""
    steps: str = ""
    ddp: str = ""
    max_bytes: str = ""
    deadline: str = ""
    delta: str = ""
    inject: str = ""


def make_plan(options: RunOptions, *, cluster: str, hosts: Sequence[HostSlots], distinct_hosts: bool) -> Plan:
    """The plan that the options ask for, for these hosts.

    Raises:
        UsageError: naming the option.
    """
    ddp = _ddp(options.ddp)
    backends = [] if options.arm and options.backend == "all" else words(options.backend)
    arms = parse_arms(backends, options.arm, ddp)
    asked = () if options.backend == "all" and not options.arm else tuple(arm.name for arm in arms)
    protocol = _protocol(options)
    device = choice("--device", options.device, ("auto", "cpu", "cuda"))
    if device == "auto":
        device = "cuda" if any(host.devices for host in hosts) else "cpu"
    worlds = _worlds(options.world, hosts, protocol)
    inject, inject_arm = _inject(options.inject, [arm.name for arm in arms], max(worlds))
    return Plan(
        run="",
        name=options.plan,
        cluster=cluster,
        seed=whole("--seed", options.seed, 0, MAX_SEED) if options.seed else secrets.randbelow(MAX_SEED),
        arms=arms,
        asked=asked,
        workloads=_workloads(options.workload),
        worlds=worlds,
        hosts=tuple(hosts),
        device=device,
        protocol=protocol,
        batch_size=whole("--batch", options.batch, 1, MAX_BATCH) if options.batch else None,
        threads=whole("--threads", options.threads, 1, MAX_THREADS) if options.threads else 1,
        delta=_share("--delta", options.delta) if options.delta else 0.03,
        budget_seconds=seconds("--budget", options.budget) if options.budget else None,
        launch_deadline_seconds=_deadline(options.deadline) if options.deadline else 180.0,
        sweep=_sweep(options.max_bytes),
        inject=inject,
        inject_arm=inject_arm,
        distinct_hosts=distinct_hosts,
    )


def name_run(plan: Plan, now: datetime.datetime) -> Plan:
    """The plan with an identifier: time in UTC, so that names sort by age, and a few letters of its seed."""
    return replace(plan, run=f"{now:%Y%m%dT%H%M%SZ}-{plan.name}-{plan.seed & 0xFFFF:04x}")


def words(text: str) -> list[str]:
    """A comma-separated list, without empty members."""
    return [word.strip() for word in text.split(",") if word.strip()]


def choice(option: str, text: str, allowed: Sequence[str]) -> str:
    """One of the allowed words."""
    if text not in allowed:
        raise UsageError(f"{option} {text}: there is no such choice.", fix=f"use one of {', '.join(allowed)}.")
    return text


def whole(option: str, text: str, least: int, most: int) -> int:
    """A whole number within bounds."""
    if not re.fullmatch(r"\d{1,12}", text, re.ASCII) or not least <= int(text) <= most:
        raise UsageError(f"{option} {text}: no whole number from {least} to {most}.", fix="write one of these.")
    return int(text)


def seconds(option: str, text: str) -> float:
    """A duration such as "90s", "10m" or "1.5h"."""
    value, unit = _number_and_unit(text)
    if unit not in _SECONDS or not 0 < value < math.inf:
        raise UsageError(f"{option} {text}: not a duration.", fix="write for example 90s, 10m or 1.5h.")
    return value * _SECONDS[unit]


def _deadline(text: str) -> float:
    """Of a launch: longer than any clock that waits for it can count is no deadline."""
    value = seconds("--deadline", text)
    if not SHORTEST_DEADLINE <= value <= LONGEST_DEADLINE:
        raise UsageError(f"--deadline {text}: out of range.", fix="use a time from 1s to 168h.")
    return value


def size_bytes(option: str, text: str) -> int:
    """A size such as "64MiB" or "1G" (both powers of two)."""
    value, unit = _number_and_unit(text)
    if unit not in _BYTES or not 0 < value < math.inf:
        raise UsageError(f"{option} {text}: not a size.", fix="write for example 512KiB or 64MiB.")
    return round(value * _BYTES[unit])


def percent(option: str, text: str) -> float:
    """A share such as "5%" or "0.05"."""
    return _share(option, text)


def _number_and_unit(text: str) -> tuple[float, str]:
    match = re.fullmatch(r"(\d{1,12}(?:\.\d{1,9})?)\s*([A-Za-z]*)", text.strip(), re.ASCII)
    return (float(match.group(1)), match.group(2).lower()) if match else (math.nan, "?")


def _share(option: str, text: str) -> float:
    match = re.fullmatch(r"(\d{1,4}(?:\.\d{1,9})?)(%?)", text.strip(), re.ASCII)
    value = float(match.group(1)) / (100 if match.group(2) else 1) if match else math.nan
    if not 0 < value < 1:
        raise UsageError(f"{option} {text}: not a share between 0 and 1.", fix="write for example 5% or 0.05.")
    return value


def _ddp(text: str) -> DdpOptions:
    options = DdpOptions()
    for word in words(text):
        key, _, value = word.partition("=")
        options = override_ddp(options, key, value, "--ddp")
    return options


def _protocol(options: RunOptions) -> Protocol:
    choice("--plan", options.plan, tuple(PROTOCOLS))
    protocol = PROTOCOLS[options.plan]
    if options.steps:
        protocol = replace(protocol, steps=whole("--steps", options.steps, LEAST_STEPS, MAX_STEPS))
    if options.blocks:
        blocks = whole("--blocks", options.blocks, 1, MAX_BLOCKS)
        # An explicit number is exact: no stopping rule shortens or lengthens it.
        protocol = replace(protocol, min_blocks=blocks, max_blocks=blocks, target=None, collective_blocks=blocks)
    return protocol


def _worlds(text: str, hosts: Sequence[HostSlots], protocol: Protocol) -> tuple[int, ...]:
    if not text:
        return default_worlds(hosts, protocol.all_worlds)
    worlds = sorted({whole("--world", word, 1, MAX_WORLD) for word in words(text)})
    if not worlds:
        raise UsageError("--world names no world size.", fix="write for example 1,2,4.")
    for world in worlds:
        hosts_for_world(hosts, world)
    return tuple(worlds)


def _workloads(text: str) -> tuple[str, ...]:
    found: list[str] = []
    for word in words(text):
        if not is_workload(word):
            raise UsageError(
                f"--workload {word}: there is no such workload.",
                fix=f"use {', '.join(KNOWN_WORKLOADS)}, or package.module:function for one of yours.",
            )
        if word in found:
            raise UsageError(f"--workload names {word} twice.", fix="name it once.")
        if not is_safe_name(word.replace(":", ".")):
            raise UsageError(f"--workload {word}: the name is too long for a file name.")
        found.append(word)
    if not found:
        raise UsageError("--workload names no workload.", fix=f"use {', '.join(KNOWN_WORKLOADS)}.")
    return tuple(sorted(found, key=lambda w: w == COLLECTIVES))  # sweeps last: rows first


def _sweep(text: str) -> Sweep:
    largest = size_bytes("--max-bytes", text) if text else 16 << 20
    if not SMALLEST_MESSAGE <= largest <= LARGEST_MESSAGE:
        raise UsageError(f"--max-bytes {text}: out of range.", fix="use a size from 1KiB to 256MiB.")
    sizes = []
    size = SMALLEST_MESSAGE
    while size <= largest:
        sizes.append(size)
        size *= 4
    return Sweep(sizes_bytes=tuple(sizes))


def _inject(text: str, arms: Sequence[str], world: int) -> tuple[str | None, str | None]:
    """``KIND[@RANK][:ARM]``: by default the last rank of the first arm that runs without a GPU."""
    if not text:
        return None, None
    what, _, arm = text.partition(":")
    kind, _, rank = what.partition("@")
    choice("--inject", kind, FAULTS)
    number = whole("--inject", rank, 0, world - 1) if rank else world - 1
    default = next((name for name in arms if name != BACKENDS[0]), arms[0])
    if arm and arm not in arms:
        raise UsageError(f"--inject {text}: there is no arm {arm!r}.", fix=f"use one of {', '.join(arms)}.")
    return f"{kind}@{number}", arm or default
