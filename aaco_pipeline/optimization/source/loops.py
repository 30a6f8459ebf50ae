"""The loops of a kernel's own body: trip counts, contents, and whether they may be unrolled."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.optimization.source.facts import Constant, Facts, evaluate
from aaco_pipeline.optimization.source.hazards import CHANGES, ORDER, Hazard, Hazards, changing_calls
from aaco_pipeline.optimization.source.kernels import Loop, LoopKind, Span
from aaco_pipeline.optimization.source.tokens import Token, expanded_words, is_specifier
from aaco_pipeline.optimization.source.tree import Node, Part, descend, is_broken, text_of, tokens_of
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
        self._hazards = hazards.of(part, part.node)
        self._unnamed = hazards
        self._counts: dict[tuple[int, int], int | None] = {}

    @property
    def hazards(self) -> tuple[Hazard, ...]:
        """What the whole body has of hazards."""
        return self._hazards

    def described(self) -> tuple[Loop, ...]:
        """Every loop, in the order of the source. Refused, guard `parse`, where there are too many, or too deep."""
        found = list(_own(self._part.node))
        if len(found) > MOST_LOOPS or any(each.identifier.count(".") >= MOST_NESTED for each in found):
            line = self._facts.text.line(self._part.start)
            limits = f"more than {MOST_LOOPS} loops, or loops in more than {MOST_NESTED} others"
            raise Refused("parse", f"line {line}: the kernel has {limits}, which are not read")
        return tuple(self._loop(each) for each in found)

    def _loop(self, found: _Found) -> Loop:
        node, shift = found.node, self._part.shift
        span = Span(node.start_byte + shift, node.end_byte + shift)
        body = node.child_by_field_name("body")
        body_span = (
            Span(body.start_byte + shift, body.end_byte + shift) if body is not None else Span(span.end, span.end)
        )
        pragma = self._pragma(span)
        hazards = [*self._of(span), *self._implicit(span, node), *self._exits(node), *self._header(node)]
        if pragma is not None:
            hazards.append(Hazard("pragma", span.start, f"the loop already carries {pragma}"))
        first = min(hazards, key=lambda hazard: (ORDER.index(hazard.kind), hazard.offset), default=None)
        return Loop(
            identifier=found.identifier,
            kind=KINDS[node.type],
            line=self._facts.text.line(span.start),
            span=span,
            body=body_span,
            trip_count=self._trips(self._part, node),
            innermost=not self._holds_a_runtime_loop(self._part, node),
            safe=first is None,
            reason=None if first is None else f"line {self._facts.text.line(first.offset)}: {first.text}",
            pragma=pragma,
            parent=found.parent,
        )

    def _of(self, span: Span) -> Iterator[Hazard]:
        for hazard in self._hazards:
            # A line that is not understood may be what opens or closes a loop anywhere in the body.
            if span.start <= hazard.offset < span.end or hazard.kind == "damaged":
                yield hazard

    def _implicit(self, span: Span, loop: Node) -> Iterator[Hazard]:
        for each in self._unnamed.implicit(self._part, loop):
            yield Hazard(each.kind, span.start, each.text)

    def _exits(self, loop: Node) -> Iterator[Hazard]:
        """`break`, `return` and their like that leave this loop; `continue` of this loop itself does not."""
        for node, depth, switches in _statements(loop):
            what = node.type.removesuffix("_statement")
            left = (what == "break" and depth == 0 and switches == 0) or what in ("return", "throw", "co_return")
            if left:
                yield Hazard("exit", node.start_byte + self._part.shift, f"`{what}` leaves the loop")

    def _header(self, loop: Node) -> Iterator[Hazard]:
        shift = self._part.shift
        condition, update = loop.child_by_field_name("condition"), loop.child_by_field_name("update")
        for node in descend(condition) if condition is not None else ():
            if node.type in CHANGES:
                yield Hazard("header", node.start_byte + shift, "the condition changes a value")
        for node in descend(update) if update is not None else ():
            if node.type in CHANGES:
                target = node.child_by_field_name("argument") or node.child_by_field_name("left")
                if target is None or target.type != "identifier":
                    yield Hazard("header", node.start_byte + shift, "the header changes more than a variable")
        for each in (condition, update):
            if each is not None:
                for name in changing_calls(self._facts, self._part, each):
                    text = f"{name} in the header changes a value that is not its own"
                    yield Hazard("header", each.start_byte + shift, text)
        if loop.type == "for_range_loop":
            over = loop.child_by_field_name("right")
            if over is not None and over.type != "initializer_list" and text_of(over) not in self._facts.arrays:
                yield Hazard(
                    "unknown", over.start_byte + shift, f"{text_of(over)} is no array that this source declares"
                )

    def _pragma(self, span: Span) -> str | None:
        """The pragma or attribute directly before a loop, as it is written."""
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
        if [token.text for token in before[-2:]] == ["]", "]"]:
            return "an attribute"
        return None

    def _is_pragma(self, name: str) -> bool:
        """Whether a macro stands for a pragma: one that expands to nothing stands for none."""
        macros = self._facts.macros
        return is_specifier(name, macros) and any(macro.body for macro in macros[name])

    def _trips(self, part: Part, node: Node) -> int | None:
        at = (part.shift, node.id)
        if at not in self._counts:
            self._counts[at] = self._counted(part, node)
        return self._counts[at]

    def _counted(self, part: Part, node: Node) -> int | None:
        if any(_leaves(node)) or any(is_broken(each) for each in descend(node)):
            return None
        return trip_count(self._facts, part, node)

    def _holds_a_runtime_loop(self, part: Part, loop: Node) -> bool:
        """Whether a loop whose trips are not proven runs inside, in the same body or in what it calls."""
        for node in descend(loop):
            if node != loop and node.type in KINDS and self._trips(part, node) is None:
                return True
        return self._calls_a_runtime_loop(tokens_of(self._facts.text, part, loop))

    def _calls_a_runtime_loop(self, tokens: Sequence[Token]) -> bool:
        """Whether functions and macros that tokens name, through others, have a loop whose trips are not proven."""
        waiting = {token.text for token in tokens if token.kind == "word"}
        seen: set[str] = set()
        while waiting:
            name = waiting.pop()
            seen.add(name)
            for macro in self._facts.macros.get(name, ()):
                words = [token.text for token in macro.body]
                once = words[:1] == ["do"] and words[-4:] == ["while", "(", "0", ")"]
                if {"for", "while", "do"} & set(words[1:-4] if once else words):
                    return True
                waiting |= set(words) - seen
            for part in self._facts.functions.get(name, ()):
                if any(node.type in KINDS and self._trips(part, node) is None for node in descend(part.node)):
                    return True
                inner = {token.text for token in tokens_of(self._facts.text, part, part.node) if token.kind == "word"}
                waiting |= (inner & (self._facts.functions.keys() | self._facts.macros.keys())) - seen
        return False


def _own(body: Node) -> Iterator[_Found]:
    """The loops of a body with their identifiers, without those of lambdas and local types."""
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
    """The nodes of a loop with the number of loops inside it, and of switches, that hold each; no lambda's."""
    waiting = [(child, 0, 0) for child in loop.children]
    while waiting:
        node, loops, switches = waiting.pop()
        yield node, loops, switches
        if node.type in _LEAVES:
            continue
        inner = (loops + (node.type in KINDS), switches + (node.type == "switch_statement"))
        waiting.extend((child, *inner) for child in node.children)


def _leaves(loop: Node) -> Iterator[Node]:
    """What may end a loop before its condition does."""
    for node, depth, switches in _statements(loop):
        breaks = node.type == "break_statement" and depth == 0 and switches == 0
        if breaks or node.type in ("return_statement", "goto_statement", "labeled_statement", "throw_statement"):
            yield node


def _last_group(tokens: Sequence[Token]) -> int | None:
    """The index of the bracket that the last token closes; None where it is no round bracket."""
    if not tokens or tokens[-1].text != ")":
        return None
    depth = 0
    for index in range(len(tokens) - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(tokens[index].text, 0)
        if depth == 0:
            return index
    return None
