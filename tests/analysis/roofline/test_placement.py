"""The limiting resource of a kernel, the share of its roof, and the reasons when these are unknown."""

from collections.abc import Sequence
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.analysis.roofline.placement import placement
from aaco_pipeline.lake.contracts import polars_types

#: A device without a cache behind its L2: 1 instruction and 128 fp32 operations a nanosecond, and so on.
CEILINGS = (
    ("vector", "fp64", 64e9, "spec"),
    ("vector", "fp32", 128e9, "spec"),
    ("vector_integer", "int32", 64e9, "spec"),
    ("vector_issue", None, 1e9, "spec"),
    ("matrix", "fp16", 1000e9, "spec"),
    ("matrix", "int8", 2000e9, "spec"),
    ("lds", None, 100e9, "spec"),
    ("vl1d", None, 60e9, "spec"),
    ("l2", None, 40e9, "spec"),
    ("fabric", None, 10e9, "spec"),
    ("dram", None, 10e9, "spec"),
)
CACHED = (("infinity_cache", None, 30e9, "spec"), ("dram", None, 10e9, "spec"), ("vector_issue", None, 1e9, "spec"))
LONG = 100_000
IDLE = {"valu_instructions": 0.0, "fabric_read_bytes": 0.0, "fabric_write_bytes": 0.0}


def ceilings(rows: Sequence[tuple[str, str | None, float, str]] = CEILINGS, device: int = 0) -> pl.DataFrame:
    listed = [(device, resource, dtype, value, "", source, "") for resource, dtype, value, source in rows]
    schema = polars_types("ceilings")
    return pl.DataFrame(listed, schema=schema, orient="row")


def work(*rows: dict[str, Any]) -> pl.DataFrame:
    amounts = sorted({name for row in rows for name in row} | set(IDLE))
    schema = {
        "dispatch_id": pl.Int32(),
        "kernel_id": pl.Int32(),
        "device_id": pl.Int32(),
        "duration_ns": pl.Int64(),
        "flops_is_lower_bound": pl.Boolean(),
        "quality_flags": pl.List(pl.String),
    }
    default = {"kernel_id": 0, "device_id": 0, "duration_ns": LONG, "flops_is_lower_bound": False, "quality_flags": []}
    filled = [default | {"dispatch_id": number} | IDLE | row for number, row in enumerate(rows)]
    return pl.DataFrame(filled, schema={**{name: pl.Float64() for name in amounts if name not in schema}, **schema})


def placed(row: dict[str, Any], limits: pl.DataFrame | None = None) -> dict[str, Any]:
    found = placement(work(row), ceilings() if limits is None else limits).roofline
    return found.filter(pl.col("dispatch_id").is_not_null()).row(0, named=True)


@pytest.mark.parametrize(
    ("row", "bound", "efficiency"),
    [
        ({"fabric_read_bytes": 500e3, "fabric_write_bytes": 400e3}, "dram", 0.9),
        ({"l2_bytes": 3.6e6, "fabric_read_bytes": 500e3}, "l2", 0.9),
        ({"vl1d_bytes": 5.4e6}, "vl1d", 0.9),
        ({"lds_bytes": 9e6}, "lds", 0.9),
        ({"valu_fp64_flops": 5.76e6, "valu_instructions": 90e3}, "vector", 0.9),
        ({"valu_int32_ops": 5.76e6, "valu_instructions": 95e3}, "vector_integer", 0.95),
        ({"valu_instructions": 90e3, "valu_fp64_flops": 1e6}, "vector_issue", 0.9),
        ({"matrix_fp16_flops": 40e6, "matrix_int8_ops": 100e6}, "matrix", 0.9),
    ],
)
def test_the_resource_that_needed_longest_bounds(row: dict[str, Any], bound: str, efficiency: float) -> None:
    found = placed(row)
    assert (found["bound"], found["quality_flags"]) == (bound, [])
    assert found["efficiency_ratio"] == pytest.approx(efficiency)


def test_formats_add_up_on_one_pipe_and_not_across_pipes() -> None:
    # 0.5 of fp64, 0.5 of fp32 on the vector pipe; 0.7 on the matrix pipe.
    both = {"valu_fp64_flops": 3.2e6, "valu_fp32_flops": 6.4e6, "matrix_fp16_flops": 70e6}
    found = placed(both)
    assert (found["bound"], found["efficiency_ratio"]) == ("vector", pytest.approx(1.0))
    assert found["flops"] == 79.6e6
    assert {one["dtype"]: one["flops"] for one in found["flops_by_type"]} == {
        "fp64": 3.2e6,
        "fp32": 6.4e6,
        "fp16": 70e6,
    }


