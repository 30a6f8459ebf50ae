"""rocprofv3's results files: a real one against the database of the same run, and small made ones for every kind."""

import copy
import gzip
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats import rocprofv3_json
from aaco_pipeline.formats.capture_tables import Limits
from tests.formats.readings import checked, read_or_refused, reason
from tests.places import SHARED

REAL = SHARED / "captures" / "mi350x_rocprofv3_json" / "908_results.json.gz"
DATABASE = SHARED / "captures" / "mi350x_rocpd_43915_dispatches" / "derived_results.db.gz"
needs_captures = pytest.mark.skipif(not REAL.is_file(), reason=f"no real captures in {SHARED}")
KEY = "20260101T000000Z-00000000"
LAST = 2**64 - 1


def timed(start: int, end: int, internal: int, kind: int = 0, operation: int = 0) -> dict[str, Any]:
    return {
        "kind": kind, "operation": operation, "thread_id": 77, "start_timestamp": start, "end_timestamp": end,
        "correlation_id": {"internal": internal, "external": {"value": LAST}, "ancestor": 0},
    }  # fmt: skip


def info(number: int, kernel: int = 1) -> dict[str, Any]:
    return {
        "agent_id": {"handle": 500}, "queue_id": {"handle": LAST}, "kernel_id": kernel, "dispatch_id": number,
        "private_segment_size": 16, "group_segment_size": 256,
        "workgroup_size": {"x": 64, "y": 1, "z": 1}, "grid_size": {"x": 640, "y": 2, "z": 3},
    }  # fmt: skip


def dispatch(number: int, start: int, end: int, kernel: int = 1) -> dict[str, Any]:
    return {**timed(start, end, number, 4), "dispatch_info": info(number, kernel), "stream_id": {"handle": 0}}


def counted(number: int, values: list[tuple[int, float]]) -> dict[str, Any]:
    return {
        "thread_id": 77,
        "dispatch_data": {
            "dispatch_info": info(number), "start_timestamp": 10, "end_timestamp": 30,
            "correlation_id": {"internal": number, "external": 0},
        },
        "records": [{"counter_id": {"handle": handle}, "value": value} for handle, value in values],
    }  # fmt: skip


def process(**records: list[dict[str, Any]]) -> dict[str, Any]:
    callbacks = {"counter_collection": records.pop("counter_collection", [])}
    kinds = [
        {"kind": "NONE", "operations": []},
        {"kind": "HIP_RUNTIME_API_EXT", "operations": ["hipMalloc", "hipLaunchKernel"]},
        {"kind": "HSA_AMD_EXT_API", "operations": ["hsa_amd_x"]},
        {"kind": "MEMORY_COPY", "operations": ["MEMORY_COPY_HOST_TO_DEVICE", "MEMORY_COPY_DEVICE_TO_HOST"]},
        {"kind": "KERNEL_DISPATCH", "operations": ["KERNEL_DISPATCH_COMPLETE"]},
        {"kind": "MARKER_CORE_RANGE_API", "operations": ["roctxThreadRangeA"]},
        {"kind": "MEMORY_ALLOCATION", "operations": ["MEMORY_ALLOCATION_ALLOCATE"]},
        {"kind": "SCRATCH_MEMORY", "operations": ["SCRATCH_MEMORY_ALLOC"]},
        {"kind": "RCCL_API", "operations": ["ncclAllReduce"]},
        {"kind": "HSA_FINALIZE_EXT_API", "operations": ["hsa_ext_x"]},
    ]
    return {
        "metadata": {"node": {"hostname": "h", "machine_id": "m"}, "pid": 9, "command": ["run", "--token", "abc"]},
        "agents": [
            {"id": {"handle": 400}, "type": 1, "name": "CPU", "hive_id": 0},
            {"id": {"handle": 500}, "type": 2, "name": "gfx942", "vendor_name": "AMD", "hive_id": LAST},
        ],
        "counters": [{"id": {"handle": 3}, "name": "SQ_WAVES"}],
        "strings": {
            "buffer_records": kinds,
            "marker_api": [{"key": 5, "value": "step \"1\""}],
            "pc_sample_instructions": ["s_endpgm", "v_add"],
            "pc_sample_comments": ["", "a.hip:3"],
        },
        "code_objects": [{"code_object_id": 0}],
        "kernel_symbols": [
            {"kernel_id": 0, "kernel_name": "", "formatted_kernel_name": "0"},
            {"kernel_id": 1, "kernel_name": "k.kd", "formatted_kernel_name": "k", "arch_vgpr_count": 8,
             "sgpr_count": 32, "accum_vgpr_count": 0, "group_segment_size": 128, "private_segment_size": 0},
            {"kernel_id": 2, "kernel_name": "unused.kd", "formatted_kernel_name": "unused"},
        ],
        "callback_records": callbacks,
        "buffer_records": records,
    }  # fmt: skip


