"""Slack, binding edges and the longest path: against the textbook's passes, and invariants on real captures.

The path cut by iterations: nothing is lost or counted twice at the cuts, and real captures keep their sums.

What a faster kernel would save of an iteration: at most its share, and less where other work is beside it.
"""

from collections.abc import Callable
from dataclasses import replace
from graphlib import TopologicalSorter
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.analysis.timeline.activities import ACTIVITY_KINDS
from aaco_pipeline.analysis.timeline.critical_path import (
    CriticalPath,
    critical_path,
    effect_in,
    largest_savings,
    path_by_iteration,
    what_if,
)
from aaco_pipeline.analysis.timeline.dependency_graph import (
    ENTRY,
    KINDS,
    LAUNCH,
    PARTS,
    PROGRAM,
    RETURN,
    STREAM,
    SYNC,
    WHOLE,
    Edges,
    Network,
    assembled,
)
from aaco_pipeline.analysis.timeline.longest_path import LongestPaths, edge_waits, schedule_of
from aaco_pipeline.lake.contracts import contract, polars_schema

CAPTURES = [
    "kineto/a100_alexnet_cudasync.json.gz",
    "kineto/a100_event_sync.json.gz",
    "kineto/h100_qwen1.5_0.5b.json.gz",
    "kineto/mi300x_qwen1.5_0.5b.json.gz",
    "kineto/mi300x_resnet_train_ddp.json.gz",
    "kineto/mi300x_sglang_qwen3_8b.json.gz",
    *(
        f"gpu_sessions/traces/{name}.json.gz"
        for name in (
            "elementwise_256mib",
            "gemm_bf16_4096",
            "graph_replay",
            "host_work_between",
            "item_each_kernel",
            "pageable_copies",
            "tiny_kernels_500",
            "transformer_b1",
            "two_streams_overlap",
        )
    ),
    "gpu_sessions/sessions/b00_baseline.json.trace.json.gz",
    "gpu_sessions/sessions/b00_host_delay.json.trace.json.gz",
    "captures/gfx1151_rocprofv3_csv",
    "captures/mi210_kineto_gpu_only",
    "captures/mi300x_att_ck_batched_gemm",
    "captures/mi350x_rocpd_43915_dispatches",
]
#: An edge: source, target, kind, whether it leaves the source's start, lag.
Edge = tuple[int, int, int, bool, int]


def made(weights: list[int], edges: list[Edge], delays: list[int]) -> Network:
    """A network run by simulation: a node starts its delay after all that it depends on allow."""
    start: list[int] = []
    for node, delay in enumerate(delays):
        bounds = [start[s] + (0 if by_start else weights[s]) + lag for s, t, _, by_start, lag in edges if t == node]
        start.append(max(bounds, default=0) + delay)
    return network_of(start, weights, edges)


def network_of(start: list[int], weights: list[int], edges: list[Edge]) -> Network:
    count = len(start)
    nodes = pl.DataFrame(
        {
            "activity_kind": ["dispatch"] * count,
            "activity_id": range(count),
            "part": [WHOLE] * count,
            "device_id": [0] * count,
            "kernel_id": range(count),
            "category": ["compute"] * count,
            "start_ns": start,
            "weight_ns": weights,
        },
        schema_overrides={
            "activity_kind": ACTIVITY_KINDS,
            "part": PARTS,
            "activity_id": pl.Int32,
            "start_ns": pl.Int64,
            "weight_ns": pl.Int64,
        },
    )
    parts = []
    for kind in range(len(KINDS)):
        own = [edge for edge in edges if edge[2] == kind]
        columns: list[Any] = [np.array([edge[place] for edge in own], np.int64) for place in (0, 1, 4)]
        by_start = np.array([edge[3] for edge in own], np.bool_)
        parts.append(Edges(kind, columns[0], columns[1], by_start, columns[2], np.zeros(len(own), np.bool_)))
    return assembled(nodes, parts, pl.DataFrame())


