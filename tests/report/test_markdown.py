"""Markdown: the same cells as in the terminal, and nothing that a text can break out of."""

from __future__ import annotations

import re

from suite.report import markdown, render
from suite.summary import Summary
from tests.support.hostile import hostile_summary


def test_it_has_every_section(example: Summary) -> None:
    text = render(example, None, "markdown")
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    assert headings[0] == "20260102T030405Z-standard-0001"
    assert "linear, world size 4, cpu, 7 blocks, 20 warm-up + 50 steps a launch" in headings
    assert {"Collectives", "Environment", r"all\_reduce, world size 4", r"broadcast, world size 2"} <= set(headings)
    assert "not run: no CUDA device on h1, h2, h3, h4" in text


def test_every_table_line_has_as_many_cells_as_its_heading() -> None:
    text = markdown.render(hostile_summary())
    width = None
    for line in text.splitlines():
        if not line.startswith("|"):
            width = None
            continue
        cells = len(re.findall(r"(?<!\\)\|", line))
        width = width or cells
        assert cells == width, line
    assert "|" in text


def test_hostile_texts_stay_texts() -> None:
    text = markdown.render(hostile_summary())
    assert not re.search(r"<(script|img|b)\b", text)
    assert not re.search(r"(?<!\\)\[x(?<!\\)\]\(", text)  # no link
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text)
