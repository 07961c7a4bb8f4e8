"""What does a deploy send, and how long does it take?

    python -m benchmarks.deploy [--quick] [--json PATH] [--lab FOLDER]

Four simulated hosts. Three cases, each with new SSH connections, from the call to running containers that reach
each other:

    full        the hosts have nothing; beside it, in turn, `docker save | ssh docker load` to all hosts at once, by
                hand, which starts no container and checks nothing
    code        a line of the suite's own code was changed and the image built again: one small layer differs
    unchanged   everything is there

Bytes sent are the archive's; bytes on the wire are what the hosts' network interfaces received, SSH's and TCP's
own included. All hosts, this machine's engine and the SSH of both ends share this machine's cores.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import Limit, Options, columns, document, finish, median, parse_options
from benchmarks.labs import INTERFACE, Lab, running_lab
from suite import console
from suite.cluster.deploy import deploy, open_remotes
from suite.cluster.fanout import fan_out, results
from suite.cluster.inventory import Host
from suite.errors import DeployError
from suite.paths import project_root

TAG = "ddp-backend-suite:bench-{}"
CONTEXT = ("docker", "suite", "tasks.py", "fabfile.py", ".dockerignore")
UNCHANGED_SECONDS, CODE_SECONDS, CODE_BYTES, BY_HAND = 1.5, 10.0, 2 << 20, 1.15
BUILD_SECONDS, HAND_SECONDS, CLEAR_SECONDS = 1800.0, 1800.0, 300.0


@dataclass(frozen=True)
class Deploy:
    """One deploy. ``case``: full, by hand, code, unchanged. ``sent`` None: nobody counted (by hand)."""

    case: str
    seconds: float
    sent: int | None
    wire: int


def received(there: Lab) -> int:
    """Bytes that the hosts' interfaces have received so far, all hosts together."""
    path = f"/sys/class/net/{INTERFACE}/statistics/rx_bytes"
    return sum(int(there.engine.command(host.name, "cat", path)) for host in there.cluster.hosts)


def suites(there: Lab, case: str, image: str) -> Deploy:
    """The suite's deploy, with new connections."""
    before = received(there)
    start = time.monotonic()
    with open_remotes(there.cluster) as remotes:
        done = deploy(there.cluster, image, gpu=False, remotes=remotes, progress=console.say)
    seconds = time.monotonic() - start
    console.say(f"{case}: {seconds:.1f} s, {done.bytes_sent / 1e6:.2f} MB sent")
    return Deploy(case, seconds, done.bytes_sent, received(there) - before)


def by_hand(there: Lab, image: str) -> Deploy:
    """The image to all hosts at once, as an engineer would do it in a shell.

    Raises:
        DeployError: a pipe failed or took too long.
    """
    before = received(there)
    start = time.monotonic()
    results(fan_out(list(there.cluster.hosts), lambda host: _pipe(host, image), HAND_SECONDS + 10), "by hand")
    seconds = time.monotonic() - start
    console.say(f"by hand: {seconds:.1f} s")
    return Deploy("by hand", seconds, None, received(there) - before)