def assert_consistent(net: Network, path: CriticalPath) -> None:
    """The path is the sum of its steps, within the window, and what it leaves unexplained is the sum of its waits."""
    if not path.steps.height:
        return
    path_ns, unexplained_ns = next(path.summary.select("path_ns", "unexplained_ns").iter_rows(), (0, 0))
    steps, ended = path.steps, int((net.start_ns + net.weight_ns).max())
    assert path_ns <= ended - net.start_ns.min()
    assert steps.select(pl.col("own_ns", "lag_ns").sum()).sum_horizontal().item() == path_ns
    if path.summary.height:
        assert steps["wait_ns"].sum() + ended - (steps["start_ns"] + steps["own_ns"])[-1] == unexplained_ns


@st.composite
def networks(draw: st.DrawFn) -> tuple[list[int], list[Edge], list[int]]:
    count = draw(st.integers(1, 12))
    weights = draw(st.lists(st.integers(0, 20), min_size=count, max_size=count))
    delays = draw(st.lists(st.integers(0, 5), min_size=count, max_size=count))
    edges: list[Edge] = []
    for target in range(1, count):
        for source in draw(st.lists(st.integers(0, target - 1), max_size=4)):
            kind, lag = draw(st.integers(0, len(KINDS) - 1)), draw(st.integers(0, 6))
            edges.append((source, target, kind, draw(st.booleans()), lag))
    return weights, edges, delays


def textbook(weights: list[int], edges: list[Edge]) -> tuple[list[int], list[int], list[int], int]:
    """Earliest starts, total floats, free floats and makespan by the two passes of the critical path method."""
    count = len(weights)
    span = [lag + (0 if by_start else weights[source]) for source, _, _, by_start, lag in edges]
    earliest = [0] * count
    for node in range(count):
        earliest[node] = max((earliest[e[0]] + w for e, w in zip(edges, span, strict=True) if e[1] == node), default=0)
    makespan = max(e + w for e, w in zip(earliest, weights, strict=True))
    latest = [0] * count
    free = [0] * count
    for node in reversed(range(count)):
        onward = [(e, w) for e, w in zip(edges, span, strict=True) if e[0] == node]
        latest[node] = min([makespan - weights[node], *(latest[e[1]] - w for e, w in onward)])
        followers = [earliest[e[1]] - w - earliest[node] for e, w in onward]
        if not any(not e[3] for e, _ in onward):
            followers.append(makespan - weights[node] - earliest[node])
        free[node] = min(followers)
    return earliest, [late - early for late, early in zip(latest, earliest, strict=True)], free, makespan


@given(networks())
def test_times_and_slack_are_the_textbooks(drawn: tuple[list[int], list[Edge], list[int]]) -> None:
    weights, edges, delays = drawn
    net = made(weights, edges, delays)
    schedule = schedule_of(net, edge_waits(net))
    earliest, slack, free, makespan = textbook(weights, edges)
    assert schedule.earliest_start_ns.tolist() == earliest
    assert schedule.slack_ns.tolist() == slack
    assert schedule.free_slack_ns.tolist() == free
    assert schedule.path_ns == makespan


@given(networks())
def test_the_path_is_conserved_and_critical(drawn: tuple[list[int], list[Edge], list[int]]) -> None:
    net = made(*drawn)
    found = critical_path(net)
    window = int((net.start_ns + net.weight_ns).max() - net.start_ns.min())
    assert_consistent(net, found)
    rows = found.summary
    if rows.height:
        assert (rows["path_ns"] + rows["unexplained_ns"]).unique().to_list() == [window]
        assert rows["category_ns"].sum() == rows["path_ns"][0]
    slack = dict(found.activities.select("activity_id", "slack_ns").iter_rows())
    assert all(slack[number] == 0 for number in found.steps["activity_id"])
    assert (found.activities["free_slack_ns"] <= found.activities["slack_ns"]).all()


