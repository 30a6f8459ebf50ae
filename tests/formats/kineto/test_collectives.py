"""What a trace's arguments say of a collective, and what of it is not stated."""

import json
from pathlib import Path

import polars as pl
import pytest

from aaco_pipeline.formats import kineto
from aaco_pipeline.formats.kineto.collectives import COLUMNS
from aaco_pipeline.lake.contracts import contract
from aaco_pipeline.lake.validation import conform


def recorded(folder: Path, *arguments: dict[str, object]) -> pl.DataFrame:
    """The markers of a trace with an operator that records a collective for each of the arguments."""
    events = [
        {"ph": "X", "cat": "cpu_op", "name": "record_param_comms", "pid": 4, "tid": 5, "ts": i, "dur": 1, "args": args}
        for i, args in enumerate(arguments)
    ]
    events.append({"ph": "X", "cat": "user_annotation", "name": "step", "pid": 4, "tid": 5, "ts": 0, "dur": 9})
    # Arguments of another operator describe no collective, whatever they are called.
    other = {"Collective name": "allreduce", "dtype": "Float"}
    events.append(
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 4, "tid": 5, "ts": 9, "dur": 1, "args": other}
    )
    path = folder / "trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "baseTimeNanoseconds": 0, "traceEvents": events}))
    reading = kineto.read(path)
    markers = reading.tables["markers"]
    conform(contract("markers"), markers, "20260101T000000Z-00000000")
    assert reading.tables["api_calls"].height == len(arguments) + 1
    row = reading.details["source_rows"].filter(pl.col("item") == "collectives that operators record")
    assert row.select("rows_in", "rows_out").rows() == ([(len(arguments),) * 2] if arguments else [])
    assert markers.row(0, named=True)["name"] == "step"
    assert markers.row(0)[-len(COLUMNS) :] == (None,) * len(COLUMNS)
    return markers.slice(1)


def test_all_that_is_stated_becomes_a_marker(tmp_path: Path) -> None:
    arguments: dict[str, object] = {
        "Collective name": "_allgather_base",
        "Process Group Name": "3",
        "Process Group Ranks": "[0, 4]",
        "dtype": "BFloat16",
        "Group size": 2,
        "Seq": 17,
        "In msg nelems": 1000,
        "Out msg nelems": 2000,
    }
    (row,) = recorded(tmp_path, arguments).rows(named=True)
    assert (row["name"], row["process_id"], row["thread_id"]) == ("record_param_comms", 0, 5)
    assert (row["start_ns"], row["end_ns"]) == (0, 1000)
    assert [row[name] for name in COLUMNS] == ["_allgather_base", "3 [0, 4]", 2, 17, "BFloat16", 2000]


def test_what_is_not_stated_is_null(tmp_path: Path) -> None:
    found = recorded(
        tmp_path,
        {},
        {"Collective name": "wait", "Process Group Name": "0", "Process Group Ranks": "[]", "Seq": -1},
        {"dtype": "ComplexDouble", "In msg nelems": 999_999_999_999_999_999},
        {"dtype": "Byte", "In msg nelems": -1},
        {"Process Group Ranks": "[0]", "dtype": "Float", "In msg nelems": "many"},
        {"Process Group Name": "0", "Process Group Ranks": [0, 1], "dtype": "Unknown", "In msg nelems": 3},
    )
    assert found.select(COLUMNS).rows() == [
        (None, None, None, None, None, None),
        ("wait", "0", None, None, None, None),
        (None, None, None, None, "ComplexDouble", None),
        (None, None, None, None, "Byte", None),
        (None, None, None, None, "Float", None),
        (None, "0", None, None, "Unknown", None),
    ]


@pytest.mark.parametrize(
    ("dtype", "size"), [("Bool", 1), ("Half", 2), ("Float", 4), ("Long", 8), ("ComplexDouble", 16)]
)
def test_sizes_are_bytes(tmp_path: Path, dtype: str, size: int) -> None:
    found = recorded(tmp_path, {"dtype": dtype, "In msg nelems": 5})
    assert found.get_column("size_bytes").to_list() == [5 * size]


def test_a_trace_without_collectives_says_nothing_of_them(tmp_path: Path) -> None:
    assert recorded(tmp_path).height == 0
