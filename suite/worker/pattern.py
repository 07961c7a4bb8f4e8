"""Numbers that every order of summation gives alike: small integers, exact in float32.

Element i holds i mod 97 plus an offset. 97 is prime, so a result that is shifted by any power of two is seen.
Both functions go through the buffer in slices, since they run on buffers of hundreds of MiB.
"""

from __future__ import annotations

import torch

PERIOD = 97
_SLICE = PERIOD * 10_000


def _slice_pattern(buffer: torch.Tensor) -> torch.Tensor:
    repeats = -(-min(_SLICE, buffer.numel()) // PERIOD)
    return torch.arange(PERIOD, dtype=buffer.dtype, device=buffer.device).repeat(max(1, repeats))


def fill(buffer: torch.Tensor, offset: int) -> None:
    """Write the pattern plus ``offset`` into a one-dimensional buffer."""
    pattern = _slice_pattern(buffer) + offset
    for part in buffer.split(_SLICE):
        part.copy_(pattern[: part.numel()])


def count_wrong(buffer: torch.Tensor, factor: int, offset: int) -> int:
    """How many elements are not ``factor`` times the pattern plus ``offset``."""
    expected = _slice_pattern(buffer) * factor + offset
    return sum(int((part != expected[: part.numel()]).sum()) for part in buffer.split(_SLICE))
