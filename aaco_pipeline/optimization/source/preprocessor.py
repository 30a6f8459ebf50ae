"""Macros as a file defines them, and the text that the grammar is given: code alone, every byte at its offset."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from aaco_pipeline.optimization.source.tokens import Directive, Text, Token, refuse
from aaco_pipeline.optimization.source.vocabulary import DYNAMIC_LDS, KEYWORDS, SPECIFIERS, WITH_ARGUMENT


@dataclass(frozen=True)
class Macro:
    """One `#define`. `parameters` is None for an object-like macro."""

    name: str
    parameters: tuple[str, ...] | None
    body: tuple[Token, ...]


MOST_MACROS: Final = 2048


class Macros(dict[str, list[Macro]]):
    """The definitions of each macro by its name; what they expand to is worked out once."""

    def __init__(self, found: Mapping[str, list[Macro]]) -> None:
        super().__init__(found)
        self.words: dict[str, frozenset[str]] = {}
        self.specifiers: dict[str, bool] = {}


def macros_of(text: Text) -> Macros:
    """Every definition of every macro, whatever branch it stands in. Refused where one redefines a keyword."""
    found: dict[str, list[Macro]] = defaultdict(list)
    for directive in text.directives:
        if directive.name != "define":
            continue
        if not directive.tokens or directive.tokens[0].kind != "word":
            raise refuse(text.source, directive.start, "a #define without a name")
        macro = _macro(directive)
        if macro.name in KEYWORDS:
            raise refuse(
                text.source, directive.start, f"the keyword {macro.name} is redefined; name the macro otherwise"
            )
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
    """The index of the bracket that closes the one at `opening`; brackets balance, as `tokens.read` has checked."""
    depth = 0
    for index in range(opening, len(tokens)):
        if tokens[index].kind == "mark":
            if tokens[index].text in "([{":
                depth += 1
            elif tokens[index].text in ")]}":
                depth -= 1
                if depth == 0:
                    return index
    return len(tokens) - 1


def expanded_words(name: str, macros: Macros) -> frozenset[str]:
    """Every word that the expansion of a macro may bring, through other macros too; none of what is no macro."""
    if name not in macros:
        return frozenset()
    if name not in macros.words:
        macros.words[name] = _expanded_words(name, macros)
    return macros.words[name]


def _expanded_words(name: str, macros: Macros) -> frozenset[str]:
    words: set[str] = set()
    waiting, seen = [name], {name}
    while waiting:
        for macro in macros.get(waiting.pop(), ()):
            words |= {token.text for token in macro.body if token.kind == "word"} - set(macro.parameters or ())
        waiting += (new := words & macros.keys() - seen)
        seen |= new
    return frozenset(words)


def is_specifier(name: str, macros: Macros) -> bool:
    """Whether a macro expands to nothing but specifiers, attributes or a `_Pragma`: to no code."""
    if name not in macros:
        return False
    if name not in macros.specifiers:
        macros.specifiers[name] = _is_specifier(name, macros)
    return macros.specifiers[name]


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
    """The macros that a body uses beside specifiers; None where it has anything else."""
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
    """The source with comments, directives, specifiers and attributes blanked, each byte of code where it was."""
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
    """Whether a macro that ends as a statement does takes arguments; None where it is something else.

    Without arguments, some of its definitions may be empty: a fence or a check that is switched off.
    """
    found = macros.get(name, ())
    ends = [macro.body[-1].text in ("}", ";") if macro.body else None for macro in found]
    takes = {macro.parameters is not None for macro in found}
    if True not in ends or False in ends or len(takes) != 1 or (None in ends and True in takes):
        return None
    return takes.pop()


def _plain(token: Token) -> bytes:
    """A token as the grammar is to see it: what a literal says is no code."""
    if token.kind == "string":
        return b'"' + b"x" * (token.end - token.start - 2) + b'"'
    return token.text.encode("latin-1")
