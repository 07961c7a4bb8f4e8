"""Bundles: what leaves the controller, what verify finds, and what unpacking refuses."""

from __future__ import annotations

import dataclasses
import io
import json
import lzma
import os
import re
import subprocess
import tarfile
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from suite import codec
from suite.analysis.load import load_run
from suite.analysis.summarise import summarise
from suite.errors import RecordError, UsageError
from suite.paths import RunPaths
from suite.records import Failure, Manifest, RankRecord
from suite.report import bundle, write_all
from suite.report.index import render_index
from suite.report.publish import load_plan_of_bundle, publish, unpacked
from suite.report.verify import compare_json, verification_text, verify
from tests.support.synthetic import TWO_ARMS, Truth, edit_manifest, write_run

HOSTS = ("tiger", "lion", "puma", "lynx")
TRUTH = Truth(
    TWO_ARMS,
    host_names=HOSTS,
    sweep=True,
    unavailable={"nccl": "no CUDA device on tiger, lion"},
    environment={
        "env.OMPI_MCA_plm_rsh_args": "-i /home/alice/.ssh/id_ed25519 -l alice",
        "env.NCCL_SOCKET_IFNAME": "eth0",
        "env.OMPI_MCA_orte_hnp_uri": "tcp://192.0.2.11:40000",
        "connections": ["192.0.2.11:1 to 192.0.2.12:2"],
        "gpu_uuid": "GPU-0a1b2c3d-0000",
        "torch_config": "built with MKL 2022.1.0.0 at /root/build",
        "something_new": "secret-tiger.example",
    },
)
SECRETS = re.compile(
    rb"192\.0\.2\.|secret-|\.example|/home/|/root|alice|id_ed25519|orte_hnp|GPU-0a1b|machine-(tiger|lion)|fe80::1"
)
NAMES = re.compile(rb"\b(tiger|lion|puma|lynx|synthetic)\b")


def leaky(record: RankRecord) -> RankRecord:
    """Addresses, accounts and keys in every free text of a record."""
    text = "peer 192.0.2.12:29500 (fe80::1) refused alice@secret-lion.example with /home/alice/.ssh/id_ed25519"
    failure = Failure("connect", text, record.host, record.rank, "log in as alice@192.0.2.12", (text,))
    return dataclasses.replace(
        record,
        warnings=(text,),
        transport=f"tcp 192.0.2.12 on {record.host}",
        equivalence=dataclasses.replace(record.equivalence, detail=text),
        failure=failure if record.rank == 3 else None,
    )


