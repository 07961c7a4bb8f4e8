"""Campaigns: what ``run``, ``local`` and ``reproduce`` do, in the order of their steps.

Every function returns the exit code; errors are raised as SuiteErrors.
"""

from __future__ import annotations

import datetime
import shutil
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import suite
from suite import codec, console, paths
from suite.errors import EXIT_FAILED, EXIT_OK, Interrupted, LaunchError, SuiteError, UsageError
from suite.options import RunOptions, make_plan, name_run, seconds, whole
from suite.paths import RunPaths, bundle_folder, find_run
from suite.plan import Plan
from suite.policy import FACTS
from suite.records import HostSlots, Manifest
from suite.summary import Summary

# What another cluster may have of its own, so that a bundle can be reproduced elsewhere: all but what was trained and
# how it was timed. Warm-up is found anew by the pilots there.
SAME_EVERYWHERE = ("suite_version", "timing_mode", "world_size", "workload", "parameters", "batch_size", "dtype")
CLUSTERS_OWN = frozenset(name for name in FACTS if name not in SAME_EVERYWHERE and not name.startswith("ddp_"))


def campaign_options(options: dict[str, Any]) -> RunOptions:
    """The options of ``run`` and ``local`` as they came from the command line."""
    known = {field.name for field in fields(RunOptions)}
    return RunOptions(**{key: value for key, value in options.items() if key in known})


def local(options: RunOptions, resume: str) -> int:
    """``fab local``: the campaign on this machine alone."""
    from suite.cluster.local import HOST, LocalExecutor, local_host

    worlds = [whole("--world", word, 1, 4096) for word in options.world.split(",") if word.strip()]
    device = options.device
    if resume:  # the stored plan says how many ranks and on what; an option cannot
        stored = codec.read(find_run(resume).plan, Plan)
        worlds, device = list(stored.worlds), stored.device
    executor = LocalExecutor()
    try:
        hosts = (local_host(device, worlds, executor.probe),)
        plan, run = _plan_and_run(options, resume, HOST, hosts, distinct_hosts=False)
        summary = _campaign(plan, run, executor, image_id="")
    finally:
        executor.close()
    return _finish(run, summary, plan)


def run(cluster_name: str, options: RunOptions, resume: str) -> int:
    """``fab run``: the campaign on the deployed hosts."""
    from suite.cluster_actions import session

    with session(cluster_name) as ready:
        plan, run = _plan_and_run(options, resume, ready.cluster.name, ready.hosts, distinct_hosts=True)
        summary = _campaign(plan, run, ready.executor(plan.run), image_id=ready.deployment.image_id)
    return _finish(run, summary, plan)


def reproduce(path: str, cluster_name: str) -> int:
    """``fab reproduce``: a bundle's plan on the present cluster, then the two compared."""
    from suite.analysis.compare import compare
    from suite.cluster_actions import session
    from suite.report.comparison import comparison_table
    from suite.report.publish import load_plan_of_bundle, unpacked

    old = load_plan_of_bundle(bundle_folder(path))
    with session(cluster_name) as ready:
        slots = sum(host.slots for host in ready.hosts)
        if max(old.worlds) > slots:
            raise UsageError(
                f"{path} has world size {max(old.worlds)}, {ready.cluster.name} has {slots} slots.",
                fix="use a cluster with as many.",
            )
        plan = replace(old, cluster=ready.cluster.name, hosts=ready.hosts)
        plan = name_run(plan, datetime.datetime.now(datetime.timezone.utc))
        run = RunPaths(paths.runs_root() / plan.run)
        summary = _campaign(plan, run, ready.executor(plan.run), image_id=ready.deployment.image_id)
    code = _finish(run, summary, plan)
    with unpacked(bundle_folder(path)) as original:
        # Another cluster is the point: what is its own may differ, what is the suite's may not.
        console.out(comparison_table(compare(original, run, CLUSTERS_OWN)))
    return code


