"""Telling a first cause from the echo of a peer's death, and putting an exception into one plain line."""

from __future__ import annotations

import re

from suite.errors import SuiteError

# What gloo, nccl, mpi and the store say when the other side is gone or does not answer. None of these is a
# first cause on the rank that says it: the rank that died, or the host that is stuck, has it.
_PEER = re.compile(
    r"connection (was )?(closed|reset|refused)|closed by peer|reset by peer|broken pipe|timed? ?out|timeout"
    r"|remote process|remote error|ncclSystemError|ncclRemoteError|aborted communicator|watchdog"
    r"|failed to recv|failed to send|recvValueWithTimeout|connectFullMesh|socket is closed"
    r"|rank \d+ .* failed to (reach|pass)",
    re.IGNORECASE,
)
MAX_CAUSE = 500


def is_secondary(error: BaseException) -> bool:
    """Whether an exception is only a peer's death, or silence, seen from here."""
    if isinstance(error, SuiteError):
        return False
    if isinstance(error, (ConnectionError, BrokenPipeError, TimeoutError)):
        return True
    return isinstance(error, RuntimeError) and _PEER.search(str(error)) is not None


def one_line(error: BaseException) -> str:
    """The exception's type and message as one line of bounded length; the type is left out for own errors."""
    text = error.message if isinstance(error, SuiteError) else str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    # torch appends C++ stacks and the "Exception raised from" line: the log has them.
    kept = []
    for line in lines:
        if line.startswith(("Exception raised from", "frame #", "C++ CapturedTraceback")):
            break
        kept.append(line)
    message = " ".join(kept)[:MAX_CAUSE]
    if isinstance(error, SuiteError):
        return message
    return f"{type(error).__name__}: {message}" if message else type(error).__name__
