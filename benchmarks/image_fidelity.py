"""Does the suite time what bare programs time? All of them in one container of the worker image.

    python -m benchmarks.image_fidelity [--quick] [--json PATH] [--image IMAGE]

Two ranks in one container, over gloo and over mpi.

    steps        the suite's step loop ÷ a hand-written loop of the same workload, in one process group, in turn, both
                 on the same two models; and the suite's model ÷ one built by hand, under both loops
                 (``benchmarks/fidelity.py``, which also does the first for an all-reduce of torch's); several launches
                 of it, since they differ by more than the rounds within one; either model is built first in turn
    collectives  the suite's all-reduce through mpi4py ÷ a bare C program's on the same Open MPI
                 (``benchmarks/all_reduce.c``), by launches of each in turn; PyTorch's own mpi backend beside it, which
                 adds a queue and a thread of its own and is not held to the bounds

The C program is compiled in an image made from the worker image for this and removed afterwards; both run in it.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.common import Limit, Options, columns, document, finish, median, parse_options
from suite import codec, console
from suite.analysis.statistics import median_interval
from suite.errors import LaunchError
from suite.launcher import SPEC_FILE, mpirun_words, torchrun_words, worker_words
from suite.limits import COLLECTIVES
from suite.paths import project_root, rank_file
from suite.plan import PROTOCOLS, Plan, Slot, launch_spec
from suite.records import Arm, CollectiveSamples, HostSlots, LaunchSpec, RankRecord, Sweep, to_json

RANKS = 2
STEP, COLLECTIVE = 0.02, 0.03  # how far from 1 a ratio may be
LOOPS = "the suite's time ÷ a bare torch loop's"
SIZES = (4 << 10, 64 << 10, 1 << 20, 16 << 20)
WARMUP, REPEATS = 3, 50
BUILD_SECONDS, FIDELITY_SECONDS, LAUNCH_SECONDS = 900.0, 1500.0, 300.0
PROGRAM = "/usr/local/bin/bench-all-reduce"
DOCKERFILE = f"""\
ARG BASE
FROM ${{BASE}}
USER root
RUN apt-get update -qq \\
    && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends gcc libc6-dev libopenmpi-dev
