"""Two samples without blocks, against scipy and by simulation."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from suite.analysis.unpaired import compare_unpaired, mann_whitney_cdf


@pytest.mark.parametrize(("m", "n"), [(3, 4), (8, 8), (5, 20)])
def test_p_is_the_exact_mann_whitney_p(m: int, n: int) -> None:
    rng = np.random.default_rng(m * n)
    a, b = rng.lognormal(size=m), rng.lognormal(1.0, size=n)
    expected = stats.mannwhitneyu(a, b, method="exact").pvalue
    found = compare_unpaired(a, b, alpha=0.2).p
    assert found == pytest.approx(expected, rel=1e-9)


def test_the_distribution_adds_up_and_is_symmetric() -> None:
    cdf = mann_whitney_cdf(6, 9)
    assert cdf[-1] == pytest.approx(1.0)
    assert cdf[10] == pytest.approx(1 - cdf[6 * 9 - 11])
    assert cdf[0] == pytest.approx(1 / 5005)


def test_too_few_launches_give_a_ratio_without_interval_or_p() -> None:
    result = compare_unpaired([1.0, 1.1, 1.2], [2.0, 2.2, 2.4])
    assert result.ratio == pytest.approx(2.0)
    assert result.interval is None
    assert result.p is None


def test_the_interval_covers_the_true_ratio_as_often_as_it_says() -> None:
    rng = np.random.default_rng(4)
    hits = 0
    for _ in range(1000):
        a, b = rng.lognormal(sigma=0.02, size=8), 1.05 * rng.lognormal(sigma=0.02, size=9)
        interval = compare_unpaired(a, b).interval
        assert interval is not None
        hits += interval.contains(1.05)
    assert hits >= 935


def test_ties_never_reject_more_than_the_interval() -> None:
    result = compare_unpaired([1.0] * 6, [1.0] * 6)
    assert result.p == 1.0
    assert result.interval is not None
    assert result.interval.contains(1.0)


def test_values_that_are_no_times_are_refused() -> None:
    with pytest.raises(ValueError, match="finite and positive"):
        compare_unpaired([1.0, float("nan")], [1.0])
    with pytest.raises(ValueError, match="at least one"):
        compare_unpaired([], [1.0])
