"""Real counter captures from reader to roofline: known work is found, and the label changes where the time does."""

from functools import cache
from typing import Final

import polars as pl
import pytest

from aaco_pipeline.analysis.roofline import fitted_ceilings as envelope
from aaco_pipeline.analysis.roofline.counter_metrics import counted as counted_dispatches
from aaco_pipeline.analysis.roofline.counter_metrics import work_of
from aaco_pipeline.analysis.roofline.fitted_ceilings import Envelope, Refusal
from aaco_pipeline.analysis.roofline.placement import placement
from aaco_pipeline.analysis.thresholds import BALANCED
from aaco_pipeline.capture import discovery as detection
from aaco_pipeline.capture import merging as assembly
from aaco_pipeline.formats.capture_tables import Limits
from aaco_pipeline.hardware.ceilings import spec_ceilings
from tests.places import SHARED

FLOAT2: Final = "HIP_vector_type<float, 2u>"
COMPUTE: Final = ("vector", "vector_issue", "vector_integer")
#: What vecCopy reads, and what it writes, in every dispatch.
COPIED: Final = 8 << 20
#: Median of the fp64 benchmark over 141 devices of the same make.
MEASURED_FP64: Final = 20_303e9
#: Flops of one unpacked multiply-add instruction of a 64-lane wavefront.
MULTIPLY_ADDS: Final = 128.0
PACKED: Final = {"double": 1, FLOAT2: 2, "__half2": 2}


@cache
def chain(relative: str) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """Work, dispatches' rooflines and bounds of a capture below `counters`, by its devices' ceilings."""
    folder = SHARED / "counters" / relative
    if not folder.exists():
        pytest.skip(f"{folder} is not there: the shared captures are not part of the repository")
    parts = detection.discover_runs(folder).runs[0].parts
    tables = assembly.merge_parts([assembly.NamedReading(part.name, part.read(Limits())) for part in parts]).tables
    counted = work_of(counted_dispatches(tables["counters"], tables["dispatches"], tables["devices"]))
    found = placement(counted, pl.concat([spec_ceilings(tables["devices"]), tables["ceilings"]]))
    return counted, found.roofline.filter(pl.col("dispatch_id").is_not_null()), found.bounds


@cache
def mixbench() -> pl.DataFrame:
    """Rooflines of mixbench beside what its source code does: one row per type and n."""
    counted, placed, _ = chain("mixbench/MI200")
    truth = pl.read_csv(SHARED / "counters" / "mixbench" / "MI200" / "truth.csv")
    instructions = counted.select("dispatch_id", "valu_instructions", "valu_int32_ops")
    keyed = truth.with_columns(dispatch_id=pl.col("row").cast(pl.Int32))
    return keyed.join(placed, on="dispatch_id").join(instructions, on="dispatch_id").sort("type", "n")


