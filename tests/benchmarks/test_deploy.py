"""Deploys judged; the image is built for real in the benchmark itself."""

from __future__ import annotations

import dataclasses

from benchmarks.deploy import Deploy, limits, table


def deploys(hand: float) -> list[Deploy]:
    return [
        Deploy("full", 60.0, 5_480_000_000, 5_600_000_000),
        Deploy("by hand", hand, None, 5_600_000_000),
        Deploy("full", 70.0, 5_480_000_000, 5_600_000_000),
        Deploy("by hand", hand, None, 5_600_000_000),
        Deploy("code", 8.0, 400_000, 900_000),
        Deploy("unchanged", 0.7, 0, 100_000),
    ]


def test_full_deploys_are_held_against_those_by_hand_of_the_same_run() -> None:
    assert [limit.met for limit in limits(deploys(60.0))] == [True, True, True, True, True]
    ratio = limits(deploys(50.0))[-1]
    assert ratio.seen == 65.0 / 50.0
    assert ratio.met is False


def test_one_byte_sent_for_an_unchanged_image_is_a_miss() -> None:
    found = [dataclasses.replace(d, sent=1) if d.case == "unchanged" else d for d in deploys(60.0)]
    assert limits(found)[0].met is False


def test_by_hand_says_that_nobody_counted_what_was_sent() -> None:
    text = table({"deploys": [dataclasses.asdict(d) for d in deploys(60.0)]})
    by_hand = next(line for line in text.splitlines() if line.startswith("by hand"))
    assert "–" in by_hand
    assert "5600.00 MB" in by_hand
