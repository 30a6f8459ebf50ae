"""Shapes of operators out of Kineto traces: as Python's own parser finds them, in real traces and odd ones."""

import gzip
import json
from pathlib import Path
from typing import Any, Final

import polars as pl
import pytest

from aaco_pipeline.formats import kineto
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
