"""What a check found: one line per host and check, and for each failure one plain cause and one fix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from suite.console import printable
from suite.errors import PreflightError

OK, WARN, FAIL, SKIPPED = "ok", "warn", "fail", "skipped"
# The order in which checks are shown: each needs what stands before it.
CHECKS = (
    "ssh",
    "docker",
    "duplicates",
    "architecture",
    "disk",
    "shm",
    "clock",
    "routes",
    "network",
    "ports",
    "strays",
    "image",
    "names",
    "pairs",
    "gpu driver",
    "gpu model",
    "gpu toolkit",
    "gpu idle",
    "gpu power",
    "gpu links",
    "gpu compat",
)


@dataclass(frozen=True)
class Finding:
    """One check on one host.

    ``seen`` is what was measured, short; ``cause`` and ``fix`` say, for a failure or warning, what is wrong in
    one plain sentence and what to do about it.
    """

    host: str
    check: str
    status: str
    seen: str = ""
    cause: str = ""
    fix: str = ""


def ok(host: str, check: str, seen: str) -> Finding:
    return Finding(host, check, OK, printable(seen))


def warn(host: str, check: str, seen: str, cause: str, fix: str = "") -> Finding:
    return Finding(host, check, WARN, printable(seen), printable(cause), fix)


def fail(host: str, check: str, seen: str, cause: str, fix: str) -> Finding:
    return Finding(host, check, FAIL, printable(seen), printable(cause), fix)


def skipped(host: str, check: str, why: str) -> Finding:
    return Finding(host, check, SKIPPED, printable(why))


def refuse(findings: Sequence[Finding]) -> None:
    """Raise PreflightError when anything failed; the message holds every failure, the fix is the first one's."""
    failures = [finding for finding in findings if finding.status == FAIL]
    if not failures:
        return
    lines = [f"{finding.host}, {finding.check}: {finding.cause}" for finding in failures]
    what = lines[0] if len(lines) == 1 else "\n  ".join([f"{len(lines)} checks failed:", *lines])
    raise PreflightError(what, fix=failures[0].fix)
