"""Parts become one: one numbering, one axis, counters where they belong. Small readings made by hand."""

from typing import Any

import polars as pl
import pytest

from aaco_pipeline.capture import discovery as detection
from aaco_pipeline.capture.merging import TABLES, NamedReading, merge_parts, row_accounts
from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import CaptureTables, Limits, described_kernels
from aaco_pipeline.lake.evidence import Evidence
from aaco_pipeline.lake.validation import to_contract
from tests.formats.readings import checked
from tests.places import SHARED

needs_shared = pytest.mark.skipif(not (SHARED / "captures").is_dir(), reason="the shared captures are not here")
KEY = "20260101T000000Z-00000000"


def reading(
    name: str,
    starts: list[int],
    kernels: list[str] | None = None,
    *,
    host: str | None = "node",
    guid: str | None = None,
    address: str = "0000:0c:00.0",
    numbers: list[int] | None = None,
    counters: list[tuple[int, str, float]] | None = None,
    clock: str = "boottime",
) -> NamedReading:
    """A part with one process, one device and one dispatch of 10 ns at each of `starts`, of the kernel beside it."""
    used = kernels or ["k"] * len(starts)
    distinct = list(dict.fromkeys(used))
    tables = {
        "processes": to_contract(
            "processes",
            pl.DataFrame({"process_id": [0], "host": [host], "guid": [guid]}, schema_overrides={"host": pl.String}),
        ),
        "devices": to_contract("devices", pl.DataFrame({"device_id": [0], "handle": ["5600"], "arch": ["gfx942"]})),
        "clock_domains": to_contract(
            "clock_domains", pl.DataFrame({"domain": [clock], "offset_ns": [0], "uncertainty_ns": [0]})
        ),
        "kernels": described_kernels(pl.DataFrame({"kernel_id": range(len(distinct)), "name": distinct})),
        "dispatches": to_contract(
            "dispatches",
            pl.DataFrame(
                {
                    "dispatch_id": range(len(starts)),
                    "process_id": 0,
                    "device_id": 0,
                    "queue_id": 0,
                    "stream_id": 0,
                    "kernel_id": [distinct.index(one) for one in used],
                    "correlation_id": range(1, len(starts) + 1),
                    "start_ns": starts,
                    "end_ns": [start + 10 for start in starts],
                    "self_ns": 10,
                    "grid_x": 640,
                    "grid_y": 2,
                    "grid_z": 1,
                    "below_resolution": False,
                }
            ),
        ),
        "counters": to_contract(
            "counters",
            pl.DataFrame(
                [{"dispatch_id": d, "counter": c, "value": v, "pass": ""} for d, c, v in counters or []],
                schema_overrides={"dispatch_id": pl.Int32},
            ),
        ),
    }
    keys = pl.DataFrame(
        {"dispatch_id": range(len(starts)), "source_dispatch_id": numbers or list(range(1, len(starts) + 1))},
        schema={"dispatch_id": pl.Int32, "source_dispatch_id": pl.UInt64},
    )
    device_keys = pl.DataFrame({"device_id": [0], "pci_address": [address]}, schema_overrides={"device_id": pl.Int32})
    evidence = (Evidence("kernel dispatches", "present", None, name, len(starts)),)
    return NamedReading(name, CaptureTables(tables, evidence, {"dispatch_keys": keys, "device_keys": device_keys}))


def valid(assembled: CaptureTables) -> dict[str, pl.DataFrame]:
    assert set(assembled.tables) == set(TABLES)
    return dict(checked(assembled).tables)


def test_the_axis_begins_at_the_earliest_event_and_the_clock_says_by_how_much() -> None:
    tables = valid(merge_parts([reading("a", [2**60 + 1000, 2**60 + 5000])]))
    assert tables["dispatches"].get_column("start_ns").to_list() == [0, 4000]
    (clock,) = tables["clock_domains"].to_dicts()
    assert (clock["domain"], clock["offset_ns"], clock["uncertainty_ns"]) == ("boottime", -(2**60 + 1000), 0)


