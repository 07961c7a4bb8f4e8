"""Images: the one of this machine, what a host has of it, and bringing it there.

An image is known by its ID. Where two engines compute IDs differently (the containerd image store counts the
manifest, the classic one the configuration), equal layers and equal configuration count as the same image.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import docker
import docker.errors
import requests

from suite.cluster.containers import VARIANT
from suite.cluster.engine import Engine, engine_errors
from suite.cluster.fanout import fan_out
from suite.cluster.image_save import Saving
from suite.cluster.image_stream import Tee, compressed, droppable, thin
from suite.cluster.transport import raise_for_status, url
from suite.console import printable
from suite.errors import DeployError, HostError

Progress = Callable[[str], None]
CHUNK = 1 << 20
COMPRESSED_HEAD = 16 << 20
SAVE_SECONDS = 300
SEND_SECONDS = 60
LOAD_SECONDS = 900
REMOVE_SECONDS = 300  # deleting the many files of a large layer takes an engine a while
_REPORT_EVERY = 64 << 20
_PLATFORMS = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm"}


@dataclass(frozen=True)
class Image:
    """An image as an engine describes it. ``layers`` are diff IDs, the base first; sizes in bytes."""

    id: str
    tag: str
    size_bytes: int
    architecture: str
    layers: tuple[str, ...]
    created: str = ""
    config: dict[str, Any] = field(default_factory=dict)

    def same_as(self, other: Image) -> bool:
        """Whether both are the same image, even if their engines name it differently."""
        if self.id == other.id:
            return True
        mine, theirs = self.config, other.config
        keys = ("User", "Env", "Cmd", "Entrypoint", "WorkingDir", "Labels")
        return (
            bool(self.layers)
            and self.layers == other.layers
            and self.created == other.created
            and all((mine.get(key) or None) == (theirs.get(key) or None) for key in keys)
        )


@dataclass(frozen=True)
class Shipped:
    """What went to one host: bytes of the archive that were sent, and layers left out of how many."""

    host: str
    bytes_sent: int
    layers_left_out: int
    layers: int


def platform(machine: str) -> str:
    """The architecture as images name it, of a machine as engines name it."""
    return _PLATFORMS.get(machine, machine)


def describe(client: docker.APIClient, name: str) -> Image | None:
    """The image of that tag or ID; None when the engine has none."""
    try:
        found = client.inspect_image(name)  # type: ignore[no-untyped-call]
    except docker.errors.ImageNotFound:
        return None
    return Image(
        id=str(found["Id"]),
        tag=name,
        size_bytes=int(found.get("Size") or 0),
        architecture=str(found.get("Architecture") or ""),
        layers=tuple((found.get("RootFS") or {}).get("Layers") or ()),
        created=str(found.get("Created") or ""),
        config=dict(found.get("Config") or {}),
    )


def local_image(client: docker.APIClient, tag: str) -> Image:
    """This machine's image of that tag.

    Raises:
        DeployError: there is none, or the engine did not answer.
    """
    try:
        with engine_errors("this machine", f"looking for the image {tag}"):
            found = describe(client, tag)
    except HostError as error:
        raise DeployError(error.message, fix=error.fix) from error
    if found is None:
        raise DeployError(f"This machine has no image {tag}.", fix="build it with `fab build`.")
    return found


def on_host(remote: Engine, image: Image) -> Image | None:
    """The same image on a host, by its ID or else by its tag; None when the host lacks it. Raises HostError."""
    with engine_errors(remote.name, "looking for the image"):
        for name in (image.id, image.tag):
            found = describe(remote.api, name)
            if found is not None and found.same_as(image):
                return found
    return None


def shared_layers(remote: Engine, image: Image) -> tuple[int, int]:
    """(how many of the image's first layers the host has, size of the host's image that has most of them).

    Only a common beginning counts: a layer is stored for what lies below it.
    """
    best, size = 0, 0
    with engine_errors(remote.name, "listing its images"):
        for entry in remote.api.images(all=True):
            found = describe(remote.api, str(entry["Id"]))
            if found is None:
                continue
            pairs = zip(image.layers, found.layers, strict=False)
            common = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
            if common > best:
                best, size = common, found.size_bytes
    return best, size


def saving(local: docker.APIClient, image: Image) -> Saving:
    """Begin to save an image of this machine."""

    def ask() -> requests.Response:
        address = url(local, f"/images/{quote(image.tag, safe='')}/get")
        return local.get(address, stream=True, timeout=(10, SAVE_SECONDS))

    return Saving(ask)


def ship(
    archive: Saving,
    image: Image,
    remotes: Sequence[Engine],
    progress: Progress,
    timeout: float,
    *,
    compress: bool = False,
) -> dict[str, Shipped]:
    """Bring an image to hosts that lack it, in parallel, without the layers that they have.

    Hosts that have the same layers are fed from one ``archive`` of the local engine, no faster than the slowest of
    them reads. Never more than some megabytes are held. ``compress`` halves what is sent, or better, and costs
    the time of one gzip here and one gunzip there: it pays where the link carries less than some 50 MB/s a host.

    Raises:
        SuiteError: the first host that could not be served; the others are served all the same.
    """
    survey = fan_out(remotes, lambda remote: shared_layers(remote, image), 60)
    failed = [answer for answer in survey.values() if isinstance(answer, Exception)]
    groups: dict[int, list[Engine]] = {}
    for remote in remotes:
        answer = survey[remote.name]
        if not isinstance(answer, Exception):
            groups.setdefault(answer[0], []).append(remote)
    shipped: dict[str, Shipped] = {}
    for shared, members in groups.items():
        outcome = _ship_group(archive, image, members, shared, progress, timeout, compress)
        again = [remote for remote in members if shared and isinstance(outcome[remote.name], _Unusable)]
        if again:  # an image store that wants every layer in the archive
            progress(f"{', '.join(r.name for r in again)}: wants the whole archive")
            outcome |= _ship_group(archive, image, again, 0, progress, timeout, compress)
        for name, result in outcome.items():
            if isinstance(result, Exception):
                failed.append(result)
            else:
                shipped[name] = result
    if failed:
        raise failed[0]
    return shipped


class _Unusable(DeployError):
    """The engine took the archive but did not get the image out of it."""


def _ship_group(
    archive: Saving,
    image: Image,
    remotes: Sequence[Engine],
    shared: int,
    progress: Progress,
    timeout: float,
    compress: bool,
) -> dict[str, Shipped | Exception]:
    names = ", ".join(remote.name for remote in remotes)
    left_out = f", without {shared} of {len(image.layers)} layers that are there" if shared else ""
    progress(f"{names}: sending {image.tag}{left_out}")
    with archive.take() as response:
        raise_for_status(response)
        source = thin(response.iter_content(CHUNK), droppable(image.layers[:shared]))
        if compress:
            source = compressed(source)
        elif shared:  # mostly the suite's own code, a few times smaller for some milliseconds
            source = compressed(source, COMPRESSED_HEAD)
        tee = Tee([remote.name for remote in remotes])
        meter = _Meter(names, progress)
        pump = threading.Thread(target=tee.pump, args=(source, meter.add), name="save", daemon=True)
        pump.start()
        try:
            sent = fan_out(remotes, lambda remote: _load(remote, image, tee), timeout)
        finally:
            tee.stop()
            pump.join(10)
    return {
        name: answer if isinstance(answer, Exception) else Shipped(name, answer, shared, len(image.layers))
        for name, answer in sent.items()
    }


def _load(remote: Engine, image: Image, tee: Tee) -> int:
    """Feed one host's engine from the tee; the number of bytes it got."""
    output = tee.output(remote.name)
    try:
        with engine_errors(remote.name, "loading the image"):
            response = remote.api.post(
                url(remote.api, "/images/load"),
                data=output,
                params={"quiet": "1"},
                headers={"Content-Type": "application/x-tar"},
                timeout=(SEND_SECONDS, LOAD_SECONDS),
            )
            raise_for_status(response)
            said = response.text
    finally:
        output.close()
    found = on_host(remote, image)
    if found is None:
        reason = _complaint(said)
        fix = "free disk space there (`docker system df`)." if "no space" in reason else "run `fab deploy` again."
        raise _Unusable(f"{remote.name}: the image is not there after loading it: {reason.rstrip('.')}.", fix=fix)
    return output.sent


