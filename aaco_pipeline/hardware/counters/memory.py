"""Figures of the memory system from counters: instruction and scalar caches, vector L1, L2, and the fabric behind.

What the columns of the expressions are, `aaco_pipeline.hardware.counters` says.
"""

from collections.abc import Mapping
from typing import Final

import polars as pl

from aaco_pipeline.hardware.counters import (
    TRAITS,
    Family,
    Figure,
    fabric_read_bytes,
    fabric_write_bytes,
    l1_to_l2_bytes,
    total,
)
from aaco_pipeline.hardware.counters.compute import flops

#: Lines of the instruction cache and of the scalar data cache.
_SCALAR_LINE: Final = 64
_LANES: Final = 64
#: Counts per dispatch that need no formula, by the figure's name: unit and counter.
_COUNTS: Final[Mapping[str, tuple[str, str]]] = {
    "l1i_requests": ("request", "SQC_ICACHE_REQ"),
    "l1i_hits": ("request", "SQC_ICACHE_HITS"),
    "l1i_misses": ("request", "SQC_ICACHE_MISSES"),
    "l1i_duplicate_misses": ("request", "SQC_ICACHE_MISSES_DUPLICATE"),
    "sl1d_requests": ("request", "SQC_DCACHE_REQ"),
    "sl1d_hits": ("request", "SQC_DCACHE_HITS"),
    "sl1d_misses": ("request", "SQC_DCACHE_MISSES"),
    "sl1d_duplicate_misses": ("request", "SQC_DCACHE_MISSES_DUPLICATE"),
    "sl1d_atomics": ("request", "SQC_DCACHE_ATOMIC"),
    "sl1d_to_l2_reads": ("request", "SQC_TC_DATA_READ_REQ"),
    "sl1d_to_l2_writes": ("request", "SQC_TC_DATA_WRITE_REQ"),
    "sl1d_to_l2_atomics": ("request", "SQC_TC_DATA_ATOMIC_REQ"),
    "sl1d_to_l2_stall_cycles": ("cycle", "SQC_TC_STALL"),
    "l1i_to_l2_requests": ("request", "SQC_TC_INST_REQ"),
    "vector_memory_instructions": ("instruction", "TA_TOTAL_WAVEFRONTS"),
    "global_instructions": ("instruction", "TA_FLAT_WAVEFRONTS"),
    "global_read_instructions": ("instruction", "TA_FLAT_READ_WAVEFRONTS"),
    "global_write_instructions": ("instruction", "TA_FLAT_WRITE_WAVEFRONTS"),
    "global_atomic_instructions": ("instruction", "TA_FLAT_ATOMIC_WAVEFRONTS"),
    "scratch_instructions": ("instruction", "TA_BUFFER_WAVEFRONTS"),
    "scratch_read_instructions": ("instruction", "TA_BUFFER_READ_WAVEFRONTS"),
    "scratch_write_instructions": ("instruction", "TA_BUFFER_WRITE_WAVEFRONTS"),
    "scratch_atomic_instructions": ("instruction", "TA_BUFFER_ATOMIC_WAVEFRONTS"),
    "scratch_cycles": ("cycle", "TA_BUFFER_TOTAL_CYCLES"),
    "scratch_coalesced_read_cycles": ("cycle", "TA_BUFFER_COALESCED_READ_CYCLES"),
    "scratch_coalesced_write_cycles": ("cycle", "TA_BUFFER_COALESCED_WRITE_CYCLES"),
    "data_return_coalescable_instructions": ("instruction", "TD_COALESCABLE_WAVEFRONT"),
    "data_return_write_instructions": ("instruction", "TD_STORE_WAVEFRONT"),
    "data_return_atomic_instructions": ("instruction", "TD_ATOMIC_WAVEFRONT"),
    "address_queue_full_cycles": ("cycle", "SQ_VMEM_TA_ADDR_FIFO_FULL"),
    "command_queue_full_cycles": ("cycle", "SQ_VMEM_TA_CMD_FIFO_FULL"),
    "write_data_queue_full_cycles": ("cycle", "SQ_VMEM_WR_TA_DATA_FIFO_FULL"),
    "vl1d_requests": ("request", "TCP_TOTAL_ACCESSES"),
    "vl1d_reads": ("request", "TCP_TOTAL_READ"),
    "vl1d_writes": ("request", "TCP_TOTAL_WRITE"),
    "vl1d_accesses": ("access", "TCP_TOTAL_CACHE_ACCESSES"),
    "vl1d_invalidations": ("request", "TCP_TOTAL_WRITEBACK_INVALIDATES"),
    "vl1d_to_l2_reads": ("request", "TCP_TCC_READ_REQ"),
    "vl1d_to_l2_writes": ("request", "TCP_TCC_WRITE_REQ"),
    "translation_requests": ("request", "TCP_UTCL1_REQUEST"),
    "translation_hits": ("request", "TCP_UTCL1_TRANSLATION_HIT"),
    "translation_misses": ("request", "TCP_UTCL1_TRANSLATION_MISS"),
    "translation_permission_misses": ("request", "TCP_UTCL1_PERMISSION_MISS"),
    "l2_requests": ("request", "TCC_REQ"),
    "l2_reads": ("request", "TCC_READ"),
    "l2_writes": ("request", "TCC_WRITE"),
    "l2_atomics": ("request", "TCC_ATOMIC"),
    "l2_streaming_requests": ("request", "TCC_STREAMING_REQ"),
    "l2_probes": ("request", "TCC_PROBE"),
    "l2_hits": ("request", "TCC_HIT"),
    "l2_misses": ("request", "TCC_MISS"),
    "l2_writebacks": ("cache line", "TCC_WRITEBACK"),
    "l2_own_writebacks": ("cache line", "TCC_NORMAL_WRITEBACK"),
    "l2_requested_writebacks": ("cache line", "TCC_ALL_TC_OP_WB_WRITEBACK"),
    "l2_own_evictions": ("cache line", "TCC_NORMAL_EVICT"),
    "l2_requested_evictions": ("cache line", "TCC_ALL_TC_OP_INV_EVICT"),
    "l2_noncoherent_requests": ("request", "TCC_NC_REQ"),
    "l2_uncached_requests": ("request", "TCC_UC_REQ"),
    "l2_coherent_requests": ("request", "TCC_CC_REQ"),
    "l2_read_write_requests": ("request", "TCC_RW_REQ"),
    "fabric_read_requests": ("request", "TCC_EA_RDREQ"),
    "fabric_reads_of_32_bytes": ("request", "TCC_EA_RDREQ_32B"),
    "fabric_uncached_reads_of_32_bytes": ("request", "TCC_EA_RD_UNCACHED_32B"),
    "fabric_dram_read_requests": ("request", "TCC_EA_RDREQ_DRAM"),
    "fabric_write_requests": ("request", "TCC_EA_WRREQ"),
    "fabric_writes_of_64_bytes": ("request", "TCC_EA_WRREQ_64B"),
    "fabric_uncached_writes_of_32_bytes": ("request", "TCC_EA_WR_UNCACHED_32B"),
    "fabric_dram_write_requests": ("request", "TCC_EA_WRREQ_DRAM"),
    "fabric_atomics": ("request", "TCC_EA_ATOMIC"),
}
#: Quotients of two counters, by the figure's name: unit, numerator, denominator.
_QUOTIENTS: Final[Mapping[str, tuple[str, str, str]]] = {
    "vl1d_clocked_ratio": ("ratio", "TCP_GATE_EN2", "TCP_GATE_EN1"),
    "vl1d_stalled_on_l2_data_ratio": ("ratio", "TCP_PENDING_STALL_CYCLES", "TCP_GATE_EN1"),
    "vl1d_stalled_on_l2_requests_ratio": ("ratio", "TCP_TCR_TCP_STALL_CYCLES", "TCP_GATE_EN1"),
    "vl1d_read_tag_conflict_ratio": ("ratio", "TCP_READ_TAGCONFLICT_STALL_CYCLES", "TCP_GATE_EN1"),
    "vl1d_write_tag_conflict_ratio": ("ratio", "TCP_WRITE_TAGCONFLICT_STALL_CYCLES", "TCP_GATE_EN1"),
    "vl1d_atomic_tag_conflict_ratio": ("ratio", "TCP_ATOMIC_TAGCONFLICT_STALL_CYCLES", "TCP_GATE_EN1"),
    "vl1d_latency": ("cycle", "TCP_TCP_LATENCY", "TCP_TA_TCP_STATE_READ"),
    "translation_hit_ratio": ("ratio", "TCP_UTCL1_TRANSLATION_HIT", "TCP_UTCL1_REQUEST"),
    "fabric_read_latency": ("cycle", "TCC_EA_RDREQ_LEVEL", "TCC_EA_RDREQ"),
    "fabric_write_latency": ("cycle", "TCC_EA_WRREQ_LEVEL", "TCC_EA_WRREQ"),
    "fabric_atomic_latency": ("cycle", "TCC_EA_ATOMIC_LEVEL", "TCC_EA_ATOMIC"),
    "fabric_dram_read_ratio": ("ratio", "TCC_EA_RDREQ_DRAM", "TCC_EA_RDREQ"),
    "fabric_dram_write_ratio": ("ratio", "TCC_EA_WRREQ_DRAM", "TCC_EA_WRREQ"),
    "fabric_atomic_ratio": ("ratio", "TCC_EA_ATOMIC", "TCC_EA_WRREQ"),
    "fabric_write_credit_starvation_ratio": ("ratio", "TCC_TOO_MANY_EA_WRREQS_STALL", "TCC_BUSY"),
    "fabric_dram_read_credit_stall_ratio": ("ratio", "TCC_EA_RDREQ_DRAM_CREDIT_STALL", "TCC_BUSY"),
    "fabric_dram_write_credit_stall_ratio": ("ratio", "TCC_EA_WRREQ_DRAM_CREDIT_STALL", "TCC_BUSY"),
}
#: Busy and stalled cycles of the units between the SIMDs and the vector L1, over all compute units' cycles.
_OF_DEVICE: Final[Mapping[str, str]] = {
    "address_unit_busy_ratio": "TA_TA_BUSY",
    "address_unit_stalled_on_vl1d_ratio": "TA_ADDR_STALLED_BY_TC_CYCLES",
    "address_unit_data_stalled_on_vl1d_ratio": "TA_DATA_STALLED_BY_TC_CYCLES",
    "address_unit_stalled_on_data_return_ratio": "TA_ADDR_STALLED_BY_TD_CYCLES",
    "data_return_busy_ratio": "TD_TD_BUSY",
    "data_return_stalled_on_vl1d_ratio": "TD_TC_STALL",
    "data_return_stalled_on_workgroup_manager_ratio": "TD_SPI_STALL",
}
#: Figures that derived counters of ROCprofiler-SDK state in percent, for captures without what they are made of.
_DERIVED: Final[Mapping[str, str]] = {
    "l2_hit_ratio_derived": "L2CacheHit",
    "memory_unit_busy_ratio_derived": "MemUnitBusy",
    "memory_unit_stalled_ratio_derived": "MemUnitStalled",
    "write_unit_stalled_ratio_derived": "WriteUnitStalled",
    "lds_bank_conflict_of_time_ratio_derived": "LDSBankConflict",
    "occupancy_ratio_derived": "OccupancyPercent",
    "valu_busy_ratio_derived": "VALUBusy",
    "salu_busy_ratio_derived": "SALUBusy",
    "matrix_busy_ratio_derived": "MfmaUtil",
    "active_threads_ratio_derived": "VALUUtilization",
}


