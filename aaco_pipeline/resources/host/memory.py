"""Memory that this process has freed, given back to the system.

What the C library keeps of freed memory for later is no use to a process whose next piece of work is another one.
Polars has an allocator of its own, which gives back by itself within a second or two.
"""

import ctypes


def give_back_memory() -> None:
    """Give back what is free; nothing happens with a C library that cannot (all but GNU's)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
