"""Devices are recognized by name or figures, implausible facts are rejected, and every source is named."""

from typing import Any

import polars as pl
import pytest

from aaco_pipeline.hardware.architecture import Architecture
from aaco_pipeline.hardware.architecture_files import architecture
from aaco_pipeline.hardware.device_facts import DeviceFacts, device_facts, identified, of_product, recognized
from aaco_pipeline.lake.validation import empty_table, to_contract


def known(name: str) -> Architecture:
    found = architecture(name)
    assert found is not None
    return found


def facts(arch: str, **stated: Any) -> DeviceFacts:
    return device_facts(stated, known(arch))


@pytest.mark.parametrize(
    ("arch", "stated", "product"),
    [
        ("gfx942", {"product": "MI300A_A1"}, "AMD Instinct MI300A"),
        ("gfx942", {"product": "AMD Instinct MI300X VF"}, "AMD Instinct MI300X"),
        ("gfx942", {"product": "AMD Instinct MI300X", "compute_units": 38, "partition_mode": "CPX/NPS4"}, "MI300X"),
        ("gfx942", {"compute_units": 228}, "AMD Instinct MI300A"),
        # MI300X and MI325X have as many compute units; their memory tells them apart.
        ("gfx942", {"compute_units": 304}, None),
        ("gfx942", {"compute_units": 304, "memory_bytes": 206_141_652_992}, "AMD Instinct MI300X"),
        ("gfx942", {"compute_units": 304, "memory_bytes": 274_861_129_728}, "AMD Instinct MI325X"),
        # The driver calls MI250 and MI250X by both names; the compute units of a die tell them apart.
        ("gfx90a", {"product": "AMD Instinct MI250X / MI250", "compute_units": 110}, "AMD Instinct MI250X"),
        ("gfx90a", {"product": "AMD Instinct MI250X / MI250", "compute_units": 104}, "AMD Instinct MI250 "),
        ("gfx90a", {"product": "AMD Instinct MI250X / MI250"}, None),
        ("gfx90a", {"product": "MI200", "compute_units": 104}, "AMD Instinct MI210"),
        ("gfx90a", {"product": "MI200"}, None),
        ("gfx950", {"product": "MI350", "compute_units": 128}, "AMD Instinct MI350X"),
        ("gfx950", {"product": "AMD Instinct MI355X"}, "AMD Instinct MI355X"),
        ("gfx950", {"compute_units": 256}, None),
        ("gfx908", {"product": "Arcturus GL-XL [Instinct MI100]"}, "AMD Instinct MI100"),
        ("gfx1201", {"product": "AMD Radeon RX 9070 XT"}, "AMD Radeon RX 9070 XT"),
        ("gfx1201", {"product": "AMD Radeon RX 9070"}, "AMD Radeon RX 9070"),
        ("gfx1201", {"product": "AMD Radeon RX 9070 GRE"}, "AMD Radeon RX 9070 GRE"),
        ("gfx1201", {"product": "AMD Radeon AI PRO R9700"}, "AMD Radeon AI PRO R9700"),
        ("gfx1201", {"product": "AMD Radeon AI PRO R9600D"}, "AMD Radeon AI PRO R9600D"),
        # RX 9070 XT and AI PRO R9700 have as many compute units; their memory tells them apart.
        ("gfx1201", {"compute_units": 64}, None),
        ("gfx1201", {"compute_units": 64, "memory_bytes": 34_208_743_424}, "AMD Radeon AI PRO R9700"),
        ("gfx1201", {"compute_units": 48}, None),
        ("gfx1200", {"product": "AMD Radeon RX 9060 XT"}, "AMD Radeon RX 9060 XT"),
        ("gfx1200", {"product": "AMD Radeon RX 9060"}, "AMD Radeon RX 9060"),
        ("gfx1200", {"compute_units": 28}, "AMD Radeon RX 9060"),
        ("gfx1100", {"product": "AMD Radeon RX 7900 XT"}, "AMD Radeon RX 7900 XT"),
        ("gfx1100", {"product": "AMD Radeon RX 7900 XTX"}, "AMD Radeon RX 7900 XTX"),
        ("gfx1100", {"product": "AMD Radeon RX 7900 GRE"}, "AMD Radeon RX 7900 GRE"),
        ("gfx1100", {"product": "AMD Radeon PRO W7900 Dual Slot"}, "AMD Radeon PRO W7900"),
        ("gfx1100", {"product": "AMD Radeon Pro W7800"}, "AMD Radeon PRO W7800"),
        ("gfx1100", {"product": "AMD Radeon Pro W7800 48GB"}, "AMD Radeon PRO W7800 48GB"),
        ("gfx1100", {"compute_units": 70}, None),
        ("gfx1100", {"compute_units": 70, "memory_bytes": 51_522_830_336}, "AMD Radeon PRO W7800 48GB"),
        ("gfx1101", {"product": "AMD Radeon PRO V710 MxGPU"}, "AMD Radeon PRO V710"),
        ("gfx1101", {"product": "AMD Radeon PRO W7700"}, "AMD Radeon PRO W7700"),
        ("gfx1101", {"product": "AMD Radeon RX 7700 XT"}, "AMD Radeon RX 7700 XT"),
        ("gfx1101", {"compute_units": 54}, None),
        ("gfx1101", {"product": "AMD Radeon RX 7700", "compute_units": 40}, None),
        ("gfx1103", {"product": "AMD Radeon 780M Graphics"}, "AMD Radeon 780M"),
        ("gfx1103", {"product": "AMD Radeon 760M Graphics", "compute_units": 8}, None),
        ("gfx1150", {"product": "AMD Radeon 890M Graphics"}, "AMD Radeon 890M"),
        ("gfx1150", {"product": "AMD Radeon 880M Graphics"}, "AMD Radeon 880M"),
        ("gfx1152", {"product": "AMD Radeon 860M Graphics"}, "AMD Radeon 860M"),
        ("gfx1151", {"product": "AMD Radeon 8060S Graphics"}, "AMD Radeon 8060S"),
        ("gfx1151", {"product": "AMD Radeon 8050S Graphics"}, "AMD Radeon 8050S"),
        ("gfx1151", {"product": "Strix Halo [Radeon Graphics / Radeon 8050S Graphics / Radeon 8060S Graphics]"}, None),
        (
            "gfx1151",
            {"product": "Strix Halo [Radeon 8050S Graphics / Radeon 8060S Graphics]", "compute_units": 32},
            "AMD Radeon 8050S",
        ),
        ("gfx1030", {"product": "AMD Radeon RX 6900 XT"}, "AMD Radeon RX 6900 XT"),
        ("gfx1030", {"product": "AMD Radeon RX 6800"}, "AMD Radeon RX 6800"),
        ("gfx1030", {"product": "AMD Radeon RX 6800 XT"}, "AMD Radeon RX 6800 XT"),
        ("gfx1030", {"product": "AMD Radeon PRO W6800"}, "AMD Radeon PRO W6800"),
        ("gfx1031", {"product": "AMD Radeon RX 6700 XT"}, "AMD Radeon RX 6700 XT"),
        # Of both neither clock nor memory is known, so that nothing says they are alike.
        ("gfx1032", {"compute_units": 32}, None),
        ("gfx1032", {"product": "AMD Radeon RX 6600 XT"}, "AMD Radeon RX 6600 XT"),
        ("sm_100", {"product": "NVIDIA B200"}, "NVIDIA B200"),
        ("sm_90", {"product": "NVIDIA H200"}, "NVIDIA H200"),
        ("sm_90", {"product": "NVIDIA H200 NVL"}, "NVIDIA H200 NVL"),
        ("sm_90", {"product": "NVIDIA H100 NVL"}, "NVIDIA H100 NVL"),
        ("sm_90", {"product": "NVIDIA H100 80GB HBM3"}, "NVIDIA H100 SXM5"),
        ("sm_80", {"product": "NVIDIA A100-SXM4-40GB"}, "NVIDIA A100 40GB"),
        ("gfx942", {}, None),
    ],
)
def test_products_are_recognized(arch: str, stated: dict[str, Any], product: str | None) -> None:
    found = recognized(stated, known(arch))
    name = None if found is None else found.name
    # A whole name may be the beginning of another product's.
    if product is None or product in {one.name for one in known(arch).products}:
        assert name == product
    else:
        assert name is not None and product in name


