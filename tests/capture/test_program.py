"""A recorded program as a session: every stage runs, the answer says what ran, profilers' files have their place.

Programs with a known cause, recorded on a real GPU: the answer's class is the one they were built for, and what it
says a fix saves at most bounds what removing the cause alone has gained, closely.

The recordings are the project's own: `benchmarks/live/h200_programs.py` on an NVIDIA H100, by `aaco record`; paths of
the commands are relative to the checkout. loops.json holds what the loops of all unprofiled runs took, as the programs
said, as they are and with the cause removed.
"""

import json
import statistics
import tarfile
from pathlib import Path
from typing import Final

import polars as pl
import pytest

from aaco_pipeline.assets.stage import kind_of, stages
from aaco_pipeline.capture import open_capture
from aaco_pipeline.formats.cupti import stream
from aaco_pipeline.lake.contracts import all_tables, contract
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.lake.validation import conform
from aaco_pipeline.report.session.document import session_summary
from aaco_pipeline.report.session.sentences import answer
from benchmarks.live import judge
from benchmarks.live.judge import Gain, right
from benchmarks.live.programs.catalogue import HELD_OUT, PROGRAMS, Program
from tests.formats.cupti import streams
from tests.formats.program.recorded import MS, ZERO, marks_file, recorded, run_document
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


def counted(folder: Path, counters: str | None, **more: object) -> Path:
    """The same with a run that was to count, and what ncu left of it."""
    kinds = ["run", "run", "trace", "counters"]
    recorded(folder, (100.0, 100.0, 150.0, 900.0), kinds=kinds, **more)  # type: ignore[arg-type]
    start = run_document(2)["start_monotonic_ns"]
    kept = folder / "trace" / "cupti"
    kept.mkdir()
    header = streams.header(pid=4323, monotonic=start, realtime=start + 7, cupti=start)
    kernels = [streams.kernel(start + at * MS, grid_x=1024) for at in (10, 20)]
    named = [streams.texts(1, {1: "scale(float*)"}), streams.texts(stream.SYMBOLS, {1: "_Z5scalePf"})]
    facts = [streams.records(stream.DEVICES, [streams.device()]), streams.records(stream.CONTEXTS, [{"context": 1}])]
    chunks = [header, streams.notes("clock monotonic"), *named, *facts, streams.records(2, kernels)]
    (kept / "4323-77.cupti").write_bytes(b"".join(chunks))
    if counters is not None:
        (folder / "counters_1" / "ncu").mkdir()
        (folder / "counters_1" / "ncu" / "ncu.csv").write_text(counters)
    return folder


def ncu_rows(*metrics: str, values: tuple[tuple[int, ...], ...]) -> str:
    """ncu's rows about those executions of the kernel, 1024 by 2 blocks of 128."""
    columns = ("ID", "Process ID", "Kernel Name", "Block Size", "Grid Size", "Device", "CC", *metrics)
    empty = [""] * len(columns)
    rows = [(at, 99, "_Z5scalePf", "(128, 1, 1)", "(1024, 2, 1)", 0, "9.0", *one) for at, one in enumerate(values)]
    lines = [",".join(f'"{field}"' for field in line) for line in (columns, empty, *rows)]
    return "==PROF== Connected to process 99 (/tmp/solve)\n" + "\n".join(lines) + "\n"


def test_counters_of_a_run_that_counts_are_the_traced_kernels_and_its_time_is_nowhere(tmp_path: Path) -> None:
    metrics = ("dram__bytes_read.sum", "dram__bytes_write.sum", "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum")
    text = ncu_rows(*metrics, values=((4_000_000, 2_000_000, 500_000), (4_000_000, 1_000_000, 500_000)))
    folder = counted(tmp_path / "solve", text)
    (folder / "counters_1" / "marks").mkdir()
    start = run_document(3)["start_monotonic_ns"]
    marked = [(start + 9 * MS, 7, 1, 0), (start + 15 * MS, 7, 2, 0)]
    (folder / "counters_1" / "marks" / "1-2.marks").write_bytes(marks_file(marked))
    lake = TraceLake(tmp_path / "lake")
    session = taken_in(lake, folder)
    capture = open_capture(lake.raw(session))
    tables = capture.tables()
    found = tables["counters"].filter(pl.col("counter") == metrics[1]).select("dispatch_id", "value", "matched_by")
    assert found.rows() == [(0, 2e6, "dispatch"), (1, 1e6, "dispatch")]
    assert tables["kernels"].get_column("name").to_list() == ["scale(float*)"]
    assert tables["dispatches"].height == 2
    assert set(tables["iterations"].get_column("run")) <= {0, 1, 2}
    assert tables["program_runs"].get_column("pass").to_list() == ["latency", "latency", "trace", "counters"]
    (said,) = [item for item in capture.evidence("trace") if item.item == "counters"]
    assert (said.status, said.rows) == ("present", 6)
    replayed(lake, session)
    read = lake.read("counter_metrics", session).filter(pl.col("metric") == "fabric_read_bandwidth")
    assert read.get_column("value").to_list() == [pytest.approx(4e6 / 1e-6)]  # bytes of the pass, time of the trace
    said_of_it = answer(session_summary(lake, session))
    assert "A run of solve takes 100 ms" in said_of_it
    assert "aaco record --counters" not in said_of_it


