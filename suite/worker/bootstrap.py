"""The start and the end of one rank: identity, environment, log, guard, and a record whatever happens.

The order matters. The log is redirected first, so that everything later is in it. The environment is set
before torch is imported, because OpenMP, NCCL and Open MPI read it once. The guard is started before anything
can hang. A failed rank leaves by ``os._exit``: an orderly exit would call MPI_Finalize, which waits for
peers that may wait for this one.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from types import FrameType, TracebackType

from suite.errors import LaunchError
from suite.records import LaunchSpec
from suite.worker.failures import is_secondary, one_line
from suite.worker.identity import Identity, identify, launch_environment, refuse_skewing
from suite.worker.recorder import Recorder
from suite.worker.spec import load_spec

EXIT_DEADLINE = 124
EXIT_TERMINATED = 143
# After the deadline the guard writes the record; if even that hangs (a lock held in C), this ends it.
GRACE_SECONDS = 10.0
# Where the launcher listens, once stdout and stderr have gone to the rank's log: for what cannot be said there.
_launcher: list[int] = []
# The guard looks at the clock this often; a longer gap means that this process was not running at all.
BEAT_SECONDS = 2.0
STILL_SECONDS = 6.0
STILL_FIX = "find out what stopped this process, or its whole host (SIGSTOP, a debugger, swapping)"
# MPI_Finalize and the interpreter's own end get this long; then SIGALRM ends the process.
FINALISE_SECONDS = 20


def main(spec_path: Path) -> int:
    """Run one rank; returns 0 only when its record is complete, otherwise does not return at all."""
    began = time.monotonic()
    spec = load_spec(spec_path)
    identity = identify(os.environ)
    folder = Path(spec.output_folder)
    folder.mkdir(parents=True, exist_ok=True)
    recorder = Recorder(spec, identity, folder)
    if recorder.record_path.exists():
        raise LaunchError(f"{recorder.record_path} exists already: this launch has been run before.")
    redirect_output(recorder.log_path)
    install_excepthook(recorder)
    start_guard(recorder, began + spec.deadline_seconds)
    prepare(spec, identity)
    recorder.enter("import")
    from suite.worker.launch import run_launch  # noqa: PLC0415  # imports torch, which reads the environment

    run_launch(spec, identity, recorder)
    sys.stdout.flush()
    sys.stderr.flush()
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(FINALISE_SECONDS)
    return 0


def prepare(spec: LaunchSpec, identity: Identity) -> None:
    """Set the environment and refuse what cannot be timed or started like this.

    Raises:
        LaunchError: a skewing variable is set, or the launcher is the wrong one for the backend.
    """
    os.environ.update(launch_environment(spec, identity))
    refuse_skewing(os.environ, spec.kind)
    if spec.kind != "single" and spec.arm.backend == "mpi" and identity.launcher != "mpirun":
        raise LaunchError(
            f"The mpi backend takes its ranks from mpirun; this rank was started by {identity.launcher}.",
            fix="start it with mpirun.",
        )


def redirect_output(log: Path) -> None:
    """Send this process's stdout and stderr, C and C++ libraries' included, to ``log`` (appended)."""
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    sys.stdout.flush()
    sys.stderr.flush()
    _launcher.append(os.dup(2))
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.close(handle)


def install_excepthook(recorder: Recorder) -> None:
    """Make any uncaught exception leave a record and end the process at once."""

    def leave(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        # Not sys.stderr: torch puts a hook of its own around this one, with a buffer in that place.
        with contextlib.suppress(OSError):  # a full disk must not keep this process from its end
            traceback.print_exception(kind, error, trace, file=sys.__stderr__)
        end(recorder, one_line(error), 1, fix=getattr(error, "fix", ""), secondary=is_secondary(error))

    sys.excepthook = leave
    threading.excepthook = lambda args: leave(args.exc_type, args.exc_value or args.exc_type(), args.exc_traceback)


def end(recorder: Recorder, cause: str, code: int, *, fix: str = "", secondary: bool = False) -> None:
    """Write the failure and leave without running any exit handler. Does not return."""
    try:
        for stream in (sys.stdout, sys.__stderr__):
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.flush()
        recorder.fail(cause, fix=fix, secondary=secondary)
    except BaseException as problem:  # whatever goes wrong now, the process must still end, and say so
        code = code or 1
        said = f"suite.worker: {recorder.record_path.name} could not be written: {one_line(problem)}\n"
        os.write(_launcher[-1] if _launcher else 2, said.encode(errors="replace"))
        traceback.print_exc(file=sys.__stderr__)
    finally:
        os._exit(code)


def start_guard(recorder: Recorder, deadline: float) -> None:
    """Start the thread that ends this rank at its deadline, or when SIGTERM comes, even if torch hangs.

    SIGTERM is blocked in all threads and taken by this one: a Python signal handler would wait for the main
    thread to return from C. ``deadline`` is an instant of ``time.monotonic``.
    """
    faulthandler.enable()
    remaining = max(0.1, deadline - time.monotonic())
    faulthandler.dump_traceback_later(remaining + GRACE_SECONDS, exit=True)  # needs no interpreter lock
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    main_thread = threading.main_thread().ident
    threading.Thread(target=_guard, args=(recorder, deadline, main_thread), daemon=True, name="guard").start()


def _guard(recorder: Recorder, deadline: float, main_thread: int | None) -> None:
    last, still = time.monotonic(), 0.0
    while last < deadline:
        told = signal.sigtimedwait({signal.SIGTERM}, min(deadline - last, BEAT_SECONDS))
        now = time.monotonic()
        last, still = now, max(still, now - last)
        if told is not None:
            break
    where, in_torch = _position(main_thread)
    if still > STILL_SECONDS:  # a launcher wakes a stopped rank only to end it, like all the others
        end(recorder, f"did not run for {still:.0f} s{where}", EXIT_TERMINATED, fix=STILL_FIX)
    if last < deadline:
        end(recorder, f"ended by the launcher (SIGTERM){where}", EXIT_TERMINATED, secondary=True)
    faulthandler.dump_traceback(file=2, all_threads=True)
    cause = f"deadline passed in stage {recorder.stage}{where}"
    end(recorder, cause, EXIT_DEADLINE, secondary=in_torch)


def _position(thread: int | None) -> tuple[str, bool]:
    """Where the main thread is: the suite's innermost line, and whether it waits inside torch or MPI."""
    frame: FrameType | None = sys._current_frames().get(thread or 0)
    in_torch = frame is not None and any(part in frame.f_code.co_filename for part in ("/torch/", "/mpi4py/"))
    while frame is not None:
        if "/suite/" in frame.f_code.co_filename:
            name = Path(frame.f_code.co_filename).name
            waits = ", waiting for its peers" if in_torch else ""
            return f", at {name}:{frame.f_lineno} ({frame.f_code.co_name}){waits}", in_torch
        frame = frame.f_back
    return "", in_torch
