"""The form in which a host keeps what segments' lists say: tables of its SQLite file, lists into rows, parts back.

When they are read again and what is asked of them is `aaco_pipeline.lake.catalogue.segments`. A part is found by the
segment and whose it is; owners and stages are numbers, digests bytes.
"""

import json
import sqlite3
from datetime import datetime
from itertools import accumulate
from typing import Any, Final
from zlib import crc32

from aaco_pipeline.lake.catalogue.manifest_rows import digest_text, kept_digest
from aaco_pipeline.lake.segments.format import Held, PartKey, RowGroup, Segment, SegmentList

SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS segments (
    document INTEGER PRIMARY KEY, table_name TEXT NOT NULL, name TEXT NOT NULL, made TEXT NOT NULL,
    table_version INTEGER NOT NULL, parts INTEGER NOT NULL, row_groups TEXT NOT NULL, footer TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS segments_of_table ON segments (table_name);
CREATE TABLE IF NOT EXISTS parts (
    document INTEGER NOT NULL, owner INTEGER NOT NULL, place INTEGER NOT NULL, stage INTEGER NOT NULL,
    sha256 BLOB NOT NULL, first_row INTEGER NOT NULL, rows INTEGER NOT NULL,
    checksum INTEGER NOT NULL, PRIMARY KEY (document, owner, place)) WITHOUT ROWID;
"""
#: Of the lists that are kept of a folder, whose names come after one text and before another.
SEGMENTS_OF_FOLDER: Final = (
    "SELECT s.table_name, s.name, s.made, s.table_version, s.parts, s.row_groups, s.footer FROM documents AS d "
    "LEFT JOIN segments AS s ON s.document = d.number WHERE d.name > ? AND d.name < ?"
)
_PARTS: Final = (
    "SELECT o.name, s.name, p.sha256, p.place, p.first_row, p.rows, p.checksum FROM parts AS p "
    "LEFT JOIN names AS o ON o.number = p.owner LEFT JOIN names AS s ON s.number = p.stage "
    "WHERE p.document = (SELECT document FROM segments WHERE table_name = ? AND name = ?)"
)


def parts_of(owners: int) -> str:
    """The statement that asks for the parts of one of a table's segments: those of so many owners, of 0 all.

    It names the segment, which another state of the cache has by another number.
    """
    named = "" if owners == 0 else f" AND o.name IN ({', '.join('?' * owners)})"
    return f"{_PARTS}{named} ORDER BY p.place"


def forget(at: sqlite3.Connection, document: int) -> None:
    """Drop what is kept of a list."""
    at.execute("DELETE FROM parts WHERE document = ?", (document,))
    at.execute("DELETE FROM segments WHERE document = ?", (document,))


def keep(at: sqlite3.Connection, document: int, one: SegmentList) -> None:
    """Put in what the list that is this document says.

    OverflowError or UnicodeEncodeError for numbers and texts that SQLite does not have.
    """
    segment = one.segment
    at.execute(
        "INSERT INTO segments VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            document,
            segment.table,
            segment.name,
            segment.made.isoformat(),
            segment.table_version,
            segment.parts,
            json.dumps(segment.row_groups),
            json.dumps(segment.footer),
        ),
    )
    owners, stages, digests, rows = (one.columns[name] for name in ("id", "stage", "sha256", "rows"))
    named = {*owners, *stages}
    at.executemany("INSERT OR IGNORE INTO names (name) VALUES (?)", ((name,) for name in named))
    at.executemany(
        "INSERT INTO parts VALUES "
        "(?, (SELECT number FROM names WHERE name = ?), ?, (SELECT number FROM names WHERE name = ?), ?, ?, ?, ?)",
        (
            (
                document,
                owner,
                place,
                stage,
                digest,
                first_row,
                count,
                _checksum((owner, stage, digest, place, first_row, count)),
            )
            for place, (owner, stage, digest, first_row, count) in enumerate(
                zip(owners, stages, map(kept_digest, digests), accumulate(rows, initial=0), rows, strict=False)
            )
        ),
    )


def segment(row: tuple[Any, ...]) -> Segment:
    """A row of the statement about segments as its list states it."""
    table, name, made, table_version, parts, row_groups, footer = row
    groups = tuple(map(RowGroup._make, json.loads(row_groups)))
    return Segment(
        table, name, datetime.fromisoformat(made), table_version, parts, groups, RowGroup._make(json.loads(footer))
    )


def held(of: Segment, row: tuple[Any, ...]) -> tuple[PartKey, Held]:
    """A row of the statement about parts: what names the part, and where it lies.

    ValueError when it is not the row that was kept: another part's rows would be read as this one's.
    """
    *values, checksum = row
    if _checksum(tuple(values)) != checksum:
        raise ValueError("a part is not what was kept")
    owner, stage, digest, place, first_row, rows = values
    return (owner, stage, digest_text(digest)), Held(of, place, first_row, rows)


def _checksum(values: tuple[Any, ...]) -> int:
    return crc32(repr(values).encode())
