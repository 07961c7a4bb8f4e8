"""What every test may rely on; imports nothing but pytest and the standard library.

``tests/worker`` and ``tests/gpu`` run inside images that have torch and pytest and little else.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from functools import cache

import pytest

# A test run started in the background ignores SIGINT, and so would every program that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

REQUIRE_CONTAINERS = "SUITE_REQUIRE_CONTAINERS"


@cache
def engine_problem() -> str:
    """Why no Docker engine can be used here; empty when one answers."""
    if shutil.which("docker") is None:
        return "there is no docker client"
    try:
        done = subprocess.run(["docker", "info"], capture_output=True, text=True, timeout=30, check=False)
    except subprocess.TimeoutExpired:
        return "`docker info` did not answer within 30 s"
    return "" if done.returncode == 0 else "no Docker engine answers"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip container tests, loudly, where there is no engine, unless they are required."""
    wanted = [item for item in items if item.get_closest_marker("containers")]
    if not wanted or os.environ.get(REQUIRE_CONTAINERS) == "1":
        return
    problem = engine_problem()
    if problem:
        skip = pytest.mark.skip(reason=f"NOT RUN: {problem}; docker/engine-debian.sh installs one")
        for item in wanted:
            item.add_marker(skip)
        config.stash[_SKIPPED] = (len(wanted), problem)


_SKIPPED = pytest.StashKey[tuple[int, str]]()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say at the end what was not run: a green line must not hide it."""
    skipped = config.stash.get(_SKIPPED, None)
    if skipped:
        terminalreporter.section("container tests NOT RUN", sep="!")
        terminalreporter.write_line(f"{skipped[0]} tests need a Docker engine: {skipped[1]}.")
        terminalreporter.write_line("As root, docker/engine-debian.sh installs one; then run this again.")


@pytest.fixture(autouse=True)
def _own_results(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test writes into the checkout's results."""
    monkeypatch.setenv("SUITE_RESULTS", str(tmp_path_factory.mktemp("results")))
