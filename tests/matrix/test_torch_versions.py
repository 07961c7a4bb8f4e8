"""The worker's own tests on every torch that the suite promises: 2.0.1, the image's, and the newest.

Each version has a virtual environment of its own (several GB), so this runs only where it is asked for:
``SUITE_TORCH_MATRIX=1``, as continuous integration does.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
IMAGE = "ddp-backend-suite:cpu"
TEST_IMAGE = "ddp-backend-suite:worker-tests"
WANTED = os.environ.get("SUITE_TORCH_MATRIX") == "1"
INSTALL_SECONDS = 1500
TEST_SECONDS = 900

pytestmark = [
    pytest.mark.timeout(INSTALL_SECONDS + TEST_SECONDS + 60),
    pytest.mark.skipif(not WANTED, reason="NOT RUN: installs several GB of torch; set SUITE_TORCH_MATRIX=1"),
]


def interpreter(newest: tuple[int, int]) -> str:
    """A Python not newer than that: old torches have no builds for newer ones."""
    if sys.version_info[:2] <= newest:
        return sys.executable
    for minor in range(newest[1], 9, -1):
        found = shutil.which(f"python3.{minor}")
        if found and subprocess.run([found, "-c", ""], check=False, timeout=30).returncode == 0:
            return found
    pytest.fail(f"no Python from 3.10 to 3.{newest[1]} here: torch 2.0.1 has no build for a newer one")


def environment(name: str, python: str, *words: str) -> Path:
    """The interpreter of a virtual environment with what pip installs for those words; made once, and again when they
    or a lock that they name change."""
    folder = ROOT / f".venv-{name}"
    stamp = folder / ".packages"
    locks = [(ROOT / word).read_text() for word in words if word.endswith(".txt")]
    wanted = "\n".join((python, *words, *locks))
    if not stamp.is_file() or stamp.read_text() != wanted:
        subprocess.run([python, "-m", "venv", "--clear", str(folder)], check=True, timeout=120)
        pip = [str(folder / "bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *words], cwd=ROOT, check=True, timeout=INSTALL_SECONDS)
        stamp.write_text(wanted)
    return folder / "bin/python"


def passed(done: subprocess.CompletedProcess[str]) -> int:
    """How many tests passed; the whole output when one did not, or none ran."""
    output = done.stdout + done.stderr
    match = re.search(r"(\d+) passed", output)
    assert done.returncode == 0, output[-8000:]
    assert match, output[-8000:]
    return int(match.group(1))


def run_worker_tests(python: Path) -> int:
    words = [str(python), "-m", "pytest", "tests/worker", "-p", "no:cacheprovider"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=TEST_SECONDS, check=False)
    return passed(done)


def version(python: Path) -> str:
    done = subprocess.run(
        [python, "-c", "import torch; print(torch.__version__)"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout.strip()


def test_the_workers_tests_pass_on_torch_2_0_1() -> None:
    python = environment("torch201", interpreter((3, 11)), "--require-hashes", "-r", "requirements/torch-2.0.1.txt")
    assert version(python).startswith("2.0.1")
    assert run_worker_tests(python) > 20


def test_the_workers_tests_pass_on_the_newest_torch_that_pip_gives() -> None:
    # The only packages of continuous integration without a hash: which one is the newest is what is asked.
    python = environment("torch-newest", sys.executable, "pytest>=8,<10", "pytest-timeout", "torch", "numpy")
    assert tuple(int(part) for part in version(python).split(".")[:2]) >= (2, 9)
    assert run_worker_tests(python) > 20


@pytest.mark.containers
def test_the_workers_tests_pass_in_the_image_with_gloo_and_mpi() -> None:
    build = ["docker", "build", "--quiet"]
    for tag, dockerfile in ((IMAGE, "docker/Dockerfile.cpu"), (TEST_IMAGE, "tests/matrix/Dockerfile")):
        subprocess.run([*build, "-t", tag, "-f", dockerfile, "."], cwd=ROOT, check=True, timeout=INSTALL_SECONDS)
    mounts = [f"--volume={ROOT}/{folder}:/opt/suite/{folder}:ro" for folder in ("tests", "benchmarks")]
    tests = ["tests/worker", "tests/benchmarks/test_fidelity.py"]
    pytest_words = ["python3", "-m", "pytest", *tests, "-p", "no:cacheprovider"]
    done = subprocess.run(
        ["docker", "run", "--rm", "--shm-size=1g", *mounts, TEST_IMAGE, *pytest_words],
        capture_output=True,
        text=True,
        timeout=TEST_SECONDS,
        check=False,
    )
    assert passed(done) > 30, "the image has mpi too, so more of the tests run there"
