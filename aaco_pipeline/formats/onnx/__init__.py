"""ONNX models: the graph as frames, and its tensors' shapes for given inputs.

How a file is read without its weights is `aaco_pipeline.formats.onnx.weightless`, what a node costs is
`aaco_pipeline.analysis.model.operator_work`, and which kernel ran it is `aaco_pipeline.analysis.model.node_mapping`.
Import this module only where a model is read: importing onnx takes a noticeable part of a second.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final

import onnx
import polars as pl

from aaco_pipeline.errors import ModelError
from aaco_pipeline.formats.onnx.weightless import graph_only, parsed

__all__ = ["GraphTensor", "InferredShapes", "ModelGraph", "graph_only", "inferred_shapes", "read", "typed_edges"]

TensorType = tuple[str | None, tuple[int | None, ...] | None]
"""Element type and extents of a tensor; None where the model does not say."""

#: Up to this many nodes shape inference also follows the values of small integer tensors; its cost is not bounded.
_VALUES_FOLLOWED_UP_TO: Final = 20_000
#: No tensor that is computed with to give a shape has more elements; a bias may have some ten thousand.
_LONGEST_VALUES_FOLLOWED: Final = 1 << 17
_DEFAULT_DOMAIN: Final = "ai.onnx"
_NO_ATTRIBUTES: Final[Mapping[str, Any]] = {}
_UNKNOWN: Final[TensorType] = (None, None)
_INITIALIZERS: Final = pl.Schema(
    {"name": pl.String(), "dtype": pl.String(), "shape": pl.List(pl.Int64()), "parent_node_id": pl.Int32()}
)


@dataclass(frozen=True)
class GraphTensor:
    """One input or output of the model: each dimension is a size, a symbol, or None."""

    name: str
    kind: str | None
    dtype: str | None
    dims: tuple[int | str | None, ...] | None


@dataclass(frozen=True)
class ModelGraph:
    """A model's graph as frames; bodies of control flow are included.

    `nodes`: node_id (dense, in file order, a body's nodes after their parent), name, op_type, domain, inputs,
    outputs, parent_node_id and body (the control-flow node and its attribute that the node is in; null at the top).
    `edges`: from_node_id, to_node_id, tensor, dtype, shape; the border of a body counts as a border of the graph, so
    that the edges have no cycle. `initializers`: name, dtype, shape, parent_node_id. `attributes` of the nodes that
    have any: numbers, texts and tuples of them; of a tensor its type and shape; equal ones are one object. `types`:
    what the model declares of its tensors, by name; a name that bodies use for different types is left out.
    """

    nodes: pl.DataFrame
    edges: pl.DataFrame
    initializers: pl.DataFrame
    inputs: tuple[GraphTensor, ...]
    outputs: tuple[GraphTensor, ...]
    attributes: Mapping[int, Mapping[str, Any]]
    types: Mapping[str, TensorType]
    opsets: Mapping[str, int]

    @property
    def weights(self) -> list[str]:
        """Names of the initializers."""
        names: list[str] = self.initializers.get_column("name").to_list()
        return names


@dataclass(frozen=True)
class InferredShapes:
    """Types of the tensors by name, and in one line why some are missing when inference failed."""

    types: Mapping[str, TensorType]
    reason: str | None


def read(content: bytes, source: str) -> ModelGraph:
    """The graph of a serialized model; `source` names it in errors. Raises ModelError for what is no ONNX model."""
    model = parsed(content, source)
    collected = _Collected()
    main = _Scope(None)
    collected.visit(model.graph, main, None, None)
    if collected.holds_other_than_text():
        raise ModelError(f"{source}: names in it are not UTF-8 text; export or download the model again")
    initialized = {tensor.name for tensor in model.graph.initializer}
    return ModelGraph(
        nodes=collected.nodes_frame(),
        edges=collected.edges_frame(),
        initializers=collected.initializers_frame(),
        inputs=tuple(_graph_tensor(value) for value in model.graph.input if value.name not in initialized),
        outputs=tuple(_graph_tensor(value) for value in model.graph.output),
        attributes=collected.attributes,
        types=collected.types_by_name(),
        opsets={opset.domain or _DEFAULT_DOMAIN: opset.version for opset in model.opset_import},
    )


def inferred_shapes(
    content: bytes,
    input_shapes: Mapping[str, Sequence[int]],
    known: Mapping[str, TensorType] | None = None,
) -> InferredShapes:
    """The tensors' types when the model's inputs have `input_shapes`; symbols of the inputs are bound to them.

    `known` are types seen at run time, by tensor: inference goes on from them where it cannot find a shape itself.
    When inference fails, what the model declares (with its symbols bound) is given, and the reason.
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
    collected = _Collected()
    collected.visit(model.graph, _Scope(None), None, None)
    return InferredShapes(collected.types_by_name(), reason)


def _has_long_vector(graph: Any) -> bool:
    """Whether a tensor of one dimension is too long to be a shape; onnx follows such element by element."""
    values = (*graph.input, *graph.value_info)
    shapes = [value.type.tensor_type.shape.dim for value in values if value.type.HasField("tensor_type")]
    lengths = [dims[0].dim_value for dims in shapes if len(dims) == 1]
    lengths += [tensor.dims[0] for tensor in graph.initializer if len(tensor.dims) == 1]
    return max(lengths, default=0) > _LONGEST_VALUES_FOLLOWED


def typed_edges(edges: pl.DataFrame, types: Mapping[str, TensorType]) -> pl.DataFrame:
    """`edges` with dtype and shape from `types` where they say more than the model's own declaration."""
    known = pl.DataFrame(
        {
            "tensor": list(types),
            "dtype_known": [dtype for dtype, _ in types.values()],
            "shape_known": [None if shape is None else list(shape) for _, shape in types.values()],
        },
        schema={"tensor": pl.String, "dtype_known": pl.String, "shape_known": pl.List(pl.Int64)},
    )
    return edges.join(known, on="tensor", how="left", maintain_order="left").select(
        "from_node_id",
        "to_node_id",
        "tensor",
        dtype=pl.coalesce("dtype_known", "dtype"),
        shape=pl.coalesce("shape_known", "shape"),
    )


# ---- the graph as rows -------------------------------------------------------------------------------------------


@dataclass
class _Scope:
    """The tensors of one graph by name: who writes them (None: an input or weight) and of what type they are."""

    outer: "_Scope | None"
    producers: dict[str, int | None] = field(default_factory=dict)
    types: dict[str, TensorType] = field(default_factory=dict)

    def resolve(self, name: str) -> tuple[int | None, TensorType]:
        """Writer and type of a tensor as seen from this graph: its own before those of the graphs around it."""
        scope: _Scope | None = self
        while scope is not None:
            if name in scope.producers:
                return scope.producers[name], scope.types.get(name, _UNKNOWN)
            scope = scope.outer
        return None, self.types.get(name, _UNKNOWN)


@dataclass
class _Collected:
    """Columns of the frames, filled graph by graph."""

    names: list[str | None] = field(default_factory=list)
    op_types: list[str] = field(default_factory=list)
    domains: list[str] = field(default_factory=list)
    inputs: list[list[str]] = field(default_factory=list)
    outputs: list[list[str]] = field(default_factory=list)
    parents: list[int | None] = field(default_factory=list)
    bodies: list[str | None] = field(default_factory=list)
    attributes: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    initializers: list[tuple[str, str | None, list[int], int | None]] = field(default_factory=list)
    node_scopes: list[_Scope] = field(default_factory=list)
    border: list[tuple[str, _Scope]] = field(default_factory=list)
    scopes: list[_Scope] = field(default_factory=list)
    _equal_attributes: dict[bytes, Mapping[str, Any]] = field(default_factory=dict)

    def visit(self, graph: onnx.GraphProto, scope: _Scope, parent: int | None, body: str | None) -> None:
        """Take in a graph and, after each control-flow node, the graphs in its attributes."""
        self.scopes.append(scope)
        self._declare(graph, scope, parent)
        for node in graph.node:
            node_id = len(self.names)
            self.names.append(node.name or None)
            self.op_types.append(node.op_type)
            self.domains.append(node.domain or _DEFAULT_DOMAIN)
            self.inputs.append(list(node.input))
            outputs = list(node.output)
            self.outputs.append(outputs)
            self.parents.append(parent)
            self.bodies.append(body)
            self.node_scopes.append(scope)
            for name in outputs:
                if name:
                    scope.producers[name] = node_id
            if node.attribute:
                self._take_attributes(node, node_id, scope)
        self.border += ((value.name, scope) for value in graph.output)

    def _declare(self, graph: onnx.GraphProto, scope: _Scope, parent: int | None) -> None:
        types = scope.types
        for values in (graph.value_info, graph.output, graph.input):
            for value in values:
                types[value.name] = _type_of(value.type)
        for value in graph.input:
            scope.producers[value.name] = None
        tensors = [(tensor.name, tensor) for tensor in graph.initializer]
        shapes = [(name, _DTYPES.get(tensor.data_type), list(tensor.dims)) for name, tensor in tensors]
        shapes += [
            (sparse.values.name, _DTYPES.get(sparse.values.data_type), list(sparse.dims))
            for sparse in graph.sparse_initializer
        ]
        for name, dtype, dims in shapes:
            scope.producers[name] = None
            types[name] = (dtype, tuple(dims))
            self.initializers.append((name, dtype, dims, parent))

    def _take_attributes(self, node: onnx.NodeProto, node_id: int, scope: _Scope) -> None:
        bodies = [
            (attribute.name, graph)
            for attribute in node.attribute
            for graph in (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs)
        ]
        if bodies:
            self.attributes[node_id] = _attributes(node)
            for name, graph in bodies:
                self.visit(graph, _Scope(scope), node_id, name)
            return
        key = b"".join([attribute.SerializeToString() for attribute in node.attribute])
        known = self._equal_attributes.get(key)
        if known is None:
            known = self._equal_attributes[key] = _attributes(node)
        self.attributes[node_id] = known

    def holds_other_than_text(self) -> bool:
        """Whether a name is no UTF-8: protobuf then gives bytes in its place."""
        columns: list[Iterable[Any]] = [
            self.names,
            self.op_types,
            self.domains,
            (name for name, *_ in self.initializers),
        ]
        columns += (chain.from_iterable(lists) for lists in (self.inputs, self.outputs))
        columns += (scope.types for scope in self.scopes)
        columns.append(name for name, _ in self.border)
        return any(bytes in set(map(type, column)) for column in columns)

    def nodes_frame(self) -> pl.DataFrame:
        return pl.DataFrame(
            [
                pl.Series("node_id", range(len(self.names)), pl.Int32),
                pl.Series("name", self.names, pl.String),
                pl.Series("op_type", self.op_types, pl.String),
                pl.Series("domain", self.domains, pl.String),
                _list_series("inputs", self.inputs),
                _list_series("outputs", self.outputs),
                pl.Series("parent_node_id", self.parents, pl.Int32),
                pl.Series("body", self.bodies, pl.String),
            ]
        )

    def edges_frame(self) -> pl.DataFrame:
        """One row per tensor and pair of nodes; dtype and shape are looked up once per distinct type."""
        froms: list[int | None] = []
        tos: list[int | None] = []
        tensors: list[str] = []
        type_ids: list[int] = []
        distinct: dict[TensorType, int] = {}
        for to, name, (producer, type_) in self._resolved():
            froms.append(producer)
            tos.append(to)
            tensors.append(name)
            type_ids.append(distinct.setdefault(type_, len(distinct)))
        shapes = [None if shape is None else list(shape) for _, shape in distinct]
        types = pl.DataFrame(
            [
                pl.Series("dtype", [dtype for dtype, _ in distinct], pl.String),
                pl.Series("shape", shapes, pl.List(pl.Int64)),
            ]
        )
        return pl.DataFrame(
            [
                pl.Series("from_node_id", froms, pl.Int32),
                pl.Series("to_node_id", tos, pl.Int32),
                pl.Series("tensor", tensors, pl.String),
                *types[type_ids].get_columns(),
            ]
        )

    def _resolved(self) -> Iterator[tuple[int | None, str, tuple[int | None, TensorType]]]:
        """Reader, tensor, and the tensor's writer and type; a node that reads a tensor twice is one edge."""
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
        """Types over all graphs; a name that several graphs use for different types means nothing without them."""
        found: dict[str, TensorType] = {}
        ambiguous: set[str] = set()
        for scope in self.scopes:
            for name, type_ in scope.types.items():
                if found.setdefault(name, type_) != type_:
                    ambiguous.add(name)
        return {
            name: type_
            for name, type_ in found.items()
            if name and name not in ambiguous and type_ != _UNKNOWN and isinstance(name, str)
        }


def _list_series(name: str, rows: Sequence[Sequence[str]]) -> pl.Series:
    """A column of lists of texts, made from one flat column: Polars takes ten times as long for nested lists."""
    flat = pl.DataFrame(
        [
            pl.Series("row", [row for row, values in enumerate(rows) for _ in values], pl.Int32),
            pl.Series(name, [value for values in rows for value in values], pl.String),
        ]
    )
    every = pl.DataFrame(pl.Series("row", range(len(rows)), pl.Int32))
    lists = flat.group_by("row", maintain_order=True).agg(name)
    return every.join(lists, on="row", how="left", maintain_order="left").get_column(name).fill_null([])


def _dtype_names() -> dict[int, str]:
    """Element types by ONNX's number, named as NumPy and ml_dtypes do: float32, bfloat16, int4, float8e4m3fn."""
    names = {number: name.lower() for name, number in onnx.TensorProto.DataType.items()}
    del names[onnx.TensorProto.UNDEFINED]
    return {**names, onnx.TensorProto.FLOAT: "float32", onnx.TensorProto.DOUBLE: "float64"}


_DTYPES: Final = _dtype_names()
_DTYPE_NUMBERS: Final = {name: number for number, name in _DTYPES.items()}


def _type_of(declared: onnx.TypeProto) -> TensorType:
    """Element type and extents of a dense or sparse tensor; nothing for a sequence, map or optional."""
    kind = declared.WhichOneof("value")
    if kind not in ("tensor_type", "sparse_tensor_type"):
        return _UNKNOWN
    tensor = getattr(declared, kind)
    dtype = _DTYPES.get(tensor.elem_type)
    if not tensor.HasField("shape"):
        return dtype, None
    return dtype, tuple([_extent(dim) for dim in tensor.shape.dim])


def _extent(dim: onnx.TensorShapeProto.Dimension) -> int | None:
    return dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else None


def _graph_tensor(value: onnx.ValueInfoProto) -> GraphTensor:
    kind = value.type.WhichOneof("value")
    dtype, shape = _type_of(value.type)
    dims: tuple[int | str | None, ...] | None = shape
    if shape is not None:
        declared = getattr(value.type, kind).shape.dim
        dims = tuple(
            [size if size is not None else dim.dim_param or None for size, dim in zip(shape, declared, strict=True)]
        )
    return GraphTensor(value.name, kind.removesuffix("_type") if kind else None, dtype, dims)


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
            value = (_DTYPES.get(attribute.t.data_type), tuple(attribute.t.dims))
    return value


# ---- shapes for given inputs ---------------------------------------------------------------------------------------


def _bind(graph: onnx.GraphProto, input_shapes: Mapping[str, Sequence[int]]) -> str | None:
    """Give the inputs their actual shapes and put the sizes of their symbols in everywhere; a reason if they clash."""
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
                reason = (
                    f"input {value.name!r} has {len(shape.dim)} dimensions in the model and {len(actual)} in the run"
                )
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
    """Replace what the graph declares of the tensors it computes by the types seen at run time."""
    computed = {name for node in graph.node for name in node.output if name}
    outputs = {value.name: value for value in graph.output}
    declared = {value.name: value for value in graph.value_info}
    for name, (dtype, shape) in known.items():
        element = _DTYPE_NUMBERS.get(dtype or "")
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
