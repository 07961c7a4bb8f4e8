"""Collectives of a run: time, algbw, busbw, the measured link B, and how near to it a backend comes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from suite.analysis import bandwidth, statistics
from suite.analysis.load import CollectiveTimes, LaunchData
from suite.summary import CollectiveResult, LinkResult

Nanoseconds = NDArray[np.int64]

BUCKET, LINK, SWEEP = "bucket", "link", "sweep"


def bus_bandwidth(collective: str, size_bytes: int, seconds: float, world_size: int) -> float | None:
    """busbw in bytes per second; None where it means nothing (barrier, nothing sent, one rank)."""
    if seconds <= 0 or size_bytes <= 0 or world_size < 2:
        return None
    return bandwidth.busbw(collective, size_bytes, seconds, world_size)


def call_seconds(times: CollectiveTimes) -> float | None:
    """One launch's time of one collective: median over calls of the max over ranks; None without samples."""
    return float(np.median(times.ns.max(axis=0))) / 1e9 if times.ns.size else None


def communication_seconds(launch: LaunchData) -> float | None:
    """C of one launch: isolated all-reduces at the actual bucket sizes, summed over the buckets.

    A worker may time each distinct size once; then every bucket of that size counts. None for one rank, whose
    all-reduces send nothing.
    """
    if launch.ranks[0].world_size == 1:
        return None
    times = {(t.size_bytes, place): call_seconds(t) for place, t in enumerate(_buckets(launch))}
    if not times or any(value is None for value in times.values()):
        return None
    buckets = launch.ranks[0].facts.buckets_bytes
    if len(times) == len(buckets) or not buckets:
        return float(sum(value for value in times.values() if value is not None))
    by_size = {size: value for (size, _), value in times.items()}
    if any(size not in by_size for size in buckets):
        return None
    return float(sum(by_size[size] or 0.0 for size in buckets))


def largest_bucket(launch: LaunchData) -> tuple[int, float] | None:
    """Size in bytes and seconds of the largest bucket's isolated all-reduce."""
    timed = [(t.size_bytes, call_seconds(t)) for t in _buckets(launch)]
    known = [(size, value) for size, value in timed if value is not None]
    return max(known, key=lambda item: item[0]) if known else None


def _buckets(launch: LaunchData) -> list[CollectiveTimes]:
    return [t for t in launch.collectives if t.purpose == BUCKET and t.collective == "all_reduce"]


def link_results(launches: Sequence[LaunchData]) -> tuple[LinkResult, ...]:
    """B per backend and world size: median over launches of the slowest sender's bandwidth.

    A sender's bandwidth is window ÷ median time of its windows. The slowest one is the launch's, because the
    slowest link bounds a ring. Ranks that share one host have no link between hosts: they are left out.
    """
    found: dict[tuple[str, int], list[float]] = defaultdict(list)
    for launch in launches:
        speeds = [
            t.size_bytes / (float(np.median(t.ns)) / 1e9)
            for t in launch.collectives
            if t.purpose == LINK and t.ns.size and t.size_bytes
        ]
        if speeds and len({record.host for record in launch.ranks}) > 1:
            found[launch.outcome.backend, launch.outcome.world_size].append(min(speeds))
    results = []
    for (backend, world_size), values in sorted(found.items()):
        interval = statistics.median_interval(values)
        results.append(
            LinkResult(backend, world_size, float(np.median(values)), None if interval is None else interval.as_tuple())
        )
    return tuple(results)


def link_of(links: Sequence[LinkResult], world_size: int) -> LinkResult | None:
    """B at a world size: the highest of the backends', since none can move more than the link carries.

    A world size without a measurement of its own takes the highest there is: the links are the same ones.
    """
    found = [link for link in links if link.world_size == world_size]
    if not found and world_size > 1:
        found = list(links)
    return max(found, key=lambda link: link.bytes_per_second, default=None)


def share_of_link(busbw: float | None, link: LinkResult | None) -> float | None:
    """busbw over the link's speed; None where either is unknown."""
    return None if busbw is None or link is None else bandwidth.link_fraction(busbw, link.bytes_per_second).fraction


def collective_results(launches: Sequence[LaunchData], links: Sequence[LinkResult]) -> tuple[CollectiveResult, ...]:
    """One result per arm, collective, size and implementation over all usable launches, links left out."""
    groups: dict[tuple[int, str, str, str, str, int, str], list[CollectiveTimes]] = defaultdict(list)
    for launch in launches:
        if launch.outcome.kind != "collectives":
            continue
        for times in launch.collectives:
            if times.purpose != LINK:
                key = (
                    launch.outcome.world_size, times.collective, times.implementation,
                    launch.outcome.arm, launch.outcome.backend, times.size_bytes, times.purpose,
                )  # fmt: skip
                groups[key].append(times)
    return tuple(_result(key, found, link_of(links, key[0])) for key, found in sorted(groups.items()))


def _result(
    key: tuple[int, str, str, str, str, int, str], found: list[CollectiveTimes], link: LinkResult | None
) -> CollectiveResult:
    world_size, collective, implementation, arm, backend, size, purpose = key
    values = [value for value in map(call_seconds, found) if value is not None]
    wrong = sum(times.wrong for times in found)
    if not values:
        reason = next((t.unavailable for t in found if t.unavailable), "no samples")
        return CollectiveResult(
            backend, arm, collective, size, world_size, None, None, None, None, wrong,
            implementation, purpose, status="unavailable", reason=reason,
        )  # fmt: skip
    seconds = float(np.median(values))
    interval = statistics.median_interval(values)
    busbw = bus_bandwidth(collective, size, seconds, world_size)
    return CollectiveResult(
        backend=backend,
        arm=arm,
        collective=collective,
        bytes=size,
        world_size=world_size,
        seconds=seconds,
        ci=None if interval is None else interval.as_tuple(),
        algbw=None if busbw is None else bandwidth.algbw(size, seconds),
        busbw=busbw,
        wrong=wrong,
        implementation=implementation,
        purpose=purpose,
        link_fraction=share_of_link(busbw, link),
        status="invalid" if wrong else "ok",
        reason=f"{wrong} wrong values" if wrong else None,
    )
