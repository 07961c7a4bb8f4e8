"""What only running containers can show: names, the in-container sshd and open ports, between every pair of hosts."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import time
from collections.abc import Iterator, Mapping

from suite.cluster.attached import Attached
from suite.cluster.engine import Engine
from suite.cluster.fanout import fan_out
from suite.cluster.findings import Finding, fail, ok, skipped
from suite.cluster.inventory import Cluster
from suite.cluster.probe import HostFacts
from suite.cluster.workers import unreached
from suite.console import printable
from suite.errors import HostError

PAIR_SECONDS = 40.0
_LISTEN_SECONDS = 10.0
_CONNECT_SECONDS = 3.0
_RANKS = ("suite.worker run", "suite.worker supervise", "torch.distributed.run", "mpirun", "prted", "orted")
_LOOKUP = 'for name; do printf "%s " "$name"; getent hosts "$name" || echo; done'
# Listens on the given ports of one address until its input ends, and prints those it could take.
_LISTEN = """
import json, select, socket, sys
address, *ports = sys.argv[1:]
sockets = []
for port in map(int, ports):
    s = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        s.bind((address, port))
        s.listen(64)
        sockets.append(s)
    except OSError:
        pass
print(json.dumps([s.getsockname()[1] for s in sockets]), flush=True)
while True:
    ready, _, _ = select.select([*sockets, sys.stdin], [], [], 60)
    if not ready or sys.stdin in ready:
        break
    for s in ready:
        s.accept()[0].close()
"""
# Connects to every ["address", port] of its argument and prints those that fail, with the reason.
_CONNECT = """
import concurrent.futures, json, socket, sys
limit, targets = float(sys.argv[1]), json.loads(sys.argv[2])
def attempt(target):
    try:
        socket.create_connection(tuple(target), limit).close()
    except OSError as error:
        return [*target, "timed out" if isinstance(error, TimeoutError) else (error.strerror or str(error))]
with concurrent.futures.ThreadPoolExecutor(64) as pool:
    print(json.dumps([found for found in pool.map(attempt, targets) if found]))
"""


def judge(
    cluster: Cluster,
    remotes: Mapping[str, Engine],
    containers: Mapping[str, str],
    facts: Mapping[str, HostFacts],
) -> list[Finding]:
    """The findings "names" and "pairs" of every host that was reached (``facts`` has those).

    Skipped on a host without a running container.
    """
    reached = [host.name for host in cluster.hosts if host.name in facts]
    without = [name for name in reached if name not in containers]
    findings = [skipped(name, check, "not deployed yet") for name in without for check in ("names", "pairs")]
    engines = [remotes[name] for name in reached if name in containers]
    if not engines:
        return findings
    names = fan_out(engines, lambda remote: _names(remote, containers[remote.name], cluster), PAIR_SECONDS)
    for name, answer in names.items():
        findings.append(
            answer
            if isinstance(answer, Finding)
            else fail(name, "names", "no answer", str(answer), "run `fab deploy`.")
        )
    return findings + _pairs(cluster, remotes, containers, facts, engines)


def leftover_ranks(remote: Engine, container: str) -> list[str]:
    """Commands of ranks or launchers that run in a container. Raises HostError."""
    answer = remote.exec_run(container, ["ps", "-eo", "pid=,args="])
    lines = answer.stdout.decode(errors="replace").splitlines()
    return [printable(line.strip())[:100] for line in lines if any(word in line for word in _RANKS)]


def _names(remote: Engine, container: str, cluster: Cluster) -> Finding:
    """Whether every host's name means its address inside this container."""
    words = ["sh", "-c", _LOOKUP, "sh", *(host.name for host in cluster.hosts)]
    answer = remote.exec_run(container, words, timeout=20)
    meant: dict[str, str] = {}
    for line in answer.stdout.decode(errors="replace").splitlines():
        name, _, rest = line.partition(" ")
        meant.setdefault(name, rest.split()[0] if rest.split() else "")
    for host in cluster.hosts:
        if not _same_address(meant.get(host.name, ""), host.data_address):
            return fail(
                remote.name,
                "names",
                host.name,
                f"in its container {host.name} means {meant.get(host.name) or 'nothing'}, not {host.data_address}.",
                "run `fab deploy`: it writes the containers' hosts files anew.",
            )
    return ok(remote.name, "names", f"{len(cluster.hosts)} names")


