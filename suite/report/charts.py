"""The pictures of a report, each with a title and a text that says what it shows to who cannot see it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from suite.analysis.rows import seconds
from suite.analysis.steps import Floats
from suite.report import format as fmt
from suite.report import svg
from suite.report.svg import Frame, Scale
from suite.summary import CollectiveResult, Row, Summary

WIDTH = 560.0
WIDE = 1140.0
STRIP = 112.0  # height of one arm's strip
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
MOST_POINTS = 2400  # of one picture of steps over time; more are drawn as bands


@dataclass(frozen=True)
class Chart:
    """``name`` is a file's name without its suffix; ``caption`` says how to read it."""

    name: str
    title: str
    caption: str
    markup: str
    wide: bool = False


@dataclass(frozen=True)
class LaunchSteps:
    """One launch for the pictures: T_i after warm-up and during it, seconds."""

    arm: str
    block: int
    launch: str
    steps: Floats
    warmup: Floats


def launch_steps(launch: object) -> LaunchSteps | None:
    """The job's step times of a usable train launch (``suite.analysis.load.LaunchData``)."""
    from suite.analysis.load import LaunchData  # noqa: PLC0415 - only with samples at hand

    assert isinstance(launch, LaunchData)
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


def file_name(*parts: object) -> str:
    """A name that is safe as a file's and as an id."""
    return re.sub(r"[^A-Za-z0-9]+", "-", "-".join(map(str, parts))).strip("-").lower()


def _series(arms: Sequence[str]) -> dict[str, int]:
    return {arm: i for i, arm in enumerate(dict.fromkeys(arms))}


def _time_axis(low: float, high: float, wanted: int = 5) -> tuple[list[float], svg.Label, str]:
    """Ticks, labels and unit for seconds."""
    unit, scale = next(
        ((name, factor) for factor, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")) if high >= factor), ("ns", 1e-9)
    )
    ticks = [t * scale for t in svg.nice_ticks(low / scale, high / scale, wanted)]
    return ticks, lambda t: f"{t / scale:.6g}", unit


def distributions(key: str, launches: Sequence[LaunchSteps], arms: Sequence[str]) -> Chart | None:
    """Step times of every launch against their arm's median: a box per launch, in the order of the blocks.

    Relative, because two arms that differ by a factor would each be a flat line on a common scale of seconds.
    """
    if not launches:
        return None
    series = _series(arms)
    groups = {arm: sorted((x for x in launches if x.arm == arm), key=lambda x: x.block) for arm in series}
    groups = {arm: mine for arm, mine in groups.items() if mine}
    centres = {arm: float(np.median([np.median(x.steps) for x in mine])) for arm, mine in groups.items()}
    quantiles = {x.launch: np.quantile(x.steps, QUANTILES) / centres[x.arm] - 1 for x in launches}
    reach = max(1e-4, *(float(np.abs(q).max()) for q in quantiles.values()))
    frame = Frame(WIDTH, 310, bottom=58)
    ticks = svg.nice_ticks(-reach * 100, reach * 100, 6)
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
        svg.chart(
            frame, f"Step time distributions, {key}", "; ".join(said), parts, file_name("distribution", key)
        ),
    )


def _signed_percent(value: float) -> str:
    return f"{value * 100:+.3g}%".replace("-", "−") if abs(value) > 1e-12 else "0"


def _box(
    x: float, width: float, y: Scale, values: Floats, series: int, launch: LaunchSteps
) -> str:
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
    series = {arm: i for arm, i in _series(arms).items() if any(x.arm == arm for x in launches)}
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
        notes.append(f"{fmt.count(above, 'step')} above a strip's scale {'is' if above == 1 else 'are'} drawn at its top.")
    name = file_name("over-time", key)
    picture = svg.chart(frame, f"Step time over time, {key}", f"{len(blocks)} blocks. " + "; ".join(said), parts, name)
    return Chart(name, "Step time over time", " ".join(notes), picture, wide=True)


