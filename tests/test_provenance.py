"""Which suite this is."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from suite import provenance


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the package, as an image has one; the module believes to be in it."""
    root = tmp_path / "suite"
    source = Path(provenance.__file__).parent
    shutil.copytree(source, root, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
    monkeypatch.setattr(provenance, "__file__", str(root / "provenance.py"))
    return root


def test_an_image_of_the_same_files_has_the_same_digest(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copied = provenance.code_digest()
    monkeypatch.undo()
    assert provenance.code_digest() == copied
    assert len(copied) == 16


@pytest.mark.parametrize(
    ("changed", "differs"),
    [
        ("worker/steps.py", True),
        ("records.py", True),
        ("worker/another.py", True),
        ("report/terminal.py", False),  # judges, and measures nothing
        ("worker/__pycache__/steps.pyc", False),
    ],
)
def test_the_digest_is_of_what_a_worker_runs(copy: Path, changed: str, differs: bool) -> None:
    before = provenance.code_digest()
    path = copy / changed
    path.parent.mkdir(exist_ok=True)
    with path.open("a", encoding="utf-8") as stream:
        stream.write("# changed\n")
    assert (provenance.code_digest() != before) is differs
