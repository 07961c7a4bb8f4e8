"""The README's figures are those of a committed bundle, and its commands exist.

python -m tests.test_readme --write      put the bundle's table into the README again
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from suite import codec
from suite.report import terminal
from suite.summary import Summary

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
BUNDLE = "lab-1-gbit"
BEGIN, END = "<!-- result: begin -->", "<!-- result: end -->"
CAPTION = (
    "Measured on **four simulated hosts that share one 2-core machine** (each link limited to 1 Gbit/s), published as\n"
    f"[{BUNDLE}](results/published/{BUNDLE}/report.md). It shows what the suite says, not how fast a real cluster is:"
)
PICTURE = (
    "![The HTML report of that run: verdict, table, step times of every launch, exposed communication](docs/report.png)"
)


def block() -> str:
    """What stands between the README's marks: caption, the bundle's table as the terminal shows it, the picture."""
    path = ROOT / "results" / "published" / BUNDLE / "summary.json"
    text = terminal.render(codec.read(path, Summary))
    # One comparison, with all of its warnings; the others are in the report.
    parts = re.split(r"^(?=\S+, (?:world size|every world))", text, flags=re.MULTILINE)
    shown = next(part for part in parts if part.startswith("linear, world size 4,")).rstrip()
    return f"{CAPTION}\n\n```\n{shown}\n```\n\n{PICTURE}\n"


def test_the_readme_shows_a_committed_bundle() -> None:
    shown = README.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0].strip()
    assert shown == block().strip(), "run: python -m tests.test_readme --write"


def test_the_bundle_that_the_readme_shows_can_be_verified_by_its_name() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fabric", "verify", BUNDLE],
        cwd=ROOT,
        env={**os.environ, "SUITE_RESULTS": str(ROOT / "results")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    files = len((ROOT / "results" / "published" / BUNDLE / "SHA256SUMS").read_text().splitlines())
    assert f"{BUNDLE}: {files} files and the recomputed summary are as published." in done.stdout


def test_every_link_of_the_documentation_leads_somewhere() -> None:
    for page in [README, *sorted((ROOT / "docs").glob("*.md")), ROOT / "CONTRIBUTING.md"]:
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target} does not exist"


def test_every_task_that_the_readme_names_exists_with_help() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fabric", "--list"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    known = {line.split()[0]: line for line in done.stdout.splitlines() if line.startswith("  ") and line.strip()}
    named = set(re.findall(r"(?:^|`)fab ([a-z.]+)", README.read_text(encoding="utf-8"), flags=re.M))
    assert named, "the README names no task"
    assert named <= set(known), f"unknown tasks: {named - set(known)}"
    assert all(len(line.split()) > 2 for name, line in known.items() if name in named), "a task without help"


if __name__ == "__main__" and sys.argv[1:] == ["--write"]:
    before, _, rest = README.read_text(encoding="utf-8").partition(BEGIN)
    README.write_text(f"{before}{BEGIN}\n{block()}{END}{rest.partition(END)[2]}", encoding="utf-8")
