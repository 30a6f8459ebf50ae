"""Figures of compute units from counters: arithmetic, instructions, utilization, waiting, LDS, scheduling.

What the columns of the expressions are, `aaco_pipeline.hardware.counters` says. `SQ_WAVE_CYCLES`, the waits and
the activities of the sequencer count in steps of four cycles ("quad-cycles"), `SQ_BUSY_CU_CYCLES` in single ones.
"""

from typing import Final

import polars as pl

from aaco_pipeline.hardware.counters import (
    MATRIX_FORMATS,
    TRAITS,
    VECTOR_FORMATS,
    Family,
    Figure,
    floating_formats,
    lds_bytes,
    total,
)

_QUAD: Final = 4
#: What the counters call the kinds of instructions, by the figure's name.
_INSTRUCTIONS: Final = {
    "valu_instructions_with_matrix": "SQ_INSTS_VALU",
    "vmem_instructions": "SQ_INSTS_VMEM",
    "lds_instructions": "SQ_INSTS_LDS",
    "matrix_instructions": "SQ_INSTS_MFMA",
    "salu_instructions": "SQ_INSTS_SALU",
    "smem_instructions": "SQ_INSTS_SMEM",
    "branch_instructions": "SQ_INSTS_BRANCH",
    "gws_instructions": "SQ_INSTS_GDS",
    "valu_int32_instructions": "SQ_INSTS_VALU_INT32",
    "valu_int64_instructions": "SQ_INSTS_VALU_INT64",
    "valu_conversion_instructions": "SQ_INSTS_VALU_CVT",
    "lds_load_instructions": "SQ_INSTS_LDS_LOAD",
    "lds_store_instructions": "SQ_INSTS_LDS_STORE",
    "lds_atomic_instructions": "SQ_INSTS_LDS_ATOMIC",
}
_ISSUED: Final = ("VALU", "VMEM", "SALU", "SMEM", "BRANCH", "SENDMSG", "VSKIPPED", "LDS")
#: Cycles of LDS by figure's name; the last two are accesses and steps in which a queue was full.
_LDS_CYCLES: Final = {
    "lds_index_cycles": "SQ_LDS_IDX_ACTIVE",
    "lds_atomic_return_cycles": "SQ_LDS_ATOMIC_RETURN",
    "lds_bank_conflict_cycles": "SQ_LDS_BANK_CONFLICT",
    "lds_address_conflict_cycles": "SQ_LDS_ADDR_CONFLICT",
    "lds_unaligned_stall_cycles": "SQ_LDS_UNALIGNED_STALL",
    "lds_command_queue_full_cycles": "SQ_LDS_CMD_FIFO_FULL",
    "lds_data_queue_full_cycles": "SQ_LDS_DATA_FIFO_FULL",
}
#: Cycles in which a workgroup waited for room, over all SIMDs' cycles; those of a unit of a CU count each fourth.
_NO_ROOM: Final = {
    "no_wavefront_slot_ratio": (1, "SPI_RA_WAVE_SIMD_FULL_CSN"),
    "no_vgprs_ratio": (1, "SPI_RA_VGPR_SIMD_FULL_CSN"),
    "no_sgprs_ratio": (1, "SPI_RA_SGPR_SIMD_FULL_CSN"),
    "no_lds_ratio": (4, "SPI_RA_LDS_CU_FULL_CSN"),
    "no_barrier_ratio": (4, "SPI_RA_BAR_CU_FULL_CSN"),
    "workgroup_limit_ratio": (4, "SPI_RA_TGLIM_CU_FULL_CSN"),
    "wavefront_limit_ratio": (4, "SPI_RA_WVLIM_STALL_CSN"),
}
#: Shares of the command processor's cycles: numerator, and what is summed to divide by.
_COMMAND_PROCESSOR: Final = {
    "command_fetcher_busy_ratio": ("CPF_CPF_STAT_BUSY", ("CPF_CPF_STAT_BUSY", "CPF_CPF_STAT_IDLE")),
    "command_fetcher_stalled_ratio": ("CPF_CPF_STAT_STALL", ("CPF_CPF_STAT_BUSY",)),
    "command_fetcher_l2_busy_ratio": ("CPF_CPF_TCIU_BUSY", ("CPF_CPF_TCIU_BUSY", "CPF_CPF_TCIU_IDLE")),
    "command_fetcher_l2_stalled_ratio": ("CPF_CPF_TCIU_STALL", ("CPF_CPF_TCIU_BUSY",)),
    "command_fetcher_translation_stalled_ratio": ("CPF_CMP_UTCL1_STALL_ON_TRANSLATION", ("CPF_CPF_STAT_BUSY",)),
    "packet_processor_busy_ratio": ("CPC_CPC_STAT_BUSY", ("CPC_CPC_STAT_BUSY", "CPC_CPC_STAT_IDLE")),
    "packet_processor_stalled_ratio": ("CPC_CPC_STAT_STALL", ("CPC_CPC_STAT_BUSY",)),
    "packet_processor_decoding_ratio": ("CPC_ME1_BUSY_FOR_PACKET_DECODE", ("CPC_CPC_STAT_BUSY",)),
    "packet_processor_dispatching_ratio": ("CPC_ME1_DC0_SPI_BUSY", ("CPC_CPC_STAT_BUSY",)),
    "packet_processor_l2_busy_ratio": ("CPC_CPC_TCIU_BUSY", ("CPC_CPC_TCIU_BUSY", "CPC_CPC_TCIU_IDLE")),
    "packet_processor_translation_stalled_ratio": ("CPC_UTCL1_STALL_ON_TRANSLATION", ("CPC_CPC_STAT_BUSY",)),
    "packet_processor_translation_busy_ratio": (
        "CPC_CPC_UTCL2IU_BUSY",
        ("CPC_CPC_UTCL2IU_BUSY", "CPC_CPC_UTCL2IU_IDLE"),
    ),
    "workgroup_sending_ratio": ("CPC_TG_SEND", ("CPC_GD_BUSY",)),
}


