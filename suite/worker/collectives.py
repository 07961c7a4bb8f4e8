"""The measured group's collectives, each at one size with its buffers and the check of its result.

Sizes follow nccl-tests: the whole buffer for all_reduce, broadcast and send_recv, the sum over the ranks for
all_gather, reduce_scatter and all_to_all. The buffer holds integers that float32 represents exactly, so that any
order of summation gives the same result, and every difference is an error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist

from suite.errors import LaunchError
from suite.worker.failures import is_secondary, one_line
from suite.worker.groups import Groups
from suite.worker.pattern import count_wrong, fill

ELEMENT_BYTES = 4


@dataclass(frozen=True)
class Call:
    """One collective at one size with its buffers.

    ``fill`` writes the inputs, ``run`` is what is timed, ``wrong`` counts wrong elements of the result, and
    ``clear`` prepares the buffers for many calls in a row without filling between them.
    """

    collective: str
    size_bytes: int
    run: Callable[[], None]
    fill: Callable[[], object] = lambda: None
    wrong: Callable[[], int] = lambda: 0
    clear: Callable[[], object] = lambda: None
    implementation: str = "torch"


Maker = Callable[[Groups, int], Call]


class UnavailableError(Exception):
    """A backend does not have a collective; the message says why."""


def find_maker(groups: Groups, collective: str) -> Maker:
    """How this backend does a collective: the first way that works, tried with one element a rank.

    Raises:
        UnavailableError: the backend lacks it; all ranks raise alike.
        LaunchError: there is no such collective, or only some ranks have it.
    """
    ways = _WAYS.get(collective)
    if ways is None:
        raise LaunchError(f"There is no collective {collective!r}.", fix=f"use {', '.join(_WAYS)}.")
    reason = ""
    for maker in ways:
        said = groups.gather(_try_once(groups, maker))
        if all(text is None for text in said):
            return maker
        reason = next(text for text in said if text)
        if any(text is None for text in said):
            raise LaunchError(f"{collective} fails on some ranks only: {reason}")
    raise UnavailableError(reason)


def _try_once(groups: Groups, maker: Maker) -> str | None:
    """Why this way does not work; None when it does."""
    try:
        call = maker(groups, ELEMENT_BYTES * groups.world_size)
        call.run()
        groups.device.synchronise()
    except UnavailableError as error:
        return str(error)
    except (RuntimeError, ValueError, NotImplementedError, AttributeError) as error:
        if is_secondary(error):
            raise
        return f"{groups.backend}: {one_line(error)}"
    return None


def _elements(size_bytes: int) -> int:
    """Elements of the whole buffer, where each rank holds it whole."""
    return max(1, size_bytes // ELEMENT_BYTES)


def _per_rank(groups: Groups, size_bytes: int) -> int:
    """Elements of one rank's share, where the size is the sum over the ranks."""
    return max(1, size_bytes // (ELEMENT_BYTES * groups.world_size))


def _buffer(groups: Groups, elements: int) -> torch.Tensor:
    return torch.zeros(elements, dtype=torch.float32, device=groups.device.torch_device)


def _all_reduce(groups: Groups, size_bytes: int) -> Call:
    n, rank, group = groups.world_size, groups.rank, groups.measured
    data = _buffer(groups, _elements(size_bytes))

    def run() -> None:
        groups.before_collective()
        dist.all_reduce(data, group=group)

    return Call(
        "all_reduce",
        data.numel() * ELEMENT_BYTES,
        run,
        fill=lambda: fill(data, rank),
        wrong=lambda: count_wrong(data, n, n * (n - 1) // 2),
        clear=data.zero_,  # sums in place: other numbers would grow with every call
    )


def _broadcast(groups: Groups, size_bytes: int) -> Call:
    rank, group = groups.rank, groups.measured
    data = _buffer(groups, _elements(size_bytes))

    def run() -> None:
        groups.before_collective()
        dist.broadcast(data, 0, group=group)

    return Call(
        "broadcast",
        data.numel() * ELEMENT_BYTES,
        run,
        fill=lambda: fill(data, 7) if rank == 0 else data.fill_(-1),
        wrong=lambda: count_wrong(data, 1, 7),
    )


def _all_gather(groups: Groups, size_bytes: int, *, as_list: bool) -> Call:
    n, rank, group = groups.world_size, groups.rank, groups.measured
    share = _buffer(groups, _per_rank(groups, size_bytes))
    whole = _buffer(groups, n * share.numel())
    parts = list(whole.chunk(n))

    def run() -> None:
        groups.before_collective()
        if as_list:
            dist.all_gather(parts, share, group=group)
        else:
            dist.all_gather_into_tensor(whole, share, group=group)

    def write() -> None:
        fill(share, rank)
        whole.fill_(-1)

    return Call(
        "all_gather",
        whole.numel() * ELEMENT_BYTES,
        run,
        fill=write,
        wrong=lambda: sum(count_wrong(part, 1, source) for source, part in enumerate(parts)),
    )


def _reduce_scatter(groups: Groups, size_bytes: int, *, as_list: bool) -> Call:
    n, rank, group = groups.world_size, groups.rank, groups.measured
    share = _buffer(groups, _per_rank(groups, size_bytes))
    whole = _buffer(groups, n * share.numel())
    parts = list(whole.chunk(n))

    def run() -> None:
        groups.before_collective()
        if as_list:
            dist.reduce_scatter(share, parts, group=group)
        else:
            dist.reduce_scatter_tensor(share, whole, group=group)

    def write() -> None:
        for target, part in enumerate(parts):
            fill(part, target + rank)
        share.fill_(-1)

    return Call(
        "reduce_scatter",
        whole.numel() * ELEMENT_BYTES,
        run,
        fill=write,
        wrong=lambda: count_wrong(share, n, n * rank + n * (n - 1) // 2),
    )


def _all_to_all(groups: Groups, size_bytes: int) -> Call:
    n, rank, group = groups.world_size, groups.rank, groups.measured
    sent = _buffer(groups, n * _per_rank(groups, size_bytes))
    received = torch.zeros_like(sent)

    def run() -> None:
        groups.before_collective()
        dist.all_to_all_single(received, sent, group=group)

    def write() -> None:
        for target, part in enumerate(sent.chunk(n)):
            fill(part, rank * n + target)
        received.fill_(-1)

    return Call(
        "all_to_all",
        sent.numel() * ELEMENT_BYTES,
        run,
        fill=write,
        wrong=lambda: sum(count_wrong(p, 1, source * n + rank) for source, p in enumerate(received.chunk(n))),
    )


def _send_recv(groups: Groups, size_bytes: int) -> Call:
    """Every rank sends to the next and receives from the one before, as nccl-tests does."""
    n, rank, group = groups.world_size, groups.rank, groups.measured
    if n < 2:
        raise UnavailableError("needs two ranks")
    if groups.backend == "gloo" and groups.device.kind == "cuda":
        # It would hand the GPU's address to the socket, and lose the connection to the error.
        raise UnavailableError("gloo cannot send from a GPU's memory")
    sent = _buffer(groups, _elements(size_bytes))
    received = torch.zeros_like(sent)
    before, after = (rank - 1) % n, (rank + 1) % n

    def run() -> None:
        groups.before_collective()
        operations = [
            dist.P2POp(dist.isend, sent, after, group=group),
            dist.P2POp(dist.irecv, received, before, group=group),
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()

    def write() -> None:
        fill(sent, rank)
        received.fill_(-1)

    return Call(
        "send_recv",
        sent.numel() * ELEMENT_BYTES,
        run,
        fill=write,
        wrong=lambda: count_wrong(received, 1, before),
    )


def _barrier(groups: Groups, size_bytes: int) -> Call:
    del size_bytes
    return Call("barrier", 0, lambda: dist.barrier(group=groups.measured))


# Each collective's ways, the first that works is taken: some backends know only the form with lists.
_WAYS: dict[str, tuple[Maker, ...]] = {
    "all_reduce": (_all_reduce,),
    "broadcast": (_broadcast,),
    "all_gather": (partial(_all_gather, as_list=False), partial(_all_gather, as_list=True)),
    "reduce_scatter": (partial(_reduce_scatter, as_list=False), partial(_reduce_scatter, as_list=True)),
    "all_to_all": (_all_to_all,),
    "send_recv": (_send_recv,),
    "barrier": (_barrier,),
}
