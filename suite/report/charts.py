"""The pictures of a report, each with a title and a text that says what it shows to who cannot see it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from suite.report import format as fmt
from suite.report import svg
from suite.report.svg import Frame, Scale
from suite.summary import CollectiveResult, Row, Summary

WIDTH = 560.0
WIDE = 1140.0
MOST_LINEAR_WORLDS = 8  # largest over smallest world size that a linear axis shows well


@dataclass(frozen=True)
class Chart:
    """``name`` is a file's name without its suffix; ``caption`` says how to read it."""

    name: str
    title: str
    caption: str
    markup: str
    wide: bool = False


def file_name(*parts: object) -> str:
    """A name that is safe as a file's and as an id."""
    return re.sub(r"[^A-Za-z0-9]+", "-", "-".join(map(str, parts))).strip("-").lower()


def series_of(arms: Sequence[str]) -> dict[str, int]:
    return {arm: i for i, arm in enumerate(dict.fromkeys(arms))}


def time_axis(low: float, high: float, wanted: int = 5) -> tuple[list[float], svg.Label, str]:
    """Ticks, labels and unit for seconds."""
    unit, scale = next(
        ((name, factor) for factor, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")) if high >= factor), ("ns", 1e-9)
    )
    ticks = [t * scale for t in svg.nice_ticks(low / scale, high / scale, wanted)]
    return ticks, lambda t: f"{t / scale:.6g}", unit


def exposed(key: str, rows: Sequence[Row], arms: Sequence[str]) -> Chart | None:
    """Compute and exposed communication per arm as parts of one step."""
    series = series_of(arms)
    shown = [r for r in rows if r.step_seconds and r.compute_seconds and r.exposed_communication_seconds]
    if not shown:
        return None
    frame = Frame(WIDTH, 74 + 38.0 * len(shown), left=92, right=84, top=26)
    high = max(max(r.step_seconds.median, r.compute_seconds or 0, _interval_end(r)) for r in shown if r.step_seconds)
    ticks, label, unit = time_axis(0.0, high)
    x = Scale(0.0, ticks[-1], *frame.x_range)
    y0, y1 = frame.y_range
    parts = [svg.line(x(t), y0, x(t), y1, "grid") for t in ticks]
    said = []
    for i, row in enumerate(shown):
        step, compute, outside = row.step_seconds, row.compute_seconds, row.exposed_communication_seconds
        assert step is not None and compute is not None and outside is not None
        y = y1 + 10 + 38 * i
        inner = min(compute, step.median)
        parts.append(svg.text(frame.left - 8, y + 15, row.arm, "tick strong", "end"))
        tip = f"{row.arm}: compute {fmt.time(compute)}, exposed communication {fmt.estimate(outside)}"
        bars = ((0.0, inner, "compute"), (inner, max(step.median, inner), "exposed"))
        parts.append(
            svg.element(
                "g",
                {"class": f"s{series[row.arm] % svg.SERIES}"},
                svg.tooltip(tip),
                *(_bar(x(begin), x(end), y, kind) for begin, end, kind in bars),
            )
        )
        beside = x(step.median)
        if outside.ci is not None:
            low, high_end = (x(max(0.0, compute + end)) for end in outside.ci)
            parts.append(svg.element(
                "g", {"class": "interval"}, svg.line(low, y + 11, high_end, y + 11, "whisker"),
                svg.line(low, y + 7, low, y + 15, "whisker"), svg.line(high_end, y + 7, high_end, y + 15, "whisker"),
            ))  # fmt: skip
            beside = max(beside, high_end)
        parts.append(svg.text(beside + 9, y + 15, f"{fmt.share(row.exposed_share)} exposed", "tick"))
        said.append(f"{row.arm}: compute {fmt.time(compute)}, exposed {fmt.estimate(outside)}")
    parts.append(frame.x_axis([(x(t), label(t)) for t in ticks], f"one step, {unit}"))
    parts.append(svg.text(frame.left, 13, "solid: compute; pale: exposed communication, with 95% interval", "axis"))
    name = file_name("exposed", key)
    return Chart(
        name,
        "Compute and exposed communication",
        "Exposed communication is what a step takes longer than the same step without it (no_sync); the rest of the"
        " communication hides behind the backward pass.",
        svg.chart(frame, f"Compute and exposed communication, {key}", "; ".join(said), parts, name),
    )


def _interval_end(row: Row) -> float:
    """Where the interval of the exposed communication ends on the axis of the step, seconds; 0 without one."""
    outside = row.exposed_communication_seconds
    return 0.0 if outside is None or outside.ci is None else (row.compute_seconds or 0.0) + outside.ci[1]


def _bar(begin: float, end: float, y: float, kind: str) -> str:
    attributes = {"x": begin, "y": y, "width": max(0.5, end - begin), "height": 22.0, "class": kind}
    return svg.element("rect", attributes)


def bandwidth(summary: Summary, collective: str, world_size: int, arms: Sequence[str]) -> Chart | None:
    """busbw over message size, with the measured link as a line that nothing should cross."""
    found = [
        r for r in summary.collectives
        if (r.collective, r.world_size) == (collective, world_size) and r.purpose == "sweep"
        and r.bytes > 0 and (r.busbw or 0) > 0  # somebody else's summary may say anything
    ]  # fmt: skip
    if not found:
        return None
    groups: dict[str, list[CollectiveResult]] = {}
    for r in found:
        groups.setdefault(r.arm if r.implementation == "torch" else f"{r.arm} ({r.implementation})", []).append(r)
    series = series_of([*arms, *groups])
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
            svg.mark(
                place, *point, f"{name}, {fmt.size(r.bytes)}: {fmt.bandwidth(r.busbw)}, {fmt.time_ci(r.seconds, r.ci)}"
            )
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
    shown = [
        r for r in rows
        if r.workload == workload and r.status == "ok" and (r.samples_per_second or 0) > 0 and r.world_size > 0
    ]  # fmt: skip
    worlds = sorted({r.world_size for r in shown})
    if len(worlds) < 2:
        return None
    series = series_of(arms)
    single = next((r.single_process_seconds for r in shown if r.single_process_seconds), None)
    per_rank = _batch_rate(shown[0], single)
    ideal = [(w, per_rank * w) for w in worlds] if per_rank else []
    values = [r.samples_per_second or 0 for r in shown] + [v for _, v in ideal]
    frame = Frame(WIDTH, 300)
    # A straight line stays straight on two linear or two logarithmic axes; the latter only where the range needs it.
    log = worlds[-1] > MOST_LINEAR_WORLDS * worlds[0]
    ticks = svg.decade_ticks(min(values), max(values)) if log else svg.nice_ticks(0.0, max(values))
    y = Scale(ticks[0], ticks[-1], *frame.y_range, log=log)
    left, right = frame.x_range
    x = Scale(worlds[0], worlds[-1], left + 26, right - 26, log=log)
    parts = [frame.y_axis(y, ticks, lambda t: f"{t:.6g}", "samples/s")]
    if ideal:
        parts.append(svg.polyline([(x(w), y(v)) for w, v in ideal], "bound"))
    said = []
    by_arm: Mapping[str, list[Row]] = {
        a: sorted((r for r in shown if r.arm == a), key=lambda r: r.world_size) for a in series
    }
    for arm, mine in by_arm.items():
        if not mine:
            continue
        points = [(x(r.world_size), y(r.samples_per_second or 0)) for r in mine]
        parts.append(svg.element("g", {"class": f"s{series[arm] % svg.SERIES}"}, svg.polyline(points, "trace")))
        for point, r in zip(points, mine, strict=True):
            efficiency = f", efficiency {fmt.share(r.weak_scaling_efficiency)}" if r.weak_scaling_efficiency else ""
            parts.append(
                svg.mark(
                    series[arm],
                    *point,
                    f"{arm}, {r.world_size} ranks: {fmt.rate(r.samples_per_second)} samples/s{efficiency}",
                )
            )
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
    if single is None or single <= 0 or row.step_seconds is None or not row.samples_per_second:
        return None
    batch = round(row.samples_per_second * row.step_seconds.median / row.world_size)
    return max(1, batch) / single
