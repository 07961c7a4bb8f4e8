"""Nobody let in, nothing given away: what a run on the simulated hosts listens on, and what it leaves behind."""

from __future__ import annotations

import json
import lzma
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from suite.paths import RunPaths, project_root
from suite.policy import ENVIRONMENT_PREFIX, is_settable
from tests.lab.fault_support import CLUSTER, DEADLINE, IMAGE, NAMES, PATIENCE, VOLUME, Done, Project, ending, only_run

pytestmark = [pytest.mark.containers, pytest.mark.timeout(400 * PATIENCE)]

# In the controller's environment, as a user's may be: none of it is the suite's business.
PLANTED = {
    "AWS_SECRET_ACCESS_KEY": "planted-8f2c1e77a90b4d6fa3",
    "GITHUB_TOKEN": "ghp_planted5d1c9e0a7b3f4e2d8c6a",
    "DATABASE_URL": "postgres://user:planted-a61f@db.example/x",
    "NCCL_SECRET_TOKEN": "planted-nccl-51b7",
    "SOME_PRIVATE_SETTING": "planted-anything-c0de",
}
BUILT = "ddp-backend-suite:cpu"  # what `fab build` makes
PRIVATE_KEY = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----|PRIVATE KEY BLOCK")


@dataclass(frozen=True)
class Observed:
    """A run, and who listened where on each host while its ranks ran: (program, address, port)."""

    done: Done
    run: RunPaths
    listeners: dict[str, set[tuple[str, str, int]]]


def listeners(project: Project, host: str) -> set[tuple[str, str, int]]:
    text = project.on_host(host, "ss -Hltnp")
    return {
        (match.group(1) if (match := re.search(r'\(\("([^"]+)"', line)) else "", *_place(line.split()[3]))
        for line in text.splitlines()
    }


def _place(text: str) -> tuple[str, int]:
    address, _, port = text.rpartition(":")
    # A socket for both families shows its IPv4 address written the IPv6 way.
    return address.strip("[]").partition("%")[0].removeprefix("::ffff:"), int(port)


@pytest.fixture(scope="module")
def observed(deployed: Project, tmp_path_factory: pytest.TempPathFactory) -> Observed:
    """A short run of gloo and mpi on two hosts, watched from the hosts."""
    results = tmp_path_factory.mktemp("watched")
    before = {host: listeners(deployed, host) for host in ("h1", "h2")}
    seen: dict[str, set[tuple[str, str, int]]] = {host: set() for host in before}
    options = ("--backend", "gloo,mpi", "--blocks", "1", "--steps", "5", "--world", "2", "--deadline", f"{DEADLINE:g}s")
    with ending(deployed.start("run", *options, results=results, **PLANTED)) as fab:
        while fab.process.poll() is None:
            for host in seen:
                seen[host] |= listeners(deployed, host)
        done = fab.end(5)
    assert done.code == 0, done
    return Observed(done, only_run(results), {host: seen[host] - before[host] for host in seen})


# Listening


def address_of(project: Project, host: str) -> str:
    found = re.search(rf'name = "{host}"\naddress = "(.+)"', (project.root / "hosts/lab.toml").read_text())
    assert found
    return found.group(1)


def test_the_sshd_in_the_container_listens_on_the_clusters_address_only(deployed: Project) -> None:
    for host in NAMES:
        found = {(address, port) for _, address, port in listeners(deployed, host) if port == 2222}
        assert found == {(address_of(deployed, host), 2222)}


def test_ranks_and_their_launchers_listen_on_the_clusters_interface(deployed: Project, observed: Observed) -> None:
    seen = {program for found in observed.listeners.values() for program, _, _ in found}
    assert "python3" in seen, "no rank and no rendezvous of gloo was seen listening: the run was not watched"
    assert seen & {"prterun", "prted", "mpirun"}, f"nothing of Open MPI's launcher was seen listening: {sorted(seen)}"
    for host, found in observed.listeners.items():
        assert found, f"nobody was seen listening on {host}"
        own = {address_of(deployed, host), "127.0.0.1", "::1"}
        # What Open MPI opens for IPv6 alone (ss shows it so; "*" would be both) reaches nobody where IPv6 is off.
        if deployed.on_host(host, "ip -6 -oneline address show") == "":
            own.add("::")
        elsewhere = {place for place in found if place[1] not in own}
        assert elsewhere == set()