def memory_figures(family: Family) -> tuple[Figure, ...]:
    """The figures of a family's memory system."""
    device = pl.col("active_cycles") * pl.col("compute_units")
    return (
        *(Figure(name, unit, pl.col(counter)) for name, (unit, counter) in _COUNTS.items()),
        *(
            Figure(name, unit, pl.col(numerator), pl.col(denominator))
            for name, (unit, numerator, denominator) in _QUOTIENTS.items()
        ),
        *(Figure(name, "ratio", pl.col(counter), device) for name, counter in _OF_DEVICE.items()),
        *(Figure(name, "ratio", pl.col(counter) / 100) for name, counter in _DERIVED.items()),
        *_scalar_caches(),
        *_vector_l1(family),
        *_l2(family),
        *_fabric(family),
        *_intensities(family),
    )


def _scalar_caches() -> list[Figure]:
    seconds = pl.col("duration_s")
    figures = []
    for name, counted in (("l1i", "SQC_ICACHE"), ("sl1d", "SQC_DCACHE")):
        hits, misses, again = (pl.col(f"{counted}_{kind}") for kind in ("HITS", "MISSES", "MISSES_DUPLICATE"))
        figures += [
            Figure(f"{name}_hit_ratio", "ratio", hits, hits + misses),
            # A duplicate miss is one on a line that is already on its way.
            Figure(f"{name}_hit_ratio_with_duplicates", "ratio", hits, hits + misses + again),
            Figure(f"{name}_bandwidth", "byte/s", _SCALAR_LINE * pl.col(f"{counted}_REQ"), seconds),
        ]
    data = total(*(f"SQC_TC_DATA_{kind}_REQ" for kind in ("READ", "WRITE", "ATOMIC")))
    figures += [
        Figure("l1i_to_l2_bandwidth", "byte/s", _SCALAR_LINE * pl.col("SQC_TC_INST_REQ"), seconds),
        Figure("sl1d_to_l2_bandwidth", "byte/s", _SCALAR_LINE * data, seconds),
        Figure("sl1d_reads", "request", total(*(f"SQC_DCACHE_REQ_READ_{size}" for size in (1, 2, 4, 8, 16)))),
    ]
    for size in (1, 2, 4, 8, 16):
        figures.append(Figure(f"sl1d_reads_of_{4 * size}_bytes", "request", pl.col(f"SQC_DCACHE_REQ_READ_{size}")))
    return figures


