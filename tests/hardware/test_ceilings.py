"""Published, measured and reported ceilings match hand-computed figures and state their sources."""

from typing import Any, Final

import polars as pl
import pytest

from aaco_pipeline.formats import kineto, rocprof_compute
from aaco_pipeline.formats.capture_tables import CaptureTables
from aaco_pipeline.hardware.architecture_files import architecture
from aaco_pipeline.hardware.ceilings import (
    SCHEMA,
    measured_ceilings,
    missing_ceilings,
    reported_ceilings,
    spec_ceilings,
)
from aaco_pipeline.lake.contracts import polars_types
from aaco_pipeline.lake.validation import to_contract
from tests.places import SHARED

COUNTERS: Final = SHARED / "counters"
#: Published peaks in TFLOP/s (vector fp64, fp32, packed fp32, packed fp16; matrix fp64, fp32, fp16, bf16, fp8, int8,
#: fp4) and memory bandwidth in GB/s, of the products' data sheets; None where the format is not there.
PEAKS: Final[list[tuple[str, str, int, int, list[float | None], float]]] = [
    ("gfx906", "MI50", 60, 1725, [6.6, 13.2, None, 26.5, None, None, None, None, None, None, None], 1024),
    ("gfx906", "MI60", 64, 1800, [7.4, 14.7, None, 29.5, None, None, None, None, None, None, None], 1024),
    ("gfx908", "MI100", 120, 1502, [11.5, 23.1, None, None, None, 46.1, 184.6, 92.3, None, 184.6, None], 1228.8),
    ("gfx90a", "MI210", 104, 1700, [22.6, 22.6, 45.3, None, 45.3, 45.3, 181.0, 181.0, None, 181.0, None], 1638.4),
    ("gfx90a", "MI250X", 110, 1700, [23.9, 23.9, 47.9, None, 47.9, 47.9, 191.5, 191.5, None, 191.5, None], 1638.4),
    ("gfx90a", "MI250", 104, 1700, [22.6, 22.6, 45.3, None, 45.3, 45.3, 181.0, 181.0, None, 181.0, None], 1638.4),
    ("gfx942", "MI300A", 228, 2100, [61.3, 61.3, 122.6, None, 122.6, 122.6, 980.6, 980.6, 1961, 1961, None], 5324.8),
    (
        "gfx942",
        "MI300X",
        304,
        2100,
        [81.7, 81.7, 163.4, None, 163.4, 163.4, 1307.4, 1307.4, 2614.9, 2614.9, None],
        5324.8,
    ),
    (
        "gfx942",
        "MI325X",
        304,
        2100,
        [81.7, 81.7, 163.4, None, 163.4, 163.4, 1307.4, 1307.4, 2614.9, 2614.9, None],
        6000,
    ),
    ("gfx950", "MI350X", 256, 2200, [72.1, 72.1, 144.2, None, 72.1, 144.2, 2306.9, 2306.9, 4613.7, 4613.7, 9227], 8000),
    ("gfx950", "MI355X", 256, 2400, [78.6, 78.6, 157.3, None, 78.6, 157.3, 2516.6, 2516.6, 5033, 5033, 10066], 8000),
]
FORMATS: Final = (
    *(("vector", "fp64"), ("vector", "fp32"), ("vector_packed", "fp32"), ("vector_packed", "fp16")),
    *(("matrix", "fp64"), ("matrix", "fp32"), ("matrix", "fp16"), ("matrix", "bf16"), ("matrix", "fp8")),
    *(("matrix", "int8"), ("matrix", "fp4")),
)


def device(**stated: Any) -> pl.DataFrame:
    """One row of the table `devices`."""
    return to_contract("devices", pl.DataFrame([{"device_id": 0, **stated}]))


def values(ceilings: pl.DataFrame) -> dict[tuple[str, str | None], float]:
    return {(resource, dtype): value for resource, dtype, value in ceilings.select("resource", "dtype", "value").rows()}


def counters(workload: str) -> CaptureTables:
    path = COUNTERS / workload
    if not path.is_dir():
        pytest.skip(f"no capture at {path}; set AACO_SHARED to the folder with counters/")
    return rocprof_compute.read(path)


