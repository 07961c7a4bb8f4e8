"""Warnings: each says what was seen, the limit it broke, and what to do. Data, not print."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from suite.analysis import rows, steps, warmup
from suite.analysis.bandwidth import LINK_FRACTION_LIMIT, LinkFraction
from suite.analysis.load import RunData
from suite.analysis.rows import LaunchMeasures
from suite.analysis.steps import SUM_CHECK_LIMIT
from suite.policy import CONTAMINATED, SILENT_FALL_BACK
from suite.records import DdpOptions, LaunchOutcome, RankRecord, Settings
from suite.summary import Row

OUTLIER_SHARE = 0.05  # of all steps; normal data have 0.7%, times have a long tail
LOAD_PER_CORE = 0.2  # load average before a launch, per core, that an idle host stays below

# Names of facts in a rank's environment.
MACHINE = "boot_id"
CORES, QUOTA = "cpu_count", "cpu_quota"
LOAD_BEFORE = "load_before"


def measure_warnings(measures: Sequence[LaunchMeasures]) -> list[str]:
    """What the step times themselves say of one arm's launches."""
    found = []
    excess = [m for m in measures if m.job.sum_check_failed]
    if excess:
        worst = max(excess, key=lambda m: m.job.sum_excess)
        found.append(
            f"In {len(excess)} of {len(measures)} launches the slowest ranks' steps sum to more than the slowest"
            f" rank's sum (by {worst.job.sum_excess:.1%} in {worst.launch}; limit {SUM_CHECK_LIMIT:.0%}): ranks take"
            " turns at being slow, and step times overstate the job. Compare with the free-running time."
        )
    unsettled = [m for m in measures if m.job.seconds.size >= 2 * warmup.MIN_WINDOW and not _settled(m)]
    if unsettled:
        found.append(
            f"{len(unsettled)} of {len(measures)} launches had not settled after {unsettled[0].warmup_steps} warm-up"
            f" steps ({unsettled[0].launch} first). They count all the same; see step time over time in report.html."
        )
    samples = sum(m.job.seconds.size for m in measures)
    outliers = sum(steps.outlier_count(m.job.seconds) for m in measures)
    if samples and outliers / samples > OUTLIER_SHARE:
        found.append(
            f"{outliers} of {samples} steps ({outliers / samples:.0%}, expected below {OUTLIER_SHARE:.0%}) are"
            " outliers. They are kept. Look for other work on the hosts or on the network."
        )
    return found


def buffer_warning(ddp: DdpOptions, measures: Sequence[LaunchMeasures]) -> list[str]:
    """DDP broadcasts a model's buffers before a synchronised step, and not under ``no_sync``."""
    if not ddp.broadcast_buffers or all(m.nosync is None for m in measures):
        return []
    return [
        "broadcast_buffers is on: steps under no_sync broadcast no buffers, so exposed communication holds that"
        " broadcast beside the all-reduce. Leave it off to see the all-reduce alone."
    ]


def _settled(measure: LaunchMeasures) -> bool:
    return warmup.settled(measure.job.seconds)


def failure_warning(outcomes: Sequence[LaunchOutcome], usable: int) -> list[str]:
    """Launches of an arm that do not count, with the first cause."""
    lost = len(outcomes) - usable
    if not lost or not usable:
        return []
    failed = [o for o in outcomes if o.status == "failed"]
    cause = f" First: {failed[0].launch}: {describe_failure(failed[0])}." if failed else " See the problems below."
    return [f"{lost} of {len(outcomes)} launches do not count; their blocks are incomplete.{cause}"]


def describe_failure(outcome: LaunchOutcome) -> str:
    """Why a launch failed, in one line: cause, place, stage."""
    if outcome.failure is None:
        return f"launch {outcome.status}"
    failure = outcome.failure
    place = [f"rank {failure.rank}"] if failure.rank is not None else []
    place += [f"on {failure.host}"] if failure.host else []
    where = f" ({' '.join(place)}, {failure.stage})" if place else f" ({failure.stage})"
    return failure.cause.rstrip(".") + where


def row_warnings(row: Row) -> list[str]:
    """What the finished numbers of a row say, its busbw against the link."""
    found = []
    if rows.free_running_differs(row) and row.step_seconds is not None and row.free_running_seconds:
        share = row.free_running_seconds / row.step_seconds.median - 1
        cause = (
            "Synchronising after each step costs time here."
            if share < 0
            else "They ran later in the same launches, so something slowed them: other work, heat, the network."
        )
        found.append(
            f"Free-running steps take {abs(share):.1%} {'less' if share < 0 else 'more'} than synchronised ones (limit"
            f" {rows.FREE_RUNNING_LIMIT:.0%}); both times are printed. {cause}"
        )
    if row.link_fraction is not None and LinkFraction(row.link_fraction).suspicious:
        found.append(
            f"busbw is {row.link_fraction:.0%} of the measured link (limit {LINK_FRACTION_LIMIT:.0%}): the size or the"
            " link's speed is wrong. Do not trust either; measure the link again."
        )
    return found


