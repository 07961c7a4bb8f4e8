"""How do check, collection and fan-out grow with hosts?

    python -m benchmarks.controller_scale [--quick] [--json PATH]

4, 16 and 64 hosts: a plain sshd each, on loopback addresses, this machine's one Docker engine behind them all.
Per number of hosts a fresh controller process takes

    connect   from nothing to an SSH session and an answer of the engine, every host
    check     all that `fab check` asks hosts before a deploy, new connections included
    fan-out   one program on every host, over sessions that are open
    engine    one question to every host's engine, over connections that are open
    collect   the records of a launch (4 ranks a host), fetched, checked against what is here, and written

and its own CPU time, peak memory, open files and threads. The hosts' work (SSH's other end, `docker system
dial-stdio`, the probe) is done by the same cores here, where real hosts have their own: it is given as "hosts'
CPU". Where it and the controller's CPU time add up to cores × wall time, it is the cores that limit, and the
wall time grows with the number of hosts however the controller is written.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import Limit, columns, document, finish, median, parse_options
from benchmarks.loopback import (
    LAUNCH,
    RUN,
    children_seconds,
    containers,
    launch_folder,
    own_seconds,
    peak_bytes,
    record_bytes,
    ssh_servers,
)
from suite.cluster.check import check
from suite.cluster.collect import collect
from suite.cluster.deploy import open_remotes
from suite.cluster.fanout import fan_out, results
from suite.cluster.inventory import Cluster, load
from suite.cluster.remote import RemoteHost
from suite.errors import LaunchError
from suite.paths import RunPaths, project_root, rank_file
from suite.records import LaunchOutcome, Manifest

COUNTS = (4, 16, 64)
RANKS_PER_HOST, STEPS = 4, 200
PHASES = ("connect", "check", "fan-out", "engine", "collect")
JUDGED = ("check", "fan-out", "collect")
GROWTH = 3.0  # wall time at 64 hosts over that at 4
PEAK_MIB, OPEN_FILES = 512.0, 512.0  # half of the usual limit of 1,024 files
CHILD_SECONDS = 300.0
DEADLINE = 60.0


@dataclass(frozen=True)
class Cost:
    """Seconds of one phase: wall time, and the controller's own CPU time."""

    wall: float
    cpu: float


@dataclass(frozen=True)
class Scale:
    """One controller process with so many hosts. ``hosts_cpu``: seconds of the simulated hosts', all phases."""

    hosts: int
    costs: dict[str, Cost]
    peak_bytes: int
    open_files: int
    threads: int
    hosts_cpu: float


# In the fresh process


class _Peak:
    """The largest number of open files and threads, looked at now and then."""

    def __init__(self) -> None:
        self.files, self.threads = 0, 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._stop.wait(0.05):
            self.files = max(self.files, len(list(Path("/proc/self/fd").iterdir())))
            self.threads = max(self.threads, threading.active_count())

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(1)


@contextlib.contextmanager
def _timed(costs: dict[str, Cost], name: str) -> Iterator[None]:
    wall, cpu = time.perf_counter(), own_seconds()
    yield
    costs[name] = Cost(time.perf_counter() - wall, own_seconds() - cpu)


def child(folder: Path) -> dict[str, Any]:
    """All phases against the hosts that ``folder`` describes."""
    cluster = load(folder / "servers" / "loopback.toml")
    ids: dict[str, str] = json.loads((folder / "containers.json").read_text())
    costs: dict[str, Cost] = {}
    peak = _Peak()
    with open_remotes(cluster) as remotes:
        hosts = list(remotes.values())

        def everywhere(ask: Callable[[RemoteHost], object]) -> None:
            results(fan_out(hosts, ask, DEADLINE), "the benchmark")

        with _timed(costs, "connect"):
            everywhere(lambda remote: remote.api.version())
        with _timed(costs, "fan-out"):
            everywhere(lambda remote: remote.run(["true"]))
        with _timed(costs, "engine"):
            everywhere(lambda remote: remote.api.version())
        with tempfile.TemporaryDirectory(prefix="bench-") as results_folder, _timed(costs, "collect"):
            _collect(RunPaths(Path(results_folder) / RUN), cluster, remotes, ids)
    with open_remotes(cluster) as remotes, _timed(costs, "check"):
        findings = check(cluster, None, remotes=remotes, level="all")
        unreached = [finding for finding in findings if finding.check in ("ssh", "docker") and finding.status == "fail"]
        if unreached:
            raise LaunchError(f"{unreached[0].host}: {unreached[0].cause}")
    peak.stop()
    return {
        "costs": {name: asdict(costs[name]) for name in PHASES},
        "peak_bytes": peak_bytes(),
        "open_files": peak.files,
        "threads": peak.threads,
    }


