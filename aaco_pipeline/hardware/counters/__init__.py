"""What hardware counters say of a dispatch's work: operations and bytes, as Polars expressions by architecture.

The expressions read one column per counter under its plain name (`TCC_EA_RDREQ`, never `TCC_EA0_RDREQ_sum`; see
`plain_name`) and three facts of the device (`wavefront_size`, `compute_units`, `xcc_count`); `active_cycles` and
`level_cycles` are the cycles that the device was active for, `GRBM_GUI_ACTIVE` of one XCC. A counter that is not there
is a column of nulls, and null is what follows from it.

Sources: ROCm's documentation of the MI200 and MI300 performance counters and of ROCm Compute Profiler's metrics, and
the derived counters of ROCprofiler-SDK (`FETCH_SIZE`, `WRITE_SIZE`, `MeanOccupancyPerActiveCU`). `docs/counters.md`
says where these formulas differ from those tools' and why.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import polars as pl

#: Banks of one compute unit's LDS, and bytes each delivers in a cycle.
_LDS_BANKS: Final = 32
_LDS_BANK_BYTES: Final = 4
#: Operations that one count of `SQ_INSTS_VALU_MFMA_MOPS_*` stands for.
_MATRIX_OPERATIONS: Final = 512
#: `FETCH_SIZE` and `WRITE_SIZE` are in KiB.
_KIB: Final = 1024
#: How work's columns name the formats of matrix instructions, and how the counters do.
MATRIX_FORMATS: Final[Mapping[str, str]] = {
    "matrix_fp64_flops": "F64",
    "matrix_fp32_flops": "F32",
    "matrix_xf32_flops": "XF32",
    "matrix_fp16_flops": "F16",
    "matrix_bf16_flops": "BF16",
    "matrix_fp8_flops": "F8",
    "matrix_f6f4_flops": "F6F4",
    "matrix_int8_ops": "I8",
}
VECTOR_FORMATS: Final[Mapping[str, str]] = {
    "valu_fp16_flops": "F16",
    "valu_fp32_flops": "F32",
    "valu_fp64_flops": "F64",
}
#: Every amount of work that `work_formulas` gives, in the order of the frame.
AMOUNTS: Final = (
    *("wavefronts", "valu_instructions", *VECTOR_FORMATS, "valu_int32_ops", "valu_int64_ops", *MATRIX_FORMATS),
    *("fabric_read_bytes", "fabric_write_bytes", "dram_read_bytes", "l2_bytes", "vl1d_bytes", "lds_bytes"),
)
RATIOS: Final = ("valu_busy_ratio", "matrix_busy_ratio", "active_threads_ratio", "achieved_occupancy_ratio")
_ARCHITECTURE: Final = re.compile(r"gfx(9[0-9a-f]{2}|1[0-9][0-9a-f]{2})")
_EXTERNAL: Final = re.compile(r"^TCC_EA\d?_")


class Family(StrEnum):
    """Architectures whose counters have the same names and meanings."""

    GFX906 = "gfx906"
    GFX908 = "gfx908"
    GFX90A = "gfx90a"
    GFX942 = "gfx942"
    GFX950 = "gfx950"
    GFX11 = "gfx11"
    GFX12 = "gfx12"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Traits:
    """What the formulas need to know of a family; None where its counters give no such amount.

    `l2_channels` and `xcc_count` are of a whole device: channels of one XCC, and the number of XCCs where it is fixed.
    `matrix_formats` are the columns of `MATRIX_FORMATS` that the family has instructions for and counts.
    """

    wavefront_size: int | None
    wavefronts_per_cu: int | None
    l2_bytes_per_request: int | None = None
    vl1d_bytes_per_access: int | None = None
    l2_channels: int | None = None
    xcc_count: int | None = None
    counts_vector_formats: bool = False
    counts_matrix_instructions: bool = False
    has_matrix_instructions: bool = False
    matrix_formats: tuple[str, ...] = ()


@dataclass(frozen=True)
class Figure:
    """A figure derived from counters: `numerator / denominator` of each dispatch, of sums over several.

    Without a denominator it is an amount per dispatch.
    """

    name: str
    unit: str
    numerator: pl.Expr
    denominator: pl.Expr | None = None

    def columns(self) -> frozenset[str]:
        """The columns it reads."""
        expressions = (self.numerator,) if self.denominator is None else (self.numerator, self.denominator)
        return frozenset(name for expression in expressions for name in expression.meta.root_names())


_GFX90A_MATRIX: Final = (
    "matrix_fp64_flops",
    "matrix_fp32_flops",
    "matrix_fp16_flops",
    "matrix_bf16_flops",
    "matrix_int8_ops",
)
#: Bytes per request and access, and wavefronts per compute unit: ROCm Compute Profiler's documentation of each block.
TRAITS: Final[Mapping[Family, Traits]] = {
    Family.GFX906: Traits(64, 40, 64, 64, 16, 1),
    Family.GFX908: Traits(64, 40, 64, 64, 32, 1, has_matrix_instructions=True),
    Family.GFX90A: Traits(64, 32, 128, 64, 32, 1, True, True, True, _GFX90A_MATRIX),
    Family.GFX942: Traits(
        *(64, 32, 128, 128, 16, None, True, True, True),
        (*_GFX90A_MATRIX, "matrix_xf32_flops", "matrix_fp8_flops"),
    ),
    Family.GFX950: Traits(
        *(64, 32, 128, 128, 16, None, True, True, True),
        (*_GFX90A_MATRIX, "matrix_fp8_flops", "matrix_f6f4_flops"),
    ),
    Family.GFX11: Traits(None, 32, xcc_count=1),
    Family.GFX12: Traits(None, 32, xcc_count=1),
    Family.UNKNOWN: Traits(None, None),
}


def family_of(arch: str | None) -> Family:
    """The family of an architecture such as `gfx942`; `UNKNOWN` for one without formulas here, and for none."""
    found = _ARCHITECTURE.match(arch or "")
    if found is None:
        return Family.UNKNOWN
    number = found[1]
    if number in ("900", "902", "906", "909", "90c"):
        return Family.GFX906
    if number in ("940", "941", "942"):
        return Family.GFX942
    if number.startswith("11"):
        return Family.GFX11
    if number.startswith("12"):
        return Family.GFX12
    return {"908": Family.GFX908, "90a": Family.GFX90A, "950": Family.GFX950}.get(number, Family.UNKNOWN)


def floating_formats(family: Family) -> list[str]:
    """The columns of floating-point work that a family's counters tell apart."""
    traits = TRAITS[family]
    vector = [*VECTOR_FORMATS] if traits.counts_vector_formats else []
    return [*vector, *(name for name in traits.matrix_formats if name.endswith("_flops"))]


