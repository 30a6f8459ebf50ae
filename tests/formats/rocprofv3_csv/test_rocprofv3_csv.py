"""CSV tables of rocprofv3: every real sample, runs of several tables, and every trap in small files."""

from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats import rocprof as rocprof_v1
from aaco_pipeline.formats import rocprofv3_csv
from aaco_pipeline.formats.capture_tables import CaptureTables, Limits
from aaco_pipeline.formats.parsing.counter_passes import COUNTER_DISPATCHES
from tests.formats import readings
from tests.formats.readings import damaged, reasons
from tests.places import SHARED

SAMPLES = SHARED / "captures" / "documentation_csv"
DECODE = SHARED / "captures" / "gfx1151_rocprofv3_csv"
real = pytest.mark.skipif(not SAMPLES.is_dir(), reason="the shared captures are not here")
#: Sample: the table its rows go to and how many; an empty name for what is no table of the tool.
TAKEN = {
    "counter_collection.csv": ("counters", 4),
    "hip_api_stats.csv": ("reported_statistics", 17),
    "hip_compile_trace.csv": ("api_calls", 5),
    "hip_domain_stats.csv": ("reported_statistics", 1),
    "hip_runtime_trace.csv": ("api_calls", 8),
    "hip_trace.csv": ("api_calls", 17),
    "hsa_api_trace.csv": ("api_calls", 10),
    "hsa_core_api_trace.csv": ("api_calls", 32),
    # By their headers these two are tables like any other: counters of 6.2, and markers set from Python.
    "kernel_names.csv": ("counters", 4),
    "python_bindings.csv": ("markers", 6),
    "kernel_trace.csv": ("dispatches", 9),
    "kernel_trace_truncated.csv": ("dispatches", 4),
    "list-avail.txt": ("", 0),
    "marker_api_trace.csv": ("markers", 5),
    "memory_allocation_trace.csv": ("memory_allocations", 4),
    "memory_copy_trace.csv": ("memory_copies", 4),
    "pc_sampling_host_trap.csv": ("pc_samples", 79),
    "pc_sampling_host_trap_debug.csv": ("pc_samples", 21),
    "pc_sampling_stochastic_debug.csv": ("pc_samples", 97),
    "rccl_trace.csv": ("api_calls", 21),
    "rocdecode_api_trace.csv": ("api_calls", 6),
    "rocjpeg_api_trace.csv": ("api_calls", 4),
    "rocm-smi.txt": ("", 0),
    "rocpd-to-csv.csv": ("api_calls", 13),
    "scratch_memory_trace.csv": ("memory_allocations", 2),
    "summary.txt": ("", 0),
}
KERNELS = (
    '"Kind","Agent_Id","Queue_Id","Stream_Id","Thread_Id","Dispatch_Id","Kernel_Id","Kernel_Name","Correlation_Id",'
    '"Start_Timestamp","End_Timestamp","LDS_Block_Size","Scratch_Size","VGPR_Count","Accum_VGPR_Count","SGPR_Count",'
    '"Workgroup_Size_X","Workgroup_Size_Y","Workgroup_Size_Z","Grid_Size_X","Grid_Size_Y","Grid_Size_Z"\n'
)
KERNEL = (
    '"KERNEL_DISPATCH","{agent}",{queue},1,7,{dispatch},1,"{name}",{link},{start},{end},0,0,8,0,16,64,1,1,128,2,1\n'
)
COUNTERS = (
    '"Correlation_Id","Dispatch_Id","Agent_Id","Queue_Id","Process_Id","Thread_Id","Grid_Size","Kernel_Id",'
    '"Kernel_Name","Workgroup_Size","LDS_Block_Size","Scratch_Size","VGPR_Count","Accum_VGPR_Count","SGPR_Count",'
    '"Counter_Name","Counter_Value","Start_Timestamp","End_Timestamp"\n'
)
COUNTER = '{d},{d},"Agent 1",1,50,50,256,1,"{name}",64,0,0,8,0,16,"{counter}",{value},{start},{end}\n'
CALLS = '"Domain","Function","Process_Id","Thread_Id","Correlation_Id","Start_Timestamp","End_Timestamp"\n'


