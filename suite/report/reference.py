"""Published tables that gave means only, in this suite's words: ratios of times; no spread, because none was given."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from suite import codec, paths
from suite.analysis import wording
from suite.records import FORMAT_VERSION
from suite.report.terminal import table_text
from suite.report.view import Line, Table

PUBLISHED = "published-2023"


@dataclass(frozen=True)
class Reference:
    """A table as it was published; seconds per step by backend."""

    name: str
    what: str
    hardware: str
    software: str
    protocol: str
    caveats: tuple[str, ...]
    seconds_per_step: dict[str, float]
    format: int = FORMAT_VERSION


def load_reference(name: str = PUBLISHED, folder: Path | None = None) -> Reference:
    """Read one of ``results/reference/``.

    Raises:
        RecordError: it cannot be read.
    """
    where = folder or paths.project_root() / "results" / "reference"
    return codec.read(where / f"{name}.json", Reference)


def ratios(reference: Reference) -> dict[str, float]:
    """Backend → time over the fastest backend's time."""
    fastest = min(reference.seconds_per_step.values())
    return {name: wording.time_ratio(t, fastest) for name, t in reference.seconds_per_step.items()}


def reference_table(reference: Reference) -> Table:
    """Its rows, with the three ways to say each difference kept apart."""
    fastest = min(reference.seconds_per_step, key=lambda name: reference.seconds_per_step[name])
    best = reference.seconds_per_step[fastest]
    lines, sentences = [], []
    for name, ratio in ratios(reference).items():
        seconds = reference.seconds_per_step[name]
        lines.append(Line((name, f"{seconds:.4f} s", wording.ratio_text(ratio), wording.NO_SPREAD)))
        if name != fastest:
            sentence = wording.ratio_sentence(name, fastest, ratio)
            sentences.append(f"{sentence}; {wording.saved_sentence(fastest, name, best, seconds)}.")
    return Table(
        title=f"{reference.what} ({reference.hardware}; {reference.software})",
        columns=("backend", "step time", "vs fastest", "interval"),
        lines=tuple(lines),
        sentences=(*sentences, f"Protocol: {reference.protocol}."),
        warnings=reference.caveats,
    )


def render_reference(reference: Reference, *, colour: bool = False) -> str:
    """The table for a terminal."""
    return table_text(reference_table(reference), colour=colour) + "\n"
