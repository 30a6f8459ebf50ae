"""A C++ source as tokens and macros, with comments, strings and `#if 0` resolved.

Offsets are bytes of the source: it is decoded byte by byte, so a character and its byte have the same index. Constructs
that two compilers might read differently are refused, with their line.
"""

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Literal, TypeVar, get_args

from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.optimization.source.vocabulary import DYNAMIC_LDS, KEYWORDS, SPECIFIERS, WITH_ARGUMENT

Kind = Literal["word", "number", "string", "character", "mark"]
_KINDS: Final[dict[str, Kind]] = {kind: kind for kind in get_args(Kind)}
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

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
_SPLICED_END: Final = re.compile(rf"\*(?:{_SPLICE})+/")
_OPENING: Final = {")": "(", "]": "[", "}": "{"}
_DEPTH: Final = {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}
_NOT_READ: Final = (
    ("\0", "a zero byte; the source is not text"),
    (r"\r(?!\n)", "a carriage return alone, which compilers read differently; end lines with a newline"),
    (r"\?\?[=/'()!<>-]", "a trigraph; write the character that it stands for"),
)


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
    """A source as tokens and directives, both in order, without code in `#if 0`."""

    source: bytes
    tokens: tuple[Token, ...]
    directives: tuple[Directive, ...]
    starts: tuple[int, ...]
    lines: tuple[int, ...]

    def line(self, offset: int) -> int:
        """Return the line, from 1, of a byte."""
        return bisect_right(self.lines, offset)

    def within(self, start: int, end: int) -> tuple[Token, ...]:
        """Return the tokens that begin in the bytes `start` to `end`."""
        return self.tokens[bisect_right(self.starts, start - 1) : bisect_right(self.starts, end - 1)]


def refuse(source: bytes | str, offset: int, what: str) -> Refused:
    """Build the refusal of a source at a byte, which names its line."""
    head = source[:offset]
    newlines = head.count(b"\n") if isinstance(head, bytes) else head.count("\n")
    return Refused("parse", f"line {newlines + 1}: {what}")


def read(source: bytes) -> Text:
    """Read the tokens of a source. Refused, guard `parse`, if it is too large, not text, or unbalanced."""
    if len(source) > MOST_BYTES:
        raise Refused("parse", f"the source has {len(source)} bytes, more than the {MOST_BYTES} that are read")
    try:
        source.decode("utf-8")
    except UnicodeDecodeError as error:
        raise refuse(source, error.start, "the source is not UTF-8; save it as UTF-8") from error
    text = source.decode("latin-1")
    for pattern, what in _NOT_READ:
        if found := re.search(pattern, text):
            raise refuse(text, found.start(), what)
    tokens, directives = _Reader(text).read()
    _check_brackets(text, tokens)
    lines = (0, *(found.end() for found in re.finditer("\n", text)))
    return Text(source, tuple(tokens), tuple(directives), tuple(token.start for token in tokens), lines)


def words_in(tokens: Iterable[Token]) -> set[str]:
    """Return the words among tokens."""
    return {token.text for token in tokens if token.kind == "word"}


class Memo(dict[_Key, _Value], Generic[_Key, _Value]):
    """Values that are computed on first use."""

    def __init__(self, compute: Callable[[_Key], _Value]) -> None:
        self._compute = compute

    def __missing__(self, key: _Key) -> _Value:
        value = self[key] = self._compute(key)
        return value


def _next(text: str, position: int) -> tuple[str, str] | None:
    """Match a token, space or comment: its kind and its text; None if nothing readable begins here."""
    found = _TOKEN.match(text, position)
    kind = found.lastgroup if found else None
    # Where a comment that ends would have matched, the mark `/` before `*` begins one that does not.
    if found is None or kind is None or kind == "digraph" or (kind == "mark" and text.startswith("/*", position)):
        return None
    # The fence of a raw string is a group of its own inside the string's.
    return "string" if kind == "fence" else kind, found.group()


