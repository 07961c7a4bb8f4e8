"""The summary of a run, from its records alone: what ``summary.json`` holds and every table prints."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from suite.analysis import caveats, collectives, compatibility, environment, pairs, rows, sweep, validity, verdicts
from suite.analysis.load import LaunchData, RunData, load_run
from suite.analysis.rows import LaunchMeasures
from suite.analysis.sweep import status_of, transport_of
from suite.paths import RunPaths
from suite.plan import AA_ARM, Plan, aa_twin, arm_of, comparisons, kind_of
from suite.records import Manifest, RankRecord
from suite.summary import (
    LinkResult,
    PairResult,
    Ratio,
    Row,
    Summary,
)

NOT_COMPARABLE = "not comparable"


def summarise(run: RunPaths) -> Summary:
    """Read a run and summarise it.

    Raises:
        RecordError: ``manifest.json`` or ``plan.json`` cannot be read.
    """
    return summarise_data(load_run(run))


def summarise_data(data: RunData) -> Summary:
    """Summarise what was loaded. Pure: the same data give the same summary, byte for byte."""
    links = collectives.link_results(data.launches)
    results = collectives.collective_results(data.launches, links)
    machine = caveats.machine_warnings(data)
    found = [
        compare_arms(data, workload, world, links, machine.get(world, []))
        for workload, world in comparisons(data.plan)
        if kind_of(workload) == "train"
    ]
    floors = {f"{c.workload}/{c.world_size}": c.floor for c in found if c.floor is not None}
    records = _ranks(data.launches)
    return Summary(
        run=data.manifest.run,
        cluster=data.manifest.cluster,
        created=data.manifest.created,
        plan=data.plan.name,
        stop_reason=data.manifest.stop_reason or "running",
        environment=_environment(data.manifest, records),
        rows=tuple(row for c in found for row in c.rows) + sweep.rows_without_result(data, results),
        pairs=tuple(pair for c in found for pair in c.pairs),
        collectives=results,
        links=links,
        models=sweep.models(data.launches),
        resolution_floor=floors,
        delta=data.plan.delta,
        suite_version=data.manifest.suite_version,
        warnings=(
            *data.manifest.warnings,
            *machine.get(None, []),
            *caveats.settings_warnings(data.manifest.settings),
            *sweep.flag_warning(results),
            *caveats.record_warnings(records, of_rows=False),
        ),
        problems=data.problems,
    )


@dataclass(frozen=True)
class Comparison:
    """All arms of one workload at one world size; ``floor`` is the A/A floor on ln(ratio)."""

    workload: str
    world_size: int
    rows: tuple[Row, ...]
    pairs: tuple[PairResult, ...]
    floor: float | None


def compare_arms(
    data: RunData,
    workload: str,
    world_size: int,
    links: Sequence[LinkResult],
    warnings: Sequence[str] = (),
) -> Comparison:
    """Rows and pairs of one workload at one world size.

    Args:
        links: B as measured anywhere in the run.
        warnings: about the machines at this world size; printed with every row.
    """
    launches = [x for x in data.launches if (x.outcome.workload, x.outcome.world_size) == (workload, world_size)]
    train = [x for x in launches if x.outcome.kind == "train"]
    arms = [arm.name for arm in data.plan.arms]
    if data.plan.protocol.aa and any(x.outcome.arm == AA_ARM for x in train):
        arms.append(AA_ARM)
    invalid = validity.gate_failures(train)
    invalid |= validity.loss_disagreements([x for x in train if x.outcome.arm not in invalid])
    measures = {arm: _measures(train, arm) for arm in arms}
    status = {arm: status_of(data.manifest, launches, arm, measures[arm], invalid) for arm in arms}
    ranked, refused = _comparable([arm for arm in arms if status[arm][0] == "ok"], train, data.plan)
    blocks = sorted({x.outcome.block for x in train})
    values = {arm: rows.by_block(measures[arm], blocks) for arm in arms if status[arm][0] == "ok"}
    complete = sum(all(not math.isnan(values[arm][i]) for arm in ranked) for i in range(len(blocks))) if ranked else 0
    single = _measures([x for x in data.launches if x.outcome.workload == workload], None)
    link = collectives.link_of(links, world_size)

    def row(arm: str) -> Row:
        mine = [x for x in train if x.outcome.arm == arm]
        twin = aa_twin(data.plan).name if arm == AA_ARM else arm
        pilots = [x for x in launches if (x.outcome.kind, x.outcome.arm) == ("pilot", twin)]
        outcomes = [x.outcome for x in mine if x.outcome.status != "interrupted"]
        built = rows.build_row(
            workload=workload,
            arm=arm,
            backend=arm_of(data.plan, arm).backend,
            device=next((rank.device for x in mine for rank in x.ranks), data.plan.device),
            world_size=world_size,
            outcomes=outcomes,
            measures=measures[arm],
            status=status[arm][0],
            reason=status[arm][1],
            equivalence=validity.equivalence_of(mine, invalid.get(arm)),
            transport=transport_of(mine, pilots),
            single=single,
            blocks=complete if arm in ranked else 0,
            link=link,
            article_seconds=_article(launches, arm),
            warnings=[
                *warnings,
                *caveats.failure_warning(outcomes, len(measures[arm])),
                *caveats.measure_warnings(measures[arm]),
                *caveats.buffer_warning(arm_of(data.plan, arm).ddp, measures[arm]),
                *caveats.record_warnings(_ranks([*pilots, *mine]), of_rows=True),
                *refused.get(arm, []),
            ],
        )
        return dataclasses.replace(built, warnings=(*built.warnings, *caveats.row_warnings(built)))

    built = [row(arm) for arm in arms]
    floor = _floor(data.plan, values)
    results = _pairs(data, ranked, values, workload, world_size, floor)
    built = _ranked(built, results.compared, ranked, data.plan.delta, floor)
    refusals = tuple(
        PairResult(workload, world_size, a, b, None, None, None, NOT_COMPARABLE)
        for a, b in itertools.combinations([arm for arm in values if arm != AA_ARM], 2)
        if a not in ranked or b not in ranked
    )
    return Comparison(workload, world_size, tuple(built), (*results.printed, *refusals), floor)


def _measures(launches: Sequence[LaunchData], arm: str | None) -> list[LaunchMeasures]:
    """Of one arm's launches, or, for None, of the one-process launches (T_1)."""
    wanted = [x for x in launches if (x.outcome.kind == "single" if arm is None else x.outcome.arm == arm)]
    found = [measure for x in wanted if (measure := rows.measure(x)) is not None]
    return sorted(found, key=lambda measure: measure.block)


