"""What files, hosts and records may try: names that mean something to a shell, a terminal, a page or a spreadsheet."""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import io
import json
import lzma
import re
import tarfile
from html.parser import HTMLParser
from pathlib import Path

import pytest

from suite import codec, console
from suite.campaign_progress import Announcer
from suite.cluster.archive import File, pack
from suite.cluster.containers import container_options
from suite.cluster.inventory import parse
from suite.cluster.keys import authorized_keys, client_config, key_pair, sshd_config
from suite.errors import ConfigurationError, RecordError, UsageError
from suite.launcher import host_commands
from suite.paths import RunPaths, is_launch_file
from suite.plan import Slot, launch_spec
from suite.records import Failure, LaunchOutcome, Manifest, RankRecord, Settings
from suite.report import write_all
from suite.report.bundle import unpack_records
from tests.fuzz.generate import NASTY, toml_value
from tests.support.hostile import JOINED
from tests.support.synthetic import TWO_ARMS, Truth, edit_manifest, write_run
from tests.test_campaign import a_plan

SHELL = (
    "$(reboot)", "`id`", "; id", "a b", "a\nb", "'", '"', "-oProxyCommand=id", "--privileged", "../x", "a\0b", "<b>",
    "a\\b", "$HOME",
)  # fmt: skip
GOOD = {"name": "h1", "address": "198.51.100.7", "user": "bench"}


def cluster_file(**changes: str) -> bytes:
    host = {**GOOD, **changes}
    lines = [f"{key} = {toml_value(value)}" for key, value in host.items()]
    return ("[[hosts]]\n" + "\n".join(lines) + "\n").encode()


# Cluster files


