from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from suite import codec, paths
from suite.campaign import Campaign, locked
from suite.campaign_progress import Announcer
from suite.errors import HostError, Interrupted, LaunchError, UsageError
from suite.options import RunOptions, make_plan
from suite.paths import RunPaths
from suite.plan import SINGLE_ARM, Plan
from suite.provenance import code_digest
from suite.records import HostSlots, LaunchSpec, Manifest
from tests.support.fake_executor import FakeExecutor

HOSTS = (HostSlots("h1", "198.18.0.11"), HostSlots("h2", "198.18.0.12"))
TWICE = {"gloo": 0.010, "mpi": 0.020, SINGLE_ARM: 0.005, "aa": 0.010}


def a_plan(**options: str) -> Plan:
    options = {"seed": "5", "backend": "gloo,mpi", **options}
    plan = make_plan(RunOptions(**options), cluster="lab", hosts=HOSTS, distinct_hosts=True)
    return replace(plan, run="20260101T000000Z-test")


class Sitting:
    """One sitting of a campaign in a folder of its own, which may follow an earlier one."""

    def __init__(self, folder: Path, plan: Plan, executor: FakeExecutor) -> None:
        self.run = RunPaths(folder / plan.run)
        self.said: list[str] = []
        if not self.run.plan.exists():
            paths.write_new(self.run.plan, codec.encode(plan))
        self._plan = plan
        self._executor = executor

    def execute(self, image_id: str = "") -> Manifest:
        new = Manifest(self._plan.run, "lab", "2026-01-01T00:00:00Z", "0", "c", False, image_id, HOSTS)
        manifest = codec.read(self.run.manifest, Manifest) if self.run.manifest.exists() else new
        return Campaign(self._plan, self._executor, self.run, manifest, Announcer(self.said.append)).execute()

    @property
    def ledger(self) -> Manifest:
        return codec.read(self.run.manifest, Manifest)


def kinds(manifest: Manifest) -> Counter[tuple[str, str]]:
    return Counter((o.kind, o.arm) for o in manifest.launches)


def test_a_quick_run_has_one_pilot_and_three_blocks_of_each_arm(tmp_path: Path) -> None:
    manifest = Sitting(tmp_path, a_plan(), FakeExecutor(TWICE)).execute()
    assert kinds(manifest) == {
        ("pilot", "gloo"): 1,
        ("pilot", "mpi"): 1,
        ("train", "gloo"): 3,
        ("train", "mpi"): 3,
        ("single", SINGLE_ARM): 3,
    }
    assert manifest.stop_reason == "plan"
    assert [o.index for o in manifest.launches] == list(range(1, 12))


def test_a_standard_run_stops_at_its_target_and_not_before_eight_blocks(tmp_path: Path) -> None:
    manifest = Sitting(tmp_path, a_plan(plan="standard"), FakeExecutor(TWICE, spread=0.001)).execute()
    assert manifest.stop_reason == "target"
    assert kinds(manifest)["train", "gloo"] == 8
    assert kinds(manifest)["pilot", "mpi"] == 2


def test_a_standard_run_of_noisy_launches_goes_on_to_thirty_blocks(tmp_path: Path) -> None:
    manifest = Sitting(tmp_path, a_plan(plan="standard"), FakeExecutor(TWICE, spread=0.2)).execute()
    assert manifest.stop_reason == "plan"
    assert kinds(manifest)["train", "mpi"] == 30


def test_warmup_and_steps_are_the_same_for_every_arm(tmp_path: Path) -> None:
    executor = FakeExecutor(TWICE)
    Sitting(tmp_path, a_plan(plan="standard", blocks="2"), executor).execute()
    counts = {(s.warmup_steps, s.steps) for s in executor.specs if s.kind == "train"}
    assert len(counts) == 1
    warmup, steps = counts.pop()
    assert warmup >= 10
    assert 20 <= steps <= 2000


def test_an_unavailable_backend_costs_no_launch_and_is_in_the_ledger(tmp_path: Path) -> None:
    plan = a_plan(backend="all")
    manifest = Sitting(tmp_path, plan, FakeExecutor(TWICE)).execute()
    assert manifest.unavailable == {"nccl": "no CUDA device on h1, h2"}
    assert {o.arm for o in manifest.launches} == {"gloo", "mpi", SINGLE_ARM}


