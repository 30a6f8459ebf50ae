"""Whole files of text without their secrets, piece by piece: traces, tables, reports.

A command line or an environment in a document of JSON, and a column of such in a small table, are treated as what they
are. Databases are no text: see `aaco_pipeline.resources.sqlite_copy`.
"""

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from aaco_pipeline.formats.parsing.redaction.commands import ANCHORED, command_spans, safe_command, safe_words
from aaco_pipeline.formats.parsing.redaction.environment import safe_environment_text
from aaco_pipeline.formats.parsing.redaction.keys import Announced, announced
from aaco_pipeline.formats.parsing.redaction.text import (
    LONGEST,
    LONGEST_BEFORE,
    apart,
    redacted_bytes,
    replaced,
    safe_value,
    spans,
    suspects,
)

#: Columns and keys that hold a command line, and those that hold an environment.
COMMANDS: Final = frozenset({"command", "cmd", "cmdline", "command_line", "commandline", "argv", "remaining"})
ENVIRONMENTS: Final = frozenset({"environment", "environ", "env"})
NAMES: Final = frozenset({"name", "key", "tag", "variable"})
#: A larger table's columns are not looked at one by one.
_LARGEST_TABLE: Final = 4 << 20
_SHORTEST_CELL: Final = 4
_DOCUMENTS: Final = "|".join(sorted(COMMANDS | ENVIRONMENTS))
_JSON_KEY: Final = re.compile(rb'"(%s)"\s{0,16}:\s{0,16}(?=["\[{])' % _DOCUMENTS.encode(), re.IGNORECASE)
#: What begins where secrets may stand that only a command line or the key of a document announces.
_FURTHER: Final = f'|{ANCHORED}|"(?i:{_DOCUMENTS})"'
_DECODER: Final = json.JSONDecoder()


def redacted_pieces(pieces: Iterable[bytes]) -> Iterator[tuple[bytes, int]]:
    """The pieces of a file without their secrets, and how many each held; a secret across two pieces is found, too."""
    held, given = b"", 0
    ahead = iter(pieces)
    piece = next(ahead, b"")
    first = True
    while piece:
        following = next(ahead, b"")
        content, hits = held + piece, 0
        if first and not following and len(content) <= _LARGEST_TABLE:
            content, hits = _without_cells(content)
        first = False
        clean, more, held, given = _redacted(content, given, last=not following)
        yield clean, hits + more
        piece = following


def redacted_whole(text: str) -> str:
    """A text that may be a document, a table's cell or a name, without its secrets; as a file of it would come out."""
    clean, hits, _, _ = _redacted(text.encode("utf-8", "surrogateescape"), 0, last=True)
    return clean.decode("utf-8", "surrogateescape") if hits else text


def _redacted(content: bytes, given: int, *, last: bool) -> tuple[bytes, int, bytes, int]:
    """The content as far as it can be judged, clean, without what was `given` before; and how many secrets it held.

    Then what the next piece follows, and how much of that is given: what a secret's name or line may still need.
    """
    regions = suspects(content, _FURTHER)
    content, documents = _without_documents(content, given, regions, last=last)
    if documents:
        regions = suspects(content, _FURTHER)
    found = [(start, end) for begin, stop in regions for start, end in _spans_in(content, begin, stop)]
    cut = len(content) if last else max(given, len(content) - LONGEST)
    inside = [(max(start, given), end) for start, end in found if start < cut and end > given]
    if inside:
        cut = max(cut, inside[-1][1])
    clean = replaced(content[:cut], inside)[given:]
    before = max(0, cut - LONGEST_BEFORE)
    return clean, len(inside) + documents, content[before:], cut - before


def _spans_in(content: bytes, begin: int, stop: int) -> Iterator[tuple[int, int]]:
    """Where the secrets of a part of the content stand in the whole, in order and apart from each other."""
    part = content[begin:stop]
    return ((begin + start, begin + end) for start, end in apart([*spans(part), *command_spans(part)]))


def _without_documents(
    content: bytes, given: int, regions: Sequence[tuple[int, int]], *, last: bool
) -> tuple[bytes, int]:
    """The content with the command lines and environments in its JSON made safe, and how many were not."""
    pieces: list[bytes] = []
    after = hits = 0
    for key in (key for region in regions for key in _JSON_KEY.finditer(content, *region)):
        if key.start() < after or key.end() < given or (not last and key.end() >= len(content) - LONGEST):
            continue
        text = content[key.end() : key.end() + LONGEST].decode("utf-8", "surrogateescape")
        try:
            value, length = _DECODER.raw_decode(text)
        except (ValueError, RecursionError):
            continue
        safe = _safe_document(key[1].decode().lower(), value)
        if safe != value:
            end = key.end() + len(text[:length].encode("utf-8", "surrogateescape"))
            pieces += [content[after : key.end()], json.dumps(safe).encode()]
            after, hits = end, hits + 1
    return (b"".join([*pieces, content[after:]]), hits) if hits else (content, 0)


def _safe_document(key: str, value: Any) -> Any:
    if key in ENVIRONMENTS:
        return _safe_environment(value)
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        return safe_words(value)
    return safe_command(value) if isinstance(value, str) else value


def _safe_environment(value: Any) -> Any:
    """An environment as an object, as a list of `NAME=value`, or as one of these in a text."""
    if isinstance(value, dict):
        return json.loads(safe_environment_text(json.dumps(value)))
    if isinstance(value, list) and all(isinstance(one, str) and "=" in one for one in value):
        kept = json.loads(safe_environment_text(json.dumps(dict(one.split("=", 1) for one in value))))
        return [f"{name}={kept[name]}" for name in kept]
    return safe_environment_text(value) if isinstance(value, str) and value.lstrip().startswith("{") else value


def _without_cells(content: bytes) -> tuple[bytes, int]:
    """A table with the cells of its columns made safe that hold commands, or whose names announce secrets."""
    head = content.partition(b"\n")[0].decode("utf-8", "replace").lower()
    if "," not in head or not any(hint in head for hint in _HEADINGS):
        return content, 0
    hits = 0
    try:
        rows = csv.reader(io.StringIO(content.decode("utf-8", "surrogateescape"), newline=""))
        headings = [heading.strip() for heading in next(rows)]
        for row in rows:
            for heading, cell, safe in _safe_cells(headings, row):
                if safe != cell and len(cell) >= _SHORTEST_CELL and heading:
                    content = content.replace(_as_bytes(cell), _as_bytes(safe))
                    hits += 1
    except (csv.Error, StopIteration):
        return redacted_bytes(content)
    return content, hits


_HEADINGS: Final = (*COMMANDS, *ENVIRONMENTS, "pass", "secret", "token", "key", "cred", "value")


def _safe_cells(headings: list[str], row: list[str]) -> Iterator[tuple[str, str, str]]:
    named = next((cell for heading, cell in zip(headings, row, strict=False) if heading.lower() in NAMES), "")
    for heading, cell in zip(headings, row, strict=False):
        kind = heading.lower()
        if kind in COMMANDS:
            yield heading, cell, safe_command(cell)
        elif kind in ENVIRONMENTS:
            yield heading, cell, safe_environment_text(cell)
        elif announced(heading) >= Announced.LIKELY:
            yield heading, cell, safe_value(heading, cell)
        elif kind == "value" and named:
            yield heading, cell, safe_value(named, cell)


def _as_bytes(cell: str) -> bytes:
    return cell.replace('"', '""').encode("utf-8", "surrogateescape")
