"""Roofs fitted to kernels of known roofs, and what the kernels cannot tell.

Roofs from a session's own kernels: which kernels count, that a known roof is found, and what is refused.
"""

from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.analysis.roofline.fitted_ceilings import Envelope, Estimate, Refusal, fit, fitted_ceilings
from aaco_pipeline.lake.contracts import contract

PEAK, BANDWIDTH, SHARPNESS, OVERHEAD = 20e12, 1.5e12, 4.0, 10_000.0


def kernels(intensities: np.ndarray, sizes: np.ndarray, peak: float = PEAK, noise: float = 0.0) -> pl.DataFrame:
    """Kernels of these flop/byte and bytes on a device of the model's own making."""
    flops = intensities * sizes
    both = ((flops / peak) ** SHARPNESS + (sizes / BANDWIDTH) ** SHARPNESS) ** (1 / SHARPNESS)
    ns = (OVERHEAD + both * 1e9) * np.exp(noise * np.random.default_rng(7).standard_normal(len(flops)))
    return pl.DataFrame({"kernel_id": range(len(flops)), "flops": flops, "bytes": sizes, "duration_ns": ns})


def sweep(count: int = 30, smallest: float = 1e7, largest: float = 1e9) -> pl.DataFrame:
    sizes = np.geomspace(smallest, largest, count)[np.random.default_rng(3).permutation(count)]
    return kernels(np.geomspace(0.5, 300, count), sizes)


def refusal(points: pl.DataFrame, overhead_ns: float | None = None) -> Refusal:
    found = fit(points, overhead_ns, resamples=2)
    assert isinstance(found, Refusal), found
    return found


def test_a_known_roof_is_found_with_its_overhead() -> None:
    found = fit(sweep(), resamples=5)
    assert isinstance(found, Envelope)
    assert found.peak_flops_per_s.value == pytest.approx(PEAK, rel=1e-3)
    assert found.bandwidth_bytes_per_s.value == pytest.approx(BANDWIDTH, rel=1e-3)
    assert found.overhead_ns.value == pytest.approx(OVERHEAD, rel=1e-2)
    assert found.sharpness.value == pytest.approx(SHARPNESS, rel=1e-2)
    assert (found.overhead_is_fixed, found.points) == (False, 30)


@given(st.floats(-3, 3), st.floats(-3, 3))
def test_a_roof_keeps_its_shape_in_other_units(flops: float, size: float) -> None:
    scaled = sweep().with_columns(pl.col("flops") * 10**flops, pl.col("bytes") * 10**size)
    found = fit(scaled, resamples=2)
    assert isinstance(found, Envelope)
    assert found.peak_flops_per_s.value == pytest.approx(PEAK * 10**flops, rel=1e-3)
    assert found.bandwidth_bytes_per_s.value == pytest.approx(BANDWIDTH * 10**size, rel=1e-3)


def test_noise_widens_the_interval_around_the_roof() -> None:
    count = 40
    noisy = kernels(np.geomspace(0.5, 300, count), np.full(count, 3e8), noise=0.01)
    found = fit(noisy, OVERHEAD, resamples=60)
    assert isinstance(found, Envelope)
    for estimate, true in ((found.peak_flops_per_s, PEAK), (found.bandwidth_bytes_per_s, BANDWIDTH)):
        assert estimate.low < true < estimate.high
        assert 0.002 < (estimate.high - estimate.low) / estimate.value < 0.05
    assert found.overhead_ns == Estimate(OVERHEAD, OVERHEAD, OVERHEAD)
    assert found.overhead_is_fixed
    again = fit(noisy, OVERHEAD, resamples=60)
    assert again == found


def test_one_cold_execution_does_not_move_the_roof() -> None:
    points = sweep()
    slowdown = pl.when(pl.col("kernel_id") == 29).then(1.35).otherwise(1.0)
    found = fit(points.with_columns(pl.col("duration_ns") * slowdown), resamples=2)
    assert isinstance(found, Envelope)
    assert found.peak_flops_per_s.value == pytest.approx(PEAK, rel=0.01)
    assert found.largest_error == pytest.approx(np.log(1.35), rel=0.05)


def test_instructions_count_as_operations_where_that_is_asked_for() -> None:
    points = sweep().with_columns(instructions=pl.col("flops") / 128, flops=pl.col("flops") / 2)
    points = points.with_columns(flops_is_lower_bound=True)
    assert refusal(points).kind == "operations_not_counted"
    uncounted = points.with_columns(flops=pl.lit(None, pl.Float64))
    for usable in (points, uncounted):
        found = fit(usable, flops_per_instruction=128.0, resamples=2)
        assert isinstance(found, Envelope)
        assert found.peak_flops_per_s.value == pytest.approx(PEAK, rel=1e-3)
    assert refusal(uncounted).kind == "too_few_points"


def test_rows_without_a_duration_or_work_are_left_out() -> None:
    points = sweep()
    empty = points.head(3).with_columns(duration_ns=pl.lit(None, pl.Float64))
    idle = points.head(2).with_columns(flops=pl.lit(0.0), bytes=pl.lit(0.0))
    found = fit(pl.concat([points, empty, idle]), resamples=2)
    assert isinstance(found, Envelope)
    assert found.points == 30
    assert refusal(points.head(7)).kind == "too_few_points"


def test_kernels_that_move_the_same_bytes_need_a_stated_overhead() -> None:
    same = kernels(np.geomspace(0.5, 300, 30), np.full(30, 3e8))
    found = refusal(same)
    assert found.kind == "overhead_not_identifiable"
    assert "3e+08" in found.reason
    assert isinstance(fit(same, OVERHEAD, resamples=2), Envelope)
    assert refusal(same, 1e9).kind == "overhead_not_identifiable"


