"""Exports of Nsight Systems: three releases' schemas, and every trap of the format in exports made here."""

import gzip
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats import nsys, rocpd, rocprof_db, rpd
from aaco_pipeline.formats.capture_tables import CaptureTables, Limits
from aaco_pipeline.lake.evidence import DROPPED, WHOLE_GRAPHS
from aaco_pipeline.lake.store import TraceLake
from tests.formats.examples import EXAMPLES
from tests.formats.nsys.nsys_exports import NO_STREAM, PID, PROCESS, RECORDS, RELEASES, THREAD, changed, made
from tests.formats.readings import checked, damaged, read_or_refused
from tests.sessions import replayed, taken_in

OTHER = 1 << 48 | 4300 << 24
GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"
WAITS = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"


def export(folder: Path, *statements: str, release: str = "2026.2") -> Path:
    return changed(made(folder / "report.sqlite", release), *statements)


def status(reading: CaptureTables, item: str) -> tuple[str, str | None, int | None]:
    (found,) = [one for one in reading.evidence if one.item == item]
    return found.status, found.reason, found.rows


def only(frame: pl.DataFrame) -> dict[str, Any]:
    (row,) = frame.to_dicts()
    return row


@pytest.mark.parametrize("release", RELEASES)
def test_each_release_gives_the_same_work(release: str, tmp_path: Path) -> None:
    path = made(tmp_path / "report.sqlite", release)
    recognized = nsys.probe(path)
    assert recognized is not None and recognized.format == "nsys"
    tables = checked(nsys.read(path)).tables
    kernel = only(tables["dispatches"])
    assert (kernel["start_ns"], kernel["end_ns"], kernel["correlation_id"]) == (5000, 9000, 12)
    assert [kernel[f"grid_{axis}"] for axis in "xyz"] == [8 * 128, 2, 1]
    assert (kernel["workgroup_x"], kernel["lds_allocated_bytes"], kernel["scratch_bytes"]) == (128, 1536, 16)
    assert kernel["thread_id"] == THREAD - PROCESS == 4243
    named = only(tables["kernels"])
    assert (named["name"], named["static_lds_bytes"]) == ("void saxpy<float>(int, T1, T1 *)", 1024)
    assert named["symbol"] == (None if release == "2019.3" else "_Z5saxpyIfEviT_PS0_")
    copies = tables["memory_copies"].select("direction", "size_bytes", "source_device_id", "destination_device_id")
    assert copies.rows() == [("host_to_device", 4096, None, 0), ("fill", 64, None, 0)]
    calls = tables["api_calls"].select("name", "domain", "thread_id").rows()
    names = ["cudaMemcpyAsync", "cudaMemsetAsync", "cudaLaunchKernel", "cudaDeviceSynchronize"]
    assert calls == [(name, "cuda_runtime", 4243) for name in names]
    assert only(tables["markers"]) | {"name": "step#0", "start_ns": 900, "end_ns": 9200} == only(tables["markers"])
    device = only(tables["devices"])
    assert (device["vendor"], device["product"], device["arch"]) == ("NVIDIA", "NVIDIA A100-SXM4-40GB", "sm_80")
    assert (device["compute_units"], device["wavefront_size"]) == (108, 32)
    assert only(tables["processes"])["pid"] == PID


def test_what_later_releases_say_besides(tmp_path: Path) -> None:
    reading = checked(nsys.read(export(tmp_path)))
    tables = reading.tables
    process, device = only(tables["processes"]), only(tables["devices"])
    assert (process["host"], process["rank"], process["command"]) == ("node7", 3, "./saxpy --n 1024")
    assert (device["max_clock_mhz"], device["lds_bytes"], device["handle"]) == (1410.0, 167936, "0000:03:00.0")
    clocks = dict(tables["clock_domains"].select("domain", "offset_ns").iter_rows())
    assert clocks == {"nsys": 0, "realtime": -1_700_000_000_000_000_000}
    facts = tables["environment"].select("category", "key", "value").rows()
    assert ("driver", "nvidia", "550.54.15") in facts
    assert ("environment_variable", "OMP_NUM_THREADS", "2") in facts
    assert status(reading, "end of the recording")[:2] == ("present", "it lasted 0.000 s")
    assert only(reading.details["launch_facts"]) == {"dispatch_id": 0, "registers_per_thread": 32}


