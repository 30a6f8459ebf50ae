"""Finds the secrets in any text: by their shape, and by the name that stands before them.

This is the one search that command lines, environments, metadata, names and whole files pass; what more is done to a
command line is `commands`'s, to an environment `environment`'s, to a file `streams`'s.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Final

from aaco_pipeline.formats.parsing.redaction.keys import (
    HINTS,
    Announced,
    announced,
    is_login,
    is_random,
    is_secret,
    looks_chosen,
)
from aaco_pipeline.formats.parsing.redaction.shapes import ANY_CASE, FREQUENT, SHAPES, begins, pattern

#: What stands where a secret stood.
REDACTED: Final = "redacted"
#: No secret is longer, with its name: what lies across two pieces of a file is found if so much of it is in one.
LONGEST: Final = 32 << 10
#: So far before the beginning of a secret something may stand that decides about it: the line of a command.
LONGEST_BEFORE: Final = 4 << 10

#: So much is looked at at once for the beginning of any secret, whose beginning is no longer than that.
_WINDOW: Final = 16 << 10
_LONGEST_BEGINNING: Final = 64
_REDACTED_BYTES: Final = REDACTED.encode()
_NAME_CHARACTERS: Final = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-"
_LONGEST_NAME: Final = 128
#: Quotes with their escapes: a table in text doubles them.
_QUOTES: Final = rb"""\\{0,8}["']{1,2}"""
#: From one word of a list to the next, where a command line was cut at its blanks.
_NEXT_WORD: Final = rb"""\\{0,8}["']\s{0,32},\s{0,32}\\{0,8}["']"""
#: Between a name and its value, quotes and their escapes included: `=`, `:`, and JSON that lists name and value.
_ASSIGNED: Final = re.compile(
    rb"(?:%(quotes)s|\\{0,8})[\])]?[ \t]{0,8}(?::%(next)s(?!-)|(?:=>|:=|==?|:(?![:=/]))[ \t]{0,8})"
    rb"|%(quotes)s\s{0,32},(?:\s{0,32}|%(next)s)%(quotes)s(?i:value)%(quotes)s\s{0,8}:(?:%(next)s|\s{0,8})"
    % {b"quotes": _QUOTES, b"next": _NEXT_WORD}
)
_AFTER_OPTION: Final = re.compile(rb"""\\{0,8}["']\s{0,32},\s{0,32}(?=\\{0,8}["'])|\\{0,8}["']?\s{1,32}(?:- )?""")
_IN_CELLS: Final = re.compile(rb"""\\{0,8}["'],(?=\\{0,8}["'])|\s{1,4}(?=')""")
_OPENED: Final = re.compile(rb"""(\\{0,8})(""(?!")|["'])""")
_DOUBLED: Final = b'""'
_QUOTED: Final = {
    b'"': re.compile(rb'(?:[^"\\]|\\.){0,16384}', re.DOTALL),
    b"'": re.compile(rb"(?:[^'\\]|\\.){0,16384}", re.DOTALL),
}
_BARE: Final = re.compile(rb"""[^\s"'\\<>{}\[\]()`|,;&]{1,4096}""")
_LINE: Final = re.compile(rb"""[^"'\r\n\\]{1,4096}""")
_SCHEME: Final = re.compile(
    rb"(?i)(?:basic|bearer|token|digest|negotiate|apikey|hmac|aws4-hmac-sha256)(?:[ \t]{1,4}|%s)" % _NEXT_WORD
)
_NAMED_IN_A_FILE_NAME: Final = re.compile(
    r"(?i)(?:passw(?:or)?d|passphrase|secret|api[-_]?key)[-_=.](?P<s>[^-_=./]{6,})"
)
_WORDS: Final = re.compile(r"[^\s\"'<>{}\[\](),;:=|]{30,}")


def redacted_bytes(content: bytes) -> tuple[bytes, int]:
    """The content with every secret in it replaced, and how many there were."""
    found = spans(content)
    return replaced(content, found), len(found)


def redacted_text(text: str) -> tuple[str, int]:
    """Names and words of a program with every secret in them replaced, and how many there were."""
    content, hits = redacted_bytes(text.encode("utf-8", "surrogateescape"))
    return (content.decode("utf-8", "surrogateescape"), hits) if hits else (text, 0)


def redacted_prose(text: str) -> tuple[str, int]:
    """Free text, which also loses what looks like a key without any name, and how many secrets there were."""
    clean, hits = redacted_text(text)
    found = [match.span() for match in _WORDS.finditer(clean) if is_random(match[0]) and not _is_code(clean, match)]
    for start, end in reversed(found):
        clean = clean[:start] + REDACTED + clean[end:]
    return clean, hits + len(found)


def _is_code(text: str, word: re.Match[str]) -> bool:
    """Whether the word is a name in C++: `space::name`, `name<…>`, `name(…)`."""
    return text[max(0, word.start() - 2) : word.start()] == "::" or text[word.end() : word.end() + 1] in ("<", "(")


def safe_text(text: str) -> str:
    """Free text without its secrets."""
    return redacted_prose(text)[0]


def safe_value(name: str, value: str) -> str:
    """A value without its secrets, or `REDACTED` when its name announces one."""
    return REDACTED if is_secret(value, announced(name)) else safe_text(value)


def safe_name(name: str) -> str:
    """The name of a file or folder without its secrets; the same where it holds none."""
    clean, _ = redacted_prose(name)
    return _NAMED_IN_A_FILE_NAME.sub(_without_its_end, clean)


def _without_its_end(found: re.Match[str]) -> str:
    if not looks_chosen(found["s"]):
        return found[0]
    return found[0][: found.start("s") - found.start()] + REDACTED


def spans(content: bytes) -> list[tuple[int, int]]:
    """Where the secrets stand, in order and apart from each other."""
    return apart([*_shaped(content, FREQUENT), *_shaped(content, SHAPES), *_announced_in(content)])


def suspects(content: bytes, further: str = "") -> list[tuple[int, int]]:
    """The parts of a content outside of which no secret stands, each with all that decides about those in it.

    One search for the beginnings of all secrets, and of what the pattern `further` finds, in place of one for each.
    """
    if len(content) <= _WINDOW:
        return [(0, len(content))]
    import polars as pl  # looks for all beginnings at once; a small file does not need it

    starts = range(0, len(content), _WINDOW)
    windows = pl.Series([content[at : at + _WINDOW + _LONGEST_BEGINNING].decode("latin-1") for at in starts])
    held = windows.str.contains(_beginnings() + further)
    found = [at for at, suspect in zip(starts, held, strict=True) if suspect]
    least, most = LONGEST_BEFORE, _WINDOW + _LONGEST_BEGINNING + LONGEST
    return apart((max(0, at - least), min(len(content), at + most)) for at in found)


@cache
def _beginnings() -> str:
    """A pattern that finds the beginning of every shape, and what is part of every name that announces a secret."""
    shaped = {anchor for anchor, _ in (*SHAPES, *FREQUENT)}
    exact, any_case = shaped - ANY_CASE, {*HINTS, *(shaped & ANY_CASE)}
    of = ["|".join(re.escape(text.decode()) for text in sorted(texts)) for texts in (exact, any_case)]
    return f"{of[0]}|(?i:{of[1]})"


def apart(found: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Places in order, those that overlap as one."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(found):
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def replaced(content: bytes, found: Sequence[tuple[int, int]]) -> bytes:
    """The content with these places replaced."""
    pieces: list[bytes] = []
    after = 0
    for start, end in found:
        pieces += [content[after:start], b"0" if _is_bare_number(content, start, end) else _REDACTED_BYTES]
        after = end
    return b"".join([*pieces, content[after:]])


def _is_bare_number(content: bytes, start: int, end: int) -> bool:
    """Whether the place is a number of JSON, which stays one so that the document stays whole."""
    named = content[max(0, start - 3) : start].rstrip().endswith(b'":')
    return named and content[start:end].isdigit() and content[end : end + 1] in (b",", b"}", b"\n", b" ")


def _shaped(content: bytes, shapes: Sequence[tuple[bytes, bytes]]) -> Iterator[tuple[int, int]]:
    """Where something stands that has one of these shapes."""
    lower = content.lower()
    for anchor, shape in shapes:
        where = lower if anchor in ANY_CASE else content
        at = where.find(anchor)
        while at >= 0:
            match = pattern(shape).match(content, at) if begins(content, at, anchor) else None
            if match is not None and (anchor != b"basic " or is_login(match["s"].decode())):
                yield match.span("s" if "s" in match.re.groupindex else 0)
            at = where.find(anchor, at + len(anchor) if match is None else max(match.end(), at + len(anchor)))


def _announced_in(content: bytes) -> Iterator[tuple[int, int]]:
    """Where a secret stands behind a name that announces it."""
    lower = content.lower()
    for hint in HINTS:
        at = lower.find(hint)
        while at >= 0:
            before = content[max(0, at - _LONGEST_NAME) : at]
            start = at - (len(before) - len(before.rstrip(_NAME_CHARACTERS)))
            ahead = content[at : at + _LONGEST_NAME]
            end = at + len(ahead) - len(ahead.lstrip(_NAME_CHARACTERS))
            found = _value(content, start, end)
            if found is not None:
                yield found
            at = lower.find(hint, end)


def _value(content: bytes, start: int, end: int) -> tuple[int, int] | None:
    """Where the secret stands that the name from `start` to `end` announces; None when it announces none."""
    name = content[start:end].decode("ascii", "replace")
    surety = announced(name)
    if surety is Announced.NOTHING:
        return None
    link = _ASSIGNED.match(content, end)
    if link is not None and content[max(0, start - 2) : start] == b"::":
        return None
    if link is None and name.startswith("-"):
        link = _AFTER_OPTION.match(content, end)
    elif link is None and surety is Announced.SURELY:
        link = _IN_CELLS.match(content, end)
    if link is None:
        return None
    at = link.end()
    if name.lower().endswith("authorization"):
        opened = _OPENED.match(content, at)
        at = opened.end() if opened else at
        scheme = _SCHEME.match(content, at)
        value = (_LINE if scheme or opened else _BARE).match(content, scheme.end() if scheme else at)
    elif name.lower().endswith("cookie") and not name.startswith("-"):
        opened = _OPENED.match(content, at)
        value = _LINE.match(content, opened.end() if opened else at)
    else:
        return _plain_value(content, at, name, surety)
    return value.span() if value and is_secret(value[0].decode("utf-8", "replace").strip(), Announced.LIKELY) else None


def _plain_value(content: bytes, at: int, name: str, surety: Announced) -> tuple[int, int] | None:
    opened = _OPENED.match(content, at)
    if opened is None:
        bare = _BARE.match(content, at)
        if bare is None or (name.startswith("-") and bare[0].startswith(b"--")):
            return None
        first, last = bare.span()
        prose = content[at - 1 : at] in (b" ", b"\t") and not name.startswith("-") and name != name.upper()
        surety = Announced.PERHAPS if prose and surety is Announced.LIKELY else surety
    elif opened[2] == _DOUBLED:
        first = opened.end()
        last = content.find(opened[0], first, first + LONGEST // 2)
        if last < 0 or any(mark in content[first:last] for mark in (b'"', b"\n")):
            return None  # not a cell's doubled quotes: a text of no letters
    else:
        first = opened.end()
        last = content.find(opened[0], first, first + LONGEST // 2) if opened[1] else -1
        if last < 0:
            quoted = _QUOTED[opened[2]].match(content, first)
            last = quoted.end() if quoted else first
    return (first, last) if is_secret(content[first:last].decode("utf-8", "replace"), surety) else None
