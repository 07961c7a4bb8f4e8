from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.campaigns import decide
from suite.analysis.pairs import Pair, compare
from suite.analysis.statistics import Interval, signed_rank_interval
from suite.analysis.verdicts import against, blocks_needed, fastest, judge


def pair_of(ratio: float, spread: float, blocks: int = 12, seed: int = 0, family: int = 1) -> Pair:
    d = np.random.default_rng(seed).normal(0, spread, blocks)
    d -= np.median(d)  # so that the estimate is the ratio asked for, nearly
    (pair,) = compare({"a": ratio * np.exp(d), "b": np.ones(blocks)}, seed=1, family=family)
    return pair


def test_a_clear_difference_is_slower_one_way_and_faster_the_other() -> None:
    pair = pair_of(1.27, 0.02)
    assert judge(pair).kind == "slower"
    assert judge(pair.reversed()).kind == "faster"
    assert not judge(pair).within_delta


def test_arms_that_differ_by_less_than_the_margin_are_equivalent() -> None:
    verdict = judge(pair_of(1.0, 0.01))
    assert (verdict.kind, verdict.within_delta, verdict.delta, verdict.blocks_needed) == (
        "equivalent",
        True,
        0.03,
        None,
    )


def test_a_large_p_value_alone_is_never_called_the_same() -> None:
    pair = pair_of(1.0, 0.15)
    assert pair.p is not None
    assert pair.p > 0.5
    assert judge(pair).kind == "unresolved"


def test_a_sure_but_tiny_difference_is_a_difference_and_said_to_be_within_the_margin() -> None:
    verdict = judge(pair_of(1.01, 0.002))
    assert (verdict.kind, verdict.within_delta) == ("slower", True)


def test_a_difference_below_the_floor_of_two_equal_arms_is_marked() -> None:
    pair = pair_of(1.01, 0.002)
    assert judge(pair, floor=math.log(1.02)).below_floor
    assert not judge(pair, floor=math.log(1.005)).below_floor
    assert not judge(pair).below_floor


def test_the_margin_is_symmetric_in_ratios() -> None:
    pair = pair_of(1.0, 0.01)
    assert pair.equivalence_interval is not None
    edge = max(pair.equivalence_interval.high, 1 / pair.equivalence_interval.low) - 1
    for side in (pair, pair.reversed()):
        assert judge(side, delta=edge * 1.001).kind == "equivalent"
        assert judge(side, delta=edge * 0.98).kind == "unresolved"


def test_the_family_decides_not_the_single_p_value() -> None:
    blocks = 8
    assert judge(pair_of(1.3, 0.02, blocks, family=1)).kind == "slower"
    verdict = judge(pair_of(1.3, 0.02, blocks, family=10))
    assert verdict.kind == "unresolved"
    assert verdict.blocks_needed == 10  # 10 pairs: 2^(1−n)/0.75·10 < 0.05 from n = 10 on


def test_too_few_blocks_are_unresolved_without_a_guess_of_how_many_it_takes() -> None:
    verdict = judge(pair_of(1.5, 0.01, blocks=4))
    assert (verdict.kind, verdict.blocks_needed) == ("unresolved", None)


def test_a_margin_must_be_positive() -> None:
    with pytest.raises(ValueError, match="margin"):
        judge(pair_of(1.0, 0.01), delta=0.0)


@pytest.mark.parametrize("ratio", [1.035, 1.0])
def test_that_many_blocks_do_resolve_it_in_four_cases_of_five(ratio: float) -> None:
    """The estimate for a known truth, then campaigns of that many blocks."""
    spread, now = 0.045, 12
    rng = np.random.default_rng(6)
    intervals = [signed_rank_interval(rng.normal(0, spread, now), sequential=True) for _ in range(200)]
    half = float(np.median([interval.half_width for interval in intervals if interval]))
    known = Pair("a", "b", now, now, ratio, Interval(ratio * math.exp(-half), ratio * math.exp(half), 0.95),
                 None, None, None, None, 1, True)  # fmt: skip
    needed = blocks_needed(known, delta=0.03)
    assert needed is not None
    assert needed > now
    logs = np.stack([math.log(ratio) + rng.normal(0, spread, (2000, needed)), np.zeros((2000, needed))], axis=2)
    decided = decide(logs, min_blocks=needed)
    right = decided.different if ratio > 1 else decided.equivalent
    assert 0.7 <= right.mean() <= 0.92


def test_the_fastest_arm_is_found_by_pairs_and_by_medians_where_there_are_none() -> None:
    rng = np.random.default_rng(1)
    level = np.exp(rng.normal(0, 0.5, 8))
    values = {"gloo": 1.3 * level, "nccl": level, "mpi": 1.6 * level}
    pairs = compare(values, seed=1)
    assert fastest(pairs, {name: float(np.median(v)) for name, v in values.items()}) == "nccl"
    assert fastest((), {"gloo": 2.0, "mpi": 1.0}) == "mpi"
    assert fastest((), {}) is None


def test_pairs_are_turned_so_that_the_reference_is_the_denominator() -> None:
    values = {"gloo": [1.3] * 8, "nccl": [1.0] * 8, "mpi": [1.6] * 8}
    turned = against("nccl", compare(values, seed=1))
    assert {name: round(pair.ratio or 0, 6) for name, pair in turned.items()} == {"gloo": 1.3, "mpi": 1.6}
    assert all(pair.b == "nccl" for pair in turned.values())
