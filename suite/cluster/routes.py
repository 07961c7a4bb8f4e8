"""Which network interface leads from each host to its peers: found out once, the same for every backend."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from suite.cluster.engine import Engine
from suite.cluster.fanout import fan_out, results
from suite.cluster.findings import FAIL, Finding, fail, ok, warn
from suite.cluster.inventory import Cluster, Host
from suite.cluster.probe import PROBE_SECONDS, HostFacts, ask
from suite.errors import PreflightError

_LOOPBACK = "lo"


@dataclass(frozen=True)
class Choice:
    """The interface of a host towards its peers (None: there is none), why that one, and whether it is in doubt."""

    interface: str | None
    reason: str
    doubtful: bool = False


def peers_of(cluster: Cluster, host: Host) -> list[str]:
    """The addresses of the other hosts; of the host itself when it is alone."""
    others = [peer.data_address for peer in cluster.hosts if peer.name != host.name]
    return others or [host.data_address]


def choose(cluster: Cluster, host: Host, facts: HostFacts) -> Choice:
    """The interface that routes to the peers, or the one that the cluster file names."""
    if host.interface is not None:
        return Choice(host.interface, "named in the cluster file")
    counts = Counter(facts.routes[peer][0] for peer in peers_of(cluster, host) if peer in facts.routes)
    if not counts:
        return Choice(None, "no peer has a route")
    if len(cluster.hosts) == 1:
        holding = [name for name, held in facts.addresses.items() if _holds(held, host.data_address)]
        return Choice(holding[0], f"it has {host.data_address}") if holding else Choice(None, "no interface has it")
    interface, reached = counts.most_common(1)[0]
    if len(counts) == 1:
        others = sorted(
            name for name in facts.addresses if name not in (interface, _LOOPBACK) and facts.addresses[name]
        )
        rest = f"; not {', '.join(others)}" if others else ""
        return Choice(interface, f"it routes to every peer{rest}")
    seen = ", ".join(f"{name} to {count}" for name, count in counts.most_common())
    return Choice(interface, f"it routes to {reached} of {sum(counts.values())} peers ({seen})", doubtful=True)


def _holds(addresses: tuple[str, ...], wanted: str) -> bool:
    return any(address.partition("/")[0] == wanted for address in addresses)


def discover(cluster: Cluster, remotes: Mapping[str, Engine]) -> dict[str, str]:
    """Each host's interface towards its peers, for a run.

    Raises:
        HostError: a host did not answer.
        PreflightError: a host has no way to its peers.
    """
    if all(host.interface for host in cluster.hosts):
        return {host.name: host.interface for host in cluster.hosts if host.interface}

    def look(remote: Engine) -> str:
        host = cluster.host(remote.name)
        facts = ask(remote, {}, peers_of(cluster, host), clock_tries=0)
        finding = judge_routes(cluster, host, facts)
        if finding.status == FAIL:
            raise PreflightError(f"{host.name}: {finding.cause}", fix=finding.fix)
        return str(choose(cluster, host, facts).interface)

    hosts = [remotes[host.name] for host in cluster.hosts]
    return results(fan_out(hosts, look, PROBE_SECONDS + 10), "looking for the interface")


def judge_routes(cluster: Cluster, host: Host, facts: HostFacts) -> Finding:
    """Whether the host reaches its peers over one interface of its own, and sends with the right address."""
    check = "routes"
    chosen = choose(cluster, host, facts)
    problem = _no_way(cluster, host, facts, chosen)
    if problem is not None:
        return problem
    interface = str(chosen.interface)
    held = facts.addresses.get(interface)
    if held is None:
        up = ", ".join(sorted(facts.addresses)) or "none"
        cause = f"there is no interface {interface} that is up; up are {up}."
        return fail(host.name, check, interface, cause, "correct the interface in the cluster file.")
    if not _holds(held, host.data_address):
        cause = (
            f"{interface} does not have the address {host.data_address} that the peers connect to; it has "
            f"{', '.join(held) or 'none'}."
        )
        fix = "set data_address in the cluster file to the address of that interface."
        return warn(host.name, check, interface, cause, fix)
    if chosen.doubtful:
        cause = f"the peers are reached over several interfaces; {interface} was taken: {chosen.reason}."
        return warn(host.name, check, interface, cause, "set interface in the cluster file.")
    return ok(host.name, check, f"{interface}: {chosen.reason}")


def _no_way(cluster: Cluster, host: Host, facts: HostFacts, chosen: Choice) -> Finding | None:
    """The failure that there is no route, or none that leaves the host."""
    fix = f"check the addresses in the cluster file, and `ip route` on {host.name}."
    for peer, said in facts.route_errors.items():
        return fail(host.name, "routes", "no route", f"there is no route to {peer}: {said}", fix)
    loops = [peer for peer, (name, _, _) in facts.routes.items() if name == _LOOPBACK]
    if loops and len(cluster.hosts) > 1:
        fix = "correct the addresses of the cluster file: two hosts seem to be one machine."
        return fail(host.name, "routes", "loopback", f"{loops[0]} routes to this host itself.", fix)
    if chosen.interface is None:
        return fail(host.name, "routes", "none", f"{chosen.reason}.", fix)
    return None


def judge_network(host: Host, facts: HostFacts) -> Finding:
    """Whether host and peers share one network, without a gateway in between."""
    gateways = sorted({gateway for _, _, gateway in facts.routes.values() if gateway})
    if gateways:
        return warn(
            host.name,
            "network",
            "routed",
            f"peers are reached through the gateway {gateways[0]}: its speed is measured too.",
            "give addresses of one common network in the cluster file (data_address).",
        )
    networks = [
        ipaddress.ip_interface(address).network
        for held in facts.addresses.values()
        for address in held
        if address.partition("/")[0] == host.data_address and _is_interface(address)
    ]
    return ok(host.name, "network", str(networks[0]) if networks else "direct")


def _is_interface(text: str) -> bool:
    try:
        ipaddress.ip_interface(text)
    except ValueError:
        return False
    return True