@pytest.mark.parametrize("published", PEAKS, ids=[row[1] for row in PEAKS])
def test_published_peaks(published: tuple[str, str, int, int, list[float | None], float]) -> None:
    arch, product, units, clock, peaks, memory = published
    found = values(spec_ceilings(device(arch=arch, product=product, compute_units=units, max_clock_mhz=float(clock))))
    by_name = values(spec_ceilings(device(arch=arch, product=product, compute_units=units)))
    assert by_name == found, "the product's own clock is the same"
    for format_, peak in zip(FORMATS, peaks, strict=True):
        if peak is not None:
            # Published with four digits, some cut and not rounded.
            assert found[format_] == pytest.approx(peak * 1e12, rel=0.005), format_
    assert found["dram", None] == pytest.approx(memory * 1e9)
    assert ("matrix", "fp64") not in found or arch not in ("gfx906", "gfx908")


@pytest.mark.parametrize(
    ("arch", "product", "resource", "dtype", "expected"),
    [
        # Compute units × MHz × operations a clock.
        ("gfx90a", "MI210", "vector_issue", None, 104 * 1700e6 * 1),
        ("gfx90a", "MI210", "vector_integer", "int32", 104 * 1700e6 * 64),
        ("gfx908", "MI100", "vector_issue", None, 120 * 1502e6 * 1),
        ("gfx90a", "MI210", "lds", None, 104 * 1700e6 * 128),
        ("gfx90a", "MI210", "vl1d", None, 104 * 1700e6 * 64),
        # L2 channels × MHz × bytes a clock.
        ("gfx90a", "MI210", "l2", None, 32 * 1700e6 * 128),
        # AMD's own 3.07 and, for both dies' half, 6.96 TB/s.
        ("gfx908", "MI100", "l2", None, 3.07e12),
        ("gfx90a", "MI250", "l2", None, 6.96e12),
        ("gfx942", "MI300X", "l2", None, 34.4e12),
        ("gfx942", "MI300X", "l2", None, 8 * 16 * 2100e6 * 128),
        ("gfx942", "MI300A", "l2", None, 6 * 16 * 2100e6 * 128),
        ("gfx90a", "MI210", "fabric", None, 1638.4e9),
        ("gfx942", "MI300X", "fabric", None, 17.2e12),
        ("gfx942", "MI300X", "infinity_cache", None, 17.2e12),
        ("gfx942", "MI300X", "matrix", "xf32", 304 * 2100e6 * 1024),
        ("gfx950", "MI355X", "lds", None, 256 * 2400e6 * 256),
        ("gfx950", "MI355X", "matrix", "fp6", 256 * 2400e6 * 16384),
        ("gfx1100", "RX 7900 XTX", "vector_packed", "fp32", 61.44e12),
        ("gfx1100", "RX 7900 XTX", "matrix", "fp16", 122.88e12),
        ("gfx1201", "RX 9070 XT", "matrix", "int8", 389.3e12),
        ("gfx1201", "RX 9070 XT", "dram", None, 640e9),
        ("gfx1151", "Radeon 8060S", "dram", None, 256e9),
        # NVIDIA publishes 989.4 TFLOP/s of fp16 at 1830 MHz and 33.5 and 66.9 of fp64 at 1980 MHz.
        ("sm_90", "NVIDIA H200", "matrix", "bf16", 989.4e12),
        ("sm_90", "NVIDIA H200", "matrix", "fp64", 66.9e12),
        ("sm_90", "NVIDIA H200", "vector", "fp64", 33.5e12),
        ("sm_90", "NVIDIA H200", "dram", None, 4800e9),
        # NVIDIA publishes 37 TFLOP/s of fp64, vector and matrix, and 7.7 TB/s of HGX B200.
        ("sm_100", "NVIDIA B200", "vector", "fp64", 37.2e12),
        ("sm_100", "NVIDIA B200", "matrix", "fp64", 37.2e12),
        ("sm_100", "NVIDIA B200", "dram", None, 2 * 3996e6 * 7680 / 8),
        ("sm_80", "NVIDIA A100-SXM4-80GB", "matrix", "fp16", 312e12),
        ("sm_80", "NVIDIA A100-SXM4-80GB", "vector_packed", "fp16", 78e12),
        ("sm_80", "NVIDIA A100-SXM4-80GB", "l2", None, 5120 * 1410e6),
    ],
)
def test_ceilings_by_hand(arch: str, product: str, resource: str, dtype: str | None, expected: float) -> None:
    found = values(spec_ceilings(device(arch=arch, product=product)))
    assert found.get((resource, dtype), 0.0) == pytest.approx(expected, rel=0.002)


