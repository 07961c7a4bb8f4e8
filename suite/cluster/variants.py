"""The variants of the image: ``docker/variants/<variant>.toml``, what each is built from and what of that is pinned."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from suite.errors import ConfigurationError, UsageError
from suite.paths import is_safe_name

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover - the same parser under its older name
    import tomli as tomllib

REPOSITORY = "ddp-backend-suite"
VARIANTS = "docker/variants"
DEFAULT_DEADLINE_SECONDS = 3600
_ARGUMENT = re.compile(r"^ARG\s+([A-Z][A-Z0-9_]*)", re.MULTILINE)
_KEYS = {"dockerfile", "buildkit", "deadline_seconds"}


@dataclass(frozen=True)
class Variant:
    """One image: its Dockerfile, relative to the project; the build's arguments; how long it may take."""

    name: str
    dockerfile: str
    buildkit: bool
    deadline_seconds: float
    arguments: dict[str, str] = field(default_factory=dict)

    @property
    def tag(self) -> str:
        """What the image is called."""
        return f"{REPOSITORY}:{self.name}"


def variants(root: Path) -> tuple[str, ...]:
    """The names of all variants there are."""
    return tuple(sorted(path.stem for path in (root / VARIANTS).glob("*.toml")))


def load_variant(root: Path, name: str) -> Variant:
    """Read a variant's file.

    Raises:
        UsageError: there is none of that name; lists those there are.
        ConfigurationError: it cannot be used.
    """
    path = root / VARIANTS / f"{name}.toml"
    if not is_safe_name(name) or not path.is_file():
        raise UsageError(
            f"--variant {name}: there is no {VARIANTS}/{name}.toml.", fix=f"use one of {', '.join(variants(root))}."
        )
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(path, "", f"is no TOML: {error}.", fix="correct that line.") from None
    image: Any = document.get("image")
    if not isinstance(image, dict) or set(image) - _KEYS or not isinstance(image.get("dockerfile"), str):
        raise ConfigurationError(
            path,
            "[image]",
            f"needs dockerfile, and may have {', '.join(sorted(_KEYS - {'dockerfile'}))}, nothing else.",
            fix=f"see {VARIANTS}/cuda.toml.",
        )
    deadline = image.get("deadline_seconds", DEFAULT_DEADLINE_SECONDS)
    if not isinstance(deadline, int) or isinstance(deadline, bool) or deadline <= 0:
        raise ConfigurationError(path, '[image], key "deadline_seconds"', "is no whole number of seconds.")
    if not (root / image["dockerfile"]).is_file():
        raise ConfigurationError(path, '[image], key "dockerfile"', f"there is no {image['dockerfile']}.")
    given = document.get("arguments", {})
    if not isinstance(given, dict) or not all(isinstance(value, str) for value in given.values()):
        raise ConfigurationError(path, "[arguments]", "holds something that is no text.", fix="put it into quotes.")
    return Variant(
        name=name,
        dockerfile=image["dockerfile"],
        buildkit=bool(image.get("buildkit", False)),
        deadline_seconds=float(deadline),
        arguments=given,
    )


def refuse_unknown(root: Path, variant: Variant, arguments: Mapping[str, str]) -> None:
    """Docker only warns about an argument that no stage takes, and builds something else than was meant."""
    known = set(_ARGUMENT.findall((root / variant.dockerfile).read_text(encoding="utf-8")))
    unknown = sorted(set(arguments) - known)
    if unknown:
        raise ConfigurationError(
            root / VARIANTS / f"{variant.name}.toml",
            "[arguments]",
            f"{variant.dockerfile} takes no {', '.join(unknown)}.",
            fix=f"it takes {', '.join(sorted(known))}.",
        )
