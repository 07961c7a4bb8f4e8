"""Build an image of the suite on this machine, as its variant's file says: ``docker/variants/<variant>.toml``.

The build itself is `docker build`: its command line is shown first, so that anybody can repeat it by hand.
"""

from __future__ import annotations

import contextlib
import os
import queue
import re
import shlex
import signal
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO

import suite
from suite.cluster.variants import Variant, load_variant, refuse_unknown
from suite.errors import DeployError, PreflightError
from suite.numerals import version_numbers
from suite.provenance import commit

Progress = Callable[[str], None]
COMMIT_LABEL, VERSION_LABEL = "suite.commit", "suite.version"
TAIL_LINES = 25
QUESTION_SECONDS = 30.0
END_SECONDS = 10.0
# Since this version `docker build` needs the plugin buildx to use BuildKit; the ones before have it built in.
BUILDX_SINCE = 23


def build(
    variant: str,
    *,
    root: Path,
    progress: Progress,
    arguments: Mapping[str, str] | None = None,
    deadline_seconds: float | None = None,
) -> str:
    """Build a variant's image and tag it ``ddp-backend-suite:<variant>``.

    Args:
        variant: the name of a file in ``docker/variants/``, without ``.toml``.
        root: the project's folder, also the build's context.
        progress: gets the command, then every line of the build as it comes.
        arguments: build arguments instead of, or besides, the file's.
        deadline_seconds: longest time for all of it, instead of the file's.

    Returns:
        The image's ID.

    Raises:
        UsageError: there is no such variant. ConfigurationError: its file cannot be used.
        PreflightError: there is no Docker client, engine or builder that can do it.
        DeployError: the build failed or took too long; with its last lines.
    """
    chosen = load_variant(root, variant)
    given = {**chosen.arguments, **(arguments or {})}
    refuse_unknown(root, chosen, given)
    builder, environment = choose_builder(chosen)
    with tempfile.TemporaryDirectory(prefix="ddp-suite-build-") as folder:
        id_file = Path(folder) / "image-id"
        words = [*builder, *build_words(chosen, given, revision(), root, id_file)]
        progress(shlex.join([*(f"{name}={value}" for name, value in environment.items()), *words]))
        limit = deadline_seconds if deadline_seconds is not None else chosen.deadline_seconds
        code, tail = _run(words, {**os.environ, **environment}, limit, progress)
        if code != 0:
            raise _failure(chosen, code, tail)
        image = id_file.read_text(encoding="ascii").strip() if id_file.exists() else ""
    return image or _asked(["docker", "image", "inspect", "--format", "{{.Id}}", chosen.tag])


def revision() -> str:
    """The commit for the image's label, marked when the tree differs from it."""
    head, dirty = commit()
    return f"{head}+dirty" if dirty else head


def build_words(
    variant: Variant, arguments: Mapping[str, str], suite_commit: str, root: Path, id_file: Path
) -> list[str]:
    """The words after ``docker build``: a pure function. An argument with an empty value is passed on as such."""
    words = ["--file", str(root / variant.dockerfile), "--tag", variant.tag, "--iidfile", str(id_file)]
    words += ["--label", f"{COMMIT_LABEL}={suite_commit}", "--label", f"{VERSION_LABEL}={suite.__version__}"]
    for name, value in sorted(arguments.items()):
        words += ["--build-arg", f"{name}={value}"]
    return [*words, str(root)]


