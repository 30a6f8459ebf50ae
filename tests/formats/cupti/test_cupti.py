"""Streams of the CUPTI recorder: what becomes of their records, of cut and contradicting ones, and of lost records."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aaco_pipeline.capture.discovery import discover_runs
from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats import cupti
from aaco_pipeline.formats.capture_tables import CaptureTables, Limits
from aaco_pipeline.formats.cupti import stream
from aaco_pipeline.formats.cupti.stream import unpacked
from aaco_pipeline.lake.evidence import DROPPED
from tests.formats.cupti import streams
from tests.formats.cupti.streams import kernel, records
from tests.formats.readings import damaged, evidence_of, read_or_refused

WHOLE = b"".join(streams.whole())


def read(tmp_path: Path, *pieces: bytes, limits: Limits | None = None) -> CaptureTables:
    path = tmp_path / "41-7.cupti"
    path.write_bytes(b"".join(pieces))
    return cupti.read(path, limits)


def column(reading: CaptureTables, table: str, name: str) -> list[object]:
    return reading.tables[table].get_column(name).to_list()


def test_a_kernel_has_its_grid_in_work_items_its_resources_and_the_thread_that_launched_it(tmp_path: Path) -> None:
    first, *_ = read(tmp_path, WHOLE).tables["dispatches"].to_dicts()
    expected = {"start_ns": 2_000, "end_ns": 3_000, "self_ns": 1_000, "correlation_id": 2, "thread_id": 77}
    expected |= {"grid_x": 1536, "grid_y": 2, "grid_z": 1, "workgroup_x": 128, "workgroup_y": 1, "workgroup_z": 1}
    expected |= {"lds_allocated_bytes": 1536, "scratch_bytes": 16, "device_id": 0, "stream_id": 0, "kernel_id": 0}
    assert {name: first[name] for name in expected} == expected
    assert first["queue_id"] is None
    assert first["graph_node_id"] is None


def test_a_stream_of_a_real_gpu_holds_what_its_program_did() -> None:
    """An H200, by `aaco record`: bf16 products of 4096 a side, five before 50 steps, each with a sum fetched."""
    reading = cupti.read(Path(__file__).with_name("521-4092.cupti"))
    ran = reading.tables["dispatches"].join(reading.tables["kernels"].select("kernel_id", "name"), on="kernel_id")
    said = {"product": "nvjet_sm90", "conversion": "unrolled_elementwise", "sum": "reduce_kernel", "": ""}
    counts = {what: ran.filter(pl.col("name").str.contains(text)).height for what, text in said.items()}
    assert counts == {"product": 55, "conversion": 50, "sum": 50, "": 157}
    assert ran.filter(pl.col("start_ns") >= pl.col("end_ns")).is_empty()
    assert column(reading, "markers", "name") == [f"step {number}" for number in range(50)]
    fetched = reading.tables["memory_copies"].filter(pl.col("direction").cast(pl.String) == "device_to_host")
    assert fetched.get_column("size_bytes").to_list() == [4] * 50
    assert column(reading, "devices", "product") == ["NVIDIA H200"]
    assert evidence_of(reading)["end of the stream"].status == "present"


@pytest.mark.parametrize(
    ("noted", "rank"), [(["rank 3"], 3), ([], None), (["rank -1"], None), (["rank 123456789"], None)]
)
def test_a_process_has_the_rank_that_its_recorder_noted(noted: list[str], rank: int | None, tmp_path: Path) -> None:
    reading = read(tmp_path, streams.header(), streams.notes("host node01", *noted))
    assert column(reading, "processes", "rank") == [rank]
    assert column(reading, "processes", "host") == ["node01"]


def test_a_kernel_of_a_graph_names_its_node(tmp_path: Path) -> None:
    assert column(read(tmp_path, WHOLE), "dispatches", "graph_node_id") == [None, 9, None]


def test_a_kernel_that_had_not_ended_has_no_times_and_is_told(tmp_path: Path) -> None:
    reading = read(tmp_path, WHOLE)
    assert column(reading, "dispatches", "start_ns") == [2_000, 4_000, None]
    assert column(reading, "dispatches", "self_ns") == [1_000, 1_000, None]
    assert evidence_of(reading)["times of kernels"].rows == 1


def test_kernels_are_told_apart_by_text_and_resources_and_not_by_the_number_of_a_text(tmp_path: Path) -> None:
    again = streams.texts(stream.NAMES, {5: "tiny(int*)", 6: "other()"})
    symbol = streams.texts(stream.SYMBOLS, {5: "_Z4tinyPi"})
    more = [kernel(7_000, name=5), kernel(8_000, name=6), kernel(9_000, name=5, static_shared=0), kernel(9_900, name=8)]
    reading = read(tmp_path, *streams.whole(), again, symbol, records(stream.KERNELS, more))
    kernels = reading.tables["kernels"].select("kernel_id", "name", "symbol", "static_lds_bytes").rows()
    assert kernels == [
        (0, "tiny(int*)", "_Z4tinyPi", 0),
        (1, "tiny(int*)", "_Z4tinyPi", 1024),
        (2, "other()", "other()", 1024),
        (3, "kernel not stated", None, 1024),
    ]
    assert column(reading, "dispatches", "kernel_id") == [1, 1, 1, 1, 2, 0, 3]


def test_calls_have_their_names_without_versions_and_their_interface(tmp_path: Path) -> None:
    calls = read(tmp_path, WHOLE).tables["api_calls"]
    assert calls.select("name", "domain", "thread_id", "correlation_id").rows() == [
        ("cudaLaunchKernel", "cuda_runtime", 77, 2),
        ("cudaLaunchKernel", "cuda_runtime", 78, 4),
        ("cuCtxSynchronize", "cuda_driver", 77, 8),
    ]


def test_copies_have_their_way_their_devices_and_the_memory_of_the_host(tmp_path: Path) -> None:
    copies = read(tmp_path, WHOLE).tables["memory_copies"]
    wanted = ("direction", "size_bytes", "device_id", "source_device_id", "destination_device_id", "host_memory")
    assert copies.select(wanted).rows() == [
        ("host_to_device", 4096, 0, None, 0, "pageable"),
        ("device_to_device", 8192, 0, 0, 1, None),
        ("device_to_host", 8, 0, 0, None, "pinned"),
        ("fill", 64, 0, None, 0, None),
    ]


def test_a_wait_is_at_the_device_of_its_context_and_names_the_recording_that_it_waits_for(tmp_path: Path) -> None:
    waits = read(tmp_path, WHOLE).tables["synchronizations"]
    wanted = ("kind", "device_id", "stream_id", "waited_stream_id", "waited_correlation_id")
    assert waits.select(wanted).rows() == [
        ("stream_wait_event", 0, 1, 0, 504),
        ("device_synchronize", 0, None, None, None),
    ]


def test_allocations_of_the_host_have_no_device(tmp_path: Path) -> None:
    table = read(tmp_path, WHOLE).tables["memory_allocations"]
    assert table.select("operation", "device_id", "size_bytes", "address", "thread_id").rows() == [
        ("allocation", 0, 1 << 20, 0x7000, 77),
        ("release", None, 64, 0x9000, None),
    ]


def test_ranges_are_paired_by_number_also_where_one_is_used_again(tmp_path: Path) -> None:
    again = [
        {"time": 3_000, "range": 1, "kind": 1, "thread": 77, "name": 3},
        {"time": 3_100, "range": 4, "kind": 1, "thread": 77, "name": 2},
        {"time": 3_200, "range": 1, "kind": 2, "thread": 77},
    ]
    reading = read(tmp_path, *streams.whole(), records(stream.RANGES, again))
    assert reading.tables["markers"].select("name", "start_ns", "end_ns").rows() == [
        ("step 1", 1_000, 1_900),
        ("now", 1_200, 1_200),
        ("now", 3_000, 3_200),
    ]
    assert evidence_of(reading)["open NVTX ranges"].rows == 1


def test_a_device_is_what_its_record_says_and_has_the_uuid_that_the_driver_prints(tmp_path: Path) -> None:
    devices = read(tmp_path, WHOLE).tables["devices"].to_dicts()
    assert [one["handle"] for one in devices] == ["GPU-ab000102-0304-0506-0708-090a0b0c0d00", "CUDA device 1"]
    expected = {"vendor": "NVIDIA", "arch": "sm_90", "product": "NVIDIA H200", "compute_units": 132}
    expected |= {"wavefront_size": 32, "max_clock_mhz": 1980.0, "memory_bytes": 150_000_000_000, "lds_bytes": 233_472}
    assert {name: devices[0][name] for name in expected} == expected


def test_a_kernel_of_no_stated_device_is_kept_at_a_device_of_its_own(tmp_path: Path) -> None:
    reading = read(tmp_path, streams.header(), records(stream.KERNELS, [kernel(5_000, device=0xFFFFFFFF)]))
    assert column(reading, "dispatches", "device_id") == [0]
    assert column(reading, "devices", "handle") == ["device not stated"]
    assert "device properties" in evidence_of(reading)


@pytest.mark.parametrize(
    "pieces",
    [
        [streams.header(realtime=-5)],
        [streams.header(), records(stream.CLOCKS, [{"monotonic": 1, "realtime": 1 << 62, "cupti": 1}])],
        [streams.header(), records(stream.DEVICES, [streams.device(memory_bytes=1 << 63)])],
    ],
)
def test_numbers_that_nothing_measures_are_refused(tmp_path: Path, pieces: list[bytes]) -> None:
    with pytest.raises(CaptureError, match=r"damaged: impossible numbers are stated of .*; copy the file again"):
        read(tmp_path, *pieces)


def test_times_of_cuptis_own_clock_are_brought_onto_the_hosts(tmp_path: Path) -> None:
    ahead = 10_000_000_000
    readings = [
        {"monotonic": 1_000, "realtime": 5_000, "cupti": ahead + 1_000, "uncertainty": 10},
        {"monotonic": 9_000, "realtime": 13_060, "cupti": ahead + 9_040, "uncertainty": 30},
    ]
    pieces = [streams.header(cupti=ahead + 1_000), records(stream.CLOCKS, readings)]
    rows = [kernel(ahead + 2_020), kernel(0, end=0)]
    reading = read(tmp_path, *pieces, records(stream.KERNELS, rows))
    assert column(reading, "dispatches", "start_ns") == [2_000, None]
    clocks = {row["domain"]: row for row in reading.tables["clock_domains"].to_dicts()}
    assert clocks["monotonic"]["uncertainty_ns"] == 20 + 30
    assert clocks["realtime"]["offset_ns"] == -4_000
    assert clocks["realtime"]["uncertainty_ns"] == 30


def test_another_tool_that_takes_cupti_over_is_told_and_its_clock_places_nothing(tmp_path: Path) -> None:
    readings = [
        {"monotonic": 1_000, "realtime": 5_000, "cupti": 1_000},
        {"monotonic": 9_000, "realtime": 13_000, "cupti": 7_000_000_000},
    ]
    told = streams.notes("clock monotonic", "other_profiler 8990 another tool in the program gave CUPTI its own clock")
    rows = [kernel(2_000), kernel(0, end=0), kernel(8_500), kernel(6_999_000_000), kernel(500)]
    pieces = [told, records(stream.CLOCKS, readings), records(stream.KERNELS, rows)]
    reading = read(tmp_path, streams.header(), *pieces)
    items = evidence_of(reading)
    assert items["other profiler"].status == "partial"
    reason = str(items["other profiler"].reason)
    assert "8990" in reason
    assert reason.endswith("take the profiler out of the program and record again, or ingest the trace that it wrote")
    assert items["clock of CUPTI"].status == "partial"
    assert column(reading, "dispatches", "start_ns") == [2_000, None]
    assert items["records on another clock"].rows == 3
    assert reading.details["source_rows"].rows()[0] == ("kernels", 5, 2)


def test_a_second_cupti_in_the_program_is_told(tmp_path: Path) -> None:
    told = streams.notes("other_cupti 990 libcupti.so.13 beside libcupti.so.12")
    one = evidence_of(read(tmp_path, *streams.whole(), told))["second CUPTI in the program"]
    assert one.status == "partial"
    assert "libcupti.so.13 beside libcupti.so.12" in str(one.reason)
    assert "second CUPTI in the program" not in evidence_of(read(tmp_path, WHOLE))


@given(
    rows=st.lists(st.lists(st.integers(0, 2**32 - 1), min_size=3, max_size=3), min_size=1, max_size=6),
    near=st.booleans(),
)
def test_packed_records_are_what_they_were(rows: list[list[int]], near: bool) -> None:
    values = np.array(rows, "<u4") & np.uint32(0xFF if near else 0xFFFFFFFF)
    assert unpacked(streams.packed(values), 12, len(rows)) == values.tobytes()


def test_a_packed_chunk_is_read_as_its_records_are(tmp_path: Path) -> None:
    rows = [kernel(start, name=start % 3) for start in range(1_000, 90_000, 1_000)]
    plain = read(tmp_path, streams.header(), records(stream.KERNELS, rows))
    small = streams.packed_records(stream.KERNELS, rows)
    assert len(small) < len(records(stream.KERNELS, rows)) / 5
    packed = read(tmp_path, streams.header(), small)
    assert packed.tables["dispatches"].equals(plain.tables["dispatches"])


def test_dropped_records_and_refusals_are_counted(tmp_path: Path) -> None:
    lost = records(stream.DROPPED, [{"time": 5, "count": 40}, {"time": 6, "count": 2}])
    refused = streams.notes(*(f"refused kind K{number}: no" for number in range(5)))
    items = evidence_of(read(tmp_path, *streams.whole(), lost, refused))
    assert str(items[DROPPED].reason).startswith("42 records")
    assert items["enabled by CUPTI"].rows == 5
    assert str(items["enabled by CUPTI"].reason).endswith("kind K2: no; and 2 more")


def test_events_that_are_recorded_all_the_same_are_not_told_as_refused(tmp_path: Path) -> None:
    refused = streams.notes("refused kind CUDA_EVENT: CUPTI_ERROR_INVALID_KIND")
    assert "enabled by CUPTI" not in evidence_of(read(tmp_path, *streams.whole(), refused))
    assert "enabled by CUPTI" in evidence_of(read(tmp_path, streams.header(), refused))


@pytest.mark.parametrize(
    ("reasons", "more", "status"),
    [
        ((1,), False, "present"),
        ((1,), True, "present"),
        ((2,), False, "present"),
        ((2,), True, "partial"),
        ((), 0, "partial"),
    ],
)
def test_a_stream_is_whole_only_where_the_process_came_to_its_end(
    tmp_path: Path, reasons: tuple[int, ...], more: bool, status: str
) -> None:
    pieces = [streams.header(), *(records(stream.ENDS, [{"time": 9, "reason": one}]) for one in reasons)]
    pieces += [records(stream.KERNELS, [kernel(5_000)])] * more
    assert evidence_of(read(tmp_path, *pieces))["end of the stream"].status == status


def test_fields_and_kinds_of_a_later_recorder_are_passed_over_and_missing_fields_are_unknown(tmp_path: Path) -> None:
    pieces = [
        streams.header(),
        records(stream.CONTEXTS, [{"context": 1}]),
        records(stream.KERNELS, [kernel(2_000), kernel(3_000)], more=24),
        records(stream.WAITS, [{"start": 7, "end": 9, "type": 3, "context": 1, "stream": 7}], less=8),
        streams.chunk(99, b"something", record_bytes=9),
    ]
    reading = read(tmp_path, *pieces)
    assert column(reading, "dispatches", "start_ns") == [2_000, 3_000]
    assert column(reading, "synchronizations", "kind") == ["stream_synchronize"]
    assert evidence_of(reading)["records kind 99"].rows == 1


def test_a_later_version_is_refused_by_its_number(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="version 3, and 2 is known"):
        read(tmp_path, streams.header(version=3))


@pytest.mark.parametrize(
    "piece",
    [
        streams.chunk(stream.KERNELS, bytes(104), record_bytes=100),
        streams.chunk(stream.KERNELS, bytes(104), record_bytes=104, count=2),
        streams.chunk(stream.NAMES, np.array([1, 500], "<u4").tobytes()),
        streams.chunk(stream.NAMES, bytes(8), count=2),
        streams.chunk(stream.KERNELS | stream.PACKED, bytes(28 + 104 + 1), record_bytes=104, count=90),
        streams.chunk(stream.KERNELS | stream.PACKED, bytes([3]) + bytes(27 + 104), record_bytes=104, count=90),
        streams.chunk(stream.KERNELS | stream.PACKED, bytes(28 + 103), record_bytes=103, count=1),
        streams.chunk(stream.KERNELS | stream.PACKED, bytes(28 + 104), record_bytes=104, count=90_000_000),
    ],
)
def test_a_chunk_that_contradicts_itself_is_refused_with_its_place(tmp_path: Path, piece: bytes) -> None:
    with pytest.raises(CaptureError, match=r"damaged .*byte .*; copy the file again"):
        read(tmp_path, streams.header(), piece)


def test_more_records_than_the_limit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="more than 3 records"):
        read(tmp_path, WHOLE, limits=Limits(events=3))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(cut=st.integers(0, len(WHOLE)))
def test_every_prefix_of_a_stream_is_read_or_refused_in_one_line(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "cut.cupti"
    path.write_bytes(WHOLE[:cut])
    if cut < stream.HEADER.itemsize:
        with pytest.raises(CaptureError, match="CUPTI stream"):
            cupti.read(path)
        return
    reading = cupti.read(path)
    whole = [sum(map(len, streams.whole()[:number])) for number in range(1, len(streams.whole()) + 1)]
    status = evidence_of(reading)["end of the stream"]
    assert ("was not written whole" in str(status.reason)) == (cut not in whole)
    # Chunks before the cut are there whole.
    at = next(
        number for number, piece in enumerate(streams.whole()) if piece[:4] == stream.KERNELS.to_bytes(4, "little")
    )
    assert reading.tables["dispatches"].height == (3 if cut >= whole[at] else 0)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(at=st.integers(0, len(WHOLE) - 1), value=st.integers(0, 255))
def test_a_flipped_byte_is_read_or_refused(tmp_path: Path, at: int, value: int) -> None:
    path = tmp_path / "flipped.cupti"
    path.write_bytes(damaged(WHOLE, [(at, value)]))
    reading = read_or_refused(cupti, path)
    assert reading is None or "dispatches" in reading.tables


def test_blocks_of_many_chunks_are_put_together_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aaco_pipeline.formats.cupti.stream._BLOCK_BYTES", 300)
    pieces = [records(stream.KERNELS, [kernel(start), kernel(start + 500)]) for start in range(1_000, 20_000, 1_000)]
    starts = column(read(tmp_path, streams.header(), *pieces), "dispatches", "start_ns")
    assert starts == list(range(1_000, 20_000, 500))


def test_streams_of_one_folder_are_one_run_and_of_two_folders_two(tmp_path: Path) -> None:
    for folder, pid in (("a", 41), ("a", 42), ("b", 43)):
        (tmp_path / folder).mkdir(exist_ok=True)
        pieces = [streams.header(pid=pid), *streams.whole()[1:]]
        (tmp_path / folder / f"{pid}-7.cupti").write_bytes(b"".join(pieces))
    assert sorted(len(run.parts) for run in discover_runs(tmp_path).runs) == [1, 2]