def plain_name(counter: str) -> str:
    """The counter's name as the formulas spell it: without `_sum`, and with `TCC_EA_` for every `TCC_EA<n>_`.

    Architectures and releases differ in both: MI100's captures say `TCC_EA_RDREQ_sum`, MI300's `TCC_EA0_RDREQ_sum`.
    """
    return _EXTERNAL.sub("TCC_EA_", counter.removesuffix("_sum"))


def total(*counters: str) -> pl.Expr:
    """The sum of several counters; null when one of them is."""
    first, *others = (pl.col(counter) for counter in counters)
    for other in others:
        first = first + other
    return first


def known_ratio(numerator: pl.Expr, denominator: pl.Expr) -> pl.Expr:
    """A quotient that is null where nothing was counted to divide by."""
    return pl.when(denominator > 0).then(numerator / denominator)


def work_formulas(family: Family) -> dict[str, pl.Expr]:
    """Amounts of work and ratios of one dispatch, by their names in `AMOUNTS` and `RATIOS`; each float64 or null.

    FMA counts as two operations, packed instructions as one per lane; the execution mask is ignored, as the counters
    ignore it.
    """
    traits = TRAITS[family]
    nothing = pl.lit(None, pl.Float64)
    formulas = dict.fromkeys((*AMOUNTS, *RATIOS), nothing)
    formulas |= {
        "wavefronts": pl.coalesce("SQ_WAVES", "SPI_CSN_WAVE", _queues("SPI_CS{}_WAVE"), "Wavefronts"),
        "valu_instructions": _vector_instructions(traits),
        "fabric_read_bytes": fabric_read_bytes(family),
        "fabric_write_bytes": fabric_write_bytes(family),
        "active_threads_ratio": known_ratio(pl.col("SQ_THREAD_CYCLES_VALU"), pl.col("SQ_ACTIVE_INST_VALU"))
        / pl.col("wavefront_size"),
        "achieved_occupancy_ratio": _achieved_occupancy(traits),
    }
    if traits.counts_vector_formats:
        formulas |= {name: vector_flops(counted) for name, counted in VECTOR_FORMATS.items()}
        formulas["valu_int32_ops"] = pl.col("wavefront_size") * pl.col("SQ_INSTS_VALU_INT32")
        formulas["valu_int64_ops"] = pl.col("wavefront_size") * pl.col("SQ_INSTS_VALU_INT64")
    formulas |= {name: matrix_operations(MATRIX_FORMATS[name]) for name in traits.matrix_formats}
    if traits.l2_bytes_per_request is not None and traits.vl1d_bytes_per_access is not None:
        device_cycles = pl.col("active_cycles") * pl.col("compute_units")
        formulas |= {
            "l2_bytes": traits.l2_bytes_per_request * pl.col("TCC_REQ"),
            "vl1d_bytes": traits.vl1d_bytes_per_access * pl.col("TCP_TOTAL_CACHE_ACCESSES"),
            "lds_bytes": lds_bytes(),
            "valu_busy_ratio": known_ratio(pl.col("SQ_ACTIVE_INST_VALU"), device_cycles),
        }
        # Infinity Cache lies between the L2 of later devices and their DRAM, and these counters stand before it.
        if family in (Family.GFX906, Family.GFX908, Family.GFX90A):
            share = known_ratio(pl.col("TCC_EA_RDREQ_DRAM"), pl.col("TCC_EA_RDREQ"))
            formulas["dram_read_bytes"] = fabric_read_bytes(family) * share
    if traits.counts_matrix_instructions:
        simd_cycles = 4 * pl.col("active_cycles") * pl.col("compute_units")
        formulas["matrix_busy_ratio"] = known_ratio(pl.col("SQ_VALU_MFMA_BUSY_CYCLES"), simd_cycles)
    return formulas


