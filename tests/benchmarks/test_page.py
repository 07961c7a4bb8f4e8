"""The pages say what the committed results say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import page
from suite.paths import project_root


def write(folder: Path, name: str, **document: Any) -> None:
    (folder / f"{name}.json").write_text(json.dumps({"benchmark": name, **document}))


def deploy_document(seconds: float) -> dict[str, Any]:
    return {
        "created": "2026-03-04T05:06:07Z",
        "quick": False,
        "machine": {"cores": 2, "load_before": [0.3, 0, 0], "load_after": [1.5, 0, 0]},
        "limits": [{"what": "unchanged, four hosts", "seen": seconds, "low": None, "high": 1.5, "unit": "s"}],
        "outcomes": {"deploys": [{"case": "unchanged", "seconds": seconds, "sent": 0, "wire": 1000}]},
    }


@pytest.mark.parametrize("name", page.PAGES)
def test_a_page_agrees_with_the_results(name: str) -> None:
    text = (project_root() / name).read_text(encoding="utf-8")
    assert page.render(text, project_root() / "benchmarks" / "results") == text, "python -m benchmarks.page --write"


def test_the_page_shows_every_benchmark() -> None:
    from benchmarks.catalogue import QUESTIONS

    text = (project_root() / page.PAGES[0]).read_text(encoding="utf-8")
    assert [name for name in QUESTIONS if f"<!-- result: {name} -->" not in text] == []


def test_a_part_between_marks_becomes_the_result_and_the_rest_stays(tmp_path: Path) -> None:
    write(tmp_path, "deploy", **deploy_document(0.7))
    before = "# Title\n\nprose\n\n<!-- result: deploy -->\nold\n<!-- end -->\n\nmore prose\n"
    after = page.render(before, tmp_path)
    assert after.startswith(
        "# Title\n\nprose\n\n<!-- result: deploy -->\n\nTaken 2026-03-04 on 2 cores, load average 0.3"
    )
    assert "| unchanged, four hosts | 0.7 s | at most 1.5 s | met |" in after
    assert after.endswith("<!-- end -->\n\nmore prose\n")
    assert "old" not in after
    assert page.render(after, tmp_path) == after


def test_every_missed_target_is_said_plainly(tmp_path: Path) -> None:
    write(tmp_path, "deploy", **deploy_document(1.9))
    assert page.render("<!-- result: missed --><!-- end -->", tmp_path) == "<!-- result: missed --><!-- end -->"
    text = page.render("<!-- result: missed -->\n<!-- end -->", tmp_path)
    assert "* `deploy`: unchanged, four hosts: 1.9 s, at most 1.5 s was the target." in text
    assert "**missed**" in page.section("deploy", tmp_path / "deploy.json")


def test_what_has_not_run_says_so_and_an_unknown_name_is_refused(tmp_path: Path) -> None:
    assert page.section("deploy", tmp_path / "deploy.json") == "Not run yet."
    with pytest.raises(ValueError, match="'nonsense'"):
        page.render("<!-- result: nonsense -->\n<!-- end -->", tmp_path)
