"""Whether this process counts threads and time as the kernel's events do: in namespaces of its own it does not."""

from pathlib import Path
from typing import Final

#: The kernel's own namespaces have fixed numbers (`include/uapi/linux/nsfs.h`); every other one has another.
_FIRST: Final = {"pid": 0xEFFFFFFC, "time": 0xEFFFFFFA}
_NAMESPACES: Final = Path("/proc/self/ns")


def why_apart() -> tuple[str, str] | None:
    """Why events of the kernel cannot be matched with what is seen from here, and what to do; None where they can.

    Events name threads by the first PID namespace, and their clocks are those of the first time namespace: from
    another one they would be of other threads, or of other times, and nothing in them would say so.
    """
    if _is_apart("pid"):
        return (
            "this container numbers its threads otherwise than the kernel's events do",
            "start the container with the host's PID namespace (--pid=host)",
        )
    if _is_apart("time"):
        return (
            "this container's clocks are set otherwise than those of the kernel's events",
            "start it without a time namespace",
        )
    return None


def _is_apart(kind: str) -> bool:
    try:
        return (_NAMESPACES / kind).stat().st_ino != _FIRST[kind]
    except FileNotFoundError:
        return False  # a kernel without such namespaces has one for all
