"""Compare a candidate's text with the baseline's: only permitted differences are accepted.

A kernel's body is judged by lists of permitted constructs. The signature and the rest of the file must be the same, and
no source may include another file; later guards and every harness rely on this.
"""

import re
from collections.abc import Collection, Sequence
from itertools import groupby
from typing import Final

from aaco_pipeline.optimization.candidates import Refused, SignatureChange
from aaco_pipeline.optimization.guards.characters import check_characters
from aaco_pipeline.optimization.guards.memory import check_stores
from aaco_pipeline.optimization.guards.shapes import check_shapes
from aaco_pipeline.optimization.guards.words import Subject, check_words, subject_of
from aaco_pipeline.optimization.source import Reading, reading_of
from aaco_pipeline.optimization.source.tokens import Directive, Text, Token, closing, read

GUARD: Final = "files"
_INCLUDES: Final = ("include", "include_next", "import")
_HEADER: Final = re.compile(r'\s*(?:"(?P<quoted>[^"\n]*)"|<(?P<angled>[^>\n]*)>)')
_ASKS: Final = re.compile(r"__has_(?:include|include_next|embed)\s*\(?(?P<header>[^)]*)")
_PRAGMAS: Final = ("dependency", "include_alias", "pch_preprocess", "comment")
#: Assembler directives that read a file, and those that could spell one in parts.
_ASSEMBLER: Final = re.compile(r"incbin|\.\s*include\b|\.\s*(?:macro|irpc?|altmacro)\b", re.IGNORECASE)
_ESCAPE: Final = re.compile(r"\\(?:x([0-9a-fA-F]+)|([0-7]{1,3})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8}))")
_SPLICE: Final = re.compile(r"\\[ \t\v\f]*\r?\n")
_LITERAL: Final = re.compile(r'^(?:u8|[uUL])?(R?)"(.*)"$', re.DOTALL)


def check_files(source: bytes) -> None:
    """Refuse a source that names a file other than a header, in a directive or to the assembler."""
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
    """Return the content of a string with its escapes resolved; raw strings are unchanged."""
    found = _LITERAL.match(literal)
    if found is None:
        return literal
    return found[2] if found[1] else _ESCAPE.sub(_character, _SPLICE.sub("", found[2]))


def _character(escape: re.Match[str]) -> str:
    hexadecimal, octal = escape[1] or escape[3] or escape[4], escape[2]
    return chr((int(hexadecimal, 16) if hexadecimal else int(octal, 8)) & 0xFF)


def _refused(text: Text, offset: int, what: str) -> Refused:
    return Refused(GUARD, f"line {text.line(offset)}: {what}; write what is needed into the source")


MOST_UNROLLED: Final = 64
MOST_WORK_ITEMS: Final = 1024
_UNROLL: Final = (["unroll"], ["nounroll"])


def check_text(baseline: bytes, candidate: bytes, kernel: str, *, allowed: Collection[SignatureChange] = ()) -> None:
    """Refuse a candidate that changes more of its source than the body of `kernel`, or more than a rewrite needs.

    Args:
        allowed: what the proposer declared to change in the signature: `launch_bounds` (two constants at most),
            `restrict` (`__restrict__` added to pointers).

    Raises:
        Refused: guards `parse` and `kernel` as in `source.parse`, `characters`, `files`, `outside_kernel`, `signature`,
            `pragmas`, `macros`, `calls`.
    """
    check_characters(baseline, candidate)
    before, after = reading_of(baseline), reading_of(candidate)
    check_files(baseline)
    _check_outside(before, after, kernel)
    old, new = subject_of(before, kernel), subject_of(after, kernel)
    _check_signature(old, new, allowed)
    _check_directives(old, new)
    check_files(candidate)
    if [token.text for token in old.body] == [token.text for token in new.body]:
        return
    check_words(old, new, may_restrict="restrict" in allowed)
    if damaged := old.kernel.damaged or new.kernel.damaged:
        what = "no rewrite is judged around a line that the grammar does not understand"
        raise Refused("parse", f"line {damaged[0]}: {what}")
    check_shapes(old, new)
    check_stores(old, new)


def _check_outside(before: Reading, after: Reading, kernel: str) -> None:
    old, new = before.unit.kernel(kernel).span, after.unit.kernel(kernel).span
    was, now = before.text.source, after.text.source
    if was[: old.start] != now[: new.start] or was[old.end :] != now[new.end :]:
        raise Refused("outside_kernel", f"bytes outside the kernel {kernel} differ from the baseline's")
    if len(before.unit.kernels) != len(after.unit.kernels):
        raise Refused("outside_kernel", "the number of kernels differs from the baseline's")


