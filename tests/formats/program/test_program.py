"""Recorded folders: their runs, iterations and marks; hostile documents are refused in one line."""

import json
from pathlib import Path
from typing import Any

import pytest

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats import program
from tests.formats.program.recorded import MS, ZERO, marks_file, recorded, run_document


def marked(folder: Path, run: str, records: list[tuple[int, int, int, int]], names: list[str] | None = None) -> None:
    (folder / run / "marks").mkdir()
    (folder / run / "marks" / "1-2.marks").write_bytes(marks_file(records, names or []))


def test_without_marks_each_unprofiled_run_is_an_iteration_with_its_cpu_time(tmp_path: Path) -> None:
    tables = program.read(recorded(tmp_path / "r", (100.0, 110.0, 300.0), kinds=["run", "run", "trace"])).tables
    rows = tables["iterations"].select("pass", "iteration", "run", "latency_ns", "cpu_time_ns").rows()
    assert rows == [("latency", 0, 0, 100 * MS, 60 * MS), ("latency", 1, 1, 110 * MS, 66 * MS)]
    runs = tables["program_runs"].select("pass", "wall_ns", "status", "failure").rows()
    assert runs == [("latency", 100 * MS, 0, None), ("latency", 110 * MS, 0, None), ("trace", 300 * MS, 0, None)]


def test_warm_up_runs_are_kept_and_excluded(tmp_path: Path) -> None:
    folder = recorded(tmp_path / "r", (300.0, 100.0), request={"warmup_runs": 1})
    assert program.read(folder).tables["iterations"].get_column("phase").to_list() == ["warmup", "measure"]


def test_iterations_are_what_the_thread_marked_that_began_first(tmp_path: Path) -> None:
    folder, at = recorded(tmp_path / "r", (100.0,)), ZERO + 2 * MS
    marked(folder, "run_1", [(at, 7, 1, 0), (at + 5, 7, 2, 0), (at + 9, 8, 1, 0), (at + 10, 8, 2, 0)])
    read = program.read(folder)
    assert read.tables["iterations"].select("start_ns", "end_ns", "run").rows() == [(2 * MS, 2 * MS + 5, 0)]
    (told,) = [item for item in read.evidence if item.item == "iterations of run_1"]
    assert told.status == "partial"


def test_phases_have_their_iteration_and_a_warm_up_phase_excludes_its_own(tmp_path: Path) -> None:
    folder, at = recorded(tmp_path / "r", (100.0,)), ZERO + 2 * MS
    steps = [(at, 7, 3, 1), (at + 1, 7, 1, 0), (at + 4, 7, 2, 0), (at + 5, 7, 4, 0)]
    steps += [(at + 10, 7, 1, 0), (at + 11, 7, 3, 2), (at + 13, 7, 4, 0), (at + 15, 7, 2, 0)]
    marked(folder, "run_1", steps, ["warm-up", "decode"])
    tables = program.read(folder).tables
    assert tables["iterations"].get_column("phase").to_list() == ["warmup", "measure"]
    assert tables["program_marks"].select("name", "iteration", "start_ns", "end_ns").rows() == [
        ("warm-up", None, 2 * MS, 2 * MS + 5),
        ("decode", 1, 2 * MS + 11, 2 * MS + 13),
    ]


@pytest.mark.parametrize(
    ("end", "said"),
    [
        ({"status": 3}, "ended with status 3"),
        ({"status": None, "signal": "SIGSEGV"}, "was ended by SIGSEGV"),
        ({"status": None, "signal": "SIGTERM", "timed_out": True}, "did not end within its time limit"),
    ],
)
def test_a_failed_run_is_told_with_its_last_words_and_without_secrets(
    tmp_path: Path, end: dict[str, Any], said: str
) -> None:
    folder = recorded(tmp_path / "r", runs=[run_document(0, **end)], stderr="a\nb\npassword=hunter2secret\n")
    read = program.read(folder)
    row = read.tables["program_runs"].row(0, named=True)
    assert (row["failure"], row["stderr_end"]) == (said, "a | b | password=redacted")
    assert [item.status for item in read.evidence if item.item == "unprofiled run run_1"] == ["invalid"]


def test_damaged_marks_are_evidence_and_the_run_is_read(tmp_path: Path) -> None:
    folder = recorded(tmp_path / "r", (100.0,))
    (folder / "run_1" / "marks").mkdir()
    (folder / "run_1" / "marks" / "1-2.marks").write_bytes(b"AACOMARK")
    read = program.read(folder)
    assert read.tables["iterations"].height == 1
    assert [item.status for item in read.evidence if item.item.startswith("marks")] == ["invalid"]


@pytest.mark.parametrize(
    ("file", "key", "value"),
    [
        ("capture.json", "format_version", 2),
        ("capture.json", "passes", []),
        ("capture.json", "passes", [{"name": "a", "kind": "run", "folder": "../..", "profiler": None}]),
        ("capture.json", "workload", {"kind": "model"}),
        ("run_1/run.json", "end_monotonic_ns", 0),
        ("run_1/run.json", "user_ns", -1),
        ("run_1/run.json", "user_ns", "1"),
        ("run_1/run.json", "status", 2**70),
        ("run_1/run.json", "clocks_before", None),
        ("host.json", "facts", [{"category": 1}]),
    ],
)
def test_hostile_documents_are_refused_in_one_line(tmp_path: Path, file: str, key: str, value: object) -> None:
    folder = recorded(tmp_path / "r", (100.0,))
    document = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps({**document, key: value}))
    with pytest.raises(CaptureError) as refused:
        program.read(folder)
    assert "\n" not in str(refused.value)
    assert ".json" in str(refused.value)
