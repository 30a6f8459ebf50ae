"""Types for an instruction-set architecture and its products, in which every figure has its source.

`architecture_files` reads them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class SourcedValue:
    """A number of the data: value, source document, the quoted words, and a note.

    `address` locates the document; None for a measurement without one.
    """

    value: float
    source: str
    note: str | None = None
    words: str | None = None
    address: str | None = None

    @property
    def whole(self) -> int:
        """The value as an integer; ValueError if it is not one."""
        if self.value != int(self.value):
            raise ValueError(f"{self.value} is not a whole number")
        return int(self.value)


class Figure(NamedTuple):
    """One figure as a row; `name` is its dotted place in the file.

    A figure that nobody can source has the value None and the reason as its note, and no source, address or words.
    """

    name: str
    value: float | None
    source: str | None
    address: str | None
    words: str | None
    note: str | None


@dataclass(frozen=True)
class RegisterFile:
    """Registers available to a wavefront's lanes on one SIMD, and the allocation step."""

    rows: SourcedValue
    granule: SourcedValue


@dataclass(frozen=True)
class LocalMemory:
    """LDS or shared memory of units sharing wavefronts: bytes, allocation step, and bytes reserved by the system."""

    bytes: SourcedValue
    granule: SourcedValue
    reserved_per_workgroup: SourcedValue


@dataclass(frozen=True)
class OccupancyLimits:
    """Limits of the resident wavefronts on units that share a work-group.

    These are one compute unit, or on RDNA the two of a work-group processor. `accumulation_registers` is `none`,
    `separate` (a file of the same size beside the vector registers) or `unified` (both out of one file).
    `scalar_registers` is None where they never limit.
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
    """One cache or local memory: `bytes_per_clock` of each `compute_unit` or each `channel`, sizes in bytes."""

    per: str
    bytes_per_clock: SourcedValue | None
    bytes: SourcedValue | None
    line_bytes: SourcedValue | None
    channels_per_xcd: SourcedValue | None


@dataclass(frozen=True)
class Product:
    """One product, unpartitioned (one die, if a driver shows dies as devices).

    Clocks in MHz, sizes in bytes, bandwidths in byte/s. `recognized_by` are parts of its names in tools. `l2_bandwidth`
    is measured if the width of the cache is unknown. `peer_links` counts links to other devices of its kind,
    `peer_link_bandwidth` is that of one in one direction. `achieved_…` are sustained in benchmarks, in byte/s and
    flop/s, and lower than published.
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
    """The rates that an extension of a CPU's instruction set gives one core."""

    operations: Mapping[str, Mapping[str, SourcedValue]]
    memory_levels: Mapping[str, MemoryLevel]


@dataclass(frozen=True)
class Architecture:
    """The abilities common to all devices of an architecture; fields that do not apply are None or empty.

    `operations` are per clock and compute unit (streaming multiprocessor, CPU core), by unit and number format, a
    fused multiply-add counted 2 and an integer operation 1. `instructions_per_clock_per_simd` is by wavefront size, of
    instructions that take one slot; `issue_slots` is how many an instruction of a class takes.
    `occupancy` is None, too, where one of its limits is not known. `figures` are all numbers of the file, in its order,
    with those that nobody can source.
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
        """The reason why the figure `name`, or the first null in a block of that name, is null; else None."""
        hits = (one for one in self.figures if one.name == name or one.name.startswith(f"{name}."))
        return next((one.note for one in hits if one.value is None), None)
