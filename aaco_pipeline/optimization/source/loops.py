"""The loops of a kernel's own body: how often they run, what they hold, and whether they may be unrolled."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.optimization.source.changes import CHANGES, changing_calls
from aaco_pipeline.optimization.source.facts import Facts
from aaco_pipeline.optimization.source.grammar import Node, descend, is_broken, text_of
from aaco_pipeline.optimization.source.hazards import ORDER, Hazard, Hazards
from aaco_pipeline.optimization.source.parts import Part, tokens_of
from aaco_pipeline.optimization.source.preprocessor import is_specifier
from aaco_pipeline.optimization.source.tokens import Token
from aaco_pipeline.optimization.source.trips import trip_count
from aaco_pipeline.optimization.source.unit import Loop, LoopKind, Span

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
