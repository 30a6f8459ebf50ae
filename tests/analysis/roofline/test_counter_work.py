"""Work of dispatches from counters: names, passes, clocks and reservations, and real captures whose work is known.

Counters of kernels without a dispatch of their own: their means do not depend on the order of rows.
"""

import csv
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.analysis.roofline.counter_metrics import FLAGS, WORK, counted, work_of
from aaco_pipeline.analysis.roofline.counter_table import FACTS, _with_kernels, counter_table
from aaco_pipeline.capture.discovery import discover_runs
from aaco_pipeline.capture.merging import NamedReading, merge_parts
from aaco_pipeline.formats.capture_tables import Limits
from aaco_pipeline.hardware.counters import Family
from aaco_pipeline.lake.contracts import polars_types
from aaco_pipeline.lake.validation import empty_table, to_contract
from tests.places import SHARED

CAPTURES: Final = SHARED / "counters"
#: Bytes that the copies of 1,048,576 doubles read, and write.
COPIED: Final = 8_388_608
Row = tuple[int, str, float, str]
MI300: Final[dict[str, Any]] = {"arch": "gfx942", "compute_units": 304, "xcc_count": 8, "max_clock_mhz": 2100.0}
MI210: Final[dict[str, Any]] = {"arch": "gfx90a", "compute_units": 104, "xcc_count": None, "max_clock_mhz": 1700.0}


def devices(**facts: object) -> pl.DataFrame:
    return to_contract("devices", pl.DataFrame({"device_id": [0], **{name: [value] for name, value in facts.items()}}))


def dispatches(durations: Sequence[int | None], kernels: Sequence[int] | None = None) -> pl.DataFrame:
    rows = len(durations)
    return to_contract(
        "dispatches",
        pl.DataFrame(
            {
                "dispatch_id": range(rows),
                "process_id": [0] * rows,
                "device_id": [0] * rows,
                "kernel_id": kernels or [0] * rows,
                "start_ns": [None if length is None else 1000 for length in durations],
                "end_ns": [None if length is None else 1000 + length for length in durations],
                "below_resolution": [False] * rows,
            },
            schema_overrides={"start_ns": pl.Int64, "end_ns": pl.Int64},
        ),
    )


def counters(rows: Sequence[Row], durations: Mapping[str, int | None] | None = None) -> pl.DataFrame:
    frame = pl.DataFrame(rows, schema=["dispatch_id", "counter", "value", "pass"], orient="row", strict=False)
    stated = [(durations or {}).get(name) for name in frame.get_column("pass")]
    return to_contract("counters", frame.with_columns(pass_duration_ns=pl.Series(stated, dtype=pl.Int64)))


def of_one(named: Mapping[str, float], length: int | None = 10_000, **facts: object) -> dict[str, Any]:
    """The work of one dispatch whose counters all come from one pass, on an MI210 by default."""
    table = counters([(0, name, value, "p.0") for name, value in named.items()])
    (row,) = work(table, dispatches([length]), devices(**(facts or MI210))).to_dicts()
    return row


@cache
def tables(name: str) -> dict[str, pl.DataFrame]:
    parts = [part for run in discover_runs(CAPTURES / name).runs for part in run.parts]
    return dict(merge_parts([NamedReading(part.name, part.read(Limits())) for part in parts]).tables)


def real(name: str) -> pl.DataFrame:
    if not (CAPTURES / name).is_dir():
        pytest.skip(f"the real capture {name} is not on this machine (AACO_SHARED)")
    found = tables(name)
    return work(found["counters"], found["dispatches"], found["devices"])


def work(*frames: pl.DataFrame) -> pl.DataFrame:
    return work_of(counted(*frames))


def test_the_frame_has_its_columns_even_without_rows() -> None:
    assert work(empty_table("counters"), empty_table("dispatches"), empty_table("devices")).schema == WORK
    assert work(counters([(0, "SQ_WAVES", 1, "p")]), dispatches([1]), devices(**MI210)).schema == WORK