@pytest.mark.parametrize(
    ("mode", "product", "share"),
    [
        ("SPX/NPS1", "MI300X", 1),
        ("DPX/NPS1", "MI300X", 1 / 2),
        ("QPX/NPS4", "MI300X", 1 / 4),
        ("CPX/NPS4", "MI300X", 1 / 8),
        ("TPX", "MI300A", 1 / 3),
        ("CPX", "MI300A", 1 / 6),
        (None, "MI300A", 1),
    ],
)
def test_a_partition_has_its_share(mode: str | None, product: str, share: float) -> None:
    found = facts("gfx942", product=product, partition_mode=mode)
    whole = facts("gfx942", product=product)
    assert found.share == pytest.approx(share)
    for name in ("compute_units", "xcds", "l2_channels", "memory_bandwidth", "infinity_cache"):
        part, all_of_it = getattr(found, name), getattr(whole, name)
        assert part.value == pytest.approx(all_of_it.value * share), name
    assert found.clock_mhz == whole.clock_mhz


def test_without_a_mode_the_number_of_dies_tells_the_share_and_a_mode_outweighs_it() -> None:
    assert facts("gfx942", product="MI300X", xcc_count=2).share == 1 / 4
    both = facts("gfx942", product="MI300X", xcc_count=8, partition_mode="CPX")
    assert both.xcds is not None
    assert both.xcds.value == 1
    assert "the capture's 8 cannot be right" in both.xcds.origin


