"""An image's archive, asked for before it is needed."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from types import TracebackType

import requests

Open = Callable[[], requests.Response]


class Saving:
    """The engine's answer to ``save``, begun at once in a thread of its own.

    An engine may work for ten seconds before an archive's first byte; meanwhile the hosts can be looked at. ``take``
    hands the answer out once, and asks again for every further taker. Leaving the ``with`` block gives up one that
    nobody took, even if it comes later.
    """

    def __init__(self, ask: Open) -> None:
        self._ask = ask
        self._lock = threading.Lock()
        self._over = self._taken = False
        self._answer: queue.Queue[requests.Response | Exception] = queue.Queue()
        threading.Thread(target=self._wait, name="save", daemon=True).start()

    def _wait(self) -> None:
        answer: requests.Response | Exception
        try:
            answer = self._ask()
        except Exception as error:
            answer = error
        with self._lock:
            self._answer.put(answer)
            if self._over:
                self._drop()

    def take(self) -> requests.Response:
        """The archive's stream, which the taker closes. Raises what asking for it raised."""
        if self._taken:
            return self._ask()
        self._taken = True
        answer = self._answer.get()  # asking has a deadline of its own
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _drop(self) -> None:
        with contextlib.suppress(queue.Empty):
            answer = self._answer.get_nowait()
            if not isinstance(answer, Exception):
                answer.close()

    def __enter__(self) -> Saving:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self._lock:
            self._over = True
            self._drop()
