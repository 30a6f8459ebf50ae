"""Proposers for loops that sum into one variable: several accumulators, and loads of two or four elements at once.

`for (int k = a; k < b; k += s) acc += f(k);` where `f` only computes, `b` and `s` are constant, and `acc` is a local to
which the body only adds. The tree has to prove all of it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from aaco_pipeline.optimization.candidates import Candidate, NotApplicable, Task
from aaco_pipeline.optimization.proposers.syntax import Otherwise, Subject, indent, names, replaced, subject_of
from aaco_pipeline.optimization.source import Loop
from aaco_pipeline.optimization.source.tree import Node, descend, text_of

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


WIDTHS: Final = (4, 8, 2)


class Accumulators:
    """Each loop that provably sums, the innermost first, by each number of sums."""

    name: Final = "accumulators"

    def propose(self, task: Task) -> Iterator[Candidate | NotApplicable]:
        """Refused when the source has no such kernel."""
        subject = subject_of(task)
        if not subject.kernel.loops:
            yield NotApplicable(self.name, f"the kernel {task.kernel} has no loop")
        found: list[Reduction] = []
        for loop in sorted(subject.kernel.loops, key=lambda one: not one.innermost):
            try:
                found.append(reduction_of(subject, loop))
            except Otherwise as error:
                yield NotApplicable(self.name, str(error))
        for width in WIDTHS:
            for one in found:
                if one.loop.trip_count is not None and one.loop.trip_count < width:
                    reason = f"{one.loop.identifier} makes {one.loop.trip_count} trips, fewer than {width} sums"
                    yield NotApplicable(self.name, reason)
                    continue
                yield Candidate(
                    task.kernel,
                    with_accumulators(subject, one, width),
                    self.name,
                    f"{width} accumulators in {one.loop.identifier}",
                    bit_exact=one.type not in ("float", "double"),
                    parameters={"loop": one.loop.identifier, "line": one.loop.line, "accumulators": width},
                )


def with_accumulators(subject: Subject, one: Reduction, width: int) -> bytes:
    """The source with `width` sums in the loop: a loop of `width` steps at a time, then one for what is left.

    The test of the first looks `width - 1` steps ahead in 64 bits, where counters of 32 bits cannot overflow.
    """
    sums = [one.accumulator, *(subject.fresh(f"{one.accumulator.rstrip('_')}_{place}") for place in range(1, width))]
    step = "1" if one.step is None else f"({one.step})"
    margin = indent(subject.task.source, one.loop.span.start)
    further = ", ".join(f"{name} = {ZEROS[one.type]}" for name in sums[1:])
    ahead = f"(long long){one.counter} + {width - 1}LL * {step} {one.operator} (long long)({one.bound})"
    passes = [
        text
        for name in sums
        for text in (body_of(subject, one, [(place, name) for place in one.sums]), f"{one.update};")
    ]
    lines = [
        "{",
        f"  {one.type} {further};",
        f"  {one.begin}",
        f"  while ({ahead}) {{",
        *(f"    {text}" for text in passes),
        "  }",
        f"  while ({one.test}) {{",
        f"    {body_of(subject, one, [])}",
        f"    {one.update};",
        "  }",
        f"  {one.accumulator} += {_tree_of_sums(sums[1:])};",
        "}",
    ]
    text = f"\n{margin}".join(lines)
    return replaced(subject.task.source, [(*one.loop.span, text)])


def _tree_of_sums(names: list[str]) -> str:
    """The sum of sums in pairs, so that it too has few steps that wait."""
    if len(names) == 1:
        return names[0]
    half = len(names) // 2
    return f"({_tree_of_sums(names[:half])} + {_tree_of_sums(names[half:])})"


#: By an element's type, vectors of up to 16 bytes, which is the widest load: elements, and the vector's type.
VECTORS: Final = {
    "float": {4: "float4", 2: "float2"},
    "int": {4: "int4", 2: "int2"},
    "unsigned": {4: "uint4", 2: "uint2"},
    "unsigned int": {4: "uint4", 2: "uint2"},
    "double": {2: "double2"},
}
_BYTES: Final = {"float": 4, "int": 4, "unsigned": 4, "unsigned int": 4, "double": 8}
_CONDITIONAL: Final = ("&&", "||")


@dataclass(frozen=True)
class _Load:
    """`places` are where the body loads `text` of element type `type`, whose index grows by one with the counter."""

    text: str
    type: str
    places: tuple[Node, ...]


class VectorLoads:
    """Each loop that provably sums, with all its loads of neighbours made wide."""

    name: Final = "vector_loads"

    def propose(self, task: Task) -> Iterator[Candidate | NotApplicable]:
        """Refused when the source has no such kernel."""
        subject = subject_of(task)
        if not subject.kernel.loops:
            yield NotApplicable(self.name, f"the kernel {task.kernel} has no loop")
        found: list[tuple[Reduction, list[_Load]]] = []
        for loop in sorted(subject.kernel.loops, key=lambda one: not one.innermost):
            try:
                reduction = reduction_of(subject, loop)
                found.append((reduction, _loads(subject, reduction)))
            except Otherwise as error:
                yield NotApplicable(self.name, str(error))
        for width in (4, 2):
            for one, loads in found:
                if one.loop.trip_count is not None and one.loop.trip_count < width:
                    reason = f"{one.loop.identifier} makes {one.loop.trip_count} trips, fewer than {width} elements"
                    yield NotApplicable(self.name, reason)
                    continue
                wide = [load for load in loads if width in VECTORS[load.type]]
                if not wide:
                    continue
                yield Candidate(
                    task.kernel,
                    _with_vectors(subject, one, wide, width),
                    self.name,
                    f"loads of {width} elements in {one.loop.identifier}",
                    bit_exact=True,
                    parameters={"loop": one.loop.identifier, "line": one.loop.line, "elements": width},
                )


def _loads(subject: Subject, one: Reduction) -> list[_Load]:
    """What the body loads in every pass from neighbouring places. Otherwise, where that is nothing."""
    if one.step not in (None, "1"):
        raise Otherwise(f"{one.loop.identifier} steps by {one.step}, so that a work-item does not load neighbours")
    own = set(_declared(one.body))
    places: dict[str, list[Node]] = {}
    for node in descend(one.body):
        if node.type == "subscript_expression" and _is_of_neighbours(subject, one, node, own):
            places.setdefault(text_of(node), []).append(node)
    if not places:
        raise Otherwise(f"{one.loop.identifier} loads no neighbours through a pointer in every pass")
    return [_Load(text, _element(subject, found[0]), tuple(found)) for text, found in places.items()]


def _declared(body: Node) -> Iterator[str]:
    """The names that a loop's body declares."""
    for node in descend(body):
        if node.type == "init_declarator" and (target := node.child_by_field_name("declarator")) is not None:
            yield text_of(target)


