"""The terminal table, exactly."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from suite.analysis import wording
from suite.analysis.statistics import smallest_p
from suite.analysis.summarise import summarise
from suite.errors import UsageError
from suite.paths import RunPaths
from suite.report import FORMATS, render, render_run, terminal
from suite.summary import Summary
from tests.support.hostile import hostile_summary
from tests.support.synthetic import TWO_ARMS, ArmTruth, Truth, write_run

QUIET = Truth(
    TWO_ARMS,
    block_effect=0.0,
    launch_effect=0.0,
    unavailable={"nccl": "no CUDA device on h1, h2, h3, h4"},
    environment={"boot_id": "one", "cpu_count": 2},
)
EXPECTED = """\
linear, world size 4, cpu, 8 blocks, 20 warm-up + 50 steps a launch
  backend  step time (median, 95% CI)  p95      exposed comm  vs fastest (95% CI)       equivalence
  gloo     41.8 ms [41.8, 41.8]        42.2 ms  14%           1.00                      pass
  mpi      96.7 ms [96.7, 96.7]        97.7 ms  63%           2.31 [2.31, 2.31] slower  pass
  nccl     –                           –        –             not run: no CUDA device on h1, h2, h3, h4
  gloo is fastest; mpi takes 2.31 [2.31, 2.31] times as long (8 blocks, Holm P_VALUE).
  Warning: 4 ranks on 2 cores of one machine (h1, h2, h3, h4 are simulated on it): oversubscribed. These times are not
    comparable with a real cluster's.

  spread and throughput
    backend  launches      p99  CV between launches  IQR within launch  outliers  rank skew  samples/s  transport
    gloo          8/8  42.2 ms                   0%             418 µs         0     418 µs       6124  tcp (eth0)
    mpi           8/8  97.7 ms                   0%             967 µs         0     967 µs       2647  tcp (eth0)

  where the time goes
    backend  compute  exposed comm (95% CI)  all-reduce alone  hidden  one process  efficiency         busbw
    gloo     36.0 ms   5.80 ms [5.80, 5.80]           57.4 ms     90%      30.0 ms         72%  0.878 Gbit/s
    mpi      36.0 ms   60.7 ms [60.7, 60.7]            126 ms     52%      30.0 ms         31%  0.399 Gbit/s

  Warning: Hosts h1, h2, h3, h4 are one machine (equal boot ID): network and cores are shared, so this is a simulated
    cluster.
