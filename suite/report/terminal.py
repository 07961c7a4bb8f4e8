"""The report as text for a terminal, with colour only where the caller says that it is one."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from tabulate import tabulate

from suite.report import collective_view, view
from suite.report.format import clean
from suite.report.view import Line, Table
from suite.summary import Summary

WIDTH = 118
MOST_PROBLEMS = 12
LONGEST_REASON = 160
_CODES = {"title": "1", "best": "32", "invalid": "31", "failed": "31", "unavailable": "2", "warning": "33"}


def render(summary: Summary, *, colour: bool = False) -> str:
    """All tables of a run, what follows from them, and every warning.

    Args:
        colour: use the terminal's colours; nothing but colour depends on it.
    """
    parts = []
    for section in view.sections(summary):
        tables = (section.comparison, *section.details)
        parts.append("\n\n".join([table_text(tables[0], colour=colour), *(_inner(t, colour) for t in tables[1:])]))
    parts += [table_text(table, colour=colour) for table in collective_view.tables(summary, whole=False)]
    notes = [_paragraph("Warning: ", text, "warning", colour) for text in summary.warnings]
    notes += [_paragraph("Problem: ", text, "failed", colour) for text in summary.problems[:MOST_PROBLEMS]]
    if len(summary.problems) > MOST_PROBLEMS:
        notes.append(f"  ... and {len(summary.problems) - MOST_PROBLEMS} more problems; summary.json has all.")
    if not parts:
        parts.append(f"{clean(summary.run)}: nothing was measured ({clean(view.stop_text(summary.stop_reason))}).")
    return "\n\n".join([*parts, *(["\n".join(notes)] if notes else [])]) + "\n"


def table_text(table: Table, *, colour: bool = False) -> str:
    """One table: title, columns, lines, sentences, warnings; everything under the title is indented by two."""
    lines = [_painted(clean(table.title), "title", colour)]
    lines += ["  " + line for line in grid(table, colour=colour)]
    lines += [_paragraph("", sentence, "", colour) for sentence in table.sentences]
    lines += [_paragraph("Warning: ", warning, "warning", colour) for warning in table.warnings]
    return "\n".join(lines)


def _inner(table: Table, colour: bool) -> str:
    """A table that belongs to the one before it."""
    return "\n".join(["  " + clean(table.title), *("    " + line for line in grid(table, colour=colour))])


def grid(table: Table, *, colour: bool = False) -> list[str]:
    """Heading and lines, aligned. A reason runs on to the right over the cells that it replaces."""
    cells = [[clean(cell) for cell in line.cells] for line in table.lines]
    places = [_reserve(row, line) for row, line in zip(cells, table.lines, strict=True)]
    aligned = ["right" if i in table.numeric else "left" for i in range(len(table.columns))]
    # The heading is passed as a row, because tabulate widens the columns of real headings.
    text = tabulate([table.columns, *cells], tablefmt="plain", colalign=aligned, disable_numparse=True).splitlines()
    found = [text[0].rstrip()]
    for line, place, row in zip(table.lines, places, text[1:], strict=True):
        shown = (row[: row.index(_MARK)] + place if place else row).rstrip()
        kind = "best" if line.best else line.status
        found.append(_painted(shown, kind, colour))
    return found


_MARK = "\x00"  # no cell can hold it: clean() took control characters out


def _reserve(cells: list[str], line: Line) -> str:
    """Put a mark where the reason will begin; returns the reason's text."""
    if line.reason is None:
        return ""
    cells[line.reason_from :] = [_MARK, *([""] * (len(cells) - line.reason_from - 1))]
    reason = clean(line.reason)
    return reason if len(reason) <= LONGEST_REASON else reason[: LONGEST_REASON - 4] + " ..."


def _paragraph(label: str, text: str, kind: str, colour: bool) -> str:
    lines: Sequence[str] = textwrap.wrap(label + clean(text), WIDTH - 2, break_on_hyphens=False) or [""]
    shown = [_painted(line, kind, colour) for line in lines]
    return "\n".join(("  " if i == 0 else "    ") + line for i, line in enumerate(shown))


def _painted(text: str, kind: str, colour: bool) -> str:
    code = _CODES.get(kind)
    return f"\x1b[{code}m{text}\x1b[0m" if colour and code and text else text
