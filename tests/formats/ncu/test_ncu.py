"""CSV of Nsight Compute: both pages, units, what stands around the table, and damaged files."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats import ncu
from aaco_pipeline.formats.capture_tables import CaptureTables, Limits
from tests.formats.readings import checked

DESCRIBED = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size",'
    '"Device","CC"'
)
AROUND = '==PROF== Connected to process 41 (/tmp/program)\n==PROF== Profiling "k" - 0: 0%....100% - 2 passes\n'
RAW = (
    f'{AROUND}{DESCRIBED},"dram__bytes_read.sum","smsp__inst_executed.sum"\n'
    + ",".join(['""'] * 11)
    + ',"Mbyte","inst"\n'
)


def row(number: int, name: str = "_Z4copyPKfPf", *values: str, pid: int = 41) -> str:
    fields = (number, pid, "program", "127.0.0.1", name, 1, 7, "(256, 1, 1)", "(1024, 2, 1)", 0, "9.0", *values)
    return ",".join(f'"{field}"' for field in fields) + "\n"


def read(folder: Path, text: str) -> CaptureTables:
    path = folder / "ncu.csv"
    path.write_text(text)
    return checked(ncu.read(path))


def values(reading: CaptureTables) -> list[tuple[int, str, float]]:
    return reading.tables["counters"].select("dispatch_id", "counter", "value").sort("dispatch_id", "counter").rows()


def test_the_raw_page_gives_every_metric_of_every_kernel_in_base_units(tmp_path: Path) -> None:
    text = RAW + row(0, "_Z4copyPKfPf", "67.11", "1,024") + row(1, "_Z4copyPKfPf", "8", "n/a")
    reading = read(tmp_path, text)
    assert values(reading) == [
        (0, "dram__bytes_read.sum", pytest.approx(67.11e6)),
        (0, "smsp__inst_executed.sum", 1024.0),
        (1, "dram__bytes_read.sum", 8e6),
    ]
    (unread,) = (item for item in reading.evidence if item.status == "invalid")
    assert unread.rows == 1


def test_the_plain_page_says_the_same_and_rows_of_rules_and_launches_are_no_counters(tmp_path: Path) -> None:
    long = f'{AROUND}{DESCRIBED},"Section Name","Metric Name","Metric Unit","Metric Value"\n'
    text = (
        long
        + row(0, "k", "Command line profiler metrics", "dram__bytes_read.sum", "Kbyte", "67,112.96")
        + row(0, "k", "Command line profiler metrics", "gpu__time_duration.sum", "usecond", "52.5")
        + row(0, "k", "Command line profiler metrics", "dram__bytes_read.max", "byte", "7")
        + row(0, "k", "SpeedOfLight", "", "", "")
        + row(0, "k", "Launch Statistics", "launch__registers_per_thread", "register/thread", "32")
        + row(1, "k", "Command line profiler metrics", "dram__bytes_read.sum", "byte", "32")
    )
    assert values(read(tmp_path, text)) == [
        (0, "dram__bytes_read.sum", 67_112_960.0),
        (1, "dram__bytes_read.sum", 32.0),
    ]


def test_an_execution_keeps_its_number_process_and_sizes_in_work_items_and_has_no_times(tmp_path: Path) -> None:
    reading = read(tmp_path, RAW + row(3, "_Z1kv", "1", "2") + row(3, "_Z1kv", "1", "2", pid=42))
    found = reading.details["counter_dispatches"]
    assert found["source_dispatch_id"].to_list() == [3, 3]
    assert found["process_id"].to_list() == [0, 1]
    assert found["grid_size"].unique().to_list() == [1024 * 2 * 256]
    assert found["workgroup_size"].unique().to_list() == [256]
    assert found["times"].unique().to_list() == ["absent"]
    assert reading.tables["counters"]["pass_duration_ns"].null_count() == reading.tables["counters"].height
    assert reading.tables["devices"].select("vendor", "arch", "wavefront_size").rows() == [("NVIDIA", "sm_90", 32)]
    assert reading.details["mangled_kernels"]["name"].to_list() == ["_Z1kv"]


def test_what_the_program_writes_around_the_table_is_passed_over(tmp_path: Path) -> None:
    text = RAW + row(0, "k", "1", "2") + "done: 3 launches\n==PROF== Disconnected from process 41\n"
    assert len(values(read(tmp_path, text))) == 2


def test_a_run_without_kernels_is_told_and_a_text_without_a_table_refused(tmp_path: Path) -> None:
    reading = read(tmp_path, RAW)
    assert {item.reason for item in reading.evidence if item.status == "absent"} >= {"no kernel was profiled"}
    path = tmp_path / "other.csv"
    path.write_text("==PROF== Connected to process 41\n==ERROR== nothing\n")
    assert ncu.probe(path) is None
    with pytest.raises(CaptureError, match="no table of ncu"):
        ncu.read(path)


@given(st.integers(0, len(RAW) + 200))
def test_every_beginning_of_a_file_is_read_or_refused_in_one_line(
    tmp_path_factory: pytest.TempPathFactory, end: int
) -> None:
    whole = RAW + row(0, "k", "1", "2") + row(1, "k", "3", "4")
    path = tmp_path_factory.mktemp("ncu") / "ncu.csv"
    path.write_text(whole[:end])
    try:
        reading = ncu.read(path, Limits())
    except CaptureError as error:
        assert "\n" not in str(error)
        return
    assert set(values(reading)) <= set(values(read(path.parent, whole)))