@pytest.mark.parametrize(("size", "per_clock"), [(32, 2), (64, 1), (None, None)])
def test_rdna_issues_by_wavefront_size(size: int | None, per_clock: int | None) -> None:
    found = values(spec_ceilings(device(arch="gfx1100", product="RX 7900 XTX", wavefront_size=size)))
    assert found.get(("vector_issue", None)) == (None if per_clock is None else 96 * 2500e6 * per_clock)


def test_the_rows_are_the_contracts_and_each_says_where_it_comes_from() -> None:
    declared = polars_types("ceilings")
    assert declared == dict(SCHEMA)
    found = spec_ceilings(device(arch="gfx942:sramecc+:xnack-", product="MI300A"))
    assert found.schema == SCHEMA
    assert found.get_column("source").unique().to_list() == ["spec"]
    assert found.get_column("reference").null_count() == 0
    assert found.select("resource", "dtype").is_duplicated().sum() == 0
    assert set(found.get_column("unit")) == {"flop/s", "op/s", "byte/s", "instruction/s"}
    assert set(found.filter(unit="op/s").get_column("dtype")) == {"int8", "int32", "int32_multiply"}
    assert found.filter(resource="vector_issue").item(0, "unit") == "instruction/s"


def test_a_partition_has_its_share_of_all_but_the_clock() -> None:
    whole = spec_ceilings(device(arch="gfx942", product="MI300X"))
    part = spec_ceilings(device(arch="gfx942", product="MI300X", compute_units=38, xcc_count=1, partition_mode="CPX"))
    ratios = whole.join(part, on=["resource", "dtype"], nulls_equal=True).select(
        pl.col("value_right") / pl.col("value")
    )
    assert ratios.height == whole.height
    assert ratios.to_series().to_list() == pytest.approx([1 / 8] * whole.height)
    dram = part.filter(resource="dram").item(0, "reference")
    assert dram.startswith("1/8 of AMD Instinct MI300X")


def test_unknown_devices_have_no_rows_but_reasons() -> None:
    several = pl.concat(
        [
            device(arch="gfx1300", product="of the future"),
            device(product="no name").with_columns(device_id=pl.lit(1, pl.Int32)),
            device(arch="gfx942").with_columns(device_id=pl.lit(2, pl.Int32)),
            device(arch="gfx942", product="MI300X").with_columns(device_id=pl.lit(3, pl.Int32)),
            device(arch="gfx950", product="MI355X").with_columns(device_id=pl.lit(4, pl.Int32)),
            device(arch="gfx1100", product="RX 7900 XTX").with_columns(device_id=pl.lit(5, pl.Int32)),
        ]
    )
    assert spec_ceilings(several).get_column("device_id").unique().to_list() == [3, 4, 5]
    reasons = missing_ceilings(several)
    assert set(reasons) == {0, 1, 2, 4, 5}
    assert reasons[0][0].startswith("nothing is known of the architecture gfx1300")
    assert reasons[1] == ("the capture does not name the device's architecture",)
    assert [reason.partition(":")[0] for reason in reasons[2]] == ["no compute units", "no clock", "no dram"]
    assert [reason.partition(":")[0] for reason in reasons[4]] == ["no infinity_cache and no fabric"]
    missing = [reason.partition(":")[0] for reason in reasons[5]]
    assert missing == ["no infinity_cache and no fabric", "no l2", "no vl1d", "no vector_issue"]


def test_a_null_figure_is_no_ceiling_and_its_reason_is_said() -> None:
    vega = device(arch="gfx906", product="MI50")
    found = values(spec_ceilings(vega))
    assert {("vl1d", None), ("l2", None)}.isdisjoint(found)
    assert found["dram", None] == 1024e9
    said = missing_ceilings(vega)[0]
    assert [one.partition(":")[0] for one in said] == ["no vl1d", "no l2"]
    assert said[0].endswith("no document was found that states it of Vega 20; those with 64 are of CDNA")
    modern = device(arch="gfx950", product="MI355X")
    assert {("infinity_cache", None), ("fabric", None)}.isdisjoint(values(spec_ceilings(modern)))
    assert missing_ceilings(modern)[0] == (
        "no infinity_cache and no fabric: of AMD Instinct MI355X it is not known: AMD's white paper has 128 channels "
        "of 64 bytes and states neither their clock nor a total; 17.2 TB/s are of CDNA 3",
    )
    assert values(
        spec_ceilings(device(arch="gfx950", product="MI355X", memory_clock_mhz=2000.0, memory_bus_bits=8192))
    )["dram", None] == pytest.approx(8e12), "of a memory clock that nobody documents nothing is reckoned"


