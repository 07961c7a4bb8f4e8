"""Any input gives a value or the suite's own error: briefly always, for minutes among the slow tests."""

from __future__ import annotations

import os
import time
from collections import Counter

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.fuzz.properties import PROPERTIES, Check

# Generous: the machine may be busy, and what is looked for is a wrong answer, not a slow one.
CALM = {"deadline": None, "suppress_health_check": list(HealthCheck), "database": None}
EXAMPLES = 60
SECONDS = float(os.environ.get("SUITE_FUZZ_SECONDS", "240"))
BATCH = 200


@pytest.mark.parametrize("name", PROPERTIES)
def test_whatever_comes_gives_a_value_or_an_error_of_our_own(name: str) -> None:
    chosen = PROPERTIES[name]
    settings(max_examples=EXAMPLES, derandomize=True, **CALM)(given(chosen.strategy)(chosen.check))()


@pytest.mark.slow
@pytest.mark.timeout(int(SECONDS) + 300)
def test_minutes_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    """SUITE_FUZZ_SECONDS of new inputs each time, a batch of each property in turn; says how many there were."""
    counts: Counter[str] = Counter()
    deadline = time.monotonic() + SECONDS
    first = round_ = time.time_ns() % (1 << 31)
    while time.monotonic() < deadline:
        round_ += 1
        for name, chosen in PROPERTIES.items():

            def counted(value: object, name: str = name, check: Check = chosen.check) -> None:
                counts[name] += 1
                check(value)

            quick = settings(max_examples=BATCH, phases=[Phase.generate, Phase.shrink], **CALM)
            seed(round_)(quick(given(chosen.strategy)(counted)))()
            if time.monotonic() > deadline:
                break
    with capsys.disabled():
        print(f"\nfuzz: {sum(counts.values())} inputs in {SECONDS:g} s from seed {first}")
        for name, count in counts.most_common():
            print(f"  {count:8} {name}")
    assert set(counts) == set(PROPERTIES)
