"""Which arms of a comparison gave right results: the gate of every launch, and losses across arms.

A wrong result is shown and never ranked. Where arms disagree in their losses, those that the majority does not
agree with are wrong; with no majority, all that disagree are, because nothing tells which one is right.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from suite.analysis.load import LaunchData
from suite.plan import AA_ARM
from suite.summary import EquivalenceResult

LOSS_TOLERANCE = 1e-5  # relative, on each of the first losses of each rank

Losses = Mapping[int, Sequence[float]]  # rank -> its first losses


@dataclass(frozen=True)
class Disagreement:
    """The first loss in which two launches of one block differ by more than the tolerance."""

    rank: int
    step: int
    left: float
    right: float

    def __str__(self) -> str:
        if math.isnan(self.left + self.right):
            return f"rank {self.rank}, step {self.step}: a loss is there for one of the two only"
        relative = abs(self.left - self.right) / max(abs(self.left), abs(self.right))
        return (
            f"rank {self.rank}, step {self.step}: {self.left:.8g} against {self.right:.8g},"
            f" relative {relative:.1e} > {LOSS_TOLERANCE:.0e}"
        )


def gate_failures(launches: Sequence[LaunchData]) -> dict[str, str]:
    """Arm → what its gate saw, for each arm of which any rank of any launch failed the gate."""
    found: dict[str, str] = {}
    for launch in launches:
        failed = [rank for rank in launch.ranks if rank.equivalence.status == "fail"]
        if failed and launch.outcome.arm not in found:
            first = failed[0]
            others = f" and {len(failed) - 1} more" if len(failed) > 1 else ""
            found[launch.outcome.arm] = (
                f"equivalence gate failed in {launch.outcome.launch}, rank {first.rank} on {first.host}{others}:"
                f" {first.equivalence.detail or 'no detail recorded'}"
            )
    return found


def loss_disagreements(launches: Sequence[LaunchData]) -> dict[str, str]:
    """Arm → with what its losses disagree, over the launches of arms whose gate passed.

    Args:
        launches: usable launches of one workload and world size; those of arms that failed the gate left out.
    """
    blocks: dict[int, dict[str, Losses]] = defaultdict(dict)
    for launch in launches:
        losses = {rank.rank: rank.equivalence.losses for rank in launch.ranks if rank.equivalence.losses}
        if launch.usable and losses:
            blocks[launch.outcome.block][launch.outcome.arm] = losses
    found: dict[str, str] = {}
    for block, arms in sorted(blocks.items()):
        for arm, reason in _outvoted(arms).items():
            found.setdefault(arm, f"losses of block {block} {reason}")
    return found


def _outvoted(arms: Mapping[str, Losses]) -> dict[str, str]:
    """The arms of one block that no strict majority agrees with. An A/A twin has no vote of its own."""
    voters = [arm for arm in arms if arm != AA_ARM]
    differences = {
        (a, b): difference for a in arms for b in voters if a != b and (difference := _compare(arms[a], arms[b]))
    }
    agreeing = {a: sum(a == b or (a, b) not in differences for b in voters) for a in arms}
    needed = len(voters) / 2
    outvoted = {arm: count for arm, count in agreeing.items() if count <= needed and len(arms) > 1}
    majority = any(count > needed for count in agreeing.values())
    reasons = {}
    for arm in outvoted:
        pair = next((key for key in differences if key[0] == arm), None)
        if pair is None:  # a lone voter beside nothing that it could disagree with
            continue
        reasons[arm] = f"disagree with those of {pair[1]} ({differences[pair]})" + (
            "" if majority else ", and no majority tells which are right"
        )
    return reasons


def _compare(left: Losses, right: Losses) -> Disagreement | None:
    for rank in sorted(set(left) & set(right)):
        # One that has fewer has not shown the others to be right.
        for step, (a, b) in enumerate(itertools.zip_longest(left[rank], right[rank], fillvalue=math.nan)):
            if math.isnan(a + b) or abs(a - b) > LOSS_TOLERANCE * max(abs(a), abs(b)):
                return Disagreement(rank, step, a, b)
    return None


def equivalence_of(launches: Sequence[LaunchData], reason: str | None) -> EquivalenceResult:
    """What the gate says of an arm over all its launches; ``reason`` is why the arm is invalid, if it is."""
    if reason is not None:
        return EquivalenceResult("fail", reason)
    ranks = [rank for launch in launches if launch.usable for rank in launch.ranks]
    if not ranks or any(rank.equivalence.status != "pass" for rank in ranks):
        return EquivalenceResult("not run")
    errors = [rank.equivalence.worst_error for rank in ranks if rank.equivalence.worst_error is not None]
    detail = f"largest gradient error {max(errors):.3g} of the bound" if errors else ""
    return EquivalenceResult("pass", detail)