def checked(reading: CaptureTables) -> CaptureTables:
    readings.checked(reading)
    if "counter_dispatches" in reading.details:
        assert reading.details["counter_dispatches"].schema == COUNTER_DISPATCHES
    return reading


def written(tmp_path: Path, name: str, content: str | bytes) -> Path:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def kernel(dispatch: int, start: int, end: int, name: str = "k", *, agent: str = "Agent 1", queue: int = 1) -> str:
    return KERNEL.format(agent=agent, queue=queue, dispatch=dispatch, name=name, link=dispatch, start=start, end=end)


def counter(dispatch: int, value: float, start: object, end: object, name: str = "k", *, counter: str = "A") -> str:
    return COUNTER.format(d=dispatch, name=name, counter=counter, value=value, start=start, end=end)


@real
def test_no_sample_is_forgotten() -> None:
    assert {path.name for path in SAMPLES.iterdir()} == set(TAKEN)


@real
@pytest.mark.parametrize("name", TAKEN)
def test_every_sample_is_recognized_or_not_and_no_row_is_lost(name: str) -> None:
    path, (table, rows) = SAMPLES / name, TAKEN[name]
    if not table:
        assert rocprofv3_csv.probe(path) is None
        with pytest.raises(CaptureError, match=name):
            rocprofv3_csv.read(path)
        return
    assert rocprofv3_csv.probe(path) is not None
    assert rocprof_v1.probe(path) is None
    reading = checked(rocprofv3_csv.read(path))
    assert reading.tables[table].height == rows
    assert reading.details["source_rows"].select("rows_in", "rows_out").rows() == [(rows, rows)]


@real
@pytest.mark.parametrize("path", sorted(SHARED.glob("counters/llamacpp_decode/*/*.csv")), ids=lambda path: path.name)
def test_real_counter_tables(path: Path) -> None:
    source = pl.read_csv(path)
    reading = checked(rocprofv3_csv.read(path))
    assert reading.tables["counters"].get_column("value").to_list() == source.get_column("Counter_Value").to_list()
    numbers = reading.details["dispatch_keys"].get_column("source_dispatch_id")
    dispatch_ids = reading.tables["counters"].get_column("dispatch_id")
    assert numbers.gather(dispatch_ids.cast(pl.UInt32)).to_list() == source.get_column("Dispatch_Id").to_list()
    assert reading.tables["counters"].get_column("pass").unique().to_list() == [path.name.split("_")[0]]


@real
def test_a_real_run_links_graph_launches_and_kernels() -> None:
    paths = [DECODE / f"decode_{kind}.csv" for kind in ("kernel_trace", "hip_api_trace")]
    assert len({rocprofv3_csv.run_key(path) for path in paths}) == 1
    assert rocprofv3_csv.run_key(DECODE / "decode_stall_counter_collection.csv").endswith("decode_stall")
    reading = checked(rocprofv3_csv.read_run(paths))
    dispatches, calls = reading.tables["dispatches"], reading.tables["api_calls"]
    assert reading.tables["processes"].get_column("pid").to_list() == [2684120]
    assert (dispatches.height, calls.height) == (144, 920)
    linked = dispatches.join(calls, on=["process_id", "correlation_id"], how="semi").height
    launches = next(evidence for evidence in reading.evidence if evidence.item == "launches")
    assert launches.rows == linked
    first = dispatches.row(0, named=True)
    assert (first["start_ns"], first["end_ns"]) == (342331487558371, 342331487561256)
    assert (first["grid_x"], first["workgroup_x"], first["thread_id"]) == (24576, 256, 2684120)
    assert reading.details["dispatch_keys"].row(0) == (0, 164)


@real
def test_samples_mean_what_the_tool_says() -> None:
    stochastic = rocprofv3_csv.read(SAMPLES / "pc_sampling_stochastic_debug.csv").tables["pc_samples"]
    first = stochastic.row(0, named=True)
    assert (first["execution_mask"], first["wave_issued"], first["stall_reason"]) == (2**64 - 1, False, "waitcnt")
    assert (first["source_dispatch_id"], first["time_ns"], first["active_waves"]) == (24, 390705261841337, 4)
    issued = stochastic.filter("wave_issued")
    assert issued.height > 0
    assert issued.get_column("stall_reason").null_count() == issued.height
    assert issued.get_column("instruction_type").null_count() == 0
    trapped = rocprofv3_csv.read(SAMPLES / "pc_sampling_host_trap.csv").tables["pc_samples"]
    for column in ("wave_issued", "stall_reason", "instruction_type", "source", "dispatch_id"):
        assert trapped.get_column(column).null_count() == trapped.height