def _plan_and_run(
    options: RunOptions, resume: str, cluster: str, hosts: Sequence[HostSlots], *, distinct_hosts: bool
) -> tuple[Plan, RunPaths]:
    """A new plan, or the stored one of the run to resume, whose options count but for ``--budget``."""
    if resume:
        run = find_run(resume)
        plan = codec.read(run.plan, Plan)
        then, now = ([h.name for h in known] for known in (plan.hosts, hosts))
        if plan.cluster != cluster or then != now:
            raise UsageError(
                f"--resume {resume}: that run was on {plan.cluster} ({', '.join(then)}),"
                f" this is {cluster} ({', '.join(now)}).",
                fix="resume it on the same cluster.",
            )
        unused = [name for name in _chosen(options) if not (cluster == "local" and name == "world")]
        if unused:
            console.say(f"The run's own plan counts; not used: {', '.join('--' + name for name in unused)}.")
        if options.budget:  # how long a run may take is no part of what it measures: a new sitting may have more
            plan = replace(plan, budget_seconds=seconds("--budget", options.budget))
        return replace(plan, hosts=tuple(hosts)), run
    plan = make_plan(options, cluster=cluster, hosts=hosts, distinct_hosts=distinct_hosts)
    plan = name_run(plan, datetime.datetime.now(datetime.timezone.utc))
    return plan, RunPaths(paths.runs_root() / plan.run)


def _chosen(options: RunOptions) -> list[str]:
    """The options that were given something else than their default, but for ``--budget``, by their names."""
    usual = RunOptions()
    changed = [f.name for f in fields(RunOptions) if (getattr(options, f.name) or "") != (getattr(usual, f.name) or "")]
    return [name.replace("_", "-") for name in changed if name != "budget"]


def _campaign(plan: Plan, run: RunPaths, executor: Any, *, image_id: str) -> Summary:
    """Store the plan of a new run, or read the ledger of an old one; execute; write the reports."""
    from suite.campaign import Campaign, locked
    from suite.campaign_progress import Announcer
    from suite.provenance import commit
    from suite.report import write_all

    announcer = Announcer(console.say)
    fresh = False
    with locked(run):
        if run.manifest.exists():
            manifest = codec.read(run.manifest, Manifest)
        else:
            fresh = not run.plan.exists()  # else its controller was killed before the first line of the ledger
            if fresh:
                paths.write_new(run.plan, codec.encode(plan, indent=1))
            revision, dirty = commit()
            manifest = Manifest(
                run=plan.run,
                cluster=plan.cluster,
                created=f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%dT%H:%M:%SZ}",
                suite_version=suite.__version__,
                suite_commit=revision,
                suite_dirty=dirty,
                image_id=image_id,
                hosts=plan.hosts,
            )
        if manifest.image_id != image_id:
            raise UsageError(
                f"{run.run} was measured with image {manifest.image_id[:19] or 'none'}, the hosts now have"
                f" {image_id[:19] or 'none'}.",
                fix="deploy that image again, or start a new run.",
            )
        console.say(f"Run {run.run}: plan {plan.name}, seed {plan.seed}.")
        try:
            Campaign(plan, executor, run, manifest, announcer).execute()
        except SuiteError as error:
            if fresh and not run.manifest.exists():  # refused before anything was measured: nothing is left behind
                shutil.rmtree(run.root, ignore_errors=True)
            elif isinstance(error, (Interrupted, LaunchError)) and run.manifest.exists():
                write_all(run)  # what there is so far
            raise
        return write_all(run)


def _finish(run: RunPaths, summary: Summary, plan: Plan) -> int:
    """Print the table and say where everything is; exit 1 for a failed, invalid or missing asked-for row."""
    from suite.report import render_run

    console.out(render_run(run, summary, "terminal"))
    console.say(f"Report: {_shown(run.report_html)} (also report.md, tables.csv, summary.json there).")
    bad = [row for row in summary.rows if row.status in ("failed", "invalid")]
    missing = [row for row in summary.rows if row.status == "unavailable" and row.arm in plan.asked]
    if summary.problems:
        console.say(f"{len(summary.problems)} records could not be used; the report names them.")
    return EXIT_FAILED if bad or missing or summary.problems else EXIT_OK


def _shown(path: Any) -> str:
    """A path relative to the project where that is shorter."""
    try:
        return str(path.relative_to(paths.project_root()))
    except ValueError:
        return str(path)
