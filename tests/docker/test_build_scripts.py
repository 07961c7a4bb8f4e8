"""The scripts that build Open MPI, torch and torchvision, run for real on small stand-ins for what they build.

The stand-ins are a source tree whose configure and make are a few lines of shell, and a ``python`` that notes how it
was called; git, tar, curl and sha256sum are the real ones.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from suite.paths import project_root

DOCKER = project_root() / "docker"
SECONDS = 60


def run(
    script: str, *words: str | Path, path: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a script of docker/ with little more than a PATH."""
    paths = f"{path}:{os.environ['PATH']}" if path else os.environ["PATH"]
    return subprocess.run(
        [str(DOCKER / script), *map(str, words)],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        env={"PATH": paths, "HOME": "/nonexistent", "TMPDIR": os.environ.get("TMPDIR", "/tmp"), **environment},
    )


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + text, encoding="utf-8")
    path.chmod(0o755)


# Open MPI


def open_mpi_source(folder: Path, *, version: str = "4.1.8", cuda: str = "true") -> Path:
    """A source tree: its configure notes its arguments, and make installs an ompi_info that answers as the real one."""
    source = folder / f"openmpi-{version}"
    makefile = (
        "all:\n\t@echo built\n"
        "install:\n\tmkdir -p $(PREFIX)/bin\n"
        "\tcp $(SOURCE)/ompi_info $(PREFIX)/bin/ompi_info\n"
        "\tcp configured $(PREFIX)/configured\n"
    )
    program(source / "ompi_info", f"echo ompi:version:full:{version}\necho mca:mpi:base:param:x_{CUDA_LINE}{cuda}\n")
    program(
        source / "configure",
        'printf "%s\\n" "$@" >configured\n'
        'for word in "$@"; do case $word in --prefix=*) prefix=${word#--prefix=} ;; esac; done\n'
        'here=$(dirname "$0")\n'
        'sed -e "s|[$](PREFIX)|$prefix|g" -e "s|[$](SOURCE)|$here|g" "$here/Makefile.in" >Makefile\n',
    )
    (source / "Makefile.in").write_text(makefile, encoding="utf-8")
    return source


CUDA_LINE = "mpi_built_with_cuda_support:value:"


@pytest.fixture
def cuda(tmp_path: Path) -> Path:
    """A CUDA toolkit, as far as Open MPI's build is concerned."""
    toolkit = tmp_path / "cuda"
    (toolkit / "include").mkdir(parents=True)
    (toolkit / "include" / "cuda.h").write_text("", encoding="utf-8")
    program(toolkit / "bin" / "nvcc", "exit 0\n")
    return toolkit


def test_open_mpi_is_configured_with_cuda_without_ucx_and_with_nothing_of_the_machine(
    tmp_path: Path, cuda: Path
) -> None:
    source, prefix = open_mpi_source(tmp_path), tmp_path / "prefix"
    done = run("build-openmpi.sh", "--version", "4.1.8", "--source", source, "--prefix", prefix, "--cuda", cuda)
    assert done.returncode == 0, done.stderr
    assert (prefix / "configured").read_text(encoding="utf-8").split() == [
        f"--prefix={prefix}",
        f"--with-cuda={cuda}",
        "--without-ucx",
        "--without-verbs",
        "--without-ofi",
        "--without-psm",
        "--without-psm2",
        "--with-hwloc=internal",
        "--with-libevent=internal",
        "--with-pmix=internal",
        "--enable-orterun-prefix-by-default",
        "--enable-mca-no-build=btl-uct",
        "--disable-mpi-fortran",
        "--disable-oshmem",
        "--disable-io-romio",
        "--disable-man-pages",
        "--enable-shared",
        "--disable-static",
    ]
    assert f"Open MPI 4.1.8 is in {prefix}" in done.stderr
    assert f"{CUDA_LINE}true" in done.stderr