@real
def test_domains_markers_memory_and_guids() -> None:
    hsa = rocprofv3_csv.read(SAMPLES / "hsa_api_trace.csv").tables["api_calls"]
    assert set(hsa.get_column("domain")) == {"hsa_core", "hsa_amd"}
    hip = rocprofv3_csv.read(SAMPLES / "hip_trace.csv").tables["api_calls"]
    assert set(hip.get_column("domain")) == {"hip_runtime", "hip_compiler"}
    converted = rocprofv3_csv.read(SAMPLES / "rocpd-to-csv.csv").tables["processes"]
    assert converted.select("guid", "pid").rows() == [("0000ddb5-8903-7903-b269-cd8d3745bb8a", 137)]
    markers = rocprofv3_csv.read(SAMPLES / "marker_api_trace.csv").tables["markers"]
    assert markers.get_column("name").to_list()[0] == "before hipLaunchKernel"
    assert markers.get_column("thread_id").to_list() == [717, 717, 717, 717, None]
    memory = rocprofv3_csv.read(SAMPLES / "memory_allocation_trace.csv").tables["memory_allocations"]
    assert memory.get_column("size_bytes").to_list() == [1024, 1024, None, None]
    assert memory.get_column("address")[0] == 0x7FFB26354000
    copies = rocprofv3_csv.read(SAMPLES / "memory_copy_trace.csv").tables["memory_copies"]
    columns = ("direction", "device_id", "source_device_id", "destination_device_id", "size_bytes")
    assert copies.select(columns).rows()[1:3] == [
        ("host_to_device", 0, None, 0, None),
        ("device_to_host", 0, 0, None, None),
    ]


def test_the_header_decides_in_any_case_and_order(tmp_path: Path) -> None:
    text = "END_TIMESTAMP,start_timestamp,FUNCTION,domain,Guid\n20,10,hipMalloc,HIP_RUNTIME_API,g\n"
    reading = checked(rocprofv3_csv.read(written(tmp_path, "anything.dat", text)))
    call = reading.tables["api_calls"].row(0, named=True)
    assert (call["domain"], call["name"], call["start_ns"], call["end_ns"]) == ("hip_runtime", "hipMalloc", 10, 20)
    assert (call["thread_id"], call["correlation_id"]) == (None, None)


def test_the_segments_of_older_releases(tmp_path: Path) -> None:
    header = KERNELS.replace('"Stream_Id",', "").replace(
        '"LDS_Block_Size","Scratch_Size","VGPR_Count","Accum_VGPR_Count","SGPR_Count"',
        '"Private_Segment_Size","Group_Segment_Size"',
    )
    row = '"KERNEL_DISPATCH",4,1,7,1,1,"k",9,10,20,32,4096,64,1,1,128,2,1\n'
    reading = checked(rocprofv3_csv.read(written(tmp_path, "1_kernel_trace.csv", header + row)))
    dispatch = reading.tables["dispatches"].row(0, named=True)
    assert (dispatch["lds_allocated_bytes"], dispatch["scratch_bytes"], dispatch["stream_id"]) == (4096, 32, None)
    assert reading.tables["kernels"].get_column("arch_vgprs").to_list() == [None]
    assert reading.tables["devices"].get_column("handle").to_list() == ["4"]


@pytest.mark.parametrize(
    "change",
    [
        lambda text: b"\xef\xbb\xbf" + text,
        lambda text: text.replace(b"\n", b"\r\n"),
        lambda text: text.decode().encode("utf-16"),
        lambda text: text + b"\n\n",
        lambda text: text.removesuffix(b"\n"),
        lambda text: text.replace(b',1,7,1,1,"k"', b',"1","7","1","1","k"'),
    ],
    ids=["byte-order mark", "windows", "utf-16", "blank lines", "no last line end", "numbers in quotes"],
)
def test_other_ways_to_write_the_same(tmp_path: Path, change: object) -> None:
    text = (KERNELS + kernel(1, 2**53 + 1, 2**53 + 8)).encode()
    path = written(tmp_path, "1_kernel_trace.csv", change(text))  # type: ignore[operator]
    assert rocprofv3_csv.probe(path) is not None
    reading = checked(rocprofv3_csv.read(path))
    assert reading.tables["dispatches"].select("start_ns", "end_ns").rows() == [(2**53 + 1, 2**53 + 8)]
    assert "end of 1_kernel_trace.csv" not in reasons(reading, "partial")


