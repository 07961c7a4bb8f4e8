"""Every fault on the four simulated hosts, by the command line: noticed in time, named, nothing lost, nothing left.

Launches are made to stand still where a fault is to strike: a rank of another host waits in the middle of its
measured steps (``--inject hang``), so that nothing depends on how fast this machine is.
"""

from __future__ import annotations

import contextlib
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from suite.cluster import lab
from suite.paths import RunPaths
from tests.lab.fault_support import (
    DEADLINE,
    NAMES,
    PATIENCE,
    SLACK,
    Done,
    Fab,
    FailedLaunch,
    Project,
    ending,
    error_of,
    failed_launches,
    files_of,
    fork,
    manifest,
    only_run,
    rows,
    seed_with_first,
)
from tests.lab.fault_table import Seen, marked, record

pytestmark = [pytest.mark.containers, pytest.mark.timeout(400 * PATIENCE)]
WORLD = 4
OTHER = {"gloo": "mpi", "mpi": "gloo"}
LAST = "h4"  # where the last rank is


def cases(kind: str, *arms: str) -> list[Any]:
    """One case for each arm; those that FAULTS says are slow are marked so."""
    return [pytest.param(arm, marks=marked(f"{kind} {arm}")) for arm in arms]


@pytest.fixture(scope="module")
def begun(deployed: Project, tmp_path_factory: pytest.TempPathFactory) -> RunPaths:
    """A run whose pilots are done, interrupted in its first block: each fault strikes a copy of it."""
    results = tmp_path_factory.mktemp("begun")
    options = ("--backend", "gloo,mpi", "--blocks", "1", "--steps", "5", "--world", str(WORLD))
    with ending(deployed.start("run", *options, "--deadline", f"{DEADLINE:g}s", results=results)) as fab:
        fab.wait_for(r"^\[3/5\]", 200 * PATIENCE)
        fab.signal(signal.SIGINT)
        done = fab.end(60 * PATIENCE)
    assert done.code == 130, done
    run = only_run(results)
    assert [o["status"] for o in manifest(run)["launches"]] == ["ok", "ok"]
    return run


class Struck:
    """A copy of the begun run, gone on with; the fault strikes its next launch, which is of ``arm``."""

    def __init__(self, project: Project, begun: RunPaths, results: Path, arm: str, inject: str | None = None) -> None:
        self.project, self.arm, self._results = project, arm, results
        self.launch = f"0003-linear-{arm}"
        self.run = fork(
            begun,
            results,
            seed=seed_with_first(arm, WORLD),
            inject=inject,
            inject_arm=arm if inject else None,
            launch_deadline_seconds=DEADLINE,
        )
        self.before, self.plan = files_of(self.run), self.run.plan.read_bytes()
        self.fab: Fab = project.start("run", "--resume", self.run.run, results=results)
        self.began = self.fab.wait_for(rf"^\[3/5\] linear · {arm} · block 1 ", 60 * PATIENCE)

    def until_failed(self) -> FailedLaunch:
        """How the launch was told to have failed, within its deadline and the slack."""
        at = self.fab.wait_for(r"^ +FAILED at ", DEADLINE + SLACK)
        assert at - self.began < DEADLINE + SLACK
        self.fab.wait_for(r"^ +Fix: ", 2.0)
        return failed_launches(self.fab.err)[0]

    def noticed(self) -> float:
        """When the struck launch was over, by the ledger."""
        outcome = next(o for o in manifest(self.run)["launches"] if o["status"] == "failed")
        return float(outcome["started_at"] + outcome["wall_seconds"])

    def keep(self, done: Done, *, finished: tuple[str, ...]) -> None:
        """What every fault leaves: finished launches as they were, those named measured besides, the same plan."""
        assert self.before.items() <= files_of(self.run).items()
        assert self.run.plan.read_bytes() == self.plan
        launches = manifest(self.run)["launches"]
        assert [o["arm"] for o in launches if o["status"] == "ok" and o["kind"] != "pilot"] == list(finished), done
        assert [o["arm"] for o in launches if o["status"] != "ok"] == [self.arm], done
        assert self.run.report_html.exists()

    def resume(self, *missing: str) -> Done:
        """`fab run --resume` does exactly what is missing, and no more."""
        earlier = manifest(self.run)["launches"]
        done = self.project.fab("run", "--resume", self.run.run, results=self._results)
        launches = manifest(self.run)["launches"]
        assert launches[: len(earlier)] == earlier
        assert [(o["arm"], o["status"]) for o in launches[len(earlier) :]] == [(arm, "ok") for arm in missing], done
        assert self.run.plan.read_bytes() == self.plan
        return done


