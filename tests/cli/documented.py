"""Find the commands, SQL and Python in Markdown that documents tell a reader to type.

A fence of a shell holds commands, and any other fence a command where a line begins like one. Between backticks in a
sentence stands a command with what it is given (`aaco ls --json`), or the name of one alone (`aaco ls`).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SHELLS: Final = ("sh", "bash", "shell", "console")
_FENCE: Final = re.compile(r"^[ \t]*```[ \t]*(\w*)[^\n]*\n(.*?)^[ \t]*```[ \t]*$", re.MULTILINE | re.DOTALL)
_SPAN: Final = re.compile(r"(?<!`)`([^`]+)`(?!`)")
_COMMAND: Final = re.compile(r"(\.venv/bin/)?(aaco|make|pip|python -m aaco_pipeline\S*|python benchmarks/\S+)(\s|$)")
_COMMENT: Final = re.compile(r"\s+#\s.*")
_OPTIONAL: Final = re.compile(r"\[(--[^\]]*)\]")


@dataclass(frozen=True)
class Block:
    """One block of a document: the lines of a fence, or a span between backticks."""

    document: str
    line: int
    kind: str
    lines: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.document}:{self.line}"


def blocks(root: Path, document: str) -> list[Block]:
    """Blocks of kind `commands`, `name`, `sql` and `python`, in order; each name of a command once."""
    return list(blocks_of((root / document).read_text("utf-8"), document))


def blocks_of(text: str, document: str = "") -> Iterator[Block]:
    """The same of a document's text."""
    names = set()
    for match, kind, lines in sorted(_found(text), key=lambda one: one[0].start()):
        block = Block(document, text.count("\n", 0, match.start()) + 1, kind, tuple(lines))
        if kind != "name" or block.lines not in names:
            yield block
        if kind == "name":
            names.add(block.lines)


def _found(text: str) -> Iterator[tuple[re.Match[str], str, list[str]]]:
    for fence in _FENCE.finditer(text):
        language, body = fence[1], fence[2].replace("\\\n", " ")
        if language in ("sql", "python"):
            yield fence, language, [body]
            continue
        typed = [_COMMENT.sub("", line).strip() for line in body.splitlines() if not line.lstrip().startswith("#")]
        if language == "console":
            typed = [line.removeprefix("$ ") for line in typed if line.startswith("$ ")]
        elif language not in SHELLS:
            typed = [line.removeprefix("$ ") for line in typed if _COMMAND.match(line.removeprefix("$ "))]
        if lines := [form for line in typed if line for form in _forms(line)]:
            yield fence, "commands", lines
    # Same length, so that places stay what they are.
    prose = _FENCE.sub(lambda fence: re.sub(r"[^\n]", " ", fence[0]), text)
    for span in _SPAN.finditer(prose):
        said = " ".join(span[1].split())
        if re.match(r"SELECT\s", said):
            yield span, "sql", [said]
        elif _COMMAND.match(said):
            yield span, "name" if re.fullmatch(r"aaco [a-z]+", said) else "commands", list(_forms(said))


def _forms(command: str) -> Iterator[str]:
    """The command without what it has in brackets, and with all of it."""
    yield " ".join(_OPTIONAL.sub("", command).split())
    if _OPTIONAL.search(command):
        yield _OPTIONAL.sub(r"\1", command)
