from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from suite.errors import UsageError
from suite.options import RunOptions, make_plan
from suite.plan import (
    AA_ARM,
    SINGLE_ARM,
    Plan,
    Slot,
    arm_of,
    block_order,
    block_seed,
    block_slots,
    comparisons,
    hosts_for_world,
    launch_spec,
    parse_arms,
)
from suite.records import Arm, DdpOptions, HostSlots, Settings, Sweep

FOUR = tuple(HostSlots(f"h{i}", f"198.18.0.1{i}", 1, "eth0") for i in range(1, 5))


def plan_for(hosts: tuple[HostSlots, ...] = FOUR, **options: str) -> Plan:
    return make_plan(RunOptions(seed="7", **options), cluster="lab", hosts=hosts, distinct_hosts=True)


@pytest.mark.parametrize("arms", [["a", "b"], ["a", "b", "c"], ["a", "b", "c", "d"], list("abcde")])
def test_each_arm_stands_equally_often_in_each_place(arms: list[str]) -> None:
    blocks = 24 if len(arms) <= 4 else 25
    places = Counter(
        (place, arm) for block in range(blocks) for place, arm in enumerate(block_order(3, "linear/4", block, arms))
    )
    assert set(places.values()) == {blocks // len(arms)}


def test_two_arms_are_balanced_after_every_second_block() -> None:
    firsts = [block_order(11, "linear/4", block, ["gloo", "mpi"])[0] for block in range(20)]
    assert all({firsts[i], firsts[i + 1]} == {"gloo", "mpi"} for i in range(0, 20, 2))
    assert firsts != ["gloo", "mpi"] * 10, "the orders alternate and are not shuffled"


def test_the_order_depends_on_the_seed_and_on_nothing_else() -> None:
    arms = ["nccl", "gloo", "mpi"]
    orders = {seed: [block_order(seed, "linear/4", b, arms) for b in range(12)] for seed in (1, 2)}
    assert orders[1] == [block_order(1, "linear/4", b, arms) for b in range(12)]
    assert orders[1] != orders[2]


def test_seeds_are_equal_within_a_block_and_differ_between_blocks() -> None:
    plan = plan_for(workload="linear,transformer-tiny")
    seeds = {
        (workload, block): {
            block_seed(plan, Slot("train", workload, 4, block, arm)) for arm in ("gloo", "mpi", SINGLE_ARM)
        }
        for workload in plan.workloads
        for block in range(30)
    }
    assert all(len(found) == 1 for found in seeds.values())
    assert len(set.union(*seeds.values())) == 60


def test_ranks_are_spread_over_hosts_before_hosts_are_filled() -> None:
    two_each = [replace(host, slots=2, devices=("0", "1")) for host in FOUR]
    assert [(h.name, h.slots) for h in hosts_for_world(two_each, 2)] == [("h1", 1), ("h2", 1)]
    assert [(h.name, h.slots, h.devices) for h in hosts_for_world(two_each, 8)] == [
        (f"h{i}", 2, ("0", "1")) for i in range(1, 5)
    ]
    assert [(h.name, h.slots) for h in hosts_for_world(two_each, 6)] == [("h1", 2), ("h2", 2), ("h3", 2)]


def test_a_world_size_that_does_not_fit_is_refused_with_the_limit() -> None:
    with pytest.raises(UsageError, match="from 1 to 4"):
        hosts_for_world(FOUR, 5)


def test_a_block_has_every_arm_once_and_one_launch_of_one_process() -> None:
    plan = plan_for(backend="gloo,mpi", world="1,2,4")
    slots = block_slots(plan, "linear", 4, 0, ["gloo", "mpi"])
    assert sorted(s.arm for s in slots) == ["gloo", "mpi", SINGLE_ARM]
    assert [s for s in slots if s.kind == "single"] == [Slot("single", "linear", 1, 0, SINGLE_ARM)]
    assert all(s.kind == "train" for s in block_slots(plan, "linear", 2, 0, ["gloo", "mpi"]))


def test_a_thorough_plan_has_an_aa_arm_that_is_the_twin_of_gloo() -> None:
    plan = plan_for(plan="thorough")
    assert AA_ARM in {s.arm for s in block_slots(plan, "linear", 4, 0, ["gloo", "mpi"])}
    assert arm_of(plan, AA_ARM) == replace(arm_of(plan, "gloo"), name=AA_ARM)
    assert plan.worlds == (1, 2, 4)


def test_collectives_need_two_ranks() -> None:
    plan = plan_for(workload="collectives,linear", world="1,2")
    assert comparisons(plan) == (("linear", 1), ("linear", 2), ("collectives", 2))


def test_an_arm_is_a_backend_with_overrides() -> None:
    arms = parse_arms([], ["big=gloo,bucket_mb=100,GLOO_X=1"], DdpOptions())
    assert (arms[0].name, arms[0].backend) == ("big", "gloo")
    assert arms[0].ddp.bucket_mb == 100
    assert arms[0].environment == {"GLOO_X": "1"}


def test_an_arm_can_set_the_variables_of_open_mpi() -> None:
    assert parse_arms([], ["ob1=mpi,OMPI_MCA_pml=ob1"], DdpOptions())[0].environment == {"OMPI_MCA_pml": "ob1"}


@pytest.mark.parametrize(
    ("backends", "arms", "message"),
    [
        (["glo"], [], "no such backend"),
        (["gloo"], ["gloo=mpi"], "taken"),
        ([], ["aa=gloo"], "taken"),
        ([], ["x=tcp"], "not NAME=BACKEND"),
        ([], ["../x=gloo"], "not NAME=BACKEND"),
        ([], ["x=gloo,bucket_mb=-1"], "not a size"),
        ([], ["x=gloo,speed=9"], "no option 'speed'"),
        ([], ["x=gloo,static_graph=maybe"], "neither true nor false"),
        ([], ["x=gloo,Bucket_mb=5"], "no option 'Bucket_mb'"),
        ([], ["x=gloo,GLOO_X Y=1"], "sets no variable"),
        ([], ["x=gloo,GLOO_X=a\nb"], "sets no variable"),
        ([], ["x=gloo,GLOO_X=\udcff"], "sets no variable"),
        ([], ["x=gloo,LD_PRELOAD=/x.so"], "sets no variable that a record would show"),
        ([], ["x=gloo,PATH=/x"], "names begin with NCCL_, GLOO_"),
        ([], [], "nothing to compare"),
    ],
)
def test_a_wrong_arm_is_refused_by_name(backends: list[str], arms: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_arms(backends, arms, DdpOptions())


def test_a_specification_says_everything_and_injects_into_one_arm_only() -> None:
    plan = replace(plan_for(backend="gloo,mpi", inject="corrupt-gradient@2:mpi"), run="r")
    settings = Settings("linear", 4, 12, 40)
    specs = {
        arm: launch_spec(
            plan,
            Slot("train", "linear", 4, 3, arm),
            17,
            settings,
            master_port=29500,
            output_folder="/x",
        )
        for arm in ("gloo", "mpi")
    }
    assert specs["gloo"].inject is None
    assert specs["mpi"].inject == "corrupt-gradient@2"
    assert specs["gloo"].launch == "0017-linear-gloo"
    assert (specs["gloo"].warmup_steps, specs["gloo"].steps) == (12, 40)
    assert specs["gloo"].seed == specs["mpi"].seed
    assert [h.name for h in specs["gloo"].hosts] == ["h1", "h2", "h3", "h4"]
    assert specs["gloo"].distinct_hosts


SET_BY: dict[str, Callable[[Plan, dict[str, str]], Plan]] = {
    "arm gloo": lambda plan, env: replace(plan, arms=(Arm("gloo", "gloo", env),)),
    "the plan": lambda plan, env: replace(plan, environment=env),
    "host h1": lambda plan, env: replace(plan, hosts=(replace(FOUR[0], environment=env), *FOUR[1:])),
}


@pytest.mark.parametrize("owner", SET_BY)
@pytest.mark.parametrize(("variable", "text"), [("LD_PRELOAD", "/x.so"), ("PATH", "/x"), ("NCCL_X", "a\nb")])
def test_a_stored_plan_cannot_set_what_no_option_can(owner: str, variable: str, text: str) -> None:
    with pytest.raises(ValueError, match=rf"{owner} sets '{variable}', which nothing may set"):
        SET_BY[owner](plan_for(), {variable: text})


@pytest.mark.parametrize("owner", SET_BY)
def test_a_stored_plan_may_set_what_records_show(owner: str) -> None:
    plan = SET_BY[owner](plan_for(), {"NCCL_ALGO": "Ring"})
    assert "NCCL_ALGO" in str(plan)


PROTOCOL = plan_for().protocol


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"launch_deadline_seconds": 1e12}, "launch_deadline_seconds"),
        ({"launch_deadline_seconds": math.nan}, "launch_deadline_seconds"),
        ({"launch_deadline_seconds": 0.0}, "launch_deadline_seconds"),
        ({"threads": 0}, "threads"),
        ({"threads": 10**6}, "threads"),
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": 1 << 40}, "batch_size"),
        ({"device": "tpu"}, "device"),
        ({"name": "mine"}, "the plan's name"),
        ({"seed": 1 << 31}, "seed"),
        ({"delta": math.inf}, "delta"),
        ({"budget_seconds": 0.0}, "budget_seconds"),
        ({"worlds": (1 << 40,)}, "world size"),
        ({"nosync_steps": -1}, "nosync_steps"),
        ({"free_steps": 10**9}, "free_steps"),
        ({"equivalence_steps": 10**9}, "equivalence_steps"),
        ({"inject": "raise@1"}, "inject_arm"),
        ({"inject": "raise@4", "inject_arm": "gloo"}, "no fault of one of 4 ranks"),
        ({"inject": "explode@0", "inject_arm": "gloo"}, "no fault"),
        ({"workloads": ("os:system; x",)}, "cannot be part of a file's name"),
        ({"workloads": ("no-such",)}, "is no workload"),
        ({"arms": (Arm("a", "smoke"),)}, "the backend of arm a"),
        ({"arms": (Arm("a", "gloo", {}, DdpOptions(bucket_mb=-1.0)),)}, "bucket_mb of arm a"),
        ({"hosts": (replace(FOUR[0], slots=0),)}, "slots of h1"),
        ({"protocol": replace(PROTOCOL, steps=10**9)}, "protocol.steps"),
        ({"protocol": replace(PROTOCOL, pilot_steps=10**9)}, "protocol.pilot_steps"),
        ({"protocol": replace(PROTOCOL, max_blocks=10**6)}, "protocol.max_blocks"),
        ({"protocol": replace(PROTOCOL, min_blocks=0)}, "protocol.min_blocks"),
        ({"protocol": replace(PROTOCOL, collective_blocks=10**6)}, "protocol.collective_blocks"),
        ({"protocol": replace(PROTOCOL, target=-1.0)}, "protocol.target"),
        ({"sweep": Sweep(collectives=("gossip",))}, "collective"),
        ({"sweep": Sweep(sizes_bytes=(1 << 40,))}, "size of the sweep"),
        ({"sweep": Sweep(sizes_bytes=(1024,) * 101)}, "too many"),
        ({"sweep": Sweep(repeats=10**9)}, "sweep.repeats"),
        ({"sweep": Sweep(seconds_per_size=1e9)}, "sweep.seconds_per_size"),
    ],
    ids=str,
)
def test_a_stored_plan_cannot_ask_for_more_than_a_command_line(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        replace(plan_for(), **changes)


@pytest.mark.parametrize(
    "setting", ["OMPI_AUTH_TOKEN=abc", "TORCH_X=ghp_16C7e42F292c6912E7710c838347Ae178B4a", "UCX_PASSWORD=hunter2"]
)
def test_an_arm_that_would_publish_a_secret_is_refused(setting: str) -> None:
    name, value = setting.split("=")
    with pytest.raises(UsageError, match=rf"--arm a: {name} gets what looks like a password") as caught:
        make_plan(RunOptions(arm=[f"a=gloo,{setting}"]), cluster="lab", hosts=FOUR, distinct_hosts=True)
    assert value not in str(caught.value)
