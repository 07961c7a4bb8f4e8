"""A run from its plan to its last launch: pilots, blocks, the stopping rule, the budget, and resuming.

The campaign knows no host and no torch: it asks an executor for launches and writes the ledger after each.
It is deterministic: the same plan and the same set of finished launches always lead to the same next launch,
which is what makes ``--resume`` run exactly what is missing.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from suite import codec, paths
from suite.campaign_pilot import decide_settings
from suite.campaign_progress import Announcer
from suite.cluster.executor import Executor
from suite.errors import HostError, Interrupted, LaunchError, UsageError
from suite.limits import COLLECTIVES
from suite.paths import RunPaths
from suite.plan import (
    AA_ARM,
    Plan,
    Slot,
    aa_twin,
    block_slots,
    blocks_of,
    comparisons,
    kind_of,
    launch_spec,
)
from suite.provenance import code_digest
from suite.records import HostProbe, LaunchOutcome, Manifest, Settings, Sweep

GIVE_UP_AFTER = 2  # failures of one arm in a row: a third would only cost another deadline


@dataclass
class _State:
    """What the campaign knows at a moment; everything in it can be had again from the ledger."""

    manifest: Manifest
    done: dict[Slot, LaunchOutcome]


class Campaign:
    """One run, new or resumed.

    Args:
        plan: what to do.
        executor: what runs the launches.
        run: where the run lives; created by ``start``.
        manifest: the ledger so far.
        announcer: where progress goes.
    """

    def __init__(self, plan: Plan, executor: Executor, run: RunPaths, manifest: Manifest, announcer: Announcer) -> None:
        self._plan = plan
        self._executor = executor
        self._run = run
        self._announce = announcer
        finished = {slot_of(o): o for o in manifest.launches if o.status != "interrupted"}
        self._state = _State(manifest, finished)
        self._earlier_seconds = sum(o.wall_seconds for o in manifest.launches)
        self._clock = time.monotonic()

    def execute(self) -> Manifest:
        """Run what is missing. Returns the final ledger.

        Raises:
            Interrupted: Ctrl-C or SIGTERM; the ledger says so, and the run can be resumed.
            LaunchError: a host was lost, so no launch of any backend could follow; the same holds.
        """
        try:
            self._forget_unfinished()
            self._probe()
            reason = self._work_on_sound_hosts()
        except KeyboardInterrupt:
            self._save(stop_reason="interrupted")
            raise Interrupted(
                f"Interrupted. Every finished launch is saved in results/runs/{self._run.run}.",
                fix=f"go on with --resume {self._run.run}.",
            ) from None
        self._save(stop_reason=reason)
        return self._state.manifest

    def _work_on_sound_hosts(self) -> str:
        """As ``_work``. A launch that could not begin is no failure of its backend: it stays to be done."""
        try:
            return self._work()
        except HostError as error:
            self._save(stop_reason="interrupted")
            raise LaunchError(
                f"{error.message} No launch can follow; every finished one is saved in results/runs/{self._run.run}.",
                fix=f"{error.fix} Then `fab deploy`, and go on with --resume {self._run.run}.".lstrip(),
            ) from error

    # Before the first launch

    def _forget_unfinished(self) -> None:
        """Remove what a controller that was killed left of its last launch: what the ledger does not name was not
        finished, and will be done again under the same name."""
        known = {outcome.launch for outcome in self._state.manifest.launches}
        for folder in self._run.launches.iterdir() if self._run.launches.is_dir() else ():
            if folder.is_dir() and folder.name not in known:
                shutil.rmtree(folder, ignore_errors=True)

    def _probe(self) -> None:
        self._announce.line("Asking each host what its torch can do ...")
        probes = self._executor.probe(self._plan.device)
        _refuse_other_code(probes)
        unavailable = unavailable_arms(self._plan, probes)
        for arm, why in unavailable.items():
            self._announce.line(f"  {arm} cannot run here: {why}")
        self._save(probes=_packages_once(probes, self._state.manifest.image_id), unavailable=unavailable)

    @property
    def _arms(self) -> tuple[str, ...]:
        return tuple(a.name for a in self._plan.arms if a.name not in self._state.manifest.unavailable)

    # Launches

    def _work(self) -> str:
        """Everything in order; the reason why it ended: "target", "plan" or "budget"."""
        if not self._arms:
            return "plan"
        if self._plan.protocol.article and not self._article():
            return "budget"
        chosen = comparisons(self._plan)
        for workload, world in chosen:
            if kind_of(workload) == "train" and not self._pilots(workload, world):
                return "budget"
        reasons: dict[tuple[str, int], str] = {}
        for block in range(self._plan.protocol.max_blocks):
            for workload, world in chosen:
                if (workload, world) in reasons:
                    continue
                if self._over_budget():
                    return "budget"
                self._block(workload, world, block)
                ended = self._ended(workload, world, block + 1)
                if ended:
                    reasons[workload, world] = ended
        measured = [reason for (workload, _), reason in reasons.items() if workload != COLLECTIVES]
        return "target" if measured and all(r == "target" for r in measured) else "plan"

    def _article(self) -> bool:
        for workload, world in comparisons(self._plan):
            if kind_of(workload) != "train":
                continue
            for arm in self._arms:
                if self._over_budget():
                    return False
                self._launch(Slot("article", workload, world, -1, arm), None)
        return True

    def _pilots(self, workload: str, world: int) -> bool:
        """Run the pilots of one comparison and decide its settings, unless that was done before."""
        if self._settings(workload, world):
            return True
        count = self._pilot_count
        slots = [Slot("pilot", workload, world, -count + i, arm) for i in range(count) for arm in self._arms]
        if world == max(self._plan.worlds):
            self._announce.line(f"Pilot launches of {workload} find the end of warm-up.")
        for slot in slots:
            if self._over_budget():
                return False
            if not self._gave_up(workload, world, slot.arm, "pilot"):
                self._launch(slot, None)
        pilots = [self._state.done[s] for s in slots if s in self._state.done]
        settings = decide_settings(self._run, self._state.manifest, self._plan, workload, world, pilots)
        self._announce.line(
            f"  {workload}, world size {world}: {settings.warmup_steps} warm-up + {settings.steps} steps"
            f" a launch ({settings.reason})."
        )
        self._save(settings=(*self._state.manifest.settings, settings))
        return True

    def _block(self, workload: str, world: int, block: int) -> None:
        settings = self._settings(workload, world)
        for slot in block_slots(self._plan, workload, world, block, self._arms):
            arm = aa_twin(self._plan).name if slot.arm == AA_ARM else slot.arm
            if not self._gave_up(workload, world, arm, slot.kind):
                self._launch(slot, settings)

    def _launch(self, slot: Slot, settings: Settings | None) -> None:
        if slot in self._state.done:
            return
        index = 1 + max((o.index for o in self._state.manifest.launches), default=0)
        spec = launch_spec(
            self._plan,
            slot,
            index,
            settings,
            master_port=self._executor.master_port(),
            output_folder="",
        )
        spec = replace(spec, output_folder=self._executor.output_folder(spec.launch))
        if spec.sweep is not None:
            spec = replace(spec, sweep=self._with_buckets(spec.sweep))
        left, remaining = self._remaining()
        self._announce.start(slot, (index, index + left - 1), remaining, self.seconds)
        folder = self._run.launches / f".{spec.launch}.{secrets.token_hex(4)}"
        try:  # Ctrl-C may come at any moment from here on
            folder.mkdir(parents=True)
            outcome = self._executor.launch(spec, folder)
            folder.rename(self._run.launch(spec.launch))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        self._state.done[slot] = outcome
        self._save(launches=(*self._state.manifest.launches, outcome))
        self._announce.end(outcome)

    def _with_buckets(self, sweep: Sweep) -> Sweep:
        """The sweep with the buckets that the run's own workloads reduce, as far as they are in its range."""
        own = {size for s in self._state.manifest.settings for size in s.buckets_bytes}
        sizes = sorted({*sweep.sizes_bytes, *(s for s in own if s <= max(sweep.sizes_bytes, default=0))})
        return replace(sweep, sizes_bytes=tuple(sizes))

    # Rules

    def _settings(self, workload: str, world: int) -> Settings | None:
        found = (s for s in self._state.manifest.settings if (s.workload, s.world_size) == (workload, world))
        return next(found, None)

    def _gave_up(self, workload: str, world: int, arm: str, kind: str) -> bool:
        """Whether an arm failed so often in a row that the rest of its launches are left out."""
        key = (workload, 1 if kind == "single" else world, arm)
        history = [
            o
            for o in self._state.manifest.launches
            if (o.workload, o.world_size, o.arm) == key and o.status != "interrupted" and o.kind != "article"
        ]
        recent = history[-GIVE_UP_AFTER:]
        return len(recent) == GIVE_UP_AFTER and all(o.status == "failed" for o in recent)

    def _ended(self, workload: str, world: int, blocks: int) -> str | None:
        least, most = blocks_of(self._plan, workload)
        if blocks >= most:
            return "plan"
        if all(self._gave_up(workload, world, arm, "train") for arm in self._arms):
            return "plan"
        if self._plan.protocol.target is None or blocks < least:
            return None
        from suite.campaign_stop import decide  # noqa: PLC0415 - numpy loads only when a plan can stop early

        return decide(self._run, self._state.manifest, self._plan, workload, world, blocks)

    def _over_budget(self) -> bool:
        budget = self._plan.budget_seconds
        return budget is not None and self.seconds >= budget

    @property
    def seconds(self) -> float:
        """Seconds spent on this run, over all sittings."""
        return self._earlier_seconds + time.monotonic() - self._clock

    def _remaining(self) -> tuple[int, float | None]:
        """Launches to come if every comparison stops at its least number of blocks, and the seconds at the
        mean cost so far: a guess, None before the first launch."""
        done = [o for o in self._state.manifest.launches if o.status != "interrupted"]
        chosen = comparisons(self._plan)
        total = sum(
            blocks_of(self._plan, workload)[0] * len(block_slots(self._plan, workload, world, 0, self._arms))
            for workload, world in chosen
        )
        trained = sum(1 for workload, _ in chosen if kind_of(workload) == "train")
        total += trained * len(self._arms) * (self._pilot_count + int(self._plan.protocol.article))
        left = max(1, total - len(done))
        if not done:
            return left, None
        seconds = left * sum(o.wall_seconds for o in done) / len(done)
        if self._plan.budget_seconds is not None:
            seconds = min(seconds, max(0.0, self._plan.budget_seconds - self.seconds))
        return left, seconds

    @property
    def _pilot_count(self) -> int:
        """Two pilots an arm tell launches from steps; a plan of fixed length needs only the warm-up."""
        return 1 if self._plan.protocol.target is None else 2

    def _save(self, **changes: object) -> None:
        self._state.manifest = replace(self._state.manifest, **changes)  # type: ignore[arg-type]
        paths.replace(self._run.manifest, codec.encode(self._state.manifest, indent=1))


