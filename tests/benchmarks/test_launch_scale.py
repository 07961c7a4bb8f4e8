"""The simulation runs the suite's own executor, and costs what it is told."""

from __future__ import annotations

import dataclasses
import time

import pytest

from benchmarks.launch_scale import Inputs, Step, limits, simulate, table, take

FREE = Step(0.0, 0.0)
NOTHING = Inputs(FREE, FREE, FREE, FREE, FREE, 40_000)


def test_a_step_computes_and_waits_as_long_as_told() -> None:
    wall, cpu = time.perf_counter(), time.thread_time()
    take(Step(0.05, 0.1))
    assert 0.05 <= time.thread_time() - cpu < 0.08
    assert time.perf_counter() - wall >= 0.15


def test_every_rank_of_every_host_leaves_its_record_and_the_launch_is_judged_good() -> None:
    found = simulate(NOTHING, hosts=3, ranks_per_host=2)
    assert (found.hosts, found.ranks) == (3, 6)
    assert found.record_bytes == 240_000


def test_waiting_goes_on_in_parallel_and_computing_does_not() -> None:
    waiting = simulate(dataclasses.replace(NOTHING, put=Step(0.0, 0.3)), hosts=8, ranks_per_host=1)
    computing = simulate(dataclasses.replace(NOTHING, put=Step(0.05, 0.0)), hosts=8, ranks_per_host=1)
    assert waiting.wall >= 0.3
    assert waiting.wall < 8 * 0.3 / 2
    assert computing.cpu >= 8 * 0.05
    assert computing.wall >= 8 * 0.05


def test_the_table_says_what_was_measured_and_what_was_simulated() -> None:
    found = simulate(NOTHING, hosts=1, ranks_per_host=1)
    inputs = dataclasses.replace(NOTHING, fetch=Step(0.0021, 0.0314))
    text = table({"inputs": dataclasses.asdict(inputs), "launches": [dataclasses.asdict(found)]})
    assert "fetch one record" in text
    assert "2.1 ms" in text
    assert "31.4 ms" in text
    assert limits([found]) == []
    assert limits([dataclasses.replace(found, ranks=1000, wall=61.0)])[0].met is False


def test_a_launch_that_is_judged_as_failed_is_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import launch_scale
    from suite.errors import LaunchError

    monkeypatch.setattr(launch_scale.StandIn, "fetch", lambda *_a, **_k: {})  # hosts that lost their records
    with pytest.raises(LaunchError, match="failed"):
        simulate(NOTHING, hosts=2, ranks_per_host=1)
