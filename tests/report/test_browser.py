"""The HTML report in a real Chromium: no error, no network, tables that sort, a phone's width, dark when asked to.

Skipped, loudly, without a browser; required with SUITE_REQUIRE_BROWSER=1.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from suite.analysis.load import RunData
from suite.report import render
from suite.summary import Summary
from tests.support.browser import REQUIRE_BROWSER, browser_problem, chromium, screenshot, set_scheme, set_screen
from tests.support.hostile import hostile_summary

PROBLEM = browser_problem()
pytestmark = pytest.mark.skipif(bool(PROBLEM) and os.environ.get(REQUIRE_BROWSER) != "1", reason=f"NOT RUN: {PROBLEM}")
SIZES = {"desk": (1280, 900), "tablet": (768, 1024), "phone": (360, 740), "small phone": (320, 568)}


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    assert not PROBLEM, PROBLEM
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory, example: Summary, example_data: RunData) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(render(example, example_data, "html"), encoding="utf-8")
    return path


@pytest.fixture
def report(driver: Any, page: Path) -> Any:
    """The report, freshly opened on a desk's screen in light colours."""
    set_screen(driver, *SIZES["desk"])
    set_scheme(driver, "light")
    driver.get(page.as_uri())
    return driver


def errors(driver: Any) -> list[str]:
    return [entry["message"] for entry in driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]


def first_column(driver: Any, table: int = 0) -> list[str]:
    script = """const rows = document.querySelectorAll('table.data')[arguments[0]].tBodies[0].rows;
        return [...rows].map(row => row.cells[0].innerText);"""
    return list(driver.execute_script(script, table))


def press(driver: Any, heading: str, table: int = 0) -> str:
    """Press a column's heading; returns the order that it now announces."""
    return str(
        driver.execute_script(
            """const table = document.querySelectorAll('table.data')[arguments[0]];
            const th = [...table.querySelectorAll('thead th')].find(x => x.innerText.startsWith(arguments[1]));
            th.querySelector('button').click();
            return th.getAttribute('aria-sort');""",
            table,
            heading,
        )
    )


def test_no_error_no_warning_and_nothing_loaded(report: Any) -> None:
    assert errors(report) == []
    assert report.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert report.title == "20260102T030405Z-standard-0001: DDP backends compared"


def test_the_verdict_is_seen_without_scrolling(report: Any) -> None:
    lead = report.execute_script(
        "const e = document.querySelector('.lead'); return [e.innerText, e.getBoundingClientRect().bottom]"
    )
    assert lead[0].startswith("gloo is fastest; mpi takes 2.3")
    assert lead[1] < SIZES["desk"][1] / 3


def test_a_table_sorts_both_ways_and_back_with_missing_values_last(report: Any) -> None:
    original = first_column(report)
    assert original == ["gloo", "mpi", "nccl"]
    assert press(report, "step time") == "ascending"
    assert first_column(report) == ["gloo", "mpi", "nccl"]
    assert press(report, "step time") == "descending"
    assert first_column(report) == ["mpi", "gloo", "nccl"]
    assert press(report, "step time") == "none"
    assert first_column(report) == original
    assert press(report, "backend") == "ascending"
    assert press(report, "backend") == "descending"
    assert first_column(report) == ["nccl", "mpi", "gloo"]
    assert errors(report) == []


def test_numbers_sort_as_numbers_not_as_text(report: Any) -> None:
    table = report.execute_script(
        """const captions = [...document.querySelectorAll('table.data caption')];
        return captions.findIndex(caption => caption.innerText.startsWith('all_reduce'));"""
    )
    press(report, "size", table)
    assert first_column(report, table)[:3] == ["1 KiB", "4 KiB", "16 KiB"]
    press(report, "size", table)
    assert first_column(report, table)[:3] == ["16 MiB", "4 MiB", "1 MiB"]


def test_tables_sort_by_keyboard(report: Any) -> None:
    from selenium.webdriver.common.keys import Keys

    button = report.find_elements("css selector", "table.data thead button")[1]
    button.send_keys(Keys.ENTER)
    button.send_keys(Keys.ENTER)
    assert first_column(report) == ["mpi", "gloo", "nccl"]
    assert report.execute_script("return document.activeElement === arguments[0]", button)


def test_charts_are_drawn_with_a_size_and_a_name(report: Any) -> None:
    charts = report.execute_script(
        """return [...document.querySelectorAll('svg[role=img]')].map(s => {
            const box = s.getBoundingClientRect();
            return [box.width, box.height, s.querySelector('title').textContent, s.querySelector('desc').textContent];
        })"""
    )
    assert len(charts) == 6 * 3 + 4 + 2
    for width, height, title, description in charts:
        assert width > 400, title
        assert height > 80, title
        assert title
        assert description


