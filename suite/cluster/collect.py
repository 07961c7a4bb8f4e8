"""Fetching again what the hosts still hold of a run: for records that were lost or damaged on the way."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from suite import codec
from suite.cluster.engine import Engine
from suite.cluster.fanout import fan_out
from suite.cluster.launch import FETCH_SECONDS, LAUNCHES_FOLDER, MAX_FETCH_BYTES
from suite.errors import RecordError, SuiteError
from suite.paths import RunPaths, is_launch_file, replace, write_new
from suite.records import LaunchOutcome, Manifest, RankRecord


@dataclass(frozen=True)
class Collected:
    """What a second collection brought: files new here, damaged ones mended, and what could not be had."""

    new: tuple[str, ...]
    mended: tuple[str, ...]
    problems: tuple[str, ...]


def collect(
    run: RunPaths, manifest: Manifest, engines: Mapping[str, Engine], containers: Mapping[str, str]
) -> Collected:
    """Bring every file of every launch that is missing or damaged here.

    A sound file is never replaced: it is compared, and a difference is a problem to tell.
    """
    new: list[str] = []
    mended: list[str] = []
    problems: list[str] = []
    for outcome in manifest.launches:
        if not outcome.output_folder.startswith(f"{LAUNCHES_FOLDER}/{manifest.run}/"):
            continue  # a launch of `fab local`: nothing is kept elsewhere
        for host, answer in _ask(outcome, engines, containers).items():
            if isinstance(answer, Exception):
                said = answer.message if isinstance(answer, SuiteError) else str(answer)
                problems.append(f"{outcome.launch}: {said}")
                continue
            for name, data in answer.items():
                _keep(run, outcome, host, name, data, (new, mended, problems))
    return Collected(tuple(new), tuple(mended), tuple(problems))


def _ask(
    outcome: LaunchOutcome, engines: Mapping[str, Engine], containers: Mapping[str, str]
) -> dict[str, dict[str, bytes] | Exception]:
    def fetch(engine: Engine) -> dict[str, bytes]:
        return engine.fetch(
            containers[engine.name],
            outcome.output_folder,
            limit_bytes=MAX_FETCH_BYTES,
            wanted=is_launch_file,
            timeout=FETCH_SECONDS,
        )

    return fan_out(list(engines.values()), fetch, FETCH_SECONDS + 10)


def _keep(
    run: RunPaths,
    outcome: LaunchOutcome,
    host: str,
    name: str,
    data: bytes,
    kept: tuple[list[str], list[str], list[str]],
) -> None:
    new, mended, problems = kept
    path = run.launch(outcome.launch) / name
    shown = f"{outcome.launch}/{name}"
    digest = hashlib.sha256(data).hexdigest()
    expected = outcome.digests.get(name)
    if not path.exists():
        if expected not in (None, digest):
            problems.append(f"{shown}: what {host} holds is not what was recorded; it was left there")
            return
        write_new(path, data)
        new.append(shown)
        return
    have = hashlib.sha256(path.read_bytes()).hexdigest()
    if have == digest:
        return
    if digest == expected and name.endswith(".json") and _is_sound(data, name):
        replace(path, data)  # not a result that is overwritten: the file here is not the one that was recorded
        mended.append(shown)
    elif have != expected:
        problems.append(f"{shown}: the file here and the one on {host} both differ from what was recorded")


def _is_sound(data: bytes, name: str) -> bool:
    try:
        codec.decode(data, RankRecord, name)
    except RecordError:
        return False
    return True
