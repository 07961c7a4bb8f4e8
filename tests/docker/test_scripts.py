"""The scripts that bring an engine, a base image, and `make local`: what they refuse, decide and say.

Where a whole machine would be needed, programs on PATH stand in for docker, apt-get and the like, and note how
they were called; test_bare_machine.py runs the same scripts for real.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tarfile
import time
from pathlib import Path

import pytest

from suite.paths import project_root

ROOT = project_root()
DOCKER = ROOT / "docker"
SCRIPTS = (
    "docker/worker-entrypoint",
    "docker/start-sshd",
    "docker/mpi-ssh",
    "docker/lab-host",
    "docker/lab-fault",
    ".ci/run",
)


class Machine:
    """A PATH of its own: stand-ins first, then only the programs that any machine has."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.calls_file = folder / "calls"
        for name in BASIC:
            real = shutil.which(name)
            if real:
                (self.bin / name).symlink_to(real)

    def program(self, name: str, text: str = ":") -> None:
        path = self.bin / name
        path.unlink(missing_ok=True)
        path.write_text(f'#!/bin/sh\necho "{name} $*" >>{self.calls_file}\n{text}\n', encoding="utf-8")
        path.chmod(0o755)

    def run(self, *words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(word) for word in words],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            cwd=ROOT,
            env={"PATH": str(self.bin), "HOME": str(self.folder), "TMPDIR": str(self.folder), **environment},
        )

    @property
    def calls(self) -> list[str]:
        return self.calls_file.read_text(encoding="utf-8").splitlines() if self.calls_file.exists() else []


BASIC = (
    *(
        "bash",
        "sh",
        "env",
        "cat",
        "dirname",
        "basename",
        "uname",
        "mktemp",
        "rm",
        "mkdir",
        "sed",
        "awk",
        "grep",
        "tail",
    ),
    *("timeout", "sleep", "make", "true", "false", "ls", "sort", "head", "tr", "touch", "mv", "tar"),
)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    found = Machine(tmp_path)
    found.program("id", 'case "$1" in -u) echo 0 ;; *) echo root ;; esac')
    return found


@pytest.mark.parametrize("script", SCRIPTS)
def test_programs_without_an_ending_parse_and_shellcheck_has_nothing_to_say(script: str) -> None:
    path = ROOT / script
    assert os.access(path, os.X_OK)
    assert subprocess.run(["bash", "-n", str(path)], timeout=20, check=False).returncode == 0
    if shutil.which("shellcheck") is None:
        pytest.skip("NOT RUN: there is no shellcheck here (apt-get install shellcheck)")
    done = subprocess.run(["shellcheck", "-x", str(path)], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "")


# engine-debian.sh

ENGINE = DOCKER / "engine-debian.sh"
EVERYTHING = """case "$*" in
"version --format"*) echo 26.1.5 ;;
"compose version --short") echo 2.26.1 ;;
"buildx version") echo github.com/docker/buildx v0.13.1 abc ;;
esac"""


def test_the_engine_script_asks_for_root_and_says_how(machine: Machine) -> None:
    machine.program("id", "echo 1000")
    machine.program("apt-get")
    done = machine.run(ENGINE)
    assert done.returncode == 2
    assert "run it as root, for example: sudo" in done.stderr
    assert machine.calls == ["id -u"]


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("SUITE_BASE_IMAGE", "pull", "SUITE_BASE_IMAGE is 'pull'; it can be auto or make"),
        ("SUITE_ENGINE_WAIT", "soon", "SUITE_ENGINE_WAIT is 'soon'; it must be a whole number of seconds"),
    ],
)
def test_the_engine_script_refuses_settings_it_does_not_know(
    machine: Machine, name: str, value: str, said: str
) -> None:
    done = machine.run(ENGINE, **{name: value})
    assert done.returncode == 2
    assert said in done.stderr


def test_a_machine_that_has_everything_is_left_alone(machine: Machine) -> None:
    machine.program("docker", EVERYTHING)
    for name in ("apt-get", "apt-cache", "dpkg", "dockerd", "setsid", "debootstrap", "systemctl"):
        machine.program(name)
    done = machine.run(ENGINE)
    assert done.returncode == 0, done.stderr
    for line in ("engine: one answers (26.1.5)", "compose: 2.26.1", "buildx: v0.13.1", "debian:trixie-slim is there"):
        assert line in done.stderr
    assert {call.split()[0] for call in machine.calls} == {"id", "docker"}


def test_a_machine_without_apt_is_told_what_to_do(machine: Machine) -> None:
    done = machine.run(ENGINE)
    assert done.returncode == 2
    assert "no apt-get: install Docker and its compose plugin as your distribution documents it" in done.stderr


def test_an_engine_that_never_answers_ends_the_script_with_the_reason(machine: Machine) -> None:
    machine.program("docker", 'test "$1" != info')
    for name in ("apt-get", "dockerd"):
        machine.program(name)
    machine.program("setsid")
    started = time.monotonic()
    done = machine.run(ENGINE, SUITE_ENGINE_WAIT="2")
    assert done.returncode == 2
    assert "the engine did not answer within 2 s" in done.stderr
    assert time.monotonic() - started < 20


def stale(file: Path, program: str) -> bool:
    """Whether remove_stale_pid_file, as it stands in the script, removes the file."""
    text = ENGINE.read_text(encoding="utf-8")
    functions = text[text.index("is_running() {") : text.index("start_engine() {")]
    words = ["bash", "-euo", "pipefail", "-c", f'say() {{ :; }}\n{functions}\nremove_stale_pid_file "$@"', "test"]
    subprocess.run([*words, str(file), program], timeout=20, check=True)
    return not file.exists()


