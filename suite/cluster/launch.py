"""Launches on the hosts of a cluster, inside the containers that ``deploy`` started.

Every program started in a container holds a lease: its standard input, kept open over the host's SSH session.
When the controller closes it, or dies, or loses the network, the supervisor inside ends every rank. After a
failure the containers are restarted, which kills whatever is left for certain.
"""

from __future__ import annotations

import queue
import re
import secrets
import shlex
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import docker

from suite import codec, console
from suite.cluster.archive import File
from suite.cluster.attached import Attached
from suite.cluster.engine import Engine
from suite.cluster.executor import LauncherResult, judge
from suite.cluster.fanout import fan_out, results
from suite.console import printable
from suite.errors import HostError, SuiteError
from suite.launcher import GRACE_SECONDS, SPEC_FILE, host_commands, mpi_major, supervised
from suite.paths import is_launch_file, write_new
from suite.records import HostProbe, LaunchOutcome, LaunchSpec, to_json

LAUNCHES_FOLDER = "/var/lib/suite/launches"
PYTHON = "python3"
PROBE_SECONDS = 120.0
PUT_SECONDS = 30.0
FETCH_SECONDS = 60.0
RESTART_SECONDS = 30.0
# What the others may still say after the first launcher failed, before they are ended.
LAST_WORDS_SECONDS = 3.0
# torchrun ends with 0 when every host's ranks have finished, so that the others end at once, too. Seen once: the engine
# of a host told nobody that its torchrun had.
LINGER_SECONDS = 20.0
# The supervisor needs 3 s from the end of its lease to the last SIGKILL.
END_SECONDS = 6.0
# A host that needs longer than this for nothing at all stands still.
ANSWER_SECONDS = 3.0
# The supervisors' own deadline comes first; this is for when they, or their host, do not answer.
SLACK_SECONDS = 4.0
# A Docker daemon that is being restarted answers again within this; a host that is gone costs half of it.
LOST_SECONDS = 6.0
MAX_FETCH_BYTES = 512 << 20
_SLICE_SECONDS = 0.5


@dataclass
class _Running:
    """The launchers of one launch and what became of them."""

    programs: dict[str, Attached] = field(default_factory=dict)
    ended: dict[str, LauncherResult] = field(default_factory=dict)
    events: queue.SimpleQueue[tuple[str, int | None]] = field(default_factory=queue.SimpleQueue)

    def lost(self, engines: Iterable[Engine]) -> list[Engine]:
        """Those whose connection was lost, whatever became of their hosts."""
        return [e for e in engines if self.ended.get(e.name, _FINE).ended_by == "connection lost"]

    def gone(self, engines: Iterable[Engine]) -> list[Engine]:
        """Those of them whose hosts do not answer any more, as far as is known."""
        return [e for e in self.lost(engines) if not self.ended[e.name].lost]