def compute_figures(family: Family) -> tuple[Figure, ...]:
    """The figures of a family's compute units."""
    return (
        *_arithmetic(family),
        *_instructions(family),
        *_utilization(family),
        *_wavefronts(family),
        *_lds(),
        *_scheduling(),
    )


def flops(family: Family) -> pl.Expr:
    """Floating-point operations over all formats that were counted; null without the VALU's.

    A matrix format that was not counted is left out, which the flag `formats_not_counted` tells.
    """
    if not TRAITS[family].counts_vector_formats:
        return pl.lit(None, pl.Float64)
    matrix = [name for name in floating_formats(family) if name not in VECTOR_FORMATS]
    return total(*VECTOR_FORMATS) + pl.sum_horizontal(matrix)


def _arithmetic(family: Family) -> list[Figure]:
    seconds = pl.col("duration_s")
    figures = [
        Figure("flops", "flop", flops(family)),
        Figure("flops_rate", "flop/s", flops(family), seconds),
    ]
    if not TRAITS[family].counts_vector_formats:
        return figures
    integer = total("valu_int32_ops", "valu_int64_ops")
    figures += [
        Figure("valu_flops_rate", "flop/s", total(*VECTOR_FORMATS), seconds),
        Figure("valu_int_ops_rate", "op/s", integer, seconds),
        Figure("int_ops", "op", integer + pl.col("matrix_int8_ops")),
        Figure("fp16_flops", "flop", total("valu_fp16_flops", "matrix_fp16_flops")),
        Figure("fp32_flops", "flop", total("valu_fp32_flops", "matrix_fp32_flops")),
        Figure("fp64_flops", "flop", total("valu_fp64_flops", "matrix_fp64_flops")),
    ]
    for name in TRAITS[family].matrix_formats:
        unit = "op" if name.endswith("_ops") else "flop"
        figures += [Figure(name, unit, pl.col(name)), Figure(f"{name}_rate", f"{unit}/s", pl.col(name), seconds)]
    return figures