def settings_warnings(settings: Iterable[Settings]) -> list[str]:
    """Pilots in which no end of warm-up was found."""
    found = []
    for setting in settings:
        never = sorted({key.partition("#")[0] for key, settled in setting.settled.items() if not settled})
        if never:
            found.append(
                f"{setting.workload}, world size {setting.world_size}: the pilots of {', '.join(never)} never settled;"
                f" {setting.warmup_steps} warm-up steps were used for all. Look for other work on the hosts."
            )
    return found


def machine_warnings(data: RunData) -> dict[int | None, list[str]]:
    """World size → warnings about the machines at that world size; None → about the run as a whole.

    Simulated hosts that share one machine are seen by its boot ID: their ranks share its cores.
    """
    found: dict[int | None, list[str]] = defaultdict(list)
    records = [rank for launch in data.launches for rank in launch.ranks if rank.kind != "pilot"]
    shared: set[tuple[str, ...]] = set()
    for world_size, ranks in sorted(_latest_by_world(records).items()):
        for group in _by_machine(ranks).values():
            cores = _cores(group[0])
            hosts = tuple(sorted({rank.host for rank in group}))
            if len(hosts) > 1:
                shared.add(hosts)
            if cores is not None and len(group) > cores:
                on = f" of one machine ({', '.join(hosts)} are simulated on it)" if len(hosts) > 1 else ""
                found[world_size].append(
                    f"{len(group)} ranks on {cores:g} cores{on}: oversubscribed. These times are not comparable with"
                    " a real cluster's."
                )
    for hosts in sorted(shared):
        if not any(len(set(hosts)) < len(other) and set(hosts) <= set(other) for other in shared):
            found[None].append(
                f"Hosts {', '.join(hosts)} are one machine (equal boot ID): network and cores are shared, so this is"
                " a simulated cluster."
            )
    found[None] += _load_warnings(records)
    return dict(found)


def _latest_by_world(records: Iterable[RankRecord]) -> dict[int, list[RankRecord]]:
    """The ranks of one launch for each world size; hosts are the same in all of them."""
    launches: dict[tuple[int, str], list[RankRecord]] = defaultdict(list)
    for record in records:
        launches[record.world_size, record.launch].append(record)
    return {world: ranks for (world, _), ranks in sorted(launches.items(), key=lambda item: (item[0][0], len(item[1])))}


def _by_machine(ranks: Iterable[RankRecord]) -> dict[str, list[RankRecord]]:
    machines: dict[str, list[RankRecord]] = defaultdict(list)
    for rank in ranks:
        machines[str(rank.environment.get(MACHINE) or rank.host)].append(rank)
    return machines


def _cores(record: RankRecord) -> float | None:
    """CPUs that the host's ranks share: those of the machine, or fewer where the control group allows fewer."""
    known = [v for key in (CORES, QUOTA) if isinstance(v := record.environment.get(key), (int, float))]
    return min(known, default=None)


def _load_warnings(records: Iterable[RankRecord]) -> list[str]:
    busy: dict[str, float] = {}
    for record in records:
        load, cores = record.environment.get(LOAD_BEFORE), _cores(record)
        if isinstance(load, (int, float)) and cores and record.block <= 0:
            # Later launches see the load of the earlier ones: only the first block tells of other work.
            per_core = load / cores
            if per_core > LOAD_PER_CORE:
                busy[record.host] = max(busy.get(record.host, 0.0), per_core)
    if not busy:
        return []
    worst = max(busy, key=lambda host: busy[host])
    who = "1 host was" if len(busy) == 1 else f"{len(busy)} hosts were"
    return [
        f"{who} busy before the first block (load {busy[worst]:.2f} per core on {worst}, limit {LOAD_PER_CORE}). Stop"
        " other work and run again."
    ]


def record_warnings(records: Iterable[RankRecord], *, of_rows: bool) -> list[str]:
    """What ranks said themselves, each text once, with how many ranks said it and the first of them.

    Args:
        records: of one row, or of the whole run.
        of_rows: what belongs to a row (a silent fall-back, a contaminated measurement), or all else.
    """
    texts: Counter[str] = Counter()
    first: dict[str, RankRecord] = {}
    for record in records:
        for text in dict.fromkeys(record.warnings):
            if _has_a_row(record, text) is not of_rows:
                continue
            texts[text] += 1
            first.setdefault(text, record)
    return [
        f"{text} ({count} records; first {first[text].launch}, rank {first[text].rank} on {first[text].host})"
        for text, count in texts.items()
    ]


def _has_a_row(record: RankRecord, text: str) -> bool:
    """A pilot tells what its arm's timed launches use; that its own times are contaminated is no matter of theirs."""
    if record.kind == "train":
        return text.startswith(CONTAMINATED) or SILENT_FALL_BACK in text
    return record.kind == "pilot" and SILENT_FALL_BACK in text
