from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest

from benchmarks import statistics_simulation
from benchmarks.campaigns import Noise, decide, simulate
from suite.analysis.pairs import compare, log_ratios
from suite.analysis.stopping import should_stop
from suite.analysis.verdicts import judge


def test_the_simulation_decides_as_the_suite_does_campaign_by_campaign() -> None:
    rng = np.random.default_rng(1)
    launches = simulate(rng, 40, np.array([0.03, 0.0, 0.0]), Noise(launch=0.02, steps=20))
    decided = decide(launches.median)
    for i in range(40):
        values = {name: np.exp(launches.median[i, :, arm]) for arm, name in enumerate("abc")}
        pairs = list(itertools.combinations("abc", 2))
        blocks = next(
            n for n in range(1, 31) if should_stop([log_ratios(values[a][:n], values[b][:n]) for a, b in pairs]).stop
        )
        assert blocks == decided.blocks[i]
        for j, pair in enumerate(compare({name: v[:blocks] for name, v in values.items()}, seed=1)):
            assert pair.interval is not None
            assert pair.ratio is not None
            assert pair.holm_p == pytest.approx(decided.holm_p[i, j])
            assert math.log(pair.interval.low) == pytest.approx(decided.low[i, j], abs=1e-12)
            assert math.log(pair.interval.high) == pytest.approx(decided.high[i, j], abs=1e-12)
            assert math.log(pair.ratio) == pytest.approx(decided.estimate[i, j], abs=1e-12)
            kind = judge(pair).kind
            assert decided.different[i, j] == (kind in {"slower", "faster"})
            assert decided.equivalent[i, j] == (kind == "equivalent")


def test_the_simulated_steps_are_as_noisy_and_as_correlated_as_asked_for() -> None:
    noise = Noise(block=0.0, launch=0.03, step=0.05, correlation=0.5, steps=400)
    launches = simulate(np.random.default_rng(2), 100, np.array([0.0, 0.2]), noise)
    assert launches.median.std() == pytest.approx(math.hypot(0.03, 0.1), rel=0.05)
    assert (launches.median[..., 1] - launches.median[..., 0]).mean() == pytest.approx(0.2, abs=0.005)
    assert np.sqrt(launches.variance.mean()) == pytest.approx(0.05, rel=0.02)
    per_launch = dataclasses.replace(noise, launch=0.0)
    means = simulate(np.random.default_rng(3), 100, np.array([0.0]), per_launch).mean
    assert means.std() == pytest.approx(0.05 * math.sqrt(3 / 400), rel=0.05)  # (1+ρ)/(1−ρ) = 3


@pytest.mark.slow
@pytest.mark.parametrize("scenario", statistics_simulation.scenarios(), ids=lambda scenario: scenario.name)
def test_verdicts_are_false_in_at_most_six_and_intervals_miss_in_at_most_seven_percent(
    scenario: statistics_simulation.Scenario,
) -> None:
    outcome = statistics_simulation.run(scenario, campaigns=4000, seed=2024)
    if not scenario.assumed:
        assert outcome.coverage < 0.95  # the price is known, and shown
        return
    assert outcome.kept, outcome
    if outcome.false is not None:
        assert outcome.false <= statistics_simulation.MAX_FALSE
        assert outcome.false_pooled is not None
        assert outcome.false_pooled > 0.10  # what taking steps for independent would cost
    assert outcome.coverage >= statistics_simulation.MIN_COVERAGE
    if scenario.ratio == 1.03:
        assert outcome.equivalent <= statistics_simulation.MAX_FALSE
