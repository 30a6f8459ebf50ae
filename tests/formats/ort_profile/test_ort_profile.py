"""ONNX Runtime's profile: real ones read a second way, made-up ones with a known truth, and damaged ones."""

import gzip
import io
import json
import re
import tracemalloc
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnxruntime
import polars as pl
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats import ort_profile
from aaco_pipeline.formats.capture_tables import CaptureTables, Limits
from aaco_pipeline.formats.ort_profile import events as profile_events
from aaco_pipeline.formats.ort_profile.nesting import nesting
from aaco_pipeline.lake.contracts import contract
from aaco_pipeline.lake.evidence import Evidence, evidence_frame
from aaco_pipeline.lake.validation import conform

Event = dict[str, Any]

CPU = "CPUExecutionProvider"
AXIS = 1_000_000_007
REAL = [("control_flow", 1), ("squeezenet", 1), ("squeezenet", 2)]


class Real(Protocol):
    path: Path
    runs: int


Profiled = Callable[[str, int], Real]


# ---- made-up profiles ------------------------------------------------------------------------------------------------


def node(name: str, ts: int, dur: int, *, tid: int = 1, **args: str) -> Event:
    arguments = {"op_name": "Add", "provider": CPU, "node_index": "0", **args}
    shapes = {"output_type_shape": [{"float": [32, 64]}], "thread_scheduling_stats": ""}
    return event("Node", f"{name}_kernel_time", ts, dur, tid=tid, args={**arguments, **shapes})


def call(name: str, ts: int, dur: int, *, tid: int = 1, **args: str) -> Event:
    return event("Session", name, ts, dur, tid=tid, args=args)


def event(category: str, name: str, ts: int, dur: int, *, tid: int = 1, args: dict[str, Any]) -> Event:
    return {"cat": category, "pid": 9, "tid": tid, "dur": dur, "ts": ts, "ph": "X", "name": name, "args": args}


def text(events: Iterable[Event], *, ascii_only: bool = False) -> bytes:
    """The events as the runtime writes them: one a line, a comma after each but the last."""
    lines = ",\n".join(json.dumps(one, ensure_ascii=ascii_only) for one in events)
    return f"[\n{lines}\n]\n".encode()


def written(folder: Path, content: bytes | Iterable[Event], name: str = "profile.json") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else text(content))
    return path


def read(path: Path, limits: Limits | None = None) -> CaptureTables:
    return ort_profile.read(path, axis_start_ns=AXIS, process_id=3, limits=limits)


LOADING = call("model_loading_uri", 0, 5)

#: Two runs of three nodes, the second of which holds the first, and one node after the last run.
SMALL = [
    LOADING,
    node("inner", 12, 3),
    node("outer", 11, 6, op_name="If"),
    node("last", 18, 9),
    call("model_run", 10, 20),
    node("inner", 42, 3),
    node("outer", 41, 7, op_name="If"),
    node("last", 49, 2),
    call("model_run", 40, 15),
    node("late", 60, 4),
]


def rows(reading: CaptureTables, *columns: str) -> list[tuple[Any, ...]]:
    named = reading.tables["dispatches"].join(
        reading.tables["kernels"].select("kernel_id", "name", "short_name"), on="kernel_id"
    )
    return named.sort("dispatch_id").select(columns).rows()


def items(reading: CaptureTables) -> dict[str, Evidence]:
    evidence_frame("kernel_trace", reading.evidence)  # an item that is not present must have a reason
    return {item.item: item for item in reading.evidence}


def same(left: CaptureTables, right: CaptureTables) -> bool:
    return all(left.tables[name].equals(right.tables[name]) for name in ("kernels", "dispatches", "api_calls"))


# ---- real profiles ---------------------------------------------------------------------------------------------------


def events_of(path: Path) -> list[Event]:
    loaded: list[Event] = json.loads(path.read_bytes())
    return loaded


def is_node(one: Event) -> bool:
    return bool(one["cat"] == "Node") and str(one["name"]).endswith("_kernel_time")