def test_names_with_commas_quotes_and_line_ends_survive(tmp_path: Path) -> None:
    text = KERNELS + kernel(1, 10, 20, 'f<""a"",\nb>(int)') + kernel(2, 30, 40)
    reading = checked(rocprofv3_csv.read(written(tmp_path, "1_kernel_trace.csv", text)))
    assert reading.tables["kernels"].get_column("name").to_list() == ['f<"a",\nb>(int)', "k"]


@pytest.mark.parametrize("kept", range(1, 100, 7))
def test_a_cut_last_row_is_left_out_and_told(tmp_path: Path, kept: int) -> None:
    row = kernel(1, 10, 20, 'a ""b"",\nc')
    path = written(tmp_path, "1_kernel_trace.csv", KERNELS + kernel(2, 5, 6) + row[: min(kept, len(row) - 3)])
    reading = checked(rocprofv3_csv.read(path))
    assert reading.tables["dispatches"].select("start_ns").to_series().to_list() == [5]
    assert "end of 1_kernel_trace.csv" in reasons(reading, "partial")


def test_rows_without_what_is_essential_are_counted(tmp_path: Path) -> None:
    text = (
        KERNELS
        + kernel(1, 10, 20)
        + KERNEL.format(agent="Agent 1", queue=1, dispatch=2, name="k", link=2, start=2**63, end=30)
    )
    reading = checked(rocprofv3_csv.read(written(tmp_path, "1_kernel_trace.csv", text)))
    assert reading.details["source_rows"].rows() == [("kernel_trace (1_kernel_trace.csv)", 2, 1)]
    assert "unusable rows of 1_kernel_trace.csv" in reasons(reading, "invalid")


@pytest.mark.parametrize("column", ["Start_Timestamp", "End_Timestamp"])
def test_a_missing_essential_column_is_named(tmp_path: Path, column: str) -> None:
    path = written(tmp_path, "1_kernel_trace.csv", KERNELS.replace(column, "Other") + kernel(1, 10, 20))
    with pytest.raises(CaptureError, match=f"1_kernel_trace.*{column.lower()}"):
        rocprofv3_csv.read(path)


def test_odd_times_are_kept_and_told(tmp_path: Path) -> None:
    text = KERNELS + kernel(1, 10, 30) + kernel(2, 20, 40) + kernel(3, 50, 45) + kernel(4, 20, 25, queue=2)
    reading = checked(rocprofv3_csv.read(written(tmp_path, "1_kernel_trace.csv", text)))
    assert reading.tables["dispatches"].get_column("self_ns").to_list() == [20, 20, 0, 5]
    assert "reversed times of dispatches" in reasons(reading, "invalid")
    overlapping = next(e for e in reading.evidence if e.item == "overlapping dispatches")
    assert overlapping.rows == 1


