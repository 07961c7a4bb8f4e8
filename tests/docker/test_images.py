"""The cpu image at work: who owns what a campaign writes, as whom it runs, how it ends, how big it is.

A few lines of Python take the place of `fab` where only the container around a campaign is asked about.
"""

from __future__ import annotations

import os
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from suite.cluster.build import build
from suite.paths import project_root

pytestmark = [pytest.mark.containers, pytest.mark.timeout(900)]
IMAGE = "ddp-backend-suite:cpu"
BUILD_SECONDS = 800
CAMPAIGN = """#!/usr/bin/env python3
import os, pathlib, signal, sys, time
folder = pathlib.Path("results/runs/r1")
folder.mkdir(parents=True, exist_ok=True)
folder.chmod(0o700)
capabilities = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("CapEff"))
(folder / "facts").write_text(f"{os.getuid()} {os.getgid()} {int(capabilities, 16)} {' '.join(sys.argv[1:])}")
try:
    time.sleep(float(os.environ.get("NAP", "0")))
except KeyboardInterrupt:
    try:
        time.sleep(1.5)  # saving takes a moment, and no second signal may come in between
    except KeyboardInterrupt:
        sys.exit(99)
    (folder / "saved").write_text("")
    sys.exit(130)
sys.exit(3)
"""


@pytest.fixture(scope="module")
def image() -> str:
    """The cpu image as the tree says it now."""
    build("cpu", root=project_root(), progress=lambda line: None, deadline_seconds=BUILD_SECONDS)
    return IMAGE


@pytest.fixture
def campaign(tmp_path: Path) -> Path:
    """A program to be mounted in the place of `fab`."""
    path = tmp_path / "fab"
    path.write_text(CAMPAIGN, encoding="utf-8")
    path.chmod(0o755)
    return path


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The results folder that compose.yaml mounts."""
    path = tmp_path / "results"
    path.mkdir()
    monkeypatch.setenv("SUITE_RESULTS", str(path))
    monkeypatch.setenv("SUITE_IMAGE_POLICY", "never")
    return path


@pytest.fixture
def name() -> Iterator[str]:
    """A container's name; the container is gone after the test."""
    name = f"suite-test-{uuid.uuid4().hex[:8]}"
    yield name
    subprocess.run(["docker", "rm", "--force", "--volumes", name], capture_output=True, timeout=60, check=False)


def compose_run(*words: str, seconds: float = 120) -> subprocess.CompletedProcess[str]:
    command = ["docker", "compose", "run", "--rm", "--no-TTY", *words]
    return subprocess.run(command, cwd=project_root(), capture_output=True, text=True, timeout=seconds, check=False)


def owners(folder: Path) -> set[tuple[int, int]]:
    """Owner and group of everything below a folder."""
    return {(p.lstat().st_uid, p.lstat().st_gid) for p in folder.rglob("*")}


def give_to(folder: Path, uid: int, gid: int) -> None:
    if os.getuid() != 0:
        pytest.skip("NOT RUN: only root can make folders of other owners")
    os.chown(folder, uid, gid)


@pytest.mark.parametrize(("uid", "gid"), [(1000, 1000), (12345, 777)])
def test_what_a_run_writes_belongs_to_the_owner_of_results(
    image: str, campaign: Path, results: Path, uid: int, gid: int
) -> None:
    give_to(results, uid, gid)
    done = compose_run("--volume", f"{campaign}:/usr/bin/fab:ro", "suite-local")
    assert done.returncode == 3, done.stderr  # the campaign's own exit code
    assert (results / "runs" / "r1" / "facts").read_text() == f"{uid} {gid} 0 local --plan quick --backend all"
    assert owners(results) == {(uid, gid)}


def test_where_results_belong_to_root_no_root_process_runs_the_campaign_and_root_gets_all_of_it(
    image: str, campaign: Path, results: Path
) -> None:
    give_to(results, 0, 0)
    done = compose_run("--volume", f"{campaign}:/usr/bin/fab:ro", "suite-local", "--plan", "standard")
    assert done.returncode == 3, done.stderr
    assert (results / "runs" / "r1" / "facts").read_text() == "1000 1000 0 local --plan standard"
    assert owners(results) == {(0, 0)}