@pytest.mark.parametrize(
    "names",
    [
        ("TCC_EA_RDREQ_sum", "TCC_EA_RDREQ_32B_sum"),
        ("TCC_EA0_RDREQ_sum", "TCC_EA0_RDREQ_32B_sum"),
        ("TCC_EA_RDREQ", "TCC_EA0_RDREQ_32B"),
    ],
)
def test_a_counter_is_known_by_every_spelling(names: tuple[str, str]) -> None:
    assert of_one({names[0]: 10, names[1]: 4})["fabric_read_bytes"] == 6 * 64 + 4 * 32


def test_channels_are_summed_when_all_are_there_and_there_is_no_sum() -> None:
    channels = {f"TCC_REQ[{channel}]": 1.0 for channel in range(32)}
    assert of_one(channels)["l2_bytes"] == 32 * 128
    assert of_one({**channels, "TCC_REQ_sum": 40.0})["l2_bytes"] == 40 * 128, "the sum is of one pass"
    every = {f"TCC_REQ[{channel}]": 2.0 for channel in range(128)}
    assert of_one(every, **MI300)["l2_bytes"] == 128 * 2 * 128


def test_some_of_the_channels_are_no_traffic() -> None:
    row = of_one({f"TCC_REQ[{channel}]": 1.0 for channel in range(62)}, **MI300)
    assert row["l2_bytes"] is None
    assert "incomplete_channels" in row["quality_flags"]
    rows: list[Row] = [(d, f"TCC_REQ[{c}]", 1.0, "p") for d in range(2) for c in range(32) if (d, c) != (1, 7)]
    found = work(counters(rows), dispatches([1, 1]), devices(**MI210))
    assert found.get_column("l2_bytes").to_list() == [32 * 128, None]


def test_a_counter_of_several_passes_is_the_first_one_s() -> None:
    rows: list[Row] = [
        (0, "SQ_WAVES", 3, "SQ_LEVEL_WAVES"),
        (0, "SQ_LEVEL_WAVES", 0, "SQ_LEVEL_WAVES"),
        (0, "SQ_ACCUM_PREV_HIRES", 9, "SQ_LEVEL_WAVES"),
        (0, "SQ_WAVES", 2, "pmc_perf.10"),
        (0, "SQ_WAVES", 1, "pmc_perf.2"),
    ]
    found = work(counters(rows), dispatches([1]), devices(**MI210))
    assert found.get_column("wavefronts").item() == 1
    repeated: list[Row] = [(0, "SQ_WAVES_1", 5, "p"), (0, "SQ_WAVES", 4, "p")]
    assert work(counters(repeated), dispatches([1]), devices(**MI210)).get_column("wavefronts").item() == 4
    alone: list[Row] = [(0, "SQ_WAVES_1", 5, "p"), (1, "SQ_WAVES", 4, "p")]
    assert work(counters(alone), dispatches([1, 1]), devices(**MI210)).get_column("wavefronts").to_list() == [5, 4]


def test_each_accumulated_level_is_of_its_own_pass() -> None:
    rows: list[Row] = []
    for number, level in enumerate(("SQ_LEVEL_WAVES", "SQ_INST_LEVEL_VMEM", "SQ_IFETCH_LEVEL")):
        rows += [(0, level, 0, level), (0, "SQ_ACCUM_PREV_HIRES", 100.0 + number, level)]
    table = counter_table(
        counters(rows),
        dispatches([1]),
        devices(**MI210),
        ["SQ_LEVEL_WAVES_ACCUM", "SQ_INST_LEVEL_VMEM_ACCUM", "SQ_IFETCH_LEVEL_ACCUM"],
    )
    assert table.columns[: len(FACTS)] == [*FACTS]
    assert table.row(0)[len(FACTS) :] == (102, 101, 100)


