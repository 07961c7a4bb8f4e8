"""Which suite this is: the commit of the checkout, or the one stored in the image."""

from __future__ import annotations

import os
import subprocess

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


def _git(root: str, *words: str) -> str:
    done = subprocess.run(["git", "-C", root, *words], capture_output=True, text=True, timeout=10, check=True)
    return done.stdout.strip()
