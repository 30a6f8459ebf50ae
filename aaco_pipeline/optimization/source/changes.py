"""Whether a call changes more than variables of its own: what a loop's header may not do."""

from collections.abc import Iterator
from typing import Final

from aaco_pipeline.optimization.source.facts import Facts
from aaco_pipeline.optimization.source.grammar import Node, declared, descend, text_of
from aaco_pipeline.optimization.source.parts import DECLARING, Part, tokens_of
from aaco_pipeline.optimization.source.vocabulary import words

CHANGES: Final = ("assignment_expression", "update_expression")
_MARKS: Final = frozenset(words("= += -= *= /= %= <<= >>= &= |= ^= ++ --"))
#: Operators that are written as a change are seen where they are written.
_WRITTEN: Final = frozenset(f"operator{mark}" for mark in _MARKS)


def changing_calls(facts: Facts, part: Part, expression: Node) -> Iterator[str]:
    """The functions, macros and operators of this file by which an expression may change a value unseen."""
    called = {token.text for token in tokens_of(facts.text, part, expression) if token.kind == "word"}
    yield from sorted(name for name in called if _changes(facts, name, set()))
    kinds = {node.type for node in descend(expression)}
    for operator in facts.operators.running(called, facts.kernel):
        if operator.lifetime:
            continue
        name = "".join(text_of(operator.part.node.child_by_field_name("declarator")).split())
        unused = ("operator()" in name and "call_expression" not in kinds) or (
            "operator[]" in name and "subscript_expression" not in kinds
        )
        written = any(name.startswith(f"{each}(") for each in _WRITTEN)
        if not unused and not written and _body_changes(facts, operator.part, set()):
            yield "an operator"


def _changes(facts: Facts, name: str, seen: set[str]) -> bool:
    """Whether a macro or function of this file, or what it uses, changes more than its own variables."""
    if name in seen:
        return False
    seen.add(name)
    for macro in facts.macros.get(name, ()):
        brought = {token.text for token in macro.body}
        if brought & _MARKS or any(_changes(facts, word, seen) for word in brought):
            return True
    return any(_body_changes(facts, part, seen) for part in facts.functions.get(name, ()))


def _body_changes(facts: Facts, part: Part, seen: set[str]) -> bool:
    own = {name for node in descend(part.node) for name in _own_names(node)}
    for node in descend(part.node):
        if node.type in CHANGES and _root(node) not in own:
            return True
    used = {token.text for token in tokens_of(facts.text, part, part.node) if token.kind == "word"}
    return any(_changes(facts, word, seen) for word in used)


def _own_names(node: Node) -> Iterator[str]:
    """What a node declares as a value of its own: no pointer, reference, member or static."""
    if node.type not in DECLARING or node.type in ("field_declaration", "function_definition", "type_definition"):
        return
    if "static" in {text_of(child) for child in node.children}:
        return
    for each in node.children_by_field_name("declarator"):
        target = each
        while target.type in ("init_declarator", "array_declarator"):
            inner = target.child_by_field_name("declarator")
            if inner is None:
                return
            target = inner
        if target.type == "identifier":
            yield from (text_of(name) for name in declared(target))


def _root(change: Node) -> str | None:
    """The name of the value that a change is made to; None where it is reached through a pointer or a call."""
    target = change.child_by_field_name("argument") or change.child_by_field_name("left")
    while target is not None and target.type in (
        "parenthesized_expression",
        "subscript_expression",
        "field_expression",
    ):
        if "->" in [child.type for child in target.children]:
            return None
        if target.type == "parenthesized_expression":
            target = target.named_children[0] if target.named_children else None
        else:
            target = target.child_by_field_name("argument")
    return text_of(target) if target is not None and target.type == "identifier" else None
