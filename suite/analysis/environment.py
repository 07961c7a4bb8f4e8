"""The facts of a run, said once where they are equal, and per host where they differ."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from suite.policy import FACTS
from suite.records import RankRecord

# What differs from launch to launch on purpose and is said elsewhere, and each launch's own port numbers.
LEFT_OUT = frozenset(
    {
        *("seed", "world_size", "workload", "rank_map", "warmup_steps", "parameters", "batch_size", "dtype"),
        *("connections", "gpu_events_seconds"),
    }
)
# What mpirun tells its ranks about themselves; what it was told by people stays.
LAUNCHER_VARIABLES = re.compile(
    r"env\.(PRTE_(?!MCA_)|OMPI_(?!MCA_)|OMPI_MCA_(ess|orte|initial|num|app|state|pmix|mpi_oversubscribe)_?).*"
)
_ORDER = {name: place for place, name in enumerate(FACTS)}
MOST_VALUES = 6  # of one fact on one host that are listed; more are cut with a count


def unified(records: Iterable[RankRecord]) -> dict[str, Any]:
    """Fact → its value, or host → value where hosts differ. Unknown facts (None everywhere) are left out.

    A fact that varied on one host (load, temperature) is {"min": .., "max": ..} for numbers and
    {"values": [..]} for anything else.
    """
    seen: dict[str, dict[str, dict[str, Any]]] = defaultdict(lambda: defaultdict(dict))
    for record in records:
        for key, value in record.environment.items():
            if key in LEFT_OUT or LAUNCHER_VARIABLES.fullmatch(key):
                continue
            seen[key][record.host][identity(value)] = value
    return {key: value for key in sorted(seen, key=_place) if (value := _of_hosts(seen[key])) is not None}


def _place(key: str) -> tuple[int, str]:
    """In the order of the policy's table, which goes from the suite over libraries to machines; others after it."""
    return (_ORDER.get(key, len(_ORDER)), key)


def _of_hosts(hosts: dict[str, dict[str, Any]]) -> Any:
    per_host = {host: _of_one_host(list(values.values())) for host, values in sorted(hosts.items())}
    if len({identity(value) for value in per_host.values()}) == 1:
        return next(iter(per_host.values()))
    return {"per host": per_host}


def _of_one_host(values: Sequence[Any]) -> Any:
    if len(values) == 1:
        return values[0]
    numbers = [v for v in values if isinstance(v, (int, float)) and not isinstance(v, bool)]
    if len(numbers) == len(values):
        return {"min": min(numbers), "max": max(numbers)}
    listed = sorted(values, key=identity)[:MOST_VALUES]
    more = len(values) - len(listed)
    return {"values": listed, **({"and more": more} if more else {})}


def identity(value: Any) -> str:
    """A text that two values share when, and only when, they are equal."""
    if type(value) is str:  # by far the most
        return '"' + value
    return json.dumps(value, sort_keys=True, default=str)