def test_two_runs_at_once_do_not_take_the_folder_from_each_other(image: str, campaign: Path, results: Path) -> None:
    give_to(results, 0, 0)
    mount = f"{campaign}:/usr/bin/fab:ro"
    long = ["docker", "compose", "run", "--rm", "--no-TTY", "--env", "NAP=15", "--volume", mount, "suite-local"]
    with subprocess.Popen(long, cwd=project_root(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as longer:
        wait_for(results / "runs" / "r1" / "facts")
        assert compose_run("--volume", mount, "suite-local").returncode == 3
        assert longer.poll() is None, "the longer run ended too early for this test"
        assert (1000, 1000) in owners(results)
        assert longer.wait(timeout=120) == 3
    assert owners(results) == {(0, 0)}


@pytest.mark.parametrize(("signal", "code", "saved"), [("INT", 130, True), ("TERM", 143, False)])
@pytest.mark.parametrize("uid", [0, 12345])
def test_a_signal_reaches_the_campaign_once_and_everything_is_handed_back(
    image: str, campaign: Path, results: Path, name: str, signal: str, code: int, saved: bool, uid: int
) -> None:
    """(The stand-in does not handle SIGTERM, as the real campaign does: it shows that it arrived.)"""
    give_to(results, uid, uid)
    mount = f"{campaign}:/usr/bin/fab:ro"
    compose_run("--detach", "--name", name, "--env", "NAP=60", "--volume", mount, "suite-local")
    wait_for(results / "runs" / "r1" / "facts")
    subprocess.run(["docker", "kill", "--signal", signal, name], capture_output=True, timeout=30, check=True)
    done = subprocess.run(["docker", "wait", name], capture_output=True, text=True, timeout=30, check=False)
    # With --rm it may be gone before it can be asked.
    assert done.stdout.strip() in (str(code), "") or "No such container" in done.stderr
    wait_for_end(name)
    assert (results / "runs" / "r1" / "saved").exists() is saved
    assert owners(results) == {(uid, uid)}


def wait_for(path: Path, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not path.exists() or not path.read_text():
        assert time.monotonic() < deadline, f"there is no {path} after {seconds} s"
        time.sleep(0.1)


def wait_for_end(name: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while subprocess.run(["docker", "inspect", name], capture_output=True, timeout=30, check=False).returncode == 0:
        assert time.monotonic() < deadline, f"{name} still exists after {seconds} s"
        time.sleep(0.1)


def test_runs_of_another_owner_are_refused_with_the_remedy(image: str, campaign: Path, results: Path) -> None:
    give_to(results, 12345, 777)
    (results / "runs").mkdir()
    done = compose_run("--volume", f"{campaign}:/usr/bin/fab:ro", "suite-local")
    assert done.returncode == 2
    assert "its folder runs/ to uid 0: give runs/ to uid 12345 (chown -R)" in done.stdout + done.stderr


def test_without_a_results_folder_a_campaign_does_not_start(image: str) -> None:
    command = ["docker", "run", "--rm", "--network", "none", image, "local"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "is lost with its container" in done.stderr


def test_the_service_holds_no_more_than_it_needs(image: str, results: Path) -> None:
    script = "cat /proc/self/status; touch /x; touch /opt/suite/x; ip -brief link; df -m /dev/shm; touch /tmp/x"
    done = compose_run("suite-local", "bash", "-c", script)
    seen = done.stdout + done.stderr
    bits = int(next(line.split()[1] for line in seen.splitlines() if line.startswith("CapBnd")), 16)
    # CHOWN, DAC_OVERRIDE, KILL, SETGID, SETUID, by their numbers in linux/capability.h.
    assert bits == 1 << 0 | 1 << 1 | 1 << 5 | 1 << 6 | 1 << 7
    assert "NoNewPrivs:\t1" in seen
    assert seen.count("Read-only file system") == 2
    assert [line.split()[0] for line in seen.splitlines() if "UP" in line.split()[1:2] or "UNKNOWN" in line] == ["lo"]
    assert "1024" in next(line for line in seen.splitlines() if line.startswith("shm")).split()
    assert "'/tmp/x'" not in seen


def test_a_waiting_worker_is_no_root_reaps_zombies_and_stops_at_once(image: str, name: str) -> None:
    options = ["--detach", "--name", name, "--network", "none", "--read-only", "--cap-drop", "ALL"]
    subprocess.run(["docker", "run", *options, image], capture_output=True, timeout=60, check=True)

    def inside(line: str) -> str:
        command = ["docker", "exec", name, "bash", "-c", line]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        return done.stdout

    assert inside("id -u").strip() == "1000"
    inside("(sleep 0.2 &)")  # an orphan: the container's first process inherits it
    time.sleep(1)
    states = inside("ps -eo stat,comm").splitlines()
    assert not any(line.startswith("Z") for line in states)
    started = time.monotonic()
    subprocess.run(["docker", "stop", "--time", "30", name], capture_output=True, timeout=60, check=True)
    assert time.monotonic() - started < 15  # not after a kill at 30 s


def test_a_change_of_the_suite_costs_one_small_layer_and_the_image_is_of_the_expected_size(image: str) -> None:
    command = ["docker", "history", "--no-trunc", "--human=false", "--format", "{{.Size}} {{.CreatedBy}}", image]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    layers = [(int(line.split()[0]), line) for line in done.stdout.splitlines()]
    filled = [(size, line) for size, line in layers if size > 0]
    size, newest = filled[0]
    assert "COPY suite /opt/suite/suite" in newest
    assert size < 3_000_000
    total = sum(size for size, _ in layers)
    print(f"{image}: {total / 1e9:.2f} GB")
    assert total < 1_600_000_000


def test_no_key_of_an_sshd_and_no_package_list_is_in_the_image(image: str) -> None:
    script = "ls /etc/ssh/ssh_host_* /var/lib/apt/lists/*_Packages /var/cache/apt/archives/*.deb /var/lib/suite/*"
    command = [
        "docker",
        "run",
        "--rm",
        "--network",
        "none",
        "--user",
        "0:0",
        image,
        "bash",
        "-c",
        f"{script} 2>/dev/null",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == ""


def test_torch_torchvision_and_mpi4py_are_there_and_compute_threads_are_one_unless_told_otherwise(image: str) -> None:
    program = "import torch, torchvision, mpi4py; print(torch.get_num_threads(), torch.ones(2) @ torch.ones(2))"
    command = ["docker", "run", "--rm", "--network", "none", image, "python3", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split()[0] == "1"
