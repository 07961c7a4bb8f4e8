"""Many runs become one line per number of hosts, and growth is judged from the fewest to the most."""

from __future__ import annotations

import dataclasses

from benchmarks.controller_scale import PHASES, Cost, Scale, combined, limits, table


def scale(hosts: int, wall: float, files: int = 30) -> Scale:
    return Scale(hosts, {name: Cost(wall, wall / 2) for name in PHASES}, 100 << 20, files, 20, 1.0)


def test_times_are_medians_and_peaks_are_the_largest() -> None:
    found = combined([scale(64, 3.0, 90), scale(4, 1.0, 10), scale(64, 5.0, 120), scale(64, 4.0, 80)])
    assert [one.hosts for one in found] == [4, 64]
    assert found[1].costs["check"] == Cost(4.0, 2.0)
    assert found[1].open_files == 120


def test_growth_beyond_three_times_is_a_miss() -> None:
    assert all(limit.met for limit in limits([scale(4, 1.0), scale(64, 3.0)]))
    judged = limits([scale(4, 1.0), scale(16, 2.0), scale(64, 3.1)])
    assert [limit.met for limit in judged] == [False, False, False, True, True]
    assert "64" in table({"scales": [dataclasses.asdict(scale(64, 3.1))]})
