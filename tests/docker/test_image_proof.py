"""The proof that ends an image's build, on the real cpu image: it passes there, and any missing part fails the build.

The cpu image is the real part that can be had without CUDA and a registry; each test spoils it in its own way.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from suite.cluster.build import build
from suite.paths import project_root

pytestmark = pytest.mark.containers
PROOF = "/usr/local/lib/suite/assert-backends.py"
# Two builds may run beside other work on a small machine; the proof itself allows 120 s for each pair of ranks.
SECONDS = 500


@pytest.fixture(scope="module")
def image() -> str:
    """The cpu image as the tree says it now: a second when it is there already."""
    build("cpu", root=project_root(), progress=lambda line: None, deadline_seconds=SECONDS)
    return "ddp-backend-suite:cpu"


def prove(image: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the proof in the image, with what it is to demand."""
    command = ["docker", "run", "--rm", "--network", "none", "--entrypoint", "python3", image, PROOF, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)


def build_on(image: str, folder: Path, sabotage: str) -> subprocess.CompletedProcess[str]:
    """A build from the image that spoils something, then ends as the images of the suite end."""
    (folder / "Dockerfile").write_text(
        f"FROM {image}\nUSER root\nRUN {sabotage}\nUSER 1000:1000\nRUN python3 {PROOF} --backends gloo,mpi\n",
        encoding="utf-8",
    )
    command = ["docker", "build", "--no-cache", "--tag", "ddp-backend-suite:must-not-be", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)


def said(done: subprocess.CompletedProcess[str]) -> str:
    return done.stdout + done.stderr


def must_not_be_there() -> None:
    command = ["docker", "image", "inspect", "ddp-backend-suite:must-not-be"]
    assert subprocess.run(command, capture_output=True, timeout=60, check=False).returncode != 0


@pytest.mark.timeout(1200)
def test_a_build_whose_torch_has_no_mpi_backend_fails_and_says_so(image: str, tmp_path: Path) -> None:
    """As when no Open MPI was found while torch was built: torch imports, and only lacks the backend."""
    module = "$(python3 -c 'import torch.distributed.distributed_c10d as m; print(m.__file__)')"
    done = build_on(image, tmp_path, f"sed -i 's/import ProcessGroupMPI/import ProcessGroupNotThere/' {module}")
    assert done.returncode != 0
    assert "backend mpi is not in this build of torch" in said(done)
    assert "this image must not be used" in said(done)
    must_not_be_there()


@pytest.mark.timeout(1200)
def test_a_build_whose_mpi_library_is_missing_fails(image: str, tmp_path: Path) -> None:
    done = build_on(image, tmp_path, "find / -xdev -name 'libmpi.so*' -delete && ldconfig")
    assert done.returncode != 0
    assert "libmpi.so" in said(done)
    must_not_be_there()


@pytest.mark.timeout(1200)
def test_a_build_whose_mpirun_cannot_start_ranks_fails(image: str, tmp_path: Path) -> None:
    done = build_on(
        image, tmp_path, "printf '#!/bin/sh\\nexit 3\\n' >/usr/local/bin/mpirun && chmod 755 /usr/local/bin/mpirun"
    )
    assert done.returncode != 0
    assert "two mpi ranks could not add a tensor (exit 3)" in said(done)
    must_not_be_there()


@pytest.mark.timeout(1200)
def test_the_proof_demands_all_that_the_cuda_image_promises(image: str) -> None:
    """Every demand of Dockerfile.cuda, made of the cpu image, which meets only some: each unmet one is a line."""
    words = ["--backends", "nccl,gloo,mpi", "--torch", "2.0.1", "--cuda", "11.8", "--cuda-aware-mpi", "--blas", "mkl"]
    done = prove(image, *words)
    assert done.returncode == 1
    lines = [
        line.removeprefix("image check: ") for line in done.stderr.splitlines() if line.startswith("image check: ")
    ]
    assert any(line.startswith("torch calls itself 2.") and line.endswith("2.0.1 is demanded") for line in lines)
    assert "torch was built for CUDA None, 11.8 is demanded" in lines
    assert any(line.startswith("backend nccl is not in this build of torch") for line in lines)
    assert "ompi_info does not say mpi_built_with_cuda_support:value:true" in lines
    assert any("openblas" in line and line.endswith("mkl is demanded") for line in lines)
    assert not any("gloo" in line or "backend mpi" in line or "two mpi" in line for line in lines)


@pytest.mark.timeout(1200)
def test_the_shared_last_stage_works_in_the_image(image: str) -> None:
    """User, entrypoint and in-container sshd, which the cuda image takes from the same files."""
    script = (
        'set -e; test "$(id -u):$(id -g)" = 1000:1000; test "$HOME" = /var/lib/suite; test -w /var/lib/suite;'
        " command -v suite-entrypoint suite-sshd suite-mpi-ssh tini ip >/dev/null;"
        " ! ls /etc/ssh/ssh_host_* 2>/dev/null; status=0; suite-sshd -t 2>&1 || status=$?; echo sshd $status"
    )
    command = [
        "docker",
        "run",
        "--rm",
        "--network",
        "none",
        "--read-only",
        "--cap-drop",
        "ALL",
        image,
        "bash",
        "-c",
        script,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, said(done)
    assert "there is no /var/lib/suite/ssh/sshd_config" in done.stdout
    assert done.stdout.splitlines()[-1] == "sshd 2"
