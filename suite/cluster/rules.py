"""Judgements on what a host said: pure functions from facts to findings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from suite.cluster.findings import Finding, fail, ok, skipped, warn
from suite.cluster.images import Image, platform
from suite.cluster.inventory import Cluster, Host
from suite.cluster.probe import HostFacts
from suite.numerals import version_numbers

OLDEST_DOCKER = (20, 10)
SPACE_FACTOR = 2  # the engine unpacks the archive to a temporary folder before it makes layers of it
SPACE_MARGIN = 256 << 20
LOW_SHM_BYTES = 512 << 20
CLOCK_WARN_SECONDS = 1.0
CLOCK_FAIL_SECONDS = 30.0
MIN_FREE_PORTS = 8


def space_needed(image: Image, present_bytes: int) -> int:
    """Bytes that loading an image takes at most while it lasts, of which ``present_bytes`` are there already."""
    return max(image.size_bytes - present_bytes, 0) * SPACE_FACTOR + SPACE_MARGIN


def docker_version(host: Host, facts: HostFacts) -> Finding:
    """The engine is new enough and not rootless: a rootless one has no real host network."""
    version = str(facts.engine.get("ServerVersion", ""))
    numbers = version_numbers(version)[:2]
    rootless = any("rootless" in str(option) for option in facts.engine.get("SecurityOptions") or [])
    if numbers < OLDEST_DOCKER:
        return fail(
            host.name,
            "docker",
            version,
            f"Docker {version or 'of unknown version'} is older than 20.10.",
            "install a newer Docker engine there.",
        )
    if rootless:
        return fail(
            host.name,
            "docker",
            f"{version}, rootless",
            "Docker runs rootless, so the host's network is not within reach of containers.",
            "let this user use the system's engine (group docker).",
        )
    return ok(host.name, "docker", version)


def architecture(host: Host, facts: HostFacts, image: Image | None) -> Finding:
    """The host runs what the image was built for."""
    machine = platform(str(facts.engine.get("Architecture", "")))
    if image is not None and image.architecture and machine != image.architecture:
        return fail(
            host.name,
            "architecture",
            machine,
            f"the host is {machine}, the image {image.tag} is for {image.architecture}.",
            "build the image on a machine like the hosts, or leave this host out of the cluster file.",
        )
    return ok(host.name, "architecture", machine)


def disk(host: Host, facts: HostFacts, image: Image | None, present: bool, shared_bytes: int) -> Finding:
    """There is room for the image where Docker keeps its data."""
    free = facts.disk_free_bytes
    if free is None:
        return warn(host.name, "disk", "unknown", "the host does not say how much disk is free.")
    seen = f"{free / 1e9:.1f} GB free"
    if image is None or present:
        if free < SPACE_MARGIN:
            return fail(host.name, "disk", seen, f"{seen}: no room for records.", _DISK_FIX)
        return ok(host.name, "disk", seen)
    need = space_needed(image, shared_bytes)
    if free < need:
        return fail(
            host.name,
            "disk",
            seen,
            f"{seen} where Docker keeps its data, loading the image needs {need / 1e9:.1f} GB.",
            _DISK_FIX,
        )
    return ok(host.name, "disk", seen)


_DISK_FIX = "free space there (`docker system df`, `docker image prune`)."


def shm(host: Host, facts: HostFacts) -> Finding:
    """Shared memory for the ranks of one host: too little of it ends them with a bus error."""
    if host.shm_bytes is not None:
        return ok(host.name, "shm", f"{host.shm_bytes / 2**30:.1f} GiB")
    free = facts.shm_free_bytes
    if free is None:
        return warn(host.name, "shm", "unknown", "the host does not say how large its /dev/shm is.")
    seen = f"{free / 2**30:.1f} GiB, the host's"
    if free < LOW_SHM_BYTES:
        return fail(
            host.name,
            "shm",
            seen,
            f"only {free / 2**20:.0f} MiB are free in the host's /dev/shm: ranks end with a bus error.",
            'enlarge it, or set shm_size = "2g" in the cluster file.',
        )
    return ok(host.name, "shm", seen)


def clock(host: Host, facts: HostFacts) -> Finding:
    """The host's clock agrees with the controller's, so that logs and records can be put in order."""
    if facts.clock is None:
        return warn(host.name, "clock", "unknown", "the host does not say what time it is.")
    offset, doubt = facts.clock.offset, facts.clock.uncertainty
    sure = max(abs(offset) - doubt, 0.0)
    digits = 0 if sure >= CLOCK_FAIL_SECONDS else 3
    seen = f"{offset:+.{digits}f} s"
    side = "ahead of" if offset > 0 else "behind"
    cause = f"its clock is {abs(offset):.{digits}f} s {side} this machine's (± {doubt:.3f} s)."
    fix = "set up time synchronisation there (`timedatectl set-ntp true`)."
    if sure > CLOCK_FAIL_SECONDS:
        return fail(host.name, "clock", seen, cause, fix)
    if sure > CLOCK_WARN_SECONDS:
        return warn(host.name, "clock", seen, cause, fix)
    return ok(host.name, "clock", seen)


def ports(cluster: Cluster, host: Host, facts: HostFacts, own_container: bool) -> Finding:
    """The ports that the containers will listen on are free, or held by the suite's own container."""
    ssh = cluster.container_ssh_port
    if ssh in facts.listening and not own_container:
        return fail(
            host.name,
            "ports",
            f"{ssh} taken",
            f"port {ssh}, which the sshd in the container needs, is held by {facts.holder(ssh)}.",
            "end that process, or set another container_ssh_port in the cluster file.",
        )
    first, last = cluster.ports
    taken = sorted(port for port in facts.listening if first <= port <= last)
    free = last - first + 1 - len(taken)
    if free < MIN_FREE_PORTS:
        holder = facts.holder(taken[0])
        return fail(
            host.name,
            "ports",
            f"{free} free",
            f"only {free} of the rendezvous ports {first}-{last} are free; {taken[0]} is held by {holder}.",
            "end what holds them, or set another range of ports in the cluster file.",
        )
    return ok(host.name, "ports", f"{ssh}, {first}-{last}" + (f" but {len(taken)}" if taken else ""))


