"""Collect a model's nodes, edges, initializers and types into frames, and infer missing types and shapes.

`weightless` reads a file without its weights.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final

import onnx
import polars as pl

from aaco_pipeline.formats.onnx.weightless import parsed

TensorType = tuple[str | None, tuple[int | None, ...] | None]
"""Element type and extents of a tensor; None where the model does not say."""

UNKNOWN: Final[TensorType] = (None, None)


def _dtype_names() -> dict[int, str]:
    """Name element types by ONNX's number as NumPy and ml_dtypes do: float32, bfloat16, int4, float8e4m3fn."""
    names = {number: name.lower() for name, number in onnx.TensorProto.DataType.items()}
    del names[onnx.TensorProto.UNDEFINED]
    return {**names, onnx.TensorProto.FLOAT: "float32", onnx.TensorProto.DOUBLE: "float64"}


DTYPES: Final = _dtype_names()
DTYPE_NUMBERS: Final = {name: number for number, name in DTYPES.items()}


def type_of(declared: onnx.TypeProto) -> TensorType:
    """Return element type and dimensions of a dense or sparse tensor; nothing for a sequence, map or optional."""
    kind = declared.WhichOneof("value")
    if kind not in ("tensor_type", "sparse_tensor_type"):
        return UNKNOWN
    tensor = getattr(declared, kind)
    dtype = DTYPES.get(tensor.elem_type)
    if not tensor.HasField("shape"):
        return dtype, None
    return dtype, tuple([_extent(dim) for dim in tensor.shape.dim])


def _extent(dim: onnx.TensorShapeProto.Dimension) -> int | None:
    return dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else None


DEFAULT_DOMAIN: Final = "ai.onnx"
_NO_ATTRIBUTES: Final[Mapping[str, Any]] = {}
_NODES: Final = {
    **dict.fromkeys(("name", "op_type", "domain"), pl.String),
    **{"parent_node_id": pl.Int32, "body": pl.String},
}
_EDGES: Final = {"from_node_id": pl.Int32, "to_node_id": pl.Int32, "tensor": pl.String, "type": pl.Int64}
_TYPES: Final = pl.Schema({"type": pl.Int64(), "dtype": pl.String(), "shape": pl.List(pl.Int64())})
_INITIALIZERS: Final = pl.Schema(
    {"name": pl.String(), "dtype": pl.String(), "shape": pl.List(pl.Int64()), "parent_node_id": pl.Int32()}
)