"""


def test_a_whole_report_reads_like_this(tmp_path: Path) -> None:
    p = wording.p_text(smallest_p(8, sequential=True))
    assert render(summarise(write_run(tmp_path, QUIET)), None, "terminal") == EXPECTED.replace("P_VALUE", p)


def test_a_quick_run_is_exploratory_and_claims_nothing(tmp_path: Path) -> None:
    truth = dataclasses.replace(QUIET, blocks=3, plan="quick", unavailable={}, environment={})
    lines = render(summarise(write_run(tmp_path, truth)), None, "terminal").splitlines()
    assert lines[0] == "linear, world size 4, cpu, 3 blocks (exploratory), 20 warm-up + 50 steps a launch"
    assert lines[3].split() == ["mpi", "96.7", "ms", "97.7", "ms", "63%", "2.31", "(exploratory)", "pass"]
    assert lines[4] == (
        "  gloo leads, but is not shown to be fastest; mpi takes 2.31 times as long (interval not estimable)."
    )
    assert "[" not in "".join(lines[:5])


def test_invalid_rows_are_shown_with_their_reason_and_nothing_is_claimed(tmp_path: Path) -> None:
    arms = {name: dataclasses.replace(arm, gate="fail") for name, arm in TWO_ARMS.items()}
    lines = render(summarise(write_run(tmp_path, Truth(arms))), None, "terminal").splitlines()
    assert lines[0] == "linear, world size 4, cpu, nothing to rank, 20 warm-up + 50 steps a launch"
    assert re.search(
        r"gloo +4\d\.\d ms .* invalid: equivalence gate failed in 0001-linear-gloo, rank 0 on h1 and 3 more", lines[2]
    )
    assert "fastest;" not in "".join(lines)


def test_an_unresolved_pair_says_how_many_blocks_it_would_take(tmp_path: Path) -> None:
    arms = {"gloo": ArmTruth(0.0418, 0.036), "mpi": ArmTruth(0.0418 * 1.01, 0.036)}
    truth = Truth(arms, launch_effect=0.05, blocks=8, seed=3)
    text = render(summarise(write_run(tmp_path, truth)), None, "terminal")
    assert "is not shown to be fastest" in text
    assert re.search(
        r"unresolved \(8 blocks, Holm p = [\d.]+; about \d+ blocks would resolve it\)", text.replace("\n    ", " ")
    )


def test_equal_backends_are_equivalent_within_delta_not_the_same(tmp_path: Path) -> None:
    arms = {"gloo": ArmTruth(0.0418, 0.036), "mpi": ArmTruth(0.0418, 0.036)}
    text = render(summarise(write_run(tmp_path, Truth(arms, seed=5))), None, "terminal")
    assert "equivalent" in text
    assert " same" not in text


def test_both_times_are_printed_where_free_running_differs(example: Summary) -> None:
    row = example.rows[0]
    assert row.step_seconds is not None
    changed = dataclasses.replace(row, free_running_seconds=row.step_seconds.median * 1.05)
    text = terminal.render(dataclasses.replace(example, rows=(changed, *example.rows[1:])))
    assert "(free-running 39.6 ms)" in text


def test_colour_is_only_there_when_asked_for_and_changes_nothing_else(example: Summary) -> None:
    plain, coloured = terminal.render(example), terminal.render(example, colour=True)
    assert "\x1b" not in plain
    assert "\x1b[32m" in coloured
    assert re.sub(r"\x1b\[\d*m", "", coloured) == plain


def test_output_that_is_no_terminal_gets_no_colour(example_run: RunPaths, example: Summary) -> None:
    assert "\x1b" not in render_run(example_run, example, "terminal")


def test_hostile_texts_cannot_steer_the_terminal() -> None:
    text = terminal.render(hostile_summary())
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)


def test_the_collectives_table_says_what_the_link_carries_and_what_is_missing(example: Summary) -> None:
    text = terminal.render(example)
    assert "Link, point to point over gloo: 1.00 Gbit/s [1.00, 1.00]; no all-reduce can have a higher busbw." in text
    assert re.search(r"16 MiB +229 ms \[22\d, 23\d\] +0\.878 +88%", text)
    assert re.search(r"reduce_scatter +– +– +– +– +not available", text)
    assert re.search(r"nccl +4 +not run: no CUDA device", text)


def test_the_published_protocol_speaks_beside_the_measurement(example: Summary) -> None:
    seconds = {"gloo": 0.1567, "mpi": 0.1892}
    rows = tuple(dataclasses.replace(row, article_seconds=seconds.get(row.arm)) for row in example.rows)
    text = terminal.render(dataclasses.replace(example, rows=rows)).replace("\n    ", " ")
    assert "says: gloo 157 ms, mpi 189 ms (an “improvement” of 21%). It is shown to be compared" in text
    assert "gloo is fastest" in text


def test_an_empty_run_says_so(example: Summary) -> None:
    text = terminal.render(dataclasses.replace(example, rows=(), pairs=(), collectives=(), stop_reason="interrupted"))
    assert "nothing was measured (interrupted)" in text


def test_an_unknown_format_is_refused_with_the_known_ones(example: Summary) -> None:
    with pytest.raises(UsageError, match="latex"):
        render(example, None, "pdf")
    assert set(FORMATS) == {"terminal", "markdown", "csv", "json", "latex", "html"}