def test_a_product_without_published_figures_borrows_no_other_products() -> None:
    sparse = device(arch="gfx942", product="MI308X")
    assert spec_ceilings(sparse).is_empty()
    said = missing_ceilings(sparse)[0]
    assert [one.partition(":")[0] for one in said] == ["no clock", "no dram", "no infinity_cache and no fabric"]
    assert all(one.endswith("no public specification of MI308X was found") for one in said)
    stated = device(arch="gfx942", product="MI308X", max_clock_mhz=1420.0)
    assert values(spec_ceilings(stated))["matrix", "fp16"] == 80 * 1420e6 * 2048
    assert ("fabric", None) not in values(spec_ceilings(stated))


@pytest.mark.parametrize("arch", ["gfx1250", "gfx1251", "gfx1300", "gfx9999", "gfx90"])
def test_an_unknown_architecture_never_has_anothers_figures(arch: str) -> None:
    stated = device(
        **{"arch": arch, "product": "AMD Instinct MI455X", "compute_units": 256, "max_clock_mhz": 2400.0},
        **{"simd_per_cu": 4, "wavefront_size": 32, "xcc_count": 8, "memory_clock_mhz": 2000.0, "memory_bus_bits": 8192},
    )
    assert spec_ceilings(stated).is_empty()
    said = missing_ceilings(stated)[0]
    assert all(arch in one or "HBM4" in one or "public" in one for one in said)
    if arch == "gfx1250":
        lost = " ".join(one.partition(":")[0] for one in said)
        for ceiling in ("dram", "vector fp32", "matrix fp16", "vl1d", "lds", "l2", "vector_issue"):
            assert f"no {ceiling}" in lost
    else:
        assert said[0].startswith(f"nothing is known of the architecture {arch}")


def test_no_devices_have_no_ceilings() -> None:
    assert spec_ceilings(device(arch="gfx942").clear()).schema == SCHEMA
    assert missing_ceilings(device(arch="gfx942").clear()) == {}


def test_a_cpu_by_its_extensions() -> None:
    cpu = device(arch="x86_64", product="a processor", compute_units=2, max_clock_mhz=2600.0)
    assert values(spec_ceilings(cpu)) == {("l2", None): 2 * 2600e6 * 64}
    assert "no arithmetic: the extensions of the CPU's instruction set are not stated" in missing_ceilings(cpu)[0]
    narrow = values(spec_ceilings(cpu, {0: frozenset({"avx2", "sse4_2"})}))
    assert narrow["vector", "fp32"] == 2 * 2600e6 * 32
    assert ("vector_integer", "int8") not in narrow
    wide = spec_ceilings(cpu, {0: frozenset({"avx2", "avx512f", "avx_vnni", "avx512_vnni"})})
    assert values(wide)["vector", "fp64"] == 2 * 2600e6 * 32
    assert ("vector_integer", "int8") not in values(wide), "public statements differ"
    vnni = "no vector_integer int8: public statements of how many VPDPBUSD a core starts a clock differ"
    assert [said.startswith(vnni) for said in missing_ceilings(cpu, {0: frozenset({"avx512_vnni"})})[0]][-1]
    assert not any("int8" in said for said in missing_ceilings(cpu, {0: frozenset({"avx2"})})[0])
    assert values(wide)["l1", None] == 2 * 2600e6 * 128
    assert wide.select("resource", "dtype").is_duplicated().sum() == 0
    assert wide.filter(resource="l1").item(0, "reference").startswith("avx512f: 2 cores")
    no_clock = device(arch="x86_64", compute_units=2)
    assert spec_ceilings(no_clock, {0: frozenset({"avx2"})}).height == 0
    assert missing_ceilings(no_clock, {0: frozenset({"avx2"})})[0][0].startswith("no clock")


