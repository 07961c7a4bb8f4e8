"""Whole launches with real processes, over gloo and, where this torch has it, mpi."""

from __future__ import annotations

import os
import re
import signal
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from suite.policy import ENVIRONMENT_PREFIX, FACTS, POLICY
from suite.records import Arm, DdpOptions, HostSlots, Sweep
from tests.worker.conftest import (
    ROOT,
    Finished,
    free_port,
    make_spec,
    run_mpi,
    run_ranks,
    worker_environment,
    write_spec,
)

LINEAR_GRADIENT_BYTES = (1024 * 1024 + 1024) * 4


@pytest.fixture(params=["gloo", "mpi"])
def trained(request: pytest.FixtureRequest) -> Finished:
    finished: Finished = request.getfixturevalue(f"{request.param}_train")
    return finished


def test_every_rank_of_a_good_launch_ends_with_0_and_a_record_without_failure(trained: Finished) -> None:
    assert trained.codes == (0, 0)
    assert [r["failure"] for r in trained.records] == [None, None]
    assert [(r["rank"], r["local_rank"], r["host"]) for r in trained.records] == [(0, 0, "local"), (1, 1, "local")]


def test_every_mode_has_as_many_raw_samples_as_were_asked_for(trained: Finished) -> None:
    for record in trained.records:
        synchronised, nosync = record["synchronised"], record["nosync"]
        for name in ("total_ns", "forward_ns", "backward_ns", "optimizer_ns"):
            assert len(synchronised[name]) == 6
            assert len(nosync[name]) == 4
        assert len(synchronised["warmup_total_ns"]) == 2
        assert len(nosync["warmup_total_ns"]) == 3
        assert [run["steps"] for run in record["free_running"]] == [5]


def test_the_phases_are_parts_of_their_step(trained: Finished) -> None:
    for record in trained.records:
        for mode in ("synchronised", "nosync"):
            samples = record[mode]
            for total, *phases in zip(
                samples["total_ns"],
                samples["forward_ns"],
                samples["backward_ns"],
                samples["optimizer_ns"],
                strict=True,
            ):
                assert all(phase > 0 for phase in phases)
                assert sum(phases) <= total


def test_no_sync_leaves_out_the_reduction(trained: Finished) -> None:
    for record in trained.records:
        with_reduction = statistics.median(record["synchronised"]["backward_ns"])
        assert min(record["nosync"]["backward_ns"]) < with_reduction


def test_the_gate_passes_and_all_ranks_hash_the_same_parameters(trained: Finished) -> None:
    first, second = (r["equivalence"] for r in trained.records)
    assert first["status"] == second["status"] == "pass"
    assert 0 <= first["worst_error"] <= 1
    assert first["parameter_hashes"] == second["parameter_hashes"]
    assert len(set(first["parameter_hashes"])) == 3  # they train: every step changes them
    assert len(first["losses"]) == 3
    assert first["losses"] != second["losses"]  # each rank has data of its own


def test_the_buckets_of_ddp_are_recorded_and_timed_in_isolation(trained: Finished) -> None:
    for record in trained.records:
        assert record["facts"]["gradient_bytes"] == LINEAR_GRADIENT_BYTES
        assert record["facts"]["buckets_bytes"] == [LINEAR_GRADIENT_BYTES]
        (sample,) = [c for c in record["collectives"] if c["purpose"] == "bucket"]
        assert (sample["collective"], sample["size_bytes"]) == ("all_reduce", LINEAR_GRADIENT_BYTES)
        assert sample["wrong"] == 0
        assert len(sample["ns"]) >= 3


def test_every_recorded_fact_is_in_the_policy_and_every_policy_is_recorded(trained: Finished) -> None:
    for record in trained.records:
        names = {name for name in record["environment"] if not name.startswith(ENVIRONMENT_PREFIX)}
        assert names - set(FACTS) == set()
        assert set(FACTS) - names - {"gpu_events_seconds"} == set()


def test_gloo_and_mpi_ranks_get_the_same_environment(gloo_train: Finished, mpi_train: Finished) -> None:
    for a, b in zip(gloo_train.records, mpi_train.records, strict=True):
        different = {
            name
            for name, policy in POLICY.items()
            if policy == "refuse" and a["environment"].get(name) != b["environment"].get(name)
        }
        assert different == set()


