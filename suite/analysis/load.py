"""A run's files into arrays, one record at a time, and a named problem for every record that cannot be used.

A record's JSON is decoded, its samples moved into numpy, and the decoded object dropped before the next one
is read, so that memory is that of the arrays: 8 bytes a sample. A launch counts only with all its ranks,
because the job's step time is the maximum over them; a launch that lacks one stays visible, as not usable.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from suite import codec
from suite.analysis.bandwidth import COLLECTIVES
from suite.errors import RecordError
from suite.paths import RunPaths, is_safe_name, rank_file
from suite.plan import Plan
from suite.records import CollectiveSamples, LaunchOutcome, Manifest, RankRecord, StepSamples

Nanoseconds = NDArray[np.int64]

LONGEST_STEP_NS = 6 * 3600 * 10**9  # longer is a damaged record, or a job that this suite was not made for
CLOCK_SLACK = 1.05  # summed samples may exceed the controller's wall time by this before they are absurd
MOST_MISSING = 8  # ranks without a record that are named
GATE = ("pass", "fail", "not run")
PHASES = ("forward_ns", "backward_ns", "optimizer_ns")


@dataclass(frozen=True)
class Samples:
    """Step times of all ranks of a launch in one mode: int64 nanoseconds, shape (ranks, steps).

    Phases have the same shape, or (ranks, 0) where they were not taken; ``warmup_total_ns`` has its own length.
    """

    total_ns: Nanoseconds
    forward_ns: Nanoseconds
    backward_ns: Nanoseconds
    optimizer_ns: Nanoseconds
    warmup_total_ns: Nanoseconds

    @property
    def steps(self) -> int:
        return int(self.total_ns.shape[1])


@dataclass(frozen=True)
class CollectiveTimes:
    """One collective at one size in one launch; ``ns`` has one row for each of ``ranks``, which have samples."""

    collective: str
    size_bytes: int
    implementation: str
    purpose: str
    ranks: tuple[int, ...]
    ns: Nanoseconds
    wrong: int
    unavailable: str | None = None


@dataclass(frozen=True)
class LaunchData:
    """One launch of the ledger with what its ranks left.

    ``ranks`` are the records without their samples, in rank order. ``usable``: every planned rank left a sound
    record and the launch ended well, so that its times count.
    """

    outcome: LaunchOutcome
    ranks: tuple[RankRecord, ...] = ()
    synchronised: Samples | None = None
    nosync: Samples | None = None
    collectives: tuple[CollectiveTimes, ...] = ()
    usable: bool = False
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunData:
    """A whole run in memory; ``problems`` name each file that could not be used, and why."""

    plan: Plan
    manifest: Manifest
    launches: tuple[LaunchData, ...]
    problems: tuple[str, ...] = field(default=())


def load_run(run: RunPaths) -> RunData:
    """Read a run. Bad rank records become problems; only a bad ledger stops.

    Raises:
        RecordError: ``manifest.json`` or ``plan.json`` cannot be read.
    """
    manifest = codec.read(run.manifest, Manifest)
    plan = codec.read(run.plan, Plan)
    launches = tuple(load_launch(run, outcome, manifest) for outcome in manifest.launches)
    problems = [problem for launch in launches for problem in launch.problems]
    problems += _strangers(run, {outcome.launch for outcome in manifest.launches})
    return RunData(plan, manifest, launches, tuple(problems))


def load_launch(run: RunPaths, outcome: LaunchOutcome, manifest: Manifest) -> LaunchData:
    """One launch's records. Never raises for what a record holds: see ``LaunchData.problems``."""
    if not is_safe_name(outcome.launch):
        return LaunchData(outcome, problems=(f"manifest.json: {outcome.launch!r} cannot name a launch.",))
    problems: list[str] = []
    loaded: dict[int, tuple[RankRecord, _RankArrays]] = {}
    found = run.recorded_ranks(outcome.launch)
    for rank, path in found.items():
        name = f"launches/{outcome.launch}/{path.name}"
        try:
            record = read_record(run, outcome, rank, manifest.run)
            arrays = _rank_arrays(record, outcome, name)
        except RecordError as error:
            problems.append(str(error))
        else:
            loaded[rank] = (_without_samples(record), arrays)
    sound = not problems
    if outcome.status == "ok":
        # No more than are named: a damaged ledger may speak of any number of ranks.
        lacking = (rank for rank in range(outcome.world_size) if rank not in found)
        missing = list(itertools.islice(lacking, MOST_MISSING + 1))
        if missing:
            ranks = ", ".join(map(str, missing[:MOST_MISSING])) + (", ..." if len(missing) > MOST_MISSING else "")
            problems.append(
                f"launches/{outcome.launch}: no record of rank {ranks} (world size {outcome.world_size})."
                " Fix: fetch it again with `fab collect`."
            )
            sound = False
    launch = LaunchData(outcome, tuple(record for _, (record, _) in sorted(loaded.items())), problems=tuple(problems))
    if not sound or not loaded or outcome.status != "ok" or len(loaded) != outcome.world_size:
        return launch
    return _joined(launch, [arrays for _, (_, arrays) in sorted(loaded.items())])