@given(networks())
def test_the_binding_edge_is_the_dependency_met_last(drawn: tuple[list[int], list[Edge], list[int]]) -> None:
    weights, edges, _ = drawn
    net = made(*drawn)
    start = net.start_ns.tolist()
    rows = {row["activity_id"]: row for row in critical_path(net).activities.iter_rows(named=True)}
    for node, row in rows.items():
        bounds = [
            (start[s] + (0 if by_start else weights[s]) + lag, -kind)
            for s, t, kind, by_start, lag in edges
            if t == node
        ]
        if not bounds:
            assert row["binding_edge"] == "none"
            assert row["unexplained_wait_ns"] == start[node] - min(start)
            continue
        latest = max(bound[0] for bound in bounds)
        named = KINDS[-max(bound[1] for bound in bounds if bound[0] == latest)]
        assert row["binding_edge"] == named
        assert row["unexplained_wait_ns"] == start[node] - latest


@given(networks(), st.data())
def test_a_prediction_equals_a_second_analysis_with_faster_kernels(
    drawn: tuple[list[int], list[Edge], list[int]], data: st.DataObject
) -> None:
    weights, edges, _ = drawn
    net = made(*drawn)
    changed = data.draw(st.dictionaries(st.integers(0, len(weights) - 1), st.sampled_from([0.5, 1.0, 1.5, 2.0, 10.0])))
    faster = [round(weight / changed.get(node, 1.0)) for node, weight in enumerate(weights)]
    before = max(s + w for s, w in zip(made(weights, edges, [0] * len(weights)).start_ns, weights, strict=True))
    after = max(s + w for s, w in zip(made(faster, edges, [0] * len(weights)).start_ns, faster, strict=True))
    assert what_if(net, changed) == before - after


def test_two_streams_save_only_until_the_other_one_is_the_longest() -> None:
    net = made([10, 100, 80], [(0, 1, LAUNCH, True, 3), (0, 2, LAUNCH, True, 3)], [0, 0, 0])
    assert what_if(net, {1: 1.1}) == 9
    assert what_if(net, {1: 10.0}) == 20
    assert what_if(net, {2: 10.0}) == 0
    assert what_if(net, {1: 0.5}) == -100


def test_the_largest_savings_are_of_the_path_and_recomputed() -> None:
    # Two streams between a first and a last kernel: 20 against 18; the third kernel has slack and is not asked about.
    net = made(
        [4, 20, 18, 6],
        [(0, 1, STREAM, False, 0), (0, 2, STREAM, False, 0)] + [(middle, 3, STREAM, False, 0) for middle in (1, 2)],
        [0] * 4,
    )
    kernels = critical_path(net).kernels
    found = largest_savings(net, kernels, 2, 2.0)
    assert found.select("kernel_id", "critical_ns", "saved_ns").rows() == [(1, 20, 2), (3, 6, 3)]
    assert found["saved_ratio"].to_list() == [2 / 30, 3 / 30]
    assert largest_savings(network_of([], [], []), critical_path(network_of([], [], [])).kernels, 2, 2.0).is_empty()


def test_a_speed_up_is_above_zero() -> None:
    net = made([10], [], [0])
    with pytest.raises(ValueError, match="above zero"):
        what_if(net, {0: 0.0})


def test_a_node_without_weight_cannot_grow() -> None:
    net = made([0, 5], [], [0, 0])
    with pytest.raises(ValueError, match="cannot become longer"):
        LongestPaths(net).length(np.array([1, 5]))


def test_a_network_that_contradicts_its_times_is_refused() -> None:
    with pytest.raises(ValueError, match="starts before"):
        critical_path(network_of([0, 5], [10, 10], [(0, 1, STREAM, False, 0)]))


def test_a_window_beyond_exact_arithmetic_is_refused() -> None:
    with pytest.raises(ValueError, match="too long"):
        critical_path(network_of([0, 2**54], [1, 1], []))