Strike = Callable[..., Struck]


@pytest.fixture
def strike(sound: Project, begun: RunPaths, tmp_path: Path) -> Iterator[Strike]:
    """Goes on with a copy of the begun run; see ``Struck``. Its `fab` is ended with the test."""
    made: list[Struck] = []

    def begin(arm: str, inject: str | None = None) -> Struck:
        made.append(Struck(sound, begun, tmp_path, arm, inject))
        return made[-1]

    yield begin
    for struck in made:
        struck.fab.stop()


def rest_is_measured(struck: Struck, key: str, struck_at: float, host: str, rank: int | None, cause: str) -> Done:
    """The common course: the launch is failed and named, nothing is left, the rest of the run is measured."""
    failure = struck.until_failed()
    cleaned = struck.project.await_clean(SLACK, struck.launch)
    assert (failure.host, failure.rank) == (host, rank), struck.fab.err
    assert re.search(cause, failure.cause), struck.fab.err
    assert failure.fix
    done = struck.fab.end(2 * DEADLINE + 4 * SLACK)
    assert done.code == 1, done
    other = OTHER[struck.arm]
    struck.keep(done, finished=(other, "single"))
    found = rows(struck.run)
    assert found["linear", struck.arm]["status"] == "failed"
    assert failure.cause in found["linear", struck.arm]["reason"]
    assert found["linear", other]["status"] == "ok"
    assert struck.project.leftovers() == {}
    record(key, Seen(round(struck.noticed() - struck_at, 1), round(cleaned - struck_at, 1), done.code, failure.message))
    return done


# Ranks


@pytest.mark.parametrize("arm", cases("kill", "gloo", "mpi"))
def test_a_killed_rank(strike: Strike, arm: str) -> None:
    struck = strike(arm, "kill@3")
    at = struck.project.await_injected(LAST, DEADLINE)
    # Open MPI's survivors may abort before mpirun has heard of the signal.
    cause = r"^was ended by signal 9 \(killed\)$" + (r"|^ended without a record" if arm == "mpi" else "")
    rest_is_measured(struck, f"kill {arm}", at, LAST, 3, cause)
    done = struck.resume()  # a failed launch is told, not replaced
    assert done.code == 1


@pytest.mark.parametrize("arm", cases("stop", "gloo", "mpi"))
def test_a_stopped_rank(strike: Strike, arm: str) -> None:
    struck = strike(arm, "stop@3")
    at = struck.project.await_injected(LAST, DEADLINE)
    # Open MPI wakes it at the deadline, and it can still say so itself.
    cause = re.escape(f"said nothing until the launch's deadline of {DEADLINE:g} s") + r"|did not run for \d+ s"
    rest_is_measured(struck, f"stop {arm}", at, LAST, 3, cause)


@pytest.mark.parametrize("arm", cases("raise", "gloo", "mpi"))
def test_a_rank_that_raises(strike: Strike, arm: str) -> None:
    struck = strike(arm, "raise@3")
    at = struck.project.await_injected(LAST, DEADLINE)
    rest_is_measured(struck, f"raise {arm}", at, LAST, 3, "RuntimeError: injected fault: raise")


# Hosts


def host_struck(strike: Strike, arm: str, kind: str, host: str) -> tuple[Struck, float]:
    """A launch in the middle of its measured steps, one of its hosts broken; and when that was."""
    struck = strike(arm, "hang@3")
    struck.project.await_injected(LAST, DEADLINE)
    at = time.time()
    lab.fault(kind, host, root=struck.project.root)
    return struck, at


