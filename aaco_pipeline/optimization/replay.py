"""One captured dispatch: read and check its folder, plan its address ranges, compare two states of its memory.

Such folders are written by rocm-perf-lab's isolate tool and kerncap. Nothing here runs a kernel: see
`aaco_pipeline.resources.replay`.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from aaco_pipeline.errors import CaptureError, UsageError

DISPATCH: Final = "dispatch.json"
REGIONS: Final = "memory_regions.json"
KERNARG: Final = "kernarg.bin"
CODE: Final = "kernel.hsaco"
METADATA: Final = "metadata.json"
COMPLETE: Final = "capture_complete"
MEMORY: Final = "memory"

_MOST_JSON_BYTES: Final = 64 << 20
_MOST_KERNARG_BYTES: Final = 1 << 20
_MOST_CODE_BYTES: Final = 1 << 30
_MOST_REGIONS: Final = 1_000_000
#: Addresses of five-level page tables, the most that an x86-64 host or a GPU of it can address.
_ADDRESSES: Final = 1 << 57
_POINTER_BYTES: Final = 8
_POINTS: Final = ("global_buffer", "dynamic_shared_pointer")

Address = Annotated[int, Field(gt=0, lt=_ADDRESSES)]
Size = Annotated[int, Field(ge=0, lt=_ADDRESSES)]


class _Read(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


Model = TypeVar("Model", bound=_Read)


class Dispatch(_Read):
    """`dispatch.json`: the kernel and how it was launched. Sizes in bytes, `grid` and `block` in work-items."""

    mangled_name: str
    demangled_name: str = ""
    agent_name: str | None = None
    isa_name: str | None = None
    wavefront_size: int | None = None
    kernel_object: int | None = None
    grid: list[int] = Field(min_length=3, max_length=3)
    block: list[int] = Field(min_length=3, max_length=3)
    group_segment_size: Size = 0
    private_segment_size: Size = 0
    kernarg_size: Size
    dispatch_index: int | None = None


class Region(_Read):
    """One allocation of device memory: `base` is its virtual address in the captured process."""

    base: Address
    size: Annotated[int, Field(gt=0, lt=_ADDRESSES)]
    is_pool: bool = False
    is_vmem: bool = False
    contains_kernarg: bool = False
    handle: int = 0
    access: int = 0

    @property
    def end(self) -> int:
        return self.base + self.size

    @property
    def file(self) -> str:
        """Return the file of its content, below the capture's folder."""
        return f"{MEMORY}/region_{self.base:x}.bin"


class Slot(_Read):
    """One argument in the kernel's argument segment, as the code object's metadata states it."""

    offset: Size
    size: Size
    value_kind: str
    value_type: str = ""
    address_space: str = ""
    name: str = ""


class _Metadata(_Read):
    kernel_name: str = ""
    kernarg_slots: list[Slot] | None = None
    kernarg_segment_size_meta: Size | None = None
    hsaco_sha256: str | None = None
    sgpr_count: int | None = None
    vgpr_count: int | None = None


class _Regions(_Read):
    regions: list[Region] = Field(max_length=_MOST_REGIONS)


@dataclass(frozen=True)
class Pointer:
    """A pointer among the kernel's arguments, and the region that it points into; None if no region contains it."""

    slot: Slot
    address: int
    region: Region | None


@dataclass(frozen=True)
class Finding:
    """A defect of a capture. A `fault` invalidates its replay; a `note` is informational."""

    severity: Literal["fault", "note"]
    what: str


