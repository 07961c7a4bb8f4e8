"""Bandwidths of collectives, and the bound that the link sets.

Bytes, seconds and bytes per second. S is the full buffer that a rank holds (all_reduce, broadcast, reduce,
send_recv) or the sum over ranks (all_gather, reduce_scatter, all_to_all), as nccl-tests counts; its
PERFORMANCE document derives the factors.

A ring all-reduce over n ranks moves 2(n−1)/n · S over every link, and no algorithm on such links needs less,
so that busbw cannot exceed the link's bandwidth B. A fraction above 1.05 means that S or B is wrong.
"""

from __future__ import annotations

from dataclasses import dataclass

LINK_FRACTION_LIMIT = 1.05

_RING_SHARE = ("all_gather", "reduce_scatter", "all_to_all")
_WHOLE = ("broadcast", "reduce", "send_recv")
COLLECTIVES = ("all_reduce", *_RING_SHARE, *_WHOLE, "barrier")


@dataclass(frozen=True)
class LinkFraction:
    """busbw ÷ B."""

    fraction: float

    @property
    def suspicious(self) -> bool:
        """Above 1.05, which no link allows, so that S or B is wrong."""
        return self.fraction > LINK_FRACTION_LIMIT


def busbw_factor(collective: str, world_size: int) -> float | None:
    """busbw ÷ algbw: the share of S that crosses each link. None for barrier, which moves no payload.

    Raises:
        ValueError: world size below 1, or an unknown collective.
    """
    if world_size < 1:
        raise ValueError(f"world size is {world_size}; it must be at least 1")
    if collective == "all_reduce":
        return 2 * (world_size - 1) / world_size
    if collective in _RING_SHARE:
        return (world_size - 1) / world_size
    if collective in _WHOLE:
        return 1.0
    if collective == "barrier":
        return None
    raise ValueError(f"{collective!r} is no collective that has a bandwidth; known are {', '.join(COLLECTIVES)}")


def algbw(size_bytes: int, seconds: float) -> float:
    """Algorithm bandwidth S/t, bytes per second; t is the max over ranks."""
    if seconds <= 0:
        raise ValueError(f"a collective cannot take {seconds} s")
    return size_bytes / seconds


def busbw(collective: str, size_bytes: int, seconds: float, world_size: int) -> float | None:
    """Bus bandwidth, bytes per second: what the links carried. None for barrier."""
    factor = busbw_factor(collective, world_size)
    return None if factor is None else algbw(size_bytes, seconds) * factor


def lower_bound_seconds(collective: str, size_bytes: int, world_size: int, link: float) -> float | None:
    """Least time that links of ``link`` bytes per second allow; None for barrier."""
    factor = busbw_factor(collective, world_size)
    return None if factor is None else factor * size_bytes / link


def link_fraction(bus_bandwidth: float, link: float) -> LinkFraction:
    """busbw over the measured link bandwidth B, both in bytes per second."""
    return LinkFraction(bus_bandwidth / link)