def choose_builder(variant: Variant) -> tuple[list[str], dict[str, str]]:
    """The command that builds here, and the variables it needs.

    buildx where it is installed, with the engine's own builder (another would not see local base images); else
    the BuildKit of the client up to version 22; else the classic builder, for a variant that it can build.

    Raises:
        PreflightError: there is no client, no engine that answers, or no builder that can do it.
    """
    version = _asked(["docker", "version", "--format", "{{.Client.Version}} {{.Server.Version}}"])
    major = next(iter(version_numbers(version)), 0)
    if _answers(["docker", "buildx", "version"]):
        builder = _asked(["docker", "context", "inspect", "--format", "{{.Name}}"])
        return ["docker", "buildx", "build", "--builder", builder, "--load", "--progress=plain"], {}
    if major < BUILDX_SINCE:
        return ["docker", "build", "--progress=plain"], {"DOCKER_BUILDKIT": "1"}
    if variant.buildkit:
        raise PreflightError(
            f"Docker {version.split()[0]} has no plugin buildx, and the image {variant.tag} needs BuildKit.",
            fix="install docker-buildx (Debian, Ubuntu) or docker-buildx-plugin (Docker's own packages).",
        )
    return ["docker", "build"], {"DOCKER_BUILDKIT": "0"}


def _answers(words: list[str]) -> bool:
    try:
        done = subprocess.run(words, capture_output=True, timeout=QUESTION_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _asked(words: list[str]) -> str:
    """What a short command of the docker client says. Raises PreflightError."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=QUESTION_SECONDS, check=False)
    except FileNotFoundError:
        raise PreflightError(
            "There is no docker client on PATH.", fix="install Docker; on Debian, docker/engine-debian.sh does."
        ) from None
    except subprocess.TimeoutExpired:
        raise PreflightError(
            f"`{shlex.join(words)}` did not answer within {QUESTION_SECONDS:g} s.", fix="restart the Docker engine."
        ) from None
    if done.returncode != 0:
        said = " ".join(done.stderr.split())[-300:]
        denied = "permission denied" in said.lower()
        raise PreflightError(
            f"The Docker engine does not answer: {said or 'no reason given'}",
            fix="run this as a member of the group docker." if denied else "start the Docker engine.",
        )
    return done.stdout.strip()


def _run(words: list[str], environment: dict[str, str], limit: float, progress: Progress) -> tuple[int, list[str]]:
    """Run a program, pass on its lines, end it at the deadline; its exit code and last lines."""
    tail: deque[str] = deque(maxlen=TAIL_LINES)
    deadline = time.monotonic() + limit
    with _started(words, environment) as process:
        assert process.stdout is not None
        lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=_pump, args=(process.stdout, lines), daemon=True, name="build").start()
        while True:
            try:
                line = lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise DeployError(
                    f"The build did not end within {limit:g} s; its last lines:\n" + "\n".join(tail),
                    fix="what was built is kept: run it again, with a longer deadline in the variant's file.",
                ) from None
            if line is None:
                return process.wait(QUESTION_SECONDS), list(tail)
            tail.append(line)
            progress(line)


@contextlib.contextmanager
def _started(words: list[str], environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A program in a session of its own; whatever of it still runs at the end is ended, Ctrl-C included."""
    process = subprocess.Popen(
        words,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        yield process
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(END_SECONDS)


def _pump(stream: IO[str], lines: queue.Queue[str | None]) -> None:
    for line in stream:
        lines.put(line.rstrip("\n"))
    lines.put(None)


# What the build's last lines say, and what to do about it; the first that fits.
_REMEDIES = (
    (r"image check: ", "the image lacks what its variant demands: the lines above say what."),
    (
        r"no space left on device",
        "free disk space: `docker system df` shows what takes it, `docker builder prune` frees.",
    ),
    (
        r"is the SHA-256|has the SHA-256|is the commit",
        "compare the source with docker/variants: never change a checksum only to make it fit.",
    ),
    (
        r"pull access denied|failed to resolve source metadata|manifest unknown|failed to do request|no such host",
        "the base image is not here and could not be pulled: docker/base-image.sh makes that of the cpu image; for"
        " another, `docker load` it and name it in a copy of the variant's file.",
    ),
)


def _failure(variant: Variant, code: int, tail: list[str]) -> DeployError:
    text = "\n".join(tail)
    fix = next(
        (remedy for pattern, remedy in _REMEDIES if re.search(pattern, text)), "correct what its last lines say."
    )
    return DeployError(f"The build of {variant.tag} failed (exit {code}); its last lines:\n{text}", fix=fix)
