"""Tables of made-up profiles against values computed by hand, and nesting against known trees."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from aaco_pipeline.formats.ort_profile import reading as profile_events
from aaco_pipeline.formats.ort_profile.reading import nesting
from tests.formats.ort_profile.made_up import (
    AXIS,
    LOADING,
    REAL,
    SMALL,
    Event,
    Profiled,
    call,
    conserved,
    event,
    events_of,
    from_disk,
    is_node,
    items,
    node,
    read,
    rows,
    text,
    written,
)


def test_the_dispatches_of_a_small_profile_are_the_hand_computed_ones(tmp_path: Path) -> None:
    reading = read(written(tmp_path, SMALL))
    us = 1000
    assert rows(reading, "name", "start_ns", "end_ns", "iteration", "parent_dispatch_id", "self_ns") == [
        ("outer", AXIS + 11 * us, AXIS + 17 * us, 0, None, 3 * us),
        ("inner", AXIS + 12 * us, AXIS + 15 * us, 0, 0, 3 * us),
        ("last", AXIS + 18 * us, AXIS + 27 * us, 0, None, 9 * us),
        ("outer", AXIS + 41 * us, AXIS + 48 * us, 1, None, 4 * us),
        ("inner", AXIS + 42 * us, AXIS + 45 * us, 1, 3, 3 * us),
        ("last", AXIS + 49 * us, AXIS + 51 * us, 1, None, 2 * us),
        ("late", AXIS + 60 * us, AXIS + 64 * us, None, None, 4 * us),
    ]
    dispatches = reading.tables["dispatches"]
    assert dispatches["dispatch_id"].to_list() == list(range(7))
    assert set(dispatches["process_id"]) == {3}
    assert set(dispatches["device_id"]) == {0}


def test_an_execution_shorter_than_the_resolution_is_marked_and_counted(tmp_path: Path) -> None:
    reading = read(written(tmp_path, [LOADING, node("a", 10, 4), node("b", 20, 5), call("model_run", 5, 30)]))
    assert rows(reading, "name", "below_resolution") == [("a", True), ("b", False)]
    item = items(reading)["kernel resolution"]
    assert (item.status, item.rows) == ("partial", 1)
    assert "1 of 2 kernel executions are shorter than 5000 ns" in str(item.reason)


def test_a_profile_of_long_kernels_has_no_remark_on_resolution(tmp_path: Path) -> None:
    reading = read(written(tmp_path, [LOADING, node("a", 10, 50), call("model_run", 5, 60)]))
    assert set(items(reading)) == {"kernel events"}


def test_a_parent_that_seems_to_end_before_its_child_ends_with_it(tmp_path: Path) -> None:
    # True times 10.9 to 13.8 and inside it 11.0 to 13.7: cut off, 10 + 2 and 11 + 2.
    reading = read(written(tmp_path, [LOADING, node("in", 11, 2), node("out", 10, 2), call("model_run", 9, 9)]))
    us = 1000
    assert rows(reading, "name", "end_ns", "self_ns") == [
        ("out", AXIS + 13 * us, 1 * us),
        ("in", AXIS + 13 * us, 2 * us),
    ]


def test_a_node_one_tick_past_its_cut_off_run_still_belongs_to_it(tmp_path: Path) -> None:
    # True times 10.9 to 20.8 and inside it 12.0 to 20.5: the run seems to end at 19, the node at 20.
    events = [LOADING, node("in", 12, 8), call("model_run", 10, 9)]
    assert rows(read(written(tmp_path, events)), "iteration") == [(0,)]


@pytest.mark.parametrize(
    "events",
    [
        [LOADING, node("a", 30, 4)],
        [LOADING, node("a", 3, 4), call("model_run", 10, 20)],
        [LOADING, node("a", 25, 9), call("model_run", 10, 20)],
        [LOADING, call("model_run", 10, 20), node("a", 12, 4)],
    ],
    ids=["no run", "before", "after", "written after its run"],
)
def test_a_node_in_no_model_run_has_no_iteration_and_is_told(tmp_path: Path, events: list[Event]) -> None:
    reading = read(written(tmp_path, events))
    assert rows(reading, "iteration") == [(None,)]
    item = items(reading)["iteration of kernels"]
    assert (item.status, item.reason) == ("partial", "1 kernel executions lie in no model run")


def test_warm_up_runs_are_numbered_like_the_others(tmp_path: Path) -> None:
    calls = [one for i in range(5) for one in (node("a", 100 * i, 50), call("model_run", 100 * i, 60))]
    assert rows(read(written(tmp_path, [LOADING, *calls])), "iteration") == [(i,) for i in range(5)]


def test_each_thread_nests_on_its_own(tmp_path: Path) -> None:
    events = [
        LOADING,
        node("in", 12, 3, tid=1),
        node("beside", 13, 4, tid=2),
        node("out", 11, 9, tid=1),
        node("beside too", 18, 20, tid=2),
        call("model_run", 10, 40),
    ]
    reading = read(written(tmp_path, events))
    assert rows(reading, "name", "thread_id", "parent_dispatch_id", "self_ns") == [
        ("out", 1, None, 6000),
        ("in", 1, 0, 3000),
        ("beside", 2, None, 4000),
        ("beside too", 2, None, 20000),
    ]


def test_another_threads_later_end_does_not_lengthen_a_parent(tmp_path: Path) -> None:
    events = [
        LOADING,
        node("long", 5, 60, tid=2),
        node("in", 12, 3, tid=1),
        node("out", 11, 9, tid=1),
        call("model_run", 1, 90),
    ]
    assert ("out", AXIS + 20_000) in rows(read(written(tmp_path, events)), "name", "end_ns")


def test_a_kernel_is_one_node_with_its_operator_and_provider(tmp_path: Path) -> None:
    events = [
        LOADING,
        *(node("a", 10 * i, 5, op_name="Conv", node_index="1") for i in range(3)),
        node("a", 40, 5, op_name="Conv", node_index="2"),
        node("a", 50, 5, op_name="Gemm", node_index="1"),
        node("a", 60, 5, op_name="Conv", node_index="1", provider="MIGraphXExecutionProvider"),
        node("b", 70, 5, op_name="Conv", node_index="1"),
        call("model_run", 0, 99),
    ]
    reading = read(written(tmp_path, events))
    kernels = reading.tables["kernels"]
    assert kernels.select("kernel_id", "name", "short_name", "library").rows() == [
        (0, "a", "Conv", "onnxruntime CPU"),
        (1, "a", "Conv", "onnxruntime CPU"),
        (2, "a", "Gemm", "onnxruntime CPU"),
        (3, "a", "Conv", "onnxruntime MIGraphX"),
        (4, "b", "Conv", "onnxruntime CPU"),
    ]
    assert rows(reading, "kernel_id") == [(0,), (0,), (0,), (1,), (2,), (3,), (4,)]
    prints = kernels["fingerprint"].to_list()
    assert prints[0] == prints[1]
    assert len(set(prints)) == 4


def test_a_node_without_arguments_is_a_kernel_all_the_same(tmp_path: Path) -> None:
    bare = event("Node", "a_kernel_time", 10, 5, args={})
    reading = read(written(tmp_path, [LOADING, bare, bare, call("model_run", 1, 50)]))
    assert reading.tables["kernels"].select("name", "short_name").rows() == [("a", "a")]  # null breaks the contract
    assert rows(reading, "kernel_id") == [(0,), (0,)]


def test_events_that_are_no_kernel_times_are_no_dispatches(tmp_path: Path) -> None:
    events = [
        LOADING,
        event("Node", "a_fence_before", 10, 5, args={}),
        event("Kernel", "b_kernel_time", 12, 5, args={}),
        event("Session", "c_kernel_time", 13, 5, args={}),
        node("d", 20, 5),
    ]
    reading = read(written(tmp_path, events))
    assert rows(reading, "name") == [("d",)]
    assert reading.tables["api_calls"]["name"].to_list() == ["model_loading_uri", "c_kernel_time"]


@pytest.mark.parametrize(("model", "threads"), REAL)
def test_a_kernels_shapes_are_those_of_its_first_execution(profiled: Profiled, model: str, threads: int) -> None:
    real = profiled(model, threads)
    first: dict[tuple[str, str, str], dict[str, Any]] = {}
    for one in filter(is_node, events_of(real.path)):
        args = one["args"]
        key = (one["name"].removesuffix("_kernel_time"), args["op_name"], args["node_index"])
        first.setdefault(key, args)
    expected = [
        tuple(
            [part for entry in args[f"{side}_type_shape"] for part in (list(entry) if which == 0 else entry.values())]
            for side in ("input", "output")
            for which in (0, 1)
        )
        for args in first.values()
    ]
    shapes = read(real.path).details["kernel_shapes"].sort("kernel_id")
    columns = ["input_dtypes", "input_shapes", "output_dtypes", "output_shapes"]
    assert shapes["kernel_id"].to_list() == list(range(len(first)))
    assert shapes.select(columns).rows() == expected


def test_later_shapes_do_not_replace_the_first_even_across_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = [LOADING, *(node("a", 10 * i, 5) for i in range(3))]
    for number, one in enumerate(events[1:]):
        one["args"]["input_type_shape"] = [{"float": [number, 7]}, {"int64": []}]
    path = written(tmp_path, events)
    for chunk in (1 << 20, 64):
        monkeypatch.setattr(profile_events, "_CHUNK_BYTES", chunk)
        shapes = read(path).details["kernel_shapes"]
        assert shapes.select("kernel_id", "input_dtypes", "input_shapes").rows() == [
            (0, ["float", "int64"], [[0, 7], []])
        ]


@pytest.mark.parametrize(
    "told",
    [None, "", "text", 5, {"float": [1]}, [5], [{}], [{"float": 3}], [{"float": ["a"]}], [{"float": [2**63]}]],
    ids=repr,
)
def test_shapes_in_another_form_are_unknown(tmp_path: Path, told: Any) -> None:
    one = node("a", 10, 5)
    one["args"]["input_type_shape"] = told
    reading = read(written(tmp_path, [LOADING, one, call("model_run", 1, 50)]))
    assert reading.tables["dispatches"].height == 1
    assert reading.details["kernel_shapes"].select("input_dtypes", "input_shapes", "output_shapes").rows() == [
        (None, None, [[32, 64]])
    ]


@pytest.mark.parametrize("ascii_only", [True, False])
def test_escaped_and_unicode_names_are_read(tmp_path: Path, ascii_only: bool) -> None:
    names = ['a "b"', "c\\d", "e\nf", "é中😀", "},", "]", "[", "", "x_kernel_time"]
    events = [LOADING, *(node(name, 10 * i, 5) for i, name in enumerate(names)), call("model_run", 0, 999)]
    path = written(tmp_path, text(events, ascii_only=ascii_only))
    assert [name for (name,) in rows(read(path), "name")] == names


#: Fine ticks in a microsecond: the truth is known to 1/8 µs, the profile only to 1.
FINE = 8


@dataclass
class Span:
    """One event of the truth, in fine ticks; `at` is its place in the file, which is in order of end."""

    start: int
    parent: "Span | None"
    end: int = 0
    at: int = -1
    children: "list[Span]" = field(default_factory=list)

    @property
    def ts(self) -> int:
        return self.start // FINE

    @property
    def dur(self) -> int:
        return (self.end - self.start) // FINE

    def ancestors(self) -> "list[Span]":
        return [] if self.parent is None else [self.parent, *self.parent.ancestors()]


def grow(tape: Sequence[int], deepest: int, after: int = 0) -> list[Span]:
    """The events, in order of end, of the forest that the numbers of the tape spell: pauses and forks.

    `after` is what follows the tape's last number.
    """
    numbers = iter(tape)
    clock = 0
    emitted: list[Span] = []

    def pause() -> None:
        nonlocal clock
        clock += next(numbers, after)

    def one(parent: Span | None, depth: int) -> Span:
        pause()
        span = Span(clock, parent)
        for _ in range(next(numbers, after) % 4 if depth < deepest else 0):
            pause()
            span.children.append(one(span, depth + 1))
        pause()
        span.end = clock
        span.at = len(emitted)
        emitted.append(span)
        return span

    first = next(numbers, after)
    for _ in range(1 + first % 4):
        one(None, 0)
    return emitted


# Pauses around one tick, where cutting off matters, and some of many ticks.
tapes = st.lists(st.integers(0, 2 * FINE) | st.integers(0, 9) | st.integers(0, 20 * FINE), max_size=60)
forests = st.builds(grow, tapes, st.integers(0, 5))
#: From 0 to 15 an event, in it one of no measured length from 5 to 12, in that one from 9 to 11: on the next tick.
REACHING = grow([0, 0, 1, 5, 0, 1, 4, 0, 0, 2, 1, 3], 5)


def found_parents(forest: Sequence[Span]) -> list[int]:
    ordered = sorted(forest, key=lambda span: span.at)
    return [
        int(at)
        for at in nesting(
            np.array([span.at for span in ordered], np.int64),
            np.array([span.ts for span in ordered], np.int64),
            np.array([span.dur for span in ordered], np.int64),
        )
    ]


def reach(span: Span) -> int:
    """The latest tick that the event, or one inside it, is known to have come to."""
    return max([span.ts + span.dur, *(reach(child) for child in span.children)])


def undecidable(span: Span) -> bool:
    """Begun on its parent's tick, and not known to have come to the next one."""
    return span.parent is not None and reach(span) == span.ts == span.parent.ts


