"""How long does the standard plan take to a verdict, against thirty blocks whatever happens?

    python -m benchmarks.verdict_time [--quick] [--json PATH]

One real pair, and simulations with its variances. The pair is gloo and mpi in a published standard run (``PAIR``):
of each of its comparisons, after which block the stopping rule ended it, how long that took, what it said then, and
how long thirty blocks would have taken at the same pace.

Each comparison's noise is then simulated: sd(ln ratio over the blocks) ÷ √2 per launch, so that what a block has in
common cancels and what steps add to a launch's median is in it. Two arms whose true ratio is 1.00, 1.02, 1.05, 1.10
or 1.30 meet; each campaign ends by the stopping rule. The fixed plan runs 30 blocks and tests once, at the nominal
level.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.campaigns import Decided, Noise, decide, simulate
from benchmarks.common import Limit, Options, columns, document, finish, parse_options
from suite import codec
from suite.analysis.pairs import log_ratios
from suite.analysis.stopping import MAX_BLOCKS
from suite.campaign_stop import launch_values
from suite.paths import project_root
from suite.plan import kind_of
from suite.records import Manifest
from suite.report.bundle import unpacked
from suite.summary import PairResult, Summary

PAIR = Path("results") / "published" / "lab-1-gbit"
DIFFERENCES = (0.0, 0.02, 0.05, 0.10, 0.30)
CAMPAIGNS = 4000
QUICK_CAMPAIGNS = 400
CHUNK = 250
MAX_FALSE = 0.06


@dataclass(frozen=True)
class Verdicts:
    """Shares of campaigns by verdict on the first arm, which is truly slower, or as fast.

    ``faster`` is always wrong; of identical arms, so is ``slower``.
    """

    slower: float
    equivalent: float
    unresolved: float
    faster: float


@dataclass(frozen=True)
class VerdictTime:
    """Blocks and minutes until the standard plan stops, and what both plans say then.

    ``minutes`` = blocks × minutes of a block. ``blocks_low`` and ``blocks_high`` hold 80% of the campaigns.
    """

    comparison: str
    difference: float
    blocks: float
    blocks_low: float
    blocks_high: float
    minutes: float
    fixed_minutes: float
    standard: Verdicts
    fixed: Verdicts


@dataclass(frozen=True)
class Pair:
    """One comparison of the published run: where it ended and what it said of the slower arm.

    ``noise``: of a launch, on ln(time). ``block_minutes``: of its two launches, on average.
    """

    comparison: str
    blocks: int
    block_minutes: float
    noise: float
    ratio: float
    low: float | None
    high: float | None
    verdict: str


def pairs_of(bundle: Path) -> list[Pair]:
    """The comparisons of a published run that had enough blocks for a noise."""
    summary = codec.read(bundle / "summary.json", Summary)
    with unpacked(bundle) as run:
        manifest = codec.read(run.manifest, Manifest)
        return [
            _pair(pair, manifest, launch_values(run, manifest, pair.workload, pair.world_size))
            for pair in summary.pairs
            if pair.ratio is not None and pair.blocks > 1
        ]


def _pair(pair: PairResult, manifest: Manifest, values: dict[str, dict[int, float]]) -> Pair:
    first, second = values[pair.a], values[pair.b]
    shared = sorted(first.keys() & second.keys())
    ratios = log_ratios([first[j] for j in shared], [second[j] for j in shared])
    train = (pair.workload, pair.world_size, kind_of(pair.workload))
    walls = [o.wall_seconds for o in manifest.launches if (o.workload, o.world_size, o.kind) == train]
    assert pair.ratio is not None
    low, high = pair.ci or (None, None)
    turned = pair.ratio < 1
    return Pair(
        comparison=f"{pair.workload}, world size {pair.world_size}",
        blocks=pair.blocks,
        block_minutes=2 * float(np.mean(walls)) / 60,
        noise=float(np.std(ratios, ddof=1)) / math.sqrt(2),
        ratio=1 / pair.ratio if turned else pair.ratio,
        low=(1 / high if turned else low) if low and high else None,
        high=(1 / low if turned else high) if low and high else None,
        verdict={"faster": "slower"}.get(pair.verdict, pair.verdict) if turned else pair.verdict,
    )


def measure(
    comparison: str, difference: float, noise: Noise, block_minutes: float, campaigns: int, seed: int
) -> VerdictTime:
    """Simulate two arms whose times differ by ``difference`` (0.02 for 2%)."""
    rng = np.random.default_rng(seed)
    log_means = np.array([math.log1p(difference), 0.0])
    drawn = [simulate(rng, min(CHUNK, campaigns - at), log_means, noise).median for at in range(0, campaigns, CHUNK)]
    values = np.concatenate(drawn)
    standard, fixed = decide(values), decide(values, sequential=False)
    low, high = np.quantile(standard.blocks, (0.1, 0.9)).tolist()
    return VerdictTime(
        comparison=comparison,
        difference=difference,
        blocks=float(standard.blocks.mean()),
        blocks_low=low,
        blocks_high=high,
        minutes=float(standard.blocks.mean()) * block_minutes,
        fixed_minutes=MAX_BLOCKS * block_minutes,
        standard=_verdicts(standard),
        fixed=_verdicts(fixed),
    )


def table(outcomes: dict[str, Any]) -> str:
    """The real pair, then one line per comparison and true difference."""
    real = [
        (
            pair["comparison"],
            f"{pair['ratio']:.3f}" + (f" [{pair['low']:.3f}, {pair['high']:.3f}]" if pair["low"] is not None else ""),
            pair["verdict"],
            f"{pair['blocks']}",
            f"{pair['blocks'] * pair['block_minutes']:.1f}",
            f"{MAX_BLOCKS * pair['block_minutes']:.1f}",
            f"{pair['noise']:.1%}",
        )
        for pair in outcomes["pairs"]
    ]
    header = ("one real pair", "ratio", "verdict", "blocks", "minutes", "of 30 blocks", "noise of a launch")
    simulated = [
        (
            f"{time['comparison']}, {time['difference']:.0%}",
            f"{time['blocks']:.1f} [{time['blocks_low']:.0f}, {time['blocks_high']:.0f}]",
            f"{time['minutes']:.1f}",
            *_shares(time["standard"]),
            f"{time['fixed_minutes']:.1f}",
            *_shares(time["fixed"]),
        )
        for time in outcomes["simulated"]
    ]
    said = ("slower", "faster", "equal", "open")
    return "\n".join(
        (
            columns(header, real),
            "",
            f"{outcomes['campaigns']} simulated campaigns each: standard, 8 to 30 blocks, then 30 blocks, fixed",
            columns(("true difference", "blocks (80%)", "minutes", *said, "minutes", *said), simulated),
        )
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the pair, simulate every difference, print the tables."""
    options: Options = parse_options(__doc__, arguments)
    before = os.getloadavg()
    campaigns = QUICK_CAMPAIGNS if options.quick else CAMPAIGNS
    bundle = project_root() / PAIR
    pairs = pairs_of(bundle)
    times = [
        measure(
            pair.comparison,
            difference,
            Noise(launch=pair.noise, step=0.0, steps=2),  # the steps' part is in the launch's already
            pair.block_minutes,
            campaigns,
            seed=1 + place,
        )
        for pair in pairs
        for place, difference in enumerate(DIFFERENCES)
    ]
    # The first arm is truly slower, or as fast: "faster" is false, and so is "slower" where nothing differs.
    wrong = max(time.standard.faster + (0.0 if time.difference else time.standard.slower) for time in times)
    limits = [Limit("false verdicts of simulated campaigns, worst case", wrong, high=MAX_FALSE, unit="%")]
    outcomes = {
        "run": PAIR.name,
        "campaigns": campaigns,
        "pairs": [asdict(pair) for pair in pairs],
        "simulated": [asdict(time) for time in times],
    }
    return finish(document("verdict_time", options, before, limits, outcomes), table(outcomes), options)


def _verdicts(decided: Decided) -> Verdicts:
    different, equivalent = decided.different[:, 0], decided.equivalent[:, 0]
    wrong = different & (decided.estimate[:, 0] < 0)
    return Verdicts(
        slower=float((different & ~wrong).mean()),
        equivalent=float(equivalent.mean()),
        unresolved=float((~different & ~equivalent).mean()),
        faster=float(wrong.mean()),
    )


def _shares(verdicts: dict[str, float]) -> tuple[str, ...]:
    return tuple(f"{verdicts[name]:.1%}" for name in ("slower", "faster", "equivalent", "unresolved"))


if __name__ == "__main__":
    sys.exit(main())
