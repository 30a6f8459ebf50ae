"""Kernels' time in the model's graph: real profiles of the built-in models, and made-up graphs with a known truth."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import onnx
import onnxruntime
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from aaco_pipeline.analysis.model.graph_provenance import BY_MANGLED_NAME, BY_NAME, BY_ORDER, BY_TENSORS
from aaco_pipeline.analysis.model.node_mapping import (
    KernelMapping,
    kernel_activity_ratio,
    map_kernels,
    non_constant_node_count,
    runtime_types,
)
from aaco_pipeline.analysis.model.operator_work import work
from aaco_pipeline.analysis.timeline.activities import kernel_stats
from aaco_pipeline.formats import ort_profile
from aaco_pipeline.formats.onnx import ModelGraph, graph_only, inferred_shapes, read
from aaco_pipeline.lake.contracts import contract, polars_types
from aaco_pipeline.lake.validation import conform, to_contract
from aaco_pipeline.resources.measure.models import resolve_model

CONVOLUTIONAL: Final = ("squeezenet", "resnet50", "densenet121")
MODELS: Final = (*CONVOLUTIONAL, "gpt_tiny", "control_flow")
LAYOUT_CHANGES: Final = ("ReorderInput", "ReorderOutput")


@dataclass(frozen=True)
class Executed:
    """A model that ran: its graph, the runtime's, and what its profile says."""

    content: bytes
    input_shapes: Mapping[str, Sequence[int]]
    original: ModelGraph
    optimized: ModelGraph
    kernels: pl.DataFrame
    statistics: pl.DataFrame
    shapes: pl.DataFrame

    @property
    def weights(self) -> list[str]:
        return self.original.initializers.get_column("name").to_list()

    def mapped(self, *, saved: bool = True) -> KernelMapping:
        nodes = self.optimized.nodes if saved else None
        return map_kernels(self.kernels, self.statistics, nodes, self.original.nodes, self.weights)


Run = Callable[..., Executed]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A built-in model run twice at an optimization level, with or without its nodes' names."""
    done: dict[tuple[str, str, bool], Executed] = {}

    def execute(name: str, level: str, *, named: bool = True) -> Executed:
        key = (name, level, named)
        if key not in done:
            done[key] = _run(name, level, named, tmp_path_factory.mktemp("run"))
        return done[key]

    return execute


def _run(name: str, level: str, named: bool, folder: Path) -> Executed:
    choice = resolve_model(name, {})
    path = choice.path
    if not named:
        model = onnx.load(str(path))
        _take_names(model.graph)
        path = folder / "unnamed.onnx"
        path.write_bytes(model.SerializeToString())
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    options.enable_profiling = True
    options.profile_file_prefix = str(folder / "profile")
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, f"ORT_ENABLE_{level}")
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    external = "session.optimized_model_external_initializers"
    options.add_session_config_entry(f"{external}_file_name", "optimized.weights")
    options.add_session_config_entry(f"{external}_min_size_in_bytes", "1024")
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    (folder / "optimized.weights").unlink(missing_ok=True)  # only the graph is read
    random = np.random.default_rng(7)
    inputs = {
        tensor.name: random.integers(0, choice.integer_upper_bound[tensor.name], choice.input_shapes[tensor.name])
        if tensor.type == "tensor(int64)"
        else random.standard_normal(choice.input_shapes[tensor.name]).astype(np.float32)
        for tensor in session.get_inputs()
    }
    for _ in range(2):
        session.run(None, inputs)
    profile = ort_profile.read(Path(session.end_profiling()), axis_start_ns=0)
    content = graph_only(path)
    return Executed(
        content,
        choice.input_shapes,
        read(content, name),
        read(graph_only(folder / "optimized.onnx"), name),
        profile.tables["kernels"],
        kernel_stats(profile.tables["dispatches"]),
        profile.details["kernel_shapes"],
    )


def _take_names(graph: onnx.GraphProto) -> None:
    for node in graph.node:
        node.ClearField("name")
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _take_names(attribute.g)


