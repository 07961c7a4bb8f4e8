"""What a run will do: cluster × arms × workloads × world sizes × blocks, in seeded order.

A plan is stored as ``plan.json`` and says everything that a second run needs to do the same. It names *slots*
(one launch each) rather than launches: which slots are filled depends on the stopping rule, the budget and
on interruptions, and a resumed run fills what is missing.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from suite import limits
from suite.errors import UsageError
from suite.limits import COLLECTIVES
from suite.paths import is_safe_name
from suite.policy import VARIABLES, is_settable, looks_secret
from suite.records import BACKENDS, FORMAT_VERSION, Arm, DdpOptions, HostSlots, LaunchSpec, Settings, Sweep

SINGLE_ARM = "single"
AA_ARM = "aa"


@dataclass(frozen=True)
class Protocol:
    """The numbers of one named plan (METHOD.md, "Blocks and launches").

    ``target`` is the interval half-width on ln(ratio) at which the run may stop; None never stops early.
    ``steps`` None: from the pilots. ``pilot_steps`` is how long a pilot looks for the end of warm-up.
    """

    min_blocks: int
    max_blocks: int
    target: float | None
    steps: int | None
    pilot_steps: int
    collective_blocks: int
    aa: bool = False
    all_worlds: bool = False
    article: bool = False


PROTOCOLS = {
    "quick": Protocol(3, 3, None, 30, 30, 1),
    "standard": Protocol(8, 30, math.log(1.02), None, 100, 6),
    "thorough": Protocol(8, 30, math.log(1.01), None, 100, 8, aa=True, all_worlds=True),
    "article": Protocol(8, 30, math.log(1.02), None, 100, 6, article=True),
}


@dataclass(frozen=True)
class Plan:
    """All that was asked for, resolved: no defaults are left to be filled in later.

    ``asked`` are the arms that were named by the user: such an arm costs exit 1 when it cannot run.
    ``inject`` is ``KIND@RANK``, applied to arm ``inject_arm`` only.
    """

    run: str
    name: str
    cluster: str
    seed: int
    arms: tuple[Arm, ...]
    asked: tuple[str, ...]
    workloads: tuple[str, ...]
    worlds: tuple[int, ...]
    hosts: tuple[HostSlots, ...]
    device: str
    protocol: Protocol
    batch_size: int | None = None
    threads: int = 1
    delta: float = 0.03
    budget_seconds: float | None = None
    launch_deadline_seconds: float = 180.0
    nosync_steps: int = 20
    free_steps: int = 20
    equivalence_steps: int = 10
    environment: dict[str, str] = field(default_factory=dict)
    sweep: Sweep = field(default_factory=Sweep)
    inject: str | None = None
    inject_arm: str | None = None
    distinct_hosts: bool = True
    format: int = FORMAT_VERSION

    def __post_init__(self) -> None:
        """Refuse what no command line can ask for. Raises ValueError, which a reader of files turns into its own."""
        for name in ("arms", "workloads", "worlds", "hosts"):
            if not getattr(self, name):
                raise ValueError(f"{name} is empty")
        if not 1 <= min(self.worlds) <= max(self.worlds) <= limits.MAX_WORLD:
            raise ValueError("a world size is impossible")
        limits.number("seed", self.seed, 0, limits.MAX_SEED)
        if not 0 < self.delta < 1:
            raise ValueError("delta is not between 0 and 1")
        self._refuse_unsafe_names()
        self._refuse_impossible_settings()
        self._refuse_impossible_counts()

    def _refuse_unsafe_names(self) -> None:
        """What becomes part of a file's name must not lead elsewhere: a plan may come from somebody else's bundle."""
        arms = [arm.name for arm in self.arms]
        names = [self.name, *filter(None, [self.run]), *arms, *(host.name for host in self.hosts)]
        names += [workload.replace(":", ".") for workload in self.workloads]
        for name in names:
            if not is_safe_name(name):
                raise ValueError(f"{name[:100]!r} cannot be part of a file's name")
        if len(set(arms)) < len(arms):
            raise ValueError("two arms have one name")

    def _refuse_impossible_settings(self) -> None:
        """What reaches a rank's environment, or is imported there."""
        limits.one_of("the plan's name", self.name, tuple(PROTOCOLS))
        limits.one_of("device", self.device, limits.DEVICES)
        limits.variables("the plan", self.environment)
        for host in self.hosts:
            limits.variables(f"host {host.name}", host.environment)
        for arm in self.arms:
            limits.arm(arm)
        for workload in self.workloads:
            limits.workload(workload)
        if (self.inject is None) != (self.inject_arm is None):
            raise ValueError("of inject and inject_arm there is only one")
        if self.inject is not None:
            limits.fault(self.inject, max(self.worlds))

    def _refuse_impossible_counts(self) -> None:
        """What decides how long a launch takes, and how many there are."""
        protocol, most = self.protocol, limits.MAX_STEPS
        limits.number("protocol.min_blocks", protocol.min_blocks, 1, limits.MAX_BLOCKS)
        limits.number("protocol.max_blocks", protocol.max_blocks, protocol.min_blocks, limits.MAX_BLOCKS)
        limits.number("protocol.collective_blocks", protocol.collective_blocks, 1, limits.MAX_BLOCKS)
        limits.number("protocol.pilot_steps", protocol.pilot_steps, 1, most)
        if protocol.steps is not None:
            limits.number("protocol.steps", protocol.steps, limits.LEAST_STEPS, most)
        if protocol.target is not None and not 0 < protocol.target < 1:
            raise ValueError("protocol.target is not between 0 and 1")
        for name in ("nosync_steps", "free_steps", "equivalence_steps"):
            limits.number(name, getattr(self, name), 0, most)
        if self.batch_size is not None:
            limits.number("batch_size", self.batch_size, 1, limits.MAX_BATCH)
        limits.number("threads", self.threads, 1, limits.MAX_THREADS)
        limits.number(
            "launch_deadline_seconds",
            self.launch_deadline_seconds,
            limits.SHORTEST_DEADLINE,
            limits.LONGEST_DEADLINE,
        )
        if self.budget_seconds is not None and not self.budget_seconds > 0:
            raise ValueError("budget_seconds is not above zero")
        for host in self.hosts:
            limits.number(f"slots of {host.name}", host.slots, 1, limits.MAX_WORLD)
        limits.sweep(self.sweep)


