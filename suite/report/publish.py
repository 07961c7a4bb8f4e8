"""A run as a bundle that others can read, check and run again."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

import suite
from suite import codec, paths
from suite.analysis.load import read_record
from suite.errors import RecordError, UsageError
from suite.paths import RunPaths, is_safe_name
from suite.plan import Plan
from suite.records import Manifest, RankRecord
from suite.report import bundle, sbom, write_all
from suite.report.bundle import load_plan_of_bundle, unpacked
from suite.report.index import write_index
from suite.report.scrub import Scrubber
from suite.summary import BundleInfo

__all__ = ["load_plan_of_bundle", "publish", "unpacked"]


def publish(run: RunPaths, name: str, *, anonymous: bool = False, secrets: Iterable[str] = ()) -> Path:
    """Make ``results/published/<name>/`` and renew the index in ``results/README.md``.

    Args:
        run: a finished run.
        name: of the bundle; a folder's name.
        anonymous: replace the names of hosts and cluster too.
        secrets: further words that must not leave the controller, such as the cluster file's users and key paths.

    Returns:
        The bundle's folder.

    Raises:
        UsageError: the name is no folder's name or is taken, or the run has not ended.
        RecordError: the run's ledger or plan cannot be read.
    """
    if not is_safe_name(name):
        raise UsageError(f"{name!r} cannot name a bundle.", fix="use letters, digits, dots, dashes.")
    target = paths.published_root() / name
    if target.exists():
        raise UsageError(f"There is a bundle {name} already.", fix="choose another --name, or remove it first.")
    manifest = codec.read(run.manifest, Manifest)
    if manifest.stop_reason is None:
        raise UsageError(f"{run.run} has not ended.", fix=f"finish it with --resume {run.run}.")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".publish-", dir=target.parent) as folder:
        public = RunPaths(Path(folder) / "run")
        scrub_run(run, public, anonymous=anonymous, secrets=secrets)
        made = Path(folder) / "bundle"
        make_bundle(public, made, name, anonymous=anonymous)
        made.rename(target)
    write_index(paths.published_root(), paths.results_root() / "README.md")
    return target


def scrub_run(run: RunPaths, target: RunPaths, *, anonymous: bool, secrets: Iterable[str] = ()) -> None:
    """Write a copy of a run that holds only what may leave. Records that cannot be read are left out and named."""
    manifest = codec.read(run.manifest, Manifest)
    plan = codec.read(run.plan, Plan)
    lost: list[str] = []
    scrubber = Scrubber(manifest, _records(run, manifest, []), anonymous=anonymous, secrets=secrets)
    variables = {name for arm in plan.arms for name in arm.environment}
    target.launches.mkdir(parents=True)
    digests: dict[str, dict[str, str]] = {}
    for record in _records(run, manifest, lost):
        data = codec.encode(scrubber.record(record, variables))
        path = target.rank(record.launch, record.rank)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        digests.setdefault(record.launch, {})[path.name] = hashlib.sha256(data).hexdigest()
    published = scrubber.manifest(manifest, digests, lost)
    target.manifest.write_bytes(codec.encode(published, indent=1))
    target.plan.write_bytes(codec.encode(scrubber.plan(plan), indent=1))


def _records(run: RunPaths, manifest: Manifest, lost: list[str]) -> Iterable[RankRecord]:
    """Every sound record of the ledger's launches, one at a time; what is wrong with the others goes to ``lost``."""
    for outcome in manifest.launches:
        if not is_safe_name(outcome.launch):
            continue
        for rank in run.recorded_ranks(outcome.launch):
            try:
                yield read_record(run, outcome, rank, manifest.run)
            except RecordError as error:
                lost.append(f"Left out of the bundle, because it cannot be used: {error}")


def make_bundle(public: RunPaths, target: Path, name: str, *, anonymous: bool) -> None:
    """Fill a new folder with all files of a bundle, from a run that may be published as it is."""
    summary = write_all(public)
    manifest = codec.read(public.manifest, Manifest)
    target.mkdir()
    for file in ("plan.json", "manifest.json", "summary.json", "report.md", "report.html", "tables.csv"):
        shutil.copyfile(public.root / file, target / file)
    if public.plots.is_dir():
        shutil.copytree(public.plots, target / "plots")
    bundle.pack_records(public.launches, target / bundle.RECORDS)
    (target / "environment.json").write_bytes(codec.encode(summary.environment, indent=1))
    (target / "sbom.json").write_text(sbom.render(manifest, summary.environment), encoding="utf-8")
    info = BundleInfo(name, summary.run, anonymous, suite.__version__, bundle.report_code())
    (target / bundle.INFO).write_bytes(codec.encode(info, indent=1))
    for path in (target, *target.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    (target / bundle.SUMS).write_text(bundle.sums_text(bundle.checksums(target)), encoding="ascii")
