"""Without evidence an answer only gets weaker: it becomes `unknown` or `incomplete`, and never another class."""

from collections.abc import Collection
from typing import Any, Final

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.lake.contracts import contract, polars_schema
from benchmarks.accuracy.answers import EVIDENCE, WEAKER
from benchmarks.accuracy.mixtures import Mixture, Tables, answered

REPETITIONS: Final = 40
PERIOD_NS: Final = 100_000
#: How long the device works in each repetition, by cause.
WORK_NS: Final = {"device": 95_000, "copy": 10_000, "launch": 10_000, "host": 10_000, "sync": 10_000}


def made(cause: str, period: int = PERIOD_NS) -> Tables:
    """A session that repeats one kernel, with one cause for what else it does."""
    dispatches: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    copies: list[dict[str, Any]] = []
    iterations: list[dict[str, Any]] = []
    thread = {"process_id": 0, "thread_id": 1}
    work = WORK_NS[cause] * period // PERIOD_NS

    def call(name: str, start: int, end: int, domain: str = "hip_runtime", **rest: object) -> None:
        row = {"call_id": len(calls), "name": name, "domain": domain, "start_ns": start, "end_ns": end}
        calls.append({**thread, **row, **rest})

    for number in range(REPETITIONS):
        at = number * period
        start, end = at + 5_000, at + 5_000 + work
        row = {"dispatch_id": number, "kernel_id": 0, "device_id": 0, "stream_id": 0, "correlation_id": number}
        dispatches.append({**thread, **row, "start_ns": start, "end_ns": end, "iteration": number})
        iterations.append({"pass": "trace", "iteration": number, "phase": "measure", "latency_ns": period})
        iterations[-1] |= {"start_ns": at, "end_ns": at + period}
        if cause == "launch":
            # The operator that launches is open nearly all the time before.
            call("aten::add", at - period + 10_000 + work, at + 4_000, "operator")
        early = period if cause == "device" else 0
        call("hipLaunchKernel", at + 1_000 - early, at + 3_000 - early, correlation_id=number)
        if cause == "sync":
            call("hipStreamSynchronize", at + 3_500, end + 2_000)
        if cause == "copy":
            size = {"copy_id": number, "device_id": 0, "stream_id": 0, "direction": "device_to_host", "size_bytes": 99}
            copies.append({**thread, **size, "start_ns": end, "end_ns": at + period})
    tables = {"dispatches": dispatches, "api_calls": calls, "memory_copies": copies, "iterations": iterations}
    return {name: _frame(name, rows) for name, rows in {**tables, "kernels": [{"kernel_id": 0, "name": "k"}]}.items()}


def _frame(name: str, rows: list[dict[str, Any]]) -> pl.DataFrame:
    schema = polars_schema(contract(name))
    return pl.DataFrame([{column: row.get(column) for column in schema} for row in rows], schema=schema)


def without(tables: Tables, names: Collection[str]) -> Tables:
    """The tables with these empty; dispatches are of no iteration where there are none."""
    blanked = {name: frame.clear() if name in names else frame for name, frame in tables.items()}
    if "iterations" in names:
        blanked["dispatches"] = blanked["dispatches"].with_columns(iteration=pl.lit(None, pl.Int32))
    return blanked


def class_of(tables: Tables) -> str:
    return answered(Mixture("", tables, {}))[0]


@pytest.mark.nightly
@pytest.mark.parametrize("cause", WORK_NS)
@pytest.mark.parametrize("evidence", EVIDENCE)
def test_a_class_without_evidence_is_the_same_or_none(cause: str, evidence: str) -> None:
    tables = made(cause)
    assert class_of(tables) == cause
    assert class_of(without(tables, EVIDENCE[evidence])) in (cause, *WEAKER)


@pytest.mark.parametrize("cause", ["launch", "host", "sync"])
def test_idle_time_without_host_calls_has_no_cause(cause: str) -> None:
    tables = made(cause)
    assert class_of({**tables, "api_calls": tables["api_calls"].clear()}) in WEAKER


@given(
    cause=st.sampled_from(sorted(WORK_NS)),
    period=st.integers(80_000, 3_000_000),
    lost=st.sets(st.sampled_from(sorted(EVIDENCE))),
)
def test_any_evidence_may_be_lost_at_any_pace(cause: str, period: int, lost: set[str]) -> None:
    tables = made(cause, period)
    whole = class_of(tables)
    gone = [name for evidence in lost for name in EVIDENCE[evidence]]
    assert class_of(without(tables, gone)) in (whole, *WEAKER)
