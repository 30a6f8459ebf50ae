"""Proposers for loops that sum into one variable: several accumulators, and loads of two or four elements at once.

`for (int k = a; k < b; k += s) acc += f(k);` where `f` has no side effects, `b` and `s` do not change, and `acc` is a
local variable to which the body only adds. The tree has to prove all of this.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product, takewhile
from typing import Final, TypeVar

from aaco_pipeline.optimization.candidates import Candidate, NotApplicable, Task
from aaco_pipeline.optimization.proposers.syntax import (
    Otherwise,
    Subject,
    indent,
    names,
    place_of,
    replaced,
    subject_of,
)
from aaco_pipeline.optimization.source import Loop
from aaco_pipeline.optimization.source.tree import (
    Node,
    declarators,
    descend,
    field,
    operands,
    single_index,
    stripped,
    surroundings,
    text_of,
)

#: The types of sums, with the initial zero of an additional sum.
ZEROS: Final = {"float": "0.0f", "double": "0.0", "int": "0", "unsigned": "0u", "unsigned int": "0u"}
_IS_SIGNED: Final = {"int": True, "int32_t": True, "unsigned": False, "unsigned int": False, "uint32_t": False}
_FUSED: Final = {"fmaf": "float", "fma": "double", "__fmaf_rn": "float"}


@dataclass(frozen=True)
class Reduction:
    """A summing loop. `begin` declares its counter, with the semicolon; `step` is None if it counts by one.

    `sums` are the positions in `body` at which the accumulator occurs.
    """

    loop: Loop
    counter: str
    begin: str
    test: Node
    operator: str
    bound: Node
    step: Node | None
    update: Node
    accumulator: str
    type: str
    body: Node
    sums: tuple[Node, ...]


def reduction_of(subject: Subject, loop: Loop) -> Reduction:
    """Read a loop as a sum. Raises Otherwise if any part of it is not proven."""
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
    counter, begin, signed = _counter(subject, loop, field(node, "initializer"))
    test, operator, bound = _test(subject, loop, field(node, "condition"), counter, signed)
    step, update = _update(subject, loop, field(node, "update"), counter)
    body = field(node, "body")
    assert body is not None, "a for statement without errors has a body"
    accumulator, sums = _body(subject, loop, body, counter)
    if names(test, accumulator) or (step is not None and names(step, accumulator)):
        raise Otherwise(f"{loop.identifier} ends by its own sum")
    declared = subject.types.get(accumulator, "")
    if declared not in ZEROS:
        raise Otherwise(f"{accumulator}, which {loop.identifier} adds to, is no local of a plain type declared once")
    return Reduction(
        loop, counter, begin, test, operator, bound, step, update, accumulator, declared, body, tuple(sums)
    )


def body_of(subject: Subject, one: Reduction, changes: Sequence[tuple[Node, str]]) -> str:
    """Return the loop's body as a block, with each node of `changes` replaced by another text."""
    start = one.body.start_byte
    moved = [(node.start_byte - start, node.end_byte - start, new) for node, new in changes]
    text = replaced(subject.task.source[start : one.body.end_byte], moved).decode()
    return text.replace("\n", "\n    ") if one.body.type == "compound_statement" else f"{{ {text} }}"


def _counter(subject: Subject, loop: Loop, node: Node | None) -> tuple[str, str, bool]:
    declarator = None if node is None else field(node, "declarator")
    if node is None or node.type != "declaration" or declarator is None or declarator.type != "init_declarator":
        raise Otherwise(f"{loop.identifier} does not declare its counter")
    if len(node.children_by_field_name("declarator")) != 1:
        raise Otherwise(f"{loop.identifier} declares more than its counter")
    target, value = field(declarator, "declarator"), field(declarator, "value")
    if target is None or value is None or target.type != "identifier":
        raise Otherwise(f"{loop.identifier} does not begin its counter with a value")
    subject.require_value(value, f"{loop.identifier} begins with more than one value")
    counter, written = text_of(target), text_of(field(node, "type"))
    signed = _IS_SIGNED.get(written)
    if signed is None or counter in subject.macros or any(child.type == "type_qualifier" for child in node.children):
        raise Otherwise(f"{loop.identifier} counts in {written}, not in a plain type of 32 bits")
    return counter, text_of(node), signed


