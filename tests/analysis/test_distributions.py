"""Probability functions written out here, against scipy's."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import special, stats

from suite.analysis.distributions import coin_tail_count, normal_cdf, normal_quantile, student_t_quantile


def test_the_normal_distribution_is_scipys_in_both_tails() -> None:
    x = np.linspace(-12, 12, 481).reshape(13, 37)
    assert normal_cdf(x).shape == x.shape
    np.testing.assert_allclose(normal_cdf(x), special.ndtr(x), rtol=1e-12)


@pytest.mark.parametrize("probability", [1e-9, 0.025, 0.5, 0.8, 0.975, 1 - 1e-9])
def test_the_normal_quantile_is_scipys(probability: float) -> None:
    assert normal_quantile(probability) == pytest.approx(special.ndtri(probability), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 5, 8, 9, 30, 101, 1000])
@pytest.mark.parametrize("probability", [0.001, 0.2, 0.5, 0.9, 0.975, 0.9999])
def test_the_quantile_of_students_t_is_scipys(probability: float, degrees: int) -> None:
    assert student_t_quantile(probability, degrees) == pytest.approx(
        stats.t.ppf(probability, degrees), rel=1e-9, abs=1e-9
    )


@pytest.mark.parametrize("probability", [0.005, 0.01875, 0.025, 0.1, 0.4])
def test_tails_of_fair_coins_are_counted_as_scipy_sums_them(probability: float) -> None:
    for n in range(200):
        expected = int(np.sum(special.bdtr(np.arange(n + 1), n, 0.5) <= probability))
        assert coin_tail_count(n, probability) == expected, n


def test_a_tail_met_exactly_counts() -> None:
    assert coin_tail_count(5, 2**-5) == 1
    assert coin_tail_count(9, 0.5) == 5  # P(X ≤ 4) of nine coins is one half; in floating point it may seem more
    assert coin_tail_count(3, 1.0) == 4


@pytest.mark.parametrize("probability", [0.0, 1.0, -0.1])
def test_a_quantile_outside_the_distribution_is_refused(probability: float) -> None:
    with pytest.raises(ValueError, match="quantile"):
        normal_quantile(probability)
    with pytest.raises(ValueError, match="quantile"):
        student_t_quantile(probability, 3)


def test_students_t_needs_a_degree_of_freedom() -> None:
    with pytest.raises(ValueError, match="0 degrees"):
        student_t_quantile(0.975, 0)