def test_two_processes_of_a_host_share_axis_device_and_kernels() -> None:
    tables = valid(merge_parts([reading("a", [1000], ["gemm"]), reading("b", [500, 2000], ["relu", "gemm"])]))
    dispatches = tables["dispatches"]
    assert dispatches.get_column("dispatch_id").to_list() == [0, 1, 2]
    assert dispatches.get_column("process_id").to_list() == [0, 1, 1]
    assert dispatches.get_column("start_ns").to_list() == [500, 0, 1500]
    assert dispatches.get_column("stream_id").to_list() == [0, 1, 1]
    assert dispatches.get_column("device_id").to_list() == [0, 0, 0]
    assert tables["devices"].height == 1
    names = dict(tables["kernels"].select("kernel_id", "name").iter_rows())
    assert [names[i] for i in dispatches.get_column("kernel_id")] == ["gemm", "relu", "gemm"]
    assert len(names) == 2


def test_devices_of_other_addresses_or_hosts_are_others() -> None:
    parts = [reading("a", [0]), reading("b", [0], address="0000:22:00.0"), reading("c", [0], host="other")]
    tables = valid(merge_parts(parts))
    assert tables["dispatches"].get_column("device_id").to_list() == [0, 1, 2]


def test_without_a_host_every_file_has_devices_of_its_own_and_that_is_told() -> None:
    assembled = merge_parts([reading("a", [0], host=None), reading("b", [0], host=None), reading("c", [0])])
    tables = valid(assembled)
    assert tables["devices"].get_column("device_id").to_list() == [0, 1, 2]
    assert tables["dispatches"].get_column("device_id").to_list() == [0, 1, 2]
    (told,) = [item for item in assembled.evidence if item.item == "identity of devices"]
    assert (told.status, told.rows) == ("partial", 2)
    alone = merge_parts([reading("a", [0], host=None), reading("b", [0])])
    assert not [item for item in alone.evidence if item.item == "identity of devices"]


def test_clocks_of_different_hosts_are_not_called_aligned() -> None:
    assembled = merge_parts([reading("a", [1000]), reading("b", [9_000_000], host="other")])
    clocks = valid(assembled)["clock_domains"].to_dicts()
    assert [(c["domain"], c["offset_ns"], c["uncertainty_ns"]) for c in clocks] == [
        ("boottime", -1000, 0),
        ("boottime of other", -9_000_000, None),
    ]
    assert any("cannot be compared" in (item.reason or "") for item in assembled.evidence)


def test_without_a_base_trace_the_first_pass_gives_the_dispatches_and_that_is_told() -> None:
    passes = [
        reading(f"pass_{i}", [100 * i, 100 * i + 50], counters=[(0, f"C{i}", 1.0), (1, f"C{i}", 2.0)]) for i in (1, 2)
    ]
    assembled = merge_parts(passes)
    tables = valid(assembled)
    assert tables["dispatches"].height == 2
    assert tables["counters"].height == 4
    (base,) = [item for item in assembled.evidence if item.item == "base trace"]
    assert base.status == "partial"
    assert "pass_1" in (base.reason or "")


def test_the_product_of_a_grid_is_filled_in_where_the_axes_are_known() -> None:
    dispatches = valid(merge_parts([reading("a", [0])]))["dispatches"]
    assert dispatches.get_column("grid_work_items").to_list() == [1280]
    assert dispatches.get_column("workgroup_work_items").to_list() == [None]


def with_markers(part: NamedReading, markers: list[tuple[str, int, int]], launches: list[int]) -> NamedReading:
    calls = [
        {"call_id": i, "process_id": 0, "thread_id": 7, "domain": "hip_runtime", "name": "hipLaunchKernel"}
        | {"correlation_id": i + 1, "start_ns": at, "end_ns": at + 5}
        for i, at in enumerate(launches)
    ]
    ranges = [
        {"marker_id": i, "process_id": 0, "thread_id": 7, "name": name, "start_ns": start, "end_ns": end}
        for i, (name, start, end) in enumerate(markers)
    ]
    tables: dict[str, Any] = {
        **part.reading.tables,
        "api_calls": to_contract("api_calls", pl.DataFrame(calls)),
        "markers": to_contract("markers", pl.DataFrame(ranges)),
    }
    return NamedReading(part.name, CaptureTables(tables, part.reading.evidence, part.reading.details))


