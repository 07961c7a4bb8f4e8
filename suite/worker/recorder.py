"""What a rank will say of its launch, collected while it runs and written exactly once, whatever happens."""

from __future__ import annotations

import ctypes
import dataclasses
import math
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from suite import paths
from suite.records import CollectiveSamples, Failure, LaunchSpec, RankRecord, to_json
from suite.worker.identity import Identity

LOG_TAIL_LINES = 25
LOG_TAIL_BYTES = 16_384


class Recorder:
    """Collects one rank's record; thread-safe, since the guard thread may have to write it.

    Args:
        spec: the launch.
        identity: this rank.
        folder: where ``rank-<r>.json`` and ``rank-<r>.log`` go.
    """

    def __init__(self, spec: LaunchSpec, identity: Identity, folder: Path) -> None:
        self._record = RankRecord(
            run=spec.run,
            launch=spec.launch,
            kind=spec.kind,
            arm=spec.arm.name,
            backend=spec.arm.backend,
            workload=spec.workload,
            block=spec.block,
            device=spec.device,
            world_size=spec.world_size,
            rank=identity.rank,
            local_rank=identity.local_rank,
            host=spec.host,
            started_at=time.time(),
        )
        self._began = time.perf_counter()
        self._stage_began = self._began
        self._marks: dict[str, float] = {}
        self._entered = [("start", self._began)]
        self._warnings: list[str] = []
        self._lock = threading.Lock()
        self._written = False
        self.stage = "start"
        self.record_path = folder / paths.rank_file(identity.rank)
        self.log_path = folder / paths.rank_log_file(identity.rank)

    def enter(self, stage: str) -> None:
        """The next stage begins; the time since the last one belongs to the last one. Stages may come again."""
        now = time.perf_counter()
        with self._lock:
            self._marks[self.stage] = self._marks.get(self.stage, 0.0) + now - self._stage_began
            self.stage, self._stage_began = stage, now
            self._entered.append((stage, now))

    def span(self, *stages: str) -> tuple[float, float]:
        """From the beginning of the first of these stages to the end of the last, by ``time.perf_counter``.

        Empty (∞, −∞) when none of them was entered.
        """
        with self._lock:
            ends = [*(at for _, at in self._entered[1:]), time.perf_counter()]
            spans = [(at, end) for (stage, at), end in zip(self._entered, ends, strict=True) if stage in stages]
        return min((at for at, _ in spans), default=math.inf), max((end for _, end in spans), default=-math.inf)

    def keep(self, **fields: Any) -> None:
        """Set fields of the record."""
        with self._lock:
            self._record = dataclasses.replace(self._record, **fields)

    def add_environment(self, facts: dict[str, Any]) -> None:
        """Add facts to the record's environment; floats that are no numbers become unknown."""
        clean = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in facts.items()}
        self.keep(environment={**self._record.environment, **clean})

    def add_collectives(self, samples: Iterable[CollectiveSamples]) -> None:
        """Add samples one by one as they come, so that a launch that fails keeps those it has."""
        for sample in samples:
            self.keep(collectives=(*self._record.collectives, sample))

    def warn(self, text: str) -> None:
        """Add a warning, once."""
        with self._lock:
            if text not in self._warnings:
                self._warnings.append(text)

    def succeed(self) -> None:
        """Write the complete record.

        Raises:
            OSError: it could not be written: the launch has failed then.
        """
        self._write(None)

    def fail(self, cause: str, *, fix: str = "", secondary: bool = False) -> None:
        """Write what there is, with the failure. Does nothing when the record has been written already."""
        flush_libraries()  # the process ends without doing so, and the last words may tell why
        stage = "deadline" if cause.startswith("deadline") else self.stage
        self._write(
            Failure(
                stage=stage,
                cause=cause,
                host=self._record.host,
                rank=self._record.rank,
                fix=fix,
                log_tail=log_tail(self.log_path),
                secondary=secondary,
                at=time.time(),
            )
        )

    def _write(self, failure: Failure | None) -> None:
        self.enter(self.stage)
        with self._lock:
            if self._written:
                return
            marks = {**self._marks, "total": time.perf_counter() - self._began}
            record = dataclasses.replace(self._record, marks=marks, warnings=tuple(self._warnings), failure=failure)
            paths.write_new(self.record_path, to_json(record) + "\n")
            self._record = record
            self._written = True


def flush_libraries() -> None:
    """Write out what C libraries have printed: into a file they buffer it, and NCCL never flushes by itself."""
    ctypes.CDLL(None).fflush(None)


def read_log(path: Path) -> str:
    """Everything that this rank has printed, its libraries included; empty when there is no log."""
    flush_libraries()
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def log_tail(path: Path) -> tuple[str, ...]:
    """The last lines of a rank's log, without empty ones; none when there is no log."""
    try:
        with path.open("rb") as stream:
            stream.seek(max(0, path.stat().st_size - LOG_TAIL_BYTES))
            text = stream.read().decode(errors="replace")
    except OSError:
        return ()
    return tuple(line.rstrip() for line in text.splitlines() if line.strip())[-LOG_TAIL_LINES:]
