"""What a host says about itself, from recorded output of Debian 13."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from suite.cluster.probe import Clock, parse

SAID = """
### hostname
h1

### machine-id
0123456789abcdef0123456789abcdef

### boot-id
6d4f1e9a-5a7e-4a38-9d5b-6e3f0f2f8a11

### shm
 1073741824

### disk
 7012345678

### addresses
[{"ifindex":1,"ifname":"lo","flags":["LOOPBACK","UP","LOWER_UP"],"addr_info":[{"family":"inet","local":"127.0.0.1","prefixlen":8}]},{"ifindex":9,"link_index":10,"ifname":"eth0","flags":["BROADCAST","MULTICAST","UP","LOWER_UP"],"addr_info":[{"family":"inet","local":"198.18.0.11","prefixlen":24},{"family":"inet6","local":"fe80::1","prefixlen":64}]},{"ifname":"eth1","flags":["BROADCAST"],"addr_info":[{"local":"10.0.0.1","prefixlen":8}]}]

### route 198.18.0.12
[{"dst":"198.18.0.12","dev":"eth0","prefsrc":"198.18.0.11","flags":[],"uid":1000,"cache":[]}]

### route 10.9.9.9
[{"dst":"10.9.9.9","gateway":"198.18.0.1","dev":"eth0","prefsrc":"198.18.0.11","flags":[],"uid":1000,"cache":[]}]

### route 203.0.113.1
RTNETLINK answers: Network is unreachable

### tcp
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1 0 100 0 0 10 0
   1: 0B0012C6:08AE 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 2 1 0 100 0 0 10 0
   2: 0B0012C6:C350 0C0012C6:08AE 01 00000000:00000000 00:00000000 00000000  1000        0 3 1 0 20 4 30 10 -1

### tcp6
  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when
   0: {ANY}:733C {ANY}:0000 0A 00000000:00000000 00:00000000 00000000  1001        0 4 1

### holders
LISTEN 0      128          0.0.0.0:22        0.0.0.0:*
LISTEN 0      5                  *:29500           *:*    users:(("iperf3",pid=412,fd=3))

### users
root:x:0:0:root:/root:/bin/bash
bench:x:1000:1000::/home/bench:/bin/bash
""".replace("{ANY}", "0" * 32)


def test_every_part_is_understood() -> None:
    facts = parse("h1", SAID, {"ID": "engine"}, Clock(0.25, 0.01))
    assert (facts.hostname, facts.boot_id[:8], facts.machine_id[:4]) == ("h1", "6d4f1e9a", "0123")
    assert (facts.shm_free_bytes, facts.disk_free_bytes) == (1 << 30, 7012345678)
    assert facts.addresses == {"lo": ("127.0.0.1/8",), "eth0": ("198.18.0.11/24", "fe80::1/64")}
    assert facts.routes == {
        "198.18.0.12": ("eth0", "198.18.0.11", ""),
        "10.9.9.9": ("eth0", "198.18.0.11", "198.18.0.1"),
    }
    assert facts.route_errors == {"203.0.113.1": "RTNETLINK answers: Network is unreachable"}
    assert facts.listening == {22: 0, 2222: 1000, 29500: 1001}


def test_the_holder_of_a_port_is_named_as_well_as_it_can_be() -> None:
    facts = parse("h1", SAID, {}, None)
    assert facts.holder(29500) == "iperf3, process 412"
    assert facts.holder(2222) == "a process of user bench"
    assert facts.holder(4711) == "an unknown process"


def test_silence_is_unknown_not_zero() -> None:
    facts = parse("h1", "", {}, None)
    assert (facts.shm_free_bytes, facts.disk_free_bytes, facts.clock) == (None, None, None)
    assert (facts.routes, facts.listening) == ({}, {})


@given(st.text(max_size=400), st.integers(0, 2000))
def test_any_answer_gives_facts(noise: str, place: int) -> None:
    parse("h1", SAID[:place] + noise + SAID[place:], {}, None)
