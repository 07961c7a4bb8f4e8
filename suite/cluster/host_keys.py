"""The known_hosts file of a host: read strictly, and added to only when the user asks for it."""

from __future__ import annotations

import base64
import hashlib
import os
import socket
from pathlib import Path

import paramiko
from paramiko.hostkeys import InvalidHostKey

from suite.cluster.inventory import Host
from suite.errors import ConfigurationError, HostError


def fingerprint(key: paramiko.PKey) -> str:
    """As ``ssh-keygen -l`` shows it, e.g. "ssh-ed25519 SHA256:47DEQpj8HBSa…"."""
    digest = base64.b64encode(hashlib.sha256(key.asbytes()).digest()).decode().rstrip("=")
    return f"{key.get_name()} SHA256:{digest}"


class KnownHosts:
    """Where a host's key is looked up: the cluster file's known_hosts, or ~/.ssh/known_hosts."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.path = host.known_hosts or Path.home() / ".ssh" / "known_hosts"

    @property
    def entry(self) -> str:
        """How the file names the host: with the port in brackets when it is not 22."""
        address, port = self._host.address, self._host.port
        return address if port == 22 else f"[{address}]:{port}"

    def load_into(self, client: paramiko.SSHClient) -> None:
        """Let a client know these keys and no others. A file that does not exist holds none.

        Raises:
            ConfigurationError: the file cannot be read.
        """
        if not self.path.exists():
            return
        try:
            client.load_system_host_keys(str(self.path))
        except (OSError, UnicodeDecodeError, paramiko.SSHException, InvalidHostKey) as error:
            raise ConfigurationError(
                self.path, "", f"cannot be read as a known_hosts file: {error}.", fix="correct or remove it."
            ) from error

    def accept(self, timeout: float) -> str | None:
        """Ask the host for its key and add it to the file, unless the file names the host already.

        Returns its fingerprint, or None when nothing was added.

        Raises:
            HostError: it did not answer.
        """
        client = paramiko.SSHClient()
        self.load_into(client)
        known = client.get_host_keys().lookup(self.entry) or _system_keys(client).lookup(self.entry)
        if known is not None:
            return None
        key = self._ask(timeout)
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(handle, "w") as stream:
            stream.write(f"{self.entry} {key.get_name()} {key.get_base64()}\n")
        return fingerprint(key)

    def _ask(self, timeout: float) -> paramiko.PKey:
        host = self._host
        try:
            with socket.create_connection((host.address, host.port), timeout) as connection:
                ssh = paramiko.Transport(connection)
                try:
                    ssh.start_client(timeout=timeout)
                    return ssh.get_remote_server_key()
                finally:
                    ssh.close()
        except (OSError, EOFError, paramiko.SSHException) as error:
            raise HostError(
                host.name,
                f"{host.address} port {host.port} did not show its host key: {error or 'it hung up'}.",
                fix="see that the host is up and its sshd listens on that port.",
            ) from error


def _system_keys(client: paramiko.SSHClient) -> paramiko.HostKeys:
    keys: paramiko.HostKeys = client._system_host_keys  # type: ignore[attr-defined]
    return keys
