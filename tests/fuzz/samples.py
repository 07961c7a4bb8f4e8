"""What all properties share: their form, what an error must be, and the files of a small sound run."""

from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from suite import codec
from suite.analysis.summarise import summarise
from suite.errors import SuiteError
from suite.paths import RunPaths
from tests.fuzz.generate import damaged
from tests.support.synthetic import TWO_ARMS, Truth, write_run

Check = Callable[[Any], None]


@dataclass(frozen=True)
class Property:
    """``strategy`` makes inputs, ``check`` raises when one is not handled."""

    strategy: st.SearchStrategy[Any]
    check: Check


def clean(error: SuiteError) -> None:
    """An error says something, and costs the exit code of an error."""
    assert error.message.strip(" :")
    assert 1 <= error.exit_code <= 3


@functools.cache
def sample_run() -> dict[str, bytes]:
    """The files of a small sound run, by path within it."""
    with tempfile.TemporaryDirectory() as folder:
        truth = Truth(TWO_ARMS, hosts=2, worlds=(2,), blocks=2, steps=5, warmup=3, sweep=True)
        run = write_run(Path(folder), truth)
        return {str(p.relative_to(run.root)): p.read_bytes() for p in sorted(run.root.rglob("*.json"))}


def sample(part: str) -> Any:
    name = next(name for name in sample_run() if part in name)
    return json.loads(sample_run()[name])


@functools.cache
def sample_summary() -> Any:
    with tempfile.TemporaryDirectory() as folder:
        return json.loads(codec.encode(summarise(write_files(Path(folder), sample_run()))))


def write_files(folder: Path, files: dict[str, bytes]) -> RunPaths:
    root = folder / "run"
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return RunPaths(root)


def json_of(part: str) -> st.SearchStrategy[bytes]:
    return st.deferred(lambda: damaged(sample(part)))
