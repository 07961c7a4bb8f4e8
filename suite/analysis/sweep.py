"""The sweep of collectives as a whole: rows of arms without a result, fitted models, and what looks wrong."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from suite.analysis import bandwidth, caveats, collectives, model, rows, validity
from suite.analysis.load import LaunchData, RunData
from suite.analysis.rows import LaunchMeasures
from suite.limits import COLLECTIVES
from suite.plan import comparisons
from suite.policy import NO_TCP, NOT_TOLD
from suite.records import Manifest
from suite.summary import CollectiveResult, ModelResult, Row

# In the worker's text, a rank's own address stands behind its interface; in a published run, its host's name.
_ADDRESS = re.compile(r"( on \S+) \([^()]+\)|(\[\d+\][^\s:]+):[^\s<]+<\d+>")  # the second as NCCL writes it


def status_of(
    manifest: Manifest,
    launches: Sequence[LaunchData],
    arm: str,
    measures: Sequence[LaunchMeasures],
    invalid: Mapping[str, str],
) -> tuple[str, str | None]:
    """Status and reason of an arm, from what its launches left.

    Args:
        launches: of one workload and world size; article launches do not count.
        measures: of the arm's usable launches.
        invalid: arm → why its results are wrong.
    """
    if arm in manifest.unavailable:
        return "unavailable", manifest.unavailable[arm]
    if arm in invalid:
        return "invalid", invalid[arm]
    if measures:
        return "ok", None
    mine = [x for x in launches if x.outcome.arm == arm and x.outcome.kind != "article"]
    failed = [x.outcome for x in mine if x.outcome.status == "failed"]
    if failed:
        return "failed", f"{failed[0].launch}: {caveats.describe_failure(failed[0])}"
    problems = [problem for x in mine for problem in x.problems]
    if problems:
        return "failed", problems[0]
    return "failed", f"no launch was made before the run ended ({manifest.stop_reason or 'still running'})"


def transport_of(launches: Sequence[LaunchData], pilots: Sequence[LaunchData] = ()) -> str:
    """What carried the data, as the ranks saw it; every distinct answer, but for each rank's own address.

    Args:
        launches: the timed ones. Their libraries were silent: an answer that adds nothing to a pilot's is left out.
        pilots: of the same arm; their libraries told what they chose.
    """
    told = _answers(pilots)
    known = [_parts(answer) for answer in told]
    more = {answer for answer in _answers(launches) if not any(_parts(answer) <= parts for parts in known)}
    return "; ".join(sorted(told | more)) or "unknown"


def _answers(launches: Sequence[LaunchData]) -> set[str]:
    found = {_ADDRESS.sub(r"\1\2", rank.transport) for x in launches if x.usable for rank in x.ranks}
    return found - {"unknown", ""}


def _parts(answer: str) -> frozenset[str]:
    """What an answer says ("mpi: pml ob1, btl tcp"), part by part, without what says that nothing was seen."""
    _, _, said = answer.partition(": ")
    for nothing in (NOT_TOLD, NO_TCP):
        said = said.replace(nothing, "")
    return frozenset(part for part in said.split(", ") if part)


def rows_without_result(data: RunData, results: Sequence[CollectiveResult]) -> tuple[Row, ...]:
    """Rows of the sweep for arms that gave nothing or something wrong; sound ones are in ``collectives``."""
    found = []
    for workload, world in comparisons(data.plan):
        if workload != COLLECTIVES:
            continue
        for arm in data.plan.arms:
            mine = [
                x for x in data.launches
                if x.outcome.kind == COLLECTIVES and (x.outcome.arm, x.outcome.world_size) == (arm.name, world)
            ]  # fmt: skip
            usable = [x for x in mine if x.usable]
            wrong = [r for r in results if (r.arm, r.world_size) == (arm.name, world) and r.wrong]
            status, reason = status_of(data.manifest, mine, arm.name, (), {})
            if usable and wrong:
                first = wrong[0]
                status = "invalid"
                reason = f"{first.collective} of {first.bytes} bytes: {first.wrong} wrong values"
            elif usable:
                continue
            found.append(
                rows.build_row(
                    workload=workload, arm=arm.name, backend=arm.backend, device=data.plan.device, world_size=world,
                    outcomes=[x.outcome for x in mine], measures=(), status=status, reason=reason,
                    equivalence=validity.equivalence_of([], None), transport=transport_of(mine),
                )
            )  # fmt: skip
    return tuple(found)


ModelKey = tuple[str, str, str, int]  # backend, arm, collective, world size


def fitted(launches: Sequence[LaunchData]) -> dict[ModelKey, model.CollectiveModel]:
    """t(S) = α + S/β of every arm, collective and world size with enough sizes; torch's own calls only."""
    times: dict[ModelKey, dict[str, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for launch in launches:
        if launch.outcome.kind != COLLECTIVES:
            continue
        for t in launch.collectives:
            value = collectives.call_seconds(t)
            if value is None or t.size_bytes <= 0 or (t.purpose, t.implementation) != (collectives.SWEEP, "torch"):
                continue
            key = (launch.outcome.backend, launch.outcome.arm, t.collective, launch.outcome.world_size)
            times[key][launch.outcome.launch][t.size_bytes] = value
    found = {}
    for key, by_launch in sorted(times.items()):
        sizes = sorted({size for by_size in by_launch.values() for size in by_size})
        table = np.array([[by_size.get(size, np.nan) for size in sizes] for by_size in by_launch.values()])
        result = model.fit(key[2], key[3], sizes, table)
        if result is not None:
            found[key] = result
    return found


def models(launches: Sequence[LaunchData]) -> tuple[ModelResult, ...]:
    """The fitted models as the summary holds them."""
    return tuple(
        ModelResult(
            backend=backend,
            arm=arm,
            collective=collective,
            world_size=world_size,
            alpha=result.alpha,
            alpha_ci=None if result.alpha_interval is None else result.alpha_interval.as_tuple(),
            beta=result.beta,
            beta_ci=None if result.beta_interval is None else result.beta_interval.as_tuple(),
            min_bytes=result.min_bytes,
            max_bytes=result.max_bytes,
            worst_misfit=result.worst_misfit,
            worst_bytes=result.worst_bytes,
        )
        for (backend, arm, collective, world_size), result in fitted(launches).items()
    )


def flag_warning(results: Sequence[CollectiveResult]) -> list[str]:
    """A warning about collectives that are faster than the link; none where there are none."""
    flagged = [r for r in results if r.link_fraction is not None and bandwidth.LinkFraction(r.link_fraction).suspicious]
    if not flagged:
        return []
    worst = max(flagged, key=lambda r: r.link_fraction or 0)
    return [
        f"{len(flagged)} collectives are faster than the measured link allows (worst: {worst.arm} {worst.collective}"
        f" of {worst.bytes} bytes at {worst.link_fraction:.0%} of it, limit {bandwidth.LINK_FRACTION_LIMIT:.0%}): ranks"
        " on one host, or a wrong size or link speed. Do not trust these lines."
    ]
