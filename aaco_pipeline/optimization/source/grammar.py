"""The parse tree of a source, bounded in size and depth, and where its grammar did not understand it."""

from collections.abc import Iterator
from typing import Final

import tree_sitter
import tree_sitter_cuda

from aaco_pipeline.optimization.candidates import Refused

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
