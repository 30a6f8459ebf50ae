"""Two states of the same memory: which regions differ, where first, and by how much as numbers."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from aaco_pipeline.errors import CaptureError, UsageError
from aaco_pipeline.optimization.replay.capture import DispatchCapture, Region

DTYPES: Final = ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32")
_CHUNK_BYTES: Final = 8 << 20


@dataclass(frozen=True)
class RegionDifference:
    """How a region differs between two captures; sizes and offsets in bytes.

    `state` is `equal`, `differs`, `only in first`, `only in second`, `other size` or `not captured`. As numbers:
    `elements_differing`, and of those that are numbers on both sides `greatest_difference`; both null where no type
    was asked for.
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
    """Each region of either capture, by address. Contents are read in chunks; memory is bounded by one.

    As numbers NaN equals NaN of the same bits only. UsageError for a type that is not one of `DTYPES`.
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


# ---- inside ----------------------------------------------------------------------------------------------------------


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
    """Elements with a byte that differs, and the greatest difference of those that are numbers on both sides."""
    whole = len(other) // dtype.itemsize * dtype.itemsize
    differs = other[:whole].reshape(-1, dtype.itemsize).any(axis=1)
    left, right = (np.asarray(side[:whole].view(dtype)[differs], dtype=np.float64) for side in pair)
    known = np.isfinite(left) & np.isfinite(right)
    apart = np.abs(left[known] - right[known])
    return int(differs.sum()), float(apart.max()) if apart.size else None
