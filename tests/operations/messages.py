"""Every message of the suite, found in its source, for docs/operations.md.

    python -m tests.operations.messages --write      bring the list in docs/operations.md up to date

A message is what an error is made with, or a failed check, or the failure of a launch. What varies in it stands
in braces. What to do comes from the error's own ``fix``; where it has none, from docs/remedies.toml, by the message
or by the module.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import suite.errors
from suite.paths import project_root
from tests.lab.fault_table import cell, put_between

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover - the same parser under its older name
    import tomli as tomllib

OPERATIONS = project_root() / "docs" / "operations.md"
REMEDIES = project_root() / "docs" / "remedies.toml"
BEGIN, END = "<!-- messages: begin -->", "<!-- messages: end -->"

# What makes an error or a failure: the places of its message and of its fix. (By keyword they are found anyway.)
_MAKERS: dict[str, tuple[int, int | None]] = {
    "ConfigurationError": (2, None),
    "RecordError": (1, None),
    "IncompatibleError": (0, None),
    "HostError": (1, None),
    "fail": (3, 4),  # a failed check
    "warn": (3, 4),  # a check that warns
    "Failure": (1, 4),  # of a launch
    "end": (1, None),  # of a rank
    "wrong": (1, 2),  # in cluster files
    "_Wrong": (0, 1),
    "Invalid": (1, 2),
}
_MESSAGE, _FIX = ("message", "cause"), ("fix",)
# Functions whose texts another function puts into an error: what they return, or give to ``message`` and ``fix``.
_WRITERS = ("_deployment_problem", "_connect_message", "_why_lost")


@dataclass(frozen=True, order=True)
class Message:
    """One message: the module that says it, its text with what varies in braces, its fix ("" without one)."""

    module: str
    text: str
    fix: str


@dataclass(frozen=True, order=True)
class Forwarded:
    """A function that makes an error from a text that is written elsewhere."""

    module: str
    function: str


def find(root: Path) -> tuple[list[Message], set[Forwarded]]:
    """All messages of the suite below ``root``, and the places whose text is not written there."""
    messages: set[Message] = set()
    forwarded: set[Forwarded] = set()
    for path in sorted([*(root / "suite").rglob("*.py"), root / "tasks.py"]):
        module = str(path.relative_to(root))
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for function, scope, call in _calls(tree, "", [_Scope(tree)]):
            texts, fixes = _made(call, scope)
            if texts == []:
                forwarded.add(Forwarded(module, function))
            messages |= {Message(module, text, fix) for text in texts or [] for fix in fixes or [""]}
        messages |= {Message(module, text, fix) for text, fix in _written(tree)}
    return sorted(messages), forwarded


class _Scope:
    """The values that names are given in a module or function, with their lines; functions in it are left out."""

    def __init__(self, node: ast.AST) -> None:
        self._given: list[tuple[int, str, ast.expr]] = []
        todo = list(ast.iter_child_nodes(node))
        while todo:
            child = todo.pop()
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                continue
            if isinstance(child, ast.Assign) and isinstance(child.targets[0], ast.Name):
                self._given.append((child.lineno, child.targets[0].id, child.value))
            todo += ast.iter_child_nodes(child)

    def values(self, name: str, line: int) -> list[ast.expr]:
        """What a name can be at a line: in a chain of choices each value, else the one before the line."""
        before = [value for at, given, value in sorted(self._given, key=lambda g: g[0]) if given == name and at <= line]
        return before[-1:] if line < 1 << 30 else before

    def all_values(self, name: str) -> list[ast.expr]:
        """Every value that a name is given."""
        return [value for _, given, value in self._given if given == name]


def _calls(tree: ast.AST, function: str, scopes: list[_Scope]) -> Iterator[tuple[str, list[_Scope], ast.Call]]:
    """Every call with the innermost function around it and its scopes, the innermost last."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from _calls(child, child.name, [*scopes, _Scope(child)])
            continue
        if isinstance(child, ast.Call):
            yield function, scopes, child
        yield from _calls(child, function, scopes)


def _made(call: ast.Call, scopes: list[_Scope]) -> tuple[list[str] | None, list[str]]:
    """(texts, fixes) of what a call makes; None for a call that makes no message, [] for a text from elsewhere."""
    name = call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")
    if name not in _MAKERS and name not in _error_names():
        return None, []
    place, fix_place = _MAKERS.get(name, (0, None))
    message, fix = _argument(call, place, _MESSAGE), _argument(call, fix_place, _FIX)
    if message is None:
        return None, []
    return _texts(message, scopes, call.lineno), _texts(fix, scopes, call.lineno) if fix is not None else []


