"""The committed schemas and their tables are what the code says, and real files obey them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from suite import codec, paths, schema
from suite.analysis.summarise import summarise
from suite.policy import FACTS
from suite.report.publish import publish
from tests.support.hostile import hostile_summary
from tests.support.synthetic import TWO_ARMS, Truth, write_run

DOCS = paths.project_root() / "docs"


@pytest.mark.parametrize("name", sorted(schema.documents()))
def test_the_committed_file_is_what_the_code_says(name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == schema.documents()[name], (
        "run python -m suite.schema --write, and look at what changed"
    )


def test_the_check_says_which_file_differs_and_write_mends_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert schema.main(["--folder", str(tmp_path), "--write"]) == 0
    (tmp_path / "schema.md").write_text("old")
    capsys.readouterr()
    assert schema.main(["--folder", str(tmp_path)]) == 1
    assert capsys.readouterr().out == "schema.md: differs from the code\n"
    assert schema.main(["--folder", str(tmp_path), "--write"]) == 0
    assert schema.main(["--folder", str(tmp_path)]) == 0


def test_every_field_and_fact_is_in_the_table() -> None:
    text = schema.markdown()
    for name in ("busbw_bytes_per_second", "wall_seconds", "warmup_total_ns", "launch_deadline_seconds", "report_code"):
        assert f"| `{name}` |" in text
    for fact in FACTS:
        assert f"| `{fact}` |" in text


def test_real_files_obey_their_schemas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUITE_RESULTS", str(tmp_path / "results"))
    run = write_run(tmp_path, Truth(TWO_ARMS, sweep=True, failed=frozenset({("mpi", 1)}), unavailable={"nccl": "no"}))
    bundle = publish(run, "x")
    files = {
        "rank-record": sorted(run.launches.glob("*/rank-*.json")),
        "manifest": [run.manifest, bundle / "manifest.json"],
        "plan": [run.plan, bundle / "plan.json"],
        "bundle": [bundle / "bundle.json"],
        "summary": [bundle / "summary.json"],
    }
    assert set(files) == set(schema.DOCUMENTS)
    for name, found in files.items():
        document = schema.schema(name)
        for path in found:
            assert violations(document, json.loads(path.read_bytes())) == []
    for summary in (summarise(run), hostile_summary()):
        assert violations(schema.schema("summary"), json.loads(codec.encode(summary))) == []


def test_a_file_that_breaks_its_schema_is_found_to() -> None:
    document = json.loads(codec.encode(hostile_summary()))
    document["rows"][0]["world_size"] = "four"
    del document["rows"][1]["status"]
    assert violations(schema.schema("summary"), document) == [
        "$.rows[0].world_size: is no integer",
        "$.rows[1]: lacks status",
    ]


def violations(root: dict[str, Any], value: Any) -> list[str]:
    """A validator for the part of JSON Schema that the generated schemas use; unknown keywords fail the test."""
    known = {
        "$ref", "anyOf", "type", "properties", "required", "items", "prefixItems", "additionalProperties", "title",
        "description", "default", "minItems", "maxItems", "$schema", "$defs",
    }  # fmt: skip
    types: dict[str, Any] = {
        "object": dict,
        "array": list,
        "string": str,
        "number": (int, float),
        "integer": int,
        "boolean": bool,
    }

    def check(node: dict[str, Any], at: Any, place: str) -> list[str]:
        assert set(node) <= known, set(node) - known
        if "$ref" in node:
            return check(root["$defs"][node["$ref"].rsplit("/", 1)[1]], at, place)
        if "anyOf" in node:
            tried = [check(option, at, place) for option in node["anyOf"]]
            return [] if [] in tried else max(tried, key=len)
        kind = node.get("type")
        if kind == "null":
            return [] if at is None else [f"{place}: is not null"]
        if kind is not None and (
            not isinstance(at, types[kind]) or (isinstance(at, bool) and kind in ("number", "integer"))
        ):
            return [f"{place}: is no {kind}"]
        found = [f"{place}: lacks {key}" for key in node.get("required", ()) if key not in at]
        if isinstance(at, dict):
            extra = node.get("additionalProperties")
            for key, item in at.items():
                inner = node.get("properties", {}).get(key, extra if isinstance(extra, dict) else None)
                found += check(inner, item, f"{place}.{key}") if inner else []
        if isinstance(at, list):
            first = node.get("prefixItems", [])
            for i, item in enumerate(at):
                inner = first[i] if i < len(first) else node.get("items")
                found += check(inner, item, f"{place}[{i}]") if isinstance(inner, dict) else []
            if not node.get("minItems", 0) <= len(at) <= node.get("maxItems", len(at)):
                found.append(f"{place}: has {len(at)} items")
        return found

    return check({k: v for k, v in root.items() if k not in ("$schema", "title", "$defs")}, value, "$")
