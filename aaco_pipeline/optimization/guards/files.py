"""Text by which a source would put another file into what is compiled: refused before any compiler sees it.

Headers by their names are fine. What keeps files from a compiler is its confinement (`resources.toolchains.limited`);
this says why at once. Macros can hide what it looks for.
"""

import re
from itertools import groupby
from typing import Final

from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.optimization.source.tokens import Directive, Text, read

GUARD: Final = "files"
_INCLUDES: Final = ("include", "include_next", "import")
_HEADER: Final = re.compile(r'\s*(?:"(?P<quoted>[^"\n]*)"|<(?P<angled>[^>\n]*)>)')
_ASKS: Final = re.compile(r"__has_(?:include|include_next|embed)\s*\(?(?P<header>[^)]*)")
_PRAGMAS: Final = ("dependency", "include_alias", "pch_preprocess", "comment")
#: Of an assembler: what reads a file, and what could spell such a directive in parts.
_ASSEMBLER: Final = re.compile(r"incbin|\.\s*include\b|\.\s*(?:macro|irpc?|altmacro)\b", re.IGNORECASE)
_ESCAPE: Final = re.compile(r"\\(?:x([0-9a-fA-F]+)|([0-7]{1,3})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8}))")
_SPLICE: Final = re.compile(r"\\[ \t\v\f]*\r?\n")
_LITERAL: Final = re.compile(r'^(?:u8|[uUL])?(R?)"(.*)"$', re.DOTALL)


def check_files(source: bytes) -> None:
    """Refused where a source names a file that is no header: in a directive, or to the assembler."""
    text = read(source)
    for directive in text.directives:
        _check_directive(text, directive)
    words = [*text.tokens, *(token for directive in text.directives for token in directive.tokens)]
    for token in words:
        if token.kind == "word" and "incbin" in token.text.lower():
            raise _refused(text, token.start, f"{token.text}, by which an assembler takes a file in")
    for is_string, run in groupby(words, key=lambda token: token.kind == "string"):
        parts = list(run)
        if is_string and (found := _ASSEMBLER.search("".join(_said(part.text) for part in parts))):
            raise _refused(text, parts[0].start, f"{found[0]!r} in a string, by which an assembler takes a file in")


def _check_directive(text: Text, directive: Directive) -> None:
    raw = _SPLICE.sub("", text.source[directive.start : directive.end].decode("utf-8", errors="replace"))
    rest = raw.partition(directive.name)[2]
    if directive.name in _INCLUDES:
        _check_header(text, directive, rest)
    elif directive.name == "embed":
        raise _refused(text, directive.start, "#embed, which takes a file in")
    elif directive.name == "line" or directive.name.isdecimal():
        if re.search(r'"\s*/|\.\.', rest):
            raise _refused(text, directive.start, "a line that names a file elsewhere; compilers show its text")
    elif directive.name == "pragma" and any(token.text in _PRAGMAS for token in directive.tokens):
        raise _refused(text, directive.start, f"#pragma{rest.rstrip()}, which names a file")
    for asked in _ASKS.finditer(rest):
        _check_header(text, directive, asked["header"])


def _check_header(text: Text, directive: Directive, named: str) -> None:
    found = _HEADER.match(named)
    header = "" if found is None else found["quoted"] or found["angled"] or ""
    if not header or header.startswith(("/", "\\", "~")) or ".." in re.split(r"[/\\]", header):
        what = named.strip()[:120] or "nothing"
        raise _refused(text, directive.start, f"#{directive.name} of {what}: only a header by its name is taken in")


def _said(literal: str) -> str:
    """What a string says, its escapes read; of a raw one what is written."""
    found = _LITERAL.match(literal)
    if found is None:
        return literal
    return found[2] if found[1] else _ESCAPE.sub(_character, _SPLICE.sub("", found[2]))


def _character(escape: re.Match[str]) -> str:
    hexadecimal, octal = escape[1] or escape[3] or escape[4], escape[2]
    return chr((int(hexadecimal, 16) if hexadecimal else int(octal, 8)) & 0xFF)


def _refused(text: Text, offset: int, what: str) -> Refused:
    return Refused(GUARD, f"line {text.line(offset)}: {what}; write what is needed into the source")
