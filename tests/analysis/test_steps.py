from __future__ import annotations

import numpy as np
import pytest

from suite.analysis.steps import (
    between_launch_cv,
    geometric_mean,
    job_steps,
    launch_value,
    outlier_count,
    samples_per_second,
    spread,
    within_launch_iqr,
)


def test_the_step_time_of_the_job_is_that_of_the_slowest_rank() -> None:
    job = job_steps([[1.0, 2.0, 3.0], [2.0, 1.0, 3.0], [1.0, 1.0, 6.0]])
    assert job.seconds.tolist() == [2.0, 2.0, 6.0]
    assert job.skew_seconds.tolist() == [1.0, 1.0, 3.0]
    assert job.sum_excess == pytest.approx(10 / 8 - 1)
    assert job.sum_check_failed


def test_ranks_that_are_always_equally_slow_pass_the_sum_check() -> None:
    job = job_steps([[1.0, 1.1, 1.2], [1.01, 1.11, 1.21]])
    assert job.sum_excess == 0.0
    assert not job.sum_check_failed


@pytest.mark.parametrize("bad", [[], [[]], [1.0, 2.0], [[1.0, float("nan")]], [[1.0, 0.0]], [[1.0, -2.0]]])
def test_times_that_are_none_are_refused(bad: list[float]) -> None:
    with pytest.raises(ValueError, match=r"shape|finite"):
        job_steps(np.array(bad))


def test_the_launch_value_is_the_median_step() -> None:
    assert launch_value([5.0, 1.0, 2.0, 100.0]) == 3.5
    with pytest.raises(ValueError, match="without steps"):
        launch_value([])


def test_the_99th_percentile_needs_a_hundred_samples() -> None:
    assert spread(np.arange(1.0, 100.0)).p99 is None
    whole = spread(np.arange(1.0, 102.0))
    assert (whole.samples, whole.median, whole.p95, whole.p99) == (101, 51.0, 96.0, 100.0)
    assert (whole.minimum, whole.maximum, whole.iqr, whole.outliers) == (1.0, 101.0, 50.0, 0)


def test_outliers_are_counted_beyond_the_fences_and_kept() -> None:
    values = [10.0, 11.0, 12.0, 13.0, 14.0, 30.0, -9.0]
    assert outlier_count(values) == 2
    assert spread(values).maximum == 30.0
    assert outlier_count([]) == 0


def test_spread_between_launches_and_within_are_two_numbers() -> None:
    assert between_launch_cv([9.0, 10.0, 11.0]) == pytest.approx(0.1)
    assert between_launch_cv([9.0]) is None
    assert within_launch_iqr([np.array([1.0, 2.0, 3.0]), np.array([1.0, 1.0, 1.0]), np.array([0.0, 5.0, 10.0])]) == 1.0
    assert within_launch_iqr([]) is None


def test_throughput_is_total_samples_over_total_time() -> None:
    launches = [np.array([1.0, 1.0]), np.array([4.0])]
    assert samples_per_second(64, launches) == pytest.approx(64 * 3 / 6)
    assert samples_per_second(64, []) is None


def test_the_only_mean_of_ratios_is_the_geometric_one() -> None:
    assert geometric_mean({"linear": 0.5, "resnet50": 2.0}) == pytest.approx(1.0)
    assert geometric_mean({}) is None