def _pipe(host: Host, image: str) -> None:
    words = [
        "ssh",
        *("-i", str(host.key), "-o", f"UserKnownHostsFile={host.known_hosts}", "-o", "BatchMode=yes"),
        *("-o", "IdentitiesOnly=yes", "-p", str(host.port), f"{host.user}@{host.address}", "docker", "load", "-q"),
    ]
    with subprocess.Popen(["docker", "save", image], stdout=subprocess.PIPE) as save:
        try:
            loaded = subprocess.run(words, stdin=save.stdout, capture_output=True, timeout=HAND_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            raise DeployError(f"{host.name}: `docker save | ssh docker load` did not end in time.") from None
        finally:
            assert save.stdout is not None
            save.stdout.close()
            save.terminate()
    if loaded.returncode:
        raise DeployError(f"{host.name}: docker load failed: {loaded.stderr.decode(errors='replace').strip()}")


def clear(there: Lab) -> None:
    """Remove every container, volume and image from the hosts."""
    script = (
        "docker ps -aq | xargs -r docker rm -fv >/dev/null;"
        " docker volume ls -q | xargs -r docker volume rm -f >/dev/null;"
        " docker images -aq | xargs -r docker rmi -f >/dev/null 2>&1; docker image prune -af >/dev/null; sync -f /var"
    )
    hosts = list(there.cluster.hosts)
    results(
        fan_out(
            hosts,
            lambda h: there.engine.command(h.name, "sh", "-c", script, timeout=CLEAR_SECONDS),
            CLEAR_SECONDS + 10,
        ),
        "being cleared",
    )


@contextlib.contextmanager
def builds() -> Iterator[Callable[[str, str], str]]:
    """Yields what builds the image from a copy of the checkout: (name, line to append) -> tag; removed at the end."""
    made: list[str] = []
    with tempfile.TemporaryDirectory(prefix="bench-context-") as folder:
        root = Path(folder)
        for name in CONTEXT:
            source = project_root() / name
            if source.is_dir():
                shutil.copytree(source, root / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, root / name)
        module = root / "suite" / "__init__.py"
        original = module.read_text()

        def build(name: str, line: str) -> str:
            module.write_text(original + line)
            tag = TAG.format(name)
            done = subprocess.run(
                ["docker", "build", "-q", "-t", tag, "-f", "docker/Dockerfile.cpu", "."],
                cwd=root,
                env={**os.environ, "DOCKER_BUILDKIT": "1"},
                capture_output=True,
                text=True,
                timeout=BUILD_SECONDS,
                check=False,
            )
            if done.returncode:
                raise DeployError(f"the image {tag} could not be built:\n{done.stderr.strip()[-1500:]}")
            made.append(tag)
            return tag

        try:
            yield build
        finally:
            if made:
                subprocess.run(["docker", "rmi", *made], capture_output=True, timeout=300, check=False)


def measure(there: Lab, rounds: int, repeats: int) -> list[Deploy]:
    """All cases: ``rounds`` times full and by hand in turn, ``repeats`` times the others."""
    found: list[Deploy] = []
    with builds() as build:
        image = build("base", "")
        for number in range(rounds):
            for side in ("full", "by hand") if number % 2 == 0 else ("by hand", "full"):
                clear(there)
                found.append(suites(there, "full", image) if side == "full" else by_hand(there, image))
        if found[-1].case != "full":
            suites(there, "again", image)
        for number in range(repeats):
            image = build("code", f"# benchmark: change {number} of {time.time_ns()}\n")
            found.append(suites(there, "code", image))
        found += [suites(there, "unchanged", image) for _ in range(repeats)]
    return found


def limits(found: Sequence[Deploy]) -> list[Limit]:
    """The targets, on medians over the repetitions."""

    def middle(case: str, what: Callable[[Deploy], float]) -> float | None:
        return median([what(d) for d in found if d.case == case])

    full, hand = middle("full", lambda d: d.seconds), middle("by hand", lambda d: d.seconds)
    code_bytes = middle("code", lambda d: d.sent or 0)
    return [
        Limit("unchanged: bytes sent", middle("unchanged", lambda d: d.sent or 0), None, 0, "bytes"),
        Limit("unchanged, four hosts", middle("unchanged", lambda d: d.seconds), None, UNCHANGED_SECONDS, "s"),
        Limit(
            "only the suite's code changed: sent to all hosts",
            code_bytes / (1 << 20) if code_bytes is not None else None,
            None,
            CODE_BYTES / (1 << 20),
            "MiB",
        ),
        Limit("only the suite's code changed, in all", middle("code", lambda d: d.seconds), None, CODE_SECONDS, "s"),
        Limit("full: total time ÷ by hand", full / hand if full and hand else None, None, BY_HAND),
    ]


def table(outcomes: dict[str, Any]) -> str:
    """One line per case: medians."""
    deploys = [Deploy(**entry) for entry in outcomes["deploys"]]
    rows = []
    for case in ("full", "by hand", "code", "unchanged"):
        mine = [d for d in deploys if d.case == case]
        if not mine:
            continue
        times = [d.seconds for d in mine]
        sent = median([d.sent for d in mine if d.sent is not None])
        rows.append(
            [
                case,
                str(len(mine)),
                f"{median(times):.2f} s",
                f"{min(times):.2f} to {max(times):.2f} s",
                "–" if sent is None else f"{sent / 1e6:.2f} MB",
                f"{(median([d.wire for d in mine]) or 0) / 1e6:.2f} MB",
            ]
        )
    return columns(["case", "times", "median", "range", "sent, all hosts", "on the wire, all hosts"], rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and judge; exit 1 when a limit is missed."""
    options: Options = parse_options(__doc__, arguments)
    before = os.getloadavg()
    with running_lab(options) as there:
        found = measure(there, rounds=1 if options.quick else 2, repeats=2 if options.quick else 5)
    outcomes = {"hosts": 4, "deploys": [asdict(one) for one in found]}
    return finish(document("deploy", options, before, limits(found), outcomes), table(outcomes), options)


if __name__ == "__main__":
    raise SystemExit(main())