@given(forest=forests)
@example(forest=REACHING)
def test_every_parent_that_can_be_known_is_found(forest: list[Span]) -> None:
    for span, found in zip(forest, found_parents(forest), strict=True):
        true = -1 if span.parent is None else span.parent.at
        if undecidable(span):
            assert found in {-1, *(outer.at for outer in span.ancestors())}
        else:
            assert found == true, [(s.start, s.end, s.ts, s.dur) for s in forest]


@given(forest=st.builds(grow, st.lists(st.integers(FINE, 3 * FINE), max_size=200), st.integers(0, 8), st.just(FINE)))
def test_where_everything_takes_a_tick_every_parent_is_found(forest: list[Span]) -> None:
    assert found_parents(forest) == [-1 if span.parent is None else span.parent.at for span in forest]


def test_positions_are_those_of_the_file_not_of_the_array() -> None:
    arrays = [np.array(a, np.int64) for a in ([100, 205, 310, 420], [12, 11, 10, 40], [2, 5, 9, 3])]
    assert nesting(*arrays).tolist() == [205, 310, -1, -1]


def test_deep_and_wide_nesting_is_found() -> None:
    depth = 3000
    start = np.arange(depth, 0, -1, dtype=np.int64)
    assert nesting(np.arange(depth), start, 2 * (depth - start) + 1).tolist() == [*range(1, depth), -1]
    wide = np.arange(1, depth, dtype=np.int64)
    children = nesting(np.arange(depth), np.append(wide, 0), np.append(np.ones(depth - 1, np.int64), depth + 1))
    assert children.tolist() == [depth - 1] * (depth - 1) + [-1]