def test_a_failed_launch_leaves_an_incomplete_block_and_the_others_go_on(tmp_path: Path) -> None:
    def fail(spec: LaunchSpec) -> str | None:
        return "boom" if (spec.arm.name, spec.block, spec.kind) == ("mpi", 1, "train") else None

    sitting = Sitting(tmp_path, a_plan(), FakeExecutor(TWICE, fail=fail))
    manifest = sitting.execute()
    failed = [o for o in manifest.launches if o.status == "failed"]
    assert [(o.arm, o.block) for o in failed] == [("mpi", 1)]
    assert kinds(manifest)["train", "mpi"] == 3, "a failed launch is neither repeated nor does it end the arm"
    assert any("boom" in line and "h2" in line and "rank 1" in line for line in sitting.said)


def test_an_arm_that_always_fails_is_given_up_after_two_launches(tmp_path: Path) -> None:
    executor = FakeExecutor(TWICE, fail=lambda spec: "boom" if spec.arm.name == "mpi" else None)
    manifest = Sitting(tmp_path, a_plan(blocks="6"), executor).execute()
    assert sum(1 for o in manifest.launches if o.arm == "mpi") == 2
    assert kinds(manifest)["train", "gloo"] == 6


def test_the_ledger_holds_the_images_packages_once_and_those_of_no_other_machine(tmp_path: Path) -> None:
    hosts = Sitting(tmp_path / "hosts", a_plan(), FakeExecutor(TWICE)).execute(image_id="sha256:1")
    assert [probe.packages for probe in hosts.probes] == [{"pypi/torch": "2.6.0"}, {}]
    own_machine = Sitting(tmp_path / "local", a_plan(), FakeExecutor(TWICE)).execute()
    assert [probe.packages for probe in own_machine.probes] == [{}, {}]


def test_an_image_built_from_other_code_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    own = Sitting(tmp_path / "own", a_plan(), FakeExecutor(TWICE, code=code_digest()))
    assert own.execute().stop_reason == "plan"
    stale = FakeExecutor(TWICE, code="0123456789abcdef")
    with pytest.raises(
        LaunchError, match=r"The suite in the containers of h1, h2 is not the one of this checkout\."
    ) as caught:
        Sitting(tmp_path / "stale", a_plan(), stale).execute()
    assert caught.value.fix.startswith("`fab build deploy`")
    assert stale.specs == []


@pytest.mark.parametrize("at", [1, 4, 7])
def test_an_interrupted_run_is_saved_and_resumed_with_exactly_what_is_missing(tmp_path: Path, at: int) -> None:
    def interrupt(spec: LaunchSpec) -> None:
        if spec.index == at:
            raise KeyboardInterrupt

    plan = a_plan(plan="standard", blocks="3")
    whole = Sitting(tmp_path / "whole", plan, FakeExecutor(TWICE)).execute()
    first = Sitting(tmp_path / "cut", plan, FakeExecutor(TWICE, before=interrupt))
    with pytest.raises(Interrupted) as caught:
        first.execute()
    assert caught.value.exit_code == 130
    assert first.ledger.stop_reason == "interrupted"
    assert len(first.ledger.launches) == at - 1
    assert not [p for p in first.run.launches.iterdir() if p.name.startswith(".")], "no half launch is left"
    second = FakeExecutor(TWICE)
    done = Sitting(tmp_path / "cut", plan, second).execute()
    assert len(second.specs) == len(whole.launches) - (at - 1)
    assert [(o.kind, o.arm, o.block) for o in done.launches] == [(o.kind, o.arm, o.block) for o in whole.launches]
    assert done.stop_reason == "plan"


def test_what_a_killed_controller_left_of_a_launch_is_not_in_the_way(tmp_path: Path) -> None:
    """It may have died in a launch, or between a launch and its entry in the ledger."""

    def interrupt(spec: LaunchSpec) -> None:
        if spec.index == 4:
            raise KeyboardInterrupt

    plan = a_plan(plan="standard", blocks="3")
    first = Sitting(tmp_path, plan, FakeExecutor(TWICE, before=interrupt))
    with pytest.raises(Interrupted):
        first.execute()
    kept = {path.name for path in first.run.launches.iterdir()}
    whole = Sitting(tmp_path / "whole", plan, FakeExecutor(TWICE)).execute().launches
    for name in (f".{whole[3].launch}.abc", whole[3].launch):
        (first.run.launches / name).mkdir()
        (first.run.launches / name / "rank-0.json").write_text("{", encoding="utf-8")
    done = Sitting(tmp_path, plan, FakeExecutor(TWICE)).execute()
    found = {path.name for path in first.run.launches.iterdir()}
    assert kept < found
    assert found == {outcome.launch for outcome in done.launches}
    assert {o.status for o in done.launches} == {"ok"}


