"""What a campaign says while it works: which launch of how many, elapsed, remaining, and each failure."""

from __future__ import annotations

from collections.abc import Callable

from suite.console import duration
from suite.plan import Slot
from suite.records import Failure, LaunchOutcome


class Announcer:
    """Progress as lines. ``line`` writes one; the rest says what happens in words."""

    def __init__(self, line: Callable[[str], None]) -> None:
        self.line = line

    def start(self, slot: Slot, place: tuple[int, int], remaining: float | None, elapsed: float) -> None:
        """A launch begins: ``place`` is its number and the number expected in all."""
        left = f", about {duration(remaining)} left" if remaining is not None else ""
        number, total = place
        self.line(f"[{number}/{total}] {describe(slot)} ({duration(elapsed)} elapsed{left})")

    def end(self, outcome: LaunchOutcome) -> None:
        """A launch ended; a failure is told in full, at once."""
        if outcome.failure is None:
            self.line(f"       done in {outcome.wall_seconds:.1f} s")
            return
        for text in failure_lines(outcome.failure):
            self.line("       " + text)


def describe(slot: Slot) -> str:
    """A slot in words."""
    if slot.kind == "pilot":
        return f"{slot.workload} · {slot.arm} · pilot · world size {slot.world_size}"
    if slot.kind == "single":
        return f"{slot.workload} · one process, no DDP · block {slot.block + 1}"
    if slot.kind == "article":
        return f"{slot.workload} · {slot.arm} · the published protocol · world size {slot.world_size}"
    return f"{slot.workload} · {slot.arm} · block {slot.block + 1} · world size {slot.world_size}"


def failure_lines(failure: Failure) -> list[str]:
    """A failure: host, rank, stage and cause; the fix; the last lines of the log."""
    rank = f", rank {failure.rank}" if failure.rank is not None else ""
    lines = [f"FAILED at {failure.stage} on {failure.host or 'the controller'}{rank}: {failure.cause}"]
    if failure.fix:
        lines.append(f"Fix: {failure.fix}.")
    lines += [f"| {line}" for line in failure.log_tail]
    return lines