def run_stops(struck: Struck, key: str, struck_at: float, host: str, cause: str) -> Done:
    """The course of a lost host: the launch is failed, the run stops and says how to go on, and does go on."""
    failure = struck.until_failed()
    assert (failure.host, failure.rank) == (host, NAMES.index(host)), struck.fab.err
    assert cause in failure.cause.lower(), struck.fab.err
    assert failure.fix
    done = struck.fab.end(DEADLINE + 4 * SLACK)
    assert done.code == 1, done
    message, fix = error_of(done.err)
    assert message.startswith(f"{host}: ")
    assert "every finished one is saved" in message
    assert fix.endswith(f"Then `fab deploy`, and go on with --resume {struck.run.run}.")
    struck.keep(done, finished=())
    # A host that nobody reaches ends its ranks by itself, at the deadline at the latest.
    cleaned = struck.project.await_clean(struck.began + DEADLINE + SLACK - time.time())
    record(key, Seen(round(struck.noticed() - struck_at, 1), round(cleaned - struck_at, 1), done.code, failure.message))
    struck.project.mend()
    again = struck.resume(OTHER[struck.arm], "single")
    assert again.code == 1, again  # the row of the failed launch
    assert rows(struck.run)["linear", OTHER[struck.arm]]["status"] == "ok"
    return done


@pytest.mark.parametrize("arm", cases("network-cut", "gloo", "mpi"))
def test_a_host_whose_network_is_cut(strike: Strike, arm: str) -> None:
    struck, at = host_struck(strike, arm, "network-cut", "h2")
    run_stops(struck, f"network-cut {arm}", at, "h2", "the connection to the host was lost")


@marked("host dies")
def test_a_host_that_dies(strike: Strike) -> None:
    struck, at = host_struck(strike, "gloo", "kill", "h3")
    run_stops(struck, "host dies", at, "h3", "the connection to the host was lost")


@marked("pause")
def test_a_host_that_stands_still(strike: Strike) -> None:
    """Its connections stay open and nobody answers, as when it swaps, or its virtual machine is suspended."""
    struck, at = host_struck(strike, "gloo", "pause", "h2")
    run_stops(struck, "pause", at, "h2", "the connection to the host was lost")


@marked("docker-restart")
def test_a_docker_daemon_that_is_restarted(strike: Strike) -> None:
    """Its containers end with it; the one of the suite is started again after the failed launch."""
    struck, at = host_struck(strike, "gloo", "docker-restart", "h2")
    rest_is_measured(
        struck, "docker-restart", at, "h2", 1, "its Docker daemon was restarted|its container was restarted"
    )


@marked("slow-link")
def test_a_link_of_1_mbit(strike: Strike) -> None:
    struck = strike("gloo")
    struck.project.await_ranks("h2", DEADLINE)
    at = time.time()
    lab.fault("slow-link", "h2", root=struck.project.root)
    failure = struck.until_failed()
    lab.heal("h2", root=struck.project.root)
    cleaned = struck.project.await_clean(SLACK, struck.launch)
    assert f"had not ended at the launch's deadline of {DEADLINE:g} s" in failure.cause, struck.fab.err
    assert failure.host in NAMES
    assert failure.rank == NAMES.index(failure.host)
    assert "--deadline gives more time" in failure.fix
    done = struck.fab.end(2 * DEADLINE + 4 * SLACK)
    assert done.code == 1, done
    struck.keep(done, finished=("mpi", "single"))
    record("slow-link", Seen(round(struck.noticed() - at, 1), round(cleaned - at, 1), done.code, failure.message))


@marked("container-sshd-gone")
def test_a_container_whose_sshd_is_gone(strike: Strike) -> None:
    """Only mpi needs it, and only to start: its launch fails, and the sshd is there again for the next."""
    struck = strike("gloo")
    struck.project.await_ranks("h2", DEADLINE)
    lab.fault("container-sshd-gone", "h2", root=struck.project.root)
    at = struck.fab.wait_for(r"^\[4/5\] linear · mpi ", DEADLINE + SLACK)
    struck.fab.wait_for(r"^ +FAILED at ", DEADLINE + SLACK)
    struck.fab.wait_for(r"^ +Fix: ", 2.0)
    failure = failed_launches(struck.fab.err)[0]
    cleaned = struck.project.await_clean(SLACK, "0004-linear-mpi")
    assert failure.host == "h2", struck.fab.err
    assert "does not take SSH connections" in failure.cause, struck.fab.err
    done = struck.fab.end(2 * DEADLINE + 4 * SLACK)
    assert done.code == 1, done
    struck.arm = "mpi"
    struck.keep(done, finished=("gloo", "single"))
    seen = Seen(round(struck.noticed() - at, 1), round(cleaned - at, 1), done.code, failure.message)
    record("container-sshd-gone", seen)
    assert "everything was there already" in struck.project.fab("deploy", results=struck.run.root).err


