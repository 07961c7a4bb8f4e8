"""What the tasks do on the hosts of a cluster: everything that needs SSH or Docker."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from suite import codec, console
from suite.cluster import deploy as deploying
from suite.cluster import inventory, lab
from suite.cluster.build import build as build_image
from suite.cluster.check import check as check_hosts
from suite.cluster.check import interfaces as discovered_interfaces
from suite.cluster.check_table import check_table
from suite.cluster.collect import collect as collect_again
from suite.cluster.containers import devices_inside
from suite.cluster.deploy import Deployment, Remotes, find_deployment, open_remotes
from suite.cluster.inventory import Cluster
from suite.cluster.lab_parts import MAX_HOSTS
from suite.cluster.launch import ClusterExecutor
from suite.cluster.stop import clean as clean_hosts
from suite.cluster.stop import stop as stop_hosts
from suite.cluster.variants import REPOSITORY, load_variant
from suite.cluster.workers import restart
from suite.errors import EXIT_FAILED, EXIT_OK, EXIT_PREFLIGHT, PreflightError, SuiteError, UsageError
from suite.options import whole
from suite.paths import find_run, project_root
from suite.records import HostSlots, Manifest


@dataclass(frozen=True)
class Session:
    """A deployed cluster that is ready for launches."""

    cluster: Cluster
    deployment: Deployment
    hosts: tuple[HostSlots, ...]
    remotes: Remotes

    def executor(self, run: str) -> ClusterExecutor:
        """What runs the launches of one run on these hosts."""
        containers = self.deployment.containers
        return ClusterExecutor(
            self.remotes,
            containers,
            run=run,
            ports=self.cluster.ports,
            restart=lambda engine: restart(engine, containers[engine.name]),
        )


def load_cluster(name: str) -> Cluster:
    """The cluster file of ``--cluster``. Raises UsageError or ConfigurationError."""
    return inventory.load(inventory.find(name or None, project_root() / "hosts"))


def image_tag(cluster: Cluster, variant: str) -> str:
    """The image of a cluster: the one it names, else its variant's."""
    if variant:
        return load_variant(project_root(), variant).tag
    return cluster.image or f"{REPOSITORY}:{'cuda' if cluster.gpu else 'cpu'}"


def build(variant: str) -> int:
    """``fab build``."""
    image = build_image(variant, root=project_root(), progress=console.say)
    console.out(f"{REPOSITORY}:{variant} is {image}")
    return EXIT_OK


def check(cluster_name: str, variant: str, accept_new: bool) -> int:
    """``fab check``: exit 3 when a host is not fit."""
    cluster = load_cluster(cluster_name)
    with open_remotes(cluster, accept_new=accept_new) as remotes:
        findings = check_hosts(cluster, image_tag(cluster, variant), remotes=remotes, level="all")
        accepted = {name: remote.accepted for name, remote in remotes.items() if remote.accepted}
    for name, fingerprint in accepted.items():
        console.say(f"{name}: accepted the host key {fingerprint}")
    console.out(check_table(findings))
    return EXIT_PREFLIGHT if any(finding.status == "fail" for finding in findings) else EXIT_OK


def _require_fit(cluster: Cluster, tag: str, remotes: Remotes, level: str) -> None:
    """The part of ``check`` that the next step needs. Raises PreflightError with the table of what failed."""
    findings = check_hosts(cluster, tag, remotes=remotes, level=level)
    failed = [finding for finding in findings if finding.status == "fail"]
    if failed:
        console.say(check_table(findings))
        hosts = ", ".join(sorted({finding.host for finding in failed}))
        raise PreflightError(f"{len(failed)} checks failed on {hosts}.", fix="do what stands above, then try again.")


def deploy(cluster_name: str, variant: str, force: bool) -> int:
    """``fab deploy``."""
    cluster = load_cluster(cluster_name)
    tag = image_tag(cluster, variant)
    with open_remotes(cluster) as remotes:
        done = deploying.deploy(
            cluster,
            tag,
            gpu=cluster.gpu,
            remotes=remotes,
            progress=console.say,
            force=force,
            preflight=lambda: _require_fit(cluster, tag, remotes, "deploy"),
        )
    what = "everything was there already" if done.kept else f"{len(done.containers)} containers started"
    console.say(
        f"Deployed to {', '.join(done.containers)}: {what}; {done.bytes_sent / 1e6:.1f} MB sent,"
        f" {done.seconds:.1f} s. End it with `fab stop`."
    )
    return EXIT_OK


