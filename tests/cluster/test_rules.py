"""Judgements on what hosts said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from suite.cluster import rules
from suite.cluster.findings import FAIL, OK, SKIPPED, WARN, Finding, refuse
from suite.cluster.images import Image
from suite.cluster.inventory import Cluster, parse
from suite.cluster.probe import Clock, HostFacts
from suite.cluster.routes import choose, judge_network, judge_routes
from suite.errors import PreflightError

CLUSTER = parse(
    b"""
[defaults]
user = "bench"
[[hosts]]
name = "h1"
address = "198.18.0.11"
[[hosts]]
name = "h2"
address = "198.18.0.12"
[[hosts]]
name = "h3"
address = "198.18.0.13"
""",
    Path("pond.toml"),
)
HOST = CLUSTER.hosts[0]
ENGINE = {"ID": "AAAA", "ServerVersion": "26.1.5+dfsg1", "Architecture": "x86_64"}
FACTS = HostFacts(
    host="h1",
    hostname="h1",
    boot_id="boot-1",
    shm_free_bytes=8 << 30,
    disk_free_bytes=10**11,
    addresses={"lo": ("127.0.0.1/8",), "eth0": ("198.18.0.11/24",), "docker0": ("172.17.0.1/16",)},
    routes={"198.18.0.12": ("eth0", "198.18.0.11", ""), "198.18.0.13": ("eth0", "198.18.0.11", "")},
    clock=Clock(0.002, 0.01),
    engine=ENGINE,
)
IMAGE = Image("sha256:" + "1" * 64, "suite:cpu", 1_400_000_000, "amd64", ("sha256:a", "sha256:b"), "2026", {})


def has(finding: Finding, status: str, cause: str = "", fix: str = "") -> None:
    assert finding.status == status, finding
    assert cause in finding.cause
    assert fix in finding.fix
    if status == FAIL:
        assert finding.cause, "a failure has one plain cause"
        assert finding.fix, "and one fix"


def test_a_sound_host_passes_everything() -> None:
    for finding in (
        rules.docker_version(HOST, FACTS),
        rules.architecture(HOST, FACTS, IMAGE),
        rules.disk(HOST, FACTS, IMAGE, False, 0),
        rules.shm(HOST, FACTS),
        rules.clock(HOST, FACTS),
        rules.ports(CLUSTER, HOST, FACTS, False),
        judge_routes(CLUSTER, HOST, FACTS),
        judge_network(HOST, FACTS),
    ):
        has(finding, OK)


@pytest.mark.parametrize(
    ("version", "status"), [("19.03.15", FAIL), ("20.10.24+dfsg1", OK), ("29.1.0", OK), ("", FAIL)]
)
def test_an_old_engine_fails(version: str, status: str) -> None:
    facts = replace(FACTS, engine={**ENGINE, "ServerVersion": version})
    assert rules.docker_version(HOST, facts).status == status


def test_a_rootless_engine_fails() -> None:
    facts = replace(FACTS, engine={**ENGINE, "SecurityOptions": ["name=seccomp,profile=default", "name=rootless"]})
    has(rules.docker_version(HOST, facts), FAIL, "rootless", "group docker")


def test_another_architecture_fails() -> None:
    facts = replace(FACTS, engine={**ENGINE, "Architecture": "aarch64"})
    has(rules.architecture(HOST, facts, IMAGE), FAIL, "arm64, the image suite:cpu is for amd64")


def test_the_disk_must_hold_archive_and_layers_at_once_unless_the_image_is_there() -> None:
    need = rules.space_needed(IMAGE, 0)
    assert need == 2 * 1_400_000_000 + (256 << 20)
    little = replace(FACTS, disk_free_bytes=need - 1)
    has(rules.disk(HOST, little, IMAGE, False, 0), FAIL, "3.1 GB free", "docker system df")
    has(rules.disk(HOST, little, IMAGE, True, 0), OK)
    has(rules.disk(HOST, little, IMAGE, False, 1_390_000_000), OK)
    has(rules.disk(HOST, replace(FACTS, disk_free_bytes=1000), IMAGE, True, 0), FAIL, "no room for records")
    has(rules.disk(HOST, replace(FACTS, disk_free_bytes=None), IMAGE, False, 0), WARN)


def test_shared_memory_counts_only_where_the_hosts_own_is_used() -> None:
    little = replace(FACTS, shm_free_bytes=64 << 20)
    has(rules.shm(HOST, little), OK)
    has(rules.shm(replace(HOST, shm_bytes=None), little), FAIL, "only 64 MiB", "shm_size")


@pytest.mark.parametrize(
    ("offset", "doubt", "status"),
    [(0.5, 0.01, OK), (-0.9, 0.2, OK), (1.5, 0.01, WARN), (1.5, 1.0, OK), (600.0, 0.01, FAIL), (-31.0, 0.1, FAIL)],
)
def test_a_clock_is_judged_beyond_its_uncertainty(offset: float, doubt: float, status: str) -> None:
    finding = rules.clock(HOST, replace(FACTS, clock=Clock(offset, doubt)))
    has(finding, status)
    if status == FAIL:
        assert f"{abs(offset):.0f} s {'ahead of' if offset > 0 else 'behind'} this machine's" in finding.cause


def test_a_taken_port_fails_and_its_holder_is_named_unless_it_is_our_own() -> None:
    taken = replace(FACTS, listening={2222: 0}, holders={2222: "iperf3, process 412"})
    has(rules.ports(CLUSTER, HOST, taken, False), FAIL, "port 2222", "container_ssh_port")
    assert "iperf3, process 412" in rules.ports(CLUSTER, HOST, taken, False).cause
    has(rules.ports(CLUSTER, HOST, taken, True), OK)


def test_some_taken_rendezvous_ports_do_no_harm_but_almost_all_do() -> None:
    narrow = replace(CLUSTER, ports=(29500, 29509))
    some = replace(FACTS, listening=dict.fromkeys(range(29500, 29502), 0))
    most = replace(FACTS, listening=dict.fromkeys(range(29500, 29508), 0))
    has(rules.ports(narrow, HOST, some, False), OK)
    has(rules.ports(narrow, HOST, most, False), FAIL, "only 2 of the rendezvous ports 29500-29509")


def facts_of(host: str, **changes: object) -> HostFacts:
    number = host[1:]
    values: dict[str, object] = {
        "host": host, "hostname": host, "boot_id": f"boot-{number}", "engine": {**ENGINE, "ID": f"engine-{number}"}
    }  # fmt: skip
    return replace(FACTS, **{**values, **changes})  # type: ignore[arg-type]


def test_a_machine_that_stands_there_twice_fails_on_both_entries() -> None:
    same = facts_of("h1")
    found = rules.duplicates(CLUSTER, {"h1": same, "h2": replace(same, host="h2"), "h3": facts_of("h3")})
    has(found[0], FAIL, "h2 is the same machine", "remove one")
    has(found[1], FAIL, "h1 is the same machine")
    has(found[2], OK)


def test_containers_that_share_a_kernel_are_different_hosts() -> None:
    facts = {host.name: facts_of(host.name, boot_id="one-kernel") for host in CLUSTER.hosts}
    assert [finding.status for finding in rules.duplicates(CLUSTER, facts)] == [OK, OK, OK]


def test_two_machines_that_call_themselves_the_same_fail() -> None:
    facts = {"h1": facts_of("h1"), "h2": facts_of("h2", hostname="H1"), "h3": facts_of("h3")}
    found = rules.duplicates(CLUSTER, facts)
    has(found[0], FAIL, "h2 calls itself 'h1' too", "hostnamectl")
    has(found[1], FAIL, "h1 calls itself 'H1' too")
    has(found[2], OK)


def test_the_odd_image_is_found_with_and_without_a_local_one() -> None:
    other = replace(IMAGE, id="sha256:" + "2" * 64, layers=("sha256:c",))
    images = {"h1": IMAGE, "h2": other, "h3": IMAGE}
    for wanted in (IMAGE, None):
        found = rules.same_image(CLUSTER, wanted, images)
        assert [finding.status for finding in found] == [OK, FAIL, OK]
        has(found[1], FAIL, "its image suite:cpu is 222222222222, it should be 111111111111", "fab deploy")
    missing = rules.same_image(CLUSTER, IMAGE, {**images, "h3": None})
    has(missing[2], FAIL, "it has no image")
    nowhere = rules.same_image(CLUSTER, IMAGE, dict.fromkeys(images))
    assert [finding.status for finding in nowhere] == [SKIPPED] * 3


def test_images_that_two_stores_name_differently_are_the_same() -> None:
    renamed = replace(IMAGE, id="sha256:" + "9" * 64)
    assert renamed.same_as(IMAGE)
    assert not replace(renamed, layers=("sha256:a", "sha256:x")).same_as(IMAGE)
    assert not replace(renamed, created="2027").same_as(IMAGE)
    assert not replace(renamed, config={"Env": ["A=1"]}).same_as(IMAGE)


def routed(**routes: tuple[str, str, str]) -> HostFacts:
    names = {"h2": "198.18.0.12", "h3": "198.18.0.13"}
    return replace(FACTS, routes={names[name]: route for name, route in routes.items()})


def test_the_interface_is_the_one_that_routes_to_the_peers_and_the_reason_is_told() -> None:
    chosen = choose(CLUSTER, HOST, FACTS)
    assert (chosen.interface, chosen.doubtful) == ("eth0", False)
    assert chosen.reason == "it routes to every peer; not docker0"


def test_the_cluster_file_overrides_what_was_found() -> None:
    facts = replace(FACTS, addresses={**FACTS.addresses, "ib0": ("198.18.0.11/24",)})
    has(judge_routes(CLUSTER, replace(HOST, interface="ib0"), facts), OK)
    has(judge_routes(CLUSTER, replace(HOST, interface="eth7"), facts), FAIL, "no interface eth7 that is up", "correct")


def test_several_interfaces_are_a_warning_with_the_reason() -> None:
    facts = replace(
        routed(h2=("eth0", "198.18.0.11", ""), h3=("eth1", "10.0.0.1", "")),
        addresses={**FACTS.addresses, "eth1": ("10.0.0.1/8",)},
    )
    finding = judge_routes(CLUSTER, HOST, facts)
    has(finding, WARN, "eth0 was taken: it routes to 1 of 2 peers (eth0 to 1, eth1 to 1)", "set interface")


def test_a_peer_that_is_this_host_itself_fails() -> None:
    has(judge_routes(CLUSTER, HOST, routed(h2=("lo", "198.18.0.11", ""))), FAIL, "routes to this host itself")


def test_no_route_fails_with_what_the_host_said() -> None:
    facts = replace(FACTS, routes={}, route_errors={"198.18.0.12": "Network is unreachable"})
    has(judge_routes(CLUSTER, HOST, facts), FAIL, "no route to 198.18.0.12: Network is unreachable", "ip route")


def test_an_interface_without_the_clusters_address_is_a_warning() -> None:
    facts = replace(FACTS, addresses={"eth0": ("203.0.113.5/24",)})
    has(judge_routes(CLUSTER, HOST, facts), WARN, "does not have the address 198.18.0.11", "data_address")


def test_a_gateway_between_the_hosts_is_a_warning() -> None:
    has(judge_network(HOST, routed(h2=("eth0", "198.18.0.11", "198.18.0.1"))), WARN, "gateway 198.18.0.1")


def test_a_host_alone_uses_the_interface_with_its_address() -> None:
    alone: Cluster = replace(CLUSTER, hosts=CLUSTER.hosts[:1])
    facts = replace(FACTS, routes={"198.18.0.11": ("lo", "198.18.0.11", "")})
    assert choose(alone, HOST, facts).interface == "eth0"
    has(judge_routes(alone, HOST, facts), OK)


def test_every_failure_is_told_at_once_and_costs_exit_3() -> None:
    refuse([Finding("h1", "ssh", OK), Finding("h1", "clock", WARN, "", "late", "wait")])
    failures = [Finding("h1", "disk", FAIL, "", "full.", "free it"), Finding("h2", "ssh", FAIL, "", "down.", "mend it")]
    with pytest.raises(PreflightError) as caught:
        refuse(failures)
    assert caught.value.exit_code == 3
    assert caught.value.message == "2 checks failed:\n  h1, disk: full.\n  h2, ssh: down."
    assert caught.value.fix == "free it"
