"""The values of a cluster file, one kind each: what is accepted, and what is said about the rest."""

from __future__ import annotations

import difflib
import ipaddress
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from suite.policy import VARIABLES, is_settable, looks_secret

Table = dict[str, Any]
_NOT_SETTABLE = {"CUDA_VISIBLE_DEVICES": "devices"}
_HOST_NAME = re.compile(
    r"(?=.{1,253}$)[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*"
)
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,63}")
_INTERFACE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,14}")  # the kernel's limit; no list, no pattern: one plain name
_IMAGE = re.compile(r"[a-z0-9][a-z0-9._/:-]*(?:@sha256:[0-9a-f]{64})?", re.IGNORECASE)
_DEVICE = re.compile(r"\d{1,3}|(?:GPU|MIG)-[0-9A-Za-z/-]{4,80}")
_SIZE = re.compile(r"(\d{1,6})\s*([kmgt])(?:i?b)?", re.IGNORECASE)
_RANGE = re.compile(r"(\d{1,5})\s*-\s*(\d{1,5})")
MIN_RENDEZVOUS_PORTS = 10


class Invalid(Exception):
    """A key or value that cannot be used; whoever knows file and host makes the real error of it."""

    def __init__(self, key: str, message: str, fix: str) -> None:
        super().__init__(message)
        self.key, self.message, self.fix = key, message, fix


def near(word: str, known: Iterable[str], shown: str | None = None) -> str:
    """The advice for an unknown word: the one it resembles, else all of them."""
    words = sorted(known)
    close = difflib.get_close_matches(word, words, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"known: {shown if shown is not None else ', '.join(words)}."


def parse_table(table: dict[str, Any], kinds: dict[str, str], folder: Path) -> Table:
    """The values of a table by key, each of its kind; ``folder`` is the base of relative paths.

    Raises:
        Invalid: the first unknown key or unusable value.
    """
    for key in table:
        if key not in kinds:
            raise Invalid(key, "unknown key.", near(key, kinds))
    parsed: Table = {}
    for key, value in table.items():
        try:
            parsed[key] = _path(value, folder) if kinds[key] == "path" else _KINDS[kinds[key]](value)
        except _Wrong as error:
            raise Invalid(key, f"{_seen(value)} {error.message}", error.fix) from None
    return parsed


class _Wrong(Exception):
    def __init__(self, message: str, fix: str) -> None:
        super().__init__(message)
        self.message, self.fix = message, fix


def _seen(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value or not value.isprintable():
        raise _Wrong("is no text of printable characters.", 'write a text in quotes, e.g. "h1".')
    return value


def _matched(pattern: re.Pattern[str], what: str, example: str) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        text = _text(value)
        if not pattern.fullmatch(text):
            raise _Wrong(f"is no {what}.", f"write it like {example}.")
        return text

    return check


def _integer(value: Any, lowest: int, highest: int, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value <= highest:
        raise _Wrong(f"is no {what}.", f"write an integer from {lowest} to {highest}, without quotes.")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _Wrong("is neither true nor false.", "write true or false, without quotes.")
    return value


def _ip(value: Any) -> str:
    text = _text(value)
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        raise _Wrong("is no IP address.", 'write an address like "198.51.100.11".') from None
    if address.is_unspecified or address.is_multicast or "%" in text:
        raise _Wrong("cannot be the address of a host.", "write the host's own address.")
    return str(address)


def _address(value: Any) -> str:
    text = _text(value)
    try:
        ipaddress.ip_address(text)
    except ValueError:
        # Digits and dots alone are a mistyped address, not a name.
        if not _HOST_NAME.fullmatch(text) or re.fullmatch(r"[0-9.]+", text):
            raise _Wrong(
                "is neither an IP address nor a host name.",
                'write it like "198.51.100.11" or "gpu1.example.org".',
            ) from None
        return text
    return _ip(text)


def _path(value: Any, folder: Path) -> Path:
    text = _text(value)
    try:
        return folder / Path(text).expanduser()
    except RuntimeError:
        raise _Wrong("names the home of a user who does not exist.", "write the whole path.") from None


def _ports(value: Any) -> tuple[int, int]:
    match = _RANGE.fullmatch(_text(value))
    first, last = (int(match.group(1)), int(match.group(2))) if match else (0, 0)
    if not 1024 <= first <= last <= 65535 or last - first + 1 < MIN_RENDEZVOUS_PORTS:
        raise _Wrong(
            "is no range of ports.",
            f'write it like "29500-29999": {MIN_RENDEZVOUS_PORTS} ports or more between 1024 and 65535.',
        )
    return first, last


def _devices(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise _Wrong("is no list.", 'write a list of indices or UUIDs, e.g. [0, 1] or ["GPU-…"].')
    devices = tuple(str(item) for item in value if not isinstance(item, bool))
    if len(devices) < len(value) or not all(_DEVICE.fullmatch(device) for device in devices):
        raise _Wrong("holds something that is no device.", 'write indices or UUIDs, e.g. [0, 1] or ["GPU-…"].')
    if len({device.isdigit() for device in devices}) > 1:
        raise _Wrong("mixes indices and UUIDs.", "name all of a host's devices in one way.")
    if len(set(devices)) < len(devices):
        raise _Wrong("lists a device twice.", "list each device once: one rank has it for itself.")
    return devices


def _shm(value: Any) -> int | None:
    """Bytes; None for the host's own /dev/shm."""
    if value == "host":
        return None
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    size = int(match.group(1)) << {"k": 10, "m": 20, "g": 30, "t": 40}[match.group(2).lower()] if match else 0
    if size < 64 << 20:
        raise _Wrong("is no size of at least 64m.", 'write it like "2g" or "512m", or "host" for the host\'s own.')
    return size


def _environment(value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise _Wrong("is no table.", 'write it like { NCCL_IB_HCA = "mlx5_0" }.')
    for name, text in value.items():
        if name in _NOT_SETTABLE:
            raise _Wrong(f"sets {name}, which the suite sets itself.", f"use the key {_NOT_SETTABLE[name]}.")
        if not is_settable(name):
            raise _Wrong(
                "sets a variable that no record would show.",
                f"use names that begin with {', '.join(VARIABLES)}.",
            )
        if not isinstance(text, str) or not text.isprintable():
            raise _Wrong(f"gives {name} something that is no printable text.", 'write a text in quotes, e.g. "1".')
        if looks_secret(name, text):
            raise _Wrong(
                f"sets {name} to what looks like a password, a token or a key, which would be stored.",
                "keep secrets out of this file: let the program read them from a file on the hosts.",
            )
    return dict(value)


_KINDS: dict[str, Callable[[Any], Any]] = {
    "text": _text,
    "flag": _flag,
    "ip": _ip,
    "address": _address,
    "ports": _ports,
    "devices": _devices,
    "shm": _shm,
    "environment": _environment,
    "port": lambda value: _integer(value, 1, 65535, "port"),
    "count": lambda value: _integer(value, 1, 1024, "number of ranks"),
    "user": _matched(_USER, "account name", '"bench"'),
    "interface": _matched(_INTERFACE, "single interface name", '"enp65s0"'),
    "image": _matched(_IMAGE, "image name", '"ddp-backend-suite:cpu"'),
}
