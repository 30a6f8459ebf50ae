"""Hostile captures of one file: every format with links, devices and bombs; databases; JSON, CSV and series."""

import gzip
import os
import shutil
import sqlite3
import stat
import struct
import zipfile
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.reliability.hostile_parts import (
    DISPATCHES,
    HARMLESS,
    LONG,
    MIB,
    WITHOUT_END,
    Case,
    bomb_of,
    case_of,
    example_of,
    file_of_bytes,
    put_socket,
    run_sql,
)
from tests.formats.examples import EXAMPLES

_TIB: Final = 1 << 40

#: A decoded thread trace is a folder of many files, and this is one of them.
_READ_WITHOUT: Final = "the folder is read without that file, which evidence states"


def of_every_format() -> Iterator[Case]:
    for name in EXAMPLES:
        for what, change in _CHANGES.items():
            harmless = _READ_WITHOUT if name == "thread_trace" else HARMLESS.get(what)
            yield Case(f"{name}: {what}", partial(_changed, name=name, change=change), harmless)


def _changed(folder: Path, host: Path, *, name: str, change: Callable[[Path, Path], None]) -> Path:
    file = example_of(name, folder)
    change(file, host / name / file.relative_to(folder / "in"))
    return folder / "in"


def _link(file: Path, host: Path) -> None:
    file.unlink()
    file.symlink_to(host)


def _link_in_its_folder(file: Path, host: Path) -> None:
    """The folder of the file is a link to the host's."""
    shutil.rmtree(file.parent)
    file.parent.parent.mkdir(exist_ok=True)
    if file.parent.name == "in":
        file.parent.mkdir()
        (file.parent / "deeper").symlink_to(host.parent)
    else:
        file.parent.symlink_to(host.parent)


