"""What is known of an instruction-set architecture and the products built on it, each figure with what it rests on.

Here are the types; `architecture_files` reads them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class SourcedValue:
    """One number of the data: its value, the document it comes from, the words it rests on, and what else to know.

    `address` is where the document lies; None of a measurement without one.
    """

    value: float
    source: str
    note: str | None = None
    words: str | None = None
    address: str | None = None

    @property
    def whole(self) -> int:
        """The value as a whole number; ValueError when it is none."""
        if self.value != int(self.value):
            raise ValueError(f"{self.value} is not a whole number")
        return int(self.value)


class Figure(NamedTuple):
    """One figure as a row: its place in the file, dotted, and all that is said of it.

    Where `value` is None nobody can source it, `note` is the reason, and `source`, `address` and `words` are None.
    """

    name: str
    value: float | None
    source: str | None
    address: str | None
    words: str | None
    note: str | None


@dataclass(frozen=True)
class RegisterFile:
    """Registers one wavefront's lanes can be given on one SIMD: all of them, and the step they are given out in."""

    rows: SourcedValue
    granule: SourcedValue


@dataclass(frozen=True)
class LocalMemory:
    """LDS or shared memory of the units that share their wavefronts: bytes, allocation step, bytes the system keeps."""

    bytes: SourcedValue
    granule: SourcedValue
    reserved_per_workgroup: SourcedValue


@dataclass(frozen=True)
class OccupancyLimits:
    """What bounds the resident wavefronts of the units that share one work-group.

    Such units are one compute unit, on RDNA the two of a work-group processor. `accumulation_registers` is `none`,
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
    """One product, whole and unpartitioned (one die, where a driver shows dies as devices).

    Clocks in MHz, sizes in bytes, bandwidths in byte/s. `recognized_by` are parts of the names tools give it.
    `l2_bandwidth` is what was measured where the width of the cache is not known. `peer_links` are the links to other
    devices of its kind, each to one of them, `peer_link_bandwidth` what one carries in one direction. `achieved_…` are
    what a benchmark sustains on it, in byte/s and flop/s: less than what is published.
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
    """What an extension of a CPU's instruction set lets one core do."""

    operations: Mapping[str, Mapping[str, SourcedValue]]
    memory_levels: Mapping[str, MemoryLevel]


@dataclass(frozen=True)
class Architecture:
    """What every device of one architecture can do; fields that a kind of device does not have are None or empty.

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
        """The reason why the figure called `name` is null, or the first one of a block of that name; else None."""
        hits = (one for one in self.figures if one.name == name or one.name.startswith(f"{name}."))
        return next((one.note for one in hits if one.value is None), None)
