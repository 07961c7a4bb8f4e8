"""The table of the checks."""

from __future__ import annotations

from suite.cluster.check_table import check_table
from suite.cluster.findings import fail, ok, skipped, warn

FINDINGS = [
    ok("h1", "ssh", "connected"),
    ok("h1", "docker", "26.1.5+dfsg1"),
    warn("h1", "clock", "+1.500 s", "its clock is 1.500 s ahead of this machine's.", "set up time synchronisation."),
    ok("h1", "routes", "eth0: it routes to every peer"),
    fail("h2", "ssh", "failed", "198.18.0.12 port 22 did not answer within 10 s.", "see that the host is up."),
    skipped("h2", "docker", "ssh failed"),
    skipped("h2", "clock", "ssh failed"),
    skipped("h2", "routes", "ssh failed"),
]
TABLE = """\
check    h1            h2
ssh      ok            FAIL
docker   26.1.5+dfsg1  –
clock    WARN          –
routes   ok            –
h1: eth0: it routes to every peer.
FAIL: h2, ssh: 198.18.0.12 port 22 did not answer within 10 s.
  Fix: see that the host is up.
Warning: h1, clock: its clock is 1.500 s ahead of this machine's.
  Fix: set up time synchronisation.
1 check failed on 2 hosts.
"""


def test_checks_stand_down_hosts_across_and_each_failure_has_cause_and_fix() -> None:
    assert check_table(FINDINGS) == TABLE


def test_a_reason_that_all_hosts_share_is_told_once() -> None:
    same = [ok(host, "routes", "eth0: it routes to every peer") for host in ("h1", "h2", "h3")]
    assert check_table(same).splitlines()[2:] == ["Every host uses eth0: it routes to every peer.", "3 hosts are fit."]


def test_when_all_is_well_it_says_so() -> None:
    assert check_table([ok("h1", "ssh", "connected")]) == "check    h1\nssh      ok\n1 host is fit.\n"


def test_what_a_host_says_cannot_steer_the_terminal() -> None:
    text = check_table([fail("h1", "ssh", "x\x1b[2J", "\x1b]0;owned\x07", "fix")])
    assert "\x1b" not in text
    assert "\x07" not in text