COPY all_reduce.c /tmp/
RUN mpicc -std=gnu11 -O2 -Wall -Wextra -Werror -o {PROGRAM} /tmp/all_reduce.c
COPY fidelity.py /opt/suite/benchmarks/
USER 1000:1000
"""
HOST = HostSlots("local", "127.0.0.1", RANKS, "lo")


@dataclass(frozen=True)
class StepRatio:
    """The suite's time ÷ that of what was written by hand. Each launch gives the median of its rounds' own ratios;
    ``ratio`` is the median of these, ``interval`` its exact one (None with too few launches); seconds are medians over
    launches."""

    backend: str
    what: str
    suite_seconds: float
    bare_seconds: float
    ratio: float
    interval: tuple[float, float] | None
    launches: tuple[float, ...] = ()


@dataclass(frozen=True)
class CollectiveRatio:
    """All-reduce of ``bytes``: seconds, medians over launches; ratios are medians of the launches' pairs.

    The interval is None with fewer than six pairs.
    """

    bytes: int
    c_seconds: float
    mpi4py_seconds: float
    torch_seconds: float
    mpi4py_ratio: float
    torch_ratio: float
    mpi4py_interval: tuple[float, float] | None = None


class Box:
    """A running container with the worker image, the C program and the benchmark."""

    def __init__(self, container: str) -> None:
        self._container = container

    def run(self, words: Sequence[str], timeout: float) -> str:
        """Run a program in it; its standard output.

        Raises:
            LaunchError: it failed or took too long.
        """
        command = ["docker", "exec", "-w", "/opt/suite", self._container, *words]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
        except subprocess.TimeoutExpired:
            raise LaunchError(f"{words[0]} had not ended after {timeout:g} s.") from None
        # fidelity.py ends with 1 for a ratio that is off: that is an outcome, not a failure.
        if done.returncode not in (0, 1) or (done.returncode and "fidelity" not in " ".join(words)):
            raise LaunchError(f"{' '.join(words[:6])} … failed: {(done.stderr or done.stdout).strip()[-1500:]}")
        return done.stdout

    def write(self, path: str, text: str) -> None:
        """Write a file, its folder made if need be."""
        script = 'mkdir -p "$(dirname "$1")" && printf %s "$2" > "$1"'
        self.run(["sh", "-c", script, "sh", path, text], 30)

    def read(self, path: str) -> bytes:
        return self.run(["cat", path], 30).encode()


@contextlib.contextmanager
def box(image: str) -> Iterator[Box]:
    """The derived image, built, and a container of it; both removed afterwards."""
    name = f"ddp-suite-bench-{secrets.token_hex(4)}"
    source = project_root() / "benchmarks"
    with tempfile.TemporaryDirectory(prefix="bench-context-") as folder:
        for file in ("all_reduce.c", "fidelity.py"):
            shutil.copy(source / file, folder)
        (Path(folder) / "Dockerfile").write_text(DOCKERFILE)
        console.say(f"compiling the C program in an image made from {image}")
        _docker(["build", "-q", "-t", name, "--build-arg", f"BASE={image}", folder], BUILD_SECONDS)
    try:
        _docker(
            ["run", "-d", "--rm", "--init", "--name", name, "--shm-size", "1g", "--entrypoint", "sleep", name, "7200"],
            60,
        )
        try:
            yield Box(name)
        finally:
            subprocess.run(["docker", "rm", "-f", name], capture_output=True, timeout=60, check=False)
    finally:
        subprocess.run(["docker", "rmi", "-f", name], capture_output=True, timeout=120, check=False)


def _docker(words: Sequence[str], timeout: float) -> None:
    environment = {**os.environ, "DOCKER_BUILDKIT": "1"}
    try:
        done = subprocess.run(
            ["docker", *words], capture_output=True, text=True, timeout=timeout, check=False, env=environment
        )
    except subprocess.TimeoutExpired:
        raise LaunchError(f"docker {words[0]} had not ended after {timeout:g} s.") from None
    if done.returncode:
        raise LaunchError(f"docker {words[0]} failed: {done.stderr.strip()[-1500:]}")


def collectives_spec(number: int) -> LaunchSpec:
    """A launch of the suite that measures the all-reduce over mpi, through torch and through mpi4py."""
    plan = Plan(
        run="benchmark", name="quick", cluster="local", seed=1, arms=(Arm("mpi", "mpi"),), asked=(),
        workloads=(COLLECTIVES,), worlds=(RANKS,), hosts=(HOST,), device="cpu", protocol=PROTOCOLS["quick"],
        sweep=Sweep(("all_reduce",), SIZES, warmup=WARMUP, repeats=REPEATS, min_repeats=REPEATS),
        distinct_hosts=False, launch_deadline_seconds=LAUNCH_SECONDS,
    )  # fmt: skip
    folder = f"/tmp/bench/{number}"  # noqa: S108 - inside the container
    slot = Slot(COLLECTIVES, COLLECTIVES, RANKS, number, "mpi")
    return replace(
        launch_spec(plan, slot, number, None, master_port=29600 + number, output_folder=folder), host=HOST.name
    )


def run_suite(there: Box, number: int) -> dict[tuple[str, int], float]:
    """One launch of the suite's; (implementation, bytes) -> seconds."""
    spec = collectives_spec(number)
    there.write(f"{spec.output_folder}/{SPEC_FILE}", to_json(spec))
    words = mpirun_words(spec, python="python3", mpi_major=5, as_root=False, agent=None)
    there.run(words, LAUNCH_SECONDS + 30)
    records = []
    for rank in range(RANKS):
        name = rank_file(rank)
        records.append(codec.decode(there.read(f"{spec.output_folder}/{name}"), RankRecord, name))
    found: dict[tuple[str, int], list[CollectiveSamples]] = {}
    for record in records:
        for sample in record.collectives:
            if sample.purpose == "sweep" and sample.ns:
                found.setdefault((sample.implementation, sample.size_bytes), []).append(sample)
    return {
        key: (median([float(max(times)) for times in zip(*(s.ns for s in samples), strict=True)]) or 0.0) / 1e9
        for key, samples in found.items()
    }


