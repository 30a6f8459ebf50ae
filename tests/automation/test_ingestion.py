"""From a folder to sessions: one for each run, none twice, none for what cannot be read, and one run at a time."""

import shutil
from pathlib import Path

from aaco_pipeline.automation.ingestion import ingest
from aaco_pipeline.capture.discovery import discover_runs
from aaco_pipeline.lake.store import TraceLake

KERNELS = (
    '"Kind","Agent_Id","Queue_Id","Thread_Id","Dispatch_Id","Kernel_Id","Kernel_Name","Correlation_Id",'
    '"Start_Timestamp","End_Timestamp","Workgroup_Size_X","Grid_Size_X"\n'
    '"KERNEL_DISPATCH","Agent 1",1,77,1,5,"{name}",3,1000,2000,64,640\n'
)


def capture(folder: Path, name: str = "scale") -> Path:
    folder.mkdir(parents=True)
    (folder / "out_kernel_trace.csv").write_text(KERNELS.format(name=name))
    return folder


def test_each_run_is_a_session_with_its_rows_told(empty_lake: TraceLake, tmp_path: Path) -> None:
    capture(tmp_path / "in/a", "first")
    capture(tmp_path / "in/b", "second")
    results = list(ingest(empty_lake, discover_runs(tmp_path / "in")))
    sessions = [result.session for result in results]
    assert [result.is_new for result in results] == [True, True]
    assert empty_lake.captured() == sorted(str(s) for s in sessions)
    (row,) = [row for row in results[0].rows if row["rows_in"]]
    assert (row["rows_in"], row["rows_out"], row["reason"]) == (1, 1, None)


def test_a_capture_that_the_lake_holds_gives_its_session_whatever_it_is_called(
    empty_lake: TraceLake, tmp_path: Path
) -> None:
    (first,) = ingest(empty_lake, discover_runs(capture(tmp_path / "a")))
    shutil.copytree(tmp_path / "a", tmp_path / "copied elsewhere")
    (again,) = ingest(empty_lake, discover_runs(tmp_path / "copied elsewhere"))
    assert (again.session, again.is_new) == (first.session, False)


def test_the_same_capture_twice_in_one_folder_is_one_session(empty_lake: TraceLake, tmp_path: Path) -> None:
    capture(tmp_path / "in/a")
    capture(tmp_path / "in/b")
    results = list(ingest(empty_lake, discover_runs(tmp_path / "in")))
    assert results[0].session == results[1].session
    assert [result.is_new for result in results] == [True, False]


def test_a_run_that_cannot_be_read_leaves_nothing(empty_lake: TraceLake, tmp_path: Path) -> None:
    capture(tmp_path / "in/good")
    bad = capture(tmp_path / "in/zbad")
    (bad / "out_kernel_trace.csv").write_text(KERNELS.split("\n", maxsplit=1)[0].replace('"Kernel_Name",', "") + "\n")
    (bad / "1_results.db").write_bytes(b"SQLite format 3\0 rocpd_metadata_x rocpd_kernel_dispatch_x" + b"\0" * 4096)
    (bad / "out_kernel_trace.csv").unlink()
    good, failed = ingest(empty_lake, discover_runs(tmp_path / "in"))
    assert good.session is not None
    assert failed.session is None
    assert "1_results.db" in (failed.reason or "")
    assert [path.name for path in (empty_lake.path / "raw").iterdir()] == [f"session_id={good.session}"]


def test_a_session_can_be_analysed_before_the_next_run_is_copied(empty_lake: TraceLake, tmp_path: Path) -> None:
    for name in ("first", "second"):
        capture(tmp_path / "in" / name, name)
    taking = ingest(empty_lake, discover_runs(tmp_path / "in"))
    first = next(taking)
    assert empty_lake.captured() == [first.session]
    assert len(list(taking)) == 1
    assert len(empty_lake.captured()) == 2
