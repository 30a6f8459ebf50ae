"""The loops of a kernel's own body: trip counts, contents, and whether they can be unrolled."""

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.optimization.source.facts import Constant, Facts, evaluate
from aaco_pipeline.optimization.source.hazards import CHANGES, ORDER, Hazard, Hazards, body_of_once, changing_calls
from aaco_pipeline.optimization.source.kernels import Loop, LoopKind, Span
from aaco_pipeline.optimization.source.tokens import Token, expanded_words, is_specifier, words_in
from aaco_pipeline.optimization.source.tree import (
    Node,
    Part,
    declarators,
    descend,
    field,
    is_broken,
    operands,
    text_of,
    tokens_of,
)
from aaco_pipeline.optimization.source.vocabulary import INTEGER_BITS, PURE_CALLS, UNSIGNED, hazard_of, is_type, words

_SWAPPED: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "!=": "!="}
_COMPARED: Final = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "!=": operator.ne}
_ASSIGNS: Final = words("= += -= *= /= %= <<= >>= &= |= ^= ++ --")
#: Constructs that only read the loop's variable.
_READS: Final = words("""
    binary_expression subscript_argument_list cast_expression unary_expression condition_clause case_statement
    initializer_list return_statement subscript_designator
""")
#: Constructs that pass the loop's variable on: the enclosing construct decides.
_HANDS_ON: Final = words("parenthesized_expression conditional_expression comma_expression")
_MOST_STEPS: Final = 64


def trip_count(facts: Facts, part: Part, loop: Node) -> int | None:
    """Return a loop's trip count; None if header and body do not prove it.

    The caller checks for early exits. A variable's type must be able to represent every value that it takes.
    """
    if loop.type in ("do_statement", "while_statement"):
        condition = field(loop, "condition")
        tokens = () if condition is None else tokens_of(facts.text, part, condition)
        is_never = [token.text for token in tokens] in (["(", "0", ")"], ["(", "false", ")"])
        return int(loop.type == "do_statement") if is_never else None
    if loop.type == "for_range_loop":
        over = field(loop, "right")
        if over is not None and over.type == "initializer_list":
            return len(over.named_children)
        extent = facts.arrays.get(text_of(over))
        return None if extent is None else extent.value
    counted = _counted(facts, part, loop)
    return None if counted is None else counted.trips


def counter_of(facts: Facts, part: Part, loop: Node) -> tuple[str, int, int] | None:
    """Return a counted loop's variable with its smallest and largest value in the body; None for other loops."""
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
    started = _start(facts, part, field(loop, "initializer")) if loop.type == "for_statement" else None
    if started is None:
        return None
    name, first, bits, unsigned = started
    compared = _condition(facts, part, field(loop, "condition"), name)
    step = _step(facts, part, field(loop, "update"), name)
    if compared is None or step is None or not _only_read(facts, part, loop, name):
        return None
    sign, bound = compared
    if (values := _values(first.value, sign, bound.value, *step)) is None:
        return None
    trips, last, after = values
    lowest, highest = min(first.value, after, bound.value), max(first.value, after, bound.value)
    if lowest < 0 and (unsigned or bound.unsigned or first.unsigned):
        return None
    fits = highest < 1 << (bits if unsigned else bits - 1) and lowest >= -(1 << (bits - 1))
    return _Counted(name, first.value, last, trips) if fits else None


def _start(facts: Facts, part: Part, node: Node | None) -> tuple[str, Constant, int, bool] | None:
    """Return a header's variable with its first value, the bits of its type and whether that is unsigned."""
    if node is None:
        return None
    if node.type == "declaration":
        found = list(declarators(node))
        kind = " ".join(text_of(field(node, "type")).split())
        if len(found) != 1 or kind not in INTEGER_BITS:
            return None
        _, target, value = found[0]
        bits, unsigned = INTEGER_BITS[kind], kind in UNSIGNED
    else:
        while node.type == "expression_statement" and len(node.named_children) == 1:
            node = node.named_children[0]
        target, assigns, value = operands(node)
        if node.type != "assignment_expression" or assigns != "=":
            return None
        # The type is declared elsewhere: assume the smallest candidate type.
        bits, unsigned = 8, False
    if target is None or target.type != "identifier" or value is None:
        return None
    first = evaluate(tokens_of(facts.text, part, value), facts.constant)
    return None if first is None else (text_of(target), first, bits, unsigned)


