"""The only module that names files of a run.

A run's folder holds what DESIGN.md lists. Raw files are written to a temporary name in the same folder and
then renamed, and an existing one is never replaced; derived files (summary, report, plots) and the ledger
``manifest.json`` are replaced whole, by the same rename.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from suite.errors import UsageError

# What may name a run, a launch, a host or an arm: it becomes a file name, so no slash and no leading dot.
SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")
_RANK_FILE = re.compile(r"rank-([0-9]{1,6})\.(json|log)")
_HOST_LOG = re.compile(r"launcher-([A-Za-z0-9][A-Za-z0-9._+-]{0,99})\.log")


def is_safe_name(name: str) -> bool:
    """Whether ``name`` may become a file's or folder's name."""
    return SAFE_NAME.fullmatch(name) is not None


@dataclass(frozen=True)
class RunPaths:
    """The files of one run below ``results/runs/<run-id>/``."""

    root: Path

    @property
    def run(self) -> str:
        return self.root.name

    @property
    def plan(self) -> Path:
        return self.root / "plan.json"

    @property
    def manifest(self) -> Path:
        return self.root / "manifest.json"

    @property
    def summary(self) -> Path:
        return self.root / "summary.json"

    @property
    def report_markdown(self) -> Path:
        return self.root / "report.md"

    @property
    def report_html(self) -> Path:
        return self.root / "report.html"

    @property
    def tables_csv(self) -> Path:
        return self.root / "tables.csv"

    @property
    def plots(self) -> Path:
        return self.root / "plots"

    @property
    def lock(self) -> Path:
        return self.root / ".lock"

    @property
    def launches(self) -> Path:
        return self.root / "launches"

    def launch(self, launch: str) -> Path:
        """The folder of one launch."""
        if not is_safe_name(launch):
            raise UsageError(f"{launch!r} cannot name a launch's folder.")
        return self.launches / launch

    def rank(self, launch: str, rank: int) -> Path:
        """The record of one rank."""
        return self.launch(launch) / rank_file(rank)

    def rank_log(self, launch: str, rank: int) -> Path:
        """What one rank printed."""
        return self.launch(launch) / rank_log_file(rank)

    def launcher_log(self, launch: str, host: str) -> Path:
        """What the launcher (torchrun, mpirun) printed on one host."""
        return self.launch(launch) / f"launcher-{host}.log"

    def recorded_ranks(self, launch: str) -> dict[int, Path]:
        """The ranks of a launch that left a record, by rank."""
        folder = self.launch(launch)
        found: dict[int, Path] = {}
        if folder.is_dir():
            for path in folder.iterdir():
                match = _RANK_FILE.fullmatch(path.name)
                if match and match.group(2) == "json":
                    found[int(match.group(1))] = path
        return dict(sorted(found.items()))


def rank_file(rank: int) -> str:
    """Name of one rank's record."""
    return f"rank-{rank}.json"


def rank_log_file(rank: int) -> str:
    """Name of one rank's log."""
    return f"rank-{rank}.log"


def is_launch_file(name: str) -> bool:
    """Whether a file that a host sends may enter a launch's folder. Everything else is refused."""
    return bool(_RANK_FILE.fullmatch(name) or _HOST_LOG.fullmatch(name))


def project_root() -> Path:
    """The folder that holds ``tasks.py``: the checkout, or the installed tree of an image."""
    return Path(__file__).resolve().parent.parent


def results_root() -> Path:
    """``results/`` of the project, or what ``SUITE_RESULTS`` names."""
    return Path(os.environ.get("SUITE_RESULTS") or project_root() / "results")


def runs_root() -> Path:
    """Where runs are kept."""
    return results_root() / "runs"


def published_root() -> Path:
    """Where bundles are kept."""
    return results_root() / "published"


def bundle_folder(text: str) -> Path:
    """The bundle that a user names: by its folder, or by its name in results/published."""
    named = published_root() / text
    return named if is_safe_name(text) and not Path(text).exists() and named.is_dir() else Path(text)


def find_run(name: str | None) -> RunPaths:
    """The run of that id or path; the newest one for None.

    Raises:
        UsageError: there is none; lists the newest ones that exist.
    """
    # os.path's tests: False, not an error, for a text that cannot be a path at all.
    if name and (os.sep in name or os.path.isdir(name)):  # noqa: PTH112
        root = Path(name).resolve()
        if os.path.isfile(root / "plan.json"):  # noqa: PTH113
            return RunPaths(root)
        raise UsageError(f"{name}: no run there (no plan.json).", fix="name a folder of results/runs.")
    runs = sorted(p for p in runs_root().glob("*") if (p / "plan.json").is_file())
    if name is None:
        if runs:
            return RunPaths(runs[-1])
        raise UsageError("There is no run yet.", fix="start one with `fab local` or `fab deploy run --backend all`.")
    matches = [p for p in runs if p.name == name]
    if matches:
        return RunPaths(matches[0])
    known = ", ".join(p.name for p in runs[-5:]) or "none"
    raise UsageError(f"There is no run {name!r} in results/runs.", fix=f"name one of the newest: {known}.")


@contextlib.contextmanager
def _temporary_beside(path: Path) -> Iterator[Path]:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def write_new(path: Path, data: bytes | str) -> None:
    """Write a raw file that must not exist yet, whole or not at all.

    Raises:
        FileExistsError: it exists already; nothing was changed.
    """
    with _temporary_beside(path) as temporary:
        _write_and_sync(temporary, data)
        os.link(temporary, path)  # unlike a rename, fails when the name is taken


def replace(path: Path, data: bytes | str) -> None:
    """Write a derived file, or the ledger, whole or not at all; an earlier one is replaced."""
    with _temporary_beside(path) as temporary:
        _write_and_sync(temporary, data)
        temporary.replace(path)


def _write_and_sync(path: Path, data: bytes | str) -> None:
    payload = data.encode() if isinstance(data, str) else data
    with path.open("wb") as stream:
        stream.write(payload)
        stream.flush()
        os.fsync(stream.fileno())
    umask = os.umask(0)
    os.umask(umask)
    path.chmod(0o666 & ~umask)  # mkstemp gave 0600; a result is as readable as any other file
