"""What ``fab local`` leaves behind when it cannot go on, and what a resumed run takes from the stored plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from suite import actions, codec, paths
from suite.cluster.local import LocalExecutor
from suite.errors import Interrupted, LaunchError, UsageError
from suite.options import RunOptions, make_plan
from suite.plan import Plan
from suite.records import HostSlots, LaunchSpec
from tests.support.fake_executor import FakeExecutor


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SUITE_RESULTS", str(tmp_path))
    return tmp_path


def replaced(monkeypatch: pytest.MonkeyPatch, executor: FakeExecutor) -> None:
    """``fab local`` with launches that take no time (a stand-in for torch, which a controller need not have)."""
    monkeypatch.setattr("suite.cluster.local.LocalExecutor", lambda: executor)


def an_executor() -> FakeExecutor:
    return FakeExecutor({"gloo": 0.01, "single": 0.005}, backends={"gloo": None}, hosts=("local",))


def test_a_run_refused_before_its_first_launch_says_why_and_leaves_nothing(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_self: LocalExecutor, _device: str) -> None:
        raise LaunchError("The worker's probe failed: the real cause.")

    monkeypatch.setattr(LocalExecutor, "probe", refuse)
    with pytest.raises(LaunchError, match="the real cause"):
        actions.local(RunOptions(backend="gloo", world="2"), "")
    assert list((results / "runs").iterdir()) == []


def test_a_run_killed_before_its_ledger_can_be_resumed(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replaced(monkeypatch, an_executor())
    hosts = (HostSlots("local", "127.0.0.1", 2, "lo"),)
    plan = make_plan(RunOptions(backend="gloo"), cluster="local", hosts=hosts, distinct_hosts=False)
    paths.write_new(results / "runs" / "killed" / "plan.json", codec.encode(plan))
    assert actions.local(RunOptions(world="2"), "killed") == 0
    assert codec.read(results / "runs" / "killed" / "plan.json", Plan) == plan


def test_a_local_run_of_four_ranks_is_resumed_with_four(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(spec: LaunchSpec) -> None:
        if spec.index == 3:
            raise KeyboardInterrupt

    first = an_executor()
    first.before = interrupt
    replaced(monkeypatch, first)
    with pytest.raises(Interrupted):
        actions.local(RunOptions(backend="gloo", world="4"), "")
    run = next((results / "runs").iterdir()).name
    second = an_executor()
    replaced(monkeypatch, second)
    assert actions.local(RunOptions(world="2", blocks="9"), run) == 0
    assert {spec.world_size for spec in second.specs if spec.kind == "train"} == {4}
    assert "not used: --blocks" in capsys.readouterr().err


def test_a_local_run_on_cuda_names_its_devices_and_is_refused_where_they_do_not_suffice(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = an_executor()
    probe = executor.probe
    devices: tuple[str, ...] = ("GPU-5a", "GPU-6b")
    monkeypatch.setattr(
        executor, "probe", lambda device: tuple(replace(p, cuda_devices=devices) for p in probe(device))
    )
    replaced(monkeypatch, executor)
    with pytest.raises(UsageError, match=r"World size 4 on 2 CUDA device\(s\)"):
        actions.local(RunOptions(backend="gloo", device="cuda", world="4"), "")
    assert not (results / "runs").exists()
    assert actions.local(RunOptions(backend="gloo", device="cuda"), "") == 0
    run = next((results / "runs").iterdir())
    plan = codec.read(run / "plan.json", Plan)
    assert (plan.device, plan.hosts[0].devices, plan.worlds) == ("cuda", devices, (2,))
    assert actions.local(RunOptions(), run.name) == 0  # what the stored plan was for, not what a resumed run may choose
    devices = devices[:1]
    with pytest.raises(UsageError, match="World size 2 on 1 CUDA device"):
        actions.local(RunOptions(), run.name)
