"""The form in which a host keeps what manifests say: tables of its SQLite file, manifests into rows and back.

When they are read again is `documents`, what is asked of them `manifests`. Ten thousand sessions are some tens of
megabytes: tables and stages are numbers, digests bytes, what many sessions share stands once, and a file is named only
where its name is not the usual one.
"""

import json
import sqlite3
from collections.abc import Sequence
from typing import Any, Final

from aaco_pipeline.lake.layout import table_file
from aaco_pipeline.lake.manifest import Artifact, Entry, Manifest, StageState

SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS manifests (
    document INTEGER PRIMARY KEY, scope TEXT NOT NULL, id TEXT NOT NULL, state INTEGER NOT NULL, bytes INTEGER NOT NULL,
    artifacts TEXT NOT NULL, stated TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS states (
    number INTEGER PRIMARY KEY, expected TEXT NOT NULL, stages TEXT NOT NULL, UNIQUE (expected, stages));
CREATE TABLE IF NOT EXISTS entries (
    table_name INTEGER NOT NULL, document INTEGER NOT NULL, place INTEGER NOT NULL, stage INTEGER NOT NULL,
    file TEXT NOT NULL, rows INTEGER NOT NULL, bytes INTEGER NOT NULL, sha256 BLOB NOT NULL,
    contract_version INTEGER NOT NULL,
    PRIMARY KEY (table_name, document, place)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS entries_of_document ON entries (document);
CREATE TABLE IF NOT EXISTS remembered (
    id TEXT NOT NULL, kind TEXT NOT NULL, made_of TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (id, kind)
    ) WITHOUT ROWID;
"""
CONTENTS: Final = (
    "SELECT m.id, d.sha256 FROM manifests AS m JOIN documents AS d ON d.number = m.document WHERE m.scope = ?"
)
_ENTRY: Final = (
    "SELECT m.scope, m.id, n.name, s.name, e.file, e.rows, e.bytes, e.sha256, e.contract_version, e.document "
    "FROM entries AS e JOIN manifests AS m ON m.document = e.document "
    "LEFT JOIN names AS n ON n.number = e.table_name LEFT JOIN names AS s ON s.number = e.stage "
)
ENTRIES_OF_TABLE: Final = (
    f"{_ENTRY} WHERE e.table_name = (SELECT number FROM names WHERE name = ?) AND m.scope = ? "
    "ORDER BY m.id, e.document, e.place"
)
DIGESTS_OF_TABLE: Final = (
    "SELECT m.id, CASE typeof(e.sha256) WHEN 'blob' THEN hex(e.sha256) ELSE e.sha256 END FROM entries AS e "
    "JOIN manifests AS m ON m.document = e.document "
    "WHERE e.table_name = (SELECT number FROM names WHERE name = ?) AND m.scope = 'session' "
    "ORDER BY e.document, e.place"
)
FILES_OF_TABLES: Final = (
    "SELECT m.scope, m.id, n.name, s.name, e.file, e.sha256 FROM entries AS e "
    "JOIN manifests AS m ON m.document = e.document "
    "LEFT JOIN names AS n ON n.number = e.table_name LEFT JOIN names AS s ON s.number = e.stage "
    "WHERE e.sha256 != ''"
)
ROWS_OF_TABLES: Final = (
    "SELECT n.name, e.rows FROM (SELECT table_name, sum(rows) AS rows FROM entries GROUP BY table_name) AS e "
    "LEFT JOIN names AS n ON n.number = e.table_name"
)
STATES_OF_SESSIONS: Final = (
    "SELECT m.id, s.number FROM manifests AS m LEFT JOIN states AS s ON s.number = m.state "
    "WHERE m.scope = 'session' ORDER BY m.id"
)
COMMITTED: Final = "SELECT scope, id FROM manifests ORDER BY scope, id"
#: Stands for a file whose name is the usual one; no file of a lake is called so.
_USUAL: Final = "/"


def entries_of(documents: int) -> str:
    """The statement that asks for the entries of so many documents."""
    return f"{_ENTRY} WHERE e.document IN ({', '.join('?' * documents)}) ORDER BY e.document, e.place"


def forget(at: sqlite3.Connection, document: int) -> None:
    """Drop what is kept of a manifest."""
    at.execute("DELETE FROM entries WHERE document = ?", (document,))
    at.execute("DELETE FROM manifests WHERE document = ?", (document,))


def forget_unused(at: sqlite3.Connection) -> None:
    """Drop what was remembered of sessions without a manifest, and states that none is in."""
    at.execute("DELETE FROM remembered WHERE id NOT IN (SELECT id FROM manifests)")
    at.execute("DELETE FROM states WHERE number NOT IN (SELECT state FROM manifests)")


def keep(at: sqlite3.Connection, document: int, manifest: Manifest) -> None:
    """Put in what the manifest that is this document says.

    OverflowError or UnicodeEncodeError for numbers and texts that SQLite does not have.
    """
    stages = json.dumps(manifest.stages)
    expected = json.dumps(manifest.expected)
    at.execute("INSERT OR IGNORE INTO states (expected, stages) VALUES (?, ?)", (expected, stages))
    state = "(SELECT number FROM states WHERE expected = ? AND stages = ?)"
    at.execute(
        f"INSERT INTO manifests VALUES (?, ?, ?, {state}, ?, ?, ?)",
        (
            document,
            manifest.scope,
            manifest.id,
            expected,
            stages,
            sum(entry.bytes for entry in manifest.entries) + sum(file.bytes for file in manifest.artifacts),
            json.dumps(manifest.artifacts),
            json.dumps(manifest.stated),
        ),
    )
    at.executemany(
        "INSERT OR IGNORE INTO names (name) VALUES (?)",
        {(name,) for entry in manifest.entries for name in (entry.table, entry.stage)},
    )
    number_of = "(SELECT number FROM names WHERE name = ?)"
    at.executemany(
        f"INSERT INTO entries VALUES ({number_of}, ?, ?, {number_of}, ?, ?, ?, ?, ?)",
        ((one.table, document, place, one.stage, *_row(manifest, one)) for place, one in enumerate(manifest.entries)),
    )


def entry(row: Sequence[Any]) -> Entry:
    """A row of the statements about entries as the manifest states it."""
    scope, identifier, table, stage, file, rows, bytes_, digest, version, _ = row
    named = file_of((scope, identifier, table, stage, file, digest))
    return Entry(table, stage, named, rows, bytes_, digest_text(digest), version)


def file_of(row: Sequence[Any]) -> str:
    """The name in the lake of a file, from a row of `FILES_OF_TABLES`."""
    scope, identifier, table, stage, file, digest = row
    return table_file(table, scope, identifier, stage, digest_text(digest)) if file == _USUAL else file


def state(expected: str, stages: str) -> tuple[tuple[str, ...], tuple[StageState, ...]]:
    """The expected stages and those that have run, as they are kept in `states`."""
    return tuple(json.loads(expected)), tuple(StageState(*one) for one in json.loads(stages))


def artifacts(kept: str) -> tuple[Artifact, ...]:
    """The files beside the tables, as they are kept in `manifests`."""
    return tuple(Artifact(*one) for one in json.loads(kept))


def stated(kept: str) -> tuple[tuple[str, str], ...]:
    """What a person stated, as it is kept in `manifests`."""
    return tuple((name, text) for name, text in json.loads(kept))


def _row(manifest: Manifest, one: Entry) -> tuple[Any, ...]:
    """File, rows, bytes, digest and version of an entry; the file is `_USUAL` where its name is."""
    usual = table_file(one.table, manifest.scope, manifest.id, one.stage, one.sha256)
    return _USUAL if one.file == usual else one.file, one.rows, one.bytes, kept_digest(one.sha256), one.contract_version


def kept_digest(text: str) -> bytes | str:
    """A digest as it is kept: its bytes, unless it is none of SHA-256."""
    return bytes.fromhex(text) if len(text) == 64 and not set(text) - _HEXADECIMAL else text


def digest_text(kept: bytes | str) -> str:
    """The text of a digest as it is kept."""
    return kept.hex() if isinstance(kept, bytes) else kept


_HEXADECIMAL: Final = set("0123456789abcdef")
