"""The capture of a session made elsewhere: its facts, what it cannot state, and the list of its files."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from aaco_pipeline.capture import open_capture
from aaco_pipeline.capture.discovery import discover_runs
from aaco_pipeline.capture.face import Facts
from aaco_pipeline.errors import CaptureError
from aaco_pipeline.lake.contracts import all_tables, contract
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.lake.validation import conform
from tests.analysis.roofline.operators.graph_traces import Trace, layers
from tests.places import SHARED
from tests.sessions import taken_in, unlisted

SESSION = "20260102T030405Z-0a1b2c3d"
KERNELS = (
    '"Kind","Agent_Id","Queue_Id","Thread_Id","Dispatch_Id","Kernel_Id","Kernel_Name","Correlation_Id",'
    '"Start_Timestamp","End_Timestamp","Workgroup_Size_X","Grid_Size_X"\n'
    '"KERNEL_DISPATCH","Agent 1",1,77,1,5,"scale",3,1000,2000,64,640\n'
)
OPERATOR: dict[str, Any] = {
    **{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 7, "ts": 12.5, "dur": 3},
    "args": {"External id": 1, "Input Dims": [[4, 8], [8, 2]], "Input type": ["float", "float"]},
}


def written(folder: Path, *ranks: int) -> Path:
    """Generated Kineto traces with one operator each, of so many ranks of one job."""
    folder.mkdir()
    for rank in ranks:
        stated = {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": len(ranks)}}
        kernel = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 14, "dur": 1}
        events = [OPERATOR, {**kernel, "args": {"device": 0, "stream": 0, "correlation": 1, "External id": 1}}]
        document = {"schemaVersion": 1, "deviceProperties": [], **(stated if len(ranks) > 1 else {})}
        (folder / f"rank{rank}.json").write_text(json.dumps({**document, "traceEvents": events}))
    return folder


@pytest.fixture
def raw(empty_lake: TraceLake, tmp_path: Path) -> Path:
    """The raw folder of an ingested kernel trace."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in/out_kernel_trace.csv").write_text(KERNELS)
    (tmp_path / "in/notes.txt").write_text("what was done")
    return empty_lake.raw(taken_in(empty_lake, tmp_path / "in"))


def test_it_states_every_table_of_the_lake_that_a_stage_takes_from_a_capture(raw: Path) -> None:
    tables = open_capture(raw).tables()
    for name in sorted(set(tables) & set(all_tables())):
        conform(contract(name), tables[name], SESSION)
    assert tables["dispatches"].height == 1
    assert {tables[name].height for name in ("system_samples", "scheduler_events", "operator_inputs")} == {0}
    row = tables["sessions"].row(0, named=True)
    assert (row["source_kind"], row["source_format"]) == ("capture", "rocprofv3-csv")


def test_its_facts_are_what_an_analysis_may_care_for_and_it_holds_no_model(raw: Path) -> None:
    capture = open_capture(raw)
    summary: dict[str, str | int | None] = {
        "format": "rocprofv3-csv",
        "workload": "in",
        "files": 1,
        "raw_bytes": len(KERNELS),
    }
    assert capture.facts() == Facts("ingested", "compiler", ran_here=False, summary=summary)
    assert capture.model() is None


def test_its_evidence_names_the_files_that_are_kept_and_those_that_are_not_read(raw: Path) -> None:
    capture = open_capture(raw)
    said = {one.item: one.status for one in capture.evidence("files")}
    kept = {"redaction": "present", "raw file out_kernel_trace.csv": "present", "file notes.txt": "absent"}
    assert said == {**kept, "workload": "partial"}
    for subject in ("host", "iterations", "telemetry"):
        evidence = capture.evidence(subject)
        assert evidence
        assert [one.item for one in evidence if one.status != "present" and not one.reason] == []


