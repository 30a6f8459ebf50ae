"""A session's timeline as the page draws it: bounded, everything on lanes, and the sums of all that was recorded.

Sums over cells: whatever the intervals, all cells together hold all of their time, once.
"""

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import hypothesis.strategies as st
import numpy as np
import polars as pl
import pytest
from hypothesis import given

from aaco_pipeline.report.html import timeline, timeline_lanes
from aaco_pipeline.report.html.timeline import (
    FULL_NAME,
    busy_ns,
    by_cell,
    drawn_timeline,
    edges_between,
    in_cells,
    own_time,
)

SCHEMAS: Mapping[str, Mapping[str, type[pl.DataType]]] = {
    "dispatches": dict.fromkeys(("dispatch_id", "kernel_id", "device_id", "iteration", "parent_dispatch_id"), pl.Int32)
    | dict.fromkeys(("process_id", "thread_id", "queue_id", "stream_id", "start_ns", "end_ns"), pl.Int64)
    | {"below_resolution": pl.Boolean},
    "memory_copies": {"copy_id": pl.Int32, "direction": pl.String, "size_bytes": pl.Int64, "device_id": pl.Int32}
    | dict.fromkeys(("start_ns", "end_ns"), pl.Int64),
    "gaps": {"device_id": pl.Int32, "cause": pl.String, "doubt": pl.String}
    | dict.fromkeys(("start_ns", "end_ns"), pl.Int64),
    "api_calls": {"call_id": pl.Int32, "domain": pl.String, "name": pl.String}
    | dict.fromkeys(("process_id", "thread_id", "start_ns", "end_ns"), pl.Int64),
    "kernels": {"kernel_id": pl.Int32, "name": pl.String, "short_name": pl.String, "family": pl.String},
}
KERNELS = [
    {"kernel_id": 0, "name": "_Zgemm" + "x" * 2 * FULL_NAME, "short_name": "gemm", "family": "gemm"},
    {"kernel_id": 1, "name": "relu", "short_name": "relu", "family": None},
]
NOTHING: Mapping[str, Any] = {"answers": [], "session_parts": [], "iterations": [], "moments": [], "provider": None}


def tables_of(**rows: list[dict[str, Any]]) -> dict[str, pl.DataFrame]:
    given = {"kernels": KERNELS, **rows}
    return {
        name: pl.DataFrame([{**dict.fromkeys(schema), **row} for row in given.get(name, [])], dict(schema))
        for name, schema in SCHEMAS.items()
    }


def dispatch(number: int, start: int, end: int, **more: Any) -> dict[str, Any]:
    return {"dispatch_id": number, "kernel_id": number % 2, "device_id": 0, "start_ns": start, "end_ns": end, **more}


def labels(found: dict[str, Any]) -> list[str]:
    return [lane["label"] for lane in found["lanes"]]


def slices_of(found: dict[str, Any]) -> list[tuple[int, int, str, str]]:
    """Start, length, lane and name of every drawn activity."""
    slices, at, told = found["slices"], 0, []
    for step, took, lane, name in zip(*(slices[key] for key in ("start", "took", "lane", "name")), strict=True):
        at += step
        told.append((at, took, found["lanes"][lane]["label"], found["names"][name]["label"]))
    return told


def test_without_anything_that_ran_there_is_nothing_to_draw() -> None:
    assert (
        drawn_timeline(tables_of(api_calls=[{"call_id": 0, "name": "a", "start_ns": 0, "end_ns": 5}]), NOTHING) is None
    )


def test_what_has_no_times_is_not_drawn() -> None:
    run = [dispatch(0, 5, 9), {**dispatch(1, 5, 9), "end_ns": None}, dispatch(2, 9, 5)]
    found = drawn_timeline(tables_of(dispatches=run), NOTHING)
    assert found is not None
    assert [one[:2] for one in slices_of(found)] == [(0, 4)]


