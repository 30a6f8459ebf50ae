"""The memory of a kernel's buffers: shared with its process, at the same addresses in every process.

Each buffer has its own pages with a gibibyte of unmapped addresses on both sides. It ends as close to the end of its
last page as an alignment of 64 bytes allows (256 if a call requests that), and a canary fills the rest of its pages.
Before each call, `out` buffers hold a pattern (a NaN of random bits for floating point) or the call's content; the
child cannot write `in` buffers.
"""

import mmap
import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.optimization.targets import Buffer, Content

_FIRST_ADDRESS: Final = 0x10_0000_0000
_GAP: Final = 1 << 30
#: Alignment of this target's widest loads, and of device allocations.
_ALIGNMENT: Final = 64
_DEVICE_ALIGNMENT: Final = 256
_PAGE: Final = mmap.PAGESIZE
#: By size of a floating-point number: exponent and quiet bit of a NaN, and the number of free mantissa bits.
_NOT_A_NUMBER: Final = {2: (0x7E00, 9), 4: (0x7FC00000, 22), 8: (0x7FF8 << 48, 51)}


@dataclass(frozen=True)
class Placed:
    """One buffer in memory: its mapping in the child, and this process's views for writing and reading it."""

    buffer: Buffer
    descriptor: int
    address: int
    mapped_address: int
    mapped_bytes: int
    whole: NDArray[np.uint8]
    values: Content
    poison: int
    before: bytes
    after: bytes

    @property
    def start(self) -> int:
        """Offset of the first value in the mapping."""
        return self.address - self.mapped_address

    @property
    def end(self) -> int:
        """Offset of the end of the last value in the mapping."""
        return self.start + self.values.nbytes


class Buffers:
    """The buffers of one child process. `close` releases them; the child keeps its mappings."""

    def __init__(self, buffers: Sequence[Buffer]) -> None:
        self.placed: dict[str, Placed] = {}
        #: Content of each element of an `out` buffer before a call.
        self.poison: dict[str, bytes] = {}
        self._is_aligned = False
        address = _FIRST_ADDRESS
        for buffer in buffers:
            if buffer.name in self.placed:
                raise ValueError(f"two buffers are named {buffer.name}")
            placed = _place(buffer, address)
            self.placed[buffer.name] = placed
            if buffer.role == "out":
                self.poison[buffer.name] = placed.poison.to_bytes(placed.values.dtype.itemsize, sys.byteorder)
            address += (placed.mapped_bytes + _GAP - 1) // _GAP * _GAP + _GAP

    def place(self, *, is_aligned: bool) -> None:
        """Move every buffer within its pages to its position for the next call; its content must be rewritten."""
        if is_aligned == self._is_aligned:
            return
        alignment = _DEVICE_ALIGNMENT if is_aligned else _ALIGNMENT
        self.placed = {name: _moved(placed, alignment) for name, placed in self.placed.items()}
        self._is_aligned = is_aligned

    def write(self, contents: Mapping[str, Content], before: Mapping[str, Content]) -> None:
        """Write contents into `in` and `inout` buffers, and values of `before` or poison into `out` buffers."""
        for name, placed in self.placed.items():
            if placed.buffer.role == "out" and name not in before:
                _as_numbers(placed.values).fill(placed.poison)
                continue
            content = before[name] if placed.buffer.role == "out" else contents[name]
            if content.dtype != placed.values.dtype or content.size != placed.values.size:
                raise ValueError(
                    f"buffer {name} holds {placed.values.size} values of {placed.values.dtype}, "
                    f"its content {content.size} of {content.dtype}"
                )
            np.copyto(placed.values, content.reshape(-1))

    def check_canaries(self) -> None:
        """Raise Refused (guard `memory`) if bytes around a buffer have changed."""
        for name, placed in self.placed.items():
            if placed.buffer.role == "in":
                continue
            view = placed.whole
            if view[: placed.start].tobytes() != placed.before:
                raise Refused("memory", f"it wrote before the begin of buffer {name}")
            if view[placed.end :].tobytes() != placed.after:
                raise Refused("memory", f"it wrote past the end of buffer {name}")

    def outputs(self) -> dict[str, Content]:
        """Return copies of all `out` and `inout` buffers."""
        return {name: placed.values.copy() for name, placed in self.placed.items() if placed.buffer.role != "in"}

    def where(self, address: int) -> tuple[str, str]:
        """Return the guard and the message for a fault at this address in the child."""
        for name, placed in self.placed.items():
            start, end = placed.address, placed.address + placed.values.nbytes
            if start <= address < end:
                return "inputs", f"it wrote to its input {name}"
            if end <= address < end + _GAP // 2:
                return "memory", f"it touched memory {address - end} bytes past the end of buffer {name}"
            if start - _GAP // 2 <= address < start:
                return "memory", f"it touched memory {start - address} bytes before the begin of buffer {name}"
        return "memory", f"it touched memory at {address:#x}, where no buffer lies"

    def close(self) -> None:
        """Close the descriptors; the mappings are released with their last view."""
        for placed in self.placed.values():
            with suppress(OSError):
                os.close(placed.descriptor)


def _place(buffer: Buffer, address: int) -> Placed:
    dtype = np.dtype(buffer.dtype)
    used = buffer.elements * dtype.itemsize
    length = max(_PAGE, (used + _PAGE - 1) // _PAGE * _PAGE)
    writing = os.memfd_create(f"aaco_{buffer.role}", os.MFD_CLOEXEC)
    try:
        os.ftruncate(writing, length)
        whole = np.frombuffer(mmap.mmap(writing, length), dtype=np.uint8)
        poison = _poison(dtype)
        _as_numbers(whole.view(dtype)).fill(poison)
        # The child's own descriptor must not allow a writable mapping of a read-only buffer.
        flags = os.O_RDONLY if buffer.role == "in" else os.O_RDWR
        descriptor = os.open(Path("/proc/self/fd", str(writing)), flags | os.O_CLOEXEC)
    finally:
        os.close(writing)
    everything: Any = whole.view(dtype)
    return _moved(Placed(buffer, descriptor, address, address, length, whole, everything, poison, b"", b""), _ALIGNMENT)


def _moved(placed: Placed, alignment: int) -> Placed:
    """Place the buffer as close to the end of its last page as the alignment allows, with canaries around it."""
    dtype, whole = placed.values.dtype, placed.whole
    used = placed.buffer.elements * dtype.itemsize
    start = (placed.mapped_bytes - used) // alignment * alignment
    numbers = _as_numbers(whole.view(dtype))
    first, behind = start // dtype.itemsize, (start + used) // dtype.itemsize
    numbers[:first], numbers[behind:] = placed.poison, placed.poison
    before, after = whole[:start].tobytes(), whole[start + used :].tobytes()
    values = whole[start : start + used].view(dtype)
    return replace(placed, address=placed.mapped_address + start, values=values, before=before, after=after)


def _poison(dtype: np.dtype[Any]) -> int:
    """Return a value that no kernel computes: a NaN with a random payload, or random bits for integers."""
    if dtype.kind == "f":
        exponent, free = _NOT_A_NUMBER[dtype.itemsize]
        return exponent | secrets.randbits(free)
    return 1 if dtype.kind == "b" else secrets.randbits(8 * dtype.itemsize)


def _as_numbers(values: Content) -> NDArray[Any]:
    return values.view(f"u{values.dtype.itemsize}")
