"""Programs run inside a container (docker exec), with their streams apart and their input held open.

The input is the lease: when it is closed, by us or because the connection went away, the program inside
reads the end of its input and can end itself. Output comes over the same connection; nothing is polled.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import docker
import docker.errors
import requests

from suite.cluster.transport import raise_for_status, root_cause, url

STDOUT, STDERR = "stdout", "stderr"
MAX_LINE_BYTES = 64 * 1024
KEPT_LINES = 2000
_HEADER = struct.Struct(">BxxxL")  # Docker's frame: stream number, three zero bytes, length
_MAX_FRAME = 1 << 26
# The stream may end a moment before the engine knows the exit code.
_CODE_SECONDS = 3.0

OnLine = Callable[[str, str], None]
OnData = Callable[[str, bytes], None]


@dataclass(frozen=True)
class Completed:
    """A program that has ended: what it wrote and its exit code."""

    stdout: bytes
    stderr: bytes
    code: int

    @property
    def ok(self) -> bool:
        return self.code == 0

    @property
    def text(self) -> str:
        """Standard output as text, without surrounding blanks."""
        return self.stdout.decode(errors="replace").strip()

    @property
    def complaint(self) -> str:
        """The last line that says why it failed."""
        lines = (self.stderr or self.stdout).decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "no output"


class Attached:
    """A program running inside a container.

    A thread of its own reads the output and calls ``on_line(stream, line)`` (or ``on_data(stream, bytes)``)
    for each; without either, the newest lines are kept in ``lines``.
    """

    def __init__(
        self,
        client: docker.APIClient,
        container: str,
        argv: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        user: str = "",
        folder: str | None = None,
        on_line: OnLine | None = None,
        on_data: OnData | None = None,
    ) -> None:
        self.lines: deque[tuple[str, str]] = deque(maxlen=KEPT_LINES)
        self._client = client
        self._on_line = on_line or (lambda stream, line: self.lines.append((stream, line)))
        self._on_data = on_data
        self._partial = {STDOUT: b"", STDERR: b""}
        self._ended = threading.Event()
        self._code: int | None = None
        self._closing = False
        created = client.exec_create(
            container,
            list(argv),
            stdin=True,
            environment=dict(environment or {}),
            user=user,
            workdir=folder,
        )
        self._exec = str(created["Id"])
        self._response = client.post(
            url(client, f"/exec/{quote(self._exec, safe='')}/start"),
            json={"Detach": False, "Tty": False},
            headers={"Connection": "Upgrade", "Upgrade": "tcp"},
            stream=True,
            timeout=client.timeout,
        )
        raise_for_status(self._response)
        raw: Any = self._response.raw
        self._socket: Any = raw.connection.sock
        self._socket.settimeout(None)  # a launch is silent for as long as it likes; its deadline is the caller's
        # The buffered file that http.client read the headers from: it may hold the first frames already.
        self._stream: Any = raw._fp.fp
        self._thread = threading.Thread(target=self._read, name=f"exec-{self._exec[:12]}", daemon=True)
        self._thread.start()

    def write(self, data: bytes, timeout: float = 30.0) -> None:
        """Send to the program's standard input.

        Raises:
            OSError: the program or the connection is gone (TimeoutError: it does not read).
        """
        # In a thread of its own, because a time limit on the socket would also end the reading one.
        problem: list[BaseException] = []

        def send() -> None:
            try:
                self._socket.sendall(data)
            except (OSError, EOFError) as error:
                problem.append(error)

        sender = threading.Thread(target=send, name="exec-input", daemon=True)
        sender.start()
        sender.join(timeout)
        if sender.is_alive():
            raise TimeoutError(f"the program did not read its input for {timeout:g} s")
        if problem:
            raise OSError(f"the input is closed: {problem[0]}") from problem[0]

    def close_input(self) -> None:
        """Let the program read the end of its input; its output still comes."""
        with contextlib.suppress(OSError, EOFError):
            self._socket.shutdown(socket.SHUT_WR)

    @property
    def ended(self) -> bool:
        """Whether the output has ended, because the program did or because the connection was lost."""
        return self._ended.is_set()

    def wait_output(self, timeout: float | None) -> bool:
        """Whether the output has ended, after waiting up to ``timeout`` seconds for it."""
        return self._ended.wait(timeout)

    def wait(self, timeout: float | None) -> int | None:
        """The exit code once the output has ended; None while it has not after ``timeout`` seconds.

        Raises:
            ConnectionError: the connection was lost, so nobody knows how the program ended.
        """
        if not self._ended.wait(timeout):
            return None
        if self._code is None:
            self._code = self._exit_code()
        return self._code

    def known_code(self) -> int | None:
        """The exit code as far as the engine knows it, whether or not the output has ended; None while it runs.

        Raises:
            ConnectionError: the engine cannot be asked.
        """
        try:
            state = self._client.exec_inspect(self._exec)
        except (docker.errors.DockerException, requests.exceptions.RequestException, OSError) as error:
            raise ConnectionError(f"the connection was lost: {root_cause(error)}") from error
        code = state.get("ExitCode")
        return None if state.get("Running") or code is None else int(code)

    def close(self) -> None:
        """Close the input and the connection, and wait for the reading thread. The program is not ended."""
        self._closing = True
        self.close_input()
        with contextlib.suppress(OSError, EOFError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(5.0)
        with contextlib.suppress(OSError, EOFError, ValueError):
            self._response.close()
            self._socket.close()

    def _exit_code(self) -> int:
        deadline, pause = time.monotonic() + _CODE_SECONDS, 0.005
        while True:
            code = self.known_code()
            if code is not None:
                return code
            if time.monotonic() > deadline:
                raise ConnectionError("the connection was lost while the program was still running")
            time.sleep(pause)
            pause = min(pause * 2, 0.2)

    def _read(self) -> None:
        # Whatever ends the connection ends the output; ``wait`` finds out which of the two it was.
        try:
            while True:
                header = self._stream.read(_HEADER.size)
                if len(header) < _HEADER.size:
                    break
                number, length = _HEADER.unpack(header)
                if length > _MAX_FRAME:
                    break
                data = self._stream.read(length)
                self._take(STDERR if number == 2 else STDOUT, data)
                if len(data) < length:
                    break
        except (OSError, EOFError, ValueError):
            pass
        finally:
            if self._on_data is None:
                for stream, rest in self._partial.items():
                    if rest:
                        self._on_line(stream, rest.decode(errors="replace"))
            self._ended.set()

    def _take(self, stream: str, data: bytes) -> None:
        if self._on_data is not None:
            self._on_data(stream, data)
            return
        *lines, rest = (self._partial[stream] + data).split(b"\n")
        if len(rest) > MAX_LINE_BYTES:
            lines.append(rest)
            rest = b""
        self._partial[stream] = rest
        for line in lines:
            self._on_line(stream, line.decode(errors="replace").rstrip("\r"))


def run_in(
    client: docker.APIClient,
    container: str,
    argv: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    user: str = "",
    input_data: bytes = b"",
    timeout: float,
    limit_bytes: int = 16 << 20,
) -> Completed:
    """Run a program inside a container to its end.

    Raises:
        TimeoutError: it had not ended after ``timeout`` seconds, or wrote more than ``limit_bytes``; its
            input was closed, but it is not ended for certain.
        ConnectionError: the connection was lost.
    """
    pieces: dict[str, list[bytes]] = {STDOUT: [], STDERR: []}
    size = 0
    flood = threading.Event()

    def keep(stream: str, data: bytes) -> None:
        nonlocal size
        size += len(data)
        if size > limit_bytes:
            flood.set()
            raise OSError("too much output")
        pieces[stream].append(data)

    program = Attached(client, container, argv, environment=environment, user=user, on_data=keep)
    try:
        if input_data:
            program.write(input_data, timeout)
        program.close_input()
        ended = program.wait_output(timeout)
        if flood.is_set():
            raise TimeoutError(f"{argv[0]} wrote more than {limit_bytes} bytes")
        code = program.wait(0) if ended else None
        if code is None:
            raise TimeoutError(f"{argv[0]} had not ended after {timeout:g} s")
        return Completed(b"".join(pieces[STDOUT]), b"".join(pieces[STDERR]), code)
    finally:
        program.close()