@pytest.mark.parametrize(
    ("options", "refusal"),
    [
        (["-W", "127.0.0.1:22"], "stdio forwarding failed|administratively prohibited"),
        (
            ["-o", "PubkeyAuthentication=no", "-o", "PreferredAuthentications=password,keyboard-interactive"],
            "publickey",
        ),
        (["-l", "root"], "Permission denied"),
        (["-i", "/dev/null", "-o", "IdentitiesOnly=yes", "-F", "none", "-p", "2222"], "Permission denied|verification"),
    ],
    ids=["forwarding", "password", "root", "no key"],
)
def test_the_sshd_in_the_container_refuses(deployed: Project, options: list[str], refusal: str) -> None:
    words = [
        "docker",
        "exec",
        f"ddp-suite-{CLUSTER}",
        "suite-mpi-ssh",
        "-o",
        "BatchMode=no",
        "-o",
        "NumberOfPasswordPrompts=0",
    ]
    assert deployed.on_host("h1", shlex.join([*words[:4], "h2", "echo in"])).strip() == "in", "the key opens the way"
    target = ["h2"] if "-W" in options else ["h2", "echo", "in"]
    said = deployed.on_host("h1", f"{shlex.join([*words, *options, *target])} 2>&1 </dev/null; echo code $?")
    assert re.search(refusal, said), said
    assert re.search(r"code [1-9]", said), said
    assert not re.search(r"^in$", said, re.MULTILINE)


# What is left behind


def files_below(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())


def test_no_secret_of_the_controller_is_in_any_file_of_the_run(observed: Observed) -> None:
    said = [observed.done.out.encode(), observed.done.err.encode()]
    files = list(files_below(observed.run.root))
    assert len(files) > 20
    for content in [*said, *(path.read_bytes() for path in files)]:
        assert b"planted" not in content
        assert not PRIVATE_KEY.search(content)


def test_no_record_holds_a_whole_environment(observed: Observed) -> None:
    records = [path for path in files_below(observed.run.launches) if path.suffix == ".json"]
    assert len(records) == 9  # 2 pilots, 2 measured launches of two ranks, and one process
    for path in records:
        facts = json.loads(path.read_bytes())["environment"]
        names = {name.removeprefix(ENVIRONMENT_PREFIX) for name in facts if name.startswith(ENVIRONMENT_PREFIX)}
        assert {"OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME"} <= names, "no variable was recorded: the test looks at nothing"
        assert all(is_settable(name) for name in names)
        assert not names & {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "PYTHONPATH", "HOSTNAME", *PLANTED}


def test_nothing_of_the_controllers_environment_reaches_a_host(deployed: Project, observed: Observed) -> None:
    for host in NAMES:
        inspected = deployed.on_host(host, f"docker inspect ddp-suite-{CLUSTER}")
        assert "planted" not in inspected
        assert "planted" not in deployed.on_host(host, f"docker logs ddp-suite-{CLUSTER} 2>&1")
        assert "docker.sock" not in inspected
        found = deployed.on_host(host, f"grep -rl planted {VOLUME} /var/log/lab || true")
        assert found == ""


def test_nothing_of_the_controllers_environment_is_published(deployed: Project, observed: Observed) -> None:
    results = observed.run.root.parent.parent
    with ending(deployed.start("publish", observed.run.run, "--name", "watched", results=results, **PLANTED)) as fab:
        done = fab.end(120)
    assert done.code == 0, done
    bundle = results / "published" / "watched"
    contents = [path.read_bytes() for path in files_below(bundle)]
    contents += [lzma.decompress(path.read_bytes()) for path in files_below(bundle) if path.suffix == ".xz"]
    assert len(contents) > 10
    for content in contents:
        assert b"planted" not in content
        assert not PRIVATE_KEY.search(content)
    purls = {c.get("purl", "").partition("@")[0] for c in json.loads((bundle / "sbom.json").read_bytes())["components"]}
    assert {"pkg:deb/debian/openmpi-bin", "pkg:deb/debian/python3-torch", "pkg:deb/debian/openssh-server"} <= purls


