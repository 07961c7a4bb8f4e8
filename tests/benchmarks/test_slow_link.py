"""From launches at two rates to what a slower link did."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest

from benchmarks.slow_link import FAST, SLOW, Change, change, changes, limits, table, turns
from suite.analysis.rows import LaunchMeasures
from suite.analysis.steps import job_steps


def launches(step: float, nosync: float, count: int = 8) -> list[LaunchMeasures]:
    """Launches of that step time, a little apart."""
    job = job_steps(np.full((2, 5), step))
    values = [step * (1 + 0.001 * i) for i in range(count)]
    return [
        LaunchMeasures(f"l{i}", "gloo", i, job, value, nosync * (1 + 0.001 * i), None, None, None, 8, 5, {})
        for i, value in enumerate(values)
    ]


def seen(found: list[Change]) -> dict[str, bool | None]:
    return {limit.what: limit.met for limit in limits(found)}


def test_the_rates_take_turns_so_that_a_drift_meets_both() -> None:
    assert turns(2) == [FAST, SLOW, SLOW, FAST]


def test_a_link_five_times_as_slow_exposes_five_times_as_much_and_computes_as_before() -> None:
    found = change("linear", "gloo", launches(0.020, 0.010), launches(0.060, 0.010))
    assert found.exposed_ratio == pytest.approx(5, rel=0.01)
    assert found.exposed_interval is not None
    assert 4.9 < found.exposed_interval[0] < 5 < found.exposed_interval[1] < 5.1
    assert found.compute_ratio == pytest.approx(1, rel=0.001)
    assert found.launches == 8
    assert found.exposed_fast == pytest.approx(0.010, rel=0.01)
    assert found.compute_slow == pytest.approx(0.010, rel=0.01)


def test_communication_that_is_hidden_at_the_fast_rate_has_no_ratio() -> None:
    found = change("linear", "gloo", launches(0.009, 0.010), launches(0.060, 0.010))
    assert (found.exposed_ratio, found.exposed_interval) == (None, None)
    assert found.exposed_fast < 0 < found.exposed_slow


def test_targets_are_missed_where_the_computation_changes_or_nothing_is_exposed() -> None:
    found = changes(
        {
            ("linear", "gloo", FAST): launches(0.020, 0.010),
            ("linear", "gloo", SLOW): launches(0.060, 0.012),
            ("linear", "mpi", FAST): launches(0.020, 0.010),
            ("linear", "mpi", SLOW): launches(0.020, 0.010),
        }
    )
    assert seen(found) == {
        "linear, gloo: exposed communication, slow ÷ fast, lower end": True,
        "linear, gloo: T_nosync, slow ÷ fast": False,
        "linear, mpi: exposed communication, slow ÷ fast, lower end": False,
        "linear, mpi: T_nosync, slow ÷ fast": True,
        "transformer-tiny, gloo: exposed communication, slow ÷ fast, lower end": None,
        "transformer-tiny, gloo: T_nosync, slow ÷ fast": None,
        "transformer-tiny, mpi: exposed communication, slow ÷ fast, lower end": None,
        "transformer-tiny, mpi: T_nosync, slow ÷ fast": None,
    }
    text = table({"changes": [asdict(one) for one in found]})
    assert "linear    gloo" in text
    assert "8 + 8" in text
