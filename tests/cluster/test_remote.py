"""SSH to a host, against a real sshd on a loopback port."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import paramiko
import pytest

from suite.cluster import host_keys, remote
from suite.cluster.keys import key_pair
from suite.cluster.remote import RemoteHost
from suite.errors import EXIT_PREFLIGHT, HostError
from tests.support.ssh_server import SshServer, private_file, ssh_server

HOSTILE = ["two words", "$(touch owned)", "`id`", '"quoted"', "it's", "line\nbreak", "*", "~", ";reboot", "|| true", ""]


@contextmanager
def connection(server: SshServer, **changes: object) -> Iterator[RemoteHost]:
    host = RemoteHost(server.host(**changes))  # type: ignore[arg-type]
    try:
        yield host
    finally:
        host.close()


def refusal(host: RemoteHost) -> HostError:
    with pytest.raises(HostError) as caught:
        host.connect()
    host.close()
    assert caught.value.message.startswith("h1: ")
    assert caught.value.fix
    assert caught.value.exit_code == EXIT_PREFLIGHT
    return caught.value


def test_a_program_runs_with_streams_and_exit_code_apart(server: SshServer) -> None:
    with connection(server) as host:
        done = host.run(["sh", "-c", "echo out; echo err >&2; exit 3"])
    assert (done.stdout, done.stderr, done.code) == (b"out\n", b"err\n", 3)


def test_no_word_reaches_the_remote_shell_unquoted(server: SshServer) -> None:
    with connection(server) as host:
        done = host.run(["printf", "%s\\0", *HOSTILE])
    assert done.stdout.decode().split("\0")[:-1] == HOSTILE


def test_input_is_handed_to_the_program(server: SshServer) -> None:
    with connection(server) as host:
        assert host.run(["cat"], data=b"\0binary\xff").stdout == b"\0binary\xff"


def test_one_session_serves_programs_at_the_same_time(server: SshServer) -> None:
    with connection(server) as host:
        host.connect()
        answers: dict[int, str] = {}

        def ask(number: int) -> None:
            answers[number] = host.run(["sh", "-c", 'sleep 0.3; echo "$PPID"; echo "$SSH_CONNECTION"']).text

        threads = [threading.Thread(target=ask, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
    assert len({answer.splitlines()[1] for answer in answers.values()}) == 1, "one TCP connection for all"


def test_small_packets_are_not_held_back_until_the_last_one_is_acknowledged(server: SshServer) -> None:
    with connection(server) as host:
        sock = host._ssh().sock
        assert isinstance(sock, socket.socket), "paramiko types it as either a socket or a channel of a jump host"
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1


def test_a_program_that_takes_too_long_is_given_up(server: SshServer) -> None:
    with connection(server) as host:
        start = time.monotonic()
        with pytest.raises(HostError, match=r"sleep had not ended after 0\.5 s"):
            host.run(["sleep", "20"], timeout=0.5)
        assert time.monotonic() - start < 3


def test_a_program_that_writes_without_end_is_given_up(server: SshServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "OUTPUT_BYTES", 1 << 20)
    with connection(server) as host, pytest.raises(HostError, match="yes wrote more than"):
        host.run(["yes"], timeout=20)


def test_a_refused_key_says_so(server: SshServer, tmp_path: Path) -> None:
    stranger = private_file(tmp_path / "stranger", key_pair().private)
    error = refusal(RemoteHost(server.host(key=stranger)))
    assert f"refused the key {stranger}" in error.message
    assert "authorized_keys" in error.fix


def test_a_missing_key_file_says_so(server: SshServer, tmp_path: Path) -> None:
    error = refusal(RemoteHost(server.host(key=tmp_path / "none")))
    assert "there is no key file" in error.message


def test_an_unknown_host_key_is_refused_and_never_added(server: SshServer, tmp_path: Path) -> None:
    known = tmp_path / "known_hosts"
    error = refusal(RemoteHost(server.host(known_hosts=known)))
    assert f"is not in {known}" in error.message
    assert "--accept-new-host-keys" in error.fix
    assert not known.exists()


def test_a_changed_host_key_is_refused_even_when_new_ones_are_accepted(server: SshServer, tmp_path: Path) -> None:
    known = tmp_path / "known_hosts"
    text = f"[127.0.0.1]:{server.port} {key_pair().public}\n"
    known.write_text(text)
    for accept_new in (False, True):
        error = refusal(RemoteHost(server.host(known_hosts=known), accept_new=accept_new))
        assert f"is not the one in {known}" in error.message
        assert error.message.count("SHA256:") == 2
        assert known.read_text() == text


def test_accepting_writes_the_key_once_and_tells_its_fingerprint(server: SshServer, tmp_path: Path) -> None:
    known = tmp_path / "hosts" / "known_hosts"
    first = RemoteHost(server.host(known_hosts=known), accept_new=True)
    first.connect()
    first.close()
    assert known.read_text() == f"[127.0.0.1]:{server.port} {server.host_key.public}\n"
    assert known.stat().st_mode & 0o777 == 0o600
    assert first.accepted is not None
    assert first.accepted.startswith("ssh-ed25519 SHA256:")
    again = RemoteHost(server.host(known_hosts=known), accept_new=True)
    again.connect()
    again.close()
    assert again.accepted is None
    assert known.read_text().count("\n") == 1


def test_a_damaged_known_hosts_file_lets_nobody_in(server: SshServer, tmp_path: Path) -> None:
    known = tmp_path / "known_hosts"
    known.write_bytes(b"\xff\xfe not a key file\n127.0.0.1 ssh-ed25519 AAAA\n")
    with pytest.raises(Exception, match="known_hosts"):
        RemoteHost(server.host(known_hosts=known)).connect()


def test_nobody_listening_says_so(server: SshServer) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        error = refusal(RemoteHost(server.host(port=unused.getsockname()[1])))
    assert "no SSH connection" in error.message


def test_a_host_that_accepts_and_says_nothing_is_given_up(server: SshServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "CONNECT_SECONDS", 1)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        start = time.monotonic()
        error = refusal(RemoteHost(server.host(port=silent.getsockname()[1])))
        assert time.monotonic() - start < 8
        assert "said nothing for 1 s" in error.message


def test_a_host_that_hangs_up_at_once_says_why_that_may_be(server: SshServer) -> None:
    with socket.socket() as rude:
        rude.bind(("127.0.0.1", 0))
        rude.listen()

        def hang_up() -> None:
            accepted, _ = rude.accept()
            time.sleep(0.2)  # the client's banner arrives unread, so closing resets the connection, as sshd's does
            accepted.close()

        threading.Thread(target=hang_up, daemon=True).start()
        error = refusal(RemoteHost(server.host(port=rude.getsockname()[1])))
    assert "hung up at once" in error.message
    assert "PerSourcePenalties" in error.fix


def test_a_name_that_does_not_resolve_says_so(server: SshServer) -> None:
    error = refusal(RemoteHost(server.host(address="no-such-host.invalid")))
    assert "does not resolve" in error.message


def test_neither_user_configuration_nor_agent_plays_a_part(
    server: SshServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "config").write_text("Host *\n  ProxyCommand false\n  Port 1\n  StrictHostKeyChecking no\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "no-agent"))
    with connection(server) as host:
        assert host.run(["echo", "there"]).text == "there"


def test_a_host_that_goes_away_is_noticed_and_found_again(tmp_path: Path) -> None:
    with ssh_server(tmp_path / "one") as server, connection(server) as host:
        host.run(["true"])
        assert host.connected
        for stat in Path("/proc").glob("[0-9]*/stat"):  # the session's own process, a child of the server
            with contextlib.suppress(OSError):
                parent = int(stat.read_text().rpartition(")")[2].split()[1])
                if parent == server.process.pid:
                    os.kill(int(stat.parent.name), signal.SIGKILL)
        deadline = time.monotonic() + 5
        while host.connected and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not host.connected
        assert host.run(["echo", "back"]).text == "back"


def test_neither_threads_nor_descriptors_are_left_behind(server: SshServer) -> None:
    def held() -> tuple[int, int]:
        return threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))

    with connection(server) as host:
        host.run(["true"])
    before = held()
    for _ in range(10):
        with connection(server) as host:
            host.run(["true"])
    deadline = time.monotonic() + 5
    while held() > before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert held() <= before


def test_a_fingerprint_is_the_one_that_ssh_keygen_shows(server: SshServer) -> None:
    shown = subprocess.run(
        ["ssh-keygen", "-lf", str(server.known_hosts)], capture_output=True, text=True, timeout=20, check=True
    )
    key = paramiko.HostKeys(str(server.known_hosts)).lookup(f"[127.0.0.1]:{server.port}")
    assert key is not None
    assert host_keys.fingerprint(key["ssh-ed25519"]).split()[1] in shown.stdout
