"""Enough of a Dockerfile parser to ask questions about one: stages, arguments, copies, mounts."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

_VARIABLE = re.compile(r"\$\{([A-Za-z_]\w*)(?::?[-+?][^}]*)?\}|\$([A-Za-z_]\w*)")


@dataclass(frozen=True)
class Instruction:
    """One instruction: its word in capitals, and everything after it, on one line."""

    word: str
    rest: str

    def variables(self) -> set[str]:
        """The names that it expands, those inside ``${A:+...}`` included."""
        return {a or b for a, b in _VARIABLE.findall(self.rest)} | {
            a or b for inner in re.findall(r"\$\{\w+:?[-+?]([^}]*\}?)", self.rest) for a, b in _VARIABLE.findall(inner)
        }

    def mounts(self) -> list[dict[str, str]]:
        """The ``--mount`` options of a RUN, each as a table."""
        found = re.findall(r"--mount=(\S+)", self.rest) if self.word == "RUN" else []
        return [dict(item.partition("=")[::2] for item in text.split(",")) for text in found]

    def copied(self) -> list[str]:
        """The sources of a COPY or ADD from the context, as they are written; none for ``--from``."""
        if self.word not in ("COPY", "ADD") or "--from=" in self.rest:
            return []
        words = [word for word in self.rest.split() if not word.startswith("--")]
        return words[:-1]

    def from_stages(self) -> list[str]:
        """The stages or images that a COPY or a mount takes files from."""
        return re.findall(r"(?:--from=|[,=]from=)([^\s,]+)", self.rest)


@dataclass(frozen=True)
class Stage:
    """One stage: what it is based on, its name (empty: none), and its instructions after FROM."""

    base: str
    name: str
    instructions: list[Instruction] = field(default_factory=list)

    def arguments(self) -> list[str]:
        """The names of its ARGs."""
        return [i.rest.split("=")[0] for i in self.instructions if i.word == "ARG"]


@dataclass(frozen=True)
class Dockerfile:
    """A whole file: the ARGs before the first FROM with their defaults, and the stages."""

    text: str
    defaults: dict[str, str]
    stages: list[Stage]


def parse(path: Path) -> Dockerfile:
    """Read a Dockerfile; comments are dropped, continued lines joined."""
    text = path.read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n", " ", "\n".join(lines))
    defaults: dict[str, str] = {}
    stages: list[Stage] = []
    for line in filter(str.strip, joined.splitlines()):
        word, rest = (*line.split(None, 1), "")[:2]
        instruction = Instruction(word.upper(), " ".join(rest.split()))
        if instruction.word == "FROM":
            base, _, name = instruction.rest.partition(" AS ")
            stages.append(Stage(base, name))
        elif stages:
            stages[-1].instructions.append(instruction)
        elif instruction.word == "ARG":
            name, _, default = instruction.rest.partition("=")
            defaults[name] = default
    return Dockerfile(text, defaults, stages)