def test_a_blocking_call_is_one_row_explained_by_what_it_waited_for() -> None:
    # Node 0 launches 1; 2 and 3 are the entry and the return of a call that waited for 1; 4 follows at once.
    net = network_of(
        [0, 5, 12, 42, 50],
        [10, 30, 0, 0, 4],
        [
            (0, 1, LAUNCH, True, 5),
            (0, 2, PROGRAM, False, 2),
            (2, 3, PROGRAM, False, 0),
            (1, 3, SYNC, False, 3),
            (3, 4, PROGRAM, False, 8),
        ],
    )
    parts = pl.Series("part", [WHOLE, WHOLE, ENTRY, RETURN, WHOLE], dtype=PARTS)
    numbers = pl.Series("activity_id", [0, 0, 1, 1, 2], dtype=pl.Int32)
    kinds = pl.Series("activity_kind", ["api_call", "dispatch", *["api_call"] * 3], dtype=ACTIVITY_KINDS)
    net = replace(net, nodes=net.nodes.with_columns(parts, numbers, kinds))
    rows = critical_path(net).activities.filter(pl.col("activity_kind") == "api_call").sort("activity_id")
    waited = rows.row(1, named=True)
    assert rows.height == 3
    assert (waited["binding_edge"], waited["unexplained_wait_ns"]) == ("sync", 4)


def test_an_empty_session_has_no_rows() -> None:
    found = critical_path(network_of([], [], []))
    assert found.activities.is_empty()
    assert found.summary.is_empty()


def test_rows_have_the_columns_of_their_tables() -> None:
    found = critical_path(made([3, 4], [(0, 1, STREAM, False, 1)], [0, 2]))
    for frame, name in ((found.activities, "critical_path"), (found.summary, "critical_path_summary")):
        schema = polars_schema(contract(name))
        own = {column: dtype for column, dtype in schema.items() if column not in ("session_id", "criticality")}
        assert dict(frame.select(*own).schema) == own


@pytest.mark.parametrize("capture", CAPTURES)
def test_the_invariants_hold_on_real_captures(capture: str, analysed: Callable[[str], Any]) -> None:
    found = analysed(capture)
    path = found.path
    assert_consistent(found.network, path)
    assert path.bound_start_ratio > 0.99
    sources = pl.DataFrame({"target": found.network.target, "source": found.network.source})
    TopologicalSorter(dict(sources.group_by("target").agg("source").iter_rows())).prepare()  # raises for a circle
    row = path.summary.row(0, named=True)
    assert row["path_ns"] + row["unexplained_ns"] == row["window_ns"]
    assert path.summary["category_ns"].sum() == row["path_ns"]
    assert (path.activities["unexplained_wait_ns"] >= 0).all()
    assert (path.activities["free_slack_ns"] <= path.activities["slack_ns"]).all()
    assert (path.activities["free_slack_ns"] >= 0).all()
    whole = found.timeline.filter(pl.col("window_rule") == "first_to_last_activity")
    idle = found.gaps.select(pl.col("end_ns") - pl.col("start_ns")).sum().item()
    window = (whole["window_end_ns"] - whole["window_start_ns"]).sum()
    assert whole["busy_ns"].sum() + idle == window


def shares(path: Any) -> dict[str, float]:
    """The categories' shares of the window."""
    return {row[0]: row[1] / row[2] for row in path.summary.select("category", "category_ns", "window_ns").iter_rows()}


def test_two_streams_make_a_path_shorter_than_their_kernels(analysed: Callable[[str], Any]) -> None:
    found = analysed("gpu_sessions/traces/two_streams_overlap.json.gz")
    total = found.timeline.filter(pl.col("window_rule") == "first_to_last_activity")["activity_time_sum_ns"][0]
    assert found.path.summary["path_ns"][0] < total


@pytest.mark.parametrize("name", ["tiny_kernels_500", "transformer_b1", "host_work_between"])
def test_calls_of_a_late_host_are_the_path(name: str, analysed: Callable[[str], Any]) -> None:
    share = shares(analysed(f"gpu_sessions/traces/{name}.json.gz").path)
    assert share["host"] + share["launch"] > 0.95


@pytest.mark.parametrize("name", ["gemm_bf16_4096", "elementwise_256mib", "graph_replay"])
def test_kernels_of_a_busy_device_are_the_path(name: str, analysed: Callable[[str], Any]) -> None:
    assert shares(analysed(f"gpu_sessions/traces/{name}.json.gz").path)["compute"] > 0.85


