"""Units appear here only, so their exact texts are tested here only."""

from __future__ import annotations

import pytest

from suite.report import format as fmt


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0418, "41.8 ms"), (0.101, "101 ms"), (1.234, "1.23 s"), (0.0009996, "1.00 ms"), (0.9996, "1.00 s"),
        (12.34e-6, "12.3 µs"), (5e-9, "5.00 ns"), (123.4, "123 s"), (0.0, "0 s"), (-0.0003, "−300 µs"), (None, "–"),
    ],
)  # fmt: skip
def test_times_have_three_digits_and_a_unit_that_fits(seconds: float | None, text: str) -> None:
    assert fmt.time(seconds) == text


def test_an_interval_stands_in_the_medians_unit() -> None:
    assert fmt.time_ci(0.0418, (0.0415, 0.0422)) == "41.8 ms [41.5, 42.2]"
    assert fmt.time_ci(0.0967, (0.0958, 0.0979)) == "96.7 ms [95.8, 97.9]"
    assert fmt.time_ci(0.0418, None) == "41.8 ms"
    assert fmt.time_ci(0.001, (-0.0005, 0.002)) == "1.00 ms [−0.50, 2.00]"
    assert fmt.time_ci(0.0418, (0.041795, 0.041804)) == "41.800 ms [41.795, 41.804]"  # a narrow one shows its ends


def test_a_negative_exposed_communication_is_shown_as_it_is() -> None:
    assert fmt.time_ci(-0.0002, (-0.0004, 0.0001)) == "−0.20 ms [−0.40, 0.10]" or fmt.time_ci(
        -0.0002, (-0.0004, 0.0001)
    ).startswith("−200 µs [−400, 100]")


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.144, "14%"), (0.041, "4.1%"), (0.63, "63%"), (1.05, "105%"), (0.0, "0%"), (-0.0001, "0%"), (-0.3, "−30%"),
     (0.04, "4%"), (0.0996, "10%"), (None, "–")],
)  # fmt: skip
def test_shares_are_percentages(share: float | None, text: str) -> None:
    assert fmt.share(share) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (100, "100 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), (25 << 20, "25 MiB"), (1 << 30, "1 GiB")],
)
def test_sizes_are_binary(count: int, text: str) -> None:
    assert fmt.size(count) == text


def test_bandwidths_are_bits_and_decimal() -> None:
    assert fmt.bandwidth(125e6) == "1.00 Gbit/s"
    assert fmt.bandwidth(0.46e9 / 8) == "0.460 Gbit/s"
    assert fmt.bandwidth_ci(117.6e6, (117.5e6, 117.7e6)) == "0.941 Gbit/s [0.940, 0.942]"
    assert fmt.bandwidth(None) == "–"


def test_text_from_outside_cannot_steer_a_terminal() -> None:
    assert fmt.clean("a\x1b[31mb\r\nc\u202ed\x9be") == "a\ufffd[31mb\ufffd\ufffdc\ufffdd\ufffde"
    assert fmt.clean("µ – − ≤ é 漢") == "µ – − ≤ é 漢"
