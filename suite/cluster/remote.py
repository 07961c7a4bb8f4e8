"""A host of the cluster: an SSH session kept open, for programs and for the Docker API alike.

Host keys are verified strictly, against the cluster file's known_hosts (or ~/.ssh/known_hosts) and nothing
else; neither ~/.ssh/config nor a gateway plays a part. Everything has a deadline. What goes wrong becomes a
``HostError`` that names the host, what was seen, and what to do.
"""

from __future__ import annotations

import contextlib
import logging
import re
import shlex
import socket
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import docker
import fabric
import paramiko

from suite.cluster import host_keys, transport
from suite.cluster.attached import Completed
from suite.cluster.engine import ANSWER_SECONDS, OUTPUT_BYTES, Engine
from suite.cluster.inventory import Host
from suite.console import printable
from suite.errors import HostError

CONNECT_SECONDS = 10
KEEPALIVE_SECONDS = 5
# Unanswered bytes end the connection after this long, so that a cut network is noticed.
LOST_MILLISECONDS = 15_000
_START_WAIT = 0.005

# Paramiko's own thread would print tracebacks; each problem is told once, by us.
logging.getLogger("paramiko").setLevel(logging.CRITICAL)


class RemoteHost(Engine):
    """A host reached by SSH: one session, kept open, for programs and for the Docker API alike.

    Args:
        host: its entry of the cluster file.
        accept_new: write the key of a host that is not known yet to its known_hosts file (a changed key is
            refused all the same); ``accepted`` then holds its fingerprint.
    """

    def __init__(self, host: Host, *, accept_new: bool = False) -> None:
        super().__init__(host)
        self._accept_new = accept_new
        self._connection: fabric.Connection | None = None
        self._connecting = threading.Lock()
        self.accepted: str | None = None

    @property
    def connected(self) -> bool:
        return self._connection is not None and bool(self._connection.is_connected)

    def connect(self) -> None:
        """Open the SSH session, or do nothing when it is open.

        Raises:
            HostError: no answer, unknown or changed host key, refused key; says which and what to do.
        """
        with self._connecting:
            if not self.connected:
                super().close()  # its channels went with the old connection
                self._connection = self._open()

    def _open(self) -> fabric.Connection:
        host = self.host
        keys = host_keys.KnownHosts(host)
        if self._accept_new:
            self.accepted = keys.accept(CONNECT_SECONDS)
        if host.key is not None and not host.key.is_file():
            raise HostError(
                host.name,
                f"there is no key file {host.key}.",
                fix='correct "key" in the cluster file, or make it.',
            )
        connection = fabric.Connection(
            host.address,
            user=host.user,
            port=host.port,
            connect_timeout=CONNECT_SECONDS,
            config=fabric.Config(overrides={"load_ssh_configs": False}),
            connect_kwargs={
                "key_filename": str(host.key) if host.key else None,
                "allow_agent": host.key is None,
                "look_for_keys": host.key is None,
                "banner_timeout": CONNECT_SECONDS,
                "auth_timeout": CONNECT_SECONDS,
                "channel_timeout": CONNECT_SECONDS,
                "transport_factory": _transport,
            },
        )
        # Fabric itself would add any unknown key silently.
        connection.client.set_missing_host_key_policy(paramiko.RejectPolicy())
        keys.load_into(connection.client)
        try:
            connection.open()
        except BaseException as error:
            connection.close()
            if isinstance(error, Exception):
                raise _connect_error(host, keys.path, error) from error
            raise
        ssh = connection.client.get_transport()
        ssh.set_keepalive(KEEPALIVE_SECONDS)
        if isinstance(ssh.sock, socket.socket):
            # A request is several small packets: held back until the last one is acknowledged, each costs 40 ms.
            ssh.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                ssh.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, LOST_MILLISECONDS)
        return connection

    def _ssh(self) -> paramiko.Transport:
        self.connect()
        connection = self._connection
        ssh: paramiko.Transport | None = connection.client.get_transport() if connection is not None else None
        if ssh is None:
            raise HostError(self.name, "the connection was closed.")
        return ssh

    @property
    def api(self) -> docker.APIClient:
        """The Docker client over this host's SSH session. Raises HostError."""
        self.connect()
        return super().api

    def _connect_engine(self) -> docker.APIClient:
        return transport.engine(self._ssh(), ANSWER_SECONDS)

    def run(self, argv: Sequence[str], timeout: float = ANSWER_SECONDS, data: bytes = b"") -> Completed:
        """Run a program on the host. Each word is quoted for the remote shell; none is interpreted.

        Raises:
            HostError: the connection is gone, or it had not ended after ``timeout`` seconds.
        """
        deadline = time.monotonic() + timeout
        try:
            channel = self._ssh().open_session(timeout=min(timeout, CONNECT_SECONDS))
            with contextlib.closing(channel):
                channel.settimeout(timeout)
                channel.exec_command(shlex.join(argv))
                if data:
                    channel.sendall(data)
                channel.shutdown_write()
                return self._collect(channel, argv[0], deadline, timeout)
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise HostError(
                self.name,
                f"running {argv[0]} over SSH failed: {printable(str(error)) or type(error).__name__}.",
                fix="check that the host is up and reachable.",
            ) from error

    def _collect(self, channel: paramiko.Channel, program: str, deadline: float, timeout: float) -> Completed:
        out, err = bytearray(), bytearray()
        pause = _START_WAIT
        while True:
            busy = False
            while channel.recv_ready():
                out += channel.recv(65536)
                busy = True
            while channel.recv_stderr_ready():
                err += channel.recv_stderr(65536)
                busy = True
            if not busy and channel.exit_status_ready() and (channel.eof_received or channel.closed):
                if not channel.recv_ready() and not channel.recv_stderr_ready():
                    return Completed(bytes(out), bytes(err), channel.recv_exit_status())
            elif not busy and channel.closed:
                raise ConnectionResetError("the connection was lost")
            if len(out) + len(err) > OUTPUT_BYTES:
                raise HostError(self.name, f"{program} wrote more than {OUTPUT_BYTES} bytes.")
            if time.monotonic() > deadline:
                raise HostError(
                    self.name,
                    f"{program} had not ended after {timeout:g} s.",
                    fix="see whether the host is overloaded or hangs.",
                )
            if not busy:
                time.sleep(pause)
                pause = min(pause * 1.5, 0.05)

    def close(self) -> None:
        """Close the session and everything that rides on it. Safe to call twice."""
        super().close()
        with self._connecting:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _transport(sock: socket.socket, **options: Any) -> paramiko.Transport:
    """A transport that prefers AES-GCM, which costs half of paramiko's own first choice; images are large."""
    ssh = paramiko.Transport(sock, **options)
    security = ssh.get_security_options()
    security.ciphers = sorted(security.ciphers, key=lambda cipher: "gcm" not in cipher)  # stable: else its order
    return ssh


