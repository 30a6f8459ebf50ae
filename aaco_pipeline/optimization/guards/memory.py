"""Check the declarations and stores of a rewritten kernel: its own variables, small constant arrays and its buffers.

No data may outlive the call, and no index or pointer may leave an array.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Final

from aaco_pipeline.optimization.guards.words import Subject, declared_by
from aaco_pipeline.optimization.source.facts import evaluate
from aaco_pipeline.optimization.source.loops import counter_of
from aaco_pipeline.optimization.source.tree import (
    Node,
    declarators,
    field,
    operands,
    plain_text,
    single_index,
    stripped,
    surroundings,
    text_of,
    tokens_of,
)
from aaco_pipeline.optimization.source.vocabulary import BUILTIN_NAMES, INTEGER_BITS, is_type

#: Bytes of local arrays per work-item: larger ones do not stay in registers and do not fit a CPU's stack.
MOST_LOCAL_BYTES: Final = 4096
MOST_LDS_BYTES: Final = 65536
_OTHER_BYTES: Final = {"float": 4, "double": 8, "bool": 1}
_WIDEST: Final = 32
_INT: Final = 1 << 31
Interval = tuple[int, int]


@dataclass(frozen=True)
class _Array:
    """Extents, outermost first, None for a non-constant one; `text` is the complete declaration.

    LDS arrays are indexed by work-items, about which little is known here.
    """

    name: str
    extents: tuple[int | None, ...]
    bytes: int
    in_lds: bool
    text: str


@dataclass(frozen=True)
class _Use:
    """A use of an array that may leave it: its description and position."""

    array: str
    what: str
    node: Node


def check_arrays(old: Subject, new: Subject) -> None:
    """Refuse, guard `calls`, an array without a constant size, that is too large, or whose bounds can be exceeded.

    A use that may leave its array is accepted if the baseline uses the same array in the same way.
    """
    was, now = dict(_arrays(old)), dict(_arrays(new))
    known = {array.text for array in was.values()}
    local = shared = 0
    for node, array in now.items():
        if None in array.extents and array.text not in known:
            raise new.refused(node, "an array without a constant size")
        shared, local = (shared + array.bytes, local) if array.in_lds else (shared, local + array.bytes)
        if (shared > MOST_LDS_BYTES or local > MOST_LOCAL_BYTES) and array.text not in known:
            raise new.refused(node, "more than a kernel's arrays may take")
    before, after = ({array.name: array for array in each.values()} for each in (was, now))
    excused = {(use.array, plain_text(use.node)) for use in _leaving(old, before)}
    for use in _leaving(new, after):
        same = before.get(use.array) == after[use.array]
        if not (same and (use.array, plain_text(use.node)) in excused):
            raise new.refused(use.node, use.what)


def _arrays(subject: Subject) -> Iterator[tuple[Node, _Array]]:
    """Yield the arrays that a kernel declares."""
    for node in subject.nodes:
        in_lds = any(text_of(each) == "__shared__" for each in node.children)
        for _, array, _ in declarators(node) if node.type == "declaration" else ():
            if array is not None and array.type == "array_declarator":
                name, extents = _extents(subject, array)
                size = _bytes(text_of(field(node, "type")), extents)
                yield array, _Array(name, extents, size, in_lds, plain_text(node))


def _extents(subject: Subject, array: Node) -> tuple[str, tuple[int | None, ...]]:
    sizes: list[int | None] = []
    current: Node | None = array
    while current is not None and current.type == "array_declarator":
        size = field(current, "size")
        tokens = tokens_of(subject.reading.text, subject.part, size) if size is not None else ()
        value = evaluate(tokens, subject.reading.facts.constant)
        sizes.append(value.value if value is not None and value.value > 0 else None)
        current = field(current, "declarator")
    return text_of(current), tuple(sizes[::-1])


def _bytes(kind: str, extents: tuple[int | None, ...]) -> int:
    """Return the size of an array; an unknown type counts as the widest vector, an unknown extent as one."""
    bits = INTEGER_BITS.get(" ".join(kind.split()))
    size = bits // 8 if bits is not None else _OTHER_BYTES.get(kind, _WIDEST)
    return size * prod(extent or 1 for extent in extents)


def _leaving(subject: Subject, arrays: Mapping[str, _Array]) -> Iterator[_Use]:
    """Yield uses of arrays that are not proven to stay in bounds.

    For a local array, every index must provably stay in bounds, and no address may be taken. LDS may have pointers into
    it, and an index counts only if it provably leaves the array.
    """
    for node in subject.nodes:
        array = arrays.get(text_of(node)) if node.type == "identifier" else None
        around = "" if node.parent is None else node.parent.type
        if array is not None and around not in ("", "array_declarator", "for_range_loop", "sizeof_expression"):
            yield from _leaving_by(subject, array, node)


def _leaving_by(subject: Subject, array: _Array, node: Node) -> Iterator[_Use]:
    current, parent = node, node.parent
    for extent in array.extents:
        if parent is None or parent.type != "subscript_expression" or field(parent, "argument") != current:
            if not array.in_lds:
                yield _Use(array.name, f"the local array {array.name} is used as a pointer", parent or node)
            return
        index = single_index(parent)
        bounds = None if index is None else _interval(subject, index)
        inside = bounds is not None and extent is not None and bounds[0] >= 0 and bounds[1] < extent
        unknown = bounds is None or extent is None
        if not (inside or (unknown and array.in_lds)):
            yield _Use(array.name, f"an index that may leave the {extent} elements of the array", parent)
        current, parent = parent, parent.parent
    if not array.in_lds and parent is not None and parent.type == "pointer_expression":
        yield _Use(array.name, f"an address in the local array {array.name}", parent)


def _interval(subject: Subject, node: Node) -> Interval | None:
    """Bound an integer expression of constants and counters: its smallest and largest value; None for any other."""
    constant = evaluate(tokens_of(subject.reading.text, subject.part, node), subject.reading.facts.constant)
    if constant is not None:
        return constant.value, constant.value
    if node.type == "identifier":
        return _counter(subject, node)
    if (inner := stripped(node)) != node:
        return _interval(subject, inner)
    left, operator, right = operands(node)
    if node.type != "binary_expression" or left is None or right is None:
        return None
    return _combined(operator, _interval(subject, left), _interval(subject, right))


def _combined(operator: str, left: Interval | None, right: Interval | None) -> Interval | None:
    if operator == "&":
        # Whatever the other operand is, the result has no bit outside a non-negative mask.
        masks = [each[1] for each in (left, right) if each is not None and each[0] >= 0]
        return (0, min(masks)) if masks else None
    if left is None or right is None:
        return None
    if operator in ("/", "%"):
        # The divisor has one positive value, and the dividend is not negative.
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
    # A value that does not fit an `int` is undefined.
    return interval if interval is not None and max(map(abs, interval)) < _INT else None


def _counter(subject: Subject, node: Node) -> Interval | None:
    """Return the values of a counter, from the innermost enclosing loop that uses its name."""
    for around in surroundings(node):
        if around.type == "for_statement":
            counter = counter_of(subject.reading.facts, subject.part, around)
            if counter is not None and counter[0] == text_of(node):
                return counter[1], counter[2]
        if any(text_of(name) == text_of(node) for each in around.named_children for name in declared_by(each)):
            return None
    return None


#: The runtime's structures: members are values, complete structures are not.
_WHOLE: Final = frozenset(("threadIdx", "blockIdx", "blockDim", "gridDim"))


def check_stores(old: Subject, new: Subject) -> None:
    """Refuse, guard `calls`, a store outside the kernel's own memory, and a declaration of unknown type."""
    known = {plain_text(node) for node in old.nodes}
    lasting = _lasting(new)
    for node in new.nodes:
        if node.type == "declaration":
            _check_type(old, new, node)
        elif node.type == "identifier" and text_of(node) in lasting and not _is_plain_read(node, known):
            raise new.refused(node.parent or node, f"{text_of(node)} outlives the call and is more than read")


