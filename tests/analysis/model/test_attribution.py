"""Kernels of a GPU to nodes of a model, on cases generated here to the documented behaviour of MIGraphX.

None of them is a capture: there is no public one of a model under MIGraphX. Names are of the published kind
`mlir_<operators>` and `<operators>_kernel`.
"""

from collections.abc import Sequence

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.analysis.kernels.names import classify_names
from aaco_pipeline.analysis.model.attribution import DeviceMapping, DeviceTrace, map_device_kernels
from aaco_pipeline.analysis.model.graph_provenance import BY_MANGLED_NAME, BY_NAME, BY_ORDER
from aaco_pipeline.analysis.timeline.activities import kernel_stats
from aaco_pipeline.lake.contracts import contract
from aaco_pipeline.lake.validation import conform, to_contract

#: A node: its name, type, inputs and output.
Node = tuple[str, str, tuple[str, ...], str]
Marker = tuple[str, int, int]
CONV_RELU: tuple[Node, ...] = (
    ("conv1", "Conv", ("x", "w1", "b1"), "c1"),
    ("relu1", "Relu", ("c1",), "r1"),
    ("conv2", "Conv", ("r1", "w2", "b2"), "c2"),
    ("relu2", "Relu", ("c2",), "r2"),
    ("pool", "GlobalAveragePool", ("r2",), "p"),
    ("flat", "Flatten", ("p",), "f"),
    ("gemm", "Gemm", ("f", "w3", "b3"), "g"),
    ("softmax", "Softmax", ("g",), "y"),
)


def graph(nodes: Sequence[Node]) -> pl.DataFrame:
    names, types, inputs, outputs = (list(column) for column in zip(*nodes, strict=True))
    return pl.DataFrame(
        {
            "node_id": range(len(nodes)),
            "name": names,
            "op_type": types,
            "domain": "ai.onnx",
            "inputs": [list(one) for one in inputs],
            "outputs": [[one] for one in outputs],
            "parent_node_id": pl.Series([None] * len(nodes), dtype=pl.Int32),
            "body": pl.Series([None] * len(nodes), dtype=pl.String),
        }
    )


def trace(runs: Sequence[Sequence[str]], markers: Sequence[Marker] = ()) -> DeviceTrace:
    """Iterations of kernels by name: the n-th dispatch was launched at 10 n, runs from 1000 + 10 n, and takes n + 1."""
    names = list(dict.fromkeys(name for run in runs for name in run))
    flat = [(iteration, name) for iteration, run in enumerate(runs) for name in run]
    count = len(flat)
    dispatches = pl.DataFrame(
        {
            "dispatch_id": range(count),
            "process_id": 0,
            "device_id": 1,
            "kernel_id": [names.index(name) for _, name in flat],
            "correlation_id": range(1, count + 1),
            "start_ns": [1_000 + 10 * n for n in range(count)],
            "end_ns": [1_001 + 11 * n for n in range(count)],
            "iteration": [iteration for iteration, _ in flat],
            "self_ns": range(1, count + 1),
            "below_resolution": False,
        }
    )
    calls = pl.DataFrame(
        {
            "call_id": range(count),
            "process_id": 0,
            "thread_id": 7,
            "domain": "hip_runtime",
            "name": "hipModuleLaunchKernel",
            "correlation_id": range(1, count + 1),
            "start_ns": [10 * n for n in range(count)],
            "end_ns": [10 * n + 5 for n in range(count)],
        }
    )
    ranges = pl.DataFrame(
        [
            {"marker_id": i, "process_id": 0, "thread_id": 7, "name": name, "start_ns": start, "end_ns": end}
            for i, (name, start, end) in enumerate(markers)
        ]
    )
    kernels = pl.DataFrame({"kernel_id": range(len(names)), "name": names}).hstack(
        classify_names(pl.Series("name", names)).select("short_name", "family", "role")
    )
    kernels = kernels.with_columns(fingerprint=pl.lit("f"), family_source=pl.lit("name"))
    return DeviceTrace(
        to_contract("dispatches", dispatches),
        to_contract("kernels", kernels),
        to_contract("api_calls", calls),
        to_contract("markers", ranges),
    )