def written(path: Path, *processes: dict[str, Any], **options: Any) -> Path:
    path.write_text(json.dumps({"rocprofiler-sdk-tool": list(processes)}, **(options or {"separators": (",", ":")})))
    return path


def every_kind() -> dict[str, Any]:
    sample = {
        "pc": {"code_object_id": 7, "code_object_offset": 64}, "exec_mask": LAST, "timestamp": 15, "dispatch_id": 1,
        "corr_id": {"internal": 1, "external": 0}, "hw_id": {"wave_id": 1}, "wave_cnt": 4,
    }  # fmt: skip
    return process(
        kernel_dispatch=[dispatch(2, 40, 50), dispatch(1, 10, 20)],
        hip_api=[timed(1, 9, 1, 1, 1), timed(2, 3, 2, 1, 99)],
        hsa_api=[timed(1, 2, 3, 2, 0), timed(1, 2, 4, 9, 0)],
        rccl_api=[timed(3, 4, 8, 8, 0)],
        marker_api=[timed(1, 60, 5, 5, 0), timed(2, 2, 6, 5, 0)],
        memory_copy=[
            {**timed(5, 8, 7, 3, 0), "dst_agent_id": {"handle": 500}, "src_agent_id": {"handle": 400}, "bytes": 4096,
             "stream_id": {"handle": 2}},
            {**timed(5, 8, 7, 3, 1), "dst_agent_id": {"handle": 400}, "src_agent_id": {"handle": 500}, "bytes": 1},
        ],
        memory_allocation=[
            {**timed(1, 2, 9, 6, 0), "agent_id": {"handle": 500}, "address": LAST, "allocation_size": 64},
            {**timed(1, 2, 9, 6, 0), "agent_id": {"handle": 400}, "address": {"value": 12}, "allocation_size": 64},
        ],
        scratch_memory=[{**timed(1, 2, 9, 7, 0), "agent_id": {"handle": 500}, "flags": 0}],
        pc_sample_host_trap=[{"inst_index": 1, "record": sample}, {"inst_index": -1, "record": sample}],
        pc_sample_stochastic=[
            {"inst_index": 0, "record": {**sample, "wave_issued": 1, "inst_type": 2, "snapshot": {"stall_reason": 3}}},
            {"inst_index": 0, "record": {
                **sample, "wave_issued": False, "inst_type": 1,
                "snapshot": {"stall_reason": "ROCPROFILER_PC_SAMPLING_INSTRUCTION_NOT_ISSUED_REASON_WAITCNT"}}},
        ],
        counter_collection=[counted(1, [(3, 1.5), (3, 2.0), (4, 7.0)])],
        kfd_events=[{"a": 1}],
    )  # fmt: skip