def test_operations_that_are_counted_once_for_two_are_judged_by_issue() -> None:
    row = {"valu_fp32_flops": 11.5e6, "valu_instructions": 90e3}
    assert placed(row)["bound"] == "vector"
    found = placed(row | {"flops_is_lower_bound": True})
    assert (found["bound"], found["flops_is_lower_bound"]) == ("vector_issue", True)
    assert found["efficiency_ratio"] == pytest.approx(0.9)


def test_arithmetic_is_named_only_where_it_is_what_needs_longest() -> None:
    # Arithmetic fills 95 % of the issue slots, but without the rest the memory side would need longer.
    row = {"valu_fp64_flops": 5.472e6, "valu_instructions": 90e3, "fabric_read_bytes": 880e3}
    found = placed(row)
    assert (found["bound"], found["second_bound"]) == ("vector_issue", "dram")
    assert found["second_ratio"] == pytest.approx(0.88)


@pytest.mark.parametrize("share", [0.01, 0.59, 0.61, 1.2])
def test_the_nearest_roof_and_the_second_are_named_however_far_they_are(share: float) -> None:
    found = placed({"fabric_read_bytes": share * 1e6, "lds_bytes": share * 5e6})
    assert (found["bound"], found["second_bound"]) == ("dram", "lds")
    assert (found["efficiency_ratio"], found["second_ratio"]) == (pytest.approx(share), pytest.approx(share / 2))
    alone = placed({"fabric_read_bytes": share * 1e6})
    assert (alone["second_bound"], alone["second_ratio"]) == (None, None)


@given(
    amounts=st.lists(st.floats(0, 2e6), min_size=4, max_size=4),
    duration=st.integers(1, 10**9),
    other=st.integers(1, 10**9),
)
def test_which_roof_is_nearest_does_not_depend_on_how_long_the_kernel_took(
    amounts: list[float], duration: int, other: int
) -> None:
    names = ("fabric_read_bytes", "l2_bytes", "lds_bytes", "valu_instructions")
    row = dict(zip(names, amounts, strict=True))
    first, second = (placed({**row, "duration_ns": length}) for length in (duration, other))
    assert (first["bound"], first["second_bound"]) == (second["bound"], second["second_bound"])


@pytest.mark.parametrize(
    ("ratio", "bound"),
    [
        ("valu_busy_ratio", "vector_issue"),
        ("matrix_busy_ratio", "matrix"),
        ("salu_busy_ratio", "scalar_issue"),
        ("lds_access_ratio", "lds"),
    ],
)
def test_a_unit_needs_at_least_the_cycles_that_it_counted_itself(ratio: str, bound: str) -> None:
    row = {"fabric_read_bytes": 600e3, "valu_instructions": 50e3, "matrix_fp16_flops": 1.0, "lds_bytes": 1.0}
    found = placed({**row, ratio: 0.97})
    assert (found["bound"], found["efficiency_ratio"]) == (bound, pytest.approx(0.97))
    assert (found["second_bound"], found["second_ratio"]) == ("dram", pytest.approx(0.6))
    less = placed({**row, ratio: 0.1})
    assert (less["bound"], less["efficiency_ratio"]) == ("dram", pytest.approx(0.6))


def test_a_kernels_busy_share_is_of_the_dispatches_that_counted_it_by_their_length() -> None:
    rows: list[dict[str, Any]] = [
        {"valu_busy_ratio": 1.0, "duration_ns": 300_000},
        {"valu_busy_ratio": 0.6, "duration_ns": 100_000},
        {"valu_busy_ratio": None, "duration_ns": 600_000},
    ]
    found = placement(work(*rows), ceilings())
    kernel = found.roofline.filter(pl.col("dispatch_id").is_null()).row(0, named=True)
    assert (kernel["bound"], kernel["efficiency_ratio"]) == ("vector_issue", pytest.approx(0.9))
    busy = found.bounds.filter(ceiling_source="busy").row(0, named=True)
    assert (busy["resource"], busy["unit"], busy["work"]) == ("vector_issue", "ns", pytest.approx(900_000))
    assert busy["share_ratio"] == pytest.approx(0.9)


