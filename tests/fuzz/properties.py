"""What must hold for any input: every reader gives a value, or an error of the suite's own that can be shown.

A property is a strategy and a check. The check fails by raising anything but what it allows itself.
"""

from __future__ import annotations

import io
import json
import lzma
import os
import re
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import paramiko
from hypothesis import strategies as st

from suite import codec, options
from suite.analysis.summarise import summarise
from suite.cluster import archive, inventory, probe
from suite.cluster.containers import container_options
from suite.cluster.executor import LauncherResult, judge
from suite.cluster.host_keys import KnownHosts
from suite.cluster.launch import ports_in_use
from suite.cluster.variants import load_variant
from suite.console import printable
from suite.errors import ConfigurationError, RecordError, SuiteError, UsageError
from suite.paths import RunPaths, is_launch_file, is_safe_name
from suite.plan import Plan, block_slots, comparisons, launch_spec, parse_arms
from suite.records import DdpOptions, HostProbe, HostSlots, LaunchSpec, Manifest, RankRecord, Settings
from suite.report import bundle, render
from suite.summary import Summary
from tests.fuzz.generate import any_bytes, damaged, numbers, scalars, texts, toml_table, values, whole, words
from tests.fuzz.samples import (
    Property,
    clean,
    json_of,
    sample,
    sample_run,
    sample_summary,
    write_files,
)
from tests.fuzz.strangers import FROM_STRANGERS

# Cluster files


def cluster_file(data: bytes) -> None:
    try:
        cluster = inventory.parse(data, Path("hosts/fuzz.toml"))
    except ConfigurationError as error:
        clean(error)
        assert error.message.startswith("hosts/fuzz.toml: ")
        return
    for host in cluster.hosts:
        assert is_safe_name(host.name)
        assert host.slots >= 1
        text = json.dumps(container_options(host, cluster, cluster.gpu))
        assert "docker.sock" not in text
        assert '"Privileged": false' in text


_host_tables = st.fixed_dictionaries(
    {"name": st.one_of(words, texts), "address": st.one_of(st.just("198.51.100.7"), words, texts)},
    optional={
        "user": st.one_of(words, scalars),
        "port": whole,
        "key": texts,
        "slots": whole,
        "devices": st.one_of(values, st.lists(st.integers(0, 9), max_size=3)),
        "shm_size": st.one_of(st.sampled_from(["2g", "host", "1k"]), scalars),
        "interface": st.one_of(words, scalars),
        "environment": st.one_of(st.dictionaries(st.sampled_from(["NCCL_X", "GLOO_Y", "PATH"]), texts), values),
        "data_address": texts,
        "unknown": values,
    },
)
_cluster_tables = st.fixed_dictionaries(
    {},
    optional={
        "name": st.one_of(words, scalars),
        "container_ssh_port": numbers,
        "ports": st.one_of(st.sampled_from(["29500-29999", "5-4", "1-99999", "x"]), scalars),
        "image": st.one_of(words, scalars),
        "read_only": scalars,
        "Name": texts,
    },
)


@st.composite
def cluster_texts(draw: Callable[[Any], Any]) -> bytes:
    parts = [toml_table("[cluster]", draw(_cluster_tables))]
    parts += [toml_table("[defaults]", {"user": "bench", **draw(st.dictionaries(words, values, max_size=1))})]
    parts += [toml_table("[[hosts]]", table) for table in draw(st.lists(_host_tables, max_size=3))]
    return "\n".join(parts).encode("utf-8", "surrogatepass")


def cluster_choice(case: tuple[str | None, str | None, list[str]]) -> None:
    """--cluster and SUITE_CLUSTER: a file of hosts/ or exit 2, never a file elsewhere."""
    name, variable, files = case
    with tempfile.TemporaryDirectory() as folder:
        for file in files:
            (Path(folder) / f"{file}.toml").touch()
        with _Variable("SUITE_CLUSTER", variable):
            try:
                path = inventory.find(name, Path(folder))
            except UsageError as error:
                clean(error)
            else:
                assert path.parent == Path(folder)
                assert path.stem in files


