"""Lives of real processes."""

from __future__ import annotations

import subprocess
import sys
import time

from benchmarks.process_watch import ProcessWatch, now


def run(mark: str, seconds: float) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({seconds})", mark])


def test_a_process_is_seen_from_its_beginning_to_its_end() -> None:
    with ProcessWatch((("wanted", "--mark-wanted"),)) as watch:
        began = now()
        process = run("--mark-wanted", 0.4)
        assert process.wait(20) == 0
        ended = now()
        lives = watch.take()
    assert [life.kind for life in lives] == ["wanted"]
    life = lives[0]
    assert life.ended is not None
    # The kernel counts beginnings in ticks of 10 ms; an end is seen when its event arrives.
    assert began - 0.02 <= life.began <= began + 0.3
    assert life.began + 0.4 <= life.ended <= ended + 0.2
    assert "--mark-wanted" in life.command


def test_other_processes_and_those_that_were_there_before_are_not_watched() -> None:
    earlier = run("--mark-wanted", 0.3)
    time.sleep(0.1)
    with ProcessWatch((("wanted", "--mark-wanted"),)) as watch:
        other = run("--mark-other", 0.1)
        assert other.wait(20) == 0
        assert earlier.wait(20) == 0
        assert watch.take() == []


def test_a_process_that_goes_on_is_told_when_it_has_ended() -> None:
    with ProcessWatch((("wanted", "--mark-wanted"),)) as watch:
        process = run("--mark-wanted", 0.8)
        time.sleep(0.3)
        assert watch.take() == []
        process.wait(20)
        assert [life.pid for life in watch.take()] == [process.pid]
