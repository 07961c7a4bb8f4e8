"""The published table, in this suite's words."""

from __future__ import annotations

from suite.analysis import wording
from suite.report.reference import load_reference, ratios, render_reference


def test_the_published_table_gives_1_00_1_27_1_53_and_no_spread() -> None:
    reference = load_reference()
    assert reference.seconds_per_step == {"nccl": 0.1234, "gloo": 0.1567, "mpi": 0.1892}
    assert [f"{ratio:.2f}" for ratio in ratios(reference).values()] == ["1.00", "1.27", "1.53"]
    lines = [line.split() for line in render_reference(reference).splitlines()[2:5]]
    assert lines == [
        ["nccl", "0.1234", "s", "1.00", "spread:", "not", "reported"],
        ["gloo", "0.1567", "s", "1.27", "spread:", "not", "reported"],
        ["mpi", "0.1892", "s", "1.53", "spread:", "not", "reported"],
    ]


def test_time_saved_and_throughput_gained_are_named_apart() -> None:
    text = render_reference(load_reference()).replace("\n    ", " ")
    assert (
        "gloo takes 1.27 times as long as nccl; nccl saves 21.3% of gloo's time, a gain of 27% in throughput." in text
    )
    assert (
        "mpi takes 1.53 times as long as nccl; nccl saves 34.8% of mpi's time, a gain of 53.3% in throughput." in text
    )
    assert wording.ratio_text(18 / 10) == "1.80"


def test_what_is_wrong_with_the_published_script_is_said() -> None:
    text = render_reference(load_reference()).replace("\n    ", " ")
    assert 'passed "nccl" to init_process_group whatever backend' in text
    assert "no warm-up" in text