def test_blocking_copies_are_the_path(analysed: Callable[[str], Any]) -> None:
    assert shares(analysed("gpu_sessions/traces/pageable_copies.json.gz").path)["copy"] > 0.85


def steps_of(rows: list[tuple[int, int, int]]) -> pl.DataFrame:
    """A path from (wait, lag, own) of each step, beginning at 100."""
    start, made = 100, []
    for number, (wait, lag, own) in enumerate(rows):
        start += wait + lag
        category = ("compute", "copy", "host")[number % 3]
        made.append((category, "launch" if lag else "none", start, lag, wait, own))
        start += own
    columns = ("category", "lag_category", "start_ns", "lag_ns", "wait_ns", "own_ns")
    return pl.DataFrame(made, schema=dict(zip(columns, [pl.String] * 2 + [pl.Int64] * 4, strict=True)), orient="row")


def iterations_of(cuts: list[int]) -> pl.DataFrame:
    return pl.DataFrame(
        {"iteration": range(len(cuts) - 1), "start_ns": cuts[:-1], "end_ns": cuts[1:]},
        schema={"iteration": pl.Int32, "start_ns": pl.Int64, "end_ns": pl.Int64},
    )


def test_a_step_across_a_cut_is_divided_and_the_lag_comes_before_the_wait() -> None:
    # 100 wait 110 own compute 130, lag 130..135, wait 135..140, own copy 140..160
    steps = steps_of([(10, 0, 20), (5, 5, 20)])
    found = path_by_iteration(steps, iterations_of([100, 120, 133, 150]))
    assert found.select("scope", "category", "category_ns", "path_ns", "unexplained_ns", "window_ns").rows() == [
        ("iteration 0", "compute", 10, 10, 10, 20),
        ("iteration 1", "compute", 10, 13, 0, 13),
        ("iteration 1", "launch", 3, 13, 0, 13),
        ("iteration 2", "copy", 10, 12, 5, 17),
        ("iteration 2", "launch", 2, 12, 5, 17),
    ]


def test_an_iteration_beside_the_path_is_unexplained_throughout() -> None:
    found = path_by_iteration(steps_of([(0, 0, 5)]), iterations_of([300, 340]))
    assert found.select("category", "category_ns", "path_ns", "unexplained_ns", "category_ratio").rows() == [
        ("none", 0, 0, 40, None)
    ]


@given(
    st.lists(st.tuples(*[st.integers(0, 9)] * 3), min_size=1, max_size=9), st.lists(st.integers(0, 1000), max_size=5)
)
def test_iterations_without_a_gap_add_up_to_the_whole(rows: list[tuple[int, int, int]], inner: list[int]) -> None:
    steps = steps_of(rows)
    end = 100 + sum(map(sum, rows))
    cuts = sorted({0, end + 1, *(100 + cut % (end - 99) for cut in inner)})
    found = path_by_iteration(steps, iterations_of(cuts))
    by_category = dict(found.group_by("category").agg(pl.col("category_ns").sum()).iter_rows())
    expected: dict[str, int] = {}
    for category, lag_category, _, lag, _, own in steps.iter_rows():
        expected[category] = expected.get(category, 0) + own
        expected[lag_category] = expected.get(lag_category, 0) + lag
    assert {k: v for k, v in by_category.items() if v} == {k: v for k, v in expected.items() if v}
    whole = found.unique("scope")
    assert (whole["path_ns"] + whole["unexplained_ns"] == whole["window_ns"]).all()
    assert (found["unexplained_ns"] >= 0).all()


@pytest.mark.parametrize("name", ["two_streams_overlap", "item_each_kernel"])
def test_a_real_path_is_conserved_over_its_iterations(name: str, analysed: Callable[[str], Any]) -> None:
    run = analysed(f"gpu_sessions/traces/{name}.json.gz")
    start, end = int(run.network.start_ns.min()), int((run.network.start_ns + run.network.weight_ns).max())
    found = path_by_iteration(run.path.steps, iterations_of(np.linspace(start, end, 6).astype(int).tolist()))
    session = dict(run.path.summary.select("category", "category_ns").iter_rows())
    assert dict(found.group_by("category").agg(pl.col("category_ns").sum()).iter_rows()) == session