def test_the_tables_of_a_run_share_their_numbers(tmp_path: Path) -> None:
    calls = CALLS + '"HIP_RUNTIME_API_EXT","hipLaunchKernel",50,7,1,1,5\n"MARKER_CORE_API","",50,7,3,1,9\n'
    copies = (
        '"Kind","Direction","Stream_Id","Source_Agent_Id","Destination_Agent_Id","Correlation_Id","Start_Timestamp",'
        '"End_Timestamp"\n"MEMORY_COPY","DEVICE_TO_DEVICE",1,"Agent 1","Agent 2",9,50,60\n'
    )
    samples = (
        '"Sample_Timestamp","Exec_Mask","Dispatch_Id","Instruction","Instruction_Comment","Correlation_Id"\n'
        '15,1,2,"s_nop","",2\n16,1,99,"s_nop","",2\n'
    )
    paths = [
        written(tmp_path, "r_kernel_trace.csv", KERNELS + kernel(1, 10, 20) + kernel(2, 30, 40, agent="Agent 2")),
        written(tmp_path, "r_hip_api_trace.csv", calls),
        written(tmp_path, "r_memory_copy_trace.csv", copies),
        written(tmp_path, "r_pc_sampling_host_trap.csv", samples),
        written(tmp_path, "r_counter_collection.csv", COUNTERS + counter(2, 7, 30, 40) + counter(1, 6, 10, 20)),
    ]
    assert len({rocprofv3_csv.run_key(path) for path in paths}) == 1
    reading = checked(rocprofv3_csv.read_run(paths))
    tables = reading.tables
    assert tables["processes"].select("process_id", "pid").rows() == [(0, 50)]
    assert tables["devices"].get_column("handle").to_list() == ["Agent 1", "Agent 2"]
    assert tables["dispatches"].select("process_id", "device_id", "stream_id").rows() == [(0, 0, 0), (0, 1, 0)]
    copy = tables["memory_copies"].row(0, named=True)
    assert (copy["source_device_id"], copy["destination_device_id"], copy["device_id"]) == (0, 1, None)
    assert copy["stream_id"] == 0
    assert tables["pc_samples"].get_column("dispatch_id").to_list() == [1, None]
    assert tables["counters"][:, :5].rows() == [(1, "A", 7.0, "r", 10), (0, "A", 6.0, "r", 10)]
    assert tables["dispatches"].height == 2
    assert tables["markers"].get_column("name").to_list() == [""]
    assert "1 of 2 dispatches" in (reasons(reading, "partial")["launches"] or "")


def test_counters_match_by_number_and_name_only(tmp_path: Path) -> None:
    trace = written(tmp_path, "r_kernel_trace.csv", KERNELS + kernel(1, 10, 20) + kernel(2, 30, 40, "l"))
    rows = counter(1, 5, 9010, 9017) + counter(2, 6, 30, 40, "other") + counter(3, 7, "", "")
    counters = written(tmp_path, "r_counter_collection.csv", COUNTERS + rows)
    reading = checked(rocprofv3_csv.read_run([trace, counters]))
    executions = reading.details["counter_dispatches"]
    assert executions.select("source_dispatch_id", "dispatch_id", "in_dispatches", "duration_ns").rows() == [
        (1, 0, True, 7),
        (2, 2, True, 10),
        (3, 3, False, None),
    ]
    assert reading.tables["dispatches"].get_column("start_ns").to_list() == [10, 30, 30]
    assert "executions beside the trace" in reasons(reading, "partial")
    assert reading.tables["counters"].get_column("dispatch_id").to_list() == [0, 2, 3]


def test_counters_alone_make_dispatches_only_with_times(tmp_path: Path) -> None:
    rows = counter(4, 1, 0, 0) + counter(5, 2, 10, 15) + counter(5, 3, 10, 15, counter="B") + counter(5, 4, 10, 15)
    path = written(tmp_path, "pass_3/host/9_counter_collection.csv", COUNTERS + rows)
    reading = checked(rocprofv3_csv.read(path))
    assert reading.tables["dispatches"].select("dispatch_id", "start_ns").rows() == [(0, 10)]
    assert reading.tables["counters"][:, :5].rows() == [
        (1, "A", 1.0, "pass_3", None),
        (0, "A", 6.0, "pass_3", 5),
        (0, "B", 3.0, "pass_3", 5),
    ]
    assert reading.details["source_rows"].rows() == [("counter_collection (9_counter_collection.csv)", 4, 3)]
    assert "repeated counters (9_counter_collection.csv)" in reasons(reading, "partial")


def test_two_passes_of_equal_file_names_stay_apart(tmp_path: Path) -> None:
    paths = [
        written(tmp_path, f"pass_{number}/9_counter_collection.csv", COUNTERS + counter(1, number, start, start + 5))
        for number, start in ((1, 10), (2, 1000))
    ]
    assert len({rocprofv3_csv.run_key(path) for path in paths}) == 2
    reading = checked(rocprofv3_csv.read_run(paths))
    assert reading.tables["counters"].select("dispatch_id", "value", "pass").rows() == [
        (0, 1.0, "pass_1"),
        (0, 2.0, "pass_2"),
    ]
    assert reading.tables["dispatches"].get_column("start_ns").to_list() == [10]


