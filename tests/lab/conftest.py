"""The lab that the tests of this folder share: four simulated hosts, started once, sound before every test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from suite.cluster import lab
from suite.cluster.inventory import Cluster, load
from suite.cluster.lab_engine import LabEngine
from suite.cluster.lab_parts import LabFiles

Shell = Callable[[str, str], str]


@pytest.fixture(scope="session")
def lab_root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a lab of four hosts; its cluster file is hosts/lab.toml in it."""
    root = tmp_path_factory.mktemp("lab")
    try:
        lab.up(4, root=root, progress=print)
        yield root
    finally:
        lab.down(root=root, progress=print)


@pytest.fixture
def sound_lab(lab_root: Path) -> Iterator[Path]:
    """The same; whatever the test broke or limited is undone after it."""
    yield lab_root
    lab.heal(root=lab_root)
    lab.link("off", root=lab_root)


@pytest.fixture(scope="session")
def cluster(lab_root: Path) -> Cluster:
    """The lab's cluster file, read as any other."""
    return load(lab_root / "hosts" / "lab.toml")


@pytest.fixture(scope="session")
def lab_engine(lab_root: Path) -> Iterator[LabEngine]:
    """The lab's hosts as this machine's engine sees them: works whatever has become of their network."""
    engine = LabEngine(LabFiles(lab_root))
    yield engine
    engine.close()


@pytest.fixture(scope="session")
def on_host(lab_engine: LabEngine) -> Shell:
    """Run a line of shell on a host as root; what it printed. HostError when it fails."""
    return lambda host, line: lab_engine.command(host, "bash", "-c", line)