def _complaint(said: str) -> str:
    """What an engine's stream of JSON objects says went wrong; its last words where it is no such stream."""
    for line in reversed(said.splitlines()):
        with contextlib.suppress(ValueError):
            found = json.loads(line)
            if isinstance(found, dict) and isinstance(found.get("error"), str):
                return printable(found["error"])
    return printable(said.strip()[-300:]) or "it said nothing"


class _Meter:
    """Says now and then how much of the archive has been read."""

    def __init__(self, names: str, progress: Progress) -> None:
        self._names, self._progress = names, progress
        self._total, self._said = 0, 0

    def add(self, size: int) -> None:
        self._total += size
        if self._total - self._said >= _REPORT_EVERY:
            self._said = self._total
            self._progress(f"{self._names}: {self._total / 1e6:.0f} MB sent to each")


def remove_superseded(remote: Engine) -> None:
    """Remove images of this suite that lost their tag to a newer one. Raises HostError."""
    filters = {"dangling": ["true"], "label": [VARIANT]}
    with engine_errors(remote.name, "removing superseded images"):
        answer = remote.api.post(
            url(remote.api, "/images/prune"), params={"filters": json.dumps(filters)}, timeout=REMOVE_SECONDS
        )
        raise_for_status(answer)


def remove_all(remote: Engine) -> list[str]:
    """Remove every image of this suite that no container uses; their IDs. Raises HostError."""
    removed = []
    with engine_errors(remote.name, "removing images"):
        for entry in remote.api.images(filters={"label": VARIANT}):
            try:
                remote.api.remove_image(entry["Id"], force=True)
            except docker.errors.APIError as error:
                if error.status_code not in (404, 409):
                    raise
            else:
                removed.append(str(entry["Id"]))
    return removed


def total_bytes(shipped: Mapping[str, Shipped]) -> int:
    """Bytes sent to all hosts together."""
    return sum(item.bytes_sent for item in shipped.values())
