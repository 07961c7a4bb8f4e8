"""The faults that are tested, and the table of them in docs/operations.md, from what the tests measured.

SUITE_RECORD_FAULTS=1 pytest tests/lab/test_faults.py -m "slow or not slow"     measure: writes fault_seconds.json
python -m tests.lab.fault_table --write                                         bring docs/operations.md up to date
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from suite.paths import project_root, replace

MEASURED = Path(__file__).with_name("fault_seconds.json")
OPERATIONS = project_root() / "docs" / "operations.md"
BEGIN, END = "<!-- faults: begin -->", "<!-- faults: end -->"
LOAD = Path(__file__).with_name("load_result.json")
LOAD_BEGIN, LOAD_END = "<!-- load: begin -->", "<!-- load: end -->"
RECORD = "SUITE_RECORD_FAULTS"


@dataclass(frozen=True)
class Fault:
    """A fault: in words, where it strikes, what is left and how to go on; how a user can try it on the lab ("" where
    only by hand); and whether its test is a slow one."""

    title: str
    when: str
    after: str
    how: str = ""
    slow: bool = True


def _lab(kind: str, more: str = "") -> str:
    return f"`fab lab.fault {kind} --host h2{more}`"


_LAUNCH = "the launch is failed, the rest of the run is done"
_RESUME = "the launch is failed; heal the host, `fab deploy`, then `--resume`"
_NOTHING = "nothing was changed anywhere; remove the cause and repeat"
_REPEAT = "no container is left; repeat"
_AGAIN = "finished launches are kept; `--resume` does the rest"

FAULTS: dict[str, Fault] = {
    "kill gloo": Fault("a rank is killed (SIGKILL), gloo", "launch", _LAUNCH, "`--inject kill:gloo`", slow=False),
    "kill mpi": Fault("a rank is killed (SIGKILL), mpi", "launch", _LAUNCH, "`--inject kill:mpi`", slow=False),
    "stop gloo": Fault("a rank is stopped (SIGSTOP), gloo", "launch", _LAUNCH, "`--inject stop:gloo`"),
    "stop mpi": Fault("a rank is stopped (SIGSTOP), mpi", "launch", _LAUNCH, "`--inject stop:mpi`"),
    "raise gloo": Fault("a rank raises, gloo", "launch", _LAUNCH, "`--inject raise:gloo`"),
    "raise mpi": Fault("a rank raises, mpi", "launch", _LAUNCH, "`--inject raise:mpi`"),
    "network-cut gloo": Fault("the network of a host is cut, gloo", "launch", _RESUME, _lab("network-cut")),
    "network-cut mpi": Fault("the network of a host is cut, mpi", "launch", _RESUME, _lab("network-cut")),
    "host dies": Fault("a host dies", "launch", _RESUME, _lab("kill")),
    "pause": Fault("a host stands still", "launch", _RESUME, _lab("pause")),
    "slow-link": Fault("a host's link carries 1 Mbit/s", "launch", _LAUNCH, _lab("slow-link")),
    "docker-restart": Fault("a host's Docker daemon is restarted", "launch", _LAUNCH, _lab("docker-restart")),
    "container-sshd-gone": Fault(
        "the sshd in a host's container is gone", "launch", _LAUNCH, _lab("container-sshd-gone")
    ),
    "disk-full records": Fault("a host's disk is full when records are written", "launch", _RESUME, _lab("disk-full")),
    "port taken": Fault(
        "the rendezvous port is taken", "launch", "the next free port is used", _lab("port-taken", " --port 29500"),
        slow=False,
    ),
    "ports taken": Fault("every rendezvous port is taken", "run", _AGAIN, "`ports` in the cluster file"),
    "SIGINT": Fault("Ctrl-C at the controller", "launch", _AGAIN, "Ctrl-C", slow=False),
    "SIGTERM": Fault("SIGTERM to the controller", "launch", _AGAIN, "`pkill -TERM -x fab`"),
    "SIGKILL": Fault("SIGKILL to the controller", "launch", _AGAIN, "`pkill -KILL -x fab`"),
    "down before deploy": Fault("a host is down", "deploy", _NOTHING, _lab("kill"), slow=False),
    "dies during deploy": Fault("a host dies while the image comes", "deploy", _REPEAT, _lab("kill")),
    "disk-full deploy": Fault("a host's disk fills while the image is loaded", "deploy", _REPEAT, _lab("disk-full")),
    "SIGKILL deploy": Fault("SIGKILL to the controller", "deploy", _REPEAT, "`pkill -KILL -x fab`"),
    "port 2222 taken": Fault(
        "the port of the sshd in the container is taken", "deploy", _NOTHING, _lab("port-taken"), slow=False
    ),
    "key refused": Fault("a host refuses the key", "run", _NOTHING, "`key` in the cluster file", slow=False),
    "host key changed": Fault(
        "a host's key is not the known one", "run", _NOTHING, "`known_hosts` in the cluster file", slow=False
    ),
    "wrong image": Fault("one host's container has another image", "run", "repeat `fab deploy`"),
    "clock-skew": Fault(
        "a host's clock is 10 minutes off (a stand-in for `date`)", "run", _NOTHING, _lab("clock-skew"), slow=False
    ),
    "stale ranks": Fault("ranks of an earlier run still run", "run", _NOTHING, slow=False),
    "stale containers": Fault("one host's container is of another deployment", "run", "repeat `fab deploy`"),
    "listed twice": Fault(
        "a host is listed twice under two names", "run", _NOTHING, "two `[[hosts]]` with one machine", slow=False
    ),
    "same name": Fault("two hosts call themselves the same", "run", _NOTHING, "`hostname h3` on h4", slow=False),
}  # fmt: skip


def marked(key: str) -> pytest.MarkDecorator:
    """Marks the test of a fault as slow or not, as the table says; so the table is true."""
    return pytest.mark.slow if FAULTS[key].slow else pytest.mark.containers


@dataclass(frozen=True)
class Seen:
    """What a test saw: seconds from the fault to its notice, and until nothing of it ran anywhere; -9: was killed."""

    noticed: float
    clean: float
    code: int
    message: str


def record(key: str, seen: Seen) -> None:
    """Keep what a test saw, where that was asked for."""
    assert key in FAULTS, f"{key!r} is not in the table of faults"
    if os.environ.get(RECORD) == "1":
        known = measured()
        # The test's own folder is no path of anybody else's machine.
        known[key] = dataclasses.replace(seen, message=re.sub(r"/tmp/\S+/(\w+)", r"…/\1", seen.message))
        text = json.dumps({name: asdict(known[name]) for name in FAULTS if name in known}, indent=1)
        replace(MEASURED, text + "\n")


def measured() -> dict[str, Seen]:
    """What the tests saw when it was last recorded."""
    if not MEASURED.exists():
        return {}
    return {key: Seen(**seen) for key, seen in json.loads(MEASURED.read_text(encoding="utf-8")).items()}


def table() -> str:
    """The table of docs/operations.md."""
    seen = measured()
    lines = [
        "| fault | during | what the suite says | exit | noticed after | clean after | then | try it | tested |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for key, fault in FAULTS.items():
        found = seen.get(key)
        cells = ["not measured", "–", "–", "–"]
        if found is not None:
            code = "–" if found.code < 0 else str(found.code)
            cells = [cell(found.message), code, f"{found.noticed:.1f} s", f"{found.clean:.1f} s"]
        tested = "slow suite" if fault.slow else "CI"
        lines.append(
            f"| {fault.title} | {fault.when} | {' | '.join(cells)} | {fault.after} | {fault.how or '–'} | {tested} |"
        )
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Load:
    """Runs one after the other in one controller. Pairs are what it held after the second run and after the last;
    ``files`` of finished launches were all there and as they were recorded, at the end."""

    runs: int
    seed: int
    seconds: float
    faults: dict[str, int]
    launches: int
    files: int
    descriptors: tuple[int, int]
    threads: tuple[int, int]
    resident_kib: tuple[int, int]


def record_load(done: Load) -> None:
    """Keep what the load test saw, where that was asked for."""
    if os.environ.get(RECORD) == "1":
        replace(LOAD, json.dumps(asdict(done), indent=1) + "\n")


def load_text() -> str:
    """The paragraph of docs/operations.md about the load test."""
    if not LOAD.exists():
        return "Not measured yet.\n"
    seen = Load(**json.loads(LOAD.read_text(encoding="utf-8")))
    faults = ", ".join(f"{count} x {kind}" for kind, count in seen.faults.items())
    held = zip(seen.descriptors, seen.threads, (kib / 1024 for kib in seen.resident_kib), strict=True)
    first, last = (f"{d} descriptors, {t} threads and {m:.0f} MiB" for d, t, m in held)
    return (
        f"{seen.runs} runs back to back in one controller, seed {seen.seed}, in {seen.seconds / 60:.0f} minutes:"
        f" {faults}.\nOf {seen.launches} launches in the ledgers, all {seen.files} recorded files were there and"
        f" unchanged at the end,\nand nothing was left on any host. The controller held {first} after the second run,\n"
        f"{last} after the last.\n"
    )


def cell(text: str) -> str:
    """A text as it may stand in a cell of a Markdown table; what stands in backticks stays as it is."""
    parts = " ".join(text.split()).replace("|", "\\|").split("`")
    if len(parts) % 2 == 0:
        return re.sub(r"([`<*_[])", r"\\\1", "`".join(parts))
    return "`".join(part if number % 2 else re.sub(r"([<*_[])", r"\\\1", part) for number, part in enumerate(parts))


def between(text: str, begin: str, end: str) -> str:
    """What stands between two marks. Raises IndexError when they are not there."""
    return text.split(begin, 1)[1].split(end, 1)[0].strip() + "\n"


def put_between(text: str, begin: str, end: str, new: str) -> str:
    """The text with what stands between two marks replaced. Raises ValueError when they are not there."""
    before, _, rest = text.partition(begin)
    _, mark, after = rest.partition(end)
    if not mark:
        raise ValueError(f"{begin} and {end} are not there")
    return f"{before}{begin}\n{new}{end}{after}"


def main(arguments: list[str]) -> int:
    """Print the table, or write it."""
    if arguments == ["--write"]:
        text = OPERATIONS.read_text(encoding="utf-8")
        text = put_between(text, BEGIN, END, table())
        OPERATIONS.write_text(put_between(text, LOAD_BEGIN, LOAD_END, load_text()), encoding="utf-8")
    else:
        sys.stdout.write(table())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