def _connect_error(host: Host, known_hosts: Path, error: Exception) -> HostError:
    message, fix = _connect_message(host, f"{host.address} port {host.port}", known_hosts, error)
    return HostError(host.name, message, fix=fix)


def _connect_message(host: Host, where: str, known_hosts: Path, error: Exception) -> tuple[str, str]:
    """(what was seen, what to do) for an SSH connection that did not come about."""
    if isinstance(error, paramiko.BadHostKeyException):
        seen, expected = host_keys.fingerprint(error.key), host_keys.fingerprint(error.expected_key)
        message = f"the host key of {where} is not the one in {known_hosts}: it is {seen}, expected {expected}."
        fix = "find out why it changed; then remove its line there and run `fab check --accept-new-host-keys`."
    elif isinstance(error, paramiko.PasswordRequiredException):
        message = f"the key {host.key} is protected by a passphrase."
        fix = 'load it into ssh-agent and leave "key" out of the cluster file.'
    elif isinstance(error, paramiko.AuthenticationException):
        key = f"the key {host.key}" if host.key else "every key of the agent and of ~/.ssh"
        message = f"{where} refused {key} for user {host.user}."
        fix = f"add its public half to ~{host.user}/.ssh/authorized_keys there, or correct user and key."
    elif isinstance(error, paramiko.SSHException) and "not found in known_hosts" in str(error):
        message = f"the host key of {where} is not in {known_hosts}."
        fix = "run `fab check --accept-new-host-keys` and compare the fingerprint it prints."
    elif isinstance(error, socket.gaierror):
        message = f"the name {host.address} does not resolve."
        fix = 'correct "address" in the cluster file.'
    elif isinstance(error, TimeoutError):
        message = f"{where} did not answer within {CONNECT_SECONDS} s."
        fix = "see that the host is up, its address right, and no firewall in between."
    elif isinstance(error, paramiko.SSHException) and re.search("banner|No existing session", str(error)):
        if "reset" in str(error).lower():
            message = f"{where} accepted the connection and hung up at once."
            fix = "wait a minute: sshd turns a machine away after failed logins (PerSourcePenalties); then see its log."
        else:
            message = f"{where} accepted the connection and said nothing for {CONNECT_SECONDS} s."
            fix = "see whether the host hangs or is overloaded."
    else:
        reason = "; ".join(str(e) for e in getattr(error, "errors", {}).values()) or str(error)
        message = f"no SSH connection to {where}: {printable(reason) or type(error).__name__}."
        fix = "see that the host is up and its sshd listens on that port."
    return message, fix
