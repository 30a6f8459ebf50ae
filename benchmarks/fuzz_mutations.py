"""How `fuzz_readers.py` damages files: bytes, ranges, splices, words of the format, numbers at bounds, SQLite cells.

What is damaged is `fuzz_seeds.py`. The same random number generator gives the same bytes.
"""

import gzip
import random
import re
import sqlite3
import tempfile
import zlib
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

_BOUNDS: Final = (
    *(b"0", b"-1", b"1", b"2147483648", b"9007199254740993", b"4611686018427387904", b"9223372036854775807"),
    *(b"9223372036854775808", b"-9223372036854775808", b"-9223372036854775809", b"18446744073709551615"),
    *(b"18446744073709551616", b"1e308", b"1e400", b"-1e400", b"1.5", b"1e-320", b"NaN", b"Infinity", b"0x10"),
    *(b"1" * 400, b"null", b"true", b"[]", b"{}", b'""', b'"a"', b"[[]]", b'{"a":1}', b"[1,2]", b'"\\ud800"'),
)
_RAW: Final = (
    *(b"\0", b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\xff\xfe", b"\xe2\x80\xae", b"\r\n", b"\n"),
    *(b'"', b"'", b",", b";", b":", b"[", b"]", b"{", b"}", b"\\", b"&a [*a,*a]", b"[" * 100, b'{"a":' * 100),
)
_LITERAL: Final = re.compile(rb'"[^"\n]{0,200}"|-?\d[\d.eE+-]*|true|false|null')
_WORD: Final = re.compile(rb'"[^"\n]{1,40}"|[A-Za-z_][A-Za-z0-9_ ]{2,40}')
_CHANGES: Final = (1, 1, 1, 1, 2, 4)
_SQLITE: Final = b"SQLite format 3\0"
_GZIP: Final = b"\x1f\x8b"
_SQL_VALUES: Final = (
    *(
        0,
        -1,
        2**63 - 1,
        -(2**63),
        2**31,
        1e308,
        float("inf"),
        0.5,
        None,
        "",
        "a",
        "1",
        "[1, 2",
        '{"a": 1}',
        b"",
        b"\xff",
    ),
    *("x" * 5000, "\0", "[" * 200, "9" * 30, b"\0" * 300),
)


def words(contents: Sequence[bytes]) -> list[bytes]:
    """The words that a format is made of, as its examples have them: names, keys and texts in quotes."""
    return sorted({found for content in contents for found in _WORD.findall(content)})[:2000]


def damaged(
    files: Mapping[str, bytes], others: Sequence[bytes], known: Sequence[bytes], chance: random.Random
) -> dict[str, bytes]:
    """The files with one or two of them changed, or, rarely, one left out."""
    changed = dict(files)
    for name in chance.sample(sorted(files), min(len(files), chance.choice((1, 1, 1, 2)))):
        content = changed[name]
        if len(files) > 1 and chance.random() < 0.02:
            del changed[name]
        elif content.startswith(_SQLITE) and chance.random() < 0.5:
            changed[name] = _other_cells(content, chance)
        elif content.startswith(_GZIP) and chance.random() < 0.8:  # damage within is rarer found than in the packing
            changed[name] = gzip.compress(_changed(gzip.decompress(content), others, known, chance), 1)
        else:
            changed[name] = _changed(content, others, known, chance)
    return changed


def _changed(content: bytes, others: Sequence[bytes], known: Sequence[bytes], chance: random.Random) -> bytes:
    data = bytearray(content)
    for _ in range(chance.choice(_CHANGES)):
        _change(data, others, known, chance)
    return bytes(data)


def _change(data: bytearray, others: Sequence[bytes], known: Sequence[bytes], chance: random.Random) -> None:
    at = chance.randrange(len(data) + 1)
    length = min(int(chance.expovariate(1 / 24)) + 1, 4096)
    match chance.randrange(12):
        case 0 if at < len(data):
            data[at] ^= 1 << chance.randrange(8)
        case 1 if at < len(data):
            data[at] = chance.randrange(256)
        case 2:
            del data[at : at + length]
        case 3:
            data[at:at] = data[at : at + length] * chance.choice((1, 1, 2, 50))
        case 4:
            data[at:at] = chance.choice((chance.randbytes(length), chance.choice(_RAW)))
        case 5:
            other = chance.choice(others)
            start = chance.randrange(len(other) + 1)
            data[at : at + length] = other[start : start + chance.choice((length, len(other)))]
        case 6 if chance.random() < 0.3:
            del data[at:]
        case 7:
            data[at : at + chance.choice((1, 2, 4, 8))] = chance.choice(
                (b"\xff" * 4, b"\x7f" + b"\xff" * 7, b"\xff" * 8, b"\0" * 8, b"\x80" * 10, b"\0\0\0\x80")
            )
        case 8 | 9 | 10 | 11 | 6:
            _replace_literal(data, at, known, chance)


def _replace_literal(data: bytearray, at: int, known: Sequence[bytes], chance: random.Random) -> None:
    """Another number, text or word of the format in place of the next one."""
    found = _LITERAL.search(data, at, min(len(data), at + 400))
    token = chance.choice(_BOUNDS) if not known or chance.random() < 0.7 else chance.choice(known)
    if found is not None:
        data[found.start() : found.end()] = token
    else:
        data[at:at] = token


def _other_cells(content: bytes, chance: random.Random) -> bytes:
    """A database with other values, rows, names or columns; as it was where SQLite refuses the change."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.db"
        path.write_bytes(content)
        with closing(sqlite3.connect(path, isolation_level=None)) as database:
            database.execute("PRAGMA journal_mode = OFF")
            database.execute("PRAGMA synchronous = OFF")
            names = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            for _ in range(chance.choice(_CHANGES)):
                with suppress(sqlite3.Error):
                    _change_table(database, chance.choice(names), chance)
        return path.read_bytes()


def _change_table(database: sqlite3.Connection, table: str, chance: random.Random) -> None:
    columns = [row[1] for row in database.execute(f'PRAGMA table_info("{table}")')] or ["id"]  # it may be gone
    column = chance.choice(columns)
    row = f'rowid IN (SELECT rowid FROM "{table}" ORDER BY rowid LIMIT 1 OFFSET {chance.randrange(6)})'
    match chance.randrange(10):
        case 0:
            database.execute(f'ALTER TABLE "{table}" RENAME COLUMN "{column}" TO "other"')
        case 1:
            database.execute(f'ALTER TABLE "{table}" DROP COLUMN "{column}"')
        case 2:
            database.execute(f'DROP TABLE "{table}"')
        case 3:
            database.execute(f'DELETE FROM "{table}" WHERE {row}')
        case 4:
            kept = ", ".join(f'"{name}"' for name in columns if name != "id")
            database.execute(f'INSERT INTO "{table}" ({kept}) SELECT {kept} FROM "{table}" WHERE {row}')
        case 5:
            database.execute(f'UPDATE "{table}" SET "{column}" = ?', (chance.choice(_SQL_VALUES),))
        case _:
            database.execute(f'UPDATE "{table}" SET "{column}" = ? WHERE {row}', (chance.choice(_SQL_VALUES),))


def unpacked(content: bytes) -> bytes:
    """The content, through gzip where it is packed."""
    try:
        return gzip.decompress(content) if content.startswith(_GZIP) else content
    except (OSError, EOFError, zlib.error):
        return content