def _same_address(text: str, address: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(text) == ipaddress.ip_address(address)
    return False


def _pairs(
    cluster: Cluster,
    remotes: Mapping[str, Engine],
    containers: Mapping[str, str],
    facts: Mapping[str, HostFacts],
    engines: list[Engine],
) -> list[Finding]:
    """SSH between the containers, then a rendezvous port and one of the system's choice between every pair."""
    gaps = unreached(cluster, remotes, containers, ring=False)
    with _listeners(cluster, containers, facts, engines) as targets:
        tried = fan_out(
            engines,
            lambda remote: _connect(remote, containers[remote.name], targets),
            PAIR_SECONDS,
        )
    by_address = {host.data_address: host.name for host in cluster.hosts}
    findings: list[Finding] = []
    for remote in engines:
        name = remote.name
        answer = tried[name]
        if name in gaps:
            peer, said = next(iter(gaps[name].items()))
            findings.append(
                fail(
                    name,
                    "pairs",
                    f"not {', '.join(gaps[name])}",
                    f"its container does not reach {', '.join(gaps[name])} over SSH: {said}.",
                    f"open port {cluster.container_ssh_port} between the hosts; if it is, run `fab deploy --force`.",
                )
            )
        elif isinstance(answer, Exception):
            findings.append(fail(name, "pairs", "no answer", str(answer), "run `fab check` again."))
        elif answer:
            address, port, why = answer[0]
            peer = by_address.get(address, address)
            findings.append(
                fail(
                    name,
                    "pairs",
                    f"not {peer}",
                    f"it does not reach {peer} ({address}) on port {port}: {why}.",
                    "open all TCP ports between the hosts: the backends choose their own.",
                )
            )
        else:
            findings.append(ok(name, "pairs", f"{len(engines) - 1} peers, ssh and 2 ports"))
    return findings


@contextlib.contextmanager
def _listeners(
    cluster: Cluster, containers: Mapping[str, str], facts: Mapping[str, HostFacts], engines: list[Engine]
) -> Iterator[list[tuple[str, int]]]:
    """Listening programs in all containers; yields the addresses and ports that they listen on."""
    first, last = cluster.ports

    def listen(remote: Engine) -> tuple[Attached, list[int]]:
        taken = facts[remote.name].listening
        port = next((p for p in range(first, last + 1) if p not in taken), 0)
        address = cluster.host(remote.name).data_address
        words = ["python3", "-c", _LISTEN, address, str(port), "0"]
        program = remote.exec_attached(containers[remote.name], words)
        deadline = time.monotonic() + _LISTEN_SECONDS
        while time.monotonic() < deadline and not program.ended:
            if program.lines:
                with contextlib.suppress(ValueError, TypeError):
                    return program, [int(number) for number in json.loads(program.lines[0][1])]
                break
            time.sleep(0.01)
        program.close()
        raise HostError(remote.name, "could not listen on its own address inside the container.")

    programs: list[Attached] = []
    targets: list[tuple[str, int]] = []
    try:
        for name, answer in fan_out(engines, listen, _LISTEN_SECONDS + 10).items():
            if not isinstance(answer, Exception):
                programs.append(answer[0])
                targets += [(cluster.host(name).data_address, port) for port in answer[1]]
        yield targets
    finally:
        for program in programs:
            program.close()


def _connect(remote: Engine, container: str, targets: list[tuple[str, int]]) -> list[tuple[str, int, str]]:
    """The targets that a container does not reach: (address, port, why)."""
    words = ["python3", "-c", _CONNECT, str(_CONNECT_SECONDS), json.dumps(targets)]
    answer = remote.exec_run(container, words, timeout=PAIR_SECONDS - 5)
    try:
        return [(str(a), int(p), printable(str(why))) for a, p, why in json.loads(answer.stdout)]
    except (ValueError, TypeError):
        raise HostError(remote.name, f"the connection test failed: {answer.complaint}") from None
