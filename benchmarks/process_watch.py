"""When processes of this machine, those inside containers included, began and ended, on one clock.

Simulated hosts run on this machine's kernel, so their processes are in its own ``/proc``: a launch can be seen
whole, without a program inside a container that would disturb it. Beginnings are the kernel's (to 10 ms),
ends come from a pidfd, both in seconds of CLOCK_BOOTTIME. What lives shorter than the scan's interval may be
missed; a rank and its launchers do not.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

SCAN_SECONDS = 0.03
# A process that was forked gets its own command line a little later.
YOUNG_SECONDS = 3.0


def now() -> float:
    """The clock of this module."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass
class Life:
    """A process: the kind whose mark its command line holds, its beginning and end, and that command line."""

    kind: str
    pid: int
    began: float
    command: str = ""
    ended: float | None = None


class ProcessWatch:
    """Watches, from ``with`` to its end, for processes by marks in their command lines.

    Args:
        kinds: (kind, word) pairs: a process whose words hold the word is of that kind; the first one counts.
    """

    def __init__(self, kinds: Sequence[tuple[str, str]]) -> None:
        self._kinds = kinds
        self._lives: dict[int, Life] = {}
        self._fds: dict[int, int] = {}  # pidfd -> pid
        self._young: dict[int, float] = {}
        self._known: set[int] = set()
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._ticks = os.sysconf("SC_CLK_TCK")
        self._thread = threading.Thread(target=self._watch, name="process-watch", daemon=True)

    def __enter__(self) -> ProcessWatch:
        self._known = _pids()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(5)
        for fd in self._fds:
            os.close(fd)

    def take(self) -> list[Life]:
        """The lives that have ended since the last call; those that go on stay."""
        time.sleep(2 * SCAN_SECONDS)  # an end just now is seen by then
        with self._lock:
            over = [life for life in self._lives.values() if life.ended is not None]
            for life in over:
                del self._lives[life.pid]
            return over

    def _watch(self) -> None:
        while not self._stop.is_set():
            with self._lock:
                self._scan()
            poller = select.poll()
            for fd in self._fds:
                poller.register(fd, select.POLLIN)
            started = now()
            events = poller.poll(SCAN_SECONDS * 1000)
            ended = now()
            with self._lock:
                for fd, _ in events:
                    life = self._lives.get(self._fds.pop(fd))
                    os.close(fd)
                    if life is not None:
                        life.ended = ended
            self._stop.wait(max(0.0, SCAN_SECONDS - (now() - started)) if events else 0)

    def _scan(self) -> None:
        found = _pids()
        for pid in found - self._known:
            self._young[pid] = now()
        self._known = found
        for pid, seen in list(self._young.items()):
            if pid not in found or now() - seen > YOUNG_SECONDS or self._adopt(pid):
                del self._young[pid]

    def _adopt(self, pid: int) -> bool:
        """Whether the process is one to watch; then it is watched from now on."""
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
            kind = next((kind for kind, word in self._kinds if word in words), None)
            if kind is None:
                return False
            fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
            self._fds[os.pidfd_open(pid)] = pid
        except OSError:  # gone already
            return False
        self._lives[pid] = Life(kind, pid, int(fields[19]) / self._ticks, " ".join(words))
        return True


def _pids() -> set[int]:
    return {int(name) for name in os.listdir("/proc") if name.isdigit()}  # noqa: PTH208 - half the time of pathlib