def _strip(frame: Frame, place: int, arm: str, measured: Floats) -> tuple[Scale, str]:
    """Scale and axis of one arm's strip: from its smallest step to just above its 99.5th percentile."""
    low, high = float(measured.min()), float(np.quantile(measured, 0.995))
    margin = max(0.15 * (high - low), 0.01 * high)
    top = frame.top + place * STRIP
    ticks, label, unit = _time_axis(max(0.0, low - margin), high + margin, 3)
    y = Scale(ticks[0], ticks[-1], top + STRIP - 14, top + 20)
    x0, x1 = frame.x_range
    axis = [svg.line(x0, y(t), x1, y(t), "grid") for t in ticks]
    axis += [svg.text(x0 - 7, y(t) + 4, label(t), "tick", "end") for t in ticks]
    axis.append(svg.text(x0, top + 13, f"{arm}, {unit} a step", "tick strong"))
    return y, "".join(axis)


def _trace(
    launch: LaunchSteps, every: Floats, start: float, pitch: float, y: Scale, series: int, budget: int
) -> str:
    """One launch as a line; as medians with a band from smallest to largest where there are too many steps."""
    limited = np.minimum(every, y.high)
    width = max(1, -(-every.size // budget))
    stretches = [limited[i : i + width] for i in range(0, every.size, width)]
    across = [start + (i * width + stretch.size / 2) * pitch for i, stretch in enumerate(stretches)]
    middle = [(x, y(float(np.median(stretch)))) for x, stretch in zip(across, stretches, strict=True)]
    inner = launch.warmup.size // width
    parts = [svg.tooltip(f"{launch.arm}, block {launch.block + 1} ({launch.launch})")]
    if width > 1:
        upper = [(x, y(float(stretch.max()))) for x, stretch in zip(across, stretches, strict=True)]
        lower = [(x, y(float(stretch.min()))) for x, stretch in zip(across, stretches, strict=True)]
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in [*upper, *reversed(lower)])
        parts.append(svg.element("polygon", {"points": points, "class": "band"}))
    if inner:
        parts.append(svg.polyline(middle[: inner + 1], "trace pale"))
    parts.append(svg.polyline(middle[inner:], "trace"))
    return svg.element("g", {"class": f"s{series % svg.SERIES}"}, *parts)


def exposed(key: str, rows: Sequence[Row], arms: Sequence[str]) -> Chart | None:
    """Compute and exposed communication per arm as parts of one step."""
    series = _series(arms)
    shown = [r for r in rows if r.step_seconds and r.compute_seconds and r.exposed_communication_seconds]
    if not shown:
        return None
    frame = Frame(WIDTH, 74 + 38.0 * len(shown), left=92, right=84, top=26)
    high = max(max(r.step_seconds.median, r.compute_seconds or 0) for r in shown if r.step_seconds)
    ticks, label, unit = _time_axis(0.0, high)
    x = Scale(0.0, ticks[-1], *frame.x_range)
    y0, y1 = frame.y_range
    parts = [svg.line(x(t), y0, x(t), y1, "grid") for t in ticks]
    said = []
    for i, row in enumerate(shown):
        step, compute, outside = row.step_seconds, row.compute_seconds, row.exposed_communication_seconds
        assert step is not None and compute is not None and outside is not None  # noqa: PT018 - one fact
        y = y1 + 10 + 38 * i
        inner = min(compute, step.median)
        parts.append(svg.text(frame.left - 8, y + 15, row.arm, "tick strong", "end"))
        kind = f"s{series[row.arm] % svg.SERIES}"
        tip = f"{row.arm}: compute {fmt.time(compute)}, exposed communication {fmt.estimate(outside)}"
        parts.append(svg.element(
            "g", {"class": kind}, svg.tooltip(tip),
            svg.element("rect", {"x": x(0), "y": y, "width": max(0.5, x(inner) - x(0)), "height": 22.0, "class": "compute"}),
            svg.element("rect", {"x": x(inner), "y": y, "width": max(0.5, x(max(step.median, inner)) - x(inner)), "height": 22.0, "class": "exposed"}),
        ))  # fmt: skip
        if outside.ci is not None:
            low, high_end = (x(max(0.0, compute + end)) for end in outside.ci)
            parts.append(svg.element(
                "g", {"class": "interval"}, svg.line(low, y + 11, high_end, y + 11, "whisker"),
                svg.line(low, y + 7, low, y + 15, "whisker"), svg.line(high_end, y + 7, high_end, y + 15, "whisker"),
            ))  # fmt: skip
        parts.append(svg.text(x(step.median) + 9, y + 15, f"{fmt.share(row.exposed_share)} exposed", "tick"))
        said.append(f"{row.arm}: compute {fmt.time(compute)}, exposed {fmt.estimate(outside)}")
    parts.append(frame.x_axis([(x(t), label(t)) for t in ticks], f"one step, {unit}"))
    parts.append(svg.text(frame.left, 13, "solid: compute; pale: exposed communication, with 95% interval", "axis"))
    return Chart(
        file_name("exposed", key),
        "Compute and exposed communication",
        "Exposed communication is what a step takes longer than the same step without it (no_sync); the rest of the"
        " communication hides behind the backward pass.",
        svg.chart(frame, f"Compute and exposed communication, {key}", "; ".join(said), parts, file_name("exposed", key)),
    )  # fmt: skip


def bandwidth(summary: Summary, collective: str, world_size: int, arms: Sequence[str]) -> Chart | None:
    """busbw over message size, with the measured link as a line that nothing should cross."""
    found = [
        r for r in summary.collectives
        if (r.collective, r.world_size) == (collective, world_size) and r.busbw and r.purpose == "sweep"
    ]  # fmt: skip
    if not found:
        return None
    groups: dict[str, list[CollectiveResult]] = {}
    for r in found:
        groups.setdefault(r.arm if r.implementation == "torch" else f"{r.arm} ({r.implementation})", []).append(r)
    series = _series([*arms, *groups])
    links = [x.bytes_per_second for x in summary.links if x.world_size == world_size] or [
        x.bytes_per_second for x in summary.links
    ]
    link = max(links, default=None)
    high = max([r.busbw or 0 for r in found] + ([link] if link else [])) * 8 / 1e9
    frame = Frame(WIDTH, 300)
    ticks = svg.nice_ticks(0.0, high * 1.02)
    y = Scale(0.0, ticks[-1], *frame.y_range)
    sizes = sorted({r.bytes for r in found})
    x = Scale(sizes[0], sizes[-1] if len(sizes) > 1 else sizes[0] * 2, *frame.x_range, log=True)
    parts = [frame.y_axis(y, ticks, lambda t: f"{t:.4g}", "busbw, Gbit/s")]
    if link is not None:
        at = y(link * 8 / 1e9)
        parts.append(svg.line(*(frame.x_range[0], at, frame.x_range[1], at), "bound"))
        parts.append(svg.text(frame.left + 6, at - 6, f"link: {fmt.bandwidth(link)}", "bound-label"))
    said = []
    for name, results in groups.items():
        place = series[name]
        results.sort(key=lambda r: r.bytes)
        points = [(x(r.bytes), y((r.busbw or 0) * 8 / 1e9)) for r in results]
        dashed = "" if results[0].implementation == "torch" else " dashed"
        parts.append(svg.element("g", {"class": f"s{place % svg.SERIES}"}, svg.polyline(points, "trace" + dashed)))
        parts += [
            svg.mark(place, *point, f"{name}, {fmt.size(r.bytes)}: {fmt.bandwidth(r.busbw)}, {fmt.time_ci(r.seconds, r.ci)}")
            for point, r in zip(points, results, strict=True)
        ]
        said.append(f"{name} reaches {fmt.bandwidth(max(r.busbw or 0 for r in results))}")
    shown = [sizes[i] for i in range(0, len(sizes), max(1, -(-len(sizes) // 7)))]
    parts.append(frame.x_axis([(x(s), fmt.size(s)) for s in shown], "message size"))
    parts.append(frame.legend([(series[name], name) for name in groups]))
    bound = f" The link carries {fmt.bandwidth(link)}." if link else ""
    key = file_name("busbw", collective, world_size)
    return Chart(
        key,
        f"{collective}, world size {world_size}: bandwidth over message size",
        "busbw is what crosses each link, so it can be held against the link's own speed (dashed), as point-to-point"
        " sends measured it.",
        svg.chart(frame, f"Bus bandwidth of {collective}", "; ".join(said) + "." + bound, parts, key),
    )


def scaling(workload: str, rows: Sequence[Row], arms: Sequence[str]) -> Chart | None:
    """Throughput over world size per arm, against what one process alone would give times the ranks."""
    shown = [r for r in rows if r.workload == workload and r.samples_per_second and r.status == "ok"]
    worlds = sorted({r.world_size for r in shown})
    if len(worlds) < 2:
        return None
    series = _series(arms)
    single = next((r.single_process_seconds for r in shown if r.single_process_seconds), None)
    per_rank = _batch_rate(shown[0], single)
    ideal = [(w, per_rank * w) for w in worlds] if per_rank else []
    high = max([r.samples_per_second or 0 for r in shown] + [v for _, v in ideal])
    frame = Frame(WIDTH, 300)
    ticks = svg.nice_ticks(0.0, high)
    y = Scale(0.0, ticks[-1], *frame.y_range)
    left, right = frame.x_range
    x = Scale(worlds[0], worlds[-1], left + 26, right - 26, log=True)
    parts = [frame.y_axis(y, ticks, lambda t: f"{t:.6g}", "samples/s")]
    if ideal:
        parts.append(svg.polyline([(x(w), y(v)) for w, v in ideal], "bound"))
    said = []
    by_arm: Mapping[str, list[Row]] = {a: sorted((r for r in shown if r.arm == a), key=lambda r: r.world_size) for a in series}
    for arm, mine in by_arm.items():
        if not mine:
            continue
        points = [(x(r.world_size), y(r.samples_per_second or 0)) for r in mine]
        parts.append(svg.element("g", {"class": f"s{series[arm] % svg.SERIES}"}, svg.polyline(points, "trace")))
        for point, r in zip(points, mine, strict=True):
            efficiency = f", efficiency {fmt.share(r.weak_scaling_efficiency)}" if r.weak_scaling_efficiency else ""
            parts.append(svg.mark(series[arm], *point, f"{arm}, {r.world_size} ranks: {fmt.rate(r.samples_per_second)} samples/s{efficiency}"))
        said.append(arm + ": " + ", ".join(f"{fmt.rate(r.samples_per_second)} at {r.world_size}" for r in mine))
    parts.append(frame.x_axis([(x(w), str(w)) for w in worlds], "world size (ranks)"))
    parts.append(frame.legend([(series[a], a) for a, mine in by_arm.items() if mine]))
    key = file_name("scaling", workload)
    return Chart(
        key,
        f"{workload}: throughput over world size",
        "Dashed: one process's throughput times the number of ranks, which is what no communication at all would give."
        if ideal
        else "One process alone was not measured, so there is no ideal line.",
        svg.chart(frame, f"Throughput over world size, {workload}", "; ".join(said), parts, key),
    )


def _batch_rate(row: Row, single: float | None) -> float | None:
    """Samples per second of one process: batch over T_1; the batch from throughput × step time ÷ ranks."""
    if not single or row.step_seconds is None or not row.samples_per_second:
        return None
    batch = round(row.samples_per_second * row.step_seconds.median / row.world_size)
    return max(1, batch) / single
