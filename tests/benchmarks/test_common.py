"""Limits and their words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.common import Limit, Options, columns, document, finish, number, seen_and_bounds, verdict


@pytest.mark.parametrize(
    ("seen", "low", "high", "met"),
    [
        (0.5, None, 0.5, True),
        (0.51, None, 0.5, False),
        (0.93, 0.93, 1.05, True),
        (0.929, 0.93, 1.05, False),
        (1.06, 0.93, 1.05, False),
        (None, 0.93, 1.05, None),
    ],
)
def test_a_limit_includes_its_bounds(seen: float | None, low: float | None, high: float | None, met: bool) -> None:
    assert Limit("x", seen, low, high).met is met


def test_what_was_not_measured_is_said_so_and_is_no_success() -> None:
    assert verdict(Limit("x", None, None, 1.0)) == "not measured"
    assert seen_and_bounds(Limit("x", None, None, 1.0, "s")) == "– (at most 1 s)"


def test_numbers_carry_their_unit() -> None:
    assert number(0.9345, "%") == "93.5%"
    assert number(0.4159, "s") == "0.416 s"
    assert number(12.0, "") == "12"


def test_a_missed_limit_costs_exit_one_and_is_kept_in_the_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = Options(quick=True, json=tmp_path / "deep" / "x.json")
    limits = [Limit("fast", 2.0, None, 1.0, "s"), Limit("right", 1.0, 0.9, 1.1)]
    result = document("x", options, (0.0, 0.0, 0.0), limits, {"a": 1})
    assert finish(result, "the table", options) == 1
    said = capsys.readouterr().out
    assert "the table" in said
    assert "MISSED       fast: 2 s (at most 1 s)" in said
    assert "met          right: 1 (0.9 to 1.1)" in said
    assert "load average 0.0 before" in said
    stored = json.loads((tmp_path / "deep" / "x.json").read_text())
    assert stored["limits"][0] == {"what": "fast", "seen": 2.0, "low": None, "high": 1.0, "unit": "s"}
    assert stored["quick"] is True


def test_all_limits_met_is_exit_zero(capsys: pytest.CaptureFixture[str]) -> None:
    options = Options()
    assert finish(document("x", options, (0.0, 0.0, 0.0), [Limit("fast", 1.0, None, 1.0)], {}), "", options) == 0
    assert "MISSED" not in capsys.readouterr().out


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    assert columns(["a", "b"], [["long", "1"], ["x", "22"]]) == "a      b\nlong   1\nx     22"
