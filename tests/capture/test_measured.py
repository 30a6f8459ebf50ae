"""Sessions measured here: facts, model and tables; and passes under rocprofv3, put on the session's axis.

The passes are put together from a session measured on the processor and files written by hand; a whole one is in
tests/resources/rocprofv3.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from aaco_pipeline.capture import open_capture
from aaco_pipeline.capture.face import THREAD_TRACE, Facts
from aaco_pipeline.capture.measured import TRACE_TABLES, RecordedModel
from aaco_pipeline.errors import CaptureError
from aaco_pipeline.lake.contracts import contract
from aaco_pipeline.lake.validation import conform
from tests.conftest import CapturedLake
from tests.sessions import unlisted

PROFILE = "onnxruntime_profile.json.gz"
SESSION = "20260102T030405Z-0a1b2c3d"


@pytest.fixture
def raw(captured: CapturedLake, tmp_path: Path) -> Path:
    return unlisted(shutil.copytree(captured.lake.raw(captured.sessions["squeezenet"]), tmp_path / "raw"))


def test_every_table_that_it_states_fulfils_its_contract(raw: Path) -> None:
    tables = open_capture(raw).tables()
    stated = {
        *("sessions", "environment", "iterations", "devices", "processes", "clock_domains", *TRACE_TABLES),
        *("system_samples", "gpu_samples", "scheduler_events"),
    }
    assert stated <= set(tables)
    for name in sorted(stated):
        conform(contract(name), tables[name], SESSION)
    assert not set(THREAD_TRACE) & set(tables)


def test_its_facts_are_what_an_analysis_may_care_for(raw: Path) -> None:
    facts = open_capture(raw).facts()
    size = sum(path.stat().st_size for path in raw.iterdir())
    named: dict[str, str | int | None] = {"model": "squeezenet", "provider": "CPUExecutionProvider", "raw_bytes": size}
    assert facts == Facts("measured", "model", ran_here=True, summary={**facts.summary, **named})
    assert "weights" in facts.summary


def test_its_model_is_the_one_that_ran_with_the_shapes_of_the_run(raw: Path) -> None:
    model = open_capture(raw).model()
    assert isinstance(model, RecordedModel)
    (shape,) = model.input_shapes.values()
    assert list(shape) == [1, 3, 224, 224]
    assert model.graph.nodes.height > 60
    assert model.optimized is not None
    assert model.kernel_shapes is not None
    assert model.partitions == {}


def test_a_damaged_profile_is_told_by_its_own_tables_alone(raw: Path) -> None:
    (raw / PROFILE).write_bytes(b"damaged")
    tables = open_capture(raw).tables()
    assert tables["sessions"].height == 1
    assert tables["iterations"].height > 0
    with pytest.raises(CaptureError, match=PROFILE):
        tables["dispatches"]


def test_without_a_profile_what_it_would_fill_is_empty_and_the_evidence_says_why(raw: Path) -> None:
    document = raw / "trace.json"
    document.write_text(json.dumps({**json.loads(document.read_text()), "profile": None}))
    (raw / PROFILE).unlink()
    capture = open_capture(raw)
    assert {capture.tables()[name].height for name in TRACE_TABLES} == {0}
    (said,) = capture.evidence("trace")
    assert (said.status, said.reason) == ("absent", "the profiled pass left no profile")


def test_a_document_that_is_missing_is_a_capture_error_naming_it(raw: Path) -> None:
    (raw / "host.json").unlink()
    with pytest.raises(CaptureError, match=r"host\.json"):
        open_capture(raw)


KERNELS = (
    '"Kind","Agent_Id","Queue_Id","Thread_Id","Dispatch_Id","Kernel_Id","Kernel_Name","Correlation_Id",'
    '"Start_Timestamp","End_Timestamp","Workgroup_Size_X","Grid_Size_X"\n'
    '"KERNEL_DISPATCH","Agent 1",1,77,1,5,"scale",3,{start},{end},64,640\n'
)
#: Lead of CLOCK_BOOTTIME over CLOCK_MONOTONIC.
SLEPT_NS = 5_000_000


@pytest.fixture
def profiled(captured: CapturedLake, tmp_path: Path) -> Path:
    """A session whose base pass ran one kernel, a millisecond after the axis begins, for a microsecond."""
    raw = unlisted(shutil.copytree(captured.lake.raw(captured.sessions["squeezenet"]), tmp_path / "raw"))
    base = raw / "rocprofv3" / "pass_1"
    base.mkdir(parents=True)
    zero = json.loads((raw / "latency.json").read_text())["clocks_before"]["monotonic_ns"]
    trace = json.loads((raw / "trace.json").read_text())
    clocks = {"monotonic_ns": zero, "boottime_ns": zero + SLEPT_NS, "uncertainty_ns": 40}
    document = {**trace, "profile": None, "boot_clock_before": clocks, "boot_clock_after": clocks}
    (base / "base.json").write_text(json.dumps(document))
    begun = zero + SLEPT_NS + 1_000_000
    (base / "out_kernel_trace.csv").write_text(KERNELS.format(start=begun, end=begun + 1_000))
    passes: list[dict[str, Any]] = [
        {"name": "base", "kind": "base", "folder": "rocprofv3/pass_1", "kernel": None},
        {"name": "thread_trace", "kind": "thread_trace", "folder": "rocprofv3/pass_1", "kernel": "scale"},
    ]
    shutil.copyfile(base / "base.json", base / "thread_trace.json")
    stated = {"command": ["rocprofv3"], "counters": [], "median_latency_ns": 1.0, "distortion": None}
    document = json.loads((raw / "capture.json").read_text())
    document["rocprofv3"] = {"release": "6.4", "passes": [{**one, **stated} for one in passes]}
    (raw / "capture.json").write_text(json.dumps(document))
    return raw


def test_it_is_of_its_own_kind_and_knows_which_kernels_a_thread_trace_was_asked_for(profiled: Path) -> None:
    facts = open_capture(profiled).facts()
    assert (facts.kind, facts.kernels_named_by, facts.ran_here) == ("profiled", "compiler", True)
    assert facts.asked_to_trace == ("scale",)
    assert facts.summary["model"] == "squeezenet"


def test_kernels_are_the_tools_on_the_sessions_axis_as_a_further_process_and_device(profiled: Path) -> None:
    tables = open_capture(profiled).tables()
    (row,) = tables["dispatches"].rows(named=True)
    assert (row["start_ns"], row["end_ns"]) == (1_000_000, 1_001_000)
    assert (row["process_id"], row["device_id"]) == (2, 1)
    assert tables["kernels"].get_column("name").to_list() == ["scale"]
    assert tables["processes"].get_column("process_id").to_list() == [0, 1, 2]
    assert {0, 1} <= set(tables["devices"].get_column("device_id"))
    assert tables["ceilings"].is_empty()
    clock = tables["clock_domains"].filter(pl.col("domain") == "boottime").row(0, named=True)
    assert clock["uncertainty_ns"] == 80


def test_the_model_is_that_of_the_session_with_the_parts_that_the_base_pass_left(profiled: Path) -> None:
    own = open_capture(profiled).model()
    assert isinstance(own, RecordedModel)
    assert own.partitions == {}
    shutil.copyfile(profiled / "model.onnx", profiled / "rocprofv3" / "pass_1" / "part_0.onnx")
    parted = open_capture(profiled).model()
    assert isinstance(parted, RecordedModel)
    assert list(parted.partitions) == ["part_0"]
    assert parted.kernel_shapes is None
    assert parted.input_shapes == own.input_shapes


@pytest.mark.parametrize("missing", ["boot_clock_before", "boot_clock_after"])
def test_without_readings_of_the_boot_clock_its_kernels_have_no_place(missing: str, profiled: Path) -> None:
    path = profiled / "rocprofv3" / "pass_1" / "base.json"
    document: dict[str, Any] = json.loads(path.read_text())
    path.write_text(json.dumps({**document, missing: None}))
    with pytest.raises(CaptureError, match="read no boot clock; the kernels have no place on the axis"):
        open_capture(profiled).tables()["dispatches"]