def _condition(facts: Facts, part: Part, node: Node | None, name: str) -> tuple[str, Constant] | None:
    if node is not None and node.type == "identifier" and text_of(node) == name:
        # A value without comparison is compared with 0.
        return "!=", Constant(0, False)
    if node is None or node.type != "binary_expression":
        return None
    left, sign, right = operands(node)
    if text_of(left) != name:
        left, right, sign = right, left, _SWAPPED.get(sign, "")
    if sign not in _SWAPPED or text_of(left) != name or right is None:
        return None
    bound = evaluate(tokens_of(facts.text, part, right), facts.constant)
    return None if bound is None else (sign, bound)


def _step(facts: Facts, part: Part, node: Node | None, name: str) -> tuple[str, int] | None:
    """Return how the header moves its variable: an operator of `+ * / << >>` and a constant."""
    if node is None or name not in (text_of(field(node, "argument")), text_of(field(node, "left"))):
        return None
    if node.type == "update_expression":
        return "+", 1 if "++" in text_of(node) else -1
    _, sign, right = operands(node)
    if sign == "=" and right is not None and text_of(field(right, "left")) == name:
        _, sign, right = operands(right)
        sign += "="
    value = evaluate(tokens_of(facts.text, part, right), facts.constant) if right is not None else None
    if node.type != "assignment_expression" or value is None or value.value <= 0:
        return None
    if sign in ("+=", "-="):
        return "+", value.value if sign == "+=" else -value.value
    return (sign[:-1], value.value) if sign in ("*=", "/=", "<<=", ">>=") else None