def test_reported_ceilings_come_after_measured_and_before_published_ones() -> None:
    reported = (*CEILINGS, ("dram", None, 8e9, "reported"))
    row = {"fabric_read_bytes": 600e3}
    assert placed(row, ceilings(reported))["efficiency_ratio"] == pytest.approx(0.75)
    measured = ceilings((*reported, ("dram", None, 7.5e9, "measured")))
    assert placed(row, measured)["efficiency_ratio"] == pytest.approx(0.8)


def test_issue_slots_count_where_instructions_take_more_than_one() -> None:
    row = {"valu_instructions": 40e3, "fabric_read_bytes": 300e3}
    assert placed(row)["efficiency_ratio"] == pytest.approx(0.4)
    assert placed(row | {"valu_issue_slots": 85e3})["efficiency_ratio"] == pytest.approx(0.85)


def test_without_a_duration_there_is_work_but_no_bound() -> None:
    found = placement(work({"fabric_read_bytes": 900e3, "duration_ns": None}), ceilings())
    for row in found.roofline.iter_rows(named=True):
        assert (row["bound"], row["efficiency_ratio"], row["achieved_bytes_per_s"]) == (None, None, None)
        assert (row["fabric_read_bytes"], row["quality_flags"]) == (900_000, ["no_duration"])
    assert set(found.bounds.filter(resource="dram")["lower_bound_ns"]) == {90_000}
    assert found.bounds["share_ratio"].null_count() == found.bounds.height


def test_a_measured_roof_goes_before_a_published_one_and_is_never_clamped() -> None:
    limits = ceilings((*CEILINGS, ("dram", None, 8e9, "measured")))
    found = placed({"fabric_read_bytes": 900e3}, limits)
    assert (found["bound"], found["efficiency_ratio"]) == ("dram", pytest.approx(1.125))
    assert found["quality_flags"] == ["above_measured_roof"]
    above = placed({"fabric_read_bytes": 1.1e6}, limits)
    assert above["quality_flags"] == ["above_spec_roof", "above_measured_roof"]


def test_issue_is_measured_by_the_share_that_measured_arithmetic_reached() -> None:
    row = {"valu_instructions": 80e3}
    for benchmark, efficiency in ((("fp64", 51.2e9), 1.0), (("fp32", 115.2e9), 80 / 90), (("fp32", 200e9), 0.8)):
        dtype, rate = benchmark
        limits = ceilings((*CEILINGS, ("vector", dtype, rate, "measured")))
        assert placed(row, limits)["efficiency_ratio"] == pytest.approx(efficiency)
    stated = ceilings((*CEILINGS, ("vector", "fp64", 51.2e9, "measured"), ("vector_issue", None, 0.9e9, "measured")))
    assert placed(row, stated)["efficiency_ratio"] == pytest.approx(80 / 90)


def test_behind_an_infinity_cache_the_rate_tells_what_may_have_served() -> None:
    limits = ceilings(CACHED)
    slow = placed({"fabric_read_bytes": 500e3, "fabric_write_bytes": 400e3}, limits)
    assert (slow["bound"], slow["efficiency_ratio"]) == ("dram", pytest.approx(0.9))
    assert slow["quality_flags"] == ["infinity_cache_not_excluded"]
    fast = placed({"fabric_read_bytes": 2.4e6}, limits)
    assert (fast["bound"], fast["efficiency_ratio"], fast["quality_flags"]) == (
        "infinity_cache",
        pytest.approx(0.8),
        [],
    )


def test_without_evidence_dram_behind_the_fabric_is_an_assumption() -> None:
    limits = ceilings([row for row in CEILINGS if row[0] != "fabric"])
    slow = placed({"fabric_read_bytes": 900e3}, limits)
    assert (slow["bound"], slow["quality_flags"]) == ("dram", ["infinity_cache_not_excluded"])
    fast = placed({"fabric_read_bytes": 1.2e6}, limits)
    assert (fast["bound"], fast["quality_flags"]) == (None, ["no_ceiling:fabric"])


def test_reads_that_dram_itself_served_are_taken_before_the_fabrics() -> None:
    row = {"fabric_read_bytes": 500e3, "dram_read_bytes": 300e3, "fabric_write_bytes": 400e3, "valu_fp32_flops": 0.0}
    found = placed(row, ceilings(CACHED))
    assert (found["bound"], found["efficiency_ratio"]) == ("dram", pytest.approx(0.7))
    assert found["dram_read_bytes"] == 300_000
    reads_only = placed(row | {"valu_fp32_flops": 6e5}, ceilings())
    assert reads_only["dram_arithmetic_intensity"] == 2.0
    assert "dram_reads_only" in reads_only["quality_flags"]