def everything(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Every byte of a bundle, archives unpacked."""
    for path in folder.rglob("*"):
        if path.is_file():
            yield path.name, path.name.encode() + path.read_bytes()
            if path.name.endswith(".xz"):
                yield path.name, lzma.decompress(path.read_bytes())


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    made = write_run(tmp_path, TRUTH, "20260102T030405Z-standard-0001", change=leaky)
    edit_manifest(made, warnings=("tiger answered late from 192.0.2.11",))
    return made


@pytest.fixture
def published(run: RunPaths, results: Path) -> Path:
    return publish(run, "example", secrets=["alice"])


def test_a_bundle_holds_what_a_reader_and_a_doubter_need(published: Path, results: Path) -> None:
    assert published == results / "published" / "example"
    names = {path.relative_to(published).as_posix() for path in published.rglob("*") if path.is_file()}
    assert {
        "summary.json", "report.md", "report.html", "tables.csv", "plan.json", "manifest.json", "environment.json",
        "sbom.json", "bundle.json", "records.tar.xz", "SHA256SUMS",
    } <= names  # fmt: skip
    assert "plots/busbw-all-reduce-4.svg" in names


def test_its_checksums_are_those_that_sha256sum_checks(published: Path) -> None:
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"], cwd=published, check=True, timeout=60)


def test_a_variable_of_an_old_run_that_looks_secret_is_published_without_its_value(tmp_path: Path) -> None:
    made = write_run(tmp_path, TRUTH, "20260102T030405Z-standard-0002")
    plan = json.loads(made.plan.read_bytes())
    plan["environment"] = {"NCCL_ALGO": "Ring"}
    plan["arms"][0]["environment"] = {"UCX_PASSWORD": "hunter2", "UCX_TLS": "tcp"}
    made.plan.write_text(json.dumps(plan))
    folder = publish(made, "masked")
    assert not any(b"hunter2" in content for _, content in everything(folder))
    stored = json.loads((folder / "plan.json").read_bytes())
    assert stored["arms"][0]["environment"] == {"UCX_PASSWORD": "(masked)", "UCX_TLS": "tcp"}
    assert stored["environment"] == {"NCCL_ALGO": "Ring"}


def test_the_published_numbers_are_the_runs_numbers(run: RunPaths, published: Path) -> None:
    summary = json.loads((published / "summary.json").read_bytes())
    mine = json.loads(codec.encode(summarise(run)))
    for stored, own in zip(summary["rows"], mine["rows"], strict=True):
        for key in ("step_seconds", "launch_values", "ratio_to_fastest", "busbw_bytes_per_second", "status"):
            assert stored[key] == own[key]
    assert summary["pairs"] == mine["pairs"]
    assert summary["collectives"] == mine["collectives"]


def test_no_address_account_key_or_machine_name_leaves(published: Path) -> None:
    for name, data in everything(published):
        found = SECRETS.search(data)
        assert found is None, (name, data[max(0, found.start() - 60) : found.end() + 60])


def test_the_cluster_files_names_and_the_texts_stay_readable(published: Path) -> None:
    manifest = codec.read(published / "manifest.json", Manifest)
    assert [host.name for host in manifest.hosts] == list(HOSTS)
    assert manifest.unavailable == {"nccl": "no CUDA device on tiger, lion"}
    assert manifest.warnings == ("tiger answered late from tiger",)
    with unpacked(published) as copy:
        record = load_run(copy).launches[0].ranks[3]
    assert record.failure is not None
    assert record.failure.cause.startswith("peer lion:29500 ([address]) refused")
    assert record.failure.log_tail == ()
    assert record.environment["env.NCCL_SOCKET_IFNAME"] == "eth0"
    assert record.environment["torch_config"] == "built with MKL 2022.1.0.0 at [path]"
    assert record.environment["boot_id"] == "boot-id-4"
    assert record.environment["gpu_uuid"] == "gpu-uuid-1"


def test_only_named_facts_leave_so_a_new_one_stays_at_home(published: Path) -> None:
    with unpacked(published) as copy:
        facts = load_run(copy).launches[0].ranks[0].environment
    assert "something_new" not in facts
    assert "hostname" not in facts
    assert "connections" not in facts


def test_anonymous_replaces_hosts_and_cluster_everywhere_and_consistently(run: RunPaths, results: Path) -> None:
    folder = publish(run, "hidden", anonymous=True, secrets=["alice"])
    for name, data in everything(folder):
        for pattern in (SECRETS, NAMES):
            found = pattern.search(data)
            assert found is None, (name, data[max(0, found.start() - 60) : found.end() + 60])
    with unpacked(folder) as copy:
        loaded = load_run(copy)
    assert loaded.problems == ()
    assert [host.name for host in loaded.manifest.hosts] == ["host1", "host2", "host3", "host4"]
    ranks = loaded.launches[0].ranks
    assert [rank.host for rank in ranks] == ["host1", "host2", "host3", "host4"]
    assert ranks[0].environment["rank_map"] == "host1 host2 host3 host4"
    assert loaded.manifest.unavailable == {"nccl": "no CUDA device on host1, host2"}
    assert verify(folder).sound


def test_a_sound_bundle_verifies_and_says_what_was_checked(published: Path) -> None:
    result = verify(published)
    assert result.sound, result.differences
    text = verification_text(result)
    assert "recomputed from 36 launches, every number agrees" in text
    assert "sound: checksums and numbers agree." in text


def resum(folder: Path) -> None:
    """Forge the checksums after an edit."""
    (folder / bundle.SUMS).write_text(bundle.sums_text(bundle.checksums(folder)))


def edit_summary(folder: Path) -> None:
    path = folder / "summary.json"
    summary = json.loads(path.read_bytes())
    summary["rows"][1]["step_seconds"]["median"] *= 0.97
    path.write_text(json.dumps(summary, indent=1, ensure_ascii=False) + "\n")


def edit_table(folder: Path) -> None:
    path = folder / "report.md"
    path.write_text(path.read_text().replace("mpi takes 2.3", "mpi takes 1.3"))


def edit_csv(folder: Path) -> None:
    path = folder / "tables.csv"
    path.write_text(path.read_text().replace("slower", "faster", 1))


def edit_record(folder: Path) -> None:
    with unpacked(folder) as run:
        path = run.rank("0001-linear-gloo", 0)
        record = json.loads(path.read_bytes())
        record["synchronised"]["total_ns"] = [t + 10_000_000 for t in record["synchronised"]["total_ns"]]
        path.write_text(json.dumps(record))
        bundle.pack_records(run.launches, folder / bundle.RECORDS)


@pytest.mark.parametrize(
    ("edit", "named"),
    [
        (edit_summary, "summary.json.rows[1].step_seconds.median: says 0.09"),
        (edit_table, "report.md: is not what the raw records give"),
        (edit_csv, "tables.csv: is not what the raw records give"),
        (edit_record, "summary.json"),
    ],
)
def test_an_edit_fails_even_with_forged_checksums(published: Path, edit: Callable[[Path], None], named: str) -> None:
    edit(published)
    assert any("SHA-256 differs" in text for text in verify(published).differences)
    resum(published)
    result = verify(published)
    assert not result.sound
    assert any(text.startswith(named) for text in result.differences), result.differences


def test_one_changed_byte_anywhere_fails_and_is_named(published: Path) -> None:
    for path in sorted(p for p in published.rglob("*") if p.is_file() and p.name != bundle.SUMS):
        original = path.read_bytes()
        place = len(original) // 2
        path.write_bytes(original[:place] + bytes([original[place] ^ 1]) + original[place + 1 :])
        name = path.relative_to(published).as_posix()
        differences = verify(published).differences
        assert any(text.startswith(f"{name}: its bytes") for text in differences), (name, differences)
        path.write_bytes(original)
    assert verify(published).sound


def test_missing_and_added_files_fail(published: Path) -> None:
    (published / "plots" / "scaling-linear.svg").unlink(missing_ok=True)
    (published / "sbom.json").unlink()
    (published / "extra.txt").write_text("x")
    differences = verify(published).differences
    assert "sbom.json: listed in SHA256SUMS, but missing" in differences
    assert "extra.txt: not listed in SHA256SUMS" in differences


def _nested(path: Path) -> None:
    (path / "summary.json").write_text("[" * 100_000)


def _huge(path: Path) -> None:
    summary = json.loads((path / "summary.json").read_bytes())
    summary["rows"][0]["samples_per_second"] = 10**400
    (path / "summary.json").write_text(json.dumps(summary))


def _pipe(path: Path) -> None:
    (path / "summary.json").unlink()
    os.mkfifo(path / "summary.json")


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda path: (path / "report.md").unlink(), "report.md"),
        (_nested, "summary.json"),
        (_huge, "samples_per_second"),
        (_pipe, "summary.json"),
        (lambda path: (path / "extra").symlink_to("/etc/passwd"), "extra: is no plain file"),
        (lambda path: os.mkfifo(path / "pipe"), "pipe: is no plain file"),
    ],
)
def test_any_damage_is_a_difference_and_never_waited_for(
    published: Path, damage: Callable[[Path], None], named: str
) -> None:
    damage(published)
    found = verify(published)
    assert not found.sound
    assert any(named in text for text in found.differences), found.differences


def test_a_folder_whose_name_publish_refuses_has_no_line_in_the_index(published: Path) -> None:
    published.rename(published.with_name("x) <img src=y onerror=z>"))
    assert "onerror" not in render_index(published.parent)


def test_no_bundle_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no published bundle"):
        verify(tmp_path)


@pytest.mark.parametrize(
    "name",
    ["../evil", "/etc/evil", "launches/../../evil/rank-0.json", "launches/x/rank-0.log", "launches/x/rank-0.json/y"],
)
def test_unpacking_refuses_every_other_name(tmp_path: Path, name: str) -> None:
    archive = tmp_path / "r.tar.xz"
    write_archive(archive, tarfile.TarInfo(name), b"x")
    with pytest.raises(RecordError, match="no rank record"):
        bundle.unpack_records(archive, RunPaths(tmp_path / "run"))
    assert [p.name for p in tmp_path.rglob("*")] == ["r.tar.xz"]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE])
def test_unpacking_refuses_links_and_devices(tmp_path: Path, kind: bytes) -> None:
    member = tarfile.TarInfo("launches/a/rank-0.json")
    member.type, member.linkname = kind, "/etc/passwd"
    archive = tmp_path / "r.tar.xz"
    write_archive(archive, member, b"")
    with pytest.raises(RecordError, match="no rank record"):
        bundle.unpack_records(archive, RunPaths(tmp_path / "run"))


@pytest.mark.parametrize(
    "kind",
    [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.GNUTYPE_SPARSE],
)
def test_unpacking_reads_no_extended_header_however_large(tmp_path: Path, kind: bytes) -> None:
    member = tarfile.TarInfo("launches/a/rank-0.json")
    member.type, member.size = kind, 300 << 20
    archive = tmp_path / "r.tar.xz"
    with lzma.open(archive, "wb", preset=0) as stream:
        stream.write(member.tobuf(tarfile.USTAR_FORMAT))
        for _ in range(300):
            stream.write(bytes(1 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(RecordError, match="a header that no bundle of the suite has"):
            bundle.unpack_records(archive, RunPaths(tmp_path / "run"))
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


def test_unpacking_refuses_the_same_record_twice_and_damage(tmp_path: Path) -> None:
    member = tarfile.TarInfo("launches/a/rank-0.json")
    archive = tmp_path / "r.tar.xz"
    write_archive(archive, member, b"x", twice=True)
    with pytest.raises(RecordError, match="cannot be unpacked"):
        bundle.unpack_records(archive, RunPaths(tmp_path / "run"))
    archive.write_bytes(archive.read_bytes()[:-20])
    with pytest.raises(RecordError, match="cannot be unpacked"):
        bundle.unpack_records(archive, RunPaths(tmp_path / "other"))


def test_unpacking_stops_at_a_size_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "LARGEST_MEMBER", 1000)
    archive = tmp_path / "r.tar.xz"
    write_archive(archive, tarfile.TarInfo("launches/a/rank-0.json"), b"x" * 1001)
    with pytest.raises(RecordError, match="larger unpacked"):
        bundle.unpack_records(archive, RunPaths(tmp_path / "run"))


def write_archive(path: Path, member: tarfile.TarInfo, data: bytes, *, twice: bool = False) -> None:
    with lzma.open(path, "wb") as stream, tarfile.open(fileobj=stream, mode="w|") as tar:
        for _ in range(1 + twice):
            member.size = len(data) if member.isreg() else 0
            tar.addfile(member, io.BytesIO(data))


def test_the_archive_is_the_same_for_the_same_records(run: RunPaths, tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    bundle.pack_records(run.launches, first)
    next(run.launches.glob("*/rank-0.json")).touch()
    bundle.pack_records(run.launches, second)
    assert first.read_bytes() == second.read_bytes()


def test_a_damaged_record_is_left_out_and_named(run: RunPaths, results: Path) -> None:
    run.rank("0001-linear-gloo", 2).write_text("{")
    folder = publish(run, "damaged", secrets=["alice"])
    manifest = codec.read(folder / "manifest.json", Manifest)
    assert any("launches/0001-linear-gloo/rank-2.json" in warning for warning in manifest.warnings)
    assert verify(folder).sound
    assert "rank-2.json" in (folder / "report.md").read_text().replace("\\", "")


def test_the_plan_comes_back_to_be_run_again(run: RunPaths, published: Path) -> None:
    plan = load_plan_of_bundle(published)
    assert plan.seed == TRUTH.seed
    assert [arm.name for arm in plan.arms] == ["gloo", "mpi", "nccl"]
    assert plan.workloads == ("linear", "collectives")
    assert {host.address for host in plan.hosts} == set(HOSTS)


def test_a_bundle_is_never_written_over_by_a_report(published: Path) -> None:
    before = bundle.checksums(published)
    with pytest.raises(UsageError, match="is a published bundle"):
        write_all(RunPaths(published))
    assert bundle.checksums(published) == before


def test_a_name_is_used_once_and_must_be_a_folders(run: RunPaths, published: Path) -> None:
    before = bundle.checksums(published)
    with pytest.raises(UsageError, match="already"):
        publish(run, "example")
    with pytest.raises(UsageError, match="cannot name"):
        publish(run, "../x")
    assert bundle.checksums(published) == before
    assert sorted(p.name for p in published.parent.iterdir()) == ["example"]  # and nothing half made


def test_a_run_that_has_not_ended_is_not_published(run: RunPaths, results: Path) -> None:
    edit_manifest(run, stop_reason=None)
    with pytest.raises(UsageError, match="has not ended"):
        publish(run, "early")


def test_the_index_has_a_line_per_comparison_and_names_what_it_cannot_read(published: Path, results: Path) -> None:
    text = (results / "README.md").read_text()
    assert "[example](published/example/report.md)" in text
    assert "linear, 4" in text
    assert "gloo is fastest; mpi takes 2.3" in text
    (published / "summary.json").write_text("{")
    assert "cannot be read" in render_index(results / "published")


def test_the_bill_of_materials_names_what_ran_and_what_analysed(published: Path) -> None:
    bill = json.loads((published / "sbom.json").read_bytes())
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    found = {(c["properties"][0]["value"], c["name"]): c["version"] for c in bill["components"]}
    assert found["hosts", "torch"] == "2.6.0"
    assert found["hosts", "linux"] == "6.1.0"
    assert ("controller", "numpy") in found
    assert ("controller", "msgspec") in found
    references = [c["bom-ref"] for c in bill["components"]]
    assert len(set(references)) == len(references)


def test_the_bill_of_materials_names_every_package_of_the_image(run: RunPaths) -> None:
    ledger = json.loads(run.manifest.read_bytes())
    probe = {"host": "lion", "backends": {"gloo": None}}
    image = {"deb/debian/libc6": "2.41-12+b1", "deb/debian/openssh-server": "1:10.0p1-7", "pypi/numpy": "2.2.4"}
    ledger["probes"] = [{**probe, "packages": image}, {**probe, "host": "tiger"}]
    run.manifest.write_text(json.dumps(ledger))
    bill = json.loads((publish(run, "with-packages") / "sbom.json").read_bytes())
    found = {c["purl"]: c["properties"][0]["value"] for c in bill["components"] if "purl" in c}
    assert found["pkg:deb/debian/libc6@2.41-12%2Bb1"] == "image/deb"
    assert found["pkg:deb/debian/openssh-server@1%3A10.0p1-7"] == "image/deb"
    assert found["pkg:pypi/numpy@2.2.4"] == "image/pypi"
    references = [c["bom-ref"] for c in bill["components"]]
    assert len(set(references)) == len(references)


def test_another_version_of_the_report_code_is_a_note_not_a_failure(
    published: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle, "report_code", lambda: "other")
    result = verify(published)
    assert result.sound
    assert any("another version of the report's code" in note for note in result.notes)


def test_fitted_numbers_may_differ_a_little_more_than_computed_ones() -> None:
    stored = {"models": [{"alpha": 1.0, "beta": 2.0}], "rows": [{"seconds": 1.0}]}
    near = {"models": [{"alpha": 1.000001, "beta": 2.0}], "rows": [{"seconds": 1.0}]}
    assert list(compare_json(stored, near, "summary.json")) == []
    far = {"models": [{"alpha": 1.0001, "beta": 2.0}], "rows": [{"seconds": 1.000001}]}
    assert [text.partition(":")[0] for text in compare_json(stored, far, "summary.json")] == [
        "summary.json.models[0].alpha",
        "summary.json.rows[0].seconds",
    ]
