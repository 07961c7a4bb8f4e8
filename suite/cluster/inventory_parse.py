"""From the bytes of a cluster file to a ``Cluster``, strictly; what the keys mean stands in ``inventory``."""

from __future__ import annotations

import ipaddress
import re
import sys
from pathlib import Path
from typing import Any

from suite.cluster.inventory_types import DEFAULT_SHM_BYTES, Cluster, Host
from suite.cluster.inventory_values import Invalid, Table, near, parse_table
from suite.errors import ConfigurationError

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover - the same parser under its older name
    import tomli as tomllib

MAX_FILE_BYTES = 1 << 20
_LINE = re.compile(r"\s*\(at (.+?)\)\s*$")
_LABEL = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
_CLUSTER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,49}")

_CLUSTER = {
    "name": "text",
    "container_ssh_port": "port",
    "ports": "ports",
    "image": "image",
    "read_only": "flag",
}
_HOST = {
    "user": "user",
    "port": "port",
    "key": "path",
    "known_hosts": "path",
    "interface": "interface",
    "slots": "count",
    "devices": "devices",
    "shm_size": "shm",
    "rdma": "flag",
    "environment": "environment",
}
_OWN = {"name": "text", "address": "address", "data_address": "ip"}


def parse(data: bytes, path: Path) -> Cluster:
    """A cluster from the bytes of its file; ``path`` is named in errors and is the base of relative paths.

    Raises:
        ConfigurationError: see ``load``.
    """
    document = _document(data, path)
    for key in document:
        if key not in ("cluster", "defaults", "hosts"):
            raise ConfigurationError(
                path, f"key {_shown(key)}", "unknown.", fix=near(key, ("cluster", "defaults", "hosts"))
            )
    top = _table(document.get("cluster", {}), _CLUSTER, path, "[cluster]")
    defaults = _table(document.get("defaults", {}), _HOST, path, "[defaults]")
    entries = document.get("hosts", [])
    if not isinstance(entries, list) or not entries:
        raise ConfigurationError(
            path,
            "[[hosts]]",
            "there is no host.",
            fix="add a [[hosts]] table with name and address for each.",
        )
    hosts = tuple(_host(entry, defaults, path, number) for number, entry in enumerate(entries, 1))
    _refuse_duplicates(hosts, path)
    name = str(top.get("name", path.stem))
    if not _CLUSTER_NAME.fullmatch(name):
        raise ConfigurationError(
            path,
            '[cluster], key "name"',
            f"{_shown(name)} cannot name a cluster.",
            fix="use up to 50 letters, digits, dots, hyphens and underscores, a letter or digit first.",
        )
    cluster = Cluster(
        name=name,
        path=path,
        hosts=hosts,
        container_ssh_port=top.get("container_ssh_port", 2222),
        ports=top.get("ports", (29500, 29999)),
        image=top.get("image"),
        read_only=top.get("read_only", True),
    )
    _refuse_port_clash(cluster)
    return cluster


def _document(data: bytes, path: Path) -> dict[str, Any]:
    if len(data) > MAX_FILE_BYTES:
        raise ConfigurationError(
            path, "", f"is larger than {MAX_FILE_BYTES} bytes.", fix="check that it is a cluster file."
        )
    try:
        document: dict[str, Any] = tomllib.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigurationError(path, f"line {line}", "is not UTF-8.", fix="save it as UTF-8.") from None
    except RecursionError:
        raise ConfigurationError(path, "", "is nested too deeply.", fix="see hosts/example-rtx3090.toml.") from None
    except ValueError as error:  # TOMLDecodeError, and integers beyond Python's limit of digits
        text = str(error)
        place = _LINE.search(text)
        where = place.group(1) if place else ""
        raise ConfigurationError(
            path,
            where,
            f"is no TOML: {_LINE.sub('', text)[:300]}.",
            fix='correct that line; texts stand in quotes, e.g. name = "h1".',
        ) from None
    return document


def _table(value: Any, kinds: dict[str, str], path: Path, where: str) -> Table:
    if not isinstance(value, dict):
        raise ConfigurationError(path, where, "is no table.", fix=f"write {where} on a line of its own, keys below it.")
    try:
        return parse_table(value, kinds, path.parent)
    except Invalid as error:
        raise ConfigurationError(path, f"{where}, key {_shown(error.key)}", error.message, fix=error.fix) from None