def test_the_number_of_a_versioned_table_is_a_number_and_the_plain_name_comes_first(tmp_path: Path) -> None:
    older = f'CREATE TABLE {KERNELS}_V3 AS SELECT * FROM {KERNELS} WHERE "start" < 0'
    newer = f"ALTER TABLE {KERNELS} RENAME TO {KERNELS}_V10"
    reading = checked(nsys.read(export(tmp_path, older, newer)))
    assert reading.tables["dispatches"].height == 1
    (tmp_path / "plain").mkdir()
    path = export(tmp_path / "plain", f"CREATE TABLE {KERNELS}_V2 AS SELECT * FROM {KERNELS}")
    reading = checked(nsys.read(path))
    assert reading.tables["dispatches"].height == 1
    assert status(reading, f"records {KERNELS}_V2")[::2] == ("absent", 1)


def test_graphs_recorded_as_a_whole_are_dispatches_with_their_name_and_told(tmp_path: Path) -> None:
    rows = ", ".join(f"({at}, {at + 700}, 0, 1, 7, {20 + at}, {PROCESS}, 5, 9)" for at in (10_000, 11_000))
    launch = f"INSERT INTO {CALLS} VALUES (9900, 9950, 0, {THREAD}, 10020, 10, NULL)"
    reading = checked(nsys.read(export(tmp_path, f"INSERT INTO {GRAPHS} VALUES {rows}", launch)))
    named = reading.tables["dispatches"].join(reading.tables["kernels"], on="kernel_id")
    whole = named.filter(pl.col("name") == "CUDA graph 5, recorded as a whole")
    assert whole.select("start_ns", "self_ns", "grid_x").rows() == [(10_000, 700, None), (11_000, 700, None)]
    told, reason, count = status(reading, WHOLE_GRAPHS)
    assert (told, count) == ("partial", 2) and "2 graph launches of 0.00 ms" in str(reason)
    assert status(reading, "launch of graphs")[::2] == ("partial", 1)


def test_a_graph_whose_kernels_were_recorded_is_not_counted_twice(tmp_path: Path) -> None:
    twice = f"INSERT INTO {GRAPHS} VALUES (5000, 9000, 0, 1, 7, 12, {PROCESS}, 5, 9)"
    reading = checked(nsys.read(export(tmp_path, twice, f"UPDATE {KERNELS} SET graphNodeId = 77")))
    assert only(reading.tables["dispatches"])["graph_node_id"] == 77
    assert not [one for one in reading.evidence if one.item == WHOLE_GRAPHS]


def test_several_processes_keep_their_threads_devices_and_correlations_apart(tmp_path: Path) -> None:
    both = (
        f'INSERT INTO {KERNELS} ("start", "end", deviceId, contextId, streamId, correlationId, globalPid, '
        f"demangledName, shortName) VALUES (5500, 6000, 0, 1, 7, 12, {OTHER}, 1, 2)",
        f"INSERT INTO {CALLS} VALUES (5100, 5200, 0, {OTHER | 4301}, 12, 4, NULL)",
        f"INSERT INTO PROCESSES VALUES ({OTHER}, 4300, 'worker')",
        "INSERT INTO TARGET_INFO_GPU (id, name, smCount, busLocation) VALUES (1, 'NVIDIA A30', 56, '0000:41:00.0')",
        f"INSERT INTO TARGET_INFO_CUDA_DEVICE VALUES (0, 0, {PID}, NULL, 108), (1, 0, 4300, NULL, 56)",
        f"INSERT INTO MPI_RANKS VALUES ({THREAD}, 1), ({OTHER | 4301}, 0)",
    )
    tables = checked(nsys.read(export(tmp_path, *both))).tables
    assert tables["processes"].select("pid", "rank", "command").rows() == [
        (PID, 1, "./saxpy --n 1024"),
        (4300, 0, "worker"),
    ]
    ran = tables["dispatches"].select("process_id", "device_id", "thread_id", "stream_id").rows()
    assert ran == [(0, 0, 4243, 0), (1, 1, 4301, 1)]
    assert tables["devices"].get_column("product").to_list() == ["NVIDIA A100-SXM4-40GB", "NVIDIA A30"]


def test_equal_numbers_of_devices_are_one_device_where_nothing_says_otherwise(tmp_path: Path) -> None:
    other = (
        f"INSERT INTO {KERNELS} SELECT * FROM {KERNELS}",
        f"UPDATE {KERNELS} SET globalPid = {OTHER} WHERE rowid = 2",
    )
    reading = checked(nsys.read(export(tmp_path, *other)))
    assert reading.tables["devices"].height == 1
    assert "CUDA_VISIBLE_DEVICES" in str(status(reading, "devices of processes")[1])