def _comparable(arms: Sequence[str], train: Sequence[LaunchData], plan: Plan) -> tuple[list[str], dict[str, list[str]]]:
    """The arms that may be ranked against each other, and for each other one what forbids it.

    Arms that agree in every field that counts form a group; the largest is ranked (the first of equals, if
    it has two arms or more).
    """
    named = [arm for arm in arms if arm != AA_ARM]
    groups = compatibility.group_arms(
        named, {arm: [r for x in train if x.usable and x.outcome.arm == arm for r in x.ranks] for arm in named}, plan
    )
    return groups.ranked, groups.reasons


@dataclass(frozen=True)
class _PairResults:
    compared: tuple[pairs.Pair, ...]
    printed: tuple[PairResult, ...]


def _pairs(
    data: RunData,
    ranked: Sequence[str],
    values: Mapping[str, list[float]],
    workload: str,
    world_size: int,
    floor: float | None,
) -> _PairResults:
    """All pairs of ranked arms; the family is what was fixed before the first launch, failed arms included."""
    planned = [arm.name for arm in data.plan.arms if arm.name not in data.manifest.unavailable]
    compared = pairs.compare(
        {arm: values[arm] for arm in ranked},
        seed=data.plan.seed,
        sequential=data.plan.protocol.target is not None,
        family=max(len(planned) * (len(planned) - 1) // 2, len(ranked) * (len(ranked) - 1) // 2),
    )
    printed = []
    for pair in compared:
        verdict = verdicts.judge(pair, data.plan.delta, floor=floor)
        printed.append(
            PairResult(
                workload=workload,
                world_size=world_size,
                a=pair.a,
                b=pair.b,
                ratio=pair.ratio,
                ci=None if pair.interval is None else pair.interval.as_tuple(),
                p=pair.holm_p,
                verdict=verdict.kind,
                blocks=pair.blocks,
                blocks_needed=verdict.blocks_needed,
                bootstrap_ci=None if pair.bootstrap is None else pair.bootstrap.as_tuple(),
                p_raw=pair.p,
                within_delta=verdict.within_delta,
                below_floor=verdict.below_floor,
            )
        )
    return _PairResults(compared, tuple(printed))


def _ranked(
    built: Sequence[Row],
    compared: Sequence[pairs.Pair],
    ranked: Sequence[str],
    delta: float,
    floor: float | None,
) -> list[Row]:
    """The rows with their ratio to the fastest one, where they may be ranked."""
    medians = {row.arm: row.step_seconds.median for row in built if row.arm in ranked and row.step_seconds}
    best = verdicts.fastest(compared, medians)
    if best is None:
        return list(built)
    ratios = {best: Ratio(1.0, None, None, verdicts.FASTEST)}
    for arm, pair in verdicts.against(best, compared).items():
        if pair.ratio is not None:
            interval = None if pair.interval is None else pair.interval.as_tuple()
            kind = verdicts.judge(pair, delta, floor=floor).kind
            ratios[arm] = Ratio(pair.ratio, interval, pair.holm_p, kind)
    return [dataclasses.replace(row, ratio_to_fastest=ratios.get(row.arm)) for row in built]


def _floor(plan: Plan, values: Mapping[str, list[float]]) -> float | None:
    twin = aa_twin(plan).name
    if AA_ARM not in values or twin not in values:
        return None
    differences = pairs.log_ratios(values[AA_ARM], values[twin])
    return pairs.resolution_floor(differences, sequential=plan.protocol.target is not None)


def _article(launches: Sequence[LaunchData], arm: str) -> float | None:
    """Seconds a step by the published protocol: one launch, the mean that rank 0 would have printed."""
    for launch in launches:
        if launch.outcome.kind == "article" and launch.outcome.arm == arm and launch.ranks:
            return launch.ranks[0].article_seconds
    return None


def _ranks(launches: Sequence[LaunchData]) -> list[RankRecord]:
    return [rank for launch in launches for rank in launch.ranks]


def _environment(manifest: Manifest, records: Sequence[RankRecord]) -> dict[str, object]:
    facts: dict[str, object] = {
        "suite_version": manifest.suite_version,
        "suite_commit": manifest.suite_commit,
        "suite_changed": manifest.suite_dirty,
        **({"image_id": manifest.image_id} if manifest.image_id else {}),
        "hosts": [host.name for host in manifest.hosts],
    }
    return {**facts, **environment.unified(records)}