def test_devices_lie_above_the_judged_one_first_and_threads_beneath() -> None:
    found = drawn_timeline(
        tables_of(
            dispatches=[dispatch(0, 105, 110, queue_id=1, stream_id=2), dispatch(1, 110, 130, device_id=3, queue_id=0)],
            memory_copies=[
                {"copy_id": 0, "direction": "host_to_device", "size_bytes": 2048, "device_id": 3}
                | {"start_ns": 140, "end_ns": 141}
            ],
            gaps=[
                {"device_id": 3, "cause": "host_wait", "start_ns": 130, "end_ns": 140},
                {"device_id": 3, "cause": "sync", "doubt": "lost", "start_ns": 141, "end_ns": 145},
            ],
            api_calls=[
                {"call_id": 0, "domain": "operator", "name": "mm", "process_id": 1, "thread_id": 9}
                | {"start_ns": 100, "end_ns": 150},
                {"call_id": 1, "domain": "python", "name": "frame", "process_id": 1, "thread_id": 9}
                | {"start_ns": 90, "end_ns": 190},
            ],
        ),
        NOTHING,
    )
    assert found is not None
    assert found["judged"] == 3
    assert labels(found) == [
        *("Device 3, kernels, queue 0", "Device 3, copies", "Device 3, idle"),
        *("Device 0, kernels, queue 1, stream 2", "Host thread 9"),
    ]
    assert (found["origin_ns"], found["length"], found["windows"]) == (100, 50, [[0, 50]])
    assert found["cells"] is None
    assert slices_of(found) == [
        (0, 50, "Host thread 9", "mm"),
        (5, 5, "Device 0, kernels, queue 1, stream 2", "gemm"),
        (10, 20, "Device 3, kernels, queue 0", "relu"),
        (30, 10, "Device 3, idle", "host wait"),
        (40, 1, "Device 3, copies", "host_to_device, 2.0 KiB"),
        (41, 4, "Device 3, idle", "unknown"),
    ]
    assert found["kinds"] == ["Kernels of no known kind", "Matrix products"]
    (gemm,) = [name for name in found["names"] if name["label"] == "gemm"]
    assert gemm["full"] == "_Zgemm" + "x" * (FULL_NAME - 6) + " …"


