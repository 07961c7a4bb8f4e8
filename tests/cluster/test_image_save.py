"""An image's archive is asked for early, handed out once, and never left open."""

from __future__ import annotations

import threading
import time

import pytest
import requests

from suite.cluster.image_save import Saving


class Answer(requests.Response):
    def __init__(self) -> None:
        super().__init__()
        self.closed = threading.Event()

    def close(self) -> None:
        self.closed.set()


def test_the_archive_is_asked_for_at_once_and_taken_later() -> None:
    asked, answer = threading.Event(), Answer()

    def ask() -> requests.Response:
        asked.set()
        return answer

    with Saving(ask) as saving:
        assert asked.wait(5)  # before anybody takes it
        assert saving.take() is answer
    assert not answer.closed.is_set()  # its taker closes it


def test_a_second_taker_gets_an_archive_of_its_own() -> None:
    answers = [Answer(), Answer()]
    left = list(answers)
    with Saving(lambda: left.pop(0)) as saving:
        assert [saving.take(), saving.take()] == answers


@pytest.mark.parametrize("seconds", [0.0, 0.3])
def test_an_archive_that_nobody_takes_is_given_up_even_when_it_comes_later(seconds: float) -> None:
    answer = Answer()

    def ask() -> requests.Response:
        time.sleep(seconds)
        return answer

    began = time.monotonic()
    with pytest.raises(RuntimeError, match="not fit"), Saving(ask):
        raise RuntimeError("not fit")
    assert time.monotonic() - began < 0.25  # nobody waits for it
    assert answer.closed.wait(5)


def test_what_asking_raised_is_raised_where_it_is_taken() -> None:
    def ask() -> requests.Response:
        raise requests.ConnectionError("gone")

    with Saving(ask) as saving, pytest.raises(requests.ConnectionError, match="gone"):
        saving.take()
