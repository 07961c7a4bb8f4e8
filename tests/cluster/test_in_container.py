"""Programs and files inside a container, by the engine's socket and through SSH alike."""

from __future__ import annotations

import threading
import time

import pytest

from suite.cluster.archive import VOLUME, File
from suite.errors import HostError
from tests.cluster.conftest import Box

pytestmark = pytest.mark.containers
HOSTILE = ["two words", "$(touch owned)", "`id`", '"quoted"', "it's", "line\nbreak", "*", ""]


def test_streams_and_exit_code_come_apart(box: Box) -> None:
    done = box.engine.exec_run(box.container, ["sh", "-c", "echo out; echo err >&2; exit 3"])
    assert (done.stdout, done.stderr, done.code) == (b"out\n", b"err\n", 3)
    assert done.complaint == "err"


def test_words_and_variables_arrive_as_they_are(box: Box) -> None:
    done = box.engine.exec_run(
        box.container, ["sh", "-c", 'printf "%s\\0" "$ODD" "$@"', "sh", *HOSTILE], environment={"ODD": "$(id)\n'"}
    )
    assert done.stdout.decode().split("\0")[:-1] == ["$(id)\n'", *HOSTILE]


def test_input_and_output_of_megabytes_pass_whole(box: Box) -> None:
    data = bytes(range(256)) * 20_000
    assert box.engine.exec_run(box.container, ["cat"], data=data).stdout == data


def test_a_program_that_does_not_exist_fails_with_a_code(box: Box) -> None:
    assert box.engine.exec_run(box.container, ["no-such-program"]).code in (126, 127)


def test_a_program_that_takes_too_long_is_given_up(box: Box) -> None:
    start = time.monotonic()
    with pytest.raises(HostError, match="running sleep in the container: no answer in time"):
        box.engine.exec_run(box.container, ["sleep", "5"], timeout=0.5)
    assert time.monotonic() - start < 4


def test_a_program_that_writes_without_end_is_given_up(box: Box) -> None:
    with pytest.raises(HostError, match="wrote more than"):
        box.engine.exec_run(box.container, ["yes"], limit_bytes=1 << 20)


def test_an_unknown_container_says_what_to_do(box: Box) -> None:
    with pytest.raises(HostError, match="No such container") as caught:
        box.engine.exec_run("0" * 64, ["true"])
    assert "fab deploy" in caught.value.fix


def test_lines_come_as_they_are_written(box: Box) -> None:
    seen: list[tuple[str, str]] = []
    first = threading.Event()

    def note(stream: str, line: str) -> None:
        seen.append((stream, line))
        first.set()

    program = box.engine.exec_attached(box.container, ["sh", "-c", "echo one; cat >&2; exit 7"], on_line=note)
    try:
        assert first.wait(5)
        assert program.wait(0.2) is None
        program.write(b"two\nthree")
        program.close_input()
        assert program.wait(5) == 7
    finally:
        program.close()
    assert seen == [("stdout", "one"), ("stderr", "two"), ("stderr", "three")]


@pytest.mark.parametrize("how", ["close", "lose"])
def test_the_program_reads_the_end_of_its_input_when_the_lease_ends(box: Box, how: str) -> None:
    mark = f"{VOLUME}/lease-{how}-{time.monotonic_ns()}"
    program = box.engine.exec_attached(box.container, ["sh", "-c", f"echo up; cat; touch {mark}"])
    deadline = time.monotonic() + 5
    while not program.lines and time.monotonic() < deadline:
        time.sleep(0.01)
    if how == "close":
        program.close()
    else:
        box.engine.close()  # with SSH the whole session goes, as when the controller dies
        program.close()
    for _ in range(100):
        if box.engine.exec_run(box.container, ["test", "-e", mark]).ok:
            return
        time.sleep(0.05)
    pytest.fail("the program still waits")


def test_the_engine_knows_a_programs_exit_code_though_its_output_goes_on(box: Box) -> None:
    # The child holds the output open, as a connection on which the end got lost would be.
    program = box.engine.exec_attached(box.container, ["sh", "-c", "sleep 20 & read _; exit 3"])
    try:
        assert program.known_code() is None
        program.write(b"now\n")
        deadline = time.monotonic() + 5
        while program.known_code() is None and not program.ended and time.monotonic() < deadline:
            time.sleep(0.05)
        assert program.known_code() == 3
    finally:
        program.close()


def test_a_lost_connection_is_no_exit_code(box: Box) -> None:
    program = box.engine.exec_attached(box.container, ["sleep", "30"])
    try:
        program._socket.shutdown(2)
        assert program.wait_output(5)
        with pytest.raises(ConnectionError):
            program.wait(0)
    finally:
        program.close()


def test_threads_end_with_their_programs(box: Box) -> None:
    for _ in range(5):
        box.engine.exec_run(box.container, ["true"])
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("exec-")]


def test_files_go_in_with_owner_and_mode_and_come_back(box: Box) -> None:
    folder = f"{VOLUME}/files-{time.monotonic_ns()}"
    box.engine.put(box.container, folder, {"a.json": File(b"{}"), "b": File(b"\0\1", 0o644), "c/d": File(b"x")})
    shown = box.engine.exec_run(box.container, ["stat", "-c", "%u:%g %a", folder, f"{folder}/a.json", f"{folder}/b"])
    assert shown.text.splitlines() == ["1000:1000 700", "1000:1000 600", "1000:1000 644"]
    assert box.engine.fetch(box.container, folder, limit_bytes=100) == {"a.json": b"{}", "b": b"\0\1"}
    assert box.engine.fetch(box.container, folder, limit_bytes=100, wanted=lambda n: n == "b") == {"b": b"\0\1"}


def test_a_folder_that_is_not_there_holds_nothing(box: Box) -> None:
    assert box.engine.fetch(box.container, f"{VOLUME}/none", limit_bytes=100) == {}


def test_links_are_not_followed_and_limits_hold(box: Box) -> None:
    folder = f"{VOLUME}/odd-{time.monotonic_ns()}"
    box.engine.put(box.container, folder, {"plain": File(b"p")})
    script = 'cd "$0"; ln -s /etc/passwd link; mkfifo pipe; mkdir sub; echo s > sub/file; ln plain hard'
    assert box.engine.exec_run(box.container, ["sh", "-c", script, folder]).ok
    got = box.engine.fetch(box.container, folder, limit_bytes=100)
    assert got in ({"plain": b"p"}, {"hard": b"p"})  # whichever of the two names the archive names first
    box.engine.exec_run(box.container, ["dd", "if=/dev/zero", f"of={folder}/large", "bs=1M", "count=3"])
    with pytest.raises(HostError, match="more than 1048576 bytes"):
        box.engine.fetch(box.container, folder, limit_bytes=1 << 20)


def test_a_hostile_file_name_is_refused(box: Box) -> None:
    folder = f"{VOLUME}/names-{time.monotonic_ns()}"
    box.engine.put(box.container, folder, {"plain": File(b"p")})
    assert box.engine.exec_run(box.container, ["touch", f"{folder}/<script>\n"]).ok
    with pytest.raises(HostError, match="holds a file named"):
        box.engine.fetch(box.container, folder, limit_bytes=100)


def test_nothing_is_written_outside_the_volume(box: Box) -> None:
    for folder in ("/etc", f"{VOLUME}x", "/"):
        with pytest.raises(ValueError, match="does not lie in"):
            box.engine.put(box.container, folder, {"a": File(b"")})
    with pytest.raises(ValueError, match="no relative path"):
        box.engine.put(box.container, VOLUME, {"../a": File(b"")})