def test_an_open_mpi_without_cuda_support_is_refused(tmp_path: Path, cuda: Path) -> None:
    source = open_mpi_source(tmp_path, cuda="false")
    done = run("build-openmpi.sh", "--version", "4.1.8", "--source", source, "--prefix", tmp_path / "p", "--cuda", cuda)
    assert done.returncode == 2
    assert "was built without CUDA support" in done.stderr


def test_another_version_than_the_demanded_one_is_refused(tmp_path: Path, cuda: Path) -> None:
    source = open_mpi_source(tmp_path, version="4.1.4")
    done = run("build-openmpi.sh", "--version", "4.1.8", "--source", source, "--prefix", tmp_path / "p", "--cuda", cuda)
    assert done.returncode == 2
    assert "is Open MPI 4.1.4, 4.1.8 is demanded" in done.stderr


def test_without_cuda_headers_nothing_is_configured(tmp_path: Path) -> None:
    done = run(
        "build-openmpi.sh", "--version", "4.1.8", "--source", open_mpi_source(tmp_path), "--cuda", tmp_path / "none"
    )
    assert done.returncode == 2
    assert "no " + str(tmp_path / "none/include/cuda.h") in done.stderr


def tarball(tmp_path: Path) -> tuple[Path, str]:
    source = open_mpi_source(tmp_path / "src")
    path = tmp_path / "openmpi-4.1.8.tar.bz2"
    with tarfile.open(path, "w:bz2") as archive:
        archive.add(source, arcname=source.name)
    return path, hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_release_tarball_is_fetched_verified_and_built(tmp_path: Path, cuda: Path) -> None:
    path, digest = tarball(tmp_path)
    words: list[str | Path] = ["--version", "4.1.8", "--prefix", tmp_path / "p", "--cuda", cuda, "--url", path.as_uri()]
    done = run("build-openmpi.sh", *words, "--sha256", digest)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "p" / "bin" / "ompi_info").is_file()


@pytest.mark.parametrize("how", ["--url", "--tarball"])
def test_a_tarball_with_another_checksum_is_never_unpacked(tmp_path: Path, cuda: Path, how: str) -> None:
    path, digest = tarball(tmp_path)
    wrong = digest[::-1]
    words: list[str | Path] = ["--version", "4.1.8", "--prefix", tmp_path / "p", "--cuda", cuda]
    done = run("build-openmpi.sh", *words, how, path.as_uri() if how == "--url" else path, "--sha256", wrong)
    assert done.returncode == 2
    assert f"has the SHA-256 {digest}, {wrong} is demanded" in done.stderr
    assert not (tmp_path / "p").exists()


def test_a_tarball_without_a_checksum_and_a_build_without_a_source_are_refused(tmp_path: Path, cuda: Path) -> None:
    path, _ = tarball(tmp_path)
    words = ["--version", "4.1.8", "--cuda", str(cuda)]
    assert "nothing is used unverified" in run("build-openmpi.sh", *words, "--tarball", path, "--sha256", "").stderr
    assert "docker/variants/cuda.toml has the upstream address" in run("build-openmpi.sh", *words, "--url", "").stderr


def test_the_first_error_of_a_failing_make_is_shown(tmp_path: Path, cuda: Path) -> None:
    source = open_mpi_source(tmp_path)
    (source / "Makefile.in").write_text("all:\n\t@echo 'x.c:1: error: no such thing'; exit 1\n", encoding="utf-8")
    done = run("build-openmpi.sh", "--version", "4.1.8", "--source", source, "--prefix", tmp_path / "p", "--cuda", cuda)
    assert done.returncode == 2
    assert "x.c:1: error: no such thing" in done.stderr
    assert "make failed" in done.stderr


# torch and torchvision

RECORD = """
printf '%s\\n' "$*" >>"$CALLS"
env >"$CALLS.env"
case "$*" in
*--cmake-only) mkdir -p build && printf '%s\\n' {cache} >build/CMakeCache.txt ;;
*bdist_wheel) mkdir -p dist && : >dist/{wheel} ;;
esac
"""
PARTS = ("USE_CUDA", "USE_CUDNN", "USE_DISTRIBUTED", "USE_NCCL", "USE_GLOO", "USE_MPI")