def test_cycles_are_those_of_one_xcc() -> None:
    row = of_one({"GRBM_GUI_ACTIVE": 8 * 20_000, "SQ_ACTIVE_INST_VALU": 304 * 5_000}, 10_000, **MI300)
    assert row["valu_busy_ratio"] == 0.25
    unknown = of_one({"GRBM_GUI_ACTIVE": 1000, "SQ_ACTIVE_INST_VALU": 1}, **{**MI300, "xcc_count": None})
    assert unknown["valu_busy_ratio"] is None, "how many XCCs a sum is over is not for guessing"


@pytest.mark.parametrize(
    ("mhz", "believed"), [(339, False), (341, True), (1600, True), (1869, True), (1871, False), (5000, False)]
)
def test_figures_per_cycle_are_null_for_an_impossible_clock(mhz: int, believed: bool) -> None:
    row = of_one({"GRBM_GUI_ACTIVE": mhz * 10, "SQ_ACTIVE_INST_VALU": 1, "SQ_VALU_MFMA_BUSY_CYCLES": 1}, 10_000)
    assert (row["valu_busy_ratio"] is not None) == believed
    assert (row["matrix_busy_ratio"] is not None) == believed
    assert ("implausible_clock" in row["quality_flags"]) == (not believed)
    assert "clock_not_checked" not in row["quality_flags"]


def test_a_clock_that_cannot_be_checked_is_reported() -> None:
    counted = {"GRBM_GUI_ACTIVE": 10_000, "SQ_ACTIVE_INST_VALU": 50}
    unknown_product = {**MI210, "compute_units": 50}
    for row in (
        of_one(counted, None, **unknown_product),
        of_one(counted, **{**unknown_product, "max_clock_mhz": None}),
    ):
        assert row["valu_busy_ratio"] == 1e-4
        assert "clock_not_checked" in row["quality_flags"]
        assert "implausible_clock" not in row["quality_flags"]


def test_missing_device_facts_are_taken_from_the_product_and_reported() -> None:
    bare: dict[str, Any] = {"arch": "gfx942", "product": "AMD Instinct MI300X"}
    counted = {"GRBM_GUI_ACTIVE": 8 * 20_000, "SQ_ACTIVE_INST_VALU": 304 * 5_000}
    row = of_one(counted, **bare)
    assert row["valu_busy_ratio"] == 0.25
    assert "device_from_product" in row["quality_flags"]
    fewer = of_one(counted, **{**bare, "compute_units": 152})
    assert fewer["valu_busy_ratio"] == 0.5, "what is stated is kept"
    assert "device_from_product" not in of_one(counted, **MI300)["quality_flags"]
    assert of_one(counted, arch="gfx942")["valu_busy_ratio"] is None, "gfx942 is several products"


def test_the_level_pass_has_its_own_cycles_and_a_clock_checked_over_its_own_duration() -> None:
    rows: list[Row] = [
        (0, "GRBM_GUI_ACTIVE", 100_000, "pmc_perf.0"),
        (0, "GRBM_GUI_ACTIVE", 15_000, "SQ_LEVEL_WAVES"),
        (0, "SQ_LEVEL_WAVES", 0, "SQ_LEVEL_WAVES"),
        (0, "SQ_ACCUM_PREV_HIRES", 15_000 * 104 * 16, "SQ_LEVEL_WAVES"),
    ]
    stated = {"pmc_perf.0": 10_000, "SQ_LEVEL_WAVES": 10_000}
    (row,) = work(counters(rows, stated), dispatches([10_000]), devices(**MI210)).to_dicts()
    assert row["achieved_occupancy_ratio"] == 0.5
    assert row["quality_flags"][:1] == ["implausible_clock"], "10 GHz in the other pass"
    assert "implausible_level_clock" not in row["quality_flags"]
    inflated = {"pmc_perf.0": 10_000, "SQ_LEVEL_WAVES": 800_000_000}
    (row,) = work(counters(rows, inflated), dispatches([10_000]), devices(**MI210)).to_dicts()
    assert row["achieved_occupancy_ratio"] == 0.5, "a duration from one dispatch to the next tells nothing of a clock"


