"""The model as a graph: its operators, their work by shape, and the tensors between them.

What an operator cost when it ran does not belong here; that is `operator_kernels` in `analysis`.
"""

from typing import Final

from aaco_pipeline.lake.contracts import Table, column

TABLES: Final[tuple[Table, ...]] = (
    Table(
        name="model_nodes",
        section="Model",
        meaning=(
            "One row is one operator of the model graph with the work its shapes imply. Filled by the stage "
            "model_graph."
        ),
        columns=(
            column(
                "node_id",
                "int32",
                "id",
                False,
                "Dense number of the operator in the graph's topological order, starting at 0.",
            ),
            column(
                "name",
                "string",
                "name",
                False,
                "Name of the operator in the model; made from op_type and node_id where the model gives none.",
            ),
            column("op_type", "string", "name", False, "Operator type, such as `Conv` or `MatMul`."),
            column(
                "domain",
                "string",
                "name",
                False,
                "Operator-set domain that defines the type; `ai.onnx` for the default one.",
            ),
            column(
                "inputs",
                "list<string>",
                "name",
                False,
                "Tensors the operator reads, weights included, in the order of its signature; an omitted optional "
                "input is an empty name.",
            ),
            column(
                "outputs", "list<string>", "name", False, "Tensors the operator writes, in the order of its signature."
            ),
            column(
                "flops",
                "float64",
                "flop",
                True,
                "Floating-point operations of one execution by formula, a multiply-add counted as two; null when a "
                "shape is unknown or there is no formula for the type.",
            ),
            column(
                "read_bytes",
                "int64",
                "bytes",
                True,
                "Bytes of all inputs, weights included, each counted once; the least one execution must read; null "
                "when a shape is unknown.",
            ),
            column(
                "written_bytes",
                "int64",
                "bytes",
                True,
                "Bytes of all outputs, each counted once; the least one execution must write; null when a shape is "
                "unknown.",
            ),
            column(
                "shape_source",
                "string",
                "name",
                True,
                "What the shapes behind flops and bytes come from, such as the model's own declaration, shape "
                "inference or the inputs of the run; null when shapes are unknown.",
            ),
        ),
        sort_by=("node_id",),
    ),
    Table(
        name="model_edges",
        section="Model",
        meaning=(
            "One row is one tensor passed from one operator to another, or across the graph's border. Filled by the "
            "stage model_graph."
        ),
        columns=(
            column(
                "from_node_id",
                "int32",
                "id",
                True,
                "Operator that writes the tensor; null when it is an input or a weight of the graph.",
            ),
            column(
                "to_node_id",
                "int32",
                "id",
                True,
                "Operator that reads the tensor; null when it is an output of the graph.",
            ),
            column("tensor", "string", "name", False, "Name of the tensor in the model."),
            column(
                "dtype",
                "string",
                "name",
                True,
                "Element type of the tensor, such as `float16`; null when the model does not say.",
            ),
            column(
                "shape",
                "list<int64>",
                "count",
                True,
                "Extent of each dimension, outermost first, with null for an unknown one; empty for a scalar; null "
                "when the rank is unknown.",
            ),
        ),
        sort_by=(
            "from_node_id",
            "to_node_id",
            "tensor",
        ),
    ),
)
