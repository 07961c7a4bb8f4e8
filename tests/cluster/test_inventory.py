"""Cluster files: what is accepted, and what is said about the rest."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suite.cluster.inventory import Cluster, find, load, parse
from suite.errors import ConfigurationError, UsageError
from suite.paths import project_root

PATH = Path("/somewhere/hosts/pond.toml")
MINIMAL = b"""
[[hosts]]
name = "h1"
address = "198.18.0.11"
user = "bench"
"""


def problem(text: str | bytes) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as caught:
        parse(text.encode() if isinstance(text, str) else text, PATH)
    assert str(PATH) in caught.value.message
    assert caught.value.fix, "every error says what to do"
    assert caught.value.exit_code == 2
    return caught.value


def with_host(**keys: str) -> str:
    values = {"name": '"h1"', "address": '"198.18.0.11"', "user": '"bench"', **keys}
    return "[[hosts]]\n" + "".join(f"{key} = {value}\n" for key, value in values.items())


def test_a_name_an_address_and_a_user_are_enough() -> None:
    cluster = parse(MINIMAL, PATH)
    assert cluster.name == "pond"
    (host,) = cluster.hosts
    assert (host.name, host.address, host.data_address, host.user) == ("h1", "198.18.0.11", "198.18.0.11", "bench")
    assert (host.port, host.slots, host.devices, host.interface, host.key) == (22, 1, (), None, None)
    assert (cluster.container_ssh_port, cluster.ports, cluster.read_only) == (2222, (29500, 29999), True)
    assert not cluster.gpu


def test_defaults_apply_to_every_host_and_a_host_overrides_them() -> None:
    text = """
    [defaults]
    user = "bench"
    port = 2022
    key = "keys/id"
    slots = 4
    [[hosts]]
    name = "h1"
    address = "198.18.0.11"
    [[hosts]]
    name = "h2"
    address = "198.18.0.12"
    slots = 2
    key = "~/id"
    """
    one, two = parse(text.encode(), PATH).hosts
    assert (one.port, one.slots, one.key) == (2022, 4, PATH.parent / "keys/id")
    assert (two.port, two.slots, two.key) == (2022, 2, Path.home() / "id")


def test_the_example_describes_the_published_cluster() -> None:
    cluster = load(project_root() / "hosts" / "example-rtx3090.toml")
    assert [host.address for host in cluster.hosts] == [f"192.0.2.{n}" for n in (11, 12, 13, 14)]
    assert all(host.devices == ("0",) and host.slots == 1 for host in cluster.hosts)
    assert cluster.gpu


def test_devices_give_the_number_of_slots() -> None:
    (host,) = parse(with_host(devices="[1, 3]").encode(), PATH).hosts
    assert host.devices == ("1", "3")
    assert host.slots == 2


@pytest.mark.parametrize(
    ("text", "where", "fix"),
    [
        (with_host(adress='"x"'), 'host "h1", key "adress"', "did you mean 'address'?"),
        (with_host(slot="1"), 'host "h1", key "slot"', "did you mean 'slots'?"),
        (with_host(port='"22"'), 'host "h1", key "port"', "integer from 1 to 65535"),
        (with_host(port="70000"), 'host "h1", key "port"', "integer from 1 to 65535"),
        (with_host(port="true"), 'host "h1", key "port"', "integer from 1 to 65535"),
        (with_host(slots="0"), 'host "h1", key "slots"', "integer from 1 to 1024"),
        (with_host(slots="2", devices="[0]"), 'host "h1", key "slots"', "list more devices"),
        (with_host(devices='["cuda:0"]'), 'host "h1", key "devices"', "indices or UUIDs"),
        (with_host(devices="[0, 0]"), 'host "h1", key "devices"', "each device once"),
        (with_host(devices='[0, "GPU-4f1c0000"]'), 'host "h1", key "devices"', "in one way"),
        (with_host(interface='"^lo"'), 'host "h1", key "interface"', '"enp65s0"'),
        (with_host(interface='"eth0,eth1"'), 'host "h1", key "interface"', '"enp65s0"'),
        (with_host(address='"198.18.0.256"'), 'host "h1", key "address"', "write it like"),
        (with_host(address='"0.0.0.0"'), 'host "h1", key "address"', "the host's own address"),
        (with_host(address='"gpu1.example.org"'), 'host "h1", key "data_address"', "add data_address"),
        (with_host(user='"a b"'), 'host "h1", key "user"', '"bench"'),
        (with_host(name='"h1; rm -rf /"'), 'host "h1; rm -rf /", key "name"', "letters, digits and hyphens"),
        (with_host(name='"localhost"'), 'host "localhost", key "name"', "not localhost"),
        (with_host(name='"17"'), 'host "17", key "name"', "not digits alone"),
        (with_host(shm_size='"1m"'), 'host "h1", key "shm_size"', '"2g"'),
        (with_host(environment='{ SECRET = "x" }'), 'host "h1", key "environment"', "NCCL_"),
        (with_host(environment='{ UCX_PASSWORD = "hunter2" }'), 'host "h1", key "environment"', "keep secrets out"),
        (with_host(environment='{ CUDA_VISIBLE_DEVICES = "1" }'), 'host "h1", key "environment"', "devices"),
        ('[[hosts]]\naddress = "198.18.0.11"\n', 'host number 1, key "name"', 'add name = "…"'),
        ('[[hosts]]\nname = "h1"\n', 'host "h1", key "address"', 'add address = "…"'),
        ('[[hosts]]\nname = "h1"\naddress = "198.18.0.1"\n', 'host "h1", key "user"', "[defaults]"),
        ("hosts = []\n", "[[hosts]]", "add a [[hosts]] table"),
        ("hosts = 3\n", "[[hosts]]", "add a [[hosts]] table"),
        ("[[host]]\n", 'key "host"', "did you mean 'hosts'?"),
        ('[cluster]\nports = "1-2"\n' + with_host(), '[cluster], key "ports"', '"29500-29999"'),
        ('[cluster]\nports = "2000-3000"\n' + with_host(), '[cluster], key "container_ssh_port"', "outside"),
        ('[cluster]\nname = "a/b"\n' + with_host(), '[cluster], key "name"', "letters, digits"),
        ("[cluster]\ncontainer_ssh_port = 22\n" + with_host(), 'host "h1", key "port"', "another container_ssh_port"),
        (with_host() + with_host(), 'host "h1", key "name"', "rename"),
        (with_host() + with_host(name='"h2"'), 'host "h2", key "address"', "remove one"),
        ('[[hosts]]\nname = "h1\n', "line 2", "correct that line"),
        ("[defaults]\nuser = 3\n" + with_host(), '[defaults], key "user"', "in quotes"),
    ],
)
def test_an_error_names_file_host_and_key_and_what_to_write(text: str, where: str, fix: str) -> None:
    error = problem(text)
    assert where in error.message
    assert fix in error.fix


def test_bytes_that_are_no_text_are_refused_with_their_line() -> None:
    assert "line 3" in problem(b'[[hosts]]\nname = "h1"\nuser = "\xff"\n').message


def test_a_value_cannot_steer_the_terminal() -> None:
    error = problem('[[hosts]]\nname = "\\u001b[31mred\\n"\naddress = "198.18.0.11"\nuser = "x"\n')
    assert error.message.isprintable()


def test_no_file_and_a_folder_are_clear_errors(tmp_path: Path) -> None:
    for path in (tmp_path / "none.toml", tmp_path):
        with pytest.raises(ConfigurationError, match="cannot be read"):
            load(path)


def test_the_same_address_with_another_port_is_another_host() -> None:
    cluster = parse((with_host() + with_host(name='"h2"', port="2022")).encode(), PATH)
    assert len(cluster.hosts) == 2


def test_find_takes_the_name_then_the_variable_then_the_only_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SUITE_CLUSTER", raising=False)
    for name in ("example-rtx3090", "pond"):
        (tmp_path / f"{name}.toml").write_bytes(MINIMAL)
    assert find(None, tmp_path).stem == "pond"
    assert find("example-rtx3090", tmp_path).stem == "example-rtx3090"
    monkeypatch.setenv("SUITE_CLUSTER", "example-rtx3090")
    assert find(None, tmp_path).stem == "example-rtx3090"
    assert find("pond", tmp_path).stem == "pond"


def test_find_lists_the_files_when_it_cannot_choose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SUITE_CLUSTER", raising=False)
    with pytest.raises(UsageError, match=re.escape("fab lab.up")):
        find(None, tmp_path)
    for name in ("lake", "pond"):
        (tmp_path / f"{name}.toml").write_bytes(MINIMAL)
    with pytest.raises(UsageError, match="lake, pond"):
        find(None, tmp_path)
    with pytest.raises(UsageError, match="did you mean 'pond'"):
        find("ponds", tmp_path)
    with pytest.raises(UsageError, match="cannot name"):
        find("../pond", tmp_path)


VALUES = st.recursive(
    st.one_of(
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(max_size=30),
        st.sampled_from(["h1", "198.18.0.11", "bench", "2g", "host", "29500-29999", "GPU-1234abcd"]),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)),
    max_leaves=4,
)
KEYS = st.sampled_from(
    [
        "name",
        "address",
        "data_address",
        "user",
        "port",
        "key",
        "known_hosts",
        "interface",
        "slots",
        "devices",
        "shm_size",
        "environment",
        "container_ssh_port",
        "ports",
        "image",
        "read_only",
        "nmae",
    ]
)


def toml(value: object) -> str:
    """A value as TOML, good enough to reach every branch of the parser."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        escaped = "".join(f"\\U{ord(c):08x}" if not 0xD800 <= ord(c) <= 0xDFFF else "?" for c in value)
        return f'"{escaped}"'
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{toml(k)} = {toml(v)}" for k, v in value.items()) + "}"
    return repr(value)


