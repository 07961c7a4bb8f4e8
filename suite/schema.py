"""JSON Schemas of the files that the suite writes, generated from the dataclasses, and their tables for readers.

``python -m suite.schema --write`` renews ``docs/*.schema.json`` and ``docs/schema.md``; a test fails when these and the
code disagree.
"""

from __future__ import annotations

import argparse
import inspect
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

import msgspec

from suite import paths, records, summary
from suite.plan import Plan
from suite.policy import ENVIRONMENT_PREFIX, FACTS

DOCUMENTS: dict[str, tuple[type, str]] = {
    "summary": (summary.Summary, "`summary.json`: the machine-readable contract of a finished run"),
    "rank-record": (records.RankRecord, "`launches/<launch>/rank-<r>.json`: what one rank says of one launch"),
    "manifest": (records.Manifest, "`manifest.json`: the ledger of a run"),
    "plan": (Plan, "`plan.json`: what a run will do"),
    "bundle": (summary.BundleInfo, "`bundle.json`: what made a published bundle"),
}
HEADING = """# Files and their fields

Generated from the code by `python -m suite.schema --write`; do not edit. The same as JSON Schema (2020-12) is beside
this file: {files}.

Names end in their unit: `_ns` nanoseconds (integers), `_seconds` or no ending seconds, `_bytes` or `bytes` bytes,
`busbw` and `algbw` bytes per second. A value that was not measured or could not be estimated is `null`, never a guess.
`ci` is a 95% interval, `[low, high]`. Wall-clock instants (`at`, `started_at`) are POSIX seconds, UTC.
"""


def schema(name: str) -> dict[str, Any]:
    """The JSON Schema of one document.

    Args:
        name: a key of ``DOCUMENTS``.
    """
    kind, meaning = DOCUMENTS[name]
    found: dict[str, Any] = _normalised(msgspec.json.schema(kind))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"{name}, format {_format(kind)}",
        "description": meaning.replace("`", ""),
        **found,
    }


def _normalised(node: Any) -> Any:
    """The same text from every version of msgspec: they differ in which defaults they state and in how they indent.

    The tables in schema.md state all defaults.
    """
    if isinstance(node, list):
        return [_normalised(item) for item in node]
    if not isinstance(node, dict):
        return node
    found: dict[str, Any] = {}
    for key, value in node.items():
        if key in ("properties", "$defs"):  # its keys are names, not keywords
            found[key] = {name: _normalised(inner) for name, inner in value.items()}
        elif key == "description":
            found[key] = " ".join(value.split())
        elif key != "default":
            found[key] = _normalised(value)
    return found


def _format(kind: type) -> Any:
    return next((f.default for f in fields(kind) if f.name == "format"), None)


def schema_text(name: str) -> str:
    """As it is stored."""
    return json.dumps(schema(name), indent=1, ensure_ascii=False) + "\n"


def markdown() -> str:
    """``docs/schema.md``: every document, every type in it, every field with its type and default."""
    files = ", ".join(f"`{name}.schema.json`" for name in DOCUMENTS)
    parts = [HEADING.format(files=files)]
    done: set[type] = set()
    for kind, meaning in DOCUMENTS.values():
        parts.append(f"## {meaning}")
        for part in _reachable(kind):
            if part in done:
                continue
            done.add(part)
            parts.append(_type_section(part))
    parts.append(_facts_section())
    return "\n\n".join(parts) + "\n"


def _reachable(kind: type) -> list[type]:
    """The type itself and every dataclass in its fields, in order of first use."""
    found = [kind]
    for place in found:  # grows while it is read
        for inner in _dataclasses_in(_hints(place).values()):
            if inner not in found:
                found.append(inner)
    return found


def _hints(kind: type) -> dict[str, Any]:
    return dict(inspect.get_annotations(kind, eval_str=True))


def _dataclasses_in(hints: Any) -> list[type]:
    found: list[type] = []
    for hint in hints:
        if isinstance(hint, type) and is_dataclass(hint):
            found.append(hint)
        found += _dataclasses_in(getattr(hint, "__args__", ()))
    return found


def _type_section(kind: type) -> str:
    lines = [f"### {kind.__name__}", _text(inspect.getdoc(kind) or ""), "| field | type | default |\n|---|---|---|"]
    written = inspect.get_annotations(kind)
    for field in fields(kind):
        default = _default(field)
        shown = str(written[field.name]).replace("|", "or")
        lines[-1] += f"\n| `{field.name}` | {_cell(shown)} | {default} |"
    return "\n\n".join(lines)


def _default(field: Any) -> str:
    if field.default_factory is not MISSING:
        return "empty" if not field.default_factory() else "see the type"
    if field.default is MISSING:
        return "required"
    if field.default is None:
        return "`null`"
    if is_dataclass(field.default):
        return "see the type"
    return f"`{json.dumps(field.default, ensure_ascii=False)}`" if field.default != () else "empty"


def _text(docstring: str) -> str:
    """A docstring as a Markdown paragraph: double backticks become single ones, lines are joined."""
    paragraphs = re.split(r"\n\s*\n", docstring.strip())
    joined = [" ".join(line.strip() for line in paragraph.splitlines()) for paragraph in paragraphs]
    return "\n\n".join(joined).replace("``", "`")


def _cell(text: str) -> str:
    return text.replace("<", "&lt;").replace(">", "&gt;")


def _facts_section() -> str:
    rows = "\n".join(f"| `{name}` | {fact.policy} | {fact.meaning} |" for name, fact in FACTS.items())
    return (
        "## Facts of a rank's `environment`\n\n"
        "*refuse*: results with different values are not compared. *warn*: they are, with a warning. *info*: for the"
        f" reader. Allow-listed variables are `{ENVIRONMENT_PREFIX}NAME` (info). An unknown fact is `null`; unknown is"
        " not equal.\n\n| fact | a difference | meaning |\n|---|---|---|\n" + rows
    )


def documents() -> Mapping[str, str]:
    """File name below ``docs/`` → text, of everything that is generated."""
    return {**{f"{name}.schema.json": schema_text(name) for name in DOCUMENTS}, "schema.md": markdown()}


def main(arguments: list[str] | None = None) -> int:
    """``python -m suite.schema [--write]``: say which files differ from the code, or write them. 1 if some differ."""
    parser = argparse.ArgumentParser(prog="python -m suite.schema", description=main.__doc__)
    parser.add_argument("--write", action="store_true", help="write the files")
    parser.add_argument("--folder", type=Path, default=paths.project_root() / "docs", help="where they lie")
    options = parser.parse_args(arguments)
    stale = []
    for name, text in documents().items():
        path = options.folder / name
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
            if options.write:
                paths.replace(path, text)
    for name in stale:
        sys.stdout.write(f"{name}: {'written' if options.write else 'differs from the code'}\n")
    return 1 if stale and not options.write else 0


if __name__ == "__main__":
    sys.exit(main())
