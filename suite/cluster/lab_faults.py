"""What can go wrong with a simulated host, on purpose: break it, and mend it.

Every kind acts on one host from inside (``docker/lab-fault``) or on its container from this machine, so that
a cut network does not keep the cure away. ``heal`` undoes every kind, whichever was used.
"""

from __future__ import annotations

import time
from pathlib import Path

from suite.cluster.lab_engine import LabEngine
from suite.cluster.lab_parts import LabFiles
from suite.errors import HostError, UsageError

PORT_TAKEN = "port-taken"
KINDS = {
    "network-cut": "all packets of the host are dropped in both directions, silently; loopback stays",
    "slow-link": "the host sends at 1 Mbit/s",
    "pause": "every process of the host stands still; connections stay open",
    "kill": "the host dies at once, as without power; healing it boots it again",
    "disk-full": "no byte is left where the host's engine keeps images and containers",
    "sshd-gone": "the host's sshd and its open sessions are gone",
    "container-sshd-gone": "the sshd inside the worker's container is gone",
    "docker-gone": "the host's Docker engine is stopped, its containers with it",
    "docker-restart": "the host's Docker engine is restarted; its containers end",
    "clock-skew": "the host's date command is 10 minutes ahead (a stand-in: containers share the machine's clock)",
    PORT_TAKEN: "a foreign process listens on a port of the host (2222 unless another is named)",
}
DEFAULT_PORT = 2222
HEAL_SECONDS = 60.0
_POLL_SECONDS = 0.25
_FROM_OUTSIDE = ("pause", "kill")


def fault(kind: str, host: str, *, root: Path, port: int = DEFAULT_PORT) -> None:
    """Break one host of the lab of ``root``. ``port`` is for "port-taken" only.

    Raises:
        UsageError: no such kind or host, or no lab.
        HostError: it could not be broken: it is down already, or this machine cannot do that.
    """
    if kind not in KINDS:
        raise UsageError(f"There is no fault {kind!r}.", fix=f"name one of {', '.join(KINDS)}.")
    engine = LabEngine(LabFiles(root))
    try:
        (name,) = engine.chosen(host)
        if kind in _FROM_OUTSIDE:
            engine.signal(name, kind)
        else:
            engine.command(name, "lab-fault", "break", kind, str(port))
    finally:
        engine.close()


def heal(host: str | None = None, *, root: Path) -> tuple[str, ...]:
    """Undo every fault of ``host`` (None: of every host) and wait until it answers; returns the hosts' names.

    Limits set with ``link`` are restored. Containers that ended with a fault stay ended: the next ``deploy``
    starts them.

    Raises:
        UsageError: no such host, or no lab.
        HostError: a host did not answer again in time.
    """
    engine = LabEngine(LabFiles(root))
    try:
        names = engine.chosen(host)
        states = engine.hosts()
        for name in names:
            if states[name] == "paused":
                engine.signal(name, "unpause")
            elif states[name] != "running":
                engine.signal(name, "start")
        for name in names:
            _mend(engine, name)
        return names
    finally:
        engine.close()


def _mend(engine: LabEngine, name: str) -> None:
    engine.command(name, "lab-fault", "mend", timeout=HEAL_SECONDS)
    deadline = time.monotonic() + HEAL_SECONDS
    while not (ready := engine.run(name, "lab-host", "ready")).ok:
        if time.monotonic() > deadline:
            raise HostError(
                name,
                f"does not answer {HEAL_SECONDS:.0f} s after it was healed: {ready.complaint}",
                fix="make the lab anew: `fab lab.down lab.up`.",
            )
        time.sleep(_POLL_SECONDS)
