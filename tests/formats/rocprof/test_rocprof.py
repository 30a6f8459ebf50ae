"""CSV tables of rocprof versions 1 and 2: real files, small ones with every trap, and damaged ones."""

from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats import rocprof as rocprof_v1
from aaco_pipeline.formats.capture_tables import CaptureTables, Limits
from aaco_pipeline.formats.parsing.counter_passes import COUNTER_DISPATCHES
from tests.formats.readings import checked, damaged, read_or_refused, reasons
from tests.places import SHARED

COUNTERS = SHARED / "counters"
LAPLACIAN = COUNTERS / "laplacian_k1" / "MI250X"
real = pytest.mark.skipif(not COUNTERS.is_dir(), reason="the shared counter captures are not here")

HEADER = (
    "Index,KernelName,gpu-id,queue-id,queue-index,pid,tid,grd,wgr,lds,scr,arch_vgpr,accum_vgpr,sgpr,wave_size,sig,obj"
)
ROW = '{index},"{name}",8,0,0,41,42,1024,256,0,0,16,0,32,64,0x0,0x7f'
VERSION_2 = (
    "Dispatch_ID,GPU_ID,Queue_ID,PID,TID,Grid_Size,Workgroup_Size,LDS_Per_Workgroup,Scratch_Per_Workitem,Arch_VGPR,"
    "Accum_VGPR,SGPR,Wave_Size,Kernel_Name,Start_Timestamp,End_Timestamp,Correlation_ID,SQ_WAVES\n"
)


def written(tmp_path: Path, text: str | bytes, name: str = "results.csv") -> Path:
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def rows_of(reading: CaptureTables) -> dict[str, tuple[int, int]]:
    return {item: (rows_in, rows_out) for item, rows_in, rows_out in reading.details["source_rows"].rows()}


@real
def test_a_real_trace_gives_every_dispatch_with_exact_times() -> None:
    path = LAPLACIAN / "results.csv"
    recognition = rocprof_v1.probe(path)
    assert recognition is not None
    assert "version 1" in recognition.detail
    reading = checked(rocprof_v1.read(path))
    dispatches = reading.tables["dispatches"]
    assert rows_of(reading)["executions (results.csv)"] == (200, 200)
    assert dispatches.select("start_ns", "end_ns", "self_ns").row(0) == (2001401019948822, 2001401021036510, 1087688)
    assert dispatches.get_column("grid_x").null_count() == 200
    assert reading.details["counter_dispatches"].get_column("grid_size")[0] == 134217728
    assert reading.tables["processes"].get_column("pid").to_list() == [1580852]
    assert reading.tables["devices"].get_column("handle").to_list() == ["8"]
    stated = pl.read_csv(path).get_column("DurationNs").to_list()
    assert reading.details["counter_dispatches"].get_column("duration_ns").to_list() == stated


@real
def test_counters_without_times_keep_their_executions_but_make_no_dispatches() -> None:
    reading = checked(rocprof_v1.read(LAPLACIAN / "data_movement.csv"))
    assert reading.tables["dispatches"].height == 0
    assert reading.tables["clock_domains"].height == 0
    assert rows_of(reading) == {
        "executions (data_movement.csv)": (200, 200),
        "counter values (data_movement.csv)": (1000, 1000),
    }
    source = pl.read_csv(LAPLACIAN / "data_movement.csv")
    wide = reading.tables["counters"].pivot("counter", index="dispatch_id", values="value").sort("dispatch_id")
    for counter in source.columns[17:]:
        assert wide.get_column(counter).to_list() == source.get_column(counter).cast(pl.Float64).to_list()
    assert reading.tables["counters"].get_column("pass").unique().to_list() == ["data_movement"]
    executions = reading.details["counter_dispatches"]
    assert executions.schema == COUNTER_DISPATCHES
    assert executions.get_column("in_dispatches").sum() == 0
    assert executions.get_column("times").unique().to_list() == ["absent"]
    assert "times of executions: absent" in reasons(reading, "absent")


