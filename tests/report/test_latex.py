"""LaTeX: booktabs tables in which every text is text."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from suite.report import latex, render
from suite.summary import Summary
from tests.support.hostile import hostile_summary


def test_tables_use_booktabs_and_the_reason_spans_the_rest(example: Summary) -> None:
    text = render(example, None, "latex")
    assert text.count(r"\toprule") == text.count(r"\midrule") == text.count(r"\bottomrule") >= 6
    assert r"\multicolumn{2}{l}{not run: no CUDA device on h1, h2, h3, h4}" in text
    assert r"step time (median, 95\% CI)" in text


def test_hostile_texts_have_no_command_left() -> None:
    text = latex.render(hostile_summary())
    commands = set(re.findall(r"\\([a-zA-Z]+)", text))
    ours = {
        "begin", "end", "centering", "caption", "label", "toprule", "midrule", "bottomrule", "multicolumn", "par",
        "footnotesize", "usepackage", "textbackslash", "textasciitilde", "textless", "textgreater", "textbar",
        "textquotedbl", "textasciigrave", "ensuremath", "mu", "pm", "le", "times", "cdot", "alpha", "beta",
    }  # fmt: skip
    assert commands <= ours, commands - ours
    assert not re.search(
        r"(?<!\\)[$#&%_](?![^\n]*usepackage)", re.sub(r" & |^%.*$|tab:\S*", "", text, flags=re.MULTILINE)
    )


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="NOT RUN: there is no pdflatex")
def test_pdflatex_takes_it(tmp_path: Path) -> None:
    document = "\\documentclass{article}\\usepackage[T1]{fontenc}\\usepackage{booktabs}\\begin{document}\n"
    (tmp_path / "x.tex").write_text(document + latex.render(hostile_summary()) + "\\end{document}\n")
    done = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-no-shell-escape", "x.tex"],
        cwd=tmp_path, capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout.decode(errors="replace")[-2000:]