def test_facts_of_the_capture_override_the_products() -> None:
    found = facts("gfx942", product="MI300X", compute_units=300, max_clock_mhz=1900.0, memory_clock_mhz=1200.0)
    assert found.compute_units is not None and found.clock_mhz is not None and found.memory_bandwidth is not None
    assert (found.compute_units.value, found.clock_mhz.value) == (300, 1900)
    assert found.memory_bandwidth.value == 1200e6 * 8192 / 8 * 4
    assert str(found.compute_units) == "300 compute units (stated by the capture)"


@pytest.mark.parametrize("units", [0, 128, 152, 305, 608])
def test_compute_units_that_cannot_be_right_are_the_products(units: int) -> None:
    found = facts("gfx942", product="MI300X", compute_units=units).compute_units
    assert found is not None
    assert found.value == 304
    assert ("cannot be right" in found.origin) == (units > 0)


@pytest.mark.parametrize("clock", [0.0, 100.0, 21000.0])
def test_clocks_that_cannot_be_right_are_the_products(clock: float) -> None:
    found = facts("gfx942", product="MI300X", max_clock_mhz=clock).clock_mhz
    assert found is not None
    assert found.value == 2100


def test_memory_by_clock_and_width_or_by_the_product_when_that_cannot_be_right() -> None:
    stated = {"product": "MI210", "memory_clock_mhz": 1600.0, "memory_bus_bits": 4096}
    found = facts("gfx90a", **stated).memory_bandwidth
    assert found is not None and found.value == 1638.4e9
    absurd = facts("gfx90a", **{**stated, "memory_bus_bits": 64}).memory_bandwidth
    assert absurd is not None and absurd.value == 1638.4e9
    assert "25.6 GB/s by the capture's clock and width cannot be right" in absurd.origin


def test_the_width_of_the_whole_memory_is_shared_out_in_a_partition() -> None:
    stated = {"product": "MI300X", "partition_mode": "CPX/NPS1", "memory_clock_mhz": 1300.0}
    for bits in (8192, 1024):
        found = facts("gfx942", **stated, memory_bus_bits=bits).memory_bandwidth
        assert found is not None
        assert found.value == pytest.approx(5324.8e9 / 8)


def test_an_unknown_product_has_what_the_capture_states_and_nothing_else() -> None:
    bare = facts("gfx942")
    assert [bare.compute_units, bare.clock_mhz, bare.memory_bandwidth, bare.xcds, bare.l2_channels] == [None] * 5
    told = facts("gfx942", compute_units=76, max_clock_mhz=1420.0, xcc_count=2, memory_clock_mhz=1300.0)
    assert told.product is None
    assert told.compute_units is not None and told.compute_units.value == 76
    assert told.l2_channels is not None and told.l2_channels.value == 32
    assert told.memory_bandwidth is None, "its width is not stated"


def test_a_product_without_published_figures_has_what_the_capture_states_and_those_of_no_other_product() -> None:
    bare = facts("gfx942", product="AMD Instinct MI308X")
    assert bare.product is not None and bare.product.name == "AMD Instinct MI308X"
    assert [bare.clock_mhz, bare.memory_bandwidth, bare.infinity_cache] == [None] * 3
    assert bare.compute_units is not None and bare.compute_units.value == 80
    told = facts("gfx942", product="MI308X", max_clock_mhz=1420.0, memory_clock_mhz=1300.0, memory_bus_bits=8192)
    assert told.clock_mhz is not None and told.clock_mhz.value == 1420
    assert told.memory_bandwidth is not None and told.memory_bandwidth.value == pytest.approx(5324.8e9)
    part = facts("gfx942", product="MI308X", partition_mode="CPX")
    assert part.compute_units is not None and part.compute_units.value == 20


def test_simds_are_the_architectures_and_a_wavefront_size_must_be_one_it_has() -> None:
    found = facts("gfx942", simd_per_cu=2)
    assert found.simds_per_cu is not None
    assert found.simds_per_cu.value == 4
    assert "the capture's 2 cannot be right" in found.simds_per_cu.origin
    assert found.wavefront_size == 64
    assert facts("gfx1100").wavefront_size is None
    assert facts("gfx1100", wavefront_size=32).wavefront_size == 32
    assert facts("gfx1100", wavefront_size=16).wavefront_size is None


def test_matrix_instructions_run_at_their_own_clock_where_that_is_lower() -> None:
    fast, slow = facts("sm_90", product="NVIDIA H200"), facts("sm_90", product="NVIDIA H200", max_clock_mhz=1500.0)
    assert fast.matrix_clock_mhz is not None and fast.matrix_clock_mhz.value == 1830
    assert slow.matrix_clock_mhz is not None and slow.matrix_clock_mhz.value == 1500
    assert facts("gfx942", product="MI300X").matrix_clock_mhz is None


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
