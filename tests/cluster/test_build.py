"""Building images: the command line for a variant, the choice of a builder, and what is said when it fails."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

import suite
from suite.cluster.build import build, build_words, choose_builder, revision
from suite.cluster.variants import Variant, load_variant, variants
from suite.errors import ConfigurationError, DeployError, PreflightError, UsageError
from suite.paths import project_root

ROOT = project_root()
TINY = 'FROM scratch\nARG GREETING=none\nCOPY hello /\nLABEL greeting="${GREETING}"\n'


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project with one variant, which needs no base image."""
    folder = tmp_path / "project"
    (folder / "docker" / "variants").mkdir(parents=True)
    (folder / "docker" / "Dockerfile.tiny").write_text(TINY, encoding="utf-8")
    (folder / "hello").write_text("hello\n", encoding="utf-8")
    write_variant(folder, 'dockerfile = "docker/Dockerfile.tiny"\n[arguments]\nGREETING = "good day"\n')
    return folder


def write_variant(root: Path, text: str, name: str = "tiny-test") -> None:
    (root / "docker" / "variants" / f"{name}.toml").write_text("[image]\n" + text, encoding="utf-8")


class FakeDocker:
    """A program named docker that answers questions as told, and notes how it was called."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, *, version: str, buildx: bool) -> None:
        self.calls_file = folder / "calls"
        self.script = folder / "bin" / "docker"
        self.script.parent.mkdir()
        monkeypatch.setenv("PATH", f"{self.script.parent}:{os.environ['PATH']}")
        self.version, self.buildx = version, buildx
        self.building("")

    def building(self, what: str) -> None:
        """What it does when it is to build, in shell."""
        self.script.write_text(
            f"""#!/bin/sh
