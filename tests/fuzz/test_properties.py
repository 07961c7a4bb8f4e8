"""Any input gives a value or the suite's own error: briefly always, for minutes among the slow tests."""

from __future__ import annotations

import os
import time
from collections import Counter

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.fuzz.properties import PROPERTIES
from tests.fuzz.samples import Check

EXAMPLES = 60
SECONDS = float(os.environ.get("SUITE_FUZZ_SECONDS", "240"))
BATCH = 200


def tried(examples: int, *, new: bool) -> settings:
    """So many inputs, the same ones each time or new ones. No limit on time: the machine may be busy."""
    return settings(
        max_examples=examples,
        derandomize=not new,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
    )


@pytest.mark.parametrize("name", PROPERTIES)
def test_whatever_comes_gives_a_value_or_an_error_of_our_own(name: str) -> None:
    chosen = PROPERTIES[name]
    tried(EXAMPLES, new=False)(given(chosen.strategy)(chosen.check))()


def counting(counts: Counter[str], name: str, check: Check) -> Check:
    """The check, counted."""

    def counted(value: object) -> None:
        counts[name] += 1
        check(value)

    return counted


@pytest.mark.slow
@pytest.mark.timeout(int(SECONDS) + 300)
def test_minutes_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    """SUITE_FUZZ_SECONDS of new inputs each time, a batch of each property in turn; says how many there were."""
    counts: Counter[str] = Counter()
    start = time.monotonic()
    first = turn = time.time_ns() % (1 << 31)
    while time.monotonic() - start < SECONDS:
        turn += 1
        for name, chosen in PROPERTIES.items():
            check = counting(counts, name, chosen.check)
            seed(turn)(tried(BATCH, new=True)(given(chosen.strategy)(check)))()
            if time.monotonic() - start > SECONDS:
                break
    with capsys.disabled():
        print(f"\nfuzz: {sum(counts.values())} inputs in {time.monotonic() - start:.0f} s, seed {first}")
        for name, count in counts.most_common():
            print(f"  {count:8} {name}")
    assert set(counts) == set(PROPERTIES)
