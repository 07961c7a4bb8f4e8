"""Reading the launch's description with nothing but the standard library.

The controller decodes records with a library that GPU machines need not have, so the worker has this small,
strict reader of its own for the one document that it is given.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from pathlib import Path
from typing import Any

from suite.errors import RecordError
from suite.records import FORMAT_VERSION, KINDS, LaunchSpec


def load_spec(path: Path) -> LaunchSpec:
    """The launch that ``path`` (JSON) describes.

    Raises:
        RecordError: unreadable, of another format version, or not a LaunchSpec; names the field.
    """
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise RecordError(path, f"cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        raise RecordError(path, f"is not JSON: {error}.") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT_VERSION:
        found = document.get("format") if isinstance(document, dict) else type(document).__name__
        raise RecordError(
            path,
            f"has format {found}, this worker reads format {FORMAT_VERSION}.",
            fix="deploy the controller's own version of the image.",
        )
    try:
        spec: LaunchSpec = _build(LaunchSpec, document, "")
    except (TypeError, ValueError) as error:
        raise RecordError(path, f"not a LaunchSpec: {error}.") from None
    if spec.kind not in KINDS:
        raise RecordError(path, f"kind {spec.kind!r} is none of {', '.join(KINDS)}.")
    return spec


def _build(kind: Any, value: Any, where: str) -> Any:
    """``value`` (from JSON) as an instance of ``kind``; ``where`` names the field for messages."""
    if dataclasses.is_dataclass(kind):
        return _build_dataclass(kind, value, where)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in arguments:
            return None
        return _build(next(a for a in arguments if a is not type(None)), value, where)
    if origin in (tuple, dict):
        return _build_container(origin, arguments, value, where)
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise TypeError(f"{where} is {type(value).__name__}, not {kind.__name__}")
    return value


def _build_container(origin: Any, arguments: tuple[Any, ...], value: Any, where: str) -> Any:
    if origin is tuple:
        if not isinstance(value, list):
            raise TypeError(f"{where} is {type(value).__name__}, not a list")
        return tuple(_build(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if not isinstance(value, dict):
        raise TypeError(f"{where} is {type(value).__name__}, not an object")
    return {key: _build(arguments[1], item, f"{where}.{key}") for key, item in value.items()}


def _build_dataclass(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise TypeError(f"{where or 'the document'} is {type(value).__name__}, not an object")
    hints = typing.get_type_hints(kind)
    prefix = f"{where}." if where else ""
    unknown = sorted(set(value) - set(hints))
    if unknown:
        raise ValueError(f"{prefix}{unknown[0]} is not a field of {kind.__name__}")
    fields = {name: _build(hints[name], item, prefix + name) for name, item in value.items()}
    missing = [
        f.name
        for f in dataclasses.fields(kind)
        if f.name not in fields and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise ValueError(f"{prefix}{missing[0]} is missing")
    return kind(**fields)
