"""Loads of two or four elements at once, in loops that provably sum over neighbours.

The first loop runs where every pointer is aligned for the wide load, which is tested when the kernel runs; the second
is the loop as it was, for what is left and for pointers that are not. Additions keep their order: bit exact.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from aaco_pipeline.optimization.candidates import Candidate, NotApplicable, Task
from aaco_pipeline.optimization.proposers.reductions import Reduction, body_of, reduction_of
from aaco_pipeline.optimization.proposers.syntax import Otherwise, Subject, indent, names, replaced, subject_of
from aaco_pipeline.optimization.source.grammar import Node, descend, text_of

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
