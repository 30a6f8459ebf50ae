"""Freed memory goes back to the system."""

import ctypes
from pathlib import Path

import pytest

from aaco_pipeline.resources.host.memory import give_back_memory

_PIECE = 64 << 10
_PIECES = 1_000


def resident_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS:"))


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="only GNU's C library gives back when told")
def test_what_the_c_library_keeps_of_freed_memory_goes_back() -> None:
    library = ctypes.CDLL(None)
    library.malloc.restype = ctypes.c_void_p
    library.free.argtypes = [ctypes.c_void_p]
    held = [library.malloc(_PIECE) for _ in range(_PIECES)]
    for piece in held:
        ctypes.memset(piece, 1, _PIECE)
    last = held.pop()  # keeps the heap from shrinking by itself
    for piece in held:
        library.free(piece)
    before = resident_bytes()
    give_back_memory()
    assert before - resident_bytes() > _PIECE * _PIECES // 2
    library.free(last)
