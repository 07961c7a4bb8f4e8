"""B, the bandwidth of the links: a stream of windows of sends from one rank to the next.

One pair at a time, so that every pair has the wire for itself. The receiver acknowledges each window; the sender is
always one window ahead, so the link is never idle and no buffer or traffic shaper on the way can save up credit
between two windows. A window's time is that from the arrival of the window before to its own, by the receiver's
clock: the sender sees acknowledgements in bunches, behind what it is sending. The first two windows, which fill the
way together (Open MPI sends their parts in turn), are left out.
"""

from __future__ import annotations

import time
from itertools import pairwise

import torch
import torch.distributed as dist

from suite.records import CollectiveSamples
from suite.worker.groups import Groups

KIB = 1024
SMALLEST_WINDOW = 64 * KIB
LARGEST_WINDOW = 128 * KIB * KIB
LARGEST_MESSAGE = 4 * KIB * KIB
GROWTH = 4
TRIES = 3
# A window this long says what its link's rate is, well enough to choose the size of the measured ones.
SETTLED_SECONDS = 0.05
WINDOW_SECONDS = 0.2
WINDOWS = 4
FIRST = 2
SLOW_WINDOWS = 2  # on links where even small windows take long
TOO_LONG_SECONDS = 2.0


def measure_links(groups: Groups) -> tuple[CollectiveSamples, ...]:
    """The windows that this rank sent, as samples of purpose "link". Collective: all ranks together."""
    n = groups.world_size
    samples: list[CollectiveSamples] = []
    if n < 2:
        return ()
    # gloo cannot send from a GPU's memory, and the link is the same link.
    place = groups.device.torch_device if groups.backend == "nccl" else torch.device("cpu")
    for sender in range(n):
        receiver = (sender + 1) % n
        groups.barrier()
        if groups.rank == sender:
            # NCCL makes a pair's communicator at its first message and waits there for both ranks, even in irecv: so
            # both come to one at once, before either waits for the other over the control group.
            dist.send(torch.zeros(1, device=place), receiver, group=groups.measured)
            samples.append(_measure(groups, receiver, place))
        elif groups.rank == receiver:
            dist.recv(torch.zeros(1, device=place), sender, group=groups.measured)
            _serve(groups, sender, place)
    groups.barrier()
    return tuple(samples)


def _measure(groups: Groups, receiver: int, place: torch.device) -> CollectiveSamples:
    window, times = SMALLEST_WINDOW, [0]
    while window < LARGEST_WINDOW:
        times = _send_stream(groups, receiver, window, 1, place)
        if times[0] >= SETTLED_SECONDS * 1e9:
            break
        window = min(GROWTH * window, LARGEST_WINDOW)
    for _ in range(TRIES):
        # What was measured first can be far off: a stall, or a burst. So look again whether it was long enough.
        window = _next_window(window, times)
        slow = times[0] > TOO_LONG_SECONDS * 1e9
        times = _send_stream(groups, receiver, window, SLOW_WINDOWS if slow else WINDOWS, place)
        if sorted(times)[len(times) // 2] >= WINDOW_SECONDS * 1e9 / 2 or window >= LARGEST_WINDOW:
            break
    _announce(receiver, 0, 0)
    return CollectiveSamples("send_recv", window, tuple(times), purpose="link")


def _next_window(window: int, times: list[int]) -> int:
    """The size that should take ``WINDOW_SECONDS`` at the rate of the fastest window so far."""
    fastest = min(times)
    if fastest == 0:  # nothing was measured: the largest window was reached at once
        return window
    wanted = int(window * WINDOW_SECONDS * 1e9 / fastest) // SMALLEST_WINDOW * SMALLEST_WINDOW
    return max(SMALLEST_WINDOW, min(LARGEST_WINDOW, wanted))


def _announce(receiver: int, window: int, count: int) -> None:
    """Tell the receiver, over the control group, what is coming; a window of 0 ends it."""
    dist.send(torch.tensor([window, count]), receiver)


def _send_stream(groups: Groups, receiver: int, window: int, count: int, place: torch.device) -> list[int]:
    """Send ``FIRST`` windows more than ``count``; nanoseconds of the last ``count``, as the receiver timed them."""
    _announce(receiver, window, count)
    data = torch.zeros(window // 4, device=place)
    acknowledgement = torch.zeros(1, device=place)
    dist.recv(torch.zeros(1), receiver)  # the receiver has posted its receives
    groups.device.synchronise()
    works = _isend(groups, receiver, data)
    for number in range(FIRST + count):
        if number < FIRST + count - 1:
            works += _isend(groups, receiver, data)
        dist.irecv(acknowledgement, receiver, group=groups.measured).wait()
        groups.device.synchronise()
    for work in works:
        work.wait()
    times = torch.zeros(count, dtype=torch.int64)
    dist.recv(times, receiver)
    return [int(time_ns) for time_ns in times.tolist()]


def _isend(groups: Groups, receiver: int, data: torch.Tensor) -> list[dist.Work]:
    return [dist.isend(part, receiver, group=groups.measured) for part in _messages(data)]


def _serve(groups: Groups, sender: int, place: torch.device) -> None:
    """Receive and acknowledge streams until the sender has enough."""
    coming = torch.zeros(2, dtype=torch.int64)
    while True:
        dist.recv(coming, sender)
        window, count = coming.tolist()
        if window == 0:
            return
        buffers = [torch.zeros(window // 4, device=place) for _ in range(2)]
        acknowledgement = torch.zeros(1, device=place)
        groups.device.synchronise()
        posted = [_irecv(groups, sender, buffer) for buffer in buffers]
        dist.send(torch.zeros(1), sender)
        stamps = []
        for number in range(FIRST + count):
            for work in posted[number]:
                work.wait()
            groups.device.synchronise()
            stamps.append(time.perf_counter_ns())
            dist.send(acknowledgement, sender, group=groups.measured)
            if number + 2 < FIRST + count:
                posted.append(_irecv(groups, sender, buffers[number % 2]))
        groups.device.synchronise()
        times = [after - before for before, after in pairwise(stamps)]
        dist.send(torch.tensor(times[-count:]), sender)


def _irecv(groups: Groups, sender: int, buffer: torch.Tensor) -> list[dist.Work]:
    return [dist.irecv(part, sender, group=groups.measured) for part in _messages(buffer)]


def _messages(data: torch.Tensor) -> list[torch.Tensor]:
    return list(data.split(LARGEST_MESSAGE // 4))
