"""A recorded program as a session: every stage runs, the answer says what ran, profilers' files have their place."""

from pathlib import Path

import pytest

from aaco_pipeline.assets.stage import kind_of, stages
from aaco_pipeline.capture import open_capture
from aaco_pipeline.lake.contracts import all_tables, contract
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.lake.validation import conform
from aaco_pipeline.report.document.session import session_summary
from aaco_pipeline.report.words.session import answer
from tests.formats.native.program.recorded import MS, ZERO, marks_file, recorded, run_document
from tests.formats.nvidia.cupti import streams
from tests.sessions import replayed, taken_in

SESSION = "20260102T030405Z-0a1b2c3d"


def traced(folder: Path, **more: object) -> Path:
    """Two runs of 100 ms and a traced one of 150 ms, with two kernels of 1 µs at 10 and 20 ms into it."""
    recorded(folder, (100.0, 100.0, 150.0), kinds=["run", "run", "trace"], **more)  # type: ignore[arg-type]
    start = run_document(2)["start_monotonic_ns"]
    kept = folder / "trace" / "cupti"
    kept.mkdir()
    header = streams.header(pid=4323, monotonic=start, realtime=start + 7, cupti=start)
    kernels = [streams.kernel(start + at * MS) for at in (10, 20)]
    chunks = [header, streams.notes("clock monotonic"), streams.texts(1, {1: "scale"}), streams.records(2, kernels)]
    (kept / "4323-77.cupti").write_bytes(b"".join(chunks))
    return folder


def test_every_stage_runs_on_a_program_without_a_model_and_without_a_gpu(tmp_path: Path) -> None:
    lake = TraceLake(tmp_path / "lake")
    session = taken_in(lake, recorded(tmp_path / "solve"))
    assert kind_of(lake, session) == "program"
    made = replayed(lake, session)
    assert set(made) == set(stages())
    row = lake.read("sessions", session).row(0, named=True)
    assert (row["workload_kind"], row["workload"], row["source_kind"], row["failure"]) == (
        "program",
        "solve",
        "live",
        None,
    )
    said = answer(session_summary(lake, session))
    assert said == (
        "A run of solve takes 100 ms (median of 5, 98 ms … 102 ms), on 50 ms of CPU time in the program and 10 ms in "
        "the kernel: 0.6 CPUs on average, and at most 50.0 MiB of memory. Where the time went is not known: no run was "
        "traced (no NVIDIA driver)."
    )


def test_phases_are_told_of_the_measured_runs_alone_with_their_part_of_the_iterations(tmp_path: Path) -> None:
    lake = TraceLake(tmp_path / "lake")
    folder = recorded(tmp_path / "solve", (100.0, 100.0, 100.0), kinds=["run", "run", "trace"])
    for number, name in enumerate(("run_1", "run_2", "trace")):
        start = run_document(number)["start_monotonic_ns"]
        # An iteration of 10 ms whose phase takes 4, 6 or, traced, 9 ms; one of 20 ms outside of any iteration.
        took = (4, 6, 9)[number]
        marks = [(0, 1, 1, 0), (1, 1, 3, 1), (1 + took, 1, 4, 0), (10, 1, 2, 0), (20, 1, 3, 2), (40, 1, 4, 0)]
        (folder / name / "marks").mkdir()
        content = marks_file([(start + at * MS, *rest) for at, *rest in marks], ["decode", "save"])
        (folder / name / "marks" / "1-2.marks").write_bytes(content)
    session = taken_in(lake, folder)
    replayed(lake, session, "capture", "inference_run")
    save, decode = session_summary(lake, session)["phases"]
    assert save == {
        **{"name": "save", "times": 2, "runs": 2, "median_ns": 20 * MS, "longest_ns": 20 * MS},
        **{"run_ns": 20 * MS, "iterations_ratio": None},
    }
    assert decode == {
        **{"name": "decode", "times": 2, "runs": 2, "median_ns": 5 * MS, "longest_ns": 6 * MS},
        **{"run_ns": 5 * MS, "iterations_ratio": 0.5},
    }


