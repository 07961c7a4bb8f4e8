"""Which facts must be equal before two sets of launches may be compared, and which do not fit together.

The lists are ``suite.policy``'s. A fact is compared rank by rank, so that two hosts may differ from each other as
long as each is the same for both sides. What is unknown on one side is not equal, and not proof of a difference
either: it becomes a warning.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from suite.plan import Plan
from suite.records import DdpOptions, RankRecord

Place = tuple[str, int]  # host and rank
Facts = Mapping[str, Mapping[Place, frozenset[str]]]  # fact -> place -> every value seen there, as JSON


@dataclass(frozen=True)
class Difference:
    """One fact that differs: its name, and a value of each side where they differ (JSON text)."""

    field: str
    left: str
    right: str
    place: str

    def __str__(self) -> str:
        return f"{self.field} ({self.left} against {self.right} on {self.place})"


@dataclass(frozen=True)
class Differences:
    """What stands between two sides: ``refusing`` forbids the comparison, ``warning`` is said beside it."""

    refusing: tuple[Difference, ...] = ()
    warning: tuple[Difference, ...] = ()
    unknown: tuple[str, ...] = ()  # facts that only one side knows

    @property
    def fields(self) -> tuple[str, ...]:
        return tuple(difference.field for difference in self.refusing)


# Facts that every record has outside its environment, and facts of the run as a whole.
TRAINED_FIELDS = (
    "rank_map",
    "world_size",
    "device",
    "workload",
    "workload.parameters",
    "workload.parameter_bytes",
    "workload.gradient_bytes",
    "workload.buckets_bytes",
    "workload.batch_size",
    "workload.dtype",
)
RUN_FIELDS = ("suite.version", "timing.warmup_steps", *(f"ddp.{name}" for name in DdpOptions.__dataclass_fields__))
REFUSE: tuple[str, ...] = ()
WARN: tuple[str, ...] = ()


def facts_of(records: Iterable[RankRecord], of_run: Mapping[str, Any] | None = None) -> Facts:
    """All facts of some launches that could matter, by rank: the environment's, and what was trained.

    Args:
        of_run: facts that hold for every rank, such as the warm-up; unknown ones are None.
    """
    seen: dict[str, dict[Place, set[str]]] = defaultdict(lambda: defaultdict(set))
    for record in records:
        place = (record.host, record.rank)
        for key, value in {**record.environment, **_trained(record), **(of_run or {})}.items():
            if value is not None:
                seen[key][place].add(json.dumps(value, sort_keys=True))
    return {key: {place: frozenset(v) for place, v in places.items()} for key, places in seen.items()}


def refusing_fields() -> tuple[str, ...]:
    """Names of all facts that must be equal."""
    return (*REFUSE, *TRAINED_FIELDS, *RUN_FIELDS)


def is_varied(name: str, vary: Collection[str]) -> bool:
    """Whether a fact is what a comparison is about: named itself, or by the group it belongs to ("torch")."""
    return any(name == wanted or name.startswith((f"{wanted}.", f"{wanted}_")) for wanted in vary)


def _trained(record: RankRecord) -> dict[str, Any]:
    facts = record.facts
    return {
        "rank_map": [record.rank, record.local_rank, record.host],
        "world_size": record.world_size,
        "device": record.device,
        "workload": record.workload,
        "workload.parameters": facts.parameters,
        "workload.parameter_bytes": facts.parameter_bytes,
        "workload.gradient_bytes": facts.gradient_bytes,
        "workload.buckets_bytes": list(facts.buckets_bytes),
        "workload.batch_size": facts.batch_size,
        "workload.dtype": facts.dtype,
    }


def differences(
    left: Facts, right: Facts, refuse: Sequence[str], warn: Sequence[str], exempt: Iterable[str] = ()
) -> Differences:
    """Compare two sides fact by fact.

    Args:
        refuse, warn: names of facts.
        exempt: facts that may differ because they are the question.
    """
    left_out = set(exempt)
    refusing, warning, unknown = [], [], []
    for key in dict.fromkeys([*refuse, *warn]):
        if key in left_out:
            continue
        a, b = left.get(key, {}), right.get(key, {})
        if bool(a) != bool(b):
            unknown.append(key)
        difference = _first_difference(key, a, b)
        if difference is not None:
            (refusing if key in refuse else warning).append(difference)
    return Differences(tuple(refusing), tuple(warning), tuple(unknown))


def _first_difference(
    key: str, a: Mapping[Place, frozenset[str]], b: Mapping[Place, frozenset[str]]
) -> Difference | None:
    for place in sorted(set(a) & set(b)):
        if a[place] != b[place]:
            left, right = (", ".join(sorted(side[place])) for side in (a, b))
            return Difference(key, left, right, f"{place[0]}, rank {place[1]}")
    if a and b and not set(a) & set(b):  # not one rank on the same host: all hosts are others
        left, right = (", ".join(sorted(set().union(*side.values()))[:4]) for side in (a, b))
        if left != right:
            return Difference(key, left, right, "all hosts")
    return None


@dataclass(frozen=True)
class Groups:
    """``ranked``: the arms that may be ranked against each other; ``reasons``: arm → why it is not, or a caveat."""

    ranked: list[str]
    reasons: dict[str, list[str]]


def group_arms(arms: Sequence[str], records: Mapping[str, Sequence[RankRecord]], plan: Plan) -> Groups:
    """Split arms into those that may be ranked together and the rest, with the fields that stand between.

    The largest group of arms without a refusing difference is ranked; of equal ones that of the first arm.
    """
    facts = {arm: facts_of(records[arm]) for arm in arms}
    exempt = exempt_by_arms(plan)
    between = {
        (a, b): differences(facts[a], facts[b], refusing_fields(), WARN, exempt) for a, b in itertools.combinations(arms, 2)
    }

    def apart(a: str, b: str) -> Differences:
        return between.get((a, b)) or between.get((b, a)) or Differences()

    best: list[str] = []
    for arm in arms:
        group: list[str] = []
        for other in [arm, *(x for x in arms if x != arm)]:
            if all(not apart(other, member).refusing for member in group):
                group.append(other)
        if len(group) > len(best):
            best = group
    reasons: dict[str, list[str]] = defaultdict(list)
    for arm in arms:
        if arm in best:
            continue
        found = next(apart(arm, member) for member in best if apart(arm, member).refusing)
        member = next(m for m in best if apart(arm, m).refusing)
        named = "; ".join(map(str, found.refusing[:4]))
        more = f" and {len(found.refusing) - 4} more" if len(found.refusing) > 4 else ""
        reasons[arm].append(
            f"{arm} is not ranked against {member}: they differ in {named}{more}. Make these equal, or say with"
            " --arm that the difference is the question."
        )
    for (a, b), found in between.items():
        if found.warning:
            named = "; ".join(map(str, found.warning[:3]))
            reasons[b].append(f"{a} and {b} differ in {named}.")
        if found.unknown:
            reasons[b].append(
                f"Known for only one of {a} and {b}: {', '.join(found.unknown[:6])}. Unknown is not equal."
            )
    return Groups([arm for arm in arms if arm in best], dict(reasons))


def exempt_by_arms(plan: Plan) -> set[str]:
    """Facts that arms of this plan change on purpose: their DDP options and the buckets that follow from them."""
    exempt = set()
    options = [dataclasses.asdict(arm.ddp) for arm in plan.arms]
    for key in options[0] if options else ():
        if len({json.dumps(option[key]) for option in options}) > 1:
            exempt |= {f"ddp.{key}", "workload.buckets_bytes"}
    for name in {name for arm in plan.arms for name in arm.environment}:
        if len({arm.environment.get(name) for arm in plan.arms}) > 1:
            exempt |= {f"env.{name}", name, "variables"}
    return exempt
