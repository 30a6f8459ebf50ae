"""Parse a HIP or CUDA source: kernels, parameters, launches, and loops with their suitability for unrolling.

`parse` reads a source; nothing here compiles, runs or changes it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.optimization.source.facts import Constant, Facts, evaluate, facts_of
from aaco_pipeline.optimization.source.hazards import Hazard, HazardKind, Hazards
from aaco_pipeline.optimization.source.kernels import (
    Kernel,
    Launch,
    LaunchBounds,
    Loop,
    LoopKind,
    Signature,
    Span,
    Unit,
    launches_of,
    parameters_of,
    signatures_of,
)
from aaco_pipeline.optimization.source.loops import Loops
from aaco_pipeline.optimization.source.tokens import Macros, Text, code_alone, macros_of, read
from aaco_pipeline.optimization.source.tree import Part, descend, is_broken, tree_of

#: A kernel's body is parsed as the body of a function without parameters, so that unusual heads cannot confuse it.
_HEAD: Final = b"void kernel()"


@dataclass(frozen=True)
class Reading:
    """A source with all that its kernels were read from; `bodies` and `signatures` run beside the unit's kernels.

    `outside` is the tree of everything but the kernels' bodies.
    """

    unit: Unit
    text: Text
    macros: Macros
    facts: Facts
    outside: Part
    signatures: tuple[Signature, ...]
    bodies: tuple[Part, ...]


def parse(source: bytes) -> Unit:
    """Return the kernels, loops and launches of a HIP or CUDA source.

    Refused, guard `parse`, with the line and what to do: larger than 1 MiB, deeper or with more tokens than is read,
    not UTF-8, a bracket, comment, string or conditional that does not close, a digraph, a trigraph, a keyword that is
    redefined, no kernel. A line that only the grammar does not understand refuses nothing: `Kernel.damaged` names it.
    """
    return reading_of(source).unit


def reading_of(source: bytes) -> Reading:
    """Parse a source with its tokens and trees. Refused like `parse`."""
    text = read(source)
    macros = macros_of(text)
    signatures = signatures_of(text, macros)
    if not signatures:
        raise Refused("parse", "there is no kernel: no function marked __global__ has a body; name a HIP source")
    code = code_alone(text, macros)
    bodies = tuple(_body(code, text, signature) for signature in signatures)
    outside = Part(tree_of(_without(code, text, signatures)), 0)
    spans = [Span(text.tokens[each.first].start, text.tokens[each.body_close].end) for each in signatures]
    facts = facts_of(text, macros, [outside, *bodies], spans)
    kernels = tuple(
        _kernel(text, facts.within(index), signature, body)
        for index, (signature, body) in enumerate(zip(signatures, bodies, strict=True))
    )
    unit = Unit(source, kernels, launches_of(text))
    return Reading(unit, text, macros, facts, outside, signatures, bodies)


def _body(code: bytes, text: Text, signature: Signature) -> Part:
    start, end = text.tokens[signature.body_open].start, text.tokens[signature.body_close].end
    return Part(tree_of(_HEAD + code[start:end]), start - len(_HEAD), start)


def _without(code: bytes, text: Text, signatures: Iterable[Signature]) -> bytes:
    """Return the code with every kernel's body empty: bodies have separate trees, heads declare parameters."""
    rest = bytearray(code)
    for signature in signatures:
        start, end = text.tokens[signature.body_open].end, text.tokens[signature.body_close].start
        rest[start:end] = b" " * (end - start)
    return bytes(rest)


def _kernel(text: Text, facts: Facts, signature: Signature, body: Part) -> Kernel:
    tokens = text.tokens
    parameters = parameters_of(text, signature)
    loops = Loops(facts, Hazards(facts), body)
    name = tokens[signature.name]
    return Kernel(
        name=name.text,
        parameters=tuple(parameter for parameter, _ in parameters),
        parameter_spans=tuple(span for _, span in parameters),
        span=Span(tokens[signature.first].start, tokens[signature.body_close].end),
        body=Span(tokens[signature.body_open].start, tokens[signature.body_close].end),
        name_span=Span(name.start, name.end),
        line=text.line(name.start),
        template=signature.template,
        scope=signature.scope,
        launch_bounds=_bounds(facts, signature),
        loops=loops.described(),
        barriers=_lines(text, loops.hazards, "barrier"),
        cross_lane=_lines(text, loops.hazards, "cross_lane"),
        atomics=_lines(text, loops.hazards, "atomic"),
        dynamic_lds=_uses_dynamic_lds(facts, loops, body),
        damaged=tuple(sorted({text.line(body.offset(node)) for node in descend(body.node) if is_broken(node)})),
    )


def _bounds(facts: Facts, signature: Signature) -> LaunchBounds | None:
    if signature.bounds_span is None:
        return None
    values: list[Constant | None] = [evaluate(bound, facts.constant) for bound in signature.bounds]
    threads, blocks = (*(None if value is None else value.value for value in values), None, None)[:2]
    return LaunchBounds(signature.bounds_span, threads, blocks)


def _lines(text: Text, hazards: Iterable[Hazard], kind: HazardKind) -> tuple[int, ...]:
    return tuple(sorted({text.line(hazard.offset) for hazard in hazards if hazard.kind == kind}))


def _uses_dynamic_lds(facts: Facts, loops: Loops, body: Part) -> bool:
    if any(hazard.kind == "dynamic_lds" for hazard in loops.hazards):
        return True
    tokens = facts.text.within(body.offset(body.node), body.node.end_byte + body.shift)
    return any(token.text in facts.dynamic_lds for token in tokens)


__all__ = ["Kernel", "Launch", "LaunchBounds", "Loop", "LoopKind", "Span", "Unit", "parse"]
