"""Marks that a program sets itself: iteration boundaries, phases and single instants.

    from aaco_pipeline.mark import iteration, mark, phase

    for batch in batches:
        with iteration(), phase("prefill"):
            ...

`aaco record` passes a folder in the environment variable AACO_MARKS; each process that sets marks writes one file
there. Without the variable, marks do nothing. This file needs only Python's standard library and can be copied
anywhere.

The file is 32-byte slots, little endian, mapped into memory: a kill loses nothing, and there is nothing to flush.
Slots 0 and 1 are the header: 8 bytes `AACOMARK`, u32 version 1, u32 process, i64 CLOCK_MONOTONIC and i64 CLOCK_REALTIME
in ns when it was made, u32 error number with which marking ended (0 without), zeros. Any other slot is a record: i64
CLOCK_MONOTONIC in ns, u32 thread, u16 kind, u16 name, zeros; of kind 0 it was not written. Kind 6 defines a name: its
u32 is the length in bytes, and the UTF-8 bytes fill the slots that follow. Name 0 is none. `aaco_mark.h` writes the
same from C and C++, `aaco_pipeline.formats.program` reads it.
"""

import errno
import itertools
import mmap
import os
import struct
import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import Final

ITERATION_BEGIN: Final = 1
ITERATION_END: Final = 2
PHASE_BEGIN: Final = 3
PHASE_END: Final = 4
INSTANT: Final = 5
NAME: Final = 6

_HEADER: Final = struct.Struct("<8sIIqq")
_RECORD: Final = struct.Struct("<qIHH")
_ERROR_AT: Final = 32
_KIND_AT: Final = 12
_SLOT_BYTES: Final = 32
#: The first chunk of the file has this many slots (64 KiB); each further chunk doubles the file, to keep their number
#: small: Python holds a descriptor for each.
_FIRST: Final = 1 << 11
_LONGEST_NAME: Final = 255
_MOST_NAMES: Final = (1 << 16) - 1
#: A chunk of the file: its first slot, the slot after its last, and its memory.
_Part = tuple[int, int, mmap.mmap]


