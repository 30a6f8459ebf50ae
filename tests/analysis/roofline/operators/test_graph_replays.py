"""Replays of graphs and the captures that they are matched with, on traces made here."""

from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.analysis.roofline.framework_work import operator_launches
from aaco_pipeline.analysis.roofline.operators.graph_replays import Replays, captured_launches, graph_evidence, replays
from aaco_pipeline.formats import kineto
from aaco_pipeline.lake.evidence import Evidence
from tests.analysis.roofline.operators.graph_traces import Launch, Trace, layers

GRAPH = layers(3)
SEQUENCES = st.lists(st.integers(0, 3), min_size=1, max_size=12)


def captured(trace: Trace, folder: Path) -> pl.DataFrame:
    read = kineto.read(trace.write(folder / "captured.json"))
    return captured_launches(read.tables, read.details.get("named_launches"), "captured.json")


def matched(trace: Trace, launches: pl.DataFrame, folder: Path) -> tuple[Replays, list[Evidence]]:
    tables = kineto.read(trace.write(folder / "replayed.json")).tables
    kernels = tables["kernels"].with_columns(short_name="name")
    found = replays(tables["dispatches"], tables["memory_copies"], tables["api_calls"], kernels, launches)
    return found, list(graph_evidence(found, launches, kernels))


def operators(found: Replays) -> list[str]:
    """The operator of each matched launch, in order."""
    both = found.launches.join(found.inputs, on="call_id", how="left", maintain_order="left")
    return both.get_column("operator").to_list()


@pytest.mark.parametrize(
    ("capture", "by"),
    [
        (Trace().capture(GRAPH, named=True), "names and sizes"),
        (Trace().warm_up(GRAPH).capture(GRAPH), "names and sizes"),
        (Trace().warm_up(GRAPH).warm_up(layers(1)).capture(GRAPH), "names and sizes"),
        (Trace().capture(GRAPH), "count and order"),
        (Trace().warm_up(layers(2, rows=8)).capture(GRAPH), "count and order"),
    ],
)
def test_every_replay_takes_operators_and_shapes_from_the_capture(capture: Trace, by: str, tmp_path: Path) -> None:
    found, (item,) = matched(Trace().replay(GRAPH, 4), captured(capture, tmp_path), tmp_path)
    assert found.graphs.get_column("by").to_list() == [by] * 4
    assert operators(found) == [one.operator for one in GRAPH] * 4
    # One call for each operator's call and replay, and each says where its inputs come from.
    assert found.inputs.height == found.launches.height == 4 * len(GRAPH)
    assert set(found.launches.get_column("inputs_from")) == {f"captured graph, by {by}"}
    assert (item.status, item.reason) == ("present", f"matched with captured graphs: 4 of 4 graph launches by {by}")


def test_the_work_of_a_replay_is_its_operators(tmp_path: Path) -> None:
    launches = captured(Trace().capture(GRAPH, named=True), tmp_path)
    found, _ = matched(Trace().replay(GRAPH, 2), launches, tmp_path)
    tables = kineto.read(tmp_path / "replayed.json").tables
    ran = (tables["dispatches"], tables["memory_copies"])
    kernels = tables["kernels"].with_columns(role=pl.lit("main"))
    work = operator_launches(*ran, tables["api_calls"], tables["operator_inputs"], kernels, replays=found)
    both = work.launches.join(work.figures, on="work")
    assert both.filter(pl.col("operator") == "aten::mm").get_column("flops").to_list() == [2.0 * 16 * 32 * 64] * 6
    assert both.get_column("activity_id").len() == 2 * len(GRAPH)


def test_each_replay_is_matched_with_its_own_of_two_graphs(tmp_path: Path) -> None:
    small, large = layers(2, rows=8), layers(3, rows=64)
    launches = captured(Trace().capture(small, named=True).capture(large, named=True), tmp_path)
    found, _ = matched(Trace().replay(large).replay(small).replay(large), launches, tmp_path)
    assert found.graphs.get_column("matched").to_list() == [1, 0, 1]


def test_sizes_tell_graphs_of_the_same_kernels_apart_and_without_them_nothing_is_matched(tmp_path: Path) -> None:
    graphs = [layers(2, rows=8, grid=2), layers(2, rows=64, grid=16)]
    trace = Trace().replay(graphs[1]).replay(graphs[0])
    named = captured(Trace().capture(graphs[0], named=True).capture(graphs[1], named=True), tmp_path)
    assert matched(trace, named, tmp_path)[0].graphs.get_column("matched").to_list() == [1, 0]
    unsized = named.with_columns(grid_x=pl.lit(None, pl.Int64))
    found, (item,) = matched(trace, unsized, tmp_path)
    assert found.launches.is_empty()
    assert item.status == "absent"
    assert "2 not: several captured graphs have these launches, and their operators other inputs" in f"{item.reason}"


def test_a_replay_whose_kernels_have_no_sizes_is_matched_by_names(tmp_path: Path) -> None:
    """Kernels of a graph as ROCm records them: only facts known on both sides are compared."""
    launches = captured(Trace().capture(GRAPH, named=True), tmp_path)
    tables = kineto.read(Trace().replay(GRAPH, 2).write(tmp_path / "replayed.json")).tables
    sizes = [name for name in tables["dispatches"].columns if name.startswith(("grid_", "workgroup_"))]
    bare = tables["dispatches"].with_columns(pl.lit(None).cast(pl.Int64).alias(name) for name in sizes)
    kernels = tables["kernels"].with_columns(short_name="name")
    found = replays(bare, tables["memory_copies"], tables["api_calls"], kernels, launches)
    assert found.graphs.get_column("by").to_list() == ["names"] * 2
    assert operators(found) == [one.operator for one in GRAPH] * 2


