"""A summary as text, tables and pictures. Formatters return strings; ``write_all`` alone writes."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from suite.errors import UsageError

if TYPE_CHECKING:
    from suite.analysis.load import RunData
    from suite.paths import RunPaths
    from suite.report.html import Pictures
    from suite.summary import Summary

FORMATS = ("terminal", "markdown", "csv", "json", "latex", "html")


def render(summary: Summary, data: RunData | None, form: str, *, colour: bool = False) -> str:
    """A report in one of ``FORMATS``.

    Args:
        summary: what to show.
        data: the raw samples, for the pictures of the HTML report; without them it has tables and fewer charts.
        form: the format.
        colour: for the terminal.

    Raises:
        UsageError: unknown format.
    """
    # Each format is imported when it is asked for: `fab report` must start at once.
    if form == "terminal":
        from suite.report import terminal  # noqa: PLC0415

        return terminal.render(summary, colour=colour)
    if form == "markdown":
        from suite.report import markdown  # noqa: PLC0415

        return markdown.render(summary)
    if form == "csv":
        from suite.report import csv_  # noqa: PLC0415

        return csv_.render(summary)
    if form == "json":
        from suite import codec  # noqa: PLC0415

        return codec.encode(summary, indent=1).decode()
    if form == "latex":
        from suite.report import latex  # noqa: PLC0415

        return latex.render(summary)
    if form == "html":
        from suite.report import html  # noqa: PLC0415

        return html.render(summary, html.draw(summary, data))
    raise UsageError(f"--format {form}: there is no such format.", fix=f"use one of {', '.join(FORMATS)}.")


def render_run(run: RunPaths, summary: Summary, form: str) -> str:
    """A report of a run on disk, in colour where stdout is a terminal and NO_COLOR is not set."""
    if form == "html":
        from suite.analysis.load import load_run  # noqa: PLC0415

        return render(summary, load_run(run), form)
    colour = form == "terminal" and sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    return render(summary, None, form, colour=colour)


def write_all(run: RunPaths) -> Summary:
    """Summarise a run and write every derived file: summary, Markdown, HTML, CSV and plots.

    Raises:
        RecordError: the run's ledger or plan cannot be read.
        UsageError: it is a published bundle, whose files must stay as they are.
    """
    if (run.root / "SHA256SUMS").exists():
        raise UsageError(
            f"{run.root.name} is a published bundle; its reports are in it already.",
            fix=f"open {run.root.name}/report.html, or check it with `fab verify`.",
        )
    from suite.analysis.load import load_run  # noqa: PLC0415
    from suite.analysis.summarise import summarise_data  # noqa: PLC0415

    data = load_run(run)
    summary = summarise_data(data)
    write_reports(run, summary, data)
    return summary


def write_reports(run: RunPaths, summary: Summary, data: RunData) -> None:
    """Write the derived files of a run that has been summarised."""
    from suite import codec, paths  # noqa: PLC0415
    from suite.report import html  # noqa: PLC0415

    paths.replace(run.summary, codec.encode(summary, indent=1))
    paths.replace(run.report_markdown, render(summary, data, "markdown"))
    paths.replace(run.tables_csv, render(summary, data, "csv"))
    pictures = html.draw(summary, data)
    paths.replace(run.report_html, html.render(summary, pictures))
    write_plots(run, pictures)


def write_plots(run: RunPaths, pictures: Pictures) -> None:
    """Write every chart as an SVG file of its own; charts of an earlier summary that are no more are removed."""
    from suite import paths  # noqa: PLC0415
    from suite.report import html  # noqa: PLC0415

    for chart in pictures.all:
        paths.replace(run.plots / f"{chart.name}.svg", html.standalone(chart))
    wanted = {f"{chart.name}.svg" for chart in pictures.all}
    for path in run.plots.glob("*.svg"):
        if path.name not in wanted:
            path.unlink()