def test_no_events_have_no_parents() -> None:
    nothing = np.zeros(0, np.int64)
    assert nesting(nothing, nothing, nothing).tolist() == []


def test_a_left_neighbour_of_no_length_on_the_same_tick_is_no_child() -> None:
    arrays = [np.array(a, np.int64) for a in ([0, 1, 2], [5, 7, 5], [0, 1, 4])]
    assert nesting(*arrays).tolist() == [-1, 2, -1]
    assert nesting(*(array[[0, 2]] for array in arrays)).tolist() == [-1, -1]


def test_an_event_of_no_length_whose_child_came_to_the_next_tick_is_inside_the_one_around_it() -> None:
    assert [(span.ts, span.dur) for span in REACHING] == [(1, 0), (0, 0), (0, 1)]
    assert found_parents(REACHING) == [1, 2, -1]


def profile_of(forest: Sequence[Span]) -> list[Event]:
    end = max(span.end for span in forest)
    nodes = [node(f"n{span.at}", span.ts, span.dur) for span in forest]
    return [LOADING, *nodes, call("model_run", 0, end // FINE)]


@from_disk
@given(forest=forests)
@example(forest=REACHING)
def test_self_times_are_never_negative_and_sum_to_the_top_level(scratch: Path, forest: list[Span]) -> None:
    dispatches = read(written(scratch, profile_of(forest))).tables["dispatches"]
    assert dispatches.height == len(forest)
    assert conserved(dispatches)


@from_disk
@given(forest=forests)
@example(forest=REACHING)
def test_top_level_dispatches_of_one_thread_never_overlap(scratch: Path, forest: list[Span]) -> None:
    dispatches = read(written(scratch, profile_of(forest))).tables["dispatches"]
    top = dispatches.filter(pl.col("parent_dispatch_id").is_null()).sort("start_ns", "end_ns")
    overlap = top.filter(pl.col("start_ns") < pl.col("end_ns").shift(1))
    assert overlap.is_empty(), [(s.start, s.end, s.ts, s.dur) for s in forest]


@from_disk
@given(forest=forests)
@example(forest=REACHING)
def test_a_runs_self_times_never_exceed_the_run(scratch: Path, forest: list[Span]) -> None:
    dispatches = read(written(scratch, profile_of(forest))).tables["dispatches"]
    assert int(dispatches["self_ns"].sum()) <= max(span.end for span in forest) // FINE * 1000
    assert dispatches["iteration"].to_list() == [0] * len(forest)