def _written(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """(message, fix) of the functions in ``_WRITERS``."""
    for function in (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name in _WRITERS):
        scopes = [_Scope(tree), _Scope(function)]
        for node in ast.walk(function):
            if isinstance(node, ast.Return) and node.value is not None:
                yield from ((text, "") for text in _texts(node.value, scopes, 0))
            for body in (getattr(node, "body", None), getattr(node, "orelse", None)):
                given = {
                    n.targets[0].id: n.value
                    for n in (body if isinstance(body, list) else [])
                    if isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Name)
                }
                if "message" in given and "fix" in given:
                    fixes = _texts(given["fix"], scopes, 0)
                    yield from ((m, f) for m in _texts(given["message"], scopes, 0) for f in fixes)


def _argument(call: ast.Call, place: int | None, words: tuple[str, ...]) -> ast.expr | None:
    for keyword in call.keywords:
        if keyword.arg in words:
            return keyword.value
    if place is not None and place < len(call.args) and not isinstance(call.args[place], ast.Starred):
        return call.args[place]
    return None


def _error_names() -> set[str]:
    names = {"SuiteError"}
    todo = [suite.errors.SuiteError]
    while todo:
        for kind in todo.pop().__subclasses__():
            if kind.__module__ == "suite.errors":
                names.add(kind.__name__)
                todo.append(kind)
    return names


def _texts(node: ast.expr, scopes: list[_Scope], line: int) -> list[str]:  # noqa: PLR0911 - one for each form
    """The texts that an expression can be, what varies in braces; none if it is no text that is written here."""
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) and node.value.strip() else []
    if isinstance(node, ast.JoinedStr):
        parts = [str(v.value) if isinstance(v, ast.Constant) else _variable(v) for v in node.values]
        said = "".join(str(v.value) for v in node.values if isinstance(v, ast.Constant))
        return ["".join(parts)] if re.search(r"[a-z]", said) else []
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _texts(node.left, scopes, line), _texts(node.right, scopes, line)
        return [a + b for a in left or ["{…}"] for b in right or ["{…}"]] if left or right else []
    if isinstance(node, ast.IfExp):
        return [*_texts(node.body, scopes, line), *_texts(node.orelse, scopes, line)]
    if isinstance(node, ast.BoolOp):
        return [text for value in node.values for text in _texts(value, scopes, line)]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("strip", "lstrip"):
        return _texts(node.func.value, scopes, line)
    if isinstance(node, ast.Name):
        for scope in reversed(scopes):
            values = scope.values(node.id, line) if scope is not scopes[0] else scope.all_values(node.id)
            if values:
                return [text for value in values for text in _texts(value, scopes, value.lineno - 1)]
    return []


def _variable(node: ast.expr) -> str:
    value = node.value if isinstance(node, ast.FormattedValue) else node
    text = ast.unparse(value)
    return "{" + (text if re.fullmatch(r"[\w.]{1,30}", text) else "…") + "}"


@dataclass(frozen=True)
class Remedies:
    """What to do where the source does not say: by message, else by module."""

    messages: dict[str, str]
    modules: dict[str, str]

    def of(self, message: Message) -> str:
        """What to do about a message; empty when nobody says."""
        return message.fix or self.messages.get(message.text, "") or self.modules.get(message.module, "")


def remedies() -> Remedies:
    """docs/remedies.toml."""
    with REMEDIES.open("rb") as stream:
        return Remedies(**tomllib.load(stream))


def table(messages: list[Message], written: Remedies) -> str:
    """The list of docs/operations.md, by module."""
    lines = []
    module = ""
    for message in messages:
        if message.module != module:
            module = message.module
            lines += ["", f"#### `{module}`", "", "| message | what to do |", "|---|---|"]
        lines.append(f"| {cell(message.text)} | {cell(written.of(message))} |")
    return "\n".join(lines).strip() + "\n"


def main(arguments: list[str]) -> int:
    """Print the list, or write it."""
    messages, _ = find(project_root())
    new = table(messages, remedies())
    if arguments == ["--write"]:
        text = OPERATIONS.read_text(encoding="utf-8")
        OPERATIONS.write_text(put_between(text, BEGIN, END, new), encoding="utf-8")
    else:
        sys.stdout.write(new)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
