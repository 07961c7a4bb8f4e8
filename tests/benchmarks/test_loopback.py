"""Hosts on loopback addresses are hosts: the suite's own controller reaches them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from benchmarks.loopback import record_bytes, ssh_servers
from suite import codec
from suite.cluster.deploy import open_remotes
from suite.cluster.fanout import fan_out, results
from suite.records import RankRecord

needs_sshd = pytest.mark.skipif(
    shutil.which("sshd") is None and not Path("/usr/sbin/sshd").exists(), reason="NOT RUN: there is no sshd here"
)


@needs_sshd
def test_every_host_has_an_address_and_a_key_of_its_own(tmp_path: Path) -> None:
    with ssh_servers(tmp_path / "servers", 3) as servers, open_remotes(servers.cluster) as remotes:
        answers = results(
            fan_out(list(remotes.values()), lambda r: r.run(["sh", "-c", "echo $SSH_CONNECTION"]).text, 60), "asking"
        )
    assert [answer.split()[2] for answer in answers.values()] == ["127.0.0.10", "127.0.0.11", "127.0.0.12"]
    assert len({line.split()[2] for line in (tmp_path / "servers" / "known_hosts").read_text().splitlines()}) == 3


@needs_sshd
def test_the_servers_end_with_the_block(tmp_path: Path) -> None:
    with ssh_servers(tmp_path / "servers", 2) as servers:
        assert all(process.poll() is None for process in servers.processes)
    assert all(process.poll() is not None for process in servers.processes)


def test_a_made_up_record_is_a_record() -> None:
    record = codec.decode(record_bytes(3, 8, "h1", 200), RankRecord, "rank-3.json")
    assert (record.rank, record.world_size, record.host) == (3, 8, "h1")
    assert len(record.synchronised.total_ns) == 200
    assert json.loads(record_bytes(3, 8, "h1", 5))["launch"] == "0001-linear-gloo"
