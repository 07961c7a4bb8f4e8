from __future__ import annotations

import pytest

from suite.numerals import natural, version_numbers


@pytest.mark.parametrize(("text", "number"), [("0", 0), ("007", 7), ("9" * 18, 10**18 - 1)])
def test_digits_are_a_number(text: str, number: int) -> None:
    assert natural(text) == number


@pytest.mark.parametrize("text", [None, "", "-1", "1.5", " 1", "1\n", "²", "٣", "9" * 19, "9" * 5000])
def test_anything_else_is_none(text: str | None) -> None:
    assert natural(text) is None


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("535.104.05", (535, 104, 5)), ("20.10.24+dfsg1", (20, 10, 24, 1)), ("none", ()), ("1.²", (1,))],
)
def test_a_version_is_compared_by_its_numbers(text: str, numbers: tuple[int, ...]) -> None:
    assert version_numbers(text) == numbers


def test_a_version_of_thousands_of_digits_is_no_error() -> None:
    assert all(number < 10**18 for number in version_numbers("9" * 5000))