def _fifo(file: Path, host: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def _device(file: Path, host: Path) -> None:
    """/dev/zero under the file's name; for those who may not make one, a link to it."""
    file.unlink()
    try:
        os.mknod(file, 0o666 | stat.S_IFCHR, os.makedev(1, 5))
    except PermissionError:
        file.symlink_to("/dev/zero")


def _holes(file: Path, host: Path) -> None:
    os.truncate(file, _TIB)


def _half(file: Path, host: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def _empty(file: Path, host: Path) -> None:
    file.write_bytes(b"")


def _wrong_magic(file: Path, host: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(b"\x7fELF\x02\x01\x01\0" + content[8:])


def _packed(file: Path, host: Path) -> None:
    """Two gigabytes of what the format skips come out of the whole capture and two megabytes more."""
    filler = b" " if file.suffix == ".json" else b"\0" if file.suffix in (".db", ".rpd", ".sqlite", ".bin") else b"\n"
    file.with_name(f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()) + bomb_of(filler))
    file.unlink()


def _packed_in_place(file: Path, host: Path) -> None:
    """As `_packed`, under the name of the plain file."""
    _packed(file, host)
    file.with_name(f"{file.name}.gz").rename(file)


def _packed_twice(file: Path, host: Path) -> None:
    file.write_bytes(gzip.compress(gzip.compress(bomb_of(b"\0"))))


def _zipped(file: Path, host: Path) -> None:
    with zipfile.ZipFile(file.with_suffix(".zip"), "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("../../escaped", file.read_bytes())
    file.unlink()


_CHANGES: Final[dict[str, Callable[[Path, Path], None]]] = {
    "a link to a file of the host": _link,
    "in a folder that is a link to the host's": _link_in_its_folder,
    "a named pipe": _fifo,
    "a socket": put_socket,
    "a device without end": _device,
    "a terabyte of holes": _holes,
    "cut in half": _half,
    "empty": _empty,
    "the first bytes of a program": _wrong_magic,
    "two gigabytes packed into two megabytes": _packed,
    "a bomb under a plain name": _packed_in_place,
    "packed twice": _packed_twice,
    "in an archive": _zipped,
}


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


_DEEP: Final = 1_000_000


def of_documents() -> Iterator[Case]:
    for name in ("kineto", "rocprofv3_json", "ort_profile", "thread_trace"):
        for what, change in _DOCUMENT_CHANGES.items():
            yield case_of(f"{name}: {what}", partial(_document, name=name, change=change))
    for what, replaced, by in (
        ("records that are no list", '"kernel_dispatch": [', '"kernel_dispatch": 3, "other": ['),
        ("processes that are no list", '"rocprofiler-sdk-tool": [', '"rocprofiler-sdk-tool": 7, "other": ['),
        ("a time that is a list", '"start_timestamp": 10', '"start_timestamp": [10]'),
        ("a time that is no number", '"start_timestamp": 10', '"start_timestamp": NaN'),
        ("a time beyond 64 bits", '"start_timestamp": 10', f'"start_timestamp": {"9" * 400}'),
        ("an identifier beyond 64 bits", '"kernel_id": 1', f'"kernel_id": {1 << 80}'),
    ):
        yield case_of(f"rocprofv3_json: {what}", partial(_replaced, name="rocprofv3_json", replaced=replaced, by=by))
    for what, replaced, by in (
        ("a time that is no number", '"ts": 5', '"ts": NaN'),
        ("a time beyond 64 bits", '"ts": 5', '"ts": 1e400'),
        ("a duration that is a text", '"dur": 2', '"dur": "long"'),
        ("a grid that is no list", '"grid": [1, 1, 1]', '"grid": "huge"'),
        ("a stream beyond 64 bits", '"stream": 7', f'"stream": {1 << 90}'),
        ("events that are no list", '"traceEvents": [', '"traceEvents": 3, "others": ['),
    ):
        yield case_of(f"kineto: {what}", partial(_replaced, name="kineto", replaced=replaced, by=by))
    for what, replaced, by in (
        ("a time that is no number", '"ts": 11', '"ts": NaN'),
        ("a time that is a text", '"ts": 11', '"ts": "now"'),
        ("a duration beyond 64 bits", '"dur": 3', f'"dur": {1 << 70}'),
        ("a node number that is none", '"node_index": "0"', '"node_index": "-99999999999999999999"'),
    ):
        yield case_of(f"ort_profile: {what}", partial(_replaced, name="ort_profile", replaced=replaced, by=by))
    for what, replaced, by in (
        ("code that is no list", '"code": [', '"code": 3, "other": ['),
        ("an instruction that is an object", '["s_endpgm", 0', '[{"a": 1}, 0'),
        ("hits beyond 64 bits", "260, 1, 4", f"260, {1 << 80}, 4"),
        ("an address that is negative", "7, 260", "7, -260"),
        ("a row that is too short", ", 4, 0, 0]", "]"),
    ):
        yield case_of(f"thread_trace: {what}", partial(_replaced, name="thread_trace", replaced=replaced, by=by))


def _document(folder: Path, host: Path, *, name: str, change: Callable[[str], bytes]) -> Path:
    file = example_of(name, folder)
    file.write_bytes(change(file.read_text()))
    return folder / "in"


def _replaced(folder: Path, host: Path, *, name: str, replaced: str, by: str) -> Path:
    file = example_of(name, folder)
    content = file.read_text()
    assert replaced in content, (name, replaced)
    file.write_text(content.replace(replaced, by))
    return folder / "in"


def _nested(content: str, opening: str, closing_: str) -> bytes:
    """A value nested as deep as a stack may not be, at the place of the last number."""
    at = max(content.rfind(digit) for digit in "0123456789")
    return (content[:at] + opening * _DEEP + "1" + closing_ * _DEEP + content[at + 1 :]).encode()


_DOCUMENT_CHANGES: Final[dict[str, Callable[[str], bytes]]] = {
    "lists a million deep": lambda content: _nested(content, "[", "]"),
    "objects a million deep": lambda content: _nested(content, '{"a":', "}"),
    "opened and never closed": lambda content: content[:60].encode() + b"[" * _DEEP,
    "a text without end": lambda content: content.rstrip("]} \n").encode() + b', "' + b"a" * (80 * MIB),
    "a number of a hundred million digits": lambda content: _nested(content, "9" * 10, "").replace(
        b"9" * 100, b"9" * 1000
    ),
    "what comes after its end": lambda content: content.encode() + b'{"traceEvents": ['[:1] * 10,
    "bytes of no text": lambda content: content[:-9].encode() + b"\xff\xfe\xfd" + content[-9:].encode(),
}


def of_texts() -> Iterator[Case]:
    for name in ("rocprofv3_csv", "rocprof", "rocprof_compute"):
        for what, change in _TEXT_CHANGES.items():
            yield case_of(f"{name}: {what}", partial(_document, name=name, change=change))
        for what, value in (("no number", "NaN"), ("words", "yesterday"), ("a power", "1e400"), ("huge", "9" * 40)):
            replaced = {"old": ",100,200", "new": f",{value},{value}"}
            yield case_of(
                f"{name}: times are {what}", partial(_replaced, name=name, replaced=replaced["old"], by=replaced["new"])
            )


_TEXT_CHANGES: Final[dict[str, Callable[[str], bytes]]] = {
    "a million columns": lambda content: (
        content.splitlines()[0] + "," + ",".join(f"c{n}" for n in range(_DEEP)) + "\n" + content.splitlines()[1] + "\n"
    ).encode(),
    "a quote that is never closed": lambda content: content.encode() + b'"' + b"a,\n" * (20 * MIB),
    "a line of eighty megabytes": lambda content: content.encode() + b"9" * (80 * MIB) + b"\n",
    "a row that is too short": lambda content: content.encode() + b"KERNEL\n",
    "a row that is too long": lambda content: content.encode() + b"1," * 200 + b"1\n",
}


def of_metrics() -> Iterator[Case]:
    for what, content in (
        ("a size beyond the file", struct.pack("<HBB", 0xFFFF, 1, 8) + bytes(400)),
        ("a size of nothing", struct.pack("<HBB", 0, 1, 8) + bytes(400)),
        ("a version of the future", struct.pack("<HBB", 120, 1, 99) + bytes(116)),
        ("a version of no card", struct.pack("<HBB", 120, 99, 1) + bytes(116)),
        ("described values without end", struct.pack("<HBBI", 0xFFFF, 1, 9, 0xFFFFFFFF) + b"\xff" * 65528),
        ("described values of no kind", struct.pack("<HBBI", 64, 1, 9, 2) + b"\xff" * 56),
        ("nothing described", struct.pack("<HBBI", 8, 1, 9, 0)),
    ):
        yield case_of(f"gpu_metrics: {what}", partial(file_of_bytes, file="card0.bin", content=content))


def of_series() -> Iterator[Case]:
    answer = b'{"status":"success","data":{"resultType":"matrix","result":['
    line = b'{"metric":{"__name__":"rocm_sclk_clock_mhz","card":"0"},"values":'
    series = b"".join(b'rocm_sclk_clock_mhz{card="%d"} 1 1700000000000\n' % card for card in range(100_000))
    labels = b'rocm_sclk_clock_mhz{card="0",' + b",".join(b'a%d="b"' % at for at in range(LONG // 10)) + b"} 1\n"
    for what, file, content in (
        ("a hundred thousand devices", "scrape.prom", series),
        ("a million labels", "scrape.prom", labels + b'rocm_sclk_clock_mhz{card="x"} 1 1\n'),
        ("labels that never end", "scrape.prom", b'rocm_num_gpus 1\nrocm_sclk_clock_mhz{card="' + b'\\"' * LONG),
        ("a line of a hundred million bytes", "scrape.prom", b"rocm_num_gpus 1\n" + b"9" * (96 * MIB)),
        ("an answer nested without end", "answer.json", answer + b"[" * _DEEP),
        ("an answer of the wrong kinds", "answer.json", answer + b'{"metric":7,"values":{"a":1}}]}}'),
        ("values nested without end", "export.jsonl", line + b"[" * _DEEP + b"\n"),
        ("fewer times than values", "export.jsonl", line + b'[1,2,3],"timestamps":[1]}\n'),
        ("columns without rows", "omnistat.csv", b"metric" + b",rocm_sclk_clock_mhz" * 100_000 + b"\n"),
    ):
        yield case_of(f"prometheus: {what}", partial(file_of_bytes, file=file, content=content))
