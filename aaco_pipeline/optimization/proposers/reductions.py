"""Loops that sum into one variable, as the tree proves them: what may be rewritten without asking what else happens.

`for (int k = a; k < b; k += s) acc += f(k);` where `f` only computes, `b` and `s` stay what they are, and `acc` is a
local of which the body does nothing but add to it. The body may first name values of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from aaco_pipeline.optimization.proposers.syntax import Otherwise, Subject, names, replaced
from aaco_pipeline.optimization.source import Loop
from aaco_pipeline.optimization.source.grammar import Node, text_of

#: The types of sums, with the zero that a further sum begins with.
ZEROS: Final = {"float": "0.0f", "double": "0.0", "int": "0", "unsigned": "0u", "unsigned int": "0u"}
_FUSED: Final = {"fmaf": "float", "fma": "double", "__fmaf_rn": "float"}


@dataclass(frozen=True)
class Reduction:
    """One such loop. `begin` is the declaration of its counter with its semicolon, `step` None where it counts by one.

    `sums` are the places in `body` where the accumulator stands.
    """

    loop: Loop
    counter: str
    begin: str
    test: str
    operator: str
    bound: str
    step: str | None
    update: str
    accumulator: str
    type: str
    body: Node
    sums: tuple[Node, ...]


def reduction_of(subject: Subject, loop: Loop) -> Reduction:
    """The loop as a sum. Otherwise, where anything of it is not proven."""
    if not loop.safe:
        raise Otherwise(f"{loop.identifier} is not safe to rewrite: {loop.reason}")
    if "volatile" in subject.words:
        raise Otherwise(f"{loop.identifier} is in a file with volatile values, whose accesses stay as they are")
    if "operator" in subject.words:
        raise Otherwise(f"{loop.identifier} is in a file with operators of its own, which may do more than compute")
    if any(loop.span.start <= one.start < loop.span.end for one in subject.directives):
        raise Otherwise(f"{loop.identifier} holds a line of the preprocessor")
    node = subject.statement(loop)
    if node is None or node.type != "for_statement":
        raise Otherwise(f"{loop.identifier} is no for loop")
    counter, begin, signed = _counter(subject, loop, node.child_by_field_name("initializer"))
    test, operator, bound = _test(subject, loop, node.child_by_field_name("condition"), counter, signed)
    step, update = _update(subject, loop, node.child_by_field_name("update"), counter)
    body = node.child_by_field_name("body")
    assert body is not None, "a for statement without errors has a body"
    accumulator, sums = _body(subject, loop, body, counter)
    for fixed in (test, *([] if step is None else [step])):
        if names(fixed, accumulator):
            raise Otherwise(f"{loop.identifier} ends by its own sum")
    declared = subject.types.get(accumulator, "")
    if declared not in ZEROS:
        raise Otherwise(f"{accumulator}, which {loop.identifier} adds to, is no local of a plain type declared once")
    return Reduction(
        loop=loop,
        counter=counter,
        begin=begin,
        test=text_of(test),
        operator=operator,
        bound=text_of(bound),
        step=None if step is None else text_of(step),
        update=text_of(update),
        accumulator=accumulator,
        type=declared,
        body=body,
        sums=tuple(sums),
    )


def body_of(subject: Subject, one: Reduction, changes: Sequence[tuple[Node, str]]) -> str:
    """The loop's body as a block, with another text in the place of each node of `changes`."""
    start = one.body.start_byte
    text = replaced(
        subject.task.source[start : one.body.end_byte],
        [(node.start_byte - start, node.end_byte - start, new) for node, new in changes],
    ).decode()
    return text.replace("\n", "\n    ") if one.body.type == "compound_statement" else f"{{ {text} }}"


def _counter(subject: Subject, loop: Loop, node: Node | None) -> tuple[str, str, bool]:
    declarator = None if node is None else node.child_by_field_name("declarator")
    if node is None or node.type != "declaration" or declarator is None or declarator.type != "init_declarator":
        raise Otherwise(f"{loop.identifier} does not declare its counter")
    if len(node.children_by_field_name("declarator")) != 1:
        raise Otherwise(f"{loop.identifier} declares more than its counter")
    target, value = declarator.child_by_field_name("declarator"), declarator.child_by_field_name("value")
    if target is None or value is None or target.type != "identifier":
        raise Otherwise(f"{loop.identifier} does not begin its counter with a value")
    if (reason := subject.effects(value)) is not None:
        raise Otherwise(f"{loop.identifier} begins with more than a value: {reason}")
    counter, written = text_of(target), text_of(node.child_by_field_name("type"))
    signed = _sign(written)
    if signed is None or counter in subject.macros or any(child.type == "type_qualifier" for child in node.children):
        raise Otherwise(f"{loop.identifier} counts in {written}, not in a plain type of 32 bits")
    return counter, text_of(node), signed


def _sign(written: str) -> bool | None:
    return {"int": True, "int32_t": True, "unsigned": False, "unsigned int": False, "uint32_t": False}.get(written)


