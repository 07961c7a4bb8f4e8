"""A machine with neither engine nor images: docker/engine-debian.sh for real, in a container that stands for it.

The container starts from Debian 13's base system alone, and may do what a machine may: it runs a Docker engine of
its own.
"""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Iterator

import pytest

from suite.paths import project_root

pytestmark = [pytest.mark.containers, pytest.mark.slow, pytest.mark.timeout(1200)]
# What dockerd finds read-only in a container that is not privileged.
OPEN = "for f in /sys/fs/cgroup /sys/fs/cgroup/*/ /proc/sys; do mount -o remount,bind,rw $f 2>/dev/null || true; done"


@pytest.fixture
def bare() -> Iterator[str]:
    """The name of a running container with nothing but Debian's base system and this checkout, read-only."""
    name = f"suite-test-bare-{uuid.uuid4().hex[:8]}"
    options = ["--cap-add", "ALL", "--cap-drop", "SYS_RESOURCE", "--security-opt", "seccomp=unconfined"]
    options += ["--security-opt", "apparmor=unconfined", "--volume", "/var/lib/docker", "--tmpfs", "/run"]
    options += ["--volume", f"{project_root()}:/checkout:ro", "--init"]
    command = ["docker", "run", "--detach", "--name", name, *options, "debian:trixie-slim", "sleep", "1100"]
    subprocess.run(command, capture_output=True, timeout=60, check=True)
    try:
        yield name
    finally:
        subprocess.run(["docker", "rm", "--force", "--volumes", name], capture_output=True, timeout=60, check=True)


def on(machine: str, line: str, seconds: float = 60) -> subprocess.CompletedProcess[str]:
    command = ["docker", "exec", machine, "bash", "-c", line]
    return subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)


def said(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_a_bare_machine_gets_engine_compose_and_base_image_and_keeps_them(bare: str) -> None:
    assert on(bare, "command -v docker dockerd debootstrap").returncode != 0
    said(on(bare, OPEN))

    first = said(on(bare, "SUITE_BASE_IMAGE=make /checkout/docker/engine-debian.sh", seconds=900))
    assert "engine: neither engine nor client found" in first
    assert "base-image.sh: the engine has debian:trixie-slim now" in first
    assert "hello from the base image" in said(
        on(bare, "docker run --rm --network none debian:trixie-slim echo hello from the base image")
    )
    assert said(on(bare, "docker compose version --short")).startswith("2.")

    # A second time there is nothing to do.
    second = said(on(bare, "SUITE_BASE_IMAGE=make /checkout/docker/engine-debian.sh"))
    assert "engine: one answers" in second
    assert "base image: debian:trixie-slim is there" in second
    assert "installing" not in second

    # The engine is killed, as by a restart of the machine: its pid file is in the way.
    pids = "$(cat /run/docker.pid) $(cat /run/docker/containerd/containerd.pid)"
    said(on(bare, f"kill -KILL {pids} && sleep 1 && test -f /run/docker.pid"))
    third = said(on(bare, "SUITE_BASE_IMAGE=make /checkout/docker/engine-debian.sh"))
    assert "removing /run/docker.pid" in third
    assert "base image: debian:trixie-slim is there" in third

    # Carried over to a machine without a mirror.
    said(on(bare, "/checkout/docker/base-image.sh --save /tmp/base.tar", seconds=600))
    said(on(bare, "docker image rm --force debian:trixie-slim && /checkout/docker/base-image.sh --load /tmp/base.tar"))
    said(on(bare, "docker run --rm --network none debian:trixie-slim true"))
