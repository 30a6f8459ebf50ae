"""An architecture that a capture does not name is told by the product, else by what kernels were compiled for."""

import polars as pl
import pytest

from aaco_pipeline.hardware.device_facts import identified, of_product
from aaco_pipeline.lake.validation import empty_table, to_contract


@pytest.mark.parametrize(
    ("name", "arch"),
    [
        ("AMD Instinct MI300X", "gfx942"),
        ("AMD Instinct MI300X VF", "gfx942"),
        ("AMD Instinct MI250X / MI250", "gfx90a"),
        ("MI210", "gfx90a"),
        ("NVIDIA H100 80GB HBM3", "sm_90"),
        ("AMD Radeon Graphics", None),
        ("AMD Instinct MI3000", None),
        ("", None),
    ],
)
def test_a_products_name_tells_its_architecture(name: str, arch: str | None) -> None:
    assert of_product(name) == arch


def found(
    names: dict[str, int], arch: str | None = None, product: str | None = None, devices: int = 1
) -> list[tuple[str | None, str | None]]:
    """Architecture and what tells it of devices alike, on which kernels ran: each name on the device given."""
    described = pl.DataFrame([{"device_id": place, "arch": arch, "product": product} for place in range(devices)])
    kernels = pl.DataFrame({"kernel_id": range(len(names)), "name": list(names)}, schema_overrides={"name": pl.String})
    ran = pl.DataFrame(
        {"device_id": list(names.values()), "kernel_id": range(len(names))},
        schema={"device_id": pl.Int32, "kernel_id": kernels.get_column("kernel_id").dtype},
    )
    return identified(to_contract("devices", described), ran, kernels).select("arch", "arch_source").rows()


def test_the_captures_own_word_comes_first_then_the_product_then_what_kernels_were_compiled_for() -> None:
    names = {"Cijk_Ailk_Bljk_SB_MT64x64x8_ISA90a_SE": 0, "scale": 0}
    assert found(names) == [("gfx90a", "kernel names")]
    assert found(names, product="AMD Instinct MI300X VF") == [("gfx942", "product")]
    assert found(names, arch="gfx950", product="AMD Instinct MI300X") == [("gfx950", "capture")]
    assert found({"scale": 0}) == [(None, None)]


@pytest.mark.parametrize(
    "name", ["fmha_fwd_hd128_bf16_gfx942.kd", "f4gemm_gfx942", "Cijk_ISA942_IU1", "void k<gfx942>(int)"]
)
def test_a_target_is_read_where_libraries_write_it(name: str) -> None:
    assert found({name: 0}) == [("gfx942", "kernel names")]


@pytest.mark.parametrize("name", ["my_gfx9420_kernel", "gfx942x", "sm90_xmma_gemm", "gfx998", "ISAAC newton"])
def test_what_only_looks_like_a_target_is_none(name: str) -> None:
    assert found({name: 0}) == [(None, None)]


def test_kernels_that_name_several_targets_tell_nothing_and_those_of_another_device_neither() -> None:
    assert found({"a_gfx942": 0, "b_gfx950": 0}) == [(None, None)]
    assert found({"a_gfx942": 0, "b_gfx950": 1}, devices=3) == [
        ("gfx942", "kernel names"),
        ("gfx950", "kernel names"),
        (None, None),
    ]


def test_without_devices_there_is_nothing_to_tell() -> None:
    devices, dispatches, kernels = map(empty_table, ("devices", "dispatches", "kernels"))
    assert identified(devices, dispatches, kernels).height == 0