def test_a_call_that_is_asked_for_work_items_is_asked_for_as_many(tmp_path: Path) -> None:
    trace = Trace().capture(GRAPH, named=True)
    plain = captured(trace, tmp_path)
    for event in trace.events:
        if event["name"] == "hipLaunchKernel":
            event["name"] = "hipExtModuleLaunchKernel"
            event["args"]["grid"] = [
                work * block for work, block in zip(event["args"]["grid"], event["args"]["block"], strict=True)
            ]
    assert captured(trace, tmp_path).select("grid_x", "workgroup_x").equals(plain.select("grid_x", "workgroup_x"))


def test_a_dispatch_that_was_asked_for_in_work_items_has_as_many(tmp_path: Path) -> None:
    trace = Trace().warm_up(GRAPH)
    plain = kineto.read(trace.write(tmp_path / "plain.json")).tables["dispatches"]
    for event in trace.events:
        event["name"] = event["name"].replace("hipLaunchKernel", "hipExtModuleLaunchKernel")
        if "grid" in event["args"]:
            args = event["args"]
            args["grid"] = [blocks * size for blocks, size in zip(args["grid"], args["block"], strict=True)]
    asked = kineto.read(trace.write(tmp_path / "asked.json")).tables["dispatches"]
    sizes = ["grid_x", "grid_y", "workgroup_x"]
    assert asked.select(sizes).equals(plain.select(sizes))


def test_graphs_that_are_alike_in_all_are_one(tmp_path: Path) -> None:
    launches = captured(Trace().capture(GRAPH, named=True).capture(GRAPH, named=True), tmp_path)
    assert matched(Trace().replay(GRAPH), launches, tmp_path)[0].graphs.get_column("matched").to_list() == [0]


@pytest.mark.parametrize(
    ("replayed", "where"),
    [
        (
            GRAPH[:-3],
            "has 6 launches; the nearest, captured graph 0 of captured.json, has 9, and they agree up to "
            "launch 6: there the replay has none, the capture gemm",
        ),
        ([*GRAPH[:4], *GRAPH[5:]], "agree up to launch 4: there the replay has a copy, the capture relu"),
        ([GRAPH[1], GRAPH[0], *GRAPH[2:]], "agree up to launch 0: there the replay has relu, the capture gemm"),
        ([*GRAPH, GRAPH[0]], "agree up to launch 9: there the replay has gemm, the capture none"),
    ],
)
def test_a_replay_that_differs_is_not_matched_and_the_difference_is_reported(
    replayed: list[Launch], where: str, tmp_path: Path
) -> None:
    found, (item,) = matched(Trace().replay(replayed), captured(Trace().capture(GRAPH, named=True), tmp_path), tmp_path)
    assert found.launches.is_empty()
    assert found.graphs.get_column("matched").to_list() == [None]
    assert item.status == "absent"
    assert where in f"{item.reason}"


def test_one_kernel_of_another_size_is_another_graph(tmp_path: Path) -> None:
    other = [*GRAPH[:-3], Launch("aten::mm", GRAPH[0].shapes, "gemm", grid=5), *GRAPH[-2:]]
    found, _ = matched(Trace().replay(other), captured(Trace().capture(GRAPH, named=True), tmp_path), tmp_path)
    assert found.launches.is_empty()


def test_a_replay_on_several_streams_is_not_matched(tmp_path: Path) -> None:
    launches = captured(Trace().capture(GRAPH, named=True), tmp_path)
    found, (item,) = matched(Trace().replay(GRAPH, streams=2), launches, tmp_path)
    assert found.launches.is_empty()
    assert "it ran on 2 streams" in f"{item.reason}"


def test_fills_that_rocm_runs_as_kernels_are_the_captured_fills(tmp_path: Path) -> None:
    ran = [Launch("", (), "__amd_rocclr_fillBufferAligned") if one.kernel is None else one for one in GRAPH]
    found, _ = matched(Trace().replay(ran), captured(Trace().capture(GRAPH, named=True), tmp_path), tmp_path)
    assert operators(found) == [one.operator for one in GRAPH]


def test_without_a_capture_the_reason_says_how_to_hand_one_over(tmp_path: Path) -> None:
    found, (item,) = matched(Trace().replay(GRAPH), captured(Trace().warm_up(GRAPH), tmp_path), tmp_path)
    assert found.launches.is_empty()
    assert item.status == "absent"
    assert "into a folder capture_traces beside this one" in f"{item.reason}"
    assert not matched(Trace().warm_up(GRAPH), captured(Trace().capture(GRAPH), tmp_path), tmp_path)[1]


def test_a_warm_up_of_other_shapes_names_nothing(tmp_path: Path) -> None:
    launches = captured(Trace().warm_up(layers(3, rows=8)).capture(GRAPH), tmp_path)
    assert launches.get_column("kernel").null_count() == launches.height


@given(one=SEQUENCES, other=SEQUENCES)
def test_only_equal_sequences_are_matched(
    one: list[int], other: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("graphs")
    graph, ran = ([Launch(f"aten::op{n}", ((n + 1,),), f"k{n}" if n else None) for n in side] for side in (one, other))
    found, _ = matched(Trace().replay(ran), captured(Trace().capture(graph, named=True), folder), folder)
    assert (found.launches.height == len(ran)) == (one == other)
    assert found.launches.height in (0, len(ran))