def test_what_could_not_be_counted_is_evidence_and_the_program_did_not_fail(tmp_path: Path) -> None:
    reason = "counters: the driver keeps GPU counters to administrators; run as root"
    folder = counted(tmp_path / "solve", "==ERROR== ERR_NVGPUCTRPERM\n")
    document = json.loads((folder / "capture.json").read_text())
    document["passes"][3]["reason"] = reason
    (folder / "capture.json").write_text(json.dumps(document))
    (folder / "counters_1" / "run.json").write_text(json.dumps(run_document(3, status=1)))
    lake = TraceLake(tmp_path / "lake")
    session = taken_in(lake, folder)
    capture = open_capture(lake.raw(session))
    assert capture.tables()["sessions"].item(0, "failure") is None
    assert capture.tables()["dispatches"].height == 2
    told = {
        item.item: (item.status, item.reason)
        for subject in ("iterations", "trace")
        for item in capture.evidence(subject)
    }
    assert told["counters"] == ("absent", reason)
    assert told["counting run counters_1"] == ("partial", reason)
    replayed(lake, session)
    said = answer(session_summary(lake, session))
    assert said.startswith("A run of solve takes 100 ms")
    assert "failed" not in said


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
        "the operating system: 0.6 CPUs on average, and at most 50.0 MiB of memory. Where the time went is not known: "
        "no run was traced (no NVIDIA driver)."
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
    derived = {"iteration_gaps", "session_metrics", "thread_states", "fixed_work_probes"}
    assert needed - derived <= set(tables)
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


FOLDER: Final = Path(__file__).parent / "recorded_programs"
LOOPS: Final = json.loads((FOLDER / "loops.json").read_text())
#: Bounded, but by more than a quarter above what was gained.
LOOSE: Final = frozenset({"gradient_norms"})
ARCHIVES: Final = {
    **dict.fromkeys((program.name for program in PROGRAMS), "programs"),
    **dict.fromkeys((program.name for program in HELD_OUT), "held_out"),
}


#: In CI one program of each cause that an answer can name; the others at night.
OF_EACH_CAUSE: Final = {(one.classes, one.resources): one.name for one in reversed(PROGRAMS)}


@pytest.mark.nightly
@pytest.mark.parametrize(
    "program",
    [
        pytest.param(one, id=one.name, marks=() if one.name in OF_EACH_CAUSE.values() else pytest.mark.nightly)
        for one in (*PROGRAMS, *HELD_OUT)
    ],
)
def test_the_cause_is_named_and_what_its_removal_gained_is_bounded(program: Program, tmp_path: Path) -> None:
    name = f"{program.name}-recorded"
    with tarfile.open(FOLDER / f"{ARCHIVES[program.name]}.tar.xz") as archive:
        members = [one for one in archive if one.name.split("/")[0] == name]
        archive.extractall(tmp_path / "recorded", members, filter="data")
    lake = TraceLake(tmp_path / "lake")
    (session,) = judge.taken_in(lake, tmp_path / "recorded" / name)
    answer = lake.read("answers", session).row(0, named=True)
    assert right(program, answer), (answer["class"], answer["resource"])
    if not program.bounded:
        return
    loops = LOOPS[program.name]
    gained = 1 - statistics.median(loops["without_the_cause_ns"]) / statistics.median(loops["as_it_is_ns"])
    saves, period = answer["saves_unprofiled_ns"], answer["unprofiled_period_ns"]
    if saves is None:
        saves, period = answer["saves_at_most_ns"], answer["window_ns"]
    bound = saves / period
    judged = Gain(bound, gained, "", (0, 0))
    assert judged.bounds, (bound, gained)
    assert judged.is_close == (program.name not in LOOSE), (bound, gained)
