"""What does a report over many ranks and steps cost, and does it grow in proportion?

    python -m benchmarks.report_scale [--quick] [--json PATH]

Synthetic records of 256 ranks × 10,000 steps × 4 series (total and three phases), then four times the steps, and four
times the launches, are written to a temporary folder. For each, a fresh process loads, summarises and writes every
report; its wall time and its peak memory are what is judged. Then the command line itself: ``fab report`` on a run
of the size that the README shows (two workloads, three world sizes, a sweep), and ``fab --list``.
"""

from __future__ import annotations

import itertools
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import Limit, Options, columns, document, finish, median, parse_options
from suite import codec
from suite.analysis.load import load_run
from suite.analysis.summarise import summarise_data
from suite.paths import RunPaths, project_root
from suite.plan import PROTOCOLS, Plan
from suite.records import Arm, HostSlots, LaunchOutcome, Manifest, RankRecord, StepSamples, WorkloadFacts, to_json
from suite.report import write_reports
from tests.support.synthetic import TWO_ARMS, Truth, write_run

RANKS, STEPS = 256, 10_000
REPORT_SECONDS, REPORT_BYTES = 5.0, 1 << 30
LINEAR = 4 * 1.25  # four times the samples may take this many times as long
COMMAND_SECONDS, LIST_SECONDS = 1.0, 0.5
REPEATS = 5
MARK = '"@SERIES@"'


@dataclass(frozen=True)
class Size:
    """One synthetic run."""

    name: str
    ranks: int
    steps: int
    launches: int

    @property
    def samples(self) -> int:
        """Numbers in it: total and three phases of every step."""
        return self.ranks * self.steps * self.launches * 4


@dataclass(frozen=True)
class Cost:
    """What one fresh process took; seconds and bytes. ``startup`` is Python and imports, in ``seconds`` too."""

    seconds: float
    load: float
    summarise: float
    report: float
    peak_bytes: int
    record_bytes: int


def write_synthetic(root: Path, size: Size) -> RunPaths:
    """A finished run with one arm, on disk, through text that is composed without a Python object per sample."""
    run = RunPaths(root / f"synthetic-{size.name}")
    hosts = tuple(HostSlots(f"h{i}", f"192.0.2.{i % 250 + 1}") for i in range(size.ranks))
    plan = Plan(
        run=run.run, name="quick", cluster="synthetic", seed=1, arms=(Arm("gloo", "gloo"),), asked=(),
        workloads=("linear",), worlds=(size.ranks,), hosts=hosts, device="cpu", protocol=PROTOCOLS["quick"],
    )  # fmt: skip
    rng = np.random.default_rng(1)
    outcomes = []
    for block in range(size.launches):
        name = f"{block + 1:04d}-linear-gloo"
        run.launch(name).mkdir(parents=True)
        job = rng.normal(40e6, 0.4e6, size.steps)
        for rank in range(size.ranks):
            total = (job * (1 - 0.01 * rng.random(size.steps))).astype(np.int64)
            run.rank(name, rank).write_text(_record_text(run.run, name, block, rank, size, total))
        outcomes.append(
            LaunchOutcome(name, block + 1, "train", "gloo", "gloo", "linear", size.ranks, block, "ok", wall_seconds=1e6)
        )
    manifest = Manifest(
        run=run.run, cluster="synthetic", created="2026-01-02T03:04:05Z", suite_version="0", suite_commit="0",
        suite_dirty=False, image_id="", hosts=hosts, launches=tuple(outcomes), stop_reason="plan",
    )  # fmt: skip
    run.plan.write_bytes(codec.encode(plan))
    run.manifest.write_bytes(codec.encode(manifest))
    return run


def _record_text(run: str, launch: str, block: int, rank: int, size: Size, total: np.ndarray) -> str:
    record = RankRecord(
        run=run, launch=launch, kind="train", arm="gloo", backend="gloo", workload="linear", block=block, device="cpu",
        world_size=size.ranks, rank=rank, local_rank=0, host=f"h{rank}",
        facts=WorkloadFacts(1_049_600, 4_198_400, 4_198_400, (4_198_400,), 64), synchronised=StepSamples(),
        environment={"cpu_count": 8, "threads": 1},
    )  # fmt: skip
    series = {"total_ns": 1.0, "forward_ns": 0.3, "backward_ns": 0.6, "optimizer_ns": 0.05}
    texts = [
        f'"{key}":[{",".join(map(str, (total * share).astype(np.int64).tolist()))}]' for key, share in series.items()
    ]
    plain = json.loads(to_json(record)) | {"synchronised": MARK.strip('"')}
    return json.dumps(plain).replace(MARK, "{" + ",".join(texts) + ',"warmup_total_ns":[]}')