def _instructions(family: Family) -> list[Figure]:
    figures = [Figure("valu_instructions", "instruction", pl.col("valu_instructions"))]
    figures += [Figure(name, "instruction", pl.col(counter)) for name, counter in _INSTRUCTIONS.items()]
    for counted in VECTOR_FORMATS.values():
        for kind in ("ADD", "MUL", "FMA", "TRANS"):
            name = f"valu_fp{counted[1:]}_{kind.lower()}_instructions"
            figures.append(Figure(name, "instruction", pl.col(f"SQ_INSTS_VALU_{kind}_{counted}")))
    for name in TRAITS[family].matrix_formats:
        counter = pl.col(f"SQ_INSTS_VALU_MFMA_{MATRIX_FORMATS[name]}")
        figures.append(Figure(name.rpartition("_")[0] + "_instructions", "instruction", counter))
    issued = total(*(f"SQ_INSTS_{kind}" for kind in _ISSUED))
    per_cycle = "instruction/cycle"
    return [
        *figures,
        Figure("instructions_per_wavefront", "instruction", pl.col("SQ_INSTS"), pl.col("SQ_WAVES")),
        Figure("ipc", per_cycle, pl.col("SQ_INSTS"), pl.col("SQ_BUSY_CU_CYCLES")),
        Figure("issued_ipc", per_cycle, issued, pl.col("SQ_ACTIVE_INST_ANY")),
        Figure("matrix_cycles_per_instruction", "cycle", pl.col("SQ_VALU_MFMA_BUSY_CYCLES"), pl.col("SQ_INSTS_MFMA")),
    ]


def _utilization(family: Family) -> list[Figure]:
    """Shares of the time in which a unit was busy: over all compute units, and over those that were busy at all."""
    device = pl.col("active_cycles") * pl.col("compute_units")
    active = pl.col("SQ_BUSY_CU_CYCLES")
    lanes = pl.col("wavefront_size") * pl.col("SQ_ACTIVE_INST_VALU")
    busy = {
        "valu": pl.col("SQ_ACTIVE_INST_VALU"),
        "salu": pl.col("SQ_ACTIVE_INST_SCA"),
        "vmem": total("SQ_ACTIVE_INST_FLAT", "SQ_ACTIVE_INST_VMEM"),
        "branch": pl.col("SQ_ACTIVE_INST_MISC"),
        "lds": pl.col("SQ_LDS_IDX_ACTIVE"),
    }
    if TRAITS[family].counts_matrix_instructions:
        busy["matrix"] = pl.col("SQ_VALU_MFMA_BUSY_CYCLES") / 4
    return [
        *(Figure(f"{name}_busy_ratio", "ratio", cycles, device) for name, cycles in busy.items()),
        *(Figure(f"{name}_busy_of_active_cus_ratio", "ratio", cycles, active) for name, cycles in busy.items()),
        Figure("cu_busy_ratio", "ratio", active, device),
        Figure("active_threads_ratio", "ratio", pl.col("SQ_THREAD_CYCLES_VALU"), lanes),
        Figure("active_threads", "work-item", pl.col("SQ_THREAD_CYCLES_VALU"), pl.col("SQ_ACTIVE_INST_VALU")),
    ]


def _wavefronts(family: Family) -> list[Figure]:
    quad = {
        "dependency_wait": pl.col("SQ_WAIT_ANY"),
        "issue_wait": pl.col("SQ_WAIT_INST_ANY"),
        "issuing": pl.col("SQ_ACTIVE_INST_ANY"),
    }
    life = pl.col("SQ_WAVE_CYCLES")
    resident = pl.col("SQ_LEVEL_WAVES_ACCUM")
    places = TRAITS[family].wavefronts_per_cu
    # Without a known number of places the share of them is null, as the number itself is.
    room = pl.lit(places, pl.Float64) * pl.col("SQ_BUSY_CU_CYCLES")
    latencies = {"vmem": "SQ_INST_LEVEL_VMEM", "smem": "SQ_INST_LEVEL_SMEM", "lds": "SQ_INST_LEVEL_LDS"}
    return [
        Figure("wavefronts", "wavefront", pl.col("wavefronts")),
        Figure("wavefronts_saved", "wavefront", pl.col("SQ_WAVES_SAVED")),
        Figure("wavefronts_restored", "wavefront", pl.col("SQ_WAVES_RESTORED")),
        Figure("wavefront_cycles", "cycle", _QUAD * life),
        Figure("cycles_per_wavefront", "cycle", _QUAD * life, pl.col("SQ_WAVES")),
        *(Figure(f"{name}_cycles", "cycle", _QUAD * counted) for name, counted in quad.items()),
        *(Figure(f"{name}_ratio", "ratio", counted, life) for name, counted in quad.items()),
        Figure("resident_wavefronts", "wavefront", resident, pl.col("level_cycles")),
        Figure("achieved_occupancy_ratio", "ratio", resident, room),
        *(
            Figure(f"{name}_latency", "cycle", pl.col(f"{level}_ACCUM"), pl.col(f"SQ_INSTS_{name.upper()}"))
            for name, level in latencies.items()
        ),
        Figure("instruction_fetch_latency", "cycle", pl.col("SQ_IFETCH_LEVEL_ACCUM"), pl.col("SQ_IFETCH")),
        Figure("active_cycles", "cycle", pl.col("active_cycles")),
        Figure("clock", "MHz", pl.col("clock_mhz") * pl.col("duration_s"), pl.col("duration_s")),
    ]


