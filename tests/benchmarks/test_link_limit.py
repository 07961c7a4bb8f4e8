"""From measured streams and a summary to shares of the link."""

from __future__ import annotations

import dataclasses

import pytest

from benchmarks.link_limit import limits, result, table
from suite.summary import CollectiveResult, LinkResult, ModelResult, Summary

MBIT = 1e6 / 8


def collective(backend: str, size: int, busbw: float | None, name: str = "all_reduce") -> CollectiveResult:
    link = None if busbw is None else busbw / (190 * MBIT)
    status, reason = ("ok", None) if busbw is not None else ("unavailable", "mpi has none")
    return CollectiveResult(
        backend, backend, name, size, 4, 1.0, None, busbw, busbw, 0, link_fraction=link, status=status, reason=reason
    )


def summary(busbw: float) -> Summary:
    return Summary(
        run="r",
        cluster="lab",
        created="",
        plan="quick",
        stop_reason="plan",
        environment={},
        rows=(),
        pairs=(),
        collectives=(
            collective("gloo", 1 << 20, 150 * MBIT),
            collective("gloo", 16 << 20, busbw),
            collective("mpi", 16 << 20, 90 * MBIT),
            collective("mpi", 16 << 20, None, "reduce_scatter"),
        ),
        links=(LinkResult("gloo", 4, 190 * MBIT), LinkResult("mpi", 4, 120 * MBIT)),
        models=(
            ModelResult(
                "gloo", "gloo", "all_reduce", 4, 0.004, None, 188 * MBIT / 1.5, None, 1024, 16 << 20, 0.1, 1024
            ),
        ),
    )


def measured(busbw: float) -> list[float | None]:
    found = result("200mbit", 200 * MBIT, [185 * MBIT, 187 * MBIT, 191 * MBIT], [summary(busbw)], 4)
    return [limit.seen for limit in limits([found])]


def test_shares_are_of_the_median_stream_and_of_the_rate_less_frame_headers() -> None:
    large, link, recovered, fastest = measured(180 * MBIT)
    assert large == pytest.approx(180 / 187)
    assert link == pytest.approx(190 / 187)
    assert recovered == pytest.approx(188 / (200 * 1448 / 1514))
    assert fastest == pytest.approx(180 / 187)


def test_the_fastest_of_all_is_judged_whatever_it_is() -> None:
    assert measured(210 * MBIT)[-1] == pytest.approx(210 / 187)
    found = result("200mbit", 200 * MBIT, [187 * MBIT], [summary(210 * MBIT)], 4)
    assert [limit.met for limit in limits([found])] == [False, True, True, False]


def test_a_collective_that_a_backend_lacks_is_named_with_its_reason() -> None:
    found = result("200mbit", 200 * MBIT, [187 * MBIT], [summary(180 * MBIT)], 4)
    assert found.reasons == {"mpi reduce_scatter": "mpi has none"}
    text = table({"rates": [dataclasses.asdict(found)]})
    assert "mpi reduce_scatter: mpi has none" in text
    assert "96.3%" in text  # 180 / 187, in the column of 16 MiB
    assert "the suite's B is 190 Mbit/s" in text


def test_nothing_measured_is_not_measured_and_no_success() -> None:
    found = result("1gbit", 1000 * MBIT, [940 * MBIT], [], 4)
    assert [limit.met for limit in limits([found])] == [None, None, None, None]
