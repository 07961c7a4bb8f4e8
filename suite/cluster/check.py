"""Pre-flight: is every host fit for a deploy, or for a run? Every host in parallel, every outcome collected.

Facts are asked once per host (``probe``, the Docker API), judged by pure functions (``rules``, ``routes``,
``gpu_rules``), and what needs running containers is tried between every pair of them (``pairs``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import docker.errors

from suite.cluster import gpu, images, pairs, rules
from suite.cluster.containers import CLUSTER, ROLE, WORKER
from suite.cluster.engine import Engine, engine_errors
from suite.cluster.fanout import fan_out
from suite.cluster.findings import CHECKS, Finding, fail, ok, skipped, warn
from suite.cluster.images import Image
from suite.cluster.inventory import Cluster, Host
from suite.cluster.probe import HostFacts, ask
from suite.cluster.routes import discover as interfaces
from suite.cluster.routes import judge_network, judge_routes, peers_of
from suite.cluster.transport import local_engine
from suite.cluster.workers import Worker, list_workers
from suite.console import printable
from suite.errors import HostError, SuiteError

__all__ = ["LEVELS", "check", "interfaces"]

LEVELS = ("all", "deploy", "run")
HOST_SECONDS = 90.0
# What a deploy or a run needs; "all" is everything.
_NEEDED = {
    "deploy": {"ssh", "docker", "duplicates", "architecture", "disk", "ports"},
    "run": {"ssh", "docker", "duplicates", "clock", "routes", "network", "strays", "image", "names", "pairs"}
    | {name for name in CHECKS if name.startswith("gpu ")},
}


@dataclass(frozen=True)
class _HostState:
    """All that one host told: ``worker`` is this cluster's container, ``foreign`` other suite containers."""

    facts: HostFacts
    image: Image | None
    shared_bytes: int
    worker: Worker | None
    foreign: list[str]
    leftover: list[str]
    gpus: gpu.GpuFacts | None = field(default=None)


def check(
    cluster: Cluster, image_tag: str | None, *, remotes: Mapping[str, Engine], level: str = "all"
) -> list[Finding]:
    """Check every host; the findings by host, in the order of ``CHECKS``.

    Args:
        cluster: the hosts.
        image_tag: the image to deploy or deployed, by tag or ID; None: whichever the containers run.
        remotes: the hosts by name.
        level: "all", or the part that a "deploy" or a "run" needs.

    Raises nothing for what is wrong with a host: that is a finding.
    """
    image = _local_image(image_tag)
    tag = image_tag or ""
    hosts = [remotes[host.name] for host in cluster.hosts]
    answers = fan_out(hosts, lambda remote: _look(remote, cluster, image, tag, level), HOST_SECONDS)
    findings: list[Finding] = []
    states: dict[str, _HostState] = {}
    for host in cluster.hosts:
        answer = answers[host.name]
        if isinstance(answer, _HostState):
            states[host.name] = answer
            findings += _own_findings(cluster, host, answer, image)
        else:
            findings += _unreachable(host, answer)
    findings += rules.duplicates(cluster, {name: state.facts for name, state in states.items()})
    findings += rules.same_image(cluster, image, {name: state.image for name, state in states.items()})
    if cluster.gpu:
        findings += gpu.judge(cluster, {name: state.gpus for name, state in states.items()})
    if level != "deploy":
        containers = {name: state.worker.id for name, state in states.items() if state.worker and state.worker.running}
        findings += pairs.judge(cluster, remotes, containers, {n: s.facts for n, s in states.items()})
    wanted = _NEEDED.get(level, set(CHECKS))
    order = {host.name: number for number, host in enumerate(cluster.hosts)}
    return sorted(
        (finding for finding in findings if finding.check in wanted),
        key=lambda finding: (order[finding.host], CHECKS.index(finding.check)),
    )


def _local_image(tag: str | None) -> Image | None:
    """The image as this machine's engine has it; None where it has none, or there is no engine."""
    if tag is None:
        return None
    with contextlib.suppress(Exception), contextlib.closing(local_engine(20)) as client:
        return images.describe(client, tag)
    return None