@pytest.mark.parametrize(("model", "threads"), REAL)
def test_every_node_event_of_a_real_profile_is_one_dispatch(profiled: Profiled, model: str, threads: int) -> None:
    real = profiled(model, threads)
    reading = read(real.path)
    expected = Counter(
        (e["name"].removesuffix("_kernel_time"), e["args"]["op_name"], AXIS + e["ts"] * 1000, e["tid"])
        for e in events_of(real.path)
        if is_node(e)
    )
    assert expected
    assert Counter(rows(reading, "name", "short_name", "start_ns", "thread_id")) == expected
    assert items(reading)["kernel events"] == Evidence(
        "kernel events", "present", None, real.path.name, expected.total()
    )


@pytest.mark.parametrize(("model", "threads"), REAL)
def test_a_dispatch_without_children_lasts_as_long_as_its_event(profiled: Profiled, model: str, threads: int) -> None:
    real = profiled(model, threads)
    dispatches = read(real.path).tables["dispatches"]
    parents = set(dispatches["parent_dispatch_id"].drop_nulls())
    measured = Counter((AXIS + e["ts"] * 1000, e["dur"] * 1000) for e in events_of(real.path) if is_node(e))
    for number, start, end, own in dispatches.select("dispatch_id", "start_ns", "end_ns", "self_ns").iter_rows():
        if number not in parents:
            assert measured[start, end - start] > 0
            assert own == end - start


@pytest.mark.parametrize(("model", "threads"), REAL)
def test_the_kth_model_run_of_a_real_profile_is_iteration_k(profiled: Profiled, model: str, threads: int) -> None:
    real = profiled(model, threads)
    expected: Counter[tuple[str, int, int]] = Counter()
    run = 0
    for one in events_of(real.path):
        if is_node(one):
            expected[one["name"].removesuffix("_kernel_time"), AXIS + one["ts"] * 1000, run] += 1
        run += one["name"] == "model_run"
    assert run == real.runs
    reading = read(real.path)
    assert Counter(rows(reading, "name", "start_ns", "iteration")) == expected
    assert "iteration of kernels" not in items(reading)


@pytest.mark.parametrize(("model", "threads"), REAL)
def test_the_self_times_of_a_run_fit_in_its_model_run(profiled: Profiled, model: str, threads: int) -> None:
    real = profiled(model, threads)
    lengths = [e["dur"] * 1000 for e in events_of(real.path) if e["name"] == "model_run"]
    sums = read(real.path).tables["dispatches"].group_by("iteration").agg(pl.col("self_ns").sum()).sort("iteration")
    assert sums["iteration"].to_list() == list(range(real.runs))
    assert all(0 < own <= length for own, length in zip(sums["self_ns"], lengths, strict=True))


def expected_parent(name: str) -> str | None:
    """Which operator of the built-in model `control_flow` the node belongs to, told by the names of its bodies."""
    name = name.removeprefix("fused ")
    for body, owner in (
        ("choose/then/", "choose/if"),
        ("choose/else/", "choose/if"),
        ("repeat/odd/early/", "repeat/odd/if"),
        ("repeat/odd/late/", "repeat/odd/if"),
        ("repeat/odd/", "repeat/if"),
        ("repeat/even/", "repeat/if"),
    ):
        if name.startswith(body):
            return owner
    return "repeat/loop" if name.startswith("repeat/") and name != "repeat/loop" else None


def test_nodes_inside_if_and_loop_have_that_operator_as_their_parent(profiled: Profiled) -> None:
    reading = read(profiled("control_flow", 1).path)
    names = dict(rows(reading, "dispatch_id", "name"))
    parents = [(name, names.get(parent)) for name, parent in rows(reading, "name", "parent_dispatch_id")]
    assert Counter(parents) == Counter((name, expected_parent(name)) for name in names.values())
    assert {parent for _, parent in parents} == {None, "choose/if", "repeat/loop", "repeat/if", "repeat/odd/if"}


def conserved(dispatches: pl.DataFrame) -> bool:
    """Whether the self times below every top-level dispatch sum to its duration, and none is negative."""
    all_rows = {row["dispatch_id"]: row for row in dispatches.iter_rows(named=True)}
    sums: Counter[int] = Counter()
    for row in all_rows.values():
        top = row
        while top["parent_dispatch_id"] is not None:
            top = all_rows[top["parent_dispatch_id"]]
        sums[top["dispatch_id"]] += row["self_ns"]
    return all(row["self_ns"] >= 0 for row in all_rows.values()) and all(
        all_rows[top]["end_ns"] - all_rows[top]["start_ns"] == total for top, total in sums.items()
    )