def test_durations_are_the_base_trace_s_and_the_mean_of_counter_passes() -> None:
    rows: list[Row] = [(0, "SQ_WAVES", 1, "a"), (0, "SQ_INSTS", 1, "a"), (0, "TCC_REQ", 1, "b")]
    rows += [(0, "SQ_LEVEL_WAVES", 0, "SQ_LEVEL_WAVES"), (1, "SQ_WAVES", 1, "c")]
    stated = {"a": 100, "b": 301, "SQ_LEVEL_WAVES": 10**9, "c": 0}
    found = work(counters(rows, stated), dispatches([50, 0]), devices(**MI210))
    assert found.get_column("duration_ns").to_list() == [50, None], "0 is what cut times leave"
    assert found.get_column("counted_duration_ns").to_list() == [200, None]
    assert ["no_duration" in flags for flags in found.get_column("quality_flags")] == [False, True]


def test_figures_without_counters_are_null_and_reported() -> None:
    row = of_one({"SQ_WAVES": 0, "SQ_INSTS_VALU": 7})
    assert row["wavefronts"] == 0
    assert row["valu_instructions"] is None
    assert row["fabric_read_bytes"] is None
    assert row["flops_is_lower_bound"] is None
    assert row["quality_flags"] == ["missing_counters"]


def flops_counted(**changed: float) -> dict[str, float]:
    kinds = ("ADD", "MUL", "TRANS", "FMA")
    known = {f"SQ_INSTS_VALU_{kind}_F{bits}": 0.0 for kind in kinds for bits in (16, 32, 64)}
    return {**known, **{f"SQ_INSTS_VALU_MFMA_MOPS_{name}": 0.0 for name in ("F64", "F32", "F16", "BF16")}, **changed}


def test_flops_are_a_lower_bound_where_packed_instructions_are_possible_or_formats_not_counted() -> None:
    double = of_one(flops_counted(SQ_INSTS_VALU_FMA_F64=5))
    assert double["valu_fp64_flops"] == 640
    assert double["flops_is_lower_bound"] is False
    for name in ("SQ_INSTS_VALU_FMA_F32", "SQ_INSTS_VALU_ADD_F16", "SQ_INSTS_VALU_MUL_F32"):
        packed = of_one(flops_counted(**{name: 1}))
        assert packed["flops_is_lower_bound"] is True
        assert "packed_math_possible" in packed["quality_flags"]
    transcendental = of_one(flops_counted(SQ_INSTS_VALU_TRANS_F32=1))
    assert transcendental["flops_is_lower_bound"] is False, "there is no packed form"
    other = of_one(flops_counted(), **MI300)
    assert other["flops_is_lower_bound"] is True
    assert "formats_not_counted" in other["quality_flags"]
    assert other["matrix_fp8_flops"] is None


def test_inactive_lanes_are_reported_with_counted_operations() -> None:
    lanes = {"SQ_ACTIVE_INST_VALU": 10.0}
    half = of_one({**flops_counted(), **lanes, "SQ_THREAD_CYCLES_VALU": 320})
    assert half["active_threads_ratio"] == 0.5
    assert "masked_lanes_counted" in half["quality_flags"]
    full = of_one({**flops_counted(), **lanes, "SQ_THREAD_CYCLES_VALU": 640})
    assert "masked_lanes_counted" not in full["quality_flags"]


def test_writes_that_stay_in_the_l2_are_reported() -> None:
    written = {"TCC_EA_WRREQ_sum": 91_000.0, "TCC_EA_WRREQ_64B_sum": 91_000.0}
    assert "writes_left_in_l2" in of_one({**written, "TCC_WRITE_sum": 131_072})["quality_flags"]
    assert "writes_left_in_l2" not in of_one({**written, "TCC_WRITE_sum": 91_000})["quality_flags"]


def test_only_a_slow_first_dispatch_is_reported() -> None:
    rows: list[Row] = [(dispatch, "SQ_WAVES", 1, "p") for dispatch in range(6)]
    kernels = [0, 0, 0, 1, 1, 2]
    found = work(counters(rows), dispatches([130, 100, 100, 100, 130, 900], kernels), devices(**MI210))
    slow = ["first_dispatch" in flags for flags in found.get_column("quality_flags")]
    assert slow == [True, False, False, False, False, False]


