"""From hosts to a deployment: the image on each, one container on each, and every container reaching every other.

A deployment is found again by its containers' labels, so nothing about it is kept on the controller. What
already fits (same image, same options, running, answering) is kept as it is.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import docker

from suite.cluster import images, keys
from suite.cluster.attached import Completed
from suite.cluster.containers import container_name, container_options, digest, labels
from suite.cluster.engine import Engine, engine_errors
from suite.cluster.fanout import fan_out, results
from suite.cluster.images import Image, Progress, Shipped
from suite.cluster.inventory import Cluster
from suite.cluster.remote import RemoteHost
from suite.cluster.transport import local_engine
from suite.cluster.workers import Worker, list_workers, remove, unreached, wait_for_sshd
from suite.errors import DeployError, HostError

Remotes = Mapping[str, Engine]  # by the hosts' names

SURVEY_SECONDS = 60.0
SHIP_SECONDS = 3600.0
START_SECONDS = 120.0
_SPACE_FACTOR = 2  # the engine unpacks the archive to a temporary folder before it makes layers of it
_SPACE_MARGIN = 256 << 20


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
    local: docker.APIClient | None = None,
) -> Deployment:
    """Bring image and containers to every host, or find that all is there.

    Args:
        cluster: the hosts.
        image_tag: the image as this machine's engine names it.
        gpu: whether the containers get the hosts' CUDA devices.
        remotes: the hosts by name.
        progress: gets a line now and then.
        force: replace containers that fit.
        local: this machine's engine, if not the default one.

    Raises:
        DeployError, HostError: what went wrong where; no half-made container is left.
    """
    start = time.monotonic()
    with contextlib.ExitStack() as stack:
        if local is None:
            local = _local(stack)
        image = images.local_image(local, image_tag)
        hosts = [remotes[host.name] for host in cluster.hosts]
        wanted = {host.name: container_options(host, cluster, gpu) for host in cluster.hosts}
        prints = {name: digest(options, image.id, cluster) for name, options in wanted.items()}
        survey = results(fan_out(hosts, lambda remote: _survey(remote, cluster, image), SURVEY_SECONDS), "the survey")
        found = {name: answer[0] for name, answer in survey.items()}
        if not force and _all_fit(found, prints):
            first = found[cluster.hosts[0].name][0]
            containers = {name: mine[0].id for name, mine in found.items()}
            if not unreached(cluster, remotes, containers, ring=True):
                elapsed = time.monotonic() - start
                return Deployment(first.deployment, cluster.name, image.id, containers, True, {}, elapsed)
        lacking = [remote for remote in hosts if survey[remote.name][1] is None]
        shipped = _ship(local, image, lacking, progress)
    deployment = secrets.token_hex(6)
    progress(f"starting one container on each of {len(hosts)} hosts")
    containers = _start(cluster, remotes, image, deployment, wanted, prints)
    for name, problem in fan_out(hosts, images.remove_superseded, images.REMOVE_SECONDS + 10).items():
        if isinstance(problem, Exception):
            progress(f"{name}: {problem}")
    return Deployment(deployment, cluster.name, image.id, containers, False, shipped, time.monotonic() - start)


def find_deployment(cluster: Cluster, remotes: Remotes) -> Deployment:
    """The deployment that runs on the cluster's hosts now.

    Raises:
        DeployError: there is none, or not on every host, or the cluster file has changed since.
        HostError: a host did not answer.
    """
    hosts = [remotes[host.name] for host in cluster.hosts]
    found = results(fan_out(hosts, lambda remote: list_workers(remote, cluster), SURVEY_SECONDS), "the survey")
    absent = [name for name, mine in found.items() if not mine]
    stopped = [name for name, mine in found.items() if mine and not mine[0].running]
    fix = "run `fab deploy`."
    if absent:
        raise DeployError(f"There is no container of this suite on {', '.join(absent)}.", fix=fix)
    if stopped:
        raise DeployError(f"The container on {', '.join(stopped)} is not running.", fix=fix)
    deployments = {mine[0].deployment for mine in found.values()}
    image_ids = {mine[0].image_id for mine in found.values()}
    if len(deployments) > 1 or any(len(mine) > 1 for mine in found.values()):
        raise DeployError("The hosts' containers belong to different deployments.", fix=fix)
    for host in cluster.hosts:
        mine = found[host.name][0]
        fits = {
            digest(container_options(host, cluster, gpu), image_id, cluster)
            for gpu in (False, True)
            for image_id in image_ids
        }
        if mine.digest not in fits and len(image_ids) == 1:
            raise DeployError(f"The cluster file has changed since the deploy ({host.name}).", fix=fix)
    return Deployment(
        id=deployments.pop(),
        cluster=cluster.name,
        image_id=found[cluster.hosts[0].name][0].image_id,
        containers={name: mine[0].id for name, mine in found.items()},
        kept=True,
    )


def _local(stack: contextlib.ExitStack) -> docker.APIClient:
    try:
        with engine_errors("this machine", "asking for the engine's version"):
            return stack.enter_context(contextlib.closing(local_engine(60)))
    except HostError as error:
        raise DeployError(error.message, fix=error.fix or "install and start Docker here.") from error


def _survey(remote: Engine, cluster: Cluster, image: Image) -> tuple[list[Worker], Image | None]:
    """(the host's worker containers, the image as the host has it)."""
    return list_workers(remote, cluster), images.on_host(remote, image)


def _all_fit(found: Mapping[str, list[Worker]], prints: Mapping[str, str]) -> bool:
    """Whether every host has exactly one container, running, as wanted, and all of one deployment."""
    if any(len(mine) != 1 for mine in found.values()):
        return False
    return len({mine[0].deployment for mine in found.values()}) == 1 and all(
        mine[0].running and mine[0].deployment and mine[0].digest == prints[name] for name, mine in found.items()
    )


def _ship(local: docker.APIClient, image: Image, lacking: list[Engine], progress: Progress) -> dict[str, Shipped]:
    if not lacking:
        return {}
    results(fan_out(lacking, lambda remote: _refuse_unfit(remote, image), SURVEY_SECONDS), "the survey")
    return images.ship(local, image, lacking, progress, SHIP_SECONDS)


def _refuse_unfit(remote: Engine, image: Image) -> None:
    """Refuse before anything is sent: another architecture, too little space. Raises DeployError, HostError."""
    with engine_errors(remote.name, "asking about the engine"):
        info: dict[str, Any] = remote.api.info()
    machine = images.platform(str(info.get("Architecture", "")))
    if image.architecture and machine != image.architecture:
        raise DeployError(
            f"{remote.name}: is {machine}, the image {image.tag} is for {image.architecture}.",
            fix="build the image on a machine like the hosts, or leave this host out of the cluster file.",
        )
    shared, size = images.shared_layers(remote, image)
    need = max(image.size_bytes - (size if shared else 0), 0) * _SPACE_FACTOR + _SPACE_MARGIN
    free = free_bytes(remote, str(info.get("DockerRootDir") or "/var/lib/docker"))
    if free is not None and free < need:
        raise DeployError(
            f"{remote.name}: {free / 1e9:.1f} GB free where Docker keeps its data, loading the image needs "
            f"{need / 1e9:.1f} GB.",
            fix="free space there (`docker system df`, `docker image prune`).",
        )


def free_bytes(remote: Engine, folder: str) -> int | None:
    """Free bytes of the file system that holds a folder of the host; None when the host does not say."""
    answer: Completed = remote.run(["df", "--output=avail", "-B1", "--", folder], 20)
    number = answer.text.splitlines()[-1].strip() if answer.ok and answer.text else ""
    return int(number) if number.isdigit() else None


def _start(
    cluster: Cluster,
    remotes: Remotes,
    image: Image,
    deployment: str,
    wanted: Mapping[str, dict[str, Any]],
    prints: Mapping[str, str],
) -> dict[str, str]:
    """Replace every host's container; all of them reach each other, or none is left."""
    made_keys = keys.make_keys([host.name for host in cluster.hosts])
    hosts = [remotes[host.name] for host in cluster.hosts]

    def start(remote: Engine) -> str:
        host = cluster.host(remote.name)
        image_id = (images.on_host(remote, image) or image).id
        remove(remote, cluster)
        body = {
            **wanted[remote.name],
            "Image": image_id,
            "Labels": labels(host, cluster, deployment, prints[remote.name]),
        }
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

    try:
        containers = results(fan_out(hosts, start, START_SECONDS), "to start")
        _refuse_gaps(cluster, unreached(cluster, remotes, containers, ring=False))
    except BaseException:
        fan_out(hosts, lambda remote: remove(remote, cluster), SURVEY_SECONDS)
        raise
    return containers


def _refuse_gaps(cluster: Cluster, gaps: list[str]) -> None:
    if gaps:
        raise DeployError(
            f"Containers do not reach each other over SSH: {'; '.join(gaps)}.",
            fix=f"open port {cluster.container_ssh_port} between the hosts; `fab check` looks at each pair.",
        )
