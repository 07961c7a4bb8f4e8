"""The same for every host at once."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

import pytest

from suite.cluster.fanout import Begun, fan_out, results
from suite.errors import HostError


@dataclass(frozen=True)
class Named:
    name: str


HOSTS = [Named(f"h{n}") for n in range(1, 5)]


def test_every_outcome_is_collected_in_the_order_of_the_hosts() -> None:
    def work(host: Named) -> str:
        time.sleep(0.05 * (5 - int(host.name[1])))
        if host.name == "h2":
            raise HostError("h2", "is down.", fix="mend it")
        return host.name.upper()

    outcome = fan_out(HOSTS, work, 10)
    assert list(outcome) == ["h1", "h2", "h3", "h4"]
    assert outcome["h4"] == "H4"
    assert isinstance(outcome["h2"], HostError)


def test_hosts_are_served_at_the_same_time() -> None:
    barrier = threading.Barrier(4)
    assert set(fan_out(HOSTS, lambda host: barrier.wait(10), 15).values()) == {0, 1, 2, 3}


def test_a_host_that_hangs_costs_its_deadline_and_no_more() -> None:
    start = time.monotonic()
    outcome = fan_out(HOSTS, lambda host: time.sleep(20 if host.name == "h3" else 0), 0.5)
    assert time.monotonic() - start < 3
    assert isinstance(outcome["h3"], HostError)
    assert "had not ended after 0.5 s" in str(outcome["h3"])
    assert outcome["h4"] is None


def test_all_failures_are_told_the_first_one_first() -> None:
    outcome = {
        "h1": "fine",
        "h2": HostError("h2", "is down.", fix="mend it"),
        "h3": HostError("h3", "is full."),
    }
    with pytest.raises(HostError) as caught:
        results(outcome, "the survey")
    assert caught.value.host == "h2"
    assert caught.value.fix == "mend it"
    assert "2 of 3 hosts failed" in caught.value.message
    assert "also h3: is full." in caught.value.message
    assert results({"h1": 1}, "x") == {"h1": 1}


def test_a_mistake_of_the_program_is_not_hidden_behind_a_hosts_error() -> None:
    with pytest.raises(ZeroDivisionError):
        results({"h1": HostError("h1", "is down."), "h2": ZeroDivisionError()}, "x")


def test_only_work_that_had_begun_is_waited_for_before_it_is_undone() -> None:
    making = Begun()
    inside, go = threading.Event(), threading.Event()

    def work() -> None:
        with making.work("h1"):
            inside.set()
            go.wait(10)

    thread = threading.Thread(target=work)
    thread.start()
    assert inside.wait(10)
    making.give_up()
    began = time.monotonic()
    making.wait("h2", 10)  # never began
    assert time.monotonic() - began < 1
    making.wait("h1", 0.2)  # still at work
    assert time.monotonic() - began >= 0.2
    go.set()
    making.wait("h1", 10)
    thread.join(10)
    assert time.monotonic() - began < 5


def test_nothing_begins_or_goes_on_after_it_was_given_up() -> None:
    making = Begun()
    making.go_on("h1")
    making.give_up()
    with pytest.raises(HostError, match="h1: given up"):
        making.go_on("h1")
    with pytest.raises(HostError, match="h2: given up"), making.work("h2"):
        pytest.fail("it began")
