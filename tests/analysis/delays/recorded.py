"""Small recordings of threads for tests: states, events and iterations by hand, in microseconds."""

from collections.abc import Sequence
from typing import Any

import polars as pl

from aaco_pipeline.lake.contracts import polars_types

MAIN = 100
POOL = 101
OTHER = 900


def table(name: str, rows: Sequence[dict[str, Any]]) -> pl.DataFrame:
    """Rows of a table of the lake, what is not given null."""
    schema = {column: dtype for column, dtype in polars_types(name).items() if column != "session_id"}
    return pl.DataFrame([{**dict.fromkeys(schema), **row} for row in rows], schema=schema)


def iterations(*spans: tuple[int, int], name: str = "latency") -> pl.DataFrame:
    """Measured iterations from and to these microseconds."""
    rows = [
        {
            **{"pass": name, "iteration": number, "phase": "measure", "start_ns": start * 1000, "end_ns": end * 1000},
            "latency_ns": (end - start) * 1000,
        }
        for number, (start, end) in enumerate(spans)
    ]
    return table("iterations", rows)


def states(*rows: tuple[int, int, int, str] | tuple[int, int, int, str, dict[str, Any]]) -> pl.DataFrame:
    """States as thread, from, to (microseconds), state, and further columns."""
    made = [
        {"thread_id": row[0], "start_ns": row[1] * 1000, "end_ns": row[2] * 1000, "state": row[3], **dict(*row[4:])}
        for row in rows
    ]
    return table("thread_states", made)


def events(*rows: dict[str, Any]) -> pl.DataFrame:
    """Events with `at` and `long` in microseconds."""
    made = []
    for row in rows:
        given = dict(row)
        at, long = given.pop("at"), given.pop("long", None)
        made.append({"time_ns": at * 1000, "duration_ns": None if long is None else long * 1000, "cpu": 0, **given})
    return table("kernel_events", made)


def threads(*numbers: int) -> pl.DataFrame:
    """Measured threads of process 0, the first the main one."""
    rows = [{"thread_id": one, "process_id": 0, "start_ns": place} for place, one in enumerate(numbers)]
    return table("kernel_threads", rows)
