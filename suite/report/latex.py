"""The comparison tables for a paper: LaTeX with booktabs, one table per workload and world size."""

from __future__ import annotations

from collections.abc import Sequence

from suite.report import collective_view, view
from suite.report.format import clean
from suite.report.view import Table
from suite.summary import Summary

_SPECIAL = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': r"\textquotedbl{}", "`": r"\textasciigrave{}", "–": "--", "−": r"\ensuremath{-}",
    "µ": r"\ensuremath{\mu}", "±": r"\ensuremath{\pm}", "≤": r"\ensuremath{\le}", "×": r"\ensuremath{\times}",
    "·": r"\ensuremath{\cdot}", "α": r"\ensuremath{\alpha}", "β": r"\ensuremath{\beta}", "²": r"\ensuremath{^2}",
}  # fmt: skip


def escape(text: object) -> str:
    """Text that LaTeX prints as it is; characters that pdflatex lacks become a question mark."""
    found = []
    for character in clean(text):
        if character in _SPECIAL:
            found.append(_SPECIAL[character])
        elif ord(character) < 0x250:
            found.append(character)
        else:
            found.append("?")
    return "".join(found)


def render(summary: Summary) -> str:
    """All tables; needs ``\\usepackage{booktabs}`` and, for the micro sign, nothing else."""
    tables = []
    for section in view.sections(summary):
        tables.append(table_text(section.comparison, f"tab:{section.workload}-{section.world_size}"))
    for place, table in enumerate(collective_view.tables(summary, whole=True)):
        tables.append(table_text(table, f"tab:collectives-{place + 1}"))
    heading = f"% {escape(summary.run)}, suite {escape(summary.suite_version)}. Needs \\usepackage{{booktabs}}."
    return "\n\n".join([heading, *tables]) + "\n"


def table_text(table: Table, label: str) -> str:
    """One ``table`` environment; sentences and warnings go into the caption and under the rules."""
    aligned = "".join("r" if i in table.numeric else "l" for i in range(len(table.columns)))
    caption = " ".join([table.title[:1].upper() + table.title[1:] + ".", *table.sentences])
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{escape(caption)}}}",
        rf"\label{{{_label(label)}}}",
        rf"\begin{{tabular}}{{{aligned}}}",
        r"\toprule",
        _row(table.columns),
        r"\midrule",
    ]
    for line in table.lines:
        if line.reason is None:
            lines.append(_row(line.cells))
        else:
            span = len(table.columns) - line.reason_from
            kept = [escape(cell) for cell in line.cells[: line.reason_from]]
            lines.append(" & ".join([*kept, rf"\multicolumn{{{span}}}{{l}}{{{escape(line.reason)}}}"]) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}"]
    lines += [rf"\par\footnotesize Warning: {escape(warning)}" for warning in table.warnings]
    return "\n".join([*lines, r"\end{table}"])


def _row(cells: Sequence[str]) -> str:
    return " & ".join(escape(cell) for cell in cells) + r" \\"


def _label(text: str) -> str:
    return "".join(c if c.isascii() and (c.isalnum() or c in ":-") else "-" for c in text)