def attributed_share(executed: Executed, mapping: KernelMapping) -> float:
    """The share of computing kernels with a node, by count, because times depend on the machine."""
    computing = executed.kernels.filter(~pl.col("short_name").cast(pl.String).is_in(LAYOUT_CHANGES))
    rows = mapping.operator_kernels.join(computing.select("kernel_id"), on="kernel_id")
    return float(rows["node_id"].is_not_null().mean())  # type: ignore[arg-type]


def names_covered(executed: Executed, mapping: KernelMapping) -> dict[str, list[str]]:
    """Names of the original nodes by kernel name."""
    rows = (
        mapping.covered.join(executed.kernels.select("kernel_id", "name"), on="kernel_id")
        .join(executed.original.nodes.select("node_id", original="name"), on="node_id")
        .sort("kernel_id", "node_id")
    )
    return {name: rows.filter(pl.col("name") == name)["original"].to_list() for name in rows["name"].unique()}


# ---- real profiles -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_up_to_the_extended_optimizations_every_kernel_is_mapped(run: Run, name: str) -> None:
    executed = run(name, "EXTENDED")
    mapping = executed.mapped()
    assert mapping.operator_kernels["node_id"].null_count() == 0
    assert mapping.operator_kernels["score"].min() >= BY_TENSORS  # type: ignore[operator]
    assert mapping.inserted.is_empty()
    assert mapping.executed.height == executed.kernels.height


@pytest.mark.parametrize("name", MODELS)
def test_with_all_optimizations_only_inserted_kernels_are_not_mapped(run: Run, name: str) -> None:
    executed = run(name, "ALL")
    mapping = executed.mapped()
    missing = mapping.operator_kernels.filter(pl.col("node_id").is_null())["kernel_id"].to_list()
    assert missing == mapping.inserted["kernel_id"].to_list()
    assert set(mapping.inserted["op_type"]) <= set(LAYOUT_CHANGES)
    assert attributed_share(executed, mapping) == 1


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("level", ["EXTENDED", "ALL"])
def test_every_node_that_computes_is_covered_unless_its_branch_was_not_taken(run: Run, name: str, level: str) -> None:
    executed = run(name, level)
    covered = set(executed.mapped().covered["node_id"])
    nodes = executed.original.nodes
    count = non_constant_node_count(nodes, executed.weights)
    not_taken = {node for node, label in nodes.select("node_id", "name").iter_rows() if "choose/then" in (label or "")}
    if name == "control_flow" and not covered & not_taken:
        count -= len(not_taken)
    assert len(covered) == count


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("level", ["EXTENDED", "ALL"])
@pytest.mark.parametrize("saved", [True, False])
def test_time_is_conserved_and_the_table_keeps_its_contract(run: Run, name: str, level: str, saved: bool) -> None:
    executed = run(name, level)
    rows = executed.mapped(saved=saved).operator_kernels
    columns = ("kernel_id", "dispatch_count", "total_ns")
    assert_frame_equal(rows.select(columns), executed.statistics.select(columns), check_row_order=False)
    conform(contract("operator_kernels"), to_contract("operator_kernels", rows), "20250101T000000Z-00000000")


@pytest.mark.parametrize("name", CONVOLUTIONAL)
def test_without_the_runtimes_graph_names_alone_find_what_they_can(run: Run, name: str) -> None:
    executed = run(name, "ALL")
    assert attributed_share(executed, executed.mapped(saved=False)) >= 0.99


