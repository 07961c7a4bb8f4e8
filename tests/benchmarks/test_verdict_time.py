from __future__ import annotations

import dataclasses

import pytest

from benchmarks import verdict_time
from benchmarks.campaigns import Noise
from suite.paths import project_root

BUNDLE = project_root() / "results" / "published" / "lab-1-gbit"


def test_a_difference_of_ten_percent_is_resolved_long_before_thirty_blocks() -> None:
    found = verdict_time.measure("linear", 0.10, Noise(launch=0.01), block_minutes=0.2, campaigns=200, seed=1)
    assert found.standard.slower == 1.0
    assert found.blocks < 12
    assert found.minutes == pytest.approx(found.blocks * 0.2)
    assert found.fixed_minutes == pytest.approx(6.0)


def test_a_published_run_gives_its_pairs_with_the_slower_arm_above_one() -> None:
    found = {pair.comparison: pair for pair in verdict_time.pairs_of(BUNDLE)}
    pair = found["linear, world size 4"]
    assert pair.verdict == "slower"
    assert pair.low == pytest.approx(1.834, abs=0.001)
    assert pair.high == pytest.approx(2.026, abs=0.001)
    assert pair.blocks == 8
    assert pair.block_minutes == pytest.approx(0.61, abs=0.01)
    assert 0.005 < pair.noise < 0.1
    assert all(pair.ratio >= 1 for pair in found.values())


def test_the_table_shows_the_real_pair_and_every_difference() -> None:
    pair = verdict_time.pairs_of(BUNDLE)[0]
    time = verdict_time.measure(pair.comparison, 0.30, Noise(launch=pair.noise, step=0.0, steps=2), 1.0, 100, seed=2)
    text = verdict_time.table(
        {"campaigns": 100, "pairs": [dataclasses.asdict(pair)], "simulated": [dataclasses.asdict(time)]}
    )
    assert f"{pair.comparison}, 30%" in text
    assert f"{pair.noise:.1%}" in text
    assert "100 simulated campaigns" in text
