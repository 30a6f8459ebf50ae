"""Find kernels and their launches by tokens, regardless of attributes, macros and the order of specifiers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.optimization.source.tokens import Macros, Text, Token, closing, expanded_words, is_specifier, refuse
from aaco_pipeline.optimization.source.vocabulary import KEYWORDS, TYPES, WITH_ARGUMENT
from aaco_pipeline.optimization.targets import Parameter

LoopKind = Literal["for", "while", "do", "range"]


class Span(NamedTuple):
    """The bytes `start` to `end` of a source, `end` not included."""

    start: int
    end: int


@dataclass(frozen=True)
class LaunchBounds:
    """`__launch_bounds__(threads, blocks)`. A value is None if it is missing or not a constant of this file."""

    span: Span
    threads: int | None
    blocks: int | None


@dataclass(frozen=True)
class Loop:
    """A loop in a kernel's own body; loops in lambdas and macros are excluded.

    `identifier` counts loops by nesting (`loop2.1` is the first loop in the kernel's second): edits outside the kernel
    do not change it. `span` begins at the loop's keyword; `body` is its statement, including any braces. `trip_count`
    is set if header and body prove it, with macros as this file defines them. `innermost`: contains no loop with an
    unproven trip count, not even in a called function of this file. `safe`: copies of the body may follow one another
    without a test between them; otherwise `reason` explains why not, with its line. `pragma` is the existing unrolling
    pragma.
    """

    identifier: str
    kind: LoopKind
    line: int
    span: Span
    body: Span
    trip_count: int | None
    innermost: bool
    safe: bool
    reason: str | None
    pragma: str | None = None
    parent: str | None = None


@dataclass(frozen=True)
class Kernel:
    """A `__global__` function that the source defines.

    `span` is the complete definition, from `template`, `extern "C"` or the first attribute to the closing brace; `body`
    includes its braces; `name_span` is the name in the declarator. `parameter_spans` correspond to `parameters`.
    `scope` names the enclosing namespaces. `barriers`, `cross_lane` and `atomics` are the lines at which the kernel, or
    a function of this file that it calls, contains such an operation. `damaged` are lines that the grammar does not
    understand: no loop is then safe.
    """

    name: str
    parameters: tuple[Parameter, ...]
    parameter_spans: tuple[Span, ...]
    span: Span
    body: Span
    name_span: Span
    line: int
    template: bool
    scope: tuple[str, ...]
    launch_bounds: LaunchBounds | None
    loops: tuple[Loop, ...]
    barriers: tuple[int, ...]
    cross_lane: tuple[int, ...]
    atomics: tuple[int, ...]
    dynamic_lds: bool
    damaged: tuple[int, ...]

    def loop(self, identifier: str) -> Loop:
        """Find a loop by its identifier; Refused, guard `loop`, if the kernel has none."""
        for loop in self.loops:
            if loop.identifier == identifier:
                return loop
        known = ", ".join(loop.identifier for loop in self.loops) or "no loop"
        raise Refused("loop", f"the kernel {self.name} has no {identifier}; it has {known}")


@dataclass(frozen=True)
class Launch:
    """A launch of a kernel: `f<<<grid, block, lds, stream>>>(arguments)` or hipLaunchKernelGGL(f, grid, …, arguments).

    `span` is the whole call without its semicolon; `kernel` the expression before `<<<` or the first argument;
    `configuration` two to four expressions (grid, block, bytes of dynamic local data share, stream).
    """

    span: Span
    kernel: Span
    configuration: tuple[Span, ...]
    arguments: tuple[Span, ...]
    line: int


@dataclass(frozen=True)
class Unit:
    """A parsed source. `kernels` and `launches` are in source order."""

    source: bytes
    kernels: tuple[Kernel, ...]
    launches: tuple[Launch, ...]

    def kernel(self, name: str) -> Kernel:
        """Find a kernel by its name; Refused, guard `kernel`, if there is none, or more than one."""
        found = [kernel for kernel in self.kernels if kernel.name == name]
        if len(found) == 1:
            return found[0]
        if found:
            lines = ", ".join(str(kernel.line) for kernel in found)
            raise Refused("kernel", f"{name} is defined {len(found)} times (lines {lines}); keep one definition")
        known = ", ".join(kernel.name for kernel in self.kernels)
        raise Refused("kernel", f"there is no kernel {name}; this source has {known}")


MOST_KERNELS: Final = 256
#: Change in bracket depth per token, for round and angle brackets.
_NESTING: Final = {**dict.fromkeys("([{<", 1), **dict.fromkeys(")]}>", -1), ">>": -2, ">>>": -3}
RESTRICT: Final = ("__restrict__", "__restrict", "restrict")
_POINTER_QUALIFIERS: Final = (*RESTRICT, "const", "volatile")


_Bounds = tuple[tuple[Token, ...], ...]


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
    bounds: _Bounds
    bounds_span: Span | None


def signatures_of(text: Text, macros: Macros) -> tuple[Signature, ...]:
    """Find every `__global__` function with a body, in source order. Refused if one cannot be read."""
    found: list[Signature] = []
    for index, token in enumerate(text.tokens):
        if token.kind != "word" or (found and index < found[-1].body_close):
            continue
        # A macro whose expansion contains more than `__global__` is expanded; in the head it is a single word.
        if token.text == "__global__" or "__global__" in expanded_words(token.text, macros):
            if found and found[-1].first <= index <= found[-1].body_open:
                continue
            if (signature := _signature(text, macros, index)) is not None:
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
    bounds, span = _launch_bounds(tokens, macros, first, index)
    return Signature(first, name, opening, index, closing(tokens, index), template, _scope(tokens, first), bounds, span)


def _named(tokens: Sequence[Token], opening: int) -> int | None:
    """Find the name before a bracket, skipping template arguments; None if there is none."""
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
    """Return whether brackets hold parameters: empty, `void`, or a type with a name; not the argument of a macro."""
    if is_specifier(text.tokens[opening - 1].text, macros):
        return False
    return all(map(_looks_like_parameter, split(text.tokens[opening + 1 : closing(text.tokens, opening)])))


def _looks_like_parameter(piece: Sequence[Token]) -> bool:
    if not piece or piece[0].kind != "word":
        return False
    words = [token for token in piece if token.kind == "word"]
    return len(words) > 1 or words[0].text in TYPES or any(token.text in ("*", "&", "<") for token in piece)


def split(tokens: Sequence[Token]) -> list[tuple[Token, ...]]:
    """Split tokens at commas outside all round and angle brackets."""
    pieces: list[tuple[Token, ...]] = []
    start = depth = 0
    for index, token in enumerate(tokens):
        if token.kind != "mark":
            continue
        if token.text == "," and depth == 0:
            pieces.append(tuple(tokens[start:index]))
            start = index + 1
        depth += _NESTING.get(token.text, 0)
    if tokens:
        pieces.append(tuple(tokens[start:]))
    return pieces


def _launch_bounds(tokens: Sequence[Token], macros: Macros, first: int, end: int) -> tuple[_Bounds, Span | None]:
    for index in range(first, end):
        token = tokens[index]
        if token.text == "__launch_bounds__" and tokens[index + 1].text == "(":
            close = closing(tokens, index + 1)
            return tuple(split(tokens[index + 2 : close])), Span(token.start, tokens[close].end)
        if token.kind == "word" and "__launch_bounds__" in expanded_words(token.text, macros):
            # The macro determines the values: bounds exist, but their values are not read.
            return (), Span(token.start, token.end)
    return (), None


def _scope(tokens: Sequence[Token], first: int) -> tuple[str, ...]:
    """Return the names of the namespaces that are open before a token, outermost first."""
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
    """Return the parameters of a kernel in their order, each with its bytes in the source."""
    tokens = text.tokens[signature.parameters_open + 1 : closing(text.tokens, signature.parameters_open)]
    pieces = [piece for piece in split(tokens) if [token.text for token in piece] != ["void"]]
    return tuple((_parameter(piece), Span(piece[0].start, piece[-1].end)) for piece in pieces if piece)


def _parameter(piece: Sequence[Token]) -> Parameter:
    default = next((index for index, token in enumerate(piece) if token.text == "="), len(piece))
    words = list(piece[:default])
    # A reference to an array stays one; an array decays to a pointer.
    is_reference = any(token.text == "&" for token in words)
    array = next(
        (index for index, token in enumerate(words) if token.text == "[" and index > 0 and not is_reference), None
    )
    words = words[:array]
    named = _name_index(words)
    name = words[named].text if named is not None else ""
    kept = [token.text for index, token in enumerate(words) if index != named and token.text not in RESTRICT]
    if array is not None:
        kept.append("*")
    if (last := _last_star(kept)) is None:
        return Parameter(name, _joined(kept), False, "const" in kept)
    kept = kept[: last + 1] + [word for word in kept[last + 1 :] if word not in _POINTER_QUALIFIERS]
    # The last `*` of `T* const*` points at the pointer with its qualifiers, a single one at the type.
    inner = _last_star(kept[:last])
    return Parameter(name, _joined(kept), True, "const" in kept[0 if inner is None else inner + 1 : last])


def _last_star(words: Sequence[str]) -> int | None:
    return max((index for index, word in enumerate(words) if word == "*"), default=None)


def _name_index(words: Sequence[Token]) -> int | None:
    """Find a parameter's name: its last word that is neither a qualifier nor the only word of its type."""
    for index in range(len(words) - 1, -1, -1):
        word = words[index]
        if word.kind != "word" or word.text in _POINTER_QUALIFIERS or word.text in KEYWORDS:
            continue
        before = [token for token in words[:index] if token.kind == "word" and token.text not in _POINTER_QUALIFIERS]
        return index if before and words[index - 1].text != "::" else None
    return None


def _joined(words: Sequence[str]) -> str:
    """Write the words of a type in one way: `const float*`, `std::array<float, 4>&`."""
    written = ""
    for word in words:
        apart = written and (written[-1].isalnum() or written[-1] in "_*&>") and (word[0].isalnum() or word[0] == "_")
        written += (" " if apart else "") + word + (" " if word == "," else "")
    return written


_CONFIGURATION: Final = 4


def launches_of(text: Text) -> tuple[Launch, ...]:
    """Find every launch whose parts can be separated, in source order."""
    streams: list[Sequence[Token]] = [text.tokens]
    streams += [directive.tokens for directive in text.directives if directive.name == "define"]
    found = [launch for tokens in streams for launch in _launches(text, tokens)]
    return tuple(sorted(found, key=lambda launch: launch.span))


def _launches(text: Text, tokens: Sequence[Token]) -> Iterator[Launch]:
    for index, token in enumerate(tokens):
        if token.text == "<<<":
            yield from _by_chevrons(text, tokens, index)
        elif token.text == "hipLaunchKernelGGL" and index + 1 < len(tokens) and tokens[index + 1].text == "(":
            yield from _by_function(text, tokens, index)


def _by_chevrons(text: Text, tokens: Sequence[Token], index: int) -> Iterator[Launch]:
    close = next((at for at in range(index, len(tokens)) if tokens[at].text in (">>>", ";")), len(tokens))
    if close + 1 >= len(tokens) or tokens[close].text != ">>>" or tokens[close + 1].text != "(":
        return
    first, end = _expression_before(tokens, index), closing(tokens, close + 1)
    configuration = _spans(tokens[index + 1 : close])
    if first is not None and 2 <= len(configuration) <= _CONFIGURATION:
        start = tokens[first].start
        kernel, arguments = Span(start, tokens[index - 1].end), _spans(tokens[close + 2 : end])
        yield Launch(Span(start, tokens[end].end), kernel, configuration, arguments, text.line(start))


def _by_function(text: Text, tokens: Sequence[Token], index: int) -> Iterator[Launch]:
    end, start = closing(tokens, index + 1), tokens[index].start
    kernel, *rest = _spans(tokens[index + 2 : end]) or [Span(start, start)]
    configuration, arguments = tuple(rest[:_CONFIGURATION]), tuple(rest[_CONFIGURATION:])
    if len(configuration) == _CONFIGURATION:
        yield Launch(Span(start, tokens[end].end), kernel, configuration, arguments, text.line(start))


def _expression_before(tokens: Sequence[Token], index: int) -> int | None:
    """Find where the kernel's name begins, over template arguments, brackets and namespaces."""
    at, angle = index - 1, 0
    if at >= 0 and tokens[at].text in (">", ">>"):
        while at >= 0:
            angle += {">": 1, ">>": 2, "<": -1}.get(tokens[at].text, 0)
            at -= 1
            if angle <= 0:
                break
    if at < 0:
        return None
    if tokens[at].text == ")":
        depth = 0
        while at >= 0:
            depth += {")": 1, "(": -1}.get(tokens[at].text, 0)
            if depth == 0:
                return at
            at -= 1
        return None
    if tokens[at].kind != "word":
        return None
    while at > 0 and tokens[at - 1].text == "::":
        at -= 2 if at > 1 and tokens[at - 2].kind == "word" else 1
    return at


def _spans(tokens: Sequence[Token]) -> tuple[Span, ...]:
    return tuple(Span(piece[0].start, piece[-1].end) for piece in split(tokens) if piece)