def test_a_failed_program_is_said_to_have_failed_first_and_why(tmp_path: Path) -> None:
    lake = TraceLake(tmp_path / "lake")
    runs = [run_document(0), run_document(1, status=None, signal="SIGSEGV")]
    session = taken_in(lake, recorded(tmp_path / "solve", runs=runs, stderr="boom\n"))
    replayed(lake, session, "capture", "inference_run")
    assert lake.read("sessions", session).item(0, "failure") == "run_2 was ended by SIGSEGV"
    said = answer(session_summary(lake, session))
    assert said == (
        "The program failed: run_2 was ended by SIGSEGV after 100 ms; its last words: boom. This session is compared "
        "with no other."
    )


def test_a_program_states_every_table_that_a_capture_has(tmp_path: Path) -> None:
    lake = TraceLake(tmp_path / "lake")
    tables = open_capture(lake.raw(taken_in(lake, traced(tmp_path / "solve")))).tables()
    needed = {name for one in stages().values() if one.group == "capture" for name in one.publishes}
    assert needed - {"iteration_gaps", "session_metrics"} <= set(tables)
    for name in set(tables) & set(all_tables()):
        conform(contract(name), tables[name], SESSION)


def test_kernels_of_the_traced_run_lie_on_the_axis_of_the_runs(tmp_path: Path) -> None:
    lake = TraceLake(tmp_path / "lake")
    tables = open_capture(lake.raw(taken_in(lake, traced(tmp_path / "solve")))).tables()
    began = run_document(2)["start_monotonic_ns"] - (ZERO + 0)
    assert tables["dispatches"].get_column("start_ns").to_list() == [began + 10 * MS, began + 20 * MS]
    assert tables["dispatches"].get_column("process_id").to_list() == [2, 2]
    assert tables["processes"].get_column("pid").to_list() == [4321, 4322, 4323]
    assert tables["iterations"].get_column("pass").unique().to_list() == ["latency"]


def test_kernels_are_in_the_iterations_that_the_traced_run_marked(tmp_path: Path) -> None:
    folder, start = traced(tmp_path / "solve"), run_document(2)["start_monotonic_ns"]
    (folder / "trace" / "marks").mkdir()
    spans = [(start + 9 * MS, start + 15 * MS), (start + 19 * MS, start + 25 * MS)]
    records = [(at, 7, kind, 0) for span in spans for at, kind in zip(span, (1, 2), strict=True)]
    (folder / "trace" / "marks" / "1-2.marks").write_bytes(marks_file(records))
    lake = TraceLake(tmp_path / "lake")
    tables = open_capture(lake.raw(taken_in(lake, folder))).tables()
    assert tables["dispatches"].get_column("iteration").to_list() == [0, 1]
    assert tables["iterations"].filter(tables["iterations"]["pass"] == "trace").get_column("run").to_list() == [2, 2]


def test_secrets_do_not_pass_the_door(tmp_path: Path) -> None:
    lake = TraceLake(tmp_path / "lake")
    secret = "hunter2secret"
    command = {"kind": "program", "name": None, "command": f"./solve --password {secret}"}
    folder = recorded(tmp_path / "solve", (100.0,), stderr=f"login failed: password={secret}\n", workload=command)
    (folder / "run_1" / "marks").mkdir()
    (folder / "run_1" / "marks" / "1-2.marks").write_bytes(marks_file([(ZERO, 7, 5, 1)], [f"password={secret}"]))
    raw = lake.raw(taken_in(lake, folder))
    assert [file for file in raw.rglob("*") if file.is_file() and secret.encode() in file.read_bytes()] == []


def test_a_folder_made_elsewhere_is_one_run_with_all_its_files(tmp_path: Path) -> None:
    from aaco_pipeline.capture.discovery import discover_runs

    folder = traced(tmp_path / "node" / "solve")
    (run,) = discover_runs(tmp_path / "node").runs
    assert (run.folder, [part.format for part in run.parts]) == (folder, ["aaco-program"])
    assert len(run.parts[0].files) == 2 + 3 * 3 + 1


@pytest.mark.parametrize("damaged", ["trace/cupti/4323-77.cupti"])
def test_a_damaged_trace_is_evidence_and_the_runs_are_read(tmp_path: Path, damaged: str) -> None:
    folder = traced(tmp_path / "solve")
    (folder / damaged).write_bytes((folder / damaged).read_bytes()[:40])
    lake = TraceLake(tmp_path / "lake")
    capture = open_capture(lake.raw(taken_in(lake, folder)))
    assert capture.tables()["program_runs"].height == 3
    assert [item.status for item in capture.evidence("trace") if item.item == "trace"] == ["invalid"]
