"""What the campaign asks of whatever runs its launches, and how a launch is judged from what it left.

Two executors exist: ``suite.cluster.local`` (processes of this machine) and ``suite.cluster.launch``
(containers of the cluster's hosts). Both hand the same specification to the same worker, and both end here:
the records and exit codes of a launch become one ``LaunchOutcome``, with the *first* failure named (``causes``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from suite.cluster.causes import LauncherResult, first_failure, rank_hosts, tail
from suite.paths import is_launch_file
from suite.records import HostProbe, LaunchOutcome, LaunchSpec

__all__ = ["Executor", "LauncherResult", "Progress", "digests", "judge", "rank_hosts", "tail"]


class Executor(Protocol):
    """Runs launches, one at a time."""

    def probe(self, device: str) -> tuple[HostProbe, ...]:
        """What each host's worker can do on that kind of device. Raises a SuiteError when a host cannot be asked."""

    def launch(self, spec: LaunchSpec, folder: Path) -> LaunchOutcome:
        """Run one launch, leave its files in ``folder`` (which exists, empty), and judge it.

        Returns within the launch's deadline and some seconds for cleaning up, whatever happens. On
        KeyboardInterrupt it ends every rank first, then lets it through.

        Raises:
            HostError: a host was lost before anything started: there was no launch.
        """

    def output_folder(self, launch: str) -> str:
        """Where the ranks of a launch write, as they see it."""

    def master_port(self) -> int:
        """A port at the first host that is free now."""

    def close(self) -> None:
        """Give back what the executor holds."""


Progress = Callable[[str], None]


def judge(
    spec: LaunchSpec,
    folder: Path,
    results: Sequence[LauncherResult],
    *,
    wall_seconds: float,
    started_at: float,
    commands: dict[str, str],
) -> LaunchOutcome:
    """The outcome of a launch from its ranks' records and its launchers' ends."""
    failure = first_failure(spec, folder, results)
    interrupted = any(result.ended_by == "interrupt" for result in results)
    status = "interrupted" if interrupted else "failed" if failure else "ok"
    return LaunchOutcome(
        launch=spec.launch,
        index=spec.index,
        kind=spec.kind,
        arm=spec.arm.name,
        backend=spec.arm.backend,
        workload=spec.workload,
        world_size=spec.world_size,
        block=spec.block,
        status=status,
        failure=failure,
        wall_seconds=round(wall_seconds, 3),
        started_at=started_at,
        commands=commands,
        digests=digests(folder),
        output_folder=spec.output_folder,
    )


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of every file of a launch, by name."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.iterdir())
        if is_launch_file(path.name)
    }
