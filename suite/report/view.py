"""What every text format shows: tables of finished strings, sentences and warnings, made once from a summary.

A cell is text without markup; each format escapes it in its own way. ``Line.reason`` is what is printed across the
last columns of a row without numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from suite.analysis import wording
from suite.analysis.rows import free_running_differs
from suite.plan import AA_ARM
from suite.report import format as fmt
from suite.summary import PairResult, Row, Summary

Key = float | int | str | None
STATUS_WORDS = {"unavailable": "not run", "failed": "failed", "invalid": "invalid"}
EXPLORATORY_BELOW = 6  # blocks; fewer give no interval


@dataclass(frozen=True)
class Line:
    """One row of a table: a cell per column; ``reason`` replaces the cells from ``reason_from`` on.

    ``keys`` are what cells sort by, None where there is nothing to sort; formats that do not sort ignore them.
    """

    cells: tuple[str, ...]
    status: str = "ok"
    reason: str | None = None
    reason_from: int = 0
    best: bool = False
    keys: tuple[Key, ...] = ()


@dataclass(frozen=True)
class Table:
    """Headings, lines, and what is said under them. ``numeric``: columns that are aligned to the right."""

    title: str
    columns: tuple[str, ...]
    lines: tuple[Line, ...]
    sentences: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    numeric: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Section:
    """One workload at one world size: the comparison, and where the time goes."""

    workload: str
    world_size: int
    comparison: Table
    details: tuple[Table, ...]


def sections(summary: Summary) -> tuple[Section, ...]:
    """The comparisons of a run, in the order of its rows; sweeps of collectives are tables of their own."""
    keys = dict.fromkeys((row.workload, row.world_size) for row in summary.rows if row.workload != "collectives")
    return tuple(section(summary, workload, world) for workload, world in keys)


def section(summary: Summary, workload: str, world_size: int) -> Section:
    """One workload at one world size."""
    rows = ordered([r for r in summary.rows if (r.workload, r.world_size) == (workload, world_size)])
    found = [p for p in summary.pairs if (p.workload, p.world_size) == (workload, world_size)]
    comparison = Table(
        title=title(summary, rows),
        columns=("backend", "step time (median, 95% CI)", "p95", "exposed comm", "vs fastest (95% CI)", "equivalence"),
        lines=tuple(_comparison_line(row) for row in rows),
        sentences=tuple(_sentences(summary, rows, found)),
        warnings=tuple(dict.fromkeys(_row_warnings(rows))),
    )
    return Section(workload, world_size, comparison, details_tables(rows))


def ordered(rows: Sequence[Row]) -> list[Row]:
    """Ranked rows from the fastest on, then unranked, the A/A twin, invalid, failed and unavailable ones."""
    places = {"ok": 0, "invalid": 1, "failed": 2, "unavailable": 3}

    def place(row: Row) -> tuple[int, bool, bool, float]:
        step = row.step_seconds.median if row.step_seconds else 0.0
        ratio = row.ratio_to_fastest
        return (places[row.status], row.arm == AA_ARM, ratio is None, ratio.estimate if ratio else step)

    return sorted(rows, key=place)


def title(summary: Summary, rows: Sequence[Row]) -> str:
    """ "linear, world size 4, cpu, 8 blocks, 20 warm-up + 50 steps a launch"."""
    first = rows[0]
    measured = [row for row in rows if row.steps_per_launch is not None]
    parts = [first.workload, f"world size {first.world_size}", (measured or [first])[0].device]
    blocks = max((row.blocks for row in rows), default=0)
    exploratory = " (exploratory)" if blocks < EXPLORATORY_BELOW else ""
    parts.append(fmt.count(blocks, "block") + exploratory if blocks else "nothing to rank")
    if measured:
        steps = sorted({row.steps_per_launch or 0 for row in measured})
        shown = str(steps[0]) if len(steps) == 1 else f"{steps[0]} to {steps[-1]}"
        parts.append(f"{measured[0].warmup_steps} warm-up + {shown} steps a launch")
    if summary.stop_reason in ("budget", "interrupted", "running"):
        parts.append(stop_text(summary.stop_reason))
    return ", ".join(parts)


def stop_text(reason: str) -> str:
    """Why a run ended, in words."""
    known = {
        "target": "ended when every comparison was precise enough",
        "plan": "ran as planned",
        "budget": "ended by its budget",
        "interrupted": "interrupted",
        "running": "not finished",
    }
    return known.get(reason, reason)


def _comparison_line(row: Row) -> Line:
    step = fmt.step_time(row.step_seconds)
    if free_running_differs(row):
        step += f" (free-running {fmt.time(row.free_running_seconds)})"
    cells = (row.arm, step, fmt.time(row.step_seconds.p95 if row.step_seconds else None), fmt.share(row.exposed_share))
    median = row.step_seconds.median if row.step_seconds else None
    keys: tuple[Key, ...] = (row.arm, median, row.step_seconds.p95 if row.step_seconds else None, row.exposed_share)
    if row.status != "ok":
        reason = f"{STATUS_WORDS.get(row.status, row.status)}: {row.reason or 'no reason recorded'}"
        return Line((*cells, "", ""), row.status, reason, 4, keys=keys)
    ratio = row.ratio_to_fastest.estimate if row.ratio_to_fastest else None
    keys = (*keys, ratio, row.equivalence.status)
    return Line((*cells, ratio_cell(row), equivalence_cell(row)), best=is_fastest(row), keys=keys)


def is_fastest(row: Row) -> bool:
    """Whether the estimates put this row first."""
    return row.ratio_to_fastest is not None and row.ratio_to_fastest.verdict == "fastest"


def ratio_cell(row: Row) -> str:
    """ "1.00", or "2.31 [2.27, 2.36] slower"."""
    ratio = row.ratio_to_fastest
    if ratio is None:
        return "A/A twin" if row.arm == AA_ARM else "not ranked"
    if ratio.verdict == "fastest":
        return "1.00"
    interval = None if ratio.ci is None else ratio.ci
    text = wording.ratio_text(ratio.estimate, interval)
    return f"{text} {ratio.verdict}" if interval else f"{text} (exploratory)"


def equivalence_cell(row: Row) -> str:
    """pass, fail, not run."""
    return row.equivalence.status


def _sentences(summary: Summary, rows: Sequence[Row], pairs: Sequence[PairResult]) -> list[str]:
    ranked = [row for row in rows if row.ratio_to_fastest is not None]
    found = []
    best = next((row for row in ranked if is_fastest(row)), None)
    if best is not None:
        mine = {p.a if p.b == best.arm else p.b: p for p in pairs if best.arm in (p.a, p.b)}
        others = {
            row.arm: wording.Compared(
                ratio.estimate, ratio.ci, ratio.verdict, mine[row.arm].blocks if row.arm in mine else 0, ratio.p
            )
            for row in ranked
            if row is not best and (ratio := row.ratio_to_fastest) is not None
        }
        found.append(wording.conclusion(best.arm, others) + ".")
        said = [p for p in mine.values() if p.ci and (p.verdict == "unresolved" or p.within_delta or p.below_floor)]
        rest = [p for p in pairs if p.ratio is not None and best.arm not in (p.a, p.b)]
        found += [pair_sentence(p, summary.delta) for p in [*said, *rest]]
    found += _article_sentence(rows)
    floor = summary.resolution_floor.get(f"{rows[0].workload}/{rows[0].world_size}")
    if floor is not None:
        found.append(
            f"Two copies of one backend differ by up to {fmt.share(math.expm1(floor))} here (A/A): smaller differences"
            " are not the backends'."
        )
    return found


def _article_sentence(rows: Sequence[Row]) -> list[str]:
    """What the published protocol would have said, in its own words, beside what was measured."""
    times = {row.arm: row.article_seconds for row in rows if row.article_seconds}
    if not times:
        return []
    fastest = min(times.values())
    said = [
        f"{arm} {fmt.time(seconds)}"
        + ("" if seconds == fastest else f" (an \u201cimprovement\u201d of {fmt.share(seconds / fastest - 1)})")
        for arm, seconds in times.items()
    ]
    return [
        "The published protocol (ten steps, no warm-up, no synchronisation, no optimizer, one launch) says:"
        f" {', '.join(said)}. It is shown to be compared, not to be believed."
    ]


def pair_sentence(pair: PairResult, delta: float) -> str:
    """One pair in words."""
    return (
        wording.pair_sentence(
            pair.a, pair.b, pair.ratio, pair.ci, pair.p, pair.verdict,
            blocks=pair.blocks, delta=delta, blocks_needed=pair.blocks_needed, within_delta=pair.within_delta,
            below_floor=pair.below_floor,
        )
        + "."
    )  # fmt: skip


def _row_warnings(rows: Sequence[Row]) -> list[str]:
    """Warnings of the rows; one that holds for several is said once, without a name."""
    everywhere = [w for w in rows[0].warnings if all(w in row.warnings for row in rows)] if len(rows) > 1 else []
    return everywhere + [
        f"{row.arm}: {warning}" for row in rows for warning in row.warnings if warning not in everywhere
    ]


@dataclass(frozen=True)
class Column:
    """One column of the details: a row's value, and how it is printed where it is not just that value."""

    name: str
    value: Callable[[Row], float | int | str | None]
    form: Callable[[Any], str]
    cell: Callable[[Row], str] | None = None

    def text(self, row: Row) -> str:
        """The printed cell."""
        if self.cell is not None:
            return self.cell(row)
        value = self.value(row)
        return fmt.NONE if value is None else self.form(value)