def test_gloo_and_mpi_train_the_same_losses(gloo_train: Finished, mpi_train: Finished) -> None:
    for a, b in zip(gloo_train.records, mpi_train.records, strict=True):
        assert b["equivalence"]["losses"] == pytest.approx(a["equivalence"]["losses"], rel=1e-5)


def test_the_transport_of_gloo_is_read_from_its_own_connections(gloo_train: Finished) -> None:
    assert [r["transport"] for r in gloo_train.records] == ["gloo: TCP on lo (127.0.0.1)"] * 2


def test_the_stages_last_as_long_as_the_launch(gloo_train: Finished) -> None:
    for record in gloo_train.records:
        marks = record["marks"]
        assert {"import", "rendezvous", "equivalence", "warmup", "measure", "total"} <= set(marks)
        assert sum(v for k, v in marks.items() if k != "total") == pytest.approx(marks["total"], rel=0.05)


def _corrupted(backend: str, folder: Path) -> Finished:
    spec = make_spec(folder, backend=backend, inject="corrupt-gradient@1", equivalence_steps=2)
    return run_mpi(spec) if backend == "mpi" else run_ranks(spec)


@pytest.mark.parametrize("backend", ["gloo", "mpi"])
def test_a_corrupted_gradient_fails_the_gate_on_every_rank(backend: str, tmp_path: Path, torch_here: Any) -> None:
    finished = _corrupted(backend, tmp_path)
    assert finished.codes == (0, 0)  # the launch is complete; what it found is a failing gate
    for record in finished.records:
        assert record["equivalence"]["status"] == "fail"
        assert "rank 1, step 0: the gradient of module.weight is off by" in record["equivalence"]["detail"]
        assert record["synchronised"]["total_ns"]
    assert finished.record(1)["equivalence"]["worst_error"] > 1
    assert finished.record(0)["equivalence"]["worst_error"] <= 1


def test_a_rank_that_raises_is_the_first_cause_and_its_peer_is_secondary(tmp_path: Path, torch_here: Any) -> None:
    finished = run_ranks(make_spec(tmp_path, inject="raise@1", equivalence_steps=0))
    assert finished.codes == (1, 1)
    first, echo = finished.record(1)["failure"], finished.record(0)["failure"]
    assert (first["stage"], first["cause"]) == ("measure", "RuntimeError: injected fault: raise")
    assert first["secondary"] is False
    assert first["log_tail"][-1] == "RuntimeError: injected fault: raise"
    assert echo["secondary"] is True
    assert echo["stage"] == "measure"
    assert finished.record(0)["synchronised"]["total_ns"] == []


def test_an_mpi_job_with_a_rank_that_raises_ends_within_seconds(tmp_path: Path, torch_here: Any) -> None:
    finished = run_mpi(make_spec(tmp_path, backend="mpi", inject="raise@0", equivalence_steps=0), wait=60)
    assert finished.codes[0] != 0
    assert finished.record(0)["failure"]["cause"] == "RuntimeError: injected fault: raise"
    if finished.has_record(1):  # mpirun may have ended it before it could write
        assert finished.record(1)["failure"]["secondary"] is True


def test_a_killed_rank_leaves_no_record_and_its_peer_says_that_the_connection_broke(
    tmp_path: Path, torch_here: Any
) -> None:
    finished = run_ranks(make_spec(tmp_path, inject="kill@0", equivalence_steps=0))
    assert finished.codes[0] == -9
    assert finished.codes[1] != 0
    assert not finished.has_record(0)
    assert finished.record(1)["failure"]["secondary"] is True


def test_a_rank_that_hangs_is_ended_at_the_deadline_and_says_where_it_was(tmp_path: Path, torch_here: Any) -> None:
    spec = make_spec(tmp_path, inject="hang@1", equivalence_steps=0, deadline_seconds=25.0)
    finished = run_ranks(spec, wait=60)
    failure = finished.record(1)["failure"]
    assert finished.codes[1] == 124
    assert failure["stage"] == "deadline"
    assert failure["cause"].startswith("deadline passed in stage measure, at faults.py:")
    assert failure["secondary"] is False
    assert "in timed_steps" in finished.log(1)  # the stacks are in the log
    assert finished.record(0)["failure"]["secondary"] is True


