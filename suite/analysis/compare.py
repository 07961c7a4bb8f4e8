"""Two runs, row by row: how many times as long the second takes, with an interval, and whether they may be compared.

Fields that METHOD.md lists must be equal, but for those that are the question (``vary``). The runs share no blocks, so
the ratio is an unpaired one (``suite.analysis.unpaired``), and every text that shows it says so.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from suite.analysis import compatibility, statistics, unpaired, wording
from suite.analysis.compatibility import Differences
from suite.analysis.load import RunData, load_run
from suite.analysis.summarise import summarise_data
from suite.analysis.verdicts import EQUIVALENT, FASTER, SLOWER, UNRESOLVED
from suite.errors import IncompatibleError, UsageError
from suite.paths import RunPaths
from suite.records import RankRecord
from suite.summary import Row, Summary

ALPHA = 0.05
RowKey = tuple[str, int, str]  # workload, world size, arm


@dataclass(frozen=True)
class ComparedRow:
    """One row of both runs. ``ratio``: time in the second run over time in the first.

    ``p`` is Holm-adjusted over the rows. ``verdict`` speaks of the second run. ``regressed``: the whole interval lies
    above the limit; never True where there is no interval.
    """

    workload: str
    world_size: int
    arm: str
    seconds_a: float
    seconds_b: float
    launches_a: int
    launches_b: int
    ratio: float
    ci: tuple[float, float] | None
    p: float | None
    verdict: str
    regressed: bool = False


@dataclass(frozen=True)
class Comparison:
    """Run ``b`` against run ``a``. ``left_out`` says of each row that only one run has, or that is not sound, why."""

    a: str
    b: str
    rows: tuple[ComparedRow, ...]
    left_out: tuple[str, ...]
    varied: tuple[str, ...]
    warnings: tuple[str, ...]
    fail_above: float | None

    @property
    def regressed(self) -> bool:
        """Whether some row is surely slower than the limit allows: what exit code 1 means."""
        return any(row.regressed for row in self.rows)


def compare(a: RunPaths, b: RunPaths, vary: Collection[str] = (), fail_above: float | None = None) -> Comparison:
    """Compare run ``b`` (the new one) with run ``a`` (the old one).

    Args:
        vary: facts, or groups of them ("torch"), that may differ because they are the question.
        fail_above: largest allowed ratio − 1 (0.05 for 5%); None: no gate.

    Raises:
        IncompatibleError: a field that must be equal differs; names every such field.
        UsageError: the runs have no row in common.
        RecordError: a ledger or plan cannot be read.
    """
    return compare_data(load_run(a), load_run(b), vary, fail_above)


def compare_data(a: RunData, b: RunData, vary: Collection[str] = (), fail_above: float | None = None) -> Comparison:
    """The same on loaded runs."""
    summaries = (summarise_data(a), summarise_data(b))
    rows_a, rows_b = (_rows(summary) for summary in summaries)
    shared = [key for key in rows_a if key in rows_b]
    sound = [key for key in shared if rows_a[key].launch_values and rows_b[key].launch_values]
    sound = [key for key in sound if rows_a[key].status == rows_b[key].status == "ok"]
    if not sound:
        raise UsageError(
            f"{a.manifest.run} and {b.manifest.run} have no sound row in common.",
            fix="compare runs of the same workloads, world sizes and backends.",
        )
    warnings = _check_compatible(a, b, sound, vary)
    found = [unpaired.compare_unpaired(rows_a[key].launch_values, rows_b[key].launch_values) for key in sound]
    adjusted = statistics.holm([result.p for result in found])
    rows = tuple(
        _compared(rows_a[key], rows_b[key], result, p, min(summaries[0].delta, summaries[1].delta), fail_above)
        for key, result, p in zip(sound, found, adjusted, strict=True)
    )
    return Comparison(
        a=a.manifest.run,
        b=b.manifest.run,
        rows=rows,
        left_out=tuple(_left_out(a.manifest.run, b.manifest.run, rows_a, rows_b, sound)),
        varied=tuple(sorted(vary)),
        warnings=warnings,
        fail_above=fail_above,
    )


def _rows(summary: Summary) -> dict[RowKey, Row]:
    return {(row.workload, row.world_size, row.arm): row for row in summary.rows if row.workload != "collectives"}


def _compared(
    a: Row, b: Row, result: unpaired.Unpaired, p: float | None, delta: float, fail_above: float | None
) -> ComparedRow:
    assert a.step_seconds is not None and b.step_seconds is not None
    interval, narrow = result.interval, result.equivalence_interval
    if p is not None and p < ALPHA:
        verdict = SLOWER if result.ratio > 1 else FASTER
    elif narrow is not None and 1 / (1 + delta) <= narrow.low and narrow.high <= 1 + delta:
        verdict = EQUIVALENT
    else:
        verdict = UNRESOLVED
    return ComparedRow(
        workload=a.workload,
        world_size=a.world_size,
        arm=a.arm,
        seconds_a=a.step_seconds.median,
        seconds_b=b.step_seconds.median,
        launches_a=len(a.launch_values),
        launches_b=len(b.launch_values),
        ratio=result.ratio,
        ci=None if interval is None else interval.as_tuple(),
        p=p,
        verdict=verdict,
        regressed=fail_above is not None and interval is not None and interval.low > 1 + fail_above,
    )


def _left_out(
    a: str, b: str, rows_a: dict[RowKey, Row], rows_b: dict[RowKey, Row], sound: Sequence[RowKey]
) -> list[str]:
    found = []
    for key in dict.fromkeys([*rows_a, *rows_b]):
        if key in sound:
            continue
        name = f"{key[0]}, world size {key[1]}, {key[2]}"
        if key not in rows_a or key not in rows_b:
            found.append(f"{name}: only in {a if key in rows_a else b}")
        else:
            states = ", ".join(f"{run}: {rows[key].status}" for run, rows in ((a, rows_a), (b, rows_b)))
            found.append(f"{name}: {states}")
    return found


def _check_compatible(a: RunData, b: RunData, keys: Sequence[RowKey], vary: Collection[str]) -> tuple[str, ...]:
    """Refuse fields that differ in any row; returns what is only worth a warning.

    Raises:
        IncompatibleError: names the fields, with both values of the first few.
    """
    found: dict[str, compatibility.Difference] = {}
    warnings: dict[str, str] = {}
    for key in keys:
        result = _differences(a, b, key, vary)
        for difference in result.refusing:
            found.setdefault(difference.field, difference)
        for difference in result.warning:
            warnings.setdefault(difference.field, f"The runs differ in {difference}.")
        for name in result.unknown:
            warnings.setdefault(name, f"Only one run knows {name}; unknown is not equal.")
    if found:
        named = "; ".join(str(difference) for difference in list(found.values())[:6])
        more = f"; and {len(found) - 6} more" if len(found) > 6 else ""
        fields = ", ".join(found)
        raise IncompatibleError(
            f"{a.manifest.run} and {b.manifest.run} must not be compared: they differ in {named}{more}.",
            tuple(found),
            fix=f"make these equal, or, if one is the question, name it: --vary {fields.split(', ', 1)[0]}.",
        )
    commits = {a.manifest.suite_commit, b.manifest.suite_commit}
    if len(commits) > 1 or a.manifest.suite_dirty or b.manifest.suite_dirty:
        warnings["suite_commit"] = (
            f"The suite's own code was not the same, or not committed: {_commit(a)} and {_commit(b)}."
        )
    return tuple(warnings.values())


def _commit(run: RunData) -> str:
    return run.manifest.suite_commit[:12] + (" with changes" if run.manifest.suite_dirty else "")


def _differences(a: RunData, b: RunData, key: RowKey, vary: Collection[str]) -> Differences:
    left, right = (compatibility.facts_of(_records(run, key)) for run in (a, b))
    names = (*compatibility.REFUSE, *compatibility.WARN)
    exempt = {name for name in names if compatibility.is_varied(name, vary)}
    return compatibility.differences(left, right, exempt)


def _records(run: RunData, key: RowKey) -> list[RankRecord]:
    workload, world, arm = key
    return [
        rank
        for launch in run.launches
        if launch.usable and launch.outcome.kind == "train"
        and (launch.outcome.workload, launch.outcome.world_size, launch.outcome.arm) == (workload, world, arm)
        for rank in launch.ranks
    ]  # fmt: skip


def sentence(row: ComparedRow, comparison: Comparison) -> str:
    """One row in words: "linear, world size 4, gloo: B takes 1.02 [1.01, 1.03] times as long as A: slower"."""
    text = wording.ratio_sentence(comparison.b, comparison.a, row.ratio, row.ci)
    return f"{row.workload}, world size {row.world_size}, {row.arm}: {text}: {row.verdict}"
