"""The supervisor with real processes: whatever they do, none is left when it returns."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WORDS = [sys.executable, "-m", "suite.worker", "supervise"]


@pytest.fixture
def mark() -> Iterator[str]:
    """A word that only this test's processes carry in their environment; none may be alive at the end."""
    word = f"mark-{uuid.uuid4().hex}"
    yield word
    left = alive(word)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == []


def alive(mark: str) -> list[int]:
    """Living processes that carry the mark."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            marked = mark.encode() in (entry / "environ").read_bytes()
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if marked and state != "Z":
            found.append(int(entry.name))
    return found


def start(mark: str, script: str, *options: str, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    """The supervisor around a shell script."""
    return subprocess.Popen(
        [*WORDS, *options, "--", "bash", "-c", script],
        cwd=ROOT,
        env={**os.environ, "SUITE_TEST_MARK": mark},
        stdin=stdin,
        stderr=subprocess.PIPE,
    )


def wait_for(mark: str, count: int) -> None:
    """Until that many marked processes live."""
    deadline = time.monotonic() + 20
    while len(alive(mark)) < count:
        assert time.monotonic() < deadline, f"only {len(alive(mark))} of {count} processes came"
        time.sleep(0.05)


def test_the_exit_code_of_the_command_is_passed_on(mark: str) -> None:
    assert start(mark, "exit 7", "--deadline", "20").wait(20) == 7


def test_a_command_ended_by_a_signal_gives_128_and_its_number(mark: str) -> None:
    assert start(mark, "kill -KILL $$", "--deadline", "20").wait(20) == 137


def test_an_unknown_command_is_127_and_wrong_usage_is_2() -> None:
    unknown = subprocess.run(
        [*WORDS, "--deadline", "5", "--", "no-such-command"], cwd=ROOT, capture_output=True, timeout=20, check=False
    )
    usage = subprocess.run([*WORDS, "--", "true"], cwd=ROOT, capture_output=True, timeout=20, check=False)
    assert unknown.returncode == 127
    assert b"no-such-command: No such file" in unknown.stderr
    assert usage.returncode == 2
    assert usage.stderr.startswith(b"usage: ")


def test_the_deadline_ends_stopped_and_daemonised_descendants_too(mark: str) -> None:
    script = "(setsid bash -c 'trap : TERM; kill -STOP $$; sleep 600' &); setsid sleep 600 & exec sleep 600"
    began = time.monotonic()
    assert start(mark, script, "--deadline", "1").wait(30) == 124
    assert alive(mark) == []
    assert time.monotonic() - began < 15


def test_leftovers_of_a_command_that_has_ended_well_are_ended(mark: str) -> None:
    assert start(mark, "(setsid sleep 600 &); exit 0", "--deadline", "20").wait(20) == 0
    assert alive(mark) == []


def test_the_end_of_the_lease_ends_everything(mark: str) -> None:
    process = start(mark, "setsid sleep 600 & exec sleep 600", "--deadline", "60", "--lease", stdin=subprocess.PIPE)
    wait_for(mark, 3)
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(20) == 129
    assert alive(mark) == []


def test_a_lease_that_is_held_lets_the_command_finish(mark: str) -> None:
    process = start(mark, "exit 3", "--deadline", "60", "--lease", stdin=subprocess.PIPE)
    assert process.wait(20) == 3


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_everything(mark: str, number: signal.Signals, code: int) -> None:
    process = start(mark, "setsid sleep 600 & exec sleep 600", "--deadline", "60")
    wait_for(mark, 3)
    process.send_signal(number)
    assert process.wait(20) == code
    assert alive(mark) == []


def test_the_command_reads_nothing_from_the_lease(mark: str) -> None:
    process = start(mark, "cat; exit 5", "--deadline", "20", "--lease", stdin=subprocess.PIPE)
    assert process.wait(20) == 5


def test_a_rank_that_stops_itself_in_the_middle_of_a_launch_is_ended_too(mark: str, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs torch")
    from tests.worker.conftest import free_port, make_spec, worker_environment, write_spec

    path = write_spec(make_spec(tmp_path, kind="train", world_size=1, inject="stop@0", equivalence_steps=0))
    worker = [sys.executable, "-m", "suite.worker", "run", "--spec", str(path)]
    meeting = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    process = subprocess.Popen(
        [*WORDS, "--deadline", "60", "--lease", "--", *worker],
        cwd=ROOT,
        env=worker_environment(SUITE_TEST_MARK=mark, MASTER_PORT=str(free_port()), **meeting),
        stdin=subprocess.PIPE,
    )
    log = path.parent / "rank-0.log"
    deadline = time.monotonic() + 50
    while "injected fault: stop" not in (log.read_text() if log.exists() else ""):
        assert time.monotonic() < deadline, "the rank never came to its measured loop"
        time.sleep(0.1)
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(20) == 129
    assert alive(mark) == []
    assert not (path.parent / "rank-0.json").exists()


def test_the_supervisor_starts_without_torch() -> None:
    code = "import sys, suite.worker.__main__, suite.worker.supervise; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout.strip() == "False"