def _check_signature(old: Subject, new: Subject, allowed: Collection[SignatureChange]) -> None:
    was, now = list(old.head), list(new.head)
    if "launch_bounds" in allowed:
        was, _ = _without_launch_bounds(was)
        now, bounds = _without_launch_bounds(now)
        _check_launch_bounds(bounds)
    if "restrict" in allowed:
        _check_restrict(was, now)
        was, now = ([token for token in tokens if token.text != "__restrict__"] for tokens in (was, now))
    if [token.text for token in was] != [token.text for token in now]:
        raise Refused("signature", _first_difference(was, now))
    if any(b"\\" in new.source[token.start : token.end] for token in now if token.kind == "word"):
        raise Refused("signature", "a name is spelled with a backslash")


def _first_difference(was: Sequence[Token], now: Sequence[Token]) -> str:
    for old, new in zip(was, now, strict=False):
        if old.text != new.text:
            return f"the signature says {new.text!r} where the baseline says {old.text!r}"
    return "the signature is longer or shorter than the baseline's"


def _without_launch_bounds(tokens: Sequence[Token]) -> tuple[list[Token], list[Token]]:
    """Split a head into its tokens without launch bounds, and the tokens inside the brackets of the launch bounds."""
    for index, token in enumerate(tokens):
        if token.text == "__launch_bounds__" and index + 1 < len(tokens) and tokens[index + 1].text == "(":
            end = closing(tokens, index + 1)
            return [*tokens[:index], *tokens[end + 1 :]], list(tokens[index + 2 : end])
    return list(tokens), []


def _check_launch_bounds(bounds: Sequence[Token]) -> None:
    """Allow nothing, or one or two integers: a name or an expression might have any value."""
    words = [token.text for token in bounds]
    if words and not re.fullmatch(r"[1-9][0-9]{0,3}(,[1-9][0-9]{0,2})?", "".join(words)):
        raise Refused("signature", f"__launch_bounds__({' '.join(words)}) is not one or two whole numbers")
    if words and int(words[0]) > MOST_WORK_ITEMS:
        raise Refused("signature", f"__launch_bounds__ of {words[0]} work-items is more than {MOST_WORK_ITEMS}")


def _check_restrict(was: Sequence[Token], now: Sequence[Token]) -> None:
    old, new = (sum(token.text == "__restrict__" for token in tokens) for tokens in (was, now))
    if new < old:
        raise Refused("signature", "a __restrict__ of the baseline's is missing")
    for index, token in enumerate(now):
        if token.text == "__restrict__" and now[index - 1].text not in ("*", "const", "volatile"):
            raise Refused("signature", "__restrict__ stands where no pointer is declared")


def _check_directives(old: Subject, new: Subject) -> None:
    """Allow only the baseline's own directives and unrolling pragmas, and no lines joined by a backslash."""
    was, now = ([_plain(each) for each in one.directives if not _unrolls(each)] for one in (old, new))
    if was != now:
        raise Refused("pragmas", "the kernel has a directive that is neither the baseline's nor #pragma unroll")
    known = [_plain(each) for each in old.directives]
    for each in new.directives:
        is_new = _unrolls(each) and _plain(each) not in known
        if is_new and (each.start < new.kernel.body.start or not _is_plain_unroll(each)):
            raise Refused("pragmas", f"#pragma {' '.join(_plain(each)[1:])} is more than an unroll by a small number")
    before, after = (
        len(_SPLICE.findall(each.source[slice(*each.kernel.span)].decode("latin-1"))) for each in (old, new)
    )
    if after > before:
        raise Refused("macros", "a backslash joins two lines in the kernel; write them as one")


def _plain(directive: Directive) -> list[str]:
    return [directive.name, *(token.text for token in directive.tokens)]


def _unrolls(directive: Directive) -> bool:
    return directive.name == "pragma" and [token.text for token in directive.tokens[:1]] in _UNROLL


def _is_plain_unroll(directive: Directive) -> bool:
    words = "".join(token.text for token in directive.tokens[1:])
    number = re.fullmatch(r"\(?([0-9]{1,2})\)?", words)
    return not words or (number is not None and 1 <= int(number.group(1)) <= MOST_UNROLLED)
