from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from suite.analysis.model import CollectiveModel
from suite.analysis.prediction import (
    MIB,
    ComputeTime,
    Extrapolation,
    assumed_buckets,
    calibrate_communication,
    predict,
)
from suite.analysis.statistics import Interval


def model(alpha: float = 0.001, beta: float = 100e6, relative: float = 0.02) -> CollectiveModel:
    def around(value: float) -> Interval:
        return Interval(value / (1 + relative), value * (1 + relative), 0.95)

    return CollectiveModel(
        "all_reduce", 4, 4, alpha, beta, around(alpha), around(beta), 1 << 10, 256 * MIB, 0.02, 1 << 20
    )


COMPUTE = ComputeTime(forward=0.1, backward=0.2, optimizer=0.02, parameters=25e6)


def test_one_bucket_waits_for_the_whole_backward_pass_and_is_exposed_whole() -> None:
    found = predict(model(), COMPUTE, [10_000_000], 4)
    assert found.communication_seconds == pytest.approx(0.101)
    assert found.exposed_seconds == pytest.approx(0.101)
    assert found.step_seconds == pytest.approx(0.32 + 0.101)
    assert found.hidden_share == pytest.approx(0.0)
    assert found.without_overlap_seconds == pytest.approx(found.step_seconds)
    assert found.extrapolations == ()


def test_buckets_go_out_one_after_the_other_while_backward_runs() -> None:
    """Four buckets of 50 ms each, ready at 50, 100, 150, 200 ms: only the last is exposed."""
    four = [4_900_000] * 4
    found = predict(model(), COMPUTE, four, 4)
    assert found.exposed_seconds == pytest.approx(0.05)
    assert found.hidden_share == pytest.approx(0.75)
    slow = predict(model(alpha=0.002, beta=50e6), COMPUTE, four, 4)  # 100 ms each, queued from 50 ms on
    assert slow.exposed_seconds == pytest.approx(0.05 + 4 * 0.1 - 0.2)


def test_a_network_that_waits_for_the_end_of_backward_hides_nothing() -> None:
    buckets = [4_900_000] * 4
    waiting = predict(model(), COMPUTE, buckets, 4, overlap=0.0)
    assert waiting.exposed_seconds == pytest.approx(0.2)
    assert waiting.step_seconds == pytest.approx(waiting.without_overlap_seconds)
    half = predict(model(), COMPUTE, buckets, 4, overlap=0.5)
    # At half speed a bucket takes 100 ms: the first ends at 150, the second is half done at 200 ms.
    assert half.exposed_seconds == pytest.approx(0.025 + 0.05 + 0.05)


def test_exposure_is_zero_at_least_and_the_last_bucket_at_least() -> None:
    found = predict(model(alpha=1e-9, beta=1e15), COMPUTE, [1000] * 5, 4)
    assert found.exposed_seconds == pytest.approx(0.0, abs=1e-6)
    assert found.step_seconds == pytest.approx(COMPUTE.total, abs=1e-6)


def test_one_rank_communicates_nothing() -> None:
    found = predict(model(), COMPUTE, [10_000_000], 1)
    assert (found.step_seconds, found.exposed_seconds, found.hidden_share) == (COMPUTE.total, 0.0, None)


def test_the_interval_carries_the_model_s_and_the_compute_time_s() -> None:
    narrow = predict(model(), COMPUTE, [10_000_000], 4)
    assert narrow.interval is not None
    assert narrow.interval.contains(narrow.step_seconds)
    assert narrow.interval.half_width == pytest.approx(0.1 * 0.02, rel=0.1)
    unsure = ComputeTime(0.1, 0.2, 0.02, interval=Interval(0.29, 0.35, 0.95))
    wide = predict(model(), unsure, [10_000_000], 4)
    assert wide.interval is not None
    assert wide.interval.half_width == pytest.approx(0.03, rel=0.1)
    assert wide == predict(model(), unsure, [10_000_000], 4)


def test_whatever_was_not_measured_is_named() -> None:
    found = predict(model(), COMPUTE.scaled(50e6), [300 * MIB, 300 * MIB], 64, parameters=50e6)
    assert found.extrapolations == (
        Extrapolation("bucket_bytes", 300 * MIB, 1 << 10, 256 * MIB),
        Extrapolation("world_size", 64, 4, 4),
        Extrapolation("parameters", 50e6, 25e6, 25e6),
    )


def test_compute_scales_with_parameters_only_from_a_known_count() -> None:
    twice = ComputeTime(0.1, 0.2, 0.02, Interval(0.3, 0.34, 0.95), parameters=10.0).scaled(20.0)
    assert twice.total == pytest.approx(0.64)
    assert twice.interval == Interval(0.6, 0.68, 0.95)
    with pytest.raises(ValueError, match="known"):
        ComputeTime(0.1, 0.2, 0.02).scaled(20.0)
    split = ComputeTime.from_total(0.3)
    assert split.total == pytest.approx(0.3)
    assert split.backward == pytest.approx(0.2)


def test_assumed_buckets_start_small_and_add_up() -> None:
    gradient = 124_000_000 * 4
    buckets = assumed_buckets(gradient)
    assert buckets[:3] == (MIB, 25 * MIB, 25 * MIB)
    assert sum(buckets) == gradient
    assert max(buckets) == 25 * MIB
    assert assumed_buckets(1000) == (1000,)
    assert assumed_buckets(26 * MIB) == (MIB, 25 * MIB)


def test_a_measured_step_calibrates_what_ddp_adds_to_an_isolated_all_reduce() -> None:
    buckets = [4_900_000] * 4
    measured = predict(model(), COMPUTE, buckets, 4, communication_scale=1.37).exposed_seconds
    scale = calibrate_communication(model(), COMPUTE, buckets, 4, measured)
    assert scale == pytest.approx(1.37)
    assert calibrate_communication(model(), COMPUTE, buckets, 4, -0.001) is None
    assert calibrate_communication(model(), COMPUTE, buckets, 1, 0.1) is None


def test_the_composition_agrees_with_a_pipeline_played_event_by_event() -> None:
    rng = np.random.default_rng(9)
    for _ in range(50):
        buckets = rng.integers(10_000, 30_000_000, int(rng.integers(1, 12))).tolist()
        link = model(alpha=float(rng.uniform(1e-5, 1e-2)), beta=float(rng.uniform(2e7, 2e9)))
        now, done = 0.0, 0
        for size in buckets:
            done += size
            now = max(now, 0.2 * done / sum(buckets)) + link.alpha + size / link.beta
        found = predict(link, COMPUTE, buckets, 4)
        assert found.exposed_seconds == pytest.approx(now - 0.2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"buckets_bytes": []}, "buckets"),
        ({"buckets_bytes": [0]}, "buckets"),
        ({"overlap": 1.5}, "overlap"),
        ({"communication_scale": -1.0}, "scale"),
    ],
)
def test_arguments_out_of_range_are_refused(change: dict[str, object], message: str) -> None:
    arguments: dict[str, object] = {"buckets_bytes": [1000], "world_size": 4, **change}
    with pytest.raises(ValueError, match=message):
        predict(model(), COMPUTE, **arguments)  # type: ignore[arg-type]


def test_a_model_of_many_buckets_needs_little_memory() -> None:
    buckets = assumed_buckets(4 * 10**11)  # 15,000 buckets; all draws of all of them at once were 240 MB
    tracemalloc.start()
    try:
        assert predict(model(), COMPUTE, buckets, 64).interval is not None
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()
