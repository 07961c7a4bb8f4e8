"""An image's archive, asked for before it is needed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
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
        self._taken = False
        self._answer: Future[requests.Response] = Future()
        # No executor: the interpreter would wait for its threads at the end.
        threading.Thread(target=self._wait, name="save", daemon=True).start()

    def _wait(self) -> None:
        try:
            answer = self._ask()
        except Exception as error:
            self._answer.set_exception(error)
        else:
            self._answer.set_result(answer)

    def take(self) -> requests.Response:
        """The archive's stream, which the taker closes. Raises what asking for it raised."""
        if self._taken:
            return self._ask()
        self._taken = True
        return self._answer.result()  # asking has a deadline of its own

    def __enter__(self) -> Saving:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if not self._taken:
            self._answer.add_done_callback(_close)  # at once, if it is there


def _close(answer: Future[requests.Response]) -> None:
    if answer.exception() is None:
        answer.result().close()
