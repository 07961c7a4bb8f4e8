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
from pathlib import Path
from typing import Any

from benchmarks.catalogue import QUESTIONS
from benchmarks.common import Limit, bounds, number, verdict
from suite.paths import project_root

PAGES = ("docs/performance.md", "docs/scaling.md")
MISSED = "missed"
_MARK = re.compile(r"(<!-- result: ([a-z_]+) -->\n).*?(<!-- end -->)", re.DOTALL)


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
    if name not in QUESTIONS:
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
    """The targets of a result."""
    return [Limit(**limit) for limit in document["limits"]]


def table_of(document: dict[str, Any]) -> str:
    """The script's own table of a result."""
    table: Callable[[dict[str, Any]], str] = importlib.import_module(f"benchmarks.{document['benchmark']}").table
    return table(document["outcomes"])


def _when(document: dict[str, Any]) -> str:
    where = document["machine"]
    few = " with few repetitions (`--quick`)" if document["quick"] else ""
    return (
        f"Taken {document['created'][:10]}{few} on {where['cores']} cores, load average"
        f" {where['load_before'][0]:g} before and {where['load_after'][0]:g} after."
    )


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
