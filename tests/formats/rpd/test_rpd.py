"""RPD databases of rocmProfileData: the real one against its own SQL, and every trap in small ones."""

import gzip
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats import rocpd, rpd
from aaco_pipeline.formats.capture_tables import CaptureTables, Limits
from aaco_pipeline.lake.store import TraceLake
from tests.formats.examples import EXAMPLES
from tests.formats.readings import checked, damaged, read_or_refused
from tests.places import SHARED
from tests.sessions import replayed, taken_in

REAL: Final = SHARED / "captures" / "rpd_not_rocprofv3" / "matmul_result.rpd"
real = pytest.mark.skipif(not REAL.is_file(), reason="the shared captures are not here (AACO_SHARED)")
Row = tuple[Any, ...]


def asked(path: Path, sql: str) -> list[Row]:
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
        return connection.execute(sql).fetchall()


def changed(folder: Path, *statements: str) -> Path:
    """The smallest capture after some SQL: one kernel of `hipLaunchKernel` on GPU 2."""
    path = EXAMPLES["rpd"](folder)
    launch = "gridX, gridY, gridZ, workgroupX, workgroupY, workgroupZ"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"CREATE TABLE rocpd_kernelapi (api_ptr_id INTEGER, stream, {launch}, kernelName_id)")
        connection.execute("CREATE TABLE rocpd_copyapi (api_ptr_id INTEGER, stream, size, width, height)")
        for statement in statements:
            connection.execute(statement)
    return path


def status(reading: CaptureTables, item: str) -> tuple[str, str | None, int | None]:
    (found,) = [one for one in reading.evidence if one.item == item]
    return found.status, found.reason, found.rows


@real
def test_the_real_database_gives_what_its_own_sql_gives() -> None:
    recognized = rpd.probe(REAL)
    assert recognized is not None and recognized.format == "rpd"
    assert rocpd.probe(REAL) is None
    tables = checked(rpd.read(REAL)).tables
    kernels: dict[str, int] = dict(asked(REAL, "SELECT kernelName, sum(duration) FROM kernel GROUP BY kernelName"))
    ours = tables["dispatches"].join(tables["kernels"], on="kernel_id").group_by("name").agg(pl.col("self_ns").sum())
    assert dict(ours.iter_rows()) == kernels
    grids = "SELECT start, gridX, gridY, gridZ, workgroupX FROM kernel WHERE kernelName NOT LIKE 'Cijk%' ORDER BY start"
    launched = {start: (x * group, y, z, group) for start, x, y, z, group in asked(REAL, grids)}
    named = tables["dispatches"].select("start_ns", "grid_x", "grid_y", "grid_z", "workgroup_x")
    assert {row[0]: row[1:] for row in named.iter_rows() if row[0] in launched} == launched
    gemm = named.sort("start_ns").row(0)
    assert gemm[1:] == (1792, 782, 1, 256), "this launch states work-items"
    copies = asked(REAL, "SELECT sum(size), sum(duration) FROM copyop")
    sums = tables["memory_copies"].filter(pl.col("direction") != "fill")
    assert (sums.get_column("size_bytes").sum(), (sums["end_ns"] - sums["start_ns"]).sum()) == copies[0]
    assert tables["memory_copies"].group_by("direction").len().sort("direction").rows() == [
        ("device_to_host", 53),
        ("fill", 1),
        ("host_to_device", 2),
    ]
    assert tables["api_calls"].height == 125
    linked = tables["dispatches"].join(tables["api_calls"], on=["process_id", "correlation_id"], how="semi")
    assert linked.height == 29


@real
def test_a_packed_database_is_the_same(tmp_path: Path) -> None:
    packed = tmp_path / "trace.rpd.gz"
    packed.write_bytes(gzip.compress(REAL.read_bytes()))
    assert rpd.probe(packed) == rpd.probe(REAL)
    plain = rpd.read(REAL)
    assert all(frame.equals(plain.tables[name]) for name, frame in rpd.read(packed).tables.items())


@pytest.mark.parametrize(
    ("call", "grid"), [("hipLaunchKernel", 512), ("hipExtModuleLaunchKernel", 8), ("hipSomethingNew", None)]
)
def test_a_grid_is_in_work_items_where_it_is_known_what_the_call_states(
    tmp_path: Path, call: str, grid: int | None
) -> None:
    path = changed(
        tmp_path,
        f"UPDATE rocpd_string SET string = '{call}' WHERE id = 3",
        "INSERT INTO rocpd_kernelapi VALUES (1, '0x7f', 8, 1, 1, 64, 1, 1, 1)",
    )
    (row,) = checked(rpd.read(path)).tables["dispatches"].to_dicts()
    assert (row["grid_x"], row["workgroup_x"], row["stream_id"], row["thread_id"]) == (grid, 64, 0, 42)


def test_what_several_operations_of_one_call_were_launched_as_is_not_said(tmp_path: Path) -> None:
    path = changed(
        tmp_path,
        "INSERT INTO rocpd_op VALUES (2, 2, 0, 20, 30, 4, 2)",
        "INSERT INTO rocpd_api_ops VALUES (2, 1, 2)",
        "INSERT INTO rocpd_kernelapi VALUES (1, '0x0', 8, 1, 1, 64, 1, 1, 1)",
    )
    tables = checked(rpd.read(path)).tables
    assert tables["dispatches"].get_column("grid_x").to_list() == [None, None]
    assert tables["kernels"].get_column("name").to_list() == ["k", "kernel not stated"]
    assert tables["dispatches"].get_column("correlation_id").to_list() == [1, 1]


