"""The in-container sshd's keys and configuration: made for one deployment, in memory, gone with it.

mpirun reaches the other hosts through it. One key pair for all hosts of a deployment lets a rank's launcher
log in; each host has a host key of its own that only the cluster's hosts are told. Private halves go through
the Docker API into the containers' volumes and nowhere else: not to the controller's disk, not into a log.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from suite.cluster.archive import VOLUME, File
from suite.cluster.inventory import Cluster, Host

FOLDER = f"{VOLUME}/ssh"
USER = "suite"
COMMENT = "ddp-backend-suite"
CONNECT_SECONDS = 10


@dataclass(frozen=True)
class KeyPair:
    """An ed25519 key pair in OpenSSH's formats. ``private`` never appears in a repr."""

    private: bytes = field(repr=False)
    public: str  # "ssh-ed25519 AAAA…", without comment


def key_pair() -> KeyPair:
    """A new key pair."""
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return KeyPair(private, public.decode())


@dataclass(frozen=True)
class DeploymentKeys:
    """The keys of one deployment: ``client`` is shared, ``hosts`` holds each host's own, by name."""

    client: KeyPair
    hosts: dict[str, KeyPair]


def make_keys(names: Sequence[str]) -> DeploymentKeys:
    """New keys for the hosts of a deployment."""
    return DeploymentKeys(key_pair(), {name: key_pair() for name in names})


def files(cluster: Cluster, host: Host, keys: DeploymentKeys) -> dict[str, File]:
    """What lies in ``FOLDER`` on one host, by file name; sshd and ssh insist on 0600."""
    known = known_hosts(cluster, keys)
    return {
        "sshd_config": File(sshd_config(host, cluster.container_ssh_port).encode()),
        "host_key": File(keys.hosts[host.name].private),
        "authorized_keys": File(authorized_keys(cluster, keys.client).encode()),
        "config": File(client_config(cluster).encode()),
        "id": File(keys.client.private),
        "known_hosts": File(known.encode()),
        # docker/listen-address.c reads it: nothing in the container listens anywhere else.
        "listen_address": File(f"{host.data_address}\n".encode()),
    }


def known_hosts(cluster: Cluster, keys: DeploymentKeys) -> str:
    """One line per host: its name, and its address, both with the port of the in-container sshd."""
    port = cluster.container_ssh_port
    return "".join(
        f"[{host.name}]:{port},[{host.data_address}]:{port} {keys.hosts[host.name].public}\n" for host in cluster.hosts
    )


def authorized_keys(cluster: Cluster, client: KeyPair) -> str:
    """The one key that may log in, from the cluster's addresses only, for nothing but running programs."""
    sources = ",".join(dict.fromkeys(host.data_address for host in cluster.hosts))
    return f'restrict,from="{sources}" {client.public} {COMMENT}\n'


def sshd_config(host: Host, port: int) -> str:
    """Configuration of an sshd that runs as an ordinary user, on the cluster's interface only."""
    address = f"[{host.data_address}]" if ":" in host.data_address else host.data_address
    return f"""\
ListenAddress {address}:{port}
HostKey {FOLDER}/host_key
AuthorizedKeysFile {FOLDER}/authorized_keys
PidFile none
AllowUsers {USER}
PermitRootLogin no
AuthenticationMethods publickey
PubkeyAuthentication yes
PasswordAuthentication no
KbdInteractiveAuthentication no
HostbasedAuthentication no
UsePAM no
StrictModes yes
DisableForwarding yes
AllowTcpForwarding no
AllowStreamLocalForwarding no
AllowAgentForwarding no
X11Forwarding no
PermitTunnel no
GatewayPorts no
PermitTTY no
PermitUserEnvironment no
PermitUserRC no
AcceptEnv none
PrintMotd no
PrintLastLog no
UseDNS no
LoginGraceTime 20
MaxAuthTries 2
MaxStartups 256:30:512
MaxSessions 64
TCPKeepAlive yes
ClientAliveInterval 5
ClientAliveCountMax 3
LogLevel ERROR
"""


def client_config(cluster: Cluster) -> str:
    """Configuration of the ssh client inside the containers: these hosts, this key, no question ever asked."""
    blocks = [
        f"Host {host.name}\n  HostName {host.data_address}\n  HostKeyAlias [{host.name}]:{cluster.container_ssh_port}\n"
        for host in cluster.hosts
    ]
    return (
        "".join(blocks)
        + f"""\
Host *
  User {USER}
  Port {cluster.container_ssh_port}
  IdentityFile {FOLDER}/id
  IdentitiesOnly yes
  IdentityAgent none
  PreferredAuthentications publickey
  UserKnownHostsFile {FOLDER}/known_hosts
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
  CheckHostIP no
  UpdateHostKeys no
  BatchMode yes
  ConnectTimeout {CONNECT_SECONDS}
  ServerAliveInterval 5
  ServerAliveCountMax 3
  ForwardAgent no
  ForwardX11 no
  ClearAllForwardings yes
  RequestTTY no
  LogLevel ERROR
"""
    )