def slot_of(outcome: LaunchOutcome) -> Slot:
    """The place in the plan that a launch filled."""
    return Slot(outcome.kind, outcome.workload, outcome.world_size, outcome.block, outcome.arm)


def _packages_once(probes: Sequence[HostProbe], image_id: str) -> tuple[HostProbe, ...]:
    """The probes with the packages of the first host only, since all run one image; without an image with none.

    What is installed on somebody's own machine is no part of a run, and may be private.
    """
    return tuple(probe if i == 0 and image_id else replace(probe, packages={}) for i, probe in enumerate(probes))


def _refuse_other_code(probes: Sequence[HostProbe]) -> None:
    """Raises LaunchError: the ranks would run other code than the one that plans and judges them."""
    known = ("", code_digest())
    others = [probe.host for probe in probes if probe.code not in known]
    if others:
        raise LaunchError(
            f"The suite in the containers of {', '.join(others)} is not the one of this checkout.",
            fix="`fab build deploy`, or check out what their image was built from.",
        )


def unavailable_arms(plan: Plan, probes: Sequence[HostProbe]) -> dict[str, str]:
    """Arms whose backend cannot run on some host of the plan, with the reason and the hosts it holds for."""
    found: dict[str, str] = {}
    for arm in plan.arms:
        reasons: dict[str, list[str]] = {}
        for probe in probes:
            reason = probe.backends.get(arm.backend, "unknown to this worker")
            if arm.backend == "nccl" and plan.device == "cpu" and reason is None:
                reason = "nccl needs CUDA tensors and the run is on cpu"
            if reason is not None:
                reasons.setdefault(reason, []).append(probe.host)
        if reasons:
            alone = len(probes) == 1
            found[arm.name] = "; ".join(
                reason if alone else f"{reason} on {', '.join(hosts)}" for reason, hosts in reasons.items()
            )
    return found


@contextlib.contextmanager
def locked(run: RunPaths) -> Iterator[None]:
    """Hold a run for this process: two controllers must not fill the same plan.

    Raises:
        UsageError: another process holds it.
    """
    try:
        run.root.mkdir(parents=True, exist_ok=True)
        handle = os.open(run.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise UsageError(
            f"{run.root}: results cannot be written there: {error.strerror}.",
            fix="make that folder writable, or name another in SUITE_RESULTS.",
        ) from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UsageError(
                f"The run {run.run} is in use by another process.", fix="wait for it, or stop it first."
            ) from None
        yield
    finally:
        os.close(handle)  # the file stays: removing it would let two processes hold two different locks