def test_a_rank_that_was_stopped_and_is_woken_to_be_ended_says_so(tmp_path: Path, torch_here: Any) -> None:
    """As Open MPI does at its deadline: every rank gets SIGCONT, then SIGTERM, and only one of them had stopped."""
    path = write_spec(make_spec(tmp_path, world_size=1, inject="stop@0", equivalence_steps=0))
    finished = Finished((), path.parent)
    meeting = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "suite.worker", "run", "--spec", str(path)],
        env=worker_environment(**meeting, MASTER_PORT=str(free_port())),
        cwd=ROOT,
    )
    try:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        time.sleep(7)
        process.send_signal(signal.SIGCONT)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 143
    finally:
        process.kill()
        process.wait(10)
    failure = finished.record(0)["failure"]
    # Where it is found depends on how far it gets between the two signals.
    assert re.match(r"did not run for [789] s, at (faults|steps)\.py:\d+ ", failure["cause"])
    assert failure["secondary"] is False
    assert "SIGSTOP" in failure["fix"]


def test_a_single_launch_has_steps_and_no_process_group(tmp_path: Path, torch_here: Any) -> None:
    finished = run_ranks(make_spec(tmp_path, kind="single", world_size=1))
    record = finished.record(0)
    assert finished.codes == (0,)
    assert len(record["synchronised"]["total_ns"]) == 6
    assert len(record["synchronised"]["warmup_total_ns"]) == 2
    assert record["equivalence"]["status"] == "not run"
    assert record["environment"]["launcher"] == "none"


def test_a_pilot_has_all_its_steps_and_the_bandwidth_of_each_link(tmp_path: Path, torch_here: Any) -> None:
    finished = run_ranks(make_spec(tmp_path, kind="pilot", warmup_steps=0, steps=15))
    assert finished.codes == (0, 0)
    for record in finished.records:
        assert len(record["synchronised"]["total_ns"]) == 15
        assert record["synchronised"]["warmup_total_ns"] == []
        (link,) = [c for c in record["collectives"] if c["purpose"] == "link"]
        assert link["collective"] == "send_recv"
        rates = [link["size_bytes"] / (ns / 1e9) for ns in link["ns"]]
        assert len(rates) >= 2
        assert min(rates) > 1e6  # loopback: far more than this, but some


def test_an_mpi_pilot_tells_what_open_mpi_chose(tmp_path: Path, torch_here: Any) -> None:
    finished = run_mpi(make_spec(tmp_path, backend="mpi", kind="pilot", warmup_steps=0))
    assert finished.codes == (0, 0)
    assert finished.record(0)["transport"] == "mpi: pml ob1, btl sm"


def test_an_article_launch_has_the_published_mean_and_nothing_else(tmp_path: Path, torch_here: Any) -> None:
    finished = run_ranks(make_spec(tmp_path, kind="article"))
    for record in finished.records:
        assert 0 < record["article_seconds"] < 10
        assert record["synchronised"]["total_ns"] == []


@pytest.mark.parametrize("backend", ["gloo", "mpi"])
def test_a_collectives_launch_measures_all_that_the_backend_has_and_counts_no_wrong_element(
    backend: str, tmp_path: Path, torch_here: Any
) -> None:
    spec = make_spec(tmp_path, backend=backend, kind="collectives", world_size=3)
    finished = run_mpi(spec) if backend == "mpi" else run_ranks(spec)
    assert finished.codes == (0, 0, 0)
    for record in finished.records:
        swept = [c for c in record["collectives"] if c["purpose"] == "sweep"]
        assert {c["collective"] for c in swept} == set(Sweep().collectives)
        assert sum(c["wrong"] for c in swept) == 0
        assert all(bool(c["ns"]) != bool(c["unavailable"]) for c in swept)
        measured = {(c["collective"], c["implementation"]): c for c in swept if c["ns"]}
        # Sizes that three ranks cannot share evenly are rounded down, and the real size is recorded.
        assert measured["all_gather", "torch"]["size_bytes"] == 65536 // 12 * 12
        assert measured["all_reduce", "torch"]["size_bytes"] == 65536
        if backend == "mpi":
            assert "reduce_scatter" in next(c["unavailable"] for c in swept if c["collective"] == "reduce_scatter")
    counts = [[len(c["ns"]) for c in r["collectives"] if c["purpose"] == "sweep"] for r in finished.records]
    assert counts[0] == counts[1] == counts[2]  # repeats are agreed