def duplicates(cluster: Cluster, facts: Mapping[str, HostFacts]) -> list[Finding]:
    """No machine stands twice in the cluster file, and no two call themselves the same."""
    engines: dict[tuple[str, str], list[str]] = defaultdict(list)
    names: dict[str, list[str]] = defaultdict(list)
    for host in cluster.hosts:
        if host.name in facts:
            known = facts[host.name]
            engine = str(known.engine.get("ID", ""))
            engines[(engine or f"{known.machine_id} {known.hostname}", known.boot_id)].append(host.name)
            names[known.hostname.lower()].append(host.name)
    found: list[Finding] = []
    for host in cluster.hosts:
        if host.name not in facts:
            continue
        same = next(group for group in engines.values() if host.name in group)
        alike = names[facts[host.name].hostname.lower()]
        called = facts[host.name].hostname
        if len(same) > 1:
            found.append(
                fail(
                    host.name,
                    "duplicates",
                    "same machine",
                    f"{_others(same, host.name)} is the same machine ({called}).",
                    "remove one of them from the cluster file.",
                )
            )
        elif len(alike) > 1 and called:
            found.append(
                fail(
                    host.name,
                    "duplicates",
                    called,
                    f"{_others(alike, host.name)} calls itself {called!r} too.",
                    "give each machine a name of its own (`hostnamectl set-hostname`).",
                )
            )
        else:
            found.append(ok(host.name, "duplicates", called))
    return found


def _others(group: Sequence[str], name: str) -> str:
    return ", ".join(other for other in group if other != name)


def same_image(cluster: Cluster, wanted: Image | None, images: Mapping[str, Image | None]) -> list[Finding]:
    """Every host has the same image; where this machine has it too, that one."""
    there = {name: image for name, image in images.items() if image is not None}
    if not there:
        return [skipped(host.name, "image", "not deployed yet") for host in cluster.hosts if host.name in images]
    reference = wanted or max(there.values(), key=lambda image: sum(image.same_as(other) for other in there.values()))
    found = []
    for host in cluster.hosts:
        if host.name not in images:
            continue
        image = images[host.name]
        if image is None:
            found.append(fail(host.name, "image", "missing", f"it has no image {reference.tag}.", "run `fab deploy`."))
        elif not image.same_as(reference):
            found.append(
                fail(
                    host.name,
                    "image",
                    short_id(image.id),
                    f"its image {image.tag} is {short_id(image.id)}, it should be {short_id(reference.id)}.",
                    "run `fab deploy`.",
                )
            )
        else:
            found.append(ok(host.name, "image", short_id(image.id)))
    return found


def short_id(identifier: str) -> str:
    """The first twelve digits of an image or container ID, as Docker shows it."""
    return identifier.removeprefix("sha256:")[:12]
