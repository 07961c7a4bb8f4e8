#!/usr/bin/env python3
"""Write this folder's pinned lists ``*.txt`` from the ranges in ``*.in``: versions, and SHA-256 of what pip may take.

    pip install uv && python3 docker/requirements/lock.py

Only files for Linux on x86-64 and the Pythons that torch 2.0.1 and the base images have in common are listed; where
there is no such wheel, the source distribution. Needs ``uv`` and a package index, and is run by hand when a pin has to
move: the build of an image only reads what it wrote.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FOLDER = Path(__file__).resolve().parent
PYTHONS = ("3.10", "3.11")
SOURCE_ONLY = ("mpi4py",)  # its wheels carry no MPI: it is compiled against the image's own
COMPILE_SECONDS = 300.0


def resolve(source: Path, python: str) -> list[dict[str, Any]]:
    """The packages that satisfy one ``*.in`` under one Python, as uv's lock file describes them."""
    with tempfile.TemporaryDirectory() as folder:
        lock = Path(folder) / "pylock.toml"
        command = ["uv", "pip", "compile", "--quiet", "--python-version", python, "--format", "pylock.toml"]
        command += ["--python-platform", "x86_64-manylinux_2_31", "--output-file", str(lock), str(source)]
        for package in SOURCE_ONLY:
            command += ["--no-binary", package]
        subprocess.run(command, check=True, timeout=COMPILE_SECONDS, stdout=subprocess.DEVNULL)
        packages: list[dict[str, Any]] = tomllib.loads(lock.read_text(encoding="utf-8"))["packages"]
    return packages


def hashes(package: dict[str, Any], python: str) -> list[str]:
    """SHA-256 of the files that pip may take on Linux, x86-64, under this Python."""
    tag = "cp" + python.replace(".", "")
    python_tag = rf"(?:{tag}-{tag}|cp3\d+-abi3|(?:py2\.)?py3-none)"
    fits = re.compile(rf"-{python_tag}-(?:any|[\w.]*manylinux[\w.]*x86_64[\w.]*)\.whl$")
    wheels = [] if package["name"] in SOURCE_ONLY else package.get("wheels", [])
    found = [wheel["hashes"]["sha256"] for wheel in wheels if fits.search(wheel.get("name") or wheel["url"])]
    if not found:
        found = [package["sdist"]["hashes"]["sha256"]]
    return sorted(found)


def pinned(source: Path) -> str:
    """The text of one ``*.txt``: one entry per package where all Pythons agree, else one for each."""
    entries: dict[tuple[str, str], dict[str, list[str]]] = {}
    for python in PYTHONS:
        for package in resolve(source, python):
            entries.setdefault((package["name"], package["version"]), {})[python] = hashes(package, python)
    lines = [f"# Written by lock.py from {source.name}: change that, not this."]
    for (name, version), found in sorted(entries.items()):
        pythons = list(found)
        marker = "" if len(pythons) == len(PYTHONS) else f" ; python_version == {json.dumps(pythons[0])}"
        every = sorted({digest for digests in found.values() for digest in digests})
        lines.append(" \\\n    ".join([f"{name}=={version}{marker}", *(f"--hash=sha256:{d}" for d in every)]))
    return "\n".join(lines) + "\n"


def main() -> int:
    for source in sorted(FOLDER.glob("*.in")):
        source.with_suffix(".txt").write_text(pinned(source), encoding="utf-8")
        print(f"wrote {source.with_suffix('.txt').name}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