def _look(remote: Engine, cluster: Cluster, image: Image | None, tag: str, level: str) -> _HostState:
    """Ask one host everything. Raises HostError."""
    host = cluster.host(remote.name)
    # SSH first: a host that does not even let us in is told apart from one whose engine does not answer.
    remote.connect()
    try:
        with engine_errors(remote.name, "asking about the engine"):
            info: dict[str, Any] = remote.api.info()
    except HostError as error:
        raise _NoEngine(error, ask(remote, {}, peers_of(cluster, host))) from error
    workers = list_workers(remote, cluster)
    worker = workers[0] if workers else None
    present = _present_image(remote, image, tag, worker)
    shared = 0
    if level != "run" and image is not None and present is None:
        common, size = images.shared_layers(remote, image)
        shared = size if common else 0
    return _HostState(
        facts=ask(remote, info, peers_of(cluster, host), clock_tries=0 if level == "deploy" else 2),
        image=present,
        shared_bytes=shared,
        worker=worker,
        foreign=_foreign(remote, cluster),
        leftover=pairs.leftover_ranks(remote, worker.id) if worker and worker.running else [],
        gpus=gpu.ask(remote, host, info, worker.id if worker and worker.running else None) if cluster.gpu else None,
    )


class _NoEngine(HostError):
    """SSH works, Docker does not; what the host itself said is kept."""

    def __init__(self, error: HostError, facts: HostFacts) -> None:
        super().__init__(error.host, error.message.removeprefix(f"{error.host}: "), fix=error.fix)
        self.facts = facts


def _present_image(remote: Engine, image: Image | None, tag: str, worker: Worker | None) -> Image | None:
    """The image that the host's container runs; without one, the image that it would run."""
    with engine_errors(remote.name, "looking for the image"):
        if worker is not None:
            try:
                return images.describe(remote.api, worker.image_id)
            except docker.errors.APIError:
                return None
        if image is not None:
            return images.on_host(remote, image)
        return images.describe(remote.api, tag) if tag else None


def _foreign(remote: Engine, cluster: Cluster) -> list[str]:
    """Running worker containers that belong to another cluster's name."""
    with engine_errors(remote.name, "listing containers"):
        listed = remote.api.containers(filters={"label": f"{ROLE}={WORKER}"})
    return [
        str((entry.get("Names") or [entry["Id"]])[0]).lstrip("/")
        for entry in listed
        if (entry.get("Labels") or {}).get(CLUSTER) != cluster.name
    ]


def _own_findings(cluster: Cluster, host: Host, state: _HostState, image: Image | None) -> list[Finding]:
    """What one host's own facts say, without looking at the others."""
    facts = state.facts
    present = image is not None and state.image is not None and state.image.same_as(image)
    return [
        ok(host.name, "ssh", "connected"),
        rules.docker_version(host, facts),
        rules.architecture(host, facts, image),
        rules.disk(host, facts, image, present, state.shared_bytes),
        rules.shm(host, facts),
        rules.clock(host, facts),
        judge_routes(cluster, host, facts),
        judge_network(host, facts),
        rules.ports(cluster, host, facts, state.worker is not None and state.worker.running),
        _strays(host, state),
    ]


def _strays(host: Host, state: _HostState) -> Finding:
    if state.leftover:
        return fail(
            host.name,
            "strays",
            f"{len(state.leftover)} ranks",
            f"ranks of an earlier run still run there: {state.leftover[0]}.",
            "end them with `fab stop`, then `fab deploy`; or wait for the run that they belong to.",
        )
    if state.foreign:
        return warn(
            host.name,
            "strays",
            ", ".join(state.foreign),
            f"a container of another cluster file runs there: {', '.join(state.foreign)}.",
            "end it with `fab stop --cluster NAME`, or `fab clean`.",
        )
    return ok(host.name, "strays", "none")


def _unreachable(host: Host, error: Exception | Any) -> list[Finding]:
    """The findings of a host that could not be asked everything: one failure, the rest skipped."""
    message = error.message.removeprefix(f"{host.name}: ") if isinstance(error, SuiteError) else str(error)
    fix = error.fix if isinstance(error, SuiteError) else ""
    if isinstance(error, _NoEngine):
        done = [
            ok(host.name, "ssh", "connected"),
            fail(host.name, "docker", "no answer", message, fix),
            rules.shm(host, error.facts),
            rules.clock(host, error.facts),
        ]
    else:
        done = [fail(host.name, "ssh", "failed", printable(message), fix)]
    left = {finding.check for finding in done}
    return done + [
        skipped(host.name, name, f"{done[-1].check if len(done) == 1 else 'docker'} failed")
        for name in CHECKS
        if name not in left and name not in ("duplicates", "image", "names", "pairs") and not name.startswith("gpu ")
    ]
