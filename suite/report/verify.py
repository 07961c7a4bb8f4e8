"""Whether a bundle is what it says: its checksums, and its numbers recomputed from its own raw records, offline."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suite import codec
from suite.analysis.load import load_run
from suite.analysis.summarise import summarise_data
from suite.errors import RecordError, UsageError
from suite.report import bundle, render
from suite.summary import BundleInfo, Summary

TOLERANCE = 1e-9  # relative: another numpy may round the last digit differently
FITTED = "summary.json.models["  # least squares: near their minimum, α and β move a lot before the sum of squares does
FITTED_TOLERANCE = 1e-5
MOST_DIFFERENCES = 20
TEXTS = {"tables.csv": "csv", "report.md": "markdown", "report.html": "html"}


@dataclass(frozen=True)
class Verification:
    """``differences`` name what is wrong; ``notes`` say what could not be checked, and what was."""

    bundle: str
    files: int
    differences: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def sound(self) -> bool:
        """Whether nothing differs."""
        return not self.differences


def verify(path: Path) -> Verification:
    """Check a bundle's checksums, then recompute its summary and its texts from the raw records.

    Raises:
        UsageError: there is no bundle at that path.
    """
    if not os.path.isfile(path / bundle.SUMS):  # noqa: PTH113 - False, not an error, for what cannot be a path
        raise UsageError(
            f"{path}: no published bundle there (no {bundle.SUMS}).", fix="name a folder of results/published."
        )
    differences: list[str] = []
    notes: list[str] = []
    files = 0
    try:
        files = _check_sums(path, differences)
        info = codec.read(path / bundle.INFO, BundleInfo)
        _recompute(path, info, differences, notes)
    except RecordError as error:
        differences.append(str(error))
    return Verification(path.name, files, tuple(differences), tuple(notes))


def _check_sums(path: Path, differences: list[str]) -> int:
    stated, found = bundle.read_sums(path), bundle.checksums(path)
    for name in sorted(set(stated) - set(found)):
        differences.append(f"{name}: listed in {bundle.SUMS}, but missing")
    for name in sorted(set(found) - set(stated)):
        differences.append(f"{name}: not listed in {bundle.SUMS}")
    for name in sorted(set(found) & set(stated)):
        if found[name] != stated[name]:
            differences.append(f"{name}: its bytes are not those that were published (SHA-256 differs)")
    for name in bundle.odd_entries(path):
        differences.append(f"{name}: is no plain file; a bundle has no links, pipes or devices")
    return len(found)


def _recompute(path: Path, info: BundleInfo, differences: list[str], notes: list[str]) -> None:
    try:
        stored = json.loads(codec.read_plain(path / "summary.json"))
    except (ValueError, RecursionError) as error:
        raise RecordError(path / "summary.json", f"cannot be read: {error}.") from None
    with bundle.unpacked(path) as run:
        data = load_run(run)
        summary = summarise_data(data)
        recomputed = json.loads(codec.encode(summary))
        found = list(compare_json(stored, recomputed, "summary.json"))
        differences += found[:MOST_DIFFERENCES]
        if len(found) > MOST_DIFFERENCES:
            differences.append(f"summary.json: and {len(found) - MOST_DIFFERENCES} more differences")
        if not found:
            launches = sum(1 for launch in data.launches if launch.usable)
            notes.append(f"summary.json: recomputed from {launches} launches, every number agrees")
        if info.report_code != bundle.report_code():
            notes.append(
                "report.md, report.html and tables.csv were written by another version of the report's code; their"
                " checksums were checked, their text was not made again"
            )
            return
        # The text of what was published follows from the stored summary, whose numbers have just been checked.
        source = codec.read(path / "summary.json", Summary) if not found else summary
        for name, form in TEXTS.items():
            if codec.read_plain(path / name) != render(source, data, form).encode():
                differences.append(f"{name}: is not what the raw records give")


def compare_json(stored: Any, recomputed: Any, place: str) -> Iterator[str]:
    """Every place where two documents differ. Fields that only the newer one has are no difference."""
    if isinstance(stored, dict) and isinstance(recomputed, dict):
        for key in stored:
            if key not in recomputed:
                yield f"{place}: {key!r} cannot be recomputed"
            else:
                yield from compare_json(stored[key], recomputed[key], f"{place}.{key}")
    elif isinstance(stored, list) and isinstance(recomputed, list):
        if len(stored) != len(recomputed):
            yield f"{place}: has {len(stored)} entries, the raw records give {len(recomputed)}"
        for i, (a, b) in enumerate(zip(stored, recomputed, strict=False)):
            yield from compare_json(a, b, f"{place}[{i}]")
    elif not _same(stored, recomputed, FITTED_TOLERANCE if place.startswith(FITTED) else TOLERANCE):
        yield f"{place}: says {_short(stored)}, the raw records give {_short(recomputed)}"


def _same(a: Any, b: Any, tolerance: float) -> bool:
    numbers = all(isinstance(x, (int, float)) and not isinstance(x, bool) for x in (a, b))
    if numbers:
        try:
            return math.isclose(a, b, rel_tol=tolerance, abs_tol=1e-15)
        except OverflowError:  # an integer that no float holds
            return bool(a == b)
    return type(a) is type(b) and bool(a == b)


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


def verification_text(result: Verification) -> str:
    """What ``fab verify`` prints."""
    lines = [f"{result.bundle}: {result.files} files"]
    lines += [f"  differs: {text}" for text in result.differences]
    lines += [f"  note: {text}" for text in result.notes]
    lines.append("  sound: checksums and numbers agree." if result.sound else "  NOT sound.")
    return "\n".join(lines) + "\n"
