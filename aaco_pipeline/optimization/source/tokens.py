"""A C++ source as tokens: comments, strings and `#if 0` fool nobody after this.

Offsets are bytes of the source: the text is decoded byte by byte, so that a character and its byte have one index.
What cannot be read without the doubt that two compilers read it differently is refused, with its line.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from aaco_pipeline.optimization.candidates import Refused

Kind = Literal["word", "number", "string", "character", "mark"]

MOST_BYTES: Final = 1 << 20
MOST_DEPTH: Final = 128
MOST_TOKENS: Final = 300_000

_SPLICE: Final = r"\\[ \t\v\f]*\r?\n"
_LINE_COMMENT: Final = rf"//(?:{_SPLICE}|[^\n])*"
_BLOCK_COMMENT: Final = r"/\*[\s\S]*?\*/"
_STRING: Final = r'"(?:\\(?:\r\n|[\s\S])|[^"\\\n])*"'
_CHARACTER: Final = r"'(?:\\[^\n]|[^'\\\n])+'"
_RAW: Final = r'R"(?P<fence>[^()\\\s"]{0,16})\([\s\S]*?\)(?P=fence)"'
_PREFIX: Final = r"(?:u8|[uUL])?"
_MARKS: Final = (
    r"\.\.\.|->\*|<=>|<<=|>>=|<<<|>>>|::|->|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|\.\*|##"
    r"|[{}()\[\];:,.?~!+\-*/%&|^=<>#]"
)
_TOKEN: Final = re.compile(
    rf"(?P<space>[ \t\v\f]+)|(?P<line>\r?\n)|(?P<comment>{_LINE_COMMENT}|{_BLOCK_COMMENT})"
    rf"|(?P<string>{_PREFIX}(?:{_RAW}|{_STRING}))|(?P<character>{_PREFIX}{_CHARACTER})"
    r"|(?P<number>\.?[0-9](?:[eEpP][+-]|'[0-9A-Za-z_]|[0-9A-Za-z_.])*)"
    rf"|(?P<word>[A-Za-z_$][A-Za-z0-9_$]*)|(?P<digraph><%|%>|<:(?!:[^:>])|:>|%:)|(?P<mark>{_MARKS})"
)
_DIRECTIVE: Final = re.compile(rf"#(?:{_SPLICE}|{_BLOCK_COMMENT}|{_LINE_COMMENT}|{_STRING}|[^\n])*")
_TRIGRAPH: Final = re.compile(r"\?\?[=/'()!<>-]")
_SPLICED_END: Final = re.compile(rf"\*(?:{_SPLICE})+/")
_OPENING: Final = {")": "(", "]": "[", "}": "{"}


@dataclass(frozen=True, slots=True)
class Token:
    """A word, number, literal or mark with the bytes `start` to `end` that it is written in."""

    kind: Kind
    text: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Directive:
    """A live line of the preprocessor with its tokens after `#`; lines that a backslash joins are one."""

    name: str
    tokens: tuple[Token, ...]
    start: int
    end: int


@dataclass(frozen=True)
class Text:
    """A source as tokens and directives, both in order, without what stands in `#if 0`."""

    source: bytes
    tokens: tuple[Token, ...]
    directives: tuple[Directive, ...]
    starts: tuple[int, ...]
    lines: tuple[int, ...]

    def line(self, offset: int) -> int:
        """The line, from 1, of a byte."""
        return bisect_right(self.lines, offset)

    def within(self, start: int, end: int) -> tuple[Token, ...]:
        """The tokens that begin in the bytes `start` to `end`."""
        return self.tokens[bisect_right(self.starts, start - 1) : bisect_right(self.starts, end - 1)]


def refuse(source: bytes | str, offset: int, what: str) -> Refused:
    """The refusal of a source at a byte, which says its line."""
    head = source[:offset]
    newlines = head.count(b"\n") if isinstance(head, bytes) else head.count("\n")
    return Refused("parse", f"line {newlines + 1}: {what}")


def read(source: bytes) -> Text:
    """The tokens of a source. Refused, guard `parse`, where it is too large, not text, or not C++ in its brackets."""
    if len(source) > MOST_BYTES:
        raise Refused("parse", f"the source has {len(source)} bytes, more than the {MOST_BYTES} that are read")
    try:
        source.decode("utf-8")
    except UnicodeDecodeError as error:
        raise refuse(source, error.start, "the source is not UTF-8; save it as UTF-8") from error
    text = source.decode("latin-1")
    for pattern, what in (
        (re.compile("\0"), "a zero byte; the source is not text"),
        (
            re.compile(r"\r(?!\n)"),
            "a carriage return alone, which compilers read differently; end lines with a newline",
        ),
        (_TRIGRAPH, "a trigraph; write the character that it stands for"),
    ):
        if found := pattern.search(text):
            raise refuse(text, found.start(), what)
    tokens, directives = _Reader(text).read()
    _check_brackets(text, tokens)
    lines = (0, *(found.end() for found in re.finditer("\n", text)))
    return Text(source, tuple(tokens), tuple(directives), tuple(token.start for token in tokens), lines)


class _Reader:
    """One reading from the first byte to the last; `_groups` are the conditionals that are open."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[Token] = []
        self._directives: list[Directive] = []
        #: Of each open conditional: where it began, whether it is live, whether a branch was surely taken, and whether
        #: the branches around it are live.
        self._groups: list[tuple[int, bool, bool, bool]] = []

    def read(self) -> tuple[list[Token], list[Directive]]:
        position, fresh = 0, True
        while position < len(self._text):
            if fresh and self._text[position] == "#":
                found = _DIRECTIVE.match(self._text, position)
                assert found is not None, "a '#' always matches"
                self._directive(found.group(), position)
                position = found.end()
                continue
            found = _TOKEN.match(self._text, position)
            kind = found.lastgroup if found else None
            # Where a comment that ends would have matched, the mark `/` before `*` begins one that does not.
            unended = kind == "mark" and self._text.startswith("/*", position)
            if found is None or kind is None or kind == "digraph" or unended:
                if self._live():
                    raise refuse(self._text, position, self._what_is_wrong(position))
                position, fresh = position + 1, False
                continue
            # The fence of a raw string is a group of its own inside the string's.
            kind = "string" if kind == "fence" else kind
            self._take(kind, found.group(), position)
            fresh = kind == "line" or (fresh and kind in ("space", "comment"))
            position = found.end()
        if self._groups:
            raise refuse(self._text, self._groups[-1][0], "a conditional of the preprocessor without its #endif")
        return self._tokens, self._directives

    def _live(self) -> bool:
        return all(live for _, live, _, _ in self._groups)

    def _take(self, kind: str, text: str, position: int) -> None:
        if kind == "comment" and text.startswith("/*") and _SPLICED_END.search(text):
            raise refuse(self._text, position, "a comment whose end is split over two lines; write it on one line")
        if kind in ("space", "line", "comment") or not self._live():
            return
        if len(self._tokens) >= MOST_TOKENS:
            raise Refused("parse", f"the source has more than the {MOST_TOKENS} tokens that are read")
        self._tokens.append(Token(_KINDS[kind], text, position, position + len(text)))

    def _what_is_wrong(self, position: int) -> str:
        character = self._text[position]
        if self._text.startswith("/*", position):
            return "a comment that does not end"
        if character in "\"'":
            return "a string or character that does not end on its line"
        if character == "\\":
            return "a backslash outside a directive, which may join two lines; write them as one"
        if ord(character) > 126:
            return "a character outside ASCII that stands in neither a comment nor a string"
        if character in "<%:":
            return "a digraph; write the character that it stands for"
        return f"the character {character!r}, which is no C++"

    def _directive(self, raw: str, position: int) -> None:
        tokens = tuple(_directive_tokens(self._text, raw, position, lenient=not self._live()))
        name = tokens[0].text if tokens else ""
        if name in ("if", "ifdef", "ifndef"):
            known = _constant(tokens) if name == "if" else None
            self._groups.append((position, known is not False, known is True, self._live()))
        elif name in ("elif", "elifdef", "elifndef", "else", "endif"):
            if not self._groups:
                raise refuse(self._text, position, f"#{name} without its #if")
            start, _, taken, around = self._groups.pop()
            if name != "endif":
                known = _constant(tokens) if name == "elif" else None
                self._groups.append((start, not taken and known is not False, taken or known is True, around))
        elif not self._live():
            return
        if self._live() or name in ("endif", "else", "elif"):
            self._directives.append(Directive(name, tokens[1:], position, position + len(raw)))


