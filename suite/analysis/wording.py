"""How a comparison is put into words, defined once.

With T_a and T_b the step times of a and b, three numbers describe the same fact and are never exchanged:

* ratio of times: a takes T_a/T_b times as long as b;
* time saved by a against b: 1 − T_a/T_b of b's time;
* throughput gained by a against b: T_b/T_a − 1.

For T_a = 10 and T_b = 18, b takes 1.80 times as long, a saves 44.4% of the time and gains 80% of throughput.
"Faster by 27%" says none of these and is not used. Every function here returns a string, or the number it
names.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

Range = tuple[float, float]

NO_SPREAD = "spread: not reported"


class Compared(NamedTuple):
    """One arm against a reference: time ratio, 95% interval, verdict, complete blocks, Holm-adjusted p."""

    ratio: float | None
    ci: Range | None
    verdict: str
    blocks: int = 0
    p: float | None = None


def time_ratio(t_a: float, t_b: float) -> float:
    """How many times as long a takes as b: T_a/T_b."""
    _require_times(t_a, t_b)
    return t_a / t_b


def time_saved(t_a: float, t_b: float) -> float:
    """Share of b's time that a saves: 1 − T_a/T_b; negative where a is slower."""
    _require_times(t_a, t_b)
    return (t_b - t_a) / t_b


def throughput_gain(t_a: float, t_b: float) -> float:
    """Throughput of a over that of b, minus 1: T_b/T_a − 1; negative where a is slower."""
    _require_times(t_a, t_b)
    return (t_b - t_a) / t_a


def percent(share: float) -> str:
    """A share as a percentage with one decimal at most: 0.4444 → "44.4%", 0.8 → "80%"."""
    text = f"{100 * share:.1f}".removesuffix(".0")
    return f"{'0' if text == '-0' else text.replace('-', '−')}%"


def ratio_text(ratio: float, ci: Range | None = None) -> str:
    """As "1.27 [1.25, 1.29]", with the decimals that the interval needs, two to four; "1.27" without one."""
    decimals = 2
    if ci is not None and ci[1] > ci[0]:
        decimals = min(4, max(2, math.ceil(-math.log10(ci[1] - ci[0]))))
    estimate = f"{ratio:.{decimals}f}"
    return estimate if ci is None else f"{estimate} [{ci[0]:.{decimals}f}, {ci[1]:.{decimals}f}]"


def ratio_sentence(a: str, b: str, ratio: float, ci: Range | None = None) -> str:
    """As "gloo takes 1.27 [1.25, 1.29] times as long as nccl", without a full stop."""
    return f"{a} takes {ratio_text(ratio, ci)} times as long as {b}"


def saved_sentence(a: str, b: str, t_a: float, t_b: float) -> str:
    """The other two numbers, each by its name: "a saves 44.4% of b's time, a gain of 80% in throughput"."""
    saved, gained = time_saved(t_a, t_b), throughput_gain(t_a, t_b)
    if saved < 0:
        return f"{a} costs {percent(-saved)} more time than {b}, a loss of {percent(-gained)} in throughput"
    return f"{a} saves {percent(saved)} of {b}'s time, a gain of {percent(gained)} in throughput"


def p_text(p: float) -> str:
    """As "p = 0.008"; below 0.001 "p < 0.001"."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}" if p < 0.1 else f"p = {p:.2f}"


def pair_sentence(
    a: str,
    b: str,
    ratio: float | None,
    ci: Range | None,
    p: float | None,
    verdict: str,
    *,
    blocks: int,
    delta: float,
    blocks_needed: int | None = None,
    within_delta: bool = False,
    below_floor: bool = False,
) -> str:
    """One comparison with its verdict and what it rests on, without a full stop.

    Args:
        ratio, ci, p: time of a over time of b, its 95% interval, Holm-adjusted p; None where not estimable.
        verdict: "slower", "faster", "equivalent", "unresolved", of a.
        blocks: complete blocks.
        delta: margin of equivalence (0.03).
        blocks_needed, within_delta, below_floor: as in ``suite.analysis.verdicts.Verdict``.
    """
    if ratio is None:
        return f"{a} and {b} have no complete block in common, so they are not compared"
    sentence = ratio_sentence(a, b, ratio, ci)
    if ci is None:
        return f"{sentence} ({count_text(blocks)}: exploratory, interval not estimable)"
    evidence = count_text(blocks) + ("" if p is None else f", Holm {p_text(p)}")
    if verdict == "unresolved":
        needed = "" if blocks_needed is None else f"; about {blocks_needed} blocks would resolve it"
        return f"{sentence}: unresolved ({evidence}{needed})"
    if verdict == "equivalent":
        return f"{sentence}: equivalent within {percent(delta)} ({evidence})"
    if within_delta:
        verdict += f", though by less than {percent(delta)}"
    if below_floor:
        verdict += ", yet no more than two copies of one backend differ here"
    return f"{sentence}: {verdict} ({evidence})"


def conclusion(reference: str, others: Mapping[str, Compared]) -> str:
    """The verdict on top of a report: who is fastest, as far as that was shown, without a full stop.

    Args:
        reference: the arm that the estimates put first.
        others: arm → how it compares with ``reference``.
    """
    if not others:
        return f"{reference} is the only one measured, so nothing was compared"
    shown = all(other.verdict == "slower" for other in others.values())
    start = f"{reference} is fastest" if shown else f"{reference} leads, but is not shown to be fastest"
    return "; ".join([start, *(_against(name, other) for name, other in others.items())])


def reference_lines(times: Mapping[str, float]) -> tuple[str, ...]:
    """A published table that gave means only: one line per backend, times over the smallest.

    Args:
        times: backend → seconds per step as published.

    Returns:
        E.g. "gloo  0.1567 s  1.27  spread: not reported", in the order given.
    """
    fastest = min(times.values())
    width = max(map(len, times))
    return tuple(
        f"{name:<{width}}  {seconds:.4f} s  {ratio_text(time_ratio(seconds, fastest))}  {NO_SPREAD}"
        for name, seconds in times.items()
    )


def count_text(blocks: int) -> str:
    """As "1 block", "8 blocks"."""
    return f"{blocks} block" if blocks == 1 else f"{blocks} blocks"


def _against(name: str, other: Compared) -> str:
    if other.ratio is None:
        return f"{name} shares no complete block with it"
    takes = f"{name} takes {ratio_text(other.ratio, other.ci)} times as long"
    if other.ci is None:
        return f"{takes} (interval not estimable)"
    notes = [] if other.verdict == "slower" else [other.verdict]
    notes += [count_text(other.blocks)] if other.blocks else []
    notes += [] if other.p is None else [f"Holm {p_text(other.p)}"]
    return f"{takes} ({', '.join(notes)})" if notes else takes


def _require_times(*seconds: float) -> None:
    if not all(math.isfinite(value) and value > 0 for value in seconds):
        raise ValueError(f"times must be positive, not {', '.join(map(str, seconds))} s")
