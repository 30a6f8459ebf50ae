"""Read architectures from this folder's data files, and find them by the names that tools use.

Every number is a `SourcedValue` with its document or measurement and the quoted words; a file with an unsourced number
does not load. A number that cannot be sourced is null with a reason, and no computation uses it.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from types import MappingProxyType
from typing import Any, Final, TypeVar

import yaml

from aaco_pipeline.hardware.architecture import (
    Architecture,
    Extension,
    Figure,
    LocalMemory,
    MemoryLevel,
    OccupancyLimits,
    Product,
    RegisterFile,
    SourcedValue,
)

_FOLDER: Final = "architectures"
_TEXTS: Final = ("source", "words", "note", "per", "name")
_OF_A_FIGURE: Final = {"value", "source", "words", "note"}
_OF_AN_UNKNOWN: Final = {"value", "reason"}
_OF_A_SOURCE: Final = {"document", "address", "kind"}
_MEASUREMENT: Final = "measurement"
_REFUSED: Final = "recalled"
_T = TypeVar("_T")


def architecture(name: str | None) -> Architecture | None:
    """Find the architecture called `name`, ignoring features as in `gfx942:sramecc+:xnack-`; None if unknown."""
    plain = (name or "").strip().partition(":")[0].lower()
    if not plain or plain in _files():
        return _loaded(plain) if plain else None
    # Only a name without its own file can be an alias.
    return next((one for one in architectures() if plain in one.aliases), None)


@cache
def architectures() -> tuple[Architecture, ...]:
    """Return all known architectures by name."""
    return tuple(_loaded(name) for name in sorted(_files()))


def why_unknown(name: str | None) -> str:
    """Explain why `name` has no data; ValueError if it has some."""
    if name is None or not name.strip():
        return "the capture does not name the device's architecture"
    if architecture(name) is not None:
        raise ValueError(f"the architecture {name} is known")
    known = ", ".join(one.name for one in architectures())
    return f"nothing is known of the architecture {name}; known are {known}"


@cache
def _files() -> Mapping[str, Traversable]:
    """Return the data files by the architecture that each one describes."""
    folder = resources.files(__package__).joinpath(_FOLDER)
    return {file.name.removesuffix(".yaml"): file for file in folder.iterdir() if file.name.endswith(".yaml")}


@cache
def _loaded(name: str) -> Architecture:
    return parsed(_content(name))


def _content(name: str) -> dict[str, Any]:
    """Read a file and merge it over its base file; the base's aliases are not inherited."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    data = yaml.load(_files()[name].read_text(encoding="utf-8"), Loader=loader)
    base = _content(data.pop("base")) if "base" in data else {}
    return _laid_over({key: value for key, value in base.items() if key != "aliases"}, data)


def _laid_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict) and not _is_complete(value)
        merged[key] = _laid_over(_without_words(merged[key], value), value) if both else value
    return merged


def _is_complete(value: Mapping[str, Any]) -> bool:
    """Return whether this is a single figure or source, which replaces the base's value instead of being merged."""
    return "value" in value or "document" in value


def _without_words(below: Mapping[str, Any], above: Mapping[str, Any]) -> Mapping[str, Any]:
    """Drop the base's words and note if `above` has a different source."""
    return {key: value for key, value in below.items() if key not in ("words", "note")} if "source" in above else below