class Bench:
    """A folder with stand-ins: an Open MPI, a CUDA toolkit, and a Python that notes its calls."""

    def __init__(self, folder: Path, wheel: str, off: str | None = None) -> None:
        self.folder, self.out, self.programs = folder, folder / "wheels", folder / "bin"
        self.calls_file = folder / "calls"
        (folder / "tmp").mkdir()
        cache = " ".join(f"{part}:BOOL={'OFF' if part == off else '1'}" for part in PARTS)
        program(self.programs / "python", RECORD.format(cache=cache, wheel=wheel))
        for name in ("ninja", "ccache"):
            program(self.programs / name, "exit 0\n")
        program(folder / "mpi" / "bin" / "mpicc", "exit 0\n")

    def repository(self, tag: str) -> tuple[str, str]:
        """A git repository with one commit and that tag: its address, its commit."""
        path = self.folder / "upstream"
        path.mkdir()
        (path / "setup.py").write_text("", encoding="utf-8")
        git = ["git", "-C", str(path), "-c", "user.name=x", "-c", "user.email=x@example.org"]
        for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "x"], ["tag", tag]):
            subprocess.run([*git, *words], check=True, timeout=SECONDS, capture_output=True)
        head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, timeout=SECONDS, capture_output=True, text=True)
        return path.as_uri(), head.stdout.strip()

    def run(self, script: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
        common: list[str | Path] = [
            "--out",
            self.out,
            "--python",
            self.programs / "python",
            "--cuda",
            self.folder / "cuda",
        ]
        return run(
            script, *common, *words, path=self.programs, CALLS=str(self.calls_file), TMPDIR=str(self.folder / "tmp")
        )

    @property
    def calls(self) -> list[str]:
        return self.calls_file.read_text(encoding="utf-8").splitlines() if self.calls_file.exists() else []

    @property
    def environment(self) -> dict[str, str]:
        lines = Path(f"{self.calls_file}.env").read_text(encoding="utf-8").splitlines()
        return dict(line.partition("=")[::2] for line in lines if "=" in line)


TORCH_WHEEL = "torch-2.0.1-cp310-cp310-linux_x86_64.whl"


def torch_words(bench: Bench, url: str, head: str) -> list[str | Path]:
    words: list[str | Path] = ["--version", "2.0.1", "--url", url, "--commit", head, "--architectures", "8.6"]
    return [*words, "--mpi", bench.folder / "mpi"]


def test_torch_is_built_with_the_three_backends_in_one_build_and_its_release_version(
    tmp_path: Path, cuda: Path
) -> None:
    bench = Bench(tmp_path, TORCH_WHEEL)
    done = bench.run("build-pytorch.sh", *torch_words(bench, *bench.repository("v2.0.1")), "--jobs", "3")
    assert done.returncode == 0, done.stderr
    assert bench.calls == ["setup.py build --cmake-only", "setup.py bdist_wheel"]
    expected = {
        "USE_DISTRIBUTED": "1",
        "USE_MPI": "1",
        "USE_GLOO": "1",
        "USE_NCCL": "1",
        "USE_SYSTEM_NCCL": "0",
        "USE_CUDA": "1",
        "USE_CUDNN": "1",
        "USE_KINETO": "0",
        "BLAS": "OpenBLAS",
        "BUILD_TEST": "0",
        "TORCH_CUDA_ARCH_LIST": "8.6",
        "PYTORCH_BUILD_VERSION": "2.0.1",
        "PYTORCH_BUILD_NUMBER": "1",
        "MAX_JOBS": "3",
        "CUDA_HOME": str(cuda),
        "CMAKE_PREFIX_PATH": str(tmp_path / "mpi"),
        "CMAKE_C_COMPILER_LAUNCHER": "ccache",
        "CMAKE_CXX_COMPILER_LAUNCHER": "ccache",
        "CMAKE_CUDA_COMPILER_LAUNCHER": "ccache",
    }
    prefixes = ("USE_", "BUILD_", "CMAKE_", "TORCH_", "PYTORCH_")
    seen = {k: v for k, v in bench.environment.items() if k.startswith(prefixes) or k in expected}
    assert json.dumps(seen, sort_keys=True, indent=1) == json.dumps(expected, sort_keys=True, indent=1)
    assert bench.environment["PATH"].startswith(f"{tmp_path}/mpi/bin:{cuda}/bin:")
    assert [path.name for path in bench.out.iterdir()] == [TORCH_WHEEL]


def test_every_build_of_torch_is_in_one_folder_so_that_the_compilers_cache_finds_it(tmp_path: Path, cuda: Path) -> None:
    bench = Bench(tmp_path, TORCH_WHEEL)
    words = torch_words(bench, *bench.repository("v2.0.1"))
    folders = []
    for left in ("of a build that was killed", ""):
        folder = tmp_path / "tmp" / "build-pytorch" / "pytorch"
        if left:
            folder.mkdir(parents=True)
            (folder / "left").write_text(left, encoding="utf-8")
        done = bench.run("build-pytorch.sh", *words)
        assert done.returncode == 0, done.stderr
        assert not folder.exists()
        folders.append(bench.environment["PWD"])
        (bench.out / TORCH_WHEEL).unlink()
    assert folders == [str(tmp_path / "tmp" / "build-pytorch" / "pytorch")] * 2


def test_another_folder_to_build_in_keeps_what_else_is_in_it(tmp_path: Path, cuda: Path) -> None:
    bench = Bench(tmp_path, TORCH_WHEEL)
    work = tmp_path / "work"
    work.mkdir()
    (work / "mine").write_text("", encoding="utf-8")
    done = bench.run("build-pytorch.sh", *torch_words(bench, *bench.repository("v2.0.1")), "--work", work)
    assert done.returncode == 0, done.stderr
    assert bench.environment["PWD"] == str(work / "pytorch")
    assert [path.name for path in work.iterdir()] == ["mine"]


@pytest.mark.parametrize("part", PARTS)
def test_a_part_that_cmake_switches_off_ends_the_build_before_anything_is_compiled(
    tmp_path: Path, cuda: Path, part: str
) -> None:
    bench = Bench(tmp_path, TORCH_WHEEL, off=part)
    done = bench.run("build-pytorch.sh", *torch_words(bench, *bench.repository("v2.0.1")))
    assert done.returncode == 2
    assert f"CMake has switched {part} off" in done.stderr
    assert bench.calls == ["setup.py build --cmake-only"]


def test_without_open_mpi_torch_is_not_even_configured(tmp_path: Path, cuda: Path) -> None:
    bench = Bench(tmp_path, TORCH_WHEEL)
    words = torch_words(bench, *bench.repository("v2.0.1"))[:-1]
    done = bench.run("build-pytorch.sh", *words, tmp_path / "nowhere")
    assert done.returncode == 2
    assert "torch would be built without mpi" in done.stderr
    assert bench.calls == []


def test_a_tag_that_names_another_commit_is_refused(tmp_path: Path, cuda: Path) -> None:
    bench = Bench(tmp_path, TORCH_WHEEL)
    url, head = bench.repository("v2.0.1")
    other = "0123456789" * 4
    done = bench.run("build-pytorch.sh", *torch_words(bench, url, other))
    assert done.returncode == 2
    assert f"is the commit {head}, {other} is demanded" in done.stderr
    assert bench.calls == []


def test_an_existing_wheel_takes_the_place_of_the_build(tmp_path: Path, cuda: Path) -> None:
    bench = Bench(tmp_path, TORCH_WHEEL)
    wheel = tmp_path / TORCH_WHEEL
    wheel.write_bytes(b"wheel")
    digest = hashlib.sha256(b"wheel").hexdigest()
    local = bench.run("build-pytorch.sh", "--version", "2.0.1", "--wheel-file", wheel)
    assert local.returncode == 0, local.stderr
    (bench.out / TORCH_WHEEL).unlink()
    fetched = bench.run(
        "build-pytorch.sh", "--version", "2.0.1", "--wheel-url", wheel.as_uri(), "--wheel-sha256", digest
    )
    assert fetched.returncode == 0, fetched.stderr
    assert (bench.out / TORCH_WHEEL).read_bytes() == b"wheel"
    assert bench.calls == []


def test_a_fetched_wheel_needs_its_checksum_and_must_have_it(tmp_path: Path, cuda: Path) -> None:
    bench = Bench(tmp_path, TORCH_WHEEL)
    wheel = tmp_path / TORCH_WHEEL
    wheel.write_bytes(b"wheel")
    words = ["--version", "2.0.1", "--wheel-url", wheel.as_uri()]
    assert "nothing is used unverified" in bench.run("build-pytorch.sh", *words).stderr
    done = bench.run("build-pytorch.sh", *words, "--wheel-sha256", "0" * 64)
    assert done.returncode == 2
    assert "is demanded" in done.stderr


def test_torchvision_is_built_for_the_same_architectures_without_image_and_video_libraries(
    tmp_path: Path, cuda: Path
) -> None:
    bench = Bench(tmp_path, "torchvision-0.15.2-cp310-cp310-linux_x86_64.whl")
    url, head = bench.repository("v0.15.2")
    words = ["--version", "0.15.2", "--url", url, "--commit", head, "--architectures", "8.6", "--jobs", "2"]
    done = bench.run("build-torchvision.sh", *words)
    assert done.returncode == 0, done.stderr
    assert bench.calls == ["-c import torch", "setup.py bdist_wheel"]
    seen = {k: v for k, v in bench.environment.items() if k.startswith(("TORCH", "FORCE_", "BUILD_", "MAX_"))}
    assert seen == {
        "FORCE_CUDA": "1",
        "BUILD_VERSION": "0.15.2",
        "TORCH_CUDA_ARCH_LIST": "8.6",
        "MAX_JOBS": "2",
        "TORCHVISION_USE_PNG": "0",
        "TORCHVISION_USE_JPEG": "0",
        "TORCHVISION_USE_NVJPEG": "0",
        "TORCHVISION_USE_FFMPEG": "0",
        "TORCHVISION_USE_VIDEO_CODEC": "0",
    }
    assert [path.name for path in bench.out.iterdir()] == ["torchvision-0.15.2-cp310-cp310-linux_x86_64.whl"]


@pytest.mark.parametrize("script", ["build-openmpi.sh", "build-pytorch.sh", "build-torchvision.sh"])
def test_help_and_wrong_words_are_answered(script: str) -> None:
    help_text = run(script, "--help")
    assert help_text.returncode == 0
    assert help_text.stdout.startswith(f"usage: {script}")
    wrong = run(script, "--no-such-option")
    assert wrong.returncode == 2
    assert "unknown argument '--no-such-option'" in wrong.stderr
    assert "is missing" in run(script).stderr


def test_parallel_compilers_are_limited_by_cores_and_memory() -> None:
    def jobs(wanted: str, gib: int) -> subprocess.CompletedProcess[str]:
        command = f'. {DOCKER}/build-lib.sh; jobs_for "$1" "$2"'
        return subprocess.run(
            ["bash", "-c", command, "x", wanted, str(gib)], capture_output=True, text=True, timeout=SECONDS, check=False
        )

    assert jobs("7", 4).stdout == "7"
    assert jobs("", 1_000_000).stdout == "1"
    assert 1 <= int(jobs("", 1).stdout) <= (os.cpu_count() or 1)
    assert jobs("many", 4).returncode == 2
