"""Deploy to four simulated hosts: over real SSH, to real engines, with the suite's real image."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from suite.cluster import images, keys, lab, workers
from suite.cluster.containers import volume_name
from suite.cluster.deploy import Deployment, deploy, find_deployment, open_remotes
from suite.cluster.inventory import Cluster
from suite.cluster.remote import RemoteHost
from suite.cluster.stop import stop
from suite.cluster.transport import local_engine
from suite.errors import HostError, PreflightError, SuiteError
from suite.paths import project_root
from tests.lab.conftest import Shell
from tests.support.suite_image import changed_image, suite_image

ROOT = project_root()
pytestmark = pytest.mark.containers
Remotes = dict[str, RemoteHost]


@pytest.fixture
def remotes(cluster: Cluster, sound_lab: Path) -> Iterator[Remotes]:
    with open_remotes(cluster) as opened:
        yield opened


def deployed(cluster: Cluster, remotes: Remotes, tag: str | None = None, **options: bool) -> Deployment:
    tag = tag or suite_image()
    return deploy(cluster, tag, gpu=False, remotes=remotes, progress=print, **options)  # type: ignore[arg-type]


def inside(cluster: Cluster, remotes: Remotes, done: Deployment, host: str, line: str) -> str:
    """What a line of shell prints in a host's container."""
    answer = remotes[host].exec_run(done.containers[host], ["sh", "-c", line])
    assert answer.ok, answer
    return answer.text


def test_every_host_gets_the_image_and_a_container_that_reaches_the_others(cluster: Cluster, remotes: Remotes) -> None:
    done = deployed(cluster, remotes, force=True)
    assert list(done.containers) == ["h1", "h2", "h3", "h4"]
    assert not done.kept
    local = local_engine(60)
    wanted = images.local_image(local, suite_image())
    local.close()
    for host, remote in remotes.items():
        there = remote.api.inspect_container(done.containers[host])
        assert there["State"]["Running"]
        assert there["Image"] == wanted.id == done.image_id
        assert inside(cluster, remotes, done, host, "hostname") == host
        assert inside(cluster, remotes, done, host, "for h in h1 h2 h3 h4; do suite-mpi-ssh $h hostname; done") == (
            "h1\nh2\nh3\nh4"
        )


def test_a_second_deploy_sends_nothing_keeps_everything_and_is_quick(cluster: Cluster, remotes: Remotes) -> None:
    first = deployed(cluster, remotes)
    with open_remotes(cluster) as anew:
        start = time.monotonic()
        second = deployed(cluster, anew)
        seconds = time.monotonic() - start
    assert second.kept
    assert (second.id, second.containers, second.bytes_sent) == (first.id, first.containers, 0)
    assert seconds < 3
    assert find_deployment(cluster, remotes).containers == first.containers


def test_only_the_layer_that_changed_is_sent_and_only_to_hosts_that_lack_it(cluster: Cluster, remotes: Remotes) -> None:
    deployed(cluster, remotes)
    with changed_image("opt/suite/changed", b"x" * 1000) as tag:
        done = deployed(cluster, remotes, tag)
        try:
            assert len(done.shipped) == 4
            for shipped in done.shipped.values():
                assert shipped.layers_left_out == shipped.layers - 1
                assert shipped.bytes_sent < 2 << 20
            assert inside(cluster, remotes, done, "h3", "wc -c < /opt/suite/changed") == "1000"
            remotes["h2"].api.remove_container(done.containers["h2"], force=True)
            remotes["h2"].api.remove_image(tag, force=True)
            again = deployed(cluster, remotes, tag)
            assert list(again.shipped) == ["h2"]
            assert again.id != done.id
        finally:
            deployed(cluster, remotes)
            for remote in remotes.values():
                remote.api.remove_image(tag, force=True)


def test_a_container_may_do_nothing_that_it_need_not(cluster: Cluster, remotes: Remotes) -> None:
    done = deployed(cluster, remotes)
    status = inside(cluster, remotes, done, "h1", "id -u; cat /proc/1/status; touch /x 2>&1 || true; ls /run /var/run")
    assert status.startswith("1000\n")
    for line in ("CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1"):
        assert line in status
    assert "Read-only file system" in status
    assert "docker.sock" not in status
    facts = remotes["h1"].api.inspect_container(done.containers["h1"])
    assert [mount["Destination"] for mount in facts["Mounts"]] == ["/var/lib/suite"]
    assert not facts["HostConfig"]["Privileged"]


