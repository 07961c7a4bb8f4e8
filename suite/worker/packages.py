"""What is installed where a rank runs: for the bill of materials of a published run."""

from __future__ import annotations

import subprocess
from importlib import metadata
from pathlib import Path

SECONDS = 20


def packages() -> dict[str, str]:
    """Version by package, named as a package URL names it without its version: "deb/debian/libc6", "pypi/torch".

    Both lists are as their own tools tell them; one that does not exist here is left out.
    """
    return {**_debian(), **_python()}


def _debian() -> dict[str, str]:
    words = ["dpkg-query", "--show", "--showformat", "${db:Status-Status} ${Package} ${Version}\n"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    rows = (line.split(" ") for line in done.stdout.splitlines())
    prefix = f"deb/{distribution(Path('/etc/os-release'))}"
    return {f"{prefix}/{row[1]}": row[2] for row in rows if len(row) == 3 and row[0] == "installed"}


def distribution(release: Path) -> str:
    """The distribution's short name, "debian" or "ubuntu", from its os-release file; "debian" where it has none."""
    try:
        lines = release.read_text().splitlines()
    except OSError:
        return "debian"
    return next((line[3:].strip("\"'") for line in lines if line.startswith("ID=")), "debian")


def _python() -> dict[str, str]:
    found = {}
    for each in metadata.distributions():
        name = each.metadata["Name"]
        if name:
            found[f"pypi/{name.replace('_', '-').lower()}"] = each.version
    return dict(sorted(found.items()))