def test_no_text_of_a_chart_is_cut_off_or_lies_on_another(report: Any) -> None:
    faults = report.execute_script(
        """const faults = [];
        for (const svg of document.querySelectorAll('svg[role=img]')) {
            const name = svg.querySelector('title').textContent, outer = svg.getBoundingClientRect();
            const boxes = [...svg.querySelectorAll('text')].filter(t => t.textContent)
                .map(t => [t.textContent, t.getBoundingClientRect()]);
            for (const [text, box] of boxes)
                if (box.left < outer.left - 1 || box.right > outer.right + 1 || box.bottom > outer.bottom + 1)
                    faults.push(`${name}: "${text}" is cut off`);
            boxes.forEach(([a, p], i) => boxes.slice(i + 1).forEach(([b, q]) => {
                const wide = Math.min(p.right, q.right) - Math.max(p.left, q.left);
                const high = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
                if (wide > 1 && high > 4) faults.push(`${name}: "${a}" and "${b}" overlap`);
            }));
        }
        return faults;"""
    )
    assert faults == []


@pytest.mark.parametrize("size", SIZES)
def test_nothing_makes_the_page_wider_than_the_screen(report: Any, size: str) -> None:
    set_screen(report, *SIZES[size], mobile="phone" in size)
    widths = report.execute_script("return [document.documentElement.scrollWidth, window.innerWidth]")
    assert widths[0] <= SIZES[size][0], widths
    assert widths[1] == SIZES[size][0]


def test_chart_texts_stay_readable_on_a_phone(report: Any) -> None:
    set_screen(report, *SIZES["phone"], mobile=True)
    heights = report.execute_script(
        "return [...document.querySelectorAll('svg .tick')].map(t => t.getBoundingClientRect().height)"
    )
    assert min(heights) >= 9


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_and_marks_stand_out_in_both_schemes(report: Any, scheme: str) -> None:
    set_scheme(report, scheme)
    light = report.execute_script(CONTRAST + "return luminance(getComputedStyle(document.body).backgroundColor)")
    assert (light > 0.8) if scheme == "light" else (light < 0.05)
    faults = report.execute_script(
        CONTRAST
        + """const faults = new Set();
        for (const e of document.querySelectorAll('body *:not(script)')) {
            if (![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())) continue;
            if (e.closest('.hidden') || e.tagName === 'title' || e.tagName === 'desc') continue;
            const style = getComputedStyle(e);
            const ink = e.closest('svg') ? style.fill : style.color;
            const ratio = contrast(ink, behind(e));
            if (ratio < 4.5) faults.add(`${e.tagName}.${e.className.baseVal ?? e.className} ${ratio.toFixed(2)}`);
        }
        for (const e of document.querySelectorAll('svg .mark, svg .compute')) {
            const ratio = contrast(getComputedStyle(e).fill, behind(e));
            if (ratio < 3) faults.add(`mark ${e.className.baseVal} ${ratio.toFixed(2)}`);
        }
        return [...faults];"""
    )
    assert faults == []


CONTRAST = """
const parse = c => { const m = c.match(/[\\d.]+/g).map(Number); return m.length < 4 ? [...m, 1] : m; };
const luminance = c => {
    const linear = v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
    const [r, g, b] = parse(c).slice(0, 3).map(v => linear(v / 255));
    return .2126 * r + .7152 * g + .0722 * b;
};
const contrast = (a, b) => {
    const [x, y] = [luminance(a), luminance(b)].sort((p, q) => q - p);
    return (x + .05) / (y + .05);
};
const behind = e => {
    for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor; if (parse(c)[3] > .99) return c; }
    return 'rgb(255, 255, 255)';
};
"""


def test_hostile_texts_run_nothing(driver: Any, tmp_path: Path) -> None:
    path = tmp_path / "hostile.html"
    path.write_text(render(hostile_summary(), None, "html"), encoding="utf-8")
    set_screen(driver, *SIZES["phone"], mobile=True)
    driver.get(path.as_uri())  # an alert would raise at the next command
    assert driver.execute_script("return document.images.length + document.scripts.length") == 1
    assert driver.execute_script("return document.documentElement.scrollWidth") <= 360
    assert errors(driver) == []


def test_screenshots_can_be_taken(report: Any, tmp_path: Path) -> None:
    """With SUITE_SCREENSHOTS=FOLDER they are kept there, to be looked at."""
    folder = Path(os.environ.get("SUITE_SCREENSHOTS") or tmp_path)
    for scheme in ("light", "dark"):
        set_scheme(report, scheme)
        for name in ("desk", "phone"):
            set_screen(report, *SIZES[name], mobile=name == "phone")
            screenshot(report, folder / f"report-{name}-{scheme}.png")
    assert all(path.stat().st_size > 20_000 for path in folder.glob("report-*.png"))
    assert len(list(folder.glob("report-*.png"))) == 4