@pytest.mark.parametrize(("model", "threads"), REAL)
def test_the_self_times_of_a_tree_sum_to_its_root(profiled: Profiled, model: str, threads: int) -> None:
    assert conserved(read(profiled(model, threads).path).tables["dispatches"])


def test_a_real_parent_encloses_its_children(profiled: Profiled) -> None:
    dispatches = read(profiled("control_flow", 1).path).tables["dispatches"]
    pairs = dispatches.join(dispatches, left_on="parent_dispatch_id", right_on="dispatch_id", suffix="_parent")
    assert pairs.height > 0
    assert pairs.filter(
        (pl.col("start_ns") < pl.col("start_ns_parent")) | (pl.col("end_ns") > pl.col("end_ns_parent"))
    ).is_empty()


@pytest.mark.parametrize(("model", "threads"), REAL)
def test_every_session_event_of_a_real_profile_is_one_api_call(profiled: Profiled, model: str, threads: int) -> None:
    real = profiled(model, threads)
    expected = [
        (e["name"], AXIS + e["ts"] * 1000, AXIS + (e["ts"] + e["dur"]) * 1000, e["tid"])
        for e in events_of(real.path)
        if e["cat"] == "Session"
    ]
    calls = read(real.path).tables["api_calls"]
    assert calls.select("name", "start_ns", "end_ns", "thread_id").rows() == expected
    assert calls["call_id"].to_list() == list(range(len(expected)))
    assert set(calls["domain"]) == {"onnxruntime"}
    assert {"model_run", "session_initialization", "SequentialExecutor::Execute"} <= set(calls["name"])


@pytest.mark.parametrize(("model", "threads"), REAL)
def test_the_tables_of_a_real_profile_fit_the_lake(profiled: Profiled, model: str, threads: int) -> None:
    for name, frame in read(profiled(model, threads).path).tables.items():
        assert conform(contract(name), frame, "session").height == frame.height > 0


def test_a_kernel_is_the_same_one_in_another_session(profiled: Profiled) -> None:
    one, two = (read(profiled("squeezenet", threads).path).tables["kernels"] for threads in (1, 2))
    assert one["fingerprint"].n_unique() == one.height
    assert set(one["fingerprint"]) == set(two["fingerprint"])