_variables = texts.filter(lambda text: "\0" not in text)  # no system lets such a variable be set


class _Variable:
    """An environment variable as it is to be for a while; None: not set."""

    def __init__(self, name: str, value: str | None) -> None:
        self._name, self._value, self._old = name, value, os.environ.get(name)

    def __enter__(self) -> None:
        self._set(self._value)

    def __exit__(self, *_: object) -> None:
        self._set(self._old)

    def _set(self, value: str | None) -> None:
        if value is None:
            os.environ.pop(self._name, None)
        else:
            os.environ[self._name] = value


def variant_file(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "docker" / "variants" / "fuzz.toml"
        path.parent.mkdir(parents=True)
        path.write_bytes(data)
        try:
            load_variant(Path(folder), "fuzz")
        except UsageError as error:
            clean(error)


def known_hosts(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "known_hosts"
        path.write_bytes(data)
        host = inventory.Host("h1", "198.51.100.7", "198.51.100.7", "bench", known_hosts=path)
        try:
            KnownHosts(host).load_into(paramiko.SSHClient())
        except ConfigurationError as error:
            clean(error)


# Options

HOSTS = tuple(HostSlots(f"h{i}", f"198.51.100.{i}") for i in range(1, 5))
_amounts = st.one_of(texts, st.from_regex(r"-?[0-9]{1,4}(\.[0-9])?[smhx%]?", fullmatch=True))
_typed = {
    "backend": st.one_of(texts, st.sampled_from(["all", "gloo", "mpi,gloo", "nccl", "gloo,gloo", ","])),
    "arm": st.lists(st.one_of(texts, st.sampled_from(["a=gloo", "b=mpi,bucket_mb=5", "c=nccl,X=1"])), max_size=2),
    "workload": st.one_of(texts, st.sampled_from(["linear", "collectives", "linear,transformer", "m:f", "a.b:c"])),
    "plan": st.one_of(texts, st.sampled_from(["quick", "standard", "thorough", "article"])),
    "device": st.one_of(texts, st.sampled_from(["auto", "cpu", "cuda"])),
    "world": st.one_of(texts, st.sampled_from(["1", "2,4", "3", "5", "4,4", "0"])),
    "inject": st.one_of(texts, st.sampled_from(["kill", "stop@1", "raise@9", "hang@0:mpi", "corrupt-gradient@"])),
    "ddp": st.one_of(texts, st.sampled_from(["bucket_mb=100", "static_graph=true", "bucket_mb=nan", "x=1"])),
    **dict.fromkeys(("blocks", "budget", "seed", "threads", "batch", "steps"), _amounts),
    **dict.fromkeys(("max_bytes", "deadline", "delta"), _amounts),
}  # fmt: skip
assert set(_typed) == {field.name for field in fields(options.RunOptions)}


@st.composite
def typed_options(draw: Callable[[Any], Any]) -> options.RunOptions:
    """A few options that may be wrong; the others as they are by default."""
    names = draw(st.lists(st.sampled_from(sorted(_typed)), max_size=4, unique=True))
    return options.RunOptions(**{name: draw(_typed[name]) for name in names})


def command_line(given: options.RunOptions) -> None:
    """A plan whose first block can be specified, and which can be stored and read again; or exit 2."""
    try:
        plan = options.make_plan(given, cluster="lab", hosts=HOSTS, distinct_hosts=True)
    except UsageError as error:
        clean(error)
        return
    assert codec.decode(codec.encode(plan), Plan, "plan.json") == plan
    for workload, world in comparisons(plan):
        settings = Settings(workload, world, 10, 20)
        for slot in block_slots(plan, workload, world, 0, [arm.name for arm in plan.arms]):
            spec = launch_spec(plan, slot, 1, settings, master_port=29500, output_folder="/x")
            assert is_safe_name(spec.launch)
            assert codec.decode(codec.encode(spec), LaunchSpec, "spec.json") == spec


def arms(texts_: list[str]) -> None:
    try:
        parse_arms([], texts_, DdpOptions())
    except UsageError as error:
        clean(error)


# Records


KINDS = (RankRecord, Manifest, Plan, LaunchSpec, HostProbe, Summary)


def any_record(data: bytes) -> None:
    for kind in KINDS:
        record_of(kind, data)


def record_of(kind: type, data: bytes) -> None:
    try:
        value: object = codec.decode(data, kind, "file.json")
    except RecordError as error:
        clean(error)
        assert error.message.startswith("file.json: ")
    else:
        assert isinstance(value, kind)


def launch_description(data: bytes) -> None:
    """The worker's own reader."""
    from suite.worker.spec import load_spec

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "spec.json"
        path.write_bytes(data)
        try:
            load_spec(path)
        except RecordError as error:
            clean(error)


def whole_run(case: tuple[str, bytes]) -> None:
    """A run with one damaged file: a summary that can be shown in every format, or an error that names the file."""
    name, data = case
    with tempfile.TemporaryDirectory() as folder:
        run = write_files(Path(folder), {**sample_run(), name: data})
        try:
            summary = summarise(run)
        except SuiteError as error:
            clean(error)
            return
        for form in ("terminal", "markdown", "csv", "json", "latex", "html"):
            text = render(summary, None, form)
            assert form in ("json", "csv") or printable(text).replace("\n", "") == text.replace("\n", "")
        assert sorted(p.name for p in Path(folder).iterdir()) == ["run"]


@st.composite
def damaged_runs(draw: Callable[[Any], Any]) -> tuple[str, bytes]:
    names = sorted(sample_run())
    name = draw(st.sampled_from([names[0], *(n for n in names if "launches" not in n)] * 2 + names))
    return name, draw(damaged(json.loads(sample_run()[name])))


def shown_summary(data: bytes) -> None:
    """A summary of somebody else's, in every format."""
    try:
        summary = codec.decode(data, Summary, "summary.json")
    except RecordError as error:
        clean(error)
        return
    for form in ("terminal", "markdown", "csv", "latex", "html"):
        text = render(summary, None, form)
        assert "<script>alert" not in text or form not in ("markdown", "html")


# What hosts say


def probe_answer(text: str) -> None:
    facts = probe.parse("h1", text, {}, None)
    assert all(isinstance(port, int) for port in facts.listening)


_PROBE = (
    "### hostname\nh1\n### shm\n67108864\n### disk\n1000000000\n### addresses\n"
    '[{"ifname":"eth0","flags":["UP"],"addr_info":[{"local":"198.51.100.7","prefixlen":24}]}]\n'
    '### route 198.51.100.8\n[{"dst":"198.51.100.8","dev":"eth0","prefsrc":"198.51.100.7"}]\n'
    "### tcp\n  sl  local_address rem_address st\n   0: 0100007F:0016 00000000:0000 0A 0 0 0 0 1000 0 1\n"
    '### holders\nLISTEN 0 128 0.0.0.0:22 0.0.0.0:* users:(("sshd",pid=7,fd=3))\n'
    "### users\nbench:x:1000:1000::/:/bin/sh\n"
)


@st.composite
def answers(draw: Callable[[Any], Any]) -> str:
    """What a host answers, with pieces exchanged."""
    lines = _PROBE.splitlines()
    for _ in range(draw(st.integers(0, 4))):
        place = draw(st.integers(0, len(lines) - 1))
        pieces = re.split(r'([:,"\s])', lines[place])
        pieces[draw(st.integers(0, len(pieces) - 1))] = draw(texts)
        lines[place] = "".join(pieces)
    return "\n".join(lines)


def ports(text: str) -> None:
    assert all(0 <= port <= 65535 for port in ports_in_use(text))


def archive_bytes(data: bytes) -> None:
    """What comes out of a host's archive are plain files with safe names, within the limit; or an ArchiveError."""
    try:
        found = archive.unpack(io.BytesIO(data), limit_bytes=10_000, wanted=is_launch_file)
    except archive.ArchiveError:
        return
    assert all(is_launch_file(name) and "/" not in name for name in found)
    assert sum(map(len, found.values())) <= 10_000


_MEMBERS = ("launch/rank-0.json", "launch/../rank-1.json", "/rank-0.json", "launch/a/rank-0.log", "launch/")
_TYPES = (tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE)
_entries = st.tuples(
    st.one_of(st.sampled_from(_MEMBERS), texts),
    st.sampled_from(_TYPES),
    st.binary(max_size=50),
    st.sampled_from(["", "/etc/passwd", "../x"]),
)


@st.composite
def archives(draw: Callable[[Any], Any]) -> bytes:
    """Tar archives of hostile members, now and then damaged."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, kind, content, link in draw(st.lists(_entries, max_size=4)):
            entry = tarfile.TarInfo(name.replace("\0", ""))
            entry.type, entry.linkname, entry.size = kind, link, len(content) if kind == tarfile.REGTYPE else 0
            tar.addfile(entry, io.BytesIO(content) if kind == tarfile.REGTYPE else None)
    data: bytes = draw(spoilt(buffer.getvalue()))
    return data


@st.composite
def spoilt(draw: Callable[[Any], Any], data: bytes) -> bytes:
    """Bytes of which some are changed, or the second half is missing, or neither."""
    changed = bytearray(data)
    for _ in range(draw(st.integers(0, 2))):
        if changed:
            changed[draw(st.integers(0, len(changed) - 1))] = draw(st.integers(0, 255))
    return bytes(changed[: draw(st.sampled_from([len(data), len(data), len(data) // 2]))])


def bundle_records(data: bytes) -> None:
    """A published bundle's archive writes rank records into its own folder, and nothing else anywhere."""
    with tempfile.TemporaryDirectory() as folder:
        packed = Path(folder) / "records.tar.xz"
        packed.write_bytes(data)
        run = RunPaths(Path(folder) / "in" / "run")
        run.root.mkdir(parents=True)
        try:
            bundle.unpack_records(packed, run)
        except RecordError as error:
            clean(error)
        written = [p for p in Path(folder).rglob("*") if not p.is_dir() and p != packed]
        assert all(p.is_relative_to(run.launches) and p.is_file() and not p.is_symlink() for p in written)


SPEC = LaunchSpec(
    run="r", launch="0001-linear-gloo", index=1, kind="train",
    arm=parse_arms(["gloo"], [], DdpOptions())[0], workload="linear", batch_size=None, device="cpu", world_size=2,
    hosts=HOSTS[:2], block=0, seed=1, warmup_steps=1, steps=1, nosync_steps=0, free_steps=0, equivalence_steps=0,
    threads=1, master_address="198.51.100.1", master_port=29500, deadline_seconds=30.0, output_folder="/x",
)  # fmt: skip
_outputs = st.one_of(
    texts,
    st.sampled_from(
        [
            "prterun noticed that process rank 1 with PID 71 on node h2 exited on signal 9 (Killed).",
            "Root Cause (first observed failure):\n  rank      : 77 (local_rank: 0)\n  exitcode  : -9 (pid: 71)",
            "rank : 1 (local_rank: 0)\nexitcode : -99999999999999999999 (pid: 71)",
        ]
    ),
)
_ends = st.builds(
    LauncherResult,
    host=st.sampled_from(["h1", "h2"]),
    code=st.one_of(st.none(), st.integers(-1, 255)),
    output=_outputs,
    ended_by=st.sampled_from(["", "deadline", "another host", "interrupt", "connection lost"]),
    order=st.integers(0, 3),
)


@st.composite
def launch_ends(draw: Callable[[Any], Any]) -> tuple[dict[str, bytes], list[LauncherResult]]:
    """What a launch of two ranks left: records sound, damaged, failed or missing, logs, and its launchers' ends."""
    sound = {**sample("launches/0001"), "launch": SPEC.launch}
    files = {}
    for rank in range(2):
        record = {**sound, "rank": rank}
        if draw(st.booleans()):
            record["failure"] = {"stage": draw(texts), "cause": draw(texts), "host": "h1", "rank": rank,
                                 "secondary": draw(st.booleans()), "at": draw(st.integers(0, 9))}  # fmt: skip
        match draw(st.integers(0, 3)):
            case 0 | 1:
                files[f"rank-{rank}.json"] = json.dumps(record).encode()
            case 2:
                files[f"rank-{rank}.json"] = draw(damaged(record))
        if draw(st.booleans()):
            files[f"rank-{rank}.log"] = draw(st.binary(max_size=40))
    return files, draw(st.lists(_ends, min_size=1, max_size=2))


def judged(case: tuple[dict[str, bytes], list[LauncherResult]]) -> None:
    """Every end is judged: ok only with all records sound and all launchers content, else with a named failure."""
    files, ends = case
    with tempfile.TemporaryDirectory() as folder:
        for name, data in files.items():
            (Path(folder) / name).write_bytes(data)
        outcome = judge(SPEC, Path(folder), ends, wall_seconds=1.0, started_at=0.0, commands={})
    assert outcome.digests.keys() == files.keys()
    codec.decode(codec.encode(outcome), type(outcome), "outcome", version=None)
    if outcome.status == "ok":
        assert {"rank-0.json", "rank-1.json"} <= files.keys()
        assert all(end.code == 0 for end in ends)
    elif outcome.status == "failed":
        assert outcome.failure is not None
        assert all(printable(line) == line for line in outcome.failure.log_tail)


PROPERTIES: dict[str, Property] = {
    "cluster files, any bytes": Property(any_bytes, cluster_file),
    "cluster files, wrong values": Property(cluster_texts(), cluster_file),
    "choice of the cluster file": Property(
        st.tuples(st.none() | texts, st.none() | _variables, st.lists(words.filter(is_safe_name), max_size=3)),
        cluster_choice,
    ),
    "variant files": Property(
        st.one_of(
            any_bytes,
            st.builds(
                lambda top, arguments: (toml_table("[image]", top) + toml_table("[arguments]", arguments)).encode(),
                st.dictionaries(st.sampled_from(["dockerfile", "buildkit", "deadline_seconds", "x"]), values),
                st.dictionaries(texts, values, max_size=2),
            ),
        ),
        variant_file,
    ),
    "known_hosts files": Property(
        st.one_of(
            st.binary(max_size=100),
            st.builds(
                lambda *w: " ".join(w).encode("utf-8", "replace"), words, st.sampled_from(["ssh-ed25519", "x"]), texts
            ),
        ),
        known_hosts,
    ),
    "options": Property(typed_options(), command_line),
    "arms": Property(st.lists(st.one_of(texts, _typed["ddp"].map(lambda t: f"a=gloo,{t}")), max_size=3), arms),
    "records, any bytes": Property(
        st.one_of(any_bytes, values.map(lambda value: json.dumps(value).encode())), any_record
    ),
    "rank records": Property(json_of("launches/0001"), lambda data: record_of(RankRecord, data)),
    "ledgers": Property(json_of("manifest"), lambda data: record_of(Manifest, data)),
    "plans": Property(json_of("plan"), lambda data: record_of(Plan, data)),
    "launch descriptions": Property(
        st.one_of(any_bytes, st.deferred(lambda: damaged(json.loads(codec.encode(SPEC))))),
        launch_description,
    ),
    "runs with a damaged file": Property(damaged_runs(), whole_run),
    "summaries": Property(st.deferred(lambda: damaged(sample_summary())), shown_summary),
    "hosts' answers": Property(st.one_of(answers(), st.text(max_size=100)), probe_answer),
    "tables of ports": Property(
        st.one_of(st.text(max_size=60), st.builds("{}: {}:{} {} 0A".format, texts, words, texts, words)), ports
    ),
    "hosts' archives": Property(st.one_of(st.binary(max_size=600), archives()), archive_bytes),
    "bundles' archives": Property(
        st.one_of(st.binary(max_size=60), archives().map(lzma.compress), archives().map(lzma.compress).flatmap(spoilt)),
        bundle_records,
    ),
    "ends of launches": Property(launch_ends(), judged),
    **FROM_STRANGERS,
}
