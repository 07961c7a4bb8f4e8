"""The table of ``check``: checks down, hosts across; below it one cause and one fix per failure and warning."""

from __future__ import annotations

from collections.abc import Sequence

from tabulate import tabulate

from suite.cluster.findings import CHECKS, FAIL, OK, SKIPPED, WARN, Finding

_MARKS = {OK: "ok", WARN: "WARN", FAIL: "FAIL", SKIPPED: "–"}
_WIDTH = 22
# Checks whose value is worth a cell even when all is well.
_SHOWN = ("docker", "architecture", "disk", "clock", "image", "gpu driver", "gpu model", "gpu power")


def check_table(findings: Sequence[Finding]) -> str:
    """The findings as text that ends in a newline."""
    hosts = list(dict.fromkeys(finding.host for finding in findings))
    by_place = {(finding.host, finding.check): finding for finding in findings}
    rows = [
        [check, *(_cell(by_place.get((host, check))) for host in hosts)]
        for check in CHECKS
        if any((host, check) in by_place for host in hosts)
    ]
    lines = [tabulate(rows, headers=["check", *hosts], tablefmt="plain", disable_numparse=True)]
    for status, title in ((FAIL, "FAIL"), (WARN, "Warning")):
        for finding in findings:
            if finding.status == status:
                lines.append(f"{title}: {finding.host}, {finding.check}: {finding.cause or finding.seen}")
                if finding.fix:
                    lines.append(f"  Fix: {finding.fix}")
    failed = sum(finding.status == FAIL for finding in findings)
    lines.append(_verdict(failed, sum(finding.status == WARN for finding in findings), len(hosts)))
    notes = _interfaces(findings, len(hosts))
    return "\n".join([*lines[:1], *notes, *lines[1:]]) + "\n"


def _interfaces(findings: Sequence[Finding], hosts: int) -> list[str]:
    """Why each host uses which interface; hosts with the same reason share a line."""
    by_reason: dict[str, list[str]] = {}
    for finding in findings:
        if finding.check == "routes" and finding.status == OK and ":" in finding.seen:
            by_reason.setdefault(finding.seen, []).append(finding.host)
    return [
        f"Every host uses {reason}." if len(names) == hosts > 1 else f"{', '.join(names)}: {reason}."
        for reason, names in by_reason.items()
    ]


def _cell(finding: Finding | None) -> str:
    if finding is None:
        return ""
    mark = _MARKS[finding.status]
    if finding.status == OK and finding.check in _SHOWN and finding.seen:
        return finding.seen if len(finding.seen) <= _WIDTH else finding.seen[: _WIDTH - 1] + "…"
    return mark


def _verdict(failed: int, warned: int, hosts: int) -> str:
    if failed:
        return f"{failed} check{'s' if failed > 1 else ''} failed on {hosts} hosts."
    extra = f", {warned} warning{'s' if warned > 1 else ''}" if warned else ""
    return f"{hosts} host{'s are' if hosts > 1 else ' is'} fit{extra}."
