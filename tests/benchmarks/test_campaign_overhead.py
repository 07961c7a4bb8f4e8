"""A launch's wall time, cut into its parts."""

from __future__ import annotations

import pytest

from benchmarks.campaign_overhead import Launch, limits, split, summary, table
from benchmarks.process_watch import Life


def lives() -> list[Life]:
    """Called at 100: supervisors 100.2 to 109.5, launchers 100.3 to 109.2, ranks 102 to 109."""
    return [
        Life("supervisor", 1, 100.2, ended=109.4),
        Life("supervisor", 2, 100.25, ended=109.5),
        Life("launcher", 3, 100.3, ended=109.2),
        Life("rank", 4, 102.0, ended=108.9),
        Life("rank", 5, 102.1, ended=109.0),
    ]


def test_the_parts_add_up_to_the_wall_time() -> None:
    parts = split(100.0, 109.7, lives())
    assert parts is not None
    assert parts["wall"] == pytest.approx(9.7)
    assert parts["before"] == pytest.approx(0.2)
    assert parts["ranks"] == pytest.approx(7.0)
    assert parts["launcher"] == pytest.approx(1.8 + 0.5)
    assert parts["after"] == pytest.approx(0.2)
    assert sum(parts[name] for name in ("before", "launcher", "ranks", "after")) == pytest.approx(parts["wall"])


def test_a_launch_whose_ranks_were_not_seen_counts_for_nothing() -> None:
    assert split(100.0, 109.7, [life for life in lives() if life.kind != "rank"]) is None


def launch(backend: str, wall: float, ranks: float) -> Launch:
    stages = {"import": 1.0, "rendezvous": 0.5, "total": ranks - 0.1}
    return Launch(backend, "train", wall, 0.1, 0.2, wall - ranks - 0.3, ranks, 0.05, stages)


def test_both_readings_of_the_target_are_judged() -> None:
    medians = summary([launch("gloo", 10.0, 8.0), launch("gloo", 12.0, 9.0), launch("mpi", 6.0, 5.6)])
    judged = {limit.what: limit for limit in limits(medians)}
    assert judged["gloo: the controller's part of a launch"].met
    strict = judged["gloo: wall time less the ranks' lives, the launcher's own part included"]
    assert strict.seen == pytest.approx(11.0 - 8.5)
    assert strict.met is False
    assert judged["mpi: wall time less the ranks' lives, the launcher's own part included"].met
    assert "gloo" in table({"medians": medians})