def run_c(there: Box, number: int) -> dict[int, float]:
    """One launch of the C program by the same mpirun command; bytes -> seconds."""
    spec = collectives_spec(number)
    words = mpirun_words(spec, python="python3", mpi_major=5, as_root=False, agent=None)
    own = ["python3", "-m", *worker_words(spec)]
    assert words[-len(own) :] == own
    said = there.run([*words[: -len(own)], PROGRAM, str(WARMUP), str(REPEATS), *map(str, SIZES)], LAUNCH_SECONDS + 30)
    pairs = [line.split() for line in said.splitlines()]
    return {int(pair[0]): float(pair[1]) for pair in pairs if len(pair) == 2}


def collective_ratios(there: Box, launches: int) -> list[CollectiveRatio]:
    """Launches of both sides in turn, and what they say together."""
    c: list[dict[int, float]] = []
    suites: list[dict[tuple[str, int], float]] = []
    for number in range(launches):
        for side in ("c", "suite") if number % 2 else ("suite", "c"):
            if side == "c":
                c.append(run_c(there, number + 1))
            else:
                suites.append(run_suite(there, number + 1))
        console.say(f"collectives: {number + 1} of {launches} pairs of launches")
    return [_ratio(size, c, suites) for size in SIZES]


def _ratio(size: int, c: Sequence[dict[int, float]], suites: Sequence[dict[tuple[str, int], float]]) -> CollectiveRatio:
    pairs = list(zip(suites, c, strict=True))
    ratios = [suite["mpi4py", size] / bare[size] for suite, bare in pairs]
    known = median_interval(ratios)
    return CollectiveRatio(
        bytes=size,
        c_seconds=median([bare[size] for bare in c]) or 0.0,
        mpi4py_seconds=median([suite["mpi4py", size] for suite in suites]) or 0.0,
        torch_seconds=median([suite["torch", size] for suite in suites]) or 0.0,
        mpi4py_ratio=median(ratios) or 0.0,
        torch_ratio=median([suite["torch", size] / bare[size] for suite, bare in pairs]) or 0.0,
        mpi4py_interval=known.as_tuple() if known else None,
    )


def combined(backend: str, launches: Sequence[Sequence[dict[str, Any]]]) -> list[StepRatio]:
    """The rows of several launches of ``benchmarks/fidelity.py``, which all have the same comparisons."""
    found = []
    for rows in zip(*launches, strict=True):
        ratios = [row["ratio"] for row in rows]
        known = median_interval(ratios)
        found.append(
            StepRatio(
                backend=backend,
                what=rows[0]["what"],
                suite_seconds=median([row["suite_seconds"] for row in rows]) or 0.0,
                bare_seconds=median([row["bare_seconds"] for row in rows]) or 0.0,
                ratio=median(ratios) or 0.0,
                interval=known.as_tuple() if known else None,
                launches=tuple(ratios),
            )
        )
    return found


def fidelity(there: Box, backend: str, seconds: float, *, bare_first: bool) -> list[dict[str, Any]]:
    """One launch of ``benchmarks/fidelity.py`` in the container, started as the suite starts its ranks."""
    # mpirun ends what runs longer than its own deadline.
    spec = replace(collectives_spec(1), deadline_seconds=FIDELITY_SECONDS)
    result = f"/tmp/bench/{backend}.json"  # noqa: S108 - inside the container
    arguments = ["benchmarks/fidelity.py", "--backend", backend, "--seconds", f"{seconds:g}", "--json", result]
    arguments += ["--bare-first"] if bare_first else []
    if backend == "mpi":
        words = mpirun_words(spec, python="python3", mpi_major=5, as_root=False, agent=None)
        own = ["-m", *worker_words(spec)]
    else:
        words = torchrun_words(spec, 0, python="python3")
        own = ["-m", *worker_words(spec)]
    there.run(["mkdir", "-p", "/tmp/bench"], 30)  # noqa: S108
    there.run([*words[: -len(own)], *arguments], FIDELITY_SECONDS)
    rows: list[dict[str, Any]] = json.loads(there.read(result))["rows"]
    return rows


