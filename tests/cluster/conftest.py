"""An sshd, and a container of this machine's own engine, for the tests of what reaches hosts."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from suite.cluster.archive import VOLUME
from suite.cluster.engine import Engine, LocalHost
from suite.cluster.inventory import Host
from suite.cluster.remote import RemoteHost
from tests.support.ssh_server import SshServer, ssh_server

BASE = "debian:trixie-slim"  # what docker/engine-debian.sh leaves behind


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshServer]:
    """A real sshd on a loopback port, as the current user."""
    with ssh_server(tmp_path_factory.mktemp("sshd")) as running:
        yield running


@dataclass(frozen=True)
class Box:
    """A running container and the engine that leads to it."""

    engine: Engine
    container: str


@pytest.fixture(scope="module")
def local_container() -> Iterator[str]:
    """A container with a volume where the suite's is, doing nothing."""
    engine = LocalHost(Host("here", "127.0.0.1", "127.0.0.1", "nobody"))
    name = f"ddp-suite-test-{secrets.token_hex(4)}"
    options = engine.api.create_host_config(binds=[f"{name}:{VOLUME}"], network_mode="none", init=True)
    made = engine.api.create_container(BASE, ["sleep", "600"], host_config=options, volumes=[VOLUME], name=name)
    try:
        engine.api.start(made["Id"])
        yield str(made["Id"])
    finally:
        engine.api.remove_container(made["Id"], force=True)
        engine.api.remove_volume(name, force=True)
        engine.close()


@pytest.fixture(params=["local engine", "engine over SSH"])
def box(request: pytest.FixtureRequest, local_container: str) -> Iterator[Box]:
    """The container, reached by the engine's socket, then through an SSH connection."""
    if request.param == "local engine":
        engine: Engine = LocalHost(Host("here", "127.0.0.1", "127.0.0.1", "nobody"))
    else:
        server: SshServer = request.getfixturevalue("server")
        engine = RemoteHost(server.host())
    try:
        yield Box(engine, local_container)
    finally:
        engine.close()
