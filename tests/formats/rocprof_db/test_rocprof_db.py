"""The database of rocprof version 1, made as its writer makes it: what each table becomes, and every trap."""

import gzip
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.capture.discovery import discover_runs
from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats import rocprof_db, rpd
from aaco_pipeline.formats.capture_tables import Limits
from tests.formats.examples import EXAMPLES
from tests.formats.readings import checked, damaged, read_or_refused, reason

TIMES = '"BeginNs" INTEGER, "EndNs" INTEGER'
COPY = f'{TIMES}, "dev-id" INTEGER, "queue-id" INTEGER, "Name" TEXT, "pid" INTEGER, "tid" INTEGER, "Index" INTEGER'
HSA = f'{TIMES}, "pid" INTEGER, "tid" INTEGER, "Name" TEXT, "args" TEXT, "Index" INTEGER'
MARKS = f'{TIMES}, "pid" INTEGER, "tid" INTEGER, "Name" TEXT, "Index" INTEGER'
COUNTED = '"gpu-id" INTEGER, "pid" INTEGER, "grd" INTEGER, "wgr" INTEGER, "SQ_WAVES" INTEGER, "L2" INTEGER'


def changed(folder: Path, *statements: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = EXAMPLES["rocprof_db"](folder)
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(statement)
    return path


def test_a_kernel_is_tied_to_the_call_of_its_number(tmp_path: Path) -> None:
    tables = checked(rocprof_db.read(changed(tmp_path))).tables
    (dispatch,) = tables["dispatches"].to_dicts()
    (call,) = tables["api_calls"].to_dicts()
    assert (dispatch["start_ns"], dispatch["end_ns"], dispatch["correlation_id"]) == (10, 20, call["correlation_id"])
    assert (call["name"], call["domain"], call["thread_id"]) == ("hipLaunchKernel", "hip_runtime", 42)
    assert tables["processes"].get_column("pid").to_list() == [41]
    assert tables["devices"].get_column("handle").to_list() == ["0"]


def test_barriers_and_the_writers_own_rows_are_no_work(tmp_path: Path) -> None:
    path = changed(
        tmp_path,
        "INSERT INTO OPS VALUES (30, 31, 0, 1, '\"<barrier packet>\"', 41, 42, 0, 2)",
        f"CREATE TABLE HSA ({HSA})",
        "INSERT INTO HSA VALUES (1, 2, 41, 42, 'hsa_queue_create', '()', 1), (9, 9, 41, 42, 'hsa_dispatch', '', 2)",
    )
    reading = checked(rocprof_db.read(path))
    assert reading.tables["dispatches"].height == 1
    calls = reading.tables["api_calls"].select("name", "domain", "correlation_id").rows()
    assert calls == [("hipLaunchKernel", "hip_runtime", 1), ("hsa_queue_create", "hsa", None)]
    assert "1 barrier packets" in reason(reading, "records OPS")
    assert "1 rows that the writer made" in reason(reading, "records HSA")
    rows = {row["item"]: (row["rows_in"], row["rows_out"]) for row in reading.details["source_rows"].to_dicts()}
    assert rows == {"HIP": (1, 1), "HSA": (2, 1), "OPS": (2, 1), "KERN": (0, 0)}


def test_copies_marks_and_ranges(tmp_path: Path) -> None:
    path = changed(
        tmp_path,
        f"CREATE TABLE COPY ({COPY})",
        "INSERT INTO COPY VALUES (3, 4, 0, 0, 'CopyHostToDevice', 41, 42, 7), (4, 5, 0, 0, 'FillBuffer', 41, 42, 8)",
        f"CREATE TABLE rocTX ({MARKS})",
        "INSERT INTO rocTX VALUES (1, 2, 41, 42, 'a mark', 0), (1, 50, 41, 42, 'step#0', 1)",
    )
    tables = checked(rocprof_db.read(path)).tables
    copies = tables["memory_copies"].select("direction", "device_id", "correlation_id", "size_bytes").rows()
    assert copies == [("host_to_device", 0, 7, None), ("fill", 0, 8, None)]
    marks = tables["markers"].select("name", "start_ns", "end_ns").rows()
    assert marks == [("a mark", 1, 1), ("step#0", 1, 50)]


def kernels_alone(folder: Path) -> Path:
    """A run with `--hsa-trace` and counters: kernels and their times are in KERN."""
    return changed(
        folder,
        "DROP TABLE OPS",
        "DROP TABLE KERN",
        f'CREATE TABLE KERN ("Index" INTEGER, "KernelName" TEXT, {COUNTED}, {TIMES})',
        "INSERT INTO KERN VALUES (0, '\"scale(float*) [clone .kd]\"', 1, 41, 1024, 256, 16, 3, 100, 200)",
        "INSERT INTO KERN VALUES (1, '\"scale(float*) [clone .kd]\"', 1, 77, 512, 256, 8, 4, 300, 450)",
    )


def test_kernels_of_a_run_without_operations_are_those_of_the_table_with_counters(tmp_path: Path) -> None:
    reading = checked(rocprof_db.read(kernels_alone(tmp_path)))
    tables = reading.tables
    assert tables["dispatches"].select("start_ns", "end_ns", "process_id").rows() == [(100, 200, 0), (300, 450, 1)]
    assert tables["kernels"].get_column("name").to_list() == ["scale(float*)"]
    values = tables["counters"].select("dispatch_id", "counter", "value").sort("counter", "dispatch_id").rows()
    assert values == [(0, "L2", 3.0), (1, "L2", 4.0), (0, "SQ_WAVES", 16.0), (1, "SQ_WAVES", 8.0)]
    assert tables["processes"].select("process_id", "pid").rows() == [(0, 41), (1, 77)]
    assert tables["api_calls"].get_column("process_id").to_list() == [0]
    assert reading.details["counter_dispatches"].get_column("grid_size").to_list() == [1024, 512]


def test_the_same_run_in_its_table_is_not_read_a_second_time(tmp_path: Path) -> None:
    kernels_alone(tmp_path)
    header = "Index,KernelName,gpu-id,pid,grd,wgr,SQ_WAVES,BeginNs,EndNs"
    (tmp_path / "results.csv").write_text(f'{header}\n0,"scale(float*)",1,41,1024,256,16,100,200\n')
    (tmp_path / "other.csv").write_text(f'{header}\n0,"other",1,55,1024,256,16,100,200\n')
    runs = {run.parts[0].name: [part.format for part in run.parts] for run in discover_runs(tmp_path).runs}
    assert runs == {"other.csv": ["rocprof-csv"], "results.db": ["rocprof-database"]}
    unread = [one.reason for run in discover_runs(tmp_path).runs for one in run.unread]
    assert unread == ["the same run as results.db in another format; rocprof-database holds more and is read"]


def test_a_packed_database_is_the_same(tmp_path: Path) -> None:
    plain = kernels_alone(tmp_path)
    packed = tmp_path / "results.db.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert rocprof_db.probe(packed) == rocprof_db.probe(plain)
    tables = rocprof_db.read(plain).tables
    assert all(frame.equals(tables[name]) for name, frame in rocprof_db.read(packed).tables.items())


def test_other_databases_are_none_of_its(tmp_path: Path) -> None:
    assert rocprof_db.probe(EXAMPLES["rpd"](tmp_path)) is None
    assert rpd.probe(changed(tmp_path / "other")) is None
    path = changed(tmp_path / "without", "DROP TABLE KERN")
    assert rocprof_db.probe(path) is None
    with pytest.raises(CaptureError, match="no table KERN of kernels"):
        rocprof_db.read(path)


def test_rows_without_times_are_told_and_rows_without_end_refused(tmp_path: Path) -> None:
    path = changed(tmp_path, "INSERT INTO OPS VALUES (NULL, 20, 0, 1, 'k', 41, 42, 0, 1)")
    reading = checked(rocprof_db.read(path))
    assert reading.tables["dispatches"].height == 1
    assert "1 rows without times" in reason(reading, "unusable rows of OPS")
    with pytest.raises(CaptureError, match="more than the limits allow"):
        rocprof_db.read(path, Limits(events=2))


@given(places=st.lists(st.tuples(st.integers(0, 9000), st.integers(0, 255)), max_size=8))
def test_a_damaged_file_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, places: list[tuple[int, int]]
) -> None:
    path = kernels_alone(tmp_path_factory.mktemp("rocprof"))
    path.write_bytes(damaged(path.read_bytes(), places))
    reading = read_or_refused(rocprof_db, path)
    assert reading is None or "dispatches" in reading.tables
