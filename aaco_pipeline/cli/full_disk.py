"""Recognizing an error that goes back to a disk without room, and what to say of it."""

import errno
from typing import Final

FULL_DISK: Final = "a disk is full or fails; make room where the lake is"
#: What SQLite says where it finds no room, the second of what its processes share.
_DISK_WORDS: Final = ("database or disk is full", "disk I/O error")


def is_of_a_full_disk(error: BaseException | None) -> bool:
    """Tell whether an error goes back to a disk without room, which SQLite says in words only."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        if any(words in str(error) for words in _DISK_WORDS):
            return True
        error = error.__cause__ or error.__context__
    return False
