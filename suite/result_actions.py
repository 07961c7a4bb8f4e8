"""What a person does with a finished run: report, compare, publish, verify, predict. Neither SSH nor Docker."""

from __future__ import annotations

import math
import re

from suite import console
from suite.errors import EXIT_FAILED, EXIT_OK, UsageError
from suite.limits import KNOWN_WORKLOADS
from suite.options import percent, whole, words
from suite.paths import bundle_folder, find_run

MOST_PARAMETERS = 1e12  # 160,000 buckets: seconds of work; more would be minutes


def report(run_name: str, form: str) -> int:
    """``fab report``."""
    from suite.report import FORMATS, render_run, write_all

    if form not in FORMATS:
        raise UsageError(f"--format {form}: there is no such format.", fix=f"use one of {', '.join(FORMATS)}.")
    run = find_run(run_name or None)
    console.out(render_run(run, write_all(run), form))
    return EXIT_OK


def compare(a: str, b: str, fail_above: str, vary: str) -> int:
    """``fab compare``: exit 1 when some row of ``b`` is surely slower than ``a`` by more than the limit."""
    from suite.analysis.compare import compare as compare_runs
    from suite.analysis.compatibility import REFUSE, WARN, is_varied
    from suite.report.comparison import comparison_table

    limit = percent("--fail-above", fail_above) if fail_above else None
    names = set(words(vary))
    for name in sorted(names):
        if not any(is_varied(field, (name,)) for field in (*REFUSE, *WARN)):
            raise UsageError(
                f"--vary {name}: no field is called so.",
                fix="name one that a refusal or warning of `fab compare` names, or a group such as torch.",
            )
    comparison = compare_runs(find_run(a), find_run(b), names, limit)
    console.out(comparison_table(comparison))
    return EXIT_FAILED if comparison.regressed else EXIT_OK


def publish(run_name: str, name: str, anonymous: bool) -> int:
    """``fab publish``."""
    from suite.report.publish import publish as publish_run

    if not name:
        raise UsageError("A bundle needs a name.", fix="give one with --name, e.g. --name rtx3090.")
    target = publish_run(find_run(run_name or None), name, anonymous=anonymous, secrets=_cluster_secrets())
    console.say(f"Published as {target}; results/README.md lists it. Check it with `fab verify {target}`.")
    return EXIT_OK


def _cluster_secrets() -> list[str]:
    """Users and key paths of every cluster file here: words that no bundle may hold."""
    from suite.cluster import inventory
    from suite.errors import SuiteError
    from suite.paths import project_root

    found: set[str] = set()
    for path in sorted((project_root() / "hosts").glob("*.toml")):
        try:
            cluster = inventory.load(path)
        except SuiteError:
            continue  # a broken cluster file is no reason not to publish what was measured
        for host in cluster.hosts:
            found |= {host.user, *(str(p) for p in (host.key, host.known_hosts) if p)}
    return sorted(found)


def verify(path: str) -> int:
    """``fab verify``: exit 1 when anything differs."""
    from suite.report.verify import verify as verify_bundle

    found = verify_bundle(bundle_folder(path))
    for line in found.differences:
        console.out(f"differs: {line}")
    for line in found.notes:
        console.say(line)
    if found.sound:
        console.out(f"{found.bundle}: {found.files} files and the recomputed summary are as published.")
    return EXIT_OK if found.sound else EXIT_FAILED


def predict(run_name: str, parameters: str, workload: str, hosts: str) -> int:
    """``fab predict``."""
    from suite.analysis.load import load_run
    from suite.analysis.predict import predict as forecast
    from suite.report.forecast import forecast_table

    if bool(parameters) == bool(workload):
        raise UsageError("Say what to predict.", fix="give either --parameters, e.g. 1.3e9, or --workload.")
    if workload and workload not in KNOWN_WORKLOADS:
        raise UsageError(f"--workload {workload}: unknown.", fix=f"use one of {', '.join(KNOWN_WORKLOADS)}.")
    count = _parameters(parameters) if parameters else None
    size = whole("--hosts", hosts, 2, 1_000_000) if hosts else None
    data = load_run(find_run(run_name or None))
    found = forecast(data, parameters=count, workload=workload or None, hosts=size)
    console.out(forecast_table(found))
    return EXIT_OK


def _parameters(text: str) -> int:
    value = float(text) if re.fullmatch(r"\d{1,15}(\.\d{1,9})?([eE]\d{1,2})?", text, re.ASCII) else math.nan
    if not 1 <= value <= MOST_PARAMETERS:
        raise UsageError(
            f"--parameters {text}: no number from 1 to {MOST_PARAMETERS:g}.", fix="write for example 1.3e9."
        )
    return round(value)
