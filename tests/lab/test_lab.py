"""The simulated cluster: hosts that can be told apart, reached as real ones, limited, and removed without a trace."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from suite.cluster import lab
from suite.cluster.inventory import Cluster, load
from suite.cluster.lab_engine import LabEngine
from suite.cluster.lab_parts import MARK, LabFiles, LabHost, cluster_text
from suite.cluster.remote import RemoteHost
from suite.errors import HostError, UsageError
from suite.paths import project_root
from tests.lab.conftest import Shell

NAMES = ("h1", "h2", "h3", "h4")
containers = pytest.mark.containers


def left_of(root: Path) -> list[str]:
    """Everything that a lab has left on this machine."""
    label = f"label=ddp-backend-suite.lab={LabFiles(root).identity}"
    found: list[str] = []
    for words in (["ps", "--all"], ["volume", "ls"], ["network", "ls"]):
        command = ["docker", *words, "--quiet", "--filter", label]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
        found += done.stdout.split()
    return found + [str(path) for path in (root / "hosts").glob("**/*")]


def sent_bits_per_second(on_host: Shell, sender: str, receiver: str) -> float:
    """What the receiver got of one TCP stream in two seconds."""
    on_host(receiver, "pkill iperf3; iperf3 --server --one-off --daemon && sleep 0.3")
    answer = json.loads(on_host(sender, f"iperf3 --client {receiver} --time 2 --json"))
    return float(answer["end"]["sum_received"]["bits_per_second"])


# Without containers


@pytest.mark.parametrize("hosts", [0, -1, 65])
def test_a_lab_of_no_or_too_many_hosts_is_refused(hosts: int, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="1 to 64 hosts"):
        lab.up(hosts, root=tmp_path)


def test_a_cluster_file_of_the_users_own_is_never_replaced(tmp_path: Path) -> None:
    own = tmp_path / "hosts" / "lab.toml"
    own.parent.mkdir()
    own.write_text("[[hosts]]\n", encoding="utf-8")
    with pytest.raises(UsageError, match=r"lab\.toml was not written by"):
        lab.up(2, root=tmp_path)
    assert own.read_text(encoding="utf-8") == "[[hosts]]\n"


@pytest.mark.parametrize("rate", ["", "fast", "1", "1gb", "-1gbit", "0mbit", "1.5gbit", "1gbit; reboot"])
def test_a_rate_that_is_none_is_refused(rate: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is no rate"):
        lab.link(rate, root=tmp_path)


def test_the_cluster_file_can_be_read_back(tmp_path: Path) -> None:
    path = tmp_path / "lab.toml"
    path.write_text(cluster_text([LabHost("h1", "198.18.3.11", "c1"), LabHost("h2", "198.18.3.12", "c2")]))
    (tmp_path / ".lab").mkdir()
    cluster = load(path)
    assert [(h.name, h.address, h.user, h.port, h.slots) for h in cluster.hosts] == [
        ("h1", "198.18.3.11", "bench", 22, 1),
        ("h2", "198.18.3.12", "bench", 22, 1),
    ]
    assert {h.key for h in cluster.hosts} == {tmp_path / ".lab" / "id_ed25519"}
    assert {h.known_hosts for h in cluster.hosts} == {tmp_path / ".lab" / "known_hosts"}


# With four hosts


@containers
def test_every_host_is_reached_by_ssh_and_has_an_engine_of_its_own(cluster: Cluster) -> None:
    seen = {}
    for host in cluster.hosts:
        remote = RemoteHost(host)
        try:
            assert remote.run(["hostname"]).text == host.name
            assert remote.run(["whoami"]).text == "bench"
            seen[host.name] = remote.api.info()["ID"]
        finally:
            remote.close()
    assert tuple(seen) == NAMES
    assert len(set(seen.values())) == 4


@containers
def test_every_host_knows_its_peers_by_name_and_reaches_them(cluster: Cluster, on_host: Shell) -> None:
    addresses = {host.name: host.address for host in cluster.hosts}
    for name in NAMES:
        for peer in NAMES:
            assert on_host(name, f"getent hosts {peer}").split()[0] == addresses[peer]
            on_host(name, f"ping -c 1 -W 2 {peer}")


@containers
def test_the_keys_are_the_users_alone_and_only_the_key_lets_in(lab_root: Path, cluster: Cluster) -> None:
    files = LabFiles(lab_root)
    assert files.secrets.stat().st_mode & 0o777 == 0o700
    assert files.key.stat().st_mode & 0o777 == 0o600
    host = cluster.hosts[0]
    options = ["-F", "none", "-o", f"UserKnownHostsFile={files.known_hosts}", "-o", "StrictHostKeyChecking=yes"]
    options += ["-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "IdentitiesOnly=yes"]
    for identity, user, allowed in ((str(files.key), "bench", True), (str(files.key), "root", False)):
        command = ["ssh", *options, "-i", identity, f"{user}@{host.address}", "true"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        assert (done.returncode == 0) is allowed, done.stderr
    command = ["ssh", *options, "-o", "PubkeyAuthentication=no", f"bench@{host.address}", "true"]
    assert subprocess.run(command, capture_output=True, timeout=30, check=False).returncode != 0


@containers
def test_another_host_key_is_refused(lab_root: Path, cluster: Cluster, tmp_path: Path) -> None:
    first, second = LabFiles(lab_root).known_hosts.read_text(encoding="utf-8").splitlines()[:2]
    swapped = tmp_path / "known_hosts"
    swapped.write_text(f"{first.split()[0]} {second.split(maxsplit=1)[1]}\n", encoding="utf-8")
    host = cluster.hosts[0]
    options = [
        "-F",
        "none",
        "-o",
        f"UserKnownHostsFile={swapped}",
        "-o",
        "StrictHostKeyChecking=yes",
        "-o",
        "BatchMode=yes",
    ]
    command = ["ssh", *options, "-i", str(host.key), f"bench@{host.address}", "true"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 255
    assert "Host key verification failed" in done.stderr


@containers
def test_a_sound_lab_is_left_as_it_is(lab_root: Path, on_host: Shell) -> None:
    on_host("h3", "touch /home/bench/kept")
    said: list[str] = []
    path = lab.up(4, root=lab_root, progress=said.append)
    assert path == lab_root / "hosts" / "lab.toml"
    assert said == ["the lab is up already: h1, h2, h3, h4"]
    on_host("h3", "test -e /home/bench/kept")


@containers
def test_status_says_which_hosts_are_ready(lab_root: Path) -> None:
    assert [(h.name, h.state, h.ready, h.detail, h.link) for h in lab.status(root=lab_root)] == [
        (name, "running", True, "", "off") for name in NAMES
    ]


@containers
def test_a_limited_link_carries_that_much_and_only_the_senders_limit_counts(sound_lab: Path, on_host: Shell) -> None:
    lab.link("200mbit", "h1", root=sound_lab)
    # TCP's goodput is 1448 of every 1514 bytes on the wire; the burst may add a little over two seconds.
    assert 0.90 * 200e6 < sent_bits_per_second(on_host, "h1", "h2") < 1.0 * 200e6
    assert sent_bits_per_second(on_host, "h2", "h1") > 400e6
    assert [h.link for h in lab.status(root=sound_lab)] == ["200mbit", "off", "off", "off"]


@containers
def test_without_a_host_every_link_is_limited_and_off_lifts_it(sound_lab: Path, on_host: Shell) -> None:
    lab.link("50mbit", root=sound_lab)
    for name in NAMES:
        assert "rate 50Mbit" in on_host(name, "tc qdisc show dev eth0")
    lab.link("off", root=sound_lab)
    for name in NAMES:
        assert "tbf" not in on_host(name, "tc qdisc show dev eth0")


@containers
def test_an_unknown_host_is_refused_with_those_there_are(lab_root: Path) -> None:
    with pytest.raises(UsageError, match=r"no host 'h9'.*h1, h2, h3, h4"):
        lab.link("1gbit", "h9", root=lab_root)
    with pytest.raises(UsageError, match="no host 'h9'"):
        lab.fault("pause", "h9", root=lab_root)


# Beginning and end


@containers
def test_a_second_lab_is_apart_from_the_first_and_down_leaves_nothing(
    lab_root: Path, lab_engine: LabEngine, tmp_path: Path
) -> None:
    first = load(lab_root / "hosts" / "lab.toml")
    try:
        second = load(lab.up(1, root=tmp_path))
        assert (tmp_path / "hosts" / "lab.toml").read_text(encoding="utf-8").startswith(MARK)
        assert not {h.address for h in first.hosts} & {h.address for h in second.hosts}
        # The network is internal: no packet leaves it, not even for another network of this machine.
        assert not lab_engine.run("h1", "ping", "-c", "1", "-W", "2", second.hosts[0].address).ok
    finally:
        lab.down(root=tmp_path)
    assert left_of(tmp_path) == []
    lab.down(root=tmp_path)  # and again
    assert left_of(tmp_path) == []


@containers
def test_what_is_left_of_a_lab_is_replaced(tmp_path: Path) -> None:
    try:
        lab.up(2, root=tmp_path)
        subprocess.run(
            ["docker", "rm", "--force", "--volumes", LabFiles(tmp_path).container("h2")],
            capture_output=True,
            timeout=60,
            check=True,
        )
        said: list[str] = []
        lab.up(2, root=tmp_path, progress=said.append)
        assert said[0] == "removing what is left of an earlier lab"
        assert [(h.name, h.ready) for h in lab.status(root=tmp_path)] == [("h1", True), ("h2", True)]
    finally:
        lab.down(root=tmp_path)
    assert left_of(tmp_path) == []


@containers
def test_a_lab_that_cannot_be_started_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab, "READY_SECONDS", -1.0)  # what does not answer at once is too late
    with pytest.raises(HostError, match="was not ready"):
        lab.up(2, root=tmp_path)
    assert left_of(tmp_path) == []


@containers
@pytest.mark.parametrize("seconds", [0.0, 0.4])
def test_ctrl_c_while_a_lab_starts_leaves_nothing(tmp_path: Path, seconds: float) -> None:
    program = (
        "import signal, sys; from pathlib import Path; from suite.cluster import lab\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # what a shell starts with & ignores it
        "lab.up(3, root=Path(sys.argv[1]), progress=lambda line: print(line, flush=True))\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=project_root()) as up:
        assert up.stdout is not None
        assert any(line.startswith("starting h1, h2, h3") for line in up.stdout)
        time.sleep(seconds)
        up.send_signal(signal.SIGINT)
        _, errors = up.communicate(timeout=120)
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert left_of(tmp_path) == []


@containers
def test_without_a_lab_the_other_commands_say_so(tmp_path: Path) -> None:
    assert lab.status(root=tmp_path) == ()
    for call in (
        lambda: lab.link("1gbit", root=tmp_path),
        lambda: lab.fault("pause", "h1", root=tmp_path),
        lambda: lab.heal(root=tmp_path),
    ):
        with pytest.raises(UsageError, match="There is no lab"):
            call()


def test_without_an_engine_the_message_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening: refuses
        monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(HostError, match="this machine: looking for a Docker engine"):
            lab.up(1, root=tmp_path)
    assert left_files(tmp_path) == []


def left_files(root: Path) -> list[Path]:
    return list(root.rglob("*"))
