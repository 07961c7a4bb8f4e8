from __future__ import annotations

import time

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.signal import lfilter

from suite.analysis.warmup import WarmupResult, common_warmup, settled, warmup_count

Floats = NDArray[np.float64]


def steady(rng: np.random.Generator, steps: int, cv: float = 0.02, correlation: float = 0.3) -> Floats:
    noise = lfilter([np.sqrt(1 - correlation**2)], [1.0, -correlation], rng.standard_normal(steps))
    return np.asarray(0.04 * np.exp(cv * noise))


def test_a_launch_that_is_steady_from_the_start_still_leaves_out_ten_steps() -> None:
    assert warmup_count(steady(np.random.default_rng(1), 200)) == WarmupResult(10, True)
    assert warmup_count(np.full(100, 0.04)) == WarmupResult(10, True)


def test_slow_first_steps_are_left_out_to_the_last_one() -> None:
    rng = np.random.default_rng(2)
    for slow in (15, 40, 90):
        times = steady(rng, 300)
        times[:slow] *= 1.5
        found = warmup_count(times)
        assert found.settled
        assert slow <= found.count <= slow + 3


def test_a_decay_is_left_out_until_it_is_small() -> None:
    rng = np.random.default_rng(3)
    times = np.asarray(steady(rng, 400, cv=0.01) * (1 + np.exp(-np.arange(400) / 20)), dtype=np.float64)
    found = warmup_count(times)
    assert found.settled
    assert np.exp(-found.count / 20) < 0.08
    assert found.count < 100


def test_a_drift_too_slow_to_show_between_neighbouring_windows_is_seen_against_the_end() -> None:
    drift = np.asarray(1 + 0.3 * np.exp(-np.arange(400) / 100), dtype=np.float64)
    times = np.asarray(steady(np.random.default_rng(4), 400, cv=0.01) * drift, dtype=np.float64)
    neighbours_agree = abs(times[10:30].mean() / times[30:50].mean() - 1) < 0.05
    assert neighbours_agree
    assert warmup_count(times).count > 60


def test_a_launch_that_never_settles_is_marked_with_the_most_that_could_be_tried() -> None:
    growing = np.asarray(0.04 * 1.02 ** np.arange(200), dtype=np.float64)
    assert warmup_count(growing) == WarmupResult(160, False)


def test_too_few_steps_cannot_show_that_a_launch_settled() -> None:
    assert warmup_count(np.full(15, 0.04)) == WarmupResult(10, False)
    assert warmup_count(np.full(4, 0.04)) == WarmupResult(4, False)
    assert warmup_count(np.full(20, 0.04)) == WarmupResult(10, True)


def test_noise_alone_hardly_ever_lengthens_the_warm_up_of_a_pilot_beyond_its_second_half() -> None:
    rng = np.random.default_rng(5)
    found = [warmup_count(steady(rng, 200, cv=0.05)) for _ in range(200)]
    assert all(result.settled for result in found)
    assert np.quantile([result.count for result in found], 0.9) <= 30


def test_the_count_for_all_is_the_largest_over_the_backends() -> None:
    results = {"gloo": WarmupResult(12, True), "mpi": WarmupResult(31, False)}
    assert common_warmup(results) == 31
    assert common_warmup({}) == 10


@pytest.mark.parametrize("cv", [0.01, 0.05, 0.15])
@pytest.mark.parametrize("steps", [50, 500])
def test_a_good_launch_is_seldom_marked_as_not_settled(cv: float, steps: int) -> None:
    rng = np.random.default_rng(6)
    marked = sum(not settled(steady(rng, steps, cv)) for _ in range(300))
    assert marked / 300 <= 0.06


def test_a_launch_whose_start_or_half_is_slower_is_marked() -> None:
    rng = np.random.default_rng(7)
    slow_start, slow_half = steady(rng, 200), steady(rng, 200)
    slow_start[:30] *= 1.2
    slow_half[100:] *= 1.1
    assert not settled(slow_start)
    assert not settled(slow_half)
    assert not settled(steady(rng, 9))


def test_one_slow_step_is_an_outlier_and_no_warm_up() -> None:
    times = steady(np.random.default_rng(8), 200)
    times[0] *= 5
    assert settled(times)


def test_ten_thousand_steps_take_no_noticeable_time() -> None:
    times = 0.04 * (1 + np.arange(10_000)[::-1] / 1000.0)  # never settles: every window is tried
    started = time.perf_counter()
    warmup_count(times)
    assert time.perf_counter() - started < 1.0


@pytest.mark.parametrize("bad", [[[0.1, 0.2]], [0.1, float("nan")], [0.1, 0.0]])
def test_times_that_are_none_are_refused(bad: list[float]) -> None:
    for judge in (warmup_count, settled):
        with pytest.raises(ValueError, match="warm-up"):
            judge(np.array(bad))
