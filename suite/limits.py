"""What a plan may say at most, whether it was typed or read: the bounds of options and of stored plans, in one place.

A stored plan may come from somebody else's bundle. It must be able to do nothing that no command line can ask for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from suite.policy import is_settable
from suite.records import BACKENDS, Arm, Sweep

COLLECTIVES = "collectives"
KNOWN_WORKLOADS = ("linear", "resnet50", "transformer", "transformer-tiny", COLLECTIVES)
_USER_WORKLOAD = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", re.ASCII)
FAULTS = ("corrupt-gradient", "raise", "kill", "stop", "hang")
DEVICES = ("cpu", "cuda")
SMALLEST_MESSAGE, LARGEST_MESSAGE = 1 << 10, 256 << 20  # bytes
SHORTEST_DEADLINE, LONGEST_DEADLINE = 1.0, 7 * 24 * 3600.0  # seconds
MAX_SEED = (1 << 31) - 1
LEAST_STEPS, MAX_STEPS = 2, 1_000_000
MAX_BLOCKS = 1000
MAX_BATCH = 1 << 20
MAX_THREADS = 1024
MAX_WORLD = 1 << 20
MAX_BUCKET_MB = 1 << 20
_MAX_REPEATS, _MAX_SECONDS_PER_SIZE = 10_000, 60.0


def number(name: str, value: float, least: float, most: float) -> None:
    """Raises ValueError where the value of that field is no number of the range, its ends included."""
    if not least <= value <= most:  # false for what is no number, too
        raise ValueError(f"{name} is {str(value)[:40]}, which is not from {least:g} to {most:g}")


def one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    """Raises ValueError where the value of that field is none of the allowed words."""
    if value not in allowed:
        raise ValueError(f"{name} is {value[:100]!r}, which is none of {', '.join(allowed)}")


def variables(owner: str, environment: Mapping[str, str]) -> None:
    """Raises ValueError where a variable is set that no record would show, or to what cannot be printed."""
    for name, text in environment.items():
        if not is_settable(name) or not text.isprintable():
            raise ValueError(f"{owner} sets {name[:100]!r}, which nothing may set")


def is_workload(name: str) -> bool:
    """Whether it is one of the suite's workloads, or package.module:function of a user's own."""
    return name in KNOWN_WORKLOADS or bool(_USER_WORKLOAD.fullmatch(name))


def workload(name: str) -> None:
    """Raises ValueError where it is no workload."""
    if not is_workload(name):
        raise ValueError(f"{name[:100]!r} is no workload")


def arm(given: Arm) -> None:
    """Raises ValueError for a backend, a variable or a bucket size that no ``--arm`` can have."""
    one_of(f"the backend of arm {given.name}", given.backend, BACKENDS)
    variables(f"arm {given.name}", given.environment)
    if not 0 < given.ddp.bucket_mb <= MAX_BUCKET_MB:
        raise ValueError(f"bucket_mb of arm {given.name} is {given.ddp.bucket_mb:g}, which is no size in MiB")


def sweep(given: Sweep) -> None:
    """Raises ValueError for a sweep of collectives that this suite does not have, or that would never end."""
    known = Sweep().collectives
    if not set(given.collectives) <= set(known):
        raise ValueError("the sweep has a collective that this suite does not know")
    for size in given.sizes_bytes:
        number("a size of the sweep", size, 1, LARGEST_MESSAGE)
    if len(given.sizes_bytes) > 100 or len(given.collectives) > len(known):
        raise ValueError("the sweep has too many sizes or collectives")
    number("sweep.warmup", given.warmup, 0, _MAX_REPEATS)
    number("sweep.min_repeats", given.min_repeats, 1, _MAX_REPEATS)
    number("sweep.repeats", given.repeats, given.min_repeats, _MAX_REPEATS)
    number("sweep.seconds_per_size", given.seconds_per_size, 0, _MAX_SECONDS_PER_SIZE)


def fault(text: str, world: int) -> None:
    """Raises ValueError where a deliberate fault is not KIND@RANK with a rank of that world size."""
    kind, separator, rank = text.partition("@")
    if kind not in FAULTS or not separator or not re.fullmatch(r"\d{1,7}", rank, re.ASCII) or int(rank) >= world:
        raise ValueError(f"inject is {text[:100]!r}, which is no fault of one of {world} ranks")