@dataclass
class Scope:
    """The tensors of one graph by name: their producer (None: an input or weight) and their type."""

    outer: "Scope | None"
    producers: dict[str, int | None] = field(default_factory=dict)
    types: dict[str, TensorType] = field(default_factory=dict)

    def resolve(self, name: str) -> tuple[int | None, TensorType]:
        """Return producer and type of a tensor as seen from this graph; its own tensors hide those of outer graphs."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.producers:
                return scope.producers[name], scope.types.get(name, UNKNOWN)
            scope = scope.outer
        return None, self.types.get(name, UNKNOWN)


@dataclass
class CollectedGraph:
    """Columns of the frames, filled graph by graph."""

    #: name, op_type, domain, parent_node_id and body of each node.
    nodes: list[tuple[str | None, str, str, int | None, str | None]] = field(default_factory=list)
    inputs: list[list[str]] = field(default_factory=list)
    outputs: list[list[str]] = field(default_factory=list)
    attributes: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    initializers: list[tuple[str, str | None, list[int], int | None]] = field(default_factory=list)
    node_scopes: list[Scope] = field(default_factory=list)
    border: list[tuple[str, Scope]] = field(default_factory=list)
    scopes: list[Scope] = field(default_factory=list)
    _equal_attributes: dict[bytes, Mapping[str, Any]] = field(default_factory=dict)

    def visit(self, graph: onnx.GraphProto, scope: Scope, parent: int | None, body: str | None) -> None:
        """Add a graph and, after each control-flow node, the graphs in its attributes."""
        self.scopes.append(scope)
        self._declare(graph, scope, parent)
        for node in graph.node:
            node_id = len(self.nodes)
            self.nodes.append((node.name or None, node.op_type, node.domain or DEFAULT_DOMAIN, parent, body))
            self.inputs.append(list(node.input))
            self.outputs.append(list(node.output))
            self.node_scopes.append(scope)
            scope.producers |= {name: node_id for name in self.outputs[-1] if name}
            if node.attribute:
                self._take_attributes(node, node_id, scope)
        self.border += ((value.name, scope) for value in graph.output)

    def _declare(self, graph: onnx.GraphProto, scope: Scope, parent: int | None) -> None:
        types = scope.types
        for values in (graph.value_info, graph.output, graph.input):
            for value in values:
                types[value.name] = type_of(value.type)
        for value in graph.input:
            scope.producers[value.name] = None
        tensors = [(tensor, tensor.dims) for tensor in graph.initializer]
        tensors += [(sparse.values, sparse.dims) for sparse in graph.sparse_initializer]
        for tensor, dims in tensors:
            dtype = DTYPES.get(tensor.data_type)
            scope.producers[tensor.name] = None
            types[tensor.name] = (dtype, tuple(dims))
            self.initializers.append((tensor.name, dtype, list(dims), parent))

    def _take_attributes(self, node: onnx.NodeProto, node_id: int, scope: Scope) -> None:
        bodies = [
            (attribute.name, graph)
            for attribute in node.attribute
            for graph in (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs)
        ]
        if bodies:
            self.attributes[node_id] = _attributes(node)
            for name, graph in bodies:
                self.visit(graph, Scope(scope), node_id, name)
            return
        key = b"".join([attribute.SerializeToString() for attribute in node.attribute])
        known = self._equal_attributes.get(key)
        if known is None:
            known = self._equal_attributes[key] = _attributes(node)
        self.attributes[node_id] = known

    def holds_other_than_text(self) -> bool:
        """Return whether a name is not UTF-8; protobuf then returns bytes."""
        columns: list[Iterable[Any]] = [chain.from_iterable((*node[:3], node[4]) for node in self.nodes)]
        columns.append(name for name, *_ in self.initializers)
        columns += (chain.from_iterable(lists) for lists in (self.inputs, self.outputs))
        columns += (scope.types for scope in self.scopes)
        columns.append(name for name, _ in self.border)
        return any(bytes in set(map(type, column)) for column in columns)

    def nodes_frame(self) -> pl.DataFrame:
        facts = pl.DataFrame(self.nodes, schema=_NODES, orient="row").with_row_index("node_id")
        return facts.select(
            pl.col("node_id").cast(pl.Int32),
            *("name", "op_type", "domain"),
            _list_series("inputs", self.inputs),
            _list_series("outputs", self.outputs),
            *("parent_node_id", "body"),
        )

    def edges_frame(self) -> pl.DataFrame:
        """Build one row per tensor and node pair; dtype and shape are looked up once per distinct type."""
        distinct: dict[TensorType, int] = {}
        rows = [
            (producer, to, name, distinct.setdefault(type_, len(distinct)))
            for to, name, (producer, type_) in self._resolved()
        ]
        known = [(number, dtype, shape and list(shape)) for (dtype, shape), number in distinct.items()]
        types = pl.DataFrame(known, schema=_TYPES, orient="row")
        edges = pl.DataFrame(rows, schema=_EDGES, orient="row")
        return edges.join(types, on="type", how="left", maintain_order="left").drop("type")

    def _resolved(self) -> Iterator[tuple[int | None, str, tuple[int | None, TensorType]]]:
        """Yield reader, tensor, and the tensor's producer and type; a node that reads a tensor twice has one edge."""
        for node_id, (names, scope) in enumerate(zip(self.inputs, self.node_scopes, strict=True)):
            for name in dict.fromkeys(names):
                if name:
                    yield node_id, name, scope.resolve(name)
        for name, scope in self.border:
            if name:
                yield None, name, scope.resolve(name)

    def initializers_frame(self) -> pl.DataFrame:
        return pl.DataFrame(self.initializers, schema=_INITIALIZERS, orient="row")

    def types_by_name(self) -> dict[str, TensorType]:
        """Collect types over all graphs, except for names with different types in several graphs."""
        found: dict[str, TensorType] = {}
        ambiguous: set[str] = set()
        for scope in self.scopes:
            for name, type_ in scope.types.items():
                if found.setdefault(name, type_) != type_:
                    ambiguous.add(name)
        known = ((name, type_) for name, type_ in found.items() if name not in ambiguous and type_ != UNKNOWN)
        return {name: type_ for name, type_ in known if name and isinstance(name, str)}


def _list_series(name: str, rows: Sequence[Sequence[str]]) -> pl.Series:
    """Build a column of lists of texts from one flat column: Polars takes ten times as long for nested lists."""
    flat = pl.DataFrame(
        [
            pl.Series("row", [row for row, values in enumerate(rows) for _ in values], pl.Int32),
            pl.Series(name, [value for values in rows for value in values], pl.String),
        ]
    )
    every = pl.DataFrame(pl.Series("row", range(len(rows)), pl.Int32))
    lists = flat.group_by("row", maintain_order=True).agg(name)
    return every.join(lists, on="row", how="left", maintain_order="left").get_column(name).fill_null([])


def _attributes(node: onnx.NodeProto) -> Mapping[str, Any]:
    values = {attribute.name: _attribute_value(attribute) for attribute in node.attribute}
    return values or _NO_ATTRIBUTES


def _attribute_value(attribute: onnx.AttributeProto) -> Any:
    kinds = onnx.AttributeProto
    value: Any = None
    match attribute.type:
        case kinds.INT:
            value = attribute.i
        case kinds.FLOAT:
            value = attribute.f
        case kinds.STRING:
            value = attribute.s.decode(errors="replace")
        case kinds.INTS:
            value = tuple(attribute.ints)
        case kinds.FLOATS:
            value = tuple(attribute.floats)
        case kinds.STRINGS:
            value = tuple([text.decode(errors="replace") for text in attribute.strings])
        case kinds.TENSOR:
            value = (DTYPES.get(attribute.t.data_type), tuple(attribute.t.dims))
    return value


