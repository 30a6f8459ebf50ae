"""Figures of kernels from counters: ratios of sums, what lacks and why, and the same per dispatch."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.analysis.roofline.counter_metrics import METRIC_FLAGS, METRICS, counted, metrics_of, work_of
from aaco_pipeline.capture.discovery import discover_runs
from aaco_pipeline.capture.merging import NamedReading, merge_parts
from aaco_pipeline.formats.capture_tables import Limits
from aaco_pipeline.hardware.counters import Family
from aaco_pipeline.hardware.counters.formulas import derived_metrics
from aaco_pipeline.lake.contracts import contract, polars_schema
from aaco_pipeline.lake.validation import empty_table, to_contract
from tests.places import SHARED

CAPTURES: Final = SHARED / "counters"
DEVICES: Final = to_contract(
    "devices", pl.DataFrame({"device_id": [0], "arch": ["gfx90a"], "compute_units": [100], "max_clock_mhz": [1000.0]})
)
#: 10 us at 1 GHz.
LENGTH: Final = 10_000
#: What the two dispatches of kernel 0, and that of kernel 1, count.
COUNTED: Final[Mapping[str, Sequence[float | None]]] = {
    "TCC_HIT_sum": (1, 90, 5),
    "TCC_MISS_sum": (9, 10, 5),
    "TCC_EA_ATOMIC_sum": (0, 0, 0),
    "TCC_EA_ATOMIC_LEVEL_sum": (0, 0, 0),
    "SQ_ACTIVE_INST_VALU": (100_000, 100_000, 500_000),
    "GRBM_GUI_ACTIVE": (10_000, 10_000, 50_000),
    "TCP_TCC_READ_REQ_sum": (4, 4, 4),
}


def tables(
    counted: Mapping[str, Sequence[float | None]], lengths: Sequence[int | None] = (LENGTH,) * 3
) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    rows = [(d, name, value) for name, values in counted.items() for d, value in enumerate(values) if value is not None]
    frame = pl.DataFrame(rows, schema=["dispatch_id", "counter", "value"], orient="row", strict=False)
    ran = pl.DataFrame(
        {
            "dispatch_id": [0, 1, 2],
            "process_id": 0,
            "device_id": 0,
            "kernel_id": [0, 0, 1],
            "start_ns": 0,
            "end_ns": pl.Series(lengths, dtype=pl.Int64),
            "below_resolution": False,
        }
    )
    counters = to_contract("counters", frame.with_columns(pl.lit("p").alias("pass")))
    return counters, to_contract("dispatches", ran), DEVICES


def of_dispatches(table: pl.DataFrame) -> pl.DataFrame:
    """The metrics of each dispatch: those of kernels of one dispatch each; what it does not give is left out."""
    found = metrics_of(table.with_columns(kernel_id="dispatch_id")).drop_nulls("value")
    return found.select("metric", "unit", "value", dispatch_id="kernel_id")


def metrics(*frames: pl.DataFrame) -> pl.DataFrame:
    return metrics_of(counted(*frames))


def found(name: str, kernel: int = 0, **changed: Sequence[float | None]) -> dict[str, Any]:
    frame = metrics(*tables({**COUNTED, **changed}))
    (row,) = frame.filter((pl.col("metric") == name) & (pl.col("kernel_id") == kernel)).to_dicts()
    return row


@cache
def real(name: str) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    if not (CAPTURES / name).is_dir():
        pytest.skip(f"the real capture {name} is not on this machine (AACO_SHARED)")
    parts = [part for run in discover_runs(CAPTURES / name).runs for part in run.parts]
    run = merge_parts([NamedReading(part.name, part.read(Limits())) for part in parts]).tables
    return run["counters"], run["dispatches"], run["devices"]


def test_the_frame_is_the_contract_s() -> None:
    assert {"session_id": pl.String(), **METRICS} == dict(polars_schema(contract("counter_metrics")))
    assert metrics(*tables(COUNTED)).schema == METRICS
    assert metrics(empty_table("counters"), empty_table("dispatches"), empty_table("devices")).schema == METRICS


def test_a_kernel_s_figure_is_the_ratio_of_sums_and_its_mean_is_over_dispatches() -> None:
    row = found("l2_hit_ratio")
    assert (row["value"], row["mean"]) == (pytest.approx(91 / 110), pytest.approx((0.1 + 0.9) / 2))
    assert (row["min"], row["max"], row["n"]) == (0.1, 0.9, 2)
    assert (row["unit"], row["quality_flags"]) == ("ratio", [])
    assert found("l2_hit_ratio", kernel=1)["value"] == 0.5


def test_an_amount_is_the_mean_per_dispatch() -> None:
    row = found("l2_hits")
    assert (row["value"], row["mean"], row["unit"]) == (45.5, 45.5, "request")


def of_kernel_alone(counters: pl.DataFrame, *names: str) -> pl.DataFrame:
    """The counters with those of kernel 0 named here as values of the kernel that no dispatch is known of."""
    kernel = pl.when(pl.col("dispatch_id") < 2).then(0).otherwise(1).cast(pl.Int32)
    alone = pl.col("counter").is_in(names) & (pl.col("dispatch_id") < 2)
    dispatch = pl.when(~alone).then("dispatch_id")
    return counters.with_columns(kernel_id=kernel, dispatch_id=dispatch)


def test_figures_of_a_kernel_are_not_given_to_dispatches() -> None:
    counters, dispatches, devices = tables(COUNTED)
    table = counted(of_kernel_alone(counters, "TCC_HIT_sum", "TCC_MISS_sum"), dispatches, devices)
    assert table.filter(pl.col("dispatch_id") < 2).select(pl.col("TCC_HIT", "TCC_MISS").null_count()).row(0) == (2, 2)
    (row,) = metrics_of(table).filter(pl.col("metric") == "l2_hit_ratio", pl.col("kernel_id") == 0).to_dicts()
    assert (row["value"], row["n"], row["mean"], row["min"]) == (pytest.approx(91 / 110), 0, None, None)
    assert row["quality_flags"] == ["joined_by_kernel"]
    (other,) = metrics_of(table).filter(pl.col("metric") == "l2_hit_ratio", pl.col("kernel_id") == 1).to_dicts()
    assert (other["value"], other["n"], other["quality_flags"]) == (0.5, 1, [])
    assert set(work_of(table).get_column("dispatch_id")) == {0, 1, 2}, "the kernel has work of its own dispatches"
    busy = metrics_of(table).filter(pl.col("metric") == "valu_busy_ratio", pl.col("kernel_id") == 0).row(0, named=True)
    assert busy["n"] == 2 and "joined_by_kernel" not in busy["quality_flags"]


def test_work_of_a_kernel_that_is_known_of_no_dispatch_has_none() -> None:
    counters, dispatches, devices = tables(COUNTED)
    found = work_of(counted(of_kernel_alone(counters, *COUNTED), dispatches, devices))
    assert found.sort("kernel_id").select("dispatch_id", "kernel_id", "duration_ns").rows() == [
        (None, 0, None),
        (2, 1, LENGTH),
    ]
    assert "joined_by_kernel" in found.filter(pl.col("kernel_id") == 0).item(0, "quality_flags")


def test_a_dispatch_without_the_counters_is_left_out() -> None:
    row = found("l2_hit_ratio", TCC_HIT_sum=(1, None, 5))
    assert (row["value"], row["n"]) == (0.1, 1)


def test_a_metric_whose_divisor_counted_nothing_is_null() -> None:
    row = found("fabric_atomic_latency")
    assert (row["value"], row["mean"], row["min"], row["max"], row["n"]) == (None, None, None, None, 0)
    assert row["quality_flags"] == ["nothing_counted"]


def test_a_metric_without_its_counter_is_null_with_a_reason() -> None:
    assert found("vl1d_hit_ratio")["quality_flags"] == ["missing_counters"]
    assert found("vl1d_hit_ratio")["value"] is None


def test_an_impossible_clock_makes_null_what_divides_by_it_and_only_that() -> None:
    row = found("valu_busy_ratio", kernel=1)
    assert (row["value"], row["quality_flags"]) == (None, ["implausible_clock"])
    assert found("valu_busy_ratio")["value"] == 0.1
    clock = found("clock", kernel=1)
    assert (clock["value"], clock["quality_flags"]) == (5000, ["implausible_clock"]), "the clock itself is the evidence"
    unchecked = of_dispatches(counted(*tables(COUNTED), check_clock=False))
    assert (
        unchecked.filter((pl.col("metric") == "valu_busy_ratio") & (pl.col("dispatch_id") == 2))["value"].item() == 0.1
    )
    checked = of_dispatches(counted(*tables(COUNTED)))
    assert checked.filter(pl.col("metric") == "valu_busy_ratio")["dispatch_id"].to_list() == [0, 1]


def test_resident_wavefronts_are_over_the_cycles_of_their_own_pass() -> None:
    counters, ran, device = tables({"GRBM_GUI_ACTIVE": (10_000, 50_000, 10_000)})
    accumulating = {"SQ_LEVEL_WAVES": 0, "SQ_ACCUM_PREV_HIRES": 160_000, "GRBM_GUI_ACTIVE": 8_000}
    rows = [(dispatch, name, value) for dispatch in (0, 1) for name, value in accumulating.items()]
    rows += [(2, "SQ_LEVEL_WAVES", 0), (2, "SQ_ACCUM_PREV_HIRES", 160_000), (2, "GRBM_GUI_ACTIVE", 90_000)]
    levels = pl.DataFrame(rows, schema=["dispatch_id", "counter", "value"], orient="row", strict=False)
    levels = to_contract("counters", levels.with_columns(pl.lit("SQ_LEVEL_WAVES").alias("pass")))
    frame = metrics(pl.concat([counters, levels]), ran, device).filter(pl.col("metric") == "resident_wavefronts")
    assert frame.get_column("value").to_list() == [20, None]
    assert frame.get_column("n").to_list() == [2, 0]
    assert frame.get_column("quality_flags").to_list() == [[], ["implausible_level_clock"]]


def test_flags_are_on_the_figures_that_they_bear_on() -> None:
    counted = {**COUNTED, "TCC_EA_WRREQ_sum": (1, 1, 1), "TCC_WRITE_sum": (9, 9, 9), "TCC_EA_WRREQ_64B_sum": (1, 1, 1)}
    frame = metrics(*tables(counted)).explode("quality_flags")
    flagged = set(frame.filter(pl.col("quality_flags") == "writes_left_in_l2").get_column("metric"))
    assert {"fabric_write_bandwidth", "fabric_write_requests"} <= flagged
    assert not flagged & {"l2_hit_ratio", "valu_busy_ratio", "l2_writes"}


def test_rates_are_over_the_base_trace_or_flagged() -> None:
    frame = metrics(*tables({"TCC_REQ_sum": (1000, 1000, 1000)}))
    rate = frame.filter(pl.col("metric") == "l2_bandwidth")
    assert rate.get_column("value").to_list() == pytest.approx([128_000 / 10e-6] * 2)
    counters, ran, device = tables({"TCC_REQ_sum": (1000, 1000, 1000)}, (None, None, None))
    timed = counters.with_columns(pass_duration_ns=pl.lit(20_000, pl.Int64))
    later = metrics(timed, ran, device).filter(pl.col("metric") == "l2_bandwidth")
    assert later.get_column("value").to_list() == pytest.approx([128_000 / 20e-6] * 2)
    assert later.get_column("quality_flags").to_list() == [["no_duration"]] * 2
    never = metrics(counters, ran, device).filter(pl.col("metric") == "l2_bandwidth")
    assert never.get_column("value").to_list() == [None, None]
    assert all("no_duration" in flags for flags in never.get_column("quality_flags").to_list())


def test_figures_without_any_of_their_counters_are_left_out() -> None:
    names = set(metrics(*tables({"SQ_WAVES": (1, 1, 1)})).get_column("metric"))
    assert "wavefronts" in names
    assert not names & {"l2_hit_ratio", "valu_busy_ratio", "clock", "flops"}


@given(
    hits=st.lists(st.integers(0, 10**9), min_size=3, max_size=3),
    misses=st.lists(st.integers(0, 10**9), min_size=3, max_size=3),
)
def test_a_ratio_of_sums_lies_between_the_dispatches_own(hits: list[int], misses: list[int]) -> None:
    frame = metrics(*tables({"TCC_HIT_sum": hits, "TCC_MISS_sum": misses})).filter(pl.col("metric") == "l2_hit_ratio")
    for row in frame.to_dicts():
        if row["value"] is None:
            assert row["n"] == 0
            assert row["quality_flags"] == ["nothing_counted"]
            continue
        assert row["min"] * (1 - 1e-12) <= row["value"] <= row["max"] * (1 + 1e-12)
        assert row["min"] * (1 - 1e-12) <= row["mean"] <= row["max"] * (1 + 1e-12)
        assert 0 <= row["value"] <= 1


@pytest.mark.parametrize("name", ["mixbench_SQ/MI200", "vcopy/MI350", "llamacpp_decode/gfx1151"])
def test_kernels_figures_are_those_of_their_dispatches(name: str) -> None:
    of_kernels, table = metrics(*real(name)), counted(*real(name))
    each = of_dispatches(table).join(table.select("dispatch_id", "kernel_id"), on="dispatch_id")
    again = each.group_by("kernel_id", "metric").agg(
        mean_again=pl.col("value").mean(), least=pl.col("value").min(), most=pl.col("value").max(), rows=pl.len()
    )
    both = of_kernels.join(again, on=["kernel_id", "metric"], how="full", coalesce=True)
    known = both.filter(pl.col("n") > 0)
    assert known.height == again.height
    assert (known.get_column("n") == known.get_column("rows")).all()
    for ours, theirs in (("mean", "mean_again"), ("min", "least"), ("max", "most")):
        off = (known.get_column(ours) - known.get_column(theirs)).abs()
        assert (off <= 1e-9 * known.get_column(theirs).abs()).all()
    unknown = both.filter(pl.col("n") == 0)
    assert unknown.select("value", "mean", "min", "max").null_count().row(0) == (unknown.height,) * 4
    assert unknown.get_column("quality_flags").list.len().min() != 0, "every null has its reason"


def test_shares_of_real_captures_are_shares() -> None:
    frame = metrics(*real("mixbench/MI200")).filter(
        (pl.col("unit") == "ratio") & (pl.col("metric") != "lds_conflicts_per_access")
    )
    assert frame.get_column("value").drop_nulls().is_between(0, 1.02).all()


def test_figures_and_work_say_the_same() -> None:
    done = work_of(counted(*real("mixbench/MI200")))
    frame = of_dispatches(counted(*real("mixbench/MI200"))).filter(pl.col("metric") == "fabric_read_bandwidth")
    both = done.join(frame, on="dispatch_id")
    assert both.height == done.height
    assert (
        both.select((pl.col("fabric_read_bytes") / pl.col("duration_ns") * 1e9 - pl.col("value")).abs().max()).item()
        < 1
    )


def test_every_flag_of_a_figure_has_a_meaning() -> None:
    for name in ("vcopy/MI100", "vcopy/MI350"):
        flags = metrics(*real(name)).get_column("quality_flags").explode().drop_nulls()
        assert set(flags) <= set(METRIC_FLAGS)
    assert all(derived_metrics(family) for family in Family)
