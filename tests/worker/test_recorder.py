from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from suite.records import CollectiveSamples
from suite.worker.failures import is_secondary, one_line
from suite.worker.identity import Identity
from suite.worker.recorder import Recorder, log_tail
from tests.worker.conftest import make_spec


def recorder(folder: Path) -> Recorder:
    return Recorder(make_spec(folder), Identity(1, 2, 1, "torchrun"), folder)


def test_a_record_is_written_once_and_the_first_word_counts(tmp_path: Path) -> None:
    made = recorder(tmp_path)
    made.enter("measure")
    made.fail("ValueError: first")
    made.fail("second")
    made.succeed()
    record = json.loads((tmp_path / "rank-1.json").read_text())
    assert record["failure"]["cause"] == "ValueError: first"
    assert record["failure"]["stage"] == "measure"
    assert (record["rank"], record["backend"], record["kind"]) == (1, "gloo", "train")


def test_two_threads_that_fail_at_once_write_one_record(tmp_path: Path) -> None:
    made = recorder(tmp_path)
    threads = [threading.Thread(target=made.fail, args=(f"cause {i}",)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert json.loads((tmp_path / "rank-1.json").read_text())["failure"]["cause"].startswith("cause ")


def test_an_existing_record_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "rank-1.json").write_text("older")
    with pytest.raises(FileExistsError):
        recorder(tmp_path).succeed()
    assert (tmp_path / "rank-1.json").read_text() == "older"


def test_what_was_measured_before_a_failure_is_kept(tmp_path: Path) -> None:
    made = recorder(tmp_path)
    made.add_collectives([CollectiveSamples("barrier", 0, (5,))])
    made.warn("warm")
    made.warn("warm")
    made.fail("x", secondary=True, fix="wait")
    record = json.loads((tmp_path / "rank-1.json").read_text())
    assert record["collectives"][0]["ns"] == [5]
    assert record["warnings"] == ["warm"]
    assert (record["failure"]["secondary"], record["failure"]["fix"]) == (True, "wait")


def test_numbers_that_are_none_become_unknown(tmp_path: Path) -> None:
    made = recorder(tmp_path)
    made.add_environment({"load_before": float("nan"), "threads": 1})
    made.succeed()
    facts = json.loads((tmp_path / "rank-1.json").read_text())["environment"]
    assert facts == {"load_before": None, "threads": 1}


def test_the_log_tail_is_bounded_and_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("\n\n".join(f"line {i}" for i in range(1000)))
    tail = log_tail(path)
    assert len(tail) == 25
    assert tail[-1] == "line 999"
    assert log_tail(tmp_path / "none") == ()


@pytest.mark.parametrize(
    "text",
    [
        "[../third_party/gloo/gloo/transport/tcp/pair.cc:589] Read error [127.0.0.1]:27044: Connection reset by peer",
        "[../third_party/gloo/gloo/transport/tcp/pair.cc:598] Connection closed by peer [10.0.0.2]:1442",
        "Timed out waiting 1800000ms for recv operation to complete",
        "Socket Timeout",
        "NCCL error: remote process exited or there was a network error",
        "Broken pipe",
    ],
)
def test_the_death_or_silence_of_a_peer_is_secondary(text: str) -> None:
    assert is_secondary(RuntimeError(text))


@pytest.mark.parametrize(
    "error",
    [RuntimeError("mat1 and mat2 shapes cannot be multiplied"), ValueError("Connection reset by peer"), MemoryError()],
)
def test_an_error_of_this_ranks_own_is_not(error: Exception) -> None:
    assert not is_secondary(error)


def test_a_cause_is_one_line_without_torchs_stack() -> None:
    error = RuntimeError("it broke\nhere\nException raised from x at y.cpp:1 (most recent call first):\nframe #0: a")
    assert one_line(error) == "RuntimeError: it broke here"
    assert one_line(MemoryError()) == "MemoryError"
