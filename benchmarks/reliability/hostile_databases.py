"""Hostile databases: triggers, views and schemas that run, lie or never end."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.reliability.hostile_parts import DISPATCHES, WITHOUT_END, Case, case_of, example_of, run_sql

_AS_VIEW: Final = (f"ALTER TABLE {DISPATCHES} RENAME TO hidden", "CREATE VIEW {table} AS {select}")

_SCHEMA: Final = "PRAGMA writable_schema = ON"


def of_databases() -> Iterator[Case]:
    columns = "id, pid, tid, agent_id, kernel_id, dispatch_id, start, end"
    views = {
        "a view without end": f"{WITHOUT_END} {', '.join(f'x AS {one}' for one in columns.split(', '))} FROM n",
        "a view of itself": f"SELECT * FROM {DISPATCHES}",
        "a view of ten joins": f"SELECT a.* FROM hidden a {' '.join(f', hidden h{n}' for n in range(10))}",
        "a view that makes gigabytes": "SELECT id, pid, tid, agent_id, kernel_id, dispatch_id, start, "
        "zeroblob(1000000000) AS end FROM hidden",
        "a view that reads a file": "SELECT *, readfile('/etc/passwd') AS start2 FROM hidden",
    }
    for name, select in views.items():
        statements = (_AS_VIEW[0], _AS_VIEW[1].format(table=DISPATCHES, select=select))
        yield _database(f"dispatches are {name}", *statements)
    generated = f"id INTEGER PRIMARY KEY, {columns.removeprefix('id, ').removesuffix(', end')}"
    for kind in ("VIRTUAL", "STORED"):
        yield _database(
            f"a {kind.lower()} generated column of 500 MB",
            f"DROP TABLE {DISPATCHES}",
            f"CREATE TABLE {DISPATCHES} ({generated}, end AS (length(zeroblob(500000000))) {kind})",
            f"INSERT INTO {DISPATCHES} (id, start) VALUES (1, 5), (2, 6)",
        )
    yield _database(
        "a virtual table for dispatches",
        f"DROP TABLE {DISPATCHES}",
        f"CREATE VIRTUAL TABLE {DISPATCHES} USING fts5({columns.removeprefix('id, ').replace('end', 'ended')})",
    )
    yield _database(
        "the text of its schema is a program",
        _SCHEMA,
        f"UPDATE sqlite_master SET sql = 'CREATE TABLE {DISPATCHES} (id, start, end CHECK (load_extension(0)))' "
        f"WHERE name = '{DISPATCHES}'",
    )
    yield _database(
        "the text of its schema is no SQL", _SCHEMA, "UPDATE sqlite_master SET sql = 'CREATE TABLE \x1b[2J (('"
    )
    yield _database(
        "two tables of the same pages",
        _SCHEMA,
        "UPDATE sqlite_master SET rootpage = (SELECT min(rootpage) FROM sqlite_master)",
    )
    yield _database("a table beyond its pages", _SCHEMA, "UPDATE sqlite_master SET rootpage = 2147483647")
    yield _database("a table on the page of its schema", _SCHEMA, "UPDATE sqlite_master SET rootpage = 1")
    yield _database("no table but a name", f"DROP TABLE {DISPATCHES}")
    yield _database("times are texts", f"UPDATE {DISPATCHES} SET start = 'soon', end = 'later'")
    yield _database("times are binary", f"UPDATE {DISPATCHES} SET start = x'00ff', end = x'ff00'")
    yield _database("times are infinite", f"UPDATE {DISPATCHES} SET start = -9e999, end = 9e999")
    yield _database("times are fractions beyond 64 bits", f"UPDATE {DISPATCHES} SET start = 1e300, end = 2e300")
    yield _database(
        "times are at both ends of 64 bits",
        f"UPDATE {DISPATCHES} SET start = -9223372036854775807 - 1, end = 9223372036854775807",
    )
    yield case_of("rocpd: more tables than a profiler makes", partial(_many_tables, count=10_001))
    yield case_of("rocpd: more columns than a profiler makes", partial(_many_columns, count=1_990))
    for what, at, value in (
        ("pages of no size", 16, b"\0\0"),
        ("pages of another size", 16, b"\x02\0"),
        ("a page count without end", 28, b"\xff\xff\xff\xff"),
        ("a list of free pages without end", 32, b"\0\0\0\x01\xff\xff\xff\xff"),
        ("a format of the future", 18, b"\xff\xff"),
        ("a write-ahead log that is not there", 18, b"\x02\x02"),
        ("a schema of the future", 44, b"\0\0\0\xff"),
        ("a page that is its own child", 100, b"\x05" + b"\0\0\0\0\x01\0\0\0\0\0\0\x01" + b"\0" * 8),
        ("cells that overlap", 108, b"\0\x64" * 4),
        ("a payload of gigabytes", 4096 - 64, b"\x8f\xff\xff\xff\x7f" * 12),
    ):
        yield case_of(f"rocpd: {what}", partial(_patched, at=at, value=value))
    for ending, words in (("-wal", "a write-ahead log"), ("-journal", "a hot journal")):
        yield case_of(f"rocpd: {words} beside it", partial(_beside, ending=ending))


def _database(what: str, *statements: str) -> Case:
    def make(folder: Path, host: Path) -> Path:
        run_sql(example_of("rocpd", folder), *statements)
        return folder / "in"

    return case_of(f"rocpd: {what}", make)


def _many_tables(folder: Path, host: Path, *, count: int) -> Path:
    file = example_of("rocpd", folder)
    with closing(sqlite3.connect(file)) as database:
        for number in range(count):
            database.execute(f"CREATE TABLE rocpd_kernel_dispatch_x{number} (a)")
        database.commit()
    return folder / "in"


def _many_columns(folder: Path, host: Path, *, count: int) -> Path:
    """Columns enough that SQLite's own limit is met when another statement names them twice."""
    wide = ", ".join(f"c{number} TEXT" for number in range(count))
    run_sql(example_of("rocpd", folder), f"DROP TABLE {DISPATCHES}", f"CREATE TABLE {DISPATCHES} ({wide})")
    return folder / "in"


def _patched(folder: Path, host: Path, *, at: int, value: bytes) -> Path:
    file = example_of("rocpd", folder)
    with file.open("r+b") as stream:
        stream.seek(at)
        stream.write(value)
    return folder / "in"


def _beside(folder: Path, host: Path, *, ending: str) -> Path:
    file = example_of("rocpd", folder)
    magic = b"\x37\x7f\x06\x82" if ending == "-wal" else b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7"
    file.with_name(file.name + ending).write_bytes(magic + bytes(4096))
    return file
