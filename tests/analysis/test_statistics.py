from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from suite.analysis import statistics
from suite.analysis.statistics import (
    Interval,
    binomial_index,
    bootstrap_interval,
    hodges_lehmann,
    holm,
    median_interval,
    signed_rank_cdf,
    signed_rank_interval,
    signed_rank_p,
)

DIFFERENCES = [0.31, -0.12, 0.55, 0.08, 0.27, -0.03, 0.44, 0.19, 0.36, -0.21]


@pytest.mark.parametrize(("n", "index"), [(5, None), (6, 1), (8, 1), (9, 2), (12, 3), (20, 6), (30, 10)])
def test_the_median_interval_takes_the_order_statistics_of_the_binomial_tables(n: int, index: int | None) -> None:
    assert binomial_index(n) == index


def test_the_index_is_the_largest_whose_tail_stays_within_half_of_alpha() -> None:
    for n, alpha in itertools.product(range(6, 80), (0.05, 0.10, 0.01)):
        index = binomial_index(n, alpha)
        tails = [stats.binom.cdf(k - 1, n, 0.5) for k in range(1, n)]
        expected = [k for k, tail in enumerate(tails, start=1) if tail <= alpha / 2]
        assert index == (expected[-1] if expected else None)


def test_a_median_interval_is_not_estimable_below_six_launches() -> None:
    assert median_interval([1.0, 2.0, 3.0, 4.0, 5.0]) is None
    assert median_interval([6.0, 1.0, 3.0, 2.0, 5.0, 4.0]) == Interval(1.0, 6.0, 0.95)
    assert median_interval([3.0, 1.0, 2.0, 9.0, 8.0, 7.0, 4.0, 5.0, 6.0]) == Interval(2.0, 8.0, 0.95)


def test_values_that_are_missing_are_refused_rather_than_sorted_to_the_end() -> None:
    with pytest.raises(ValueError, match="finite"):
        median_interval([1.0, float("nan"), 2.0, 3.0, 4.0, 5.0, 6.0])


def test_the_signed_rank_distribution_counts_every_pattern_of_signs() -> None:
    for n in range(1, 10):
        sums = [
            sum(rank for rank, sign in enumerate(signs, start=1) if sign)
            for signs in itertools.product((0, 1), repeat=n)
        ]
        expected = np.cumsum(np.bincount(sums)) / 2**n
        np.testing.assert_allclose(signed_rank_cdf(n), expected, rtol=1e-12)


def test_the_normal_approximation_for_hundreds_of_blocks_stays_near_the_exact_distribution(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exact = signed_rank_cdf(statistics.EXACT_LIMIT)
    monkeypatch.setattr(statistics, "EXACT_LIMIT", 100)
    approximate = signed_rank_cdf.__wrapped__(500)
    assert np.abs(exact - approximate).max() < 2e-4


def test_the_p_value_is_that_of_the_exact_wilcoxon_test() -> None:
    rng = np.random.default_rng(4)
    for n in (6, 8, 13, 30, 45):
        d = rng.normal(0.3, 1.0, n)
        assert signed_rank_p(d) == pytest.approx(stats.wilcoxon(d, method="exact").pvalue, rel=1e-9)
        assert signed_rank_p(-d) == signed_rank_p(d)


def test_hodges_lehmann_is_the_median_of_all_pair_averages() -> None:
    averages = [(a + b) / 2 for i, a in enumerate(DIFFERENCES) for b in DIFFERENCES[i:]]
    assert hodges_lehmann(DIFFERENCES) == pytest.approx(np.median(averages))
    assert hodges_lehmann([0.7]) == 0.7
    assert hodges_lehmann([]) is None


def test_the_interval_holds_exactly_the_shifts_that_the_test_does_not_reject() -> None:
    for alpha in (0.05, 0.10):
        interval = signed_rank_interval(DIFFERENCES, alpha)
        assert interval is not None
        d = np.array(DIFFERENCES)
        for shift in np.linspace(-0.5, 0.9, 281) + 1e-7:  # off the Walsh averages, where p jumps
            p = signed_rank_p(d - shift)
            assert p is not None
            assert (p > alpha) == interval.contains(shift)


def test_intervals_exist_from_the_first_number_of_blocks_that_allows_their_level() -> None:
    for alpha, first in ((0.05, 6), (0.10, 5), (0.01, 8)):
        assert signed_rank_interval(np.arange(1.0, first), alpha) is None
        assert signed_rank_interval(np.arange(1.0, first + 1), alpha) is not None


def test_blocks_without_any_difference_prove_nothing() -> None:
    zeros = np.zeros(12)
    assert signed_rank_p(zeros) == 1.0
    assert signed_rank_interval(zeros) == Interval(0.0, 0.0, 0.95)
    assert hodges_lehmann(zeros) == 0.0


def test_a_p_value_needs_six_blocks() -> None:
    assert signed_rank_p([1.0, 2.0, 3.0, 4.0, 5.0]) is None
    assert signed_rank_p([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]) == pytest.approx(2 / 64)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(-4, 4), min_size=6, max_size=14))