def test_more_streams_than_a_screen_holds_share_a_lane() -> None:
    many = [
        dispatch(at, at, at + 1, queue_id=at % 2, stream_id=at)
        for at in range(timeline_lanes.MOST_LANES_OF_A_DEVICE + 1)
    ]
    found = drawn_timeline(tables_of(dispatches=many), NOTHING)
    assert found is not None
    assert labels(found) == ["Device 0, kernels, queue 0", "Device 0, kernels, queue 1"]
    wide = [dispatch(at, at, at + 1, device_id=at // 4, queue_id=at % 2, stream_id=at % 4) for at in range(32)]
    found = drawn_timeline(tables_of(dispatches=wide), NOTHING)
    assert found is not None
    assert len(labels(found)) == timeline_lanes.MOST_LANES_OF_KERNELS
    assert labels(found)[:2] == ["Device 0, kernels, queue 0", "Device 0, kernels, queue 1"]


def test_the_quietest_threads_share_a_lane() -> None:
    calls = [
        {"call_id": at, "domain": "hip_runtime", "name": "f", "process_id": 0, "thread_id": at, "start_ns": 0}
        | {"end_ns": 100 - at}
        for at in range(timeline_lanes.MOST_THREADS + 2)
    ]
    found = drawn_timeline(tables_of(dispatches=[dispatch(0, 0, 1)], api_calls=calls), NOTHING)
    assert found is not None
    threads = [label for label in labels(found) if label.startswith("Host")]
    assert threads[0] == "Host thread 0"
    assert len(threads) == timeline_lanes.MOST_THREADS + 1
    assert threads[-1] == "Host, other threads (2)"


def test_operators_on_the_cpu_say_what_they_are_and_what_they_are_inside_of() -> None:
    run = [
        dispatch(0, 0, 100, thread_id=4, iteration=2),
        dispatch(1, 10, 20, thread_id=4, iteration=2, parent_dispatch_id=0, below_resolution=True),
    ]
    named = [{**row, "name": "node", "short_name": "Loop", "family": None} for row in KERNELS]
    found = drawn_timeline(tables_of(dispatches=run, kernels=named), {**NOTHING, "provider": "CPUExecutionProvider"})
    assert found is not None
    assert labels(found) == ["Device 0, kernels, thread 4"]
    assert found["slices"]["inside"] == [0, 1]
    assert found["slices"]["short"] == [1]
    assert found["slices"]["iteration"] == [[2, 2]]
    assert {name["label"] for name in found["names"]} == {"Loop: node"}
    assert found["kinds"] == ["Loop"]


def test_window_parts_and_iterations_are_marked_where_they_lie() -> None:
    steady = {"device_id": 0, "part": "steady", "start_ns": 30, "end_ns": 90, "reason": "repeats"}
    set_up = {**steady, "part": "set_up", "start_ns": 10, "end_ns": 30}
    answer = {"device_id": 0, "window_start_ns": 30, "window_end_ns": 90, "window_ns": 60, "window_rule": "it repeats"}
    iteration = {"pass": "trace", "iteration": 4, "start_ns": 30, "end_ns": 60, "latency_ns": 30}
    known = {"answers": [answer], "session_parts": [set_up, steady, {**set_up, "device_id": 5}]}
    document = {**NOTHING, **known, "iterations": [iteration, {**iteration, "pass": "latency"}]}
    tables = tables_of(dispatches=[dispatch(0, 10, 20), dispatch(1, 30, 90)])
    found = drawn_timeline(tables, {**document, "moments": [{**iteration, "roles": ["median"]}]})
    assert found is not None
    assert found["window"] == {"start": 20, "end": 80, "rule": "it repeats", "interrupted": False}
    assert [(one["part"], one["start"], one["end"]) for one in found["parts"]] == [
        ("set_up", 0, 20),
        ("steady", 20, 80),
    ]
    assert found["iterations"] == {"number": [4], "start": [20], "end": [50]}
    assert [(one["roles"], one["start"], one["end"]) for one in found["moments"]] == [(["median"], 20, 50)]
    elsewhere = drawn_timeline(tables, {**document, "answers": [{**answer, "window_start_ns": 0}]})
    assert elsewhere is not None
    assert elsewhere["window"] is None
    nothing_steady = drawn_timeline(tables, {**document, "session_parts": [set_up]})
    assert nothing_steady is not None
    assert nothing_steady["window"] is None


def test_a_great_recording_stays_small_and_loses_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "NAMED_KERNELS", 1)
    run = [dispatch(at, at * 100, at * 100 + 60, queue_id=0) for at in range(30_000)]
    gaps = [
        {
            "device_id": 0,
            "cause": "sync" if at % 3 else "host_wait",
            "start_ns": at * 100 + 60,
            "end_ns": at * 100 + 100,
        }
        for at in range(29_999)
    ]
    calls = [
        {"call_id": at, "domain": "hip_runtime", "name": "f", "process_id": 0, "thread_id": 1, "start_ns": at * 200}
        | {"end_ns": at * 200 + 150}
        for at in range(15_000)
    ]
    steady = {"device_id": 0, "part": "steady", "start_ns": 1_000_000, "end_ns": 2_999_960, "reason": "repeats"}
    found = drawn_timeline(
        tables_of(dispatches=run, gaps=gaps, api_calls=calls), {**NOTHING, "session_parts": [steady]}
    )
    assert found is not None
    assert len(json.dumps(found, separators=(",", ":"))) < 250_000
    ((first, last),) = found["windows"]
    assert first == 1_000_000
    assert len(found["slices"]["start"]) <= 2 * timeline_lanes.DRAWN_ACTIVITIES + timeline_lanes.DRAWN_CALLS + 2
    summed = found["cells"]
    assert (first, last) in list(pairwise(summed["edges"]))
    by_label = {one["label"]: busy for one, busy in zip(found["lanes"], summed["lanes"], strict=True)}
    assert sum(by_label["Device 0, kernels, queue 0"]) == 30_000 * 60 == sum(summed["devices"][0]["busy"])
    assert sum(by_label["Device 0, idle"]) == 29_999 * 40
    assert sum(by_label["Host thread 1"]) == 15_000 * 150
    times: dict[str, list[int]] = {}
    for cell in summed["kernels"]:
        for name, time, count in zip(cell[::3], cell[1::3], cell[2::3], strict=True):
            held = times.setdefault(found["names"][name]["label"], [0, 0])
            times[found["names"][name]["label"]] = [held[0] + time, held[1] + count]
    assert times == {"gemm": [15_000 * 60, 15_000], "other kernels": [15_000 * 60, 15_000]}
    causes = {found["names"][name]["label"] for cell in summed["idle"] for name in cell[1::3]}
    assert causes == {"sync", "host wait"}


def test_of_too_many_calls_within_others_the_longest_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "DRAWN_CALLS", 3)
    calls = [
        {"call_id": at, "domain": "operator", "name": f"f{end - start}", "process_id": 0, "thread_id": 1}
        | {"start_ns": start, "end_ns": end}
        for at, (start, end) in enumerate([(0, 50), (1, 5), (6, 26), (30, 40), (60, 61)])
    ]
    found = drawn_timeline(tables_of(dispatches=[dispatch(0, 0, 1)], api_calls=calls), NOTHING)
    assert found is not None
    assert found["left_out_calls"] == 2
    assert [name for *_, lane, name in slices_of(found) if lane.startswith("Host")] == ["f50", "f20", "f1"]