def test_an_unknown_architecture_has_what_needs_none() -> None:
    row = of_one({"SQ_WAVES": 2, "FETCH_SIZE": 1, "TCC_REQ_sum": 5}, arch=None)
    assert (row["wavefronts"], row["fabric_read_bytes"], row["l2_bytes"]) == (2, 1024, None)
    assert row["quality_flags"] == ["unknown_architecture"]


def test_dispatches_on_different_architectures_have_their_own_formulas() -> None:
    two = pl.concat([devices(**MI210), devices(**MI300).with_columns(device_id=pl.lit(1, pl.Int32))])
    ran = dispatches([1, 1]).with_columns(device_id=pl.Series([1, 0], dtype=pl.Int32))
    rows: list[Row] = [(0, "TCP_TOTAL_CACHE_ACCESSES_sum", 1, "p"), (1, "TCP_TOTAL_CACHE_ACCESSES_sum", 1, "p")]
    assert work(counters(rows), ran, two).get_column("vl1d_bytes").to_list() == [128, 64]


NAMES: Final = ("SQ_WAVES", "TCC_EA_RDREQ_sum", "TCC_EA_RDREQ_32B_sum", "TCC_REQ[0]", "GRBM_GUI_ACTIVE")


@given(
    cells=st.dictionaries(
        st.tuples(st.integers(0, 4), st.sampled_from(NAMES), st.sampled_from(("p.1", "p.2", "SQ_LEVEL_WAVES"))),
        st.integers(0, 10**6),
        min_size=1,
    ),
    order=st.randoms(use_true_random=False),
)
def test_work_does_not_depend_on_the_order_of_rows_and_has_one_row_per_counted_dispatch(
    cells: dict[tuple[int, str, str], int], order: Any
) -> None:
    rows: list[Row] = [(dispatch, name, float(value), run) for (dispatch, name, run), value in cells.items()]
    shuffled = list(rows)
    order.shuffle(shuffled)
    base, device = dispatches([100] * 5), devices(**MI210)
    first = work(counters(rows), base, device)
    assert first.equals(work(counters(shuffled), base, device))
    assert first.get_column("dispatch_id").to_list() == sorted({row[0] for row in rows})
    assert set(first.get_column("quality_flags").explode().drop_nulls()) <= set(FLAGS)


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("vcopy/MI100", 0.66),
        ("vcopy/MI200", 0.69),
        ("mem_levels_HBM/MI200", 0.69),
        ("vcopy/MI300A_A1", 1.0),
        ("vcopy/MI300X_A1", 1.0),
        ("vcopy/MI300X_A1_rocpd", 1.0),
        ("vcopy/MI350", 1.0),
    ],
)
def test_a_copy_s_bytes_are_those_of_the_copy(name: str, written: float) -> None:
    found = real(name)
    assert found.height == 3
    assert found.get_column("fabric_read_bytes").is_between(COPIED, 1.003 * COPIED).all()
    assert found.get_column("fabric_write_bytes")[0] == COPIED
    assert found.get_column("fabric_write_bytes").is_between(written * COPIED, COPIED).all()
    kept = [flags for flags in found.get_column("quality_flags").to_list() if "writes_left_in_l2" in flags]
    assert len(kept) == (2 if name in ("vcopy/MI100", "vcopy/MI200") else 0)
    assert found.get_column("achieved_occupancy_ratio").drop_nulls().is_between(0.6, 1).all()


