"""Whole numbers out of what a host, an engine or a program has said.

``str.isdigit`` is true of "²", and ``int`` refuses it; ``int`` also refuses thousands of digits. Neither may end a run.
"""

from __future__ import annotations

import re

_WHOLE = re.compile(r"[0-9]{1,18}")  # what 64 bits hold


def natural(text: str | None) -> int | None:
    """The number that these digits 0 to 9 are; None for anything else, and for one of more than 18 digits."""
    return int(text) if text and _WHOLE.fullmatch(text) else None


def version_numbers(text: str) -> tuple[int, ...]:
    """The numbers of a version: "535.104.05" gives (535, 104, 5)."""
    return tuple(int(part) for part in _WHOLE.findall(text))
