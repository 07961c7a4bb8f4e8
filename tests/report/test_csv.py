"""CSV: unrounded numbers, and no formula."""

from __future__ import annotations

import csv
import io

import pytest

from suite.report import csv_, render
from suite.summary import Summary
from tests.support.hostile import hostile_summary


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_every_number_of_a_row_comes_back_unrounded(example: Summary) -> None:
    found = rows(render(example, None, "csv"))
    row = next(r for r in example.rows if (r.workload, r.world_size, r.arm) == ("linear", 4, "mpi"))
    mine = {
        r["quantity"]: r for r in found
        if (r["table"], r["workload"], r["world_size"], r["arm"]) == ("row", "linear", "4", "mpi")
    }  # fmt: skip
    assert row.step_seconds is not None
    assert row.step_seconds.ci is not None
    assert float(mine["step_seconds"]["value"]) == row.step_seconds.median
    assert float(mine["step_seconds"]["ci_low"]) == row.step_seconds.ci[0]
    assert row.ratio_to_fastest is not None
    assert float(mine["ratio_to_fastest"]["p"]) == row.ratio_to_fastest.p
    assert mine["ratio_to_fastest"]["verdict"] == "slower"
    assert (mine["step_seconds"]["launches_valid"], mine["step_seconds"]["launches_attempted"]) == ("7", "8")


def test_rows_without_numbers_pairs_collectives_and_links_are_there_too(example: Summary) -> None:
    found = rows(render(example, None, "csv"))
    assert {r["table"] for r in found} == {"row", "pair", "collective", "link"}
    assert any(r["status"] == "unavailable" and r["arm"] == "nccl" and "no CUDA" in r["reason"] for r in found)
    assert any(r["collective"] == "reduce_scatter" and r["status"] == "unavailable" for r in found)


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@x", " =1", "\t=1", "\r=1"])
def test_text_is_never_a_formula(text: str) -> None:
    assert str(csv_.cell(text)).lstrip(" ")[:1] not in ("=", "+", "-", "@", "\t", "\r")


def test_negative_numbers_stay_numbers() -> None:
    assert csv_.cell(-0.5) == -0.5


def test_hostile_texts_stay_in_their_cells() -> None:
    text = csv_.render(hostile_summary())
    for row in rows(text):
        assert set(row) == set(csv_.COLUMNS)
        for value in row.values():
            assert value[:1] not in ("=", "@"), value
    assert not any(c in text for c in "\r\x1b\x07\x9b")