@contextlib.contextmanager
def session(cluster_name: str) -> Iterator[Session]:
    """The deployed cluster, checked as far as a run needs it. Raises SuiteErrors with the fix."""
    cluster = load_cluster(cluster_name)
    with open_remotes(cluster) as remotes:
        deployment = find_deployment(cluster, remotes)
        _require_fit(cluster, deployment.image_id, remotes, "run")
        found = discovered_interfaces(cluster, remotes)
        yield Session(cluster, deployment, slots_of(cluster, found), remotes)


def slots_of(cluster: Cluster, interfaces: Mapping[str, str]) -> tuple[HostSlots, ...]:
    """The hosts of a plan, from those of the cluster file and the interfaces found between them."""
    return tuple(
        HostSlots(
            name=host.name,
            address=host.data_address,
            slots=host.slots,
            interface=host.interface or interfaces.get(host.name),
            devices=devices_inside(host),
            environment=host.environment,
        )
        for host in cluster.hosts
    )


def collect(run_name: str, cluster_name: str) -> int:
    """``fab collect``."""
    run = find_run(run_name)
    manifest = codec.read(run.manifest, Manifest)
    cluster = load_cluster(cluster_name or manifest.cluster)
    with open_remotes(cluster) as remotes:
        deployment = find_deployment(cluster, remotes)
        got = collect_again(run, manifest, remotes, deployment.containers)
    console.say(f"{len(got.new)} files fetched, {len(got.mended)} damaged ones replaced, {len(got.problems)} problems.")
    for line in (*got.new, *got.mended):
        console.say(f"  fetched {line}")
    for line in got.problems:
        console.say(f"  {line}")
    return EXIT_FAILED if got.problems else EXIT_OK


def stop(cluster_name: str, *, images: bool) -> int:
    """``fab stop`` and ``fab clean``."""
    cluster = load_cluster(cluster_name)
    with open_remotes(cluster) as remotes:
        outcome = (clean_hosts if images else stop_hosts)(cluster, remotes)
    failed = 0
    for name, answer in outcome.items():
        if isinstance(answer, Exception):
            failed += 1
            console.say(f"{answer.message if isinstance(answer, SuiteError) else answer}")
        else:
            console.say(f"{name}: {'removed' if answer else 'nothing to remove'}")
    return EXIT_FAILED if failed else EXIT_OK


# The simulated cluster


def lab_up(hosts: str) -> int:
    """``fab lab.up``."""
    path = lab.up(whole("--hosts", hosts, 1, MAX_HOSTS), root=project_root(), progress=console.say)
    console.say(f"Simulated hosts are up; {path.relative_to(project_root())} describes them.")
    return EXIT_OK


def lab_down() -> int:
    """``fab lab.down``."""
    lab.down(root=project_root(), progress=console.say)
    return EXIT_OK


def lab_link(rate: str, host: str) -> int:
    """``fab lab.link``."""
    lab.link("off" if rate == "none" else rate, host or None, root=project_root())
    console.say(f"Links of {host or 'every host'}: {rate}.")
    return EXIT_OK


def lab_fault(kind: str, host: str, port: str) -> int:
    """``fab lab.fault``."""
    if kind not in lab.KINDS:
        kinds = "".join(f"\n  {name:20} {what}" for name, what in lab.KINDS.items())
        raise UsageError(f"There is no fault {kind!r}. These are:{kinds}")
    if port and kind != lab.PORT_TAKEN:
        raise UsageError(f"--port {port}: {kind} takes no port.", fix=f"leave it out; it is for {lab.PORT_TAKEN}.")
    number = whole("--port", port, 1, 65535) if port else lab.DEFAULT_PORT
    lab.fault(kind, host, root=project_root(), port=number)
    console.say(f"{host}: {kind}: {lab.KINDS[kind]}. Undo it with `fab lab.heal`.")
    return EXIT_OK


def lab_heal(host: str) -> int:
    """``fab lab.heal``."""
    for name in lab.heal(host or None, root=project_root()):
        console.say(f"{name}: healed")
    return EXIT_OK