printf '%s|%s\\n' "${{DOCKER_BUILDKIT:-}}" "$*" >>{self.calls_file}
case "$*" in
version*) {self.version} ;;
"buildx version") exit {0 if self.buildx else 1} ;;
"context inspect"*) echo default ;;
"image inspect"*) echo sha256:inspected ;;
*) {what or ":"} ;;
esac
""",
            encoding="utf-8",
        )
        self.script.chmod(0o755)


ANSWERS = "echo 28.2.2 20.10.24"


def test_the_words_of_a_build_are_a_function_of_variant_arguments_and_commit() -> None:
    variant = Variant("cuda", "docker/Dockerfile.cuda", True, 60.0)
    words = build_words(variant, {"B": "two words", "A": ""}, "abc123+dirty", Path("/p"), Path("/t/id"))
    assert words == [
        *("--file", "/p/docker/Dockerfile.cuda"),
        *("--tag", "ddp-backend-suite:cuda"),
        *("--iidfile", "/t/id"),
        *("--label", "suite.commit=abc123+dirty"),
        *("--label", f"suite.version={suite.__version__}"),
        *("--build-arg", "A="),
        *("--build-arg", "B=two words"),
        "/p",
    ]


def test_the_projects_own_variants_can_be_read_and_fit_their_dockerfiles() -> None:
    assert variants(ROOT) == ("cpu", "cuda")
    cpu, cuda = load_variant(ROOT, "cpu"), load_variant(ROOT, "cuda")
    assert (cpu.dockerfile, cpu.buildkit, cpu.tag) == ("docker/Dockerfile.cpu", False, "ddp-backend-suite:cpu")
    assert (cuda.dockerfile, cuda.buildkit, cuda.tag) == ("docker/Dockerfile.cuda", True, "ddp-backend-suite:cuda")
    assert cpu.arguments["BASE"] == "debian:trixie-slim"
    assert cuda.deadline_seconds == 24 * 3600


def test_a_variant_of_ones_own_is_built_checked_and_deployed_by_its_name(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from suite import cluster_actions
    from suite.cluster.inventory import load

    write_variant(root, 'dockerfile = "docker/Dockerfile.tiny"\n', "a100")
    monkeypatch.setattr(cluster_actions, "project_root", lambda: root)
    monkeypatch.setattr(cluster_actions, "build_image", lambda variant, **_: f"built {variant}")  # needs an engine
    assert cluster_actions.build("a100") == 0
    example = load(ROOT / "hosts" / "example-rtx3090.toml")
    assert cluster_actions.image_tag(example, "a100") == "ddp-backend-suite:a100"
    assert cluster_actions.image_tag(example, "") == "ddp-backend-suite:cuda"
    with pytest.raises(UsageError, match=r"--variant h100: there is no docker/variants/h100\.toml"):
        cluster_actions.image_tag(example, "h100")


@pytest.mark.parametrize("name", ["rocm", "../cuda", "", "cuda.toml"])
def test_an_unknown_variant_is_a_usage_error_that_lists_the_known_ones(name: str) -> None:
    with pytest.raises(UsageError, match=r"there is no docker/variants/.*\.toml.*cpu, cuda"):
        load_variant(ROOT, name)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("dockerfile = 3\n", r"\[image\]: needs dockerfile"),
        ('dockerfile = "docker/Dockerfile.tiny"\nspeed = 1\n', r"\[image\]: needs dockerfile"),
        ('dockerfile = "docker/Dockerfile.gone"\n', "there is no docker/Dockerfile.gone"),
        ('dockerfile = "docker/Dockerfile.tiny"\ndeadline_seconds = "1h"\n', "no whole number of seconds"),
        ('dockerfile = "docker/Dockerfile.tiny"\n[arguments]\nGREETING = 3\n', "no text"),
        ("dockerfile =\n", "is no TOML"),
    ],
)
def test_a_variant_that_cannot_be_used_is_refused_with_its_place(root: Path, text: str, says: str) -> None:
    write_variant(root, text)
    with pytest.raises(ConfigurationError, match=says):
        load_variant(root, "tiny-test")


def test_an_argument_that_the_dockerfile_does_not_take_is_refused(root: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"takes no MAX_JOBZ\..*it takes GREETING"):
        build("tiny-test", root=root, progress=print, arguments={"MAX_JOBZ": "3"})


@pytest.mark.parametrize(
    ("version", "buildx", "needs", "builder"),
    [
        (ANSWERS, True, True, "docker buildx build --builder default --load --progress=plain"),
        ("echo 20.10.24 20.10.24", False, True, "DOCKER_BUILDKIT=1 docker build --progress=plain"),
        (ANSWERS, False, False, "DOCKER_BUILDKIT=0 docker build"),
    ],
)
def test_the_builder_is_the_best_that_this_docker_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, buildx: bool, needs: bool, builder: str
) -> None:
    FakeDocker(tmp_path, monkeypatch, version=version, buildx=buildx)
    words, environment = choose_builder(Variant("x", "d", needs, 1.0))
    assert " ".join([*(f"{name}={value}" for name, value in environment.items()), *words]) == builder


def test_a_new_docker_without_buildx_cannot_build_what_needs_buildkit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeDocker(tmp_path, monkeypatch, version=ANSWERS, buildx=False)
    with pytest.raises(PreflightError, match=r"Docker 28\.2\.2 has no plugin buildx.*install docker-buildx"):
        choose_builder(Variant("cuda", "docker/Dockerfile.cuda", True, 1.0))


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ("echo 'Cannot connect to the Docker daemon' >&2; exit 1", "Cannot connect.*start the Docker engine"),
        ("echo 'permission denied while trying' >&2; exit 1", "permission denied.*member of the group docker"),
    ],
)
def test_an_engine_that_does_not_answer_is_a_failed_pre_flight_with_its_own_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, says: str
) -> None:
    FakeDocker(tmp_path, monkeypatch, version=answer, buildx=True)
    with pytest.raises(PreflightError, match=says):
        choose_builder(Variant("cpu", "d", False, 1.0))


def test_without_a_docker_client_the_error_says_where_one_comes_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PreflightError, match="no docker client on PATH"):
        choose_builder(Variant("cpu", "d", False, 1.0))


def test_every_line_of_the_build_is_passed_on_as_it_comes_and_the_image_id_is_returned(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeDocker(tmp_path, monkeypatch, version=ANSWERS, buildx=True)
    fake.building(
        'echo "#1 one"; echo "#2 two" >&2; while [ $# -gt 0 ]; do'
        ' [ "$1" = --iidfile ] && printf sha256:built >"$2"; shift; done'
    )
    lines: list[str] = []
    assert build("tiny-test", root=root, progress=lines.append) == "sha256:built"
    assert lines[0].startswith("docker buildx build --builder default --load --progress=plain --file /")
    assert lines[0].endswith(f" {root}")
    assert "--build-arg 'GREETING=good day'" in lines[0]
    assert lines[1:] == ["#1 one", "#2 two"]


@pytest.mark.parametrize(
    ("output", "remedy"),
    [
        ("image check: backend mpi is not in this build of torch 2.0.1", "lacks what its variant demands"),
        ("ERROR: failed to copy: write: no space left on device", "docker builder prune"),
        ("build-lib.sh: x has the SHA-256 1, 2 is demanded", "never change a checksum only to make it fit"),
        ("ERROR: pull access denied for nvidia/cuda", "base image is not here"),
        ("make: *** [all] Error 2", "correct what its last lines say"),
    ],
)
def test_a_failed_build_shows_its_last_lines_and_a_remedy(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str, remedy: str
) -> None:
    fake = FakeDocker(tmp_path, monkeypatch, version=ANSWERS, buildx=True)
    fake.building(f"for i in $(seq 40); do echo line $i; done; echo '{output}'; exit 7")
    with pytest.raises(DeployError) as caught:
        build("tiny-test", root=root, progress=lambda line: None)
    assert "The build of ddp-backend-suite:tiny-test failed (exit 7)" in caught.value.message
    assert output in caught.value.message
    assert "line 40\n" in caught.value.message
    assert "line 3\n" not in caught.value.message
    assert remedy in caught.value.fix


def test_a_build_that_never_ends_is_ended_at_its_deadline_with_all_that_it_started(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeDocker(tmp_path, monkeypatch, version=ANSWERS, buildx=True)
    fake.building(f"echo '#9 thinking'; sleep 300 & echo $! >{tmp_path}/child; wait")
    started = time.monotonic()
    with pytest.raises(DeployError, match=r"did not end within 2 s; its last lines:\n#9 thinking"):
        build("tiny-test", root=root, progress=lambda line: None, deadline_seconds=2.0)
    assert time.monotonic() - started < 15
    child = int((tmp_path / "child").read_text(encoding="ascii"))
    state = Path(f"/proc/{child}/stat")
    assert not state.exists() or state.read_text(encoding="ascii").split()[2] == "Z"


@pytest.mark.containers
def test_a_real_engine_builds_the_image_with_its_arguments_and_labels(root: Path) -> None:
    lines: list[str] = []
    try:
        image = build("tiny-test", root=root, progress=lines.append, arguments={"GREETING": "good night"})
        words = ["docker", "image", "inspect", "--format", "{{json .}}", "ddp-backend-suite:tiny-test"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=True)
        found = json.loads(done.stdout)
        assert found["Id"] == image
        assert found["Config"]["Labels"] == {
            "greeting": "good night",
            "suite.commit": revision(),
            "suite.version": suite.__version__,
        }
        assert len(lines) > 3
    finally:
        subprocess.run(
            ["docker", "rmi", "-f", "ddp-backend-suite:tiny-test"], capture_output=True, timeout=60, check=False
        )


@pytest.mark.containers
def test_a_real_build_that_fails_says_which_step(root: Path) -> None:
    (root / "docker" / "Dockerfile.tiny").write_text(TINY.replace("COPY hello", "COPY farewell"), encoding="utf-8")
    with pytest.raises(DeployError, match="farewell"):
        build("tiny-test", root=root, progress=lambda line: None)
