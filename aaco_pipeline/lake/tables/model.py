"""The model as a graph: its operators, their work by shape, and the tensors between them.

What an operator cost when it ran does not belong here; that is `operator_kernels` in `analysis`.
"""

from typing import Final

from aaco_pipeline.lake.declaration import (
    BYTES,
    COUNT,
    FLOAT64,
    FLOP,
    ID,
    INT32,
    INT64,
    INT64S,
    NAME,
    STRING,
    STRINGS,
    Table,
    column,
    nullable,
)

# A column is one call of at most three lines.
# fmt: off
TABLES: Final[tuple[Table, ...]] = (
    Table(
        name="model_nodes", section="Model",
        meaning="One row is one operator of the model graph with the work its shapes imply. Filled by the stage "
                "model_graph.",
        sort_by=("node_id",),
        columns=(
            column("node_id", INT32, ID, "Dense number of the operator in the graph's topological order, starting at "
                "0."),
            column("name", STRING, NAME, "Name of the operator in the model; made from op_type and node_id where the "
                "model gives none."),
            column("op_type", STRING, NAME, "Operator type, such as `Conv` or `MatMul`."),
            column("domain", STRING, NAME, "Operator-set domain that defines the type; `ai.onnx` for the default one."),
            column("inputs", STRINGS, NAME, "Tensors the operator reads, weights included, in the order of its "
                "signature; an omitted optional input is an empty name."),
            column("outputs", STRINGS, NAME, "Tensors the operator writes, in the order of its signature."),
            nullable("flops", FLOAT64, FLOP, "Floating-point operations of one execution by formula, a multiply-add "
                "counted as two; null when a shape is unknown or there is no formula for the type."),
            nullable("read_bytes", INT64, BYTES, "Bytes of all inputs, weights included, each counted once; the least "
                "one execution must read; null when a shape is unknown."),
            nullable("written_bytes", INT64, BYTES, "Bytes of all outputs, each counted once; the least one execution "
                "must write; null when a shape is unknown."),
            nullable("shape_source", STRING, NAME, "What the shapes behind flops and bytes come from, such as the "
                "model's own declaration, shape inference or the inputs of the run; null when shapes are unknown."),
        ),
    ),
    Table(
        name="model_edges", section="Model",
        meaning="One row is one tensor passed from one operator to another, or across the graph's border. Filled by "
                "the stage model_graph.",
        sort_by=("from_node_id", "to_node_id", "tensor"),
        columns=(
            nullable("from_node_id", INT32, ID, "Operator that writes the tensor; null when it is an input or a weight "
                "of the graph."),
            nullable("to_node_id", INT32, ID, "Operator that reads the tensor; null when it is an output of the "
                "graph."),
            column("tensor", STRING, NAME, "Name of the tensor in the model."),
            nullable("dtype", STRING, NAME, "Element type of the tensor, such as `float16`; null when the model does "
                "not say."),
            nullable("shape", INT64S, COUNT, "Extent of each dimension, outermost first, with null for an unknown one; "
                "empty for a scalar; null when the rank is unknown."),
        ),
    ),
)