def test_sizes_that_are_no_numbers_are_null_and_rows_times_bytes_count(tmp_path: Path) -> None:
    path = changed(
        tmp_path,
        "INSERT INTO rocpd_string VALUES (5, 'CopyHostToDevice'), (6, 'CopyDeviceToHost2D'), (7, 'Barrier')",
        "INSERT INTO rocpd_op VALUES (2, 2, 0, 20, 30, 4, 5), (3, 2, 0, 30, 40, 4, 6), (4, 2, 0, 40, 50, 4, 7)",
        "INSERT INTO rocpd_api VALUES (2, 41, 42, 5, 6, 3, 4), (3, 41, 42, 5, 6, 3, 4)",
        "INSERT INTO rocpd_api_ops VALUES (2, 2, 2), (3, 3, 3)",
        "INSERT INTO rocpd_copyapi VALUES (2, '0x0', '', '', ''), (3, '0x0', '', 100, 7)",
    )
    reading = checked(rpd.read(path))
    copies = reading.tables["memory_copies"].select("direction", "size_bytes", "source_device_id")
    assert copies.rows() == [("host_to_device", None, None), ("device_to_host", 700, 0)]
    assert status(reading, "records rocpd_op") == ("partial", "1 operations of other kinds: Barrier; not taken", 1)


def test_what_the_program_annotated_is_a_marker_also_where_its_text_is_kept_apart(tmp_path: Path) -> None:
    marker = (
        "INSERT INTO rocpd_string VALUES (5, 'UserMarker'), (6, 'step#0')",
        "INSERT INTO rocpd_api VALUES (2, 41, 42, 3, 9, 5, 6)",
    )
    (one,) = checked(rpd.read(changed(tmp_path, *marker))).tables["markers"].to_dicts()
    assert (one["name"], one["start_ns"], one["end_ns"]) == ("step#0", 3, 9)
    apart = tmp_path / "apart"
    apart.mkdir()
    later = ("CREATE TABLE rocpd_ustring (id INTEGER PRIMARY KEY, string)", "INSERT INTO rocpd_ustring VALUES (6, 'x')")
    (one,) = checked(rpd.read(changed(apart, *marker, *later))).tables["markers"].to_dicts()
    assert one["name"] == "x"


def test_rows_without_times_or_device_are_left_out_and_told(tmp_path: Path) -> None:
    path = changed(
        tmp_path,
        "INSERT INTO rocpd_op VALUES (2, NULL, 0, 20, 30, 1, 2), (3, 2, 0, NULL, 30, 1, 2)",
        "INSERT INTO rocpd_api VALUES (2, 41, 42, 5, NULL, 3, 4)",
    )
    reading = checked(rpd.read(path))
    assert reading.tables["dispatches"].height == reading.tables["api_calls"].height == 1
    assert status(reading, "unusable rows of rocpd_op")[::2] == ("invalid", 2)


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("DROP TABLE rocpd_api_ops", "rocpd_api_ops has no api_id"),
        ("ALTER TABLE rocpd_op DROP COLUMN gpuId", "rocpd_op has no gpuId"),
        ("UPDATE rocpd_op SET start = 'soon'", "holds text; the file is damaged"),
    ],
)
def test_a_database_of_another_schema_is_refused_in_one_line(tmp_path: Path, statement: str, told: str) -> None:
    path = changed(tmp_path, statement)
    with pytest.raises(CaptureError, match=told):
        rpd.read(path)


def test_an_operation_numbered_below_zero_has_no_number(tmp_path: Path) -> None:
    statements = ("UPDATE rocpd_op SET id = -1", "UPDATE rocpd_api_ops SET op_id = -1")
    keys = rpd.read(changed(tmp_path, *statements)).details["dispatch_keys"]
    assert keys.get_column("source_dispatch_id").to_list() == [None]


def test_more_rows_than_the_limit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="more than 3 rows"):
        rpd.read(changed(tmp_path), Limits(events=3))


@given(st.lists(st.tuples(st.integers(0, 9000), st.integers(0, 255)), max_size=8), st.integers(0, 20_000))
@example([(3402, 128)], 0)  # a name in the schema that is no text
def test_a_damaged_file_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, places: list[Row], cut: int
) -> None:
    folder = tmp_path_factory.mktemp("rpd")
    path = changed(folder)
    content = path.read_bytes()
    path.write_bytes(damaged(content, places, len(content) - cut // 100))
    read_or_refused(rpd, path)


@real
def test_the_real_database_becomes_a_session_whose_copy_gives_the_same(tmp_path: Path) -> None:
    lake = TraceLake(tmp_path / "lake")
    session = taken_in(lake, REAL)
    replayed(lake, session, "kernel_trace", "timeline")
    assert lake.read("dispatches", session).height == 29
    assert lake.read("sessions", session).item(0, "source_format") == "rpd"
    assert lake.read("timeline", session).filter(pl.col("iteration").is_null()).item(0, "busy_ns") > 0
