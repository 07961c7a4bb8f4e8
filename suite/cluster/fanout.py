"""The same work for every host at once, with every outcome collected before anything is raised."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

from suite.errors import HostError, SuiteError


class Named(Protocol):
    """Anything with a host's name."""

    @property
    def name(self) -> str: ...


H = TypeVar("H", bound=Named)
R = TypeVar("R")

# How long the main thread sleeps at most, so that Ctrl-C is heard everywhere.
_SLICE_SECONDS = 0.5


def fan_out(hosts: Sequence[H], function: Callable[[H], R], timeout: float) -> dict[str, R | Exception]:
    """Call ``function`` for every host in a thread of its own; host name -> result or exception, in order.

    A host that has not ended after ``timeout`` seconds gets a HostError; its thread is left behind (it is a
    daemon, and every call in it has a deadline of its own). Ctrl-C is let through at once.
    """
    answers: queue.SimpleQueue[tuple[str, R | Exception]] = queue.SimpleQueue()

    def work(host: H) -> None:
        try:
            answers.put((host.name, function(host)))
        except Exception as error:
            answers.put((host.name, error))

    for host in hosts:
        threading.Thread(target=work, args=(host,), name=f"host-{host.name}", daemon=True).start()
    deadline = time.monotonic() + timeout
    outcome: dict[str, R | Exception] = {}
    while len(outcome) < len(hosts):
        left = deadline - time.monotonic()
        if left <= 0:
            break
        try:
            name, answer = answers.get(timeout=min(left, _SLICE_SECONDS))
        except queue.Empty:
            continue
        outcome[name] = answer
    for host in hosts:
        if host.name not in outcome:
            outcome[host.name] = HostError(
                host.name, f"had not ended after {timeout:g} s.", fix="see whether it is overloaded or hangs."
            )
    return {host.name: outcome[host.name] for host in hosts}


class Begun:
    """Work of hosts that has to be over before it can be undone; once given up, none begins.

    Ctrl-C may come before ``fan_out`` has started every thread: a host that never began is not waited for.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._given_up = False
        self._ended: dict[str, threading.Event] = {}

    @contextlib.contextmanager
    def work(self, name: str) -> Iterator[None]:
        """One host's work. Raises HostError instead when it has been given up."""
        with self._lock:
            self._refuse(name)
            ended = self._ended[name] = threading.Event()
        try:
            yield
        finally:
            ended.set()

    def go_on(self, name: str) -> None:
        """Before a step that leaves something behind. Raises HostError when the work has been given up."""
        with self._lock:
            self._refuse(name)

    def _refuse(self, name: str) -> None:
        if self._given_up:
            raise HostError(name, "given up.")

    def give_up(self) -> None:
        """Let nothing begin any more."""
        with self._lock:
            self._given_up = True

    def wait(self, name: str, seconds: float) -> None:
        """Until that host's work is over, if it had begun; at most so long."""
        ended = self._ended.get(name)
        if ended is not None:
            ended.wait(seconds)


def results(outcome: dict[str, R | Exception], doing: str) -> dict[str, R]:
    """The results when every host has one.

    Raises:
        SuiteError: the first host's own error, the others' messages added to it. An error that is not the
            suite's is raised as it is.
    """
    failed = {name: error for name, error in outcome.items() if isinstance(error, Exception)}
    if not failed:
        return {name: value for name, value in outcome.items() if not isinstance(value, Exception)}
    unexpected = next((e for e in failed.values() if not isinstance(e, SuiteError)), None)
    if unexpected is not None:
        raise unexpected
    first, *others = failed.values()
    assert isinstance(first, SuiteError)
    if others:
        rest = "\n".join(f"  also {error.message if isinstance(error, SuiteError) else error}" for error in others)
        first.message += f" ({len(failed)} of {len(outcome)} hosts failed {doing})\n{rest}"
    raise first