class _Reader:
    """Reads a text from the first byte to the last; `_groups` are the open conditionals."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[Token] = []
        self._directives: list[Directive] = []
        #: For each open conditional: where it began, whether it is live, whether a branch was surely taken, and
        #: whether the branches around it are live.
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
            if (token := _next(self._text, position)) is None:
                if self._live():
                    raise refuse(self._text, position, self._what_is_wrong(position))
                position, fresh = position + 1, False
                continue
            self._take(*token, position)
            fresh = token[0] == "line" or (fresh and token[0] in ("space", "comment"))
            position += len(token[1])
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


def _constant(tokens: tuple[Token, ...]) -> bool | None:
    """Evaluate `#if 0` and `#if 1`; None for every other condition: both its branches are read."""
    if len(tokens) == 2 and tokens[1].text in ("0", "1", "false", "true"):
        return tokens[1].text in ("1", "true")
    return None


def _directive_tokens(text: str, raw: str, position: int, *, lenient: bool) -> Iterator[Token]:
    """Yield the tokens after `#`, with their offsets in the source; splices are taken out first, as in the language."""
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
        if (token := _next(line, index)) is None:
            if not lenient and line.split(maxsplit=1)[0] not in ("error", "warning", "include", "pragma"):
                raise refuse(text, offsets[index], "a directive that cannot be read")
            index += 1
            continue
        kind, written = token
        if kind in _KINDS:
            yield Token(_KINDS[kind], written, offsets[index], offsets[index + len(written) - 1] + 1)
        index += len(written)


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


@dataclass(frozen=True)
class Macro:
    """One `#define`. `parameters` is None for an object-like macro."""

    name: str
    parameters: tuple[str, ...] | None
    body: tuple[Token, ...]


MOST_MACROS: Final = 2048


class Macros(dict[str, list[Macro]]):
    """The definitions of each macro by name; each expansion is computed once."""

    def __init__(self, found: Mapping[str, list[Macro]]) -> None:
        super().__init__(found)
        self.words: Memo[str, frozenset[str]] = Memo(lambda name: _expanded_words(name, self))
        self.specifiers: Memo[str, bool] = Memo(lambda name: _is_specifier(name, self))


def macros_of(text: Text) -> Macros:
    """Collect every definition of every macro, in any branch. Refused if one redefines a keyword."""
    found: dict[str, list[Macro]] = defaultdict(list)
    for directive in text.directives:
        if directive.name != "define":
            continue
        if not directive.tokens or directive.tokens[0].kind != "word":
            raise refuse(text.source, directive.start, "a #define without a name")
        macro = _macro(directive)
        if macro.name in KEYWORDS:
            what = f"the keyword {macro.name} is redefined; name the macro otherwise"
            raise refuse(text.source, directive.start, what)
        found[macro.name].append(macro)
        if len(found) > MOST_MACROS:
            raise refuse(text.source, directive.start, f"more than the {MOST_MACROS} macros that are read")
    return Macros(found)


def _macro(directive: Directive) -> Macro:
    name, *rest = directive.tokens
    if rest and rest[0].text == "(" and rest[0].start == name.end:
        close = next((index for index, token in enumerate(rest) if token.text == ")"), len(rest) - 1)
        parameters = tuple(token.text for token in rest[:close] if token.kind == "word" or token.text == "...")
        return Macro(name.text, parameters, tuple(rest[close + 1 :]))
    return Macro(name.text, None, tuple(rest))


def closing(tokens: Sequence[Token], opening: int) -> int:
    """Find the bracket that closes the one at `opening`; `read` has checked that brackets balance."""
    depth = 0
    for index in range(opening, len(tokens)):
        depth += _DEPTH.get(tokens[index].text, 0)
        if depth == 0:
            return index
    return len(tokens) - 1


def expanded_words(name: str, macros: Macros) -> frozenset[str]:
    """Return every word that expanding a macro may bring, through other macros too; empty for what is not a macro."""
    return macros.words[name] if name in macros else frozenset()


def _expanded_words(name: str, macros: Macros) -> frozenset[str]:
    words: set[str] = set()
    waiting, seen = [name], {name}
    while waiting:
        for macro in macros.get(waiting.pop(), ()):
            words |= words_in(macro.body) - set(macro.parameters or ())
        waiting += (new := words & macros.keys() - seen)
        seen |= new
    return frozenset(words)


def is_specifier(name: str, macros: Macros) -> bool:
    """Return whether a macro expands to nothing but specifiers, attributes or a `_Pragma`: to no code."""
    return name in macros and macros.specifiers[name]


def _is_specifier(name: str, macros: Macros) -> bool:
    waiting, seen = [name], {name}
    while waiting:
        for macro in macros.get(waiting.pop(), ()):
            inner = _macros_beside_specifiers(macro, macros)
            if inner is None:
                return False
            waiting += inner - seen
            seen |= inner
    return True


def _macros_beside_specifiers(macro: Macro, macros: Macros) -> set[str] | None:
    """Return the macros that a body uses besides specifiers; None if it contains anything else."""
    index, body, used = 0, macro.body, set[str]()
    while index < len(body):
        word = body[index].text
        follows = body[index + 1].text if index + 1 < len(body) else ""
        if word in WITH_ARGUMENT or word == "_Pragma":
            if follows != "(":
                return None
            index = closing(body, index + 1) + 1
        elif word == "[" and follows == "[":
            index = closing(body, index) + 1
        elif word in SPECIFIERS or word in ("static", "inline", "extern", '"C"'):
            index += 1
        elif word in macros:
            used.add(word)
            index += 1
            if follows == "(" and any(each.parameters is not None for each in macros[word]):
                index = closing(body, index) + 1
        else:
            return None
    return used


def code_alone(text: Text, macros: Macros) -> bytes:
    """Blank comments, directives, specifiers and attributes of a source; each byte of code stays where it was."""
    blank = bytearray(b" " * len(text.source))
    ended: list[int] = []
    tokens, index = text.tokens, 0
    while index < len(tokens):
        token = tokens[index]
        follows = tokens[index + 1].text if index + 1 < len(tokens) else ""
        if token.kind == "word" and (token.text in SPECIFIERS or token.text == "alignas"):
            index = closing(tokens, index + 1) + 1 if token.text in WITH_ARGUMENT and follows == "(" else index + 1
        elif token.text in ("_Pragma", *DYNAMIC_LDS) and follows == "(":
            index = closing(tokens, index + 1) + 1
        elif token.text == "[" and follows == "[" and tokens[index + 1].start == token.end:
            index = closing(tokens, index) + 1
        elif token.kind == "word" and is_specifier(token.text, macros):
            takes = any(macro.parameters is not None for macro in macros[token.text])
            index = closing(tokens, index + 1) + 1 if takes and follows == "(" else index + 1
        else:
            if (statement := _is_statement(token.text, macros)) is not None and (follows == "(") == statement:
                ended.append(tokens[closing(tokens, index + 1)].end if statement else token.end)
            blank[token.start : token.end] = _plain(token)
            index += 1
    for end in ended:
        # A macro that is a whole statement needs no semicolon; the grammar does, and a space has room for it.
        blank[end : end + 1] = blank[end : end + 1].replace(b" ", b";")
    return bytes(blank)


def _is_statement(name: str, macros: Macros) -> bool | None:
    """Return whether a macro that ends as a statement does takes arguments; None if it is something else.

    Without arguments, some of its definitions may be empty: a fence or a check that is switched off.
    """
    found = macros.get(name, ())
    ends = [macro.body[-1].text in ("}", ";") if macro.body else None for macro in found]
    takes = {macro.parameters is not None for macro in found}
    if True not in ends or False in ends or len(takes) != 1 or (None in ends and True in takes):
        return None
    return takes.pop()


def _plain(token: Token) -> bytes:
    """Write a token for the grammar: the content of a string is not code."""
    if token.kind == "string":
        return b'"' + b"x" * (token.end - token.start - 2) + b'"'
    return token.text.encode("latin-1")