@dataclass(frozen=True)
class Slot:
    """The place of one launch in the plan; its identity across interruptions."""

    kind: str
    workload: str
    world_size: int
    block: int
    arm: str


def parse_arms(backends: Sequence[str], arms: Sequence[str], ddp: DdpOptions) -> tuple[Arm, ...]:
    """The arms of a comparison, from ``--backend`` and ``--arm``.

    Args:
        backends: names of backends, or "all".
        arms: texts ``NAME=BACKEND[,KEY=VALUE...]``; a key in capitals is an environment variable, any other a
            field of DdpOptions.
        ddp: the options of every arm that overrides none.

    Raises:
        UsageError: unknown backend, key or value, or a name used twice.
    """
    names = list(BACKENDS) if list(backends) == ["all"] else list(backends)
    for name in names:
        if name not in BACKENDS:
            raise UsageError(
                f"--backend {name}: there is no such backend.",
                fix=f"use all or some of {', '.join(BACKENDS)}.",
            )
    found = [Arm(name, name, {}, ddp) for name in names]
    found += [_parse_arm(text, ddp) for text in arms]
    seen: set[str] = set()
    for arm in found:
        if arm.name in seen or arm.name in (SINGLE_ARM, AA_ARM):
            raise UsageError(f"The arm name {arm.name!r} is taken.", fix="give each --arm a name of its own.")
        seen.add(arm.name)
    if not found:
        raise UsageError("There is nothing to compare.", fix="name at least one --backend or --arm.")
    return tuple(found)


def _parse_arm(text: str, ddp: DdpOptions) -> Arm:
    name, separator, rest = text.partition("=")
    backend, *settings = rest.split(",")
    if not separator or not name or backend not in BACKENDS or not is_safe_name(name):
        raise UsageError(
            f"--arm {text!r} is not NAME=BACKEND[,KEY=VALUE...].",
            fix='write for example --arm "gloo-100mb=gloo,bucket_mb=100".',
        )
    environment: dict[str, str] = {}
    for setting in settings:
        key, separator, value = setting.partition("=")
        if not separator or not key:
            raise UsageError(f"--arm {name}: {setting!r} is not KEY=VALUE.")
        if key[0].isupper() and not key[1:2].islower():
            if not is_settable(key) or not value.isprintable():
                raise UsageError(
                    f"--arm {name}: {setting!r} sets no variable that a record would show.",
                    fix=f"write NAME=TEXT with printable characters; names begin with {', '.join(VARIABLES)}.",
                )
            if looks_secret(key, value):
                raise UsageError(
                    f"--arm {name}: {key} gets what looks like a password, a token or a key, which would be public.",
                    fix="keep secrets out of arms: let the program read them from a file on the hosts.",
                )
            environment[key] = value
        else:
            ddp = override_ddp(ddp, key, value, f"--arm {name}")
    return Arm(name, backend, environment, ddp)


