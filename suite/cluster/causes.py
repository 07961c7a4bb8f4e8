"""Why a launch failed: the first cause, from what its ranks, their launchers and the connections to its hosts say."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from suite import codec
from suite.console import printable
from suite.errors import RecordError
from suite.paths import rank_file, rank_log_file
from suite.records import Failure, LaunchSpec, RankRecord

LOG_TAIL_LINES = 12
_DAMAGED_FIX = "see that the host's disk is sound and has room; this launch stays failed, a new run measures it again"
_LAST_BYTES = 64 * 1024
# "prterun noticed that process rank 1 with PID 71 on node h2 exited on signal 9 (Killed)."
_MPI_SIGNAL = re.compile(r"process rank ([0-9]{1,9}) with PID \S+ on node (\S+) exited on\s+signal ([0-9]{1,9})")
# "prterun has exited due to process rank 1 with PID 159 on node h2 calling "abort"."
_MPI_ABORT = re.compile(r"process rank ([0-9]{1,9}) with PID \S+ on node \S+ calling\s+\"abort\"")
# "  Peer host:  h4": what a rank prints whose connection to that host's rank broke.
_MPI_PEER = re.compile(r"^\s*Peer host:\s+(\S+)", re.MULTILINE)
# What a rank tells its launcher when it can tell nobody else: see ``suite.worker.bootstrap``.
_UNWRITTEN = re.compile(r"suite\.worker: rank-([0-9]{1,9})\.json could not be written: ([^\r\n]+)")
# "ssh: connect to host 198.18.0.12 port 2222: Connection refused", from mpirun's way to another host.
_SSH_REFUSED = re.compile(r"ssh: connect to host (\S+) port (\d+): ([^\r\n]+)")
# torchrun's table of failures: "rank : 1 (local_rank: 0)", "exitcode : -9 (pid: 71)"
_TORCHRUN_RANK = re.compile(r"rank\s*:\s*([0-9]{1,9}) \(local_rank")
_TORCHRUN_EXIT = re.compile(r"exitcode\s*:\s*(-?[0-9]{1,9})")


@dataclass(frozen=True)
class LauncherResult:
    """How the launcher of one host ended.

    ``code`` None: it had to be ended without one. ``ended_by``: "" when it ended by itself, else
    "deadline", "another host" (it failed elsewhere first), "lingering" (another host's ended well, nothing was heard
    of this one's end), "interrupt", "connection lost", or "no records" (the host answers, but did not give its
    records; ``output`` is why). ``order`` counts the launchers in the order in which they ended. ``lost`` says, where
    it is known, how a lost connection came about though its host answers.
    """

    host: str
    code: int | None
    output: str = ""
    ended_by: str = ""
    order: int = 0
    lost: str = ""


def rank_hosts(spec: LaunchSpec) -> tuple[str, ...]:
    """The host of every rank, in rank order."""
    return tuple(host.name for host in spec.hosts for _ in range(host.slots))


def first_failure(spec: LaunchSpec, folder: Path, results: Sequence[LauncherResult]) -> Failure | None:
    """The first cause of a launch's failure; None when nothing failed."""
    first = next(_causes(spec, folder, results), None)
    if first is not None and not first.fix:  # an exception of torch's or of a user's own code
        return replace(first, fix=f"see {rank_log_file(first.rank or 0)} of the launch, whose last lines follow")
    return first