#: Above this number of nodes, inference ignores the values of small integer tensors, whose cost is unbounded.
_VALUES_FOLLOWED_UP_TO: Final = 20_000
#: Tensors that determine shapes have no more elements than this; a bias may have ten thousand.
_LONGEST_VALUES_FOLLOWED: Final = 1 << 17


@dataclass(frozen=True)
class InferredShapes:
    """Tensor types by name, and a one-line reason for missing ones if inference failed."""

    types: Mapping[str, TensorType]
    reason: str | None


def inferred_shapes(
    content: bytes, input_shapes: Mapping[str, Sequence[int]], known: Mapping[str, TensorType] | None = None
) -> InferredShapes:
    """Infer the tensor types for inputs with `input_shapes`, which also bind the inputs' symbols.

    `known` are types observed at run time, by tensor: inference continues from them if it cannot find a shape itself.
    If inference fails, the model's declarations (with bound symbols) are returned with the reason.
    """
    model = parsed(content, "the model")
    reason = _bind(model.graph, input_shapes)
    if known:
        _declare(model.graph, known)
    failure: str | None = None
    few = len(model.graph.node) <= _VALUES_FOLLOWED_UP_TO and not _has_long_vector(model.graph)
    for follow_values in (True, False) if few else (False,):
        try:
            model = onnx.shape_inference.infer_shapes(model, strict_mode=False, data_prop=follow_values)
        except Exception as error:  # noqa: BLE001 - onnx raises errors of several unrelated classes
            failure = " ".join(str(error).split()) or type(error).__name__
        else:
            failure = None
            break
    if failure is not None:
        reason = f"shape inference failed: {failure}"
    collected = CollectedGraph()
    collected.visit(model.graph, Scope(None), None, None)
    return InferredShapes(collected.types_by_name(), reason)


def _has_long_vector(graph: Any) -> bool:
    """Return whether a one-dimensional tensor is too long to be a shape; onnx processes it element by element."""
    values = (*graph.input, *graph.value_info)
    shapes = [value.type.tensor_type.shape.dim for value in values if value.type.HasField("tensor_type")]
    lengths = [dims[0].dim_value for dims in shapes if len(dims) == 1]
    lengths += [tensor.dims[0] for tensor in graph.initializer if len(tensor.dims) == 1]
    return max(lengths, default=0) > _LONGEST_VALUES_FOLLOWED


def _bind(graph: onnx.GraphProto, input_shapes: Mapping[str, Sequence[int]]) -> str | None:
    """Give the inputs their actual shapes and bind their symbols everywhere; return a reason if they conflict."""
    sizes: dict[str, int] = {}
    reason = None
    for value in graph.input:
        actual = input_shapes.get(value.name)
        if actual is None or value.type.WhichOneof("value") != "tensor_type":
            continue
        shape = value.type.tensor_type.shape
        if len(shape.dim) == len(actual):
            for dim, size in zip(shape.dim, actual, strict=True):
                if dim.dim_param and sizes.setdefault(dim.dim_param, size) != size:
                    reason = f"the inputs give dimension {dim.dim_param!r} both {sizes[dim.dim_param]} and {size}"
                dim.dim_value = size
        else:
            if value.type.tensor_type.HasField("shape"):
                sizes_of = f"{len(shape.dim)} dimensions in the model and {len(actual)} in the run"
                reason = f"input {value.name!r} has {sizes_of}"
            _set_shape(value.type.tensor_type, actual)
    if sizes:
        _bind_symbols(graph, sizes)
    return reason


def _bind_symbols(graph: onnx.GraphProto, sizes: Mapping[str, int]) -> None:
    for values in (graph.input, graph.output, graph.value_info):
        for value in values:
            if value.type.WhichOneof("value") == "tensor_type":
                for dim in value.type.tensor_type.shape.dim:
                    if dim.dim_param in sizes:
                        dim.dim_value = sizes[dim.dim_param]


def _declare(graph: onnx.GraphProto, known: Mapping[str, TensorType]) -> None:
    """Replace the declared types of computed tensors with those observed at run time."""
    computed = {name for node in graph.node for name in node.output if name}
    outputs = {value.name: value for value in graph.output}
    declared = {value.name: value for value in graph.value_info}
    for name, (dtype, shape) in known.items():
        element = DTYPE_NUMBERS.get(dtype or "")
        if name not in computed or element is None or shape is None:
            continue
        value = outputs.get(name) or declared.get(name)
        if value is None:
            value = graph.value_info.add()
            value.name = name
        value.type.tensor_type.elem_type = element
        _set_shape(value.type.tensor_type, shape)


def _set_shape(tensor: onnx.TypeProto.Tensor, shape: Sequence[int | None]) -> None:
    tensor.ClearField("shape")
    tensor.shape.SetInParent()
    for size in shape:
        dim = tensor.shape.dim.add()
        if size is not None:
            dim.dim_value = size