def _lasting(new: Subject) -> frozenset[str]:
    """Return the variables that outlive a call: the file's and the runtime's."""
    facts = new.reading.facts
    outer = new.outer_names - facts.types - facts.functions.keys() - facts.macros.keys()
    return (outer | BUILTIN_NAMES) - new.locals - new.parameters


def _check_type(old: Subject, new: Subject, node: Node) -> None:
    """Require a type in a declaration: `sum * state;` parses as a declaration of `state`, but is none."""
    kind = field(node, "type")
    if kind is None or kind.type in ("primitive_type", "sized_type_specifier", "placeholder_type_specifier"):
        return
    name = text_of(kind)
    if name in new.locals | new.parameters or not (is_type(name) or name in set(_types(old))):
        raise new.refused(node, f"{name} is no type that the baseline's kernel uses")


def _types(old: Subject) -> Iterator[str]:
    for parameter in old.kernel.parameters:
        yield parameter.type.replace("const", "").strip(" *&")
    yield from (text_of(field(node, "type")) for node in old.nodes if node.type == "declaration")


def _is_plain_read(node: Node, known: set[str]) -> bool:
    """Return whether only a lasting variable's value is taken, no address or reference; or all is as in the
    baseline."""
    current, parent = node, node.parent
    while parent is not None and (
        parent.type in ("field_expression", "parenthesized_expression")
        or (parent.type == "subscript_expression" and field(parent, "argument") == current)
    ):
        current, parent = parent, parent.parent
    if parent is None or plain_text(parent) in known:
        return True
    is_set = parent.type == "assignment_expression" and field(parent, "left") == current
    if is_set or parent.type in ("update_expression", "pointer_expression"):
        return False
    if parent.type == "init_declarator":
        target = field(parent, "declarator")
        # An array that decays to a pointer can be accessed like through a reference.
        return target is not None and target.type == "identifier" and _is_value(current)
    return _is_value(current) or parent.type in ("subscript_argument_list", "condition_clause")


def _is_value(node: Node) -> bool:
    """Return whether an expression is certainly a value: a member, an element, or the name of a plain constant."""
    if node.type == "parenthesized_expression":
        return all(_is_value(each) for each in node.named_children)
    return node.type in ("field_expression", "subscript_expression") or text_of(node) in BUILTIN_NAMES - _WHOLE
