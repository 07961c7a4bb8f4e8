"""Comparing two runs: ratios, the gate, and what refuses."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from suite.analysis.compare import Comparison, compare
from suite.errors import IncompatibleError, UsageError
from suite.paths import RunPaths
from suite.report.comparison import comparison_table
from tests.support.synthetic import TWO_ARMS, ArmTruth, Truth, edit_manifest, write_run


def slower(by: float) -> dict[str, ArmTruth]:
    """The two arms, gloo slower by a factor."""
    return {**TWO_ARMS, "gloo": dataclasses.replace(TWO_ARMS["gloo"], step=TWO_ARMS["gloo"].step * by)}


@pytest.fixture
def old(tmp_path: Path) -> RunPaths:
    return write_run(tmp_path, Truth(TWO_ARMS), "old")


def against(old: RunPaths, tmp_path: Path, truth: Truth, fail_above: float | None = None) -> Comparison:
    return compare(old, write_run(tmp_path, truth, "new"), (), fail_above)


def test_a_true_difference_is_found_with_an_interval_around_it(old: RunPaths, tmp_path: Path) -> None:
    result = against(old, tmp_path, Truth(slower(1.10), seed=2))
    row = next(r for r in result.rows if r.arm == "gloo")
    assert row.ci is not None
    assert row.ci[0] <= 1.10 <= row.ci[1]
    assert row.verdict == "slower"
    other = next(r for r in result.rows if r.arm == "mpi")
    assert other.verdict == "equivalent"
    assert other.ratio == pytest.approx(1.0, abs=0.01)


def test_the_gate_fails_only_when_the_interval_excludes_the_limit(old: RunPaths, tmp_path: Path) -> None:
    assert against(old, tmp_path / "10", Truth(slower(1.10), seed=2), 0.05).regressed
    assert not against(old, tmp_path / "5", Truth(slower(1.05), seed=2), 0.05).regressed  # as likely below as above
    assert not against(old, tmp_path / "2", Truth(slower(1.02), seed=2), 0.05).regressed
    assert not against(old, tmp_path / "0", Truth(slower(1.50), seed=2), None).regressed


def test_too_few_launches_never_fail_the_gate_and_say_so(tmp_path: Path) -> None:
    few = Truth(TWO_ARMS, blocks=3, plan="quick")
    old = write_run(tmp_path, few, "old")
    result = against(old, tmp_path, dataclasses.replace(few, arms=slower(2.0), seed=2), 0.05)
    assert not result.regressed
    assert "not estimable" in comparison_table(result)


def test_a_field_that_differs_refuses_and_is_named(old: RunPaths, tmp_path: Path) -> None:
    with pytest.raises(IncompatibleError) as caught:
        against(old, tmp_path, Truth(TWO_ARMS, environment={"torch_version": "2.7.0"}))
    assert caught.value.fields == ("torch_version",)
    assert "2.6.0" in str(caught.value)
    assert "2.7.0" in str(caught.value)
    assert "--vary torch_version" in caught.value.fix


def test_every_field_that_differs_is_named(old: RunPaths, tmp_path: Path) -> None:
    changed = {"torch_version": "2.7.0", "affinity": "0-3", "interface": "eth1"}
    with pytest.raises(IncompatibleError) as caught:
        against(old, tmp_path, Truth(TWO_ARMS, environment=changed, warmup=30))
    assert set(caught.value.fields) == {*changed, "warmup_steps"}


def test_the_factor_that_is_the_question_may_differ(old: RunPaths, tmp_path: Path) -> None:
    new = write_run(tmp_path, Truth(TWO_ARMS, environment={"torch_version": "2.7.0", "torch_git": "abc"}), "new")
    old_with_git = write_run(tmp_path, Truth(TWO_ARMS, environment={"torch_git": "abd"}), "old-git")
    result = compare(old_with_git, new, {"torch"})
    assert result.varied == ("torch",)
    assert "because it is the question: torch" in comparison_table(result)
    with pytest.raises(IncompatibleError):
        compare(old_with_git, new, {"torch_version"})
    assert compare(old, new, {"torch_version"}).warnings == ("Only one run knows torch_git; unknown is not equal.",)


def test_what_only_warns_is_said(old: RunPaths, tmp_path: Path) -> None:
    result = against(old, tmp_path, Truth(TWO_ARMS, environment={"kernel": "6.9"}))
    assert any("kernel" in warning for warning in result.warnings)


def test_other_hosts_refuse(old: RunPaths, tmp_path: Path) -> None:
    with pytest.raises(IncompatibleError) as caught:
        against(old, tmp_path, Truth(TWO_ARMS, host_names=("a", "b", "c", "d")))
    assert "rank_map" in caught.value.fields


def test_rows_that_one_run_lacks_or_that_are_unsound_are_left_out_and_named(old: RunPaths, tmp_path: Path) -> None:
    arms = {**TWO_ARMS, "mpi": dataclasses.replace(TWO_ARMS["mpi"], gate="fail")}
    result = against(old, tmp_path, Truth(arms, worlds=(2, 4)))
    assert [(row.arm, row.world_size) for row in result.rows] == [("gloo", 4)]
    assert "linear, world size 4, mpi: old: ok, new: invalid" in result.left_out
    assert "linear, world size 2, gloo: only in new" in result.left_out


def test_runs_without_a_common_row_cannot_be_compared(old: RunPaths, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no sound row in common"):
        against(old, tmp_path, Truth(TWO_ARMS, workloads=("resnet50",)))


def test_another_commit_of_the_suite_is_a_warning(old: RunPaths, tmp_path: Path) -> None:
    new = write_run(tmp_path, Truth(TWO_ARMS), "new")
    edit_manifest(new, suite_commit="f" * 40)
    assert any("ffffffffffff" in warning for warning in compare(old, new).warnings)


def test_the_table_says_that_the_runs_share_no_blocks(old: RunPaths, tmp_path: Path) -> None:
    text = comparison_table(against(old, tmp_path, Truth(slower(1.10), seed=2), 0.05))
    assert "share no blocks" in text
    assert "Mann–Whitney" in text
    assert "slower, regressed" in text
    assert "A = old, B = new" in text
