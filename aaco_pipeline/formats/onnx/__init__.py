"""ONNX models: the graph as frames, and its tensors' shapes for given inputs.

Written by any exporter, and by ONNX Runtime for its optimized graph; any opset is read, external data never.
`aaco_pipeline.formats.onnx.weightless` reads files without their weights; `aaco_pipeline.analysis.model.operator_work`
computes a node's work, and `aaco_pipeline.analysis.model.node_mapping` finds its kernel. Import this module only to
read a model: importing onnx takes a noticeable fraction of a second.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import onnx
import polars as pl

from aaco_pipeline.errors import ModelError
from aaco_pipeline.formats.onnx.graph import (
    DEFAULT_DOMAIN,
    CollectedGraph,
    InferredShapes,
    Scope,
    TensorType,
    inferred_shapes,
    type_of,
)
from aaco_pipeline.formats.onnx.weightless import graph_only, parsed

__all__ = [
    "GraphTensor",
    "InferredShapes",
    "ModelGraph",
    "TensorType",
    "graph_only",
    "inferred_shapes",
    "read",
    "typed_edges",
]


@dataclass(frozen=True)
class GraphTensor:
    """An input or output of the model: each dimension is a size, a symbol, or None."""

    name: str
    kind: str | None
    dtype: str | None
    dims: tuple[int | str | None, ...] | None


@dataclass(frozen=True)
class ModelGraph:
    """A model's graph as frames, including the bodies of control flow.

    `nodes`: node_id (dense, in file order, a body's nodes after their parent), name, op_type, domain, inputs, outputs,
    parent_node_id and body (the control-flow node that contains the node, and its attribute; null at the top). `edges`:
    from_node_id, to_node_id, tensor, dtype, shape; the boundary of a body counts as a boundary of the graph, so the
    edges have no cycle. `initializers`: name, dtype, shape, parent_node_id. `attributes` of the nodes that have any:
    numbers, texts and tuples of them; type and shape of a tensor; equal values are one object. `types`: the model's
    declared tensor types, by name; a name with different types in several bodies is omitted.
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
        """Return the names of the initializers."""
        names: list[str] = self.initializers.get_column("name").to_list()
        return names


def read(content: bytes, source: str) -> ModelGraph:
    """Read the graph of a serialized model; `source` names it in errors. Raises ModelError for anything but an ONNX
    model.
    """
    model = parsed(content, source)
    collected = CollectedGraph()
    main = Scope(None)
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
        opsets={opset.domain or DEFAULT_DOMAIN: opset.version for opset in model.opset_import},
    )


def typed_edges(edges: pl.DataFrame, types: Mapping[str, TensorType]) -> pl.DataFrame:
    """Return `edges` with dtype and shape from `types` where these are more specific than the model's declaration."""
    known = pl.DataFrame(
        {
            "tensor": list(types),
            "dtype_known": [dtype for dtype, _ in types.values()],
            "shape_known": [None if shape is None else list(shape) for _, shape in types.values()],
        },
        schema={"tensor": pl.String, "dtype_known": pl.String, "shape_known": pl.List(pl.Int64)},
    )
    joined = edges.join(known, on="tensor", how="left", maintain_order="left")
    dtype, shape = pl.coalesce("dtype_known", "dtype"), pl.coalesce("shape_known", "shape")
    return joined.select("from_node_id", "to_node_id", "tensor", dtype=dtype, shape=shape)


def _graph_tensor(value: onnx.ValueInfoProto) -> GraphTensor:
    kind = value.type.WhichOneof("value")
    dtype, shape = type_of(value.type)
    dims: tuple[int | str | None, ...] | None = shape
    if shape is not None:
        sizes = zip(shape, getattr(value.type, kind).shape.dim, strict=True)
        dims = tuple([size if size is not None else dim.dim_param or None for size, dim in sizes])
    return GraphTensor(value.name, kind.removesuffix("_type") if kind else None, dtype, dims)