def _values(first: int, sign: str, bound: int, step: str, by: int) -> tuple[int, int, int] | None:
    """Count the passes, with the variable's value in the last one and after it; None if the loop does not end."""
    if step == "+":
        if sign == "!=":
            count, rest = divmod(bound - first, by)
            return (count, bound - by, bound) if rest == 0 and count >= 0 else None
        if (sign in ("<", "<=")) != (by > 0):
            return (0, first, first) if not _COMPARED[sign](first, bound) else None
        count = len(range(first, bound + {"<=": 1, ">=": -1}.get(sign, 0), by))
        return count, first + (count - 1) * by, first + count * by
    last = value = first
    for count in range(_MOST_STEPS):
        if not _COMPARED[sign](value, bound):
            return count, last, value
        moved = {"*": value * by, "/": value // by, "<<": value << min(by, 40), ">>": value >> by}[step]
        if value < 0 or moved == value:
            return None
        last, value = value, moved
    return None


def _only_read(facts: Facts, part: Part, loop: Node, name: str) -> bool:
    """Return whether a loop's body, including its macros, leaves the variable unchanged."""
    body = field(loop, "body")
    if body is None or any(name in expanded_words(one.text, facts.macros) for one in tokens_of(facts.text, part, body)):
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
        target = field(parent, "declarator")
        return target is not None and target.type == "identifier" and target != child
    return parent.type == "assignment_expression" and field(parent, "left") != child


def _reads_its_arguments(facts: Facts, arguments: Node) -> bool:
    """Return whether a call only reads: a conversion, mathematics, a vector, or a macro without an assignment."""
    call = arguments.parent
    if call is not None and call.type == "init_declarator":
        return True
    function = field(call, "function") if call is not None and call.type == "call_expression" else None
    if function is None:
        return False
    name = text_of(function).split("<")[0].rsplit("::", 1)[-1].strip()
    if name in facts.macros:
        words = expanded_words(name, facts.macros)
        used = (name, *words & facts.macros.keys())
        marks = {token.text for each in used for macro in facts.macros[each] for token in macro.body}
        return not marks & _ASSIGNS and "&" not in marks and not words & facts.functions.keys()
    by_value = name in PURE_CALLS or is_type(name) or hazard_of(name) == "cross_lane"
    return by_value and name not in facts.functions and name not in ("swap", "exchange")


KINDS: Final[Mapping[str, LoopKind]] = {
    "for_statement": "for",
    "while_statement": "while",
    "do_statement": "do",
    "for_range_loop": "range",
}
MOST_LOOPS: Final = 256
MOST_NESTED: Final = 12
_LEAVES: Final = ("lambda_expression", "function_definition")


@dataclass(frozen=True)
class _Found:
    node: Node
    identifier: str
    parent: str | None


class Loops:
    """Describes the loops of one kernel; `part` is its body's tree."""

    def __init__(self, facts: Facts, hazards: Hazards, part: Part) -> None:
        self._facts = facts
        self._part = part
        self._finder = hazards
        #: The hazards of the entire body.
        self.hazards: Final = hazards.of(part, part.node)
        self._counts: dict[tuple[int, int], int | None] = {}

    def described(self) -> tuple[Loop, ...]:
        """Describe every loop, in order. Refused, guard `parse`, if there are too many or they nest too deep."""
        found = list(_own(self._part.node))
        if len(found) > MOST_LOOPS or any(each.identifier.count(".") >= MOST_NESTED for each in found):
            line = self._facts.text.line(self._part.start)
            limits = f"more than {MOST_LOOPS} loops, or loops in more than {MOST_NESTED} others"
            raise Refused("parse", f"line {line}: the kernel has {limits}, which are not read")
        return tuple(self._loop(each) for each in found)

    def _loop(self, found: _Found) -> Loop:
        node, shift = found.node, self._part.shift
        span, body = Span(node.start_byte + shift, node.end_byte + shift), field(node, "body")
        pragma = self._pragma(span)
        hazards = [
            # A line that is not understood may open or close a loop anywhere in the body.
            *(each for each in self.hazards if span.start <= each.offset < span.end or each.kind == "damaged"),
            *(Hazard(each.kind, span.start, each.text) for each in self._finder.implicit(self._part, node)),
            *self._exits(node),
            *self._header(node),
        ]
        if pragma is not None:
            hazards.append(Hazard("pragma", span.start, f"the loop already carries {pragma}"))
        first = min(hazards, key=lambda hazard: (ORDER.index(hazard.kind), hazard.offset), default=None)
        return Loop(
            identifier=found.identifier,
            kind=KINDS[node.type],
            line=self._facts.text.line(span.start),
            span=span,
            body=Span(span.end, span.end) if body is None else Span(body.start_byte + shift, body.end_byte + shift),
            trip_count=self._trips(self._part, node),
            innermost=not self._holds_a_runtime_loop(self._part, node),
            safe=first is None,
            reason=None if first is None else f"line {self._facts.text.line(first.offset)}: {first.text}",
            pragma=pragma,
            parent=found.parent,
        )

    def _exits(self, loop: Node) -> Iterator[Hazard]:
        """Find `break`, `return` and the like that leave this loop; its own `continue` does not."""
        for node, depth, switches in _statements(loop):
            what = node.type.removesuffix("_statement")
            left = (what == "break" and depth == 0 and switches == 0) or what in ("return", "throw", "co_return")
            if left:
                yield Hazard("exit", self._part.offset(node), f"`{what}` leaves the loop")

    def _header(self, loop: Node) -> Iterator[Hazard]:
        part = self._part
        condition, update = field(loop, "condition"), field(loop, "update")
        for node in descend(condition):
            if node.type in CHANGES:
                yield Hazard("header", part.offset(node), "the condition changes a value")
        for node in descend(update):
            if node.type in CHANGES:
                target = field(node, "argument") or field(node, "left")
                if target is None or target.type != "identifier":
                    yield Hazard("header", part.offset(node), "the header changes more than a variable")
        for each in filter(None, (condition, update)):
            for name in changing_calls(self._facts, part, each):
                yield Hazard("header", part.offset(each), f"{name} in the header changes a value that is not its own")
        over = field(loop, "right") if loop.type == "for_range_loop" else None
        if over is not None and over.type != "initializer_list" and text_of(over) not in self._facts.arrays:
            yield Hazard("unknown", part.offset(over), f"{text_of(over)} is no array that this source declares")

    def _pragma(self, span: Span) -> str | None:
        """Return the pragma or attribute directly before a loop, as it is written."""
        text = self._facts.text
        index = len(text.within(0, span.start))
        end = text.tokens[index - 1].end if index else 0
        for directive in text.directives:
            if end <= directive.start < span.start and directive.name == "pragma":
                return text.source[directive.start : directive.end].decode("utf-8", "replace").strip()
        before = text.tokens[max(index - 24, 0) : index]
        opened = _last_group(before)
        word = before[opened - 1] if opened else (before[-1] if before else None)
        if word is not None and (word.text == "_Pragma" or self._is_pragma(word.text)):
            return text.source[word.start : end].decode("utf-8", "replace")
        return "an attribute" if [token.text for token in before[-2:]] == ["]", "]"] else None

    def _is_pragma(self, name: str) -> bool:
        """Return whether a macro stands for a pragma: one that expands to nothing does not."""
        macros = self._facts.macros
        return is_specifier(name, macros) and any(macro.body for macro in macros[name])

    def _trips(self, part: Part, node: Node) -> int | None:
        at = (part.shift, node.id)
        if at not in self._counts:
            is_left = any(_leaves(node)) or any(map(is_broken, descend(node)))
            self._counts[at] = None if is_left else trip_count(self._facts, part, node)
        return self._counts[at]

    def _holds_a_runtime_loop(self, part: Part, loop: Node) -> bool:
        """Return whether a loop without a proven trip count runs inside, in the same body or in a called function."""
        if self._has_runtime_loop(part, loop):
            return True
        waiting, seen = words_in(tokens_of(self._facts.text, part, loop)), set[str]()
        while waiting:
            name = waiting.pop()
            seen.add(name)
            for macro in self._facts.macros.get(name, ()):
                words = [token.text for token in macro.body]
                if {"for", "while", "do"} & set(body_of_once(words)):
                    return True
                waiting |= set(words) - seen
            for body in self._facts.functions.get(name, ()):
                if self._has_runtime_loop(body, body.node):
                    return True
                inner = words_in(tokens_of(self._facts.text, body, body.node))
                waiting |= (inner & (self._facts.functions.keys() | self._facts.macros.keys())) - seen
        return False

    def _has_runtime_loop(self, part: Part, around: Node) -> bool:
        inside = (node for node in descend(around) if node != around and node.type in KINDS)
        return any(self._trips(part, node) is None for node in inside)


def _own(body: Node) -> Iterator[_Found]:
    """Yield the loops of a body with their identifiers, without those of lambdas and local types."""
    waiting: list[tuple[Node, str | None]] = [(body, None)]
    counts: dict[str | None, int] = {}
    while waiting:
        node, parent = waiting.pop()
        inside = parent
        if node.type in KINDS:
            counts[parent] = counts.get(parent, 0) + 1
            inside = f"{parent}.{counts[parent]}" if parent else f"loop{counts[parent]}"
            yield _Found(node, inside, parent)
        if node.type not in ("lambda_expression", "struct_specifier", "class_specifier"):
            waiting.extend((child, inside) for child in reversed(node.children))


def _statements(loop: Node) -> Iterator[tuple[Node, int, int]]:
    """Yield a loop's nodes, each with the number of inner loops and of switches around it; no lambda's."""
    waiting = [(child, 0, 0) for child in loop.children]
    while waiting:
        node, loops, switches = waiting.pop()
        yield node, loops, switches
        if node.type in _LEAVES:
            continue
        loops, switches = loops + (node.type in KINDS), switches + (node.type == "switch_statement")
        waiting.extend((child, loops, switches) for child in node.children)


def _leaves(loop: Node) -> Iterator[Node]:
    """Yield what may end a loop before its condition does."""
    for node, depth, switches in _statements(loop):
        breaks = node.type == "break_statement" and depth == 0 and switches == 0
        if breaks or node.type in ("return_statement", "goto_statement", "labeled_statement", "throw_statement"):
            yield node


def _last_group(tokens: Sequence[Token]) -> int | None:
    """Find the bracket that the last token closes; None if that is not a round bracket."""
    if not tokens or tokens[-1].text != ")":
        return None
    depth = 0
    for index in range(len(tokens) - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(tokens[index].text, 0)
        if depth == 0:
            return index
    return None
