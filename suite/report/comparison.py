"""Two runs compared, as text."""

from __future__ import annotations

from suite.analysis import wording
from suite.analysis.compare import ComparedRow, Comparison
from suite.report import format as fmt
from suite.report.terminal import table_text
from suite.report.view import Line, Table


def comparison_table(comparison: Comparison, *, colour: bool = False) -> str:
    """The table that ``fab compare`` prints, with what it rests on and what it leaves out."""
    limit = comparison.fail_above
    sentences = [
        "Ratios are of step times, B over A. The runs share no blocks, so intervals are those of two separate samples"
        " (Hodges–Lehmann, exact Mann–Whitney, 95%): whatever changed between the runs is in them."
    ]
    if comparison.varied:
        sentences.append(f"Allowed to differ, because it is the question: {', '.join(comparison.varied)}.")
    if limit is not None:
        sentences.append(_gate_sentence(comparison, limit))
    warnings = [*comparison.warnings, *(f"Left out: {text}." for text in comparison.left_out)]
    table = Table(
        title=f"A = {comparison.a}, B = {comparison.b}",
        columns=("workload", "ranks", "backend", "A", "B", "B over A (95% CI)", "verdict on B", "Holm p", "launches"),
        lines=tuple(_line(row) for row in comparison.rows),
        sentences=tuple(sentences),
        warnings=tuple(warnings),
        numeric=frozenset({1, 3, 4}),
    )
    return table_text(table, colour=colour)


def _line(row: ComparedRow) -> Line:
    interval = wording.ratio_text(row.ratio, row.ci) + ("" if row.ci else " (not estimable)")
    return Line(
        (
            row.workload,
            str(row.world_size),
            row.arm,
            fmt.time(row.seconds_a),
            fmt.time(row.seconds_b),
            interval,
            row.verdict + (", regressed" if row.regressed else ""),
            fmt.NONE if row.p is None else wording.p_text(row.p).removeprefix("p ").removeprefix("= "),
            f"{row.launches_a}, {row.launches_b}",
        ),
        "failed" if row.regressed else "ok",
    )


def _gate_sentence(comparison: Comparison, limit: float) -> str:
    bad = [row for row in comparison.rows if row.regressed]
    allowed = wording.percent(limit)
    if bad:
        names = ", ".join(f"{row.workload} at {row.world_size} over {row.arm}" for row in bad)
        return (
            f"Regressed: {names} surely take more than {allowed} longer (the whole interval lies above {1 + limit:g})."
        )
    open_rows = [row for row in comparison.rows if row.ci is None or row.ci[1] > 1 + limit]
    if open_rows:
        return (
            f"No row is surely more than {allowed} slower; {fmt.count(len(open_rows), 'row')} could be, because the"
            f" interval reaches above {1 + limit:g} or could not be estimated. More launches would tell."
        )
    return f"No row is more than {allowed} slower: every interval ends below {1 + limit:g}."
