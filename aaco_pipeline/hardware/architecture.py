"""Types for an instruction-set architecture and its products; every figure carries its source.

`architecture_files` reads them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class SourcedValue:
    """A sourced number: value, source document, quoted words and a note.

    `address` locates the document; it is None for a measurement that has none.
    """

    value: float
    source: str
    note: str | None = None
    words: str | None = None
    address: str | None = None

    @property
    def whole(self) -> int:
        """Return the value as an integer; ValueError if it is not one."""
        if self.value != int(self.value):
            raise ValueError(f"{self.value} is not a whole number")
        return int(self.value)


class Figure(NamedTuple):
    """One figure as a row; `name` is its dotted path in the file.

    A figure that cannot be sourced has the value None, the reason as its note, and no source, address or words.
    """

    name: str
    value: float | None
    source: str | None
    address: str | None
    words: str | None
    note: str | None


@dataclass(frozen=True)
class RegisterFile:
    """Registers available to the lanes of one wavefront on one SIMD, and the allocation granularity."""

    rows: SourcedValue
    granule: SourcedValue


@dataclass(frozen=True)
class LocalMemory:
    """LDS or shared memory of units that share wavefronts: bytes, allocation granularity and system-reserved bytes."""

    bytes: SourcedValue
    granule: SourcedValue
    reserved_per_workgroup: SourcedValue


@dataclass(frozen=True)
class OccupancyLimits:
    """Limits on the resident wavefronts of units that share a work-group.

    The unit is one compute unit, or on RDNA the two compute units of a work-group processor. `accumulation_registers`
    is `none`, `separate` (their own file, as large as the vector register file) or `unified` (allocated from the vector
    register file). `scalar_registers` is None if they never limit occupancy.
    """

    shared_by_cus: SourcedValue
    shared_by_simds: SourcedValue
    max_waves_per_simd: SourcedValue
    vector_registers: Mapping[int, RegisterFile]
    accumulation_registers: str
    scalar_registers: RegisterFile | None
    lds: LocalMemory
    max_work_items: SourcedValue
    max_resident: SourcedValue
    max_resident_multi_wave: SourcedValue


@dataclass(frozen=True)
class MemoryLevel:
    """One cache or local memory: `bytes_per_clock` per `compute_unit` or per `channel`, sizes in bytes."""

    per: str
    bytes_per_clock: SourcedValue | None
    bytes: SourcedValue | None
    line_bytes: SourcedValue | None
    channels_per_xcd: SourcedValue | None


@dataclass(frozen=True)
class Product:
    """One unpartitioned product, or one die if the driver exposes dies as devices.

    Clocks are in MHz, sizes in bytes, bandwidths in byte/s. `recognized_by` lists substrings of its names in tools.
    `l2_bandwidth` is measured if the cache width is unknown. `peer_links` counts links to other devices of the same
    kind, and `peer_link_bandwidth` is the bandwidth of one link in one direction. `achieved_…` are sustained benchmark
    rates in byte/s and flop/s, below the published peaks.
    """

    name: str
    recognized_by: tuple[str, ...]
    compute_units: SourcedValue | None
    max_clock_mhz: SourcedValue | None
    matrix_clock_mhz: SourcedValue | None
    memory_bytes: SourcedValue | None
    memory_bandwidth: SourcedValue | None
    memory_bus_bits: SourcedValue | None
    xcds: SourcedValue | None
    l2_bytes: SourcedValue | None
    l2_bandwidth: SourcedValue | None
    infinity_cache_bytes: SourcedValue | None
    infinity_cache_bandwidth: SourcedValue | None
    peer_links: SourcedValue | None
    peer_link_bandwidth: SourcedValue | None
    achieved_memory_bandwidth: SourcedValue | None
    achieved_matrix_fp16: SourcedValue | None
    achieved_matrix_bf16: SourcedValue | None
    achieved_matrix_fp8: SourcedValue | None


@dataclass(frozen=True)
class Extension:
    """Per-core rates added by a CPU instruction-set extension."""

    operations: Mapping[str, Mapping[str, SourcedValue]]
    memory_levels: Mapping[str, MemoryLevel]


@dataclass(frozen=True)
class Architecture:
    """Properties shared by all devices of an architecture; fields that do not apply are None or empty.

    `operations` are per clock and compute unit (streaming multiprocessor, CPU core), by unit and number format; a fused
    multiply-add counts as 2, an integer operation as 1. `instructions_per_clock_per_simd` is keyed by wavefront size
    and counts instructions that take one slot; `issue_slots` is the number of slots per instruction class. `occupancy`
    is also None if any of its limits is unknown. `figures` lists all numbers of the file in order, including those
    without a source.
    """

    name: str
    aliases: tuple[str, ...]
    vendor: str
    family: str
    compute_unit: str
    counter_family: str | None
    operations: Mapping[str, Mapping[str, SourcedValue]]
    instructions_per_clock_per_simd: Mapping[int, SourcedValue]
    simds_per_cu: SourcedValue | None
    issue_slots: Mapping[str, SourcedValue]
    wavefront_sizes: tuple[int, ...]
    occupancy: OccupancyLimits | None
    memory_levels: Mapping[str, MemoryLevel]
    memory_transfers_per_clock: SourcedValue | None
    products: tuple[Product, ...]
    extensions: Mapping[str, Extension]
    figures: tuple[Figure, ...]

    def why_null(self, name: str) -> str | None:
        """Return why the figure `name`, or the first null in a block of that name, is null; None if it is not null."""
        hits = (one for one in self.figures if one.name == name or one.name.startswith(f"{name}."))
        return next((one.note for one in hits if one.value is None), None)