@needs_captures
def test_the_real_file_holds_what_the_database_of_its_run_holds(tmp_path: Path) -> None:
    reading = checked(rocprofv3_json.read(REAL))
    tables = reading.tables
    frame = tables["dispatches"].join(tables["kernels"], on="kernel_id", how="left", maintain_order="left")
    frame = frame.join(reading.details["dispatch_keys"], on="dispatch_id", how="left", maintain_order="left")
    frame = frame.join(
        reading.details["queues"].select("queue_id", queue="handle"), on="queue_id", maintain_order="left"
    )
    frame = frame.join(
        reading.details["streams"].select("stream_id", stream="handle"), on="stream_id", maintain_order="left"
    )
    database = tmp_path / "derived.db"
    database.write_bytes(gzip.decompress(DATABASE.read_bytes()))
    connection = sqlite3.connect(database)
    facts = (
        *("start", "end", "grid_x", "grid_y", "grid_z", "workgroup_x", "workgroup_y", "workgroup_z", "lds_size"),
        *("scratch_size", "tid", "vgpr_count", "accum_vgpr_count", "sgpr_count", "static_lds_size"),
    )
    listed = ", ".join(facts)
    expected = connection.execute(f"SELECT dispatch_id, name, stream_id, {listed} FROM kernels ORDER BY id")
    queues = [queue for (queue,) in connection.execute("SELECT queue_id FROM kernels ORDER BY id")]
    # The database numbers queues anew; which dispatches share one must be the same.
    pairs = set(zip(queues, frame.get_column("queue").to_list(), strict=True))
    assert len(pairs) == len(set(queues)) == frame.get_column("queue").n_unique()
    assert frame.select(
        *("source_dispatch_id", "name", "stream", "start_ns", "end_ns", "grid_x", "grid_y", "grid_z"),
        *("workgroup_x", "workgroup_y", "workgroup_z", "lds_allocated_bytes", "scratch_bytes", "thread_id"),
        *("arch_vgprs", "accum_vgprs", "sgprs", "static_lds_bytes"),
    ).rows() == expected.fetchall()  # fmt: skip
    connection.close()
    assert (tables["dispatches"].height, reading.details["queues"].height, reading.details["streams"].height) == (
        43_915,
        5,
        567,
    )
    device = tables["devices"].row(0, named=True)
    assert (device["arch"], device["compute_units"], device["xcc_count"], device["handle"]) == (
        "gfx950",
        256,
        8,
        "37946",
    )
    assert tables["devices"].height == 8
    assert tables["processes"].get_column("pid").to_list() == [908]
    starts = tables["dispatches"].sort("start_ns", "end_ns").select("start_ns", "end_ns").rows()
    busy, until = 0, 0
    for start, end in starts:
        busy, until = busy + max(0, end - max(start, until)), max(until, end)
    assert busy == 4_233_112_334
    assert sum(end - start for start, end in starts) == 4_441_741_378
    assert rocprofv3_json.probe(REAL) is not None


