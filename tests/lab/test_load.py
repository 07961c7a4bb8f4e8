"""Run after run in one controller, faults drawn by a seed: nothing finished is lost, nothing grows, nothing is left."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from suite.cluster import lab
from suite.paths import RunPaths
from tests.lab.fault_support import DEADLINE, NAMES, PATIENCE, SLACK, Fab, Project, ending, manifest, rows
from tests.lab.fault_table import Load, record_load

pytestmark = pytest.mark.containers
DRIVER = Path(__file__).with_name("load_driver.py")
SEED = int(os.environ.get("SUITE_LOAD_SEED", "1"))
# What a run may meet. "inject" kinds are the worker's own; the others strike a host or the controller in a launch.
FAULTS = (
    "none",
    "kill",
    "raise",
    "corrupt-gradient",
    "container-sshd-gone",
    "network-cut",
    "docker-restart",
    "interrupt",
)
# What a rank's own fault makes of the run's only row.
ENDS = {"kill": "failed", "raise": "failed", "corrupt-gradient": "invalid"}
# Of the controller, from the second run on: what it holds by then are connections and loaded modules.
MOST_GROWTH_KIB = 8 * 1024
RUN_SECONDS = 3 * (DEADLINE + SLACK) + 60 * PATIENCE


@dataclass
class Driver:
    """The controller, and what it held after each order."""

    project: Project
    process: Fab
    results: Path
    held: list[dict[str, int]] = field(default_factory=list)

    def order(self, **what: Any) -> int:
        """Give one order; returns the number of lines it had said until then."""
        return self.process.tell(json.dumps(what))

    def answer(self) -> int:
        """The exit code of the order that was given last."""
        found: dict[str, int] = json.loads(self.process.wait_printed(len(self.held) + 1, RUN_SECONDS))
        self.held.append(found)
        return found["code"]

    def newest(self) -> RunPaths:
        return RunPaths(sorted((self.results / "runs").iterdir())[-1])


def one_run(driver: Driver, draw: random.Random) -> str:
    """One run with one fault; whatever stopped it is undone, and it is resumed to its end."""
    kind = draw.choice(FAULTS)
    arm = draw.choice(("gloo", "mpi"))
    host = draw.choice(("h1", "h2"))
    options = {
        "backend": arm,
        "blocks": "1",
        "steps": "5",
        "world": "2",
        "deadline": f"{DEADLINE:g}s",
        "seed": str(draw.randrange(1000)),
        "inject": f"{kind}@1" if kind in ENDS else "",
    }
    said = driver.order(**options)
    if kind in ("container-sshd-gone", "network-cut", "docker-restart", "interrupt"):
        driver.process.wait_for(rf"^\[{draw.choice((1, 2))}/3\]", RUN_SECONDS, after=said)
        driver.project.await_ranks(host, DEADLINE)
        time.sleep(draw.uniform(0.0, 3.0))
        if kind == "interrupt":
            driver.process.signal(draw.choice((signal.SIGINT, signal.SIGTERM)))
        else:
            lab.fault(kind, host, root=driver.project.root)
    code = driver.answer()
    run = driver.newest()
    # A fault of a host or an interrupt may come when the launch is over.
    expected = {"none": (0,), "interrupt": (0, 130), **dict.fromkeys(ENDS, (1,))}.get(kind, (0, 1))
    assert code in expected, (kind, arm, host, code, driver.process.err[-3000:])
    if kind in ENDS:
        assert {row["status"] for row in rows(run).values()} == {ENDS[kind]}, (kind, arm)
    before = finished(run)
    lab.heal(root=driver.project.root)
    driver.project.await_clean(DEADLINE + SLACK)
    if manifest(run)["stop_reason"] == "interrupted":
        driver.order(deploy=True)
        assert driver.answer() == 0, driver.process.err[-3000:]
        driver.order(resume=run.run)
        assert driver.answer() in (0, 1), driver.process.err[-3000:]
    assert manifest(run)["stop_reason"] == "plan"
    assert before.items() <= finished(run).items()
    assert len(manifest(run)["launches"]) == 3  # pilot, train, one process: each once
    return f"{kind} {arm} {host}: exit {code}"


def finished(run: RunPaths) -> dict[str, str]:
    """Digest of every file that the ledger of a run names; each is there and is what was recorded."""
    found = {}
    for outcome in manifest(run)["launches"]:
        for name, digest in outcome["digests"].items():
            data = (run.launch(outcome["launch"]) / name).read_bytes()
            assert hashlib.sha256(data).hexdigest() == digest, (run.run, outcome["launch"], name)
            found[f"{outcome['launch']}/{name}"] = digest
    return found


def many_runs(project: Project, results: Path, count: int) -> Load:
    """The runs one after the other; what the controller held after the second and after the last."""
    draw = random.Random(SEED)
    kinds: Counter[str] = Counter()
    start = time.monotonic()
    with ending(project.start_script(DRIVER, results=results)) as process:
        driver = Driver(project, process, results)
        for number in range(count):
            told = one_run(driver, draw)
            kinds[told.partition(" ")[0]] += 1
            print(f"{number + 1}/{count}", told, driver.held[-1], flush=True)
        first, last = driver.held[min(1, count - 2)], driver.held[-1]
    seconds = time.monotonic() - start
    runs = [RunPaths(path) for path in sorted((results / "runs").iterdir())]
    assert len(runs) == count
    done = Load(
        runs=count,
        seed=SEED,
        seconds=round(seconds),
        faults=dict(sorted(kinds.items())),
        launches=sum(len(manifest(run)["launches"]) for run in runs),
        files=sum(len(finished(run)) for run in runs),
        descriptors=(first["descriptors"], last["descriptors"]),
        threads=(first["threads"], last["threads"]),
        resident_kib=(first["resident_kib"], last["resident_kib"]),
    )
    # Each host keeps a session with a few channels; connections that died are replaced, not added to.
    assert done.descriptors[1] <= done.descriptors[0] + 2, done
    assert done.threads[1] <= done.threads[0] + 1, done
    assert done.resident_kib[1] <= done.resident_kib[0] + MOST_GROWTH_KIB, done
    assert project.leftovers() == {}
    for host in NAMES:
        assert project.on_host(host, "docker ps --all --format '{{.Names}}'").split() == ["ddp-suite-run"]
        assert project.on_host(host, "docker volume ls --format '{{.Name}}'").split() == ["ddp-suite-run"]
    return done


@pytest.mark.timeout(3 * RUN_SECONDS)
def test_three_runs_with_faults(sound: Project, tmp_path: Path) -> None:
    many_runs(sound, tmp_path, 3)


@pytest.mark.slow
@pytest.mark.timeout(20 * RUN_SECONDS)
def test_twenty_runs_with_faults(sound: Project, tmp_path: Path) -> None:
    record_load(many_runs(sound, tmp_path, 20))
