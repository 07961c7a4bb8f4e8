"""Real ranks for the worker's tests: processes with the variables that a launcher would set.

Only torch, numpy and pytest are needed. A test is skipped, with the reason, where torch or a backend is missing.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from suite.records import Arm, HostSlots, LaunchSpec, Sweep, to_json

ROOT = Path(__file__).resolve().parents[2]
WAIT_SECONDS = 150


def make_spec(folder: Path, **changes: Any) -> LaunchSpec:
    """A short gloo training launch of two ranks on this machine, with fields changed."""
    backend = changes.pop("backend", "gloo")
    world_size = changes.pop("world_size", 2)
    spec = LaunchSpec(
        run="run",
        launch="0001-linear-gloo",
        index=1,
        kind="train",
        arm=Arm(backend, backend),
        workload="linear",
        batch_size=8,
        device="cpu",
        world_size=world_size,
        hosts=(HostSlots("local", "127.0.0.1", world_size, "lo"),),
        block=0,
        seed=5,
        warmup_steps=2,
        steps=6,
        nosync_steps=4,
        free_steps=5,
        equivalence_steps=3,
        threads=1,
        master_address="127.0.0.1",
        master_port=free_port(),
        deadline_seconds=120.0,
        output_folder=str(folder / "out"),
        host="local",
        allreduce_repeats=4,
        distinct_hosts=False,
        sweep=Sweep(sizes_bytes=(1000, 65536), repeats=5, min_repeats=2, seconds_per_size=0.2),
    )
    return replace(spec, **changes)


def free_port() -> int:
    """A port of the loopback interface that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def worker_environment(**more: str) -> dict[str, str]:
    """This process's environment with the suite importable, and what an earlier test may have set removed."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "GLOO_SOCKET_IFNAME")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    return {**environment, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", "USE_LIBUV": "0", **more}


@dataclass(frozen=True)
class Finished:
    """A launch that has ended: exit codes and what the ranks left."""

    codes: tuple[int, ...]
    folder: Path

    def record(self, rank: int) -> dict[str, Any]:
        """One rank's record as it lies on disk."""
        return dict(json.loads((self.folder / f"rank-{rank}.json").read_text()))

    @property
    def records(self) -> list[dict[str, Any]]:
        """All ranks' records."""
        return [self.record(rank) for rank in range(len(self.codes))]

    def has_record(self, rank: int) -> bool:
        """Whether a rank left one."""
        return (self.folder / f"rank-{rank}.json").exists()

    def log(self, rank: int) -> str:
        """What one rank printed."""
        return (self.folder / f"rank-{rank}.log").read_text()


def write_spec(spec: LaunchSpec) -> Path:
    """Put the description where a controller would."""
    folder = Path(spec.output_folder)
    folder.mkdir(parents=True)
    path = folder / "spec.json"
    path.write_text(to_json(spec))
    return path


def run_ranks(spec: LaunchSpec, *, wait: float = WAIT_SECONDS, **environment: str) -> Finished:
    """Start every rank as torchrun would, wait for all, and leave none behind."""
    path = write_spec(spec)
    processes = []
    for rank in range(spec.world_size):
        variables = {
            "RANK": str(rank),
            "WORLD_SIZE": str(spec.world_size),
            "LOCAL_RANK": str(rank),
            "MASTER_ADDR": spec.master_address,
            "MASTER_PORT": str(spec.master_port),
        }
        if spec.kind == "single":
            variables = {}
        processes.append(
            subprocess.Popen(
                [sys.executable, "-m", "suite.worker", "run", "--spec", str(path)],
                env=worker_environment(**{**variables, **environment}),
                cwd=ROOT,
            )
        )
    try:
        codes = tuple(process.wait(wait) for process in processes)
    finally:
        for process in processes:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.wait(10)
    return Finished(codes, path.parent)


def run_mpi(spec: LaunchSpec, *, wait: float = WAIT_SECONDS) -> Finished:
    """Start every rank by mpirun; skips where there is none, or where this torch has no mpi."""
    import torch.distributed as dist

    if not dist.is_mpi_available():
        pytest.skip("this torch has no mpi backend")
    if shutil.which("mpirun") is None:
        pytest.skip("there is no mpirun")
    path = write_spec(spec)
    words = ["mpirun", "-np", str(spec.world_size), "-H", f"localhost:{spec.world_size}", "--bind-to", "none"]
    words += ["--mca", "smsc", "^cma", "--allow-run-as-root", sys.executable, "-m", "suite.worker", "run"]
    process = subprocess.Popen([*words, "--spec", str(path)], env=worker_environment(), cwd=ROOT)
    try:
        code = process.wait(wait)
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(20)
    return Finished((code,) * spec.world_size, path.parent)


@pytest.fixture(scope="session")
def torch_here() -> Any:
    """torch, or a skip with the reason."""
    return pytest.importorskip("torch", reason="needs torch")


@pytest.fixture(scope="session")
def gloo_train(torch_here: Any, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """One complete training launch over gloo, shared by all tests that only read it."""
    return run_ranks(make_spec(tmp_path_factory.mktemp("gloo-train")))


@pytest.fixture(scope="session")
def mpi_train(torch_here: Any, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """The same launch over mpi."""
    return run_mpi(make_spec(tmp_path_factory.mktemp("mpi-train"), backend="mpi"))


@pytest.fixture
def one_rank(torch_here: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Any]]:
    """Process groups of one gloo rank in this process, closed afterwards."""
    from suite.worker.device import Device
    from suite.worker.groups import Groups

    made: list[Groups] = []

    def make() -> Groups:
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("MASTER_PORT", str(free_port()))
        monkeypatch.setenv("USE_LIBUV", "0")
        made.append(Groups("gloo", 0, 1, Device(), 60.0))
        return made[-1]

    yield make
    for groups in made:
        groups.close()
