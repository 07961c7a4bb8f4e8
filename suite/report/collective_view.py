"""Tables of a collectives sweep: sizes down, arms across; and of the links they are held against."""

from __future__ import annotations

from collections.abc import Sequence

from suite.report import format as fmt
from suite.report.view import STATUS_WORDS, Key, Line, Table
from suite.summary import CollectiveResult, Summary

Source = tuple[str, str]  # arm and implementation


def tables(summary: Summary, *, whole: bool) -> tuple[Table, ...]:
    """The sweep's tables.

    Args:
        whole: every collective by size; else all_reduce by size, and the others at their largest size only.
    """
    found: list[Table] = []
    for world in sorted({r.world_size for r in summary.collectives}):
        results = [r for r in summary.collectives if r.world_size == world]
        names = list(dict.fromkeys(r.collective for r in results))
        names.sort(key=lambda name: (name != "all_reduce", name == "barrier", name))
        for name in names if whole else names[:1]:
            found.append(_by_size(summary, [r for r in results if r.collective == name], name, world))
        if not whole and names[1:]:
            found.append(_largest(results, names[1:], world))
    failed = [r for r in summary.rows if r.workload == "collectives"]
    if failed:
        lines = tuple(
            Line((r.arm, str(r.world_size), f"{STATUS_WORDS[r.status]}: {r.reason}"), r.status) for r in failed
        )
        found.append(Table("Collectives without a result", ("backend", "world size", "reason"), lines))
    return tuple(found)


def _keys(results: Sequence[CollectiveResult]) -> list[Source]:
    return list(
        dict.fromkeys((r.arm, r.implementation) for r in sorted(results, key=lambda r: r.implementation != "torch"))
    )


def _heading(key: Source) -> str:
    return key[0] if key[1] == "torch" else f"{key[0]} ({key[1]})"


def _by_size(summary: Summary, results: Sequence[CollectiveResult], name: str, world: int) -> Table:
    keys = _keys(results)
    timed = {(r.arm, r.implementation, r.bytes): r for r in results if r.seconds is not None}
    columns = ["size"]
    for key in keys:
        columns += [f"{_heading(key)} time (95% CI)", "busbw Gbit/s", "of link"]
    lines = []
    for size in sorted({r.bytes for r in results if r.seconds is not None}):
        cells = [fmt.size(size) if size else "–"]
        order: list[Key] = [size]
        for arm, implementation in keys:
            r = timed.get((arm, implementation, size))
            order += [None] * 3 if r is None else [r.seconds, r.busbw, r.link_fraction]
            cells += (
                [fmt.NONE] * 3
                if r is None
                else [fmt.time_ci(r.seconds, r.ci), fmt.gigabits(r.busbw), fmt.share(r.link_fraction)]
            )
        lines.append(Line(tuple(cells), keys=tuple(order)))
    sentences = [_link_sentence(summary, world)] if name == "all_reduce" else []
    for r in results:
        if r.status == "unavailable":
            sentences.append(f"{_heading((r.arm, r.implementation))}: not available: {r.reason}.")
    warnings = [
        f"{_heading((r.arm, r.implementation))}, {fmt.size(r.bytes)}: {r.wrong} wrong values. Do not use this backend."
        for r in results
        if r.wrong
    ]
    return Table(
        f"{name}, world size {world}", tuple(columns), tuple(lines), tuple(s for s in dict.fromkeys(sentences) if s),
        tuple(warnings), numeric=frozenset(range(len(columns))),
    )  # fmt: skip


def _largest(results: Sequence[CollectiveResult], names: Sequence[str], world: int) -> Table:
    keys = _keys(results)
    columns = ["collective", "size"]
    for key in keys:
        columns += [f"{_heading(key)} time", "busbw Gbit/s", "of link"]
    lines = []
    for name in names:
        mine = [r for r in results if r.collective == name]
        sizes = [r.bytes for r in mine if r.seconds is not None]
        size = max(sizes, default=0)
        cells = [name, fmt.size(size) if size else fmt.NONE]
        order: list[Key] = [name, size]
        for arm, implementation in keys:
            r = next((x for x in mine if (x.arm, x.implementation) == (arm, implementation) and x.bytes == size), None)
            order += [None] * 3 if r is None else [r.seconds, r.busbw, r.link_fraction]
            if r is None or r.seconds is None:
                known = next((x for x in mine if (x.arm, x.implementation) == (arm, implementation)), None)
                cells += ["not available" if known and known.status == "unavailable" else fmt.NONE, fmt.NONE, fmt.NONE]
            else:
                cells += [fmt.time(r.seconds), fmt.gigabits(r.busbw), fmt.share(r.link_fraction)]
        lines.append(Line(tuple(cells), keys=tuple(order)))
    return Table(
        f"Other collectives at their largest size, world size {world}", tuple(columns), tuple(lines),
        numeric=frozenset(range(1, len(columns))),
    )  # fmt: skip


def _link_sentence(summary: Summary, world: int) -> str:
    links = [link for link in summary.links if link.world_size == world] or list(summary.links)
    if not links:
        return "The link was not measured, so nothing is held against it."
    best = max(links, key=lambda link: link.bytes_per_second)
    return (
        f"Link, point to point over {best.backend}: {fmt.bandwidth_ci(best.bytes_per_second, best.ci)}; no all-reduce"
        " can have a higher busbw."
    )