def test_gpus_that_a_number_may_both_be_give_properties_only_where_they_are_alike(tmp_path: Path) -> None:
    second = "INSERT INTO TARGET_INFO_GPU SELECT * FROM TARGET_INFO_GPU"
    crossed = "UPDATE TARGET_INFO_GPU SET id = rowid - 1, cuDevice = 2 - rowid"
    device = only(nsys.read(export(tmp_path, second, crossed)).tables["devices"])
    assert (device["product"], device["handle"]) == ("NVIDIA A100-SXM4-40GB", "CUDA device 0")
    (tmp_path / "unlike").mkdir()
    unlike = "UPDATE TARGET_INFO_GPU SET name = 'NVIDIA A30' WHERE rowid = 2"
    reading = checked(nsys.read(export(tmp_path / "unlike", second, crossed, unlike)))
    assert only(reading.tables["devices"])["product"] is None
    assert status(reading, "device properties")[0] == "partial"


def test_a_wait_is_what_its_call_says_and_at_the_device_of_its_context(tmp_path: Path) -> None:
    row = f'INSERT INTO {WAITS} ("start", "end", deviceId, contextId, streamId, correlationId, globalPid, syncType, '
    made_path = export(
        tmp_path,
        f"UPDATE {KERNELS} SET deviceId = 1, contextId = 2",
        f"INSERT INTO {CALLS} VALUES (4000, 4001, 0, {THREAD}, 30, 11, NULL)",
        f"{row} eventSyncId) VALUES (6000, 6001, 0, 2, 7, 30, {PROCESS}, 3, 55), (7, 8, 0, 1, 7, 99, {PROCESS}, 1, 0), "
        f"(9, 9, 0, 1, 7, 98, {PROCESS}, 4, {NO_STREAM})",
        f"INSERT INTO CUPTI_ACTIVITY_KIND_CUDA_EVENT VALUES (3000, 0, 1, 7, 29, {PROCESS}, 4, 55)",
    )
    waits = checked(nsys.read(made_path)).tables["synchronizations"]
    kinds = waits.select("kind", "device_id", "stream_id", "waited_stream_id", "waited_correlation_id").rows()
    assert kinds == [
        ("device_synchronize", 0, None, None, None),
        ("stream_wait_event", 1, 1, 0, 29),
        # Without a call: as the others of its number are said to be, else not known.
        ("device_synchronize", 0, 0, None, None),
        ("unknown", 0, 0, None, None),
    ]
    changed(made_path, "UPDATE META_DATA_EXPORT SET value = '3.25.0' WHERE name = 'EXPORT_SCHEMA_VERSION'")
    assert nsys.read(made_path).tables["synchronizations"].item(3, "kind") == "device_synchronize"


def test_calls_written_twice_for_their_backtrace_count_once(tmp_path: Path) -> None:
    path = export(tmp_path, f"INSERT INTO {CALLS} VALUES (2990, 3610, 67, {THREAD}, 12, 4, 3)")
    reading = checked(nsys.read(path))
    assert reading.tables["api_calls"].height == 4
    assert status(reading, "calls with backtraces")[::2] == ("present", 1)


def test_driver_calls_and_calls_without_a_class_or_a_name_have_a_domain(tmp_path: Path) -> None:
    rows = f"(1, 2, 1, {THREAD}, 40, 7, NULL), (3, 4, NULL, {THREAD}, 41, 7, NULL), (5, 6, 0, {THREAD}, 42, 999, NULL)"
    calls = nsys.read(export(tmp_path, f"INSERT INTO {CALLS} VALUES {rows}")).tables["api_calls"]
    named = calls.filter(pl.col("correlation_id") >= 40).select("name", "domain").rows()
    assert named == [("cuLaunchKernel", "cuda_driver")] * 2 + [("call not stated", "cuda_runtime")]


def test_marks_registered_names_and_ranges_left_open(tmp_path: Path) -> None:
    rows = (
        f"(10, NULL, 34, NULL, 'mark', {THREAD}, NULL, 0), (20, 30, 60, 1, NULL, {THREAD}, 8, 1), "
        f"(40, NULL, 59, NULL, 'open', {THREAD}, NULL, 0), (0, NULL, 75, NULL, 'NCCL', {THREAD}, NULL, 1)"
    )
    reading = checked(nsys.read(export(tmp_path, f"INSERT INTO NVTX_EVENTS VALUES {rows}")))
    ranges = reading.tables["markers"].select("name", "start_ns", "end_ns").rows()
    assert ranges == [("step#0", 900, 9200), ("mark", 10, 10), ("step#0", 20, 30)]
    assert status(reading, "open NVTX ranges")[::2] == ("partial", 1)


