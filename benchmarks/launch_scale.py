"""What would the launch and collect path cost at 1,000 ranks?

    python -m benchmarks.launch_scale [--quick] [--json PATH]

A simulation, with measured costs of one host as its input. First, against four real hosts (plain sshd on
loopback addresses, a running container each), every step that a launch takes on a host is timed alone: putting
the specification there, starting a program in the container, learning its exit code, fetching one record and
fetching many. Each has a part that the controller computes (its CPU time) and a part that it waits for.

Then the suite's own ``ClusterExecutor`` runs a launch over as many stand-in hosts as asked for. A stand-in
computes as long as the real step did, holding the interpreter as SSH in Python does, and then waits as long;
its ranks live for no time at all. Everything else is real: threads, records on disk, digests, the judged outcome.
So the wall time is what the suite would add to the ranks' lives. Not in it: the network between controller and
hosts (put its latency on top of the five steps), torchrun, mpirun and the rendezvous.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import Limit, columns, document, finish, median, parse_options
from benchmarks.loopback import (
    LAUNCH,
    RUN,
    containers,
    launch_folder,
    own_seconds,
    peak_bytes,
    record_bytes,
    ssh_servers,
)
from suite.cluster import archive
from suite.cluster.attached import Attached, OnLine
from suite.cluster.deploy import open_remotes
from suite.cluster.engine import Engine
from suite.cluster.inventory import Host
from suite.cluster.launch import ClusterExecutor
from suite.errors import LaunchError
from suite.paths import is_safe_name, project_root, rank_file
from suite.plan import PROTOCOLS, Plan, Slot, launch_spec
from suite.records import Arm, HostSlots, Settings

# (hosts, ranks a host)
SHAPES = ((4, 1), (16, 8), (125, 8), (1000, 1))
QUICK_SHAPES = ((4, 1), (125, 8))
STEPS = 200
REPEATS = 20
PORTS = (29500, 29999)
CHILD_SECONDS = 900.0
MOST_SECONDS = 60.0


@dataclass(frozen=True)
class Step:
    """One step on one host, seconds: ``cpu`` the controller computes, ``wait`` it waits for the host."""

    cpu: float
    wait: float


@dataclass(frozen=True)
class Inputs:
    """Measured costs of a host. ``fetch`` is of one record, ``fetch_more`` of every further one."""

    put: Step
    start: Step
    code: Step
    fetch: Step
    fetch_more: Step
    record_bytes: int


@dataclass(frozen=True)
class Simulated:
    """One launch. Seconds and bytes; ``record_bytes`` is what all ranks' records hold together."""

    hosts: int
    ranks: int
    wall: float
    cpu: float
    peak_bytes: int
    record_bytes: int


# The input: real hosts


def measure_inputs(repeats: int) -> Inputs:
    """The steps against four real hosts, one host after the other: medians."""
    names = [f"h{number}" for number in range(1, 5)]
    many = 8
    files = {name: {rank_file(rank): record_bytes(rank, 4, name, STEPS) for rank in range(many)} for name in names}
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as folder,
        containers(names, files, running=True) as ids,
        ssh_servers(Path(folder) / "servers", len(names)) as servers,
        open_remotes(servers.cluster) as remotes,
    ):
        for remote in remotes.values():
            remote.exec_run(ids[remote.name], ["true"])
        programs: list[Attached] = []

        def start(remote: Engine) -> None:
            programs.append(remote.exec_attached(ids[remote.name], ["true"]))

        def code(_remote: Engine) -> None:
            program = programs.pop()
            program.wait(10.0)
            program.close()

        steps = {"put": _put(ids), "start": start, "code": code, "one": _fetch(ids, 1), "many": _fetch(ids, many)}
        seen: dict[str, list[Step]] = {name: [] for name in steps}
        for number in range(repeats):
            remote = remotes[names[number % len(names)]]
            for name, step in steps.items():
                seen[name].append(_timed(step, remote))
    middle = {name: _middle(found) for name, found in seen.items()}
    more = Step(*(max(0.0, (getattr(middle["many"], p) - getattr(middle["one"], p)) / (many - 1)) for p in _PARTS))
    size = len(files[names[0]][rank_file(0)])
    return Inputs(middle["put"], middle["start"], middle["code"], middle["one"], more, size)


_PARTS = ("cpu", "wait")


