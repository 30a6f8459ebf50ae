"""Confine this process with kernel features: limits, no network, no privileges, and few files (Landlock).

Uses only the standard library and nothing of this package: a compiler's process runs this file by its path. If the
kernel refuses a step, the reason is returned in plain words and recorded; nothing fails. `reader_server`, the
emulator's driver and `toolchains.confined` decide which process is confined, and when.
"""

import ctypes
import os
import resource
import signal
import stat
import struct
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

_Path = str | os.PathLike[str]
_SET_PDEATHSIG: Final = 1
_SET_NO_NEW_PRIVS: Final = 38
_CLONE_NEWUSER: Final = 0x10000000
_CLONE_NEWNET: Final = 0x40000000
MOST_FILES_OPEN: Final = 512
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_RULE_PATH_BENEATH: Final = 1
_VERSION: Final = 1
#: Rights of Landlock's first version, and rights added by later versions.
_FIRST_RIGHTS: Final = (1 << 13) - 1
_LATER_RIGHTS: Final = {2: 1 << 13, 3: 1 << 14, 5: 1 << 15}
_NETWORK_SINCE, _SCOPES_SINCE = 4, 6
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REMOVE_DIR, _REMOVE_FILE, _MAKE_DIR, _MAKE_REG, _TRUNCATE = 1 << 4, 1 << 5, 1 << 7, 1 << 8, 1 << 14
_READ: Final = _READ_FILE | _READ_DIR
_WRITE: Final = _READ | _WRITE_FILE | _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG | _TRUNCATE
_OF_FILES: Final = _EXECUTE | _READ_FILE | _WRITE_FILE | _TRUNCATE
#: Files that a library may still load or query, if they exist.
_SYSTEM: Final = (
    *("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/share/zoneinfo"),
    *("/etc/ld.so.cache", "/etc/localtime", "/dev/null", "/dev/urandom"),
    # glibc finds the end of the stack here. Without it, Polars maps a new stack for each step of a query, which takes
    # three quarters more CPU time.
    "/proc/self/maps",
)

_libc: Final = ctypes.CDLL(None, use_errno=True)


def without_network() -> str | None:
    """Move this process into an empty network namespace. Returns None, or the reason why that failed."""
    user, group = os.getuid(), os.getgid()
    if _libc.unshare(_CLONE_NEWNET) == 0:
        return None
    if _libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET) != 0:
        return f"no network namespace: {os.strerror(ctypes.get_errno())}"
    try:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            Path("/proc/self", name).write_text(text)
    except OSError:
        pass  # its files still belong to its user; only the user id that it sees differs
    return None


def without_privileges() -> None:
    """Gain no privileges from now on, whatever is executed; write no core dump."""
    _libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def end_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends; exit at once if it has already ended."""
    _libc.prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)


def within(limits: Mapping[int, int]) -> None:
    """Set these limits permanently, by their number in `resource`."""
    for what, most in limits.items():
        hard = resource.getrlimit(what)[1]
        least = most if hard == resource.RLIM_INFINITY else min(most, hard)
        # One second between the two CPU limits: SIGXCPU, which names the cause, comes before SIGKILL.
        beyond = least + 1 if what == resource.RLIMIT_CPU and least != hard else least
        resource.setrlimit(what, (least, beyond))


def imported_from() -> list[Path]:
    """Return the paths of Python, of the imported modules, and of files that they may still load."""
    installed = {Path(sys.prefix), Path(sys.base_prefix), Path(sys.exec_prefix)}
    places = {*installed, *map(Path, _SYSTEM)}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and "." not in name and not any(Path(file).is_relative_to(place) for place in installed):
            path = Path(file)
            places.add(path.parent if path.name.startswith("__init__.") else path)
    return sorted(place for place in places if place.exists())


def why_no_landlock() -> str | None:
    """Return the reason why this kernel has no Landlock; None if it has."""
    return _version_or_reason()[1]


def only_beneath(readable: Iterable[_Path], writable: Iterable[_Path], runnable: Iterable[_Path] = ()) -> str | None:
    """Restrict this process to the files below these paths (Landlock); `runnable` paths are readable, too.

    Returns None, or the reason why that failed. Call `without_privileges` first.
    """
    version, reason = _version_or_reason()
    if reason is not None:
        return reason
    rights = _FIRST_RIGHTS | sum(right for since, right in _LATER_RIGHTS.items() if version >= since)
    attributes = struct.pack(
        "=QQQ", rights, 0b11 if version >= _NETWORK_SINCE else 0, 0b11 if version >= _SCOPES_SINCE else 0
    )
    size = 24 if version >= _SCOPES_SINCE else 16 if version >= _NETWORK_SINCE else 8
    ruleset = _libc.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(size), 0)
    if ruleset < 0:
        return f"no Landlock: {os.strerror(ctypes.get_errno())}"
    try:
        for paths, allowed in ((readable, _READ), (writable, _WRITE), (runnable, _READ | _EXECUTE)):
            for path in paths:
                _allow(ruleset, path, allowed & rights)
        if _libc.syscall(_RESTRICT_SELF, ruleset, 0) != 0:
            return f"no Landlock: {os.strerror(ctypes.get_errno())}"
    finally:
        os.close(ruleset)
    return None


def _version_or_reason() -> tuple[int, str | None]:
    version = _libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION)
    if version >= 1:
        return version, None
    return 0, f"no Landlock: {os.strerror(ctypes.get_errno())}; it needs Linux 5.13 with Landlock switched on"


def _allow(ruleset: int, path: _Path, rights: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # missing paths need no permission
    try:
        if not stat.S_ISDIR(os.fstat(place).st_mode):
            rights &= _OF_FILES
        rule = struct.pack("=Qi", rights, place)
        _libc.syscall(_ADD_RULE, ruleset, _RULE_PATH_BENEATH, rule, 0)
    finally:
        os.close(place)
