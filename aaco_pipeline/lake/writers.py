"""Whose file under construction it is: the names of temporaries, and whether the process that made one is gone.

Several hosts may share the disk of a lake, and several containers a host: a process is looked for only where it would
be seen.
"""

import hashlib
import os
import platform
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

#: Files under construction carry this prefix; a reader never opens one, and a leftover is a dead writer's.
TEMPORARY_PREFIX: Final = ".tmp-"
#: What another host, or a container with processes of its own, has not touched for so long is a dead writer's.
STALE_DAYS: Final = 7
_STALE_SECONDS: Final = STALE_DAYS * 86_400
_ID_DIGITS: Final = 8
#: Host, boot, process and chance; in names of earlier versions the first two are missing.
_NAME: Final = re.compile(r"\.tmp-(?:([0-9a-f]{8})-([0-9a-f]{8})-)?([0-9]+)-[0-9a-f]+")


def temporary_beside(path: Path) -> Path:
    """A fresh temporary name in the folder of `path`, so that the final rename stays on one file system."""
    parts = (_host(), _boot(), str(os.getpid()), secrets.token_hex(4))
    return path.with_name(TEMPORARY_PREFIX + "-".join(parts))


def writer_is_gone(temporary: Path) -> bool:
    """Whether nobody goes on writing to a temporary.

    A process of another host cannot be looked for; it is gone when nothing has changed for `STALE_DAYS`.
    """
    named = _NAME.fullmatch(temporary.name)
    if named is None:
        return True
    host, boot, process = named.groups()
    if host is None or (host, boot) == (_host(), _boot()):
        return not Path(f"/proc/{process}").is_dir()
    return host == _host() or time.time() - max(_changes(temporary), default=0.0) > _STALE_SECONDS


def _changes(path: Path) -> Iterator[float]:
    """When a file, or anything in a folder, changed last."""
    for one in (path, *path.rglob("*")):
        with suppress(FileNotFoundError):
            yield one.lstat().st_mtime


@cache
def _host() -> str:
    """By what processes that see each other know each other: the host, and the container where it has its own."""
    facts = [platform.node()]
    with suppress(OSError):
        facts.append(Path("/etc/machine-id").read_text("ascii"))
    with suppress(OSError):
        facts.append(str(Path("/proc/self/ns/pid").readlink()))
    return _short("\n".join(facts))


@cache
def _boot() -> str:
    try:
        return _short(Path("/proc/sys/kernel/random/boot_id").read_text("ascii"))
    except OSError:
        return _short("")


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_ID_DIGITS]