def test_the_sshd_inside_lets_only_the_deployments_key_in(
    cluster: Cluster, remotes: Remotes, on_host: Shell, tmp_path: Path
) -> None:
    done = deployed(cluster, remotes)
    address, port = cluster.host("h2").data_address, cluster.container_ssh_port
    listening = [line.split()[3] for line in on_host("h2", f"ss -Hltn 'sport = :{port}'").splitlines()]
    assert listening == [f"{address}:{port}"], "the cluster's address only"
    stranger = tmp_path / "id"
    stranger.write_bytes(keys.key_pair().private)
    stranger.chmod(0o600)
    own = remotes["h1"].exec_run(done.containers["h1"], ["cat", f"{keys.FOLDER}/id"]).stdout
    stolen = tmp_path / "stolen"
    stolen.write_bytes(own)
    stolen.chmod(0o600)
    known = tmp_path / "known_hosts"
    known.write_bytes(remotes["h1"].exec_run(done.containers["h1"], ["cat", f"{keys.FOLDER}/known_hosts"]).stdout)
    for key, user in ((stranger, "suite"), (stolen, "root"), (stolen, "suite")):  # the last: from a foreign address
        login = RemoteHost(replace(cluster.host("h2"), port=port, user=user, key=key, known_hosts=known))
        with pytest.raises(HostError, match=r"refused the key|no SSH connection"):
            login.connect()
        login.close()


def test_the_private_keys_are_only_where_they_are_needed_and_new_each_time(cluster: Cluster, remotes: Remotes) -> None:
    def read(done: Deployment, name: str) -> bytes:
        return remotes["h1"].exec_run(done.containers["h1"], ["cat", f"{keys.FOLDER}/{name}"]).stdout

    one = deployed(cluster, remotes)
    modes = inside(cluster, remotes, one, "h1", f"stat -c %a {keys.FOLDER} {keys.FOLDER}/*").split()
    assert set(modes) == {"700", "600"}
    secret = read(one, "id")
    assert b"PRIVATE KEY" in secret
    body = secret.splitlines()[3]
    facts = remotes["h1"].api.inspect_container(one.containers["h1"])
    assert body.decode() not in str(facts)
    assert body not in remotes["h1"].api.logs(one.containers["h1"])
    two = deployed(cluster, remotes, force=True)
    assert read(two, "id") != secret


def test_a_restart_ends_everything_and_sshd_answers_again(cluster: Cluster, remotes: Remotes) -> None:
    done = deployed(cluster, remotes)
    remote, container = remotes["h3"], done.containers["h3"]
    script = "trap '' TERM INT HUP; echo up; while :; do sleep 1; done"
    stubborn = remote.exec_attached(container, ["bash", "-c", script])
    deadline = time.monotonic() + 10
    while not stubborn.lines and time.monotonic() < deadline:
        time.sleep(0.02)
    start = time.monotonic()
    workers.restart(remote, container)
    assert time.monotonic() - start < 15
    stubborn.close()
    assert "trap" not in inside(cluster, remotes, done, "h3", "ps -eo args")
    assert not workers.unreached(cluster, remotes, done.containers, ring=False)


def test_a_dead_container_is_noticed_and_replaced(cluster: Cluster, remotes: Remotes) -> None:
    done = deployed(cluster, remotes)
    remotes["h4"].api.kill(done.containers["h4"])
    with pytest.raises(PreflightError, match=r"container on h4 is not running.*fab deploy"):
        find_deployment(cluster, remotes)
    again = deployed(cluster, remotes)
    assert not again.kept
    assert again.bytes_sent == 0


def test_an_sshd_that_is_gone_is_noticed_and_mended(cluster: Cluster, remotes: Remotes, sound_lab: Path) -> None:
    deployed(cluster, remotes)
    lab.fault("container-sshd-gone", "h2", root=sound_lab)
    again = deployed(cluster, remotes)
    assert not again.kept
    assert not workers.unreached(cluster, remotes, again.containers, ring=False)


