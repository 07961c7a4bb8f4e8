"""A deployed simulated cluster for a benchmark, and runs on it."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import suite
from benchmarks.common import Options
from suite import codec, console, paths
from suite.campaign import Campaign
from suite.campaign_progress import Announcer
from suite.cluster import inventory, lab
from suite.cluster.deploy import Deployment, deploy, open_remotes
from suite.cluster.executor import Executor
from suite.cluster.inventory import Cluster
from suite.cluster.lab_engine import LabEngine
from suite.cluster.lab_parts import LabFiles
from suite.cluster.launch import ClusterExecutor
from suite.cluster.remote import RemoteHost
from suite.cluster.workers import restart
from suite.options import RunOptions, make_plan, name_run
from suite.paths import RunPaths
from suite.plan import Plan
from suite.records import HostSlots, Manifest

INTERFACE = "eth0"  # of a simulated host


@dataclass(frozen=True)
class Lab:
    """A running lab: ``root`` is its folder, ``engine`` reaches its hosts past their links."""

    root: Path
    cluster: Cluster
    engine: LabEngine


@dataclass(frozen=True)
class Deployed:
    """A lab with the suite's containers on it."""

    lab: Lab
    remotes: dict[str, RemoteHost]
    deployment: Deployment
    slots: tuple[HostSlots, ...]

    def executor(self, run: str) -> ClusterExecutor:
        """What runs the launches of one run here."""
        containers = self.deployment.containers
        return ClusterExecutor(
            self.remotes,
            containers,
            run=run,
            ports=self.lab.cluster.ports,
            restart=lambda engine: restart(engine, containers[engine.name]),
        )


@contextlib.contextmanager
def running_lab(options: Options, hosts: int = 4) -> Iterator[Lab]:
    """A lab of its own, removed afterwards; or that of ``--lab``, which is left running, its links unlimited."""
    root = options.lab or paths.project_root() / "build" / "bench-lab"
    root.mkdir(parents=True, exist_ok=True)
    try:
        cluster = inventory.load(lab.up(hosts, root=root, progress=console.say))
        lab.link("off", root=root)
        try:
            with contextlib.closing(LabEngine(LabFiles(root))) as engine:
                yield Lab(root, cluster, engine)
        finally:
            lab.link("off", root=root)
    finally:
        if options.lab is None:
            lab.down(root=root, progress=console.say)


@contextlib.contextmanager
def deployed_lab(options: Options, hosts: int = 4) -> Iterator[Deployed]:
    """The same with the image and a container on every host."""
    with running_lab(options, hosts) as there, open_remotes(there.cluster) as remotes:
        deployment = deploy(there.cluster, options.image, gpu=False, remotes=remotes, progress=console.say)
        slots = tuple(HostSlots(h.name, h.data_address, h.slots, INTERFACE) for h in there.cluster.hosts)
        yield Deployed(there, remotes, deployment, slots)


def plan_for(deployed: Deployed, options: RunOptions) -> Plan:
    """A named plan for the lab."""
    plan = make_plan(options, cluster=deployed.lab.cluster.name, hosts=deployed.slots, distinct_hosts=True)
    return name_run(plan, datetime.datetime.now(datetime.timezone.utc))


def execute(
    deployed: Deployed, plan: Plan, folder: Path, watch: Callable[[Executor], Executor] = lambda executor: executor
) -> tuple[RunPaths, Manifest]:
    """Run a plan's whole campaign below ``folder``; its files and its ledger.

    Args:
        watch: wraps the executor, to see every launch.
    """
    run = RunPaths(folder / plan.run)
    paths.write_new(run.plan, codec.encode(plan, indent=1))
    manifest = Manifest(
        run=plan.run,
        cluster=plan.cluster,
        created=f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%dT%H:%M:%SZ}",
        suite_version=suite.__version__,
        suite_commit="",
        suite_dirty=False,
        image_id=deployed.deployment.image_id,
        hosts=plan.hosts,
    )
    executor = watch(deployed.executor(plan.run))
    return run, Campaign(plan, executor, run, manifest, Announcer(console.say)).execute()
