"""Predictions as text."""

from __future__ import annotations

from collections.abc import Sequence

from suite.analysis.predict import Forecast
from suite.report import format as fmt
from suite.report.terminal import table_text
from suite.report.view import Line, Table

LIMITS = (
    "Intervals are those of α, β and compute time, not of the way they are put together. It fails where gradient bytes"
    " and backward time are not in proportion (embeddings, convolutions), where ranks share links or cores in another"
    " way than measured, and where a library changes its algorithm."
)


def forecast_table(forecasts: Sequence[Forecast], *, colour: bool = False) -> str:
    """The table that ``fab predict`` prints."""
    if not forecasts:
        return "No backend of this run has both a sweep and a training row.\n"
    first = forecasts[0]
    compared = any(f.measured_seconds is not None for f in forecasts)
    columns = ["backend", "step time (95% CI)", "exposed comm (95% CI)", "hidden", "if nothing hid"]
    columns += ["measured", "off by"] if compared else []
    lines = [_line(f, compared) for f in forecasts]
    sentences = [
        f"{f.arm}: all-reduce times taken {f.communication_scale:.2f} times, as {f.calibrated_on} needed."
        if f.calibrated_on
        else f"{f.arm}: all-reduce times taken as the sweep had them; no workload showed exposed communication."
        for f in forecasts
    ]
    warnings = list(dict.fromkeys(note for f in forecasts for note in f.notes))
    table = Table(
        f"{first.what}, {fmt.count(first.world_size, 'rank')}: predicted, not measured",
        tuple(columns), tuple(lines), (*sentences, LIMITS), tuple(f"{note}." for note in warnings),
        numeric=frozenset(range(1, len(columns))),
    )  # fmt: skip
    return table_text(table, colour=colour)


def _line(forecast: Forecast, compared: bool) -> Line:
    result = forecast.result
    interval = None if result.interval is None else result.interval.as_tuple()
    exposed = None if result.exposed_interval is None else result.exposed_interval.as_tuple()
    extrapolated = " extrapolated" if result.extrapolations else ""
    cells = [
        forecast.arm,
        fmt.time_ci(result.step_seconds, interval) + extrapolated,
        fmt.time_ci(result.exposed_seconds, exposed),
        fmt.share(result.hidden_share),
        fmt.time(result.without_overlap_seconds),
    ]
    if compared:
        error = forecast.error
        cells += [fmt.time(forecast.measured_seconds), fmt.NONE if error is None else f"{error:+.1%}".replace("-", "−")]
    return Line(tuple(cells))