def test_every_kind_of_record(tmp_path: Path) -> None:
    reading = checked(rocprofv3_json.read(written(tmp_path / "r.json", every_kind())))
    tables = reading.tables
    assert tables["processes"].select("host", "pid", "command").rows() == [("h", 9, "run --token redacted")]
    assert tables["devices"].select("arch", "handle").rows() == [("gfx942", "500")]
    assert tables["kernels"].select("name", "arch_vgprs", "static_lds_bytes").rows() == [("k", 8, 128)]
    assert reading.details["dispatch_keys"].get_column("source_dispatch_id").to_list() == [1, 2]
    assert tables["dispatches"].select(
        "start_ns", "end_ns", "grid_x", "grid_z", "lds_allocated_bytes", "scratch_bytes", "correlation_id", "thread_id"
    ).rows() == [(10, 20, 640, 3, 256, 16, 1, 77), (40, 50, 640, 3, 256, 16, 2, 77)]  # fmt: skip
    assert reading.details["queues"].get_column("handle").to_list() == [LAST]
    assert tables["api_calls"].select("domain", "name", "correlation_id").rows() == [
        ("hip_runtime", "hipLaunchKernel", 1),
        ("hip_runtime", "operation 99 of kind 1", 2),
        ("hsa_amd", "hsa_amd_x", 3),
        ("hsa_finalizer", "hsa_ext_x", 4),
        ("rccl", "ncclAllReduce", 8),
    ]
    assert tables["markers"].select("name", "start_ns", "end_ns").rows() == [
        ('step "1"', 1, 60),
        ("roctxThreadRangeA", 2, 2),
    ]
    assert tables["memory_copies"].select(
        "direction", "size_bytes", "device_id", "source_device_id", "destination_device_id", "stream_id"
    ).rows() == [("host_to_device", 4096, 0, None, 0, 1), ("device_to_host", 1, 0, 0, None, None)]  # fmt: skip
    assert tables["memory_allocations"].select("kind", "operation", "size_bytes", "address", "device_id").rows() == [
        ("memory", "MEMORY_ALLOCATION_ALLOCATE", 64, LAST, 0),
        ("memory", "MEMORY_ALLOCATION_ALLOCATE", 64, 12, None),
        ("scratch", "SCRATCH_MEMORY_ALLOC", None, None, 0),
    ]
    assert tables["counters"].select("dispatch_id", "counter", "value", "pass_duration_ns").rows() == [
        (0, "SQ_WAVES", 3.5, 20),
        (0, "counter 4", 7.0, 20),
    ]
    assert tables["pc_samples"].select(
        "dispatch_id", "instruction", "source", "execution_mask", "wave_issued", "instruction_type", "stall_reason"
    ).rows() == [
        (0, "v_add", "a.hip:3", LAST, None, None, None),
        (0, None, None, LAST, None, None, None),
        (0, "s_endpgm", None, LAST, True, "matrix", None),
        (0, "s_endpgm", None, LAST, False, None, "waitcnt"),
    ]  # fmt: skip
    rows = {item: (into, out) for item, into, out in reading.details["source_rows"].rows()}
    assert rows["kfd_events"] == (1, 0)
    assert rows["kernel_dispatch"] == (2, 2)
    assert rows["kernel_symbols"] == (3, 1)
    assert tables["clock_domains"].row(0, named=True)["domain"] == "boottime"


def test_layout_does_not_matter(tmp_path: Path) -> None:
    tight = rocprofv3_json.read(written(tmp_path / "a.json", every_kind(), every_kind()))
    wide = rocprofv3_json.read(written(tmp_path / "b.json", every_kind(), every_kind(), indent=3))
    assert tight.tables["dispatches"].get_column("process_id").to_list() == [0, 0, 1, 1]
    assert tight.tables["devices"].height == 1
    for table, frame in tight.tables.items():
        assert frame.equals(wide.tables[table]), table


def test_a_counting_run_has_its_dispatches_from_the_counters(tmp_path: Path) -> None:
    run = process(kernel_dispatch=[], counter_collection=[counted(1, [(3, 1.0)]), counted(2, [])])
    reading = checked(rocprofv3_json.read(written(tmp_path / "r.json", run)))
    assert reading.tables["dispatches"].height == 2
    assert reading.tables["counters"].select("dispatch_id", "value").rows() == [(0, 1.0)]
    assert reason(reading, "dispatches of counter records").startswith("partial: 2")


def test_odd_records_are_kept_or_told(tmp_path: Path) -> None:
    run = process(
        kernel_dispatch=[
            dispatch(1, 50, 40), dispatch(2, 10, 60), dispatch(3, 2**63, 2**63 + 1), dispatch(4, 1, 2, kernel=99),
            dispatch(5, 2**53 + 1, 2**53 + 3),
        ]
    )  # fmt: skip
    del run["agents"][1]
    reading = checked(rocprofv3_json.read(written(tmp_path / "r.json", run)))
    assert reading.tables["dispatches"].get_column("start_ns").to_list() == [50, 10, 1, 2**53 + 1]
    assert reason(reading, "kernel durations").startswith("partial: 1")
    assert reason(reading, "records kernel_dispatch").startswith("invalid: 1 of 5")
    assert reason(reading, "kernel names").startswith("partial: 1")
    assert reason(reading, "description of agent 500").startswith("absent")
    assert "kernel 99" in reading.tables["kernels"].get_column("name").to_list()


