from __future__ import annotations

import pytest

from suite.analysis import wording
from suite.analysis.wording import Compared


def test_ten_against_eighteen_gives_the_three_numbers_each_by_its_name() -> None:
    assert wording.time_ratio(18, 10) == 1.8
    assert wording.ratio_text(wording.time_ratio(18, 10)) == "1.80"
    assert wording.percent(wording.time_saved(10, 18)) == "44.4%"
    assert wording.throughput_gain(10, 18) == 0.8
    assert wording.percent(wording.throughput_gain(10, 18)) == "80%"
    assert wording.saved_sentence("a", "b", 10, 18) == "a saves 44.4% of b's time, a gain of 80% in throughput"
    assert wording.saved_sentence("b", "a", 18, 10) == "b costs 80% more time than a, a loss of 44.4% in throughput"


def test_the_published_table_is_a_reference_without_spread() -> None:
    assert wording.reference_lines({"nccl": 0.1234, "gloo": 0.1567, "mpi": 0.1892}) == (
        "nccl  0.1234 s  1.00  spread: not reported",
        "gloo  0.1567 s  1.27  spread: not reported",
        "mpi   0.1892 s  1.53  spread: not reported",
    )


def test_a_ratio_is_told_with_its_interval() -> None:
    assert (
        wording.ratio_sentence("gloo", "nccl", 1.2698, (1.2496, 1.2899))
        == "gloo takes 1.27 [1.25, 1.29] times as long as nccl"
    )


@pytest.mark.parametrize(
    ("ratio", "ci", "text"),
    [
        (1.27, None, "1.27"),
        (2.3149, (2.27, 2.36), "2.31 [2.27, 2.36]"),
        (1.0081, (1.0062, 1.0099), "1.008 [1.006, 1.010]"),
        (1.00012, (1.00010, 1.00014), "1.0001 [1.0001, 1.0001]"),
        (1.0, (1.0, 1.0), "1.00 [1.00, 1.00]"),
        (12.345, (11.0, 14.0), "12.35 [11.00, 14.00]"),
    ],
)
def test_an_interval_is_shown_with_the_decimals_it_needs(
    ratio: float, ci: tuple[float, float] | None, text: str
) -> None:
    assert wording.ratio_text(ratio, ci) == text


@pytest.mark.parametrize(
    ("share", "text"), [(0.4444, "44.4%"), (0.8, "80%"), (0.0, "0%"), (-0.0001, "0%"), (-0.125, "−12.5%")]
)
def test_percentages_have_one_decimal_at_most(share: float, text: str) -> None:
    assert wording.percent(share) == text


@pytest.mark.parametrize(("p", "text"), [(0.0004, "p < 0.001"), (0.0078, "p = 0.008"), (0.3141, "p = 0.31")])
def test_small_p_values_are_not_printed_as_zero(p: float, text: str) -> None:
    assert wording.p_text(p) == text


def test_each_verdict_has_its_sentence() -> None:
    def told(ratio: float | None, ci: tuple[float, float] | None, verdict: str, **more: object) -> str:
        return wording.pair_sentence(
            "gloo", "nccl", ratio, ci, 0.0078, verdict, **{"blocks": 8, "delta": 0.03, **more}  # type: ignore[arg-type]
        )  # fmt: skip

    assert told(1.27, (1.25, 1.29), "slower") == (
        "gloo takes 1.27 [1.25, 1.29] times as long as nccl: slower (8 blocks, Holm p = 0.008)"
    )
    assert told(1.01, (1.0, 1.02), "equivalent") == (
        "gloo takes 1.01 [1.00, 1.02] times as long as nccl: equivalent within 3% (8 blocks, Holm p = 0.008)"
    )
    assert told(1.05, (0.9, 1.2), "unresolved", blocks_needed=41) == (
        "gloo takes 1.05 [0.90, 1.20] times as long as nccl: unresolved"
        " (8 blocks, Holm p = 0.008; about 41 blocks would resolve it)"
    )
    assert told(1.27, None, "unresolved", blocks=3) == (
        "gloo takes 1.27 times as long as nccl (3 blocks: exploratory, interval not estimable)"
    )
    assert told(None, None, "unresolved", blocks=0) == (
        "gloo and nccl have no complete block in common, so they are not compared"
    )
    tiny = told(1.01, (1.0, 1.02), "slower", within_delta=True, below_floor=True)
    assert "slower, though by less than 3%, yet no more than two copies of one backend differ here" in tiny


def test_only_what_was_shown_is_called_fastest() -> None:
    slower = Compared(2.31, (2.27, 2.36), "slower", 8, 0.0078)
    assert wording.conclusion("gloo", {"mpi": slower}) == (
        "gloo is fastest; mpi takes 2.31 [2.27, 2.36] times as long (8 blocks, Holm p = 0.008)"
    )
    open_ended = Compared(1.02, (0.97, 1.07), "unresolved", 8)
    assert wording.conclusion("gloo", {"mpi": slower, "nccl": open_ended}) == (
        "gloo leads, but is not shown to be fastest;"
        " mpi takes 2.31 [2.27, 2.36] times as long (8 blocks, Holm p = 0.008);"
        " nccl takes 1.02 [0.97, 1.07] times as long (unresolved, 8 blocks)"
    )
    assert wording.conclusion("gloo", {}) == "gloo is the only one measured, so nothing was compared"
    assert wording.conclusion("gloo", {"mpi": Compared(1.3, None, "unresolved")}).endswith(
        "mpi takes 1.30 times as long (interval not estimable)"
    )


def test_times_that_are_none_have_no_ratio() -> None:
    for bad in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="positive"):
            wording.time_ratio(bad, 1.0)
