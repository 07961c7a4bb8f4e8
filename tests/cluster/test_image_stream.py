"""The image archive's stream: thinner, and for several receivers."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import tarfile
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suite.cluster.image_stream import Tee, compressed, droppable, thin

# Layers and their folders in an archive saved by engine 20.10.24 (time zone UTC): the two lowest of an image.
RECORDED_LAYERS = (
    "e0e79e3064036d2724e7ae103e827193a582b02a364dd44231e11f0a13f04e31",
    "698a8d78995e3cb00210cdc973b262f7016296a184fe77afe7f7b0460af88e8e",
)
RECORDED_FOLDERS = (
    "7b8403e5d2275f50507e8ee816862727d482a0992ff6f3600cbc22cc09ffcf83",
    "934cbcaf5322a94a7db0792e1e329e8b610894148008e9edf6404300bdb84373",
)
LONG = "long/" + "x" * 150


def tar(entries: dict[str, bytes], kind: int = tarfile.GNU_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=kind) as archive:
        for name, data in entries.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def contents(data: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return {entry.name: archive.extractfile(entry).read() for entry in archive}  # type: ignore[union-attr]


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


@pytest.mark.parametrize("kind", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("size", [1, 100, 512, 4096, 1 << 20])
def test_what_is_named_is_left_out_and_the_rest_stays_as_it_is(kind: int, size: int) -> None:
    entries = {"a": b"1" * 700, LONG: b"2" * 512, "c/layer.tar": b"3" * 1025, "empty": b"", LONG + "b": b"4"}
    whole = tar(entries, kind)
    left = b"".join(thin(pieces(whole, size), frozenset({LONG, "c/layer.tar"})))
    assert contents(left) == {"a": entries["a"], "empty": b"", LONG + "b": b"4"}
    assert b"".join(thin(pieces(whole, size), frozenset({"none"}))) == whole
    assert b"".join(thin(pieces(whole, size), frozenset())) == whole


def test_an_archive_cut_short_is_an_error_not_a_short_image() -> None:
    whole = tar({"a": b"1" * 5000})
    with pytest.raises(EOFError):
        list(thin([whole[:2000]], frozenset({"x"})))


@given(st.binary(max_size=3000))
def test_any_bytes_end_in_bytes_or_a_known_error(data: bytes) -> None:
    with contextlib.suppress(tarfile.TarError, EOFError):
        list(thin([data], frozenset({"x"})))


def test_layers_are_recognised_by_the_names_that_engines_give_them() -> None:
    names = droppable([f"sha256:{layer}" for layer in RECORDED_LAYERS])
    assert {f"blobs/sha256/{layer}" for layer in RECORDED_LAYERS} <= names  # from engine 25 on
    assert {f"{folder}/layer.tar" for folder in RECORDED_FOLDERS} <= names


@pytest.mark.containers
def test_the_local_engines_own_archive_is_recognised() -> None:
    from suite.cluster.images import describe
    from suite.cluster.transport import local_engine

    client = local_engine(60)
    try:
        container = client.create_container("debian:trixie-slim", ["true"])["Id"]
        try:
            client.put_archive(container, "/", tar({"a-file": b"new"}))
            made = client.commit(container, repository="ddp-suite-test", tag="two-layers")["Id"]
        finally:
            client.remove_container(container)
        try:
            image = describe(client, made)
            assert image is not None
            archive = b"".join(client.get_image("ddp-suite-test:two-layers"))
        finally:
            client.remove_image(made, force=True)
    finally:
        client.close()
    assert len(image.layers) == 2
    assert contents_of_manifest(archive)[0] in droppable(image.layers[:1])


def contents_of_manifest(archive: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        manifest = opened.extractfile("manifest.json")
        assert manifest is not None
        return list(json.load(manifest)[0]["Layers"])


def test_a_compressed_stream_is_gzip_of_the_same_bytes() -> None:
    whole = tar({"a": b"1" * 100_000})
    packed = b"".join(compressed(pieces(whole, 4096)))
    assert gzip.decompress(packed) == whole
    assert len(packed) < len(whole) / 10


@pytest.mark.parametrize("head", [1, 5000, 100_000, 10**9])
def test_only_the_head_of_a_stream_may_be_compressed(head: int) -> None:
    whole = tar({f"f{n}": b"abc" * 20_000 for n in range(10)})
    packed = b"".join(compressed(pieces(whole, 4096), head))
    assert gzip.decompress(packed) == whole
    kept = max(0, len(whole) - head - 4096)
    assert kept <= len(packed) < kept + len(whole) // 20 + 10_000


def test_everyone_gets_every_chunk_and_the_end() -> None:
    tee = Tee(["a", "b"])
    counted: list[int] = []
    chunks = [bytes([n]) * 10 for n in range(50)]
    pump = threading.Thread(target=tee.pump, args=(chunks, counted.append))
    pump.start()
    got: dict[str, bytes] = {}

    def read(name: str) -> None:
        got[name] = b"".join(tee.output(name))

    readers = [threading.Thread(target=read, args=(name,)) for name in ("a", "b")]
    for reader in readers:
        reader.start()
    for thread in (*readers, pump):
        thread.join(10)
    assert got == {"a": b"".join(chunks), "b": b"".join(chunks)}
    assert tee.output("a").sent == sum(counted) == 500


def test_the_source_is_read_no_faster_than_the_slowest_reads() -> None:
    tee = Tee(["fast", "slow"])
    read = 0

    def source() -> Iterator[bytes]:
        nonlocal read
        for _ in range(1000):
            read += 1
            yield b"x"

    threading.Thread(target=tee.pump, args=(source(), lambda size: None), daemon=True).start()
    threading.Thread(target=lambda: b"".join(tee.output("fast")), daemon=True).start()
    time.sleep(0.3)
    assert read < 20
    tee.stop()


def test_a_receiver_that_gives_up_does_not_hold_the_others() -> None:
    tee = Tee(["good", "gone"])
    threading.Thread(target=tee.pump, args=([b"x"] * 100, lambda size: None), daemon=True).start()
    next(tee.output("gone"))
    tee.output("gone").close()
    assert b"".join(tee.output("good")) == b"x" * 100


def test_a_source_that_fails_fails_for_everyone() -> None:
    def source() -> Iterator[bytes]:
        yield b"x"
        raise EOFError("the archive ends too early")

    tee = Tee(["a"])
    threading.Thread(target=tee.pump, args=(source(), lambda size: None), daemon=True).start()
    assert next(tee.output("a")) == b"x"
    with pytest.raises(OSError, match="ends too early"):
        next(tee.output("a"))
