"""Loops compared over both models, and models over both loops."""

from __future__ import annotations

from typing import Any, cast

import pytest

pytest.importorskip("torch", reason="needs torch")

from benchmarks.fidelity import Loops, Series, compare
from suite.worker.groups import Groups


class OneRank:
    """A group of one rank."""

    def largest(self, value: float) -> float:
        return value

    def gather(self, value: Any) -> list[Any]:
        return [value]


def always(milliseconds: int, calls: list[int]) -> Series:
    def loop(count: int) -> list[int]:
        calls.append(milliseconds)
        return [milliseconds * 1_000_000] * count

    return loop


def test_a_slower_loop_and_a_slower_model_are_told_apart() -> None:
    calls: list[int] = []
    on_suites = Loops(always(12, calls), always(10, calls))
    on_hands = Loops(always(24, calls), always(20, calls))
    loops, models = compare("w, step", "w, model", (on_suites, on_hands), cast(Groups, OneRank()), 0.0, 4)
    assert (loops["what"], models["what"]) == ("w, step", "w, model")
    assert loops["ratio"] == pytest.approx(1.2)
    assert models["ratio"] == pytest.approx(0.5)
    assert loops["interval"] == pytest.approx((1.2, 1.2))
    assert (models["suite_seconds"], models["bare_seconds"]) == pytest.approx((0.011, 0.022))
    assert loops["rounds"] == 20
    # After the warm-up each round has all four, not always in the same order.
    rounds = [calls[i : i + 4] for i in range(4, len(calls), 4)]
    assert all(sorted(one) == [10, 12, 20, 24] for one in rounds)
    assert len({tuple(one) for one in rounds}) == 20


def test_buffers_are_not_compared_where_they_have_no_name() -> None:
    pair = Loops(always(1, []), always(1, []))
    rows = compare("all_reduce, 4 bytes", None, (pair, pair), cast(Groups, OneRank()), 0.0, 4)
    assert [row["what"] for row in rows] == ["all_reduce, 4 bytes"]
