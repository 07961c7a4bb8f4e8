"""Many hosts on loopback addresses: one plain sshd each, and one Docker engine, this machine's, behind them all.

Enough to see what the controller does with 64 hosts, and no more than that: such hosts run nothing. Their
containers are made and never started, because files go into a container and out of it all the same.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import resource
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import docker

from suite.cluster import archive
from suite.cluster.archive import VOLUME
from suite.cluster.inventory import Cluster, load
from suite.cluster.keys import KeyPair, key_pair
from suite.cluster.launch import LAUNCHES_FOLDER
from suite.cluster.transport import local_engine
from suite.errors import HostError
from suite.records import RankRecord, StepSamples, to_json

FIRST = 10  # 127.0.0.10 and on
LABEL = "ddp-backend-suite.bench"
BASE = "debian:trixie-slim"
START_SECONDS = 30.0
ENGINE_SECONDS = 120
RUN, LAUNCH = "benchmark", "0001-linear-gloo"


@dataclass(frozen=True)
class Servers:
    """Running sshds: ``cluster`` describes them, ``processes`` are theirs, to be asked for their CPU time."""

    cluster: Cluster
    processes: tuple[subprocess.Popen[bytes], ...]


@contextlib.contextmanager
def ssh_servers(folder: Path, count: int) -> Iterator[Servers]:
    """``count`` sshds with keys of their own, logging in as the current user; ended afterwards.

    Raises:
        HostError: there is no sshd here, or one did not start.
    """
    program = shutil.which("sshd") or "/usr/sbin/sshd"
    if not Path(program).exists():
        raise HostError("this machine", "there is no sshd.", fix="install openssh-server.")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # its privilege separation folder
    folder.mkdir(mode=0o700, parents=True)
    addresses = [f"127.0.0.{FIRST + number}" for number in range(count)]
    with socket.socket() as probe:
        probe.bind((addresses[0], 0))
        port = int(probe.getsockname()[1])
    login = key_pair()
    _private(folder / "id", login.private)
    _private(folder / "authorized_keys", f"{login.public}\n".encode())
    host_keys = {address: key_pair() for address in addresses}
    known = "".join(f"[{address}]:{port} {key.public}\n" for address, key in host_keys.items())
    _private(folder / "known_hosts", known.encode())
    cluster = load(_cluster_file(folder, addresses, port))
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for address, key in host_keys.items():
            config = _sshd_files(folder, address, port, key)
            with (folder / "sshd.log").open("ab") as log:
                words = [program, "-D", "-e", "-f", str(config)]
                processes.append(subprocess.Popen(words, stdout=log, stderr=log, stdin=subprocess.DEVNULL))
        for address in addresses:
            _wait_for(address, port, folder / "sshd.log")
        yield Servers(cluster, tuple(processes))
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(5)


def _private(path: Path, data: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(data)


def _sshd_files(folder: Path, address: str, port: int, key: KeyPair) -> Path:
    _private(folder / f"host_key_{address}", key.private)
    config = folder / f"sshd_config_{address}"
    config.write_text(
        f"ListenAddress {address}:{port}\nHostKey {folder}/host_key_{address}\n"
        f"AuthorizedKeysFile {folder}/authorized_keys\nPidFile none\nUsePAM no\nStrictModes no\nUseDNS no\n"
        "PasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin prohibit-password\n"
        # bash would run the login user's own .bashrc for every command, which is no part of what is measured here.
        "LogLevel ERROR\nSetEnv SHLVL=2\n"
    )
    return config


def _cluster_file(folder: Path, addresses: Sequence[str], port: int) -> Path:
    user = pwd.getpwuid(os.geteuid()).pw_name
    hosts = "".join(
        f'[[hosts]]\nname = "h{number}"\naddress = "{address}"\n' for number, address in enumerate(addresses, 1)
    )
    path = folder / "loopback.toml"
    path.write_text(f'[defaults]\nuser = "{user}"\nport = {port}\nkey = "id"\nknown_hosts = "known_hosts"\n{hosts}')
    return path


def _wait_for(address: str, port: int, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection((address, port), 1.0):
            return
        time.sleep(0.02)
    raise HostError(address, f"sshd did not start: {log.read_text()[-500:]}")


@contextlib.contextmanager
def containers(
    names: Sequence[str], files: dict[str, dict[str, bytes]], *, running: bool = False
) -> Iterator[dict[str, str]]:
    """A container with a volume per name, by name, holding that name's files in the launch's folder."""
    suffix = secrets.token_hex(3)
    with contextlib.closing(local_engine(ENGINE_SECONDS)) as api:
        made: dict[str, str] = {}
        try:
            for name in names:
                made[name] = _container(api, f"suite-bench-{suffix}-{name}", running)
                archive.put(api, made[name], launch_folder(), {k: archive.File(v) for k, v in files[name].items()})
            yield made
        finally:
            for container in made.values():
                api.remove_container(container, force=True, v=True)
            for volume in api.volumes(filters={"label": LABEL}).get("Volumes") or []:
                if volume["Name"].startswith(f"suite-bench-{suffix}-"):
                    api.remove_volume(volume["Name"], force=True)


def _container(api: docker.APIClient, name: str, running: bool) -> str:
    api.create_volume(name, labels={LABEL: "1"})
    options = api.create_host_config(binds=[f"{name}:{VOLUME}"], network_mode="none", init=True)
    made = api.create_container(
        BASE, ["sleep", "3600"], host_config=options, volumes=[VOLUME], name=name, labels={LABEL: "1"}
    )
    if running:
        api.start(made["Id"])
    return str(made["Id"])


def launch_folder() -> str:
    """Where the records lie in every container."""
    return f"{LAUNCHES_FOLDER}/{RUN}/{LAUNCH}"


def record_bytes(rank: int, world_size: int, host: str, steps: int) -> bytes:
    """A rank's record as a launch leaves it, in JSON; the times are made up, the size is what counts."""
    series = tuple(40_000_000 + (rank * 7919 + step * 104_729) % 1_000_000 for step in range(steps))
    record = RankRecord(
        run=RUN,
        launch=LAUNCH,
        kind="train",
        arm="gloo",
        backend="gloo",
        workload="linear",
        block=0,
        device="cpu",
        world_size=world_size,
        rank=rank,
        local_rank=0,
        host=host,
        synchronised=StepSamples(series, series, series, series, series[:50]),
        nosync=StepSamples(series[:20], series[:20], series[:20], series[:20], series[:3]),
        environment={f"fact_{number:02d}": "a value of some length, as facts have" for number in range(90)},
    )
    return (to_json(record) + "\n").encode()


def children_seconds() -> float:
    """CPU seconds of this process's ended children and theirs."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def own_seconds() -> float:
    """CPU seconds of this process, all threads."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def peak_bytes() -> int:
    """The largest resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
