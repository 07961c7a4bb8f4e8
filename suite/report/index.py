"""``results/README.md``: every published bundle in one table, generated from the bundles."""

from __future__ import annotations

from pathlib import Path

from suite import codec, paths
from suite.errors import RecordError
from suite.paths import is_safe_name
from suite.report import view
from suite.report.markdown import escape
from suite.summary import SUMMARY_FORMAT, Summary

HEADING = """# Published results

Generated from the bundles by `fab publish`; do not edit. `fab verify results/published/NAME` recomputes a bundle's
numbers from its raw records, offline; `fab reproduce results/published/NAME` runs its plan again.
"""


def render_index(published: Path) -> str:
    """The page. A bundle whose summary cannot be read has a line that says so."""
    rows: list[tuple[str, ...]] = []
    named = (p for p in published.glob("*") if is_safe_name(p.name))  # what publish made; the name goes into a link
    for folder in sorted(p for p in named if (p / "summary.json").is_file()):
        link = f"[{escape(folder.name)}](published/{folder.name}/report.md)"
        try:
            summary = codec.read(folder / "summary.json", Summary, version=SUMMARY_FORMAT)
        except RecordError as error:
            rows.append((link, "", "", "", "", escape(f"cannot be read: {error.message}")))
            continue
        for place, section in enumerate(view.sections(summary)):
            sentence = section.comparison.sentences[0] if section.comparison.sentences else "nothing ranked"
            rows.append(
                (
                    link if place == 0 else "",
                    escape(summary.created[:10]),
                    escape(summary.cluster),
                    escape(f"{section.workload}, {section.world_size}"),
                    escape(summary.plan),
                    escape(sentence),
                )
            )
    if not rows:
        return HEADING + "\nThere is none yet.\n"
    return HEADING + "\n" + table(rows) + "\n"


def table(rows: list[tuple[str, ...]]) -> str:
    """Cells are Markdown already."""
    heading = ("bundle", "date", "cluster", "workload, world size", "plan", "what it says")
    lines = ["| " + " | ".join(heading) + " |", "|" + "---|" * len(heading)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def write_index(published: Path, target: Path) -> None:
    """Renew the page."""
    paths.replace(target, render_index(published))