def cluster_or_own_error(data: bytes) -> None:
    try:
        cluster = parse(data, PATH)
    except ConfigurationError as error:
        assert error.message.startswith(str(PATH))
    else:
        assert isinstance(cluster, Cluster)
        assert cluster.hosts


@given(st.binary(max_size=300))
def test_any_bytes_give_a_cluster_or_the_suites_own_error(data: bytes) -> None:
    cluster_or_own_error(data)


@settings(max_examples=300)
@given(
    st.dictionaries(KEYS, VALUES, max_size=4),
    st.dictionaries(KEYS, VALUES, max_size=4),
    st.lists(st.dictionaries(KEYS, VALUES, max_size=6), max_size=3),
)
def test_any_tables_give_a_cluster_or_the_suites_own_error(
    top: dict[str, object], defaults: dict[str, object], hosts: list[dict[str, object]]
) -> None:
    def lines(table: dict[str, object]) -> str:
        return "".join(f"{toml(key)} = {toml(value)}\n" for key, value in table.items())

    good = {"name": "h1", "address": "198.18.0.11", "user": "bench"}
    text = f"[cluster]\n{lines(top)}[defaults]\n{lines(defaults)}"
    text += "".join(f"[[hosts]]\n{lines({**good, **host})}" for host in hosts)
    cluster_or_own_error(text.encode())


def test_a_host_can_set_the_variables_of_open_mpi() -> None:
    text = '[[hosts]]\nname = "h1"\naddress = "198.51.100.7"\nuser = "bench"\nenvironment = { OMPI_MCA_pml = "ob1" }\n'
    assert parse(text.encode(), Path("hosts/x.toml")).hosts[0].environment == {"OMPI_MCA_pml": "ob1"}


def test_what_is_no_plain_file_is_no_cluster_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.toml")
    with pytest.raises(UsageError, match="There is no cluster file"):
        find(None, tmp_path)