def test_shapes_of_a_lone_trace_are_those_of_its_operators(empty_lake: TraceLake, tmp_path: Path) -> None:
    capture = open_capture(empty_lake.raw(taken_in(empty_lake, written(tmp_path / "one", 0))))
    (row,) = capture.tables()["operator_inputs"].rows(named=True)
    assert (row["operator"], row["shapes"]) == ("aten::mm", "[[4, 8], [8, 2]]")
    calls = capture.tables()["api_calls"].filter(call_id=row["call_id"])
    assert calls.get_column("name").to_list() == ["aten::mm"]


def test_of_several_traces_no_shapes_are_told(empty_lake: TraceLake, tmp_path: Path) -> None:
    capture = open_capture(empty_lake.raw(taken_in(empty_lake, written(tmp_path / "two", 0, 1))))
    assert capture.tables()["operator_inputs"].is_empty()


def test_traces_beside_it_in_which_graphs_were_captured_are_of_the_run_and_read_again(
    empty_lake: TraceLake, tmp_path: Path
) -> None:
    graph = layers(2)
    Trace().replay(graph, 3).write(tmp_path / "in/replayed.json")
    Trace().capture(graph, named=True).write(tmp_path / "in/capture_traces/rank_0.json")
    (tmp_path / "in/capture_traces/damaged.json").write_text('{"schemaVersion": 1, "traceEvents": [{"ph": "X", ]')
    (run,) = discover_runs(tmp_path / "in").runs
    assert [part.name for part in run.parts if part.holds_captures] == [
        "capture_traces/damaged.json",
        "capture_traces/rank_0.json",
    ]
    raw = empty_lake.raw(taken_in(empty_lake, tmp_path / "in"))
    assert (raw / "files/capture_traces/rank_0.json").is_file()
    capture = open_capture(raw)
    tables = capture.tables()
    assert tables["captured_launches"].get_column("operator").to_list() == [one.operator for one in graph]
    assert set(tables["captured_launches"].get_column("trace")) == {"capture_traces/rank_0.json"}
    # A capture from elsewhere did not run here.
    assert tables["api_calls"].filter(pl.col("domain") == "operator").is_empty()
    said = {one.item: one.status for one in capture.evidence("trace")}
    assert said["captured graphs of capture_traces/rank_0.json"] == "present"
    assert said["captured graphs of capture_traces/damaged.json"] == "invalid"


def test_a_folder_of_captures_alone_holds_runs_of_their_own(tmp_path: Path) -> None:
    for name in ("a", "b"):
        Trace().capture(layers(1)).write(tmp_path / f"capture_traces/{name}.json")
    for place in (tmp_path, tmp_path / "capture_traces"):
        runs = discover_runs(place).runs
        assert [run.folder.name for run in runs] == ["a.json", "b.json"]
        assert not any(part.holds_captures for run in runs for part in run.parts)


def test_the_shapes_of_a_real_trace_each_belong_to_one_call(empty_lake: TraceLake) -> None:
    session = taken_in(empty_lake, SHARED / "gpu_sessions/traces/elementwise_256mib.json.gz")
    tables = open_capture(empty_lake.raw(session)).tables()
    shapes = tables["operator_inputs"]
    assert shapes.height > 0
    assert shapes.get_column("call_id").is_unique().all()
    named = shapes.join(tables["api_calls"], on="call_id")
    assert named.height == shapes.height
    assert (named["operator"] == named["name"]).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda listed: "[]", "not a list of ingested files; ingest the capture again"),
        (lambda listed: "{", "cannot be read as JSON"),
        (lambda listed: json.dumps({**listed, "format_version": 99}), "version 99; upgrade aaco_pipeline to read it"),
        (lambda listed: json.dumps({**listed, "format": "other"}), "not a list of ingested files"),
    ],
)
def test_a_list_that_cannot_be_meant_is_a_capture_error_naming_it(change: Any, message: str, raw: Path) -> None:
    listed = json.loads((raw / "ingest.json").read_text())
    (unlisted(raw) / "ingest.json").write_text(change(listed))
    with pytest.raises(CaptureError, match=rf"ingest\.json: .*{message}"):
        open_capture(raw).tables()
