"""Which failure is named first, from the files and exit codes that real failures leave."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from suite.cluster.executor import LauncherResult, judge, tail
from suite.records import Arm, Failure, HostSlots, LaunchOutcome, LaunchSpec, RankRecord, to_json

HOSTS = tuple(HostSlots(f"h{i}", f"198.18.0.1{i}") for i in range(1, 5))
SPEC = LaunchSpec(
    run="r",
    launch="0004-linear-gloo",
    index=4,
    kind="train",
    arm=Arm("gloo", "gloo"),
    workload="linear",
    batch_size=None,
    device="cpu",
    world_size=4,
    hosts=HOSTS,
    block=0,
    seed=1,
    warmup_steps=10,
    steps=20,
    nosync_steps=0,
    free_steps=0,
    equivalence_steps=0,
    threads=1,
    master_address="198.18.0.11",
    master_port=29501,
    deadline_seconds=60.0,
    output_folder="/o",
)
FINE = [LauncherResult(h.name, 0, order=i) for i, h in enumerate(HOSTS)]
# What torchrun prints when a rank dies of a signal, shortened to the lines that matter.
KILLED = """
Root Cause (first observed failure):
[0]:
  rank      : 2 (local_rank: 0)
  exitcode  : -9 (pid: 71)
"""


def record(rank: int, failure: Failure | None = None) -> RankRecord:
    return RankRecord(
        run="r",
        launch=SPEC.launch,
        kind="train",
        arm="gloo",
        backend="gloo",
        workload="linear",
        block=0,
        device="cpu",
        world_size=4,
        rank=rank,
        local_rank=0,
        host=f"h{rank + 1}",
        failure=failure,
    )


def outcome(
    folder: Path, results: list[LauncherResult], records: list[RankRecord], spec: LaunchSpec = SPEC
) -> LaunchOutcome:
    for one in records:
        (folder / f"rank-{one.rank}.json").write_text(to_json(one))
    return judge(spec, folder, results, wall_seconds=1.0, started_at=0.0, commands={})


def test_a_launch_with_all_records_and_exit_codes_is_ok(tmp_path: Path) -> None:
    found = outcome(tmp_path, FINE, [record(r) for r in range(4)])
    assert (found.status, found.failure) == ("ok", None)
    assert sorted(found.digests) == [f"rank-{r}.json" for r in range(4)]
    assert all(len(digest) == 64 for digest in found.digests.values())


def test_the_rank_that_raised_is_named_before_those_that_lost_their_peer(tmp_path: Path) -> None:
    peer = Failure("measure", "connection closed by peer", "h1", 0, secondary=True, at=5.0)
    own = Failure("measure", "ValueError: boom", "h3", 2, at=9.0)
    records = [record(0, peer), record(1), record(2, own), record(3)]
    failed = [replace(r, code=1) for r in FINE]
    found = outcome(tmp_path, failed, records).failure
    assert found is not None
    assert (found.host, found.rank, found.cause) == ("h3", 2, "ValueError: boom")


def test_a_killed_rank_is_named_from_its_launchers_words(tmp_path: Path) -> None:
    peer = Failure("measure", "connection closed by peer", "h1", 0, secondary=True, at=5.0)
    results = [
        LauncherResult("h1", 1, "", "another host", 3),
        LauncherResult("h3", 1, KILLED, "", 1),
    ]
    found = outcome(tmp_path, results, [record(0, peer), record(1)]).failure
    assert found is not None
    assert (found.host, found.rank) == ("h3", 2)
    assert "signal 9" in found.cause
    assert "out-of-memory" in found.fix


def test_mpirun_names_the_killed_rank_too(tmp_path: Path) -> None:
    text = "prterun noticed that process rank 1 with PID 412 on node h2 exited on\nsignal 9 (Killed)."
    found = outcome(tmp_path, [LauncherResult("h1", 137, text)], [record(0)]).failure
    assert found is not None
    assert (found.host, found.rank) == ("h2", 1)


def test_the_peer_that_open_mpis_survivors_complain_about_is_the_first_cause(tmp_path: Path) -> None:
    text = "  Local host: h3\n  Local PID:  225\n  Peer host:  h4\nprterun has exited due to rank 0"
    found = outcome(tmp_path, [LauncherResult("h1", 14, text)], []).failure
    assert found is not None
    assert (found.host, found.rank) == ("h4", 3)


def test_a_stopped_rank_is_the_one_that_said_nothing_until_the_deadline(tmp_path: Path) -> None:
    late = [record(r, Failure("deadline", "not done in 60 s", f"h{r + 1}", r, at=60.0)) for r in (0, 1, 3)]
    results = [replace(r, code=124, ended_by="deadline") for r in FINE]
    found = outcome(tmp_path, results, late).failure
    assert found is not None
    assert (found.host, found.rank) == ("h3", 2)
    assert "deadline of 60 s" in found.cause


def test_a_rank_that_gave_up_on_a_stopped_one_is_not_taken_for_it(tmp_path: Path) -> None:
    late = [record(r, Failure("deadline", "not done in 60 s", f"h{r + 1}", r, at=60.0)) for r in (0, 2)]
    gave_up = (
        'prterun has exited due to process rank 1 with PID 159 on node h2 calling\n"abort". This may have caused other'
    )
    found = outcome(tmp_path, [LauncherResult("h1", 124, gave_up, "deadline")], late).failure
    assert found is not None
    assert (found.host, found.rank, found.stage) == ("h4", 3, "deadline")


def test_at_the_deadline_the_rank_that_the_others_waited_for_is_named(tmp_path: Path) -> None:
    ended = "ended by the launcher (SIGTERM), at steps.py:9 (step)"
    waiting = f"{ended}, waiting for its peers"
    causes = (waiting, waiting, ended, waiting)
    late = [record(r, Failure("measure", c, f"h{r + 1}", r, secondary=True, at=9.0 - r)) for r, c in enumerate(causes)]
    results = [replace(r, code=124, ended_by="deadline") for r in FINE]
    found = outcome(tmp_path, results, late).failure
    assert found is not None
    assert (found.host, found.rank, found.stage) == ("h3", 2, "deadline")
    assert found.cause == "had not ended at the launch's deadline of 60 s; it was at steps.py:9 (step)"
    assert "--deadline" in found.fix


def test_at_the_deadline_of_ranks_that_all_wait_the_network_is_suspected(tmp_path: Path) -> None:
    waiting = "deadline passed in stage measure, at steps.py:9 (step), waiting for its peers"
    late = [record(r, Failure("deadline", waiting, f"h{r + 1}", r, secondary=True, at=5.0 - r)) for r in range(4)]
    found = outcome(tmp_path, [replace(r, code=124, ended_by="deadline") for r in FINE], late).failure
    assert found is not None
    assert (found.host, found.rank) == ("h4", 3)
    assert "the network between them is slow or cut" in found.cause


def test_a_rank_that_could_not_write_its_record_says_so_through_its_launcher(tmp_path: Path) -> None:
    said = "suite.worker: rank-1.json could not be written: OSError: [Errno 28] No space left on device"
    results = [FINE[0], replace(FINE[1], code=1, output=f"x\n{said}\ny"), *FINE[2:]]
    found = outcome(tmp_path, results, [record(0), record(2), record(3)]).failure
    assert found is not None
    assert (found.host, found.rank) == ("h2", 1)
    assert found.cause == "could not write its record: OSError: [Errno 28] No space left on device"
    assert "docker system df" in found.fix


def test_a_host_that_mpirun_could_not_enter_is_named_by_its_address(tmp_path: Path) -> None:
    said = "ssh: connect to host 198.18.0.13 port 2222: Connection refused\r\nPRTE has lost communication"
    found = outcome(tmp_path, [LauncherResult("h1", 255, said)], []).failure
    assert found is not None
    assert (found.host, found.rank) == ("h3", 2)
    assert found.cause == "does not take SSH connections on port 2222 of its container: Connection refused"


def test_a_failure_without_a_fix_of_its_own_points_to_the_log(tmp_path: Path) -> None:
    own = Failure("measure", "ValueError: boom", "h3", 2, at=9.0)
    records = [record(0), record(1), record(2, own), record(3)]
    found = outcome(tmp_path, [replace(r, code=1) for r in FINE], records).failure
    assert found is not None
    assert found.fix == "see rank-2.log of the launch, whose last lines follow"


def test_a_lost_host_is_named_as_such(tmp_path: Path) -> None:
    results = [*FINE[:3], LauncherResult("h4", None, "", "connection lost", 1)]
    found = outcome(tmp_path, results, [record(r) for r in range(3)]).failure
    assert found is not None
    assert (found.host, found.rank) == ("h4", 3)
    assert "connection" in found.cause


def test_a_host_that_answers_though_its_connection_broke_is_not_called_lost(tmp_path: Path) -> None:
    ended = "its container ended during the launch: its Docker daemon was restarted, or the container was stopped"
    results = [*FINE[:3], LauncherResult("h4", None, "", "connection lost", 1, ended)]
    found = outcome(tmp_path, results, [record(r) for r in range(3)]).failure
    assert found is not None
    assert (found.host, found.rank, found.cause) == ("h4", 3, ended)
    assert "journalctl -u docker" in found.fix


def test_a_rank_that_ended_without_a_word_may_have_been_killed_for_memory(tmp_path: Path) -> None:
    results = [replace(FINE[0], code=14, output="Peer host:  h4")]
    found = outcome(tmp_path, results, [record(r) for r in range(3)]).failure
    assert found is not None
    assert (found.host, found.rank) == ("h4", 3)
    assert found.cause == "ended without a record; its launcher's exit code is 14"
    assert "out-of-memory killer" in found.fix


@pytest.mark.parametrize("damage", [b"", b"{", b'{"format": 99}', b"\xff\xfe", b"[]"])
def test_a_damaged_record_fails_the_launch_and_names_the_file(tmp_path: Path, damage: bytes) -> None:
    for rank in range(4):
        (tmp_path / f"rank-{rank}.json").write_text(to_json(record(rank)))
    (tmp_path / "rank-1.json").write_bytes(damage)
    found = judge(SPEC, tmp_path, FINE, wall_seconds=1.0, started_at=0.0, commands={}).failure
    assert found is not None
    assert found.rank == 1
    assert found.cause.startswith("rank-1.json: ")
    assert "Fix:" not in found.cause
    assert found.fix.startswith("see that the host's disk is sound")
    assert "--resume" not in found.fix, "a failed launch is not repeated by a resume"


def test_a_record_of_another_launch_is_not_taken_for_this_one(tmp_path: Path) -> None:
    records = [record(0), record(1), record(2), replace(record(3), launch="0001-linear-gloo")]
    found = outcome(tmp_path, FINE, records).failure
    assert found is not None
    assert found.rank == 3


def test_an_interrupted_launch_is_neither_ok_nor_failed(tmp_path: Path) -> None:
    results = [replace(r, code=None, ended_by="interrupt") for r in FINE]
    assert outcome(tmp_path, results, []).status == "interrupted"


def test_a_log_tail_has_no_control_characters() -> None:
    assert tail("a\n\x1b[2Jb\n") == ("a", "\N{REPLACEMENT CHARACTER}[2Jb")


def test_a_host_that_answers_and_cannot_give_its_records_is_not_called_lost(tmp_path: Path) -> None:
    full = "h4: fetching /x: the Docker engine says: mkdir /y: no space left on device"
    results = [*FINE[:3], LauncherResult("h4", None, full, "no records")]
    found = outcome(tmp_path, results, [record(r) for r in range(3)]).failure
    assert found is not None
    assert (found.host, found.rank, found.stage) == ("h4", 3, "collect")
    assert found.cause == f"its records could not be fetched: {full}"
    assert "free disk space" in found.fix