def vector_flops(counted: str) -> pl.Expr:
    """Floating-point operations of the VALU in the format that the counters call F16, F32 or F64."""
    once = total(*(f"SQ_INSTS_VALU_{kind}_{counted}" for kind in ("ADD", "MUL", "TRANS")))
    return pl.col("wavefront_size") * (once + 2 * pl.col(f"SQ_INSTS_VALU_FMA_{counted}"))


def packable_instructions() -> pl.Expr:
    """VALU instructions of formats that have packed forms: two operations a lane, counted as one."""
    return total(*(f"SQ_INSTS_VALU_{kind}_{counted}" for kind in ("ADD", "MUL", "FMA") for counted in ("F16", "F32")))


def matrix_operations(counted: str) -> pl.Expr:
    """Operations of matrix instructions in the format that the counters call `counted`."""
    return _MATRIX_OPERATIONS * pl.col(f"SQ_INSTS_VALU_MFMA_MOPS_{counted}")


def lds_bytes() -> pl.Expr:
    """Bytes between registers and LDS: every bank, in each cycle of an indexed access that no conflict held up."""
    unhindered = pl.col("SQ_LDS_IDX_ACTIVE") - pl.col("SQ_LDS_BANK_CONFLICT")
    return _LDS_BANKS * _LDS_BANK_BYTES * unhindered


def fabric_read_bytes(family: Family) -> pl.Expr:
    """Bytes that the L2 read from the memory side, whether Infinity Cache or DRAM served them.

    On gfx950, captures may hold neither requests by size or destination nor `TCC_BUBBLE` other than zero; there every
    request of more than 32 bytes counts as 128 bytes (`read_size_is_assumed` tells): a copy of 8,388,608 bytes made
    65,612 requests.
    """
    requests, small = pl.col("TCC_EA_RDREQ"), pl.col("TCC_EA_RDREQ_32B")
    stated = pl.col("FETCH_SIZE") * _KIB
    with_bubble = (
        128 * pl.col("TCC_BUBBLE") + 64 * (requests - pl.col("TCC_BUBBLE") - small) + 32 * small
    )  # a bubble is a request of 128 bytes
    if family in (Family.GFX906, Family.GFX908, Family.GFX90A):
        return pl.coalesce(32 * small + 64 * (requests - small), stated)
    if family is Family.GFX942:
        return pl.coalesce(with_bubble, stated)
    if family is Family.GFX950:
        # FETCH_SIZE is not taken: it is computed from TCC_BUBBLE, which stays zero here.
        assumed = 128 * (requests - small) + 32 * small
        by_bubble = pl.when(pl.col("TCC_BUBBLE") > 0).then(with_bubble)
        return pl.coalesce(*_gfx950_sizes(), by_bubble, assumed)
    if family in (Family.GFX11, Family.GFX12):
        sizes = (32, 64, 128) if family is Family.GFX12 else (32, 64, 96, 128)
        by_size = pl.sum_horizontal((size * pl.col(f"GL2C_EA_RDREQ_{size}B") for size in sizes), ignore_nulls=False)
        return pl.coalesce(by_size, stated)
    return stated