def report_in_child(run: RunPaths) -> Cost:
    """Write all reports of a run in a fresh process."""
    command = [sys.executable, "-m", "benchmarks.report_scale", "--child", str(run.root)]
    start = time.perf_counter()
    done = subprocess.run(command, cwd=project_root(), capture_output=True, text=True, timeout=900, check=True)
    seconds = time.perf_counter() - start
    parts = json.loads(done.stdout)
    record_bytes = sum(path.stat().st_size for path in run.launches.glob("*/rank-*.json"))
    return Cost(seconds=seconds, record_bytes=record_bytes, **parts)


def child(root: Path) -> None:
    """In the fresh process: the three parts of a report, and the peak memory of it all, as JSON on stdout."""
    run = RunPaths(root)
    times = [time.perf_counter()]
    data = load_run(run)
    times.append(time.perf_counter())
    summary = summarise_data(data)
    times.append(time.perf_counter())
    write_reports(run, summary, data)
    times.append(time.perf_counter())
    load, summarise, report = (after - before for before, after in itertools.pairwise(times))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    sys.stdout.write(json.dumps({"load": load, "summarise": summarise, "report": report, "peak_bytes": peak}))


def command_seconds(words: Sequence[str], results: Path, repeats: int) -> float | None:
    """Median wall time of a ``fab`` command."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "fabric", *words], cwd=project_root(), capture_output=True, timeout=120, check=True,
            env={**os.environ, "SUITE_RESULTS": str(results)},
        )  # fmt: skip
        times.append(time.perf_counter() - start)
    return median(times)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write the JSON."""
    options: Options = parse_options(__doc__, arguments)
    before = os.getloadavg()
    shrink = 8 if options.quick else 1
    base = Size("base", RANKS // shrink, STEPS, 1)
    sizes = [base, Size("steps-x4", base.ranks, 4 * STEPS, 1), Size("launches-x4", base.ranks, STEPS, 4)]
    costs: dict[str, Cost] = {}
    with tempfile.TemporaryDirectory(prefix="suite-report-scale-") as folder:
        for size in sizes:
            run = write_synthetic(Path(folder), size)
            costs[size.name] = report_in_child(run)
        readme, listing = _command_times(Path(folder), 1 if options.quick else REPEATS)
    one = costs["base"]
    limits = [
        Limit(
            f"report over {base.ranks} ranks × {STEPS:,} steps × 4 series", one.seconds, high=REPORT_SECONDS, unit="s"
        ),
        Limit("its peak memory", one.peak_bytes / (1 << 20), high=REPORT_BYTES / (1 << 20), unit="MiB"),
        Limit("four times the steps, time over time", costs["steps-x4"].seconds / one.seconds, high=LINEAR),
        Limit("four times the launches, time over time", costs["launches-x4"].seconds / one.seconds, high=LINEAR),
        Limit("fab report on a run of the README's size", readme, high=COMMAND_SECONDS, unit="s"),
        Limit("fab --list", listing, high=LIST_SECONDS, unit="s"),
    ]
    outcomes: dict[str, Any] = {
        "sizes": [asdict(size) | {"samples": size.samples} | asdict(costs[size.name]) for size in sizes],
        "fab_report_seconds": readme,
        "fab_list_seconds": listing,
    }
    return finish(document("report_scale", options, before, limits, outcomes), table(outcomes), options)


def _command_times(folder: Path, repeats: int) -> tuple[float | None, float | None]:
    truth = Truth(TWO_ARMS, workloads=("linear", "transformer-tiny"), worlds=(1, 2, 4), sweep=True, steps=200)
    results = folder / "results"
    write_run(results / "runs", truth)
    return command_seconds(["report"], results, repeats), command_seconds(["--list"], results, repeats)


def table(outcomes: dict[str, Any]) -> str:
    """One line per size."""
    header = (
        *("run", "ranks", "steps", "launches", "records", "load", "summarise", "report", "whole process"),
        "peak memory",
    )
    rows = [
        (
            size["name"], str(size["ranks"]), f"{size['steps']:,}", str(size["launches"]),
            f"{size['record_bytes'] / 1e6:.0f} MB", f"{size['load']:.2f} s", f"{size['summarise']:.2f} s",
            f"{size['report']:.2f} s", f"{size['seconds']:.2f} s", f"{size['peak_bytes'] / (1 << 20):.0f} MiB",
        )
        for size in outcomes["sizes"]
    ]  # fmt: skip
    return columns(header, rows)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(Path(sys.argv[2]))
    else:
        sys.exit(main())