def test_another_image_on_one_host_is_noticed(cluster: Cluster, remotes: Remotes) -> None:
    done = deployed(cluster, remotes)
    with changed_image("opt/suite/wrong", b"x") as tag:
        alone = replace(cluster, hosts=(cluster.host("h2"),), name="other", container_ssh_port=2322)
        other = deployed(alone, {"h2": remotes["h2"]}, tag)
        try:
            facts = remotes["h2"].api.inspect_container(done.containers["h2"])
            remotes["h2"].api.remove_container(done.containers["h2"], force=True)
            body = {"Image": other.image_id, "Labels": facts["Config"]["Labels"], "HostConfig": facts["HostConfig"]}
            made = remotes["h2"].api.create_container_from_config(body, "impostor")  # type: ignore[no-untyped-call]
            remotes["h2"].api.start(made["Id"])
            with pytest.raises(PreflightError, match="on h2 runs another image than the others"):
                find_deployment(cluster, remotes)
        finally:
            stop(alone, {"h2": remotes["h2"]})
            assert not deployed(cluster, remotes).kept
            remotes["h2"].api.remove_image(tag, force=True)


def test_a_changed_cluster_file_is_noticed(cluster: Cluster, remotes: Remotes) -> None:
    deployed(cluster, remotes)
    changed = replace(cluster, hosts=tuple(replace(host, shm_bytes=256 << 20) for host in cluster.hosts))
    with pytest.raises(PreflightError, match="cluster file has changed"):
        find_deployment(changed, remotes)


def test_stop_leaves_nothing_and_can_be_repeated(cluster: Cluster, remotes: Remotes) -> None:
    deployed(cluster, remotes)
    assert stop(cluster, remotes) == dict.fromkeys(remotes, True)
    for remote in remotes.values():
        assert remote.api.containers(all=True) == []
        assert not [v for v in remote.api.volumes()["Volumes"] or [] if v["Name"] == volume_name(cluster)]
    assert stop(cluster, remotes) == dict.fromkeys(remotes, False)
    with pytest.raises(PreflightError, match=r"no container of this suite on h1, h2, h3, h4.*fab deploy"):
        find_deployment(cluster, remotes)


def test_stop_serves_the_hosts_that_answer(cluster: Cluster, remotes: Remotes, sound_lab: Path) -> None:
    deployed(cluster, remotes)
    lab.fault("kill", "h1", root=sound_lab)
    outcome = stop(cluster, remotes)
    assert isinstance(outcome["h1"], SuiteError)
    assert [outcome[name] for name in ("h2", "h3", "h4")] == [True, True, True]


@pytest.mark.parametrize(
    ("kind", "error", "message"),
    [
        ("kill", HostError, r"h2: .*(did not answer|no SSH connection)"),
        ("docker-gone", HostError, r"h2: .*Docker engine did not answer.*systemctl start docker"),
        ("port-taken", PreflightError, r"h2, ports: port 2222.* is held by .*container_ssh_port"),
        ("disk-full", PreflightError, r"h2, disk: .* GB free.*docker system df"),
    ],
)
def test_a_host_that_is_not_fit_stops_a_deploy_before_anything_changes(
    cluster: Cluster, remotes: Remotes, sound_lab: Path, kind: str, error: type[SuiteError], message: str
) -> None:
    stop(cluster, remotes)
    with changed_image("opt/suite/unfit", b"x") as tag:
        lab.fault(kind, "h2", root=sound_lab)
        start = time.monotonic()
        with pytest.raises(error, match=message):
            deployed(cluster, remotes, tag)
        assert time.monotonic() - start < 45
        for name in ("h1", "h3", "h4"):
            assert remotes[name].api.containers(all=True) == []
            assert images.describe(remotes[name].api, tag) is None


def test_a_port_that_is_taken_during_the_start_is_named_and_nothing_is_left(
    cluster: Cluster, remotes: Remotes, sound_lab: Path
) -> None:
    stop(cluster, remotes)

    def break_it() -> None:
        lab.fault("port-taken", "h3", root=sound_lab)

    with pytest.raises(HostError, match=r"h3: the sshd inside the container did not answer: .*in use"):
        deploy(cluster, suite_image(), gpu=False, remotes=remotes, progress=print, preflight=break_it)
    for remote in remotes.values():
        assert remote.api.containers(all=True) == []


