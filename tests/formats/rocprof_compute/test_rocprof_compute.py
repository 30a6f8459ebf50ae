"""Workload folders of rocprof-compute: every real one with its row counts, and small ones with every trap."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats import rocprof_compute
from aaco_pipeline.formats.capture_tables import CaptureTables, Limits
from aaco_pipeline.formats.parsing.counter_passes import COUNTER_DISPATCHES
from tests.formats import readings
from tests.formats.readings import damaged, read_or_refused, reasons
from tests.places import SHARED

COUNTERS = SHARED / "counters"
real = pytest.mark.skipif(not COUNTERS.is_dir(), reason="the shared counter captures are not here")
#: Folder: dispatches in `pmc_perf.csv`, counters in all files, dispatches with measured times.
FOLDERS = {
    "mem_levels_HBM/MI200": (3, 81, 3),
    "mixbench/MI200": (167, 169839, 167),
    "mixbench_SQ/MI200": (167, 20875, 167),
    "vcopy/MI100": (3, 2919, 3),
    "vcopy/MI200": (3, 2988, 3),
    "vcopy/MI300A_A1": (3, 6243, 0),
    "vcopy/MI300X_A1": (3, 8067, 0),
    "vcopy/MI300X_A1_rocpd": (3, 6027, 3),
    "vcopy/MI350": (3, 5724, 0),
}
NO_FOLDERS = ("laplacian_k1/MI250X", "legacy_rocprofv1_header/MI200", "llamacpp_decode/gfx1151", "repeats", "vcopy")

WIDE = "Dispatch_ID,GPU_ID,Grid_Size,Workgroup_Size,Kernel_Name,{counters},Start_Timestamp,End_Timestamp\n"
LONG = (
    "GPU_ID,Dispatch_ID,Grid_Size,Workgroup_Size,Kernel_Name,Start_Timestamp,End_Timestamp,Counter_Name,Counter_Value\n"
)


def checked(reading: CaptureTables) -> CaptureTables:
    readings.checked(reading)
    assert reading.details["counter_dispatches"].schema == COUNTER_DISPATCHES
    return reading


def counter_values(reading: CaptureTables) -> dict[tuple[int, str], float]:
    """Each dispatch's counters by the capture's own number of the dispatch."""
    numbers = reading.details["counter_dispatches"].select("dispatch_id", "source_dispatch_id").unique()
    joined = reading.tables["counters"].drop("source_dispatch_id").join(numbers, on="dispatch_id")
    return {
        (dispatch, counter): value
        for dispatch, counter, value in joined.select("source_dispatch_id", "counter", "value").rows()
    }


def folder(tmp_path: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    return tmp_path


@real
@pytest.mark.parametrize("name", FOLDERS)
def test_every_real_folder_is_read_without_a_row_lost(name: str) -> None:
    path = COUNTERS / name
    assert rocprof_compute.probe(path) is not None
    reading = checked(rocprof_compute.read(path))
    dispatches, counters, measured = FOLDERS[name]
    rows = reading.details["source_rows"]
    assert rows.filter(pl.col("rows_in") != pl.col("rows_out")).height == 0
    assert reading.tables["counters"].height == counters
    assert rows.filter(pl.col("item").str.starts_with("counter values")).get_column("rows_out").sum() == counters
    assert reading.tables["counters"].select("dispatch_id", "counter", "pass").is_unique().all()
    assert reading.tables["counters"].get_column("dispatch_id").n_unique() == dispatches
    assert reading.tables["dispatches"].height == measured
    assert reading.details["dispatch_durations"].get_column("dispatch_id").n_unique() == dispatches


@real
@pytest.mark.parametrize("name", NO_FOLDERS)
def test_other_folders_are_not_recognized(name: str) -> None:
    assert rocprof_compute.probe(COUNTERS / name) is None


@real
def test_wide_values_are_those_of_the_file_under_their_own_names() -> None:
    path = COUNTERS / "vcopy" / "MI300X_A1"
    source = pl.read_csv(path / "pmc_perf.csv", infer_schema=False)
    reading = checked(rocprof_compute.read(path))
    main = reading.tables["counters"].filter(pl.col("pass").str.starts_with("pmc_perf"))
    assert main.height == 3 * 2665
    given_values = {(row[0], row[1]): row[2] for row in main.select("dispatch_id", "counter", "value").rows()}
    names = set(main.get_column("counter"))
    assert {"TCC_HIT[0]", "TCC_HIT[127]", "SQC_DCACHE_REQ_READ_8"} <= names
    for counter in names:
        texts = source.get_column(counter).to_list()
        assert [given_values[row, counter] for row in range(3)] == [float(text) for text in texts]


@real
def test_the_merged_files_own_columns_tell_the_passes_apart() -> None:
    counters = rocprof_compute.read(COUNTERS / "vcopy" / "MI300X_A1").tables["counters"]
    pass_of = dict(counters.filter(pl.col("dispatch_id") == 0).select("counter", "pass").rows())
    assert pass_of["SQC_DCACHE_HITS"] == "pmc_perf.0"
    assert pass_of["TCC_ATOMIC[0]"] == "pmc_perf.1"
    accumulated = counters.filter(pl.col("counter") == "SQ_ACCUM_PREV_HIRES", pl.col("dispatch_id") == 0)
    assert dict(accumulated.select("pass", "value").rows()) == {
        "SQ_IFETCH_LEVEL": 3249356.0,
        "SQ_INST_LEVEL_LDS": 0.0,
        "SQ_INST_LEVEL_SMEM": 295366648.0,
        "SQ_INST_LEVEL_VMEM": 40323912.0,
        "SQ_LEVEL_WAVES": 155189876.0,
    }


@real
def test_long_counters_are_those_of_the_file_each_with_its_own_passs_duration() -> None:
    path = COUNTERS / "vcopy" / "MI300X_A1_rocpd"
    source = pl.read_csv(path / "pmc_perf.csv")
    reading = checked(rocprof_compute.read(path))
    stated = {(row[0], row[1]): row[2] for row in source.select("Dispatch_ID", "Counter_Name", "Counter_Value").rows()}
    assert counter_values(reading) == stated
    counters = reading.tables["counters"]
    assert counters.get_column("pass").n_unique() == 12
    # One counter is of one pass, whichever the dispatch: the numbering by time agrees between dispatches.
    assert counters.group_by("counter").agg(pl.col("pass").n_unique()).get_column("pass").max() == 1
    stated_duration = (source.get_column("End_Timestamp") - source.get_column("Start_Timestamp")).to_list()
    assert counters.get_column("pass_duration_ns").to_list() == stated_duration
    dispatches = reading.tables["dispatches"]
    assert dispatches.get_column("start_ns")[0] == 13386742234691895
    executions = reading.details["counter_dispatches"]
    assert executions.height == 36
    used = executions.join(dispatches.select("dispatch_id", "start_ns"), on=["dispatch_id", "start_ns"], how="semi")
    assert used.get_column("pass").unique().to_list() == ["pmc_perf.12"]
    assert reading.tables["clock_domains"].get_column("domain").to_list() == ["boottime"]


@real
def test_times_that_a_tool_or_a_spreadsheet_destroyed_make_no_dispatches() -> None:
    rounded = rocprof_compute.read(COUNTERS / "vcopy" / "MI300X_A1")
    assert rounded.details["dispatch_durations"].select("duration_ns", "times").rows() == [(None, "rounded")] * 3
    assert "times of pmc_perf.csv: rounded" in reasons(rounded, "invalid")
    assert rounded.tables["clock_domains"].height == 0
    averaged = rocprof_compute.read(COUNTERS / "vcopy" / "MI350")
    assert averaged.details["dispatch_durations"].select("duration_ns", "times").rows() == [
        (21762, "averaged"),
        (16920, "averaged"),
        (16864, "averaged"),
    ]
    assert "times of pmc_perf.csv: averaged" in reasons(averaged, "invalid")
    passes = averaged.tables["counters"].filter(pl.col("pass") == "SQ_IFETCH_LEVEL")
    assert passes.filter(pl.col("dispatch_id") == 0).get_column("pass_duration_ns").unique().to_list() == [22800]


@real
def test_facts_of_machine_and_device() -> None:
    reading = checked(rocprof_compute.read(COUNTERS / "vcopy" / "MI300X_A1"))
    device = reading.tables["devices"].row(0, named=True)
    assert {key: device[key] for key in ("vendor", "arch", "product", "compute_units", "xcc_count", "handle")} == {
        "vendor": "AMD",
        "arch": "gfx942",
        "product": "MI300X_A1",
        "compute_units": 304,
        "xcc_count": 8,
        "handle": "2",
    }
    assert (device["max_clock_mhz"], device["l2_bytes"], device["partition_mode"]) == (2100.0, 4 << 20, "SPX/NPS1")
    process = reading.tables["processes"].row(0, named=True)
    assert (process["host"], process["pid"]) == ("splinter-126-wr-c6", None)
    facts = reading.tables["environment"]
    assert facts.filter(pl.col("key") == "rocm_version").rows() == [("rocm", "rocm_version", "6.2.0-13611", True)]
    old = checked(rocprof_compute.read(COUNTERS / "mixbench" / "MI200")).tables["devices"].row(0, named=True)
    assert (old["arch"], old["compute_units"], old["simd_per_cu"], old["max_clock_mhz"]) == ("gfx90a", 104, 4, 1700.0)
    long = checked(rocprof_compute.read(COUNTERS / "vcopy" / "MI300X_A1_rocpd")).tables["environment"]
    remaining = long.filter(pl.col("key") == "remaining").get_column("value").to_list()
    assert remaining == ["-- sample/vcopy -n 1048576 -b 256 -i 3"]


@real
def test_measured_ceilings_are_used_where_it_is_certain_whose_they_are_or_does_not_matter() -> None:
    one = checked(rocprof_compute.read(COUNTERS / "mixbench" / "MI200"))
    ceilings = one.tables["ceilings"]
    assert ceilings.height == 11
    hbm = ceilings.filter(pl.col("resource") == "dram").row(0, named=True)
    assert (hbm["value"], hbm["unit"], hbm["source"]) == (pytest.approx(1406.8727e9), "byte/s", "measured")
    assert one.details["roofline"].shape == (1, 34)
    several = checked(rocprof_compute.read(COUNTERS / "vcopy" / "MI200"))
    ceilings = several.tables["ceilings"]
    assert ceilings.height == 10, "LDS differs by 3.4 % between the four devices, the rest by 0.53 % at most"
    assert "lds" not in ceilings.get_column("resource")
    mean = several.details["roofline"].get_column("HBMBw").mean()
    hbm = ceilings.filter(pl.col("resource") == "dram").row(0, named=True)
    assert (hbm["device_id"], hbm["value"]) == (0, pytest.approx(mean * 1e9))  # type: ignore[operator]
    assert hbm["reference"].endswith("column HBMBw; mean of 4 devices that agree within 0.53%")
    assert "LDSBw differ between the 4 measured devices" in str(reasons(several, "partial")["ceilings by device"])
    assert several.details["roofline"].shape == (4, 34)
    assert several.details["roofline"].get_column("HBMBw")[0] == 1388.9302
    assert "ceilings by device" in reasons(several, "partial")


def test_a_start_of_zero_leaves_a_duration(tmp_path: Path) -> None:
    text = WIDE.format(counters="SQ_WAVES") + "0,2,64,64,k,5,0,8100\n1,2,64,64,k,6,0,8100\n"
    reading = checked(rocprof_compute.read(folder(tmp_path, {"pmc_perf.csv": text})))
    assert reading.tables["dispatches"].height == 0
    assert reading.details["dispatch_durations"].rows() == [
        (0, 0, "pmc_perf", 8100, "zeroed"),
        (1, 1, "pmc_perf", 8100, "zeroed"),
    ]
    assert reading.tables["counters"].get_column("pass_duration_ns").to_list() == [8100, 8100]


def test_times_come_from_timestamps_if_those_are_of_the_same_dispatches(tmp_path: Path) -> None:
    main = WIDE.format(counters="SQ_WAVES") + "0,2,64,64,k,5,0,8100\n1,2,64,64,l,6,0,8100\n"
    stamps = "Dispatch_ID,GPU_ID,Kernel_Name,Start_Timestamp,End_Timestamp\n1,2,l,300,450\n0,2,k,100,160\n"
    path = folder(tmp_path, {"pmc_perf.csv": main, "timestamps.csv": stamps})
    reading = checked(rocprof_compute.read(path))
    assert reading.tables["dispatches"].select("start_ns", "end_ns").rows() == [(100, 160), (300, 450)]
    assert "origin of times in pmc_perf.csv" in reasons(reading, "partial")
    (path / "timestamps.csv").write_text(stamps.replace("0,2,k", "2,2,k"))
    assert rocprof_compute.read(path).tables["dispatches"].height == 0
    assert rocprof_compute.read(path).details["timestamps"].height == 2


def test_passes_are_matched_by_number_and_kernel_never_by_order(tmp_path: Path) -> None:
    main = WIDE.format(counters="SQ_WAVES") + "0,2,64,64,k,5,10,20\n1,2,64,64,l,6,30,40\n"
    other = WIDE.format(counters="SQ_ACCUM_PREV_HIRES") + "1,2,64,64,l,7,1030,1045\n0,2,64,64,stranger,8,1010,1020\n"
    reading = checked(rocprof_compute.read(folder(tmp_path, {"pmc_perf.csv": main, "SQ_LEVEL_WAVES.csv": other})))
    named = reading.tables["counters"].select("dispatch_id", "counter", "value", "pass", "pass_duration_ns")
    assert named.rows() == [
        (0, "SQ_WAVES", 5.0, "pmc_perf", 10),
        (1, "SQ_WAVES", 6.0, "pmc_perf", 10),
        (1, "SQ_ACCUM_PREV_HIRES", 7.0, "SQ_LEVEL_WAVES", 15),
        (2, "SQ_ACCUM_PREV_HIRES", 8.0, "SQ_LEVEL_WAVES", 10),
    ]
    executions = reading.details["counter_dispatches"].select("dispatch_id", "in_dispatches", "kernel_name", "times")
    assert executions.rows() == [
        (0, True, "k", "measured"),
        (1, True, "l", "measured"),
        (1, True, "l", "measured"),
        (2, False, "stranger", "measured"),
    ]
    assert "passes that do not match" in reasons(reading, "partial")


def test_a_dispatch_that_not_all_passes_saw_is_not_put_on_the_first_passs_timeline(tmp_path: Path) -> None:
    rows = ["2,1,64,64,k,10,20,A,1", "2,1,64,64,k,1010,1020,B,2", "2,2,64,64,k,2010,2020,B,3", "2,2,64,64,k,30,40,A,4"]
    rows += ["2,3,64,64,k,1050,1060,B,5", "2,3,64,64,k,1050,1060,B,6"]
    reading = checked(rocprof_compute.read(folder(tmp_path, {"pmc_perf.csv": LONG + "\n".join(rows) + "\n"})))
    assert reading.tables["counters"].select("dispatch_id", "counter", "value", "pass").rows() == [
        (0, "A", 1.0, "pmc_perf.1"),
        (0, "B", 2.0, "pmc_perf.2"),
        (1, "B", 3.0, "pmc_perf.2"),
        (1, "A", 4.0, "pmc_perf.1"),
        (2, "B", 11.0, "pmc_perf.unknown1"),
    ]
    assert reading.tables["dispatches"].select("start_ns").to_series().to_list() == [10, 30]
    assert "repeated counters (pmc_perf.csv)" in reasons(reading, "partial")


def test_secrets_of_the_command_and_settings_are_not_kept(tmp_path: Path) -> None:
    files = {
        "pmc_perf.csv": WIDE.format(counters="A") + "0,2,64,64,k,5,10,20\n",
        "sysinfo.csv": "command,hostname,num_xcd\n./run --api-key=abcdef1 x,h,NA\n",
        "profiling_config.yaml": "remaining: ['--token', 'abc']\nnested: {a: {b: 1}}\nverbose: 1\n",
    }
    reading = checked(rocprof_compute.read(folder(tmp_path, files)))
    assert reading.tables["processes"].get_column("command").to_list() == ["./run --api-key=redacted x"]
    assert reading.tables["devices"].get_column("xcc_count").to_list() == [None]
    profiler = reading.tables["environment"].filter(pl.col("category") == "profiler")
    assert dict(profiler.select("key", "value").rows()) == {"remaining": "--token redacted", "verbose": "1"}


@pytest.mark.parametrize(
    "text", ["a: [", "- 1", "&a [*a]", "\0", "[" * 5000, "a: " + "[" * 40 + "]" * 40, "x: {<<: {}}", "a: 2001-99-99"]
)
def test_a_damaged_configuration_is_absent_not_fatal(tmp_path: Path, text: str) -> None:
    files = {"pmc_perf.csv": WIDE.format(counters="A") + "0,2,64,64,k,5,10,20\n", "profiling_config.yaml": text}
    reading = checked(rocprof_compute.read(folder(tmp_path, files)))
    assert "profiler's configuration" in reasons(reading, "absent")


def test_what_is_no_folder_of_the_tool_is_refused(tmp_path: Path) -> None:
    assert rocprof_compute.probe(tmp_path) is None
    assert rocprof_compute.probe(tmp_path / "nothing") is None
    for text in ("", "a,b\n1,2\n"):
        (tmp_path / "pmc_perf.csv").write_text(text)
        assert rocprof_compute.probe(tmp_path) is None
        with pytest.raises(CaptureError, match=r"pmc_perf\.csv"):
            rocprof_compute.read(tmp_path)
    with pytest.raises(CaptureError, match="nothing"):
        rocprof_compute.read(tmp_path / "nothing")


def test_limits_hold(tmp_path: Path) -> None:
    path = folder(tmp_path, {"pmc_perf.csv": WIDE.format(counters="A") + "0,2,64,64,k,5,10,20\n" * 3})
    with pytest.raises(CaptureError, match="more than 2 rows"):
        rocprof_compute.read(path, Limits(events=2))


SMALL = (WIDE.format(counters="SQ_WAVES,Wave_Size_1,TCC_HIT[0]") + '0,2,64,64,"k, l",5,64,9,10,20\n' * 2).encode()
INFO = b"command,gpu_arch,num_xcd,gpu_l2\n./run,gfx942,8,4096\n"


@given(
    changes=st.lists(st.tuples(st.integers(0, len(SMALL) - 1), st.integers(0, 255)), max_size=5),
    end=st.integers(0, len(SMALL)),
    info=st.lists(st.tuples(st.integers(0, len(INFO) - 1), st.integers(0, 255)), max_size=3),
)
def test_damaged_bytes_give_a_reading_or_a_capture_error(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]], end: int, info: list[tuple[int, int]]
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged_workload"
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    for name, whole, places, cut in (("pmc_perf.csv", SMALL, changes, end), ("sysinfo.csv", INFO, info, len(INFO))):
        (path / name).write_bytes(damaged(whole, places, cut))
    (path / "roofline.csv").write_bytes((path / "sysinfo.csv").read_bytes())
    read_or_refused(rocprof_compute, path)


@pytest.mark.parametrize("number", ["", "x", "1e400", "-1", "18446744073709551616"])
def test_ceilings_of_a_device_without_a_number_are_no_ceilings(tmp_path: Path, number: str) -> None:
    main = WIDE.format(counters="SQ_WAVES") + "0,2,1024,256,k,16,100,200\n"
    roofline = f"device,HBMBw,L2Bw\n{number},4000,8000\n"
    reading = checked(rocprof_compute.read(folder(tmp_path, {"pmc_perf.csv": main, "roofline.csv": roofline})))
    assert "ceilings" not in reading.tables
    assert "ceilings by device" in reasons(reading, "partial")


@pytest.mark.parametrize(
    ("log", "status"), [("Counter,Message\nSQ_WAVES,failed\n", "absent"), ("no table at all", "absent"), ("", "absent")]
)
def test_a_stray_file_of_the_profilers_own_is_told_and_refuses_nothing(tmp_path: Path, log: str, status: str) -> None:
    main = WIDE.format(counters="SQ_WAVES") + "0,2,1024,256,k,16,100,200\n"
    files = {"pmc_perf.csv": main, "SQ_LEVEL_WAVES_error_log.csv": log}
    reading = checked(rocprof_compute.read(folder(tmp_path, files)))
    assert reading.tables["counters"].height == 1
    assert "file SQ_LEVEL_WAVES_error_log.csv" in reasons(reading, status)


@pytest.mark.parametrize(
    ("figures", "found"),
    [
        (("1000", "1000.5", "1001"), {"dram": 1000.5e9}),
        (("1000", "1005", "1010"), {"dram": 1005e9}),
        (("1000", "1005", "1011"), {}),
        (("1000", "1000", "0"), {}),
        (("1000", "1000", "x"), {}),
    ],
)
def test_of_several_measured_devices_a_figure_holds_where_they_agree(
    tmp_path: Path, figures: tuple[str, ...], found: dict[str, float]
) -> None:
    main = WIDE.format(counters="SQ_WAVES") + "0,2,1024,256,k,16,100,200\n"
    rows = "".join(f"{number},{figure}\n" for number, figure in enumerate(figures))
    files = {"pmc_perf.csv": main, "roofline.csv": f"device,HBMBw\n{rows}"}
    reading = checked(rocprof_compute.read(folder(tmp_path, files)))
    ceilings = reading.tables.get("ceilings")
    stated = {} if ceilings is None else dict(ceilings.select("resource", "value").iter_rows())
    assert stated == pytest.approx(found)


def test_of_one_measured_device_nothing_is_said_about_a_second_one_that_ran(tmp_path: Path) -> None:
    main = WIDE.format(counters="SQ_WAVES") + "0,2,1024,256,k,16,100,200\n1,3,1024,256,k,16,300,400\n"
    files = {"pmc_perf.csv": main, "roofline.csv": "device,HBMBw\n0,1000\n"}
    reading = checked(rocprof_compute.read(folder(tmp_path, files)))
    assert "ceilings" not in reading.tables
    assert "ceilings by device" in reasons(reading, "partial")


def test_a_ceiling_that_is_no_number_was_not_measured(tmp_path: Path) -> None:
    main = WIDE.format(counters="SQ_WAVES") + "0,2,1024,256,k,16,100,200\n"
    files = {"pmc_perf.csv": main, "roofline.csv": "device,HBMBw,L2Bw\n0,4x00,8000\n"}
    reading = checked(rocprof_compute.read(folder(tmp_path, files)))
    assert reading.tables["ceilings"].get_column("resource").to_list() == ["l2"]
