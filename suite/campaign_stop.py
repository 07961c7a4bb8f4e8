"""The stopping rule, asked of what a run has so far."""

from __future__ import annotations

from itertools import combinations

from suite.analysis.load import load_launch
from suite.analysis.pairs import log_ratios
from suite.analysis.steps import launch_value
from suite.analysis.stopping import should_stop
from suite.paths import RunPaths
from suite.plan import Plan, kind_of
from suite.records import Manifest


def launch_values(run: RunPaths, manifest: Manifest, workload: str, world: int) -> dict[str, dict[int, float]]:
    """Median step seconds of every usable launch: arm -> block -> value."""
    values: dict[str, dict[int, float]] = {}
    for outcome in manifest.launches:
        key = (outcome.workload, outcome.world_size, outcome.kind)
        if key != (workload, world, kind_of(workload)) or outcome.status != "ok":
            continue
        data = load_launch(run, outcome, manifest)
        if data.usable and data.synchronised is not None and data.synchronised.steps:
            times = data.synchronised.total_ns.max(axis=0) / 1e9
            values.setdefault(outcome.arm, {})[outcome.block] = launch_value(times)
    return values


def decide(run: RunPaths, manifest: Manifest, plan: Plan, workload: str, world: int, blocks: int) -> str | None:
    """The reason to stop this comparison ("target", "plan"), or None to go on."""
    values = launch_values(run, manifest, workload, world)
    arms = [arm.name for arm in plan.arms if arm.name not in manifest.unavailable]
    differences = []
    for a, b in combinations(arms, 2):
        # Only the blocks so far: a resumed run replays its decisions and must take the same ones.
        shared = sorted(j for j in set(values.get(a, {})) & set(values.get(b, {})) if j < blocks)
        differences.append(log_ratios([values[a][j] for j in shared], [values[b][j] for j in shared]))
    if not differences:
        return None  # one arm alone: nothing to compare, the plan's number of blocks stands
    decision = should_stop(
        differences,
        plan.protocol.target or 0.0,
        plan.protocol.min_blocks,
        plan.protocol.max_blocks,
        blocks=blocks,
    )
    return decision.reason