@pytest.mark.parametrize("text", SHELL)
@pytest.mark.parametrize("key", ["name", "address", "data_address", "user", "interface"])
def test_a_cluster_file_cannot_bring_in_a_word_that_means_something(key: str, text: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse(cluster_file(**{key: text}), Path("x.toml"))
    assert f'key "{key}"' in caught.value.message
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("text", [t for t in SHELL if t not in ("--privileged", "../x")] + ["-v", "--x"])
def test_an_image_name_cannot_be_an_option_or_a_command(text: str) -> None:
    with pytest.raises(ConfigurationError, match='key "image"'):
        parse(f"[cluster]\nimage = {toml_value(text)}\n".encode() + cluster_file(), Path("x.toml"))


def test_a_variable_of_the_cluster_file_changes_nothing_but_itself() -> None:
    value = "$(reboot) `id`; 'x' \"y\" <script>"
    data = cluster_file() + f"environment = {{ NCCL_X = {toml_value(value)} }}\n".encode()
    cluster = parse(data, Path("x.toml"))
    assert cluster.hosts[0].environment == {"NCCL_X": value}
    # It goes to the ranks by the specification, a file: no container, command or configuration holds it.
    assert value not in json.dumps(container_options(cluster.hosts[0], cluster, False))
    written = sshd_config(cluster.hosts[0], 2222) + client_config(cluster) + authorized_keys(cluster, key_pair())
    assert "reboot" not in written
    for variable in ("LD_PRELOAD", "PATH", "PYTHONPATH", "NCCL_X\nLD_PRELOAD", "BASH_ENV"):
        with pytest.raises(ConfigurationError):
            parse(cluster_file() + f"environment = {{ {toml_value(variable)} = 'x' }}\n".encode(), Path("x.toml"))


def test_commands_are_words_whatever_a_plan_says() -> None:
    """A stored plan is anybody's file: its texts stay single words of the command line, or lie in a file."""
    plan = dataclasses.replace(a_plan(), environment={"OMP_X": "$(reboot)"}, workloads=("m:f",))
    spec = launch_spec(
        plan,
        Slot("train", "m:f", 2, 0, "gloo"),
        1,
        Settings("m:f", 2, 1, 1),
        master_port=29500,
        output_folder="/var/lib/suite/$(reboot) x",
    )
    for words in host_commands(spec, python="python3", mpi_major=5).values():
        assert sum("reboot" in word for word in words) == 1
        assert words[-1] == "/var/lib/suite/$(reboot) x/spec.json"


# What hosts answer


def test_a_failure_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    failure = Failure("\x1b[2J", "\x1b]0;owned\x07 \x9b31m", "h1\x1b[A", 0, "\x1bc", log_tail=("\x1b[1m\x00",))
    outcome = LaunchOutcome("l", 1, "train", "gloo", "gloo", "linear", 2, 0, "failed", failure)
    Announcer(console.say).end(outcome)
    said = capsys.readouterr().err
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", said)
    assert "\N{REPLACEMENT CHARACTER}" in said


@pytest.mark.parametrize(
    "name",
    ["../rank-0.json", "rank-0.json/..", "/etc/passwd", ".bashrc", "rank-0.json\n", "rank--1.json", "plan.json",
     "manifest.json", "rank-٣.json", "launcher-../x.log", "launcher-.log", "rank-0.JSON", "spec.json"],
)  # fmt: skip
def test_a_host_may_send_records_and_logs_and_nothing_else(name: str) -> None:
    assert not is_launch_file(name)


@pytest.mark.parametrize("name", ["../../x", "a/../../b", "/etc/x", ".", "a//b", "a/\0"])
def test_nothing_is_packed_for_a_place_outside(name: str) -> None:
    with pytest.raises(ValueError, match="is no relative path"):
        pack({name: File(b"")})


@pytest.mark.parametrize("launch", ["../x", "/tmp/x", ".hidden", "a/b", "", "x" * 200, "a\nb"])
def test_a_ledger_cannot_name_a_folder_elsewhere(tmp_path: Path, launch: str) -> None:
    run = RunPaths(tmp_path)
    with pytest.raises(UsageError, match="cannot name a launch's folder"):
        run.launch(launch)
    with pytest.raises(UsageError, match="cannot name a launch's folder"):
        run.rank(launch, 0)


def test_a_run_whose_ledger_points_elsewhere_reads_nothing_there(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "rank-0.json").write_text('{"private": "do not read"}')
    run = write_run(tmp_path / "runs", Truth(TWO_ARMS, blocks=3, plan="quick"))
    first, *others = edit_manifest(run).launches
    edit_manifest(run, launches=(dataclasses.replace(first, launch="../../../secret"), *others))
    summary = write_all(run)
    assert any("cannot name a launch" in problem for problem in summary.problems)
    assert "do not read" not in run.report_html.read_text()


# Records


class Tags(HTMLParser):
    """How often each tag occurs in a page, and every attribute's name."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.count: dict[str, int] = {}
        self.attributes: set[str] = set()
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.count[tag] = self.count.get(tag, 0) + 1
        self.attributes |= {name for name, _ in attrs}
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]


def hostile(record: RankRecord) -> RankRecord:
    """A sound record with every text that it may choose turned against its reader."""
    environment = {
        key: JOINED if isinstance(value, str) and key != "rank_map" else value
        for key, value in record.environment.items()
    }
    return dataclasses.replace(
        record,
        transport=JOINED,
        warnings=(JOINED, *NASTY[1:]),
        environment={**environment, JOINED: JOINED},
        facts=dataclasses.replace(record.facts, description=JOINED),
        equivalence=dataclasses.replace(record.equivalence, detail=JOINED),
    )


def test_hostile_records_make_a_report_of_texts_only(tmp_path: Path) -> None:
    truth = Truth(TWO_ARMS, blocks=3, plan="quick", unavailable={"nccl": JOINED})
    plain = write_run(tmp_path / "plain", truth)
    attacked = write_run(tmp_path / "attacked", truth, change=hostile)
    edit_manifest(attacked, cluster=JOINED, warnings=(JOINED,), suite_commit=JOINED)
    write_all(plain)
    write_all(attacked)
    expected, page = Tags(plain.report_html.read_text()), Tags(attacked.report_html.read_text())
    assert page.count["script"] == expected.count["script"]
    assert "img" not in page.count
    assert not {name for name in page.attributes if name.startswith("on")}
    assert not [link for link in page.links if not link.startswith(("#", "data:"))]
    assert "<script>alert" not in attacked.report_markdown.read_text()
    for row in csv.reader(io.StringIO(attacked.tables_csv.read_text())):
        for value in row:
            assert not re.match(r"[=@\t\r]|[+-](?![\d.])", value), value


def test_a_record_that_says_it_is_of_another_rank_is_not_used(tmp_path: Path) -> None:
    run = write_run(tmp_path, Truth(TWO_ARMS, blocks=3, plan="quick"))
    launch = next(o for o in _manifest(run).launches if o.kind == "train")
    stolen = run.rank(launch.launch, 1).read_bytes()
    run.rank(launch.launch, 0).write_bytes(stolen)
    edit_manifest(
        run,
        launches=tuple(
            dataclasses.replace(o, digests={**o.digests, "rank-0.json": hashlib.sha256(stolen).hexdigest()})
            if o.launch == launch.launch
            else o
            for o in _manifest(run).launches
        ),
    )
    summary = write_all(run)
    assert any("rank" in problem and launch.launch in problem for problem in summary.problems)


def _manifest(run: RunPaths) -> Manifest:
    return codec.read(run.manifest, Manifest)


def test_a_bundle_with_a_path_out_of_it_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    packed = tmp_path / "records.tar.xz"
    with lzma.open(packed, "wb") as stream, tarfile.open(fileobj=stream, mode="w|") as tar:
        tar.addfile(tarfile.TarInfo("launches/x/../../rank-0.json"))
    run = RunPaths(tmp_path / "run")
    with pytest.raises(RecordError, match="no rank record"):
        unpack_records(packed, run)
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["records.tar.xz"]


def test_hosts_of_a_plan_are_words_of_the_host_list() -> None:
    """mpirun's host list is one word: a host name that is a list would start ranks elsewhere."""
    for name in ("h1:9,evil", "h1 -x"):
        with pytest.raises(ConfigurationError):
            parse(cluster_file(name=name), Path("x.toml"))
