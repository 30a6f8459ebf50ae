"""What a process does to itself so that it can do nothing but read a capture: limits, no network, no privileges.

Only calls of the kernel belong here; which files it may read is left to `landlock`, how much is allowed is `bounds`,
and who is confined when `reader_server` says. What the kernel refuses is returned in plain words and becomes evidence;
nothing fails for it.
"""

import ctypes
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Final

from aaco_pipeline.resources.confinement.requests import Bounds

_SET_PDEATHSIG: Final = 1
_SET_NO_NEW_PRIVS: Final = 38
_CLONE_NEWUSER: Final = 0x10000000
_CLONE_NEWNET: Final = 0x40000000
_MOST_FILES_OPEN: Final = 512
#: What a library may still load or ask for, where it is there.
_SYSTEM: Final = (
    *("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/share/zoneinfo"),
    *("/etc/ld.so.cache", "/etc/localtime", "/dev/null", "/dev/urandom"),
    # Where glibc finds the end of the stack. Unless Polars is told it, it maps a new stack for each step of a query,
    # and unmaps it again: three quarters more CPU time.
    "/proc/self/maps",
)

_libc: Final = ctypes.CDLL(None, use_errno=True)


def without_network() -> str | None:
    """Put this process into a network of its own, in which there is nothing. None, or why that could not be."""
    user, group = os.getuid(), os.getgid()
    if _libc.unshare(_CLONE_NEWNET) == 0:
        return None
    if _libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET) != 0:
        return f"no network namespace: {os.strerror(ctypes.get_errno())}"
    try:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            Path("/proc/self", name).write_text(text)
    except OSError:
        pass  # its files are still its user's; only the number that it is told differs
    return None


def without_privileges() -> None:
    """Never become more than this, whatever is run; leave no core behind."""
    _libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def end_with_parent(parent: int) -> None:
    """Be killed when the parent ends; end at once where it has."""
    _libc.prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)


def within(bounds: Bounds) -> None:
    """Take no more than the bounds, for good."""
    for what, most in (
        (resource.RLIMIT_DATA, bounds.memory_bytes),
        (resource.RLIMIT_CPU, bounds.cpu_seconds),
        (resource.RLIMIT_FSIZE, bounds.file_bytes),
        (resource.RLIMIT_NOFILE, _MOST_FILES_OPEN),
    ):
        hard = resource.getrlimit(what)[1]
        least = most if hard == resource.RLIM_INFINITY else min(most, hard)
        # A second between the limits on CPU time: SIGXCPU, which says what it is, and not SIGKILL.
        beyond = least + 1 if what == resource.RLIMIT_CPU and least != hard else least
        resource.setrlimit(what, (least, beyond))


def imported_from() -> list[Path]:
    """Where Python and what it has imported lie, and what they may still load."""
    installed = {Path(sys.prefix), Path(sys.base_prefix), Path(sys.exec_prefix)}
    places = {*installed, *map(Path, _SYSTEM)}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and "." not in name and not any(Path(file).is_relative_to(place) for place in installed):
            path = Path(file)
            places.add(path.parent if path.name.startswith("__init__.") else path)
    return sorted(place for place in places if place.exists())
