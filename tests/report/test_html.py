"""The HTML report as text; the browser test drives it."""

from __future__ import annotations

import dataclasses
import json
import re
import xml.etree.ElementTree as ET
from functools import reduce
from html.parser import HTMLParser
from operator import getitem
from pathlib import Path

from suite import codec
from suite.analysis.load import RunData, load_run
from suite.analysis.summarise import summarise_data
from suite.errors import RecordError
from suite.report import html, render, write_all
from suite.summary import Summary
from tests.fuzz.generate import places
from tests.support.hostile import ALL, hostile_summary
from tests.support.synthetic import TWO_ARMS, Truth, write_run

SVG = "{http://www.w3.org/2000/svg}"
VOID = {"meta", "br", "img", "link", "input", "hr"}


class Page(HTMLParser):
    """Collects elements and checks that they are nested properly."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def names(self) -> set[str]:
        return {tag for tag, _ in self.tags}


def test_the_page_is_well_formed_and_needs_nothing_from_outside(example: Summary, example_data: RunData) -> None:
    text = render(example, example_data, "html")
    page = Page(text)
    assert page.open == []
    assert text.count("<script>") == 1
    for tag, attributes in page.tags:
        assert "src" not in attributes, (tag, attributes)
        assert not (attributes.get("href") or "#").startswith(("http", "//")), attributes
        assert not any(name.startswith("on") for name in attributes), attributes
    assert "url(" not in text
    assert "@import" not in text


def test_the_verdict_stands_on_top_the_largest_world_first(example: Summary, example_data: RunData) -> None:
    text = render(example, example_data, "html")
    first = re.search(r'<p class="lead">(.*?)</p>', text)
    assert first is not None
    assert first.group(1).startswith("gloo is fastest; mpi takes 2.3")
    assert text.index("linear, world size 4") < text.index("linear, world size 2")


def test_every_kind_of_chart_is_there_with_a_text_alternative(example: Summary, example_data: RunData) -> None:
    charts = html.draw(example, example_data).all
    kinds = {re.sub(r"-(linear|transformer|all|broadcast).*", "", chart.name) for chart in charts}
    assert kinds == {"distribution", "over-time", "exposed", "busbw", "scaling"}
    for chart in charts:
        root = ET.fromstring(chart.markup)
        assert root.get("role") == "img"
        ids = (root.get("aria-labelledby") or "").split()
        named = {e.get("id"): e.text for e in (root.find(f"{SVG}title"), root.find(f"{SVG}desc")) if e is not None}
        assert [bool(named.get(i)) for i in ids] == [True, True], chart.name
    assert len({chart.name for chart in charts}) == len(charts)


def test_every_launch_has_a_box_and_a_line(example: Summary, example_data: RunData) -> None:
    charts = {chart.name: chart.markup for chart in html.draw(example, example_data).all}
    assert charts["distribution-linear-world-size-4"].count('class="box ') == 15  # 8 of gloo, 7 of mpi
    assert charts["over-time-linear-world-size-4"].count('class="boundary"') == 7


def test_the_links_bound_is_drawn(example: Summary, example_data: RunData) -> None:
    charts = {chart.name: chart.markup for chart in html.draw(example, example_data).all}
    assert 'class="bound"' in charts["busbw-all-reduce-4"]
    assert "link: 1.00 Gbit/s" in charts["busbw-all-reduce-4"]


def test_a_chart_says_its_numbers_to_who_cannot_see_it(example: Summary, example_data: RunData) -> None:
    charts = {chart.name: chart.markup for chart in html.draw(example, example_data).all}
    assert re.search(r"<desc[^>]*>gloo: compute 3\d\.\d ms, exposed 5\.\d+ ms", charts["exposed-linear-world-size-4"])


def test_long_launches_are_thinned_out_for_the_picture_and_it_says_so(tmp_path: Path) -> None:
    run = write_run(tmp_path, Truth(TWO_ARMS, steps=3000, blocks=6))
    data = load_run(run)
    text = render(summarise_data(data), data, "html")
    assert "Thinned out for the picture" in text
    assert len(text) < 600_000


def test_without_samples_the_tables_and_the_other_charts_remain(example: Summary) -> None:
    charts = html.draw(example, None).all
    assert {chart.name.split("-")[0] for chart in charts} == {"exposed", "busbw", "scaling"}
    assert "gloo is fastest" in render(example, None, "html")


def test_hostile_texts_stay_texts() -> None:
    text = render(hostile_summary(), None, "html")
    page = Page(text)
    assert page.open == []
    assert "img" not in page.names()
    assert text.count("<script>") == 1
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text)
    for chart in html.draw(hostile_summary(), None).all:
        ET.fromstring(html.standalone(chart))
        assert "/" not in chart.name
    assert len(ALL) == 7


def test_a_run_with_nothing_measured_still_makes_a_page(example: Summary) -> None:
    empty = dataclasses.replace(example, rows=(), pairs=(), collectives=(), links=(), models=())
    assert "No training step was measured" in render(empty, None, "html")


def test_write_all_leaves_every_file_and_removes_charts_that_are_no_more(tmp_path: Path) -> None:
    run = write_run(tmp_path, Truth(TWO_ARMS, blocks=3, plan="quick"))
    run.plots.mkdir()
    (run.plots / "scaling-old.svg").write_text("<svg/>")
    write_all(run)
    for path in (run.summary, run.report_markdown, run.report_html, run.tables_csv):
        assert path.stat().st_size > 500
    assert {p.name for p in run.plots.iterdir()} == {
        f"{kind}-linear-world-size-4.svg" for kind in ("distribution", "exposed", "over-time")
    }


def test_no_number_of_somebody_elses_summary_breaks_a_page(example: Summary) -> None:
    document = json.loads(codec.encode(example))
    by_name: dict[tuple[str, ...], tuple[str | int, ...]] = {}  # one number under every name
    for path in places(document, most=None):
        number = reduce(getitem, path, document)
        if isinstance(number, (int, float)) and not isinstance(number, bool):
            by_name[tuple(part for part in path if isinstance(part, str))] = path
    assert len(by_name) > 60
    for path in by_name.values():
        for value in (0, -1, 1 << 60):
            holder = reduce(getitem, path[:-1], document)
            before, holder[path[-1]] = holder[path[-1]], value
            try:
                changed = codec.decode(json.dumps(document).encode(), Summary, "summary.json")
            except RecordError:
                continue
            finally:
                holder[path[-1]] = before
            assert "</html>" in render(changed, None, "html"), (path, value)