@dataclass(frozen=True)
class DispatchCapture:
    """A captured dispatch, read and checked. `slots` is None if the layout does not describe the arguments."""

    folder: Path
    layout: Literal["kerncap", "rocm-perf-lab"]
    dispatch: Dispatch
    regions: tuple[Region, ...]
    kernarg: bytes
    slots: tuple[Slot, ...] | None
    registers: Mapping[str, int | None]
    code_sha256: str | None
    findings: tuple[Finding, ...]

    @property
    def workgroups(self) -> tuple[int, int, int]:
        """Return the workgroups in each dimension: the last of a dimension may be partly filled."""
        x, y, z = (-(-grid // block) for grid, block in zip(self.dispatch.grid, self.dispatch.block, strict=True))
        return x, y, z

    def pointers(self) -> Iterator[Pointer]:
        """Return the kernel's non-null pointer arguments, each with the region that contains its address."""
        for slot in self.slots or ():
            end = slot.offset + _POINTER_BYTES
            if slot.value_kind not in _POINTS or slot.size != _POINTER_BYTES or end > len(self.kernarg):
                continue
            address = int.from_bytes(self.kernarg[slot.offset : end], "little")
            if address:
                yield Pointer(slot, address, self.holds(address))

    def holds(self, address: int) -> Region | None:
        """Return the region that contains an address; the smallest if several overlap."""
        found = [one for one in self.regions if one.base <= address < one.end]
        return min(found, key=lambda one: one.size, default=None)


def read_capture(folder: Path) -> DispatchCapture:
    """Read and check the folder of a captured dispatch. CaptureError in one line if it is unusable."""
    if not folder.is_dir():
        raise CaptureError(f"{folder}: there is no such folder; name the folder that holds {DISPATCH}")
    dispatch = _parsed(folder / DISPATCH, Dispatch)
    if not all(0 < one < 1 << 32 for one in (*dispatch.grid, *dispatch.block)):
        raise CaptureError(f"{folder / DISPATCH}: grid {dispatch.grid} and block {dispatch.block} launch nothing")
    regions = tuple(sorted(_parsed(folder / REGIONS, _Regions).regions, key=lambda one: (one.base, one.size)))
    with_metadata = (folder / METADATA).exists()
    metadata = _parsed(folder / METADATA, _Metadata) if with_metadata else _Metadata()
    kernarg = _bytes(folder / KERNARG, _MOST_KERNARG_BYTES)
    digest = _digest(folder / CODE) if (folder / CODE).exists() else None
    findings = [
        *_of_files(folder, regions),
        *_of_kernarg(dispatch, metadata, kernarg),
        *_of_code(digest, metadata),
        *_of_overlaps(regions),
    ]
    if with_metadata and not (folder / COMPLETE).exists():
        findings.append(Finding("fault", f"{COMPLETE} is missing: the tool had not finished writing"))
    slots = None if metadata.kernarg_slots is None else tuple(metadata.kernarg_slots)
    registers = {"sgprs": metadata.sgpr_count, "vgprs": metadata.vgpr_count}
    layout: Literal["kerncap", "rocm-perf-lab"] = "kerncap" if with_metadata else "rocm-perf-lab"
    found = DispatchCapture(folder, layout, dispatch, regions, kernarg, slots, registers, digest, ())
    findings += _of_pointers(found)
    return replace(found, findings=tuple(findings))


def _bytes(path: Path, most: int) -> bytes:
    try:
        if path.is_symlink() or not path.is_file():
            raise CaptureError(f"{path}: there is no such file; the capture is not whole, so record the dispatch again")
        with path.open("rb") as file:
            content = file.read(most + 1)
    except OSError as error:
        raise CaptureError(f"{path}: cannot be read: {error.strerror}") from error
    if len(content) > most:
        raise CaptureError(f"{path}: is larger than {most:,} bytes, which no {path.name} is")
    return content


def _parsed(path: Path, model: type[Model]) -> Model:
    try:
        document: Any = json.loads(_bytes(path, _MOST_JSON_BYTES))
    except (ValueError, RecursionError) as error:
        raise CaptureError(f"{path}: is no JSON: {error}") from error
    try:
        return model.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(one) for one in first["loc"]) or "document"
        raise CaptureError(f"{path}: {where}: {first['msg']}") from error


def _digest(path: Path) -> str:
    if path.is_symlink() or not path.is_file() or path.stat().st_size > _MOST_CODE_BYTES:
        raise CaptureError(f"{path}: is no file of at most {_MOST_CODE_BYTES:,} bytes")
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _of_files(folder: Path, regions: tuple[Region, ...]) -> Iterator[Finding]:
    if not regions:
        yield Finding("fault", f"{REGIONS} lists no region: the memory was not captured")
    for region in regions:
        path = folder / region.file
        if path.is_symlink() or not path.is_file():
            yield Finding("fault", f"{region.file} is missing: the content of {region.size:,} bytes is not known")
        elif (length := path.stat().st_size) != region.size:
            yield Finding("fault", f"{region.file} has {length:,} bytes, its region {region.size:,}")


def _of_kernarg(dispatch: Dispatch, metadata: _Metadata, kernarg: bytes) -> Iterator[Finding]:
    if len(kernarg) != dispatch.kernarg_size:
        yield Finding("fault", f"{KERNARG} has {len(kernarg):,} bytes, {DISPATCH} says {dispatch.kernarg_size:,}")
    stated = metadata.kernarg_segment_size_meta
    if stated is not None and stated != dispatch.kernarg_size:
        yield Finding("fault", f"the code object states {stated:,} bytes of arguments, {DISPATCH} {len(kernarg):,}")
    for slot in metadata.kernarg_slots or ():
        if slot.offset + slot.size > len(kernarg):
            yield Finding("fault", f"argument {slot.name or slot.offset} ends behind {KERNARG}")


def _of_code(digest: str | None, metadata: _Metadata) -> Iterator[Finding]:
    if digest is None:
        yield Finding("fault", f"{CODE} is missing: there is no code to run")
    elif metadata.hsaco_sha256 not in (None, digest):
        yield Finding("fault", f"{CODE} is another one than was loaded: its SHA-256 is {digest[:12]}…")


def _of_overlaps(regions: tuple[Region, ...]) -> Iterator[Finding]:
    """Yield each region that begins before the end of those before it; regions are sorted by address."""
    end, last = 0, None
    for region in regions:
        if last is not None and region.base < end:
            yield Finding("note", f"the regions at {last.base:#x} and {region.base:#x} overlap")
        if region.end > end:
            end, last = region.end, region


def _of_pointers(capture: DispatchCapture) -> Iterator[Finding]:
    if capture.slots is None:
        yield Finding("note", "this layout does not say which arguments are pointers, so none was checked")
    for pointer in capture.pointers():
        if pointer.region is None:
            name = pointer.slot.name or f"at offset {pointer.slot.offset}"
            yield Finding("fault", f"argument {name} points to {pointer.address:#x}, which no region holds")


#: Fallback page size. ROCm's own granularity for virtual memory can be larger.
LEAST_GRANULARITY_BYTES: Final = 4096


@dataclass(frozen=True)
class Reservation:
    """One range of complete granules, and the regions in it, sorted by address."""

    base: int
    size: int
    regions: tuple[Region, ...]

    @property
    def end(self) -> int:
        return self.base + self.size


def plan(regions: Iterable[Region], granularity_bytes: int = LEAST_GRANULARITY_BYTES) -> tuple[Reservation, ...]:
    """Return reservations that cover all regions: aligned, disjoint, sorted by address.

    Regions that share a granule, overlap or touch are one reservation: a second one in the same granule would fail.
    Raises UsageError if the granularity is not a power of two of at least 4,096 bytes.
    """
    if granularity_bytes < LEAST_GRANULARITY_BYTES or granularity_bytes & (granularity_bytes - 1):
        raise UsageError(f"granularity {granularity_bytes}: give a power of two from {LEAST_GRANULARITY_BYTES} on")
    planned: list[Reservation] = []
    for region in sorted(regions, key=lambda one: (one.base, one.size)):
        base = region.base & -granularity_bytes
        end = -(-region.end // granularity_bytes) * granularity_bytes
        if planned and base <= planned[-1].end:
            last = planned[-1]
            planned[-1] = Reservation(last.base, max(last.end, end) - last.base, (*last.regions, region))
        else:
            planned.append(Reservation(base, end - base, (region,)))
    return tuple(planned)


DTYPES: Final = ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32")
_CHUNK_BYTES: Final = 8 << 20


@dataclass(frozen=True)
class RegionDifference:
    """The difference of a region between two captures; sizes and offsets in bytes.

    `state` is `equal`, `differs`, `only in first`, `only in second`, `other size` or `not captured`. As numbers:
    `elements_differing`, and of those that are numbers on both sides `greatest_difference`; both null where no type
    was requested.
    """

    base: int
    size: int
    state: str
    bytes_differing: int | None = None
    first_offset: int | None = None
    elements_differing: int | None = None
    greatest_difference: float | None = None


def region_differences(
    first: DispatchCapture, second: DispatchCapture, dtype: str | None = None
) -> tuple[RegionDifference, ...]:
    """Compare each region of both captures, by address. Contents are read in chunks, which bounds the memory.

    As numbers, NaN equals only NaN with the same bits. UsageError for a type that is not one of `DTYPES`.
    """
    if dtype is not None and dtype not in DTYPES:
        raise UsageError(f"--dtype {dtype}: give one of {', '.join(DTYPES)}")
    sides = [{one.base: one for one in side.regions} for side in (first, second)]
    found = []
    for base in sorted(sides[0].keys() | sides[1].keys()):
        one, other = (side.get(base) for side in sides)
        if one is None or other is None:
            there = one or other
            assert there is not None
            found.append(RegionDifference(base, there.size, f"only in {'second' if one is None else 'first'}"))
        elif one.size != other.size:
            found.append(RegionDifference(base, one.size, "other size"))
        else:
            found.append(_difference(first.folder / one.file, second.folder / other.file, one, dtype))
    return tuple(found)


def _difference(first: Path, second: Path, region: Region, dtype: str | None) -> RegionDifference:
    if any(path.is_symlink() or not path.is_file() or path.stat().st_size != region.size for path in (first, second)):
        return RegionDifference(region.base, region.size, "not captured")
    bytes_differing, elements, offset, greatest = 0, 0, 0, None
    first_offset: int | None = None
    try:
        with first.open("rb") as left, second.open("rb") as right:
            while chunk := left.read(_CHUNK_BYTES):
                pair = (np.frombuffer(chunk, np.uint8), np.frombuffer(right.read(_CHUNK_BYTES), np.uint8))
                other = pair[0] != pair[1]
                if other.any():
                    bytes_differing += int(np.count_nonzero(other))
                    first_offset = offset + int(np.argmax(other)) if first_offset is None else first_offset
                    if dtype is not None:
                        count, apart = _as_numbers(pair, other, np.dtype(dtype))
                        elements += count
                        greatest = apart if greatest is None or (apart is not None and apart > greatest) else greatest
                offset += len(chunk)
    except OSError as error:
        raise CaptureError(f"{first} or {second}: cannot be read: {error.strerror}") from error
    state = "differs" if bytes_differing else "equal"
    told = None if dtype is None else elements
    return RegionDifference(region.base, region.size, state, bytes_differing, first_offset, told, greatest)


def _as_numbers(
    pair: tuple[NDArray[np.uint8], NDArray[np.uint8]], other: NDArray[np.bool_], dtype: np.dtype[np.generic]
) -> tuple[int, float | None]:
    """Count elements with a differing byte, and find the greatest difference where both are numbers."""
    whole = len(other) // dtype.itemsize * dtype.itemsize
    differs = other[:whole].reshape(-1, dtype.itemsize).any(axis=1)
    left, right = (np.asarray(side[:whole].view(dtype)[differs], dtype=np.float64) for side in pair)
    known = np.isfinite(left) & np.isfinite(right)
    apart = np.abs(left[known] - right[known])
    return int(differs.sum()), float(apart.max()) if apart.size else None