def test_reservations_about_real_copies_are_those_that_their_captures_call_for() -> None:
    flags = {
        name: set(real(f"vcopy/{name}").get_column("quality_flags").explode())
        for name in ("MI100", "MI200", "MI300A_A1", "MI300X_A1_rocpd", "MI350")
    }
    assert flags["MI100"] == {
        *("no_vector_format_counters", "matrix_instructions_included"),
        *("writes_left_in_l2", "implausible_clock", "implausible_level_clock", "first_dispatch"),
    }
    assert flags["MI200"] == {"writes_left_in_l2", "implausible_clock", "implausible_level_clock", "first_dispatch"}
    assert flags["MI300A_A1"] == {"formats_not_counted", "clock_not_checked", "no_duration"}
    assert flags["MI300X_A1_rocpd"] == {
        *("formats_not_counted", "implausible_clock", "implausible_level_clock", "first_dispatch")
    }
    assert flags["MI350"] == {
        *("request_size_assumed", "device_from_product", "no_duration", "implausible_clock", "first_dispatch")
    }


def test_operations_and_bytes_are_the_algorithm_s_where_nothing_is_packed() -> None:
    found = real("mixbench/MI200")
    with (CAPTURES / "mixbench/MI200/truth.csv").open(newline="") as file:
        truth = {int(row["row"]): row for row in csv.DictReader(file)}
    factors: dict[str, set[float]] = {}
    for row in found.to_dicts():
        known = truth.get(row["dispatch_id"])
        if known is None:
            continue
        assert float(known["alg_read_bytes"]) <= row["fabric_read_bytes"] <= 1.0087 * float(known["alg_read_bytes"])
        if known["alg_flops"]:
            total = row["valu_fp16_flops"] + row["valu_fp32_flops"] + row["valu_fp64_flops"]
            factors.setdefault(known["type"], set()).add(float(known["alg_flops"]) / total)
            assert row["flops_is_lower_bound"] is (known["type"] != "double")
    assert factors["double"] == {1.0}
    assert factors["__half2"] == {2.0}
    assert factors["HIP_vector_type<float, 2u>"] == {2.0}
    assert min(factors["float"]) == 1.0
    assert max(factors["float"]) < 1.34


def test_long_kernels_keep_their_vector_units_busy_and_short_ones_have_no_share() -> None:
    found = real("mixbench/MI200")
    double = found.filter((pl.col("valu_fp64_flops") > 3e10) & (pl.col("duration_ns") > 1_000_000))
    assert double.height
    assert double.get_column("valu_busy_ratio").is_between(0.95, 1.01).all()
    assert double.get_column("achieved_occupancy_ratio").is_between(0.9, 1).all()
    short = found.filter(pl.col("duration_ns") < 20_000)
    assert short.height
    assert short.get_column("valu_busy_ratio").null_count() == short.height


def test_counters_of_other_profilers_give_bytes() -> None:
    first = real("llamacpp_decode/gfx1151")
    assert first.get_column("fabric_read_bytes").to_list()[:2] == [10_880, 10_752]
    assert first.get_column("wavefronts").to_list()[:2] == [32, 32]
    second = real("laplacian_k1/MI250X")
    assert second.height == 200
    assert second.get_column("fabric_read_bytes").null_count() == 0
    assert second.get_column("fabric_write_bytes").max() == 1_069_547_520


def test_every_flag_says_what_it_means() -> None:
    assert all(meaning and not meaning.endswith(".") for meaning in FLAGS.values())
    assert Family.UNKNOWN.value == "unknown"


VALUES = [0.1, 0.2, 0.3, 1e16, -1e16, 3.3, 7.7]


def test_means_over_executions_are_the_same_to_the_last_digit_in_any_order() -> None:
    rows, types = len(VALUES), polars_types("counters")
    given = {
        "kernel_id": [0] * rows,
        "dispatch_id": [None] * rows,
        "counter": ["SQ_WAVES"] * rows,
        "pass": ["pass_1"] * rows,
        "value": VALUES,
        "pass_duration_ns": [1000] * rows,
    }
    counters = pl.DataFrame(given, schema={name: types[name] for name in given})
    identity = pl.Schema({"kernel_id": pl.Int32(), "device_id": pl.Int32()})
    dispatches = pl.DataFrame({"kernel_id": [0], "device_id": [0]}, schema=identity)
    means = {
        _with_kernels(counters.sample(fraction=1, shuffle=True, seed=seed), dispatches)[0].get_column("value").item()
        for seed in range(20)
    }
    assert len(means) == 1
