"""The capture of a session measured here: its facts, its model, and each table read when it is taken."""

import json
import shutil
from pathlib import Path

import pytest

from aaco_pipeline.capture import open_capture
from aaco_pipeline.capture.face import THREAD_TRACE, Facts
from aaco_pipeline.capture.measured import TRACE_TABLES
from aaco_pipeline.capture.model import RecordedModel
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
