"""The in-container sshd's keys and configuration, tried with the real programs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from suite.cluster.inventory import Cluster, parse
from suite.cluster.keys import FOLDER, files, key_pair, make_keys, sshd_config
from tests.support.ssh_server import SSHD, private_file

PROGRAM = b"""
[[hosts]]
name = "h1"
address = "127.0.0.1"
user = "bench"
[[hosts]]
name = "h2"
address = "ssh.example.org"
data_address = "fd00::2"
user = "bench"
"""


@pytest.fixture
def cluster() -> Cluster:
    return parse(PROGRAM, Path("pond.toml"))


def written(cluster: Cluster, folder: Path) -> Path:
    """The first host's files in a folder of this machine."""
    made = files(cluster, cluster.hosts[0], make_keys([host.name for host in cluster.hosts]))
    for name, file in made.items():
        assert file.mode == 0o600
        private_file(folder / name, file.data.replace(FOLDER.encode(), str(folder).encode()))
    return folder


def ssh(config: Path, host: str) -> dict[str, str]:
    done = subprocess.run(
        ["ssh", "-F", str(config), "-G", host], capture_output=True, text=True, timeout=20, check=True
    )
    return dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)


def test_ssh_itself_makes_of_the_client_configuration_what_is_meant(cluster: Cluster, tmp_path: Path) -> None:
    written(cluster, tmp_path)
    seen = ssh(tmp_path / "config", "h2")
    assert (seen["hostname"], seen["port"], seen["user"]) == ("fd00::2", "2222", "suite")
    assert seen["hostkeyalias"] == "[h2]:2222"
    assert seen["identityfile"] == str(tmp_path / "id")
    assert seen["userknownhostsfile"] == str(tmp_path / "known_hosts")
    assert seen["stricthostkeychecking"] == "true"
    assert seen["batchmode"] == "yes"
    assert seen["identitiesonly"] == "yes"
    assert seen["forwardagent"] == "no"


def test_sshd_itself_makes_of_its_configuration_what_is_meant(cluster: Cluster, tmp_path: Path) -> None:
    if SSHD is None:
        pytest.skip("there is no sshd here: install openssh-server")
    written(cluster, tmp_path)
    done = subprocess.run(
        [SSHD, "-T", "-f", str(tmp_path / "sshd_config")], capture_output=True, text=True, timeout=20, check=True
    )
    seen = dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)
    assert seen["listenaddress"] == "127.0.0.1:2222"
    expected = {
        "passwordauthentication": "no", "kbdinteractiveauthentication": "no", "pubkeyauthentication": "yes",
        "permitrootlogin": "no", "disableforwarding": "yes", "allowtcpforwarding": "no", "permittty": "no",
        "allowagentforwarding": "no", "x11forwarding": "no", "permituserrc": "no", "usepam": "no",
        "allowusers": "suite", "authenticationmethods": "publickey", "strictmodes": "yes", "permittunnel": "no",
    }  # fmt: skip
    assert {key: seen[key] for key in expected} == expected


def test_sshd_listens_on_the_clusters_address_only(cluster: Cluster) -> None:
    assert "ListenAddress [fd00::2]:2222\n" in sshd_config(cluster.hosts[1], 2222)
    assert sshd_config(cluster.hosts[1], 2222).count("ListenAddress") == 1


def test_the_one_key_may_log_in_from_the_clusters_addresses_only(cluster: Cluster) -> None:
    keys = make_keys(["h1", "h2"])
    line = files(cluster, cluster.hosts[0], keys)["authorized_keys"].data.decode()
    assert line == f'restrict,from="127.0.0.1,fd00::2" {keys.client.public} ddp-backend-suite\n'


def test_each_host_has_a_host_key_of_its_own_that_the_others_know(cluster: Cluster) -> None:
    keys = make_keys(["h1", "h2"])
    one, two = (files(cluster, host, keys) for host in cluster.hosts)
    assert one["host_key"].data != two["host_key"].data
    assert one["known_hosts"] == two["known_hosts"]
    assert f"[h2]:2222,[fd00::2]:2222 {keys.hosts['h2'].public}\n" in one["known_hosts"].data.decode()


def test_every_deployment_has_new_keys() -> None:
    assert make_keys(["h1"]).client.public != make_keys(["h1"]).client.public


def test_a_key_pair_is_one_and_never_shown(tmp_path: Path) -> None:
    pair = key_pair()
    path = private_file(tmp_path / "id", pair.private)
    done = subprocess.run(["ssh-keygen", "-y", "-f", str(path)], capture_output=True, text=True, timeout=20, check=True)
    assert done.stdout.split()[:2] == pair.public.split()
    assert "PRIVATE" not in repr(pair)
    assert "PRIVATE" not in repr(make_keys(["h1"]))