def test_an_image_built_among_secrets_holds_none() -> None:
    words = [str(Path(sys.executable).with_name("fab")), "build"]
    environment = {**os.environ, **PLANTED}
    done = subprocess.run(
        words, cwd=project_root(), env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done
    assert "planted" not in done.stdout + done.stderr
    for look in (["inspect"], ["history", "--no-trunc"]):
        command = ["docker", *look, BUILT]
        said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
        assert "planted" not in said
    inside = ["docker", "run", "--rm", "--network", "none", "--entrypoint", "grep", "--user", "0", BUILT]
    folders = ["/opt/suite", "/etc", "/home", "/root", "/tmp", "/usr/local", "/var"]
    found = subprocess.run(
        [*inside, "-rl", "planted-", *folders], capture_output=True, text=True, timeout=120 * PATIENCE, check=False
    )
    assert (found.returncode, found.stdout) == (1, ""), found


def test_private_keys_are_in_the_deployments_folder_and_nowhere_else(deployed: Project) -> None:
    for host in NAMES:
        found = deployed.on_host(host, f"grep -rlE -- '-----BEGIN .*PRIVATE KEY' {VOLUME}").split()
        assert sorted(found) == [f"{VOLUME}/ssh/host_key", f"{VOLUME}/ssh/id"]
        modes = deployed.on_host(host, f"stat --format '%a %u' {VOLUME}/ssh {' '.join(found)}").splitlines()
        assert modes == ["700 1000", "600 1000", "600 1000"]


def test_the_image_holds_no_key_no_secret_and_nothing_of_the_checkout_but_the_suite(deployed: Project) -> None:
    def inside(line: str) -> str:
        words = ["docker", "run", "--rm", "--network", "none", "--entrypoint", "sh", "--user", "0", IMAGE, "-c", line]
        return subprocess.run(words, capture_output=True, text=True, timeout=120 * PATIENCE, check=True).stdout

    places = "/etc /home /opt /root /run /srv /tmp /usr/local /var"
    assert inside(f"grep -rlE -- '-----BEGIN .*PRIVATE KEY' {places} 2>/dev/null || true") == ""
    assert sorted(inside("ls -A /opt/suite").split()) == ["fabfile.py", "suite", "tasks.py"]
    unwanted = (
        "find / -xdev ( -name .git -o -name .ssh -o -name .netrc -o -name .pypirc -o -name .docker -o -name id_rsa"
    )
    unwanted += " -o -name .bash_history -o -name 'ssh_host_*_key' )"
    unwanted += " ! -empty"  # the base image has an empty /root/.ssh
    assert inside(unwanted.replace("(", r"\(").replace(")", r"\)")) == ""
    history = subprocess.run(
        ["docker", "history", "--no-trunc", "--format", "{{.CreatedBy}}", IMAGE],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    assert not re.search(r"token|password|secret|https?://[^/\s]*@", history, re.IGNORECASE)


def test_a_stop_leaves_neither_container_nor_volume_nor_key(deployed: Project, tmp_path: Path) -> None:
    assert deployed.fab("stop", results=tmp_path).code == 0
    for host in NAMES:
        assert deployed.on_host(host, "docker ps --all --quiet; docker volume ls --quiet") == ""
        assert not any(port == 2222 for _, _, port in listeners(deployed, host))
        assert deployed.on_host(host, "grep -rlE -- '-----BEGIN .*PRIVATE KEY' /var/lib/docker/volumes || true") == ""
    assert not list((deployed.root / "results").rglob("id*"))


def test_a_clean_leaves_no_image_of_the_suite_either_and_nothing_of_others(deployed: Project, tmp_path: Path) -> None:
    tags = "docker images --all --format '{{.Repository}}:{{.Tag}}'"
    assert IMAGE in deployed.on_host("h1", tags).split()
    deployed.on_host("h1", "tar --create --files-from /dev/null | docker import - somebody-elses:1")
    done = deployed.fab("clean", results=tmp_path)
    assert done.code == 0, done
    assert deployed.on_host("h1", tags).split() == ["somebody-elses:1"]
    for host in ("h2", "h3", "h4"):
        assert deployed.on_host(host, "docker images --all --quiet; docker ps --all --quiet") == ""
