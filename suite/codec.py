"""Reading the suite's JSON back into its dataclasses, strictly, with errors that name file and place."""

from __future__ import annotations

import json
import math
import stat
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from suite.errors import RecordError
from suite.records import FORMAT_VERSION, RankRecord

T = TypeVar("T")

MAX_RECORD_BYTES = 1 << 30  # a longer file is damage or an attack, not a record


def decode(data: bytes, kind: type[T], source: object, *, version: int | None = FORMAT_VERSION) -> T:
    """Decode one JSON document of the suite.

    Args:
        data: the document.
        kind: the dataclass it must be.
        source: the file's name, for messages.
        version: the format it must carry; None for documents without one.

    Raises:
        RecordError: truncated, not JSON, of another version, or not of that shape; says where.
    """
    if version is not None:
        _check_version(data, kind, source, version)
    try:
        value = msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        raise RecordError(source, f"not a {kind.__name__}: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RecordError(source, f"truncated or damaged: {error}", fix=_remedy(kind)) from None
    return value


def _remedy(kind: type) -> str:
    """Hosts keep ranks' records; a plan or a ledger is on the controller only."""
    if kind is RankRecord:
        return "collect it again from its host."
    return "restore it from a copy of the run: no command can make it again."


def _check_version(data: bytes, kind: type, source: object, version: int) -> None:
    class Versioned(msgspec.Struct):
        format: int | None = None

    try:
        found = msgspec.json.decode(data, type=Versioned).format
    except msgspec.ValidationError as error:
        raise RecordError(source, f"not a record of this suite: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RecordError(source, f"truncated or damaged: {error}", fix=_remedy(kind)) from None
    if found != version:
        raise RecordError(
            source,
            f"has format {found}, this suite reads format {version}.",
            fix="read it with the version of the suite that wrote it.",
        )


def read(path: Path, kind: type[T], *, version: int | None = FORMAT_VERSION) -> T:
    """Read and decode one file. Raises RecordError, naming the file, whatever is wrong with it."""
    return decode(read_plain(path), kind, path, version=version)


def read_plain(path: Path, source: object = None) -> bytes:
    """The bytes of a plain file; what would block or never end (a pipe, a device) is not opened.

    Args:
        source: the file's name, for messages; default: its path.

    Raises:
        RecordError: there is none, it is something else, it is too large, or it cannot be read.
    """
    name = path if source is None else source
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise RecordError(name, "is no plain file.")
        if found.st_size > MAX_RECORD_BYTES:
            raise RecordError(name, f"is larger than {MAX_RECORD_BYTES} bytes.")
        return path.read_bytes()
    except OSError as error:
        raise RecordError(name, f"cannot be read: {error.strerror or error}.") from None


def encode(value: Any, *, indent: int | None = None) -> bytes:
    """A dataclass (or plain value) as JSON, with a final newline.

    Raises:
        ValueError: it holds NaN or infinity, which JSON has no way to say.
    """
    plain = msgspec.to_builtins(value)
    _refuse_non_finite(plain)
    if indent is None:
        return msgspec.json.encode(plain) + b"\n"
    return (json.dumps(plain, indent=indent, allow_nan=False, ensure_ascii=False) + "\n").encode()


def _refuse_non_finite(value: Any) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("a record may not hold NaN or infinity")
    if isinstance(value, dict):
        for item in value.values():
            _refuse_non_finite(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _refuse_non_finite(item)
