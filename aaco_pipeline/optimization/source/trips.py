"""How often a loop runs, where its header and body prove it."""

from dataclasses import dataclass
from typing import Final

from aaco_pipeline.optimization.source.constants import Constant, evaluate
from aaco_pipeline.optimization.source.facts import Facts
from aaco_pipeline.optimization.source.grammar import Node, descend, text_of
from aaco_pipeline.optimization.source.parts import Part, tokens_of
from aaco_pipeline.optimization.source.preprocessor import expanded_words
from aaco_pipeline.optimization.source.vocabulary import INTEGER_BITS, PURE_CALLS, UNSIGNED, hazard_of, is_type, words

_SWAPPED: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "!=": "!="}
_ASSIGNS: Final = frozenset(words("= += -= *= /= %= <<= >>= &= |= ^= ++ --"))
#: Around the loop's variable these only read it.
_READS: Final = frozenset(
    words(
        "binary_expression subscript_argument_list cast_expression unary_expression condition_clause case_statement"
        " initializer_list return_statement subscript_designator"
    )
)
#: Around the loop's variable these hand it on as it is: what is around them decides.
_HANDS_ON: Final = frozenset(words("parenthesized_expression conditional_expression comma_expression"))
_MOST_STEPS: Final = 64


def trip_count(facts: Facts, part: Part, loop: Node) -> int | None:
    """The number of times that a loop's body runs, None where header and body do not prove one.

    What leaves the loop early is the caller's to check. A variable's type must hold every value that it takes.
    """
    if loop.type == "do_statement":
        return 1 if _condition_is(facts, part, loop, 0) else None
    if loop.type == "for_range_loop":
        over = loop.child_by_field_name("right")
        if over is not None and over.type == "initializer_list":
            return len(over.named_children)
        extent = facts.arrays.get(text_of(over))
        return None if extent is None else extent.value
    if loop.type == "while_statement":
        return 0 if _condition_is(facts, part, loop, 0) else None
    counted = _counted(facts, part, loop)
    return None if counted is None else counted.trips


def _condition_is(facts: Facts, part: Part, loop: Node, value: int) -> bool:
    condition = loop.child_by_field_name("condition")
    if condition is None:
        return False
    words = [token.text for token in tokens_of(facts.text, part, condition)]
    return words in (["(", str(value), ")"], ["(", "false", ")"] if value == 0 else [])


def counter_of(facts: Facts, part: Part, loop: Node) -> tuple[str, int, int] | None:
    """The variable of a counted loop with the least and the greatest value that its body sees; None of other loops."""
    counted = _counted(facts, part, loop)
    if counted is None or counted.trips == 0:
        return None
    return counted.name, min(counted.first, counted.last), max(counted.first, counted.last)


@dataclass(frozen=True)
class _Counted:
    """`last` is the variable's value in the last pass."""

    name: str
    first: int
    last: int
    trips: int


def _counted(facts: Facts, part: Part, loop: Node) -> _Counted | None:
    started = _start(facts, part, loop.child_by_field_name("initializer")) if loop.type == "for_statement" else None
    if started is None:
        return None
    name, first, bits, unsigned = started
    compared = _condition(facts, part, loop.child_by_field_name("condition"), name)
    step = _step(facts, part, loop.child_by_field_name("update"), name)
    if compared is None or step is None or not _only_read(facts, part, loop, name):
        return None
    operator, bound = compared
    values = _values(first.value, operator, bound.value, *step)
    if values is None:
        return None
    trips, last, after = values
    lowest, highest = min(first.value, after, bound.value), max(first.value, after, bound.value)
    if lowest < 0 and (unsigned or bound.unsigned or first.unsigned):
        return None
    fits = highest < 1 << (bits if unsigned else bits - 1) and lowest >= -(1 << (bits - 1))
    return _Counted(name, first.value, last, trips) if fits else None


def _start(facts: Facts, part: Part, node: Node | None) -> tuple[str, Constant, int, bool] | None:
    """The variable of a header with its first value, the bits of its type and whether that has no sign."""
    if node is None:
        return None
    if node.type == "declaration":
        declarators = node.children_by_field_name("declarator")
        kind = " ".join(text_of(node.child_by_field_name("type")).split())
        if len(declarators) != 1 or kind not in INTEGER_BITS or declarators[0].type != "init_declarator":
            return None
        target, value = (declarators[0].child_by_field_name(field) for field in ("declarator", "value"))
        bits, unsigned = INTEGER_BITS[kind], kind in UNSIGNED
    else:
        while node.type == "expression_statement" and len(node.named_children) == 1:
            node = node.named_children[0]
        if node.type != "assignment_expression" or text_of(node.child_by_field_name("operator")) != "=":
            return None
        target, value = node.child_by_field_name("left"), node.child_by_field_name("right")
        # The type was declared elsewhere: what fits the smallest of them fits it.
        bits, unsigned = 8, False
    if target is None or target.type != "identifier" or value is None:
        return None
    first = evaluate(tokens_of(facts.text, part, value), facts.constant)
    return None if first is None else (text_of(target), first, bits, unsigned)


