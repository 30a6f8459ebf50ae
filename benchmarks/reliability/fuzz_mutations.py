"""Damage for `fuzz_readers.py`: bytes, ranges, splices, words, bounds, JSON values, cells."""

import copy
import gzip
import json
import random
import re
import sqlite3
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

import onnx
from google.protobuf.message import DecodeError, Message  # type: ignore[import-untyped]

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
_TEXTS: Final = (
    *("", "a", "\0", "\x1b[2J", "\u202e", "../../x", "/etc/passwd", "1", "-1", "1e400", "NaN", "%s", "9" * 40),
    *("x" * 5000, "[" * 200, "batch", "\ufeff", "é" * 300, "a\nb", "0x7fffffffffffffff", "<unknown>", "1,2,3", "None"),
)
_NUMBERS: Final = (0, 1, -1, 2, 7, 255, 65536, 2**31 - 1, -(2**31), 2**53 + 1, 2**62, 2**63 - 1, -(2**63))
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
    """The words of a format, as its examples have them: names, keys and texts in quotes."""
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
            changed[name] = gzip.compress(_inside(name, gzip.decompress(content), others, known, chance), 1)
        else:
            changed[name] = _inside(name, content, others, known, chance)
    return changed


def _inside(name: str, content: bytes, others: Sequence[bytes], known: Sequence[bytes], chance: random.Random) -> bytes:
    """The content with other values where it is a document or a model, in half of the cases; else with other bytes."""
    if chance.random() < 0.5:
        if name.endswith(".onnx"):
            return _other_fields(content, chance)
        if content[:1] in b"[{":
            return _other_values(content, others, chance)
    return _changed(content, others, known, chance)


def _other_values(content: bytes, others: Sequence[bytes], chance: random.Random) -> bytes:
    """A JSON document with a few values, keys or elements lost, repeated, exchanged, or of another kind."""
    try:
        document = json.loads(content)
    except ValueError:
        return content
    for _ in range(chance.choice(_CHANGES)):
        places = list(_places(document))
        if not places:
            break
        with suppress(OverflowError):
            _change_value(*chance.choice(places), places, chance)
    return _dumped(document)


def _change_value(holder: Any, key: Any, places: Sequence[tuple[Any, Any]], chance: random.Random) -> None:
    value = holder[key]
    match chance.randrange(8):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, list):
            holder[key:key] = [copy.deepcopy(value)] * chance.choice((1, 2, 50))
        case 2:
            other, inner = chance.choice(places)
            holder[key] = copy.deepcopy(other[inner])
        case 3 if isinstance(holder, dict):
            del holder[key]
            holder[chance.choice([*sorted(holder), "other"])] = value
        case 4 if type(value) is str:
            holder[key] = chance.choice(_TEXTS) + value[chance.randrange(len(value) + 1) :]
        case 5 if isinstance(value, int | float):
            holder[key] = chance.choice((-1, 0, 1, 2, 0.5)) * value + chance.choice((-1, 0, 1))
        case _:
            holder[key] = _Raw(chance.choice(_BOUNDS).decode())


class _Raw(str):
    """JSON's own text of a value, which Python's numbers may not be able to hold."""


def _dumped(document: Any) -> bytes:
    """The document as JSON, with what is raw as it stands."""
    raw: list[str] = []

    def marked(value: Any) -> Any:
        if isinstance(value, _Raw):
            raw.append(value)
            return f"\x02{len(raw) - 1}\x03"
        if isinstance(value, dict):
            return {key: marked(one) for key, one in value.items()}
        return [marked(one) for one in value] if isinstance(value, list) else value

    text = json.dumps(marked(document))
    return re.sub(r'"\\u0002(\d+)\\u0003"', lambda found: raw[int(found[1])], text).encode()


def _places(document: Any) -> Iterator[tuple[Any, Any]]:
    """Every place in a document: what holds it, and its key or number there."""
    inner = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in list(inner):
        yield document, key
        if isinstance(value, dict | list):
            yield from _places(value)


def _other_fields(content: bytes, chance: random.Random) -> bytes:
    """A model with a few fields of its messages lost, repeated, or of other values."""
    model = onnx.ModelProto()
    try:
        model.ParseFromString(content)
    except DecodeError:
        return content
    for _ in range(chance.choice(_CHANGES)):
        message = chance.choice(list(_messages(model)))
        fields = [field.name for field, _ in message.ListFields()]
        if not fields:
            continue
        with suppress(TypeError, ValueError, AttributeError, UnicodeError):
            _change_field(message, chance.choice(fields), chance)
    return bytes(model.SerializeToString())


def _change_field(message: Message, name: str, chance: random.Random) -> None:
    value = getattr(message, name)
    action = chance.randrange(6)
    if action == 0:
        message.ClearField(name)
    elif isinstance(value, Message):
        value.CopyFrom(chance.choice([one for one in _messages(value) if type(one) is type(value)]))
    elif isinstance(value, str | bytes):
        text = chance.choice(_TEXTS)
        setattr(message, name, text if isinstance(value, str) else text.encode())
    elif isinstance(value, int | float):
        setattr(message, name, type(value)(chance.choice(_NUMBERS)))
    elif action == 1:
        del value[chance.randrange(len(value))]
    elif action == 2:
        value.extend([value[chance.randrange(len(value))]] * chance.choice((1, 2, 200)))
    elif not isinstance(value[0], Message):
        at = chance.randrange(len(value))
        if isinstance(value[0], str | bytes):
            text = chance.choice(_TEXTS)
            value[at] = text if isinstance(value[0], str) else text.encode()
        else:
            value[at] = type(value[0])(chance.choice(_NUMBERS))


def _messages(message: Message) -> Iterator[Message]:
    """A message and all that it holds."""
    yield message
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            for one in [value] if isinstance(value, Message) else value:
                yield from _messages(one)


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