@real
def test_a_thousand_counter_columns_of_the_oldest_header() -> None:
    path = COUNTERS / "legacy_rocprofv1_header" / "MI200" / "pmc_perf_head.csv"
    assert rocprof_v1.probe(path) is not None
    reading = checked(rocprof_v1.read(path))
    assert rows_of(reading)["counter values (pmc_perf_head.csv)"] == (5 * 993, 5 * 993)
    kernels = reading.tables["kernels"].get_column("name").to_list()
    assert kernels[:2] == ["__amd_rocclr_fillBufferAligned", "void benchmark_func<short, 256, 8u, 0u>(short, short*)"]
    first = reading.tables["counters"].filter(pl.col("counter") == "SQ_CYCLES").get_column("value").to_list()
    assert first[:2] == [3089424.0, 270952.0]
    assert "queue-index" in (reasons(reading, "partial")["columns of pmc_perf_head.csv"] or "")


def test_version_2_is_told_from_version_1(tmp_path: Path) -> None:
    text = VERSION_2 + '1,2,1,77,78,64,64,0,0,4,4,16,64,"k(int, char) (.kd)",9007199254740993,9007199254740999,5,12\n'
    path = written(tmp_path, text, "results_77.csv")
    recognition = rocprof_v1.probe(path)
    assert recognition is not None
    assert "version 2" in recognition.detail
    reading = checked(rocprof_v1.read(path))
    row = reading.tables["dispatches"].row(0, named=True)
    assert (row["start_ns"], row["end_ns"], row["correlation_id"]) == (9007199254740993, 9007199254740999, 5)
    assert reading.tables["kernels"].get_column("name").to_list() == ["k(int, char)"]
    assert reading.details["dispatch_keys"].rows() == [(0, 1)]
    assert reading.tables["counters"].row(0)[:5] == (0, "SQ_WAVES", 12.0, "results_77", 6)


@pytest.mark.parametrize("mark", [" [clone .kd]", ".kd", " (.kd)", ".kd [clone .kd]", ""])
def test_the_descriptors_mark_is_no_part_of_a_kernels_name(tmp_path: Path, mark: str) -> None:
    text = f"{HEADER},SQ_WAVES\n" + ROW.format(index=0, name="void f<a, b>(int)" + mark) + ",1\n"
    reading = checked(rocprof_v1.read(written(tmp_path, text)))
    assert reading.tables["kernels"].get_column("name").to_list() == ["void f<a, b>(int)"]


def test_names_with_commas_quotes_and_line_ends_survive(tmp_path: Path) -> None:
    text = f"{HEADER},SQ_WAVES\n" + ROW.format(index=0, name='a ""b"",\nc') + ",1\n"
    reading = checked(rocprof_v1.read(written(tmp_path, text)))
    assert reading.tables["kernels"].get_column("name").to_list() == ['a "b",\nc']


def test_an_execution_without_times_among_others_is_numbered_after_them(tmp_path: Path) -> None:
    rows = [(0, "a", 0, 0), (1, "b", 100, 150), (2, "c", 200, 190)]
    text = f"{HEADER},SQ_WAVES,BeginNs,EndNs\n"
    text += "".join(ROW.format(index=i, name=name) + f",{i + 7},{start},{end}\n" for i, name, start, end in rows)
    reading = checked(rocprof_v1.read(written(tmp_path, text)))
    executions = reading.details["counter_dispatches"]
    assert executions.select("source_dispatch_id", "dispatch_id", "in_dispatches").rows() == [
        (0, 2, False),
        (1, 0, True),
        (2, 1, True),
    ]
    assert reading.tables["counters"].select("dispatch_id", "value").rows() == [(2, 7.0), (0, 8.0), (1, 9.0)]
    assert reading.tables["dispatches"].select("start_ns", "end_ns", "self_ns").rows() == [
        (100, 150, 50),
        (200, 190, 0),
    ]
    assert set(reasons(reading, "invalid")) == {"times of executions: reversed"}


def test_fields_and_rows_that_say_nothing_are_counted(tmp_path: Path) -> None:
    text = f"{HEADER},SQ_WAVES,SQ_INSTS\n" + ROW.format(index=0, name="a") + ",1,\n" + ROW.format(index="", name="b")
    text += ",2,3\n" + ROW.format(index=2, name="c") + ",nan,4\n"
    reading = checked(rocprof_v1.read(written(tmp_path, text)))
    assert rows_of(reading) == {"executions (results.csv)": (3, 2), "counter values (results.csv)": (4, 2)}
    assert reading.tables["counters"].select("counter", "value").rows() == [("SQ_WAVES", 1.0), ("SQ_INSTS", 4.0)]
    assert {"executions without identity", "counter values without a number"} <= set(reasons(reading, "invalid"))