def test_fused_nodes_are_covered_by_the_kernel_that_does_their_work(run: Run) -> None:
    extended = run("densenet121", "EXTENDED")
    covered = names_covered(extended, extended.mapped())
    assert covered["n0"] == ["n0", "n1", "n3", "n5", "n6"]  # Conv, BatchNormalization, Mul, Add, Relu
    everything = run("resnet50", "ALL")
    covered = names_covered(everything, everything.mapped())
    assert covered["r2_nchwc"] == ["n0", "n1", "n2"]
    assert covered["r11_nchwc"] == ["n10", "n11", "n14", "n15"]  # with the sum and the activation behind it
    gpt = run("gpt_tiny", "ALL")
    covered = names_covered(gpt, gpt.mapped())
    scores = "layer_0/attention/scores"
    assert covered[f"{scores}/MatmulTransposeFusion//MatMulScaleFusion/"] == [
        "layer_0/attention/turn_key",
        scores,
        "layer_0/attention/scale_scores",
    ]
    gelu = [f"layer_0/feed_forward/{part}" for part in ("gelu_divide", "gelu_erf", "gelu_add", "gelu_multiply")]
    assert covered["BiasGelu"] == ["layer_0/feed_forward/expand/add_bias", *gelu, "layer_0/feed_forward/gelu_halve"]


def test_a_fused_kernels_time_goes_to_the_node_of_its_own_type(run: Run) -> None:
    for name, level in (("resnet50", "ALL"), ("squeezenet", "EXTENDED"), ("densenet121", "ALL")):
        executed = run(name, level)
        rows = (
            executed.mapped()
            .operator_kernels.join(executed.original.nodes, on="node_id")
            .join(executed.kernels.select("kernel_id", kernel="name", kernel_type="short_name"), on="kernel_id")
        )
        products = rows.filter(pl.col("kernel_type").is_in(["Conv", "FusedConv"]))
        others = products.filter(pl.col("op_type") != "Conv")
        # A normalization or product that the runtime itself turned into a convolution stays what it was.
        assert others.filter(~pl.col("kernel").str.contains("_(bn|mul)_nchwc")).is_empty()
        assert products.height > 20


def test_bodies_of_control_flow_are_distinguished(run: Run) -> None:
    executed = run("control_flow", "ALL")
    covered = names_covered(executed, executed.mapped())
    assert covered["fused repeat/even/matmul/MatMulAddFusion"] == [
        "repeat/even/matmul",
        "repeat/even/add_bias",
        "repeat/even/tanh",
    ]
    assert covered["repeat/odd/if"] == ["repeat/odd/if"]


@pytest.mark.parametrize("name", ["gpt_tiny", "squeezenet"])
def test_nodes_without_names_are_found_by_their_place_and_tensors(run: Run, name: str) -> None:
    unnamed, named = run(name, "ALL", named=False), run(name, "ALL")
    mapping = unnamed.mapped()
    missing = mapping.operator_kernels.filter(pl.col("node_id").is_null())["kernel_id"].to_list()
    assert missing == mapping.inserted["kernel_id"].to_list()
    assert set(mapping.operator_kernels["score"].drop_nulls()) <= {BY_TENSORS, BY_MANGLED_NAME}
    # The same nodes get time as when they have names.
    assert set(mapping.operator_kernels["node_id"]) == set(named.mapped().operator_kernels["node_id"])


def test_shapes_of_the_run_complete_what_inference_cannot_know(run: Run) -> None:
    executed = run("gpt_tiny", "ALL")
    graph = executed.original
    alone = inferred_shapes(executed.content, executed.input_shapes)
    assert work(graph.nodes, graph.attributes, alone.types)["flops"].null_count() > 50
    seen = runtime_types(executed.mapped(), executed.shapes, executed.optimized.nodes, graph.nodes)
    both = inferred_shapes(executed.content, executed.input_shapes, seen)
    found = work(graph.nodes, graph.attributes, both.types, seen)
    assert found["flops"].null_count() == 0
    assert set(found["shape_source"]) == {"runtime", "inferred"}
    for tensor, type_ in seen.items():
        known = alone.types.get(tensor, (None, None))
        if known[1] is not None and None not in known[1]:
            assert type_ == known, tensor


# ---- made-up graphs ----------------------------------------------------------------------------------------------


class Node(NamedTuple):
    name: str | None
    op_type: str
    inputs: Sequence[str]
    outputs: Sequence[str]
    domain: str = "ai.onnx"
    parent: int | None = None
    body: str | None = None


