"""Roofs from a session's own kernels: which kernels count, that a known roof is found, and what is refused."""

from typing import Any

import polars as pl
import pytest

from aaco_pipeline.analysis.roofline.fitted_ceilings import fitted_ceilings
from aaco_pipeline.lake.contracts import contract

DEVICES = pl.DataFrame(
    {"device_id": [0], "wavefront_size": [64]}, schema={"device_id": pl.Int32, "wavefront_size": pl.Int64}
)
AMOUNTS = ("valu_instructions", "fabric_read_bytes", "fabric_write_bytes")
FLOPS = (
    *(f"valu_{name}_flops" for name in ("fp64", "fp32", "fp16")),
    *(f"matrix_{name}_flops" for name in ("fp64", "fp32", "xf32", "fp16", "bf16", "fp8", "f6f4")),
)
PEAK, BANDWIDTH, OVERHEAD = 20e12, 1.5e12, 10_000.0


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
