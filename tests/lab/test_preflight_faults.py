"""Faults that are there before anything is measured: exit 3 with host, cause and fix, and nothing changed anywhere."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from suite.cluster import lab
from suite.cluster.keys import key_pair
from tests.lab.fault_support import CLUSTER, IMAGE, NAMES, PATIENCE, SLACK, Done, Project, ending, error_of
from tests.lab.fault_table import Seen, marked, record

pytestmark = [pytest.mark.containers, pytest.mark.timeout(300 * PATIENCE)]


def told(done: Done) -> tuple[str, str]:
    """(message, fix): the failed check, or the error where no table of checks was shown."""
    found = re.search(r"^FAIL: (.+)\n  Fix: (.+)$", done.err, re.MULTILINE)
    return (found.group(1), found.group(2)) if found else error_of(done.err)


def refused(done: Done, key: str, host: str, cause: str, code: int = 3) -> None:
    """The common end: soon, with this code, host and cause, and a fix."""
    assert done.code == code, done
    assert done.seconds < 2 * SLACK
    message, fix = told(done)
    assert host in message
    assert any(text in message for text in cause.split("|")), message
    assert fix
    record(key, Seen(round(done.seconds, 1), round(done.seconds, 1), code, f"{message} Fix: {fix}"))


def containers(project: Project, name: str) -> list[str]:
    """The hosts on which a container of that cluster is there, running or not."""
    line = f"docker ps --all --quiet --filter name=ddp-suite-{name}"
    states = project.engine.hosts()
    return [host for host in NAMES if states[host] == "running" and project.on_host(host, line)]


def lab_text(project: Project, change: Callable[[str], str] = lambda text: text) -> str:
    """The lab's own cluster file, changed."""
    return change((project.root / "hosts" / "lab.toml").read_text(encoding="utf-8"))


def with_line(text: str, host: str, line: str) -> str:
    """A cluster file with one more line for a host."""
    return text.replace(f'name = "{host}"\n', f'name = "{host}"\n{line}\n')


# Before and during a deploy


def test_a_host_that_is_down_before_the_deploy(sound: Project, tmp_path: Path) -> None:
    before = {host: sound.running(host) for host in ("h1", "h2", "h4")}
    lab.fault("kill", "h3", root=sound.root)
    done = sound.fab("deploy", "--force", results=tmp_path)
    refused(done, "down before deploy", "h3", "did not answer|SSH connection")
    assert {host: sound.running(host) for host in before} == before


def test_a_port_that_the_container_needs_is_taken(sound: Project, tmp_path: Path) -> None:
    sound.write_cluster("other", top="container_ssh_port = 2322")
    lab.fault("port-taken", "h3", root=sound.root, port=2322)
    done = sound.fab("deploy", results=tmp_path, cluster="other")
    refused(done, "port 2222 taken", "h3", "port 2322, which the sshd in the container needs, is held by")
    assert containers(sound, "other") == []


