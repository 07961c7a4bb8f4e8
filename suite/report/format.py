"""Seconds, bytes, bandwidths and shares as text. The only place where units appear."""

from __future__ import annotations

import math
import unicodedata

from suite.summary import Estimate, StepSeconds

NONE = "–"
Range = tuple[float, float]

_TIME_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_SIZE_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def clean(text: object) -> str:
    """Text of a host, a file or a user on one line, without anything that steers a terminal or hides.

    Control characters, line breaks and invisible formatting (bidirectional overrides) become U+FFFD.
    """
    text = str(text)
    if text.isprintable():  # what Unicode calls printable has none of these, and is nearly everything
        return text
    return "".join(
        "\N{REPLACEMENT CHARACTER}" if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") else c for c in text
    )


def digits(value: float, significant: int = 3) -> str:
    """A number with so many significant digits and no exponent: 41.83 → "41.8", 1234.5 → "1234"."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else NONE
    decimals = max(0, significant - 1 - _exponent(value, significant))
    return f"{value:.{decimals}f}".replace("-", "−")


def _exponent(value: float, significant: int) -> int:
    """Of the leading digit after rounding: 9.996 is 10.0."""
    return int(f"{abs(value):.{significant - 1}e}".partition("e")[2])


def time(seconds: float | None, significant: int = 3) -> str:
    """ "41.8 ms"."""
    if seconds is None:
        return NONE
    if seconds == 0:
        return "0 s"
    scale, unit = _time_unit(seconds, significant)
    return f"{digits(seconds / scale, significant)} {unit}"


def time_ci(seconds: float | None, ci: Range | None) -> str:
    """ "41.8 ms [41.5, 42.2]": the interval in the unit, and with the decimals, of the median."""
    if seconds is None:
        return NONE
    if ci is None:
        return time(seconds)
    scale, unit = _time_unit(max(abs(seconds), abs(ci[1] - ci[0])) or 1.0, 3)
    decimals = _decimals([x / scale for x in (seconds, *ci)])
    low, middle, high = (f"{x / scale:.{decimals}f}".replace("-", "−") for x in (ci[0], seconds, ci[1]))
    return f"{middle} {unit} [{low}, {high}]"


def _decimals(values: list[float]) -> int:
    """Three significant digits of the first, and as many more, up to two, as show the interval's ends apart."""
    decimals = max(0, 2 - _exponent(values[0], 3)) if values[0] else 2
    spread = values[2] - values[1]
    if spread > 0:
        decimals = max(decimals, min(decimals + 2, -math.floor(math.log10(spread))))
    return decimals


def step_time(step: StepSeconds | None) -> str:
    """A row's step time with its interval."""
    return NONE if step is None else time_ci(step.median, step.ci)


def estimate(value: Estimate | None) -> str:
    """A median with its interval."""
    return NONE if value is None else time_ci(value.median, value.ci)


def _time_unit(seconds: float, significant: int) -> tuple[float, str]:
    for scale, unit in _TIME_UNITS:
        if float(f"{abs(seconds) / scale:.{significant - 1}e}") >= 1:
            return scale, unit
    return _TIME_UNITS[-1]


def size(count: int | None) -> str:
    """Bytes: "4 MiB", "1.5 KiB", "100 B"; binary units, as buffers are sized."""
    if count is None:
        return NONE
    for scale, unit in _SIZE_UNITS:
        if abs(count) >= scale:
            return f"{count / scale:.4g} {unit}"
    return f"{count} B"


def bandwidth(bytes_per_second: float | None) -> str:
    """ "0.953 Gbit/s": bits and decimal units, as links are sold."""
    return NONE if bytes_per_second is None else f"{gigabits(bytes_per_second)} Gbit/s"


def gigabits(bytes_per_second: float | None) -> str:
    """The same without its unit, for a column that names it."""
    return NONE if bytes_per_second is None else digits(bytes_per_second * 8 / 1e9)


def bandwidth_ci(bytes_per_second: float, ci: Range | None) -> str:
    """ "0.941 Gbit/s [0.940, 0.942]"."""
    if ci is None:
        return bandwidth(bytes_per_second)
    low, middle, high = (x * 8 / 1e9 for x in (ci[0], bytes_per_second, ci[1]))
    decimals = _decimals([middle, low, high])
    return f"{middle:.{decimals}f} Gbit/s [{low:.{decimals}f}, {high:.{decimals}f}]"


def share(value: float | None) -> str:
    """A share as a whole percentage below 10 with one decimal: 0.144 → "14%", 0.041 → "4.1%"."""
    if value is None:
        return NONE
    percent = value * 100
    text = f"{percent:.1f}" if abs(percent) < 9.95 else f"{percent:.0f}"
    return f"{text.removesuffix('.0').replace('-', '−')}%".replace("−0%", "0%")


def rate(per_second: float | None) -> str:
    """Samples per second, three digits."""
    return NONE if per_second is None else digits(per_second)


def count(number: int, singular: str, plural: str = "") -> str:
    """ "1 block", "8 blocks"."""
    return f"{number} {singular if number == 1 else plural or singular + 's'}"
