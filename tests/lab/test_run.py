"""The main job on four simulated hosts, by the command line that a user types."""

from __future__ import annotations

import json
import re
import signal
import time
from pathlib import Path

import pytest

from suite.cluster import lab
from suite.paths import RunPaths
from tests.lab.fault_support import (
    DEADLINE,
    NAMES,
    PATIENCE,
    SLACK,
    Done,
    Project,
    ending,
    files_of,
    manifest,
    only_run,
    rows,
)

pytestmark = [pytest.mark.containers, pytest.mark.timeout(600 * PATIENCE)]
SHORT = ("--steps", "5", "--deadline", f"{DEADLINE:g}s")


@pytest.fixture(scope="module")
def main_run(deployed: Project, tmp_path_factory: pytest.TempPathFactory) -> tuple[Done, RunPaths]:
    """`fab deploy run --backend all`, once; what it said and the run it left."""
    results = tmp_path_factory.mktemp("main")
    done = deployed.fab("deploy", "run", "--backend", "all", *SHORT, results=results, timeout=600)
    return done, only_run(results)


def test_the_main_job_ends_well_with_a_row_for_every_backend(main_run: tuple[Done, RunPaths]) -> None:
    done, run = main_run
    assert done.code == 0, done
    found = rows(run)
    assert {arm: row["status"] for (_, arm), row in found.items()} == {
        "gloo": "ok",
        "mpi": "ok",
        "nccl": "unavailable",
    }
    for arm in ("gloo", "mpi"):
        row = found["linear", arm]
        assert row["world_size"] == 4
        assert row["launches"] == {"valid": 3, "attempted": 3}
        assert row["steps_per_launch"] == 5
        assert row["equivalence"]["status"] == "pass"
        assert row["step_seconds"]["median"] > 0
    assert re.search(r"no nccl backend on h1, h2, h3, h4", found["linear", "nccl"]["reason"])


def test_the_table_is_on_stdout_and_the_progress_on_stderr(main_run: tuple[Done, RunPaths]) -> None:
    done, run = main_run
    assert done.out.startswith("linear, world size 4, cpu, 3 blocks (exploratory)")
    assert re.search(r"^  nccl +– .*not run: this torch has no nccl backend", done.out, re.MULTILINE)
    assert "\x1b" not in done.out + done.err  # no terminal, no colour
    assert f"Run {run.run}: plan quick, seed" in done.err
    assert re.search(r"^\[11/11\] ", done.err, re.MULTILINE)  # 2 pilots, 3 blocks of gloo, mpi and one process


def test_every_rank_was_on_a_host_of_its_own(main_run: tuple[Done, RunPaths]) -> None:
    _, run = main_run
    for outcome in manifest(run)["launches"]:
        assert outcome["status"] == "ok", outcome
        records = [json.loads(path.read_bytes()) for path in run.recorded_ranks(outcome["launch"]).values()]
        hosts = [record["host"] for record in records]
        names = [record["environment"]["hostname"] for record in records]
        assert hosts == list(NAMES[: outcome["world_size"]])
        assert names == hosts  # what the cluster file says and what the machine calls itself


def test_the_run_left_no_process_on_any_host(deployed: Project, main_run: tuple[Done, RunPaths]) -> None:
    assert deployed.leftovers() == {}


def test_a_second_deploy_ships_nothing_and_takes_moments(
    deployed: Project, main_run: tuple[Done, RunPaths], tmp_path: Path
) -> None:
    done = deployed.fab("deploy", results=tmp_path)
    assert done.code == 0, done
    assert "everything was there already; 0.0 MB sent" in done.err
    assert done.seconds < 3 * PATIENCE, done


def test_a_backend_that_was_asked_for_and_cannot_run_costs_exit_1(deployed: Project, tmp_path: Path) -> None:
    done = deployed.fab("run", "--backend", "nccl", *SHORT, results=tmp_path)
    assert done.code == 1, done
    assert rows(only_run(tmp_path))["linear", "nccl"]["status"] == "unavailable"
    assert "nccl" in done.out
    assert "not run: this torch has no nccl backend on h1, h2, h3, h4" in done.out