def found(mapping: DeviceMapping, of: DeviceTrace) -> list[tuple[str, int | None, int, str, float | None]]:
    """Rows as (kernel's name, node, dispatches, match, score), after the promises every mapping keeps are tried."""
    rows = mapping.operator_kernels
    conform(contract("operator_kernels"), rows, "20250101T000000Z-00000000")
    stats = kernel_stats(of.dispatches)
    again = rows.group_by("kernel_id").agg(pl.col("dispatch_count", "total_ns").sum()).sort("kernel_id")
    assert again.rows() == stats.select("kernel_id", "dispatch_count", "total_ns").rows()
    named = rows.join(of.kernels.select("kernel_id", "name"), on="kernel_id").sort("kernel_id", "node_id")
    return named.select("name", "node_id", "dispatch_count", "match", "score").rows()


RUN = (
    "mlir_convolution_add_relu",
    "mlir_convolution_add_relu",
    "pooling_kernel",
    "mlir_reshape_dot_add",
    "softmax_kernel",
)


def test_fused_operators_are_found_in_the_graph_in_order() -> None:
    run = trace([RUN, RUN, RUN])
    mapping = map_device_kernels(run, graph(CONV_RELU), ["w1", "b1", "w2", "b2", "w3", "b3"])
    assert found(mapping, run) == [
        ("mlir_convolution_add_relu", 0, 3, "order", BY_ORDER),
        ("mlir_convolution_add_relu", 2, 3, "order", BY_ORDER),
        ("pooling_kernel", 4, 3, "name", BY_MANGLED_NAME),
        ("mlir_reshape_dot_add", 6, 3, "name", BY_MANGLED_NAME),
        ("softmax_kernel", 7, 3, "name", BY_MANGLED_NAME),
    ]
    assert mapping.covered.rows() == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 4), (2, 6), (3, 7)]
    assert mapping.nodes_per_kernel == 7 / 5


def test_iterations_that_run_other_kernels_are_judged_by_themselves() -> None:
    run = trace([RUN, RUN[:1] + RUN[2:]])
    mapping = map_device_kernels(run, graph(CONV_RELU))
    rows = [row for row in found(mapping, run) if row[0] == RUN[0]]
    # The second iteration has one such kernel for two chains: which of them it ran, nothing tells.
    assert rows == [(RUN[0], None, 1, "unattributed", None), (RUN[0], 0, 1, "order", 0.5), (RUN[0], 2, 1, "order", 0.5)]


def test_kernels_that_the_graph_has_less_often_stay_unattributed() -> None:
    run = trace([(*RUN, "softmax_kernel", "contiguous_kernel", "xyzzy")])
    rows = found(map_device_kernels(run, graph(CONV_RELU)), run)
    assert {name for name, node, *_ in rows if node is None} == {"softmax_kernel", "contiguous_kernel", "xyzzy"}


def test_a_marker_that_names_a_node_goes_before_every_name() -> None:
    run = trace([RUN], [("iteration 0", 0, 60), ("Marker start: conv2", 0, 6), ("conv1", 10, 16)])
    rows = found(map_device_kernels(run, graph(CONV_RELU)), run)
    assert rows[:2] == [(RUN[0], 0, 1, "marker", BY_NAME), (RUN[0], 2, 1, "marker", BY_NAME)]
    named = map_device_kernels(run, graph(CONV_RELU)).operator_kernels.filter(pl.col("match") == "marker")
    assert dict(named.select("node_id", "total_ns").iter_rows()) == {2: 1, 0: 2}


def test_kernels_named_by_a_marker_are_not_attributed_twice() -> None:
    nodes = (("a", "Relu", ("x",), "t"), ("b", "Relu", ("t",), "y"))
    run = trace([("xyzzy", "relu_kernel")], [("a", 0, 6)])
    rows = found(map_device_kernels(run, graph(nodes)), run)
    assert rows == [("xyzzy", 0, 1, "marker", BY_NAME), ("relu_kernel", 1, 1, "name", BY_MANGLED_NAME)]


def test_a_marker_outside_the_launch_or_of_another_thread_says_nothing() -> None:
    run = trace([RUN], [("conv2", 6, 9)])
    assert not [row for row in found(map_device_kernels(run, graph(CONV_RELU)), run) if row[3] == "marker"]
    elsewhere = trace([RUN], [("conv2", 0, 6)])
    elsewhere.markers.replace_column(2, pl.Series("thread_id", [8], dtype=pl.Int64))
    rows = found(map_device_kernels(elsewhere, graph(CONV_RELU)), elsewhere)
    assert not [row for row in rows if row[3] == "marker"]