def test_missing_counters_leave_the_bound_open_unless_another_needs_longer() -> None:
    lacking = {"valu_instructions": None, "fabric_read_bytes": 500e3}
    found = placed(lacking)
    assert (found["bound"], found["efficiency_ratio"]) == (None, None)
    assert found["quality_flags"] == ["not_counted:vector"]
    # The vector unit, which was not counted, can have needed the whole of the time.
    assert placed(lacking | {"fabric_read_bytes": 700e3})["bound"] is None
    assert placed(lacking | {"fabric_read_bytes": 900e3})["bound"] == "dram"
    blind = placed({"fabric_read_bytes": None, "fabric_write_bytes": None, "valu_instructions": 50e3})
    assert (blind["bound"], blind["quality_flags"]) == (None, ["not_counted:memory"])
    reads = placed({"fabric_read_bytes": 700e3, "fabric_write_bytes": None})
    assert (reads["bound"], reads["achieved_bytes_per_s"]) == ("dram", None)
    assert reads["quality_flags"] == ["fabric_reads_only"]


def test_work_without_a_ceiling_is_reported() -> None:
    assert placed({"fabric_read_bytes": 700e3, "matrix_bf16_flops": 1.0})["quality_flags"] == ["no_ceiling:matrix"]
    for nothing in (ceilings(()), ceilings(device=1)):
        found = placed({"fabric_read_bytes": 700e3}, nothing)
        assert (found["bound"], found["quality_flags"]) == (None, ["no_ceilings"])


def test_a_kernel_is_the_ratio_of_sums_over_its_timed_dispatches() -> None:
    rows = (
        {"fabric_read_bytes": 900e3, "valu_fp32_flops": 1e6, "quality_flags": ["b", "a"]},
        {"fabric_read_bytes": 300e3, "valu_fp32_flops": 5e6, "duration_ns": 50_000, "quality_flags": ["b"]},
        {"fabric_read_bytes": 800e3, "valu_fp32_flops": 9e6, "duration_ns": None, "quality_flags": ["untimed"]},
    )
    found = placement(work(*rows), ceilings()).roofline.row(0, named=True)
    assert (found["dispatch_id"], found["duration_ns"], found["fabric_read_bytes"]) == (None, 150_000, 1_200_000)
    assert (found["flops"], found["bound"], found["efficiency_ratio"]) == (6e6, "dram", pytest.approx(0.8))
    assert found["achieved_flops_per_s"] == pytest.approx(6e6 / 150e-6)
    assert found["fabric_arithmetic_intensity"] == 5.0
    assert found["quality_flags"] == ["a", "b", "untimed_dispatches_left_out"]


def test_an_amount_that_one_dispatch_lacks_is_unknown_for_the_kernel() -> None:
    rows = ({"fabric_read_bytes": 900e3, "lds_bytes": 1.0}, {"fabric_read_bytes": 900e3, "lds_bytes": None})
    found = placement(work(*rows), ceilings()).roofline.row(0, named=True)
    assert (found["lds_traffic_bytes"], found["fabric_read_bytes"]) == (None, 1_800_000)
    assert found["quality_flags"] == ["partly_counted"]


def test_a_kernel_on_two_devices_is_bound_by_the_ceilings_of_each() -> None:
    slower = [(resource, dtype, value / 2, source) for resource, dtype, value, source in CEILINGS]
    limits = pl.concat([ceilings(), ceilings(slower, device=1)])
    rows = ({"fabric_read_bytes": 400e3}, {"fabric_read_bytes": 400e3, "device_id": 1})
    found = placement(work(*rows), limits)
    kernel = found.roofline.row(0, named=True)
    assert (kernel["duration_ns"], kernel["fabric_read_bytes"]) == (200_000, 800_000)
    assert (kernel["bound"], kernel["efficiency_ratio"]) == ("dram", pytest.approx((40e3 + 80e3) / 200e3))
    assert found.bounds.filter(resource="dram")["lower_bound_ns"].to_list() == [120_000]
    missing = placement(work(*rows), ceilings())
    assert missing.bounds.is_empty()


