"""Every figure of a window against counting single nanoseconds, and against exact figures of real captures."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.analysis.timeline.activities import CATEGORIES
from aaco_pipeline.analysis.timeline.device_timeline import (
    FIRST_TO_LAST,
    HOST_AND_DEVICE,
    ITERATION,
    covered_by,
    timeline,
)
from aaco_pipeline.lake.contracts import contract, polars_schema
from tests.places import SHARED

EXACT = {
    f"{folder}/{name}": devices
    for folder, listed in (("kineto", "kineto"), ("gpu_sessions/traces", "gpu_sessions"))
    if (SHARED / listed / "exact_timeline.json").exists()
    for name, devices in json.loads((SHARED / listed / "exact_timeline.json").read_text()).items()
}
NO_ITERATIONS = pl.DataFrame(schema=polars_schema(contract("iterations")))
NO_CALLS = pl.DataFrame(schema=polars_schema(contract("api_calls")))
Interval = tuple[int, int, str, bool]


def activities(rows: list[Interval], device: int = 0, process: int = 0, iteration: int | None = None) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "device_id": [device] * len(rows),
            "start_ns": [row[0] for row in rows],
            "end_ns": [row[0] + row[1] for row in rows],
            "category": [row[2] for row in rows],
            "call_id": [7 if row[3] else None for row in rows],
            "process_id": [process] * len(rows),
            "iteration": [iteration] * len(rows),
            "call_start_ns": [None] * len(rows),
        },
        schema={
            "device_id": pl.Int32,
            "start_ns": pl.Int64,
            "end_ns": pl.Int64,
            "category": CATEGORIES,
            "call_id": pl.Int32,
            "process_id": pl.Int32,
            "iteration": pl.Int32,
            "call_start_ns": pl.Int64,
        },
    ).sort("start_ns")


def iterations(windows: list[tuple[int, int]]) -> pl.DataFrame:
    rows = [
        {"pass": "trace", "phase": "measure", "iteration": number, "start_ns": start, "end_ns": end}
        for number, (start, end) in enumerate(windows)
    ]
    return pl.DataFrame(rows, schema=NO_ITERATIONS.schema)


intervals = st.lists(
    st.tuples(
        st.integers(0, 25), st.integers(0, 8), st.sampled_from(["compute", "copy", "communication"]), st.booleans()
    ),
    min_size=1,
    max_size=8,
)


@given(intervals, st.integers(0, 20), st.integers(0, 20))
def test_every_figure_is_what_counting_nanoseconds_gives(rows: list[Interval], first: int, length: int) -> None:
    found = timeline(activities(rows), NO_CALLS, iterations([(first, first + length)]))
    for row in found.iter_rows(named=True):
        counted = dict.fromkeys(("busy", "compute", "exposed_copy", "exposed_communication", "overlapped", "sum"), 0)
        for moment in range(row["window_start_ns"], row["window_end_ns"]):
            there = [kind for start, long, kind, _ in rows if start <= moment < start + long]
            computes, talks, moves = (kind in there for kind in ("compute", "communication", "copy"))
            counted["busy"] += bool(there)
            counted["compute"] += computes
            counted["exposed_copy"] += moves and not computes and not talks
            counted["exposed_communication"] += talks and not computes
            counted["overlapped"] += computes and (moves or talks)
            counted["sum"] += len(there)
        names = {"sum": "activity_time_sum_ns"}
        assert {name: row[names.get(name, f"{name}_ns")] for name in counted} == counted
        window = row["window_end_ns"] - row["window_start_ns"]
        assert row["active_ratio"] == (counted["busy"] / window if window else None)


def test_windows_clip_count_and_say_their_rule() -> None:
    calls = pl.DataFrame([{"process_id": 0, "start_ns": 2, "end_ns": 40}], schema=NO_CALLS.schema)
    rows: list[Interval] = [(10, 5, "compute", True), (15, 0, "compute", False), (20, 10, "copy", False)]
    found = timeline(activities(rows), calls, iterations([(0, 10), (12, 20), (25, 26)]))
    by_rule = found.group_by("window_rule", maintain_order=True).agg("window_start_ns", "window_end_ns")
    assert dict(zip(by_rule["window_rule"], by_rule["window_start_ns"].to_list(), strict=True)) == {
        FIRST_TO_LAST: [10],
        HOST_AND_DEVICE: [2],
        ITERATION: [0, 12, 25],
    }
    counts = found.filter(pl.col("window_rule") == ITERATION)["activity_count"].to_list()
    assert counts == [0, 2, 1]
    whole = found.filter(pl.col("window_rule") == FIRST_TO_LAST).row(0, named=True)
    assert (whole["activity_count"], whole["linked_ratio"]) == (3, 1 / 3)
    assert found.filter(pl.col("activity_count") == 0)["linked_ratio"].to_list() == [None]


def test_a_devices_windows_are_of_its_own_processes_and_not_of_another_ranks_steps() -> None:
    calls = pl.DataFrame(
        [{"process_id": 0, "start_ns": 2, "end_ns": 9}, {"process_id": 1, "start_ns": 900, "end_ns": 905}],
        schema=NO_CALLS.schema,
    )
    own = activities([(10, 5, "compute", True)], device=0, process=0, iteration=0)
    other = activities([(910, 5, "compute", True)], device=1, process=1, iteration=0)
    steps = iterations([(0, 20)])
    found = timeline(pl.concat([own, other]), calls, steps)
    windows = found.select("device_id", "window_rule", "window_start_ns", "window_end_ns").rows()
    assert sorted(windows) == [
        (0, FIRST_TO_LAST, 10, 15),
        (0, HOST_AND_DEVICE, 2, 15),
        (0, ITERATION, 0, 20),
        (1, FIRST_TO_LAST, 910, 915),
        (1, HOST_AND_DEVICE, 900, 915),
    ]
    alone = [timeline(one, calls, steps) for one in (own, other)]
    whole = pl.col("window_rule") != ITERATION
    assert found.filter(whole).equals(pl.concat(alone).filter(whole))
    # Launched within the step, it may end behind it.
    late = other.with_columns(call_start_ns=pl.lit(5, pl.Int64))
    assert timeline(pl.concat([own, late]), calls, steps).filter(~whole).get_column("device_id").to_list() == [0, 1]


def test_copies_that_were_not_traced_have_no_figure() -> None:
    rows: list[Interval] = [(0, 5, "compute", True)]
    assert timeline(activities(rows), NO_CALLS, NO_ITERATIONS, copies_traced=False)["exposed_copy_ns"].to_list() == [
        None
    ]


def test_activities_without_device_are_in_no_timeline() -> None:
    rows = activities([(0, 5, "copy", True)]).with_columns(device_id=pl.lit(None, pl.Int32))
    found = timeline(rows, NO_CALLS, NO_ITERATIONS)
    assert found.is_empty()


def test_rows_have_the_columns_of_the_table() -> None:
    found = timeline(activities([(0, 5, "compute", True)]), NO_CALLS, NO_ITERATIONS)
    own = {name: dtype for name, dtype in polars_schema(contract("timeline")).items() if name != "session_id"}
    del own["busy_bound"]  # by the findings on the recording alone
    assert dict(found.select(*own).schema) == own


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9)), max_size=8), st.integers(-3, 40), st.integers(-3, 40))
def test_coverage_between_any_two_instants(rows: list[tuple[int, int]], first: int, last: int) -> None:
    starts = np.array([row[0] for row in rows], np.int64)
    cover = covered_by(starts, starts + np.array([row[1] for row in rows], np.int64))
    counted = sum(any(s <= moment < s + long for s, long in rows) for moment in range(first, last))
    assert cover.between(np.array([first]), np.array([last])).tolist() == [counted]


@pytest.mark.skipif(not EXACT, reason="the shared captures with their exact figures are not part of the repository")
@pytest.mark.parametrize("capture", sorted(EXACT))
def test_real_captures_are_exact_to_the_nanosecond(capture: str, analysed: Callable[[str], Any]) -> None:
    found = analysed(f"{capture}.json.gz")
    rows = found.timeline.filter(pl.col("window_rule") == FIRST_TO_LAST)
    handles = dict(found.tables["devices"].select("device_id", "handle").iter_rows())
    lengths = pl.col("end_ns") - pl.col("start_ns")
    idle = dict(found.gaps.group_by("device_id").agg(lengths.sum()).iter_rows())
    given_figures = {
        handles[row["device_id"]]: {
            "activities": row["activity_count"],
            "busy_ns": row["busy_ns"],
            "idle_ns": idle[row["device_id"]],
            "sum_ns": row["activity_time_sum_ns"],
            "window_ns": row["window_end_ns"] - row["window_start_ns"],
        }
        for row in rows.iter_rows(named=True)
    }
    assert given_figures == EXACT[capture]


@pytest.mark.parametrize(
    "capture", ["h100_qwen1.5_0.5b", "mi300x_qwen1.5_0.5b", "mi300x_resnet_train_ddp", "mi300x_sglang_qwen3_8b"]
)
def test_exposed_times_are_the_references(capture: str, analysed: Callable[[str], Any]) -> None:
    path = SHARED / "kineto" / "oracle" / f"reference_{capture}.json"
    found = analysed(f"kineto/{capture}.json.gz").timeline.filter(pl.col("window_rule") == FIRST_TO_LAST)
    (expected,) = json.loads(path.read_text())["devices"].values()
    row = found.row(0, named=True)
    assert row["compute_ns"] == expected["compute_union_ns"]
    assert row["exposed_communication_ns"] == expected["exposed_comm_ns"]
    assert row["exposed_copy_ns"] == expected["exposed_mem_ns"]