def _causes(spec: LaunchSpec, folder: Path, results: Sequence[LauncherResult]) -> Iterator[Failure]:
    """What may have gone wrong, the first cause first, not the loudest.

    In this order: a rank's own failure (the earliest), a disk that took no record, a host whose container mpirun
    could not enter, a lost host, a rank that died without a word, a damaged record, a rank that was not done at
    the deadline, a rank's complaint about its peers, a launcher that failed though its ranks did not. Clocks of
    hosts differ, so a time only decides between failures of the same sort.
    """
    failures, silent, damaged = _rank_failures(spec, folder)
    yield from sorted((f for f in failures if not f.secondary and f.stage != "deadline"), key=lambda f: f.at)
    # Who lingers has nothing left to do: another host's launcher, which waits for all ranks, ended well.
    unhappy = [r for r in results if r.code != 0 and r.ended_by != "lingering"]
    yield from _unwritten(spec, unhappy)
    yield from _closed_door(spec, unhappy)
    yield from (_lost_host(spec, r) for r in results if r.ended_by == "connection lost")
    yield from (_withheld(spec, r) for r in results if r.ended_by == "no records")
    late = any(r.ended_by == "deadline" for r in results) or any(f.stage == "deadline" for f in failures)
    if silent and unhappy:
        yield _silent_rank(spec, folder, silent, results, late)
    yield from damaged
    if late and failures:
        yield _late_rank(spec, failures)
    yield from sorted(failures, key=lambda f: f.at)
    for rank in silent:
        yield Failure("collect", "left no record", rank_hosts(spec)[rank], rank, "see the launcher's log")
    for result in sorted(unhappy, key=lambda r: (r.ended_by != "", r.order)):
        what = f"ended with exit code {result.code}" if result.code is not None else "had to be ended"
        yield Failure(
            stage="launcher",
            cause=f"the launcher {what} although every rank finished",
            host=result.host,
            fix="see the launcher's log",
            log_tail=tail(result.output),
        )


def _unwritten(spec: LaunchSpec, results: Sequence[LauncherResult]) -> Iterator[Failure]:
    """Ranks whose disk took no record: what else is missing of them follows from that."""
    hosts = rank_hosts(spec)
    for result in results:
        for rank, why in ((int(number), why) for number, why in _UNWRITTEN.findall(result.output)):
            if rank < len(hosts):
                yield Failure(
                    stage="record",
                    cause=f"could not write its record: {printable(why)}",
                    host=hosts[rank],
                    rank=rank,
                    fix="free disk space where Docker keeps its data there (`docker system df`)",
                    log_tail=tail(result.output),
                )


def _closed_door(spec: LaunchSpec, results: Sequence[LauncherResult]) -> Iterator[Failure]:
    """Hosts whose in-container sshd did not answer mpirun."""
    for result in results:
        for address, port, why in _SSH_REFUSED.findall(result.output):
            for host in (h for h in spec.hosts if address in (h.address, h.name)):
                yield Failure(
                    stage="start",
                    cause=f"does not take SSH connections on port {port} of its container: {printable(why)}",
                    host=host.name,
                    rank=rank_hosts(spec).index(host.name),
                    fix="the container has been restarted, its sshd with it; `fab check` looks at every pair of hosts",
                    log_tail=tail(result.output),
                )


def _lost_host(spec: LaunchSpec, result: LauncherResult) -> Failure:
    if result.lost:
        return Failure(
            stage="launch",
            cause=result.lost,
            host=result.host,
            rank=_only_rank(spec, result.host),
            fix="see what restarted Docker or stopped the container there (`journalctl -u docker`)",
            log_tail=tail(result.output),
        )
    return Failure(
        stage="launch",
        cause="the connection to the host was lost during the launch",
        host=result.host,
        rank=_only_rank(spec, result.host),
        fix="see that the host is up and reachable, then `fab check`",
        log_tail=tail(result.output),
    )


def _withheld(spec: LaunchSpec, result: LauncherResult) -> Failure:
    """A host whose engine answers, but cannot read its container's files: a full disk, most often."""
    return Failure(
        stage="collect",
        cause=f"its records could not be fetched: {printable(result.output)}",
        host=result.host,
        rank=_only_rank(spec, result.host),
        fix="free disk space where Docker keeps its data there (`docker system df`), or see Docker's own log there",
        log_tail=tail(result.output),
    )


def _only_rank(spec: LaunchSpec, host: str) -> int | None:
    """The rank of a host that has one; None when it has several."""
    ranks = [rank for rank, name in enumerate(rank_hosts(spec)) if name == host]
    return ranks[0] if len(ranks) == 1 else None


def _late_rank(spec: LaunchSpec, failures: Sequence[Failure]) -> Failure:
    """Time ran out though every rank still answered: the one that the others waited for, as far as it shows."""
    busy = [f for f in failures if "waiting for its peers" not in f.cause]
    who = (busy or sorted(failures, key=lambda f: f.at))[0]
    where = who.cause.partition(", at ")[2]
    return replace(
        who,
        stage="deadline",
        cause=f"had not ended at the launch's deadline of {spec.deadline_seconds:g} s"
        + (f"; it was at {where}" if where else "")
        + ("" if busy else ", and so was every other rank: the network between them is slow or cut"),
        fix="see whether its host or its link is slow (`fab check`); --deadline gives more time",
    )


