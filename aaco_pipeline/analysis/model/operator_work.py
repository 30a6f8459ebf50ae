"""The work a model's nodes imply: operations and the least bytes to move, one row per node.

The formulas for operations are `aaco_pipeline.analysis.model.operator_formulas`; which kernel ran a node, and for how
long, is `aaco_pipeline.analysis.model.node_mapping`.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import polars as pl

from aaco_pipeline.analysis.model.operator_counts import (
    DEPENDS_ON_VALUES,
    KNOWN_DOMAINS,
    MOVES_DATA,
    Operation,
    Tensor,
    Unknown,
)
from aaco_pipeline.analysis.model.operator_formulas import flops, has_formula

TensorType = tuple[str | None, tuple[int | None, ...] | None]
"""Element type and extents of a tensor; None where they are not known."""

_BITS: Final[Mapping[str, int]] = {
    **dict.fromkeys(("uint2", "int2"), 2),
    **dict.fromkeys(("uint4", "int4", "float4e2m1"), 4),
    **dict.fromkeys(("float6e2m3", "float6e3m2"), 6),
    **dict.fromkeys(("uint8", "int8", "bool"), 8),
    **dict.fromkeys(("float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz", "float8e8m0"), 8),
    **dict.fromkeys(("uint16", "int16", "float16", "bfloat16"), 16),
    **dict.fromkeys(("uint32", "int32", "float32", "float"), 32),
    **dict.fromkeys(("uint64", "int64", "float64", "double", "complex64"), 64),
    "complex128": 128,
}
"""Bits per element; types below eight bits are packed. ONNX Runtime's profile says float and double."""

#: Another view of the same bytes: nothing has to be moved, though a runtime may copy when it cannot alias.
_VIEWS: Final = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Dropout", "Constant"})
#: Look at the shape only.
_READ_NOTHING: Final = frozenset({"Shape", "Size"})
#: Read as many elements of the first input as they write, whatever its size, and all of the other inputs.
_READ_WHAT_THEY_WRITE: Final = frozenset({"Gather", "GatherElements", "GatherND", "Slice"})
_OMITTED: Final[TensorType] = ("omitted", None)
_UNKNOWN: Final[TensorType] = (None, None)
_NO_ATTRIBUTES: Final[Mapping[str, Any]] = {}
_FIGURES: Final = {"flops": pl.Float64, "read_bytes": pl.Int64, "written_bytes": pl.Int64}
_MOST_BYTES: Final = 2**63 - 1
_MOST_FLOPS: Final = 2**1000
"""Beyond what the columns can hold; only a damaged model has such shapes."""

_Work = tuple[float | None, int | None, int | None]


def work(
    nodes: pl.DataFrame,
    attributes: Mapping[int, Mapping[str, Any]],
    inferred: Mapping[str, TensorType],
    runtime: Mapping[str, TensorType] | None = None,
) -> pl.DataFrame:
    """flops, read_bytes, written_bytes and shape_source per row of `nodes` (node_id, op_type, domain, inputs, outputs).

    Types of tensors are taken from `runtime` before `inferred`. shape_source is `runtime` when all outputs' types
    are, `inferred` when something is known at all, else null. Bytes are a lower bound on traffic: each input is read
    once, even if it is broadcast or given twice, each output written once, by their real element sizes; what a cache
    too small reads again is not in it. All three are null for control flow (the work is its body's) and for operators
    without a formula; each is null alone when a shape it needs is unknown.
    """
    seen = runtime or {}
    # Equal types get one number, so that the nodes' keys are short; 0 is a tensor left out, 1 an unknown one.
    numbers: dict[TensorType, int] = {_OMITTED: 0, _UNKNOWN: 1}
    number_of = {name: numbers.setdefault(type_, len(numbers)) for name, type_ in inferred.items()}
    number_of |= {name: numbers.setdefault(type_, len(numbers)) for name, type_ in seen.items()}
    number_of[""] = 0
    types = tuple(numbers)
    known: dict[tuple[Any, ...], tuple[_Work, bool]] = {}
    rows: list[_Work] = []
    sources: list[str | None] = []
    columns = (nodes.get_column(name).to_list() for name in ("node_id", "op_type", "domain", "inputs", "outputs"))
    for node_id, op_type, domain, inputs, outputs in zip(*columns, strict=True):
        own = attributes.get(node_id, _NO_ATTRIBUTES)
        read = tuple([number_of.get(name, 1) for name in inputs])
        written = tuple([number_of.get(name, 1) for name in outputs])
        repeated = () if len(inputs) < 2 or len(set(inputs)) == len(inputs) else _repeated(inputs)
        # Equal attributes are one object in a graph that was read from a file; others are computed once each.
        key = (op_type, domain, id(own), read, written, repeated)
        found = known.get(key)
        if found is None:
            tensors = [tuple(Tensor(*types[number]) if number else None for number in side) for side in (read, written)]
            operation = Operation(op_type, domain, tensors[0], tensors[1], own)
            some_shape = any(types[number][1] is not None for number in (*read, *written))
            found = known[key] = (_work(operation, set(repeated)), some_shape)
        rows.append(found[0])
        if seen and outputs and all(name in seen for name in outputs if name):
            sources.append("runtime")
        else:
            sources.append("inferred" if found[1] else None)
    figures = zip(*rows, strict=True) if rows else ((), (), ())
    return pl.DataFrame(
        [
            nodes.get_column("node_id").cast(pl.Int32),
            *(
                pl.Series(name, list(values), dtype)
                for (name, dtype), values in zip(_FIGURES.items(), figures, strict=True)
            ),
            pl.Series("shape_source", sources, pl.String),
        ]
    )


def tensor_bytes(tensor: Tensor) -> int | None:
    """Size of a tensor by its element type, packed below a byte; None when type or an extent is not known."""
    bits = _BITS.get(tensor.dtype or "")
    if bits is None:
        return None
    try:
        return math.ceil(tensor.count * bits / 8) if bits < 8 else tensor.count * (bits // 8)
    except Unknown:
        return None


def _repeated(names: Sequence[str]) -> tuple[int, ...]:
    """Positions of tensors that came before under the same name."""
    return tuple(position for position, name in enumerate(names) if name and name in names[:position])


def _work(operation: Operation, repeated: set[int]) -> _Work:
    kind = operation.op_type
    if operation.domain not in KNOWN_DOMAINS or not (
        kind in MOVES_DATA or kind in DEPENDS_ON_VALUES or has_formula(operation)
    ):
        return None, None, None
    if kind in _VIEWS:
        return 0.0, 0, 0
    inputs = [None if position in repeated else tensor for position, tensor in enumerate(operation.inputs)]
    written = _bytes(operation.outputs)
    if kind in _READ_NOTHING:
        read: int | None = 0
    elif kind in _READ_WHAT_THEY_WRITE:
        others = _bytes(inputs[1:])
        read = None if others is None or written is None else written + others
    else:
        read = _bytes(inputs)
    operations = flops(operation)
    return (
        None if operations is None or operations > _MOST_FLOPS else float(operations),
        None if read is None or read > _MOST_BYTES else read,
        None if written is None or written > _MOST_BYTES else written,
    )


def _bytes(tensors: Iterable[Tensor | None]) -> int | None:
    """The sum of the sizes of those that are there; None when one is not known."""
    total = 0
    for tensor in tensors:
        if tensor is not None:
            size = tensor_bytes(tensor)
            if size is None:
                return None
            total += size
    return total
