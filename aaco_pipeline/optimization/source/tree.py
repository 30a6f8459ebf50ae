"""The syntax tree of a source, bounded in size and depth, and parts of it with their place in the source."""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
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
    """Parse code without comments and directives. Refused, guard `parse`, where the tree is too large or too deep."""
    root = _PARSER.parse(code).root_node
    if root.descendant_count > MOST_NODES:
        raise Refused("parse", f"the source has more than the {MOST_NODES} nodes that are read")
    cursor, depth = root.walk(), 0
    while True:
        if cursor.goto_first_child():
            depth += 1
            if depth > MOST_DEPTH:
                line = code.count(b"\n", 0, cursor.node.start_byte if cursor.node else 0) + 1
                too_deep = f"statements nest deeper than the {MOST_DEPTH} levels that are read"
                raise Refused("parse", f"line {line}: {too_deep}")
            continue
        while not cursor.goto_next_sibling():
            if not cursor.goto_parent():
                return root
            depth -= 1


def descend(node: Node | None) -> Iterator[Node]:
    """Yield a node and everything under it, in the order of the source."""
    waiting = [] if node is None else [node]
    while waiting:
        current = waiting.pop()
        yield current
        waiting.extend(reversed(current.children))


def is_broken(node: Node) -> bool:
    """Return whether the grammar gave up here, or added what is not written."""
    return node.type == "ERROR" or node.is_missing


_WRAPPING: Final = words("""
    structured_binding_declarator reference_declarator parenthesized_declarator variadic_declarator
""")


def declared(node: Node | None) -> Iterator[Node]:
    """Yield the names that a declarator declares, through pointers, references, arrays and bindings."""
    waiting = [node] if node is not None else []
    while waiting:
        current = waiting.pop()
        if current.type in ("identifier", "type_identifier", "field_identifier"):
            yield current
        elif current.type in _WRAPPING:
            waiting.extend(reversed(current.named_children))
        else:
            waiting.extend(reversed(current.children_by_field_name("declarator")))


def text_of(node: Node | None) -> str:
    """Return the text of a node in the code that the grammar was given; empty without a node."""
    return "" if node is None or node.text is None else node.text.decode("latin-1")


def plain_text(node: Node | None) -> str:
    """Return the text of a node without any white space."""
    return "".join(text_of(node).split())


def field(node: Node, name: str) -> Node | None:
    """Return the child in a field of the grammar, if there is one."""
    return node.child_by_field_name(name)


def operands(node: Node) -> tuple[Node | None, str, Node | None]:
    """Return the left side, the operator and the right side of a binary expression or an assignment."""
    return field(node, "left"), text_of(field(node, "operator")), field(node, "right")


def stripped(node: Node) -> Node:
    """Return the expression inside any parentheses."""
    while node.type == "parenthesized_expression" and node.named_child_count == 1:
        node = node.named_children[0]
    return node


def single_index(subscript: Node) -> Node | None:
    """Return the index of `a[i]`; None where there are several, or none."""
    indices = field(subscript, "indices")
    return indices.named_children[0] if indices is not None and indices.named_child_count == 1 else None


def declarators(node: Node) -> Iterator[tuple[Node, Node | None, Node | None]]:
    """Yield each declarator of a declaration with its target and its initial value; None where it has none."""
    for each in node.children_by_field_name("declarator"):
        if each.type == "init_declarator":
            yield each, field(each, "declarator"), field(each, "value")
        else:
            yield each, each, None


def outermost(node: Node, kinds: Collection[str]) -> tuple[Node, Node | None]:
    """Climb from a node through nodes of these kinds: the last one reached, and the node around it."""
    while (parent := node.parent) is not None and parent.type in kinds:
        node = parent
    return node, parent


def surroundings(node: Node) -> Iterator[Node]:
    """Yield the nodes around a node, from the inside out."""
    while (around := node.parent) is not None:
        yield around
        node = around


DECLARING: Final = words("""
    declaration parameter_declaration optional_parameter_declaration field_declaration for_range_loop
    type_definition function_definition init_declarator lambda_capture_initializer
    variadic_parameter_declaration
""")
_NAMED_TYPES: Final = words("""
    struct_specifier class_specifier union_specifier enum_specifier alias_declaration enumerator
    namespace_definition concept_definition
""")
_TYPE_PARAMETERS: Final = words("""
    type_parameter_declaration optional_type_parameter_declaration variadic_type_parameter_declaration
    template_template_parameter_declaration
""")


@dataclass(frozen=True)
class Part:
    """A tree of part of the source; a byte of the tree is `shift` bytes further on in the source.

    Before the byte `start` of the source, the tree holds a stand-in for what is written there.
    """

    node: Node
    shift: int
    start: int = 0

    def offset(self, node: Node) -> int:
        """The byte of the source where a node of the part begins."""
        return node.start_byte + self.shift


def all_nodes(parts: Iterable[Part]) -> Iterator[tuple[Part, Node]]:
    """Yield every node of every part."""
    for part in parts:
        for node in descend(part.node):
            yield part, node


def introduced(node: Node) -> Iterator[tuple[str, bool]]:
    """Yield the names that a node declares, each with whether it is a type."""
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
    """Return the tokens of a node of a part."""
    return text.within(max(part.offset(node), part.start), node.end_byte + part.shift)


def is_seen(offset: int, kernel: int | None, kernels: Sequence[Span]) -> bool:
    """Return whether a byte lies outside all kernels but this one; always true with None."""
    if kernel is None:
        return True
    index = bisect_right(kernels, offset, key=lambda span: span.start) - 1
    return index in (-1, kernel) or offset >= kernels[index].end
