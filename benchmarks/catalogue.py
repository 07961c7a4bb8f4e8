"""``fab bench``: the scripts of this folder, each in a process of its own, their results kept as JSON.

Each script answers one question about what the suite itself costs: ``python -m benchmarks.NAME [--quick] [--json
PATH]`` prints a small table and exits 0 when its limits are met, 1 when one is missed.
"""

from __future__ import annotations

import subprocess
import sys

from suite import console
from suite.errors import EXIT_FAILED, EXIT_OK, UsageError
from suite.options import words
from suite.paths import project_root

QUESTIONS = {
    "statistics_simulation": "how often are verdicts false, and intervals wrong?",
    "verdict_time": "how many blocks does a verdict take?",
    "report_scale": "what does a report over many ranks and steps cost?",
    "image_fidelity": "are the suite's step and collective times those of bare programs?",
    "link_limit": "does gloo reach what the link carries, and is it recovered from the sweep?",
    "slow_link": "does a slower link expose communication and leave the computation alone?",
    "campaign_overhead": "what does a launch cost beyond its ranks' lives?",
    "deploy": "what does a deploy send, and how long does it take?",
    "controller_scale": "how do check, collection and fan-out grow with hosts?",
    "launch_scale": "what would the launch and collect path cost at 1,000 ranks?",
}
DEADLINE_SECONDS = 3600.0


def run(only: str, quick: bool) -> int:
    """Run the chosen benchmarks, one after the other; exit 1 when one failed or missed a limit."""
    chosen = words(only) or list(QUESTIONS)
    for name in chosen:
        if name not in QUESTIONS:
            raise UsageError(f"--only {name}: there is no such benchmark.", fix=f"use {', '.join(QUESTIONS)}.")
    folder = project_root() / "benchmarks" / "results"
    folder.mkdir(exist_ok=True)
    missed = []
    for name in chosen:
        console.say(f"{name}: {QUESTIONS[name]}")
        command = [sys.executable, "-m", f"benchmarks.{name}", "--json", str(folder / f"{name}.json")]
        try:
            done = subprocess.run(
                [*command, *(["--quick"] if quick else [])],
                cwd=project_root(),
                timeout=DEADLINE_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            console.say(f"{name}: took more than {DEADLINE_SECONDS:g} s and was ended.")
            missed.append(name)
            continue
        if done.returncode:
            missed.append(name)
    if missed:
        console.say(f"Failed or missed a limit: {', '.join(missed)}.")
    return EXIT_FAILED if missed else EXIT_OK