_KINDS: Final[dict[str, Kind]] = {
    "word": "word",
    "number": "number",
    "string": "string",
    "character": "character",
    "mark": "mark",
}


def _constant(tokens: tuple[Token, ...]) -> bool | None:
    """What `#if 0` and `#if 1` say; None of every other condition: both its branches are read."""
    if len(tokens) == 2 and tokens[1].text in ("0", "1", "false", "true"):
        return tokens[1].text in ("1", "true")
    return None


def _directive_tokens(text: str, raw: str, position: int, *, lenient: bool) -> Iterator[Token]:
    """The tokens after `#`, with the offsets of the source; splices are taken out first, as the language has it."""
    clean: list[str] = []
    offsets: list[int] = []
    cursor = 1
    for splice in (*re.finditer(_SPLICE, raw), None):
        end = splice.start() if splice else len(raw)
        clean.append(raw[cursor:end])
        offsets.extend(range(position + cursor, position + end))
        cursor = splice.end() if splice else end
    line, index = "".join(clean), 0
    offsets.append(position + len(raw))
    while index < len(line):
        found = _TOKEN.match(line, index)
        kind = found.lastgroup if found else None
        if found is None or kind is None or kind == "digraph" or (kind == "mark" and line.startswith("/*", index)):
            if not lenient and line.split(maxsplit=1)[0] not in ("error", "warning", "include", "pragma"):
                raise refuse(text, offsets[index], "a directive that cannot be read")
            index += 1
            continue
        kind = "string" if kind == "fence" else kind
        if kind in _KINDS:
            yield Token(_KINDS[kind], found.group(), offsets[index], offsets[found.end() - 1] + 1)
        index = found.end()


def _check_brackets(text: str, tokens: list[Token]) -> None:
    opened: list[Token] = []
    for token in tokens:
        if token.kind != "mark":
            continue
        if token.text in "([{":
            opened.append(token)
            if len(opened) > MOST_DEPTH:
                raise refuse(text, token.start, f"brackets deeper than the {MOST_DEPTH} that are read")
        elif token.text in _OPENING:
            if not opened or opened[-1].text != _OPENING[token.text]:
                raise refuse(text, token.start, f"'{token.text}' closes nothing; balance the brackets of every branch")
            opened.pop()
    if opened:
        raise refuse(text, opened[-1].start, f"'{opened[-1].text}' is never closed; balance the brackets")
