from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.fake_executor import FakeExecutor
from tests.test_campaign import Sitting, a_plan


@pytest.mark.parametrize(
    ("asked", "step_seconds", "steps"),
    [
        ("10", 3.0, 10),  # 30 s: too few steps to be cut further
        ("100", 3.0, 20),  # cut, but not below what a launch value needs
        ("100", 0.5, 39),  # cut to 20 s at the slowest arm's median step, which is a little above 0.5 s
        ("100", 0.01, 100),
    ],
)
def test_steps_are_cut_to_what_a_launch_may_take_and_never_raised(
    tmp_path: Path, asked: str, step_seconds: float, steps: int
) -> None:
    seconds = {"gloo": step_seconds, "single": step_seconds}
    executor = FakeExecutor(seconds, spread=0.0)
    executor.launch_seconds = 1e4
    plan = replace(a_plan(steps=asked, backend="gloo", blocks="1"), launch_deadline_seconds=1e5)
    manifest = Sitting(tmp_path, plan, executor).execute()
    assert manifest.settings[0].steps == steps
