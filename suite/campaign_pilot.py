"""From pilot launches to settings: one warm-up count and one number of steps for every arm."""

from __future__ import annotations

from collections.abc import Sequence

from suite.analysis.load import load_launch
from suite.analysis.stopping import MIN_STEPS, steps_per_launch, variance_components
from suite.analysis.warmup import MIN_WARMUP, common_warmup, warmup_count
from suite.paths import RunPaths
from suite.plan import Plan
from suite.records import LaunchOutcome, Manifest, Settings

# A launch is not allowed to take longer than this for its steps alone: a campaign needs launches, not steps.
LONGEST_MEASUREMENT_SECONDS = 20.0


def decide_settings(
    run: RunPaths,
    manifest: Manifest,
    plan: Plan,
    workload: str,
    world: int,
    pilots: Sequence[LaunchOutcome],
) -> Settings:
    """The largest warm-up and number of steps over the arms; cautious defaults where no pilot succeeded."""
    warmups = {}
    wanted: list[int] = []
    by_arm: dict[str, list[LaunchOutcome]] = {}
    for outcome in pilots:
        by_arm.setdefault(outcome.arm, []).append(outcome)
    step_seconds = 0.0
    buckets: set[int] = set()
    for arm, outcomes in by_arm.items():
        series = []
        overhead = 0.0
        for number, outcome in enumerate(outcomes):
            data = load_launch(run, outcome, manifest)
            if data.synchronised is None or not data.usable:
                continue
            buckets.update(data.ranks[0].facts.buckets_bytes)
            times = data.synchronised.total_ns.max(axis=0) / 1e9
            found = warmup_count(times)
            warmups[f"{arm}#{number}"] = found
            # Half of the pilot stays for the variances, whatever the warm-up was taken to be.
            series.append(times[min(found.count, times.size // 2) :])
            overhead = max(overhead, outcome.wall_seconds - float(series[-1].sum()))
            step_seconds = max(step_seconds, float(sorted(times)[times.size // 2]))
        if series and min(len(s) for s in series) >= 4:
            mean_step = sum(float(s.mean()) for s in series) / len(series)
            wanted.append(steps_per_launch(variance_components(series), max(overhead, 1e-3), mean_step))
    steps = plan.protocol.steps or max(wanted, default=MIN_STEPS)
    reason = "fixed by the plan" if plan.protocol.steps else "steps from the pilots' variances"
    affordable = max(MIN_STEPS, int(LONGEST_MEASUREMENT_SECONDS / step_seconds)) if step_seconds else steps
    if steps > affordable:
        steps = affordable
        reason += f", cut to {LONGEST_MEASUREMENT_SECONDS:g} s"
    if not warmups:
        return Settings(workload, world, MIN_WARMUP, steps, {}, "no pilot succeeded")
    settled = {key: result.settled for key, result in warmups.items()}
    return Settings(workload, world, common_warmup(warmups), steps, settled, reason, tuple(sorted(buckets)))