AGENTS = (
    '"Node_Id","Logical_Node_Id","Agent_Type","Cpu_Cores_Count","Simd_Per_Cu","Wave_Front_Size","Num_Xcc","Cu_Count",'
    '"Max_Engine_Clk_Fcompute","Lds_Size_In_Kb","Logical_Node_Type_Id","Name","Vendor_Name","Product_Name"\n'
    '0,0,"CPU",64,0,0,1,0,0,0,0,"EPYC","CPU",""\n'
    '4,1,"GPU",0,4,64,8,304,2100,64,0,"gfx942","AMD","Instinct MI300X"\n'
    '5,2,"GPU",0,4,64,8,304,2100,64,1,"gfx942","AMD","Instinct MI300X"\n'
)


@pytest.mark.parametrize("agent", ["Agent 2", "5", "GPU 1", "Agent 5"], ids=["relative", "bare", "by type", "absolute"])
def test_an_agents_facts_are_found_by_each_index(tmp_path: Path, agent: str) -> None:
    paths = [
        written(tmp_path, "r_agent_info.csv", AGENTS),
        written(tmp_path, "r_kernel_trace.csv", KERNELS + kernel(1, 10, 20, agent=agent)),
    ]
    reading = checked(rocprofv3_csv.read_run(paths))
    devices = reading.tables["devices"]
    assert devices.height == 3
    assert reading.tables["dispatches"].get_column("device_id").to_list() == [2]
    device = devices.row(2, named=True)
    assert (device["handle"], device["arch"], device["compute_units"], device["xcc_count"]) == (agent, "gfx942", 304, 8)
    assert (device["max_clock_mhz"], device["lds_bytes"], device["wavefront_size"]) == (2100.0, 65536, 64)
    host = devices.row(0, named=True)
    assert (host["arch"], host["product"], host["compute_units"]) == (None, "EPYC", None)


def test_an_agent_that_is_not_listed_is_told(tmp_path: Path) -> None:
    paths = [
        written(tmp_path, "r_agent_info.csv", AGENTS),
        written(tmp_path, "r_kernel_trace.csv", KERNELS + kernel(1, 10, 20, agent="Agent 9")),
    ]
    reading = checked(rocprofv3_csv.read_run(paths))
    assert reading.tables["dispatches"].get_column("device_id").to_list() == [3]
    assert "Agent 9" in (reasons(reading, "partial")["facts of devices"] or "")


def test_processes_that_a_table_does_not_name(tmp_path: Path) -> None:
    two = CALLS + '"HIP_RUNTIME_API","a",50,7,1,1,5\n"HIP_RUNTIME_API","b",60,7,1,1,5\n'
    paths = [
        written(tmp_path, "r_hip_api_trace.csv", two),
        written(tmp_path, "r_kernel_trace.csv", KERNELS + kernel(1, 10, 20)),
    ]
    reading = checked(rocprofv3_csv.read_run(paths))
    assert reading.tables["processes"].get_column("pid").to_list() == [50, 60, None]
    assert reading.tables["dispatches"].get_column("process_id").to_list() == [2]


@pytest.mark.parametrize(
    ("name", "prefix"),
    [
        ("kernel_trace.csv", ""),
        ("12_kernel_trace.csv", "12"),
        ("a_b_hip_api_trace.csv", "a_b"),
        ("hip_trace.csv", ""),
        ("x_memory_copy_trace.csv", "x"),
        ("x_scratch_memory_stats.csv", "x"),
        ("x_domain_stats.csv", "x"),
        ("kernel_stats.csv", ""),
        ("x_hip_api_stats.csv.gz", "x"),
        ("x_pc_sampling_stochastic.csv", "x"),
        ("x_agent_info.csv", "x"),
        ("strange.csv", "strange.csv"),
    ],
)
def test_what_files_of_a_run_have_in_common(name: str, prefix: str) -> None:
    assert rocprofv3_csv.run_key(Path("folder") / name) == str(Path("folder") / prefix)