class _File:
    """The marks of this process. Threads and signal handlers may mark concurrently: an atomic counter assigns slots.

    There are no locks, so neither a fork nor a signal during a mark can leave one held. The file is reopened for each
    chunk: a program that closes all its descriptors may reuse their numbers for other files.
    """

    def __init__(self, folder: str) -> None:
        self._next = itertools.count(2)
        self._parts: dict[int, _Part] = {}
        self._names: dict[str, int] = {}
        self._numbers = itertools.count(1)
        self._threads = threading.local()
        self._ended = False
        try:
            start = self._created(folder)
            self._part: _Part | None = self._opened(0)
            self._part[2][: _HEADER.size] = _HEADER.pack(b"AACOMARK", 1, os.getpid(), start, time.time_ns())
        except OSError as error:
            self._end(error)

    def begin(self, kind: int, name: str | None = None) -> None:
        """Set a mark; the clock is read last."""
        if self._ended:
            return
        number = 0 if not name else self._names.get(name) or self._define(name)
        try:
            thread = self._threads.number
        except AttributeError:
            thread = self._threads.number = threading.get_native_id()
        slot = next(self._next)
        part = self._part
        if part is None or not part[0] <= slot < part[1]:
            part = self._of(slot)
        if part is not None:
            at = (slot - part[0]) << 5
            _RECORD.pack_into(part[2], at, time.monotonic_ns(), thread, 0, number)
            part[2][at + _KIND_AT] = kind  # written last, so that a kill leaves no half-written record

    def end(self, kind: int, time_ns: int) -> None:
        """Set a mark with a time that was read before other work; an end mark carries the name of its begin mark."""
        if self._ended:
            return
        try:
            thread = self._threads.number
        except AttributeError:
            thread = self._threads.number = threading.get_native_id()
        slot = next(self._next)
        part = self._part
        if part is None or not part[0] <= slot < part[1]:
            part = self._of(slot)
        if part is not None:
            at = (slot - part[0]) << 5
            _RECORD.pack_into(part[2], at, time_ns, thread, 0, 0)
            part[2][at + _KIND_AT] = kind

    def discard(self) -> None:
        """Remove the file if it contains no marks."""
        with suppress(OSError):
            os.remove(self._path)  # noqa: PTH107 - pathlib is slow to import, and programs pay for it

    def _created(self, folder: str) -> int:
        """Create the file, named after the current time; two threads in the same nanosecond get different files."""
        while True:
            start = time.monotonic_ns()
            self._path = f"{folder}/{os.getpid()}-{start}.marks"
            with suppress(FileExistsError):
                os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))
                return start

    def _define(self, name: str) -> int:
        """Assign a number to a name and write it. Two threads may number the same name; both numbers are then valid."""
        number = next(self._numbers)
        if number > _MOST_NAMES:
            return 0
        text = name.encode("utf-8", "replace")[:_LONGEST_NAME]
        length = -(-len(text) // _SLOT_BYTES)
        slots = [0]
        while slots[-1] - slots[0] != length:  # another thread was first: the slots stay empty
            slots = list(itertools.islice(self._next, length + 1))
        pieces = [text[at : at + _SLOT_BYTES] for at in range(0, len(text), _SLOT_BYTES)]
        for slot, piece in zip(slots, [b"", *pieces], strict=True):
            part = self._of(slot)
            if part is None:
                return 0
            at = (slot - part[0]) << 5
            if piece:
                part[2][at : at + len(piece)] = piece
            else:  # written first: otherwise the text after it would be read as marks
                _RECORD.pack_into(part[2], at, 0, len(text), 0, number)
                part[2][at + _KIND_AT] = NAME
        self._names[name] = number
        return number

    def _of(self, slot: int) -> _Part | None:
        """Return the chunk that contains a slot; None if the file cannot grow."""
        number = (slot // _FIRST).bit_length()
        try:
            part = self._parts.get(number) or self._opened(number)
        except OSError as error:
            self._end(error)
            return None
        self._part = part
        return part  # not the stored object: another thread may just have stored its own

    def _opened(self, number: int) -> _Part:
        """Map another chunk. Its disk space is allocated immediately: a full disk would otherwise raise SIGBUS."""
        first, behind = (_FIRST << number >> 1 if number else 0), _FIRST << number
        at, size = first * _SLOT_BYTES, (behind - first) * _SLOT_BYTES
        descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.posix_fallocate(descriptor, at, size)
            self._parts[number] = (first, behind, mmap.mmap(descriptor, size, offset=at))
        finally:
            os.close(descriptor)
        return self._parts[number]

    def _end(self, error: OSError) -> None:
        """Stop marking, because a failure to mark must not stop the program. The reason is stored in the header."""
        self._ended = True
        if 0 in self._parts:
            self._parts[0][2][_ERROR_AT : _ERROR_AT + 4] = struct.pack("<I", error.errno or errno.EIO)


class _Iteration:
    """`with iteration():` around one iteration, or `iteration.begin()` and `iteration.end()`."""

    def __call__(self) -> "_Iteration":
        return self

    def begin(self) -> None:
        if _FOLDER:
            _file().begin(ITERATION_BEGIN)

    def end(self) -> None:
        if _FOLDER:
            _file().end(ITERATION_END, time.monotonic_ns())

    __enter__ = begin

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()


class phase:
    """`with phase("prefill"):` around a section of the work; phases may nest, each on one thread."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        if _FOLDER:
            _file().begin(PHASE_BEGIN, self._name)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if _FOLDER:
            _file().end(PHASE_END, time.monotonic_ns())


def mark(name: str) -> None:
    """Mark an instant with a name."""
    if _FOLDER:
        _file().begin(INSTANT, name)


def _file() -> _File:
    if not _own:
        made = _File(_FOLDER)
        _own.append(made)
        if _own[0] is not made:
            made.discard()  # another thread was first
    return _own[0]


def _forget() -> None:
    """Start a separate file in a forked child. The parent's file stays open: its descriptors may have been reused."""
    _parents.extend(_own)
    _own.clear()


iteration: Final = _Iteration()
_FOLDER: Final = os.environ.get("AACO_MARKS", "")
#: The file of this process, if it has set a mark, and the files of the processes it was forked from.
_own: Final[list[_File]] = []
_parents: Final[list[_File]] = []
if _FOLDER:
    os.register_at_fork(after_in_child=_forget)