def test_raw_mpi_stands_beside_the_mpi_backend(tmp_path: Path, torch_here: Any) -> None:
    pytest.importorskip("mpi4py", reason="needs mpi4py")
    sweep = Sweep(collectives=("all_reduce",), sizes_bytes=(4096,), repeats=5, min_repeats=2)
    finished = run_mpi(make_spec(tmp_path, backend="mpi", kind="collectives", sweep=sweep))
    found = [c for c in finished.record(0)["collectives"] if c["purpose"] == "sweep"]
    assert [(c["implementation"], c["size_bytes"], c["wrong"], c["unavailable"]) for c in found] == [
        ("torch", 4096, 0, None),
        ("mpi4py", 4096, 0, None),
    ]


def test_smaller_buckets_are_what_ddp_reduces(tmp_path: Path, torch_here: Any) -> None:
    arm = Arm("small", "gloo", ddp=DdpOptions(bucket_mb=1.0))
    spec = make_spec(tmp_path, arm=arm, workload="transformer-tiny", batch_size=1, equivalence_steps=0, nosync_steps=0)
    facts = run_ranks(spec).record(0)["facts"]
    assert len(facts["buckets_bytes"]) > 5
    assert sum(facts["buckets_bytes"]) == facts["gradient_bytes"] == 4 * facts["parameters"]


@pytest.mark.parametrize(
    "options",
    [
        DdpOptions(gradient_as_bucket_view=True),
        DdpOptions(static_graph=True),
        DdpOptions(find_unused_parameters=True, broadcast_buffers=True),
    ],
    ids=["bucket-view", "static-graph", "unused-parameters"],
)
def test_every_ddp_option_passes_through_all_stages(options: DdpOptions, tmp_path: Path, torch_here: Any) -> None:
    finished = run_ranks(make_spec(tmp_path, arm=Arm("arm", "gloo", ddp=options), equivalence_steps=2))
    for record in finished.records:
        assert record["failure"] is None
        assert record["equivalence"]["status"] == "pass"
        assert len(record["nosync"]["total_ns"]) == 4
        assert sum(record["facts"]["buckets_bytes"]) == LINEAR_GRADIENT_BYTES


def test_two_hosts_that_are_one_machine_are_refused_when_distinct_hosts_were_asked_for(
    tmp_path: Path, torch_here: Any
) -> None:
    hosts = (HostSlots("h1", "127.0.0.1", 1, "lo"), HostSlots("h2", "127.0.0.1", 1, "lo"))
    spec = replace(make_spec(tmp_path), hosts=hosts, distinct_hosts=True, host="h1")
    finished = run_ranks(spec)
    assert finished.codes == (1, 1)
    failure = finished.record(0)["failure"]
    assert failure["stage"] == "sanity"
    assert "Ranks 0 to 1 run on h1, h1; planned: h1, h2." in failure["cause"]


def test_a_skewing_variable_is_refused_before_anything_is_timed(tmp_path: Path, torch_here: Any) -> None:
    spec = make_spec(tmp_path, environment={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}, world_size=1)
    failure = run_ranks(spec).record(0)["failure"]
    assert failure["cause"] == "TORCH_DISTRIBUTED_DEBUG=DETAIL is set, which skews what a train launch times."
    assert failure["fix"].startswith("unset TORCH_DISTRIBUTED_DEBUG")


def test_mpi_under_torchrun_is_refused_in_one_plain_line(tmp_path: Path, torch_here: Any) -> None:
    failure = run_ranks(make_spec(tmp_path, backend="mpi", world_size=1)).record(0)["failure"]
    assert "mpi backend takes its ranks from mpirun" in failure["cause"]


def test_a_backend_that_this_torch_lacks_fails_by_name(tmp_path: Path, torch_here: Any) -> None:
    import torch.distributed as dist

    if dist.is_nccl_available():
        pytest.skip("this torch has nccl")
    failure = run_ranks(make_spec(tmp_path, backend="nccl", world_size=1)).record(0)["failure"]
    assert failure["cause"] == "nccl: this torch has no nccl backend."


def test_a_launch_is_never_run_twice_into_the_same_folder(gloo_train: Finished, torch_here: Any) -> None:
    before = (gloo_train.folder / "rank-0.json").read_bytes()
    words = [sys.executable, "-m", "suite.worker", "run", "--spec", str(gloo_train.folder / "spec.json")]
    done = subprocess.run(
        words,
        env=worker_environment(RANK="0", WORLD_SIZE="2", LOCAL_RANK="0"),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    assert "exists already" in done.stderr
    assert (gloo_train.folder / "rank-0.json").read_bytes() == before
