from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.signal import lfilter

from suite.analysis.statistics import signed_rank_interval
from suite.analysis.stopping import (
    STANDARD_TARGET,
    THOROUGH_TARGET,
    VarianceComponents,
    minimum_blocks,
    should_stop,
    steps_per_launch,
    variance_components,
)

QUIET = np.random.default_rng(0).normal(0.2, 0.005, 30)
NOISY = np.random.default_rng(1).normal(0.2, 0.2, 30)


def test_precise_pairs_stop_a_campaign_at_the_least_number_of_blocks_and_not_before() -> None:
    assert not should_stop([QUIET[:7]]).stop
    decision = should_stop([QUIET[:8]])
    assert (decision.stop, decision.reason) == (True, "target")


def test_the_half_width_compared_with_the_target_is_that_of_the_interval_printed() -> None:
    d = QUIET[:9]
    interval = signed_rank_interval(d, sequential=True)
    assert interval is not None
    (width,) = should_stop([d]).half_widths
    assert width == interval.half_width
    assert should_stop([d], target=interval.half_width).stop
    assert not should_stop([d], target=interval.half_width * 0.999).stop


def test_one_pair_that_is_not_precise_keeps_the_campaign_going_to_the_plan_s_end() -> None:
    assert should_stop([QUIET[:20], NOISY[:20]]).reason is None
    last = should_stop([QUIET, NOISY])
    assert (last.stop, last.reason) == (True, "plan")


def test_it_is_the_precision_that_stops_not_the_difference() -> None:
    for d in (QUIET[:10], NOISY[:10]):
        assert should_stop([d]).half_widths == pytest.approx(should_stop([d - 5.0]).half_widths)


def test_the_thorough_plan_asks_for_more() -> None:
    d = np.random.default_rng(2).normal(0, 0.016, 12)
    assert should_stop([d], STANDARD_TARGET).stop
    assert not should_stop([d], THOROUGH_TARGET).stop


def test_an_arm_that_fails_in_every_block_does_not_keep_the_others_running() -> None:
    assert should_stop([QUIET[:8], np.array([])], blocks=8).reason == "target"
    assert should_stop([np.array([])], blocks=8).reason is None
    assert should_stop([np.array([])], blocks=30).reason == "plan"


def test_incomplete_blocks_count_as_run_but_not_as_known() -> None:
    assert should_stop([QUIET[:5]], blocks=8).half_widths == (None,)
    assert not should_stop([QUIET[:5]], blocks=8).stop
    assert should_stop([QUIET[:6]], target=0.1, blocks=8).stop


def test_large_families_wait_until_holm_can_reject_at_all() -> None:
    assert [minimum_blocks(family) for family in (1, 3, 4, 5, 10)] == [8, 8, 8, 9, 10]
    assert not should_stop([QUIET[:8]] * 6).stop
    assert should_stop([QUIET[:9]] * 6).stop
    assert should_stop([QUIET[:8]] * 6, max_blocks=8).reason == "target"


def test_autocorrelated_steps_count_for_what_they_tell_about_the_launch_median() -> None:
    """The variance of a launch median must be within ÷ n, whatever the correlation of the steps."""
    rng = np.random.default_rng(3)
    for rho in (0.0, 0.6):
        shocks = rng.standard_normal((400, 900))
        steps = np.exp(0.05 * lfilter([math.sqrt(1 - rho**2)], [1.0, -rho], shocks))
        found = variance_components(list(steps[:40]))
        truth = np.log(np.median(steps, axis=1)).var() * 900
        assert found.within == pytest.approx(truth, rel=0.3)
    assert found.within > 3 * 0.05**2  # correlated steps tell less than as many independent ones


def test_the_variance_between_launches_is_what_their_steps_do_not_explain() -> None:
    rng = np.random.default_rng(4)
    levels = np.exp(rng.normal(0, 0.03, 60))[:, None]
    steps = levels * np.exp(rng.normal(0, 0.05, (60, 200)))
    found = variance_components(list(steps))
    assert found.between is not None
    assert math.sqrt(found.between) == pytest.approx(0.03, rel=0.25)
    same = variance_components(list(steps / levels))
    assert same.between is not None
    assert math.sqrt(same.between) < 0.005
    assert variance_components([steps[0]]).between is None


def test_a_pilot_without_enough_steps_is_refused() -> None:
    for launches in ([], [np.array([1.0, 1.0, 1.0])]):
        with pytest.raises(ValueError, match="pilot"):
            variance_components(launches)


@pytest.mark.parametrize(
    ("within", "between", "launch", "step", "steps"),
    [
        (0.0025, 0.0001, 6.0, 0.04, 62),  # sqrt(150·25) = 61.2
        (0.0025, 0.01, 6.0, 0.04, 20),  # launches differ more than steps: the lower bound
        (0.25, 0.0001, 600.0, 0.01, 2000),  # the upper bound
        (0.0025, None, 6.0, 0.04, 62),  # unknown: launches are taken to differ by 1%
        (0.0025, 0.0, 6.0, 0.04, 613),  # no difference seen: 0.1% at least
        (0.0, 0.0, 6.0, 0.04, 20),
    ],
)
def test_steps_per_launch_follow_the_formula_within_its_bounds(
    within: float, between: float | None, launch: float, step: float, steps: int
) -> None:
    assert steps_per_launch(VarianceComponents(within, between, 0.0), launch, step) == steps


def test_a_variance_between_launches_that_could_not_be_seen_is_not_taken_for_zero() -> None:
    assert steps_per_launch(VarianceComponents(0.0025, 0.0, 0.0001), 6.0, 0.04) == 62


def test_costs_must_be_positive() -> None:
    with pytest.raises(ValueError, match="positive"):
        steps_per_launch(VarianceComponents(0.1, 0.1, 0.0), 0.0, 1.0)
