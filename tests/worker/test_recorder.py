from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from suite.records import CollectiveSamples
from suite.worker.failures import is_secondary, one_line
from suite.worker.identity import Identity
from suite.worker.recorder import Recorder, log_tail
from tests.worker.conftest import ROOT, make_spec


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


def test_the_span_of_stages_is_from_the_first_to_the_end_of_the_last(tmp_path: Path) -> None:
    made = recorder(tmp_path)
    assert made.span("warmup", "measure") == (math.inf, -math.inf)
    made.enter("warmup")
    made.enter("measure")
    began = time.perf_counter()
    made.enter("buckets")
    ended = time.perf_counter()
    first, last = made.span("warmup", "measure")
    assert first < began < last < ended
    assert made.span("measure")[0] > first
    assert made.span("buckets")[1] >= ended  # still going on


def test_what_a_c_library_has_printed_but_not_flushed_is_in_the_log(tmp_path: Path) -> None:
    code = """
import ctypes, os, pathlib, sys
from suite.worker.bootstrap import redirect_output
from suite.worker.recorder import read_log
log = pathlib.Path(sys.argv[1])
redirect_output(log)
ctypes.CDLL(None).puts(b"NET/Socket : Using [0]eth0:10.0.0.1<0>")
before, after = log.read_text(), read_log(log)
os._exit(0 if before == "" and after.startswith("NET/Socket") else 1)
"""
    words = [sys.executable, "-c", code, str(tmp_path / "rank-0.log")]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    assert subprocess.run(words, cwd=ROOT, env=buffered, timeout=60, check=False).returncode == 0