def test_a_host_that_dies_while_the_image_comes_stops_the_deploy_and_leaves_no_container(
    cluster: Cluster, remotes: Remotes, sound_lab: Path
) -> None:
    stop(cluster, remotes)
    with changed_image("opt/suite/large", os.urandom(200 << 20)) as tag:

        def watch(line: str) -> None:
            print(line)
            if "MB sent" in line and lab.status(root=sound_lab)[3].state == "running":
                lab.fault("kill", "h4", root=sound_lab)

        start = time.monotonic()
        with pytest.raises(SuiteError, match="h4: "):
            deploy(cluster, tag, gpu=False, remotes=remotes, progress=watch)
        assert time.monotonic() - start < 150
        lab.heal(root=sound_lab)
        for name in ("h1", "h2", "h3"):
            assert remotes[name].api.containers(all=True) == []
            if images.describe(remotes[name].api, tag) is not None:
                remotes[name].api.remove_image(tag, force=True)


def test_a_disk_that_fills_while_the_image_comes_is_told_and_leaves_no_container(
    cluster: Cluster, remotes: Remotes, sound_lab: Path
) -> None:
    stop(cluster, remotes)

    def fill() -> None:
        lab.fault("disk-full", "h2", root=sound_lab)

    with changed_image("opt/suite/large", os.urandom(20 << 20)) as tag:
        with pytest.raises(SuiteError, match=r"h2: .*no space left.*docker system df"):
            deploy(cluster, tag, gpu=False, remotes=remotes, progress=print, preflight=fill)
        lab.heal(root=sound_lab)
        for remote in remotes.values():
            assert remote.api.containers(all=True) == []
        done = deployed(cluster, remotes, tag)
        assert list(done.shipped) == ["h2"], "the others have it already"
        stop(cluster, remotes)
        for remote in remotes.values():
            remote.api.remove_image(tag, force=True)


def test_a_compressed_image_arrives_whole(cluster: Cluster, remotes: Remotes) -> None:
    with changed_image("opt/suite/zeros", bytes(8 << 20)) as tag:
        done = deploy(cluster, tag, gpu=False, remotes=remotes, progress=print, compress=True)
        try:
            assert all(shipped.bytes_sent < 1 << 20 for shipped in done.shipped.values())
            assert inside(cluster, remotes, done, "h1", "wc -c < /opt/suite/zeros") == str(8 << 20)
        finally:
            stop(cluster, remotes)
            for remote in remotes.values():
                remote.api.remove_image(tag, force=True)


@pytest.mark.parametrize("signal_name", ["SIGINT", "SIGTERM"])
def test_an_interrupted_deploy_leaves_no_container(
    cluster: Cluster, remotes: Remotes, lab_root: Path, signal_name: str
) -> None:
    deployed(cluster, remotes)
    stop(cluster, remotes)
    script = (
        "import signal, sys; from pathlib import Path; from suite.cluster.deploy import deploy, open_remotes;"
        "from suite.cluster.inventory import load; cluster = load(Path(sys.argv[1]));\n"
        "def raise_interrupt(*_): raise KeyboardInterrupt\n"
        "for number in (signal.SIGINT, signal.SIGTERM): signal.signal(number, raise_interrupt)\n"
        "with open_remotes(cluster) as remotes:\n"
        "    deploy(cluster, sys.argv[2], gpu=False, remotes=remotes, progress=lambda line: print(line, flush=True))\n"
    )
    words = [sys.executable, "-c", script, str(lab_root / "hosts" / "lab.toml"), suite_image()]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "starting one container" in line:
                time.sleep(0.3)
                process.send_signal(getattr(signal, signal_name))
        assert process.wait(60) != 0
    for remote in remotes.values():
        assert remote.api.containers(all=True) == []


def test_nobody_listens_on_the_containers_port_after_stop(cluster: Cluster, remotes: Remotes) -> None:
    deployed(cluster, remotes)
    stop(cluster, remotes)
    for host in cluster.hosts:
        with pytest.raises(OSError, match=r"refused|timed out"):
            socket.create_connection((host.data_address, cluster.container_ssh_port), 3).close()