def test_every_kernel_of_mixbench_reads_what_its_source_says() -> None:
    rows = mixbench()
    assert rows.height == 166
    error = (rows["fabric_read_bytes"] / rows["alg_read_bytes"] - 1).abs().sort().to_numpy()
    assert error[-1] < 0.01
    assert error[len(error) // 2] < 0.0002


def test_operations_are_exact_in_double_and_half_of_the_packed_ones_are_counted() -> None:
    rows = mixbench()
    double = rows.filter(type="double")
    assert double["flops"].to_list() == double["alg_flops"].to_list()
    assert not double["flops_is_lower_bound"].any()
    for packed in (FLOAT2, "__half2"):
        part = rows.filter(type=packed)
        assert (part["alg_flops"] / part["flops"]).to_list() == [2.0] * 33
        assert part["flops_is_lower_bound"].all()


@pytest.mark.parametrize("kind", ["double", FLOAT2, "__half2"])
def test_the_label_changes_where_the_time_of_instructions_passes_that_of_memory(kind: str) -> None:
    """Both times from durations alone: memory's from small n, the instructions' rate from the largest n."""
    rows = mixbench().filter(type=kind)
    memory_ns = float(rows.head(9)["duration_ns"].to_numpy().mean())
    last = rows.row(-1, named=True)
    compute_ns = rows["valu_instructions"] * last["duration_ns"] / last["valu_instructions"]
    slower = rows.with_columns(compute=compute_ns > memory_ns)
    assert 0 < slower["compute"].sum() < rows.height
    labelled = slower.with_columns(
        labelled=pl.col("bound").is_in(COMPUTE),
        balanced=(pl.col("second_ratio") >= BALANCED * pl.col("efficiency_ratio")).fill_null(False),
    )
    assert labelled.filter(pl.col("labelled") != pl.col("compute"), ~pl.col("balanced")).is_empty()
    assert labelled["labelled"].to_list() == labelled["compute"].to_list()
    assert labelled.filter("balanced").height <= 3
    if PACKED[kind] == 2:
        assert set(labelled.filter("labelled")["bound"]) == {"vector_issue"}


def test_integer_kernels_are_bound_by_integer_operations() -> None:
    rows = mixbench().filter(type="int")
    assert (rows["flops"] == 0).all()
    assert set(rows.filter(pl.col("n") >= 15)["bound"]) == {"vector_integer"}
    last = rows.row(-1, named=True)
    assert last["valu_int32_ops"] / last["duration_ns"] * 1e9 == pytest.approx(10.3e12, rel=0.01)
    # By its own count the vector unit was busy for nearly all of it.
    assert last["efficiency_ratio"] == pytest.approx(0.98, abs=0.02)


def test_reads_above_the_measured_roof_are_kept_and_reported() -> None:
    row = mixbench().filter(type="double", n=0).row(0, named=True)
    assert (row["bound"], row["efficiency_ratio"]) == ("dram", pytest.approx(1.069, abs=0.001))
    assert "above_measured_roof" in row["quality_flags"]
    assert "above_spec_roof" not in row["quality_flags"]


def points(kind: str) -> pl.DataFrame:
    columns = ("kernel_id", "flops", "duration_ns", "flops_is_lower_bound", "alg_flops")
    read = pl.col("fabric_read_bytes").alias("bytes")
    return mixbench().filter(type=kind).select(*columns, read, instructions="valu_instructions")


def overhead_ns() -> float:
    """The shortest kernel of the capture: it moves 0.5 MB, and so is little but what every kernel spends."""
    return float(mixbench().filter(type="short")["duration_ns"][0])


def test_the_fitted_roof_of_double_is_the_benchmarks() -> None:
    found = envelope.fit(points("double"), overhead_ns(), MULTIPLY_ADDS, resamples=50)
    assert isinstance(found, Envelope)
    assert found.peak_flops_per_s.value == pytest.approx(MEASURED_FP64, rel=0.02)
    assert found.peak_flops_per_s.low < found.peak_flops_per_s.value < found.peak_flops_per_s.high
    # DRAM's published rate is 1638.4 GB/s.
    assert 1.55e12 < found.bandwidth_bytes_per_s.value < 1.6384e12
    assert found.overhead_is_fixed
    assert found.median_error < 0.005
    # Operations alone take the time of address arithmetic for overhead and for a lower peak.
    operations = envelope.fit(points("double"), overhead_ns(), resamples=2)
    assert isinstance(operations, Envelope)
    assert operations.peak_flops_per_s.value == pytest.approx(19.6e12, rel=0.01)


@pytest.mark.parametrize("kind", [FLOAT2, "__half2"])
def test_packed_kernels_reach_the_issue_rate_of_double(kind: str) -> None:
    found = envelope.fit(points(kind), overhead_ns(), MULTIPLY_ADDS, resamples=2)
    assert isinstance(found, Envelope)
    assert found.peak_flops_per_s.value == pytest.approx(20.7e12, rel=0.03)
    refused = envelope.fit(points(kind), overhead_ns())
    assert isinstance(refused, Refusal)
    assert refused.kind == "operations_not_counted"


def test_float_is_refused_because_its_code_changes() -> None:
    algorithm = points("float").with_columns(flops="alg_flops").drop("flops_is_lower_bound")
    for usable, flops_per_instruction in ((algorithm.drop("instructions"), None), (algorithm, MULTIPLY_ADDS)):
        refused = envelope.fit(usable, overhead_ns(), flops_per_instruction)
        assert isinstance(refused, Refusal)
        assert refused.kind == "mixed_population"
    double = points("double").drop("flops_is_lower_bound", "instructions")
    assert isinstance(envelope.fit(double, overhead_ns(), resamples=2), Envelope)


def test_kernels_of_one_size_do_not_tell_bandwidth_from_overhead() -> None:
    refused = envelope.fit(points("double"))
    assert isinstance(refused, Refusal)
    assert refused.kind == "overhead_not_identifiable"


@pytest.mark.parametrize(
    ("device", "writes", "timed"),
    [
        ("MI100", "first", True),
        ("MI200", "first", True),
        ("MI300A_A1", "all", False),
        ("MI300X_A1", "all", False),
        ("MI300X_A1_rocpd", "all", True),
        ("MI350", "all", False),
    ],
)
def test_a_copy_moves_what_it_copies_and_is_limited_by_memory(device: str, writes: str, timed: bool) -> None:
    _, placed, _ = chain(f"vcopy/{device}")
    assert placed.height == 3
    assert (placed["fabric_read_bytes"] / COPIED).to_list() == pytest.approx([1.0] * 3, abs=0.01)
    written = (placed["fabric_write_bytes"] / COPIED).to_list()
    whole = written if writes == "all" else written[:1]
    assert whole == pytest.approx([1.0] * len(whole), abs=0.01)
    # The L2 holds the rest back; what was counted stays as it is.
    for share, flags in zip(written[len(whole) :], placed["quality_flags"][len(whole) :], strict=True):
        assert 0.65 < share < 0.71
        assert "writes_left_in_l2" in flags
    for bound, flags in placed.select("bound", "quality_flags").iter_rows():
        assert bound == ("dram" if timed else None)
        assert ("no_duration" in flags) == (not timed)
    assumed = placed["quality_flags"].list.contains("request_size_assumed")
    assert assumed.all() if device == "MI350" else not assumed.any()


def test_counters_without_formats_are_placed_by_instructions_and_bytes() -> None:
    _, placed, bounds = chain("vcopy/MI100")
    assert placed["flops"].null_count() == placed.height
    assert placed["flops_is_lower_bound"].null_count() == placed.height
    assert {"vector_issue", "dram"} <= set(bounds["resource"])


def test_a_faint_bound_behind_an_infinity_cache_says_so() -> None:
    _, placed, bounds = chain("vcopy/MI300X_A1_rocpd")
    assert placed["quality_flags"].list.contains("infinity_cache_not_excluded").all()
    assert {"infinity_cache", "dram"} <= set(bounds["resource"])