def nodes_of(*nodes: Node) -> pl.DataFrame:
    return pl.DataFrame(
        [(node_id, *node) for node_id, node in enumerate(nodes)],
        schema={
            **polars_types("model_nodes", "node_id", "name", "op_type", "inputs", "outputs", "domain"),
            **{"parent_node_id": pl.Int32, "body": pl.String},
        },
        orient="row",
    )


def kernels_of(*kernels: tuple[str, str]) -> pl.DataFrame:
    return pl.DataFrame(
        [(kernel_id, *kernel) for kernel_id, kernel in enumerate(kernels)],
        schema={"kernel_id": pl.Int32, "name": pl.String, "short_name": pl.String},
        orient="row",
    )


def statistics_of(times: Sequence[int]) -> pl.DataFrame:
    rows = [(kernel_id, 2, time) for kernel_id, time in enumerate(times)]
    schema = {"kernel_id": pl.Int32, "dispatch_count": pl.Int64, "total_ns": pl.Int64}
    return pl.DataFrame(rows, schema=schema, orient="row")


def scores(kernels: pl.DataFrame, optimized: pl.DataFrame | None, original: pl.DataFrame) -> dict[int, object]:
    """(node, score) by kernel."""
    mapping = map_kernels(kernels, statistics_of([5] * kernels.height), optimized, original)
    rows = mapping.operator_kernels.select("kernel_id", "node_id", "score").iter_rows()
    return {kernel: (node, score) for kernel, node, score in rows}


CHAIN: Final = nodes_of(
    Node("a", "MatMul", ["x", "w"], ["t0"]),
    Node("b", "Add", ["t0", "v"], ["t1"]),
    Node("c", "Softmax", ["t1"], ["t2"]),
    Node("d", "MatMul", ["t2", "u"], ["y"]),
)


def test_a_name_counts_only_with_a_fitting_type() -> None:
    assert scores(kernels_of(("a", "Gemm")), None, CHAIN)[0] == (0, BY_NAME)
    assert scores(kernels_of(("a", "FusedMatMul")), None, CHAIN)[0] == (0, BY_NAME)
    assert scores(kernels_of(("a", "Softmax")), None, CHAIN)[0] == (2, BY_ORDER)


@pytest.mark.parametrize(
    ("name", "op_type", "node"),
    [
        ("a/MatMulAddFusion", "Gemm", 0),
        ("fused a/MatMulAddFusion", "FusedGemm", 0),
        ("a/MatmulTransposeFusion//MatMulScaleFusion/", "FusedMatMul", 0),
        ("a_token_17", "MatMul", 0),
        ("t2_nchwc", "Conv", 2),
        ("t2_nchwc_token_3", "Conv", 2),
        ("t2_bn_nchwc", "Conv", 2),
        ("If_0_then_branch__Inline_0__d", "MatMul", 3),
        ("d/QuickGeluFusion", "QuickGelu", 3),
    ],
)
def test_known_additions_to_names_are_taken_off(name: str, op_type: str, node: int) -> None:
    assert scores(kernels_of((name, op_type)), None, CHAIN)[0] == (node, BY_MANGLED_NAME)


def test_a_blocked_node_is_named_after_its_tensor_even_if_a_node_is_called_like_it() -> None:
    original = nodes_of(Node("t1", "Conv", ["x", "w"], ["t0"]), Node("c", "Conv", ["t0", "v"], ["t1"]))
    assert scores(kernels_of(("t1_nchwc", "Conv")), None, original)[0] == (1, BY_MANGLED_NAME)


def test_an_output_that_survived_finds_the_node_and_what_was_fused_into_it() -> None:
    optimized = nodes_of(Node("new", "Fused", ["x", "w", "v"], ["t2"]), Node("d", "MatMul", ["t2", "u"], ["y"]))
    kernels = kernels_of(("new", "Fused"), ("d", "MatMul"))
    mapping = map_kernels(kernels, statistics_of([7, 3]), optimized, CHAIN, ["w", "v", "u"])
    assert mapping.operator_kernels.rows() == [
        (0, 0, 2, 7, "name", BY_TENSORS),  # the product is the heaviest of what it covers
        (3, 1, 2, 3, "name", BY_NAME),
    ]
    assert mapping.covered.rows() == [(0, 0), (0, 1), (0, 2), (1, 3)]
    assert mapping.executed.rows() == [(0, 0), (1, 1)]


