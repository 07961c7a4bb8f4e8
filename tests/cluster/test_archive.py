"""Archives from hosts: whatever they hold, only plain files with plain names come out."""

from __future__ import annotations

import contextlib
import io
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suite.cluster.archive import ArchiveError, File, pack, unpack


def archive(*entries: tuple[str, bytes, bytes]) -> io.BytesIO:
    """A tar archive of (name, type, content)."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, kind, data in entries:
            info = tarfile.TarInfo(name)
            info.type, info.size, info.linkname = kind, len(data), "/etc/passwd"
            tar.addfile(info, io.BytesIO(data))
    buffer.seek(0)
    return buffer


def taken(*entries: tuple[str, bytes, bytes], limit: int = 1000) -> dict[str, bytes]:
    return unpack(archive(*entries), limit_bytes=limit, wanted=lambda name: True)


def test_plain_files_of_the_one_folder_come_out() -> None:
    assert taken(
        ("run", tarfile.DIRTYPE, b""),
        ("run/rank-0.json", tarfile.REGTYPE, b"{}"),
        ("run/sub", tarfile.DIRTYPE, b""),
        ("run/sub/deep", tarfile.REGTYPE, b"no"),
        ("run/link", tarfile.SYMTYPE, b""),
        ("run/hard", tarfile.LNKTYPE, b""),
        ("run/device", tarfile.CHRTYPE, b""),
        ("run/pipe", tarfile.FIFOTYPE, b""),
    ) == {"rank-0.json": b"{}"}


@pytest.mark.parametrize("name", ["run/..", "..", "run/.hidden", "run/a\nb", "run/<script>", "run/a b", "run/$(id)"])
def test_a_name_that_is_no_plain_name_is_refused(name: str) -> None:
    with pytest.raises(ArchiveError, match="holds a file named"):
        taken((name, tarfile.REGTYPE, b""))


def test_a_name_twice_is_refused() -> None:
    with pytest.raises(ArchiveError, match="twice"):
        taken(("run/a", tarfile.REGTYPE, b"1"), ("run/a", tarfile.REGTYPE, b"2"))


def test_more_than_the_limit_is_refused_before_it_is_read() -> None:
    with pytest.raises(ArchiveError, match="more than 10 bytes"):
        taken(("run/a", tarfile.REGTYPE, b"123456"), ("run/b", tarfile.REGTYPE, b"123456"), limit=10)


def test_an_archive_cut_short_is_refused() -> None:
    whole = archive(("run/a", tarfile.REGTYPE, b"x" * 2000)).getvalue()
    with pytest.raises(ArchiveError):
        unpack(io.BytesIO(whole[:1500]), limit_bytes=10_000, wanted=lambda name: True)


@given(st.binary(max_size=2000))
def test_any_bytes_give_files_or_the_one_error(data: bytes) -> None:
    with contextlib.suppress(ArchiveError):
        assert isinstance(unpack(io.BytesIO(data), limit_bytes=1000, wanted=lambda name: True), dict)


@given(st.data())
def test_a_damaged_archive_gives_files_or_the_one_error(data: st.DataObject) -> None:
    whole = bytearray(archive(("run", tarfile.DIRTYPE, b""), ("run/a", tarfile.REGTYPE, b"x" * 600)).getvalue()[:3072])
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ArchiveError):
        unpack(io.BytesIO(bytes(whole)), limit_bytes=10_000, wanted=lambda name: True)


def test_what_is_packed_has_folders_owner_and_modes() -> None:
    packed = pack({"a": File(b"1"), "b/c": File(b"22", 0o644)}, below="ssh", owner=(7, 8))
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        shown = [(entry.name, oct(entry.mode), entry.uid, entry.gid, entry.size) for entry in tar]
    assert shown == [
        ("ssh", "0o700", 7, 8, 0),
        ("ssh/a", "0o600", 7, 8, 1),
        ("ssh/b", "0o700", 7, 8, 0),
        ("ssh/b/c", "0o644", 7, 8, 2),
    ]


@pytest.mark.parametrize("name", ["../a", "a/../../b", "/a", "", "a//b", "a\0b"])
def test_nothing_is_packed_outside_its_folder(name: str) -> None:
    with pytest.raises(ValueError, match="no relative path"):
        pack({name: File(b"")}, below="ssh")
