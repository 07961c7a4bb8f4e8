"""What the scripts of this folder share: their options, the limits they judge, and the JSON they leave.

A result says where it was taken: cores, versions, and the load average before and after, because ratios within
one run bear a busy machine and absolute times do not. No host's name and no path of the machine is kept.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import suite
from suite.provenance import commit

IMAGE = "ddp-backend-suite:cpu"


@dataclass(frozen=True)
class Limit:
    """One target and what was seen. ``low`` and ``high`` are the bounds, each included; None for none.

    ``unit`` is appended to the numbers as it is; "%" makes 0.93 read 93%. ``seen`` None: not measured.
    """

    what: str
    seen: float | None
    low: float | None = None
    high: float | None = None
    unit: str = ""

    @property
    def met(self) -> bool | None:
        """Whether what was seen lies within the bounds; None when nothing was."""
        if self.seen is None:
            return None
        return (self.low is None or self.seen >= self.low) and (self.high is None or self.seen <= self.high)


@dataclass(frozen=True)
class Options:
    """The command line of a script.

    ``quick``: fewer repetitions. ``json``: where to write the result. ``lab``: the folder of a simulated
    cluster to use and to leave running; None: one of the script's own. ``image``: the worker image.
    """

    quick: bool = False
    json: Path | None = None
    lab: Path | None = None
    image: str = IMAGE


def parse_options(description: str | None, arguments: Sequence[str] | None = None) -> Options:
    """The options from the words of the command line (None: this process's own)."""
    parser = argparse.ArgumentParser(description=(description or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    parser.add_argument("--json", type=Path, help="write the result there")
    parser.add_argument("--lab", type=Path, help="folder of a simulated cluster to use and leave running")
    parser.add_argument("--image", default=IMAGE, help=f"the worker image (default: {IMAGE})")
    found = parser.parse_args(arguments)
    return Options(found.quick, found.json, found.lab, found.image)


def machine(before: Sequence[float]) -> dict[str, Any]:
    """Where a result was taken. ``before`` is the load average (1, 5, 15 minutes) at the start."""
    return {
        "cores": os.cpu_count(),
        "architecture": platform.machine(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_before": [round(value, 1) for value in before],
        "load_after": [round(value, 1) for value in os.getloadavg()],
    }


def document(
    name: str, options: Options, before: Sequence[float], limits: Sequence[Limit], outcomes: dict[str, Any]
) -> dict[str, Any]:
    """The whole of a script's JSON."""
    revision, dirty = commit()
    return {
        "benchmark": name,
        "created": f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%dT%H:%M:%SZ}",
        "quick": options.quick,
        "suite_version": suite.__version__,
        "suite_commit": revision + ("+changes" if dirty else ""),
        "machine": machine(before),
        "limits": [asdict(limit) for limit in limits],
        "outcomes": outcomes,
    }


def finish(result: dict[str, Any], table: str, options: Options) -> int:
    """Print the table and the limits, write the JSON; the exit code: 1 when a limit was missed."""
    print(table)
    limits = [Limit(**limit) for limit in result["limits"]]
    print(limit_lines(limits))
    print(load_line(result["machine"]))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(result, indent=1, allow_nan=False) + "\n")
    return 1 if any(limit.met is False for limit in limits) else 0


def limit_lines(limits: Sequence[Limit]) -> str:
    """One line per limit: met, MISSED or not measured."""
    return "\n".join(f"{verdict(limit):<12} {limit.what}: {seen_and_bounds(limit)}" for limit in limits)


def verdict(limit: Limit) -> str:
    """A word for the outcome."""
    return {True: "met", False: "MISSED", None: "not measured"}[limit.met]


def seen_and_bounds(limit: Limit) -> str:
    """ "0.42 s (at most 0.5 s)"."""
    seen = "–" if limit.seen is None else number(limit.seen, limit.unit)
    return f"{seen} ({bounds(limit)})"


def bounds(limit: Limit) -> str:
    """The bounds in words."""
    if limit.low is not None and limit.high is not None:
        return f"{number(limit.low, limit.unit)} to {number(limit.high, limit.unit)}"
    if limit.high is not None:
        return f"at most {number(limit.high, limit.unit)}"
    return f"at least {number(limit.low or 0.0, limit.unit)}"


def number(value: float, unit: str) -> str:
    """A number with its unit; "%" for shares."""
    if unit == "%":
        return f"{value:.1%}"
    text = f"{value:.0f}" if value == round(value) and abs(value) < 1e15 else f"{value:.3g}"
    return f"{text} {unit}".rstrip()


def load_line(where: dict[str, Any]) -> str:
    """ "2 cores; load average 0.4 before, 1.2 after"."""
    return f"{where['cores']} cores; load average {where['load_before'][0]} before, {where['load_after'][0]} after."


def median(values: Sequence[float]) -> float | None:
    """The median; None of nothing."""
    return statistics.median(values) if values else None


def columns(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Lines of aligned columns; the first ``left`` ones to the left, the others to the right."""
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if place < left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (header, *rows)
    )