def test_a_finished_run_resumed_runs_nothing_and_keeps_its_reason(tmp_path: Path) -> None:
    plan = a_plan(plan="standard")
    first = Sitting(tmp_path, plan, FakeExecutor(TWICE, spread=0.001)).execute()
    executor = FakeExecutor(TWICE)
    again = Sitting(tmp_path, plan, executor).execute()
    assert executor.specs == []
    assert (again.stop_reason, again.launches) == (first.stop_reason, first.launches)


def test_a_budget_ends_the_run_after_the_launches_in_flight(tmp_path: Path) -> None:
    plan = replace(a_plan(plan="standard"), budget_seconds=1e-9)
    manifest = Sitting(tmp_path, plan, FakeExecutor(TWICE)).execute()
    assert manifest.stop_reason == "budget"
    assert manifest.launches == ()


def test_the_article_protocol_runs_once_per_arm_beside_a_standard_run(tmp_path: Path) -> None:
    executor = FakeExecutor(TWICE)
    manifest = Sitting(tmp_path, a_plan(plan="article", blocks="2"), executor).execute()
    assert kinds(manifest)["article", "gloo"] == kinds(manifest)["article", "mpi"] == 1
    assert kinds(manifest)["train", "gloo"] == 2
    article = next(s for s in executor.specs if s.kind == "article")
    assert (article.steps, article.warmup_steps, article.equivalence_steps) == (10, 0, 0)


def test_two_processes_cannot_hold_the_same_run(tmp_path: Path) -> None:
    run = RunPaths(tmp_path / "r")
    with locked(run), pytest.raises(UsageError, match="in use"), locked(RunPaths(tmp_path / "r")):
        pass
    with locked(run):
        pass


def test_a_lost_host_stops_the_run_and_costs_no_backend_a_launch(tmp_path: Path) -> None:
    def lose(spec: LaunchSpec) -> None:
        if spec.index == 4:
            raise HostError("h2", "does not answer.", fix="see that it is up.")

    plan = a_plan()
    sitting = Sitting(tmp_path, plan, FakeExecutor(TWICE, before=lose))
    with pytest.raises(LaunchError) as caught:
        sitting.execute()
    assert caught.value.message.startswith("h2: does not answer. No launch can follow; every finished one is saved")
    assert caught.value.fix == f"see that it is up. Then `fab deploy`, and go on with --resume {plan.run}."
    assert caught.value.exit_code == 1
    assert sitting.ledger.stop_reason == "interrupted"
    assert [o.index for o in sitting.ledger.launches] == [1, 2, 3]
    assert [path.name for path in sitting.run.launches.iterdir() if path.name.startswith(".")] == []

    again = Sitting(tmp_path, plan, FakeExecutor(TWICE)).execute()
    assert again.stop_reason == "plan"
    assert kinds(again) == kinds(Sitting(tmp_path / "whole", plan, FakeExecutor(TWICE)).execute())


def test_a_run_that_finds_no_free_port_stops_and_is_resumed_when_there_is_one(tmp_path: Path) -> None:
    class Full(FakeExecutor):
        def master_port(self) -> int:
            if len(self.specs) == 3:
                raise HostError("h1", "every port from 29500 to 29599 is taken.", fix="free some.")
            return 29500

    with pytest.raises(LaunchError, match=r"h1: every port .* is taken\. No launch can follow") as caught:
        Sitting(tmp_path, a_plan(), Full(TWICE)).execute()
    assert "--resume" in caught.value.fix
    sitting = Sitting(tmp_path, a_plan(), FakeExecutor(TWICE))
    assert sitting.ledger.stop_reason == "interrupted"
    assert len(sitting.ledger.launches) == 3
    whole = sitting.execute()
    assert whole.stop_reason == "plan"
    assert len(whole.launches) == len(Sitting(tmp_path / "other", a_plan(), FakeExecutor(TWICE)).execute().launches)