def _test(subject: Subject, loop: Loop, node: Node | None, counter: str, signed: bool) -> tuple[Node, str, Node]:
    left, operator, right = (None, "", None) if node is None else operands(node)
    if node is None or left is None or right is None or operator not in ("<", "<=") or text_of(left) != counter:
        raise Otherwise(f"{loop.identifier} does not end by its counter reaching a bound from below")
    if names(right, counter):
        raise Otherwise(f"{loop.identifier} has a bound that moves with its counter")
    subject.require_value(right, f"{loop.identifier} ends by more than one value")
    if not subject.is_number(right) and subject.is_signed(right) is not signed:
        raise Otherwise(f"{loop.identifier} compares its counter with a bound of another type, or of one not known")
    return node, operator, right


def _update(subject: Subject, loop: Loop, node: Node | None, counter: str) -> tuple[Node | None, Node]:
    if node is not None and node.type == "update_expression":
        if text_of(node).replace(" ", "") in (f"++{counter}", f"{counter}++"):
            return None, node
    elif node is not None and node.type == "assignment_expression":
        left, operator, right = operands(node)
        if right is not None and text_of(left) == counter and operator == "+=" and not names(right, counter):
            subject.require_value(right, f"{loop.identifier} steps by more than one value")
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
    """Accept a plain value of the body's own. Raises Otherwise for static, LDS, array or reference declarations."""
    for child in node.children:
        if child.type in ("type_qualifier", "storage_class_specifier") and text_of(child) != "const":
            raise Otherwise(f"line {subject.line(child)} of {loop.identifier} declares more than one value")
    for declarator, target, value in declarators(node):
        if target is None or target.type != "identifier" or value is None:
            raise Otherwise(f"line {subject.line(declarator)} of {loop.identifier} declares more than one value")
        subject.require_value(value, f"{loop.identifier} names more than one value")


def _sum(subject: Subject, loop: Loop, statement: Node) -> tuple[str, list[Node]]:
    """Return a sum's variable and its positions in `acc += term`, `acc = acc + term` or `acc = fmaf(a, b, acc)`."""
    wrong = Otherwise(f"line {subject.line(statement)} of {loop.identifier} does more than add to one variable")
    node = statement.named_children[0] if statement.type == "expression_statement" and statement.children else None
    if node is None or node.type != "assignment_expression":
        raise wrong
    left, operator, right = operands(node)
    if left is None or right is None or left.type != "identifier" or text_of(left) in subject.macros:
        raise wrong
    subject.require_value(right, f"{loop.identifier} adds more than one value")
    name = text_of(left)
    inside = names(right, name)
    if operator == "+=" and not inside:
        return name, [left]
    if operator == "=" and len(inside) == 1 and (_adds(right, inside[0]) or _fuses(subject, right, inside[0])):
        return name, [left, inside[0]]
    raise wrong


def _adds(node: Node, place: Node) -> bool:
    """Return whether an expression is `acc + term` or `term + acc`."""
    left, operator, right = operands(node)
    return node.type == "binary_expression" and operator == "+" and place in (left, right)


def _fuses(subject: Subject, node: Node, place: Node) -> bool:
    """Return whether the sum is the addend of a fused multiply-add in the sum's own type."""
    called = text_of(field(node, "function")) if node.type == "call_expression" else ""
    arguments = field(node, "arguments")
    if called not in _FUSED or arguments is None or arguments.named_child_count != 3:
        return False
    return subject.types.get(text_of(place)) == _FUSED[called] and arguments.named_children[2] == place


_Found = TypeVar("_Found")


def _suited(subject: Subject, name: str, find: Callable[[Loop], _Found], skipped: list[NotApplicable]) -> list[_Found]:
    """Find the loops that a proposer can change, innermost first; the others are `skipped`."""
    found: list[_Found] = []
    if not subject.kernel.loops:
        skipped.append(NotApplicable(name, f"the kernel {subject.kernel.name} has no loop"))
    for loop in sorted(subject.kernel.loops, key=lambda one: not one.innermost):
        try:
            found.append(find(loop))
        except Otherwise as error:
            skipped.append(NotApplicable(name, str(error)))
    return found


def _too_short(name: str, loop: Loop, width: int, what: str) -> NotApplicable | None:
    if loop.trip_count is None or loop.trip_count >= width:
        return None
    return NotApplicable(name, f"{loop.identifier} makes {loop.trip_count} trips, fewer than {width} {what}")


WIDTHS: Final = (4, 8, 2)


