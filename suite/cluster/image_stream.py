"""The stream of an image archive: left thinner by the layers that the receiver has, and given to several at once.

An engine that loads an archive looks up every layer by its chain before it opens the layer's file, so files of
layers that it has can be left out. Which file holds which layer is known from the name alone in newer
archives (``blobs/sha256/<diff ID>``); engines before 25 name folders after an older ID, which can be computed
from the layers. A wrong guess costs nothing but bytes: what is not recognised is sent.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import queue
import tarfile
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence

_BLOCK = tarfile.BLOCKSIZE
_QUEUE_CHUNKS = 8
_PUT_SECONDS = 0.5
_GZIP = 31  # zlib's number for the gzip format with the largest window
_EMPTY_CONFIG = {
    "Hostname": "", "Domainname": "", "User": "", "AttachStdin": False, "AttachStdout": False,
    "AttachStderr": False, "Tty": False, "OpenStdin": False, "StdinOnce": False, "Env": None, "Cmd": None,
    "Image": "", "Volumes": None, "WorkingDir": "", "Entrypoint": None, "OnBuild": None, "Labels": None,
}  # fmt: skip


def droppable(layers: Sequence[str]) -> frozenset[str]:
    """The names of the files that hold these layers (diff IDs, the base first) in an image's archive."""
    names = {f"blobs/sha256/{layer.removeprefix('sha256:')}" for layer in layers}
    # The older ID counts the epoch in the engine's own time zone, which is mostly UTC or this machine's.
    local = datetime.datetime.fromtimestamp(0).astimezone().isoformat()
    for epoch in ("1970-01-01T00:00:00Z", local):
        names.update(f"{v1}/layer.tar" for v1 in _v1_ids(layers, epoch))
    return frozenset(names)


def _v1_ids(layers: Sequence[str], epoch: str) -> list[str]:
    """The folder names that engines before 25 give to layers, except an image's topmost."""
    ids: list[str] = []
    chain = ""
    for layer in layers:
        chain = layer if not chain else _sha256(f"{chain} {layer}".encode())
        fields: dict[str, object] = {
            "container_config": _EMPTY_CONFIG,
            "created": epoch,
            "layer_id": chain,
        }
        if ids:
            fields["parent"] = f"sha256:{ids[-1]}"
        ids.append(_sha256(json.dumps(fields, separators=(",", ":")).encode()).removeprefix("sha256:"))
    return ids


def _sha256(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def thin(chunks: Iterable[bytes], drop: frozenset[str]) -> Iterator[bytes]:
    """A tar stream without the entries of these names; everything else byte for byte.

    Raises:
        tarfile.TarError: it is no tar stream.
        EOFError: it ends in the middle of an entry.
    """
    if not drop:
        yield from chunks
        return
    source = _Source(chunks)
    held, override = b"", ""  # extension headers belong to the entry that follows them
    while True:
        header = source.exactly(_BLOCK)
        if header.count(0) == _BLOCK:
            yield held + header
            yield from source.rest()
            return
        entry = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
        padded = -(-entry.size // _BLOCK) * _BLOCK
        if entry.type in (tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK):
            body = source.exactly(padded)
            override = _extended_name(entry, body[: entry.size]) or override
            held += header + body
            continue
        if (override or entry.name).removeprefix("./") in drop:
            for _ in source.pieces(padded):
                pass
        else:
            yield held + header
            yield from source.pieces(padded)
        held, override = b"", ""


def _extended_name(entry: tarfile.TarInfo, body: bytes) -> str:
    if entry.type == tarfile.GNUTYPE_LONGNAME:
        return body.rstrip(b"\0").decode("utf-8", "surrogateescape")
    if entry.type == tarfile.XHDTYPE:
        for record in body.split(b"\n"):
            _, _, pair = record.partition(b" ")
            if pair.startswith(b"path="):
                return pair[5:].decode("utf-8", "surrogateescape")
    return ""


def compressed(chunks: Iterable[bytes], head: int | None = None) -> Iterator[bytes]:
    """The same stream as gzip, at its quickest level; engines recognise it when they load it.

    What comes after the first ``head`` bytes (None: nothing does) is put in as it is, which costs next to no time.
    """
    packer = zlib.compressobj(1, wbits=_GZIP)
    seen = 0
    for chunk in chunks:
        packed = packer.compress(chunk)
        seen += len(chunk)
        if head is not None and seen >= head:
            packed += packer.flush()
            packer = zlib.compressobj(0, wbits=_GZIP)  # gzip files may have several members
            head = None
        if packed:
            yield packed
    yield packer.flush()


class _Source:
    """Chunks of any size, read in the sizes that are needed."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._have = b""

    def pieces(self, size: int) -> Iterator[bytes]:
        """The next ``size`` bytes, as they come."""
        while size:
            if not self._have:
                self._have = next(self._chunks, b"")
                if not self._have:
                    raise EOFError("the archive ends too early")
            piece, self._have = self._have[:size], self._have[size:]
            size -= len(piece)
            yield piece

    def exactly(self, size: int) -> bytes:
        return b"".join(self.pieces(size))

    def rest(self) -> Iterator[bytes]:
        if self._have:
            yield self._have
        yield from self._chunks


class Output:
    """One receiver's side of a ``Tee``: an iterator of chunks that counts what it gave out."""

    def __init__(self) -> None:
        self._queue: queue.Queue[bytes | BaseException | None] = queue.Queue(_QUEUE_CHUNKS)
        self._closed = threading.Event()
        self.sent = 0

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        item = self._queue.get()
        if item is None:
            raise StopIteration
        if isinstance(item, BaseException):
            raise OSError(f"the image could not be read: {item}") from item
        self.sent += len(item)
        return item

    def close(self) -> None:
        """Want no more; the sender goes on with the others."""
        self._closed.set()
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait(None)  # whoever still waits for a chunk need not

    @property
    def closed(self) -> bool:
        return self._closed.is_set()

    def offer(self, item: bytes | BaseException | None) -> None:
        """Wait until there is room, or until nothing more is wanted."""
        while not self._closed.is_set():
            try:
                self._queue.put(item, timeout=_PUT_SECONDS)
            except queue.Full:
                continue
            return


class Tee:
    """One stream for several receivers, at the pace of the slowest that still listens."""

    def __init__(self, names: Sequence[str]) -> None:
        self._outputs = {name: Output() for name in names}

    def output(self, name: str) -> Output:
        """The chunks for one receiver."""
        return self._outputs[name]

    def pump(self, source: Iterable[bytes], passed: Callable[[int], None]) -> None:
        """Give every chunk to everyone, then the end, or the error that cut it short."""
        end: BaseException | None = None
        try:
            for chunk in source:
                for output in self._outputs.values():
                    output.offer(chunk)
                if all(output.closed for output in self._outputs.values()):
                    return
                passed(len(chunk))
        except Exception as error:
            end = error
        for output in self._outputs.values():
            output.offer(end)

    def stop(self) -> None:
        """End it for everyone."""
        for output in self._outputs.values():
            output.close()
