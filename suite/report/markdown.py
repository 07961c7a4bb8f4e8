"""The report as Markdown (GitHub's tables)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from tabulate import tabulate

from suite.report import collective_view, view
from suite.report.facts import fact_rows
from suite.report.format import clean
from suite.report.view import Table
from suite.summary import Summary

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~!&])")


def escape(text: object) -> str:
    """Text that Markdown and HTML inside it show as it is, on one line."""
    return _SPECIAL.sub(r"\\\1", clean(text)).replace("\\<", "&lt;").replace("\\>", "&gt;").replace("\\&", "&amp;")


def render(summary: Summary) -> str:
    """The whole report."""
    parts = [f"# {escape(summary.run)}", _introduction(summary)]
    for section in view.sections(summary):
        parts.append(table_text(section.comparison, level=2))
        parts += [table_text(table, level=3) for table in section.details]
    found = collective_view.tables(summary, whole=True)
    if found:
        parts.append("## Collectives")
        parts += [table_text(table, level=3) for table in found]
    if summary.warnings:
        parts.append("## Warnings\n\n" + _list(summary.warnings))
    if summary.problems:
        parts.append("## Records that could not be used\n\n" + _list(summary.problems))
    parts.append("## Environment\n\n" + grid(("fact", "value"), fact_rows(summary.environment)))
    return "\n\n".join(parts) + "\n"


def _introduction(summary: Summary) -> str:
    return (
        f"Cluster {escape(summary.cluster)}, {escape(summary.created)}, plan {escape(summary.plan)},"
        f" {escape(view.stop_text(summary.stop_reason))}, suite {escape(summary.suite_version)}. Every column is"
        " explained in docs/method.md; the same numbers, unrounded, are in summary.json."
    )


def table_text(table: Table, *, level: int) -> str:
    """One table with its title, sentences and warnings."""
    rows = []
    for line in table.lines:
        cells: list[str] = list(line.cells)
        if line.reason is not None:
            cells[line.reason_from :] = [line.reason, *([""] * (len(cells) - line.reason_from - 1))]
        rows.append(cells)
    parts = [f"{'#' * level} {escape(table.title)}", grid(table.columns, rows, table.numeric)]
    parts += [escape(sentence) for sentence in table.sentences]
    parts += [f"**Warning:** {escape(warning)}" for warning in table.warnings]
    return "\n\n".join(parts)


def grid(columns: Sequence[str], rows: Sequence[Sequence[Any]], numeric: frozenset[int] = frozenset()) -> str:
    """A table of escaped cells."""
    cells = [[escape(cell) for cell in row] for row in rows]
    aligned = ["right" if i in numeric else "left" for i in range(len(columns))]
    return tabulate(
        cells, headers=[escape(c) for c in columns], tablefmt="pipe", colalign=aligned if cells else None,
        disable_numparse=True,
    )  # fmt: skip


def _list(texts: Sequence[str]) -> str:
    return "\n".join(f"* {escape(text)}" for text in texts)