def test_a_dispatch_belongs_to_the_iteration_that_launched_it_although_it_ran_later() -> None:
    part = with_markers(
        reading("a", [1010, 1500, 2900, 3500]),
        [("step#0", 1000, 2000), ("load", 1100, 1200), ("step#1", 2000, 3000)],
        launches=[1005, 1900, 2100, 3400],
    )
    tables = valid(merge_parts([part]))
    assert tables["iterations"].select("iteration", "start_ns", "end_ns", "phase").rows() == [
        (0, 0, 1000, "measure"),
        (1, 1000, 2000, "measure"),
    ]
    assert tables["dispatches"].get_column("iteration").to_list() == [0, 0, 1, None]


@pytest.mark.parametrize("name", ["forward", "step", "warmup 3 of 4"])
def test_other_markers_are_no_iterations(name: str) -> None:
    part = with_markers(reading("a", [1010]), [(name, 1000, 2000)], launches=[1005])
    assert valid(merge_parts([part]))["iterations"].is_empty()


def test_ranges_that_overlap_are_no_sequence_of_iterations() -> None:
    part = with_markers(reading("a", [1010]), [("step 0", 1000, 2000), ("step 1", 1500, 2500)], launches=[1005])
    assert valid(merge_parts([part]))["iterations"].is_empty()


def test_ranges_that_only_rounding_makes_overlap_touch() -> None:
    """Tracers write microseconds in decimals."""
    part = with_markers(reading("a", [1010]), [("step 0", 1000, 2001), ("step 1", 2000, 2500)], launches=[1005])
    found = valid(merge_parts([part]))["iterations"]
    assert found.select("start_ns", "end_ns").rows() == [(0, 1000), (1000, 1500)]


def test_nothing_cannot_be_assembled() -> None:
    with pytest.raises(CaptureError, match="no part could be read"):
        merge_parts([])


@needs_shared
def test_the_counter_passes_of_a_real_run_have_the_values_of_its_csv() -> None:
    (run,) = detection.discover_runs(SHARED / "captures/mi300x_rocpd_pmc_passes").runs
    (table,) = detection.discover_runs(SHARED / "counters/vcopy/MI300X_A1_rocpd").runs
    both = []
    for one in (run, table):
        tables = valid(merge_parts([NamedReading(part.name, part.read(Limits())) for part in one.parts]))
        assert tables["dispatches"].height == 3
        both.append(tables["counters"].sort("dispatch_id", "counter").select("dispatch_id", "counter", "value").rows())
    assert len(both[0]) == 6027
    assert both[0] == both[1]


@needs_shared
def test_a_thread_trace_finds_its_dispatch_in_the_database_beside_it() -> None:
    (run,) = detection.discover_runs(SHARED / "captures/mi300x_att_ck_batched_gemm").runs
    assembled = merge_parts([NamedReading(part.name, part.read(Limits())) for part in run.parts])
    tables = valid(assembled)
    traced = tables["att_instructions"].group_by("dispatch_id", "kernel_id").agg(pl.col("stall_cycles").sum())
    found = traced.join(tables["kernels"].select("kernel_id", "short_name"), on="kernel_id").sort("dispatch_id")
    assert found.get_column("dispatch_id").to_list() == [0, 1]
    assert found.filter(pl.col("dispatch_id") == 1).row(0)[2:] == (97_792, "ck_tile::kentry")
    accounts = {(row["part"], row["item"]): (row["rows_in"], row["rows_out"]) for row in row_accounts(assembled)}
    assert accounts["37ca13315e70/28_results.db", "rocpd_kernel_dispatch"] == (151, 151)


@needs_shared
def test_every_shared_capture_assembles_into_valid_tables_and_loses_no_row_without_a_word() -> None:
    for folder in ("captures", "kineto", "counters", "gpu_sessions/traces"):
        for run in detection.discover_runs(SHARED / folder).runs:
            assembled = merge_parts([NamedReading(part.name, part.read(Limits())) for part in run.parts])
            valid(assembled)
            for row in row_accounts(assembled):
                assert row["rows_out"] == row["rows_in"] or row["reason"], row
