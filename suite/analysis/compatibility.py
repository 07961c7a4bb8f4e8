"""Which facts must be equal before two sets of launches may be compared, and which do not fit together.

The lists are ``suite.policy``'s. A fact is compared rank by rank, so that two hosts may differ from each other as
long as each is the same for both sides. What is unknown on one side is not equal, and not proof of a difference
either: it becomes a warning.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import statistics
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from suite.analysis.environment import identity
from suite.plan import Plan
from suite.policy import POLICY
from suite.records import RankRecord

Place = tuple[str, int]  # host and rank
Facts = Mapping[str, Mapping[Place, tuple[Any, ...]]]  # fact -> place -> the distinct values seen there, in order

REFUSE = (
    *(name for name, policy in POLICY.items() if policy == "refuse"),
    "gradient_bytes",
    "buckets_bytes",
)
WARN = tuple(name for name, policy in POLICY.items() if policy == "warn")
# Momentary facts never repeat exactly. Their medians may differ by so much (absolute, relative) without a word.
TOLERANCES: tuple[tuple[str, float, float], ...] = (
    ("temperature", 8.0, 0.0),
    ("_mhz_", 0.0, 0.05),
    ("_watts_", 10.0, 0.1),
    ("memory_", 0.0, 0.01),
)
# The load of the last minute is the trace of the launch before; the first block's is checked against a limit.
NOT_COMPARED = ("load_before", "load_after")


@dataclass(frozen=True)
class Difference:
    """One fact that differs: its name, and the values of each side at the first place where they do."""

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


def facts_of(records: Iterable[RankRecord]) -> Facts:
    """All facts of some launches that could matter, by rank: the environment's, and what was trained."""
    seen: dict[str, dict[Place, dict[str, Any]]] = defaultdict(lambda: defaultdict(dict))
    for record in records:
        place = (record.host, record.rank)
        for key, value in {**_trained(record), **record.environment}.items():
            if value is not None:
                seen[key][place][identity(value)] = value
    return {
        key: {place: tuple(values[text] for text in sorted(values)) for place, values in places.items()}
        for key, places in seen.items()
    }


def is_varied(name: str, vary: Collection[str]) -> bool:
    """Whether a fact is what a comparison is about: named itself, or by the group it belongs to ("torch")."""
    return any(name == wanted or name.startswith(f"{wanted}_") for wanted in vary)


def _trained(record: RankRecord) -> dict[str, Any]:
    """What the environment's facts do not repeat; of a launch that failed early, less is known."""
    facts = record.facts
    known: dict[str, Any] = {"world_size": record.world_size, "workload": record.workload}
    if facts.parameters:
        known |= {
            "parameters": facts.parameters,
            "gradient_bytes": facts.gradient_bytes,
            "batch_size": facts.batch_size,
            "dtype": facts.dtype,
        }
    return {**known, "buckets_bytes": list(facts.buckets_bytes)} if facts.buckets_bytes else known


def differences(left: Facts, right: Facts, exempt: Iterable[str] = ()) -> Differences:
    """Compare two sides fact by fact. What must be equal must not have changed within a side either.

    Args:
        exempt: facts that may differ because they are the question.
    """
    left_out = {*exempt, *NOT_COMPARED}
    refusing: list[Difference] = []
    warning: list[Difference] = []
    unknown: list[str] = []
    for key in (*REFUSE, *WARN):
        if key in left_out:
            continue
        a, b = left.get(key, {}), right.get(key, {})
        if bool(a) != bool(b):
            unknown.append(key)
        difference = _first_difference(key, a, b)
        if difference is not None:
            (refusing if key in REFUSE else warning).append(difference)
    return Differences(tuple(refusing), tuple(warning), tuple(unknown))


def _first_difference(
    key: str, a: Mapping[Place, tuple[Any, ...]], b: Mapping[Place, tuple[Any, ...]]
) -> Difference | None:
    for place in sorted(set(a) & set(b)):
        # Launches of one side that differ among themselves were not measured under one condition: no value of theirs
        # can be equal to another side's, whatever it is.
        mixed = POLICY.get(key) == "refuse" and len(a[place]) > 1
        if mixed or not _equal(key, a[place], b[place]):
            return Difference(key, _shown(a[place]), _shown(b[place]), f"{place[0]}, rank {place[1]}")
    if a and b and not set(a) & set(b):  # not one rank on the same host: all hosts are others
        left, right = (tuple(value for values in side.values() for value in values) for side in (a, b))
        if {json.dumps(v) for v in left} != {json.dumps(v) for v in right}:
            return Difference(key, _shown(left), _shown(right), "all hosts")
    return None


def _equal(key: str, a: tuple[Any, ...], b: tuple[Any, ...]) -> bool:
    tolerance = next(((absolute, relative) for part, absolute, relative in TOLERANCES if part in key), None)
    if tolerance is None or not all(isinstance(value, (int, float)) for value in (*a, *b)):
        return a == b
    left, right = statistics.median(a), statistics.median(b)
    return bool(abs(left - right) <= max(tolerance[0], tolerance[1] * max(abs(left), abs(right))))


def _shown(values: tuple[Any, ...]) -> str:
    texts = [json.dumps(value, ensure_ascii=False) for value in values[:3]]
    texts = [text if len(text) <= 60 else text[:57] + "..." for text in texts]
    return " or ".join(texts) + (" or others" if len(values) > 3 else "")


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
    between = {(a, b): differences(facts[a], facts[b], exempt) for a, b in itertools.combinations(arms, 2)}

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
            exempt |= {f"ddp_{key}", "buckets_bytes"}
    if any("OMP_NUM_THREADS" in arm.environment for arm in plan.arms):
        exempt |= {"omp_num_threads", "threads"}
    return exempt
