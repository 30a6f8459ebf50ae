"""The journal of a search: append-only JSON lines, one per decision, each sufficient to repeat the decision.

Kinds of lines, in order: `begin` (the question, the source itself, the target, host facts), `baseline` (its build, its
own check, its static figures), `aa` (identical code timed against itself), `not_applicable` (why a proposer had no
proposal), `attempt` (a candidate with its text, the guards' observations, raw pairs, the decision), `whole` (several
accepted changes timed together), `end` (why the search ended, and the resulting source's hash). `line` counts them from
0, and `at_ns` is the time since the search began. A killed search leaves no `end`, and at most one incomplete line,
which is reported and skipped.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

#: Incremented when the meaning of a line changes; newer journals are refused.
VERSION: Final = 1


class JournalError(ValueError):
    """A file is not a journal, or this version cannot read it."""


@dataclass(frozen=True)
class Journal:
    """The lines of a journal. `notes` describe skipped lines; if `is_ended` is False, the search was interrupted."""

    lines: tuple[Mapping[str, Any], ...]
    notes: tuple[str, ...] = ()

    @property
    def begin(self) -> Mapping[str, Any]:
        return self.lines[0]

    @property
    def is_ended(self) -> bool:
        return str(self.lines[-1]["kind"]) == "end"

    def of_kind(self, kind: str) -> list[Mapping[str, Any]]:
        return [line for line in self.lines if line["kind"] == kind]


class JournalWriter:
    """Appends lines to a new file, each flushed to disk before the search continues. OSError if that fails."""

    def __init__(self, path: Path) -> None:
        self._descriptor: Final = os.open(
            path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644
        )
        self._lines = 0

    def write(self, record: Mapping[str, Any]) -> None:
        """Append one line; it is complete and synced when this returns."""
        line = json.dumps({"line": self._lines, **record}, allow_nan=False).encode("ascii") + b"\n"
        while line:
            line = line[os.write(self._descriptor, line) :]
        os.fsync(self._descriptor)
        self._lines += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._descriptor)


def read_journal(content: bytes) -> Journal:
    """Read a journal's lines. An incomplete last line is skipped and reported; JournalError for any other damage."""
    *whole, rest = content.split(b"\n")
    notes = (f"the last line is half, {len(rest)} bytes: the search was killed while it was written",) if rest else ()
    lines = []
    for number, line in enumerate(whole):
        try:
            record = json.loads(line)
        except ValueError as error:
            raise JournalError(f"line {number + 1} is no JSON: {error}") from error
        if not isinstance(record, dict) or record.get("line") != number or not isinstance(record.get("kind"), str):
            raise JournalError(f"line {number + 1} is not line {number + 1} of a journal")
        lines.append(record)
    if not lines or lines[0]["kind"] != "begin":
        raise JournalError("it does not begin as a journal of a search does")
    if lines[0].get("version") != VERSION:
        raise JournalError(f"it is of version {lines[0].get('version')}, and this one reads {VERSION}")
    return Journal(tuple(lines), notes)


def text_of(source: bytes) -> str:
    """Return a source as text for JSON, from which `bytes_of` restores exactly the same bytes."""
    return source.decode("utf-8", "surrogateescape")


def bytes_of(text: str) -> bytes:
    """Return the bytes of a source in the journal."""
    return text.encode("utf-8", "surrogateescape")
