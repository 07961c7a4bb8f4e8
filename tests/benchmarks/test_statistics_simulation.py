from __future__ import annotations

import dataclasses

from benchmarks import statistics_simulation as simulation


def test_limits_are_judged_at_the_worst_scenario_that_the_method_assumes() -> None:
    found = [
        dataclasses.replace(simulation.run(scenario, 50, seed=3), false=false, coverage=coverage)
        for scenario, false, coverage in zip(
            (simulation.scenarios()[0], simulation.scenarios()[1], simulation.scenarios()[-1]),
            (0.02, 0.07, None),
            (0.96, 0.95, 0.5),
            strict=True,
        )
    ]
    false, coverage = simulation.limits_of(found)
    assert (false.seen, false.met) == (0.07, False)
    assert (coverage.seen, coverage.met) == (0.95, True)
    rows = [{**dataclasses.asdict(outcome), "kept": outcome.kept} for outcome in found]
    text = simulation.table({"campaigns": 50, "scenarios": rows})
    assert "7.0%" in text
    assert text.count("not assumed") == 1