@pytest.mark.parametrize(("broken", "sound"), [("gloo", "mpi"), ("mpi", "gloo")])
def test_a_corrupted_gradient_makes_exactly_that_row_invalid(
    deployed: Project, tmp_path: Path, broken: str, sound: str
) -> None:
    options = ("--backend", "gloo,mpi", "--blocks", "1", "--world", "2", "--inject", f"corrupt-gradient@1:{broken}")
    done = deployed.fab("run", *options, *SHORT, results=tmp_path)
    assert done.code == 1, done
    found = rows(only_run(tmp_path))
    assert found["linear", broken]["status"] == "invalid"
    assert "gradient" in found["linear", broken]["equivalence"]["detail"]
    assert found["linear", sound]["status"] == "ok"
    assert re.search(rf"^  {broken} .*invalid", done.out, re.MULTILINE)


def test_a_slower_link_exposes_communication_and_leaves_the_computation_as_it_was(
    deployed: Project, tmp_path: Path
) -> None:
    found = {}
    for rate in ("1gbit", "200mbit"):
        lab.link(rate, root=deployed.root)
        try:
            options = ("--backend", "gloo", "--blocks", "2", "--steps", "10", "--world", "2")
            done = deployed.fab("run", *options, "--deadline", f"{DEADLINE:g}s", results=tmp_path / rate)
        finally:
            lab.link("off", root=deployed.root)
        assert done.code == 0, done
        run = only_run(tmp_path / rate)
        found[rate] = rows(run)["linear", "gloo"]
    fast, slow = found["1gbit"], found["200mbit"]
    record = json.loads(next(run.launches.glob("*-linear-gloo/rank-0.json")).read_bytes())
    gigabit = 8 * record["facts"]["gradient_bytes"] / 1e9  # each of two ranks sends its gradients once
    exposed = {rate: row["exposed_communication_seconds"]["median"] for rate, row in found.items()}
    assert exposed["200mbit"] > 0.8 * 5 * gigabit
    assert exposed["200mbit"] > 2 * exposed["1gbit"]
    assert 0.5 < slow["compute_seconds"] / fast["compute_seconds"] < 2


def test_ctrl_c_keeps_what_is_finished_and_resume_does_exactly_the_rest(deployed: Project, tmp_path: Path) -> None:
    options = ("--backend", "gloo,mpi", "--blocks", "1", "--world", "2")
    with ending(deployed.start("run", *options, *SHORT, results=tmp_path)) as fab:
        fab.wait_for(r"^\[3/5\]", 120 * PATIENCE)
        time.sleep(1.0)  # in the middle of the third launch
        at = time.time()
        fab.signal(signal.SIGINT)
        done = fab.end(SLACK)
    assert done.code == 130, done
    assert time.time() - at < SLACK
    run = only_run(tmp_path)
    assert f"go on with --resume {run.run}" in done.err
    assert run.report_html.exists()
    deployed.await_clean(5 * PATIENCE)
    before = manifest(run)
    assert before["stop_reason"] == "interrupted"
    kept = [outcome for outcome in before["launches"] if outcome["status"] == "ok"]
    assert [outcome["kind"] for outcome in kept] == ["pilot", "pilot"]
    plan, files = run.plan.read_bytes(), files_of(run)

    again = deployed.fab("run", "--resume", run.run, results=tmp_path)
    assert again.code == 0, again
    assert len(re.findall(r"^\[\d+/\d+\]", again.err, re.MULTILINE)) == 3  # gloo, mpi, one process
    assert run.plan.read_bytes() == plan
    assert files.items() <= files_of(run).items()
    after = manifest(run)
    assert after["launches"][: len(before["launches"])] == before["launches"]
    assert after["stop_reason"] == "plan"
    assert {row["status"] for row in rows(run).values()} == {"ok"}
