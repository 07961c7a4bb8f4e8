"""How long does the standard plan take to a verdict, against thirty blocks whatever happens?

    python -m benchmarks.verdict_time --launch-noise 0.02 --step-noise 0.05 --launch-seconds 8 [--json PATH]

The noise is an argument, so that a run's own variances can be put in: ``between_launch_cv`` of its rows (the
part that a block has in common cancels, so that this errs on the slow side) and IQR ÷ 1.35 ÷ median of the
steps. Two arms whose true ratio is 1.00, 1.02, 1.05, 1.10 or 1.30 are simulated, and each campaign ends by the
stopping rule. The fixed plan runs 30 blocks and tests once, at the nominal level.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks.campaigns import SHAPES, Decided, Noise, decide, simulate
from suite.analysis.stopping import MAX_BLOCKS

DIFFERENCES = (0.0, 0.02, 0.05, 0.10, 0.30)
CAMPAIGNS = 4000
CHUNK = 250


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

    ``minutes`` = blocks × arms × seconds per launch. ``blocks_low`` and ``blocks_high`` hold 80% of the campaigns.
    """

    difference: float
    blocks: float
    blocks_low: float
    blocks_high: float
    minutes: float
    fixed_minutes: float
    standard: Verdicts
    fixed: Verdicts


def measure(difference: float, noise: Noise, launch_seconds: float, campaigns: int, seed: int) -> VerdictTime:
    """Simulate two arms whose times differ by ``difference`` (0.02 for 2%)."""
    rng = np.random.default_rng(seed)
    log_means = np.array([math.log1p(difference), 0.0])
    drawn = [simulate(rng, min(CHUNK, campaigns - at), log_means, noise).median for at in range(0, campaigns, CHUNK)]
    values = np.concatenate(drawn)
    standard, fixed = decide(values), decide(values, sequential=False)
    minutes_per_block = 2 * launch_seconds / 60
    low, high = np.quantile(standard.blocks, (0.1, 0.9)).tolist()
    return VerdictTime(
        difference=difference,
        blocks=float(standard.blocks.mean()),
        blocks_low=low,
        blocks_high=high,
        minutes=float(standard.blocks.mean()) * minutes_per_block,
        fixed_minutes=MAX_BLOCKS * minutes_per_block,
        standard=_verdicts(standard),
        fixed=_verdicts(fixed),
    )


def table(times: list[VerdictTime]) -> str:
    """One line per true difference."""
    lines = [
        f"{'':>10}  {'standard, 8 to 30 blocks':^58}  {'fixed, 30 blocks':^42}",
        f"{'difference':>10}  {'blocks (80%)':>16}{'minutes':>9}{'slower':>9}{'faster':>8}{'equal':>8}{'open':>8}"
        f"    {'minutes':>7}{'slower':>9}{'faster':>8}{'equal':>8}{'open':>8}",
    ]
    for t in times:
        blocks = f"{t.blocks:.1f} [{t.blocks_low:.0f}, {t.blocks_high:.0f}]"
        lines.append(
            f"{t.difference:>10.0%}  {blocks:>16}{t.minutes:>9.1f}{_shares(t.standard)}"
            f"    {t.fixed_minutes:>7.1f}{_shares(t.fixed)}"
        )
    return "\n".join(lines)


def main() -> int:
    """Simulate every difference and print the table."""
    parser = argparse.ArgumentParser(description="Blocks and minutes to a verdict, by simulation.")
    parser.add_argument("--launch-noise", type=float, default=0.02, help="CV between launches (0.02 for 2%%)")
    parser.add_argument("--step-noise", type=float, default=0.05, help="CV of steps within a launch")
    parser.add_argument("--correlation", type=float, default=0.5, help="of a step with the one before")
    parser.add_argument("--steps", type=int, default=50, help="measured steps per launch")
    parser.add_argument("--shape", choices=SHAPES, default="normal", help="of launch and step noise")
    parser.add_argument("--launch-seconds", type=float, default=8.0, help="wall time of one launch, steps included")
    parser.add_argument("--campaigns", type=int, default=CAMPAIGNS, help="simulated campaigns per difference")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the outcomes there as JSON")
    options = parser.parse_args()
    noise = Noise(
        launch=options.launch_noise,
        step=options.step_noise,
        correlation=options.correlation,
        steps=options.steps,
        shape=options.shape,
    )
    times = [
        measure(difference, noise, options.launch_seconds, options.campaigns, options.seed + i)
        for i, difference in enumerate(DIFFERENCES)
    ]
    print(table(times))
    if options.json:
        document = {
            "benchmark": "verdict_time",
            "seed": options.seed,
            "campaigns": options.campaigns,
            "launch_seconds": options.launch_seconds,
            "noise": asdict(noise),
            "outcomes": [asdict(outcome) for outcome in times],
        }
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0


def _verdicts(decided: Decided) -> Verdicts:
    different, equivalent = decided.different[:, 0], decided.equivalent[:, 0]
    wrong = different & (decided.estimate[:, 0] < 0)
    return Verdicts(
        slower=float((different & ~wrong).mean()),
        equivalent=float(equivalent.mean()),
        unresolved=float((~different & ~equivalent).mean()),
        faster=float(wrong.mean()),
    )


def _shares(verdicts: Verdicts) -> str:
    shares = (verdicts.faster, verdicts.equivalent, verdicts.unresolved)
    return f"{verdicts.slower:>9.1%}" + "".join(f"{share:>8.1%}" for share in shares)


if __name__ == "__main__":
    raise SystemExit(main())