@marked("disk-full records")
def test_a_disk_that_is_full_when_records_are_written(strike: Strike) -> None:
    struck = strike("gloo")
    struck.project.await_ranks("h2", DEADLINE)
    at = time.time()
    lab.fault("disk-full", "h2", root=struck.project.root)
    run_stops(struck, "disk-full records", at, "h2", "no space left on device")


# Ports


@contextlib.contextmanager
def listening(project: Project, host: str, *ports: int) -> Iterator[None]:
    """A foreign process on each of these ports of a host."""
    for port in ports:
        project.on_host(host, f"iperf3 --server --daemon --port {port}")
    try:
        yield
    finally:
        project.on_host(host, "pkill -x iperf3; sleep 0.2")


@marked("port taken")
def test_a_rendezvous_port_that_is_taken(sound: Project, tmp_path: Path) -> None:
    with listening(sound, "h1", 29500, 29502):
        options = ("--backend", "gloo", "--blocks", "1", "--steps", "2", "--world", "2")
        done = sound.fab("run", *options, "--deadline", f"{DEADLINE:g}s", results=tmp_path)
    assert done.code == 0, done
    commands = [" ".join(outcome["commands"].values()) for outcome in manifest(only_run(tmp_path))["launches"]]
    ports = [int(match.group(1)) for text in commands if (match := re.search(r"--master_port=(\d+)", text))]
    # The next one, unless a connection of an earlier test still lingers on it.
    assert len(ports) == 2
    assert 29500 < ports[0] < ports[1] < 29600
    assert 29502 not in ports
    record("port taken", Seen(0.0, 0.0, 0, "(nothing)"))


@marked("ports taken")
def test_no_rendezvous_port_left(sound: Project, tmp_path: Path) -> None:
    """No launch can begin: the run is saved as it is, and goes on when a port is free."""
    sound.write_cluster("few", top='name = "run"\nports = "29600-29609"')
    options = ("--backend", "gloo", "--blocks", "1", "--steps", "2", "--world", "2", "--deadline", f"{DEADLINE:g}s")
    with listening(sound, "h1", *range(29600, 29610)):
        done = sound.fab("run", *options, results=tmp_path, cluster="few")
    assert done.code == 1, done
    message, fix = error_of(done.err)
    assert "h1: every port from 29600 to 29609 is taken" in message
    assert sound.leftovers() == {}
    run = only_run(tmp_path)
    assert manifest(run)["stop_reason"] == "interrupted"
    assert fix.endswith(f"go on with --resume {run.run}.")
    again = sound.fab("run", "--resume", run.run, results=tmp_path, cluster="few")
    assert again.code == 0, again
    assert [o["status"] for o in manifest(run)["launches"]] == ["ok"] * 3
    record("ports taken", Seen(round(done.seconds, 1), round(done.seconds, 1), done.code, f"{message} Fix: {fix}"))


# The controller


@pytest.mark.parametrize(
    ("name", "code"),
    [
        pytest.param("SIGINT", 130, marks=marked("SIGINT")),
        pytest.param("SIGTERM", 130, marks=marked("SIGTERM")),
        pytest.param("SIGKILL", -signal.SIGKILL, marks=marked("SIGKILL")),
    ],
)
def test_a_controller_that_is_told_to_end(strike: Strike, name: str, code: int) -> None:
    struck = strike("mpi" if name == "SIGKILL" else "gloo")
    struck.project.await_ranks(LAST, DEADLINE)
    at = time.time()
    struck.fab.signal(getattr(signal, name))
    done = struck.fab.end(SLACK)
    ended = time.time()
    assert done.code == code, done
    cleaned = struck.project.await_clean(SLACK)
    assert struck.before.items() <= files_of(struck.run).items()
    assert [o["status"] for o in manifest(struck.run)["launches"]] == ["ok", "ok"]
    message, fix = error_of(done.err) if code == 130 else ("(nothing: it is gone)", "")
    record(
        name, Seen(round(ended - at, 1), round(cleaned - at, 1), done.code, f"{message} Fix: {fix}" if fix else message)
    )
    again = struck.resume(struck.arm, OTHER[struck.arm], "single")
    assert again.code == 0, again
    assert {row["status"] for row in rows(struck.run).values()} == {"ok"}
    assert [p.name for p in struck.run.launches.iterdir() if p.name.startswith(".")] == []
