"""Occupancy of a session's kernels: which launches get a row, whose units count, and what an aggregate is."""

from typing import Any

import polars as pl
import pytest

from aaco_pipeline.hardware.occupancy import kernel_occupancy, why_no_limits
from aaco_pipeline.lake.contracts import polars_types


def rows_of(table: str, rows: list[dict[str, Any]]) -> pl.DataFrame:
    schema = polars_types(table)
    return pl.DataFrame(rows, schema=schema)


DEVICE = {"device_id": 0, "vendor": "AMD", "arch": "gfx90a", "product": "AMD Instinct MI210", "compute_units": 104}
KERNEL = {"kernel_id": 0, "arch_vgprs": 64, "accum_vgprs": 0, "sgprs": 32, "static_lds_bytes": 0}
NOTHING_COUNTED = pl.DataFrame(schema={"dispatch_id": pl.Int32, "achieved_occupancy_ratio": pl.Float64})


def dispatch(number: int, took: int | None = 10, **launch: Any) -> dict[str, Any]:
    shape = {"workgroup_work_items": 256, "grid_work_items": 256 * 1000, "lds_allocated_bytes": 0}
    return {"dispatch_id": number, "kernel_id": 0, "device_id": 0, "self_ns": took, **shape, **launch}


def found(dispatches: list[dict[str, Any]], achieved: dict[int, float] | None = None, **device: Any) -> pl.DataFrame:
    counted = pl.DataFrame(
        {"dispatch_id": list(achieved or ()), "achieved_occupancy_ratio": list((achieved or {}).values())},
        schema=NOTHING_COUNTED.schema,
    )
    tables = (rows_of("dispatches", dispatches), rows_of("kernels", [KERNEL]), rows_of("devices", [DEVICE | device]))
    return kernel_occupancy(*tables, counted)


def test_equal_launches_are_one_row_of_the_kernel() -> None:
    rows = found([dispatch(0), dispatch(1)])
    # 64 registers: 512 / 64 = 8 wavefronts a SIMD, the most; 1000 groups on 104 units of 8 groups each.
    assert rows.select("dispatch_id", "theoretical_ratio").rows() == [(None, 1.0)]
    assert rows.item(0, "grid_waves_ratio") == 1000 / (104 * 8)


def test_launches_that_differ_have_rows_and_the_kernel_that_of_most_time() -> None:
    # 32 KiB of LDS: two groups of four wavefronts on a unit that holds 32.
    rows = found([dispatch(0, 10), dispatch(1, 30, lds_allocated_bytes=32768)])
    told = dict(rows.select("dispatch_id", "theoretical_ratio").iter_rows())
    assert told == {None: 0.25, 0: 1.0, 1: 0.25}


def test_a_counted_dispatch_has_a_row_and_the_kernel_the_mean_by_time() -> None:
    rows = found([dispatch(0, 10), dispatch(1, 30), dispatch(2, 1000)], {0: 0.2, 1: 0.6})
    assert dict(rows.select("dispatch_id", "achieved_ratio").iter_rows()) == {None: 0.5, 0: 0.2, 1: 0.6}


def test_without_times_every_counted_dispatch_weighs_the_same() -> None:
    rows = found([dispatch(0, None), dispatch(1, None)], {0: 0.2, 1: 0.6})
    assert rows.filter(pl.col("dispatch_id").is_null()).item(0, "achieved_ratio") == 0.4


def test_compute_units_that_the_product_cannot_have_do_not_count() -> None:
    product: dict[str, Any] = {"arch": "gfx950", "product": "AMD Instinct MI350X"}
    stated = found([dispatch(0)], None, compute_units=128, xcc_count=8, **product).item(0, "grid_waves_ratio")
    real = found([dispatch(0)], None, compute_units=256, xcc_count=8, **product).item(0, "grid_waves_ratio")
    assert stated == real == 1000 / (256 * 8)


def test_an_unknown_architecture_states_nothing_but_what_was_counted() -> None:
    assert found([dispatch(0)], arch="gfx000").is_empty()
    rows = found([dispatch(0)], {0: 0.3}, arch="gfx000")
    assert rows.get_column("achieved_ratio").to_list() == [0.3, 0.3]


@pytest.mark.parametrize("arch", ["gfx1250", "gfx1300", "gfx9999"])
def test_of_an_unknown_architecture_no_occupancy_is_reckoned(arch: str) -> None:
    assert found([dispatch(0)], arch=arch).is_empty()
    devices = rows_of("devices", [DEVICE | {"arch": arch}])
    assert (why_no_limits(devices) is not None) == (arch == "gfx1250")


def test_known_limits_need_no_reason() -> None:
    assert why_no_limits(rows_of("devices", [DEVICE])) is None
