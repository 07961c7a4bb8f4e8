from __future__ import annotations

import socket

import pytest

from suite.worker.machine import interface_of
from suite.worker.sockets import Connection, connections, decode
from suite.worker.transport import TALKATIVE, describe

# Lines in the form that NCCL 2.14 and later write with NCCL_DEBUG=INFO.
NCCL_SOCKET = """\
h1:71:71 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>
h1:71:71 [0] NCCL INFO NET/Plugin : No plugin found (libnccl-net.so), using internal implementation
h1:71:84 [0] NCCL INFO NET/IB : No device found.
h1:71:84 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0>
h1:71:84 [0] NCCL INFO Using network Socket
h1:71:84 [0] NCCL INFO Channel 00/0 : 3[1000] -> 0[1000] [receive] via NET/Socket/0
h1:71:84 [0] NCCL INFO Channel 00/0 : 0[1000] -> 1[1000] [send] via NET/Socket/0
"""
NCCL_LOCAL = """\
h1:71:84 [0] NCCL INFO Channel 00/0 : 0[1000] -> 1[2000] via P2P/IPC
h1:71:84 [0] NCCL INFO Channel 01 : 0[1000] -> 1[2000] via SHM/direct/direct
"""
NCCL_IB = "h1:71:84 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>\n"
# Lines that Open MPI 5.0.7 wrote here.
OPEN_MPI = """\
[h1:00009] select: component ob1 selected
[h1:00009] mca: bml: Using self btl for send to [[11649,1],0] on node h1
[h1:00009] mca: bml: Using tcp btl for send to [[11649,1],1] on node h2
[h1:00009] mca: bml: Using tcp btl for send to [[11649,1],2] on node h3
"""


def made(*pairs: tuple[str, str]) -> list[Connection]:
    return [Connection(local, remote, number) for number, (local, remote) in enumerate(pairs)]


def test_gloo_is_described_by_the_interface_of_its_connections() -> None:
    found = describe("gloo", "", made(("127.0.0.1", "127.0.0.1"), ("127.0.0.1", "127.0.0.1")))
    assert found.text == "gloo: TCP on lo (127.0.0.1)"
    assert found.connections == "127.0.0.1 to 127.0.0.1"
    assert describe("gloo", "", []).text == "gloo: no connection (one rank)"


def test_gloo_with_a_gpu_says_that_it_stages() -> None:
    text = describe("gloo", "", made(("127.0.0.1", "127.0.0.1")), device="cuda").text
    assert text == "gloo: TCP on lo (127.0.0.1), staged through host memory"


def test_open_mpi_is_described_by_what_it_said_and_its_connections() -> None:
    found = describe("mpi", OPEN_MPI, made(("203.0.113.1", "203.0.113.2")))
    assert found.text == "mpi: pml ob1, btl tcp, TCP on unknown interface (203.0.113.1)"


def test_the_connection_to_mpiruns_own_daemon_is_no_transport() -> None:
    found = describe("mpi", "", made(("172.17.0.2", "172.17.0.2")))
    assert found.text == "mpi: no TCP connection: within one host, or not over TCP"
    assert found.connections == ""


def test_mpi_with_a_gpu_says_that_the_device_is_synchronised() -> None:
    assert describe("mpi", OPEN_MPI, [], device="cuda").text.endswith("device synchronised before each collective")


def test_nccls_network_and_ways_are_read_from_its_log() -> None:
    found = describe("nccl", NCCL_SOCKET, [], ports_up=0)
    assert found.text == "nccl: via NET/Socket, NET/Socket [0]eth0:10.0.0.1<0>"
    assert found.warnings == ()
    assert describe("nccl", NCCL_LOCAL, [], ports_up=0).text == "nccl: via P2P/IPC, SHM/direct"
    assert describe("nccl", NCCL_IB, [], ports_up=1).text == "nccl: NET/IB [0]mlx5_0:1/IB"


def test_a_silent_fall_back_to_sockets_is_a_warning() -> None:
    (warning,) = describe("nccl", NCCL_SOCKET, [], ports_up=2).warnings
    assert warning.startswith("NCCL uses sockets although 2 InfiniBand or RoCE port(s) are up")
    assert describe("nccl", NCCL_IB, [], ports_up=2).warnings == ()


def test_sockets_are_no_fall_back_within_a_host_or_where_they_were_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    socket_only = "h1:71:84 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0>\n"
    assert len(describe("nccl", socket_only, [], ports_up=1).warnings) == 1
    assert describe("nccl", socket_only + NCCL_LOCAL, [], ports_up=1).warnings == ()
    monkeypatch.setenv("NCCL_IB_DISABLE", "1")
    assert describe("nccl", NCCL_SOCKET, [], ports_up=1).warnings == ()


def test_direct_access_of_the_adapter_to_the_gpu_is_told() -> None:
    lines = """\
h1:71:84 [0] NCCL INFO Channel 00/0 : 3[1000] -> 0[1000] [receive] via NET/IB/0/GDRDMA
h1:71:84 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[0] [send] via NET/IB/1(2)/GDRDMA
h1:71:84 [0] NCCL INFO Channel 02/0 : 0[0] -> 1[0] [send] via NET/IB/1
h1:71:84 [0] NCCL INFO Channel 03/0 : 0[0] -> 1[1] via P2P/CUMEM/read
"""
    assert describe("nccl", lines, [], ports_up=1).text == "nccl: via NET/IB, NET/IB/GDRDMA, P2P/CUMEM"


def test_nccls_own_meeting_over_tcp_is_no_transport() -> None:
    found = describe("nccl", "", made(("127.0.0.1", "127.0.0.1")), ports_up=0)
    assert found.text == "nccl: not told"
    assert found.connections == "127.0.0.1 to 127.0.0.1"


def test_a_launch_that_was_not_told_to_talk_says_so() -> None:
    assert describe("nccl", "", [], ports_up=0).text == "nccl: not told"


def test_another_interface_than_the_one_asked_for_is_a_warning() -> None:
    (warning,) = describe("gloo", "", made(("127.0.0.1", "127.0.0.1")), interface="eth7").warnings
    assert warning == "gloo uses 127.0.0.1, which is not on eth7 as asked for."
    assert describe("gloo", "", made(("127.0.0.1", "127.0.0.1")), interface="lo").warnings == ()


def test_gloo_needs_no_talking() -> None:
    assert TALKATIVE["gloo"] == {}


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("0100007F:1F90", "127.0.0.1"),
        ("0102A8C0:0050", "192.168.2.1"),
        ("0000000000000000FFFF00000100007F:1F90", "127.0.0.1"),
        ("00000000000000000000000001000000:1F90", "::1"),
    ],
)
def test_addresses_of_proc_net_are_decoded(text: str, address: str) -> None:
    assert decode(text) == address


def test_an_open_connection_of_this_process_is_found_and_a_closed_one_is_not() -> None:
    before = connections()
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname(), timeout=5)
        accepted, _ = server.accept()
        new = connections() - before
        assert {(c.local, c.remote) for c in new} == {("127.0.0.1", "127.0.0.1")}
        assert len(new) == 2  # both ends are ours
        client.close()
        accepted.close()
    assert connections() - before == frozenset()


def test_the_loopback_address_belongs_to_lo_and_a_foreign_one_to_none() -> None:
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("203.0.113.7") is None