def _host(entry: Any, defaults: Table, path: Path, number: int) -> Host:
    name = entry.get("name") if isinstance(entry, dict) else None
    where = f"host {_shown(name)}" if isinstance(name, str) else f"host number {number}"
    own = _table(entry, {**_OWN, **_HOST}, path, where)

    def wrong(key: str, message: str, fix: str) -> ConfigurationError:
        return ConfigurationError(path, f'{where}, key "{key}"', message, fix=fix)

    for key in ("name", "address"):
        if key not in own:
            raise wrong(key, "is missing.", f'add {key} = "…" to this [[hosts]] table.')
    name, address = str(own["name"]), str(own["address"])
    if not _LABEL.fullmatch(name) or name.isdigit() or name.lower() == "localhost":
        raise wrong(
            "name",
            f"{_shown(name)} cannot name a host.",
            "use up to 63 letters, digits and hyphens; not digits alone, not localhost.",
        )
    merged = {**defaults, **own}
    if "user" not in merged:
        raise wrong("user", "is missing.", "add it here or in [defaults]: the account that SSH logs in to.")
    devices: tuple[str, ...] = merged.get("devices", ())
    slots = merged.get("slots", len(devices) or 1)
    if devices and slots > len(devices):
        raise wrong(
            "slots",
            f"{slots} ranks but {len(devices)} device(s): each rank needs a device of its own.",
            "list more devices, or lower slots.",
        )
    data_address = own.get("data_address", address)
    if not _is_ip(data_address):
        raise wrong(
            "data_address",
            f"is missing; address {_shown(address)} is a name, which may mean another address on each host.",
            "add data_address = the IP address at which the other hosts reach this one.",
        )
    return Host(
        name=name,
        address=address,
        data_address=str(data_address),
        user=str(merged["user"]),
        port=merged.get("port", 22),
        key=merged.get("key"),
        known_hosts=merged.get("known_hosts"),
        interface=merged.get("interface"),
        slots=slots,
        devices=devices,
        shm_bytes=merged.get("shm_size", DEFAULT_SHM_BYTES),
        rdma=merged.get("rdma", False),
        environment=merged.get("environment", {}),
    )


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _refuse_duplicates(hosts: tuple[Host, ...], path: Path) -> None:
    names: dict[str, str] = {}
    addresses: dict[tuple[str, int], str] = {}
    for host in hosts:
        if host.name.lower() in names:
            raise ConfigurationError(
                path,
                f'host {_shown(host.name)}, key "name"',
                "another host has that name.",
                fix="rename one of them.",
            )
        other = addresses.get((host.address.lower(), host.port))
        if other is not None:
            raise ConfigurationError(
                path,
                f'host {_shown(host.name)}, key "address"',
                f"host {_shown(other)} has the same address and port, so it is the same machine.",
                fix="correct the address, or remove one of the two.",
            )
        names[host.name.lower()] = host.name
        addresses[(host.address.lower(), host.port)] = host.name


def _refuse_port_clash(cluster: Cluster) -> None:
    first, last = cluster.ports
    if first <= cluster.container_ssh_port <= last:
        raise ConfigurationError(
            cluster.path,
            '[cluster], key "container_ssh_port"',
            f"{cluster.container_ssh_port} lies inside the rendezvous ports {first}-{last}.",
            fix="choose a port outside of them.",
        )
    for host in cluster.hosts:
        if host.port == cluster.container_ssh_port:
            raise ConfigurationError(
                cluster.path,
                f'host "{host.name}", key "port"',
                f"{host.port} is also the container_ssh_port, and both listen on the host's network.",
                fix="choose another container_ssh_port in [cluster].",
            )


def _shown(value: object) -> str:
    """A value of the file as it may stand in a message: quoted, short, control characters escaped."""
    text = str(value)
    short = text if len(text) <= 80 else text[:77] + "..."
    return '"' + short.encode("unicode_escape").decode().replace('"', '\\"') + '"'
