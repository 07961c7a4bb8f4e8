"""A host's Docker engine and the work inside its containers, whatever way leads to it.

What goes wrong becomes a ``HostError`` that names the host, what was being done, what was
seen, and what to do.
"""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import docker
import docker.errors
import requests
import urllib3

from suite.cluster import archive, transport
from suite.cluster.attached import Attached, Completed, OnLine, run_in
from suite.cluster.inventory import Host
from suite.console import printable
from suite.errors import HostError
from suite.paths import is_safe_name

ANSWER_SECONDS = 30
OUTPUT_BYTES = 16 << 20


class Engine:
    """A host's Docker engine and its containers. Base of ``RemoteHost`` and ``LocalHost``."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self._client: docker.APIClient | None = None
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        return self.host.name

    @property
    def connected(self) -> bool:
        """Whether the way to the host is open, as far as is known."""
        return True

    def answers(self, timeout: float) -> bool:
        """Whether the host still does a trivial thing, over the connection that is open; none is opened for it."""
        try:
            return self.connected and self.run(["true"], timeout=timeout).ok
        except HostError:
            return False

    def connect(self) -> None:
        """Open the way to the host; nothing to do where there is none to open. Raises HostError."""

    @property
    def api(self) -> docker.APIClient:
        """The Docker client; connected on first use. Raises HostError."""
        with self._lock:
            if self._client is None:
                with engine_errors(self.name, "asking for its version"):
                    self._client = self._connect_engine()
            return self._client

    def _connect_engine(self) -> docker.APIClient:
        raise NotImplementedError

    def run(self, argv: Sequence[str], timeout: float = ANSWER_SECONDS, data: bytes = b"") -> Completed:
        """Run a program on the host itself, ``data`` on its input. Raises HostError."""
        raise NotImplementedError

    def put(self, container: str, folder: str, files: Mapping[str, archive.File]) -> None:
        """Write files into a folder of the container's volume; it is made if need be. Raises HostError."""
        with engine_errors(self.name, f"writing to {folder}"):
            archive.put(self.api, container, folder, files)

    def fetch(
        self,
        container: str,
        folder: str,
        *,
        limit_bytes: int,
        wanted: Callable[[str], bool] = is_safe_name,
        timeout: float = 120.0,
    ) -> dict[str, bytes]:
        """The plain files directly in a folder of the container; none when there is no such folder.

        Raises:
            HostError: the engine did not answer in time, or sent what cannot be trusted.
        """
        with engine_errors(self.name, f"fetching {folder}"):
            try:
                return archive.fetch(
                    self.api, container, folder, limit_bytes=limit_bytes, wanted=wanted, timeout=timeout
                )
            except docker.errors.NotFound:
                return {}
            except archive.ArchiveError as error:
                raise HostError(
                    self.name,
                    f"the archive of {folder} {error}.",
                    fix="look at that folder on the host; nothing of it was kept.",
                ) from error

    def exec_run(
        self,
        container: str,
        argv: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        data: bytes = b"",
        timeout: float = ANSWER_SECONDS,
        limit_bytes: int = OUTPUT_BYTES,
    ) -> Completed:
        """Run a program inside a container to its end. Raises HostError, also when it takes too long."""
        with engine_errors(self.name, f"running {argv[0]} in the container"):
            return run_in(
                self.api,
                container,
                argv,
                environment=environment,
                input_data=data,
                timeout=timeout,
                limit_bytes=limit_bytes,
            )

    def exec_attached(
        self,
        container: str,
        argv: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        on_line: OnLine | None = None,
    ) -> Attached:
        """Start a program inside a container, its input held open as a lease. Raises HostError."""
        with engine_errors(self.name, f"starting {argv[0]} in the container"):
            return Attached(self.api, container, argv, environment=environment, on_line=on_line)

    def inspect_state(self, container: str) -> dict[str, Any]:
        """What the engine says of a container's state (Running, ExitCode, ...). Raises HostError."""
        with engine_errors(self.name, "asking for the container's state"):
            state: dict[str, Any] = self.api.inspect_container(container).get("State") or {}
            return state

    def close(self) -> None:
        """Give back all connections. Safe to call twice."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()


class LocalHost(Engine):
    """This machine and its own engine, with the interface of a remote host."""

    def _connect_engine(self) -> docker.APIClient:
        return transport.local_engine(ANSWER_SECONDS)

    def run(self, argv: Sequence[str], timeout: float = ANSWER_SECONDS, data: bytes = b"") -> Completed:
        """See ``Engine.run``."""
        try:
            done = subprocess.run(list(argv), input=data, capture_output=True, timeout=timeout, check=False)
        except FileNotFoundError:
            return Completed(b"", f"{argv[0]}: command not found".encode(), 127)
        except subprocess.TimeoutExpired:
            raise HostError(self.name, f"{argv[0]} had not ended after {timeout:g} s.") from None
        return Completed(done.stdout, done.stderr, done.returncode)


@contextlib.contextmanager
def engine_errors(host: str, doing: str) -> Iterator[None]:
    """Turn what the Docker client raises into a ``HostError`` that says what was being done."""
    try:
        yield
    except docker.errors.APIError as error:
        said = printable(str(error.explanation or error))
        raise HostError(host, f"{doing}: the Docker engine says: {said}", fix=_engine_fix(said)) from error
    except (requests.exceptions.Timeout, TimeoutError) as error:
        raise HostError(
            host,
            f"{doing}: no answer in time ({printable(str(error))}).",
            fix="see whether the host is up and not overloaded, and `systemctl status docker` there.",
        ) from error
    except (
        docker.errors.DockerException,
        requests.exceptions.RequestException,
        urllib3.exceptions.HTTPError,
        OSError,
        EOFError,
    ) as error:
        said = printable(transport.root_cause(error))
        raise HostError(host, f"{doing}: the Docker engine did not answer: {said}", fix=_engine_fix(said)) from error


_FIXES: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        ("permission denied",),
        "add the user to the group docker there (`sudo usermod -aG docker USER`), then connect again.",
    ),
    (
        ("docker: not found", "docker: command not found", "unknown command: docker"),
        "install Docker there, and see that `docker` is on the PATH of a non-interactive shell.",
    ),
    (("no such container", "is not running"), "start it again with `fab deploy`."),
    (("connection was lost", "ssh session not active"), "see that the host is up and reachable."),
    (("no space left",), "free disk space where Docker keeps its data (`docker system df`)."),
    (
        ("cannot connect", "closed", "daemon", "docker.sock", "without an answer"),
        "start Docker on the host (`sudo systemctl start docker`).",
    ),
)


def _engine_fix(said: str) -> str:
    """What to do about it: the first entry that the engine's words hold; empty when none is."""
    low = said.lower()
    return next((fix for words, fix in _FIXES if any(word in low for word in words)), "")
