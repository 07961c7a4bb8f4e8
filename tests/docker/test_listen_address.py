"""docker/listen-address.c: the deployment's address takes the place of "every address", and nothing else changes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from suite.paths import project_root

# Binds as torch's store (one IPv6 socket for both), Open MPI (one per family) and others do; prints where each one got.
PROGRAM = """
import json, socket
def bound(family, address, only_six=None):
    with socket.socket(family) as one:
        if only_six is not None:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, only_six)
        one.bind((address, 0))
        return one.getsockname()[0]
four, six = socket.AF_INET, socket.AF_INET6
with socket.socketpair()[0], socket.socket() as server, socket.socket() as client:
    server.bind(("127.0.0.1", 0))
    server.listen()
    client.bind(("", 0))
    client.connect(server.getsockname())
any_address = [bound(four, ""), bound(six, "::", 0), bound(six, "::", 1)]
print(json.dumps([*any_address, bound(four, "127.0.0.3"), bound(six, "::1")]))
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library, compiled to read an address from a file beside it."""
    if shutil.which("gcc") is None:
        pytest.skip("NOT RUN: there is no gcc here (the image's build compiles it, and tests/lab sees it at work)")
    folder = tmp_path_factory.mktemp("listen")
    for name in ("listen-address.c", "build-listen-address.sh"):
        shutil.copy(project_root() / "docker" / name, folder)
    place = f'-DADDRESS_FILE="{folder}/address"'
    subprocess.run(["sh", str(folder / "build-listen-address.sh"), place], timeout=60, check=True)
    return folder / "listen-address.so"


def places(library: Path, address: str | None) -> list[str]:
    file = library.parent / "address"
    file.unlink(missing_ok=True)
    if address is not None:
        file.write_text(address, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={"LD_PRELOAD": str(library)},
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert done.stderr == ""
    found: list[str] = json.loads(done.stdout)
    return found


def test_every_address_becomes_the_deployments(library: Path) -> None:
    assert places(library, "127.0.0.5\n") == ["127.0.0.5", "::ffff:127.0.0.5", "::1", "127.0.0.3", "::1"]


def test_a_cluster_that_speaks_ipv6_leaves_nothing_open_on_ipv4(library: Path) -> None:
    assert places(library, "::1\n") == ["127.0.0.1", "::1", "::1", "127.0.0.3", "::1"]


@pytest.mark.parametrize("address", [None, "", "h1.example\n", "127.0.0.5.6\n", "9" * 500], ids=str)
def test_without_an_address_nothing_changes(library: Path, address: str | None) -> None:
    assert places(library, address) == ["0.0.0.0", "::", "::", "127.0.0.3", "::1"]