@pytest.mark.parametrize(("low", "high", "side"), [(0.1, 2.0, "arithmetic"), (60.0, 600.0, "traffic")])
def test_kernels_on_one_side_of_the_ridge_give_no_roof(low: float, high: float, side: str) -> None:
    found = refusal(kernels(np.geomspace(low, high, 30), np.geomspace(1e7, 1e9, 30)))
    assert found.kind == "one_sided"
    assert side in found.reason


@pytest.mark.parametrize("at", [30, 33])
@pytest.mark.parametrize("factor", [1.33, 0.75])
def test_code_that_changes_along_the_sweep_is_refused(factor: float, at: int) -> None:
    intensities, sizes = np.geomspace(0.5, 300, 40), np.full(40, 3e8)
    before, after = kernels(intensities[:at], sizes[:at], PEAK * factor), kernels(intensities[at:], sizes[at:])
    found = refusal(pl.concat([before, after]), OVERHEAD)
    assert found.kind == "mixed_population"
    assert isinstance(fit(kernels(intensities, sizes), OVERHEAD, resamples=2), Envelope)


def test_two_codes_side_by_side_are_refused() -> None:
    intensities, sizes = np.geomspace(0.5, 300, 40), np.full(40, 3e8)
    one, two = kernels(intensities[::2], sizes[::2]), kernels(intensities[1::2], sizes[1::2], PEAK / 1.4)
    assert refusal(pl.concat([one, two]), OVERHEAD).kind == "mixed_population"


DEVICES = pl.DataFrame(
    {"device_id": [0], "wavefront_size": [64]}, schema={"device_id": pl.Int32, "wavefront_size": pl.Int64}
)
AMOUNTS = ("valu_instructions", "fabric_read_bytes", "fabric_write_bytes")
FLOPS = (
    *(f"valu_{name}_flops" for name in ("fp64", "fp32", "fp16")),
    *(f"matrix_{name}_flops" for name in ("fp64", "fp32", "xf32", "fp16", "bf16", "fp8", "f6f4")),
)


def work(kernels: int = 16, *, dispatches: int = 2, **changed: Any) -> pl.DataFrame:
    """Kernels of one device with a known roof: rows of counted dispatches from all traffic to all arithmetic."""
    rows = []
    for kernel in range(kernels):
        instructions, moved = 2.0**kernel * 1e5, 4e8 * (1 + kernel % 3)
        flops = instructions * 128
        time = OVERHEAD + 1e9 * ((flops / PEAK) ** 8 + (moved / BANDWIDTH) ** 8) ** (1 / 8)
        amounts = {"valu_instructions": instructions, "fabric_read_bytes": moved, "fabric_write_bytes": 0.0}
        row = {"device_id": 0, "kernel_id": kernel, "duration_ns": round(time), "flops_is_lower_bound": False}
        row |= amounts | dict.fromkeys(FLOPS, 0.0) | {"valu_fp64_flops": flops} | changed
        rows += [row | {"dispatch_id": kernel * dispatches + number} for number in range(dispatches)]
    # One that does nothing, whose time is what every kernel spends.
    idle = dict.fromkeys((*AMOUNTS, *FLOPS), 0.0) | {"device_id": 0, "kernel_id": kernels, "dispatch_id": 10_000}
    rows.append(idle | {"duration_ns": int(OVERHEAD), "flops_is_lower_bound": False})
    return pl.DataFrame(rows, schema_overrides={"device_id": pl.Int32, "duration_ns": pl.Int64})


def test_a_known_roof_is_found_with_its_interval() -> None:
    rows = fitted_ceilings(work(), DEVICES).ceilings
    assert rows.columns == [c.name for c in contract("ceilings").columns]
    peak, bandwidth = rows.rows(named=True)
    assert (peak["resource"], peak["dtype"], peak["unit"], peak["source"]) == ("vector", "fp64", "flop/s", "fitted")
    assert peak["value"] == pytest.approx(PEAK, rel=0.01)
    assert bandwidth["value"] == pytest.approx(BANDWIDTH, rel=0.01)
    assert "16 kernels" in peak["reference"] and "10 us" in peak["reference"] and "95 % interval" in peak["reference"]


@pytest.mark.parametrize(
    "changed",
    [{"flops_is_lower_bound": True}, {"valu_fp32_flops": 1.0}, {"matrix_fp16_flops": 1.0}, {"duration_ns": None}],
    ids=["packed", "two formats", "matrix units too", "no times"],
)
def test_kernels_that_do_not_state_one_format_in_full_give_no_roof(changed: dict[str, Any]) -> None:
    found = fitted_ceilings(work(**changed), DEVICES)
    assert found.ceilings.is_empty()
    assert found.refused == ()


def test_few_kernels_are_left_out_and_many_dispatches_of_one_are_one() -> None:
    assert fitted_ceilings(work(7, dispatches=9), DEVICES).ceilings.is_empty()
    assert fitted_ceilings(work(7, dispatches=9), DEVICES).refused == ()


def test_kernels_on_one_side_of_the_ridge_are_refused_with_the_reason() -> None:
    found = fitted_ceilings(work(40).filter(pl.col("kernel_id") > 24), DEVICES)
    assert found.ceilings.is_empty()
    ((device, dtype, reason),) = found.refused
    assert (device, dtype) == (0, "fp64")
    assert "limited by traffic clearly" in reason


def test_no_work_gives_no_roof() -> None:
    assert fitted_ceilings(work().head(0), DEVICES).ceilings.is_empty()