def test_kernels_that_cupti_could_not_time_are_kept_without_times(tmp_path: Path) -> None:
    reading = checked(nsys.read(export(tmp_path, f'UPDATE {KERNELS} SET "start" = 0, "end" = 0')))
    row = only(reading.tables["dispatches"])
    assert (row["start_ns"], row["end_ns"], row["self_ns"]) == (None, None, None)
    assert status(reading, "times of kernels")[::2] == ("partial", 1)


def test_the_tools_words_of_losses_count_for_processes_with_records_alone(tmp_path: Path) -> None:
    lost = "Not all CUDA events might have been collected."
    rows = ", ".join(
        f"(0, 2, 3, {severity}, '{text}', {key})"
        for severity, text, key in (
            *((2, lost, PROCESS), (2, lost, OTHER), (1, "5 events were dropped", PROCESS)),
            *((3, "CUDA profiling might have not been started correctly.", OTHER), (2, "12 records were dropped.", -7)),
        )
    )
    shell = f"INSERT INTO PROCESSES VALUES ({OTHER}, 4300, 'bash')"
    reading = checked(nsys.read(export(tmp_path, shell, f"INSERT INTO DIAGNOSTIC_EVENT VALUES {rows}")))
    assert status(reading, DROPPED) == ("partial", f"{lost[:-1]}; 12 records were dropped", 12)
    assert "warnings of the tool" not in {one.item for one in reading.evidence}


def test_an_export_that_was_interrupted_says_so(tmp_path: Path) -> None:
    reading = checked(nsys.read(export(tmp_path, "DELETE FROM ANALYSIS_DETAILS")))
    told, reason, _ = status(reading, "end of the recording")
    assert told == "partial" and str(reason).startswith("its end is missing")
    (tmp_path / "nameless").mkdir()
    path = export(tmp_path / "nameless", "DROP TABLE StringIds")
    assert nsys.probe(path) is not None
    with pytest.raises(CaptureError, match="no table StringIds: the export was interrupted"):
        nsys.read(path)


@pytest.mark.parametrize(("name", "value"), [("EXPORT_PARAM_TIME_NORMALIZE", "true"), ("EXPORT_PARAM_TIME_SHIFT", "5")])
def test_times_that_the_exporter_moved_are_not_tied_to_wall_clock(name: str, value: str, tmp_path: Path) -> None:
    path = export(tmp_path, f"INSERT INTO META_DATA_EXPORT VALUES ('{name}', '{value}')")
    reading = checked(nsys.read(path))
    assert reading.tables["clock_domains"].get_column("domain").to_list() == ["nsys"]
    assert status(reading, "wall-clock")[0] == "absent"


def test_databases_of_others_are_none_of_its_and_its_are_none_of_theirs(tmp_path: Path) -> None:
    own = made(tmp_path / "report.sqlite")
    for name, theirs in (("rocpd", rocpd), ("rpd", rpd), ("rocprof_db", rocprof_db)):
        (tmp_path / name).mkdir()
        assert nsys.probe(EXAMPLES[name](tmp_path / name)) is None
        assert theirs.probe(own) is None
    nvprof = tmp_path / "nvprof.db"
    with closing(sqlite3.connect(nvprof)) as database:
        database.execute(f"CREATE TABLE {KERNELS} (_id_ INTEGER PRIMARY KEY, start, end, name)")
        database.execute("CREATE TABLE StringTable (_id_ INTEGER PRIMARY KEY, value)")
    assert nsys.probe(nvprof) is None


def test_a_packed_export_is_the_same_and_reading_it_twice_gives_the_same(tmp_path: Path) -> None:
    path = made(tmp_path / "report.sqlite")
    packed = tmp_path / "report.sqlite.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    plain, again, other = nsys.read(path), nsys.read(path), nsys.read(packed)
    assert nsys.probe(packed) == nsys.probe(path)
    for name, frame in plain.tables.items():
        assert frame.equals(again.tables[name]) and frame.equals(other.tables[name])


