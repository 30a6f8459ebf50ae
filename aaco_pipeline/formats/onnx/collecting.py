"""The nodes, tensors and attributes of a graph and of the bodies in it, gathered into frames."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final

import onnx
import polars as pl

from aaco_pipeline.formats.onnx.types import DTYPES, UNKNOWN, TensorType, type_of

DEFAULT_DOMAIN: Final = "ai.onnx"
_NO_ATTRIBUTES: Final[Mapping[str, Any]] = {}
_NODES: Final = {
    "name": pl.String,
    "op_type": pl.String,
    "domain": pl.String,
    "parent_node_id": pl.Int32,
    "body": pl.String,
}
_EDGES: Final = {"from_node_id": pl.Int32, "to_node_id": pl.Int32, "tensor": pl.String, "type": pl.Int64}
_TYPES: Final = pl.Schema({"type": pl.Int64(), "dtype": pl.String(), "shape": pl.List(pl.Int64())})
_INITIALIZERS: Final = pl.Schema(
    {"name": pl.String(), "dtype": pl.String(), "shape": pl.List(pl.Int64()), "parent_node_id": pl.Int32()}
)


@dataclass
class Scope:
    """The tensors of one graph by name: who writes them (None: an input or weight) and of what type they are."""

    outer: "Scope | None"
    producers: dict[str, int | None] = field(default_factory=dict)
    types: dict[str, TensorType] = field(default_factory=dict)

    def resolve(self, name: str) -> tuple[int | None, TensorType]:
        """Writer and type of a tensor as seen from this graph: its own before those of the graphs around it."""
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
        """Take in a graph and, after each control-flow node, the graphs in its attributes."""
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
        """Whether a name is no UTF-8: protobuf then gives bytes in its place."""
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
        """One row per tensor and pair of nodes; dtype and shape are looked up once per distinct type."""
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
            if name and name not in ambiguous and type_ != UNKNOWN and isinstance(name, str)
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
