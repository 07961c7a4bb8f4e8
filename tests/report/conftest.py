"""Runs that the report tests share; written once a session, read only."""

from __future__ import annotations

from pathlib import Path

import pytest

from suite.analysis.load import RunData, load_run
from suite.analysis.summarise import summarise_data
from suite.paths import RunPaths
from suite.summary import Summary
from tests.support.synthetic import TWO_ARMS, Truth, write_run

EXAMPLE = Truth(
    TWO_ARMS,
    workloads=("linear", "transformer-tiny"),
    worlds=(1, 2, 4),
    sweep=True,
    unavailable={"nccl": "no CUDA device on h1, h2, h3, h4"},
    failed=frozenset({("mpi", 3)}),
)


@pytest.fixture(scope="session")
def example_run(tmp_path_factory: pytest.TempPathFactory) -> RunPaths:
    """Two workloads, three world sizes, a sweep, a failed launch and an unavailable backend."""
    return write_run(tmp_path_factory.mktemp("example"), EXAMPLE, "20260102T030405Z-standard-0001")


@pytest.fixture(scope="session")
def example_data(example_run: RunPaths) -> RunData:
    return load_run(example_run)


@pytest.fixture(scope="session")
def example(example_data: RunData) -> Summary:
    return summarise_data(example_data)


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty ``results/`` of the test's own."""
    folder = tmp_path / "results"
    monkeypatch.setenv("SUITE_RESULTS", str(folder))
    return folder
