"""Which memory a rewritten kernel may declare and write: its own variables, small constant arrays and its buffers.

Nothing may outlive the call, and no index or pointer may leave an array.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.optimization.guards.words import Subject, declared_by
from aaco_pipeline.optimization.source.facts import evaluate
from aaco_pipeline.optimization.source.loops import counter_of
from aaco_pipeline.optimization.source.tree import Node, descend, text_of, tokens_of
from aaco_pipeline.optimization.source.vocabulary import BUILTIN_NAMES, INTEGER_BITS, is_type

#: Bytes of local arrays per work-item: more does not stay in registers, and a CPU's stack is not for it.
MOST_LOCAL_BYTES: Final = 4096
MOST_LDS_BYTES: Final = 65536
_OTHER_BYTES: Final = {"float": 4, "double": 8, "bool": 1}
_WIDEST: Final = 32
_INT: Final = 1 << 31
Interval = tuple[int, int]


@dataclass(frozen=True)
class _Array:
    """Extents, outermost first, None where one is no constant; `text` is the whole declaration.

    What lies in LDS is indexed by work-items, of which little is known here.
    """

    name: str
    extents: tuple[int | None, ...]
    bytes: int
    in_lds: bool
    text: str


@dataclass(frozen=True)
class _Use:
    """A use of an array that may leave it: what it is, and where."""

    array: str
    what: str
    node: Node


def check_arrays(old: Subject, new: Subject) -> None:
    """Refused, guard `calls`, where an array has no constant size, is too large, or can be left.

    A use that may leave its array is the baseline's business where the baseline has the same array with the same use.
    """
    was, now = dict(_arrays(old)), dict(_arrays(new))
    known = {array.text for _, array in was.items()}
    local = shared = 0
    for node, array in now.items():
        if None in array.extents and array.text not in known:
            raise _refused(new, node, "an array without a constant size")
        shared, local = (shared + array.bytes, local) if array.in_lds else (shared, local + array.bytes)
        if (shared > MOST_LDS_BYTES or local > MOST_LOCAL_BYTES) and array.text not in known:
            raise _refused(new, node, "more than a kernel's arrays may take")
    before, after = ({array.name: array for array in each.values()} for each in (was, now))
    excused = {(use.array, _plain(use.node)) for use in _leaving(old, before)}
    for use in _leaving(new, after):
        same = before.get(use.array) == after[use.array]
        if not (same and (use.array, _plain(use.node)) in excused):
            raise _refused(new, use.node, use.what)


def _plain(node: Node) -> str:
    return "".join(text_of(node).split())


def _refused(new: Subject, node: Node, what: str) -> Refused:
    return Refused("calls", f"line {new.line_of(node)}: {what}: `{' '.join(text_of(node).split())[:80]}`")


def _arrays(subject: Subject) -> Iterator[tuple[Node, _Array]]:
    """The arrays that a kernel declares."""
    for node in descend(subject.part.node):
        if node.type != "declaration":
            continue
        in_lds = any(text_of(each) == "__shared__" for each in node.children)
        for each in node.children_by_field_name("declarator"):
            array = each.child_by_field_name("declarator") if each.type == "init_declarator" else each
            if array is not None and array.type == "array_declarator":
                name, extents = _extents(subject, array)
                size = _bytes(text_of(node.child_by_field_name("type")), extents)
                yield array, _Array(name, extents, size, in_lds, _plain(node))


def _extents(subject: Subject, array: Node) -> tuple[str, tuple[int | None, ...]]:
    sizes: list[int | None] = []
    current: Node | None = array
    while current is not None and current.type == "array_declarator":
        size = current.child_by_field_name("size")
        tokens = tokens_of(subject.reading.text, subject.part, size) if size is not None else ()
        value = evaluate(tokens, subject.reading.facts.constant)
        sizes.append(value.value if value is not None and value.value > 0 else None)
        current = current.child_by_field_name("declarator")
    return text_of(current), tuple(sizes[::-1])


def _bytes(kind: str, extents: tuple[int | None, ...]) -> int:
    """The size of an array; a type that is not known here counts as the widest vector, an unknown extent as one."""
    bits = INTEGER_BITS.get(" ".join(kind.split()))
    size = bits // 8 if bits is not None else _OTHER_BYTES.get(kind, _WIDEST)
    for extent in extents:
        size *= extent or 1
    return size


def _leaving(subject: Subject, arrays: Mapping[str, _Array]) -> Iterator[_Use]:
    """Uses of arrays that are not proven to stay inside.

    A local array is indexed in every dimension by what provably stays inside, and no address in it is taken. Of LDS a
    pointer may be made, and an index counts only where it provably leaves.
    """
    for node in descend(subject.part.node):
        array = arrays.get(text_of(node)) if node.type == "identifier" else None
        parent = node.parent
        if (
            array is None
            or parent is None
            or parent.type in ("array_declarator", "for_range_loop", "sizeof_expression")
        ):
            continue
        yield from _leaving_by(subject, array, node)


def _leaving_by(subject: Subject, array: _Array, node: Node) -> Iterator[_Use]:
    current, parent = node, node.parent
    for extent in array.extents:
        if parent is None or parent.type != "subscript_expression" or parent.child_by_field_name("argument") != current:
            if not array.in_lds:
                yield _Use(array.name, f"the local array {array.name} is used as a pointer", parent or node)
            return
        indices = parent.child_by_field_name("indices")
        index = indices.named_children[0] if indices is not None and indices.named_child_count == 1 else None
        bounds = None if index is None else _interval(subject, index)
        inside = bounds is not None and extent is not None and bounds[0] >= 0 and bounds[1] < extent
        unknown = bounds is None or extent is None
        if not (inside or (unknown and array.in_lds)):
            yield _Use(array.name, f"an index that may leave the {extent} elements of the array", parent)
        current, parent = parent, parent.parent
    if not array.in_lds and parent is not None and parent.type == "pointer_expression":
        yield _Use(array.name, f"an address in the local array {array.name}", parent)


def _interval(subject: Subject, node: Node) -> Interval | None:
    """The least and the greatest value of an integer expression of constants and counters; None of any other."""
    constant = evaluate(tokens_of(subject.reading.text, subject.part, node), subject.reading.facts.constant)
    if constant is not None:
        return constant.value, constant.value
    if node.type == "identifier":
        return _counter(subject, node)
    if node.type == "parenthesized_expression" and node.named_child_count == 1:
        return _interval(subject, node.named_children[0])
    left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
    if node.type != "binary_expression" or left is None or right is None:
        return None
    operator = text_of(node.child_by_field_name("operator"))
    return _combined(operator, _interval(subject, left), _interval(subject, right))


def _combined(operator: str, left: Interval | None, right: Interval | None) -> Interval | None:
    if operator == "&":
        # Whatever the other is, the result has no bit that a mask of no sign lacks.
        masks = [each[1] for each in (left, right) if each is not None and each[0] >= 0]
        return (0, min(masks)) if masks else None
    if left is None or right is None:
        return None
    if operator in ("/", "%"):
        # A divisor of one positive value, of what has no sign.
        by = right[0]
        if left[0] < 0 or by < 1 or right[1] != by:
            return None
        return (left[0] // by, left[1] // by) if operator == "/" else (0, min(left[1], by - 1))
    products = [a * b for a in left for b in right]
    interval = {
        "+": (left[0] + right[0], left[1] + right[1]),
        "-": (left[0] - right[1], left[1] - right[0]),
        "*": (min(products), max(products)),
    }.get(operator)
    # What does not fit an `int` may have become anything.
    return interval if interval is not None and max(map(abs, interval)) < _INT else None


def _counter(subject: Subject, node: Node) -> Interval | None:
    """The values of a counter of the nearest loop around that counts by its name."""
    around = node.parent
    while around is not None:
        if around.type == "for_statement":
            counter = counter_of(subject.reading.facts, subject.part, around)
            if counter is not None and counter[0] == text_of(node):
                return counter[1], counter[2]
        if any(text_of(name) == text_of(node) for each in around.named_children for name in declared_by(each)):
            return None
        around = around.parent
    return None


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
