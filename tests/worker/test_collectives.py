# ruff: noqa: E402  # without torch the whole file is skipped, and that must come before imports that need it
from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from suite.errors import LaunchError
from suite.records import Sweep
from suite.worker import collectives, timing
from suite.worker.collectives import Call, UnavailableError, find_maker
from suite.worker.groups import Groups
from suite.worker.pattern import PERIOD, count_wrong, fill
from suite.worker.timing import bucket_all_reduces, measure, sweep


def test_the_pattern_is_what_it_says_over_slice_borders() -> None:
    buffer = torch.zeros(PERIOD * 10_000 + 5)
    fill(buffer, 3)
    assert buffer[: PERIOD + 2].tolist() == [*(float(i + 3) for i in range(PERIOD)), 3.0, 4.0]
    assert buffer[-1] == 4 + 3
    assert count_wrong(buffer, 1, 3) == 0


def test_every_wrong_element_is_counted_even_when_the_data_are_only_shifted() -> None:
    buffer = torch.zeros(1000)
    fill(buffer, 0)
    buffer[[5, 999]] += 1
    assert count_wrong(buffer, 1, 0) == 2
    fill(buffer, 0)
    assert count_wrong(buffer.roll(1), 1, 0) > 990
    buffer[7] = float("nan")
    assert count_wrong(buffer, 1, 0) == 1


def test_sums_of_many_ranks_stay_exact_in_float32() -> None:
    ranks = 1000
    largest = ranks * (PERIOD - 1) + ranks * (ranks - 1) // 2
    assert largest < 2**24


def test_one_rank_measures_what_one_rank_can(one_rank: Callable[[], Groups]) -> None:
    plan = Sweep(sizes_bytes=(4, 1000), repeats=3, min_repeats=1, seconds_per_size=0.1)
    found = list(sweep(one_rank(), plan))
    assert [(s.collective, s.unavailable) for s in found if s.unavailable and s.collective == "send_recv"] == [
        ("send_recv", "needs two ranks")
    ]
    reduced = [s for s in found if s.collective == "all_reduce"]
    assert [(s.size_bytes, len(s.ns) >= 1, s.wrong) for s in reduced] == [(4, True, 0), (1000, True, 0)]


def test_an_unknown_collective_is_refused(one_rank: Callable[[], Groups]) -> None:
    with pytest.raises(LaunchError, match="no collective 'gossip'"):
        find_maker(one_rank(), "gossip")


def test_a_way_that_fails_gives_way_to_the_next(
    one_rank: Callable[[], Groups], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(groups: Groups, size: int) -> Call:
        raise NotImplementedError("not in this backend")

    def works(groups: Groups, size: int) -> Call:
        return Call("all_gather", size, lambda: None)

    groups = one_rank()
    monkeypatch.setitem(collectives._WAYS, "all_gather", (broken, works))
    assert find_maker(groups, "all_gather") is works
    monkeypatch.setitem(collectives._WAYS, "all_gather", (broken,))
    with pytest.raises(UnavailableError, match="gloo: NotImplementedError: not in this backend"):
        find_maker(groups, "all_gather")


def test_wrong_results_are_counted_and_not_hidden(one_rank: Callable[[], Groups]) -> None:
    call = Call("all_reduce", 8, lambda: None, wrong=lambda: 2)
    cheap = measure(one_rank(), call, Sweep(repeats=4, min_repeats=2, seconds_per_size=1.0))
    assert cheap.wrong == 4  # the first and the last call were checked
    assert len(cheap.ns) == 4


def test_expensive_calls_are_repeated_less_but_not_below_the_minimum(
    one_rank: Callable[[], Groups], monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = one_rank()
    monkeypatch.setattr(groups, "largest", lambda value: 1e9)  # every call is said to take a second
    plan = Sweep(repeats=50, min_repeats=5, seconds_per_size=8.0)
    assert len(measure(groups, Call("barrier", 0, lambda: None), plan).ns) == 8
    shorter = Sweep(repeats=50, min_repeats=5, seconds_per_size=2.0)
    assert len(measure(groups, Call("barrier", 0, lambda: None), shorter).ns) == 5


def test_each_distinct_bucket_is_timed_once(one_rank: Callable[[], Groups]) -> None:
    found = list(bucket_all_reduces(one_rank(), (4096, 1024, 4096), 3))
    assert [(s.size_bytes, s.purpose) for s in found] == [(4096, "bucket"), (1024, "bucket")]


def test_no_garbage_is_collected_while_calls_are_timed(one_rank: Callable[[], Groups]) -> None:
    import gc

    seen = []
    timing.measure(one_rank(), Call("barrier", 0, lambda: seen.append(gc.isenabled())), Sweep(repeats=3, warmup=0))
    assert False in seen
    assert gc.isenabled()


def test_gloo_is_never_asked_to_send_from_a_gpus_memory() -> None:
    groups: Any = SimpleNamespace(
        backend="gloo", world_size=2, rank=0, measured=None, device=SimpleNamespace(kind="cuda")
    )
    (make,) = collectives._WAYS["send_recv"]
    with pytest.raises(UnavailableError, match="gloo cannot send from a GPU's memory"):
        make(groups, 4096)
