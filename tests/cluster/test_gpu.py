"""GPU checks, on texts in nvidia-smi's documented format. Not run on a GPU here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suite.cluster import gpu
from suite.cluster.attached import Completed
from suite.cluster.engine import Engine
from suite.cluster.findings import FAIL, OK, SKIPPED, WARN, Finding
from suite.cluster.inventory import Host, parse

CARD = (
    "0, GPU-5a1c2d3e-0000-1111-2222-333344445555, NVIDIA GeForce RTX 3090, 535.104.05, "
    "Enabled, 350.00, 350.00, 24576, 4, 0\n"
)
TWO = CARD + CARD.replace("0, GPU-5a", "1, GPU-6b")
LISTED = "GPU 0: NVIDIA GeForce RTX 3090 (UUID: GPU-5a1c2d3e-0000-1111-2222-333344445555)\n"
TOPOLOGY = """\
\x1b[4m\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tPHB\tSYS\t0-15\t0\t\tN/A
GPU1\tPHB\t X \tSYS\t0-15\t0\t\tN/A
NIC0\tSYS\tSYS\t X

Legend:

  X    = Self
"""
PEERS = """\
 \tGPU0\tGPU1\t
 GPU0\tX\tCNS\t
 GPU1\tCNS\tX\t

Legend:

  X    = Self
  OK   = Status Ok
  CNS  = Chipset not supported
"""
CLUSTER = parse(
    b"""
[defaults]
user = "bench"
devices = [0]
[[hosts]]
name = "g1"
address = "198.18.0.11"
[[hosts]]
name = "g2"
address = "198.18.0.12"
""",
    Path("pond.toml"),
)
SOUND = gpu.GpuFacts(cards=gpu.parse_cards(CARD), runtimes=("runc", "nvidia"), seen_in_container=gpu.parse_list(LISTED))


def judged(first: gpu.GpuFacts, second: gpu.GpuFacts = SOUND) -> dict[str, Finding]:
    findings = gpu.judge(CLUSTER, {"g1": first, "g2": second})
    for finding in findings:
        assert finding.status != FAIL or (finding.cause and finding.fix), finding
    return {finding.check: finding for finding in findings if finding.host == "g1"}


def card(**changes: object) -> gpu.GpuFacts:
    return replace(SOUND, cards=tuple(replace(c, **changes) for c in SOUND.cards))  # type: ignore[arg-type]


def test_cards_processes_lists_and_links_are_understood() -> None:
    (first,) = gpu.parse_cards(CARD)
    assert (first.index, first.name, first.driver, first.persistence) == (
        0,
        "NVIDIA GeForce RTX 3090",
        "535.104.05",
        True,
    )
    assert (first.power_limit, first.memory_total, first.utilization) == (350.0, 24576.0, 0.0)
    assert gpu.parse_cards(CARD.replace("350.00, 350.00", "[N/A], [Not Supported]"))[0].power_limit is None
    assert gpu.parse_processes(f"{first.uuid}, 4711, /usr/bin/python3, x, 812\n") == (
        gpu.Process(first.uuid, 4711, "/usr/bin/python3, x", 812.0),
    )
    assert gpu.parse_list(LISTED) == (first.uuid,)
    assert gpu.parse_topology(TOPOLOGY) == (("GPU0", "GPU1", "PHB"),)


def test_a_sound_host_passes_everything() -> None:
    assert {finding.status for finding in judged(SOUND).values()} == {OK}
    assert set(judged(SOUND)) == set(gpu.CHECKS)


def test_no_driver_fails_once_and_skips_the_rest() -> None:
    found = judged(gpu.GpuFacts(problem="sh: 1: nvidia-smi: not found"))
    assert found["gpu driver"].status == FAIL
    assert "nvidia-smi: not found" in found["gpu driver"].cause
    assert {finding.status for check, finding in found.items() if check != "gpu driver"} == {SKIPPED}


@pytest.mark.parametrize(
    ("version", "status"), [("515.65.01", FAIL), ("520.56.06", FAIL), ("520.61.05", FAIL), ("535.104.05", OK)]
)
def test_the_driver_must_be_new_enough_and_the_same_everywhere(version: str, status: str) -> None:
    finding = judged(card(driver=version))["gpu driver"]
    assert finding.status == status
    if version != "520.61.05" and status == FAIL:
        assert finding.cause == f"driver {version} is older than 520.61.05, which CUDA 11.8 needs."
    elif status == FAIL:
        assert finding.cause == "its driver is 520.61.05, other hosts have 535.104.05."


def test_a_device_that_is_not_there_fails() -> None:
    assert "there is no device 0" in judged(card(index=3))["gpu model"].cause


def test_different_cards_are_a_warning() -> None:
    finding = judged(card(name="NVIDIA A100-PCIE-40GB"))["gpu model"]
    assert finding.status == WARN
    assert "NVIDIA A100-PCIE-40GB here" in finding.cause


def test_the_toolkit_is_judged_by_what_the_container_sees() -> None:
    assert judged(replace(SOUND, seen_in_container=()))["gpu toolkit"].status == FAIL
    assert judged(replace(SOUND, seen_in_container=None))["gpu toolkit"].status == OK
    missing = judged(replace(SOUND, seen_in_container=None, runtimes=("runc",)))["gpu toolkit"]
    assert missing.status == FAIL
    assert missing.cause == "Docker has no runtime nvidia, and no card is described to it by CDI."
    described = judged(replace(SOUND, seen_in_container=None, runtimes=("runc",), cdi=True))["gpu toolkit"]
    assert described.status == WARN
    assert described.fix.startswith("where `fab deploy` fails, install the NVIDIA Container Toolkit")


@pytest.mark.parametrize(
    ("info", "runtimes", "cdi"),
    [
        ({"Runtimes": {"runc": {}, "nvidia": {}}}, ("runc", "nvidia"), False),
        (
            {"Runtimes": {"runc": {}}, "DiscoveredDevices": [{"Source": "cdi", "ID": "nvidia.com/gpu=0"}]},
            ("runc",),
            True,
        ),
        ({"Runtimes": None, "DiscoveredDevices": [{"Source": "cdi", "ID": "amd.com/gpu=0"}, None]}, (), False),
        ({}, (), False),
    ],
)
def test_what_the_engine_can_give_a_container_is_read_from_its_information(
    info: dict[str, object], runtimes: tuple[str, ...], cdi: bool
) -> None:
    facts = gpu.ask(TwoCards(CLUSTER.hosts[0]), CLUSTER.hosts[0], info, None)
    assert (facts.runtimes, facts.cdi) == (runtimes, cdi)


def test_a_process_on_a_listed_card_fails_and_is_named() -> None:
    busy = replace(SOUND, processes=(gpu.Process(SOUND.cards[0].uuid, 4711, "python3", 812.0),))
    assert judged(busy)["gpu idle"].cause == "python3 (process 4711, 812 MiB) computes on device 0."
    elsewhere = replace(SOUND, processes=(gpu.Process("GPU-other", 4711, "python3", 812.0),))
    assert judged(elsewhere)["gpu idle"].status == OK
    assert judged(card(utilization=37.0))["gpu idle"].status == WARN


@pytest.mark.parametrize(("used", "status"), [(None, OK), (4.0, OK), (64.0, OK), (65.0, WARN), (812.0, WARN)])
def test_memory_that_nobody_is_seen_to_hold_is_a_warning(used: float | None, status: str) -> None:
    finding = judged(card(memory_used=used))["gpu idle"]
    assert finding.status == status
    if used == 812.0:
        assert finding.cause == "device 0 has 812 MiB in use, and no process is seen to compute on it."


def test_a_lowered_limit_and_persistence_off_are_warnings() -> None:
    assert "power limit of device 0 is 280 W, its default 350 W" in judged(card(power_limit=280.0))["gpu power"].cause
    assert "persistence mode is off" in judged(card(persistence=False))["gpu power"].cause
    both = judged(card(power_limit=280.0, persistence=False))["gpu power"]
    assert both.cause.startswith(
        "the power limit of device 0 is 280 W, its default 350 W; persistence mode is off: the"
    )
    assert both.fix.endswith("(`sudo nvidia-smi -pl`); switch persistence mode on (`sudo nvidia-smi -pm 1`).")


def test_the_forward_compatibility_driver_fails_on_geforce_only() -> None:
    trap = replace(SOUND, compat="\tlibcuda.so.1 (libc6,x86-64) => /usr/local/cuda-11.8/compat/libcuda.so.1")
    assert "error 804" in judged(trap)["gpu compat"].cause
    data_center = replace(trap, cards=card(name="NVIDIA A100-PCIE-40GB").cards)
    assert judged(data_center)["gpu compat"].status == OK


def test_links_between_several_cards_are_reported() -> None:
    wide = replace(CLUSTER, hosts=tuple(replace(host, devices=("0", "1")) for host in CLUSTER.hosts))
    facts = replace(SOUND, cards=gpu.parse_cards(TWO), links=gpu.parse_topology(TOPOLOGY), seen_in_container=None)
    found = [f for f in gpu.judge(wide, {"g1": facts, "g2": facts}) if f.check == "gpu links"]
    assert [finding.seen for finding in found] == ["1× PHB", "1× PHB"]


class TwoCards(Engine):
    """Stands in for a host with two cards: it answers what is asked of nvidia-smi, and has no container yet."""

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self.asked: list[str] = []

    def run(self, argv: Sequence[str], timeout: float = 0, data: bytes = b"") -> Completed:
        self.asked.append(" ".join(argv))
        answers = {tuple(gpu.QUERY): TWO, tuple(gpu.TOPOLOGY): TOPOLOGY, tuple(gpu.PEERS): PEERS}
        return Completed(answers.get(tuple(argv), "").encode(), b"", 0)


@pytest.mark.parametrize(
    ("devices", "links"), [((), (("GPU0", "GPU1", "PHB"),)), (("0", "1"), (("GPU0", "GPU1", "PHB"),)), (("1",), ())]
)
def test_the_links_are_asked_for_wherever_the_container_gets_more_than_one_card(
    devices: tuple[str, ...], links: tuple[tuple[str, str, str], ...]
) -> None:
    host = replace(CLUSTER.hosts[0], devices=devices)
    engine = TwoCards(host)
    facts = gpu.ask(engine, host, {"Runtimes": {"nvidia": {}}}, None)
    assert facts.links == links
    assert ("nvidia-smi topo -m" in engine.asked) is (devices != ("1",))
    both = replace(CLUSTER, hosts=(host, CLUSTER.hosts[1]))
    (finding,) = (f for f in gpu.judge(both, {"g1": facts, "g2": SOUND}) if f.check == "gpu links" and f.host == "g1")
    assert finding.status == OK
    assert finding.seen == ("1× PHB; peer access: 0 of 1 pairs" if links else "one card")


@pytest.mark.parametrize(("state", "access"), [("CNS", "0 of 1"), ("OK", "1 of 1")])
def test_peer_access_between_the_cards_is_reported(state: str, access: str) -> None:
    assert gpu.parse_topology(PEERS) == (("GPU0", "GPU1", "CNS"),)
    wide = replace(CLUSTER, hosts=tuple(replace(host, devices=("0", "1")) for host in CLUSTER.hosts))
    peers = gpu.parse_topology(PEERS.replace("CNS", state))
    facts = replace(SOUND, cards=gpu.parse_cards(TWO), links=gpu.parse_topology(TOPOLOGY), peers=peers)
    found = [f for f in gpu.judge(wide, {"g1": facts, "g2": facts}) if f.check == "gpu links"]
    assert found[0].seen == f"1× PHB; peer access: {access} pairs"


def test_limits_that_differ_between_hosts_are_a_warning_though_each_is_a_default() -> None:
    finding = judged(card(power_limit=390.0, default_limit=390.0))["gpu power"]
    assert finding.status == WARN
    assert finding.cause == "the power limits differ: 390 W here, 350 W, 390 W in all."


@given(st.text(max_size=200), st.integers(0, 150))
def test_any_text_gives_cards_or_none(noise: str, place: int) -> None:
    for parser in (gpu.parse_cards, gpu.parse_processes, gpu.parse_list, gpu.parse_topology):
        parser(CARD[:place] + noise + TOPOLOGY[place:])
