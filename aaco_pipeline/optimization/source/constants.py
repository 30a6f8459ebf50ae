"""Integer constants of a source: what an expression of literals, constants and macros of this file comes to."""

import re
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from aaco_pipeline.optimization.source.tokens import Token

_LITERAL: Final = re.compile(r"(0[xX][0-9a-fA-F]+|0[bB][01]+|[0-9]+)([uU]?[lLzZ]{0,2}|[lL]{1,2}[uU])")
_LEVELS: Final = (("|",), ("^",), ("&",), ("<<", ">>"), ("+", "-"), ("*", "/", "%"))
#: What fits an `int`: beyond it the type of each literal would matter.
_LARGEST: Final = (1 << 31) - 1
#: Bounds the depth of the recursion below.
MOST_TOKENS: Final = 48


class Constant(NamedTuple):
    """A value of 31 bits; `unsigned` where the language would compare and subtract it without a sign."""

    value: int
    unsigned: bool


Names = Callable[[str], Constant | None]


class _NotConstant(Exception):
    """The expression is more than literals, known names and integer arithmetic that no type can change."""


def evaluate(tokens: Sequence[Token], names: Names) -> Constant | None:
    """The value of an integer expression, None where it is no constant, or too long or large to be one of interest."""
    if not 0 < len(tokens) <= MOST_TOKENS:
        return None
    try:
        value, rest = _binary(list(tokens), names, 0)
    except _NotConstant:
        return None
    return value if not rest else None


def _binary(tokens: list[Token], names: Names, level: int) -> tuple[Constant, list[Token]]:
    if level == len(_LEVELS):
        return _unary(tokens, names)
    value, rest = _binary(tokens, names, level + 1)
    while rest and rest[0].text in _LEVELS[level]:
        operator = rest[0].text
        right, rest = _binary(rest[1:], names, level + 1)
        value = _applied(operator, value, right)
    return value, rest


def _applied(operator: str, first: Constant, second: Constant) -> Constant:
    left, right = first.value, second.value
    if (operator in ("/", "%") and (left < 0 or right <= 0)) or (operator in ("<<", ">>") and not 0 <= right < 31):
        raise _NotConstant
    value = {
        "|": lambda: left | right,
        "^": lambda: left ^ right,
        "&": lambda: left & right,
        "<<": lambda: left << right,
        ">>": lambda: left >> right,
        "+": lambda: left + right,
        "-": lambda: left - right,
        "*": lambda: left * right,
        "/": lambda: left // right,
        "%": lambda: left % right,
    }[operator]()
    return _checked(value, first.unsigned or second.unsigned)


def _checked(value: int, unsigned: bool) -> Constant:
    if abs(value) > _LARGEST or (unsigned and value < 0):
        raise _NotConstant
    return Constant(value, unsigned)


def _unary(tokens: list[Token], names: Names) -> tuple[Constant, list[Token]]:
    if not tokens:
        raise _NotConstant
    first, rest = tokens[0], tokens[1:]
    if first.text in ("-", "+"):
        (value, unsigned), rest = _unary(rest, names)
        return _checked(-value if first.text == "-" else value, unsigned), rest
    if first.text == "(":
        inner, rest = _binary(rest, names, 0)
        if not rest or rest[0].text != ")":
            raise _NotConstant
        return inner, rest[1:]
    if first.kind == "number" and (literal := _LITERAL.fullmatch(first.text.replace("'", ""))):
        digits, suffix = literal.groups()
        octal = digits.startswith("0") and digits.isdigit()
        if octal and not re.fullmatch("[0-7]+", digits):
            raise _NotConstant
        return _checked(int(digits, 8 if octal else 0), "u" in suffix.lower()), rest
    if first.kind == "word" and (known := names(first.text)) is not None:
        return known, rest
    raise _NotConstant
