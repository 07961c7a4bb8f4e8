"""The files of a published bundle, and getting its raw records out again without trusting them.

``results/published/<name>/`` holds what a reader needs and what a doubter needs: tables and report, the summary, the
plan, the ledger, the raw records (``records.tar.xz``), the environment, a software bill of materials, and SHA256SUMS.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import lzma
import re
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from suite import codec
from suite.errors import RecordError
from suite.paths import RunPaths, is_safe_name
from suite.plan import Plan

RECORDS, SUMS, INFO = "records.tar.xz", "SHA256SUMS", "bundle.json"
LARGEST_MEMBER = 1 << 30
LARGEST_TOTAL = 8 << 30
MOST_MEMBERS = 2_000_000
_MEMBER = re.compile(r"launches/([^/]+)/(rank-[0-9]{1,6}\.json)")
_SUM = re.compile(r"([0-9a-f]{64})  ([A-Za-z0-9][A-Za-z0-9._/+-]*)")


_EXTENDED = frozenset(
    (
        *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
        *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.GNUTYPE_SPARSE),
    )
)


class _Plain(tarfile.TarInfo):
    """A header of the plain kind that ``pack_records`` writes.

    Extended ones (pax, GNU) would be read into memory whole, however large, before anybody could look at them.
    """

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Plain:
        found = super().frombuf(buf, encoding, errors)
        if found.type in _EXTENDED:
            raise _ExtendedHeader
        return found


class _ExtendedHeader(Exception):
    """The archive has a header that no bundle has."""


def pack_records(launches: Path, target: Path) -> None:
    """All rank records below ``launches`` as one archive; the same records always give the same bytes."""
    with (
        lzma.open(target, "wb", preset=6) as stream,
        tarfile.open(fileobj=stream, mode="w|", format=tarfile.USTAR_FORMAT) as tar,
    ):
        for path in sorted(launches.glob("*/rank-*.json")):
            member = tarfile.TarInfo(f"launches/{path.parent.name}/{path.name}")
            data = path.read_bytes()
            member.size, member.mode = len(data), 0o644
            tar.addfile(member, io.BytesIO(data))


@contextlib.contextmanager
def unpacked(bundle: Path) -> Iterator[RunPaths]:
    """The bundle's raw data as a run in a temporary folder, which is removed afterwards.

    Raises:
        RecordError: a file is missing, or the archive is damaged or holds anything but rank records.
    """
    with tempfile.TemporaryDirectory(prefix="suite-bundle-") as folder:
        run = RunPaths(Path(folder) / "run")
        run.root.mkdir()
        for name in ("plan.json", "manifest.json"):
            (run.root / name).write_bytes(codec.read_plain(bundle / name))
        unpack_records(bundle / RECORDS, run)
        yield run


def unpack_records(archive: Path, run: RunPaths) -> None:
    """Write the archive's records into a run. Members that are not rank records are refused, whatever they are.

    Raises:
        RecordError: see ``unpacked``.
    """
    total = count = 0
    try:
        with lzma.open(archive, "rb") as stream, tarfile.open(fileobj=stream, mode="r|", tarinfo=_Plain) as tar:
            for member in tar:
                count += 1
                total += max(0, member.size)
                match = _MEMBER.fullmatch(member.name)
                if not match or not member.isreg() or not is_safe_name(match.group(1)):
                    raise RecordError(archive, f"holds {member.name!r}, which is no rank record; nothing was used.")
                if member.size > LARGEST_MEMBER or total > LARGEST_TOTAL or count > MOST_MEMBERS:
                    raise RecordError(archive, f"is larger unpacked than {LARGEST_TOTAL >> 30} GiB; nothing was used.")
                path = run.launch(match.group(1)) / match.group(2)
                path.parent.mkdir(parents=True, exist_ok=True)
                content = tar.extractfile(member)
                assert content is not None  # a regular file has content
                with path.open("xb") as target:
                    target.write(content.read())
    except _ExtendedHeader:
        raise RecordError(archive, "has a header that no bundle of the suite has; nothing was used.") from None
    except (OSError, EOFError, lzma.LZMAError, tarfile.TarError) as error:
        raise RecordError(archive, f"cannot be unpacked: {error}.", fix="get the bundle again.") from None


def load_plan_of_bundle(bundle: Path) -> Plan:
    """The plan of a bundle, to run it again; its hosts are names only.

    Raises:
        RecordError: it cannot be read.
    """
    return codec.read(bundle / "plan.json", Plan)


def odd_entries(bundle: Path) -> list[str]:
    """What a bundle holds that is neither a plain file nor a folder: links, pipes, devices, by path below it."""
    entries = (p for p in bundle.rglob("*") if p.is_symlink() or not (p.is_file() or p.is_dir()))
    return sorted(path.relative_to(bundle).as_posix() for path in entries)


def checksums(bundle: Path) -> dict[str, str]:
    """File → SHA-256 of every file of a bundle but SHA256SUMS itself, by path below the bundle."""
    found = {}
    for path in sorted(p for p in bundle.rglob("*") if p.is_file() and not p.is_symlink()):
        name = path.relative_to(bundle).as_posix()
        if name != SUMS:
            found[name] = sha256(path)
    return found


def sha256(path: Path) -> str:
    """Of a file, read in pieces."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while piece := stream.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def sums_text(sums: Mapping[str, str]) -> str:
    """As ``sha256sum --check`` reads it."""
    return "".join(f"{digest}  {name}\n" for name, digest in sorted(sums.items()))


def read_sums(bundle: Path) -> dict[str, str]:
    """What SHA256SUMS says.

    Raises:
        RecordError: it is missing or not such a file.
    """
    path = bundle / SUMS
    try:
        lines = codec.read_plain(path).decode("ascii").splitlines()
    except UnicodeDecodeError:
        raise RecordError(path, "cannot be read: this is no published bundle.") from None
    found = {}
    for number, line in enumerate(lines, 1):
        match = _SUM.fullmatch(line)
        if not match:
            raise RecordError(path, f"line {number} is no checksum.")
        found[match.group(2)] = match.group(1)
    return found


def report_code() -> str:
    """Digest of the code and templates that turn a summary into text: equal code gives equal text."""
    here = Path(__file__).parent
    sources = [*here.glob("*.py"), *here.glob("templates/*"), here.parent / "analysis" / "wording.py"]
    digest = hashlib.sha256()
    for path in sorted(sources):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
