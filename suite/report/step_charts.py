"""Pictures of single steps: how each launch's times are distributed, and how they run over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from suite.analysis.load import LaunchData
from suite.analysis.rows import seconds
from suite.analysis.steps import Floats
from suite.report import format as fmt
from suite.report import svg
from suite.report.charts import WIDE, WIDTH, Chart, file_name, series_of, time_axis
from suite.report.svg import Frame, Scale

STRIP = 112.0  # height of one arm's strip
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
MOST_POINTS = 2400  # of one picture of steps over time; more are drawn as bands


@dataclass(frozen=True)
class LaunchSteps:
    """One launch for the pictures: T_i after warm-up and during it, seconds."""

    arm: str
    block: int
    launch: str
    steps: Floats
    warmup: Floats


def launch_steps(launch: LaunchData) -> LaunchSteps | None:
    """The job's step times of a usable launch; None where it has none."""
    samples = launch.synchronised
    if not launch.usable or samples is None or samples.steps == 0:
        return None
    warmup = samples.warmup_total_ns
    return LaunchSteps(
        launch.outcome.arm,
        launch.outcome.block,
        launch.outcome.launch,
        seconds(samples.total_ns.max(axis=0)),
        seconds(warmup.max(axis=0)) if warmup.size else np.zeros(0),
    )


def distributions(key: str, launches: Sequence[LaunchSteps], arms: Sequence[str]) -> Chart | None:
    """Step times of every launch against their arm's median: a box per launch, in the order of the blocks.

    Relative, because two arms that differ by a factor would each be a flat line on a common scale of seconds.
    """
    if not launches:
        return None
    series = series_of(arms)
    groups = {arm: sorted((x for x in launches if x.arm == arm), key=lambda x: x.block) for arm in series}
    groups = {arm: mine for arm, mine in groups.items() if mine}
    centres = {arm: float(np.median([np.median(x.steps) for x in mine])) for arm, mine in groups.items()}
    quantiles = {x.launch: np.quantile(x.steps, QUANTILES) / centres[x.arm] - 1 for x in launches}
    low = min(-1e-4, *(float(q[0]) for q in quantiles.values()))
    high = max(1e-4, *(float(q[-1]) for q in quantiles.values()))
    frame = Frame(WIDTH, 310, bottom=58)
    ticks = svg.nice_ticks(low * 100, high * 100, 6)
    y = Scale(ticks[0] / 100, ticks[-1] / 100, *frame.y_range)
    x0, x1 = frame.x_range
    slot = (x1 - x0) / (len(launches) + len(groups))
    parts = [frame.y_axis(y, [t / 100 for t in ticks], _signed_percent, "step time against the backend's median")]
    names, position = [], x0 + slot
    for arm, mine in groups.items():
        names.append((position + (len(mine) - 1) / 2 * slot, arm))
        for launch in mine:
            parts.append(_box(position, min(slot * 0.72, 22), y, quantiles[launch.launch], series[arm], launch))
            position += slot
        position += slot
    parts += [svg.text(x, frame.y_range[0] + 33, fmt.time(centres[arm]), "tick", "middle") for x, arm in names]
    parts.append(frame.x_axis(names, ""))
    said = [
        f"{arm}: {fmt.count(len(mine), 'launch', 'launches')}, medians from"
        f" {fmt.time(min(float(np.median(x.steps)) for x in mine))} to"
        f" {fmt.time(max(float(np.median(x.steps)) for x in mine))}"
        for arm, mine in groups.items()
    ]
    return Chart(
        file_name("distribution", key),
        "Step time of every launch",
        "A box per launch, in block order: the middle half of its steps and their median; whiskers from 5% to 95%. Zero"
        " is the backend's median, given below it. What moves whole boxes is the spread between launches.",
        svg.chart(frame, f"Step time distributions, {key}", "; ".join(said), parts, file_name("distribution", key)),
    )


def _signed_percent(value: float) -> str:
    return f"{value * 100:+.3g}%".replace("-", "−") if abs(value) > 1e-12 else "0"


def _box(x: float, width: float, y: Scale, values: Floats, series: int, launch: LaunchSteps) -> str:
    p5, q1, q2, q3, p95 = (y(float(v)) for v in values)
    median = fmt.time(float(np.median(launch.steps)))
    tip = f"{launch.arm}, block {launch.block + 1}: median {median} of {launch.steps.size} steps"
    half = width / 2
    return svg.element(
        "g",
        {"class": f"box s{series % svg.SERIES}"},
        svg.tooltip(tip),
        svg.line(x, p5, x, p95, "whisker"),
        svg.element("rect", {"x": x - half, "y": q3, "width": width, "height": max(1.0, q1 - q3), "class": "body"}),
        svg.line(x - half, q2, x + half, q2, "median"),
    )


