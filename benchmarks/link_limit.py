"""Does gloo reach what the link carries, and does the fitted model give the link back?

    python -m benchmarks.link_limit [--quick] [--json PATH] [--lab FOLDER]

Four simulated hosts, each host's sending limited (tbf) to one rate after another. Per rate, all with the same
links: the goodput of one TCP stream between every pair of neighbours (iperf3 on the hosts, outside of every
container), then the suite's own sweep of collectives over gloo and mpi, then the goodput again. Reported are
busbw ÷ goodput per backend, collective and size, the suite's own B ÷ goodput, and what the fitted
t(S) = α + S/β says of the link: β · 2(n−1)/n ÷ rate.

A rate counts every byte of a frame (1514 bytes for 1448 bytes of payload), so that a stream cannot carry more
than 95.6% of it. Simulated hosts share this machine's cores: at 1 Gbit/s four senders and receivers fill two
cores, and a load of others' makes every number lower; it cannot make one higher.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.common import Limit, Options, columns, document, finish, median, parse_options
from benchmarks.labs import Deployed, Lab, deployed_lab, execute, plan_for
from suite.analysis.bandwidth import busbw_factor
from suite.analysis.summarise import summarise
from suite.cluster import lab
from suite.errors import HostError
from suite.options import RunOptions
from suite.records import Sweep
from suite.summary import Summary

KIB, MIB = 1 << 10, 1 << 20
# Bits per second, and the largest message: a call of it takes about a second.
RATES = {"1gbit": (1e9, 64 * MIB), "300mbit": (3e8, 16 * MIB), "200mbit": (2e8, 16 * MIB), "100mbit": (1e8, 16 * MIB)}
QUICK_RATES = ("1gbit", "200mbit")
PAYLOAD_SHARE = 1448 / 1514  # of an Ethernet frame at an MTU of 1500, with TCP timestamps
LEAST, MOST = 0.93, 1.05
RECOVERED = (0.95, 1.05)
LARGE = 4 * MIB
IPERF_PORT = 5201
OTHERS = ("broadcast", "all_gather", "reduce_scatter", "all_to_all", "send_recv")


@dataclass(frozen=True)
class Point:
    """One collective at one size: busbw in bytes per second, as a share of the goodput, and of the suite's B."""

    rate: str
    backend: str
    collective: str
    implementation: str
    bytes: int
    busbw: float
    of_goodput: float
    of_link: float | None


@dataclass(frozen=True)
class RateResult:
    """One rate. Bytes per second; ``goodput`` is the median over pairs and over before and after.

    ``link`` is B as the suite measured it; ``recovered`` maps backends to β · 2(n−1)/n of the all-reduce,
    ``alpha`` to α in seconds, ``misfit`` to the largest |measured ÷ line − 1| over the sizes.
    """

    rate: str
    shaped: float
    goodput: float
    goodput_range: tuple[float, float]
    link: float | None
    recovered: dict[str, float]
    alpha: dict[str, float]
    misfit: dict[str, float]
    points: tuple[Point, ...]
    reasons: dict[str, str]


def goodput(there: Lab, seconds: float) -> list[float]:
    """Bytes per second of one TCP stream from every host to the next, one after the other."""
    hosts = there.cluster.hosts
    return [
        _stream(there, sender.name, receiver.name, receiver.data_address, seconds)
        for sender, receiver in zip(hosts, (*hosts[1:], hosts[0]), strict=True)
    ]


def _stream(there: Lab, sender: str, receiver: str, address: str, seconds: float) -> float:
    port = str(IPERF_PORT)
    # -1: the server ends after one client; the time limit is for the case that none comes.
    there.engine.command(receiver, "sh", "-c", f"timeout {seconds + 30:.0f} iperf3 -s -1 -p {port} >/dev/null 2>&1 &")
    # The first second is left out: a token bucket lets its burst through, and TCP starts slowly.
    words = ["iperf3", "-c", address, "-p", port, "-t", f"{seconds:.0f}", "-O", "1", "-J"]
    for _ in range(20):
        done = there.engine.run(sender, *words, timeout=seconds + 30)
        if done.ok:
            return float(json.loads(done.text)["end"]["sum_received"]["bits_per_second"]) / 8
        time.sleep(0.25)
    raise HostError(sender, f"iperf3 to {receiver} failed: {done.complaint}")


def measure(deployed: Deployed, rate: str, folder: Path, *, quick: bool) -> RateResult:
    """Shape the links, measure goodput, sweep, goodput."""
    bits, largest = RATES[rate]
    if quick:
        largest = min(largest, 16 * MIB)
    lab.link(rate, root=deployed.lab.root)
    seconds = 2 if quick else 4
    streams = goodput(deployed.lab, seconds)
    sizes = tuple(size for size in (KIB << shift for shift in range(0, 17, 2)) if size <= largest)
    summaries = [_sweep(deployed, ("all_reduce",), sizes, folder, blocks=1 if quick else 2)]
    if not quick:
        summaries.append(_sweep(deployed, OTHERS, (64 * KIB, MIB, largest), folder, blocks=1))
    streams += goodput(deployed.lab, seconds)
    return result(rate, bits / 8, streams, summaries, len(deployed.slots))


def _sweep(
    deployed: Deployed, collectives: tuple[str, ...], sizes: tuple[int, ...], folder: Path, *, blocks: int
) -> Summary:
    options = RunOptions(backend="gloo,mpi", workload="collectives", blocks=str(blocks), deadline="15m", seed="1")
    plan = plan_for(deployed, options)
    sweep = Sweep(collectives=collectives, sizes_bytes=sizes, seconds_per_size=1.0)
    plan = replace(plan, run=f"{plan.run}-{collectives[0]}", sweep=sweep)
    run, _ = execute(deployed, plan, folder)
    return summarise(run)


