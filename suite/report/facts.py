"""The environment of a run as rows of text: a fact, and its value, per host where hosts differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from suite.report.format import clean


def fact_rows(environment: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(fact, value) in the order given; a fact that differs between hosts gives "h1: ..; h2: .."."""
    return [(clean(key), value_text(value)) for key, value in environment.items()]


def value_text(value: Any) -> str:
    """One fact's value in words."""
    if isinstance(value, Mapping):
        return _mapping_text(value)
    if isinstance(value, (list, tuple)):
        return ", ".join(value_text(item) for item in value) or "none"
    if value is None or isinstance(value, bool):
        return {None: "unknown", True: "yes", False: "no"}[value]
    return f"{value:.6g}" if isinstance(value, float) else clean(value) or "(empty)"


def _mapping_text(value: Mapping[str, Any]) -> str:
    """The forms that ``suite.analysis.environment`` gives to what differs; any other mapping key by key."""
    if set(value) == {"per host"} and isinstance(value["per host"], Mapping):
        return _per_host(value["per host"])
    if set(value) == {"min", "max"}:
        return f"{value_text(value['min'])} to {value_text(value['max'])}"
    if "values" in value and set(value) <= {"values", "and more"}:
        more = f" and {value['and more']} more" if "and more" in value else ""
        return " or ".join(value_text(v) for v in value["values"]) + more
    return "; ".join(f"{clean(k)} = {value_text(v)}" for k, v in value.items()) or "none"


def _per_host(hosts: Mapping[str, Any]) -> str:
    """Hosts with the same value together: "h1, h2: a; h3: b"."""
    groups: dict[str, list[str]] = {}
    for host, value in hosts.items():
        groups.setdefault(value_text(value), []).append(clean(host))
    return "; ".join(f"{', '.join(names)}: {text}" for text, names in groups.items())
