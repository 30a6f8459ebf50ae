"""Families of architectures whose counters share names and meanings, and the traits that formulas need.

The formulas are `formulas.yaml`, read by `aaco_pipeline.hardware.counters.formulas`; they read one column per counter
under its plain name (`TCC_EA_RDREQ`, never `TCC_EA0_RDREQ_sum`; see `plain_name`). `docs/counters.md` lists them and
says where they differ from those of ROCm's tools and why.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

#: Formats of matrix instructions: their columns of work, and their names in counters.
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
    *("wavefronts", "valu_instructions", "valu_issue_slots", *VECTOR_FORMATS, "valu_int32_ops", "valu_int64_ops"),
    *MATRIX_FORMATS,
    *("fabric_read_bytes", "fabric_write_bytes", "dram_read_bytes", "l2_bytes", "vl1d_bytes", "lds_bytes"),
)
RATIOS: Final = (
    *("valu_busy_ratio", "matrix_busy_ratio", "salu_busy_ratio", "lds_access_ratio"),
    *("active_threads_ratio", "achieved_occupancy_ratio"),
)
_MULTIPROCESSOR: Final = re.compile(r"sm_(80|90)a?")
_ARCHITECTURE: Final = re.compile(r"gfx(9[0-9a-f]{2}|1[0-9][0-9a-f]{2})(?![0-9a-f])")
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
    SM80 = "sm_80"
    SM90 = "sm_90"
    UNKNOWN = "unknown"


#: NVIDIA's, which count the operations of each lane that was switched on, and packed ones as two.
MULTIPROCESSORS: Final = (Family.SM80, Family.SM90)


@dataclass(frozen=True)
class Traits:
    """Traits of a family that formulas need; None if its counters give no such amount.

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


_GFX90A_MATRIX: Final = (
    "matrix_fp64_flops",
    "matrix_fp32_flops",
    "matrix_fp16_flops",
    "matrix_bf16_flops",
    "matrix_int8_ops",
)
_SM80_MATRIX: Final = (
    "matrix_fp64_flops",
    "matrix_xf32_flops",
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
    Family.SM80: Traits(
        *(32, 64),
        counts_vector_formats=True,
        has_matrix_instructions=True,
        matrix_formats=_SM80_MATRIX,
    ),
    Family.SM90: Traits(
        *(32, 64),
        counts_vector_formats=True,
        has_matrix_instructions=True,
        matrix_formats=(*_SM80_MATRIX, "matrix_fp8_flops"),
    ),
    Family.UNKNOWN: Traits(None, None),
}


def family_of(arch: str | None) -> Family:
    """The family of an architecture such as `gfx942`; `UNKNOWN` for one without formulas here, and for none."""
    found = _ARCHITECTURE.match(arch or "")
    if found is None:
        nvidia = _MULTIPROCESSOR.fullmatch(arch or "")
        return Family.UNKNOWN if nvidia is None else Family(f"sm_{nvidia[1]}")
    number = found[1]
    if number in ("900", "902", "906", "909", "90c"):
        return Family.GFX906
    if number in ("940", "941", "942"):
        return Family.GFX942
    if number[:3] in ("110", "115"):
        return Family.GFX11
    # gfx125x is not RDNA 4; RDNA 4's formulas must not be used for it.
    if number[:3] == "120":
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
    NVIDIA's metrics go without their roll-up `.sum`; others of theirs (`.max`, `.pct`) are no counters of formulas.
    """
    return _EXTERNAL.sub("TCC_EA_", counter.removesuffix("_sum").removesuffix(".sum"))
