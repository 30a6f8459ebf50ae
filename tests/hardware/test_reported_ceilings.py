"""What benchmarks are reported to sustain on a device, whole or partitioned, and on devices of no known product."""

from typing import Any

import polars as pl
import pytest

from aaco_pipeline.hardware.architecture_files import architecture
from aaco_pipeline.hardware.ceilings import reported_ceilings, spec_ceilings
from aaco_pipeline.lake.validation import to_contract


def reported(**stated: Any) -> dict[tuple[str, str | None], dict[str, Any]]:
    devices = to_contract("devices", pl.DataFrame([{"device_id": 3, **stated}]))
    found = reported_ceilings(devices, spec_ceilings(devices))
    assert set(found["source"]) <= {"reported"}
    assert set(found["device_id"]) <= {3}
    return {(row["resource"], row["dtype"]): row for row in found.iter_rows(named=True)}


@pytest.mark.parametrize(
    ("arch", "product", "gigabytes"),
    [
        ("gfx908", "AMD Instinct MI100", 940.0),
        ("gfx90a", "AMD Instinct MI210", 1388.9),
        ("gfx942", "AMD Instinct MI300A", 3250.0),
        ("gfx942", "AMD Instinct MI300X", 4177.285),
    ],
)
def test_memory_has_what_its_product_sustains(arch: str, product: str, gigabytes: float) -> None:
    row = reported(arch=arch, product=product)["dram", None]
    assert (row["value"], row["unit"]) == (pytest.approx(gigabytes * 1e9), "byte/s")
    assert product in row["reference"]


@pytest.mark.parametrize(("product", "bf16"), [("AMD Instinct MI300X", 708e12), ("AMD Instinct MI325X", 843e12)])
def test_matrix_units_have_what_products_of_matrices_reach(product: str, bf16: float) -> None:
    row = reported(arch="gfx942", product=product)["matrix", "bf16"]
    assert (row["value"], row["unit"]) == (pytest.approx(bf16), "flop/s")


def test_a_partition_has_its_share() -> None:
    whole = reported(arch="gfx942", product="AMD Instinct MI300X")
    part = reported(arch="gfx942", product="AMD Instinct MI300X", compute_units=38, xcc_count=1)
    assert part["matrix", "bf16"]["value"] == pytest.approx(whole["matrix", "bf16"]["value"] / 8)


def test_a_device_of_no_known_product_has_the_largest_share_of_its_architecture() -> None:
    row = reported(arch="gfx942", compute_units=100, max_clock_mhz=2000)["matrix", "bf16"]
    assert row["value"] == pytest.approx(100 * 2000e6 * 2048 * 843e12 / (304 * 2100e6 * 2048))


@pytest.mark.parametrize("arch", ["gfx1100", "sm_90", "x86_64", "gfx9999", None])
def test_where_nothing_is_reported_there_are_no_rows(arch: str | None) -> None:
    assert reported(arch=arch) == {}


def test_what_is_sustained_is_less_than_what_is_published() -> None:
    for arch in ("gfx908", "gfx90a", "gfx942"):
        known = architecture(arch)
        assert known is not None
        for product in known.products:
            reached, published = product.achieved_memory_bandwidth, product.memory_bandwidth
            assert reached is None or published is None or 0.5 < reached.value / published.value < 1


@pytest.mark.parametrize(
    ("arch", "slots"),
    [
        ("gfx906", {"fp64": 2, "int32_multiply": 4, "transcendental": 4}),
        ("gfx908", {"fp64": 2, "int32_multiply": 4, "transcendental": 4}),
        ("gfx90a", {"fp64": 1, "int32_multiply": 1, "transcendental": 4}),
        ("gfx942", {"fp64": 1, "int32_multiply": 1, "transcendental": 4}),
        ("gfx950", {"fp64": 1, "int32_multiply": 1, "transcendental": 4}),
    ],
)
def test_instructions_take_issue_slots_by_class_and_as_the_rates_of_their_operations_say(
    arch: str, slots: dict[str, int]
) -> None:
    known = architecture(arch)
    assert known is not None
    assert {name: figure.value for name, figure in known.issue_slots.items()} == slots
    vector, integer = known.operations["vector"], known.operations["vector_integer"]
    assert vector["fp32"].value / vector["fp64"].value == slots["fp64"]
    assert integer["int32"].value / integer["int32_multiply"].value == slots["int32_multiply"]