def test_executions_that_name_no_process_or_device_have_one_of_which_nothing_is_known(tmp_path: Path) -> None:
    text = "Dispatch_ID,GPU_ID,Kernel_Name,Start_Timestamp,End_Timestamp\n1,,k,10,20\n"
    reading = checked(rocprof_v1.read(written(tmp_path, text)))
    assert reading.tables["dispatches"].select("process_id", "device_id", "queue_id").rows() == [(0, 0, None)]
    assert reading.tables["processes"].get_column("pid").to_list() == [None]
    assert reading.tables["devices"].get_column("handle").to_list() == [None]


def test_the_profilers_own_statistics(tmp_path: Path) -> None:
    text = '"Name","Calls","TotalDurationNs","AverageNs","Percentage"\n"a, b.kd",3,100,33,80.0\n"c",1,25,25,20.0\n'
    path = written(tmp_path, text, "results.stats.csv")
    assert rocprof_v1.probe(path) is not None
    table = checked(rocprof_v1.read(path)).tables["reported_statistics"]
    assert table.select("source", "domain", "name", "call_count", "total_ns", "share_ratio").rows() == [
        ("results.stats.csv", "kernel", "a, b", 3, 100, 0.8),
        ("results.stats.csv", "kernel", "c", 1, 25, 0.2),
    ]
    other = checked(rocprof_v1.read(written(tmp_path, text, "results.hip_stats.csv")))
    assert other.tables["reported_statistics"].get_column("domain").unique().to_list() == ["hip"]


def test_a_header_alone_is_a_table_without_rows(tmp_path: Path) -> None:
    reading = checked(rocprof_v1.read(written(tmp_path, HEADER + ",SQ_WAVES\n")))
    assert reading.tables["dispatches"].height == reading.tables["counters"].height == 0
    assert "executions" in reasons(reading, "absent")


@pytest.mark.parametrize("cut", [1, 3, 20, 60])
def test_a_cut_last_row_is_left_out_and_told(tmp_path: Path, cut: int) -> None:
    row = ROW.format(index=0, name="a, b") + ",5,100,20000\n"
    whole = f"{HEADER},SQ_WAVES,BeginNs,EndNs\n" + row
    reading = checked(rocprof_v1.read(written(tmp_path, whole + row[: len(row) - 1 - cut])))
    assert reading.tables["dispatches"].height == 1
    assert "end of file" in reasons(reading, "partial")


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\n\n",
        b"\0\1\2,\3\n",
        b"only\none\n",
        b"Name,Calls\na,1\n",
        b"KernelName,gpu-id\nk,1\n",
        b"Index,KernelName,gpu-id,SQ,SQ\n0,k,1,2,3\n",
        b"Index,KernelName,gpu-id\n0,k,1,2,3\n",
        b'"unclosed,gpu-id\n',
    ],
)
def test_what_is_no_such_table_is_refused_by_name(tmp_path: Path, text: bytes) -> None:
    path = written(tmp_path, text, "strange.csv")
    with pytest.raises(CaptureError, match=r"strange\.csv"):
        rocprof_v1.read(path)


def test_limits_hold(tmp_path: Path) -> None:
    path = written(tmp_path, f"{HEADER},SQ_WAVES\n" + (ROW.format(index=0, name="a") + ",1\n") * 3)
    for limits in (Limits(events=2), Limits(file_bytes=100), Limits(line_bytes=50)):
        with pytest.raises(CaptureError):
            rocprof_v1.read(path, limits)


def test_no_file_is_not_recognized(tmp_path: Path) -> None:
    assert rocprof_v1.probe(tmp_path / "nothing.csv") is None
    assert rocprof_v1.probe(tmp_path) is None
    assert rocprof_v1.probe(written(tmp_path, b"\x1f\x8bdamaged")) is None


SMALL = (f"{HEADER},SQ_WAVES,BeginNs,EndNs\n" + (ROW.format(index=0, name="a, b") + ",5,100,200\n") * 2).encode()


@given(
    changes=st.lists(st.tuples(st.integers(0, len(SMALL) - 1), st.integers(0, 255)), max_size=6),
    end=st.integers(0, len(SMALL)),
)
def test_damaged_bytes_give_a_reading_or_a_capture_error(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]], end: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged_v1.csv"
    path.write_bytes(damaged(SMALL, changes, end))
    read_or_refused(rocprof_v1, path)