@contextlib.contextmanager
def large_image(megabytes: int) -> Iterator[str]:
    """The tests' image with one more layer of that size, which no host has."""
    tag = "ddp-backend-suite:lab-test-large"
    recipe = f"FROM {IMAGE}\nRUN head -c {megabytes}M /dev/urandom > /tmp/large\n"
    words = ["docker", "build", "--quiet", "--no-cache", "--tag", tag, "-"]
    done = subprocess.run(words, input=recipe, text=True, capture_output=True, timeout=300 * PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    try:
        yield tag
    finally:
        subprocess.run(["docker", "rmi", "--force", tag], capture_output=True, timeout=120 * PATIENCE, check=False)


@pytest.mark.parametrize(
    ("key", "fault", "megabytes", "code", "cause", "cure"),
    [
        pytest.param(
            *("dies during deploy", "kill", 300, 3, r"^h2: .*(did not answer|connection was lost|SSH connection)"),
            "see that the host is up",
            marks=marked("dies during deploy"),
        ),
        pytest.param(
            *("disk-full deploy", "disk-full", 20, 1, r"^h2: the image is not there .*no space left on device\.$"),
            "free disk space there",
            marks=marked("disk-full deploy"),
        ),
    ],
)
def test_a_host_that_fails_while_the_image_comes(
    sound: Project, tmp_path: Path, key: str, fault: str, megabytes: int, code: int, cause: str, cure: str
) -> None:
    with large_image(megabytes) as tag:
        sound.write_cluster("other", top="container_ssh_port = 2322", image=tag)
        with ending(sound.start("deploy", results=tmp_path, cluster="other")) as fab:
            at = fab.wait_for(r"sending ", SLACK)
            lab.fault(fault, "h2", root=sound.root)
            done = fab.end(60 * PATIENCE)
        assert done.code == code, done
        message, fix = error_of(done.err)
        assert re.search(cause, message), message
        assert fix.startswith(cure), fix
        assert containers(sound, "other") == []
        seconds = round(fab.started + done.seconds - at, 1)
        record(key, Seen(seconds, seconds, done.code, f"{message} Fix: {fix}"))
        sound.mend()
        again = sound.fab("deploy", results=tmp_path, cluster="other")
        assert again.code == 0, again
        sent = re.search(r"^(.+): sending ", again.err, re.MULTILINE)
        assert sent
        assert "h2" in sent.group(1)
        assert sound.fab("stop", results=tmp_path, cluster="other").code == 0
        assert containers(sound, "other") == []


@marked("SIGKILL deploy")
def test_a_controller_that_is_killed_while_it_deploys(sound: Project, tmp_path: Path) -> None:
    """What it had begun on the hosts ends with its connections; the next deploy does the whole, `stop` removes it."""
    with large_image(200) as tag:
        sound.write_cluster("other", top="container_ssh_port = 2322", image=tag)
        with ending(sound.start("deploy", results=tmp_path, cluster="other")) as fab:
            fab.wait_for(r"sending ", SLACK)
            at = time.time()
            fab.signal(signal.SIGKILL)
            done = fab.end(SLACK)
        assert done.code == -signal.SIGKILL, done
        assert containers(sound, "other") == []
        # A user's own commands: docker's way in, held by the controller's session.
        cleaned = sound.await_clean(SLACK, "docker system dial-stdio")
        record("SIGKILL deploy", Seen(0.0, round(cleaned - at, 1), done.code, "(nothing: it is gone)"))
        again = sound.fab("deploy", results=tmp_path, cluster="other", timeout=120)
        assert again.code == 0, again
        assert containers(sound, "other") == list(NAMES)
        assert sound.fab("stop", results=tmp_path, cluster="other").code == 0
        assert containers(sound, "other") == []


def refused_until_deployed(
    sound: Project, results: Path, key: str, cause: str, *words: str, image: str = IMAGE
) -> None:
    """The lab's last host is deployed to alone, by a cluster file of the same name: no run until the next deploy."""
    alone = lab_text(sound, lambda text: text.partition("[[hosts]]")[0] + "[[hosts]]" + text.rpartition("[[hosts]]")[2])
    sound.write_cluster("other", top=f'name = "{CLUSTER}"', text=alone, image=image)
    done = sound.fab("deploy", *words, results=results, cluster="other")
    assert done.code == 0, done
    done = sound.fab("run", "--backend", "gloo", results=results)
    refused(done, key, "h4", cause)
    assert not (results / "runs").exists()
    done = sound.fab("deploy", results=results)
    assert done.code == 0, done
    assert containers(sound, CLUSTER) == list(NAMES)


@marked("stale containers")
def test_a_container_of_another_deployment(sound: Project, tmp_path: Path) -> None:
    """The others' containers do not take its keys."""
    cause = "belongs to another deployment than the others"
    refused_until_deployed(sound, tmp_path, "stale containers", cause, "--force")


# Before a run


@pytest.fixture
def refuses(sound: Project, tmp_path: Path) -> Callable[..., None]:
    """`fab run` is refused, no run is begun, and every container stays as it was."""
    before = {host: sound.running(host) for host in NAMES}

    def check(key: str, host: str, cause: str, *, cluster: str = CLUSTER, code: int = 3) -> None:
        done = sound.fab("run", "--backend", "gloo", results=tmp_path, cluster=cluster)
        refused(done, key, host, cause, code)
        assert not (tmp_path / "runs").exists()
        assert {host: sound.running(host) for host in NAMES} == before
        assert done.out == ""

    return check


def test_a_key_that_is_refused(sound: Project, tmp_path: Path, refuses: Callable[..., None]) -> None:
    stranger = tmp_path / "stranger"
    stranger.write_bytes(key_pair().private)
    stranger.chmod(0o600)
    text = lab_text(sound, lambda text: with_line(text, "h2", f'key = "{stranger}"'))
    sound.write_cluster("other", top=f'name = "{CLUSTER}"', text=text)
    refuses("key refused", "h2", "refused the key", cluster="other")


def test_a_host_key_that_is_not_the_known_one(sound: Project, tmp_path: Path, refuses: Callable[..., None]) -> None:
    address = re.search(r'name = "h3"\naddress = "(.+)"', lab_text(sound))
    assert address
    known = tmp_path / "known_hosts"
    known.write_text(f"{address.group(1)} {key_pair().public}\n", encoding="utf-8")
    text = lab_text(sound, lambda text: with_line(text, "h3", f'known_hosts = "{known}"'))
    sound.write_cluster("other", top=f'name = "{CLUSTER}"', text=text)
    before = known.read_bytes()
    refuses("host key changed", "h3", "is not the one in", cluster="other")
    assert known.read_bytes() == before


@marked("wrong image")
def test_a_container_of_another_image(sound: Project, tmp_path: Path) -> None:
    with large_image(1) as tag:
        refused_until_deployed(sound, tmp_path, "wrong image", "runs another image than the others", image=tag)


def test_a_clock_that_is_10_minutes_off(sound: Project, refuses: Callable[..., None]) -> None:
    lab.fault("clock-skew", "h2", root=sound.root)
    refuses("clock-skew", "h2", "its clock is 600 s ahead of this machine's")


def test_ranks_of_an_earlier_run(sound: Project, refuses: Callable[..., None]) -> None:
    stray = 'exec -a "python3 -m suite.worker run --spec /x" sleep 120'
    sound.on_host("h2", f"docker exec --detach ddp-suite-{CLUSTER} bash -c '{stray}'")
    refuses("stale ranks", "h2", "ranks of an earlier run still run there")
    assert sound.fab("deploy", "--force", results=Path(os.environ["SUITE_RESULTS"])).code == 0
    assert sound.leftovers() == {}


def test_a_host_that_is_listed_twice(sound: Project, tmp_path: Path) -> None:
    found = re.search(r'name = "h1"\naddress = "(.+)\.\d+"', lab_text(sound))
    assert found
    second = f"{found.group(1)}.201"
    known = (sound.root / "hosts/.lab/known_hosts").read_text(encoding="utf-8")
    own = known.splitlines()[0].partition(" ")[2]
    both = tmp_path / "known_hosts"
    both.write_text(f"{known}{second} {own}\n", encoding="utf-8")
    sound.on_host("h1", f"ip address replace {second}/24 dev eth0")
    try:
        text = lab_text(sound) + f'\n[[hosts]]\nname = "h9"\naddress = "{second}"\nknown_hosts = "{both}"\n'
        sound.write_cluster("other", top="container_ssh_port = 2322", text=text)
        done = sound.fab("deploy", results=tmp_path, cluster="other")
    finally:
        sound.on_host("h1", f"ip address del {second}/24 dev eth0")
    refused(done, "listed twice", "h1", "h9 is the same machine")
    assert containers(sound, "other") == []


def test_two_hosts_that_call_themselves_the_same(sound: Project, refuses: Callable[..., None]) -> None:
    sound.on_host("h4", "hostname h3")
    try:
        refuses("same name", "h3", "h4 calls itself 'h3' too")
    finally:
        sound.on_host("h4", "hostname h4")