class Accumulators:
    """Uses several sums instead of one in each provable summing loop, to make the additions independent.

    The order of additions changes, so results differ in the last bits (except integers): not bit exact.
    """

    name: Final = "accumulators"

    def propose(self, task: Task) -> Iterator[Candidate | NotApplicable]:
        """Yield candidates, and the reasons if there are none. Refused if the source has no such kernel."""
        subject, skipped = subject_of(task), list[NotApplicable]()
        found = _suited(subject, self.name, lambda loop: reduction_of(subject, loop), skipped)
        yield from skipped
        for width, one in product(WIDTHS, found):
            if (short := _too_short(self.name, one.loop, width, "sums")) is not None:
                yield short
                continue
            what, source = f"{width} accumulators in {one.loop.identifier}", with_accumulators(subject, one, width)
            is_exact = one.type not in ("float", "double")
            parameters = place_of(one.loop) | {"accumulators": width}
            yield task.candidate(self.name, what, source, parameters, bit_exact=is_exact)


def _with_passes(subject: Subject, one: Reduction, before: Sequence[str], passes: Sequence[str], after: str) -> bytes:
    """Replace the loop with a block: declarations, unrolled passes, a loop for the remainder, final code."""
    margin = indent(subject.task.source, one.loop.span.start)
    body, update = body_of(subject, one, []), text_of(one.update)
    rest = [f"  while ({text_of(one.test)}) {{", f"    {body}", f"    {update};", "  }"]
    lines = ["{", *before, *passes, *rest, *([after] if after else []), "}"]
    return replaced(subject.task.source, [(*one.loop.span, f"\n{margin}".join(lines))])


def with_accumulators(subject: Subject, one: Reduction, width: int) -> bytes:
    """Sum into `width` variables: a loop of `width` steps at a time, then one for the remainder.

    The condition of the first loop looks `width - 1` steps ahead in 64 bits, so 32-bit counters cannot overflow in it.
    """
    sums = [one.accumulator, *(subject.fresh(f"{one.accumulator.rstrip('_')}_{place}") for place in range(1, width))]
    step = "1" if one.step is None else f"({text_of(one.step)})"
    further = ", ".join(f"{name} = {ZEROS[one.type]}" for name in sums[1:])
    ahead = f"(long long){one.counter} + {width - 1}LL * {step} {one.operator} (long long)({text_of(one.bound)})"
    bodies = [body_of(subject, one, [(place, name) for place in one.sums]) for name in sums]
    passes = [f"    {text}" for body in bodies for text in (body, f"{text_of(one.update)};")]
    before = [f"  {one.type} {further};", f"  {one.begin}"]
    after = f"  {one.accumulator} += {_tree_of_sums(sums[1:])};"
    return _with_passes(subject, one, before, [f"  while ({ahead}) {{", *passes, "  }"], after)


def _tree_of_sums(names: list[str]) -> str:
    """Write the sum of sums in pairs, so that it too has few dependent steps."""
    if len(names) == 1:
        return names[0]
    half = len(names) // 2
    return f"({_tree_of_sums(names[:half])} + {_tree_of_sums(names[half:])})"


#: Vectors by element type and count, up to 16 bytes: the widest load.
VECTORS: Final = {
    **{kind: {4: f"{kind}4", 2: f"{kind}2"} for kind in ("float", "int")},
    **{kind: {4: "uint4", 2: "uint2"} for kind in ("unsigned", "unsigned int")},
    "double": {2: "double2"},
}
_BYTES: Final = {"float": 4, "int": 4, "unsigned": 4, "unsigned int": 4, "double": 8}
_NOT_A_LOAD: Final = ("conditional_expression", "pointer_expression", "sizeof_expression", "field_expression")


@dataclass(frozen=True)
class _Load:
    """`places` are the body's loads of `text` with element type `type`, whose index grows by one with the counter."""

    text: str
    type: str
    places: tuple[Node, ...]


class VectorLoads:
    """Loads two or four neighbouring elements at once in each provable summing loop.

    The first loop runs if every pointer is aligned for the wide load, which is tested at run time; the second is the
    original loop, for the remainder and for unaligned pointers. Additions keep their order: bit exact.
    """

    name: Final = "vector_loads"

    def propose(self, task: Task) -> Iterator[Candidate | NotApplicable]:
        """Yield candidates, and the reasons if there are none. Refused if the source has no such kernel."""
        subject, skipped = subject_of(task), list[NotApplicable]()
        found = _suited(subject, self.name, lambda loop: _with_loads(subject, loop), skipped)
        yield from skipped
        for width, (one, loads) in product((4, 2), found):
            if (short := _too_short(self.name, one.loop, width, "elements")) is not None:
                yield short
            elif wide := [load for load in loads if width in VECTORS[load.type]]:
                what, parameters = f"loads of {width} elements in {one.loop.identifier}", {"elements": width}
                source = _widened(subject, one, wide, width)
                yield task.candidate(self.name, what, source, place_of(one.loop) | parameters)


