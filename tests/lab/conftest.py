"""The lab that the tests of this folder share: four simulated hosts, started once, sound before every test."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from suite.cluster import lab
from suite.cluster.inventory import Cluster, load
from suite.cluster.lab_engine import LabEngine
from suite.cluster.lab_parts import LabFiles
from tests.lab.fault_support import Project, build_image

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


@pytest.fixture(scope="session")
def project(request: pytest.FixtureRequest) -> Project:
    """A copy of the project around the shared lab, for tests of the command line itself.

    SUITE_TEST_LAB names the folder of a lab that is up already and is to stay so, while tests are written.
    """
    given = os.environ.get("SUITE_TEST_LAB")
    root = Path(given) if given else request.getfixturevalue("lab_root")
    assert isinstance(root, Path)
    made = Project(root)
    made.copy_code()
    made.write_cluster()
    return made


@pytest.fixture(scope="module")
def deployed(project: Project, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """The same with the suite deployed on all four hosts, by `fab deploy`; a module's own, gone after it."""
    build_image()
    results = tmp_path_factory.mktemp("deploy")
    done = project.fab("deploy", results=results, timeout=600)
    assert done.code == 0, done
    try:
        yield project
    finally:
        if "SUITE_TEST_LAB" not in os.environ:
            project.fab("stop", results=results)


@pytest.fixture
def sound(deployed: Project) -> Iterator[Project]:
    """The deployed hosts; whatever the test broke is undone after it, and the deployment is whole again."""
    deployed.forget_launches()
    yield deployed
    deployed.mend()
