"""Landlock: leaves this process the files beneath some paths, and no way to others.

The standard library alone, and nothing of this package: a compiler's process runs this file by its path.
"""

import ctypes
import os
import stat
import struct
from collections.abc import Iterable
from typing import Final

_Path = str | os.PathLike[str]
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_RULE_PATH_BENEATH: Final = 1
_VERSION: Final = 1
#: Rights of Landlock's first version, and those that later ones added, by version.
_FIRST_RIGHTS: Final = (1 << 13) - 1
_LATER_RIGHTS: Final = {2: 1 << 13, 3: 1 << 14, 5: 1 << 15}
_NETWORK_SINCE, _SCOPES_SINCE = 4, 6
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REMOVE_DIR, _REMOVE_FILE, _MAKE_DIR, _MAKE_REG, _TRUNCATE = 1 << 4, 1 << 5, 1 << 7, 1 << 8, 1 << 14
_READ: Final = _READ_FILE | _READ_DIR
_WRITE: Final = _READ | _WRITE_FILE | _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG | _TRUNCATE
_OF_FILES: Final = _EXECUTE | _READ_FILE | _WRITE_FILE | _TRUNCATE

_libc: Final = ctypes.CDLL(None, use_errno=True)


def lacking() -> str | None:
    """The reason that this kernel has no Landlock; None where it has."""
    return _version_or_reason()[1]


def only_beneath(readable: Iterable[_Path], writable: Iterable[_Path], runnable: Iterable[_Path] = ()) -> str | None:
    """Leave this process the files beneath these paths; what is `runnable` is readable, too.

    None, or why that could not be. The process may gain no privileges any more.
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
        return  # what is not there needs no permission
    try:
        if not stat.S_ISDIR(os.fstat(place).st_mode):
            rights &= _OF_FILES
        rule = struct.pack("=Qi", rights, place)
        _libc.syscall(_ADD_RULE, ruleset, _RULE_PATH_BENEATH, rule, 0)
    finally:
        os.close(place)
