"""The command line as it is typed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tasks
from suite.paths import RunPaths
from tests.support.synthetic import TWO_ARMS, Truth, write_run

ROOT = Path(__file__).resolve().parent.parent


def fab(*words: str, results: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ, **({"SUITE_RESULTS": str(results)} if results else {}))
    command = [str(Path(sys.executable).with_name("fab")), *words]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    return write_run(tmp_path / "runs", Truth(arms=TWO_ARMS))


def test_every_task_has_a_line_of_help_and_every_option_a_text() -> None:
    listed = fab("--list")
    assert listed.returncode == 0, listed.stderr
    names = set(re.findall(r"^  ([a-z.]+)  ", listed.stdout, flags=re.MULTILINE))
    assert names == tasks._TASKS
    for name in sorted(names):
        shown = fab("--help", name).stdout
        options = re.findall(r"^  --?[\w-]+(?:=STRING|=INT)?(.*)$", shown.partition("Options:")[2], flags=re.MULTILINE)
        assert all(text.strip() or "--arm" in shown for text in options), f"{name}: an option without help: {shown}"


@pytest.mark.parametrize("where", ["positional", "option", "newest"])
def test_a_run_can_be_named_or_left_out(run: RunPaths, where: str) -> None:
    words = {"positional": [run.run], "option": ["--run", run.run], "newest": []}[where]
    done = fab("report", *words, "--format", "csv", results=run.root.parent.parent)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("table,workload,world_size")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["report", "nothing"], 2, "There is no run 'nothing'"),
        (["report", "--format", "pdf"], 2, "--format pdf"),
        (["local", "--plan", "fast"], 2, "--plan fast"),
        (["local", "--backend", "tcp"], 2, "--backend tcp"),
        (["lab.up", "--hosts", "99"], 2, "--hosts 99"),
        (["verify", "/nowhere"], 2, "no published bundle there"),
        (["predict", "--parameters", "1e13"], 2, "--parameters 1e13: no number from 1 to 1e+12"),
        (["verify", "b" * 5000], 2, "no published bundle there"),
        (["report", "r" * 5000], 2, "There is no run 'rrr"),
        (["local", "--backend", "gloo", "--deadline", "99999999999h"], 2, "--deadline 99999999999h"),
        (["local", "--arm", "a=gloo,X=\udcff"], 2, "--arm a"),
        (["bench", "--only", "nothing"], 2, "--only nothing"),
        (["lab.fault", "kill", "--host", "h1", "--port", "22"], 2, "--port 22: kill takes no port"),
        (["lab.fault", "port-taken", "--host", "h1", "--port", "99999"], 2, "--port 99999"),
        (["run", "--nonsense"], 2, "No idea what '--nonsense' is! Fix: `fab --list`"),
        (["nonsense"], 2, "No idea what 'nonsense' is! Fix: `fab --list`"),
        (["run", "--backend"], 2, "backend"),
    ],
)
def test_wrong_usage_costs_exit_2_and_says_what_to_write(
    words: list[str], code: int, said: str, tmp_path: Path
) -> None:
    done = fab(*words, results=tmp_path)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == [], "wrong usage changes nothing on disk"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("plan.json", ["report"]),
        ("manifest.json", ["report"]),
        ("plan.json", ["local", "--resume"]),
        ("plan.json", ["publish", "--name", "x", "--run"]),
        ("manifest.json", ["collect"]),
    ],
)
def test_a_damaged_plan_or_ledger_is_named_and_costs_exit_2(run: RunPaths, name: str, words: list[str]) -> None:
    path = run.root / name
    path.write_bytes(path.read_bytes()[:100])
    before = {p: p.read_bytes() for p in run.root.rglob("*") if p.is_file()}
    done = fab(*words, run.root.name, results=run.root.parent.parent)
    assert done.returncode == 2, done.stderr
    assert f"{name}: truncated or damaged" in done.stderr
    assert "Fix: restore it from a copy of the run" in done.stderr
    assert {p: p.read_bytes() for p in run.root.rglob("*") if p.is_file()} == before


def test_a_table_is_printed_where_the_locale_lacks_its_signs(run: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    done = fab("report", run.run, results=run.root.parent.parent)
    assert done.returncode == 0, done.stderr
    assert "gloo is fastest; mpi takes 2.3" in done.stdout


def test_a_results_folder_that_cannot_be_written_is_named_and_costs_exit_2(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.write_text("a file, no folder")
    done = fab("local", "--backend", "gloo", results=taken)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr
    assert f"{taken}/runs/" in done.stderr
    assert "SUITE_RESULTS" in done.stderr


def test_a_full_disk_is_told_and_costs_exit_1(run: RunPaths) -> None:
    command = [str(Path(sys.executable).with_name("fab")), "report", run.run]
    environment = dict(os.environ, SUITE_RESULTS=str(run.root.parent.parent))
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    assert done.returncode == 1
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_field_that_may_vary_must_exist(run: RunPaths) -> None:
    done = fab("compare", run.run, run.run, "--vary", "troch", results=run.root.parent.parent)
    assert done.returncode == 2, done.stderr
    assert "--vary troch" in done.stderr
    assert fab("compare", run.run, run.run, "--vary", "torch", results=run.root.parent.parent).returncode == 0
