"""Files into a container and out of it, as the tar archives that the Docker API speaks.

What comes out is what a host says, so nothing of it is trusted: only plain files count, their names hold no
folder, and there is a limit on their size and number.
"""

from __future__ import annotations

import io
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import IO, cast
from urllib.parse import quote

import docker
import requests

from suite.cluster.transport import raise_for_status, url
from suite.paths import is_safe_name

# The image's user: docker/setup-runtime.sh gives it this number, and the folder below as its home, a volume.
OWNER = (1000, 1000)
VOLUME = "/var/lib/suite"
MAX_FILES = 100_000
_FOLDER_MODE = 0o700
_CHUNK = 256 * 1024


@dataclass(frozen=True)
class File:
    """What goes into a container: content and permissions."""

    data: bytes
    mode: int = 0o600


class ArchiveError(Exception):
    """An archive that came from a host holds what it must not, or too much."""


def pack(files: Mapping[str, File], *, below: str = "", owner: tuple[int, int] = OWNER) -> bytes:
    """A tar archive of files, each under the folder ``below`` (relative, "" for none), with its folders.

    Raises:
        ValueError: a name that would leave the folder.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        made: set[str] = set()
        for name, file in files.items():
            path = f"{below}/{name}" if below else name
            parts = path.split("/")
            if any(part in ("", ".", "..") or "\0" in part for part in parts):
                raise ValueError(f"{path!r} is no relative path")
            for depth in range(1, len(parts)):
                folder = "/".join(parts[:depth])
                if folder not in made:
                    made.add(folder)
                    archive.addfile(_entry(folder, _FOLDER_MODE, owner, tarfile.DIRTYPE))
            entry = _entry(path, file.mode, owner, tarfile.REGTYPE)
            entry.size = len(file.data)
            archive.addfile(entry, io.BytesIO(file.data))
    return buffer.getvalue()


def _entry(name: str, mode: int, owner: tuple[int, int], kind: bytes) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode, entry.mtime = kind, mode, int(time.time())
    entry.uid, entry.gid = owner
    return entry


def unpack(stream: IO[bytes], *, limit_bytes: int, wanted: Callable[[str], bool]) -> dict[str, bytes]:
    """The plain files directly inside the archive's one folder, by name, in one pass.

    Links, devices, files of subfolders and names that ``wanted`` refuses are left out, unread.

    Raises:
        ArchiveError: it is damaged, a name is not a file's name, or there is more than the limits allow.
    """
    found: dict[str, bytes] = {}
    total = 0
    try:
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            for number, entry in enumerate(archive):
                if number >= MAX_FILES:
                    raise ArchiveError(f"holds more than {MAX_FILES} entries")
                folder, _, name = entry.name.rpartition("/")
                if not entry.isreg() or "/" in folder:
                    continue
                if not is_safe_name(name):
                    raise ArchiveError(f"holds a file named {entry.name[:200]!r}")
                if not wanted(name):
                    continue
                total += entry.size
                if total > limit_bytes:
                    raise ArchiveError(f"holds more than {limit_bytes} bytes")
                content = archive.extractfile(entry)
                data = content.read() if content else b""
                if name in found or len(data) != entry.size:
                    raise ArchiveError(f"holds {name!r} twice or cut short")
                found[name] = data
    except (tarfile.TarError, ValueError, OverflowError, EOFError) as error:
        raise ArchiveError(f"is damaged: {error}") from error
    return found


def put(client: docker.APIClient, container: str, folder: str, files: Mapping[str, File]) -> None:
    """Write files into ``folder`` of a container, making it if need be; it lies in the volume.

    Raises:
        ValueError: ``folder`` lies elsewhere.
        docker.errors.APIError, requests.exceptions.RequestException: the engine refused or did not answer.
    """
    root, _, below = folder.partition(VOLUME)
    if root or (below and not below.startswith("/")):
        raise ValueError(f"{folder} does not lie in {VOLUME}")
    response = client.put(
        url(client, f"/containers/{quote(container, safe='')}/archive"),
        params={"path": VOLUME},
        data=pack(files, below=below.strip("/")),
        headers={"Content-Type": "application/x-tar"},
        timeout=client.timeout,
    )
    raise_for_status(response)


def fetch(
    client: docker.APIClient,
    container: str,
    folder: str,
    *,
    limit_bytes: int,
    wanted: Callable[[str], bool] = is_safe_name,
    timeout: float,
) -> dict[str, bytes]:
    """The plain files directly in ``folder`` of a container, by name, no more than ``limit_bytes`` in all.

    Raises:
        docker.errors.NotFound: there is no such folder or container.
        ArchiveError: what came cannot be trusted or is too much.
        TimeoutError: it took more than ``timeout`` seconds.
        docker.errors.APIError, requests.exceptions.RequestException: the engine refused or did not answer.
    """
    deadline = time.monotonic() + timeout
    response = client.get(
        url(client, f"/containers/{quote(container, safe='')}/archive"),
        params={"path": folder},
        stream=True,
        timeout=min(client.timeout, timeout),
    )
    with response:
        raise_for_status(response)
        # Archive overhead: a header and padding per file, so the raw limit is looser than that on contents.
        stream = _Bounded(response, limit_bytes * 2 + 1024 * 1024 * 64, deadline)
        return unpack(cast("IO[bytes]", stream), limit_bytes=limit_bytes, wanted=wanted)


class _Bounded:
    """The body of an answer as a file, with an end: so many bytes, so much time."""

    def __init__(self, response: requests.Response, limit: int, deadline: float) -> None:
        self._chunks: Iterator[bytes] = response.iter_content(_CHUNK)
        self._rest = b""
        self._left = limit
        self._deadline = deadline

    def read(self, size: int = -1, /) -> bytes:
        pieces = [self._rest]
        have = len(self._rest)
        while size < 0 or have < size:
            if time.monotonic() > self._deadline:
                raise TimeoutError("the files did not arrive in time")
            chunk = next(self._chunks, b"")
            if not chunk:
                break
            self._left -= len(chunk)
            if self._left < 0:
                raise ArchiveError("is larger than allowed")
            pieces.append(chunk)
            have += len(chunk)
        data = b"".join(pieces)
        if size < 0:
            self._rest = b""
            return data
        self._rest = data[size:]
        return data[:size]