@pytest.mark.parametrize("chunk", [512, 4096])
def test_a_real_profile_reads_the_same_in_small_pieces(
    profiled: Profiled, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    path = profiled("control_flow", 1).path
    whole = read(path)
    monkeypatch.setattr(profile_events, "_CHUNK_BYTES", chunk)
    pieces = read(path)
    assert same(whole, pieces)
    assert pieces.evidence == whole.evidence


def test_a_real_profile_is_recognized_plain_and_packed(profiled: Profiled, tmp_path: Path) -> None:
    path = profiled("squeezenet", 1).path
    packed = written(tmp_path, gzip.compress(path.read_bytes(), mtime=0), "profile.json.gz")
    for one in (path, packed):
        recognition = ort_profile.probe(one)
        assert recognition is not None
        assert recognition.format == "onnxruntime-profile"
    assert same(read(packed), read(path))


def test_names_the_runtime_has_to_escape_come_back_as_they_were(tmp_path: Path) -> None:
    names = ['a "quoted"', "back\\slash", "new\nline", "tab\t", "é中😀", "},", "]"]
    nodes = [helper.make_node("Abs", [f"t{i}"], [f"t{i + 1}"], name=name) for i, name in enumerate(names)]
    ends = [helper.make_tensor_value_info(f"t{i}", TensorProto.FLOAT, [4]) for i in (0, len(names))]
    graph = helper.make_graph(nodes, "graph", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.enable_profiling = True
    options.intra_op_num_threads = 1
    options.profile_file_prefix = str(tmp_path / "names")
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=[CPU])
    session.run(None, {"t0": np.zeros(4, np.float32)})
    assert read(Path(session.end_profiling())).tables["kernels"]["name"].to_list() == names


# ---- nesting against trees with a known truth ------------------------------------------------------------------------

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


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scratch")


from_disk = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


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


# ---- what the tables say ---------------------------------------------------------------------------------------------


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


def test_another_threads_later_end_does_not_stretch_a_parent(tmp_path: Path) -> None:
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


# ---- whole, cut and damaged files ------------------------------------------------------------------------------------


def test_packed_and_plain_give_the_same(tmp_path: Path) -> None:
    plain = read(written(tmp_path, SMALL))
    packed = read(written(tmp_path, gzip.compress(text(SMALL), mtime=0), "profile.json.gz"))
    assert same(plain, packed)
    misnamed = read(written(tmp_path, gzip.compress(text(SMALL), mtime=0), "packed.json"))
    assert same(plain, misnamed)


CUT = text([SMALL[0], SMALL[1], SMALL[4]]).rstrip()


def whole_events(content: bytes) -> int:
    """How many events stand wholly in a beginning of `CUT`, by what JSON says of each line."""
    count = 0
    for line in content.splitlines()[1:]:
        try:
            json.loads(line.removesuffix(b","))
        except ValueError:
            break
        count += 1
    return count


def cuts(*, after_bracket: bool) -> list[int]:
    """Where to cut: anywhere behind the opening line, apart by whether the cut file ends in a closing bracket."""
    return [at for at in range(1, len(CUT), 3) if CUT[:at].rstrip().endswith(b"]") == after_bracket]


def expect_read_up_to(folder: Path, at: int) -> None:
    reading = read(written(folder, CUT[:at]))
    whole = whole_events(CUT[:at])
    calls = reading.tables["api_calls"].height
    assert calls + reading.tables["dispatches"].height == whole, CUT[:at]
    item = items(reading)["kernel events"]
    assert (item.status, item.reason) == ("partial", "the file is cut off: its end is missing"), CUT[:at]


def test_a_file_cut_anywhere_is_read_up_to_the_cut_and_told(tmp_path: Path) -> None:
    for at in cuts(after_bracket=False):
        expect_read_up_to(tmp_path, at)


def test_a_file_cut_behind_a_bracket_within_an_event_is_read_up_to_the_cut(tmp_path: Path) -> None:
    places = cuts(after_bracket=True)
    assert places
    for at in places:
        expect_read_up_to(tmp_path, at)


def test_a_file_that_lacks_only_its_closing_bracket_keeps_all_events(tmp_path: Path) -> None:
    for content in (CUT[:-1], CUT[:-2], CUT[:-2] + b","):
        reading = read(written(tmp_path, content))
        assert (reading.tables["dispatches"].height, reading.tables["api_calls"].height) == (1, 2)
        assert items(reading)["kernel events"].status == "partial"


@pytest.mark.parametrize("chunk", [1, 2, 3, 64, 257, 1000])
def test_pieces_of_any_size_give_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    contents = [text(SMALL), text(SMALL).rstrip(), text(SMALL)[:-40], gzip.compress(text(SMALL), mtime=0)]
    whole = [read(written(tmp_path, content)) for content in contents]
    monkeypatch.setattr(profile_events, "_CHUNK_BYTES", chunk)
    for content, expected in zip(contents, whole, strict=True):
        given = read(written(tmp_path, content))
        assert same(given, expected)
        assert given.evidence == expected.evidence


#: As onnxruntime 1.31 writes it.
TRUNCATED = call("profile_truncated", 90, 0, max_num_events="1000000", dropped_event_count="39502")


def test_the_runtimes_own_word_on_dropped_events_is_told(tmp_path: Path) -> None:
    reading = read(written(tmp_path, [*SMALL, TRUNCATED]))
    item = items(reading)["kernel events"]
    assert (item.status, item.rows) == ("partial", 7)
    assert "39502 events were dropped" in str(item.reason)


def test_the_word_on_dropped_events_is_no_call(tmp_path: Path) -> None:
    assert "profile_truncated" not in read(written(tmp_path, [*SMALL, TRUNCATED])).tables["api_calls"]["name"]


def test_a_profile_at_the_cap_is_told_though_the_runtime_does_not_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, SMALL)
    monkeypatch.setattr(ort_profile, "EVENT_CAP", len(SMALL) + 1)
    assert items(read(path))["kernel events"].status == "present"
    monkeypatch.setattr(ort_profile, "EVENT_CAP", len(SMALL))
    item = items(read(path))["kernel events"]
    assert item.status == "partial"
    assert "an unknown number of events is missing" in str(item.reason)


