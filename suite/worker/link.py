"""B, the bandwidth of the links: a window of sends from one rank to the next with one acknowledgement.

One pair at a time, so that every pair has the wire for itself. The sender's clock runs from its first send
to the acknowledgement that the receiver sends after its last byte.
"""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from suite.records import CollectiveSamples
from suite.worker.groups import Groups

KIB = 1024
SMALLEST_WINDOW = 64 * KIB
LARGEST_WINDOW = 128 * KIB * KIB
LARGEST_MESSAGE = 4 * KIB * KIB
GROWTH = 4
# A window this long has outlived buffers and a traffic shaper's burst; then its rate says what to measure.
SETTLED_SECONDS = 0.06
WINDOW_SECONDS = 0.25
WINDOWS = 4
SLOW_WINDOWS = 2  # on links where even the smallest window takes long
TOO_LONG_SECONDS = 5.0
_END = 0


def measure_links(groups: Groups) -> tuple[CollectiveSamples, ...]:
    """The windows that this rank sent, as samples of purpose "link". Collective: all ranks together."""
    n = groups.world_size
    samples: list[CollectiveSamples] = []
    if n < 2:
        return ()
    # gloo cannot send from a GPU's memory; and the link is the same link.
    on_device = groups.backend == "nccl"
    place = groups.device.torch_device if on_device else torch.device("cpu")
    for sender in range(n):
        receiver = (sender + 1) % n
        groups.barrier()
        if groups.rank == sender:
            samples.append(_send_windows(groups, receiver, place))
        elif groups.rank == receiver:
            _receive_windows(groups, sender, place)
    groups.barrier()
    return tuple(samples)


def _send_windows(groups: Groups, receiver: int, place: torch.device) -> CollectiveSamples:
    window = SMALLEST_WINDOW
    while True:
        seconds = _send_window(groups, receiver, window, place) / 1e9
        if seconds >= SETTLED_SECONDS or window >= LARGEST_WINDOW:
            break
        window = min(GROWTH * window, LARGEST_WINDOW)
    if seconds <= TOO_LONG_SECONDS:
        wanted = window * WINDOW_SECONDS / seconds
        window = max(SMALLEST_WINDOW, min(LARGEST_WINDOW, int(wanted) // SMALLEST_WINDOW * SMALLEST_WINDOW))
    count = WINDOWS if seconds < 1 else SLOW_WINDOWS
    times = tuple(_send_window(groups, receiver, window, place) for _ in range(count))
    _announce(receiver, _END)
    return CollectiveSamples("send_recv", window, times, purpose="link")


def _announce(receiver: int, window: int) -> None:
    """Tell the receiver, over the control group, how much is coming."""
    dist.send(torch.tensor([window]), receiver)


def _send_window(groups: Groups, receiver: int, window: int, place: torch.device) -> int:
    """Send one window; nanoseconds until it was acknowledged."""
    _announce(receiver, window)
    data = torch.zeros(window // 4, device=place)
    acknowledgement = torch.zeros(1, device=place)
    dist.recv(torch.zeros(1), receiver)  # the receiver has posted its receives
    device = groups.device
    device.synchronise()
    start = time.perf_counter_ns()
    works = [dist.isend(part, receiver, group=groups.measured) for part in _messages(data)]
    for work in works:
        work.wait()
    dist.recv(acknowledgement, receiver, group=groups.measured)
    device.synchronise()
    return time.perf_counter_ns() - start


def _receive_windows(groups: Groups, sender: int, place: torch.device) -> None:
    device = groups.device
    coming = torch.zeros(1, dtype=torch.int64)
    while True:
        dist.recv(coming, sender)
        if int(coming) == _END:
            return
        data = torch.zeros(int(coming) // 4, device=place)
        device.synchronise()
        works = [dist.irecv(part, sender, group=groups.measured) for part in _messages(data)]
        dist.send(torch.zeros(1), sender)
        for work in works:
            work.wait()
        dist.send(torch.zeros(1, device=place), sender, group=groups.measured)
        device.synchronise()


def _messages(data: torch.Tensor) -> list[torch.Tensor]:
    return list(data.split(LARGEST_MESSAGE // 4))
