"""What the properties are tried on: texts that try to be something else, and real documents with something wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

# Each of these means something to some program that might get to see it.
NASTY = (
    "", " ", ".", "..", "../../etc/passwd", "/etc/passwd", "a/b", "C:\\x", "-rf", "--help", "$(reboot)", "`id`", "; id",
    "'", '"', "a\nb", "a\r\nb", "a\x00b", "\x1b[31m", "\x9b2J", "<script>alert(1)</script>", "&amp;", "%s", "{0}",
    "\u202e", "\ud7ff", "\U0001f600", "nan", "inf", "-1", "0", "1e999", "00", "٣", "²", "true", "null", "localhost",
    "all", "h1", "gloo", "198.51.100.7", "::1", "a" * 300, "=1+1", "\\input{x}", "h1:h2", "a,b", "a=b", "@", ":", "🦀",
)  # fmt: skip
texts = st.one_of(st.sampled_from(NASTY), st.text(max_size=20))
words = st.from_regex(r"[A-Za-z0-9._+-]{1,12}", fullmatch=True)
whole = st.one_of(st.integers(-2, 70000), st.integers(), st.sampled_from([2**31, 2**63, 2**64, 10**30]))
numbers = st.one_of(whole, st.floats())
scalars = st.one_of(st.none(), st.booleans(), numbers, texts)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3))

# Documents that no parser should follow to their end, and numbers that no machine holds.
EXTREME = (
    b"[" * 100_000,
    b'{"a":' * 50_000,
    b"a = " + b"[" * 50_000,
    b"a = " + b"9" * 5000,
    b"9" * 5000,
    b"\xff\xfe",
    b"",
)
any_bytes = st.one_of(st.binary(max_size=100), st.sampled_from(EXTREME))

Path = tuple[str | int, ...]


def places(document: Any, path: Path = (), most: int | None = 3) -> list[Path]:
    """The paths of all values in a document, itself first; of a list the first ``most`` members, or all."""
    found = [path]
    if isinstance(document, dict):
        for key, inner in document.items():
            found += places(inner, (*path, key), most)
    elif isinstance(document, list):
        for number, inner in enumerate(document[:most]):
            found += places(inner, (*path, number), most)
    return found


@st.composite
def damaged(draw: Callable[[Any], Any], document: Any) -> bytes:
    """A JSON document with some values replaced, removed or doubled; now and then with bytes wrong or missing."""
    changed = json.loads(json.dumps(document))
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(places(changed)[1:] or [()]))
        if not path:
            break
        holder = changed
        for key in path[:-1]:
            holder = holder[key]
        what = draw(st.sampled_from(["replace", "replace", "replace", "remove", "double"]))
        if what == "replace":
            holder[path[-1]] = draw(values)
        elif what == "remove":
            del holder[path[-1]]
        elif isinstance(holder, list):
            holder.append(holder[int(path[-1])])
        else:
            holder[draw(texts)] = holder[path[-1]]
    data = json.dumps(changed).encode()
    if draw(st.integers(0, 9)) == 0:
        cut = draw(st.integers(0, len(data)))
        data = data[:cut] + draw(st.binary(max_size=4)) + data[cut + draw(st.integers(0, 4)) :]
    return data


def toml_value(value: Any) -> str:
    """A value in TOML's notation, as well as it has one."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, list):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_toml_text(k)} = {toml_value(v)}" for k, v in value.items()) + " }"
    return _toml_text(str(value))


def _toml_text(text: str) -> str:
    signs = (c if c.isprintable() and c not in '"\\' else f"\\U{ord(c):08x}" for c in text)
    return '"' + "".join(signs) + '"'


def toml_table(head: str, table: dict[str, Any]) -> str:
    """One table of a TOML file."""
    return "\n".join([head, *(f"{_toml_text(key)} = {toml_value(value)}" for key, value in table.items())]) + "\n"
