"""From hosts to a deployment: the image on each, one container on each, and every container reaching every other.

A deployment is found again by its containers' labels, so nothing about it is kept on the controller. What
already fits (same image, same options, running, answering) is kept as it is.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import docker

from suite.cluster import images, keys
from suite.cluster.check import check
from suite.cluster.containers import DIGEST, container_name, container_options, labels
from suite.cluster.engine import Engine, engine_errors
from suite.cluster.fanout import Begun, fan_out, results
from suite.cluster.findings import refuse
from suite.cluster.images import Image, Progress, Shipped
from suite.cluster.inventory import Cluster
from suite.cluster.remote import RemoteHost
from suite.cluster.transport import local_engine
from suite.cluster.workers import Worker, list_workers, remove, unreached, wait_for_sshd
from suite.errors import DeployError, HostError, PreflightError

Remotes = Mapping[str, Engine]  # by the hosts' names

SURVEY_SECONDS = 60.0
SHIP_SECONDS = 3600.0
START_SECONDS = 120.0
UNDO_SECONDS = 30.0


@dataclass(frozen=True)
class Deployment:
    """The containers of a cluster: by host name, all of one image and one key pair.

    ``kept`` says that they were there already; ``shipped`` what was sent to which host.
    """

    id: str
    cluster: str
    image_id: str
    containers: dict[str, str]
    kept: bool = False
    shipped: dict[str, Shipped] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def bytes_sent(self) -> int:
        """Bytes of image sent to all hosts together."""
        return images.total_bytes(self.shipped)


@contextlib.contextmanager
def open_remotes(cluster: Cluster, *, accept_new: bool = False) -> Iterator[dict[str, RemoteHost]]:
    """A ``RemoteHost`` for each host, connected when first used; all are closed at the end."""
    remotes = {host.name: RemoteHost(host, accept_new=accept_new) for host in cluster.hosts}
    try:
        yield remotes
    finally:
        for remote in remotes.values():
            with contextlib.suppress(Exception):
                remote.close()


def deploy(
    cluster: Cluster,
    image_tag: str,
    *,
    gpu: bool,
    remotes: Remotes,
    progress: Progress,
    force: bool = False,
    compress: bool = False,
    preflight: Callable[[], None] | None = None,
) -> Deployment:
    """Bring image and containers to every host, or find that all is there.

    Args:
        cluster: the hosts.
        image_tag: the image as this machine's engine names it.
        gpu: whether the containers get the hosts' CUDA devices.
        remotes: the hosts by name.
        progress: gets a line now and then.
        force: replace containers that fit.
        compress: send the image through gzip; pays on slow links.
        preflight: called before anything is changed, and only then; raises when the hosts are not fit.
            Default: the checks that a deploy needs.

    Raises:
        PreflightError: a host is not fit.
        DeployError, HostError: what went wrong where; no half-made container is left.
    """
    start = time.monotonic()
    hosts = [remotes[host.name] for host in cluster.hosts]
    with _local_engine() as local:
        image = images.local_image(local, image_tag)
        survey = results(fan_out(hosts, lambda remote: _survey(remote, cluster, image), SURVEY_SECONDS), "the survey")
        kept = None if force else _kept(cluster, remotes, image, gpu, survey)
        if kept is not None:
            return replace(kept, seconds=time.monotonic() - start)
        lacking = [remote for remote in hosts if survey[remote.name].image is None]
        with images.saving(local, image) if lacking else contextlib.nullcontext() as archive:
            if preflight is not None:
                preflight()
            else:
                refuse(check(cluster, image_tag, remotes=remotes, level="deploy"))
            shipped = {}
            if archive is not None:
                shipped = images.ship(archive, image, lacking, progress, SHIP_SECONDS, compress=compress)
    progress(f"starting one container on each of {len(hosts)} hosts")
    deployment = secrets.token_hex(6)
    containers = _start(cluster, remotes, image, deployment, gpu)
    for name, problem in fan_out(hosts, images.remove_superseded, images.REMOVE_SECONDS + 10).items():
        if isinstance(problem, Exception):
            progress(f"{name}: {problem}")
    return Deployment(deployment, cluster.name, image.id, containers, False, shipped, time.monotonic() - start)


def find_deployment(cluster: Cluster, remotes: Remotes) -> Deployment:
    """The deployment that runs on the cluster's hosts now.

    Raises:
        PreflightError: there is none, or not on every host, not with one image, or the cluster file has changed since.
        HostError: a host did not answer.
    """
    hosts = [remotes[host.name] for host in cluster.hosts]
    found = results(fan_out(hosts, lambda remote: _running(remote, cluster), SURVEY_SECONDS), "the survey")
    problem = _deployment_problem(cluster, found)
    if problem:
        raise PreflightError(problem, fix="run `fab deploy`.")
    first = found[cluster.hosts[0].name].workers[0]
    return Deployment(
        id=first.deployment,
        cluster=cluster.name,
        image_id=first.wanted_image,
        containers={name: there.workers[0].id for name, there in found.items()},
        kept=True,
    )


@dataclass(frozen=True)
class _There:
    """What a host has: containers of this cluster, and the image (the wanted one, or the first container's)."""

    workers: list[Worker]
    image: Image | None


def _survey(remote: Engine, cluster: Cluster, image: Image) -> _There:
    return _There(list_workers(remote, cluster), images.on_host(remote, image))


def _running(remote: Engine, cluster: Cluster) -> _There:
    workers = list_workers(remote, cluster)
    if not workers:
        return _There([], None)
    with engine_errors(remote.name, "looking at the container's image"):
        return _There(workers, images.describe(remote.api, workers[0].image_id))


def _deployment_problem(cluster: Cluster, found: Mapping[str, _There]) -> str:
    """Why the containers on the hosts are no deployment; empty when they are."""
    absent = [name for name, there in found.items() if not there.workers]
    if absent:
        return f"There is no container of this suite on {', '.join(absent)}."
    stopped = [name for name, there in found.items() if not there.workers[0].running]
    if stopped:
        return f"The container on {', '.join(stopped)} is not running."
    kinds = [there.image for there in found.values() if there.image is not None]
    odd = [
        name
        for name, there in found.items()
        if there.image is None or sum(there.image.same_as(other) for other in kinds) <= len(kinds) // 2
    ]
    if odd:
        return f"The container on {', '.join(odd)} runs another image than the others."
    groups: dict[str, list[str]] = {}
    for name, there in found.items():
        groups.setdefault(there.workers[0].deployment, []).append(name)
    if len(groups) > 1:
        smallest = min(groups.values(), key=len)
        return f"The container on {', '.join(smallest)} belongs to another deployment than the others."
    changed = [host.name for host in cluster.hosts if not found[host.name].workers[0].fits(host, cluster)]
    if changed:
        return f"The cluster file has changed since the deploy, or the container has ({', '.join(changed)})."
    return ""


@contextlib.contextmanager
def _local_engine() -> Iterator[docker.APIClient]:
    """This machine's own engine. Raises DeployError when it does not answer."""
    try:
        with engine_errors("this machine", "asking for the engine's version"):
            client = local_engine(60)
    except HostError as error:
        raise DeployError(error.message, fix=error.fix or "install and start Docker here.") from error
    with contextlib.closing(client):
        yield client


def _kept(
    cluster: Cluster, remotes: Remotes, image: Image, gpu: bool, found: Mapping[str, _There]
) -> Deployment | None:
    """The deployment that is there already, if nothing about it needs to change."""
    for host in cluster.hosts:
        workers, there = found[host.name].workers, found[host.name].image
        marks = labels(host, cluster, "", image.id, gpu)
        if len(workers) != 1 or there is None or not workers[0].running:
            return None
        if workers[0].digest != marks[DIGEST] or workers[0].image_id != there.id:
            return None
    deployments = {there.workers[0].deployment for there in found.values()}
    containers = {name: there.workers[0].id for name, there in found.items()}
    if len(deployments) > 1 or "" in deployments or unreached(cluster, remotes, containers, ring=True):
        return None
    return Deployment(deployments.pop(), cluster.name, image.id, containers, kept=True)


def _start(cluster: Cluster, remotes: Remotes, image: Image, deployment: str, gpu: bool) -> dict[str, str]:
    """Replace every host's container; all of them reach each other, or none is left."""
    made_keys = keys.make_keys([host.name for host in cluster.hosts])
    hosts = [remotes[host.name] for host in cluster.hosts]

    making = Begun()

    def start(remote: Engine) -> str:
        with making.work(remote.name):
            return make(remote)

    def make(remote: Engine) -> str:
        host = cluster.host(remote.name)
        body = {
            **container_options(host, cluster, gpu),
            "Image": (images.on_host(remote, image) or image).id,
            "Labels": labels(host, cluster, deployment, image.id, gpu),
        }
        remove(remote, cluster)
        making.go_on(remote.name)
        with engine_errors(remote.name, "creating the container"):
            created = remote.api.create_container_from_config(  # type: ignore[no-untyped-call]
                body, container_name(cluster)
            )
        container = str(created["Id"])
        # Before it starts: its entrypoint starts sshd when the configuration is there.
        remote.put(container, keys.FOLDER, keys.files(cluster, host, made_keys))
        with engine_errors(remote.name, "starting the container"):
            remote.api.start(container)
        wait_for_sshd(remote, container)
        return container

    def undo(remote: Engine) -> None:
        making.wait(remote.name, UNDO_SECONDS)  # else it might make one after this has looked
        remove(remote, cluster)

    try:
        containers = results(fan_out(hosts, start, START_SECONDS), "to start")
        _refuse_gaps(cluster, unreached(cluster, remotes, containers, ring=False))
    except BaseException:
        making.give_up()
        fan_out(hosts, undo, SURVEY_SECONDS)
        raise
    return containers


def _refuse_gaps(cluster: Cluster, gaps: Mapping[str, Mapping[str, str]]) -> None:
    if gaps:
        lines = [f"{name} to {peer}: {said}" for name, missed in gaps.items() for peer, said in missed.items()]
        raise DeployError(
            f"Containers do not reach each other over SSH: {'; '.join(lines)}.",
            fix=f"open port {cluster.container_ssh_port} between the hosts; `fab check` looks at each pair.",
        )