def test_half_a_surrogate_pair_in_a_name_is_no_text_and_no_end(tmp_path: Path) -> None:
    document = every_kind()
    document["strings"]["buffer_records"][1]["operations"][1] = "hip\ud800Launch"
    names = rocprofv3_json.read(written(tmp_path / "1_results.json", document)).tables["api_calls"].get_column("name")
    assert "hip?Launch" in names


def test_a_cut_file_is_read_up_to_the_cut(tmp_path: Path) -> None:
    run = process(kernel_dispatch=[dispatch(number, number, number + 1) for number in range(1, 3_001)])
    path = written(tmp_path / "r.json", run)
    whole = path.read_bytes()
    for length in (len(whole) - 1, len(whole) - 4, len(whole) * 2 // 3):
        path.write_bytes(whole[:length])
        reading = checked(rocprofv3_json.read(path))
        count = reading.tables["dispatches"].height
        assert reading.tables["dispatches"].get_column("start_ns").to_list() == list(range(1, count + 1))
        assert count >= 3_000 * 0.6
        assert reason(reading, "kernel events").startswith("partial")


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"{}", b'{"rocprofiler-sdk-tool":[]}', b'{"rocprofiler-sdk-tool":5}', b"\x1f\x8b1",
     b'{"rocprofiler-sdk-tool":[5]}',
     b'{"rocprofiler-sdk-tool":[{"buffer_records":{"kernel_dispatch":[{"kind":"x"}]}}]}',
     b'{"rocprofiler-sdk-tool":[{"agents":' + b"[" * 9_000,
     b'{"rocprofiler-sdk-tool":[{"buffer_records":{"hip_api":[{]}]}}]}'],
)  # fmt: skip
def test_what_is_no_results_file_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "r.json"
    path.write_bytes(content)
    with pytest.raises(CaptureError) as error:
        rocprofv3_json.read(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_an_empty_process_is_a_reading(tmp_path: Path) -> None:
    reading = checked(rocprofv3_json.read(written(tmp_path / "r.json", {})))
    assert reason(reading, "kernel events").startswith("absent")
    strange = {"metadata": 5, "agents": {}, "strings": [], "counters": [4], "buffer_records": [], "kernel_symbols": 1}
    checked(rocprofv3_json.read(written(tmp_path / "s.json", strange)))


def test_limits_and_strangers(tmp_path: Path) -> None:
    path = written(tmp_path / "r.json", every_kind())
    for limits in (Limits(events=1), Limits(file_bytes=100), Limits(depth=3)):
        with pytest.raises(CaptureError):
            rocprofv3_json.read(path, limits)
    assert rocprofv3_json.probe(path) is not None
    for content in (b"", b"{", b'{"traceEvents":[]}', b"\x1f\x8b"):
        path.write_bytes(content)
        assert rocprofv3_json.probe(path) is None
    assert rocprofv3_json.probe(tmp_path) is None


SMALL = json.dumps({"rocprofiler-sdk-tool": [every_kind()]}, separators=(",", ":")).encode()


@given(st.lists(st.tuples(st.integers(0, len(SMALL) - 1), st.binary(max_size=3)), min_size=1, max_size=5))
def test_any_bytes_give_a_reading_or_one_clear_error(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, bytes]]
) -> None:
    content = bytearray(copy.copy(SMALL))
    for at, new in changes:
        content[at : at + 1] = new
    path = tmp_path_factory.mktemp("t") / "r.json"
    path.write_bytes(content)
    read_or_refused(rocprofv3_json, path)
