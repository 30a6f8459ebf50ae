"""A SQLite file that this host keeps of one lake in the person's cache folder: made, found again, made anew, dropped.

What is in it say `manifest_rows` and `segment_rows`. It can be deleted at any time, and is never needed: where it
cannot be kept, there is one in memory. Every file made gets a name of its own, because SQLite's files beside a database
are found by name: one of a deleted cache must never be taken for the new one's.
"""

import hashlib
import os
import platform
import secrets
import shutil
import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import Final

from aaco_pipeline.cache_folder import own_folder

#: How long another process that writes is waited for.
BUSY_SECONDS: Final = 2.0
_LINK: Final = "lake"


def open_cache(lake: Path, schema: str, form: int) -> sqlite3.Connection:
    """The cache of `lake` that is there, else a new one, with the tables of `schema`; in memory where none can be kept.

    One of a later `form` is left alone. sqlite3.Error when what is there is damaged, or locked for long.
    """
    try:
        folder = _folder(lake)
        if folder is None:
            return cache_in_memory(schema)
        found = sorted(folder.glob(f"{form}-*.sqlite"))
        for older in found[:-1]:  # two processes had each made one
            _drop(older)
        if not found:
            _clear_away(folder, form)
        connection = _connected(found[-1] if found else folder / f"{form}-{secrets.token_hex(8)}.sqlite")
    except (OSError, sqlite3.OperationalError):
        return cache_in_memory(schema)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA cell_size_check = ON")  # damage is found where it is met
        _complete(connection, schema)
    except BaseException:
        connection.close()
        raise
    return connection


def cache_in_memory(schema: str, source: sqlite3.Connection | None = None) -> sqlite3.Connection:
    """A cache that ends with its connection, with what `source` holds if that can be read."""
    made = sqlite3.connect(":memory:", isolation_level=None)
    if source is not None:
        try:
            source.rollback()
            source.execute("BEGIN")
            source.execute("SELECT count(*) FROM documents").fetchone()  # holds this state while it is copied
            source.backup(made)
        except sqlite3.Error:
            made.close()
            return cache_in_memory(schema)
    _complete(made, schema)
    return made


def drop_cache(lake: Path, form: int) -> None:
    """Delete the cache of `lake`; for whoever has it open it goes on."""
    with suppress(OSError):
        folder = _folder(lake)
        for file in () if folder is None else sorted(folder.glob(f"{form}-*.sqlite")):
            _drop(file)


def is_damaged(error: sqlite3.Error) -> bool:
    """Whether an error says that a file is not what was kept, and not that it is locked, full or out of reach."""
    damage = (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_SCHEMA)
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF in damage


def _complete(connection: sqlite3.Connection, schema: str) -> None:
    """Give a database its tables, unless it has them: all at once."""
    if connection.execute("PRAGMA user_version").fetchone() == (0,):
        connection.executescript(f"BEGIN IMMEDIATE; {schema} PRAGMA user_version = 1; COMMIT;")


def _connected(file: Path) -> sqlite3.Connection:
    return sqlite3.connect(file, timeout=BUSY_SECONDS, isolation_level=None)


def _folder(lake: Path) -> Path | None:
    """The folder of a lake's cache, this host's and this person's own: homes are shared by hosts, SQLite's files not.

    A link in it leads to the lake.
    """
    whole = os.path.realpath(lake)
    folder = own_folder(f"lakes/{_host()}-{hashlib.sha256(os.fsencode(whole)).hexdigest()[:32]}")
    if folder is None or any(map(_is_anothers, folder.iterdir())):
        return None
    if not (folder / _LINK).is_symlink():
        with suppress(FileExistsError):
            (folder / _LINK).symlink_to(whole)
    return folder


def _is_anothers(file: Path) -> bool:
    """Whether another user put a file there, while others could."""
    try:
        return file.lstat().st_uid != os.geteuid()
    except FileNotFoundError:  # SQLite deletes what lies beside a database when nobody has it open
        return False


def _drop(file: Path) -> None:
    for name in (file, *(file.with_name(f"{file.name}-{end}") for end in ("wal", "shm", "journal"))):
        name.unlink(missing_ok=True)


def _clear_away(folder: Path, form: int) -> None:
    """Delete what earlier forms left in a folder, and this host's caches of lakes that are no more."""
    for file in folder.glob("*-*.sqlite"):
        if int(file.name.partition("-")[0]) < form:
            _drop(file)
    for other in folder.parent.glob(f"{_host()}-*"):
        if (other / _LINK).is_symlink() and not (other / _LINK).exists():
            shutil.rmtree(other, ignore_errors=True)


def _host() -> str:
    facts = [platform.node()]
    with suppress(OSError):
        facts.append(Path("/etc/machine-id").read_text("ascii"))
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:8]
