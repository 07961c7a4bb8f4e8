from __future__ import annotations

import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suite.errors import EXIT_USAGE, UsageError
from suite.options import RunOptions, make_plan, name_run, seconds, size_bytes
from suite.paths import is_safe_name
from suite.plan import Plan
from suite.records import HostSlots

HOSTS = tuple(HostSlots(f"h{i}", f"198.18.0.1{i}") for i in range(1, 5))


def make(**options: str) -> Plan:
    return make_plan(RunOptions(**options), cluster="lab", hosts=HOSTS, distinct_hosts=True)


@pytest.mark.parametrize(("text", "value"), [("90s", 90), ("10m", 600), ("1.5h", 5400), ("45", 45), ("2 min", 120)])
def test_durations_are_read(text: str, value: float) -> None:
    assert seconds("--budget", text) == value


@pytest.mark.parametrize(("text", "value"), [("1KiB", 1024), ("64MiB", 64 << 20), ("1g", 1 << 30), ("512", 512)])
def test_sizes_are_read_as_powers_of_two(text: str, value: int) -> None:
    assert size_bytes("--max-bytes", text) == value


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"budget": "soon"}, "--budget soon"),
        ({"budget": "-5m"}, "--budget -5m"),
        ({"deadline": "0.5s"}, "--deadline 0.5s"),
        ({"deadline": "169h"}, "--deadline 169h"),
        ({"plan": "fast"}, "--plan fast"),
        ({"device": "tpu"}, "--device tpu"),
        ({"world": "0"}, "--world 0"),
        ({"world": "8"}, "--world 8"),
        ({"world": ","}, "--world"),
        ({"blocks": "none"}, "--blocks none"),
        ({"seed": "1e9"}, "--seed 1e9"),
        ({"seed": "99999999999"}, "--seed 99999999999"),
        ({"workload": "resnet"}, "--workload resnet"),
        ({"workload": "os:system;x"}, "--workload os:system;x"),
        ({"workload": "linear,linear"}, "twice"),
        ({"max_bytes": "1GiB"}, "--max-bytes 1GiB"),
        ({"delta": "3"}, "--delta 3"),
        ({"inject": "explode"}, "--inject explode"),
        ({"inject": "kill@9"}, "--inject 9"),
        ({"inject": "kill@1:tcp"}, "no arm 'tcp'"),
        ({"backend": "tcp"}, "--backend tcp"),
        ({"ddp": "bucket_mb=x"}, "--ddp: bucket_mb=x"),
    ],
)
def test_a_wrong_option_is_named_and_costs_exit_2(options: dict[str, str], named: str) -> None:
    with pytest.raises(UsageError) as caught:
        make(**options)
    assert named in caught.value.message
    assert caught.value.exit_code == EXIT_USAGE


@given(st.text(max_size=30), st.sampled_from(sorted(RunOptions.__dataclass_fields__)))
def test_any_text_gives_a_plan_or_the_suites_own_error(text: str, field: str) -> None:
    value: object = (text,) if field == "arm" else text
    try:
        plan = make(**{field: value})  # type: ignore[arg-type]
    except UsageError:
        return
    assert all(is_safe_name(arm.name) for arm in plan.arms)
    assert all(is_safe_name(workload.replace(":", ".")) for workload in plan.workloads)


def test_arms_that_are_named_are_asked_for_and_all_is_not() -> None:
    assert make(backend="all").asked == ()
    assert make(backend="gloo,mpi").asked == ("gloo", "mpi")


def test_an_explicit_number_of_blocks_is_exact() -> None:
    protocol = make(plan="standard", blocks="5").protocol
    assert (protocol.min_blocks, protocol.max_blocks, protocol.target) == (5, 5, None)


def test_the_sweep_ends_at_the_cap() -> None:
    assert make(workload="collectives", max_bytes="64MiB").sweep.sizes_bytes == tuple(4**k * 1024 for k in range(9))


def test_runs_sort_by_their_names() -> None:
    plan = make(seed="1")
    early = name_run(plan, datetime.datetime(2030, 1, 2, 3, 4, 5, tzinfo=datetime.timezone.utc))
    late = name_run(plan, datetime.datetime(2030, 1, 2, 3, 5, 0, tzinfo=datetime.timezone.utc))
    assert early.run < late.run
    assert is_safe_name(early.run)
