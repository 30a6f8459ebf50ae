"""Pad local data share arrays by a column, so that lanes accessing a column use different banks.

There are 32 or 64 banks of four bytes each: with rows of a multiple of 32 four-byte elements, all lanes of a column
wait for one bank, with rows of 16 for one of two or four.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Final

from aaco_pipeline.optimization.candidates import Candidate, NotApplicable, Task
from aaco_pipeline.optimization.proposers.syntax import Otherwise, Subject, names, replaced, subject_of
from aaco_pipeline.optimization.source.tree import Node, descend, field, single_index, text_of

#: Local data share of a workgroup on every CDNA and RDNA device before gfx950.
MOST_LDS_BYTES: Final = 64 * 1024
#: Rows of a multiple of this many elements map a column to few banks.
_ROWS_IN_STEP: Final = 16
_BYTES: Final = {"float": 4, "int": 4, "unsigned": 4, "unsigned int": 4, "int32_t": 4, "uint32_t": 4}
_OTHER_BYTES: Final = {"double": 8, "half": 2, "__half": 2, "char": 1, "short": 2, "float2": 8, "float4": 16}


@dataclass(frozen=True)
class _Array:
    """A static array of local data share, with the extents of its dimensions, outermost first."""

    name: str
    type: str
    declarator: Node
    extents: tuple[tuple[Node, int | None], ...]


class LdsPadding:
    """Pads each two-dimensional array that is read or written by column."""

    name: Final = "lds_padding"

    def propose(self, task: Task) -> Iterator[Candidate | NotApplicable]:
        """Yield candidates, and the reasons if there are none. Refused if the source has no such kernel."""
        subject = subject_of(task)
        arrays = list(_arrays(subject))
        if subject.kernel.dynamic_lds or not arrays:
            kind = "dynamic local data share" if subject.kernel.dynamic_lds else "no array in local data share"
            yield NotApplicable(self.name, f"the kernel has {kind}")
            return
        for array in arrays:
            try:
                _require_suitable(subject, array, arrays)
            except Otherwise as error:
                yield NotApplicable(self.name, f"{array.name} {error}")
                continue
            columns = array.extents[-1][0]
            source = replaced(task.source, [(columns.end_byte, columns.end_byte, " + 1")])
            line = subject.line(array.declarator)
            yield task.candidate(
                self.name, f"one more column in {array.name}", source, {"array": array.name, "line": line}
            )


def _arrays(subject: Subject) -> Iterator[_Array]:
    for node in descend(subject.body):
        if node.type != "declaration" or not any(text_of(child) == "__shared__" for child in node.children):
            continue
        for declarator in node.children_by_field_name("declarator"):
            extents: list[tuple[Node, int | None]] = []
            inner: Node | None = declarator
            while inner is not None and inner.type == "array_declarator":
                if (size := field(inner, "size")) is not None:
                    extents.insert(0, (size, _extent(subject, size)))
                inner = field(inner, "declarator")
            if inner is not None:
                yield _Array(text_of(inner), text_of(field(node, "type")), declarator, tuple(extents))


def _extent(subject: Subject, node: Node) -> int | None:
    """Return the value of an extent: a number, or a name that this file defines as one."""
    text = text_of(node)
    if node.type == "number_literal":
        return int(text) if text.isdigit() else None
    if node.type != "identifier" or text in subject.numbers or text not in subject.types:
        return subject.numbers.get(text) if node.type == "identifier" else None
    words = [token.text for token in subject.tokens]
    defined = [index for index, word in enumerate(words[:-3]) if word == text and words[index + 1] == "="]
    constant = len(defined) == 1 and "constexpr" in words[max(0, defined[0] - 3) : defined[0]]
    value = words[defined[0] + 2] if constant and words[defined[0] + 3] == ";" else ""
    return int(value) if value.isdigit() else None


def _bytes(array: _Array) -> int | None:
    element = _BYTES.get(array.type) or _OTHER_BYTES.get(array.type)
    extents = [extent for _, extent in array.extents]
    return None if element is None or None in extents else element * prod(extent or 0 for extent in extents)


def _require_suitable(subject: Subject, array: _Array, arrays: list[_Array]) -> None:
    """Otherwise, unless the array is used by row and column alone, somewhere down a column, and fits when padded."""
    if "volatile" in subject.words:
        raise Otherwise("is in a file with volatile values, whose accesses stay as they are")
    if array.type not in _BYTES:
        raise Otherwise(f"holds {array.type}, not elements of four bytes")
    if len(array.extents) != 2:
        raise Otherwise("is no array of rows and columns")
    columns = array.extents[1][1]
    if columns is None or columns % _ROWS_IN_STEP:
        raise Otherwise(f"has rows of {columns or 'a length not known here'}, no multiple of {_ROWS_IN_STEP} elements")
    in_directives = {token.text for directive in subject.directives for token in directive.tokens}
    if array.name in in_directives or subject.types.get(array.name) is not None:
        raise Otherwise("is a name that stands for something else too")
    places = [one for one in names(subject.body, array.name) if not _within(one, array.declarator)]
    indices = [_row_and_column(subject, place) for place in places]
    if not any(_is_of_lane(subject, row) and not _is_of_lane(subject, column) for row, column in indices):
        raise Otherwise("is never accessed down a column by neighbouring lanes")
    sizes = [_bytes(one) for one in arrays]
    if None in sizes:
        raise Otherwise("lies beside an array of local data share whose size is not known here")
    added = (array.extents[0][1] or 0) * _BYTES[array.type]
    if sum(size or 0 for size in sizes) + added > MOST_LDS_BYTES:
        raise Otherwise(f"does not fit into {MOST_LDS_BYTES} bytes with another column")


def _within(node: Node, outer: Node) -> bool:
    return outer.start_byte <= node.start_byte and node.end_byte <= outer.end_byte


def _row_and_column(subject: Subject, place: Node) -> tuple[Node, Node]:
    """Return the indices of `t[row][column]` around the name `t`. Raises Otherwise for other uses."""
    otherwise = Otherwise(f"is used on line {subject.line(place)} other than by row and column")
    indices: list[Node] = []
    inner = place
    for _ in range(2):
        subscript = inner.parent
        if subscript is None or subscript.type != "subscript_expression" or field(subscript, "argument") != inner:
            raise otherwise
        if (index := single_index(subscript)) is None:
            raise otherwise
        indices.append(index)
        inner = subscript
    if inner.parent is not None and inner.parent.type in ("pointer_expression", "sizeof_expression"):
        raise otherwise
    return indices[0], indices[1]


def _is_of_lane(subject: Subject, index: Node) -> bool:
    """Return whether an index changes from lane to lane: it has `threadIdx.x`, or a local that is set to just that."""
    lanes = {"threadIdx.x"}
    for node in descend(subject.body):
        if node.type == "init_declarator" and text_of(field(node, "value")) == "threadIdx.x":
            lanes.add(text_of(field(node, "declarator")))
    return any(text_of(node) in lanes for node in descend(index) if node.type in ("field_expression", "identifier"))