@pytest.mark.parametrize("events", [[], [LOADING], [LOADING, call("model_run", 1, 5)]])
def test_a_profile_without_nodes_says_so(tmp_path: Path, events: list[Event]) -> None:
    reading = read(written(tmp_path, events))
    assert items(reading)["kernel events"].status == "absent"
    assert reading.tables["api_calls"].height == len(events)
    for name, frame in reading.tables.items():
        conform(contract(name), frame, "session")


def refused(path: Path, *mentions: str, limits: Limits | None = None) -> None:
    with pytest.raises(CaptureError, match=re.escape(str(path))) as caught:
        read(path, limits)
    for mention in mentions:
        assert mention in str(caught.value)


def lines_with(line: bytes, at: int = 3) -> bytes:
    """The small profile with another line in place of one of its events."""
    lines = text(SMALL).splitlines(keepends=True)
    lines[at] = line + b"\n"
    return b"".join(lines)


@pytest.mark.parametrize(
    "line", [b'{"cat" : "Node","pid', b"garbage", b'{"cat": 5 5},', b"7,", b'"word",', b"null,", b"\xff,"]
)
def test_a_file_damaged_before_its_end_is_refused(tmp_path: Path, line: bytes) -> None:
    refused(written(tmp_path, lines_with(line)), "damaged")
    refused(written(tmp_path, lines_with(line)[:-30]), "damaged")


def test_damage_is_placed_by_the_events_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = lines_with(b"garbage", at=8)
    monkeypatch.setattr(profile_events, "_CHUNK_BYTES", 1)
    refused(written(tmp_path, content), "damaged after event 7")


@pytest.mark.parametrize(
    "change",
    [
        {"ts": "12"},
        {"ts": 12.5},
        {"ts": 1 << 70},
        {"args": "text"},
        {"ts": 1 << 60},
        {"dur": -1},
        {"dur": None},
        {"tid": None},
        {"name": None},
    ],
    ids=[
        "text",
        "fraction",
        "beyond int64",
        "args",
        "beyond int64 in ns",
        "negative",
        "no length",
        "no thread",
        "no name",
    ],
)
def test_an_event_that_cannot_be_one_is_refused(tmp_path: Path, change: Event) -> None:
    refused(written(tmp_path, lines_with(json.dumps({**node("a", 12, 3), **change}).encode() + b",")))


def test_a_count_of_dropped_events_that_is_none_is_refused_or_unknown(tmp_path: Path) -> None:
    path = written(tmp_path, [*SMALL, call("profile_truncated", 90, 0, dropped_event_count="many")])
    try:
        reading = read(path)
    except CaptureError as error:
        assert str(path) in str(error)
    else:
        assert items(reading)["kernel events"].status == "partial"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b" \n",
        b"{}",
        b'{"traceEvents": []}',
        b"text",
        b"\x00" * 64,
        b'"[',
        gzip.compress(b"", mtime=0),
        gzip.compress(b"text", mtime=0),
        json.dumps(SMALL).encode(),
        json.dumps(SMALL, indent=1).encode(),
    ],
    ids=["empty", "blank", "object", "trace", "text", "zeros", "string", "gz", "gz text", "one line", "indented"],
)
def test_what_is_no_profile_is_refused(tmp_path: Path, content: bytes) -> None:
    refused(written(tmp_path, content), "not an ONNX Runtime profile")


def test_a_path_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    refused(tmp_path / "missing.json", "cannot be read")
    refused(tmp_path, "cannot be read")


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress], ids=["gzip", "zlib"])
def test_packed_bytes_behind_the_opening_bracket_are_not_unpacked(
    tmp_path: Path, pack: Callable[[bytes], bytes]
) -> None:
    lines = b"\n".join(json.dumps(one).encode() for one in SMALL)
    refused(written(tmp_path, b"[" + pack(lines)))
    refused(written(tmp_path, b"[\n" + pack(lines) + b"\n]\n"))


PACKED = gzip.compress(text(SMALL * 20), mtime=0)