def test_a_pid_file_is_stale_unless_that_program_runs_there(tmp_path: Path) -> None:
    file = tmp_path / "docker.pid"
    assert stale(file, "sleep")  # none at all
    with subprocess.Popen(["sleep", "60"]) as process:
        file.write_text(str(process.pid))
        assert not stale(file, "sleep")
        assert stale(file, "dockerd")  # another program has that number now
        file.write_text(str(process.pid))
        process.kill()
        while "Z" not in Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2]:
            time.sleep(0.01)
        assert stale(file, "sleep")  # a zombie
    file.write_text(str(process.pid))
    assert stale(file, "sleep")  # gone
    file.write_text("")
    assert stale(file, "sleep")


# base-image.sh

BASE = DOCKER / "base-image.sh"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--mirrors", "x"], "unknown argument '--mirrors'; see --help"),
        (["--save"], "--save needs a value"),
        (["--save", "a", "--load", "b"], "--save and --load exclude each other"),
        (["--load", "/nowhere/base.tar"], "cannot read /nowhere/base.tar"),
    ],
)
def test_the_base_image_script_refuses_wrong_words(machine: Machine, words: list[str], said: str) -> None:
    done = machine.run(BASE, *words)
    assert done.returncode == 2
    assert said in done.stderr


def test_its_help_says_what_to_do_on_a_machine_without_a_network(machine: Machine) -> None:
    done = machine.run(BASE, "--help")
    assert done.returncode == 0
    assert "--save on one that has a mirror, carry FILE over, --load there" in done.stdout


def test_making_the_base_image_asks_for_root(machine: Machine) -> None:
    machine.program("id", "echo 1000")
    done = machine.run(BASE)
    assert done.returncode == 2
    assert "run it as root" in done.stderr


def test_without_debootstrap_it_says_how_to_get_it(machine: Machine) -> None:
    done = machine.run(BASE)
    assert done.returncode == 2
    assert "apt-get install debootstrap" in done.stderr


def test_a_file_that_was_carried_over_is_given_to_the_engine_as_it_is(machine: Machine) -> None:
    content = machine.folder / "release"
    content.write_text("13\n")
    archive = machine.folder / "base.tar"
    with tarfile.open(archive, "w") as tar:
        tar.add(content, "etc/debian_version")
    received = machine.folder / "received"
    machine.program("docker", f'case "$1" in import) cat >{received} ;; image) echo 81000000 ;; esac')
    done = machine.run(BASE, "--load", archive)
    assert done.returncode == 0, done.stderr
    assert received.read_bytes() == archive.read_bytes()
    assert machine.calls[0].endswith("- debian:trixie-slim")
    assert "the engine has debian:trixie-slim now (81 MB)" in done.stderr


# make local


def make_local(machine: Machine, *words: str) -> subprocess.CompletedProcess[str]:
    """`make local` with a virtual environment that is complete already."""
    venv = machine.folder / "venv"
    (venv / "bin").mkdir(parents=True)
    fab = venv / "bin" / "fab"
    fab.write_text(f'#!/bin/sh\necho "fab $*" >>{machine.calls_file}\n', encoding="utf-8")
    fab.chmod(0o755)
    stamp = venv / ".installed"
    stamp.touch()
    os.utime(stamp, (time.time() + 3600, time.time() + 3600))
    return machine.run("make", "local", f"VENV_LOCAL={venv}", *words)


def test_with_an_engine_make_local_runs_the_container_and_says_so(machine: Machine) -> None:
    machine.program("docker", 'echo "commit=$SUITE_COMMIT" >>"$HOME/commit"')
    done = make_local(machine, "COMMIT=abc123+dirty")
    assert done.returncode == 0, done.stderr
    assert "a Docker engine answers, so in a container" in done.stderr
    run = re.compile(r"docker compose run --rm --name (\S+) suite-local local --plan quick --backend all")
    found = run.fullmatch(machine.calls[-2])
    assert found
    assert machine.calls[-1] == f"docker stop --time 30 {found[1]}"
    assert "commit=abc123+dirty" in (machine.folder / "commit").read_text().splitlines()


def test_make_local_passes_on_the_exit_status_of_the_run(machine: Machine) -> None:
    machine.program("docker", 'case "$*" in "compose run"*) exit 130 ;; esac')
    assert "Error 130" in make_local(machine).stderr


@pytest.mark.parametrize(
    ("docker", "why"),
    [
        (None, "there is no Docker client"),
        ('test "$1" != compose', "the Docker client has no compose plugin"),
        ('test "$1" != info', "no Docker engine answers"),
    ],
)
def test_without_an_engine_make_local_says_why_and_uses_a_virtual_environment(
    machine: Machine, docker: str | None, why: str
) -> None:
    if docker:
        machine.program("docker", docker)
    done = make_local(machine, "ARGS=--plan standard")
    assert done.returncode == 0, done.stderr
    assert why in done.stderr
    assert "docker/engine-debian.sh" in done.stderr
    assert machine.calls[-1] == "fab local --plan standard"


@pytest.mark.parametrize(
    ("python", "said"),
    [
        (
            'case "$*" in *version_info*) exit 1 ;; --version) echo Python 3.9.2 ;; esac',
            "Python 3.10 or newer is needed",
        ),
        ('case "$*" in *ensurepip*) exit 1 ;; esac', "sudo apt-get install python3-venv"),
    ],
)
def test_a_python_that_will_not_do_is_named_with_the_remedy(machine: Machine, python: str, said: str) -> None:
    machine.program("python3", python)
    done = machine.run("make", "test", f"VENV={machine.folder / 'venv'}")
    assert done.returncode == 2
    assert said in done.stderr
    assert not (machine.folder / "venv").exists()