def test_ties_and_zeros_never_make_a_result_more_certain(values: list[int]) -> None:
    """Against the exact conditional test on midranks, zeros left out, by enumeration of all signs."""
    p = signed_rank_p(np.array(values, dtype=float))
    assert p is not None
    kept = np.array([v for v in values if v], dtype=float)
    if kept.size == 0:
        assert p == 1.0
        return
    ranks = stats.rankdata(np.abs(kept))
    signs = ((np.arange(2**kept.size)[:, None] >> np.arange(kept.size)) & 1).astype(float)
    sums = signs @ ranks
    seen = float(ranks[kept > 0].sum())
    conditional = 2 * min((sums <= seen + 1e-9).mean(), (sums >= seen - 1e-9).mean())
    if np.unique(np.abs(kept)).size == len(values):
        assert p == pytest.approx(min(1.0, conditional))
    interval = signed_rank_interval(np.array(values, dtype=float))
    assert interval is not None
    assert (p <= 0.05) == (not interval.contains(0.0))


def test_discrete_data_keep_the_level() -> None:
    rng = np.random.default_rng(8)
    rejected = 0
    for _ in range(4000):
        p = signed_rank_p(rng.integers(-2, 3, 10).astype(float))
        assert p is not None
        rejected += p <= 0.05
    assert rejected / 4000 <= 0.05


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.floats(-5, 5), min_size=6, max_size=25),
    st.floats(-3, 3),
    st.sampled_from([0.25, 2.0, 8.0]),
)
def test_estimate_and_interval_follow_shifts_and_scales(values: list[float], shift: float, scale: float) -> None:
    d = np.array(values)
    before, after = signed_rank_interval(d), signed_rank_interval(d * scale + shift)
    assert before is not None
    assert after is not None
    assert after.low == pytest.approx(before.low * scale + shift, abs=1e-9)
    assert after.high == pytest.approx(before.high * scale + shift, abs=1e-9)
    estimate = hodges_lehmann(d)
    assert estimate is not None
    assert before.contains(estimate)


def test_sequential_campaigns_pay_for_their_looks() -> None:
    d = np.array(DIFFERENCES)
    p, paid = signed_rank_p(d), signed_rank_p(d, sequential=True)
    assert p is not None
    assert paid == pytest.approx(p / 0.75)
    rng = np.random.default_rng(2)
    for _ in range(300):
        d = rng.normal(0.6, 1.0, int(rng.integers(8, 31)))
        interval = signed_rank_interval(d, sequential=True)
        plain = signed_rank_interval(d)
        p = signed_rank_p(d, sequential=True)
        assert interval is not None
        assert plain is not None
        assert p is not None
        assert interval.low <= plain.low
        assert interval.high >= plain.high
        assert (p <= 0.05) == (not interval.contains(0.0))


def test_holm_gives_the_published_step_down_values() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx((0.03, 0.06, 0.06, 0.02))
    assert holm([0.6, 0.7]) == (1.0, 1.0)
    assert holm([]) == ()


def test_a_pair_that_failed_still_counts_in_the_family() -> None:
    assert holm([0.02, None, 0.03]) == pytest.approx((0.06, None, 0.06))
    assert holm([0.02], family=3) == pytest.approx((0.06,))
    with pytest.raises(ValueError, match="family"):
        holm([0.1, 0.2, 0.3], family=2)


def test_the_bootstrap_is_seeded_and_agrees_with_the_exact_interval_in_size() -> None:
    d = np.random.default_rng(5).normal(0.2, 0.05, 25)
    first, again, other = bootstrap_interval(d, 1), bootstrap_interval(d, 1), bootstrap_interval(d, 2)
    exact = signed_rank_interval(d)
    assert first == again
    assert first != other
    assert first is not None
    assert exact is not None
    assert first.half_width == pytest.approx(exact.half_width, rel=0.25)
    assert bootstrap_interval(d[:5], 1) is None


def test_a_log_interval_becomes_one_of_ratios() -> None:
    ratios = Interval(0.0, math.log(2), 0.95).exp()
    assert ratios.as_tuple() == pytest.approx((1.0, 2.0))
    assert ratios.level == 0.95
