"""docs/performance.md and docs/scaling.md: prose by hand, and between marks the last results of the benchmarks.

    python -m benchmarks.page [--write]

A mark is ``<!-- result: NAME -->`` … ``<!-- end -->``; NAME is a benchmark's, or "missed" for every target that was
missed. The results are ``benchmarks/results/*.json``. Without ``--write`` it says which page differs from them, and
exits 1 when one does.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from benchmarks.common import Limit, bounds, number, verdict
from suite.paths import project_root

PAGES = ("docs/performance.md", "docs/scaling.md")
MISSED = "missed"
_MARK = re.compile(r"(<!-- result: ([a-z_]+) -->\n).*?(<!-- end -->)", re.DOTALL)
# Scripts whose tables are made from their outcomes as they stand.
PLAIN = ("link_limit", "campaign_overhead", "deploy", "controller_scale", "launch_scale", "image_fidelity")


def render(page: str, results: Path) -> str:
    """The page with every marked part as the results have it.

    Raises:
        ValueError: a mark names no benchmark.
    """

    def part(match: re.Match[str]) -> str:
        name = match.group(2)
        text = missed(results) if name == MISSED else section(name, results / f"{name}.json")
        return f"{match.group(1)}\n{text}\n\n{match.group(3)}"

    return _MARK.sub(part, page)


def section(name: str, path: Path) -> str:
    """One benchmark: when and where, the targets, the table.

    Raises:
        ValueError: there is no such benchmark.
    """
    if name not in (*PLAIN, *_ADAPTERS):
        raise ValueError(f"a page names a benchmark that is none: {name!r}")
    if not path.is_file():
        return "Not run yet."
    document = json.loads(path.read_text(encoding="utf-8"))
    parts = [_when(document)]
    found = limits_of(document)
    if found:
        parts.append(limit_table(found))
    parts.append(f"```\n{table_of(document)}\n```")
    return "\n\n".join(parts)


def missed(results: Path) -> str:
    """Every target that was missed, over all results."""
    lines = []
    for path in sorted(results.glob("*.json")):
        document = json.loads(path.read_text(encoding="utf-8"))
        for limit in limits_of(document):
            if limit.met is False:
                seen = number(limit.seen or 0.0, limit.unit)
                lines.append(f"* `{document['benchmark']}`: {limit.what}: {seen}, {bounds(limit)} was the target.")
    return "\n".join(lines) or "None."


def limit_table(found: Sequence[Limit]) -> str:
    """A Markdown table of targets."""
    rows = [
        f"| {limit.what} | {'–' if limit.seen is None else number(limit.seen, limit.unit)} | {bounds(limit)}"
        f" | {'**missed**' if limit.met is False else verdict(limit)} |"
        for limit in found
    ]
    return "\n".join(["| target | seen | bound | |", "|---|---|---|---|", *rows])


def limits_of(document: dict[str, Any]) -> list[Limit]:
    """The targets of a result, whatever its script calls them."""
    adapter = _ADAPTERS.get(document["benchmark"])
    if adapter is not None:
        return adapter[0](document)
    return [Limit(**limit) for limit in document["limits"]]


def table_of(document: dict[str, Any]) -> str:
    """The script's own table of a result."""
    name = document["benchmark"]
    adapter = _ADAPTERS.get(name)
    if adapter is not None:
        return adapter[1](document)
    table: Callable[[dict[str, Any]], str] = importlib.import_module(f"benchmarks.{name}").table
    return table(document["outcomes"])


def _when(document: dict[str, Any]) -> str:
    words = []
    if "created" in document:
        words.append(f"Taken {document['created'][:10]}")
    if document.get("quick"):
        words.append("with few repetitions (`--quick`)")
    where = document.get("machine")
    if where:
        words.append(
            f"on {where['cores']} cores, load average {where['load_before'][0]:g} before"
            f" and {where['load_after'][0]:g} after"
        )
    return (" ".join(words) or "A simulation: the machine plays no part") + "."


# Scripts with a form of their own


def _made(kind: type[Any], value: dict[str, Any]) -> Any:
    """A flat dataclass from the part of ``value`` that it knows."""
    return kind(**{field.name: value[field.name] for field in fields(kind) if field.name in value})


def _simulation_limits(document: dict[str, Any]) -> list[Limit]:
    judged = [outcome for outcome in document["outcomes"] if outcome.get("assumed", True)]
    false = [outcome["false"] for outcome in judged if outcome["false"] is not None]
    coverage = [outcome["coverage"] for outcome in judged]
    return [
        Limit(
            "false verdicts between identical arms, worst scenario", max(false), None, document["limits"]["false"], "%"
        ),
        Limit(
            "intervals that hold the truth, worst scenario", min(coverage), document["limits"]["coverage"], None, "%"
        ),
    ]


def _simulation_table(document: dict[str, Any]) -> str:
    module = importlib.import_module("benchmarks.statistics_simulation")
    return str(module.table([_made(module.Outcome, outcome) for outcome in document["outcomes"]]))


def _verdict_table(document: dict[str, Any]) -> str:
    module = importlib.import_module("benchmarks.verdict_time")
    times = [
        module.VerdictTime(
            **{
                **outcome,
                "standard": _made(module.Verdicts, outcome["standard"]),
                "fixed": _made(module.Verdicts, outcome["fixed"]),
            }
        )
        for outcome in document["outcomes"]
    ]
    noise = document["noise"]
    return (
        f"noise between launches {noise['launch']:.1%}, of steps {noise['step']:.1%};"
        f" {document['launch_seconds']:g} s a launch\n{module.table(times)}"
    )


def _report_limits(document: dict[str, Any]) -> list[Limit]:
    return [Limit(**limit) for limit in document["limits"]]


def _report_table(document: dict[str, Any]) -> str:
    module = importlib.import_module("benchmarks.report_scale")
    sizes = document["outcomes"]["sizes"]
    costs = {entry["name"]: _made(module.Cost, entry) for entry in sizes}
    return str(module.table([_made(module.Size, entry) for entry in sizes], costs))


_ADAPTERS: dict[str, tuple[Callable[[dict[str, Any]], list[Limit]], Callable[[dict[str, Any]], str]]] = {
    "statistics_simulation": (_simulation_limits, _simulation_table),
    "verdict_time": (lambda _document: [], _verdict_table),
    "report_scale": (_report_limits, _report_table),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare or write the pages; 1 when one differs and was not written."""
    parser = argparse.ArgumentParser(description="The pages of the benchmarks' results.")
    parser.add_argument("--write", action="store_true", help="write the pages")
    write = parser.parse_args(arguments).write
    stale = False
    for name in PAGES:
        path = project_root() / name
        before = path.read_text(encoding="utf-8")
        after = render(before, project_root() / "benchmarks" / "results")
        if after == before:
            continue
        stale = True
        if write:
            path.write_text(after, encoding="utf-8")
        sys.stdout.write(f"{name}: {'written' if write else 'differs from benchmarks/results'}\n")
    return 1 if stale and not write else 0


if __name__ == "__main__":
    raise SystemExit(main())
