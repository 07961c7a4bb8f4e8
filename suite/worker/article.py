"""The published script's protocol, as it was: ten iterations by ``time.time()`` and their mean.

No warm-up, no device synchronisation, no optimizer, no gradient reset. On a GPU this times how fast work is
queued rather than done. The published script also started nccl whatever backend was asked for; that was a
mistake, not a protocol, and is not repeated here.
"""

from __future__ import annotations

import time

from suite.worker.steps import Trainee

ITERATIONS = 10


def published_mean(trainee: Trainee) -> float:
    """Mean seconds of an iteration as the published script measured it."""
    times = []
    for _ in range(ITERATIONS):
        start = time.time()
        outputs = trainee.model(trainee.inputs)
        loss = trainee.loss_fn(outputs, trainee.targets)
        loss.backward()
        times.append(time.time() - start)
    return sum(times) / len(times)
