from __future__ import annotations

import socket

import pytest

from suite.worker import machine
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
# Of what Open MPI 4.1.8 wrote here for two ranks of one host, told to use TCP between them, and told nothing.
OPEN_MPI_4_TCP = """\
[h1:08674] mca: base: components_open: found loaded component ob1
[h1:08674] mca: base: components_open: component ob1 open function successful
[h1:08674] select: initializing btl component tcp
[h1:08674] btl: tcp: Using interface: sppp
[h1:08674] btl:tcp: my listening v4 socket is 0.0.0.0:1024
[h1:08674] select: init of component tcp returned success
[h1:08674] select: initializing pml component cm
[h1:08674] select: init returned failure for component cm
[h1:08674] select: initializing pml component ob1
[h1:08674] select: init returned priority 20
[h1:08674] select: initializing pml component ucx
[h1:08674] select: init returned failure for component ucx
[h1:08674] select: component v not in the include list
[h1:08674] selected ob1 best priority 20
[h1:08674] select: component ob1 selected
[h1:08674] mca: base: close: unloading component ucx
[h1:08674] check:select: checking my pml ob1 against process [[19747,1],0] pml ob1
[h1:08674] mca: bml: Using self btl for send to [[19747,1],1] on node h1
[h1:08674] btl:tcp: path from 198.18.0.1 to 198.18.0.1: IPV4 PUBLIC SAME NETWORK
[h1:08674] mca: bml: Using tcp btl for send to [[19747,1],0] on node h1
"""
OPEN_MPI_4_MEMORY = """\
[h1:08692] select: initializing pml component ob1
[h1:08692] selected ob1 best priority 20
[h1:08692] select: component ob1 selected
[h1:08692] mca: bml: Using self btl for send to [[19729,1],1] on node h1
[h1:08692] mca: bml: Using vader btl for send to [[19729,1],0] on node h1
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


def test_open_mpi_4_is_understood_as_open_mpi_5_is() -> None:
    found = describe("mpi", OPEN_MPI_4_TCP, made(("203.0.113.1", "203.0.113.2")))
    assert found.text == "mpi: pml ob1, btl tcp, TCP on unknown interface (203.0.113.1)"
    assert describe("mpi", OPEN_MPI_4_MEMORY, []).text == "mpi: pml ob1, btl vader"


@pytest.mark.parametrize(("aware", "word"), [(True, "yes"), (False, "no"), (None, "unknown")])
def test_mpi_with_a_gpu_says_whether_it_knows_cuda_and_that_the_device_is_synchronised(
    aware: bool | None, word: str
) -> None:
    text = describe("mpi", OPEN_MPI, [], device="cuda", cuda_aware=aware).text
    assert text == f"mpi: pml ob1, btl tcp, CUDA-aware: {word}, device synchronised before each collective"
    assert describe("mpi", OPEN_MPI, [], cuda_aware=aware).text == "mpi: pml ob1, btl tcp"


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


def test_open_mpi_over_tcp_beside_ports_that_are_up_is_a_silent_fall_back(monkeypatch: pytest.MonkeyPatch) -> None:
    between = made(("203.0.113.1", "203.0.113.2"))
    (warning,) = describe("mpi", OPEN_MPI, between, ports_up=2).warnings
    assert warning.startswith("Open MPI uses TCP although 2 InfiniBand or RoCE port(s) are up: a silent fall-back.")
    assert describe("mpi", OPEN_MPI, between, ports_up=0).warnings == ()
    assert describe("mpi", OPEN_MPI, made(("203.0.113.1", "203.0.113.1")), ports_up=2).warnings == ()
    monkeypatch.setenv("OMPI_MCA_btl", "^tcp")
    assert len(describe("mpi", OPEN_MPI, between, ports_up=2).warnings) == 1
    monkeypatch.setenv("OMPI_MCA_btl", "self,vader,tcp")
    assert describe("mpi", OPEN_MPI, between, ports_up=2).warnings == ()


def test_gloo_beside_ports_that_are_up_says_that_it_has_no_other_way() -> None:
    found = describe("gloo", "", made(("203.0.113.1", "203.0.113.2")), ports_up=2)
    assert found.text.endswith("(203.0.113.1), its only way beside InfiniBand or RoCE")
    assert found.warnings == ()
    assert describe("gloo", "", made(("127.0.0.1", "127.0.0.1")), ports_up=2).text == "gloo: TCP on lo (127.0.0.1)"


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


def test_an_ipv6_address_belongs_to_the_interface_that_the_kernel_lists_it_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listed = """\
00000000000000000000000000000001 01 80 10 80       lo
fe800000000000000042acfffe110002 05 40 20 80     eth0
20010db8000000010000000000000011 05 40 00 80     eth0
"""
    monkeypatch.setattr(machine, "read_text", lambda path: listed if path == "/proc/net/if_inet6" else None)
    assert interface_of("2001:db8:0:1::11") == interface_of("fe80::42:acff:fe11:2%eth0") == "eth0"
    assert interface_of("::1") == "lo"
    assert interface_of("2001:db8::12") is None
    found = describe("gloo", "", made(("2001:db8:0:1::11", "2001:db8:0:1::12")), interface="eth0", ports_up=0)
    assert found.text == "gloo: TCP on eth0 (2001:db8:0:1::11)"
    assert found.warnings == ()


def test_no_interface_has_an_ipv6_address_where_the_kernel_has_no_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "read_text", lambda path: None)
    assert interface_of("2001:db8::12") is None


def test_the_loopback_address_belongs_to_lo_and_a_foreign_one_to_none() -> None:
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("203.0.113.7") is None
