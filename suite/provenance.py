"""Which suite this is: the commit of the checkout, or the one stored in the image."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

from suite.paths import project_root

UNKNOWN = "unknown"


def commit() -> tuple[str, bool]:
    """(commit, whether the tree differs from it). Unknown where there is neither git nor a stored commit."""
    stored = os.environ.get("SUITE_COMMIT", "")
    if stored:
        return stored.removesuffix("+dirty"), stored.endswith("+dirty")
    root = str(project_root())
    try:
        head = _git(root, "rev-parse", "HEAD")
        changed = _git(root, "status", "--porcelain", "--", "suite", "docker", "tasks.py")
    except (OSError, subprocess.SubprocessError):
        return UNKNOWN, False
    return head, bool(changed)


def code_digest() -> str:
    """Short SHA-256 of the code that a worker runs: the modules of ``suite`` itself and of ``suite.worker``.

    The controller compares its own with its hosts': an image that was built from other files would measure
    something else than the record says.
    """
    root = Path(__file__).resolve().parent
    found = hashlib.sha256()
    for path in sorted([*root.glob("*.py"), *(root / "worker").glob("*.py")]):
        data = path.read_bytes()
        found.update(f"{path.relative_to(root)} {len(data)}\n".encode() + data)
    return found.hexdigest()[:16]


def _git(root: str, *words: str) -> str:
    done = subprocess.run(["git", "-C", root, *words], capture_output=True, text=True, timeout=10, check=True)
    return done.stdout.strip()
