from __future__ import annotations

import subprocess
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from suite.worker import packages as module
from suite.worker.packages import distribution, packages


def test_python_packages_are_those_that_are_installed() -> None:
    assert packages()["pypi/pytest"] == metadata.version("pytest")


def test_packages_of_the_distribution_are_told_under_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "installed libc6 2.41-12\nconfig-files gone 1.0\ninstalled openssh-server 1:10.0p1-7\nodd\n"
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(stdout=said))
    monkeypatch.setattr(module, "distribution", lambda _path: "debian")
    found = {key: version for key, version in packages().items() if key.startswith("deb/")}
    assert found == {"deb/debian/libc6": "2.41-12", "deb/debian/openssh-server": "1:10.0p1-7"}


def test_without_a_package_manager_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> None:
        raise FileNotFoundError("dpkg-query")

    monkeypatch.setattr(subprocess, "run", missing)
    assert not any(key.startswith("deb/") for key in packages())


@pytest.mark.parametrize(
    ("text", "name"), [('NAME="Ubuntu"\nID=ubuntu\n', "ubuntu"), ('ID="debian"\n', "debian"), ("", "debian")]
)
def test_the_distribution_is_named_as_it_names_itself(tmp_path: Path, text: str, name: str) -> None:
    path = tmp_path / "os-release"
    path.write_text(text)
    assert distribution(path) == name
    assert distribution(tmp_path / "missing") == "debian"