def result(
    rate: str, shaped: float, streams: Sequence[float], summaries: Sequence[Summary], world_size: int
) -> RateResult:
    """What one rate's measurements say."""
    carried = median(streams) or 0.0
    links = [found.bytes_per_second for summary in summaries for found in summary.links]
    points = [
        Point(
            rate=rate,
            backend=found.backend,
            collective=found.collective,
            implementation=found.implementation,
            bytes=found.bytes,
            busbw=found.busbw,
            of_goodput=found.busbw / carried,
            of_link=found.link_fraction,
        )
        for summary in summaries
        for found in summary.collectives
        if found.busbw is not None and found.status == "ok"
    ]
    models = [m for summary in summaries for m in summary.models if m.collective == "all_reduce"]
    factor = busbw_factor("all_reduce", world_size) or 1.0
    return RateResult(
        rate=rate,
        shaped=shaped,
        goodput=carried,
        goodput_range=(min(streams), max(streams)),
        link=max(links, default=None),
        recovered={model.backend: model.beta * factor for model in models},
        alpha={model.backend: model.alpha for model in models},
        misfit={model.backend: model.worst_misfit for model in models if model.worst_misfit is not None},
        points=tuple(points),
        reasons={
            f"{found.backend} {found.collective}": found.reason or ""
            for summary in summaries
            for found in (*summary.collectives,)
            if found.status != "ok"
        }
        | {f"{row.backend}": row.reason or "" for summary in summaries for row in summary.rows if row.status != "ok"},
    )


def limits(found: Sequence[RateResult]) -> list[Limit]:
    """The targets: gloo reaches the link, nothing is faster than it, and the model gives it back."""
    judged: list[Limit] = []
    for one in found:
        large = [p for p in one.points if (p.backend, p.collective) == ("gloo", "all_reduce") and p.bytes >= LARGE]
        best = max(large, key=lambda p: p.bytes, default=None)
        judged += [
            Limit(
                f"gloo's all-reduce of {best.bytes // MIB if best else '?'} MiB at {one.rate}: busbw ÷ goodput",
                best.of_goodput if best else None,
                LEAST,
                MOST,
                "%",
            ),
            Limit(
                f"the suite's own link B at {one.rate}: B ÷ goodput",
                one.link / one.goodput if one.link else None,
                LEAST,
                MOST,
                "%",
            ),
            Limit(
                f"the link out of gloo's sweep at {one.rate}: β · 2(n−1)/n ÷ (rate less frame headers)",
                one.recovered["gloo"] / (one.shaped * PAYLOAD_SHARE) if "gloo" in one.recovered else None,
                *RECOVERED,
                "%",
            ),
        ]
    every = [p for one in found for p in one.points]
    fastest = max((p.of_goodput for p in every), default=None)
    judged.append(Limit("the fastest of all collectives and sizes: busbw ÷ goodput", fastest, None, MOST, "%"))
    return judged


def table(outcomes: dict[str, Any]) -> str:
    """Per rate: the link, then all-reduce by size, then the large messages of the others."""
    lines = []
    for one in outcomes["rates"]:
        low, high = one["goodput_range"]
        link = f"{one['link'] * 8 / 1e6:.0f}" if one["link"] else "–"
        lines.append(
            f"{one['rate']}: one TCP stream carries {one['goodput'] * 8 / 1e6:.0f} [{low * 8 / 1e6:.0f},"
            f" {high * 8 / 1e6:.0f}] Mbit/s, {one['goodput'] / one['shaped']:.1%} of the rate;"
            f" the suite's B is {link} Mbit/s"
        )
        for backend, value in one["recovered"].items():
            lines.append(
                f"  {backend}: α = {one['alpha'][backend] * 1e3:.2f} ms, β gives a link of {value * 8 / 1e6:.0f} Mbit/s"
                f" ({value / one['shaped']:.1%} of the rate, {value / one['shaped'] / PAYLOAD_SHARE:.1%} of its"
                f" payload); worst misfit {one['misfit'].get(backend, 0):.0%}"
            )
        lines.append(_points_table(one["points"]))
        lines += [f"  {name}: {reason}" for name, reason in one["reasons"].items()]
        lines.append("")
    return "busbw ÷ goodput\n" + "\n".join(lines).rstrip()


def _points_table(points: Sequence[dict[str, Any]]) -> str:
    sizes = sorted({p["bytes"] for p in points})
    by_line: dict[str, dict[int, float]] = {}
    for p in points:
        by = "" if p["implementation"] == "torch" else f" ({p['implementation']})"
        by_line.setdefault(f"  {p['collective']} {p['backend']}{by}", {})[p["bytes"]] = p["of_goodput"]
    header = ["  collective", *(_size(size) for size in sizes)]
    rows = [[name, *(f"{v[s]:.1%}" if s in v else "" for s in sizes)] for name, v in by_line.items()]
    return columns(header, rows)


def _size(size: int) -> str:
    return f"{size // MIB} MiB" if size >= MIB else f"{size // KIB} KiB"


def run(options: Options) -> list[RateResult]:
    """Every rate on one lab."""
    with deployed_lab(options) as deployed, tempfile.TemporaryDirectory(prefix="bench-") as folder:
        names = QUICK_RATES if options.quick else tuple(RATES)
        return [measure(deployed, rate, Path(folder) / rate, quick=options.quick) for rate in names]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and judge; exit 1 when a limit is missed."""
    options = parse_options(__doc__, arguments)
    before = os.getloadavg()
    found = run(options)
    outcomes = {"rates": [asdict(one) for one in found]}
    return finish(document("link_limit", options, before, limits(found), outcomes), table(outcomes), options)


if __name__ == "__main__":
    raise SystemExit(main())