def read_size_is_assumed(family: Family) -> pl.Expr:
    """Whether `fabric_read_bytes` rests on the assumption that every larger request was one of 128 bytes."""
    if family is not Family.GFX950:
        return pl.lit(False)
    by_bubble = (pl.col("TCC_BUBBLE") > 0).fill_null(False)
    is_known = pl.any_horizontal(size.is_not_null() for size in _gfx950_sizes())
    return ~is_known & ~by_bubble & pl.col("TCC_EA_RDREQ").is_not_null()


def fabric_write_bytes(family: Family) -> pl.Expr:
    """Bytes that the L2 wrote to the memory side, atomics included."""
    stated = pl.col("WRITE_SIZE") * _KIB
    if family in (Family.GFX11, Family.GFX12):
        requests, large = pl.col("GL2C_MC_WRREQ"), pl.col("GL2C_EA_WRREQ_64B")
    else:
        requests, large = pl.col("TCC_EA_WRREQ"), pl.col("TCC_EA_WRREQ_64B")
    return pl.coalesce(64 * large + 32 * (requests - large), stated)


def l1_to_l2_bytes(family: Family) -> pl.Expr:
    """Bytes between the vector L1 data caches and the L2, in either direction: reads are of whole L1 lines."""
    line = TRAITS[family].vl1d_bytes_per_access
    if line is None:
        return pl.lit(None, pl.Float64)
    others = total("TCP_TCC_WRITE_REQ", "TCP_TCC_ATOMIC_WITH_RET_REQ", "TCP_TCC_ATOMIC_WITHOUT_RET_REQ")
    return line * pl.col("TCP_TCC_READ_REQ") + 64 * others


def _gfx950_sizes() -> tuple[pl.Expr, pl.Expr]:
    """Bytes read as gfx950 alone counts them: by size, or by destination in pieces of 32 bytes."""
    sizes = (size * pl.col(f"TCC_EA_RDREQ_{size}B") for size in (32, 64, 128))
    pieces = (32 * pl.col(f"TCC_EA_RDREQ_{destination}_32B") for destination in ("DRAM", "GMI", "IO"))
    return pl.sum_horizontal(sizes, ignore_nulls=False), pl.sum_horizontal(pieces, ignore_nulls=False)


def _queues(pattern: str) -> pl.Expr:
    """The sum over the four compute queues that gfx950 counts apart."""
    return total(*(pattern.format(queue) for queue in range(4)))


def _vector_instructions(traits: Traits) -> pl.Expr:
    """VALU instructions that are no matrix instructions; with them where the family does not count them apart."""
    every = pl.col("SQ_INSTS_VALU")
    return every - pl.col("SQ_INSTS_MFMA") if traits.counts_matrix_instructions else every


def _achieved_occupancy(traits: Traits) -> pl.Expr:
    """Mean resident wavefronts of a busy compute unit, over how many it can hold.

    `SQ_BUSY_CU_CYCLES` counts cycles in which a compute unit was busy, so neither the idle tail of a kernel nor the
    overhead of a counter pass dilutes it; without that, the cycles of the whole device in the same pass.
    """
    if traits.wavefronts_per_cu is None:
        return pl.col("OccupancyPercent") / 100
    resident = pl.col("SQ_LEVEL_WAVES_ACCUM")
    device = pl.col("level_cycles") * pl.col("compute_units")
    per_cu = pl.coalesce(
        known_ratio(resident, pl.col("SQ_BUSY_CU_CYCLES")),
        pl.col("MeanOccupancyPerActiveCU"),
        known_ratio(resident, device),
    )
    return pl.coalesce(per_cu / traits.wavefronts_per_cu, pl.col("OccupancyPercent") / 100)