@pytest.mark.parametrize(
    ("workload", "fp64", "dram"),
    [
        ("vcopy/MI100", 120 * 1502e6 * 64, 1228.8e9),
        ("vcopy/MI200", 104 * 1700e6 * 128, 1638.4e9),
        ("vcopy/MI300A_A1", 228 * 2100e6 * 128, 5324.8e9),
        ("vcopy/MI300X_A1", 304 * 2100e6 * 128, 5324.8e9),
        ("vcopy/MI300X_A1_rocpd", 304 * 2100e6 * 128, 5324.8e9),
        # The capture states 128 compute units on 8 dies and no clock.
        ("vcopy/MI350", 256 * 2200e6 * 128, 8000e9),
        ("mixbench/MI200", 104 * 1700e6 * 128, 1638.4e9),
    ],
)
def test_devices_of_real_captures(workload: str, fp64: float, dram: float) -> None:
    devices = counters(workload).tables["devices"].head(1)
    found = spec_ceilings(devices)
    assert values(found)["vector", "fp64"] == pytest.approx(fp64)
    assert values(found)["dram", None] == pytest.approx(dram)
    doubted = found.filter(pl.col("reference").str.contains("the capture's 128 cannot be right")).height
    assert (doubted > 0) == (workload == "vcopy/MI350")


def test_a_real_nvidia_trace() -> None:
    trace = SHARED / "gpu_sessions/traces/elementwise_256mib.json.gz"
    if not trace.is_file():
        pytest.skip(f"no trace at {trace}; set AACO_SHARED to the folder with gpu_sessions/")
    devices = kineto.read(trace).tables["devices"]
    found = values(spec_ceilings(devices))
    assert found["dram", None] == 4800e9
    assert found["l2", None] == 10250e9, "a measured bandwidth, as no width of the cache is published"
    assert missing_ceilings(devices) == {}


def test_a_figure_that_nobody_could_source_has_no_roof_but_its_reason() -> None:
    card = device(arch="gfx1100", product="AMD Radeon PRO W7800", wavefront_size=32, compute_units=70)
    reasons = missing_ceilings(card)[0]
    heads = [reason.partition(":")[0] for reason in reasons]
    assert heads == ["no clock", "no dram", "no infinity_cache and no fabric", "no l2", "no vl1d"]
    assert "of AMD Radeon PRO W7800 it is not known: boost clock: no document" in reasons[0]
    assert "RX 6900 XT" in reasons[-1], "the reason of the file"
    assert not {"dram", "vl1d", "l2", "infinity_cache"} & {resource for resource, _ in values(spec_ceilings(card))}


def test_what_others_measured_of_rdna_is_a_roof() -> None:
    found = values(spec_ceilings(device(arch="gfx1030", product="AMD Radeon RX 6900 XT", wavefront_size=32)))
    assert found["l2", None] == 4600e9
    assert found["infinity_cache", None] == found["fabric", None] == 1920e9
    assert found["vl1d", None] == 80 * 2250e6 * 64
    assert found["vector", "fp64"] == 80 * 2250e6 * 8


def test_measured_ceilings_of_real_captures() -> None:
    roofline = counters("vcopy/MI200").details["roofline"]
    found = measured_ceilings(roofline, {0: 7, 3: 1})
    assert found.schema == SCHEMA
    assert found.get_column("device_id").unique().sort().to_list() == [1, 7]
    assert found.get_column("source").unique().to_list() == ["measured"]
    of_first = values(found.filter(device_id=7))
    assert of_first["dram", None] == pytest.approx(1388.9302e9)
    assert of_first["matrix", "int8"] == pytest.approx(166402.27e9)
    assert of_first["vector", "fp32"] == pytest.approx(20941.971e9)
    assert len(of_first) == 11
    spec = values(spec_ceilings(counters("vcopy/MI200").tables["devices"].head(1)))
    assert all(0.7 < value / spec[key] < 1 for key, value in of_first.items()), "every roof measured is below its spec"
    reference = found.filter(device_id=7, resource="matrix", dtype="int8").item(0, "reference")
    assert reference == "roofline.csv of rocprof-compute, column MFMAI8Ops"


def test_measured_columns_are_found_in_any_case_and_bounds_are_not_taken_for_means() -> None:
    roofline = pl.DataFrame(
        {
            "Device": [0],
            "hbmBw": [100.0],
            "hbmBwHigh": [200.0],
            "MFMAFI8OpsLow": [1.0],
            "MFMAF4Flops": [0.0],
            "I32Ops": [3.0],
        }
    )
    assert values(measured_ceilings(roofline, {0: 0})) == {("dram", None): 100e9, ("vector_integer", "int32"): 3e9}
    assert measured_ceilings(roofline, {}).schema == SCHEMA
    with pytest.raises(ValueError, match="no column device"):
        measured_ceilings(roofline.drop("Device"), {0: 0})


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