def _element(subject: Subject, node: Node) -> str:
    written = subject.types.get(text_of(node.child_by_field_name("argument")), "")
    return written.removesuffix("*") if written.endswith("*") else ""


def _is_of_neighbours(subject: Subject, one: Reduction, node: Node, own: set[str]) -> bool:
    """Whether a subscript is `pointer[... + counter]`, loaded in every pass, of nothing that the body declares."""
    if _element(subject, node) not in VECTORS:
        return False
    indices = node.child_by_field_name("indices")
    index = indices.named_children[0] if indices is not None and indices.named_child_count == 1 else None
    if index is None or not _grows_by_one(index, one.counter) or subject.is_signed(index) is False:
        return False
    if any(text_of(name) in own for name in descend(node) if name.type == "identifier"):
        return False
    above = node.parent
    while above is not None and above != one.body:
        if above.type == "conditional_expression" or text_of(above.child_by_field_name("operator")) in _CONDITIONAL:
            return False
        if above.type in ("pointer_expression", "sizeof_expression", "field_expression"):
            return False
        above = above.parent
    return True


def _grows_by_one(index: Node, counter: str) -> bool:
    if index.type == "identifier":
        return text_of(index) == counter
    if index.type == "parenthesized_expression" and index.named_child_count == 1:
        return _grows_by_one(index.named_children[0], counter)
    if index.type != "binary_expression":
        return False
    left, right = index.child_by_field_name("left"), index.child_by_field_name("right")
    operator = text_of(index.child_by_field_name("operator"))
    if left is None or right is None or operator not in ("+", "-"):
        return False
    if not names(right, counter):
        return _grows_by_one(left, counter)
    return operator == "+" and not names(left, counter) and _grows_by_one(right, counter)


def _with_vectors(subject: Subject, one: Reduction, loads: list[_Load], width: int) -> bytes:
    """The source with a loop of `width` passes at a time in front of the loop as it was."""
    margin = indent(subject.task.source, one.loop.span.start)
    vectors = [subject.fresh(f"{one.counter.rstrip('_')}_vector_{place}") for place in range(len(loads))]
    addresses = [f"reinterpret_cast<unsigned long long>(&{load.text})" for load in loads]
    alignments = sorted({width * _BYTES[load.type] for load in loads})
    if len(alignments) == 1:
        test = f"(({' | '.join(addresses)}) & {alignments[0] - 1}ULL) == 0"
    else:
        test = " && ".join(
            f"({address} & {width * _BYTES[load.type] - 1}ULL) == 0"
            for address, load in zip(addresses, loads, strict=True)
        )
    begin = [
        f"const {VECTORS[load.type][width]} {name} = "
        f"*reinterpret_cast<const {VECTORS[load.type][width]}*>(&{load.text});"
        for name, load in zip(vectors, loads, strict=True)
    ]
    passes: list[str] = []
    for part in "xyzw"[:width]:
        loaded = [(place, f"{name}.{part}") for name, load in zip(vectors, loads, strict=True) for place in load.places]
        passes += [body_of(subject, one, loaded), f"{one.update};"]
    lines = [
        "{",
        f"  {one.begin}",
        f"  if ({test}) {{",
        f"    while ((long long){one.counter} + {width - 1}LL {one.operator} (long long)({one.bound})) {{",
        *(f"      {text}" for text in (*begin, *passes)),
        "    }",
        "  }",
        f"  while ({one.test}) {{",
        f"    {body_of(subject, one, [])}",
        f"    {one.update};",
        "  }",
        "}",
    ]
    return replaced(subject.task.source, [(*one.loop.span, f"\n{margin}".join(lines))])