def _put(ids: Mapping[str, str]) -> Callable[[Engine], None]:
    text = archive.File(b"x" * 4000)  # about a specification
    return lambda remote: remote.put(ids[remote.name], launch_folder() + "-spec", {"spec.json": text})


def _fetch(ids: Mapping[str, str], count: int) -> Callable[[Engine], None]:
    wanted = {rank_file(rank) for rank in range(count)}
    # The whole folder travels whatever is wanted of it, so a single record lies in a folder of its own.
    place = launch_folder() if count > 1 else launch_folder() + "-one"

    def fetch(remote: Engine) -> None:
        if count == 1 and remote.name not in prepared:
            record = archive.File(record_bytes(0, 4, remote.name, STEPS))
            remote.put(ids[remote.name], place, {rank_file(0): record})
            prepared.add(remote.name)
        got = remote.fetch(ids[remote.name], place, limit_bytes=1 << 30, wanted=wanted.__contains__)
        if len(got) != count:
            raise LaunchError(f"{len(got)} of {count} records came from {remote.name}.")

    prepared: set[str] = set()
    return fetch


def _timed(step: Callable[[Engine], None], remote: Engine) -> Step:
    wall, cpu = time.perf_counter(), own_seconds()
    step(remote)
    took, computed = time.perf_counter() - wall, own_seconds() - cpu
    return Step(computed, max(0.0, took - computed))


def _middle(found: Sequence[Step]) -> Step:
    return Step(median([step.cpu for step in found]) or 0.0, median([step.wait for step in found]) or 0.0)


# The simulation


def take(step: Step) -> None:
    """Compute as long as the step does, holding the interpreter, then wait as long as it waits."""
    until = time.thread_time() + step.cpu
    while time.thread_time() < until:
        pass
    time.sleep(step.wait)


class _Program:
    """A program that ends at once, in the place of an ``Attached``."""

    def __init__(self, code: Step) -> None:
        self.lines: deque[tuple[str, str]] = deque()
        self.ended = True
        self._code = code

    def wait_output(self, _timeout: float | None) -> bool:
        return True

    def wait(self, _timeout: float | None) -> int:
        take(self._code)
        return 0

    def close_input(self) -> None:
        pass

    def close(self) -> None:
        pass


class StandIn(Engine):
    """A host that costs what a real one was measured to, with the records of its ranks."""

    def __init__(self, host: Host, inputs: Inputs, ranks: range, record: bytes) -> None:
        super().__init__(host)
        self._inputs, self._ranks, self._record = inputs, ranks, record

    def put(self, _container: str, _folder: str, _files: Mapping[str, archive.File]) -> None:
        take(self._inputs.put)

    def exec_attached(
        self,
        _container: str,
        _argv: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,  # noqa: ARG002 - the real one's signature
        on_line: OnLine | None = None,  # noqa: ARG002
    ) -> Any:
        take(self._inputs.start)
        return _Program(self._inputs.code)

    def fetch(
        self,
        _container: str,
        _folder: str,
        *,
        limit_bytes: int,  # noqa: ARG002
        wanted: Callable[[str], bool] = is_safe_name,  # noqa: ARG002
        timeout: float = 120.0,  # noqa: ARG002
    ) -> dict[str, bytes]:
        take(self._inputs.fetch)
        further = len(self._ranks) - 1
        take(Step(self._inputs.fetch_more.cpu * further, self._inputs.fetch_more.wait * further))
        return {rank_file(r): self._record.replace(b'"rank":0,', b'"rank":%d,' % r, 1) for r in self._ranks}