def _exposed_median(row: Row) -> float | None:
    exposed = row.exposed_communication_seconds
    return None if exposed is None else exposed.median


SPREAD: tuple[Column, ...] = (
    Column("launches", lambda r: r.launches.valid, str, lambda r: f"{r.launches.valid}/{r.launches.attempted}"),
    Column("p99", lambda r: r.step_seconds.p99 if r.step_seconds else None, fmt.time),
    Column("CV between launches", lambda r: r.between_launch_cv, fmt.share),
    Column("IQR within launch", lambda r: r.within_launch_iqr_seconds, fmt.time),
    Column("outliers", lambda r: r.outliers, str),
    Column("rank skew", lambda r: r.skew_seconds, fmt.time),
    Column("samples/s", lambda r: r.samples_per_second, fmt.rate),
    Column("transport", lambda r: None if r.transport == "unknown" else r.transport, str),
    Column("published protocol", lambda r: r.article_seconds, fmt.time),
)
TIME: tuple[Column, ...] = (
    Column("compute", lambda r: r.compute_seconds, fmt.time),
    Column("exposed comm (95% CI)", _exposed_median, fmt.time, lambda r: fmt.estimate(r.exposed_communication_seconds)),
    Column("all-reduce alone", lambda r: r.communication_seconds, fmt.time),
    Column("hidden", lambda r: r.hidden_share, fmt.share),
    Column("one process", lambda r: r.single_process_seconds, fmt.time),
    Column("efficiency", lambda r: r.weak_scaling_efficiency, fmt.share),
    Column("busbw", lambda r: r.busbw_bytes_per_second, fmt.bandwidth),
    Column("of link", lambda r: r.link_fraction, fmt.share),
)


def details_tables(rows: Sequence[Row]) -> tuple[Table, ...]:
    """Spread, and where the time goes, of rows with numbers; columns that no row has are left out."""
    measured = [row for row in rows if row.step_seconds is not None or row.article_seconds is not None]
    found = []
    for heading, columns in (("spread and throughput", SPREAD), ("where the time goes", TIME)):
        kept = [column for column in columns if any(column.value(row) is not None for row in measured)]
        names = ("backend", *(column.name for column in kept))
        lines = tuple(
            Line(
                (row.arm, *(column.text(row) for column in kept)),
                row.status,
                keys=(row.arm, *(column.value(row) for column in kept)),
            )
            for row in measured
        )
        if kept and lines:
            found.append(Table(heading, names, lines, numeric=_numeric(kept)))
    return tuple(found)


def _numeric(columns: Sequence[Column]) -> frozenset[int]:
    """Places of the columns that are aligned to the right; the first column of the table is the backend's name."""
    return frozenset(i for i, column in enumerate(columns, 1) if column.name != "transport")