def test_rows_have_the_columns_of_their_table() -> None:
    found = path_by_iteration(steps_of([(0, 1, 5)]), iterations_of([100, 106]))
    expected = dict(polars_schema(contract("critical_path_summary")))
    del expected["session_id"]
    assert dict(found.schema) == expected


UNMARKED = pl.DataFrame(schema={"pass": pl.String, "phase": pl.String, "start_ns": pl.Int64, "end_ns": pl.Int64})


def passes_of(*rows: tuple[str, str, int, int]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=UNMARKED.schema, orient="row")


def of_kernels(graph: Network, *kernels: int) -> Network:
    """The network with these kernels instead of one a node."""
    object.__setattr__(graph, "nodes", graph.nodes.with_columns(kernel_id=pl.Series(kernels)))
    return graph


def in_a_row(*weights: int) -> Network:
    """Nodes one after the other on one stream."""
    return made(list(weights), [(at, at + 1, STREAM, False, 0) for at in range(len(weights) - 1)], [0] * len(weights))


def test_alone_on_a_stream_a_kernel_saves_its_share_of_each_iteration() -> None:
    graph = of_kernels(in_a_row(60, 40, 60, 40, 60, 40), 0, 1, 0, 1, 0, 1)
    marked = passes_of(*(("trace", "measure", at, at + 100) for at in (0, 100, 200)))
    found = effect_in(graph, marked, 0, (1.0, 1.5, 2.0))
    assert found is not None and found.scope == "iteration"
    assert found.share_ratio == pytest.approx(0.6)
    assert found.shorter_ratios == pytest.approx((0.0, 0.2, 0.3))


def test_only_measured_iterations_of_the_traced_pass_count() -> None:
    graph = of_kernels(in_a_row(90, 10, 60, 40), 0, 1, 0, 1)
    marked = passes_of(("trace", "warmup", 0, 100), ("trace", "measure", 100, 200), ("latency", "measure", 0, 100))
    found = effect_in(graph, marked, 0, (2.0,))
    assert found is not None and found.share_ratio == pytest.approx(0.6)
    assert found.shorter_ratios == pytest.approx((0.3,))


def test_work_beside_a_kernel_bounds_what_it_saves() -> None:
    graph = made([10, 100, 80], [(0, 1, LAUNCH, False, 0), (0, 2, LAUNCH, False, 0)], [0, 0, 0])
    found = effect_in(graph, UNMARKED, 1, (1.25, 10.0))
    assert found is not None and found.scope == "recording"
    assert found.share_ratio == pytest.approx(100 / 110)
    assert found.shorter_ratios == pytest.approx((20 / 110, 20 / 110))
    beside = effect_in(graph, UNMARKED, 2, (10.0,))
    assert beside is not None and (beside.share_ratio, beside.shorter_ratios) == (0.0, (0.0,))


@given(networks())
def test_the_whole_recording_is_shorter_by_what_if_and_never_by_more_than_the_share(
    drawn: tuple[list[int], list[Edge], list[int]],
) -> None:
    graph = made(*drawn)
    window = int((graph.start_ns + graph.weight_ns).max() - graph.start_ns.min())
    kernel = drawn[0].index(max(drawn[0]))
    found = effect_in(graph, UNMARKED, kernel, (2.0,))
    if found is None:
        assert window == 0
        return
    assert found.shorter_ratios[0] * window == pytest.approx(what_if(graph, {kernel: 2.0}))
    assert found.shorter_ratios[0] * window <= found.share_ratio * window / 2 + 0.5 + 1e-9


def test_a_slower_kernel_is_not_asked_about_and_without_time_there_is_no_effect() -> None:
    with pytest.raises(ValueError, match="1 or more"):
        effect_in(in_a_row(10), UNMARKED, 0, (0.5,))
    assert effect_in(in_a_row(0), UNMARKED, 0, (2.0,)) is None