def _test(subject: Subject, loop: Loop, node: Node | None, counter: str, signed: bool) -> tuple[Node, str, Node]:
    left = None if node is None else node.child_by_field_name("left")
    right = None if node is None else node.child_by_field_name("right")
    operator = text_of(None if node is None else node.child_by_field_name("operator"))
    if node is None or left is None or right is None or operator not in ("<", "<=") or text_of(left) != counter:
        raise Otherwise(f"{loop.identifier} does not end by its counter reaching a bound from below")
    if names(right, counter):
        raise Otherwise(f"{loop.identifier} has a bound that moves with its counter")
    if (reason := subject.effects(right)) is not None:
        raise Otherwise(f"{loop.identifier} ends by more than a value: {reason}")
    if not subject.is_number(right) and subject.is_signed(right) is not signed:
        raise Otherwise(f"{loop.identifier} compares its counter with a bound of another type, or of one not known")
    return node, operator, right


def _update(subject: Subject, loop: Loop, node: Node | None, counter: str) -> tuple[Node | None, Node]:
    if node is not None and node.type == "update_expression":
        if text_of(node).replace(" ", "") in (f"++{counter}", f"{counter}++"):
            return None, node
    elif node is not None and node.type == "assignment_expression":
        left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
        operator = text_of(node.child_by_field_name("operator"))
        if right is not None and text_of(left) == counter and operator == "+=" and not names(right, counter):
            if (reason := subject.effects(right)) is not None:
                raise Otherwise(f"{loop.identifier} steps by more than a value: {reason}")
            if subject.is_signed(right) is None or text_of(right) == "0":
                raise Otherwise(f"{loop.identifier} steps by a value of a type that is not known")
            return right, node
    raise Otherwise(f"{loop.identifier} does not step by a fixed value at its end")


def _body(subject: Subject, loop: Loop, body: Node, counter: str) -> tuple[str, list[Node]]:
    statements = list(body.named_children) if body.type == "compound_statement" else [body]
    accumulator: str | None = None
    sums: list[Node] = []
    for statement in statements:
        if statement.type == "declaration":
            _named_value(subject, loop, statement)
            continue
        name, places = _sum(subject, loop, statement)
        if accumulator not in (None, name):
            raise Otherwise(f"{loop.identifier} adds to more than one variable")
        accumulator = name
        sums += places
    if accumulator is None:
        raise Otherwise(f"{loop.identifier} adds to nothing")
    if len(names(body, accumulator)) != len(sums):
        raise Otherwise(f"{loop.identifier} uses {accumulator} for more than adding to it")
    if accumulator == counter:
        raise Otherwise(f"{loop.identifier} adds to its counter")
    return accumulator, sums


def _named_value(subject: Subject, loop: Loop, node: Node) -> None:
    """A value of the body's own. Otherwise, where it is more: static, local data share, an array, a reference."""
    for child in node.children:
        if child.type in ("type_qualifier", "storage_class_specifier") and text_of(child) != "const":
            raise Otherwise(f"line {subject.line(child)} of {loop.identifier} declares more than a value")
    for declarator in node.children_by_field_name("declarator"):
        target, value = declarator.child_by_field_name("declarator"), declarator.child_by_field_name("value")
        if declarator.type != "init_declarator" or target is None or target.type != "identifier" or value is None:
            raise Otherwise(f"line {subject.line(declarator)} of {loop.identifier} declares more than a value")
        if (reason := subject.effects(value)) is not None:
            raise Otherwise(f"{loop.identifier} names more than a value: {reason}")


def _sum(subject: Subject, loop: Loop, statement: Node) -> tuple[str, list[Node]]:
    """The variable of a sum and its places in `acc += term`, `acc = acc + term` or `acc = fmaf(a, b, acc)`."""
    wrong = Otherwise(f"line {subject.line(statement)} of {loop.identifier} does more than add to one variable")
    node = statement.named_children[0] if statement.type == "expression_statement" and statement.children else None
    if node is None or node.type != "assignment_expression":
        raise wrong
    left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
    operator = text_of(node.child_by_field_name("operator"))
    if left is None or right is None or left.type != "identifier" or text_of(left) in subject.macros:
        raise wrong
    if (reason := subject.effects(right)) is not None:
        raise Otherwise(f"{loop.identifier} adds more than a value: {reason}")
    name = text_of(left)
    inside = names(right, name)
    if operator == "+=" and not inside:
        return name, [left]
    if operator == "=" and len(inside) == 1 and (_adds(right, inside[0]) or _fuses(subject, right, inside[0])):
        return name, [left, inside[0]]
    raise wrong


def _adds(node: Node, place: Node) -> bool:
    """Whether an expression is `acc + term` or `term + acc`."""
    if node.type != "binary_expression" or text_of(node.child_by_field_name("operator")) != "+":
        return False
    return place in (node.child_by_field_name("left"), node.child_by_field_name("right"))


def _fuses(subject: Subject, node: Node, place: Node) -> bool:
    """Whether the sum is the addend of a fused multiply-add in the sum's own type."""
    called = text_of(node.child_by_field_name("function")) if node.type == "call_expression" else ""
    arguments = node.child_by_field_name("arguments")
    if called not in _FUSED or arguments is None or arguments.named_child_count != 3:
        return False
    return subject.types.get(text_of(place)) == _FUSED[called] and arguments.named_children[2] == place