def parsed(data: Mapping[str, Any]) -> Architecture:
    """Parse the architecture that a file's content describes.

    Raises:
        ValueError: a number has no words or no source that the file names, a source names no document or no address,
            a null has no reason, or a field is unknown or missing.
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
        instructions_per_clock_per_simd=reader.issue("instructions_per_clock_per_simd"),
        simds_per_cu=reader.one("simds_per_cu"),
        issue_slots=reader.figures("issue_slots", reader.taken("issue_slots", {})),
        wavefront_sizes=tuple(reader.taken("wavefront_sizes", ())),
        occupancy=reader.occupancy("occupancy"),
        memory_levels=reader.levels("memory_levels", reader.taken("memory_levels", {})),
        memory_transfers_per_clock=reader.one("memory_transfers_per_clock"),
        products=tuple(reader.product(entry) for entry in reader.taken("products", [])),
        extensions=reader.extensions("extensions"),
        figures=tuple(reader.read),
    )
    reader.done()
    return architecture


class _Reader:
    """Consume a file's content field by field; anything left at the end was not recognized.

    `read` collects the figures parsed so far, each named by its `place` in the file.
    """

    def __init__(self, data: Mapping[str, Any]) -> None:
        self._left = dict(data)
        self._name = str(data.get("name"))
        self._sources = {key: self.source(value) for key, value in self._left.pop("sources", {}).items()}
        self.read: list[Figure] = []

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

    def source(self, value: Any) -> tuple[str, str | None]:
        """Parse a source's document and address; only a measurement may omit them."""
        said = value if isinstance(value, dict) and not set(value) - _OF_A_SOURCE else {}
        document, address, kind = _text(said.get("document")), _text(said.get("address")), said.get("kind")
        if document is None or kind not in (None, _MEASUREMENT):
            raise ValueError(f"{self._name}: the source {value} names no document")
        if _REFUSED in document.lower():
            raise ValueError(f"{self._name}: the source {document} is {_REFUSED}, which is no source")
        if address is None and kind != _MEASUREMENT:
            raise ValueError(f"{self._name}: the source {document} has no address and is no measurement")
        return document, address

    def figure(self, place: str, value: Any, block: Mapping[str, Any]) -> SourcedValue | None:
        """Parse a number, or a mapping with `value`; source, words and note default to the enclosing block's.

        The block's words belong to the block's source, so a figure with its own source needs its own words.
        """
        own = value if isinstance(value, dict) else {"value": value}
        number = own.get("value")
        if number is None:
            self._unknown(place, own)
            return None
        if not isinstance(number, (int, float)) or isinstance(number, bool) or set(own) - _OF_A_FIGURE:
            raise ValueError(f"{self._name}: {place} is {value}, which is not a number")
        source = own.get("source", block.get("source"))
        if not isinstance(source, str) or source not in self._sources:
            raise ValueError(f"{self._name}: {place} has no known source")
        words = _text(own.get("words", None if "source" in own else block.get("words")))
        if words is None:
            raise ValueError(f"{self._name}: {place} has no words that it rests on")
        document, address = self._sources[source]
        found = SourcedValue(float(number), document, own.get("note", block.get("note")), words, address)
        self.read.append(Figure(place, found.value, document, address, words, found.note))
        return found

    def _unknown(self, place: str, own: Mapping[str, Any]) -> None:
        if set(own) - _OF_AN_UNKNOWN or _text(own.get("reason")) is None:
            raise ValueError(f"{self._name}: {place} is null and needs a reason, and nothing else")
        self.read.append(Figure(place, None, None, None, None, own["reason"]))

    def figures(self, place: str, block: Mapping[str, Any]) -> dict[str, SourcedValue]:
        """Return the known numbers of a block by key."""
        entries = {key: value for key, value in block.items() if key not in _TEXTS}
        read = {key: self.figure(f"{place}.{key}", value, block) for key, value in entries.items()}
        return {key: value for key, value in read.items() if value is not None}

    def one(self, key: str) -> SourcedValue | None:
        return self.figure(key, self._left.pop(key), {}) if key in self._left else None

    def units(self, key: str) -> Mapping[str, Mapping[str, SourcedValue]]:
        return self.blocks(key, self.taken(key, {}), self.figures)

    def issue(self, key: str) -> Mapping[int, SourcedValue]:
        return self.by_wave(self.figures(key, self.taken(key, {})))

    def blocks(
        self, place: str, block: Mapping[str, Any], read: Callable[[str, Mapping[str, Any]], _T]
    ) -> Mapping[str, _T]:
        return MappingProxyType({key: read(f"{place}.{key}", value) for key, value in block.items()})

    def by_wave(self, block: Mapping[str, _T]) -> Mapping[int, _T]:
        return MappingProxyType({int(key.removeprefix("wave")): value for key, value in block.items()})

    def levels(self, place: str, block: Mapping[str, Any]) -> Mapping[str, MemoryLevel]:
        return self.blocks(place, block, self.level)

    def level(self, place: str, block: Mapping[str, Any]) -> MemoryLevel:
        self._has(place, block, "bytes_per_clock")
        numbers = self.figures(place, block)
        level = MemoryLevel(block["per"], **{one.name: numbers.pop(one.name, None) for one in fields(MemoryLevel)[1:]})
        self._none_left(numbers)
        if (level.per == "channel") != ("channels_per_xcd" in block):
            raise ValueError(f"{self._name}: a level per channel needs channels, and no other has them")
        return level

    def registers(self, place: str, block: Mapping[str, Any], outer: Mapping[str, Any]) -> RegisterFile | None:
        around = _without_words({key: outer[key] for key in _TEXTS if key in outer}, block)
        numbers = self.figures(place, {**around, **block})
        return RegisterFile(**numbers) if {"rows", "granule"} <= set(numbers) else None

    def occupancy(self, place: str) -> OccupancyLimits | None:
        """Parse the occupancy limits; None if there are none, or if a limit that binds all wavefronts is unknown."""
        block = self.taken("occupancy", None)
        if block is None:
            return None
        vector, scalar, groups = block["vector_registers"], block.get("scalar_registers"), block["workgroups"]
        files = {
            key: self.registers(f"{place}.vector_registers.{key}", value, vector)
            for key, value in vector.items()
            if key not in _TEXTS
        }
        singles = ("shared_by_cus", "shared_by_simds", "max_waves_per_simd")
        if block["accumulation_registers"] not in ("none", "separate", "unified"):
            raise ValueError(f"{self._name}: accumulation_registers is {block['accumulation_registers']}")
        in_groups = ("max_work_items", "max_resident", "max_resident_multi_wave")
        of_lds = ("bytes", "granule", "reserved_per_workgroup")
        self._has(f"{place}.workgroups", groups, *in_groups)
        self._has(f"{place}.lds", block["lds"], *of_lds)
        numbers = {key: self.figure(f"{place}.{key}", block[key], {}) for key in singles}
        numbers |= self.figures(f"{place}.workgroups", groups)
        scalars = None if scalar is None else self.registers(f"{place}.scalar_registers", scalar, {})
        lds = self.figures(f"{place}.lds", block["lds"])
        known = {key: value for key, value in numbers.items() if value is not None}
        by_wave = {key: value for key, value in files.items() if value is not None}
        complete = set(known) >= {*singles, *in_groups} and set(lds) >= set(of_lds) and by_wave
        if not complete or (scalar is not None and scalars is None):
            return None
        return OccupancyLimits(
            **known,
            vector_registers=self.by_wave(by_wave),
            accumulation_registers=block["accumulation_registers"],
            scalar_registers=scalars,
            lds=LocalMemory(**lds),
        )

    def product(self, block: Mapping[str, Any]) -> Product:
        stated = {key: value for key, value in block.items() if key != "recognized_by"}
        place = f"products.{block['name']}"
        needed = ("compute_units", "max_clock_mhz", "memory_bandwidth", "memory_bus_bits", "xcds")
        self._has(place, stated, *needed)
        numbers = self.figures(place, stated)
        figures = {one.name: numbers.pop(one.name, None) for one in fields(Product)[2:]}
        product = Product(block["name"], tuple(block["recognized_by"]), **figures)
        self._none_left(numbers)
        return product

    def extensions(self, place: str) -> Mapping[str, Extension]:
        def read(inner: str, block: Mapping[str, Any]) -> Extension:
            key = "operations_per_clock_per_cu"
            operations = self.blocks(f"{inner}.{key}", block.get(key, {}), self.figures)
            return Extension(operations, self.levels(f"{inner}.memory_levels", block.get("memory_levels", {})))

        return self.blocks(place, self.taken(place, {}), read)

    def _has(self, place: str, block: Mapping[str, Any], *needed: str) -> None:
        """Require the figures that others are computed from; null with a reason is accepted."""
        lacking = [key for key in needed if key not in block]
        if lacking:
            raise ValueError(f"{self._name}: {place} has no {', '.join(lacking)}")

    def _none_left(self, numbers: Mapping[str, SourcedValue]) -> None:
        if numbers:
            raise ValueError(f"{self._name}: unknown {', '.join(numbers)}")


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value.strip() else None