def _collect(run: RunPaths, cluster: Cluster, remotes: dict[str, RemoteHost], ids: dict[str, str]) -> None:
    outcome = LaunchOutcome(LAUNCH, 1, "train", "gloo", "gloo", "linear", 4, 0, "ok", output_folder=launch_folder())
    manifest = Manifest(RUN, cluster.name, "", "", "", False, "", (), launches=(outcome,))
    got = collect(run, manifest, remotes, ids)
    wanted = len(ids) * RANKS_PER_HOST
    if got.problems or len(got.new) != wanted:
        raise LaunchError(f"{len(got.new)} of {wanted} records came: {got.problems[:1]}")


# In the parent


def measure(count: int, repeats: int) -> list[Scale]:
    """``repeats`` fresh controllers against the same ``count`` hosts."""
    names = [f"h{number}" for number in range(1, count + 1)]
    files = {
        name: {
            rank_file(rank): record_bytes(rank, count * RANKS_PER_HOST, name, STEPS)
            for rank in range(place * RANKS_PER_HOST, (place + 1) * RANKS_PER_HOST)
        }
        for place, name in enumerate(names)
    }
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="bench-") as text, containers(names, files) as ids:
        folder = Path(text)
        (folder / "containers.json").write_text(json.dumps(ids))
        before = children_seconds()
        with ssh_servers(folder / "servers", count):
            for _ in range(repeats):
                found.append(_run_child(folder))
            controllers = children_seconds() - before  # the sshds have not ended yet, so they are not in it
            time.sleep(0.5)  # each sshd collects its sessions, and with them their CPU time
        hosts_cpu = (children_seconds() - before - controllers) / repeats
    return [
        Scale(
            hosts=count,
            costs={name: Cost(**cost) for name, cost in one["costs"].items()},
            peak_bytes=one["peak_bytes"],
            open_files=one["open_files"],
            threads=one["threads"],
            hosts_cpu=hosts_cpu,
        )
        for one in found
    ]


def _run_child(folder: Path) -> dict[str, Any]:
    words = [sys.executable, "-m", "benchmarks.controller_scale", "--child", str(folder)]
    done = subprocess.run(words, cwd=project_root(), capture_output=True, text=True, timeout=CHILD_SECONDS, check=False)
    if done.returncode:
        raise LaunchError(f"the controller process failed: {done.stderr.strip()[-1500:]}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def combined(scales: Sequence[Scale]) -> list[Scale]:
    """One per number of hosts: medians of times, largest of the rest."""
    found = []
    for count in sorted({scale.hosts for scale in scales}):
        mine = [scale for scale in scales if scale.hosts == count]
        costs = {
            name: Cost(
                median([scale.costs[name].wall for scale in mine]) or 0.0,
                median([scale.costs[name].cpu for scale in mine]) or 0.0,
            )
            for name in PHASES
        }
        found.append(
            Scale(
                count,
                costs,
                max(scale.peak_bytes for scale in mine),
                max(scale.open_files for scale in mine),
                max(scale.threads for scale in mine),
                median([scale.hosts_cpu for scale in mine]) or 0.0,
            )
        )
    return found


def limits(scales: Sequence[Scale]) -> list[Limit]:
    """Growth from the fewest to the most hosts, and bounds on memory and files."""
    few, many = scales[0], scales[-1]
    found = [
        Limit(
            f"{name}: wall time at {many.hosts} hosts ÷ at {few.hosts}",
            many.costs[name].wall / few.costs[name].wall,
            None,
            GROWTH,
        )
        for name in JUDGED
    ]
    return [
        *found,
        Limit(f"peak memory at {many.hosts} hosts", many.peak_bytes / (1 << 20), None, PEAK_MIB, "MiB"),
        Limit(f"open files at {many.hosts} hosts", many.open_files, None, OPEN_FILES),
    ]


def table(outcomes: dict[str, Any]) -> str:
    """Wall and the controller's CPU time by phase, one line per number of hosts."""
    header = ["hosts", *PHASES, "hosts' CPU", "peak memory", "open files", "threads"]
    rows = [
        [
            str(scale["hosts"]),
            *(f"{scale['costs'][name]['wall']:.2f} ({scale['costs'][name]['cpu']:.2f})" for name in PHASES),
            f"{scale['hosts_cpu']:.2f}",
            f"{scale['peak_bytes'] / (1 << 20):.0f} MiB",
            str(scale["open_files"]),
            str(scale["threads"]),
        ]
        for scale in outcomes["scales"]
    ]
    return "Seconds of wall time (and of the controller's CPU time)\n" + columns(header, rows, left=0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and judge; exit 1 when a limit is missed."""
    options = parse_options(__doc__, arguments)
    before = os.getloadavg()
    every: list[Scale] = []
    for count in COUNTS if options.quick else (*COUNTS, *reversed(COUNTS)):
        every += measure(count, 1 if options.quick else 3)
    scales = combined(every)
    outcomes = {"ranks_per_host": RANKS_PER_HOST, "scales": [asdict(scale) for scale in scales]}
    return finish(document("controller_scale", options, before, limits(scales), outcomes), table(outcomes), options)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(child(Path(sys.argv[2]))))
        raise SystemExit(0)
    raise SystemExit(main())