@dataclass(frozen=True)
class _RankArrays:
    synchronised: dict[str, Nanoseconds]
    nosync: dict[str, Nanoseconds]
    collectives: tuple[tuple[CollectiveSamples, Nanoseconds], ...]


def read_record(run: RunPaths, outcome: LaunchOutcome, rank: int, run_id: str) -> RankRecord:
    """One rank's record, whole, as it was collected and of the launch that the ledger means.

    Raises:
        RecordError: it cannot be read, was changed since, or is of another launch or run; names the file.
    """
    name = f"launches/{outcome.launch}/{rank_file(rank)}"
    path = run.rank(outcome.launch, rank)
    data = codec.read_plain(path, name)
    expected = outcome.digests.get(path.name)
    if expected is not None and hashlib.sha256(data).hexdigest() != expected:
        raise RecordError(name, "is not the file that was collected: its SHA-256 differs from the ledger's.")
    record = codec.decode(data, RankRecord, name)
    _check_belongs(record, outcome, rank, run_id, name)
    return record


def _check_belongs(record: RankRecord, outcome: LaunchOutcome, rank: int, run: str, name: str) -> None:
    """A record under a wrong name, of another launch or of another run is refused: all must be of one launch."""
    for what, found, expected in (
        ("run", record.run, run),
        ("launch", record.launch, outcome.launch),
        ("rank", record.rank, rank),
        ("world size", record.world_size, outcome.world_size),
        ("arm", record.arm, outcome.arm),
        ("workload", record.workload, outcome.workload),
        ("block", record.block, outcome.block),
        ("kind", record.kind, outcome.kind),
    ):
        if found != expected:
            raise RecordError(
                name, f"is of {what} {found!r}, expected was {expected!r}.", fix="do not mix files of runs."
            )
    if not 0 <= rank < record.world_size:
        raise RecordError(name, f"rank {rank} does not exist at world size {record.world_size}.")


def _rank_arrays(record: RankRecord, outcome: LaunchOutcome, name: str) -> _RankArrays:
    synchronised = _step_arrays(record.synchronised, "synchronised", name)
    nosync = _step_arrays(record.nosync, "nosync", name)
    collectives = tuple((sample, _collective_array(sample, name)) for sample in record.collectives)
    spent = sum(int(part[key].sum()) for part in (synchronised, nosync) for key in ("total_ns", "warmup_total_ns"))
    if outcome.wall_seconds > 0 and spent > outcome.wall_seconds * 1e9 * CLOCK_SLACK:
        raise RecordError(
            name,
            f"its steps sum to {spent / 1e9:.3g} s, but the whole launch took {outcome.wall_seconds:.3g} s.",
        )
    _check_rest(record, name)
    return _RankArrays(synchronised, nosync, collectives)


def _check_rest(record: RankRecord, name: str) -> None:
    """What is no array of samples, but would be a number or a verdict of the report."""
    if record.equivalence.status not in GATE:
        raise RecordError(name, f"equivalence.status is {record.equivalence.status!r}; possible is {', '.join(GATE)}.")
    for run in record.free_running:
        if run.steps < 1 or not 0 < run.total_ns <= LONGEST_STEP_NS * run.steps:
            raise RecordError(name, f"free_running: {run.steps} steps in {run.total_ns} ns are impossible.")
    if record.article_seconds is not None and not 0 < record.article_seconds <= LONGEST_STEP_NS / 1e9:
        raise RecordError(name, f"article_seconds is {record.article_seconds:g}, which is impossible.")


def _step_arrays(samples: StepSamples, mode: str, name: str) -> dict[str, Nanoseconds]:
    total = _times(samples.total_ns, f"{mode}.total_ns", name, zero=False)
    arrays = {"total_ns": total}
    for phase in PHASES:
        values = _times(getattr(samples, phase), f"{mode}.{phase}", name, zero=True)
        if values.size not in (0, total.size):
            raise RecordError(name, f"{mode}.{phase} has {values.size} values, total_ns has {total.size}.")
        if values.size and (values > total).any():
            raise RecordError(name, f"{mode}.{phase} holds a phase longer than its whole step.")
        arrays[phase] = values
    arrays["warmup_total_ns"] = _times(samples.warmup_total_ns, f"{mode}.warmup_total_ns", name, zero=False)
    return arrays


def _collective_array(sample: CollectiveSamples, name: str) -> Nanoseconds:
    place = f"{sample.collective} of {sample.size_bytes} bytes"
    if sample.size_bytes < 0 or sample.wrong < 0:
        raise RecordError(name, f"{place}: a size or a count of wrong values below zero.")
    if sample.collective not in COLLECTIVES:
        raise RecordError(name, f"{place}: there is no such collective; known are {', '.join(COLLECTIVES)}.")
    return _times(sample.ns, place, name, zero=False)


