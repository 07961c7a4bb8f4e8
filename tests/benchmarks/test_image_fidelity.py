"""Ratios judged, and the commands that start both sides."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks.image_fidelity import CollectiveRatio, StepRatio, collectives_spec, combined, limits, table
from suite.paths import project_root
from suite.worker.spec import load_spec


def test_steps_are_held_to_two_percent_and_collectives_to_three() -> None:
    steps = [
        StepRatio("gloo", "linear, step", 1.025, 1.0, 1.025, (1.0, 1.05)),
        StepRatio("gloo", "linear, model", 1.025, 1.0, 1.025, (1.0, 1.05)),
        StepRatio("gloo", "all_reduce, 4096 bytes", 1.025, 1.0, 1.025, (1.0, 1.05)),
    ]
    collectives = [
        CollectiveRatio(4096, 1.0, 1.02, 1.5, 1.02, 1.5, (1.01, 1.04)),
        CollectiveRatio(8192, 1.0, 0.9, 1.0, 0.9, 1.0),
    ]
    assert [limit.met for limit in limits(steps, collectives)] == [False, False, True, True, False]
    outcomes = {
        "launches": 4,
        "step_launches": 6,
        "steps": [dataclasses.asdict(row) for row in steps],
        "collectives": [dataclasses.asdict(row) for row in collectives],
    }
    assert "1.500" in table(outcomes)
    assert "[1.010, 1.040]" in table(outcomes)


def test_launches_are_combined_by_their_own_ratios_not_by_their_times() -> None:
    def launch(ratio: float, pace: float) -> list[dict[str, object]]:
        return [
            {"what": "linear, step", "suite_seconds": ratio * pace, "bare_seconds": pace, "ratio": ratio},
            {"what": "all_reduce, 4096 bytes", "suite_seconds": 1.0, "bare_seconds": 1.0, "ratio": 1.0},
        ]

    ratios = (0.97, 1.02, 1.00, 0.99, 1.03, 1.01)
    step, other = combined("gloo", [launch(r, pace) for r, pace in zip(ratios, (1, 9, 1, 9, 1, 9), strict=True)])
    assert (step.what, step.launches) == ("linear, step", ratios)
    assert step.ratio == pytest.approx(1.005)
    assert step.interval == (0.97, 1.03)  # of six, the exact interval is from the least to the largest
    assert other.ratio == 1.0
    few, _ = combined("gloo", [launch(1.0, 1), launch(1.01, 1)])
    assert few.interval is None


def test_a_worker_can_read_the_specification_of_the_suites_side(tmp_path: Path) -> None:
    from suite.records import to_json

    path = tmp_path / "spec.json"
    path.write_text(to_json(collectives_spec(3)))
    spec = load_spec(path)
    assert spec.sweep is not None
    assert spec.sweep.collectives == ("all_reduce",)
    assert spec.sweep.raw_mpi
    assert spec.host == spec.hosts[0].name


def test_the_c_program_is_c_without_warnings(tmp_path: Path) -> None:
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("NOT RUN: there is no gcc here")
    # Declarations in the place of mpi.h: the real one is in the image that the benchmark builds.
    (tmp_path / "mpi.h").write_text(
        "typedef int MPI_Comm; typedef int MPI_Datatype; typedef int MPI_Op;\n"
        "enum { MPI_COMM_WORLD, MPI_FLOAT, MPI_DOUBLE, MPI_SUM, MPI_MAX, MPI_THREAD_SERIALIZED };\n"
        "#define MPI_IN_PLACE ((void *)1)\n"
        "int MPI_Abort(MPI_Comm, int); int MPI_Barrier(MPI_Comm); int MPI_Finalize(void);\n"
        "int MPI_Init_thread(int *, char ***, int, int *); int MPI_Comm_rank(MPI_Comm, int *);\n"
        "int MPI_Allreduce(const void *, void *, int, MPI_Datatype, MPI_Op, MPI_Comm);\n"
        "int MPI_Reduce(const void *, void *, int, MPI_Datatype, MPI_Op, int, MPI_Comm);\n"
    )
    source = project_root() / "benchmarks" / "all_reduce.c"
    flags = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", f"-I{tmp_path}"]
    done = subprocess.run(
        [compiler, *flags, "-c", str(source), "-o", str(tmp_path / "x.o")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