def _vector_l1(family: Family) -> list[Figure]:
    seconds = pl.col("duration_s")
    atomics = total("TCP_TCC_ATOMIC_WITH_RET_REQ", "TCP_TCC_ATOMIC_WITHOUT_RET_REQ")
    missed = total("TCP_TCC_READ_REQ", "TCP_TCC_WRITE_REQ") + atomics
    accesses = pl.col("TCP_TOTAL_CACHE_ACCESSES")
    loads = total("TCP_TCC_READ_REQ", "TCP_TCC_ATOMIC_WITH_RET_REQ")
    stores = total("TCP_TCC_WRITE_REQ", "TCP_TCC_ATOMIC_WITHOUT_RET_REQ")
    returned = pl.col("TD_LOAD_WAVEFRONT") - pl.col("TD_STORE_WAVEFRONT") - pl.col("TD_ATOMIC_WAVEFRONT")
    figures = [
        Figure("vl1d_hit_ratio", "ratio", accesses - missed, accesses),
        Figure("vl1d_hits", "access", accesses - missed),
        Figure("vl1d_bandwidth", "byte/s", pl.col("vl1d_bytes"), seconds),
        Figure("vl1d_to_l2_bandwidth", "byte/s", l1_to_l2_bytes(family), seconds),
        Figure("vl1d_atomics", "request", total("TCP_TOTAL_ATOMIC_WITH_RET", "TCP_TOTAL_ATOMIC_WITHOUT_RET")),
        Figure("vl1d_to_l2_atomics", "request", atomics),
        Figure("coalescing_ratio", "ratio", _LANES * pl.col("TA_TOTAL_WAVEFRONTS"), 4 * pl.col("TCP_TOTAL_ACCESSES")),
        Figure("vl1d_to_l2_read_latency", "cycle", pl.col("TCP_TCC_READ_REQ_LATENCY"), loads),
        Figure("vl1d_to_l2_write_latency", "cycle", pl.col("TCP_TCC_WRITE_REQ_LATENCY"), stores),
        Figure("data_return_read_instructions", "instruction", returned),
    ]
    names = {"NC": "noncoherent", "UC": "uncached", "CC": "coherent", "RW": "read_write"}
    for kind in ("READ", "WRITE", "ATOMIC"):
        for counted, name in names.items():
            counter = pl.col(f"TCP_TCC_{counted}_{kind}_REQ")
            figures.append(Figure(f"vl1d_to_l2_{name}_{kind.lower()}s", "request", counter))
    return figures


