"""``tables.csv``: rows, pairs and collectives in one long table, unrounded, in seconds and bytes.

The first column says what a line is. Text that a spreadsheet would take for a formula gets an apostrophe before it.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from suite.report.format import clean
from suite.summary import CollectiveResult, PairResult, Row, Summary

COLUMNS = (
    "table", "workload", "world_size", "arm", "other_arm", "backend", "implementation", "status", "reason",
    "collective", "bytes", "quantity", "value", "ci_low", "ci_high", "p", "verdict", "launches_valid",
    "launches_attempted", "blocks",
)  # fmt: skip

Cell = str | int | float | None


def render(summary: Summary) -> str:
    """The table, with a heading."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for line in _lines(summary):
        writer.writerow({key: cell(value) for key, value in line.items()})
    return stream.getvalue()


def cell(value: Cell) -> str | int | float:
    """A value as a spreadsheet may safely open it: numbers as they are, text never as a formula."""
    if value is None:
        return ""
    if not isinstance(value, str):
        return value
    text = clean(value)
    return "'" + text if text.lstrip()[:1] in ("=", "+", "-", "@") else text


def _lines(summary: Summary) -> Iterator[dict[str, Cell]]:
    for row in summary.rows:
        yield from _row_lines(row)
    for pair in summary.pairs:
        yield _pair_line(pair)
    for result in summary.collectives:
        yield from _collective_lines(result)
    for link in summary.links:
        ci = link.ci or (None, None)
        yield {
            "table": "link", "world_size": link.world_size, "backend": link.backend, "status": "ok",
            "quantity": "bytes_per_second", "value": link.bytes_per_second, "ci_low": ci[0], "ci_high": ci[1],
        }  # fmt: skip


def _row_lines(row: Row) -> Iterator[dict[str, Cell]]:
    base: dict[str, Cell] = {
        "table": "row", "workload": row.workload, "world_size": row.world_size, "arm": row.arm, "backend": row.backend,
        "status": row.status, "reason": row.reason, "launches_valid": row.launches.valid,
        "launches_attempted": row.launches.attempted, "blocks": row.blocks,
    }  # fmt: skip
    quantities = list(_quantities(row))
    if not quantities:
        yield base
    for name, value, ci in quantities:
        low, high = ci or (None, None)
        extra: dict[str, Cell] = {}
        if name == "ratio_to_fastest" and row.ratio_to_fastest is not None:
            extra = {"p": row.ratio_to_fastest.p, "verdict": row.ratio_to_fastest.verdict}
        yield {**base, "quantity": name, "value": value, "ci_low": low, "ci_high": high, **extra}


def _quantities(row: Row) -> Iterator[tuple[str, float | int, tuple[float, float] | None]]:
    if row.step_seconds is not None:
        yield "step_seconds", row.step_seconds.median, row.step_seconds.ci
        for name in ("p95", "p99", "min", "max"):
            value = getattr(row.step_seconds, name)
            if value is not None:
                yield f"step_seconds_{name}", value, None
    if row.ratio_to_fastest is not None:
        yield "ratio_to_fastest", row.ratio_to_fastest.estimate, row.ratio_to_fastest.ci
    if row.exposed_communication_seconds is not None:
        exposed = row.exposed_communication_seconds
        yield "exposed_communication_seconds", exposed.median, exposed.ci
    for name in (
        "exposed_share", "compute_seconds", "communication_seconds", "hidden_share", "single_process_seconds",
        "weak_scaling_efficiency", "free_running_seconds", "samples_per_second", "between_launch_cv",
        "within_launch_iqr_seconds", "outliers", "skew_seconds", "busbw_bytes_per_second", "link_fraction",
        "article_seconds", "steps_per_launch", "warmup_steps",
    ):  # fmt: skip
        value = getattr(row, name)
        if value is not None:
            yield name, value, None


def _pair_line(pair: PairResult) -> dict[str, Cell]:
    low, high = pair.ci or (None, None)
    return {
        "table": "pair", "workload": pair.workload, "world_size": pair.world_size, "arm": pair.a, "other_arm": pair.b,
        "quantity": "ratio", "value": pair.ratio, "ci_low": low, "ci_high": high, "p": pair.p,
        "verdict": pair.verdict, "blocks": pair.blocks,
    }  # fmt: skip


def _collective_lines(result: CollectiveResult) -> Iterator[dict[str, Cell]]:
    base: dict[str, Cell] = {
        "table": "collective", "world_size": result.world_size, "arm": result.arm, "backend": result.backend,
        "implementation": result.implementation, "status": result.status, "reason": result.reason,
        "collective": result.collective, "bytes": result.bytes,
    }  # fmt: skip
    if result.seconds is None:
        yield base
        return
    low, high = result.ci or (None, None)
    yield {**base, "quantity": "seconds", "value": result.seconds, "ci_low": low, "ci_high": high}
    for name in ("algbw", "busbw", "link_fraction"):
        value = getattr(result, name)
        if value is not None:
            yield {**base, "quantity": name, "value": value}
    yield {**base, "quantity": "wrong", "value": result.wrong}
