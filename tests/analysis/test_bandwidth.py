from __future__ import annotations

import pytest

from suite.analysis.bandwidth import algbw, busbw, busbw_factor, link_fraction, lower_bound_seconds

GIGABIT = 125e6  # bytes per second


@pytest.mark.parametrize(
    ("collective", "factor"),
    [
        ("all_reduce", 1.5),
        ("all_gather", 0.75),
        ("reduce_scatter", 0.75),
        ("all_to_all", 0.75),
        ("broadcast", 1.0),
        ("reduce", 1.0),
        ("send_recv", 1.0),
        ("barrier", None),
    ],
)
def test_bus_bandwidth_counts_what_each_link_carries_among_four_ranks(collective: str, factor: float | None) -> None:
    assert busbw_factor(collective, 4) == factor
    assert busbw(collective, 1_000_000, 0.01, 4) == (None if factor is None else pytest.approx(1e8 * factor))


def test_one_rank_moves_nothing() -> None:
    assert busbw_factor("all_reduce", 1) == 0.0
    assert busbw_factor("all_gather", 1) == 0.0


def test_an_all_reduce_at_the_speed_of_its_link_has_the_link_s_bus_bandwidth() -> None:
    bound = lower_bound_seconds("all_reduce", 64 << 20, 4, GIGABIT)
    assert bound == pytest.approx(0.805, abs=0.001)
    assert bound is not None
    assert busbw("all_reduce", 64 << 20, bound, 4) == pytest.approx(GIGABIT)
    assert lower_bound_seconds("barrier", 0, 4, GIGABIT) is None


def test_more_than_the_link_can_carry_is_flagged() -> None:
    assert not link_fraction(0.95 * GIGABIT, GIGABIT).suspicious
    assert not link_fraction(1.05 * GIGABIT, GIGABIT).suspicious
    flagged = link_fraction(1.06 * GIGABIT, GIGABIT)
    assert (round(flagged.fraction, 2), flagged.suspicious) == (1.06, True)


def test_what_has_no_bandwidth_is_refused() -> None:
    with pytest.raises(ValueError, match="known are all_reduce"):
        busbw_factor("gossip", 4)
    with pytest.raises(ValueError, match="at least 1"):
        busbw_factor("all_reduce", 0)
    with pytest.raises(ValueError, match="cannot take"):
        algbw(1, 0.0)
