"""Instruction-set architectures and the products built on them, read from the data files beside this module.

Every number is a `SourcedValue` with the public source it comes from; a file with a number without one does not load.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from types import MappingProxyType
from typing import Any, Final, TypeVar

import yaml

_FOLDER: Final = "architectures"
_TEXTS: Final = ("source", "note", "per", "name")
_T = TypeVar("_T")


@dataclass(frozen=True)
class SourcedValue:
    """One number of the data: its value, the source it comes from and what there is to know of it."""

    value: float
    source: str
    note: str | None = None

    @property
    def whole(self) -> int:
        """The value as a whole number; ValueError when it is none."""
        if self.value != int(self.value):
            raise ValueError(f"{self.value} is not a whole number")
        return int(self.value)


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
    bytes_per_clock: SourcedValue
    bytes: SourcedValue | None
    line_bytes: SourcedValue | None
    channels_per_xcd: SourcedValue | None


@dataclass(frozen=True)
class Product:
    """One product, whole and unpartitioned (one die, where a driver shows dies as devices).

    Clocks in MHz, sizes in bytes, bandwidths in byte/s. `recognized_by` are parts of the names tools give it.
    """

    name: str
    recognized_by: tuple[str, ...]
    compute_units: SourcedValue
    max_clock_mhz: SourcedValue
    matrix_clock_mhz: SourcedValue | None
    memory_bytes: SourcedValue | None
    memory_bandwidth: SourcedValue
    memory_bus_bits: SourcedValue
    xcds: SourcedValue
    l2_bytes: SourcedValue | None
    infinity_cache_bytes: SourcedValue | None
    infinity_cache_bandwidth: SourcedValue | None


@dataclass(frozen=True)
class Extension:
    """What an extension of a CPU's instruction set lets one core do."""

    operations: Mapping[str, Mapping[str, SourcedValue]]
    memory_levels: Mapping[str, MemoryLevel]


@dataclass(frozen=True)
class Architecture:
    """What every device of one architecture can do; fields that a kind of device does not have are None or empty.

    `operations` are per clock and compute unit (streaming multiprocessor, CPU core), by unit and number format, a
    fused multiply-add counted 2 and an integer operation 1. `instructions_per_clock_per_simd` is by wavefront size.
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
    wavefront_sizes: tuple[int, ...]
    occupancy: OccupancyLimits | None
    memory_levels: Mapping[str, MemoryLevel]
    memory_transfers_per_clock: SourcedValue | None
    products: tuple[Product, ...]
    extensions: Mapping[str, Extension]


def architecture(name: str | None) -> Architecture | None:
    """The architecture called `name`, feature suffixes such as `gfx942:sramecc+:xnack-` aside; None when unknown."""
    plain = (name or "").strip().partition(":")[0].lower()
    if not plain or plain in _files():
        return _loaded(plain) if plain else None
    # Only a name that no file has may be another one's alias.
    return next((one for one in architectures() if plain in one.aliases), None)


@cache
def architectures() -> tuple[Architecture, ...]:
    """All known architectures, by name."""
    return tuple(_loaded(name) for name in sorted(_files()))


def why_unknown(name: str | None) -> str:
    """The sentence that says why there is no data for `name`; ValueError when there is."""
    if name is None or not name.strip():
        return "the capture does not name the device's architecture"
    if architecture(name) is not None:
        raise ValueError(f"the architecture {name} is known")
    known = ", ".join(one.name for one in architectures())
    return f"nothing is known of the architecture {name}; known are {known}"


@cache
def _files() -> Mapping[str, Traversable]:
    """The data files by the architecture that each describes."""
    folder = resources.files(__package__).joinpath(_FOLDER)
    return {file.name.removesuffix(".yaml"): file for file in folder.iterdir() if file.name.endswith(".yaml")}


@cache
def _loaded(name: str) -> Architecture:
    return parsed(_content(name))


def _content(name: str) -> dict[str, Any]:
    """What a file says, laid over the file that it names as its base, of which it keeps all but the aliases."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    data = yaml.load(_files()[name].read_text(encoding="utf-8"), Loader=loader)
    base = _content(data.pop("base")) if "base" in data else {}
    return _laid_over({key: value for key, value in base.items() if key != "aliases"}, data)


def _laid_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _laid_over(merged[key], value) if both else value
    return merged


def parsed(data: Mapping[str, Any]) -> Architecture:
    """The architecture that a file's content describes.

    Raises:
        ValueError: a number has no source, or a source that the file does not name, or a field is unknown or missing.
    """
    reader = _Reader(data)
    architecture = Architecture(
        name=reader.text("name"),
        aliases=tuple(reader.taken("aliases", ())),
        vendor=reader.text("vendor"),
        family=reader.text("family"),
        compute_unit=reader.text("compute_unit"),
        counter_family=reader.taken("counter_family", None),
        operations=reader.units("operations_per_clock_per_cu"),
        instructions_per_clock_per_simd=reader.by_wave(
            reader.figures(reader.taken("instructions_per_clock_per_simd", {}))
        ),
        simds_per_cu=reader.one("simds_per_cu"),
        wavefront_sizes=tuple(reader.taken("wavefront_sizes", ())),
        occupancy=reader.occupancy(),
        memory_levels=reader.levels(reader.taken("memory_levels", {})),
        memory_transfers_per_clock=reader.one("memory_transfers_per_clock"),
        products=tuple(reader.product(entry) for entry in reader.taken("products", [])),
        extensions=reader.extensions(),
    )
    reader.done()
    return architecture


