"""The real command line on the simulated hosts: a copy of the project around a lab, `fab` as a process, what it left.

Times are for an idle machine with two cores; SUITE_TEST_PATIENCE=4 multiplies every limit, for a busy one.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from suite.cluster import lab
from suite.cluster.lab_engine import LabEngine
from suite.cluster.lab_parts import LabFiles
from suite.errors import HostError
from suite.paths import RunPaths, project_root
from suite.plan import block_order

PATIENCE = float(os.environ.get("SUITE_TEST_PATIENCE", "1"))
IMAGE = "ddp-backend-suite:lab-test"
CLUSTER = "run"  # hosts/run.toml: the lab's hosts, and the image above
NAMES = ("h1", "h2", "h3", "h4")
# A launch of this machine's four hosts takes 5 to 8 s when nothing else runs.
DEADLINE = 30.0 * PATIENCE
# What every fault may take beyond the launch's deadline.
SLACK = 15.0 * PATIENCE
# Everything of a launch that could be left on a host.
LEFTOVERS = r"suite\.worker (run|supervise|probe)|torch\.distributed|mpirun|prted|orted"
VOLUME = f"/var/lib/docker/volumes/ddp-suite-{CLUSTER}/_data"


@dataclass(frozen=True)
class Done:
    """An ended `fab`: exit code, its two streams, seconds."""

    code: int
    out: str
    err: str
    seconds: float

    def __str__(self) -> str:
        return f"exit {self.code} after {self.seconds:.1f} s\n--- stdout\n{self.out}\n--- stderr\n{self.err}"


class Fab:
    """A `fab` that runs: its lines as they come, with their time; ended by ``end`` or, at the latest, ``stop``.

    ``program`` may be another controller of the same suite, which gets its orders with ``tell``.
    """

    def __init__(
        self, words: Sequence[str], *, folder: Path, environment: Mapping[str, str], program: Sequence[str] = ()
    ) -> None:
        self.started = time.time()
        self.process = subprocess.Popen(
            [*(program or [str(Path(sys.executable).with_name("fab"))]), *words],
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.PIPE if program else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self.said: list[tuple[float, str]] = []  # stderr, with the wall clock's time of each line
        self.printed: list[str] = []
        self._changed = threading.Condition()
        self._readers = [
            threading.Thread(target=self._read_errors, daemon=True),
            threading.Thread(target=self._read_output, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._changed:
                self.said.append((time.time(), line.rstrip("\n")))
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    def _read_output(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self.printed.append(line.rstrip("\n"))
                self._changed.notify_all()

    @property
    def err(self) -> str:
        return "\n".join(line for _, line in self.said)

    def wait_for(self, pattern: str, timeout: float, *, after: int = 0) -> float:
        """The wall clock's time of the first line of stderr, from number ``after`` on, that matches.

        AssertionError when none comes.
        """
        deadline = time.monotonic() + timeout
        with self._changed:
            while True:
                for at, line in self.said[after:]:
                    if re.search(pattern, line):
                        return at
                left = deadline - time.monotonic()
                ended = self.process.poll() is not None and not self._readers[0].is_alive()
                assert left > 0 and not ended, f"no line matched {pattern!r}\n{self.err}"
                self._changed.wait(min(left, 1.0))

    def tell(self, order: str) -> int:
        """Send a line to its input; the number of lines that it had printed and said until then."""
        assert self.process.stdin is not None
        self.process.stdin.write(order + "\n")
        self.process.stdin.flush()
        return len(self.said)

    def wait_printed(self, count: int, timeout: float) -> str:
        """Line number ``count`` (from 1) of its output; AssertionError when it does not come."""
        deadline = time.monotonic() + timeout
        with self._changed:
            while len(self.printed) < count:
                left = deadline - time.monotonic()
                assert left > 0, f"no answer\n{self.err}"
                assert self.process.poll() is None, f"it ended\n{self.err}"
                self._changed.wait(min(left, 1.0))
            return self.printed[count - 1]

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self, timeout: float) -> Done:
        """Wait for its own end; AssertionError when it has not ended in time."""
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.stop()
            raise AssertionError(f"fab had not ended after {timeout:g} s\n{self.err}") from None
        for reader in self._readers:
            reader.join(10)
        return Done(self.process.returncode, "\n".join(self.printed), self.err, time.time() - self.started)

    def stop(self) -> None:
        """Kill it, if it still runs."""
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(10)


@dataclass
class Project:
    """A copy of the project whose hosts/ describes the lab of the same folder."""

    root: Path
    engine: LabEngine = field(init=False)

    def __post_init__(self) -> None:
        self.engine = LabEngine(LabFiles(self.root))

    def copy_code(self) -> None:
        """The package and the tasks, as they are in the checkout now."""
        shutil.rmtree(self.root / "suite", ignore_errors=True)
        shutil.copytree(project_root() / "suite", self.root / "suite", ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("tasks.py", "fabfile.py"):
            shutil.copy(project_root() / name, self.root / name)

    def write_cluster(self, name: str = CLUSTER, *, top: str = "", text: str | None = None, image: str = IMAGE) -> Path:
        """hosts/NAME.toml: the lab's hosts (or ``text``) with an image and other lines of [cluster]."""
        body = text if text is not None else (self.root / "hosts" / "lab.toml").read_text(encoding="utf-8")
        path = self.root / "hosts" / f"{name}.toml"
        lines = [line for line in body.splitlines() if not line.startswith("#")]
        path.write_text(f'[cluster]\nimage = "{image}"\n{top}\n' + "\n".join(lines) + "\n", encoding="utf-8")
        return path

    def start(self, *words: str, results: Path, cluster: str = CLUSTER, **variables: str) -> Fab:
        """Start `fab WORDS` with results below ``results``."""
        return Fab(words, folder=self.root, environment={**self._environment(results, cluster), **variables})

    def start_script(self, script: Path, *, results: Path) -> Fab:
        """Start a Python program with the copy's own package and its input held open."""
        environment = self._environment(results, CLUSTER)
        return Fab([str(script)], folder=self.root, environment=environment, program=[sys.executable])

    def _environment(self, results: Path, cluster: str) -> dict[str, str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SUITE_")}
        return environment | {"PYTHONPATH": str(self.root), "SUITE_RESULTS": str(results), "SUITE_CLUSTER": cluster}

    def fab(self, *words: str, results: Path, timeout: float = 300, cluster: str = CLUSTER, **variables: str) -> Done:
        """Run `fab WORDS` to its end."""
        fab = self.start(*words, results=results, cluster=cluster, **variables)
        try:
            return fab.end(timeout * PATIENCE)
        finally:
            fab.stop()

    # What happens on the hosts

    def on_host(self, host: str, line: str, timeout: float = 60) -> str:
        """What a line of shell printed on a host, as root, whatever has become of its network."""
        return self.engine.command(host, "bash", "-c", line, timeout=timeout * PATIENCE)

    def leftovers(self, what: str = LEFTOVERS) -> dict[str, list[str]]:
        """Ranks and launchers that run on hosts now, those in containers among them, by host that is up."""
        found = {}
        for host, state in self.engine.hosts().items():
            done = self.engine.run(host, "pgrep", "-af", what) if state == "running" else None
            if done is not None and done.text:
                found[host] = done.text.splitlines()
        return found

    def await_clean(self, timeout: float, what: str = LEFTOVERS) -> float:
        """Wait until nothing of that runs; the wall clock's time then. AssertionError with what still does."""
        deadline = time.monotonic() + timeout
        while left := self.leftovers(what):
            assert time.monotonic() < deadline, f"still running: {left}"
            time.sleep(0.5)
        return time.time()

    def await_injected(self, host: str, timeout: float) -> float:
        """Wait until a rank of ``host`` has met its injected fault: the launch is in its measured steps then.

        Returns the wall clock's time of that. Only launches since ``forget_launches`` count.
        """
        line = f"grep -rls 'injected fault' {VOLUME}/launches | xargs -r stat --format %.Y"
        deadline = time.monotonic() + timeout
        while not (found := self.engine.run(host, "bash", "-c", line).text):
            assert time.monotonic() < deadline, f"no injected fault on {host}"
            time.sleep(0.2)
        return float(found.split()[0])

    def forget_launches(self) -> None:
        """Remove what earlier launches left in the hosts' volumes."""
        for host in NAMES:
            self.on_host(host, f"rm -rf {VOLUME}/launches/*")

    def await_ranks(self, host: str, timeout: float) -> None:
        """Wait until a rank runs on a host."""
        deadline = time.monotonic() + timeout
        while not self.engine.run(host, "pgrep", "-f", r"suite\.worker run").ok:
            assert time.monotonic() < deadline, f"no rank on {host}"
            time.sleep(0.2)

    def mend(self) -> None:
        """Undo every fault; deploy again what ended with one."""
        lab.heal(root=self.root)
        lab.link("off", root=self.root)
        if not all(f"ddp-suite-{CLUSTER}" in self.running(host) for host in NAMES):
            # A controller that a failed test killed while it restarted a container may have cost Docker its trace.
            for host in NAMES:
                if f"ddp-suite-{CLUSTER}" not in self.running(host):
                    self.on_host(host, "pkill -KILL -f '[s]shd.*suite/ssh' || true")
            done = self.fab("deploy", results=self.root / "results")
            assert done.code == 0, done

    def running(self, host: str) -> list[str]:
        """The names of a host's running containers."""
        with contextlib.suppress(HostError):
            return self.on_host(host, "docker ps --format '{{.Names}}'").split()
        return []


@dataclass(frozen=True)
class FailedLaunch:
    """A launch that failed, as the progress tells it."""

    stage: str
    host: str
    rank: int | None
    cause: str
    fix: str

    @property
    def message(self) -> str:
        place = self.host if self.rank is None else f"{self.host}, rank {self.rank}"
        return f"{place}: {self.cause}. Fix: {self.fix}"


_FAILED = re.compile(
    r"^ +FAILED at (.+?) on ([\w-]+|the controller)(?:, rank (\d+))?: (.+)\n(?: +Fix: (.+)\.$)?", re.MULTILINE
)


def failed_launches(text: str) -> list[FailedLaunch]:
    """Every failed launch in the progress of a run, in order."""
    return [
        FailedLaunch(stage, host, int(rank) if rank else None, cause, fix or "")
        for stage, host, rank, cause, fix in _FAILED.findall(text)
    ]


def error_of(text: str) -> tuple[str, str]:
    """(message, fix) of the error that ended a `fab`."""
    found = re.search(r"^Error: (.+?)(?:\n  Fix: (.+))?\Z", text.strip(), re.MULTILINE | re.DOTALL)
    assert found, text
    return found.group(1), found.group(2) or ""


def fork(begun: RunPaths, results: Path, **changes: Any) -> RunPaths:
    """A copy of a begun run below ``results``, with fields of its plan changed."""
    run = RunPaths(results / "runs" / begun.run)
    shutil.copytree(begun.root, run.root)
    plan = json.loads(run.plan.read_text(encoding="utf-8"))
    run.plan.write_text(json.dumps({**plan, **changes}), encoding="utf-8")
    return run


def seed_with_first(arm: str, world: int, arms: Sequence[str] = ("gloo", "mpi")) -> int:
    """A seed with which the first block begins with this arm."""
    return next(seed for seed in range(100) if block_order(seed, f"linear/{world}", 0, arms)[0] == arm)


def build_image() -> None:
    """The cpu image of the checkout under the tests' own tag. Its layers but the last are mostly there already."""
    root = project_root()
    words = ["docker", "build", "--quiet", "--file", str(root / "docker/Dockerfile.cpu"), "--tag", IMAGE, str(root)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600 * PATIENCE, check=False)
    assert done.returncode == 0, done.stderr


def only_run(results: Path) -> RunPaths:
    """The one run below ``results``."""
    (folder,) = sorted((results / "runs").iterdir())
    return RunPaths(folder)


def manifest(run: RunPaths) -> dict[str, Any]:
    """The ledger as JSON."""
    loaded: dict[str, Any] = json.loads(run.manifest.read_text(encoding="utf-8"))
    return loaded


def rows(run: RunPaths) -> dict[tuple[str, str], dict[str, Any]]:
    """The rows of the summary, by workload and arm."""
    summary = json.loads(run.summary.read_text(encoding="utf-8"))
    return {(row["workload"], row["arm"]): row for row in summary["rows"]}


def files_of(run: RunPaths) -> dict[str, bytes]:
    """Every raw file of a run's finished launches, by path within the run."""
    return {str(p.relative_to(run.root)): p.read_bytes() for p in sorted(run.launches.rglob("*")) if p.is_file()}


@contextlib.contextmanager
def ending(fab: Fab) -> Iterator[Fab]:
    """Kill ``fab`` at the end, whatever happens."""
    try:
        yield fab
    finally:
        fab.stop()