def _condition(facts: Facts, part: Part, node: Node | None, name: str) -> tuple[str, Constant] | None:
    if node is not None and node.type == "identifier" and text_of(node) == name:
        # A value is tested alone: whether it is 0.
        return "!=", Constant(0, False)
    if node is None or node.type != "binary_expression":
        return None
    left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
    operator = text_of(node.child_by_field_name("operator"))
    if operator not in _SWAPPED or left is None or right is None:
        return None
    if text_of(left) != name:
        left, right, operator = right, left, _SWAPPED[operator]
    bound = evaluate(tokens_of(facts.text, part, right), facts.constant) if text_of(left) == name else None
    return None if bound is None else (operator, bound)


def _step(facts: Facts, part: Part, node: Node | None, name: str) -> tuple[str, int] | None:
    """How the header moves its variable: an operator of `+ * / << >>` and a constant."""
    if node is None or name not in (text_of(node.child_by_field_name(field)) for field in ("argument", "left")):
        return None
    if node.type == "update_expression":
        return "+", 1 if "++" in text_of(node) else -1
    operator, right = text_of(node.child_by_field_name("operator")), node.child_by_field_name("right")
    if operator == "=" and right is not None and text_of(right.child_by_field_name("left")) == name:
        operator = text_of(right.child_by_field_name("operator")) + "="
        right = right.child_by_field_name("right")
    value = evaluate(tokens_of(facts.text, part, right), facts.constant) if right is not None else None
    if node.type != "assignment_expression" or value is None or value.value <= 0:
        return None
    return {
        "+=": ("+", value.value),
        "-=": ("+", -value.value),
        **{f"{sign}=": (sign, value.value) for sign in ("*", "/", "<<", ">>")},
    }.get(operator)


def _values(first: int, operator: str, bound: int, step: str, by: int) -> tuple[int, int, int] | None:
    """How often the body runs, the variable's value in the last pass and after it; None where it does not end."""
    if step == "+":
        if operator == "!=":
            count, rest = divmod(bound - first, by)
            return (count, bound - by, bound) if rest == 0 and count >= 0 else None
        rising = operator in ("<", "<=")
        if rising != (by > 0):
            return (0, first, first) if not _holds(first, operator, bound) else None
        count = len(range(first, bound + {"<=": 1, ">=": -1}.get(operator, 0), by))
        return count, first + (count - 1) * by, first + count * by
    last = value = first
    for count in range(_MOST_STEPS):
        if not _holds(value, operator, bound):
            return count, last, value
        moved = {"*": value * by, "/": value // by, "<<": value << min(by, 40), ">>": value >> by}[step]
        if value < 0 or moved == value:
            return None
        last, value = value, moved
    return None


def _holds(value: int, operator: str, bound: int) -> bool:
    return {
        "<": value < bound,
        "<=": value <= bound,
        ">": value > bound,
        ">=": value >= bound,
        "!=": value != bound,
    }[operator]


def _only_read(facts: Facts, part: Part, loop: Node, name: str) -> bool:
    """Whether a loop's body leaves the variable as it is, in macros that name it too."""
    body = loop.child_by_field_name("body")
    if body is None:
        return False
    for token in tokens_of(facts.text, part, body):
        if token.text in facts.macros and name in expanded_words(token.text, facts.macros):
            return False
    return all(_is_read(facts, node) for node in descend(body) if node.type == "identifier" and text_of(node) == name)


def _is_read(facts: Facts, node: Node) -> bool:
    child, parent = node, node.parent
    while parent is not None and parent.type in _HANDS_ON:
        child, parent = parent, parent.parent
    if parent is None or parent.type in _READS or parent.type in ("expression_statement", "if_statement"):
        return True
    if parent.type == "argument_list":
        return _reads_its_arguments(facts, parent)
    if parent.type == "init_declarator":
        target = parent.child_by_field_name("declarator")
        return target is not None and target.type == "identifier" and target != child
    if parent.type == "assignment_expression":
        return parent.child_by_field_name("left") != child
    return False


def _reads_its_arguments(facts: Facts, arguments: Node) -> bool:
    """Whether a call only reads: a conversion, mathematics, a vector, or a macro without an assignment."""
    call = arguments.parent
    if call is not None and call.type == "init_declarator":
        return True
    function = call.child_by_field_name("function") if call is not None and call.type == "call_expression" else None
    if function is None:
        return False
    name = text_of(function).split("<")[0].rsplit("::", 1)[-1].strip()
    if name in facts.macros:
        words = expanded_words(name, facts.macros)
        marks = {
            token.text
            for each in (name, *words & facts.macros.keys())
            for macro in facts.macros[each]
            for token in macro.body
        }
        return not marks & _ASSIGNS and "&" not in marks and not words & facts.functions.keys()
    by_value = name in PURE_CALLS or is_type(name) or hazard_of(name) == "cross_lane"
    return by_value and name not in facts.functions and name not in ("swap", "exchange")