SPAN = (0, 1000)
PIECES = st.lists(
    st.tuples(st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 3)).map(lambda p: (*sorted(p[:2]), p[2]))
)
EDGES = st.sets(st.integers(1, 999)).map(lambda inner: np.array([0, *sorted(inner), 1000], np.int64))


def rows_of(pieces: Sequence[tuple[int, int, int]]) -> pl.DataFrame:
    schema = {"start_ns": pl.Int64, "end_ns": pl.Int64, "kernel_id": pl.Int64}
    return pl.DataFrame(list(pieces), schema, orient="row").with_columns(sign=pl.lit(1, pl.Int64))


@given(PIECES, EDGES)
def test_cells_hold_each_kernels_time_and_every_begin_once(
    pieces: list[tuple[int, int, int]], edges: "np.ndarray[tuple[int], np.dtype[np.int64]]"
) -> None:
    rows = rows_of(pieces)
    found = in_cells(rows, edges, "kernel_id")
    whole = found.group_by("kernel_id").agg(pl.col("time_ns", "count").sum()).sort("kernel_id")
    expected = rows.group_by("kernel_id").agg(
        time_ns=(pl.col("end_ns") - pl.col("start_ns")).sum(), count=pl.len().cast(pl.Int64)
    )
    assert whole.equals(expected.sort("kernel_id").select("kernel_id", "time_ns", "count"))
    for cell, kernel, time, _ in found.select("cell", "kernel_id", "time_ns", "count").iter_rows():
        inside = range(edges[cell], edges[cell + 1])
        assert time == sum(max(0, min(b, inside.stop) - max(a, inside.start)) for a, b, k in pieces if k == kernel)


@given(PIECES, EDGES)
def test_busy_time_of_the_cells_is_the_union_instant_by_instant(
    pieces: list[tuple[int, int, int]], edges: "np.ndarray[tuple[int], np.dtype[np.int64]]"
) -> None:
    busy = np.zeros(1000, bool)
    for start, end, _ in pieces:
        busy[start:end] = True
    expected = [int(busy[a:b].sum()) for a, b in pairwise(edges.tolist())]
    assert busy_ns(rows_of(pieces), edges) == expected


def test_what_runs_inside_an_operator_is_no_time_of_its_own() -> None:
    kernels = pl.DataFrame(
        {"start_ns": [0, 10, 60], "end_ns": [100, 30, 90], "kernel_id": [7, 8, 8], "number": [0, 1, 2]}
        | {"inside": [None, 0, 0]}
    )
    found = in_cells(own_time(kernels), np.array([0, 50, 100]), "kernel_id")
    assert found.rows() == [(0, 7, 30, 1), (0, 8, 20, 1), (1, 7, 20, 0), (1, 8, 30, 1)]
    assert by_cell(found, 3, "kernel_id", "time_ns") == [[7, 30, 8, 20], [7, 20, 8, 30], []]


def test_a_window_is_one_cell_and_the_parts_end_at_edges() -> None:
    edges = edges_between((0, 10_000), (5000, 6000), [(2000, 4000)], [1234, 3000]).tolist()
    assert edges == sorted(set(edges))
    assert (edges[0], edges[-1]) == (0, 10_000)
    assert [edge for edge in edges if 2000 <= edge <= 4000] == [2000, 4000]
    assert 1234 in edges
    assert len([edge for edge in edges if 5000 <= edge <= 6000]) > 90