def _rank_failures(spec: LaunchSpec, folder: Path) -> tuple[list[Failure], list[int], list[Failure]]:
    """(what ranks said went wrong, ranks without a record, records that cannot be used)."""
    said: list[Failure] = []
    silent: list[int] = []
    damaged: list[Failure] = []
    for rank, host in enumerate(rank_hosts(spec)):
        path = folder / rank_file(rank)
        if not path.exists():
            silent.append(rank)
            continue
        try:
            record = codec.decode(codec.read_plain(path, path.name), RankRecord, path.name)
        except RecordError as error:
            damaged.append(Failure("collect", error.message, host, rank, _DAMAGED_FIX))
            continue
        if record.launch != spec.launch or record.rank != rank:
            what = f"{path.name} is of another launch or rank"
            damaged.append(Failure("collect", what, host, rank, _DAMAGED_FIX))
        elif record.failure:
            said.append(record.failure)
    return said, silent, damaged


def _silent_rank(
    spec: LaunchSpec, folder: Path, silent: list[int], results: Sequence[LauncherResult], deadline: bool
) -> Failure:
    """A rank left no record. Its launcher usually knows why; else the launcher that ended first does."""
    hosts = rank_hosts(spec)
    for result in sorted(results, key=lambda r: (r.ended_by != "", r.order)):
        named = _signalled(result.output)
        if named and named[0] in silent:
            rank, signal = named
            return Failure(
                stage="run",
                cause=f"was ended by signal {signal}" + (" (killed)" if signal == 9 else ""),
                host=hosts[rank],
                rank=rank,
                fix="if nobody killed it, look for the out-of-memory killer in the host's kernel log (dmesg)",
                log_tail=_rank_tail(folder, rank) or tail(result.output),
            )
    first = min(results, key=lambda r: (r.ended_by != "", r.order))
    # Open MPI's survivors abort, and mpirun blames the first of them; in their words, the dead one is the peer.
    blamed = set(_MPI_PEER.findall(first.output))
    alone = (
        [rank for rank in silent if hosts[rank] in blamed] or [r for r in silent if hosts[r] == first.host] or silent
    )
    rank = alone[0]
    if deadline:
        # One that gave up on its peers at the very end did say something: not it was waited for.
        gave_up = {int(number) for result in results for number in _MPI_ABORT.findall(result.output)}
        rank = next((rank for rank in silent if rank not in gave_up), silent[0])
        return Failure(
            stage="deadline",
            cause=f"said nothing until the launch's deadline of {spec.deadline_seconds:g} s",
            host=hosts[rank],
            rank=rank,
            fix="see whether the process is stopped or its host overloaded; --deadline gives more time",
            log_tail=_rank_tail(folder, rank) or tail(first.output),
        )
    return Failure(
        stage="start",
        cause=f"ended without a record; its launcher's exit code is {first.code}",
        host=hosts[rank],
        rank=rank,
        fix="see the last lines of its log, below; where they say nothing, it may have been killed: look for the"
        " out-of-memory killer in the host's kernel log (dmesg)",
        log_tail=_rank_tail(folder, rank) or tail(first.output),
    )


def _signalled(output: str) -> tuple[int, int] | None:
    """(rank, signal) of the rank that a launcher saw die of a signal."""
    mpi = _MPI_SIGNAL.search(output)
    if mpi:
        return int(mpi.group(1)), int(mpi.group(3))
    root = output.rpartition("Root Cause")[2] or output
    rank, code = _TORCHRUN_RANK.search(root), _TORCHRUN_EXIT.search(root)
    if rank and code and int(code.group(1)) < 0:
        return int(rank.group(1)), -int(code.group(1))
    return None


def _rank_tail(folder: Path, rank: int) -> tuple[str, ...]:
    path = folder / rank_log_file(rank)
    if not path.is_file():
        return ()
    with path.open("rb") as stream:
        stream.seek(max(0, path.stat().st_size - _LAST_BYTES))
        return tail(stream.read().decode(errors="replace"))


def tail(text: str) -> tuple[str, ...]:
    """The last lines of a log, without control characters."""
    return tuple(printable(line) for line in text.strip().splitlines()[-LOG_TAIL_LINES:])