def over_time(key: str, launches: Sequence[LaunchSteps], arms: Sequence[str]) -> Chart | None:
    """Step time over the steps of each block: a strip per arm with its own scale, and the blocks' boundaries."""
    series = {arm: i for arm, i in series_of(arms).items() if any(x.arm == arm for x in launches)}
    if not series:
        return None
    blocks = sorted({x.block for x in launches})
    frame = Frame(WIDE, 50 + STRIP * len(series), top=8)
    x0, x1 = frame.x_range
    slot = (x1 - x0) / len(blocks)
    longest = max(x.steps.size + x.warmup.size for x in launches)
    budget = max(8, MOST_POINTS // len(launches))
    parts: list[str] = []
    said, above = [], 0
    for place, (arm, colour) in enumerate(series.items()):
        mine = [x for x in launches if x.arm == arm]
        measured = np.concatenate([x.steps for x in mine])
        y, axis = _strip(frame, place, arm, measured)
        parts.append(axis)
        for launch in mine:
            every = np.concatenate([launch.warmup, launch.steps])
            above += int((every > y.high).sum())
            start = x0 + blocks.index(launch.block) * slot
            parts.append(_trace(launch, every, start, slot / longest, y, colour, budget))
        said.append(f"{arm}: from {fmt.time(float(measured.min()))} to {fmt.time(float(measured.max()))}")
    bottom = frame.y_range[0]
    parts += [svg.line(x0 + i * slot, bottom, x0 + i * slot, frame.top, "boundary") for i in range(1, len(blocks))]
    every_nth = max(1, len(blocks) // 15)
    labels = [(x0 + (i + 0.5) * slot, str(b + 1)) for i, b in enumerate(blocks) if i % every_nth == 0]
    parts.append(frame.x_axis(labels, "block; within it, the steps of one launch"))
    notes = ["Each strip has its own scale. Pale: warm-up, kept and not counted."]
    if longest > budget:
        notes.append("Thinned out for the picture: each point is the median of a stretch, the band its extremes.")
    if above:
        notes.append(
            f"{fmt.count(above, 'step')} above a strip's scale {'is' if above == 1 else 'are'} drawn at its top."
        )
    name = file_name("over-time", key)
    picture = svg.chart(frame, f"Step time over time, {key}", f"{len(blocks)} blocks. " + "; ".join(said), parts, name)
    return Chart(name, "Step time over time", " ".join(notes), picture, wide=True)


def _strip(frame: Frame, place: int, arm: str, measured: Floats) -> tuple[Scale, str]:
    """Scale and axis of one arm's strip: from its smallest step to just above its 99.5th percentile."""
    low, high = float(measured.min()), float(np.quantile(measured, 0.995))
    margin = max(0.15 * (high - low), 0.01 * high)
    top = frame.top + place * STRIP
    ticks, label, unit = time_axis(max(0.0, low - margin), high + margin, 3)
    y = Scale(ticks[0], ticks[-1], top + STRIP - 14, top + 20)
    x0, x1 = frame.x_range
    axis = [svg.line(x0, y(t), x1, y(t), "grid") for t in ticks]
    axis += [svg.text(x0 - 7, y(t) + 4, label(t), "tick", "end") for t in ticks]
    axis.append(svg.text(x0, top + 13, f"{arm}, {unit} a step", "tick strong"))
    return y, "".join(axis)


def _trace(launch: LaunchSteps, every: Floats, start: float, pitch: float, y: Scale, series: int, budget: int) -> str:
    """One launch as a line; as medians with a band from smallest to largest where there are too many steps."""
    limited = np.minimum(every, y.high)
    width = max(1, -(-every.size // budget))
    whole = every.size // width * width
    stretches = limited[:whole].reshape(-1, width)
    medians, lows, highs = np.median(stretches, axis=1), stretches.min(axis=1), stretches.max(axis=1)
    if whole < every.size:
        rest = limited[whole:]
        medians, lows, highs = (
            np.append(known, found(rest)) for known, found in ((medians, np.median), (lows, np.min), (highs, np.max))
        )
    across = (start + (np.minimum((np.arange(medians.size) + 0.5) * width, every.size)) * pitch).tolist()
    middle = [(x, y(value)) for x, value in zip(across, medians.tolist(), strict=True)]
    inner = launch.warmup.size // width
    parts = [svg.tooltip(f"{launch.arm}, block {launch.block + 1} ({launch.launch})")]
    if width > 1:
        upper = [(x, y(value)) for x, value in zip(across, highs.tolist(), strict=True)]
        lower = [(x, y(value)) for x, value in zip(across, lows.tolist(), strict=True)]
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in [*upper, *reversed(lower)])
        parts.append(svg.element("polygon", {"points": points, "class": "band"}))
    if inner:
        parts.append(svg.polyline(middle[: inner + 1], "trace pale"))
    parts.append(svg.polyline(middle[inner:], "trace"))
    return svg.element("g", {"class": f"s{series % svg.SERIES}"}, *parts)
