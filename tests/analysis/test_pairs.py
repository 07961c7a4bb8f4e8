from __future__ import annotations

import math

import numpy as np
import pytest

from suite.analysis.pairs import compare, log_ratios, resolution_floor
from suite.analysis.statistics import bootstrap_interval, hodges_lehmann, signed_rank_interval

NAN = float("nan")


def campaign(blocks: int, seed: int = 3) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    level = np.exp(rng.normal(0, 0.2, blocks))  # what a block does to all
    return {
        name: factor * level * np.exp(rng.normal(0, 0.01, blocks))
        for name, factor in (("nccl", 0.1234), ("gloo", 0.1567), ("mpi", 0.1892))
    }


def test_the_ratio_of_two_backends_is_recovered_with_its_interval_whatever_the_blocks_do() -> None:
    pairs = compare(campaign(12), seed=1)
    assert [(p.a, p.b) for p in pairs] == [("nccl", "gloo"), ("nccl", "mpi"), ("gloo", "mpi")]
    for pair, truth in zip(pairs, (0.1234 / 0.1567, 0.1234 / 0.1892, 0.1567 / 0.1892), strict=True):
        assert pair.ratio == pytest.approx(truth, rel=0.01)
        assert pair.interval is not None
        assert pair.interval.contains(truth)
        assert pair.interval.high / pair.interval.low < 1.04
        assert pair.holm_p is not None
        assert pair.holm_p < 0.01


def test_every_number_of_a_pair_comes_from_the_differences_by_block() -> None:
    values = campaign(9)
    (pair, *_), d = compare(values, seed=7, sequential=False), log_ratios(values["nccl"], values["gloo"])
    estimate, interval, bootstrap = hodges_lehmann(d), signed_rank_interval(d), bootstrap_interval(d, 7)
    assert estimate is not None
    assert interval is not None
    assert bootstrap is not None
    assert pair.ratio == pytest.approx(math.exp(estimate))
    assert pair.interval == interval.exp()
    assert pair.bootstrap == bootstrap.exp()
    assert pair.p == pytest.approx(2 / 2**9)
    assert pair.holm_p == pytest.approx(3 * 2 / 2**9)


def test_an_incomplete_block_is_left_out_of_the_pairs_it_touches_only() -> None:
    values = campaign(10)
    values["mpi"][[2, 5]] = NAN
    blocks = {(p.a, p.b): (p.blocks, p.attempted) for p in compare(values, seed=1)}
    assert blocks == {("nccl", "gloo"): (10, 10), ("nccl", "mpi"): (8, 10), ("gloo", "mpi"): (8, 10)}


def test_three_blocks_give_a_ratio_and_no_interval() -> None:
    (pair,) = compare({"a": [1.0, 1.1, 1.2], "b": [2.0, 2.2, 2.4]}, seed=1)
    assert pair.ratio == pytest.approx(0.5)
    assert (pair.interval, pair.equivalence_interval, pair.bootstrap, pair.p, pair.holm_p) == (None,) * 5


def test_arms_without_a_common_block_have_no_ratio() -> None:
    (pair,) = compare({"a": [1.0, NAN], "b": [NAN, 1.0]}, seed=1)
    assert (pair.blocks, pair.ratio, pair.p) == (0, None, None)


def test_pairs_fixed_before_the_run_stay_in_the_family() -> None:
    values = campaign(10)
    del values["mpi"]
    (alone,), (one_of_three,) = compare(values, seed=1), compare(values, seed=1, family=3)
    assert alone.p == one_of_three.p
    assert alone.p is not None
    assert one_of_three.holm_p == pytest.approx(3 * alone.p)


def test_a_reversed_pair_says_the_same_the_other_way_round() -> None:
    pair = compare(campaign(10), seed=1)[0]
    back = pair.reversed()
    assert (back.a, back.b, back.p) == ("gloo", "nccl", pair.p)
    assert pair.ratio is not None
    assert back.ratio == pytest.approx(1 / pair.ratio)
    assert pair.interval is not None
    assert back.interval is not None
    assert back.interval.low == pytest.approx(1 / pair.interval.high)
    swapped = compare(dict(reversed(campaign(10).items())), seed=1)[-1]
    assert swapped.ratio == pytest.approx(back.ratio)


@pytest.mark.parametrize(("a", "b"), [([1.0, 2.0], [1.0]), ([1.0, 0.0], [1.0, 1.0]), ([1.0, math.inf], [1.0, 1.0])])
def test_values_that_cannot_be_paired_are_refused(a: list[float], b: list[float]) -> None:
    with pytest.raises(ValueError, match=r"paired|finite"):
        log_ratios(a, b)


def test_the_floor_is_how_far_two_copies_of_one_arm_may_lie_apart() -> None:
    d = np.array([0.004, -0.011, 0.006, 0.013, -0.002, 0.009, 0.001, 0.005])
    interval = signed_rank_interval(d, sequential=True)
    assert interval is not None
    assert resolution_floor(d) == max(-interval.low, interval.high)
    assert resolution_floor(d[:5]) is None