def simulate(inputs: Inputs, hosts: int, ranks_per_host: int) -> Simulated:
    """One launch over stand-ins, in this process.

    Raises:
        LaunchError: the suite judged the launch as failed.
    """
    world = hosts * ranks_per_host
    slots = tuple(HostSlots(f"h{i}", f"198.18.{i // 250}.{i % 250 + 1}", ranks_per_host) for i in range(hosts))
    record = record_bytes(0, world, "h0", STEPS)
    engines: dict[str, Engine] = {}
    for number, slot in enumerate(slots):
        ranks = range(number * ranks_per_host, (number + 1) * ranks_per_host)
        engines[slot.name] = StandIn(Host(slot.name, slot.address, slot.address, "nobody"), inputs, ranks, record)
    plan = Plan(
        run=RUN, name="quick", cluster="simulated", seed=1, arms=(Arm("gloo", "gloo"),), asked=(),
        workloads=("linear",), worlds=(world,), hosts=slots, device="cpu", protocol=PROTOCOLS["quick"],
    )  # fmt: skip
    executor = ClusterExecutor(
        engines, dict.fromkeys(engines, "container"), run=RUN, ports=PORTS, restart=lambda _engine: None
    )
    spec = launch_spec(
        plan,
        Slot("train", "linear", world, 0, "gloo"),
        1,
        Settings("linear", world, 20, STEPS),
        master_port=PORTS[0],
        output_folder=executor.output_folder(LAUNCH),
    )
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        wall, cpu = time.perf_counter(), own_seconds()
        outcome = executor.launch(spec, Path(folder))
        took, computed = time.perf_counter() - wall, own_seconds() - cpu
    if outcome.status != "ok":
        raise LaunchError(f"the simulated launch failed: {outcome.failure}")
    return Simulated(hosts, world, took, computed, peak_bytes(), world * inputs.record_bytes)


def simulate_in_child(inputs: Inputs, hosts: int, ranks_per_host: int) -> Simulated:
    """The same in a fresh process, whose peak memory is its own."""
    told = json.dumps({"inputs": asdict(inputs), "hosts": hosts, "ranks_per_host": ranks_per_host})
    words = [sys.executable, "-m", "benchmarks.launch_scale", "--child"]
    done = subprocess.run(
        words, cwd=project_root(), input=told, capture_output=True, text=True, timeout=CHILD_SECONDS, check=False
    )
    if done.returncode:
        raise LaunchError(f"the simulation of {hosts} hosts failed: {done.stderr.strip()[-1500:]}")
    return Simulated(**json.loads(done.stdout))


def child(told: dict[str, Any]) -> Simulated:
    """In the fresh process."""
    steps = {name: Step(**value) for name, value in told["inputs"].items() if name != "record_bytes"}
    inputs = Inputs(**steps, record_bytes=told["inputs"]["record_bytes"])
    return simulate(inputs, told["hosts"], told["ranks_per_host"])


def limits(found: Sequence[Simulated]) -> list[Limit]:
    """What a launch over 1,000 ranks may add without being in the way: less than its own start-up takes."""
    return [
        Limit(
            f"added to a launch of {one.ranks} ranks on {one.hosts} hosts (simulated)",
            one.wall,
            None,
            MOST_SECONDS,
            "s",
        )
        for one in found
        if one.ranks >= 1000
    ]


def table(outcomes: dict[str, Any]) -> str:
    """The input, then one line per shape."""
    inputs = outcomes["inputs"]
    names = {
        "put": "put the specification",
        "start": "start a program",
        "code": "learn its exit code",
        "fetch": "fetch one record",
        "fetch_more": "each further record",
    }
    steps = [
        [text, f"{inputs[name]['cpu'] * 1e3:.1f} ms", f"{inputs[name]['wait'] * 1e3:.1f} ms"]
        for name, text in names.items()
    ]
    rows = [
        [
            str(one["hosts"]),
            str(one["ranks"]),
            f"{one['wall']:.2f} s",
            f"{one['cpu']:.2f} s",
            f"{one['record_bytes'] / 1e6:.1f} MB",
            f"{one['peak_bytes'] / (1 << 20):.0f} MiB",
        ]
        for one in outcomes["launches"]
    ]
    return (
        f"Measured on a host (records of {inputs['record_bytes'] / 1e3:.0f} kB)\n"
        + columns(["step", "controller computes", "controller waits"], steps)
        + "\n\nSimulated: what the suite adds to the ranks' lives\n"
        + columns(["hosts", "ranks", "wall time", "controller's CPU", "records", "peak memory"], rows, left=0)
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, simulate, judge; exit 1 when a limit is missed."""
    options = parse_options(__doc__, arguments)
    before = os.getloadavg()
    inputs = measure_inputs(8 if options.quick else REPEATS)
    found = [simulate_in_child(inputs, *shape) for shape in (QUICK_SHAPES if options.quick else SHAPES)]
    outcomes = {"inputs": asdict(inputs), "launches": [asdict(one) for one in found]}
    return finish(document("launch_scale", options, before, limits(found), outcomes), table(outcomes), options)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(asdict(child(json.load(sys.stdin)))))
        raise SystemExit(0)
    raise SystemExit(main())