def _with_loads(subject: Subject, loop: Loop) -> tuple[Reduction, list[_Load]]:
    reduction = reduction_of(subject, loop)
    return reduction, _loads(subject, reduction)


def _loads(subject: Subject, one: Reduction) -> list[_Load]:
    """Find neighbouring elements that the body loads in every pass. Raises Otherwise if there are none."""
    if one.step is not None and text_of(one.step) != "1":
        steps = f"{one.loop.identifier} steps by {text_of(one.step)}"
        raise Otherwise(f"{steps}, so that a work-item does not load neighbours")
    own = {text_of(field(node, "declarator")) for node in descend(one.body) if node.type == "init_declarator"}
    places: dict[str, list[Node]] = {}
    for node in descend(one.body):
        if node.type == "subscript_expression" and _is_of_neighbours(subject, one, node, own):
            places.setdefault(text_of(node), []).append(node)
    if not places:
        raise Otherwise(f"{one.loop.identifier} loads no neighbours through a pointer in every pass")
    return [_Load(text, subject.element(found[0]), tuple(found)) for text, found in places.items()]


def _is_of_neighbours(subject: Subject, one: Reduction, node: Node, own: set[str]) -> bool:
    """Return whether a subscript is `pointer[... + counter]`, loaded in every pass, of nothing that the body
    declares."""
    index = single_index(node)
    if subject.element(node) not in VECTORS or index is None:
        return False
    if not _grows_by_one(index, one.counter) or subject.is_signed(index) is False:
        return False
    if any(text_of(name) in own for name in descend(node) if name.type == "identifier"):
        return False
    for above in takewhile(lambda around: around != one.body, surroundings(node)):
        if above.type in _NOT_A_LOAD or operands(above)[1] in ("&&", "||"):
            return False
    return True


def _grows_by_one(index: Node, counter: str) -> bool:
    index = stripped(index)
    if index.type == "identifier":
        return text_of(index) == counter
    left, operator, right = operands(index)
    if index.type != "binary_expression" or left is None or right is None or operator not in ("+", "-"):
        return False
    if not names(right, counter):
        return _grows_by_one(left, counter)
    return operator == "+" and not names(left, counter) and _grows_by_one(right, counter)


def _widened(subject: Subject, one: Reduction, loads: list[_Load], width: int) -> bytes:
    """Put a loop of `width` passes at a time before the original loop."""
    vectors = [subject.fresh(f"{one.counter.rstrip('_')}_vector_{place}") for place in range(len(loads))]
    addresses = [f"reinterpret_cast<unsigned long long>(&{load.text})" for load in loads]
    alignments = sorted({width * _BYTES[load.type] for load in loads})
    if len(alignments) == 1:
        test = f"(({' | '.join(addresses)}) & {alignments[0] - 1}ULL) == 0"
    else:
        masks = (f"{width * _BYTES[load.type] - 1}ULL" for load in loads)
        test = " && ".join(f"({address} & {mask}) == 0" for address, mask in zip(addresses, masks, strict=True))
    types = [VECTORS[load.type][width] for load in loads]
    begin = [
        f"const {made} {name} = *reinterpret_cast<const {made}*>(&{load.text});"
        for made, name, load in zip(types, vectors, loads, strict=True)
    ]
    passes: list[str] = []
    for part in "xyzw"[:width]:
        loaded = [(place, f"{name}.{part}") for name, load in zip(vectors, loads, strict=True) for place in load.places]
        passes += [body_of(subject, one, loaded), f"{text_of(one.update)};"]
    ahead = f"(long long){one.counter} + {width - 1}LL {one.operator} (long long)({text_of(one.bound)})"
    inner = [f"      {text}" for text in (*begin, *passes)]
    wide = [f"  if ({test}) {{", f"    while ({ahead}) {{", *inner, "    }", "  }"]
    return _with_passes(subject, one, [f"  {one.begin}"], wide, "")
