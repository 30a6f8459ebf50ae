"""Where kernels are defined, found by their tokens: no attribute, macro or order of specifiers hides one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from aaco_pipeline.optimization.source.preprocessor import Macros, closing, expanded_words, is_specifier
from aaco_pipeline.optimization.source.tokens import Text, Token, refuse
from aaco_pipeline.optimization.source.unit import Span
from aaco_pipeline.optimization.source.vocabulary import KEYWORDS, TYPES, WITH_ARGUMENT
from aaco_pipeline.optimization.targets import Parameter

MOST_KERNELS: Final = 256
_POINTER_QUALIFIERS: Final = ("__restrict__", "__restrict", "restrict", "const", "volatile")
_RESTRICT: Final = ("__restrict__", "__restrict", "restrict")


@dataclass(frozen=True)
class Signature:
    """A kernel's head: tokens by their index in the text. `bounds` are the expressions of its launch bounds."""

    first: int
    name: int
    parameters_open: int
    body_open: int
    body_close: int
    template: bool
    scope: tuple[str, ...]
    bounds: tuple[tuple[Token, ...], ...]
    bounds_span: Span | None


def signatures_of(text: Text, macros: Macros) -> tuple[Signature, ...]:
    """Every `__global__` function with a body, in the order of the source. Refused where one cannot be read."""
    found: list[Signature] = []
    for index, token in enumerate(text.tokens):
        if token.kind != "word" or (found and index < found[-1].body_close):
            continue
        # A macro that expands to `__global__` and more is looked into; it stands in the head as one word.
        if token.text == "__global__" or "__global__" in expanded_words(token.text, macros):
            if found and found[-1].first <= index <= found[-1].body_open:
                continue
            signature = _signature(text, macros, index)
            if signature is not None:
                found.append(signature)
            if len(found) > MOST_KERNELS:
                raise refuse(text.source, token.start, f"more than the {MOST_KERNELS} kernels that are read")
    return tuple(found)


def _signature(text: Text, macros: Macros, marked: int) -> Signature | None:
    tokens = text.tokens
    first = marked
    while first > 0 and tokens[first - 1].text not in (";", "}", "{"):
        first -= 1
    groups: list[int] = []
    index, template, angle = first, False, 0
    while index < len(tokens):
        token = tokens[index]
        if token.text == ";" and not angle:
            return None
        if token.text == "{" and not angle and groups:
            break
        if token.text == "template" or (index > first and tokens[index - 1].text == "template"):
            template = True
            angle += token.text == "<"
        elif angle:
            angle += {"<": 1, ">": -1, ">>": -2, ">>>": -3}.get(token.text, 0)
        elif token.text == "(" and index > marked and _named(tokens, index) is not None:
            groups.append(index)
        if token.text in ("(", "["):
            index = closing(tokens, index)
        index += 1
    else:
        raise refuse(text.source, tokens[marked].start, "a __global__ that no function follows")
    opening = next((group for group in groups if _is_parameter_list(text, macros, group)), None)
    if opening is None:
        raise refuse(text.source, tokens[marked].start, "a __global__ function whose parameters cannot be read")
    name = _named(tokens, opening)
    assert name is not None, "only brackets after a name are kept"
    bounds, span = _launch_bounds(text, macros, first, index)
    return Signature(first, name, opening, index, closing(tokens, index), template, _scope(tokens, first), bounds, span)


def _named(tokens: Sequence[Token], opening: int) -> int | None:
    """The name before a bracket, over the arguments of a specialized template; None where there is none."""
    index, angle = opening - 1, 0
    if tokens[index].text in (">", ">>", ">>>"):
        while index > 0:
            angle += {">": 1, ">>": 2, ">>>": 3, "<": -1}.get(tokens[index].text, 0)
            index -= 1
            if not angle:
                break
    word = tokens[index]
    return index if word.kind == "word" and word.text not in WITH_ARGUMENT and word.text not in KEYWORDS else None


def _is_parameter_list(text: Text, macros: Macros, opening: int) -> bool:
    """Whether brackets hold parameters: empty, `void`, or a type with a name; not the argument of a macro."""
    if is_specifier(text.tokens[opening - 1].text, macros):
        return False
    pieces = split(text.tokens[opening + 1 : closing(text.tokens, opening)])
    return all(_looks_like_parameter(piece) for piece in pieces)


def _looks_like_parameter(piece: Sequence[Token]) -> bool:
    if not piece or piece[0].kind != "word":
        return False
    words = [token for token in piece if token.kind == "word"]
    return len(words) > 1 or words[0].text in TYPES or any(token.text in ("*", "&", "<") for token in piece)