@pytest.mark.parametrize(
    ("statements", "told"),
    [
        ((f"ALTER TABLE {KERNELS} DROP COLUMN deviceId",), f"{KERNELS} has no deviceId"),
        ((f"UPDATE {KERNELS} SET \"start\" = 'soon'",), "holds text; the file is damaged"),
        ((f"DROP TABLE {CALLS}", f"CREATE VIEW {CALLS} AS SELECT * FROM {KERNELS}"), None),
        ((f"CREATE TRIGGER t AFTER INSERT ON {KERNELS} BEGIN DELETE FROM {CALLS}; END",), None),
        ((f"ALTER TABLE {KERNELS} ADD COLUMN twice AS (start * 2)",), None),
        (("UPDATE StringIds SET value = hex(zeroblob(600000))",), None),
        (("UPDATE StringIds SET value = x'00ff'",), None),
    ],
)
def test_hostile_exports_are_read_without_harm_or_refused_in_one_line(
    statements: tuple[str, ...], told: str | None, tmp_path: Path
) -> None:
    path = export(tmp_path, *statements)
    if told is not None:
        with pytest.raises(CaptureError, match=told):
            nsys.read(path)
        return
    reading = checked(nsys.read(path))
    assert reading.tables["dispatches"].height == 1
    assert all(len(name) < 100 for name in reading.tables["kernels"].get_column("name"))


def test_more_rows_or_tables_than_the_limits_are_refused(tmp_path: Path) -> None:
    path = made(tmp_path / "report.sqlite")
    with pytest.raises(CaptureError, match="more than 3 rows"):
        nsys.read(path, Limits(events=3))
    with pytest.raises(CaptureError, match="more than 5 tables"):
        nsys.read(path, Limits(tables=5))


def test_an_export_of_nothing_is_read_as_such(tmp_path: Path) -> None:
    reading = checked(nsys.read(made(tmp_path / "report.sqlite", records={})))
    assert {name: frame.height for name, frame in reading.tables.items() if frame.height} == {
        "processes": 1,
        "clock_domains": 1,
        "environment": 1,
    }
    assert status(reading, "dispatches")[0] == "absent"


def test_an_export_becomes_a_session_that_says_what_its_graphs_hide(tmp_path: Path) -> None:
    graph = f"INSERT INTO {GRAPHS} VALUES (10000, 30000, 0, 1, 7, 14, {PROCESS}, 5, 9)"
    path = export(tmp_path, graph, f"INSERT INTO {CALLS} VALUES (9100, 9200, 0, {THREAD}, 14, 10, NULL)")
    lake = TraceLake(tmp_path / "lake")
    session = taken_in(lake, path)
    replayed(lake, session, "timeline", "completeness")
    assert lake.read("sessions", session).item(0, "source_format") == "nsys"
    found = only(lake.read("completeness_findings", session))
    assert (found["finding"], found["records"], found["voids"]) == ("graphs_recorded_whole", 1, ["bottlenecks.label"])
    whole = lake.read("timeline", session).filter(pl.col("iteration").is_null())
    assert (whole.item(0, "busy_ns"), whole.item(0, "busy_bound")) == (300 + 100 + 4000 + 20_000, "at_most")


@given(st.lists(st.tuples(st.integers(0, 60_000), st.integers(0, 255)), max_size=8), st.integers(0, 60_000))
def test_a_damaged_file_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, places: list[tuple[int, int]], cut: int
) -> None:
    path = made(tmp_path_factory.mktemp("nsys") / "report.sqlite")
    content = path.read_bytes()
    path.write_bytes(damaged(content, places, len(content) - cut // 100))
    read_or_refused(nsys, path)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 10**9), st.integers(0, 10**6), st.integers(0, 3), st.integers(0, 2), st.integers(0, 9)
        ),
        min_size=1,
        max_size=20,
    )
)
def test_every_kernel_becomes_one_dispatch_with_its_own_times(
    tmp_path_factory: pytest.TempPathFactory, ran: list[tuple[int, int, int, int, int]]
) -> None:
    rows = [
        {
            **RECORDS[KERNELS][0],
            **{"start": start + 1, "end": start + 1 + length, "deviceId": device, "correlationId": correlation},
            "globalPid": PROCESS + (process << 24),
        }
        for start, length, device, process, correlation in ran
    ]
    path = made(tmp_path_factory.mktemp("nsys") / "report.sqlite", records={**RECORDS, KERNELS: rows})
    tables = checked(nsys.read(path)).tables
    times = tables["dispatches"].select("start_ns", "end_ns").rows()
    assert times == [(row["start"], row["end"]) for row in rows]
    pids = dict(tables["processes"].select("process_id", "pid").iter_rows())
    assert [pids[one] for one in tables["dispatches"]["process_id"]] == [PID + process for *_, process, _ in ran]
    devices = dict(tables["devices"].select("device_id", "handle").iter_rows())
    assert len(devices) == len({device for _, _, device, _, _ in ran} | {0})
