"""Launches on this machine alone: no SSH, no Docker, whatever torch this Python has."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from suite import codec
from suite.cluster.executor import LauncherResult, judge
from suite.errors import LaunchError, UsageError
from suite.launcher import SPEC_FILE, host_commands, mpi_major, supervised
from suite.paths import is_launch_file, project_root
from suite.records import HostProbe, HostSlots, LaunchOutcome, LaunchSpec, to_json

HOST = "local"
PROBE_SECONDS = 120.0
# The supervisor ends its ranks within 3 s of being asked; beyond this it is itself stuck.
END_SECONDS = 8.0


def local_host(device: str, worlds: Sequence[int], probe: Callable[[str], Sequence[HostProbe]]) -> HostSlots:
    """This machine as the one host of a plan: ranks meet over the loopback interface.

    Args:
        device: what will be trained on.
        worlds: the world sizes asked for; none: two ranks, or one on each CUDA device.
        probe: asks for the CUDA devices, where they are used.

    Raises:
        UsageError: CUDA is asked for, and there is no device, or none for each rank.
    """
    if device != "cuda":
        return HostSlots(HOST, "127.0.0.1", max(worlds, default=2), "lo")
    (found,) = probe(device)
    devices = found.cuda_devices
    if not devices:
        raise UsageError(
            "--device cuda: torch sees no CUDA device here.",
            fix="see what `nvidia-smi` says, and in a container whether it was given the GPUs; or use --device cpu.",
        )
    slots = max(worlds, default=len(devices))
    if slots > len(devices):
        raise UsageError(
            f"World size {slots} on {len(devices)} CUDA device(s): every rank needs one of its own.",
            fix=f"use --world {len(devices)} or less, or --device cpu.",
        )
    # By UUID, so that launch and record speak of one card: numbers would count among CUDA_VISIBLE_DEVICES.
    named = devices[:slots] if all(name.startswith(("GPU-", "MIG-")) for name in devices) else ()
    return HostSlots(HOST, "127.0.0.1", slots, "lo", devices=named)


class LocalExecutor:
    """Runs launches as processes of this machine, each under the supervisor."""

    def __init__(self, python: str = sys.executable) -> None:
        self._python = python
        self._root = Path(tempfile.mkdtemp(prefix="ddp-suite-"))
        self._mpi_major = 5

    def probe(self, device: str) -> tuple[HostProbe, ...]:
        """Ask a worker process what this torch can do.

        Raises:
            UsageError: this Python has no torch.
            LaunchError: the worker failed otherwise, or took too long.
        """
        words = [self._python, "-m", "suite.worker", "probe", "--host", HOST, "--device", device]
        try:
            done = subprocess.run(
                words, capture_output=True, text=True, timeout=PROBE_SECONDS, check=False, env=_environment()
            )
        except subprocess.TimeoutExpired:
            raise LaunchError(f"Asking torch what it can do took more than {PROBE_SECONDS:g} s.") from None
        if done.returncode != 0:
            if "No module named 'torch'" in done.stderr:
                raise UsageError(
                    f"{self._python} has no torch.",
                    fix="use `make local`, or install the extra `local` (`pip install -e .[local]`).",
                )
            raise LaunchError("The worker's probe failed: " + (done.stderr.strip() or "no output")[-2000:])
        found = codec.decode(done.stdout.encode(), HostProbe, "probe")
        self._mpi_major = mpi_major(found.mpi)
        if found.backends.get("mpi") is None and shutil.which("mpirun") is None:
            found = replace(found, backends={**found.backends, "mpi": "there is no mpirun on PATH"})
        return (found,)

    def output_folder(self, launch: str) -> str:
        """A folder of its own per launch, in this executor's temporary folder."""
        return str(self._root / launch)

    def master_port(self) -> int:
        """A port of the loopback interface that is free now."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return int(probe.getsockname()[1])

    def launch(self, spec: LaunchSpec, folder: Path) -> LaunchOutcome:
        """See ``Executor.launch``."""
        work = Path(spec.output_folder)
        work.mkdir(parents=True)
        (work / SPEC_FILE).write_text(to_json(replace(spec, host=HOST)))
        commands = host_commands(
            spec, python=self._python, mpi_major=self._mpi_major, as_root=os.geteuid() == 0, agent=None
        )
        command = commands[HOST]
        started_at, start = time.time(), time.monotonic()
        interrupted = False
        try:
            result = self._run(command, spec.deadline_seconds)
        except KeyboardInterrupt:
            interrupted = True
            result = LauncherResult(HOST, None, ended_by="interrupt")
        wall = time.monotonic() - start
        (folder / f"launcher-{HOST}.log").write_text(result.output)
        for path in work.iterdir():
            if is_launch_file(path.name) and path.is_file():
                shutil.copyfile(path, folder / path.name)
        shutil.rmtree(work, ignore_errors=True)
        outcome = judge(
            spec,
            folder,
            [result],
            wall_seconds=wall,
            started_at=started_at,
            commands={HOST: shlex.join(command)},
        )
        if interrupted:
            raise KeyboardInterrupt
        return outcome

    def _run(self, command: list[str], deadline: float) -> LauncherResult:
        words = supervised(command, deadline, python=self._python, lease=True)
        with tempfile.TemporaryFile(dir=self._root) as log:
            process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=_environment(),
                start_new_session=True,  # Ctrl-C reaches the controller only, which then ends the ranks
            )
            ended_by = ""
            try:
                process.wait(deadline + END_SECONDS + 10)
            except subprocess.TimeoutExpired:
                ended_by = "deadline"
            finally:
                _end(process)
            if process.returncode == 124:
                ended_by = "deadline"
            log.seek(0)
            output = log.read().decode(errors="replace")
        return LauncherResult(HOST, process.returncode, output, ended_by)

    def close(self) -> None:
        """Remove the temporary folder."""
        shutil.rmtree(self._root, ignore_errors=True)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the supervisor by ending its lease; by force when it does not listen."""
    if process.stdin:
        with contextlib.suppress(OSError):
            process.stdin.close()
    if process.poll() is not None:
        return
    killer = threading.Timer(END_SECONDS, process.kill)
    killer.start()
    try:
        process.wait(END_SECONDS + 5)
    finally:
        killer.cancel()


def _environment() -> dict[str, str]:
    """This process's environment, with the suite importable from its source folder."""
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join([str(project_root()), *filter(None, [environment.get("PYTHONPATH")])])
    return environment
