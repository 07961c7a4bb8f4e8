"""A controller that does run after run in one process, as a notebook or a service would; for test_load.py.

Reads one JSON object a line from its input: options of `fab run`, or {"resume": RUN}, or {"deploy": true}. Answers
each with one line: the exit code, and what the process holds afterwards. It imports nothing of the tests' package:
it runs in the copy of the project whose hosts/ describes the lab.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from suite import actions, cluster_actions, console
from suite.errors import SuiteError


def interrupt(_number: int, _frame: object) -> None:
    """What the tasks make of SIGTERM, and Python of Ctrl-C."""
    raise KeyboardInterrupt


def work(order: dict[str, Any]) -> int:
    """Do one thing, as the tasks do it; its exit code."""
    try:
        if order.get("deploy"):
            return cluster_actions.deploy("", "", force=False)
        resume = str(order.pop("resume", ""))
        return actions.run("", actions.campaign_options(order), resume)
    except SuiteError as error:
        console.error(error)
        return error.exit_code


def held() -> dict[str, int]:
    """Descriptors, threads and resident kibibytes of this process."""
    gc.collect()
    status = Path("/proc/self/status").read_text(encoding="ascii")
    resident = next(line for line in status.splitlines() if line.startswith("VmRSS:")).split()[1]
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),  # noqa: PTH208 - without a descriptor of its own kept open
        "threads": threading.active_count(),
        "resident_kib": int(resident),
    }


def main() -> None:
    """Orders in, answers out, until the input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # the tables go where the progress goes
    signal.signal(signal.SIGTERM, interrupt)
    for line in sys.stdin:
        code = work(json.loads(line))
        answers.write(json.dumps({"code": code, **held()}) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