def override_ddp(ddp: DdpOptions, key: str, value: str, where: str) -> DdpOptions:
    """One DDP option changed by its text. Raises UsageError for an unknown key or a value of another type."""
    if key == "bucket_mb":
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not 0 < number <= limits.MAX_BUCKET_MB:
            raise UsageError(f"{where}: bucket_mb={value} is not a size in MiB.", fix="write for example 25.")
        return replace(ddp, bucket_mb=number)
    flags = [name for name in DdpOptions.__dataclass_fields__ if name != "bucket_mb"]
    if key not in flags:
        raise UsageError(f"{where}: there is no option {key!r}.", fix=f"use bucket_mb or {', '.join(flags)}.")
    choice = {"true": True, "1": True, "false": False, "0": False}.get(value.lower())
    if choice is None:
        raise UsageError(f"{where}: {key}={value} is neither true nor false.")
    return replace(ddp, **{key: choice})


def hosts_for_world(hosts: Sequence[HostSlots], world_size: int) -> tuple[HostSlots, ...]:
    """The hosts of one world size: as many distinct hosts as possible, evenly filled, in the file's order.

    The question is about the network between hosts, so ranks are spread before hosts are filled.

    Raises:
        UsageError: the world size does not fit, or does not divide evenly.
    """
    total = sum(host.slots for host in hosts)
    if not 1 <= world_size <= total:
        raise UsageError(
            f"--world {world_size}: the cluster has {total} slots.", fix=f"use a number from 1 to {total}."
        )
    for count in range(min(len(hosts), world_size), 0, -1):
        if world_size % count:
            continue
        slots = world_size // count
        chosen = [host for host in hosts if host.slots >= slots][:count]
        if len(chosen) == count:
            return tuple(replace(host, slots=slots, devices=host.devices[:slots]) for host in chosen)
    raise UsageError(f"--world {world_size} cannot be spread evenly over {len(hosts)} hosts.", fix="choose a multiple.")


def default_worlds(hosts: Sequence[HostSlots], all_worlds: bool) -> tuple[int, ...]:
    """Every slot at once; with ``all_worlds`` also 1 and the powers of two below."""
    total = sum(host.slots for host in hosts)
    if not all_worlds:
        return (total,)
    powers = [1 << exponent for exponent in range(total.bit_length()) if 1 << exponent < total]
    return (*powers, total)


def comparisons(plan: Plan) -> tuple[tuple[str, int], ...]:
    """Every (workload, world size) of the plan; a sweep of collectives needs at least two ranks."""
    return tuple(
        (workload, world)
        for workload in plan.workloads
        for world in plan.worlds
        if not (workload == COLLECTIVES and world < 2)
    )


def kind_of(workload: str) -> str:
    """The kind of a measured launch of that workload."""
    return COLLECTIVES if workload == COLLECTIVES else "train"


def blocks_of(plan: Plan, workload: str) -> tuple[int, int]:
    """Least and largest number of blocks. A sweep has no ratio to stop on, so its number is fixed."""
    if workload == COLLECTIVES:
        return plan.protocol.collective_blocks, plan.protocol.collective_blocks
    return plan.protocol.min_blocks, plan.protocol.max_blocks


def block_order(seed: int, key: str, block: int, arms: Sequence[str]) -> tuple[str, ...]:
    """The order of the arms in one block: balanced over blocks, shuffled with the seed.

    Blocks come in groups. With up to four arms a group holds every permutation once; with more, the rows of
    a cyclic Latin square. So each arm stands equally often in each place over a group, and in the first
    half of a group's length as nearly as a random order allows.
    """
    names = list(arms)
    if len(names) < 2:
        return tuple(names)
    if len(names) <= 4:
        orders = [list(order) for order in itertools.permutations(names)]
    else:
        orders = [names[i:] + names[:i] for i in range(len(names))]
    squares = _latin_groups(orders, names)
    group, place = divmod(block, len(orders))
    chooser = random.Random(f"{seed}/{key}/{group}")  # noqa: S311 - a stored seed is the point, not secrecy
    chooser.shuffle(squares)
    flat = []
    for square in squares:
        chooser.shuffle(square)
        flat += square
    return tuple(flat[place])


