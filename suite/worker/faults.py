"""Deliberate faults, so that tests and a user can see that the suite notices them.

``corrupt-gradient@R`` corrupts rank R's averaged gradients in the gate, ``raise@R`` raises in its measured loop,
``kill@R`` and ``stop@R`` send it SIGKILL and SIGSTOP there, ``hang@R`` makes it sleep for ever.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import torch

from suite.errors import LaunchError
from suite.limits import FAULTS
from suite.numerals import natural
from suite.worker.workloads import LossFunction

AT_CALL = 3  # the measured step in which it happens


def injected(inject: str | None, rank: int) -> str | None:
    """The kind of fault that this rank is to show; None for all others.

    Raises:
        LaunchError: not KIND@RANK.
    """
    if inject is None:
        return None
    kind, _, place = inject.partition("@")
    number = natural(place)
    if kind not in FAULTS or number is None:
        raise LaunchError(f"There is no fault {inject!r}.", fix=f"use one of {', '.join(FAULTS)}, with @RANK.")
    return kind if number == rank else None


def faulty_loss(kind: str, loss_fn: LossFunction) -> LossFunction:
    """The loss function, failing as asked when it is called for the third time."""
    calls = 0

    def wrapped(outputs: Any, targets: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == AT_CALL:
            _happen(kind)
        return loss_fn(outputs, targets)

    return wrapped


def _happen(kind: str) -> None:
    print(f"injected fault: {kind}", flush=True)
    if kind == "raise":
        raise RuntimeError("injected fault: raise")
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    while kind == "hang":
        time.sleep(3600)