def split(tokens: Sequence[Token]) -> list[tuple[Token, ...]]:
    """The pieces between the commas that no bracket, round or angled, holds."""
    pieces: list[tuple[Token, ...]] = []
    start = depth = 0
    for index, token in enumerate(tokens):
        if token.kind != "mark":
            continue
        if token.text == "," and depth == 0:
            pieces.append(tuple(tokens[start:index]))
            start = index + 1
        depth += {"(": 1, "[": 1, "{": 1, "<": 1, ")": -1, "]": -1, "}": -1, ">": -1, ">>": -2, ">>>": -3}.get(
            token.text, 0
        )
    if tokens:
        pieces.append(tuple(tokens[start:]))
    return pieces


def _launch_bounds(
    text: Text, macros: Macros, first: int, end: int
) -> tuple[tuple[tuple[Token, ...], ...], Span | None]:
    tokens = text.tokens
    for index in range(first, end):
        token = tokens[index]
        if token.text == "__launch_bounds__" and tokens[index + 1].text == "(":
            close = closing(tokens, index + 1)
            return tuple(split(tokens[index + 2 : close])), Span(token.start, tokens[close].end)
        if token.kind == "word" and "__launch_bounds__" in expanded_words(token.text, macros):
            # The values are the macro's business: the bounds are there, and what they are is not read.
            return (), Span(token.start, token.end)
    return (), None


def _scope(tokens: Sequence[Token], first: int) -> tuple[str, ...]:
    """The names of the namespaces that are open before a token, outermost first."""
    opened: list[str | None] = []
    for index in range(first):
        if tokens[index].text == "{" and tokens[index].kind == "mark":
            named = index > 1 and tokens[index - 1].kind == "word" and tokens[index - 1].text not in KEYWORDS
            back = index - 1
            while named and back > 0 and (tokens[back].kind == "word" or tokens[back].text == "::"):
                if tokens[back].text == "namespace":
                    break
                back -= 1
            inside = named and tokens[back].text == "namespace"
            opened.append("".join(token.text for token in tokens[back + 1 : index]) if inside else None)
        elif tokens[index].text == "}" and tokens[index].kind == "mark":
            opened.pop()
    return tuple(name for name in opened if name)


def parameters_of(text: Text, signature: Signature) -> tuple[tuple[Parameter, Span], ...]:
    """The parameters of a kernel in their order, each with the bytes that it is written in."""
    tokens = text.tokens[signature.parameters_open + 1 : closing(text.tokens, signature.parameters_open)]
    pieces = [piece for piece in split(tokens) if [token.text for token in piece] != ["void"]]
    return tuple((_parameter(piece), Span(piece[0].start, piece[-1].end)) for piece in pieces if piece)


def _parameter(piece: Sequence[Token]) -> Parameter:
    words = list(piece)
    default = next((index for index, token in enumerate(words) if token.text == "="), len(words))
    words = words[:default]
    # A reference to an array stays one; an array decays to a pointer.
    array = next((index for index, token in enumerate(words) if token.text == "[" and index > 0), None)
    if any(token.text == "&" for token in words):
        array = None
    brackets = array is not None
    if array is not None:
        words = words[:array]
    named = _name_index(words)
    name = words[named].text if named is not None else ""
    kept = [token.text for index, token in enumerate(words) if index != named and token.text not in _RESTRICT]
    if brackets:
        kept.append("*")
    last = max((index for index, word in enumerate(kept) if word == "*"), default=None)
    if last is not None:
        kept = kept[: last + 1] + [word for word in kept[last + 1 :] if word not in _POINTER_QUALIFIERS]
        const = "const" in _pointee(kept[:last])
    else:
        const = "const" in kept
    return Parameter(name, _joined(kept), last is not None, const)


def _pointee(words: Sequence[str]) -> Sequence[str]:
    """What the last `*` points at: for `T* const*` the pointer with its qualifiers, else the type."""
    last = max((index for index, word in enumerate(words) if word == "*"), default=None)
    return words if last is None else words[last + 1 :]


def _name_index(words: Sequence[Token]) -> int | None:
    """The parameter's name: its last word that is neither qualifier nor the only word of its type."""
    for index in range(len(words) - 1, -1, -1):
        word = words[index]
        if word.kind != "word" or word.text in _POINTER_QUALIFIERS or word.text in KEYWORDS:
            continue
        before = [token for token in words[:index] if token.kind == "word" and token.text not in _POINTER_QUALIFIERS]
        return index if before and words[index - 1].text != "::" else None
    return None


def _joined(words: Sequence[str]) -> str:
    """Words of a type in one way of writing: `const float*`, `std::array<float, 4>&`."""
    written = ""
    for word in words:
        apart = written and (written[-1].isalnum() or written[-1] in "_*&>") and (word[0].isalnum() or word[0] == "_")
        written += (" " if apart else "") + word + (" " if word == "," else "")
    return written
