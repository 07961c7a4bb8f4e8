"""Bad records each give a problem that names the file; the rest is still read."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from suite.analysis.load import RunData, load_run
from suite.analysis.summarise import summarise_data
from suite.errors import RecordError
from suite.paths import RunPaths
from suite.records import CollectiveSamples, RankRecord, StepSamples
from tests.support.synthetic import TWO_ARMS, Truth, edit_manifest, write_run

FIRST = "0001-linear-gloo"
TRUTH = Truth(TWO_ARMS, blocks=3, plan="quick")


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    """A sound run of three blocks whose ledger knows no digests, so that tests may damage records."""
    made = write_run(tmp_path, TRUTH)
    manifest = json.loads(made.manifest.read_bytes())
    for launch in manifest["launches"]:
        launch["digests"] = {}
    made.manifest.write_text(json.dumps(manifest))
    return made


def damage(run: RunPaths, change: Callable[[dict[str, object]], None], rank: int = 1) -> None:
    path = run.rank(FIRST, rank)
    record = json.loads(path.read_bytes())
    change(record)
    path.write_text(json.dumps(record))


def only_problem(data: RunData) -> str:
    """The one problem; checks that it names the file and that all other launches still count."""
    assert len(data.problems) == 1, data.problems
    assert [launch.outcome.launch for launch in data.launches if not launch.usable] == [FIRST]
    row = next(r for r in summarise_data(data).rows if r.arm == "gloo")
    assert (row.status, row.launches.valid, row.launches.attempted) == ("ok", 2, 3)
    return data.problems[0]


def test_a_sound_run_has_no_problems_and_keeps_every_sample(run: RunPaths) -> None:
    data = load_run(run)
    assert data.problems == ()
    launch = data.launches[0]
    assert launch.usable
    assert launch.synchronised is not None
    assert launch.synchronised.total_ns.shape == (4, 50)
    assert launch.synchronised.total_ns.dtype == np.int64
    record = json.loads(run.rank(FIRST, 2).read_bytes())
    assert launch.synchronised.backward_ns[2].tolist() == record["synchronised"]["backward_ns"]
    assert launch.synchronised.warmup_total_ns.shape == (4, 20)
    assert launch.ranks[2].synchronised == StepSamples()  # samples live in the arrays only


def test_a_truncated_record_is_named(run: RunPaths) -> None:
    path = run.rank(FIRST, 1)
    path.write_bytes(path.read_bytes()[:-40])
    problem = only_problem(load_run(run))
    assert f"launches/{FIRST}/rank-1.json" in problem
    assert "truncated" in problem


def test_a_record_of_another_version_is_named(run: RunPaths) -> None:
    damage(run, lambda record: record.update(format=99))
    problem = only_problem(load_run(run))
    assert "rank-1.json" in problem
    assert "format 99" in problem


def test_not_a_number_is_refused_and_named(run: RunPaths) -> None:
    path = run.rank(FIRST, 1)
    path.write_text(path.read_text().replace('"worst_error":0.01', '"worst_error":NaN'))
    assert "rank-1.json" in only_problem(load_run(run))


def test_a_missing_rank_is_named_with_its_number(run: RunPaths) -> None:
    run.rank(FIRST, 2).unlink()
    problem = only_problem(load_run(run))
    assert FIRST in problem
    assert "no record of rank 2" in problem


def test_a_record_of_another_run_is_named(run: RunPaths) -> None:
    damage(run, lambda record: record.update(run="another-run"))
    problem = only_problem(load_run(run))
    assert "rank-1.json" in problem
    assert "another-run" in problem


def test_a_record_under_another_ranks_name_is_named(run: RunPaths) -> None:
    run.rank(FIRST, 1).write_bytes(run.rank(FIRST, 2).read_bytes())
    problem = only_problem(load_run(run))
    assert "rank-1.json" in problem
    assert "rank 2" in problem


def test_unequal_numbers_of_steps_are_named(run: RunPaths) -> None:
    def drop_one(record: dict[str, object]) -> None:
        samples = record["synchronised"]
        assert isinstance(samples, dict)
        for key in ("total_ns", "forward_ns", "backward_ns", "optimizer_ns"):
            samples[key].pop()

    damage(run, drop_one)
    problem = only_problem(load_run(run))
    assert "rank-1.json" in problem
    assert "49" in problem
    assert "50" in problem


@pytest.mark.parametrize(("value", "said"), [(-5, "is -5 ns"), (0, "is 0 ns"), (10**15, "ns"), (10**30, "rank-1.json")])
def test_an_impossible_time_is_named_with_its_place(run: RunPaths, value: int, said: str) -> None:
    def set_time(record: dict[str, object]) -> None:
        samples = record["synchronised"]
        assert isinstance(samples, dict)
        samples["total_ns"][7] = value

    damage(run, set_time)
    problem = only_problem(load_run(run))
    assert "rank-1.json" in problem
    assert said in problem


def test_steps_that_sum_to_more_than_the_launch_took_are_named(run: RunPaths) -> None:
    manifest = json.loads(run.manifest.read_bytes())
    manifest["launches"][0]["wall_seconds"] = 0.5
    run.manifest.write_text(json.dumps(manifest))
    data = load_run(run)
    assert "the whole launch took 0.5 s" in data.problems[0]
    assert not data.launches[0].usable
    assert all(launch.usable for launch in data.launches[1:])


def test_a_phase_longer_than_its_step_is_named(run: RunPaths) -> None:
    def stretch(record: dict[str, object]) -> None:
        samples = record["synchronised"]
        assert isinstance(samples, dict)
        samples["backward_ns"][3] = samples["total_ns"][3] + 1

    damage(run, stretch)
    assert "backward_ns" in only_problem(load_run(run))


def test_a_record_that_changed_since_it_was_collected_is_named(tmp_path: Path) -> None:
    run = write_run(tmp_path, TRUTH)
    path = run.rank(FIRST, 1)
    text = path.read_text()
    path.write_text(text.replace('"rank":1', '"rank": 1'))
    problem = only_problem(load_run(run))
    assert "SHA-256" in problem


def test_a_launch_that_the_ledger_does_not_know_is_named_and_left_out(run: RunPaths) -> None:
    (run.launches / "9999-linear-gloo").mkdir()
    (run.launches / ".0042-in-flight.x").mkdir()  # a launch that is being written is not a stranger
    data = load_run(run)
    assert len(data.problems) == 1
    assert "9999-linear-gloo" in data.problems[0]


def test_a_damaged_ledger_stops_and_is_named(run: RunPaths) -> None:
    run.manifest.write_text("{")
    with pytest.raises(RecordError, match=r"manifest\.json"):
        load_run(run)


def test_a_ledger_cannot_lead_out_of_its_folder(run: RunPaths) -> None:
    manifest = json.loads(run.manifest.read_bytes())
    manifest["launches"][0]["launch"] = "../../etc"
    run.manifest.write_text(json.dumps(manifest))
    assert any("../../etc" in problem for problem in load_run(run).problems)


def test_links_are_each_senders_own_and_may_have_different_windows(tmp_path: Path) -> None:
    def links(record: RankRecord) -> RankRecord:
        if record.kind != "collectives":
            return record
        window = (1 << 20) * (record.rank + 1)
        times = (window * 10,) * (4 if record.rank else 2)
        return dataclasses.replace(record, collectives=(CollectiveSamples("send_recv", window, times, purpose="link"),))

    data = load_run(write_run(tmp_path, dataclasses.replace(TRUTH, sweep=True), change=links))
    assert data.problems == ()
    swept = next(launch for launch in data.launches if launch.outcome.kind == "collectives")
    assert [(t.ranks, t.ns.shape) for t in swept.collectives] == [
        ((0,), (1, 2)),
        ((1,), (1, 4)),
        ((2,), (1, 4)),
        ((3,), (1, 4)),
    ]


def test_interrupted_launches_do_not_count_as_tried(tmp_path: Path) -> None:
    run = write_run(tmp_path, TRUTH)
    outcomes = load_run(run).manifest.launches
    changed = tuple(dataclasses.replace(o, status="interrupted") if o.launch == FIRST else o for o in outcomes)
    edit_manifest(run, launches=changed)
    data = load_run(run)
    row = next(r for r in summarise_data(data).rows if r.arm == "gloo")
    assert (row.launches.valid, row.launches.attempted) == (2, 2)
    assert data.problems == ()


def test_reading_takes_time_in_proportion(tmp_path: Path) -> None:
    """Not a benchmark (benchmarks/report_scale.py is): only that nothing is quadratic in the steps."""
    seconds = []
    for steps in (2_000, 16_000):
        run = write_run(tmp_path / str(steps), dataclasses.replace(TRUTH, steps=steps, blocks=1, worlds=(2,)))
        start = time.perf_counter()
        load_run(run)
        seconds.append(time.perf_counter() - start)
    assert seconds[1] < 8 * 6 * seconds[0]


def test_a_world_size_that_no_machine_has_is_named_at_once(run: RunPaths) -> None:
    manifest = json.loads(run.manifest.read_bytes())
    manifest["launches"][0]["world_size"] = 10**18
    for rank in range(4):
        run.rank(FIRST, rank).unlink()
    run.manifest.write_text(json.dumps(manifest))
    start = time.monotonic()
    assert "no record of rank 0, 1, 2, 3, 4, 5, 6, 7, ... (world size 1000000000000000000)" in load_run(run).problems[0]
    assert time.monotonic() - start < 5


def test_a_launch_of_no_ranks_is_not_usable(run: RunPaths) -> None:
    manifest = json.loads(run.manifest.read_bytes())
    manifest["launches"][0]["world_size"] = 0
    for rank in range(4):
        run.rank(FIRST, rank).unlink()
    run.manifest.write_text(json.dumps(manifest))
    assert not load_run(run).launches[0].usable


@pytest.mark.timeout(20)
def test_a_pipe_in_the_place_of_a_record_is_named_and_not_waited_for(run: RunPaths) -> None:
    path = run.rank(FIRST, 1)
    path.unlink()
    os.mkfifo(path)
    assert only_problem(load_run(run)) == f"launches/{FIRST}/rank-1.json: is no plain file."


@pytest.mark.timeout(20)
def test_a_pipe_in_the_place_of_the_ledger_stops_and_is_named(run: RunPaths) -> None:
    run.manifest.unlink()
    os.mkfifo(run.manifest)
    with pytest.raises(RecordError, match=r"manifest\.json: is no plain file"):
        load_run(run)


@pytest.mark.parametrize(
    ("key", "value"),
    [("delta", 0.0), ("delta", -1.0), ("seed", -1), ("name", "x/../../y"), ("run", "../x"), ("workloads", ["../x"])],
)
def test_a_plan_that_no_command_line_makes_is_refused(run: RunPaths, key: str, value: object) -> None:
    plan = json.loads(run.plan.read_bytes())
    plan[key] = value
    run.plan.write_text(json.dumps(plan))
    with pytest.raises(RecordError, match=r"plan\.json: not a Plan"):
        load_run(run)


@pytest.mark.parametrize("name", ["../../x", "", "mpi", "a\nb"])
def test_an_arms_name_in_a_plan_leads_nowhere_and_comes_once(run: RunPaths, name: str) -> None:
    plan = json.loads(run.plan.read_bytes())
    plan["arms"][0]["name"] = name
    run.plan.write_text(json.dumps(plan))
    with pytest.raises(RecordError, match=r"plan\.json: not a Plan"):
        load_run(run)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("equivalence", {"status": "failed"}, "equivalence.status is 'failed'"),
        ("free_running", [{"steps": 0, "total_ns": 5}], "free_running: 0 steps"),
        ("free_running", [{"steps": 5, "total_ns": -5}], "in -5 ns"),
        ("article_seconds", -0.1, "article_seconds is -0.1"),
        ("collectives", [{"collective": "foo", "size_bytes": 8, "ns": [1]}], "foo of 8 bytes: there is no such"),
    ],
)
def test_a_value_that_no_worker_writes_is_named_and_costs_its_launch_only(
    run: RunPaths, key: str, value: object, said: str
) -> None:
    damage(run, lambda record: record.update({key: value}))
    problem = only_problem(load_run(run))
    assert f"{FIRST}/rank-1.json: " in problem
    assert said in problem


@pytest.mark.parametrize("kept", [0, 1])
def test_a_collective_that_not_every_rank_has_timed_gives_no_number(run: RunPaths, kept: int) -> None:
    def lose(record: dict[str, object]) -> None:
        samples = record["collectives"]
        assert isinstance(samples, list)
        record["collectives"] = [{**samples[0], "ns": []}, samples[1]][1 - kept :]

    damage(run, lose)
    assert "all_reduce of 1048576 bytes was timed by 3 of 4 ranks" in only_problem(load_run(run))