def _times(values: tuple[int, ...], what: str, name: str, *, zero: bool) -> Nanoseconds:
    try:
        array = np.array(values, dtype=np.int64)
    except OverflowError:
        raise RecordError(name, f"{what} holds a time beyond 64 bits.") from None
    lowest = 0 if zero else 1
    if array.size and (int(array.min()) < lowest or int(array.max()) > LONGEST_STEP_NS):
        bad = int(np.argmax((array < lowest) | (array > LONGEST_STEP_NS)))
        raise RecordError(
            name,
            f"{what}[{bad}] is {int(array[bad])} ns; possible is {lowest} to {LONGEST_STEP_NS} (six hours).",
        )
    return array


def _without_samples(record: RankRecord) -> RankRecord:
    return dataclasses.replace(record, synchronised=StepSamples(), nosync=StepSamples(), collectives=())


def _joined(launch: LaunchData, ranks: list[_RankArrays]) -> LaunchData:
    name = f"launches/{launch.outcome.launch}"
    try:
        return dataclasses.replace(
            launch,
            synchronised=_stacked([r.synchronised for r in ranks], "synchronised", name),
            nosync=_stacked([r.nosync for r in ranks], "nosync", name),
            collectives=tuple(_joined_collectives(ranks, name)),
            usable=True,
        )
    except RecordError as error:
        return dataclasses.replace(launch, problems=(*launch.problems, str(error)))


def _stacked(ranks: list[dict[str, Nanoseconds]], mode: str, name: str) -> Samples:
    stacked = {}
    for key in ranks[0]:
        lengths = [rank[key].size for rank in ranks]
        if len(set(lengths)) != 1:
            odd = next(r for r, n in enumerate(lengths) if n != lengths[0])
            raise RecordError(
                f"{name}/rank-{odd}.json",
                f"{mode}.{key} has {lengths[odd]} values, rank 0 has {lengths[0]}; ranks must step together.",
            )
        stacked[key] = np.stack([rank[key] for rank in ranks])
        for rank in ranks:
            rank[key] = stacked[key][:0, 0] if stacked[key].shape[1] else rank[key]  # frees the copy
    return Samples(**stacked)


def _joined_collectives(ranks: list[_RankArrays], name: str) -> Iterator[CollectiveTimes]:
    """One entry per collective, size and purpose, in the order of the first rank that has it.

    The same key may come several times (two buckets of one size): the n-th of one rank meets the n-th of
    the others. Links are each sender's own and are not joined.
    """
    entries: dict[tuple[str, int, str, str, int, int], list[tuple[int, CollectiveSamples, Nanoseconds]]] = {}
    for rank, arrays in enumerate(ranks):
        seen: dict[tuple[str, int, str, str], int] = {}
        for sample, ns in arrays.collectives:
            plain = (sample.collective, sample.size_bytes, sample.implementation, sample.purpose)
            seen[plain] = seen.get(plain, 0) + 1
            alone = rank if sample.purpose == "link" else -1
            entries.setdefault((*plain, seen[plain], alone), []).append((rank, sample, ns))
    for (collective, size, implementation, purpose, _, _), found in entries.items():
        timed = [(rank, ns) for rank, _, ns in found if ns.size]
        if purpose != "link" and not (len(found) == len(ranks) and len(timed) in (0, len(ranks))):
            # The time is the max over all ranks: without one of them it would be too short, and nobody would see it.
            raise RecordError(
                name, f"{collective} of {size} bytes was timed by {len(timed)} of {len(ranks)} ranks; all must time it."
            )
        if len({ns.size for _, ns in timed}) > 1:
            raise RecordError(
                f"{name}/rank-{timed[0][0]}.json",
                f"{collective} of {size} bytes has {timed[0][1].size} times, other ranks have another number.",
            )
        yield CollectiveTimes(
            collective=collective,
            size_bytes=size,
            implementation=implementation,
            purpose=purpose,
            ranks=tuple(rank for rank, _ in timed),
            ns=np.stack([ns for _, ns in timed]) if timed else np.zeros((0, 0), dtype=np.int64),
            wrong=sum(sample.wrong for _, sample, _ in found),
            unavailable=next((s.unavailable for _, s, _ in found if s.unavailable), None),
        )


def _strangers(run: RunPaths, known: set[str]) -> list[str]:
    """Folders of launches that the ledger does not know: files of another run, or of a launch in flight."""
    if not run.launches.is_dir():
        return []
    return [
        f"launches/{folder.name}: the ledger (manifest.json) knows no such launch; it was left out."
        for folder in sorted(run.launches.iterdir())
        if folder.is_dir() and not folder.name.startswith(".") and folder.name not in known
    ]
