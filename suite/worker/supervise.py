"""Run a command and leave no descendant behind, whatever it or they do.

``python3 -m suite.worker supervise --deadline SECONDS [--lease] -- COMMAND...``

A launcher that is killed leaves its ranks; a rank that is stopped ignores SIGTERM; a daemon leaves its session.
So this process becomes the reaper of all its descendants (orphans become its children, not init's), ends them
by SIGTERM and after three seconds by SIGKILL, and returns only when none is left.

Exit code: the command's own (128 + N when signal N ended it); 124 at the deadline; 143 or 130 when told to
end by SIGTERM or SIGINT; 129 when the lease ended: with ``--lease`` standard input is held open by the
controller, and its end means that the controller is gone. 127: there is no such command. 2: wrong usage.

Standard library only, and of that only what starts fast.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import selectors
import signal
import sys
import time

EXIT_USAGE = 2
EXIT_DEADLINE = 124
EXIT_NOT_FOUND = 127
EXIT_LEASE = 129
TERM_SECONDS = 3.0
# What SIGKILL has not ended by then hangs in the kernel, e.g. on a dead file server; nothing ends that.
GIVE_UP_SECONDS = 15.0
SCAN_SECONDS = 0.05
_PR_SET_CHILD_SUBREAPER = 36
_USAGE = "usage: python3 -m suite.worker supervise --deadline SECONDS [--lease] -- COMMAND..."


def main(arguments: list[str]) -> int:
    """Parse, run, clean up; returns the exit code."""
    try:
        command, deadline, lease = _parse(arguments)
    except ValueError:
        print(_USAGE, file=sys.stderr)
        return EXIT_USAGE
    return Supervisor(command, deadline, lease).run()


def _parse(arguments: list[str]) -> tuple[list[str], float, bool]:
    """Command, deadline and lease; by hand, since argparse alone would double the start-up time."""
    split = arguments.index("--")
    options, command = arguments[:split], arguments[split + 1 :]
    flag, value = (word for word in options if word != "--lease")
    deadline = float(value)
    if flag != "--deadline" or not deadline > 0 or not command:
        raise ValueError
    return command, deadline, "--lease" in options


class Supervisor:
    """One supervised command.

    Args:
        command: its words.
        deadline: seconds from now after which everything is ended.
        lease: whether the end of standard input ends everything.
    """

    def __init__(self, command: list[str], deadline: float, lease: bool) -> None:
        self._command = command
        self._deadline = time.monotonic() + deadline
        self._lease = lease
        self._child = 0
        self._child_code: int | None = None
        self._ended_by: int | None = None  # the exit code that says why, when it was not the command itself
        self._childless = False

    def run(self) -> int:
        """Start the command and stay until nothing of it is left."""
        _become_subreaper()
        wake, signalled = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(signalled, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, self._on_signal)
        try:
            self._child = os.posix_spawnp(
                self._command[0],
                self._command,
                os.environ,
                file_actions=[(os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0)],
                setsigdef=[signal.SIGPIPE, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD],
            )
        except OSError as error:
            print(f"supervise: {self._command[0]}: {error.strerror}", file=sys.stderr)
            return EXIT_NOT_FOUND
        self._wait(wake)
        self._end_all()
        if self._ended_by is not None:
            return self._ended_by
        return self._child_code if self._child_code is not None else 1

    def _on_signal(self, number: int, _frame: object) -> None:
        if number != signal.SIGCHLD and self._ended_by is None:
            self._ended_by = 128 + number

    def _wait(self, wake: int) -> None:
        """Until the command ends, the deadline passes, the lease ends or a signal says so."""
        with selectors.DefaultSelector() as selector:
            selector.register(wake, selectors.EVENT_READ, None)
            if self._lease and not _register_lease(selector):
                self._ended_by = EXIT_LEASE
            while self._child_code is None and self._ended_by is None:
                remaining = self._deadline - time.monotonic()
                if remaining <= 0:
                    self._ended_by = EXIT_DEADLINE
                    break
                for key, _ in selector.select(remaining):
                    ended = not _drain(key.fd)
                    if key.fd == 0 and ended:
                        self._ended_by = EXIT_LEASE
                self._reap()

    def _reap(self) -> None:
        """Collect every child that has ended, adopted ones too."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._childless = True
                return
            if pid == 0:
                return
            if pid == self._child:
                code = os.waitstatus_to_exitcode(status)
                self._child_code = code if code >= 0 else 128 - code

    def _end_all(self) -> None:
        """SIGTERM to every descendant, SIGKILL to what is left after three seconds, until none is left."""
        told: set[int] = set()
        kill_at = time.monotonic() + TERM_SECONDS
        while True:
            self._reap()
            if self._childless:
                return
            now = time.monotonic()
            kill = now >= kill_at
            alive = descendants(os.getpid())
            if now >= kill_at + GIVE_UP_SECONDS:
                print(f"supervise: cannot end {', '.join(map(str, alive))}", file=sys.stderr)
                return
            for pid in alive:
                if not kill and pid in told:
                    continue
                told.add(pid)
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL if kill else signal.SIGTERM)
            time.sleep(SCAN_SECONDS)


def _become_subreaper() -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        print(f"supervise: prctl: {os.strerror(ctypes.get_errno())}", file=sys.stderr)


def _register_lease(selector: selectors.BaseSelector) -> bool:
    """Watch standard input; False when it is closed already. A file or /dev/null at its end counts so too."""
    try:
        selector.register(0, selectors.EVENT_READ, None)
    except OSError:  # closed; or epoll refuses it, as plain files and /dev/null: nobody holds those as a lease
        return False
    return True


def _drain(fd: int) -> bool:
    """Read what is there; False at the end of the stream."""
    try:
        return os.read(fd, 4096) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def descendants(root: int) -> list[int]:
    """All living descendants of a process, by /proc; zombies and what vanishes meanwhile are left out."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208  # pathlib would double the start-up time
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", "rb") as stream:  # noqa: PTH123
                fields = stream.read().rpartition(b")")[2].split()
        except OSError:
            continue
        if fields[0] != b"Z":
            children.setdefault(int(fields[1]), []).append(int(entry))
    found: list[int] = []
    todo = [root]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found
