"""Data flows one way, and so do imports."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# From left to right; a module may import what stands in its own group or to the left of it.
GROUPS = (
    ("errors", "numerals", "records", "summary", "policy"),
    ("paths", "codec", "console", "provenance", "limits"),
    ("plan", "launcher"),
    ("options", "schema"),
    ("worker",),
    ("cluster",),
    ("analysis",),
    ("report",),
    ("campaign", "campaign_pilot", "campaign_progress", "campaign_stop"),
    ("result_actions", "cluster_actions"),
    ("actions",),
)
# The worker runs where only these are installed.
WORKER_MAY_IMPORT = {"torch", "torchvision", "mpi4py", "numpy", "pynvml", "suite"}
OWNERS = {
    "torch": "worker",
    "mpi4py": "worker",
    "torchvision": "worker",
    "fabric": "cluster",
    "docker": "cluster",
    "paramiko": "cluster",
}
EARLY = ("errors", "numerals", "records", "paths", "policy", "limits")  # imported by the worker: standard library only


def place(module: str) -> int:
    name = module.split(".")[1] if "." in module else module
    for number, group in enumerate(GROUPS):
        if name in group:
            return number
    raise AssertionError(f"suite.{name} has no place in the order: add it to GROUPS")


def modules() -> list[tuple[str, Path]]:
    found = []
    for path in sorted((ROOT / "suite").rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        if name != "suite":
            found.append((name, path))
    return found


def imports(path: Path) -> set[str]:
    """Every module that a file imports, at its top or later."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative imports hide the order"
            found |= {f"suite.{alias.name}" for alias in node.names} if node.module == "suite" else {node.module}
    return found


@pytest.mark.parametrize(("name", "path"), modules(), ids=[name for name, _ in modules()])
def test_a_module_imports_nothing_to_its_right(name: str, path: Path) -> None:
    for imported in imports(path):
        top = imported.split(".")[0]
        if top == "suite" and imported not in ("suite", "suite.__version__"):
            assert place(imported) <= place(name), f"{name} imports {imported}, which stands to its right"
        owner = OWNERS.get(top)
        assert owner is None or name.startswith(f"suite.{owner}"), f"{name} imports {top}, which is {owner}'s alone"


@pytest.mark.parametrize(
    ("name", "path"), [m for m in modules() if m[0].startswith("suite.worker") or m[0].split(".")[-1] in EARLY]
)
def test_what_runs_in_a_container_imports_only_what_a_container_has(name: str, path: Path) -> None:
    foreign = {i.split(".")[0] for i in imports(path)} - set(sys.stdlib_module_names) - WORKER_MAY_IMPORT
    assert not foreign, f"{name} imports {foreign}"


def test_the_tests_for_a_gpu_machine_need_nothing_but_torch_numpy_and_pytest() -> None:
    left = [*(ROOT / "tests" / "gpu").glob("*.py"), ROOT / "tests" / "conftest.py", ROOT / "suite/worker/launch.py"]
    seen: set[Path] = set()
    foreign: dict[str, set[str]] = {}
    while left:
        path = left.pop()
        if path in seen:
            continue
        seen.add(path)
        for name in imports(path):
            top = name.split(".")[0]
            if top in ("suite", "tests"):
                file = ROOT.joinpath(*name.split("."))
                left += [p for p in (file.with_suffix(".py"), file / "__init__.py") if p.is_file()]
            elif top not in sys.stdlib_module_names:
                foreign.setdefault(top, set()).add(str(path.relative_to(ROOT)))
    assert len(seen) > 20
    optional = {"torchvision", "mpi4py", "pynvml"}  # used where they are there
    assert set(foreign) - optional == {"torch", "numpy", "pytest"}, foreign


def test_a_report_loads_neither_ssh_nor_docker_nor_torch() -> None:
    code = (
        "import sys, suite.report, suite.analysis.summarise, suite.report.html;"
        "print([m for m in ('torch','fabric','docker','paramiko','matplotlib') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"


def test_the_folder_docker_is_no_package() -> None:
    assert not (ROOT / "docker" / "__init__.py").exists(), "it would hide the Docker SDK"