class ClusterExecutor:
    """Runs launches in the deployed containers.

    Args:
        engines: a connected engine per host, by name, in the plan's order.
        containers: the deployed container of each host.
        hosts: the plan's hosts.
        ports: first and last rendezvous port.
        restart: kills all that runs in a host's container and starts it afresh, in-container sshd included.
    """

    def __init__(
        self,
        engines: Mapping[str, Engine],
        containers: Mapping[str, str],
        *,
        run: str,
        ports: tuple[int, int],
        restart: Callable[[Engine], None],
    ) -> None:
        self._engines = dict(engines)
        self._containers = dict(containers)
        self._run = run
        self._ports = ports
        self._restart = restart
        self._next_port = ports[0]
        self._mpi_major = 5
        # Hosts that did not answer when a failed launch was swept up: should one come back, it is swept first.
        self._unswept: set[str] = set()

    def probe(self, device: str) -> tuple[HostProbe, ...]:
        """Ask a worker process on every host, in parallel, what it can do."""

        def ask(engine: Engine) -> HostProbe:
            words = [PYTHON, "-m", "suite.worker", "probe", "--host", engine.name, "--device", device]
            done = engine.exec_run(self._containers[engine.name], words, timeout=PROBE_SECONDS)
            if not done.ok:
                raise HostError(engine.name, f"the worker's probe failed: {printable(done.complaint)}")
            return codec.decode(done.stdout, HostProbe, f"{engine.name}: probe")

        engines = list(self._engines.values())
        found = tuple(results(fan_out(engines, ask, PROBE_SECONDS + 10), "the probe").values())
        if found:
            self._mpi_major = mpi_major(found[0].mpi)
        return found

    def output_folder(self, launch: str) -> str:
        """A folder of the container's volume; it stays until ``stop``, so that ``collect`` can come again.

        A new one for every try: what an interrupted try left must not be taken for this one's.
        """
        return f"{LAUNCHES_FOLDER}/{self._run}/{launch}.{secrets.token_hex(4)}"

    def master_port(self) -> int:
        """The next port of the cluster's range that nobody listens on at the first host.

        Raises:
            HostError: the whole range is taken, so that no launch can begin.
        """
        name, engine = next(iter(self._engines.items()))
        try:
            shown = engine.exec_run(
                self._containers[name], ["cat", "/proc/net/tcp", "/proc/net/tcp6"], timeout=PUT_SECONDS
            )
            taken = ports_in_use(shown.stdout.decode(errors="replace"))
        except HostError:
            taken = set()  # the launch itself will say what is wrong with the host
        first, last = self._ports
        for _ in range(last - first + 1):
            port = self._next_port
            self._next_port = first if port >= last else port + 1
            if port not in taken:
                return port
        raise HostError(
            name,
            f"every port from {first} to {last} is taken.",
            fix="free some, or give the cluster file another range (ports).",
        )

    def launch(self, spec: LaunchSpec, folder: Path) -> LaunchOutcome:
        """See ``Executor.launch``."""
        started_at, start = time.time(), time.monotonic()
        engines = [self._engines[host.name] for host in spec.hosts]
        commands = host_commands(spec, python=PYTHON, mpi_major=self._mpi_major)
        running = _Running()
        interrupted = False
        unfit: SuiteError | None = None
        try:
            self._start(spec, engines, commands, running)
            self._wait(spec, running)
        except KeyboardInterrupt:
            interrupted = True
        except SuiteError as error:
            unfit = error
        with _deaf_to_interrupts():
            mute = self._end(running, "interrupt" if interrupted else "")
            if unfit is not None:
                self._sweep([engine for engine in engines if engine.name in running.programs])
                raise unfit
            wall = time.monotonic() - start
            self._explain_lost([engine for engine in running.lost(engines) if engine.name not in mute], running)
            self._fetch(spec, engines, running, folder)
            outcome = judge(
                spec,
                folder,
                list(running.ended.values()),
                wall_seconds=wall,
                started_at=started_at,
                commands={host: shlex.join(words) for host, words in commands.items()},
            )
            # What was not seen to end by itself may be at work still, though all ranks finished.
            if outcome.status != "ok" or any(r.ended_by for r in running.ended.values()):
                gone = running.gone(engines)
                self._sweep([engine for engine in engines if engine not in gone])
                self._unswept |= {engine.name for engine in gone}
        if interrupted:
            raise KeyboardInterrupt
        return outcome

    # One launch, step by step

    def _start(
        self, spec: LaunchSpec, engines: list[Engine], commands: dict[str, list[str]], running: _Running
    ) -> None:
        """Put every host's copy of the specification there, then start the launchers, all hosts at once.

        Raises:
            HostError: a host did not take its copy or did not start its launcher; others may have.
        """

        def begin(engine: Engine) -> None:
            if engine.name in self._unswept:
                if engine.connected and not engine.answers(ANSWER_SECONDS):
                    raise HostError(
                        engine.name,
                        "still does not answer.",
                        fix="find out what stopped or overloaded it (suspended, swapping), then `fab check`.",
                    )
                self._restart(engine)
            text = to_json(replace(spec, host=engine.name)).encode()
            container = self._containers[engine.name]
            engine.put(container, spec.output_folder, {SPEC_FILE: File(text)})

        def attach(engine: Engine) -> Attached | None:
            if engine.name not in commands:
                return None
            words = supervised(commands[engine.name], spec.deadline_seconds, python=PYTHON, lease=True)
            return engine.exec_attached(self._containers[engine.name], words)

        seconds = PUT_SECONDS + (RESTART_SECONDS if self._unswept else 0)
        results(fan_out(engines, begin, seconds), "to prepare the launch")
        self._unswept -= {engine.name for engine in engines}
        started = fan_out(engines, attach, PUT_SECONDS)
        for name, program in started.items():
            if isinstance(program, Attached):
                running.programs[name] = program
                threading.Thread(target=_watch, args=(name, program, running.events), daemon=True).start()
        results(started, "to start the launch")

    def _wait(self, spec: LaunchSpec, running: _Running) -> None:
        """Until every launcher has ended, or one failed and the others had their last words, or time is up."""
        deadline = time.monotonic() + spec.deadline_seconds + GRACE_SECONDS + SLACK_SECONDS
        while len(running.ended) < len(running.programs):
            left = deadline - time.monotonic()
            if left <= 0:
                return
            try:
                name, code = running.events.get(timeout=min(left, _SLICE_SECONDS))
            except queue.Empty:
                continue
            ended_by = {None: "connection lost", 124: "deadline"}.get(code, "")
            running.ended[name] = self._result(running, name, code, ended_by)
            deadline = min(deadline, time.monotonic() + (LINGER_SECONDS if code == 0 else LAST_WORDS_SECONDS))

    def _end(self, running: _Running, reason: str) -> set[str]:
        """End the leases of those that still run, and wait for their supervisors to finish.

        Returns the names of hosts that did not answer meanwhile; their connections count as lost.
        """
        mute = set()
        left = {name: p for name, p in running.programs.items() if name not in running.ended}
        failed = any(result.code != 0 for result in running.ended.values())
        why = reason or ("deadline" if not running.ended else "another host" if failed else "lingering")
        for program in left.values():
            program.close_input()
        until = time.monotonic() + END_SECONDS
        asked = fan_out([self._engines[name] for name in left], lambda e: e.answers(ANSWER_SECONDS), ANSWER_SECONDS + 1)
        for name, program in left.items():
            there = asked[name] is True
            program.wait_output(max(0.0, until - time.monotonic()) if there else 0.0)
            code = None
            with suppress(ConnectionError):
                if program.ended:
                    code = program.wait(0)
                elif there:
                    code = program.known_code()
            ended_by = why
            if code is None and not there:  # else every later question would be waited for, too
                ended_by = "connection lost"
                mute.add(name)
            running.ended[name] = self._result(running, name, code, ended_by)
        for program in running.programs.values():
            program.close()
        return mute

    @staticmethod
    def _result(running: _Running, name: str, code: int | None, ended_by: str) -> LauncherResult:
        output = "\n".join(line for _, line in running.programs[name].lines)
        return LauncherResult(name, code, output, ended_by, len(running.ended))

    def _explain_lost(self, lost: list[Engine], running: _Running) -> None:
        """A connection that broke on a host that still answers: its Docker daemon or its container went away."""
        for name, why in fan_out(lost, self._why_lost, LOST_SECONDS + 5).items():
            if isinstance(why, str) and why:
                running.ended[name] = replace(running.ended[name], lost=why)

    def _why_lost(self, engine: Engine) -> str:
        """What became of a container whose connection broke; "" where the host does not answer."""
        until = time.monotonic() + LOST_SECONDS
        if not engine.answers(LOST_SECONDS / 2):
            return ""
        while time.monotonic() < until:
            try:
                state = engine.inspect_state(self._containers[engine.name])
            except HostError as error:
                if isinstance(error.__cause__, docker.errors.NotFound):
                    return "its container was removed during the launch"
                time.sleep(_SLICE_SECONDS)
                continue
            if state.get("Running"):
                return "its container was restarted during the launch, or the connection to its Docker daemon broke"
            return (
                "its container ended during the launch: its Docker daemon was restarted, or the container was stopped"
            )
        return "its Docker daemon does not answer any more, though the host does"

    def _fetch(self, spec: LaunchSpec, engines: list[Engine], running: _Running, folder: Path) -> None:
        """Bring every host's records and logs here; a host that cannot be asked is noted, not raised."""

        def fetch(engine: Engine) -> dict[str, bytes]:
            return engine.fetch(
                self._containers[engine.name],
                spec.output_folder,
                limit_bytes=MAX_FETCH_BYTES,
                wanted=is_launch_file,
                timeout=FETCH_SECONDS,
            )

        for result in running.ended.values():
            (folder / f"launcher-{result.host}.log").write_text(result.output)
        lost = running.lost(engines)
        for name, files in fan_out([e for e in engines if e not in lost], fetch, FETCH_SECONDS + 10).items():
            if isinstance(files, Exception):
                running.ended[name] = _without_records(name, files)
                continue
            for file, data in files.items():
                if not (folder / file).exists():  # no host may replace what another one said
                    write_new(folder / file, data)

    def _sweep(self, engines: list[Engine]) -> None:
        for name, answer in fan_out(engines, self._restart, RESTART_SECONDS).items():
            if isinstance(answer, Exception):
                console.say(f"       {name}: the container could not be restarted: {answer}")

    def close(self) -> None:
        """The engines belong to the caller; nothing is held here."""


_FINE = LauncherResult("", 0)


def _without_records(name: str, error: Exception) -> LauncherResult:
    message = error.message if isinstance(error, SuiteError) else str(error)
    answered = isinstance(error.__cause__, docker.errors.APIError)
    return LauncherResult(name, None, message, "no records" if answered else "connection lost", 0)


def _watch(name: str, program: Attached, events: queue.SimpleQueue[tuple[str, int | None]]) -> None:
    program.wait_output(None)
    try:
        events.put((name, program.wait(0)))
    except ConnectionError:
        events.put((name, None))


def ports_in_use(table: str) -> set[int]:
    """Local ports in ``/proc/net/tcp`` and ``tcp6``, whatever state their connection is in."""
    found = set()
    for line in table.splitlines():
        fields = line.split()
        port = fields[1].rpartition(":")[2] if len(fields) > 3 and fields[0].endswith(":") else ""
        if re.fullmatch(r"[0-9A-Fa-f]{4}", port):
            found.add(int(port, 16))
    return found


@contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """Clean up undisturbed: it takes some seconds at most, and a second Ctrl-C would leave ranks behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def note(_number: int, _frame: object) -> None:
        console.say("Ending the ranks; a few seconds ...")

    earlier = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