def test_inserted_kernels_are_named_and_keep_their_time_to_themselves() -> None:
    optimized = nodes_of(
        Node("ReorderInput", "ReorderInput", ["x"], ["r0"], "com.microsoft.nchwc"),
        Node("t0_nchwc", "MatMul", ["r0", "w"], ["r1"], "com.microsoft.nchwc"),
        Node("ReorderOutput", "ReorderOutput", ["r1"], ["t0"], "com.microsoft.nchwc"),
        Node("InsertedPrecisionFreeCast_1", "Cast", ["t0"], ["cast"]),
        Node("b", "Add", ["cast", "v"], ["t1"]),
    )
    kernels = kernels_of(*((row[1], row[2]) for row in optimized.iter_rows()))
    mapping = map_kernels(kernels, statistics_of([1, 2, 4, 8, 16]), optimized, CHAIN)
    assert mapping.inserted.rows() == [(0, "ReorderInput"), (2, "ReorderOutput"), (3, "Cast")]
    unattributed = mapping.operator_kernels.filter(pl.col("match") == "unattributed")
    assert unattributed["total_ns"].sum() == 1 + 4 + 8
    assert unattributed["score"].null_count() == 3


def test_order_decides_only_when_one_node_is_left() -> None:
    kernels = kernels_of(("a", "MatMul"), ("mystery", "Add"), ("c", "Softmax"), ("other", "MatMul"))
    assert scores(kernels, None, CHAIN) == {0: (0, BY_NAME), 1: (1, BY_ORDER), 2: (2, BY_NAME), 3: (3, BY_ORDER)}
    twice = nodes_of(Node("p", "Add", ["x", "w"], ["t0"]), Node("q", "Add", ["t0", "w"], ["y"]))
    assert scores(kernels_of(("mystery", "Add")), None, twice) == {0: (None, None)}


def test_equal_names_are_taken_in_order_and_trusted_less() -> None:
    original = nodes_of(Node("same", "Relu", ["x"], ["t0"]), Node("same", "Relu", ["t0"], ["y"]))
    kernels = kernels_of(("same", "Relu"), ("same", "Relu"))
    expected = {0: (0, BY_ORDER), 1: (1, BY_ORDER)}
    assert scores(kernels, None, original) == expected
    assert scores(kernels, original, original) == expected
    # A kernel that may belong to either of two nodes stays without node.
    assert scores(kernels_of(("same", "Relu")), None, original) == {0: (None, None)}


def test_generated_names_say_type_and_place_without_constants() -> None:
    original = nodes_of(
        Node(None, "Constant", [], ["k"]),
        Node(None, "Add", ["x", "k"], ["t0"]),
        Node(None, "Relu", ["t0"], ["t1"]),
        Node(None, "Add", ["t1", "k"], ["y"]),
    )
    kernels = kernels_of(("Add_0", "Add"), ("Relu_1", "Relu"), ("Add_2", "Add"))
    expected = {0: (1, BY_MANGLED_NAME), 1: (2, BY_MANGLED_NAME), 2: (3, BY_MANGLED_NAME)}
    assert scores(kernels, None, original) == expected
    # The runtime's graph has no constant, so its nodes have other numbers; the kernels' names tell.
    optimized = original.filter(pl.col("op_type") != "Constant").with_columns(
        node_id=pl.int_range(pl.len(), dtype=pl.Int32)
    )
    assert scores(kernels, optimized, original) == expected