class _Reader:
    """Takes a file's content apart; what is left over at the end was not understood."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self._left = dict(data)
        self._name = str(data.get("name"))
        self._sources: Mapping[str, str] = self._left.pop("sources", {})

    def done(self) -> None:
        if self._left:
            raise ValueError(f"{self._name}: unknown {', '.join(self._left)}")

    def taken(self, key: str, default: Any) -> Any:
        return self._left.pop(key, default)

    def text(self, key: str) -> str:
        value = self._left.pop(key, None)
        if not isinstance(value, str):
            raise ValueError(f"{self._name}: no {key}")
        return value

    def figure(self, value: Any, block: Mapping[str, Any]) -> SourcedValue:
        """A number, or a mapping with `value`; source and note are its own, else those of the block it stands in."""
        own = value if isinstance(value, dict) else {"value": value}
        number, source = own.get("value"), own.get("source", block.get("source"))
        if not isinstance(number, (int, float)) or isinstance(number, bool) or set(own) - {"value", "source", "note"}:
            raise ValueError(f"{self._name}: {value} is not a number")
        if not isinstance(source, str) or source not in self._sources:
            raise ValueError(f"{self._name}: {number} has no known source")
        return SourcedValue(float(number), self._sources[source], own.get("note", block.get("note")))

    def figures(self, block: Mapping[str, Any]) -> dict[str, SourcedValue]:
        """The numbers of a block by key; a null stands for a number that is not known and is left out."""
        entries = {key: value for key, value in block.items() if key not in _TEXTS and value is not None}
        return {key: self.figure(value, block) for key, value in entries.items()}

    def one(self, key: str) -> SourcedValue | None:
        value = self.taken(key, None)
        return None if value is None else self.figure(value, {})

    def units(self, key: str) -> Mapping[str, Mapping[str, SourcedValue]]:
        return self.blocks(self.taken(key, {}), self.figures)

    def blocks(self, block: Mapping[str, Any], read: Callable[[Mapping[str, Any]], _T]) -> Mapping[str, _T]:
        return MappingProxyType({key: read(value) for key, value in block.items()})

    def by_wave(self, block: Mapping[str, _T]) -> Mapping[int, _T]:
        return MappingProxyType({int(key.removeprefix("wave")): value for key, value in block.items()})

    def levels(self, block: Mapping[str, Any]) -> Mapping[str, MemoryLevel]:
        return self.blocks(block, self.level)

    def level(self, block: Mapping[str, Any]) -> MemoryLevel:
        numbers = self.figures(block)
        level = MemoryLevel(
            per=block["per"],
            bytes_per_clock=numbers.pop("bytes_per_clock"),
            bytes=numbers.pop("bytes", None),
            line_bytes=numbers.pop("line_bytes", None),
            channels_per_xcd=numbers.pop("channels_per_xcd", None),
        )
        self._none_left(numbers)
        if (level.per == "channel") != (level.channels_per_xcd is not None):
            raise ValueError(f"{self._name}: a level per channel needs channels, and no other has them")
        return level

    def registers(self, block: Mapping[str, Any], outer: Mapping[str, Any]) -> RegisterFile:
        return RegisterFile(**self.figures({"source": outer.get("source"), **block}))

    def occupancy(self) -> OccupancyLimits | None:
        block = self.taken("occupancy", None)
        if block is None:
            return None
        vector, scalar, groups = block["vector_registers"], block.get("scalar_registers"), block["workgroups"]
        files = {key: self.registers(value, vector) for key, value in vector.items() if key not in _TEXTS}
        singles = ("shared_by_cus", "shared_by_simds", "max_waves_per_simd")
        if block["accumulation_registers"] not in ("none", "separate", "unified"):
            raise ValueError(f"{self._name}: accumulation_registers is {block['accumulation_registers']}")
        return OccupancyLimits(
            **{key: self.figure(block[key], {}) for key in singles},
            **self.figures(groups),
            vector_registers=self.by_wave(files),
            accumulation_registers=block["accumulation_registers"],
            scalar_registers=None if scalar is None else self.registers(scalar, {}),
            lds=LocalMemory(**self.figures(block["lds"])),
        )

    def product(self, block: Mapping[str, Any]) -> Product:
        numbers = self.figures({key: value for key, value in block.items() if key != "recognized_by"})
        product = Product(
            name=block["name"],
            recognized_by=tuple(block["recognized_by"]),
            compute_units=numbers.pop("compute_units"),
            max_clock_mhz=numbers.pop("max_clock_mhz"),
            matrix_clock_mhz=numbers.pop("matrix_clock_mhz", None),
            memory_bytes=numbers.pop("memory_bytes", None),
            memory_bandwidth=numbers.pop("memory_bandwidth"),
            memory_bus_bits=numbers.pop("memory_bus_bits"),
            xcds=numbers.pop("xcds"),
            l2_bytes=numbers.pop("l2_bytes", None),
            infinity_cache_bytes=numbers.pop("infinity_cache_bytes", None),
            infinity_cache_bandwidth=numbers.pop("infinity_cache_bandwidth", None),
        )
        self._none_left(numbers)
        return product

    def extensions(self) -> Mapping[str, Extension]:
        def read(block: Mapping[str, Any]) -> Extension:
            operations = self.blocks(block.get("operations_per_clock_per_cu", {}), self.figures)
            return Extension(operations, self.levels(block.get("memory_levels", {})))

        return self.blocks(self.taken("extensions", {}), read)

    def _none_left(self, numbers: Mapping[str, SourcedValue]) -> None:
        if numbers:
            raise ValueError(f"{self._name}: unknown {', '.join(numbers)}")