def test_bounds_have_a_row_per_format_and_one_for_all_formats_of_a_pipe() -> None:
    both = {"valu_fp64_flops": 3.2e6, "valu_fp32_flops": 6.4e6, "matrix_fp16_flops": 70e6, "matrix_int8_ops": 20e6}
    found = placement(work(both | {"lds_bytes": 0.0}), ceilings()).bounds
    columns = ("resource", "dtype", "work", "unit", "lower_bound_ns", "share_ratio", "ceiling_source", "work_source")
    assert found.select(columns).rows() == [
        ("matrix", None, 90e6, "op", 80_000, 0.8, "spec", "counters"),
        ("matrix", "fp16", 70e6, "flop", 70_000, 0.7, "spec", "counters"),
        ("matrix", "int8", 20e6, "op", 10_000, 0.1, "spec", "counters"),
        ("vector", None, 9.6e6, "flop", 100_000, 1.0, "spec", "counters"),
        ("vector", "fp32", 6.4e6, "flop", 50_000, 0.5, "spec", "counters"),
        ("vector", "fp64", 3.2e6, "flop", 50_000, 0.5, "spec", "counters"),
    ]
    assert placement(work(both), ceilings()).bounds.equals(found)
    # Without fp32's ceiling the pipe's time is not known as a whole.
    part = [row for row in CEILINGS if row[1] != "fp32"]
    less = placement(work(both), ceilings(part)).bounds.filter(resource="vector")
    assert less["dtype"].to_list() == ["fp64"]


def test_six_and_four_bit_operations_are_bound_by_the_faster_of_the_two() -> None:
    limits = ceilings((*CEILINGS, ("matrix", "fp6", 3e12, "spec"), ("matrix", "fp4", 4e12, "spec")))
    found = placement(work({"matrix_f6f4_flops": 400e6}), limits)
    assert found.bounds.select("dtype", "lower_bound_ns").rows() == [("fp6_fp4", 100_000)]
    assert found.roofline["bound"].to_list() == ["matrix", "matrix"]


def test_frames_without_rows_and_the_contracts_columns() -> None:
    none = placement(work({}).clear(), ceilings())
    some = placement(work({"fabric_read_bytes": 1.0}), ceilings())
    for found in (none, some):
        for name, frame in (("roofline", found.roofline), ("resource_bounds", found.bounds)):
            expected = polars_types(name)
            assert dict(frame.schema) == expected
    assert (none.roofline.height, none.bounds.height) == (0, 0)
    assert some.roofline.height == 2


AMOUNTS = ("valu_instructions", "valu_fp64_flops", "matrix_fp16_flops", "fabric_read_bytes", "l2_bytes", "lds_bytes")


KERNELS = st.lists(st.tuples(*[st.integers(0, 10**8) for _ in AMOUNTS], st.integers(1, 10**9)), min_size=1, max_size=30)


@given(KERNELS, st.floats(1.0, 100.0))
def test_the_named_unit_needs_at_least_as_long_as_any_other(kernels: list[tuple[int, ...]], faster: float) -> None:
    columns = (*AMOUNTS, "duration_ns")
    rows = [dict(zip(columns, kernel, strict=True)) | {"kernel_id": number} for number, kernel in enumerate(kernels)]
    found = placement(work(*rows), ceilings())
    alone = found.roofline.filter(pl.col("dispatch_id").is_not_null()).drop("dispatch_id")
    together = found.roofline.filter(pl.col("dispatch_id").is_null()).drop("dispatch_id")
    assert together.equals(alone)
    worked = [any(kernel[:-1]) for kernel in kernels]
    assert together.get_column("bound").is_not_null().to_list() == worked
    own = together.select("kernel_id", own_ns=pl.col("efficiency_ratio") * pl.col("duration_ns"))
    beside = found.bounds.join(own, on="kernel_id")
    least = pl.when(pl.col("resource") == "vector_issue").then(0.9 * pl.col("lower_bound_ns"))
    assert beside.filter(pl.col("own_ns") < least.otherwise(pl.col("lower_bound_ns")) - 1).is_empty()
    # A faster device of the same make leaves the same resource as the limit, that much further from its roof.
    quick = ceilings([(resource, dtype, value * faster, source) for resource, dtype, value, source in CEILINGS])
    again = placement(work(*rows), quick).roofline.filter(pl.col("dispatch_id").is_null())
    assert (again["efficiency_ratio"] * faster).to_list() == pytest.approx(together["efficiency_ratio"].to_list())