def test_a_marker_with_the_compilers_instruction_says_what_a_librarys_kernel_does() -> None:
    library = "Cijk_Ailk_Bljk_HHS_BH_MT128x128x32_MI32x32x8x1_SN"
    nodes = (("m", "MatMul", ("x", "w"), "t"), ("c", "Conv", ("t", "v"), "y"))
    run = trace([(library,)], [("Marker start: gpu::convolution", 0, 6)])
    assert found(map_device_kernels(run, graph(nodes)), run) == [(library, 1, 1, "name", BY_MANGLED_NAME)]
    silent = trace([(library,)])
    # Without it the family of the kernel's name says a product, which only the order can place.
    assert found(map_device_kernels(silent, graph(nodes)), silent) == [(library, 0, 1, "order", BY_ORDER)]


def test_a_dumped_partition_bounds_what_a_kernel_can_be() -> None:
    nodes = (("a", "Relu", ("x",), "t"), ("b", "Relu", ("t",), "u"), ("c", "Relu", ("u",), "y"))
    run = trace([("relu_kernel", "relu_kernel")], [("MGXKernel_graph_1", 0, 8), ("MGXKernel_graph_2", 9, 18)])
    unknown = found(map_device_kernels(run, graph(nodes)), run)
    assert unknown == [("relu_kernel", None, 2, "unattributed", None)]
    dumped = {"MGXKernel_graph_1": ["b"], "MGXKernel_graph_2": ["c"]}
    mapping = map_device_kernels(run, graph(nodes), partitions=dumped)
    rows = mapping.operator_kernels.select("node_id", "total_ns", "match").rows()
    assert rows == [(1, 1, "name"), (2, 2, "name")]
    unmarked = trace([("relu_kernel", "relu_kernel")])
    together = map_device_kernels(unmarked, graph(nodes), partitions=dumped)
    # Without ranges around them, the partitions' nodes in the order of the partitions.
    assert together.operator_kernels.select("node_id", "total_ns").rows() == [(1, 1), (2, 2)]


def test_no_kernel_comes_before_the_one_whose_result_it_reads() -> None:
    nodes = (("a", "Relu", ("x",), "t"), ("b", "Tanh", ("t",), "y"))
    run = trace([("tanh_kernel", "relu_kernel")])
    assert {match for *_, match, _ in found(map_device_kernels(run, graph(nodes)), run)} == {"unattributed"}


def test_constants_are_computed_before_and_run_as_no_kernel() -> None:
    nodes = (("folded", "Relu", ("w",), "t"), ("ran", "Relu", ("x",), "y"))
    run = trace([("relu_kernel",)])
    assert found(map_device_kernels(run, graph(nodes), ["w"]), run) == [("relu_kernel", 1, 1, "name", BY_MANGLED_NAME)]


def test_without_dispatches_there_are_no_rows() -> None:
    run = trace([()])
    mapping = map_device_kernels(run, graph(CONV_RELU))
    assert (found(mapping, run), mapping.nodes_per_kernel) == ([], None)


@given(st.lists(st.lists(st.sampled_from((*RUN, "xyzzy", "relu_kernel")), max_size=9), min_size=1, max_size=4))
def test_time_is_conserved_and_no_node_runs_twice_in_an_iteration(runs: list[list[str]]) -> None:
    run = trace(runs)
    mapping = map_device_kernels(run, graph(CONV_RELU))
    rows = found(mapping, run)
    for node in {node for _, node, *_ in rows if node is not None}:
        assert sum(count for _, at, count, *_ in rows if at == node) <= len(runs)


@pytest.mark.parametrize("thread", [None, 7])
def test_without_launch_records_names_decide(thread: int | None) -> None:
    run = trace([RUN], [("conv2", 0, 6)])
    blind = DeviceTrace(run.dispatches, run.kernels, run.api_calls.clear(), run.markers)
    rows = found(map_device_kernels(blind if thread is None else run, graph(CONV_RELU)), run)
    assert ("marker" in {match for *_, match, _ in rows}) == (thread is not None)
    assert sum(count for *_, count, match, _ in [row for row in rows if row[3] != "unattributed"]) >= 4 - 2 * bool(
        thread
    )