def _latin_groups(orders: list[list[str]], names: list[str]) -> list[list[list[str]]]:
    """The orders in groups of len(names) in each of which every arm stands once in each place."""
    groups: dict[tuple[str, ...], list[list[str]]] = {}
    for order in orders:
        start = order.index(names[0])
        groups.setdefault(tuple(order[start:] + order[:start]), []).append(order)
    return list(groups.values())


def block_slots(plan: Plan, workload: str, world: int, block: int, arms: Sequence[str]) -> tuple[Slot, ...]:
    """The launches of one block, in order. The one-process launch (T_1) is part of the block."""
    kind = kind_of(workload)
    names = list(arms)
    if plan.protocol.aa and kind == "train" and names:
        names.append(AA_ARM)
    order = block_order(plan.seed, f"{workload}/{world}", block, names)
    slots = [Slot(kind, workload, world, block, arm) for arm in order]
    if kind == "train" and world == max(plan.worlds):
        slots.append(Slot("single", workload, 1, block, SINGLE_ARM))
    return tuple(slots)


def arm_of(plan: Plan, name: str) -> Arm:
    """The arm of that name; the A/A arm is another arm's twin, and T_1 has no backend of its own."""
    if name == SINGLE_ARM:
        return Arm(SINGLE_ARM, "gloo", {}, plan.arms[0].ddp)
    if name == AA_ARM:
        return replace(aa_twin(plan), name=AA_ARM)
    return next(arm for arm in plan.arms if arm.name == name)


def aa_twin(plan: Plan) -> Arm:
    """The arm that the A/A arm repeats: gloo where it takes part, because it runs everywhere."""
    return next((arm for arm in plan.arms if arm.backend == "gloo"), plan.arms[0])


def block_seed(plan: Plan, slot: Slot) -> int:
    """Seed of data and weights: equal for all arms of a block, different between blocks (31 bits)."""
    key = f"{plan.seed}/{slot.workload}/{slot.block}"
    return random.Random(key).getrandbits(31)  # noqa: S311 - reproducible on purpose


def launch_spec(
    plan: Plan,
    slot: Slot,
    index: int,
    settings: Settings | None,
    *,
    master_port: int,
    output_folder: str,
) -> LaunchSpec:
    """The specification of one launch, complete but for ``host``, which each host gets as its own."""
    arm = arm_of(plan, slot.arm)
    hosts = hosts_for_world(plan.hosts, slot.world_size)
    steps, warmup = _step_counts(plan, slot, settings)
    return LaunchSpec(
        run=plan.run,
        launch=f"{index:04d}-{slot.workload.replace(':', '.')}-{arm.name}",
        index=index,
        kind=slot.kind,
        arm=arm,
        workload=slot.workload,
        batch_size=plan.batch_size,
        device=plan.device,
        world_size=slot.world_size,
        hosts=hosts,
        block=slot.block,
        seed=block_seed(plan, slot),
        warmup_steps=warmup,
        steps=steps,
        nosync_steps=plan.nosync_steps if slot.kind == "train" else 0,
        free_steps=plan.free_steps if slot.kind == "train" else 0,
        equivalence_steps=plan.equivalence_steps if slot.kind == "train" else 0,
        threads=plan.threads,
        master_address=hosts[0].address,
        master_port=master_port,
        deadline_seconds=plan.launch_deadline_seconds,
        output_folder=output_folder,
        distinct_hosts=plan.distinct_hosts and len(hosts) > 1,
        environment={**plan.environment, **arm.environment},
        sweep=plan.sweep if slot.kind == COLLECTIVES else None,
        inject=plan.inject if slot.arm == plan.inject_arm and slot.kind == "train" else None,
    )


def _step_counts(plan: Plan, slot: Slot, settings: Settings | None) -> tuple[int, int]:
    if slot.kind == "pilot":
        return plan.protocol.pilot_steps, 0
    if slot.kind == "article":
        return 10, 0
    if slot.kind == COLLECTIVES:
        return 0, 0
    if settings is None:
        raise UsageError(f"No pilot decided the warm-up of {slot.workload}.")  # a bug in the campaign
    return settings.steps, settings.warmup_steps
