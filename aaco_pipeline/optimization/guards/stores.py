"""What a rewritten kernel may declare and write: its own variables and its buffers, nothing that outlives the call.

A variable of the file, or one of the runtime's such as threadIdx, lives on after the call: written, or reached through
a reference or pointer, it would be a memory from one call to the next.
"""

from collections.abc import Iterator
from typing import Final

from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.optimization.guards.subject import Subject
from aaco_pipeline.optimization.source.grammar import Node, descend, text_of
from aaco_pipeline.optimization.source.vocabulary import BUILTIN_NAMES, is_type

#: The runtime's structures, of which a member is a value and the whole is not.
_WHOLE: Final = frozenset(("threadIdx", "blockIdx", "blockDim", "gridDim"))


def check_stores(old: Subject, new: Subject) -> None:
    """Refused, guard `calls`, at a store beyond the kernel's own, or at a declaration of no known type."""
    known = {_plain(node) for node in descend(old.part.node)}
    lasting = _lasting(new)
    for node in descend(new.part.node):
        if node.type == "declaration":
            _check_type(old, new, node)
        elif node.type == "identifier" and text_of(node) in lasting and not _is_plain_read(node, known):
            raise _refused(new, node.parent or node, f"{text_of(node)} outlives the call and is more than read")


def _plain(node: Node) -> str:
    return "".join(text_of(node).split())


def _refused(new: Subject, node: Node, what: str) -> Refused:
    return Refused("calls", f"line {new.line_of(node)}: {what}: `{' '.join(text_of(node).split())[:80]}`")


def _lasting(new: Subject) -> frozenset[str]:
    """The variables that outlive a call: the file's, and the runtime's."""
    facts = new.reading.facts
    outer = new.outer_names - facts.types - facts.functions.keys() - facts.macros.keys()
    return (outer | BUILTIN_NAMES) - new.locals - new.parameters


def _check_type(old: Subject, new: Subject, node: Node) -> None:
    """A declaration begins with a type: `sum * state;` is read as one of `state`, and is none."""
    kind = node.child_by_field_name("type")
    if kind is None or kind.type in ("primitive_type", "sized_type_specifier", "placeholder_type_specifier"):
        return
    name = text_of(kind)
    if name in new.locals | new.parameters or not (is_type(name) or name in set(_types(old))):
        raise _refused(new, node, f"{name} is no type that the baseline's kernel uses")


def _types(old: Subject) -> Iterator[str]:
    for parameter in old.kernel.parameters:
        yield parameter.type.replace("const", "").strip(" *&")
    for node in descend(old.part.node):
        if node.type == "declaration":
            yield text_of(node.child_by_field_name("type"))


def _is_plain_read(node: Node, known: set[str]) -> bool:
    """Whether a lasting variable's value alone is taken, no address and no reference; or it is as in the baseline."""
    current, parent = node, node.parent
    while parent is not None and (
        parent.type in ("field_expression", "parenthesized_expression")
        or (parent.type == "subscript_expression" and parent.child_by_field_name("argument") == current)
    ):
        current, parent = parent, parent.parent
    if parent is None or _plain(parent) in known:
        return True
    if parent.type in ("update_expression", "pointer_expression"):
        return False
    if parent.type == "assignment_expression" and parent.child_by_field_name("left") == current:
        return False
    if parent.type == "init_declarator":
        target = parent.child_by_field_name("declarator")
        # An array that decays to a pointer is reached as by a reference.
        return target is not None and target.type == "identifier" and _is_value(current)
    return _is_value(current) or parent.type in ("subscript_argument_list", "condition_clause")


def _is_value(node: Node) -> bool:
    """Whether an expression is a value for sure: a member, an element, or a plain constant's name."""
    if node.type == "parenthesized_expression":
        return all(_is_value(each) for each in node.named_children)
    return node.type in ("field_expression", "subscript_expression") or text_of(node) in BUILTIN_NAMES - _WHOLE
