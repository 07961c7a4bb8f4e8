"""A real sshd on a loopback port, with keys of its own, for the tests of the SSH parts."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from suite.cluster.inventory import Host
from suite.cluster.keys import KeyPair, key_pair

SSHD = shutil.which("sshd") or ("/usr/sbin/sshd" if Path("/usr/sbin/sshd").exists() else None)
_START_SECONDS = 10


@dataclass
class SshServer:
    """A running sshd and what a client needs to reach it."""

    port: int
    folder: Path
    process: subprocess.Popen[bytes]
    key: Path
    known_hosts: Path
    host_key: KeyPair

    def host(self, name: str = "h1", **changes: object) -> Host:
        """The entry of a cluster file for it."""
        values: dict[str, object] = {
            "name": name,
            "address": "127.0.0.1",
            "data_address": "127.0.0.1",
            "user": pwd.getpwuid(os.geteuid()).pw_name,
            "port": self.port,
            "key": self.key,
            "known_hosts": self.known_hosts,
        }
        return Host(**{**values, **changes})  # type: ignore[arg-type]

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(10)


def private_file(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    path.chmod(0o600)
    return path


@contextlib.contextmanager
def ssh_server(folder: Path, address: str = "127.0.0.1") -> Iterator[SshServer]:
    """Start an sshd as the current user; ended afterwards."""
    if SSHD is None:
        pytest.skip("there is no sshd here: install openssh-server")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with socket.socket() as probe:
        probe.bind((address, 0))
        port = int(probe.getsockname()[1])
    host_key, client = key_pair(), key_pair()
    private_file(folder / "host_key", host_key.private)
    private_file(folder / "authorized_keys", f"{client.public}\n".encode())
    key = private_file(folder / "id", client.private)
    known = private_file(folder / "known_hosts", f"[{address}]:{port} {host_key.public}\n".encode())
    config = private_file(
        folder / "sshd_config",
        (
            f"ListenAddress {address}:{port}\nHostKey {folder}/host_key\n"
            f"AuthorizedKeysFile {folder}/authorized_keys\nPidFile none\nUsePAM no\nStrictModes no\n"
            "PasswordAuthentication no\nPermitRootLogin yes\nKbdInteractiveAuthentication no\nLogLevel ERROR\n"
        ).encode(),
    )
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # its privilege separation folder
    with (folder / "sshd.log").open("wb") as log:
        process = subprocess.Popen([SSHD, "-D", "-e", "-f", str(config)], stderr=log, stdout=log)
    try:
        _wait_until_it_listens(address, port, process, folder / "sshd.log")
        yield SshServer(port, folder, process, key, known, host_key)
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(5)


def _wait_until_it_listens(address: str, port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection((address, port), 0.5):
            return
        if process.poll() is not None:
            break
        time.sleep(0.02)
    pytest.fail(f"sshd did not start: {log.read_text()}")
