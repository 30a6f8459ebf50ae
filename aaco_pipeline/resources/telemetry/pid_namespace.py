"""Whether processes have the same numbers here as in what the kernel records."""

from pathlib import Path
from typing import Final

_NAMESPACE: Final = Path("/proc/self/ns/pid")
#: The number of the PID namespace that the kernel starts with; tracepoints name threads as they are numbered there.
_FIRST: Final = 0xEFFFFFFC


def numbered_as_by_the_kernel() -> bool:
    """Whether this process is in the kernel's first PID namespace, and in no container with numbers of its own.

    OSError where /proc is not mounted.
    """
    return _NAMESPACE.stat().st_ino == _FIRST
