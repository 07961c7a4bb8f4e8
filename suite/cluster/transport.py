"""The Docker API through an SSH connection that is already there.

A channel of the connection runs ``docker system dial-stdio`` on the host, which copies between the channel
and the engine's socket, as the Docker client itself does for ssh:// hosts. ``ChannelSocket`` makes such a
channel look like a socket to ``http.client``; ``engine`` gives a Docker client whose every request goes
through it. Connections are kept and used again, so a request costs one round trip.
"""

from __future__ import annotations

import contextlib
import functools
import io
import socket
import threading
from typing import Any

import docker
import docker.errors
import docker.utils
import paramiko
import requests
import requests.adapters
import urllib3
import urllib3.connection

from suite.numerals import version_numbers

BASE_URL = "http://engine:2375"  # never resolved: every request is mounted on the adapter below
DIAL = "docker system dial-stdio"
OLDEST_API = "1.41"  # Docker 20.10
# Idle connections kept per host. sshd allows ten sessions per connection by default, and a launch holds one.
POOL_SIZE = 3
_PIECE = 32 * 1024  # OpenSSH accepts packets of up to 32 KiB
_COMPLAINT_BYTES = 2000


class ChannelSocket:
    """As much of a socket as ``http.client`` and ``urllib3`` use, on an SSH channel.

    Like a real socket it stays open until it and every file made of it are closed.
    """

    def __init__(self, channel: paramiko.Channel) -> None:
        self.channel = channel
        self._lock = threading.Lock()
        self._users = 1
        self._closed = False
        self._received = False

    def settimeout(self, seconds: float | None) -> None:
        self.channel.settimeout(seconds)

    def gettimeout(self) -> float | None:
        return self.channel.gettimeout()

    def sendall(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        while view:
            try:
                sent = self.channel.send(bytes(view[:_PIECE]))
            except TimeoutError:
                raise
            except OSError:
                sent = 0
            if sent == 0:
                # urllib3 then reads the answer that an engine gives before it hangs up, e.g. that its disk is full.
                raise BrokenPipeError("the SSH channel is closed")
            view = view[sent:]

    def receive(self, size: int) -> bytes:
        """Up to ``size`` bytes; empty at the end. An end without any answer is an error, with its reason."""
        data = self.channel.recv(size)
        if data:
            self._received = True
        elif not self.channel.get_transport().is_active():
            raise ConnectionAbortedError("the SSH connection was lost")
        elif not self._received:
            raise ConnectionAbortedError(self._complaint() or "the SSH channel closed without an answer")
        return data

    def makefile(self, _mode: str, *_args: Any, **_keywords: Any) -> io.BufferedReader:
        with self._lock:
            self._users += 1
        return io.BufferedReader(_Reader(self), 64 * 1024)

    def shutdown(self, how: int) -> None:
        """Half-close: the engine sees the end of the input and may still answer."""
        if how == socket.SHUT_WR:
            with contextlib.suppress(OSError, EOFError):
                self.channel.shutdown_write()
        else:
            self.channel.close()

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self.release()

    def release(self) -> None:
        """One user less; the last one closes the channel."""
        with self._lock:
            self._users -= 1
            last = self._users == 0
        if last:
            self.channel.close()

    def _complaint(self) -> str:
        """What the program on the host wrote to its standard error, e.g. that docker was not found."""
        with contextlib.suppress(OSError):
            self.channel.settimeout(1.0)
            return self.channel.recv_stderr(_COMPLAINT_BYTES).decode(errors="replace").strip()
        return ""


class _Reader(io.RawIOBase):
    def __init__(self, owner: ChannelSocket) -> None:
        self._owner = owner

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._owner.receive(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._owner.release()


class _Connection(urllib3.connection.HTTPConnection):
    def __init__(self, *args: Any, transport: paramiko.Transport, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self._ssh = transport

    def connect(self) -> None:
        timeout = self.timeout if isinstance(self.timeout, (int, float)) else None
        try:
            channel = self._ssh.open_session(timeout=timeout)
            channel.settimeout(timeout)
            channel.exec_command(DIAL)
        except (paramiko.SSHException, EOFError) as error:  # neither is an OSError, which urllib3 expects
            raise ConnectionError(f"no SSH channel: {error}") from error
        self.sock: Any = ChannelSocket(channel)

    @property
    def is_connected(self) -> bool:
        # Not by polling the descriptor, as urllib3 does: asking a channel for one opens a pipe.
        channel = self.sock.channel if self.sock is not None else None
        return channel is not None and not channel.closed and not channel.eof_received


class _Adapter(requests.adapters.HTTPAdapter):
    """Sends every request through one pool of channels; no name is resolved and no proxy asked."""

    def __init__(self, transport: paramiko.Transport) -> None:
        super().__init__()
        self._pool = urllib3.HTTPConnectionPool("engine", maxsize=POOL_SIZE, block=False)
        self._pool.ConnectionCls = functools.partial(_Connection, transport=transport)  # type: ignore[assignment]

    def get_connection_with_tls_context(self, *_args: Any, **_keywords: Any) -> Any:
        return self._pool

    def get_connection(self, *_args: Any, **_keywords: Any) -> Any:  # what requests before 2.32 calls
        return self._pool

    def request_url(self, request: Any, proxies: Any) -> str:  # noqa: ARG002
        return str(request.path_url)

    def close(self) -> None:
        self._pool.close()
        super().close()


def engine(transport: paramiko.Transport, timeout: int) -> docker.APIClient:
    """A Docker client of the host at the other end of an SSH connection.

    Args:
        transport: the connection, open and authenticated.
        timeout: seconds that any single answer may take, unless a call says otherwise.

    Raises:
        docker.errors.DockerException, requests.exceptions.RequestException: it did not answer.
    """
    client = docker.APIClient(base_url=BASE_URL, version=OLDEST_API, timeout=timeout)
    client.trust_env = False
    client.mount(BASE_URL, _Adapter(transport))
    # Engines differ in the newest and, from 29 on, in the oldest version that they speak: use their own.
    version = str(client.version(api_version=False).get("ApiVersion", ""))
    if version_numbers(version) < version_numbers(OLDEST_API):
        client.close()
        raise docker.errors.DockerException(
            f"it speaks API version {version or 'unknown'}; {OLDEST_API} (Docker 20.10) is the oldest usable"
        )
    # The SDK offers no public way to negotiate once an adapter is mounted.
    client._version = version  # type: ignore[attr-defined]
    return client


def local_engine(timeout: int) -> docker.APIClient:
    """A Docker client of this machine's engine (or what DOCKER_HOST names).

    Raises:
        docker.errors.DockerException: it did not answer.
    """
    return docker.APIClient(version="auto", timeout=timeout, **docker.utils.kwargs_from_env())


def url(client: docker.APIClient, path: str) -> str:
    """The address of an API path; the caller quotes the parts of the path."""
    return f"{client.base_url}/v{client.api_version}{path}"


def raise_for_status(response: requests.Response) -> None:
    """Raise docker.errors.APIError (NotFound ...) for an answer that is an error."""
    try:
        response.raise_for_status()
    except requests.exceptions.HTTPError as error:
        docker.errors.create_api_error_from_http_exception(error)


def root_cause(error: BaseException) -> str:
    """The innermost message: requests and urllib3 wrap what the socket said in several layers."""
    seen = error
    while True:
        inner = seen.__cause__ or seen.__context__ or next((a for a in seen.args if isinstance(a, Exception)), None)
        if inner is None or inner is seen:
            return str(seen) or type(seen).__name__
        seen = inner
