"""The one place that writes: progress and errors to stderr, tables to stdout."""

from __future__ import annotations

import re
import sys
import time

from suite.errors import SuiteError

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    """``text`` without control characters: what a host or a file says must not steer the terminal."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def say(text: str) -> None:
    """One line of progress, on stderr."""
    print(printable(text), file=sys.stderr, flush=True)


def out(text: str) -> None:
    """A table or report, on stdout. The caller made it safe: it may hold colour."""
    line = text if text.endswith("\n") else text + "\n"
    try:
        sys.stdout.write(line)
    except UnicodeEncodeError:  # a terminal or locale that lacks a sign of the table
        encoding = sys.stdout.encoding
        sys.stdout.write(line.encode(encoding, "replace").decode(encoding))
    sys.stdout.flush()


def error(problem: SuiteError) -> None:
    """An error: what was seen, then what to do."""
    say(f"Error: {problem.message}")
    if problem.fix:
        say(f"  Fix: {problem.fix}")


def duration(seconds: float) -> str:
    """Seconds for a progress line: "7 s", "3 min 20 s", "1 h 05 min"."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


class Stopwatch:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._start
