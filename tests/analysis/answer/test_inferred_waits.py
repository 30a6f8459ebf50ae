"""Waits that no record shows: found again in real traces without their synchronizing calls, and never made up."""

from collections.abc import Callable
from typing import Any, Final

import polars as pl
import pytest

from aaco_pipeline.analysis.answer.inferred_waits import LONG_NS, SOON_NS, with_inferred_waits
from aaco_pipeline.analysis.answer.shares import LAUNCH_PACE_NS, device_shares
from aaco_pipeline.analysis.timeline.activities import RECORDED_FROM, recorded
from aaco_pipeline.analysis.timeline.gap_causes import gaps
from aaco_pipeline.lake.validation import empty_table

Row = dict[str, Any]
TRACES: Final = "gpu_sessions/traces"
#: A kernel long enough to be waited for, launched at 50 µs.
LAUNCH: Final[Row] = {"start_ns": 50_000, "end_ns": 55_000, "name": "hipLaunchKernel", "correlation_id": 1}
KERNEL: Final[Row] = {"start_ns": 60_000, "end_ns": 400_000, "correlation_id": 1}


def judged(tables: dict[str, pl.DataFrame]) -> pl.DataFrame:
    whole = {name: tables.get(name, empty_table(name)) for name in RECORDED_FROM}
    run = recorded(whole)
    found = gaps(run.activities, whole["api_calls"], run.waits).with_columns(doubt=pl.lit(None, pl.String))
    return with_inferred_waits(found, run.activities, whole)


def shares(tables: dict[str, pl.DataFrame]) -> dict[str, float]:
    """Shares of the first device's first-to-last window."""
    activities = recorded({name: tables.get(name, empty_table(name)) for name in RECORDED_FROM}).activities
    own = activities.filter(pl.col("device_id") == 0)
    window = own.select(pl.col("start_ns").min(), pl.col("end_ns").max())
    calls, copies = (tables.get(name, empty_table(name)) for name in ("api_calls", "memory_copies"))
    found = device_shares(
        own, judged(tables).filter(pl.col("device_id") == 0), calls, window, copies, long_ns=LAUNCH_PACE_NS
    )
    return {name: time / sum(found.values()) for name, time in found.items()}


def without_waits(tables: dict[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
    synchronizing = pl.col("name").cast(pl.String).str.contains("Synchronize")
    calls = tables["api_calls"]
    assert calls.filter(synchronizing).height, "nothing to take away"
    return {**tables, "api_calls": calls.filter(~synchronizing), "synchronizations": tables["synchronizations"].clear()}


def next_one(called: int) -> tuple[Row, Row]:
    launch = {"start_ns": called, "end_ns": called + 5_000, "name": "hipLaunchKernel", "correlation_id": 2}
    return launch, {"start_ns": called + 9_000, "end_ns": called + 20_000, "correlation_id": 2}


@pytest.mark.parametrize(
    ("called", "between", "cause"),
    [
        (400_000 + SOON_NS, [], "sync"),
        # It was not heard of in time.
        (400_001 + SOON_NS, [], "host_wait"),
        # It was at something else while the device worked, or heard of again too early for the device to be done.
        (410_000, [(60_000, 399_000)], "host_wait"),
        (410_000, [(340_000, 351_000)], "host_wait"),
        # It had been silent long enough when it was at something short before.
        (410_000, [(60_000, 399_999 - LONG_NS)], "sync"),
    ],
)
def test_long_silence_that_ends_with_the_devices_work_is_a_wait(
    session: Callable[..., Any], called: int, between: list[tuple[int, int]], cause: str
) -> None:
    launch, kernel = next_one(called)
    other = [{"start_ns": start, "end_ns": end, "name": "aten::view", "domain": "operator"} for start, end in between]
    found = judged(session([KERNEL, kernel], calls=[LAUNCH, *other, launch]).tables)
    assert found.get_column("cause").to_list() == [cause]
    assert found.get_column("inferred").to_list() == [cause == "sync"]
    assert found.get_column("host_call_id").to_list() == [None if cause == "sync" else len(other) + 1]


def test_a_thread_with_a_recorded_wait_gets_none_beside(session: Callable[..., Any]) -> None:
    launch, kernel = next_one(410_000)
    later = {"start_ns": 500_000, "end_ns": 501_000, "name": "hipDeviceSynchronize"}
    found = judged(session([KERNEL, kernel], calls=[LAUNCH, launch, later]).tables)
    assert found.get_column("cause").to_list() == ["host_wait"]
    assert not found.get_column("inferred").any()


def test_without_calls_nothing_is_inferred(session: Callable[..., Any]) -> None:
    found = judged(session([KERNEL, next_one(410_000)[1]]).tables)
    assert found.get_column("cause").to_list() == ["unknown"]
    assert not found.get_column("inferred").any()


@pytest.mark.parametrize("name", ["item_each_kernel"])
def test_a_trace_that_waits_each_time_still_does_without_its_waits(analysed: Callable[[str], Any], name: str) -> None:
    cut = without_waits(analysed(f"{TRACES}/{name}.json.gz").tables)
    found = shares(cut)
    assert max(found, key=lambda one: found[one]) == "sync"
    assert found["launch"] + found["host"] < 0.02
    inferred = judged(cut).get_column("inferred")
    assert int(inferred.sum()) > 0.95 * len(inferred)


@pytest.mark.parametrize(
    ("path", "cause"),
    [
        *((f"{TRACES}/{name}.json.gz", cause) for name, cause in [("tiny_kernels_500", "launch")]),
        *((f"{TRACES}/{name}.json.gz", cause) for name, cause in [("host_work_between", "host")]),
        *((f"{TRACES}/{name}.json.gz", cause) for name, cause in [("transformer_b1", "launch")]),
        ("kineto/mi300x_qwen1.5_0.5b.json.gz", "device"),
        ("kineto/h100_qwen1.5_0.5b.json.gz", "device"),
    ],
)
def test_no_wait_is_made_up(analysed: Callable[[str], Any], path: str, cause: str) -> None:
    tables = analysed(path).tables
    before, after = shares(tables), shares(without_waits(tables))
    assert max(after, key=lambda one: after[one]) == cause
    # What waits there were are missed rather than invented.
    assert after["sync"] <= before["sync"] + 0.005


def test_waits_of_a_trace_that_nothing_was_tuned_on_are_found_again(analysed: Callable[[str], Any]) -> None:
    tables = analysed("kineto/h100_qwen1.5_0.5b.json.gz").tables
    assert shares(without_waits(tables))["sync"] == pytest.approx(shares(tables)["sync"], abs=0.002)
