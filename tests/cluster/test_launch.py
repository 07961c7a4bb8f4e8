"""How the launchers of one launch are waited for and ended, with programs that end as they are told to."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from suite.cluster import launch
from suite.cluster.attached import Attached
from suite.cluster.engine import Engine
from suite.cluster.launch import ClusterExecutor
from suite.launcher import host_commands
from suite.records import LaunchOutcome, to_json
from tests.cluster.test_executor import HOSTS, SPEC, record

PAIR = replace(SPEC, world_size=2, hosts=HOSTS[:2])


class Program(Attached):
    """A launcher in a container: ``code`` as soon as it starts, or, with None, no end of output until it is closed."""

    def __init__(self, code: int | None, known: int | None = None) -> None:
        self.lines = deque()
        self._code, self._known = code, known
        self._ended = threading.Event()
        if code is not None:
            self._ended.set()

    def known_code(self) -> int | None:
        return self._known

    def _exit_code(self) -> int:
        raise ConnectionError("the connection was lost")

    def close_input(self) -> None:
        """It does not read its input."""

    def close(self) -> None:
        self._ended.set()


class Machine:
    """An engine that starts one program and gives the records of the ranks that finished on it."""

    connected = True

    def __init__(self, name: str, program: Program, ranks: Sequence[int]) -> None:
        self.name, self._program, self._ranks = name, program, ranks

    def answers(self, timeout: float) -> bool:
        return True

    def put(self, container: str, folder: str, files: object) -> None:
        """Nothing reads the specification here."""

    def exec_attached(self, container: str, words: Sequence[str]) -> Program:
        return self._program

    def fetch(self, container: str, folder: str, **_options: Any) -> dict[str, bytes]:
        return {f"rank-{rank}.json": to_json(record(rank)).encode() for rank in self._ranks}


def launched(
    folder: Path, programs: Sequence[Program], ranks: Sequence[Sequence[int]] = ((0,), (1,)), deadline: float = 60.0
) -> tuple[LaunchOutcome, list[str]]:
    """One launch over two such machines; its outcome and the hosts whose containers were started afresh after it."""
    restarted: list[str] = []
    machines = {h.name: Machine(h.name, p, r) for h, p, r in zip(PAIR.hosts, programs, ranks, strict=True)}
    executor = ClusterExecutor(
        cast(dict[str, Engine], machines),
        dict.fromkeys(machines, "c" * 64),
        run="r",
        ports=(29501, 29600),
        restart=lambda engine: restarted.append(engine.name),
    )
    outcome = executor.launch(replace(PAIR, deadline_seconds=deadline), folder)
    return outcome, sorted(restarted)


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LINGER_SECONDS", "LAST_WORDS_SECONDS", "END_SECONDS"):
        monkeypatch.setattr(launch, name, 0.3)


def test_every_host_of_such_a_launch_has_a_launcher_of_its_own() -> None:
    assert set(host_commands(PAIR, python="python3", mpi_major=5)) == {"h1", "h2"}


@pytest.mark.parametrize("known", [0, None, 143])
def test_a_launcher_whose_end_nobody_was_told_of_is_not_waited_for_until_the_deadline(
    tmp_path: Path, known: int | None
) -> None:
    start = time.monotonic()
    outcome, restarted = launched(tmp_path, [Program(0), Program(None, known)])
    assert time.monotonic() - start < 10
    assert (outcome.status, outcome.failure) == ("ok", None)
    assert restarted == ["h1", "h2"]  # whatever it may be doing still is not to meet the next launch


def test_a_lingering_launcher_without_its_ranks_record_fails_the_launch(tmp_path: Path) -> None:
    outcome, _ = launched(tmp_path, [Program(0), Program(None)], ranks=((0,), ()))
    assert outcome.status == "failed"
    assert outcome.failure is not None
    assert (outcome.failure.host, outcome.failure.rank) == ("h2", 1)


def test_launchers_that_all_ended_well_leave_the_containers_alone(tmp_path: Path) -> None:
    outcome, restarted = launched(tmp_path, [Program(0), Program(0)])
    assert (outcome.status, restarted) == ("ok", [])


def test_when_one_launcher_failed_the_others_are_ended(tmp_path: Path) -> None:
    outcome, restarted = launched(tmp_path, [Program(1), Program(None)], ranks=((), (1,)))
    assert outcome.status == "failed"
    assert outcome.failure is not None
    assert (outcome.failure.host, outcome.failure.rank) == ("h1", 0)
    assert restarted == ["h1", "h2"]


def test_when_no_launcher_ends_the_engine_is_asked_once_the_deadline_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "GRACE_SECONDS", 0.0)
    monkeypatch.setattr(launch, "SLACK_SECONDS", 0.0)
    outcome, restarted = launched(tmp_path, [Program(None, 0), Program(None, 0)], deadline=0.5)
    assert (outcome.status, outcome.failure) == ("ok", None)
    assert restarted == ["h1", "h2"]
