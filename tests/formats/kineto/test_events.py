"""Kineto events: shapes of operators, arguments of collectives, devices of activities, in real and odd traces."""

import gzip
import json
from pathlib import Path
from typing import Any, Final

import polars as pl
import pytest

from aaco_pipeline.formats import kineto
from aaco_pipeline.formats.kineto.events import COLLECTIVE_COLUMNS, device_rows, properties_of
from aaco_pipeline.lake.contracts import contract
from aaco_pipeline.lake.validation import conform
from tests.places import SHARED

TRACES: Final = SHARED / "gpu_sessions" / "traces"
OPERATOR: Final = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 7, "ts": 12.345, "dur": 1}


def operator_inputs(path: Path) -> pl.DataFrame:
    return kineto.read(path).tables["operator_inputs"]


def written(path: Path, *events: dict[str, Any]) -> Path:
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": list(events)}))
    return path


@pytest.mark.skipif(not TRACES.is_dir(), reason=f"{TRACES} is not there; set AACO_SHARED")
@pytest.mark.parametrize("name", ["elementwise_256mib", "transformer_b1"])
def test_a_real_trace_gives_what_a_json_parser_finds(name: str) -> None:
    path = TRACES / f"{name}.json.gz"
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    found = operator_inputs(path)
    expected = [e for e in events if e.get("cat") == "cpu_op" and "Input Dims" in e["args"]]
    assert found.height == len(expected) > 0
    assert found.get_column("operator").to_list() == [e["name"] for e in expected]
    assert [json.loads(text) for text in found.get_column("shapes")] == [e["args"]["Input Dims"] for e in expected]
    assert [json.loads(text) for text in found.get_column("types")] == [e["args"]["Input type"] for e in expected]


def test_each_is_of_its_call_and_operators_without_shapes_are_left_out(tmp_path: Path) -> None:
    args = {"Input Dims": [[2, [3]], []], "Input type": ["float", ""], "External id": 1}
    path = written(
        tmp_path / "t.json",
        {**OPERATOR, "ts": 1, "args": {"External id": 2}},
        {**OPERATOR, "args": args},
        {**OPERATOR, "ts": 20, "args": {"Input Dims": 5, "Input type": ["float"]}},
        {**OPERATOR, "cat": "kernel", "args": args},
    )
    assert operator_inputs(path).rows() == [(1, "aten::mm", "[[2, [3]], []]", '["float", ""]', None, None)]


def test_a_trace_that_recorded_no_shapes_has_no_rows(tmp_path: Path) -> None:
    path = written(tmp_path / "t.json", {**OPERATOR, "args": {"External id": 2}}, {"ph": "M", "name": "n", "args": {}})
    assert operator_inputs(path).height == 0


def test_a_cut_trace_gives_what_it_holds(tmp_path: Path) -> None:
    args = {"Input Dims": [[2]], "Input type": ["float"]}
    whole = written(tmp_path / "t.json", {**OPERATOR, "args": args}, {**OPERATOR, "name": "aten::add", "args": args})
    whole.write_bytes(whole.read_bytes()[:-30])
    assert operator_inputs(whole).get_column("operator").to_list() == ["aten::mm"]


def test_values_that_are_numbers_or_truth_are_kept_and_free_text_is_not(tmp_path: Path) -> None:
    values = ["", "True", "[1, -2]", "1.5e-05", "[True, False]", "[]", "sk-secret", "[a, b]", "1]; [2", "cuda:0"]
    args = {
        **{"Input Dims": [[2]], "Input type": ["float"], "Input Strides": [[1]]},
        **{"Concrete Inputs": values, "External id": 1},
    }
    path = written(tmp_path / "t.json", {**OPERATOR, "args": args}, {**OPERATOR, "ts": 20, "args": args})
    kept = ["", "True", "[1, -2]", "1.5e-05", "[True, False]", "[]", "", "", "", ""]
    first, second = operator_inputs(path).rows(named=True)
    assert json.loads(first["values"]) == kept == json.loads(second["values"])
    assert first["strides"] == "[[1]]"
    assert "secret" not in str(first)


def test_brackets_within_texts_are_none_of_a_list(tmp_path: Path) -> None:
    args = {"Input Dims": [[2]], "Input type": ["float"], "Concrete Inputs": ["[1, 2", "]]", "[3]"]}
    event = {**OPERATOR, "name": "a[b", "args": args}
    (row,) = operator_inputs(written(tmp_path / "t.json", event)).rows(named=True)
    assert (row["operator"], row["shapes"], json.loads(row["values"])) == ("a[b", "[[2]]", ["", "", "[3]"])


def test_a_trace_written_for_people_gives_the_same_texts(tmp_path: Path) -> None:
    args = {"Input Dims": [[2, 3], []], "Input type": ["float", "Scalar"], "Concrete Inputs": ["", "1"]}
    events = [{**OPERATOR, "args": args}]
    plain = written(tmp_path / "plain.json", *events)
    wide = tmp_path / "wide.json"
    wide.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}, indent=8))
    assert operator_inputs(wide).equals(operator_inputs(plain))
    assert operator_inputs(plain).get_column("shapes").to_list() == ["[[2, 3], []]"]


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
    assert markers.row(0)[-len(COLLECTIVE_COLUMNS) :] == (None,) * len(COLLECTIVE_COLUMNS)
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
    assert [row[name] for name in COLLECTIVE_COLUMNS] == ["_allgather_base", "3 [0, 4]", 2, 17, "BFloat16", 2000]


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
    assert found.select(COLLECTIVE_COLUMNS).rows() == [
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


def entry(number: int, **more: Any) -> dict[str, Any]:
    return {"id": number, "name": "AMD Instinct MI300X", "numSms": 304, **more}


def test_rocms_agent_number_of_the_one_device_is_that_device() -> None:
    assert set(properties_of([9], {0: entry(0)}, True)) == {9}
    assert properties_of([9], {0: entry(0)}, True)[9]["numSms"] == 304


def test_of_devices_that_are_alike_any_has_the_properties_and_of_others_none() -> None:
    alike = {0: entry(0), 1: entry(1)}
    assert set(properties_of([1, 8], alike, True)) == {0, 1, 8}
    unlike = {0: entry(0), 1: entry(1, numSms=228)}
    assert properties_of([8], unlike, True) == unlike


@pytest.mark.parametrize(
    ("seen", "amd"),
    [
        ([0], True),  # described by the same number
        ([9], False),  # CUDA numbers both alike
        ([-1], True),  # no number at all
        ([], True),
    ],
)
def test_otherwise_what_is_described_stays_as_it_is(seen: list[int], amd: bool) -> None:
    assert properties_of(seen, {0: entry(0)}, amd) == {0: entry(0)}


def test_two_strange_devices_are_not_the_one_that_is_described() -> None:
    assert set(properties_of([2, 3], {0: entry(0)}, True)) == {0}


@pytest.mark.parametrize(
    ("amd", "major", "minor", "arch"),
    [
        (True, 9, 4, "gfx942"),
        (True, 9, 5, "gfx950"),
        (True, 9, 0, None),
        (False, 9, 0, "sm_90"),
        (None, 9, 0, None),
        (False, None, None, None),
    ],
)
def test_capability_numbers_name_an_architecture_where_one_alone_has_them(
    *, amd: bool | None, major: int | None, minor: int | None, arch: str | None
) -> None:
    rows = device_rows({0: 0}, {0: entry(0, computeMajor=major, computeMinor=minor)}, amd)
    assert rows.item(0, "arch") == arch
