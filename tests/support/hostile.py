"""A summary in which every text that a run could bring along tries to break out of its format."""

from __future__ import annotations

from suite.summary import (
    CollectiveResult,
    EquivalenceResult,
    Launches,
    LinkResult,
    PairResult,
    Ratio,
    Row,
    StepSeconds,
    Summary,
)

SCRIPT = "<script>alert(1)</script>"
IMAGE = '"><img src=x onerror=alert(2)>'
FORMULA = '=HYPERLINK("http://192.0.2.1","x")'
TERMINAL = "\x1b[31m\x1b]0;owned\x07\x9b2J\r\nnew line"
LATEX = r"\input{/etc/passwd} $x_1$ 50% & more \write18{id}"
MARKDOWN = "[x](javascript:alert(1)) | cell | <b>bold</b> `code`"
BIDI = "abc\u202edef\u2066"
ALL = (SCRIPT, IMAGE, FORMULA, TERMINAL, LATEX, MARKDOWN, BIDI)
JOINED = " ".join(ALL)


def hostile_summary() -> Summary:
    """One ranked row, one of every other status, a pair, a collective; hostile wherever a text is possible."""
    step = StepSeconds(0.05, (0.049, 0.051), 0.06, None, 0.04, 0.07)
    ok = Row(
        workload=SCRIPT, backend="gloo", arm=IMAGE, device="cpu", world_size=2, status="ok", reason=None,
        launches=Launches(8, 8), steps_per_launch=50, warmup_steps=20, step_seconds=step,
        ratio_to_fastest=Ratio(1.0, None, None, "fastest"), equivalence=EquivalenceResult("pass", JOINED),
        transport=JOINED, blocks=8, launch_values=(0.05,) * 8, warnings=ALL, compute_seconds=0.04,
    )  # fmt: skip
    others = tuple(
        Row(
            workload=SCRIPT, backend="mpi", arm=f"{FORMULA}{i}", device="cpu", world_size=2, status=status,
            reason=JOINED, launches=Launches(0, 8),
        )
        for i, status in enumerate(("failed", "invalid", "unavailable"))
    )  # fmt: skip
    return Summary(
        run=SCRIPT, cluster=IMAGE, created=TERMINAL, plan=MARKDOWN, stop_reason=LATEX,
        environment={SCRIPT: JOINED, "per": {"per host": {IMAGE: FORMULA, BIDI: TERMINAL}}, "n": {"values": list(ALL)}},
        rows=(ok, *others),
        pairs=(PairResult(SCRIPT, 2, IMAGE, FORMULA, 1.2, (1.1, 1.3), 0.01, "slower", 8),),
        collectives=(
            CollectiveResult("gloo", IMAGE, "all_reduce", 1024, 2, 1e-3, None, 1e6, 1e6, 2, status="invalid"),
            CollectiveResult("gloo", IMAGE, "all_reduce", 4096, 2, 2e-3, None, 2e6, 2e6, 0),
            CollectiveResult("mpi", FORMULA, "reduce_scatter", 1024, 2, None, None, None, None, 0,
                             status="unavailable", reason=JOINED),
        ),
        links=(LinkResult(SCRIPT, 2, 125e6),),
        suite_version=SCRIPT, warnings=ALL, problems=ALL,
    )  # fmt: skip