def limits(steps: Sequence[StepRatio], collectives: Sequence[CollectiveRatio]) -> list[Limit]:
    """Steps within 2%, all-reduces within 3%."""
    found: list[Limit] = []
    for row in steps:
        most = COLLECTIVE if row.what.startswith("all_reduce") else STEP
        sides = "steps on the suite's ÷ on one built by hand" if row.what.endswith("model") else LOOPS
        found.append(Limit(f"{row.backend}, {row.what}: {sides}", row.ratio, 1 - most, 1 + most))
    return found + [
        Limit(
            f"mpi, all_reduce, {row.bytes} bytes: the suite's time (mpi4py) ÷ a bare C program's",
            row.mpi4py_ratio,
            1 - COLLECTIVE,
            1 + COLLECTIVE,
        )
        for row in collectives
    ]


def table(outcomes: dict[str, Any]) -> str:
    """Steps and torch's all-reduce, then the C program."""
    steps = [
        [
            row["backend"],
            row["what"],
            f"{row['suite_seconds'] * 1e3:.3f} ms",
            f"{row['bare_seconds'] * 1e3:.3f} ms",
            f"{row['ratio']:.3f}",
            "[{:.3f}, {:.3f}]".format(*row["interval"]) if row["interval"] else "",
        ]
        for row in outcomes["steps"]
    ]
    sizes = [
        [
            f"{row['bytes']}",
            f"{row['c_seconds'] * 1e6:.1f} µs",
            f"{row['mpi4py_seconds'] * 1e6:.1f} µs",
            f"{row['torch_seconds'] * 1e6:.1f} µs",
            f"{row['mpi4py_ratio']:.3f}",
            "[{:.3f}, {:.3f}]".format(*row["mpi4py_interval"]) if row["mpi4py_interval"] else "",
            f"{row['torch_ratio']:.3f}",
        ]
        for row in outcomes["collectives"]
    ]
    header = ["bytes", "bare C", "suite, mpi4py", "suite, torch", "mpi4py ÷ C", "95% interval", "torch ÷ C"]
    return (
        f"{outcomes['step_launches']} launches of each backend\n"
        + columns(["backend", "what", "suite", "by hand", "ratio", "95% interval"], steps, left=2)
        + f"\n\nall_reduce over Open MPI, {outcomes['launches']} launches of each in turn\n"
        + columns(header, sizes, left=0)
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and judge; exit 1 when a limit is missed."""
    options: Options = parse_options(__doc__, arguments)
    before = os.getloadavg()
    launches, tries, seconds = (4, 2, 5.0) if options.quick else (15, 6, 30.0)
    with box(options.image) as there:
        # The backends take turns too.
        found: dict[str, list[list[dict[str, Any]]]] = {"gloo": [], "mpi": []}
        for number in range(tries):
            for backend, of_backend in found.items():
                of_backend.append(fidelity(there, backend, seconds, bare_first=number % 2 == 1))
        steps = [one for backend, of_backend in found.items() for one in combined(backend, of_backend)]
        collectives = collective_ratios(there, launches)
    outcomes = {
        "launches": launches,
        "step_launches": tries,
        "steps": [asdict(row) for row in steps],
        "collectives": [asdict(row) for row in collectives],
    }
    result = document("image_fidelity", options, before, limits(steps, collectives), outcomes)
    return finish(result, table(outcomes), options)


if __name__ == "__main__":
    raise SystemExit(main())
