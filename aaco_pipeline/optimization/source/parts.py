"""Trees of pieces of a source: where they stand in it, and which names they declare."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from aaco_pipeline.optimization.source.grammar import Node, declared, text_of
from aaco_pipeline.optimization.source.tokens import Text, Token
from aaco_pipeline.optimization.source.unit import Span
from aaco_pipeline.optimization.source.vocabulary import words

DECLARING: Final = frozenset(
    words(
        "declaration parameter_declaration optional_parameter_declaration field_declaration for_range_loop"
        " type_definition function_definition init_declarator lambda_capture_initializer"
        " variadic_parameter_declaration"
    )
)
_NAMED_TYPES: Final = frozenset(
    words(
        "struct_specifier class_specifier union_specifier enum_specifier alias_declaration enumerator"
        " namespace_definition concept_definition"
    )
)
_TYPE_PARAMETERS: Final = frozenset(
    words(
        "type_parameter_declaration optional_type_parameter_declaration variadic_type_parameter_declaration"
        " template_template_parameter_declaration"
    )
)


@dataclass(frozen=True)
class Part:
    """A tree of some of the source; a byte of the tree is `shift` bytes further on in the source.

    What is before the byte `start` of the source stands in the tree for something else than what is written there.
    """

    node: Node
    shift: int
    start: int = 0


def introduced(node: Node) -> Iterator[tuple[str, bool]]:
    """The names that a node declares, each with whether it is a type."""
    if node.type in DECLARING:
        for each in node.children_by_field_name("declarator"):
            for name in declared(each):
                yield text_of(name), node.type == "type_definition"
        if node.type == "lambda_capture_initializer":
            yield text_of(node.child_by_field_name("left")), False
    elif node.type in _NAMED_TYPES:
        yield text_of(node.child_by_field_name("name")), node.type != "enumerator"
    elif node.type in _TYPE_PARAMETERS:
        for child in node.named_children:
            if child.type == "type_identifier":
                yield text_of(child), True


def tokens_of(text: Text, part: Part, node: Node) -> tuple[Token, ...]:
    """The tokens that a node of a part is written in."""
    return text.within(max(node.start_byte + part.shift, part.start), node.end_byte + part.shift)


def is_seen(offset: int, kernel: int | None, kernels: Sequence[Span]) -> bool:
    """Whether what stands at a byte is outside all kernels but this one; with None, always."""
    if kernel is None:
        return True
    index = bisect_right(kernels, offset, key=lambda span: span.start) - 1
    return index in (-1, kernel) or offset >= kernels[index].end