def test_a_body_is_searched_before_its_siblings() -> None:
    def graph(name: str) -> pl.DataFrame:
        return nodes_of(
            Node("if", "If", ["flag"], ["y"]),
            Node("in", "Relu", ["x"], ["r"], parent=0, body="then_branch"),
            Node(name, "Relu", ["x"], ["r"], parent=0, body="else_branch"),
        )

    optimized = graph("renamed")
    kernels = kernels_of(("renamed", "Relu"), ("if", "If"))
    assert scores(kernels, optimized, graph("other")) == {0: (2, BY_TENSORS), 1: (0, BY_NAME)}


def test_a_whole_graph_in_one_kernel_is_unattributed() -> None:
    mapping = map_kernels(kernels_of(("MGXKernel_graph_0", "MGXKernel_graph_0")), statistics_of([9]), None, CHAIN)
    assert mapping.operator_kernels.rows() == [(None, 0, 2, 9, "unattributed", None)]
    assert mapping.covered.is_empty()
    assert mapping.inserted.is_empty()


def test_kernels_that_no_table_names_keep_their_time() -> None:
    mapping = map_kernels(kernels_of(("a", "MatMul")), statistics_of([3, 4]), None, CHAIN)
    assert mapping.operator_kernels["total_ns"].sum() == 7
    empty = map_kernels(kernels_of(), statistics_of([]), CHAIN, CHAIN)
    assert empty.operator_kernels.is_empty()
    assert empty.operator_kernels.schema["node_id"] == pl.Int32


NAMES: Final = st.sampled_from(["a", "b", "c", "d", "t0_nchwc", "Add_1", "a/MatMulAddFusion", "ReorderInput", "?", ""])
TYPES: Final = st.sampled_from(["MatMul", "Add", "Softmax", "Gemm", "FusedMatMul", "ReorderInput", "Relu"])
TENSORS: Final = st.lists(st.sampled_from(["x", "w", "t0", "t1", "t2", "y", "r0", ""]), max_size=3)
MADE_UP_NODES: Final = st.tuples(NAMES | st.none(), TYPES, TENSORS, TENSORS).map(lambda parts: Node(*parts))


@given(
    kernels=st.lists(st.tuples(NAMES, TYPES), max_size=8),
    optimized=st.none() | st.lists(MADE_UP_NODES, max_size=6),
    times=st.lists(st.integers(0, 2**40), min_size=8, max_size=8),
)
def test_whatever_the_graphs_the_time_is_conserved(
    kernels: list[tuple[str, str]], optimized: list[Node] | None, times: list[int]
) -> None:
    statistics = statistics_of(times[: len(kernels)])
    nodes = None if optimized is None else nodes_of(*optimized)
    mapping = map_kernels(kernels_of(*kernels), statistics, nodes, CHAIN)
    rows = mapping.operator_kernels
    assert rows["total_ns"].sum() == sum(times[: len(kernels)])
    assert sorted(rows["kernel_id"]) == list(range(len(kernels)))
    assert rows.filter(pl.col("node_id").is_null() != (pl.col("match") == "unattributed")).is_empty()
    assert rows.filter(pl.col("node_id").is_null() != pl.col("score").is_null()).is_empty()
    attributed = rows.filter(pl.col("node_id").is_not_null())
    pairs = set(mapping.covered.iter_rows())
    assert {(kernel, node) for kernel, node in attributed.select("kernel_id", "node_id").iter_rows()} <= pairs
    assert not set(mapping.inserted["kernel_id"]) & set(attributed["kernel_id"])


# ---- the ratio -----------------------------------------------------------------------------------------------------


def test_the_activity_ratio_is_per_iteration_and_node() -> None:
    assert kernel_activity_ratio(59, 176) == pytest.approx(0.335, abs=0.001)
    assert kernel_activity_ratio(12, 10) == 1.2
    assert kernel_activity_ratio(12, 0) is None


@pytest.mark.parametrize(("name", "count"), [("squeezenet", 66), ("resnet50", 176), ("densenet121", 668)])
def test_constants_are_no_nodes_to_divide_by(run: Run, name: str, count: int) -> None:
    executed = run(name, "EXTENDED")
    assert non_constant_node_count(executed.original.nodes, executed.weights) == count
