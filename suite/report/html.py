"""The report as one HTML file that needs no network: tables that sort, charts as SVG, light and dark.

Everything that came from a run is escaped, by Jinja's autoescape in the page and by ``suite.report.svg`` in the charts;
a content security policy forbids whatever is not this file's own script and style.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2
from markupsafe import Markup

from suite.analysis.load import RunData
from suite.report import charts, collective_view, step_charts, view
from suite.report.charts import Chart
from suite.report.facts import fact_rows
from suite.report.format import clean
from suite.report.step_charts import LaunchSteps
from suite.report.view import Section, Table
from suite.summary import Summary

_TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class Part:
    """One comparison on the page: its tables and its charts."""

    section: Section
    anchor: str
    charts: tuple[Chart, ...]


@dataclass(frozen=True)
class Pictures:
    """Every chart of a report, and the comparisons that they belong to."""

    parts: tuple[Part, ...]
    sweep: tuple[Chart, ...]
    scaling: tuple[Chart, ...]

    @property
    def all(self) -> tuple[Chart, ...]:
        """Every chart, for the files in ``plots/``."""
        return (*(chart for part in self.parts for chart in part.charts), *self.sweep, *self.scaling)


def draw(summary: Summary, data: RunData | None) -> Pictures:
    """Draw every chart.

    Args:
        data: the raw samples; without them the charts of single steps are left out.
    """
    return Pictures(tuple(comparison_parts(summary, data)), sweep_charts(summary), scaling_charts(summary))


def render(summary: Summary, pictures: Pictures) -> str:
    """The whole page."""
    script, style = _source("report.js"), _source("chart.css") + _source("report.css")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES), autoescape=True, trim_blocks=True, lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    environment.filters["clean"] = clean
    parts = pictures.parts
    return environment.get_template("report.html").render(
        summary=summary,
        parts=parts,
        stop=view.stop_text(summary.stop_reason),
        sweep=sweep_tables(summary),
        sweep_charts=pictures.sweep,
        scaling_charts=pictures.scaling,
        facts=fact_rows(summary.environment),
        warning_count=len(summary.warnings)
        + len(summary.problems)
        + sum(len(p.section.comparison.warnings) for p in parts),
        script=Markup(script),  # noqa: S704 - this file's own
        style=Markup(style),  # noqa: S704
        script_hash=_digest(script),
        style_hash=_digest(style),
        markup=Markup,
    )


def _source(name: str) -> str:
    return (_TEMPLATES / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    """A source hash of a content security policy."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def arm_names(summary: Summary) -> list[str]:
    """Arms in the order of the rows: their colours are the same in every chart."""
    return list(dict.fromkeys(row.arm for row in summary.rows))


def comparison_parts(summary: Summary, data: RunData | None) -> list[Part]:
    """Each comparison with its charts; the largest world size of a workload comes first."""
    arms = arm_names(summary)
    steps = _launch_steps(data)
    found = []
    for section in view.sections(summary):
        where = (section.workload, section.world_size)
        key = f"{section.workload}, world size {section.world_size}"
        rows = view.ordered([r for r in summary.rows if (r.workload, r.world_size) == where])
        launches = steps.get(where, [])
        made = (
            step_charts.distributions(key, launches, arms),
            charts.exposed(key, rows, arms),
            step_charts.over_time(key, launches, arms),
        )
        anchor = charts.file_name(section.workload, section.world_size)
        found.append(Part(section, anchor, tuple(chart for chart in made if chart is not None)))
    return sorted(found, key=lambda part: -part.section.world_size)


def _launch_steps(data: RunData | None) -> dict[tuple[str, int], list[LaunchSteps]]:
    found: dict[tuple[str, int], list[LaunchSteps]] = {}
    for launch in data.launches if data is not None else ():
        if launch.outcome.kind != "train":
            continue
        steps = step_charts.launch_steps(launch)
        if steps is not None:
            found.setdefault((launch.outcome.workload, launch.outcome.world_size), []).append(steps)
    return found


def sweep_tables(summary: Summary) -> Sequence[Table]:
    """Every collective by size."""
    return collective_view.tables(summary, whole=True)


def sweep_charts(summary: Summary) -> tuple[Chart, ...]:
    """busbw of every collective and world size; all_reduce at the largest world size first."""
    keys = {(r.collective, r.world_size) for r in summary.collectives}
    arms = arm_names(summary)
    found = [
        charts.bandwidth(summary, collective, world, arms)
        for collective, world in sorted(keys, key=lambda k: (k[0] != "all_reduce", k[0], -k[1]))
    ]
    return tuple(chart for chart in found if chart is not None)


def scaling_charts(summary: Summary) -> tuple[Chart, ...]:
    """One per workload that was measured at more than one world size."""
    arms = arm_names(summary)
    workloads = dict.fromkeys(row.workload for row in summary.rows)
    found = [charts.scaling(workload, summary.rows, arms) for workload in workloads]
    return tuple(chart for chart in found if chart is not None)


def standalone(chart: Chart) -> str:
    """One chart as a file of its own, with its style inside."""
    style = _source("chart.css")
    head, rest = chart.markup.split(">", 1)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{head}><style>{style}</style>{rest}\n'
