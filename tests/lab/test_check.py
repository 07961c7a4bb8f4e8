"""Pre-flight on four simulated hosts: sound ones pass; each fault is found, on its host, with cause and fix."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from suite.cluster import lab
from suite.cluster.check import check, interfaces
from suite.cluster.check_table import check_table
from suite.cluster.deploy import Deployment, deploy, open_remotes
from suite.cluster.findings import FAIL, OK, SKIPPED, WARN, Finding
from suite.cluster.inventory import Cluster, Host
from suite.cluster.keys import key_pair
from suite.cluster.remote import RemoteHost
from suite.cluster.stop import stop
from suite.errors import EXIT_PREFLIGHT, HostError
from tests.lab.conftest import Shell
from tests.support.suite_image import changed_image, suite_image

pytestmark = pytest.mark.containers
Remotes = dict[str, RemoteHost]
ALL = {
    "ssh", "docker", "duplicates", "architecture", "disk", "shm", "clock", "routes", "network", "ports", "strays",
    "image", "names", "pairs",
}  # fmt: skip


@pytest.fixture
def remotes(cluster: Cluster, sound_lab: Path) -> Iterator[Remotes]:
    with open_remotes(cluster) as opened:
        yield opened


@pytest.fixture
def deployment(cluster: Cluster, remotes: Remotes) -> Deployment:
    return deploy(cluster, suite_image(), gpu=False, remotes=remotes, progress=print)


def checked(cluster: Cluster, level: str = "all", tag: str | None = None) -> list[Finding]:
    """The findings of hosts connected anew, as ``fab check`` does it."""
    with open_remotes(cluster) as opened:
        findings = check(cluster, tag or suite_image(), remotes=opened, level=level)
    print(check_table(findings))
    for finding in findings:
        assert finding.status != FAIL or (finding.cause and finding.fix), f"a failure without cause or fix: {finding}"
    return findings


def of(findings: list[Finding], host: str) -> dict[str, Finding]:
    return {finding.check: finding for finding in findings if finding.host == host}


def fails_alone(findings: list[Finding], host: str, name: str, cause: str) -> None:
    """The host fails that check for that cause, and whatever fails elsewhere is only that it is not reached."""
    finding = of(findings, host)[name]
    assert finding.status == FAIL
    assert cause in finding.cause, finding.cause
    elsewhere = [f for f in findings if f.status == FAIL and f.host != host and f.check != "pairs"]
    assert elsewhere == []


def test_sound_hosts_pass_every_check(cluster: Cluster, deployment: Deployment) -> None:
    findings = checked(cluster)
    for host in cluster.hosts:
        mine = of(findings, host.name)
        assert set(mine) == ALL
        assert {finding.status for finding in mine.values()} == {OK}, mine


def test_before_a_deploy_only_what_needs_containers_is_left_out(cluster: Cluster, remotes: Remotes) -> None:
    stop(cluster, remotes)
    for host in cluster.hosts:
        mine = of(checked(cluster), host.name)
        left_out = {name for name, finding in mine.items() if finding.status == SKIPPED}
        assert left_out == {"names", "pairs"}
        assert {finding.status for name, finding in mine.items() if name not in left_out} == {OK}


def test_a_deploy_and_a_run_ask_for_their_part_only(cluster: Cluster, deployment: Deployment) -> None:
    assert {f.check for f in checked(cluster, "deploy")} == {
        "ssh", "docker", "duplicates", "architecture", "disk", "ports"
    }  # fmt: skip
    assert {f.check for f in checked(cluster, "run")} == {
        "ssh", "docker", "duplicates", "clock", "routes", "network", "strays", "image", "names", "pairs"
    }  # fmt: skip


def test_the_interface_to_the_peers_is_found_or_taken_from_the_cluster_file(cluster: Cluster, remotes: Remotes) -> None:
    assert interfaces(cluster, remotes) == dict.fromkeys(remotes, "eth0")
    named = replace(cluster, hosts=tuple(replace(host, interface="eth9") for host in cluster.hosts))
    fails = [f for f in checked(named) if f.check == "routes"]
    assert {f.status for f in fails} == {FAIL}
    assert "no interface eth9 that is up" in fails[0].cause


@pytest.mark.parametrize(
    ("kind", "name", "cause", "seconds"),
    [
        ("network-cut", "ssh", "did not answer within 10 s", 40),
        ("pause", "ssh", "", 60),
        ("kill", "ssh", "", 40),
        ("sshd-gone", "ssh", "no SSH connection", 30),
        ("docker-gone", "docker", "the Docker engine did not answer", 30),
        ("disk-full", "disk", "no room for records", 30),
        ("clock-skew", "clock", "its clock is 600 s ahead of this machine's", 30),
        ("container-sshd-gone", "pairs", "does not reach h2 over SSH", 60),
    ],
)
def test_a_fault_is_found_on_its_host_in_time(
    cluster: Cluster, deployment: Deployment, sound_lab: Path, kind: str, name: str, cause: str, seconds: float
) -> None:
    lab.fault(kind, "h2", root=sound_lab)
    start = time.monotonic()
    findings = checked(cluster)
    assert time.monotonic() - start < seconds
    fails_alone(findings, "h2", name, cause)


def test_a_foreign_process_on_the_containers_port_is_named(cluster: Cluster, remotes: Remotes, sound_lab: Path) -> None:
    stop(cluster, remotes)
    lab.fault("port-taken", "h3", root=sound_lab)
    findings = checked(cluster)
    fails_alone(findings, "h3", "ports", "port 2222, which the sshd in the container needs, is held by")
    assert "root" in of(findings, "h3")["ports"].cause or "iperf3" in of(findings, "h3")["ports"].cause


def test_a_refused_key_and_a_changed_host_key_are_told_apart(cluster: Cluster, tmp_path: Path) -> None:
    stranger = tmp_path / "stranger"
    stranger.write_bytes(key_pair().private)
    stranger.chmod(0o600)
    other = tmp_path / "known_hosts"
    other.write_text(f"{cluster.host('h3').address} {key_pair().public}\n")

    def changed(host: Host) -> Host:
        if host.name == "h2":
            return replace(host, key=stranger)
        return replace(host, known_hosts=other) if host.name == "h3" else host

    findings = checked(replace(cluster, hosts=tuple(map(changed, cluster.hosts))))
    assert "refused the key" in of(findings, "h2")["ssh"].cause
    assert "is not the one in" in of(findings, "h3")["ssh"].cause
    assert "SHA256:" in of(findings, "h3")["ssh"].cause
    assert of(findings, "h1")["ssh"].status == OK


def test_unknown_host_keys_are_accepted_only_on_request(cluster: Cluster, tmp_path: Path) -> None:
    known = tmp_path / "known_hosts"
    fresh = replace(cluster, hosts=tuple(replace(host, known_hosts=known) for host in cluster.hosts))
    assert {f.status for f in checked(fresh) if f.check == "ssh"} == {FAIL}
    assert not known.exists()
    with open_remotes(fresh, accept_new=True) as remotes:
        check(fresh, suite_image(), remotes=remotes)
        assert all((remote.accepted or "").startswith("ssh-ed25519 SHA256:") for remote in remotes.values())
    assert known.read_text().count("\n") == 4
    assert {f.status for f in checked(fresh) if f.check == "ssh"} == {OK}


def test_a_host_listed_twice_is_found_on_both_entries(cluster: Cluster, on_host: Shell) -> None:
    known = cluster.hosts[0].known_hosts
    assert known is not None
    extra = known.read_text().splitlines()[0].split(" ", 1)[1]
    copy = known.with_name("known_hosts.twice")
    address = cluster.host("h1").address.rpartition(".")[0] + ".201"
    on_host("h1", f"ip address replace {address}/24 dev eth0")
    try:
        copy.write_text(known.read_text() + f"{address} {extra}\n")
        twin = replace(cluster.host("h1"), name="h9", address=address, data_address=address)
        hosts = (*(replace(host, known_hosts=copy) for host in cluster.hosts), replace(twin, known_hosts=copy))
        findings = checked(replace(cluster, hosts=hosts))
        assert "h9 is the same machine" in of(findings, "h1")["duplicates"].cause
        assert "h1 is the same machine" in of(findings, "h9")["duplicates"].cause
        assert of(findings, "h2")["duplicates"].status == OK
    finally:
        on_host("h1", f"ip address del {address}/24 dev eth0")
        copy.unlink()


def test_two_hosts_that_call_themselves_the_same_are_found(cluster: Cluster, sound_lab: Path, on_host: Shell) -> None:
    on_host("h4", "hostname h3")
    try:
        findings = checked(cluster)
    finally:
        on_host("h4", "hostname h4")
    assert "h4 calls itself 'h3' too" in of(findings, "h3")["duplicates"].cause
    assert "h3 calls itself 'h3' too" in of(findings, "h4")["duplicates"].cause
    assert of(findings, "h1")["duplicates"].status == OK


def test_ranks_and_containers_of_an_earlier_run_are_found(
    cluster: Cluster, deployment: Deployment, remotes: Remotes
) -> None:
    other = replace(cluster, name="other", hosts=(cluster.host("h3"),), container_ssh_port=2322)
    deploy(other, suite_image(), gpu=False, remotes={"h3": remotes["h3"]}, progress=print)
    words = ["bash", "-c", 'exec -a "python3 -m suite.worker run --spec /x" sleep 60']
    left = remotes["h2"].exec_attached(deployment.containers["h2"], words)
    try:
        findings = checked(cluster)
        fails_alone(findings, "h2", "strays", "ranks of an earlier run still run there")
        assert of(findings, "h3")["strays"].status == WARN
        assert "ddp-suite-other" in of(findings, "h3")["strays"].cause
    finally:
        left.close()
        stop(other, {"h3": remotes["h3"]})
        stop(cluster, remotes)


def test_another_image_on_one_host_is_found(cluster: Cluster, deployment: Deployment, remotes: Remotes) -> None:
    with changed_image("opt/suite/odd", b"x") as tag:
        alone = replace(cluster, hosts=(cluster.host("h4"),))
        deploy(alone, tag, gpu=False, remotes={"h4": remotes["h4"]}, progress=print, preflight=lambda: None)
        try:
            fails_alone(checked(cluster, "run"), "h4", "image", "it should be")
        finally:
            stop(cluster, remotes)
            remotes["h4"].api.remove_image(tag, force=True)


def test_a_closed_port_between_two_hosts_is_found(cluster: Cluster, deployment: Deployment, on_host: Shell) -> None:
    rule = f"INPUT -s {cluster.host('h1').address} -p tcp --dport 29500:65535 -j REJECT"
    on_host("h2", f"iptables -I {rule}")
    try:
        findings = checked(cluster)
    finally:
        on_host("h2", f"iptables -D {rule}")
    fails_alone(findings, "h1", "pairs", f"does not reach h2 ({cluster.host('h2').address}) on port")
    assert of(findings, "h3")["pairs"].status == OK


def test_a_failed_check_costs_exit_3(cluster: Cluster, sound_lab: Path) -> None:
    lab.fault("sshd-gone", "h1", root=sound_lab)
    with open_remotes(cluster) as remotes, pytest.raises(HostError) as caught:
        remotes["h1"].run(["true"])
    assert caught.value.exit_code == EXIT_PREFLIGHT