@pytest.mark.parametrize(
    "content",
    [
        PACKED[:2],
        PACKED[:11],
        PACKED[: len(PACKED) // 2],
        PACKED[:-1],
        PACKED[:60] + bytes([PACKED[60] ^ 0xFF]) + PACKED[61:],
        PACKED[:-8] + bytes(8),
    ],
    ids=["two bytes", "header", "half", "last byte", "flipped", "checksum"],
)
def test_a_damaged_packed_file_is_refused(tmp_path: Path, content: bytes) -> None:
    refused(written(tmp_path, content, "profile.json.gz"), "cannot be read")


# ---- limits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("packed", [False, True])
def test_a_file_may_be_as_large_as_the_limit_unpacked_and_no_larger(tmp_path: Path, packed: bool) -> None:
    content = text(SMALL)
    path = written(tmp_path, gzip.compress(content, mtime=0) if packed else content)
    read(path, Limits(file_bytes=len(content)))
    refused(path, f"more than {len(content) - 1} bytes", limits=Limits(file_bytes=len(content) - 1))


@pytest.mark.parametrize("chunk", [64, 1 << 20])
def test_a_file_may_hold_as_many_events_as_the_limit_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(profile_events, "_CHUNK_BYTES", chunk)
    path = written(tmp_path, SMALL)
    read(path, Limits(events=len(SMALL)))
    refused(path, f"more than {len(SMALL) - 1} events", limits=Limits(events=len(SMALL) - 1))


def test_a_line_longer_than_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile_events, "_CHUNK_BYTES", 32)
    path = written(tmp_path, [LOADING, node("x" * 2000, 10, 5), call("model_run", 1, 30)])
    read(path, Limits(line_bytes=4000))
    refused(path, "a line of more than 1000 bytes", limits=Limits(line_bytes=1000))


@pytest.mark.parametrize("filler", [b" ", b"\n"], ids=["one line", "blank lines"])
def test_a_small_file_that_unpacks_to_a_huge_one_is_refused_in_little_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, filler: bytes
) -> None:
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=1) as stream:
        stream.write(b"[\n")
        for _ in range(64):
            stream.write(filler * (1 << 20))
    path = written(tmp_path, packed.getvalue(), "bomb.json.gz")
    assert path.stat().st_size < 1 << 20
    monkeypatch.setattr(profile_events, "_CHUNK_BYTES", 1 << 18)
    tracemalloc.start()
    try:
        refused(path, limits=Limits(file_bytes=32 << 20, line_bytes=2 << 20))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 16 << 20


# ---- recognizing -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[",
        b"[]",
        b"{}",
        b"\x1f\x8b",
        b"\x1f\x8b" + bytes(40),
        b"\x89PNG\r\n\x1a\n",
        b"SQLite format 3\x00",
        b'[{"ph": "X", "cat": "kernel", "name": "k"}]',
        b'{"cat": "Session", "name": "model_loading_uri"}',
        b'"cat" "model_loading_uri"',
        b'[{"cat": "Session", "name": "session_initialization"}]',
        b"[" + b" " * 2000 + b'{"cat": "Session", "name": "model_loading_uri"}]',
        gzip.compress(b"[]", mtime=0),
        PACKED[:14],
    ],
)
def test_what_is_no_profile_is_not_recognized(tmp_path: Path, content: bytes) -> None:
    assert ort_profile.probe(written(tmp_path, content)) is None


def test_a_path_without_a_file_is_not_recognized(tmp_path: Path) -> None:
    assert ort_profile.probe(tmp_path) is None
    assert ort_profile.probe(tmp_path / "missing") is None


@from_disk
@given(content=st.binary(max_size=200) | st.binary(max_size=60).map(lambda b: PACKED[:80] + b))
def test_recognizing_never_fails_whatever_the_bytes(scratch: Path, content: bytes) -> None:
    recognition = ort_profile.probe(written(scratch, content))
    assert recognition is None or b"model_loading" in content or content.startswith(b"\x1f\x8b")


@from_disk
@given(content=st.binary(max_size=60), at=st.integers(0, len(CUT)), gone=st.integers(0, 40))
def test_reading_damaged_bytes_gives_tables_or_a_capture_error(
    scratch: Path, content: bytes, at: int, gone: int
) -> None:
    path = written(scratch, CUT[:at] + content + CUT[at + gone :])
    try:
        reading = read(path)
    except CaptureError as error:
        assert str(path) in str(error)
    else:
        assert reading.evidence


def test_the_beginning_is_enough_to_be_recognized(tmp_path: Path) -> None:
    head = text([LOADING])[:1024]
    assert ort_profile.probe(written(tmp_path, head + b"\x00" * 100)) is not None
