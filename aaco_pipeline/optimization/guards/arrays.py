"""Arrays that a rewritten kernel adds: of a constant, small size, and never left by an index or a pointer."""

from dataclasses import dataclass
from typing import Final

from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.optimization.guards.subject import Subject, declared_by
from aaco_pipeline.optimization.source.constants import evaluate
from aaco_pipeline.optimization.source.facts import tokens_of
from aaco_pipeline.optimization.source.grammar import Node, descend, text_of
from aaco_pipeline.optimization.source.trips import counter_of
from aaco_pipeline.optimization.source.vocabulary import INTEGER_BITS

#: Bytes of local arrays per work-item: more does not stay in registers, and a CPU's stack is not for it.
MOST_LOCAL_BYTES: Final = 4096
MOST_LDS_BYTES: Final = 65536
_OTHER_BYTES: Final = {"float": 4, "double": 8, "bool": 1}
_WIDEST: Final = 32
_INT: Final = 1 << 31
Interval = tuple[int, int]


@dataclass(frozen=True)
class _Array:
    """Extents, outermost first; what lies in LDS is indexed by work-items, of which little is known here."""

    extents: tuple[int, ...]
    in_lds: bool


def check_arrays(old: Subject, new: Subject) -> None:
    """Refused, guard `calls`, where a new array has no constant size, is too large, or can be left."""
    known = {_plain(node) for node in descend(old.part.node)}
    local = shared = 0
    extents: dict[str, _Array] = {}
    for node in descend(new.part.node):
        if node.type != "declaration":
            continue
        in_lds = any(text_of(each) == "__shared__" for each in node.children)
        for each in node.children_by_field_name("declarator"):
            array = each.child_by_field_name("declarator") if each.type == "init_declarator" else each
            if array is None or array.type != "array_declarator":
                continue
            name, sizes = _sizes(new, array)
            if None in sizes:
                if _plain(node) not in known:
                    raise _refused(new, node, "an array without a constant size")
                continue
            extent = [size for size in sizes if size is not None]
            size = _bytes(text_of(node.child_by_field_name("type")), extent)
            shared, local = (shared + size, local) if in_lds else (shared, local + size)
            extents[name] = _Array(tuple(extent), in_lds)
            too_large = shared > MOST_LDS_BYTES or local > MOST_LOCAL_BYTES
            if too_large and _plain(node) not in known:
                raise _refused(new, node, "more than a kernel's arrays may take")
    for node in descend(new.part.node):
        if node.type == "identifier" and text_of(node) in extents:
            _check_use(new, node, extents[text_of(node)], known)


def _plain(node: Node) -> str:
    return "".join(text_of(node).split())


def _refused(new: Subject, node: Node, what: str) -> Refused:
    return Refused("calls", f"line {new.line_of(node)}: {what}: `{' '.join(text_of(node).split())[:80]}`")


def _sizes(new: Subject, array: Node) -> tuple[str, list[int | None]]:
    """The name and the extents of an array, outermost first; None for one that is no constant of the file."""
    sizes: list[int | None] = []
    current: Node | None = array
    while current is not None and current.type == "array_declarator":
        size = current.child_by_field_name("size")
        tokens = tokens_of(new.reading.text, new.part, size) if size is not None else ()
        value = evaluate(tokens, new.reading.facts.constant)
        sizes.append(value.value if value is not None and value.value > 0 else None)
        current = current.child_by_field_name("declarator")
    return text_of(current), sizes[::-1]


def _bytes(kind: str, extents: list[int]) -> int:
    """The size of an array; a type that is not known here counts as the widest vector."""
    bits = INTEGER_BITS.get(" ".join(kind.split()))
    size = bits // 8 if bits is not None else _OTHER_BYTES.get(kind, _WIDEST)
    for extent in extents:
        size *= extent
    return size


def _check_use(new: Subject, node: Node, array: _Array, known: set[str]) -> None:
    """A local array is indexed in every dimension, by what provably stays inside; else as the baseline does it.

    Of LDS a pointer may be made, and an index is refused only where it provably leaves the array.
    """
    current, parent = node, node.parent
    if parent is None or parent.type in ("array_declarator", "for_range_loop", "sizeof_expression"):
        return
    for extent in array.extents:
        if parent is None or parent.type != "subscript_expression" or parent.child_by_field_name("argument") != current:
            if array.in_lds or (parent is not None and _plain(parent) in known):
                return
            raise _refused(new, parent or node, f"the local array {text_of(node)} is used as a pointer")
        indices = parent.child_by_field_name("indices")
        index = indices.named_children[0] if indices is not None and indices.named_child_count == 1 else None
        bounds = None if index is None else _interval(new, index)
        leaves = not array.in_lds if bounds is None else bounds[0] < 0 or bounds[1] >= extent
        if leaves and _plain(parent) not in known:
            raise _refused(new, parent, f"an index that may leave the {extent} elements of the array")
        current, parent = parent, parent.parent
    pointed = not array.in_lds and parent is not None and parent.type == "pointer_expression"
    if pointed and parent is not None and _plain(parent) not in known:
        raise _refused(new, parent, f"an address in the local array {text_of(node)}")


def _interval(new: Subject, node: Node) -> Interval | None:
    """The least and the greatest value of an integer expression of constants and counters; None of any other."""
    constant = evaluate(tokens_of(new.reading.text, new.part, node), new.reading.facts.constant)
    if constant is not None:
        return constant.value, constant.value
    if node.type == "identifier":
        return _counter(new, node)
    if node.type == "parenthesized_expression" and node.named_child_count == 1:
        return _interval(new, node.named_children[0])
    left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
    if node.type != "binary_expression" or left is None or right is None:
        return None
    return _combined(text_of(node.child_by_field_name("operator")), _interval(new, left), _interval(new, right))


def _combined(operator: str, left: Interval | None, right: Interval | None) -> Interval | None:
    if operator == "&" and (right is not None or left is not None):
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


def _counter(new: Subject, node: Node) -> Interval | None:
    """The values of a counter of the nearest loop around that counts by its name."""
    around = node.parent
    while around is not None:
        if around.type == "for_statement":
            counter = counter_of(new.reading.facts, new.part, around)
            if counter is not None and counter[0] == text_of(node):
                return counter[1], counter[2]
        if any(text_of(name) == text_of(node) for each in around.named_children for name in declared_by(each)):
            return None
        around = around.parent
    return None
