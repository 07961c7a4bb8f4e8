"""A small SVG writer: escaped elements, scales, axes. Colours are CSS classes, so that dark mode reaches them.

Coordinates are user units of the view box; one unit is a CSS pixel at the width the report shows it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from suite.report.format import clean

SERIES = 8  # colours defined in the style sheet; more series start again
MARKS = ("circle", "square", "triangle", "diamond")

Number = float | int
Label = Callable[[float], str]


def element(name: str, attributes: dict[str, object], *children: str) -> str:
    """One element; attribute values are escaped, children are markup already. ``_`` in names becomes ``-``."""
    written = "".join(f' {key.replace("_", "-")}="{_value(value)}"' for key, value in attributes.items())
    return f"<{name}{written}>{''.join(children)}</{name}>" if children else f"<{name}{written}/>"


def _value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return escape(clean(value), quote=True)


def text(x: Number, y: Number, content: str, kind: str = "label", anchor: str = "start", **more: object) -> str:
    """Text, escaped; ``kind`` is its class."""
    attributes: dict[str, object] = {"x": float(x), "y": float(y), "class": kind, "text_anchor": anchor, **more}
    return element("text", attributes, escape(clean(content)))


def tooltip(content: str) -> str:
    """The native tooltip of the element that it is a child of."""
    return element("title", {}, escape(clean(content)))


def line(x1: Number, y1: Number, x2: Number, y2: Number, kind: str) -> str:
    """A straight line of a class."""
    return element("line", {"x1": float(x1), "y1": float(y1), "x2": float(x2), "y2": float(y2), "class": kind})


def polyline(points: Sequence[tuple[float, float]], kind: str) -> str:
    """A broken line of a class."""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return element("polyline", {"points": path, "class": kind})


def mark(series: int, x: float, y: float, tip: str = "", size: float = 3.5) -> str:
    """A data point; series differ in shape as well as in colour."""
    attributes: dict[str, object] = {"class": f"mark s{series % SERIES}"}
    children = (tooltip(tip),) if tip else ()
    shape = MARKS[series % len(MARKS)]
    if shape == "circle":
        return element("circle", {"cx": x, "cy": y, "r": size, **attributes}, *children)
    if shape == "square":
        return element(
            "rect", {"x": x - size, "y": y - size, "width": 2 * size, "height": 2 * size, **attributes}, *children
        )
    offsets = {
        "triangle": ((0.0, -1.2), (1.1, 0.9), (-1.1, 0.9)),
        "diamond": ((0.0, -1.3), (1.3, 0.0), (0.0, 1.3), (-1.3, 0.0)),
    }[shape]
    points = " ".join(f"{x + dx * size:.1f},{y + dy * size:.1f}" for dx, dy in offsets)
    return element("polygon", {"points": points, **attributes}, *children)


@dataclass(frozen=True)
class Scale:
    """Data to view box, linear or logarithmic. ``start`` and ``end`` are coordinates, so y may run downwards."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, at = (
            (math.log(v) for v in (self.low, self.high, value)) if self.log else (self.low, self.high, value)
        )
        return self.start + (at - low) / ((high - low) or 1.0) * (self.end - self.start)


def nice_ticks(low: float, high: float, wanted: int = 5) -> list[float]:
    """Round numbers that cover [low, high]: steps of 1, 2, 2.5 or 5 times a power of ten."""
    span = (high - low) or abs(high) or 1.0
    raw = span / max(1, wanted)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
    first = math.floor(low / step + 1e-9)
    last = math.ceil(high / step - 1e-9)
    return [i * step for i in range(first, last + 1)]


def decade_ticks(low: float, high: float) -> list[float]:
    """Powers of ten that enclose [low, high], both positive, with 2 and 5 between them where there are few."""
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    factors = (1, 2, 5) if last - first <= 2 else (1,)
    ticks = [factor * 10.0**power for power in range(first, last + 1) for factor in factors]
    lowest = max((t for t in ticks if t <= low * (1 + 1e-9)), default=ticks[0])
    highest = min((t for t in ticks if t >= high * (1 - 1e-9)), default=ticks[-1])
    return [t for t in ticks if lowest <= t <= highest]


@dataclass(frozen=True)
class Frame:
    """A chart's plotting area within its view box."""

    width: float
    height: float
    left: float = 58
    right: float = 14
    top: float = 34
    bottom: float = 42

    @property
    def x_range(self) -> tuple[float, float]:
        return self.left, self.width - self.right

    @property
    def y_range(self) -> tuple[float, float]:
        return self.height - self.bottom, self.top

    def y_axis(self, scale: Scale, ticks: Sequence[float], label: Label, name: str) -> str:
        """Horizontal grid lines with labels, and the axis' name above them."""
        x0, x1 = self.x_range
        parts = [line(x0, scale(t), x1, scale(t), "grid") for t in ticks]
        parts += [text(x0 - 7, scale(t) + 4, label(t), "tick", "end") for t in ticks]
        return "".join([*parts, text(2, 13, name, "axis")])

    def x_axis(self, ticks: Sequence[tuple[float, str]], name: str) -> str:
        """Labels under the area at given coordinates, and the axis' name under them."""
        y = self.y_range[0]
        parts = [text(x, y + 17, label, "tick", "middle") for x, label in ticks]
        x0, x1 = self.x_range
        return "".join([line(x0, y, x1, y, "axis-line"), *parts, text((x0 + x1) / 2, y + 36, name, "axis", "middle")])

    def legend(self, names: Sequence[tuple[int, str]], right: bool = True) -> str:
        """Series by mark and name, in one line at the top right."""
        x = self.width - self.right if right else self.left
        parts = []
        for series, name in reversed(names):
            shown = name if len(name) <= 24 else name[:23] + "…"
            parts.append(text(x, 13, shown, "legend", "end"))
            x -= 6.7 * len(shown) + 9
            parts.append(mark(series, x, 9))
            x -= 14
        return "".join(parts)


def chart(frame: Frame, title: str, description: str, parts: Sequence[str], name: str) -> str:
    """The finished SVG with its text alternative; ``name`` makes its ids unique in a page."""
    title_id, description_id = f"{name}-title", f"{name}-desc"
    return element(
        "svg",
        {
            "xmlns": "http://www.w3.org/2000/svg",
            "viewBox": f"0 0 {frame.width:g} {frame.height:g}",
            "role": "img",
            "aria_labelledby": f"{title_id} {description_id}",
            "class": "wide" if frame.width > 700 else "chart",
        },
        element("title", {"id": title_id}, escape(clean(title))),
        element("desc", {"id": description_id}, escape(clean(description))),
        *parts,
    )