def _l2(family: Family) -> list[Figure]:
    figures = [
        Figure("l2_hit_ratio", "ratio", pl.col("TCC_HIT"), total("TCC_HIT", "TCC_MISS")),
        Figure("l2_bandwidth", "byte/s", pl.col("l2_bytes"), pl.col("duration_s")),
    ]
    channels = TRAITS[family].l2_channels
    if channels is not None:
        available = channels * pl.col("xcc_count") * pl.col("active_cycles")
        figures.append(Figure("l2_busy_ratio", "ratio", pl.col("TCC_BUSY"), available))
    return figures


def _fabric(family: Family) -> list[Figure]:
    seconds = pl.col("duration_s")
    reads, writes = pl.col("TCC_EA_RDREQ"), pl.col("TCC_EA_WRREQ")
    elsewhere_read = (reads - pl.col("TCC_EA_RDREQ_DRAM")).clip(lower_bound=0)
    elsewhere_written = (writes - pl.col("TCC_EA_WRREQ_DRAM")).clip(lower_bound=0)
    read, written = fabric_read_bytes(family), fabric_write_bytes(family)
    figures = [
        Figure("fabric_read_bandwidth", "byte/s", read, seconds),
        Figure("fabric_write_bandwidth", "byte/s", written, seconds),
        Figure("fabric_bandwidth", "byte/s", read + written, seconds),
        # These counters count a request of 64 bytes twice, so only as bytes do they have a share.
        Figure("fabric_uncached_read_ratio", "ratio", 32 * pl.col("TCC_EA_RD_UNCACHED_32B"), read),
        Figure("fabric_uncached_write_ratio", "ratio", 32 * pl.col("TCC_EA_WR_UNCACHED_32B"), written),
        Figure("fabric_remote_read_ratio", "ratio", elsewhere_read, reads),
        Figure("fabric_remote_write_ratio", "ratio", elsewhere_written, writes),
        Figure("fabric_remote_read_requests", "request", elsewhere_read),
        Figure("fabric_remote_write_requests", "request", elsewhere_written),
        Figure("fabric_writes_of_32_bytes", "request", writes - pl.col("TCC_EA_WRREQ_64B")),
    ]
    if family in (Family.GFX906, Family.GFX908, Family.GFX90A):
        figures.append(Figure("fabric_reads_of_64_bytes", "request", reads - pl.col("TCC_EA_RDREQ_32B")))
    if family is Family.GFX942:
        large = pl.col("TCC_BUBBLE")
        figures.append(Figure("fabric_reads_of_64_bytes", "request", reads - pl.col("TCC_EA_RDREQ_32B") - large))
        figures.append(Figure("fabric_reads_of_128_bytes", "request", large))
    return figures


def _intensities(family: Family) -> list[Figure]:
    done = flops(family)
    both = fabric_read_bytes(family) + fabric_write_bytes(family)
    levels = {
        "fabric": both,
        "l2": pl.col("l2_bytes"),
        "vl1d_to_l2": l1_to_l2_bytes(family),
        "vl1d": pl.col("vl1d_bytes"),
        "lds": pl.col("lds_bytes"),
    }
    return [Figure(f"{level}_arithmetic_intensity", "flop/byte", done, size) for level, size in levels.items()]
