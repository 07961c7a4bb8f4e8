"""Every kind of fault: it is there as described, only on that host, and healing it leaves a sound host."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from suite.cluster import lab
from suite.cluster.inventory import Cluster, Host
from suite.cluster.lab_engine import LabEngine
from suite.cluster.remote import RemoteHost
from suite.errors import HostError, UsageError
from tests.lab.conftest import Shell

containers = pytest.mark.containers
MiB = 1 << 20


def reachable(lab_engine: LabEngine, sender: str, receiver: str) -> bool:
    return lab_engine.run(sender, "ping", "-c", "1", "-W", "1", receiver).ok


def accepts(host: Host, port: int) -> bool:
    try:
        socket.create_connection((host.address, port), timeout=3).close()
    except OSError:
        return False
    return True


def first(cluster: Cluster) -> Host:
    return cluster.host("h1")


def assert_sound(root: Path, cluster: Cluster) -> None:
    assert [(h.name, h.ready) for h in lab.status(root=root)] == [(h.name, True) for h in cluster.hosts]
    remote = RemoteHost(first(cluster))
    try:
        assert remote.api.ping()
    finally:
        remote.close()


def test_an_unknown_kind_is_refused_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no fault 'gremlins'.*network-cut.*port-taken"):
        lab.fault("gremlins", "h1", root=tmp_path)


def test_every_kind_is_tested_here() -> None:
    tested = {
        word.removeprefix("test_fault_").replace("_", "-") for word in globals() if word.startswith("test_fault_")
    }
    assert tested == set(lab.KINDS)


@containers
def test_healing_a_sound_lab_changes_nothing(sound_lab: Path, cluster: Cluster) -> None:
    assert lab.heal(root=sound_lab) == ("h1", "h2", "h3", "h4")
    assert_sound(sound_lab, cluster)


@containers
def test_fault_network_cut(sound_lab: Path, cluster: Cluster, lab_engine: LabEngine) -> None:
    lab.fault("network-cut", "h1", root=sound_lab)
    assert not reachable(lab_engine, "h2", "h1")
    assert not reachable(lab_engine, "h1", "h2")
    assert reachable(lab_engine, "h1", "127.0.0.1")
    assert reachable(lab_engine, "h2", "h3")
    assert not accepts(first(cluster), 22)
    assert lab.heal("h1", root=sound_lab) == ("h1",)
    assert reachable(lab_engine, "h2", "h1")
    assert_sound(sound_lab, cluster)


@containers
def test_fault_slow_link(sound_lab: Path, cluster: Cluster, on_host: Shell) -> None:
    lab.link("300mbit", root=sound_lab)
    lab.fault("slow-link", "h1", root=sound_lab)
    assert "rate 1Mbit" in on_host("h1", "tc qdisc show dev eth0")
    assert "rate 300Mbit" in on_host("h2", "tc qdisc show dev eth0")
    lab.heal("h1", root=sound_lab)
    assert "rate 300Mbit" in on_host("h1", "tc qdisc show dev eth0")
    assert_sound(sound_lab, cluster)


@containers
def test_fault_pause(sound_lab: Path, cluster: Cluster) -> None:
    lab.fault("pause", "h1", root=sound_lab)
    broken = lab.status(root=sound_lab)[0]
    assert (broken.state, broken.ready, broken.detail) == ("paused", False, "its container is paused")
    assert accepts(first(cluster), 22)  # the kernel still answers: only a deadline notices
    lab.heal("h1", root=sound_lab)
    assert_sound(sound_lab, cluster)


@containers
def test_fault_kill(sound_lab: Path, cluster: Cluster, lab_engine: LabEngine, on_host: Shell) -> None:
    lab.link("300mbit", "h1", root=sound_lab)
    on_host("h1", "echo kept >/var/lib/docker/on-disk")
    lab.fault("kill", "h1", root=sound_lab)
    assert lab.status(root=sound_lab)[0].state == "exited"
    assert not reachable(lab_engine, "h2", "h1")
    lab.heal("h1", root=sound_lab)
    assert on_host("h1", "cat /var/lib/docker/on-disk") == "kept"
    assert "rate 300Mbit" in on_host("h1", "tc qdisc show dev eth0")
    assert_sound(sound_lab, cluster)


@containers
def test_fault_disk_full(sound_lab: Path, cluster: Cluster, on_host: Shell, lab_engine: LabEngine) -> None:
    before = int(on_host("h2", "df --output=avail -B1 /var/lib/lab-store | tail -n 1"))  # the machine's own disk
    lab.fault("disk-full", "h1", root=sound_lab)
    refused = lab_engine.run("h1", "dd", "if=/dev/zero", "of=/var/lib/docker/more", "bs=64K", "count=1")
    assert not refused.ok
    assert "No space left on device" in refused.stderr.decode()
    assert int(on_host("h1", "df --output=avail -B1 /var/lib/docker | tail -n 1")) == 0
    assert int(on_host("h2", "df --output=avail -B1 /var/lib/docker | tail -n 1")) > 1024 * MiB
    assert before - int(on_host("h2", "df --output=avail -B1 /var/lib/lab-store | tail -n 1")) < 1024 * MiB
    lab.heal("h1", root=sound_lab)
    assert int(on_host("h1", "df --output=avail -B1 /var/lib/docker | tail -n 1")) > 1024 * MiB
    assert_sound(sound_lab, cluster)


@containers
def test_fault_sshd_gone(sound_lab: Path, cluster: Cluster, lab_engine: LabEngine) -> None:
    remote = RemoteHost(first(cluster))
    try:
        remote.connect()
        lab.fault("sshd-gone", "h1", root=sound_lab)
        assert not accepts(first(cluster), 22)
        with pytest.raises(HostError):
            remote.run(["true"])  # the open session is gone too
    finally:
        remote.close()
    broken = lab.status(root=sound_lab)[0]
    assert not broken.ready
    assert broken.detail.startswith("sshd does not answer")
    assert reachable(lab_engine, "h2", "h1")
    lab.heal("h1", root=sound_lab)
    assert_sound(sound_lab, cluster)


@containers
def test_fault_container_sshd_gone(sound_lab: Path, cluster: Cluster, on_host: Shell) -> None:
    """The process namespace of a container, without a container: a stand-in that needs no image on the host."""
    on_host("h1", "setsid --fork unshare --pid --fork /usr/sbin/sshd -D -p 2299 >/dev/null 2>&1 </dev/null; sleep 0.5")
    assert accepts(first(cluster), 2299)
    lab.fault("container-sshd-gone", "h1", root=sound_lab)
    assert not accepts(first(cluster), 2299)
    assert accepts(first(cluster), 22)  # the host's own stays
    lab.heal("h1", root=sound_lab)
    assert_sound(sound_lab, cluster)


@containers
def test_fault_docker_gone(sound_lab: Path, cluster: Cluster) -> None:
    lab.fault("docker-gone", "h1", root=sound_lab)
    remote = RemoteHost(first(cluster))
    try:
        with pytest.raises(HostError):
            _ = remote.api
    finally:
        remote.close()
    assert lab.status(root=sound_lab)[0].detail.startswith("dockerd does not answer")
    lab.heal("h1", root=sound_lab)
    assert_sound(sound_lab, cluster)


@containers
def test_fault_docker_restart(sound_lab: Path, cluster: Cluster, on_host: Shell) -> None:
    before = on_host("h1", "pgrep --ns 1 --nslist pid -x dockerd")
    lab.fault("docker-restart", "h1", root=sound_lab)
    after = on_host("h1", "pgrep --ns 1 --nslist pid -x dockerd")
    assert before != after
    lab.heal("h1", root=sound_lab)
    assert on_host("h1", "pgrep --ns 1 --nslist pid -x dockerd") == after
    assert_sound(sound_lab, cluster)


def skew_seconds(host: Host) -> float:
    remote = RemoteHost(host)
    try:
        return float(remote.run(["date", "+%s.%N"]).text) - time.time()
    finally:
        remote.close()


@containers
def test_fault_clock_skew(sound_lab: Path, cluster: Cluster) -> None:
    """A stand-in: containers share one clock, so it is the date command that is ahead."""
    lab.fault("clock-skew", "h1", root=sound_lab)
    assert skew_seconds(first(cluster)) == pytest.approx(600, abs=5)
    assert skew_seconds(cluster.host("h2")) == pytest.approx(0, abs=5)
    lab.heal("h1", root=sound_lab)
    assert skew_seconds(first(cluster)) == pytest.approx(0, abs=5)


@containers
@pytest.mark.parametrize("port", [2222, 29500])
def test_fault_port_taken(sound_lab: Path, cluster: Cluster, port: int) -> None:
    assert not accepts(first(cluster), port)
    lab.fault("port-taken", "h1", root=sound_lab, port=port)
    assert accepts(first(cluster), port)
    lab.heal("h1", root=sound_lab)
    assert not accepts(first(cluster), port)
    assert_sound(sound_lab, cluster)


@containers
def test_faults_of_several_hosts_are_healed_together(sound_lab: Path, cluster: Cluster) -> None:
    breaks: tuple[tuple[str, str], ...] = (
        ("kill", "h1"),
        ("network-cut", "h2"),
        ("pause", "h3"),
        ("docker-gone", "h4"),
    )
    for kind, host in breaks:
        lab.fault(kind, host, root=sound_lab)
    lab.heal(root=sound_lab)
    assert_sound(sound_lab, cluster)


@containers
def test_a_host_that_is_down_cannot_be_broken_further(sound_lab: Path) -> None:
    lab.fault("kill", "h1", root=sound_lab)
    again: Callable[[], None] = lambda: lab.fault("slow-link", "h1", root=sound_lab)  # noqa: E731 - named for the reader
    with pytest.raises(HostError, match="h1"):
        again()
