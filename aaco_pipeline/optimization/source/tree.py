"""The syntax tree of a source, bounded in size and depth, and parts of it with their place in the source."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import tree_sitter
import tree_sitter_cuda

from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.optimization.source.kernels import Span
from aaco_pipeline.optimization.source.tokens import Text, Token
from aaco_pipeline.optimization.source.vocabulary import words

MOST_NODES: Final = 600_000
MOST_DEPTH: Final = 300

_PARSER: Final = tree_sitter.Parser(tree_sitter.Language(tree_sitter_cuda.language()))

Node = tree_sitter.Node


def tree_of(code: bytes) -> Node:
    """The tree of code without comments and directives. Refused, guard `parse`, where it is too large or too deep."""
    root = _PARSER.parse(code).root_node
    if root.descendant_count > MOST_NODES:
        raise Refused("parse", f"the source has more than the {MOST_NODES} nodes that are read")
    cursor, depth = root.walk(), 0
    while True:
        if cursor.goto_first_child():
            depth += 1
            if depth > MOST_DEPTH:
                line = code.count(b"\n", 0, cursor.node.start_byte if cursor.node else 0) + 1
                raise Refused(
                    "parse", f"line {line}: statements nest deeper than the {MOST_DEPTH} levels that are read"
                )
            continue
        while not cursor.goto_next_sibling():
            if not cursor.goto_parent():
                return root
            depth -= 1


def descend(node: Node) -> Iterator[Node]:
    """The node and everything under it, in the order of the source."""
    waiting = [node]
    while waiting:
        current = waiting.pop()
        yield current
        waiting.extend(reversed(current.children))


def is_broken(node: Node) -> bool:
    """Whether the grammar gave up here, or added what is not written."""
    return node.type == "ERROR" or node.is_missing


def declared(node: Node | None) -> Iterator[Node]:
    """The names that a declarator declares, through pointers, references, arrays and bindings."""
    waiting = [node] if node is not None else []
    while waiting:
        current = waiting.pop()
        if current.type in ("identifier", "type_identifier", "field_identifier"):
            yield current
        elif current.type in (
            "structured_binding_declarator",
            "reference_declarator",
            "parenthesized_declarator",
            "variadic_declarator",
        ):
            waiting.extend(reversed(current.named_children))
        else:
            waiting.extend(reversed(current.children_by_field_name("declarator")))


def text_of(node: Node | None) -> str:
    """What a node is written as, in the code that the grammar was given."""
    return "" if node is None or node.text is None else node.text.decode("latin-1")


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
