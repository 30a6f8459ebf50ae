"""Where a source launches kernels, in code and in the bodies of macros."""

from collections.abc import Iterator, Sequence
from typing import Final

from aaco_pipeline.optimization.source.kernels import split
from aaco_pipeline.optimization.source.preprocessor import closing
from aaco_pipeline.optimization.source.tokens import Text, Token
from aaco_pipeline.optimization.source.unit import Launch, Span

_BY_FUNCTION: Final = ("hipLaunchKernelGGL",)
_CONFIGURATION: Final = 4


def launches_of(text: Text) -> tuple[Launch, ...]:
    """Every launch whose parts can be told apart, in the order of the source."""
    streams: list[Sequence[Token]] = [text.tokens]
    streams += [directive.tokens for directive in text.directives if directive.name == "define"]
    found = [launch for tokens in streams for launch in _launches(text, tokens)]
    return tuple(sorted(found, key=lambda launch: launch.span))


def _launches(text: Text, tokens: Sequence[Token]) -> Iterator[Launch]:
    for index, token in enumerate(tokens):
        after = tokens[index + 1].text if index + 1 < len(tokens) else ""
        launch = None
        if token.text == "<<<":
            launch = _by_chevrons(text, tokens, index)
        elif token.text in _BY_FUNCTION and after == "(":
            launch = _by_function(text, tokens, index)
        if launch is not None:
            yield launch


def _by_chevrons(text: Text, tokens: Sequence[Token], index: int) -> Launch | None:
    close = next((at for at in range(index, len(tokens)) if tokens[at].text in (">>>", ";")), len(tokens))
    if close + 1 >= len(tokens) or tokens[close].text != ">>>" or tokens[close + 1].text != "(":
        return None
    first = _expression_before(tokens, index)
    end = closing(tokens, close + 1)
    configuration = _spans(tokens[index + 1 : close])
    if first is None or not 2 <= len(configuration) <= _CONFIGURATION:
        return None
    return Launch(
        Span(tokens[first].start, tokens[end].end),
        Span(tokens[first].start, tokens[index - 1].end),
        configuration,
        _spans(tokens[close + 2 : end]),
        text.line(tokens[first].start),
    )


def _by_function(text: Text, tokens: Sequence[Token], index: int) -> Launch | None:
    end = closing(tokens, index + 1)
    pieces = _spans(tokens[index + 2 : end])
    if len(pieces) < 1 + _CONFIGURATION:
        return None
    return Launch(
        Span(tokens[index].start, tokens[end].end),
        pieces[0],
        pieces[1 : 1 + _CONFIGURATION],
        pieces[1 + _CONFIGURATION :],
        text.line(tokens[index].start),
    )


def _expression_before(tokens: Sequence[Token], index: int) -> int | None:
    """Where the kernel's name begins: over template arguments, brackets and namespaces."""
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