@pytest.mark.parametrize(
    ("name", "domain"),
    [("9_kernel_stats.csv", "kernel"), ("9_hip_api_stats.csv", "hip_api"), ("domain_stats.csv", "domain"),
     ("9_memory_copy_stats.csv", "memory_copy"), ("9_scratch_memory_stats.csv", "scratch_memory")],
)  # fmt: skip
def test_statistics_name_what_they_sum(tmp_path: Path, name: str, domain: str) -> None:
    text = '"Name","Calls","TotalDurationNs","AverageNs","Percentage","MinNs","MaxNs","StdDev"\n'
    text += '"a, b",2,101,50.500000,100.00,50,51,0.00000000e+00\n'
    table = checked(rocprofv3_csv.read(written(tmp_path, name, text))).tables["reported_statistics"]
    assert table.rows() == [(name, domain, "a, b", 2, 101, 50, 50, 51, 0, 1.0)]


def test_a_header_alone_is_a_table_without_rows(tmp_path: Path) -> None:
    for name, header in (("kernel_trace", KERNELS), ("counter_collection", COUNTERS), ("hip_api_trace", CALLS)):
        reading = checked(rocprofv3_csv.read(written(tmp_path, f"1_{name}.csv", header)))
        assert all(frame.height == 0 for frame in reading.tables.values())
        assert f"1_{name}.csv" in reasons(reading, "absent")


@pytest.mark.parametrize("content", [b"", b"\n", b"\0" * 100, b"a,b\n1,2\n", b"\x1f\x8b\x08broken", b'"a', b"\xff\xfe"])
def test_strangers_are_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = written(tmp_path, "strange.csv", content)
    assert rocprofv3_csv.probe(path) is None
    with pytest.raises(CaptureError, match=r"strange\.csv"):
        rocprofv3_csv.read(path)


def test_limits_hold(tmp_path: Path) -> None:
    path = written(tmp_path, "1_kernel_trace.csv", KERNELS + kernel(1, 10, 20) * 3)
    for limits in (Limits(events=2), Limits(file_bytes=100), Limits(line_bytes=50)):
        with pytest.raises(CaptureError):
            rocprofv3_csv.read(path, limits)
    with pytest.raises(CaptureError):
        rocprofv3_csv.read_run([])


SMALL = {
    "kernel_trace": (KERNELS + kernel(1, 10, 20) + kernel(2, 30, 40, "a, b")).encode(),
    "counter_collection": (COUNTERS + counter(1, 5, 10, 20) + counter(1, 6, 10, 20, counter="B")).encode(),
    "agent_info": AGENTS.encode(),
    "hip_api_trace": (CALLS + '"HIP_RUNTIME_API","a",50,7,1,1,5\n').encode(),
}


@given(
    kind=st.sampled_from(sorted(SMALL)),
    changes=st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=6),
    cut=st.integers(0, 2000),
)
def test_damaged_bytes_give_a_reading_or_a_capture_error(
    tmp_path_factory: pytest.TempPathFactory, kind: str, changes: list[tuple[int, int]], cut: int
) -> None:
    folder = tmp_path_factory.getbasetemp()
    whole = written(folder, "whole_kernel_trace.csv", SMALL["kernel_trace"])
    path = written(folder, f"damaged_{kind}.csv", damaged(SMALL[kind], changes, cut))
    rocprofv3_csv.probe(path)
    try:
        reading = rocprofv3_csv.read_run([whole, path])
    except CaptureError:
        return
    checked(reading)


def test_a_damaged_file_beside_good_ones_of_its_run_is_told_and_refuses_nothing(tmp_path: Path) -> None:
    good, bad = tmp_path / "1_kernel_trace.csv", tmp_path / "1_hip_api_trace.csv"
    row = KERNEL.format(agent="Agent 1", queue=1, dispatch=1, name="k", link=1, start=10, end=20)
    good.write_text(KERNELS + row)
    bad.write_text("Domain,Function\nHIP,hipMalloc\n")
    reading = rocprofv3_csv.read_run([bad, good], Limits())
    assert reading.tables["dispatches"].height == 1
    (told,) = [item for item in reading.evidence if item.item == "file 1_hip_api_trace.csv"]
    assert told.status == "invalid" and "start_timestamp" in (told.reason or "")
    with pytest.raises(CaptureError, match="1_hip_api_trace"):
        rocprofv3_csv.read_run([bad], Limits())