def _lds() -> list[Figure]:
    seconds = pl.col("duration_s")
    device = pl.col("active_cycles") * pl.col("compute_units")
    conflicts, indexed = pl.col("SQ_LDS_BANK_CONFLICT"), pl.col("SQ_LDS_IDX_ACTIVE")
    moved = {kind: 64 * pl.col(f"SQ_INSTS_LDS_{kind.upper()}_BANDWIDTH") for kind in ("load", "store", "atomic")}
    return [
        Figure("lds_bandwidth", "byte/s", lds_bytes(), seconds),
        *(Figure(f"lds_{kind}_bandwidth", "byte/s", size, seconds) for kind, size in moved.items()),
        Figure("lds_issue_ratio", "ratio", 2 * pl.col("SQ_ACTIVE_INST_LDS"), device),
        Figure("lds_conflicts_per_access", "ratio", conflicts, indexed - conflicts),
        Figure("lds_bank_conflict_ratio", "ratio", conflicts, indexed),
        *(Figure(name, "cycle", pl.col(counter)) for name, counter in _LDS_CYCLES.items()),
        Figure("lds_memory_violations", "access", pl.col("SQ_LDS_MEM_VIOLATIONS")),
    ]


def _scheduling() -> list[Figure]:
    device = pl.col("active_cycles") * pl.col("compute_units")
    waves = pl.coalesce(pl.col("SPI_CSN_WAVE"), _queues("WAVE"))
    groups = pl.coalesce(pl.col("SPI_CSN_NUM_THREADGROUPS"), _queues("NUM_THREADGROUPS"))
    # gfx950 counts the writes of both of its ports by the cycle, its predecessors by four cycles.
    written = pl.coalesce(_QUAD * pl.col("SPI_VWC_CSC_WR"), total("SPI_VWC0_VDATA_VALID_WR", "SPI_VWC1_VDATA_VALID_WR"))
    return [
        Figure("workgroups", "workgroup", groups),
        Figure("device_active_ratio", "ratio", pl.col("GRBM_GUI_ACTIVE"), pl.col("GRBM_COUNT")),
        Figure("workgroup_manager_busy_ratio", "ratio", pl.col("GRBM_SPI_BUSY"), pl.col("GRBM_GUI_ACTIVE")),
        Figure("vgpr_write_cycles_per_wavefront", "cycle", written, waves),
        Figure("sgpr_write_cycles_per_wavefront", "cycle", pl.col("SPI_SWC_CSC_WR"), waves),
        *(Figure(name, "ratio", scale * pl.col(counter), device) for name, (scale, counter) in _NO_ROOM.items()),
        *(
            Figure(name, "ratio", pl.col(counter), total(*whole))
            for name, (counter, whole) in _COMMAND_PROCESSOR.items()
        ),
    ]


def _queues(counted: str) -> pl.Expr:
    """The sum over the four compute queues, which gfx950 counts apart."""
    return total(*(f"SPI_CS{queue}_{counted}" for queue in range(4)))
