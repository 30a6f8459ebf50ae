"""The hostile captures of `hostile_captures.py`, made here: what a stranger would hand over to hurt who takes it in.

A maker fills an empty folder and gives the path to ingest. `host` is a folder beside it that stands for the rest of the
machine: whole captures whose every name is a marker, which must never get into the lake.
"""

import gzip
import json
import os
import shutil
import socket
import sqlite3
import stat
import struct
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

from tests.formats.examples import EXAMPLES

#: Stands in every file of the host; found in a lake, a capture has brought it there.
MARKER: Final = "host_file_marker_5f1c"
MIB: Final = 1 << 20
_LONG: Final = 10_000_000
_DEEP: Final = 1_000_000
_TIB: Final = 1 << 40

Maker = Callable[[Path, Path], Path]


@dataclass(frozen=True)
class Case:
    """A hostile capture: its name, how it is made, and, where it may be taken all the same, why that is harmless."""

    name: str
    make: Maker
    harmless: str | None = None


def cases() -> list[Case]:
    """All of them, in one order."""
    found = [
        *_of_every_format(),
        *_of_databases(),
        *_of_documents(),
        *_of_texts(),
        *_of_metrics(),
        *_of_series(),
        *_of_folders(),
        *_taken(),
    ]
    assert len({one.name for one in found}) == len(found)
    return found


_LEFT_OUT: Final = "the row is left out, and counted as such in evidence"
#: A decoded thread trace is a folder of many files, and this is one of them.
_READ_WITHOUT: Final = "the folder is read without that file, which evidence states"
#: What may be taken all the same, by the end of the case's name, and why that is harmless.
_HARMLESS: Final = {
    "cut in half": "it is read up to the cut, which evidence states",
    "a quote that is never closed": _LEFT_OUT,
    "a row that is too short": _LEFT_OUT,
    "times are no number": _LEFT_OUT,
    "times are words": _LEFT_OUT,
    "times are a power": _LEFT_OUT,
    "times are huge": _LEFT_OUT,
    "opened and never closed": "it is read up to where it breaks off, which evidence states",
    "a number of a hundred million digits": "the number is null",
    "what comes after its end": "what comes after its end is not read",
    "bytes of no text": "they are shown as what they are, replaced",
    "a time that is no number": "the event is left out, and counted as such in evidence",
    "a time beyond 64 bits": "the event is left out, and counted as such in evidence",
    "a duration that is a text": "the event is left out, and counted as such in evidence",
    "a grid that is no list": "the grid is null",
    "a node number that is none": "the node has no number",
    "records that are no list": "there are none, which evidence states",
    "a stream beyond 64 bits": "the stream is one without a number",
    "the text of its schema is a program": "the copy has tables and columns, and no checks",
    "more columns than a profiler makes": "as many as SQLite can hold, and no rows in them",
    "a list of free pages without end": "free pages are not read",
    "a write-ahead log that is not there": "nothing is in it",
}


def _case(name: str, make: Maker) -> Case:
    return Case(name, make, _HARMLESS.get(name.partition(": ")[2]))


#: How the marker comes into a database.
_MARKED: Final = {
    "rocpd": f"INSERT INTO rocpd_metadata_1 VALUES ('command', '{MARKER}')",
    "nsys": f"UPDATE StringIds SET value = '{MARKER}'",
    "rocprof_db": f"UPDATE OPS SET Name = '{MARKER}'",
    "rpd": f"UPDATE rocpd_string SET string = '{MARKER}'",
}


def fill_host(host: Path) -> None:
    """A whole capture of each format in the host's folder, with the marker for a name."""
    for name, make in EXAMPLES.items():
        (host / name).mkdir(parents=True)
        make(host / name)
        for file in _files(host / name):
            if name in _MARKED:
                _sql(file, _MARKED[name])
            elif file.suffix != ".bin":
                file.write_text(file.read_text().replace('"k"', f'"{MARKER}"').replace("kernel(int)", MARKER))
    (host / "secret.txt").write_text(f"{MARKER}\n")


def _files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.is_file()]


def _example(name: str, folder: Path) -> Path:
    """The example of a format in the folder `in`, and its main file: the one without which it is nothing."""
    (folder / "in").mkdir()
    EXAMPLES[name](folder / "in")
    files = _files(folder / "in")
    return next((file for file in files if file.name in ("code.json", "pmc_perf.csv")), files[0])


def _sql(file: Path, *statements: str) -> None:
    with closing(sqlite3.connect(file, isolation_level=None)) as database:
        for statement in statements:
            database.execute(statement)


@cache
def _bomb(content: bytes, size: int = 2 << 30) -> bytes:
    """A gzip member that `size` bytes come out of, made of the same few."""
    piece = content * (MIB // len(content))
    packed = gzip.compress(piece, 9)
    return packed * (size // len(piece))


# --- of every format: its main file is something else than what it seems ---------------------------------------------


def _of_every_format() -> Iterator[Case]:
    for name in EXAMPLES:
        for what, change in _CHANGES.items():
            harmless = _READ_WITHOUT if name == "thread_trace" else _HARMLESS.get(what)
            yield Case(f"{name}: {what}", partial(_changed, name=name, change=change), harmless)


def _changed(folder: Path, host: Path, *, name: str, change: Callable[[Path, Path], None]) -> Path:
    file = _example(name, folder)
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


def _socket(file: Path, host: Path) -> None:
    file.unlink()
    here = Path.cwd()
    os.chdir(file.parent)  # the path of a socket may be no longer than a hundred characters
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(file.name)
    finally:
        os.chdir(here)


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
    file.with_name(f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()) + _bomb(filler))
    file.unlink()


def _packed_in_place(file: Path, host: Path) -> None:
    """As `_packed`, under the name of the plain file."""
    _packed(file, host)
    file.with_name(f"{file.name}.gz").rename(file)


def _packed_twice(file: Path, host: Path) -> None:
    file.write_bytes(gzip.compress(gzip.compress(_bomb(b"\0"))))


def _zipped(file: Path, host: Path) -> None:
    with zipfile.ZipFile(file.with_suffix(".zip"), "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("../../escaped", file.read_bytes())
    file.unlink()


_CHANGES: Final[dict[str, Callable[[Path, Path], None]]] = {
    "a link to a file of the host": _link,
    "in a folder that is a link to the host's": _link_in_its_folder,
    "a named pipe": _fifo,
    "a socket": _socket,
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


# --- databases -------------------------------------------------------------------------------------------------------

_WITHOUT_END: Final = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT"
_DISPATCHES: Final = "rocpd_kernel_dispatch_1"
_AS_VIEW: Final = (
    f"ALTER TABLE {_DISPATCHES} RENAME TO hidden",
    "CREATE VIEW {table} AS {select}",
)
_SCHEMA: Final = "PRAGMA writable_schema = ON"


def _of_databases() -> Iterator[Case]:
    columns = "id, pid, tid, agent_id, kernel_id, dispatch_id, start, end"
    views = {
        "a view without end": f"{_WITHOUT_END} {', '.join(f'x AS {one}' for one in columns.split(', '))} FROM n",
        "a view of itself": f"SELECT * FROM {_DISPATCHES}",
        "a view of ten joins": f"SELECT a.* FROM hidden a {' '.join(f', hidden h{n}' for n in range(10))}",
        "a view that makes gigabytes": "SELECT id, pid, tid, agent_id, kernel_id, dispatch_id, start, "
        "zeroblob(1000000000) AS end FROM hidden",
        "a view that reads a file": "SELECT *, readfile('/etc/passwd') AS start2 FROM hidden",
    }
    for name, select in views.items():
        statements = (_AS_VIEW[0], _AS_VIEW[1].format(table=_DISPATCHES, select=select))
        yield _database(f"dispatches are {name}", *statements)
    generated = f"id INTEGER PRIMARY KEY, {columns.removeprefix('id, ').removesuffix(', end')}"
    for kind in ("VIRTUAL", "STORED"):
        yield _database(
            f"a {kind.lower()} generated column of 500 MB",
            f"DROP TABLE {_DISPATCHES}",
            f"CREATE TABLE {_DISPATCHES} ({generated}, end AS (length(zeroblob(500000000))) {kind})",
            f"INSERT INTO {_DISPATCHES} (id, start) VALUES (1, 5), (2, 6)",
        )
    yield _database(
        "a virtual table for dispatches",
        f"DROP TABLE {_DISPATCHES}",
        f"CREATE VIRTUAL TABLE {_DISPATCHES} USING fts5({columns.removeprefix('id, ').replace('end', 'ended')})",
    )
    yield _database(
        "the text of its schema is a program",
        _SCHEMA,
        f"UPDATE sqlite_master SET sql = 'CREATE TABLE {_DISPATCHES} (id, start, end CHECK (load_extension(0)))' "
        f"WHERE name = '{_DISPATCHES}'",
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
    yield _database("no table but a name", f"DROP TABLE {_DISPATCHES}")
    yield _database("times are texts", f"UPDATE {_DISPATCHES} SET start = 'soon', end = 'later'")
    yield _database("times are binary", f"UPDATE {_DISPATCHES} SET start = x'00ff', end = x'ff00'")
    yield _database("times are infinite", f"UPDATE {_DISPATCHES} SET start = -9e999, end = 9e999")
    yield _database("times are fractions beyond 64 bits", f"UPDATE {_DISPATCHES} SET start = 1e300, end = 2e300")
    yield _database(
        "times are at both ends of 64 bits",
        f"UPDATE {_DISPATCHES} SET start = -9223372036854775807 - 1, end = 9223372036854775807",
    )
    yield _case("rocpd: more tables than a profiler makes", partial(_many_tables, count=10_001))
    yield _case("rocpd: more columns than a profiler makes", partial(_many_columns, count=1_990))
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
        yield _case(f"rocpd: {what}", partial(_patched, at=at, value=value))
    for ending, words in (("-wal", "a write-ahead log"), ("-journal", "a hot journal")):
        yield _case(f"rocpd: {words} beside it", partial(_beside, ending=ending))


def _database(what: str, *statements: str) -> Case:
    def make(folder: Path, host: Path) -> Path:
        _sql(_example("rocpd", folder), *statements)
        return folder / "in"

    return _case(f"rocpd: {what}", make)


def _many_tables(folder: Path, host: Path, *, count: int) -> Path:
    file = _example("rocpd", folder)
    with closing(sqlite3.connect(file)) as database:
        for number in range(count):
            database.execute(f"CREATE TABLE rocpd_kernel_dispatch_x{number} (a)")
        database.commit()
    return folder / "in"


def _many_columns(folder: Path, host: Path, *, count: int) -> Path:
    """Columns enough that SQLite's own limit is met when another statement names them twice."""
    wide = ", ".join(f"c{number} TEXT" for number in range(count))
    _sql(_example("rocpd", folder), f"DROP TABLE {_DISPATCHES}", f"CREATE TABLE {_DISPATCHES} ({wide})")
    return folder / "in"


def _patched(folder: Path, host: Path, *, at: int, value: bytes) -> Path:
    file = _example("rocpd", folder)
    with file.open("r+b") as stream:
        stream.seek(at)
        stream.write(value)
    return folder / "in"


def _beside(folder: Path, host: Path, *, ending: str) -> Path:
    file = _example("rocpd", folder)
    magic = b"\x37\x7f\x06\x82" if ending == "-wal" else b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7"
    file.with_name(file.name + ending).write_bytes(magic + bytes(4096))
    return file


# --- JSON ------------------------------------------------------------------------------------------------------------


def _of_documents() -> Iterator[Case]:
    for name in ("kineto", "rocprofv3_json", "ort_profile", "thread_trace"):
        for what, change in _DOCUMENT_CHANGES.items():
            yield _case(f"{name}: {what}", partial(_document, name=name, change=change))
    for what, replaced, by in (
        ("records that are no list", '"kernel_dispatch": [', '"kernel_dispatch": 3, "other": ['),
        ("processes that are no list", '"rocprofiler-sdk-tool": [', '"rocprofiler-sdk-tool": 7, "other": ['),
        ("a time that is a list", '"start_timestamp": 10', '"start_timestamp": [10]'),
        ("a time that is no number", '"start_timestamp": 10', '"start_timestamp": NaN'),
        ("a time beyond 64 bits", '"start_timestamp": 10', f'"start_timestamp": {"9" * 400}'),
        ("an identifier beyond 64 bits", '"kernel_id": 1', f'"kernel_id": {1 << 80}'),
    ):
        yield _case(f"rocprofv3_json: {what}", partial(_replaced, name="rocprofv3_json", replaced=replaced, by=by))
    for what, replaced, by in (
        ("a time that is no number", '"ts": 5', '"ts": NaN'),
        ("a time beyond 64 bits", '"ts": 5', '"ts": 1e400'),
        ("a duration that is a text", '"dur": 2', '"dur": "long"'),
        ("a grid that is no list", '"grid": [1, 1, 1]', '"grid": "huge"'),
        ("a stream beyond 64 bits", '"stream": 7', f'"stream": {1 << 90}'),
        ("events that are no list", '"traceEvents": [', '"traceEvents": 3, "others": ['),
    ):
        yield _case(f"kineto: {what}", partial(_replaced, name="kineto", replaced=replaced, by=by))
    for what, replaced, by in (
        ("a time that is no number", '"ts": 11', '"ts": NaN'),
        ("a time that is a text", '"ts": 11', '"ts": "now"'),
        ("a duration beyond 64 bits", '"dur": 3', f'"dur": {1 << 70}'),
        ("a node number that is none", '"node_index": "0"', '"node_index": "-99999999999999999999"'),
    ):
        yield _case(f"ort_profile: {what}", partial(_replaced, name="ort_profile", replaced=replaced, by=by))
    for what, replaced, by in (
        ("code that is no list", '"code": [', '"code": 3, "other": ['),
        ("an instruction that is an object", '["s_endpgm", 0', '[{"a": 1}, 0'),
        ("hits beyond 64 bits", "260, 1, 4", f"260, {1 << 80}, 4"),
        ("an address that is negative", "7, 260", "7, -260"),
        ("a row that is too short", ", 4, 0, 0]", "]"),
    ):
        yield _case(f"thread_trace: {what}", partial(_replaced, name="thread_trace", replaced=replaced, by=by))


def _document(folder: Path, host: Path, *, name: str, change: Callable[[str], bytes]) -> Path:
    file = _example(name, folder)
    file.write_bytes(change(file.read_text()))
    return folder / "in"


def _replaced(folder: Path, host: Path, *, name: str, replaced: str, by: str) -> Path:
    file = _example(name, folder)
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


# --- texts -----------------------------------------------------------------------------------------------------------


def _of_texts() -> Iterator[Case]:
    for name in ("rocprofv3_csv", "rocprof", "rocprof_compute"):
        for what, change in _TEXT_CHANGES.items():
            yield _case(f"{name}: {what}", partial(_document, name=name, change=change))
        for what, value in (("no number", "NaN"), ("words", "yesterday"), ("a power", "1e400"), ("huge", "9" * 40)):
            replaced = {"old": ",100,200", "new": f",{value},{value}"}
            yield _case(
                f"{name}: times are {what}",
                partial(_replaced, name=name, replaced=replaced["old"], by=replaced["new"]),
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


# --- gpu_metrics -----------------------------------------------------------------------------------------------------


def _of_metrics() -> Iterator[Case]:
    for what, content in (
        ("a size beyond the file", struct.pack("<HBB", 0xFFFF, 1, 8) + bytes(400)),
        ("a size of nothing", struct.pack("<HBB", 0, 1, 8) + bytes(400)),
        ("a version of the future", struct.pack("<HBB", 120, 1, 99) + bytes(116)),
        ("a version of no card", struct.pack("<HBB", 120, 99, 1) + bytes(116)),
        ("described values without end", struct.pack("<HBBI", 0xFFFF, 1, 9, 0xFFFFFFFF) + b"\xff" * 65528),
        ("described values of no kind", struct.pack("<HBBI", 64, 1, 9, 2) + b"\xff" * 56),
        ("nothing described", struct.pack("<HBBI", 8, 1, 9, 0)),
    ):
        yield _case(f"gpu_metrics: {what}", partial(_bytes, file="card0.bin", content=content))


def _of_series() -> Iterator[Case]:
    answer = b'{"status":"success","data":{"resultType":"matrix","result":['
    line = b'{"metric":{"__name__":"rocm_sclk_clock_mhz","card":"0"},"values":'
    series = b"".join(b'rocm_sclk_clock_mhz{card="%d"} 1 1700000000000\n' % card for card in range(100_000))
    labels = b'rocm_sclk_clock_mhz{card="0",' + b",".join(b'a%d="b"' % at for at in range(_LONG // 10)) + b"} 1\n"
    for what, file, content in (
        ("a hundred thousand devices", "scrape.prom", series),
        ("a million labels", "scrape.prom", labels + b'rocm_sclk_clock_mhz{card="x"} 1 1\n'),
        ("labels that never end", "scrape.prom", b'rocm_num_gpus 1\nrocm_sclk_clock_mhz{card="' + b'\\"' * _LONG),
        ("a line of a hundred million bytes", "scrape.prom", b"rocm_num_gpus 1\n" + b"9" * (96 * MIB)),
        ("an answer nested without end", "answer.json", answer + b"[" * _DEEP),
        ("an answer of the wrong kinds", "answer.json", answer + b'{"metric":7,"values":{"a":1}}]}}'),
        ("values nested without end", "export.jsonl", line + b"[" * _DEEP + b"\n"),
        ("fewer times than values", "export.jsonl", line + b'[1,2,3],"timestamps":[1]}\n'),
        ("columns without rows", "omnistat.csv", b"metric" + b",rocm_sclk_clock_mhz" * 100_000 + b"\n"),
    ):
        yield _case(f"prometheus: {what}", partial(_bytes, file=file, content=content))


def _bytes(folder: Path, host: Path, *, file: str, content: bytes) -> Path:
    (folder / "in").mkdir()
    (folder / "in" / file).write_bytes(content)
    return folder / "in"


# --- folders and what is no capture ----------------------------------------------------------------------------------


def _of_folders() -> Iterator[Case]:
    for make in (
        _too_deep, _too_many, _too_many_at_one_place, _loop_of_links, _link_to_the_root, _the_path_is_a_link,
        _the_path_is_a_pipe, _the_path_is_a_device, _the_path_is_a_socket, _names_that_steer, _names_of_no_text,
        _archive_with_links, _archive_bomb, _model_with_weights_of_the_host, _model_without_end, _yaml_alone,
        _pickle, _links_at_every_depth, _ranks_that_are_links, _a_thousand_files_of_holes,
    ):  # fmt: skip
        yield _case(f"folders: {make.__name__.strip('_').replace('_', ' ')}", make)


def _too_deep(folder: Path, host: Path) -> Path:
    deep = folder / "in" / Path(*["a"] * 200)
    deep.mkdir(parents=True)
    EXAMPLES["rocprofv3_csv"](deep)
    return folder / "in"


def _too_many(folder: Path, host: Path) -> Path:
    for number in range(210):
        (folder / f"in/{number}").mkdir(parents=True)
        for inner in range(100):
            (folder / f"in/{number}/{inner}").touch()
    EXAMPLES["rocprofv3_csv"](folder / "in")
    return folder / "in"


def _too_many_at_one_place(folder: Path, host: Path) -> Path:
    (folder / "in").mkdir()
    for number in range(100_000):
        os.mknod(folder / f"in/{number}")
    return folder / "in"


def _a_thousand_files_of_holes(folder: Path, host: Path) -> Path:
    """None of them larger than a file may be, and all of them larger than a disk."""
    beside = _example("thread_trace", folder).parent
    for number in range(1_000):
        (beside / f"se{number}.json").touch()
        os.truncate(beside / f"se{number}.json", 4 << 30)
    return folder / "in"


def _loop_of_links(folder: Path, host: Path) -> Path:
    (folder / "in/a").mkdir(parents=True)
    (folder / "in/a/b").symlink_to(folder / "in")
    (folder / "in/self").symlink_to("self")
    return folder / "in"


def _link_to_the_root(folder: Path, host: Path) -> Path:
    (folder / "in").mkdir()
    (folder / "in/root").symlink_to("/")
    (folder / "in/host").symlink_to(host)
    return folder / "in"


def _links_at_every_depth(folder: Path, host: Path) -> Path:
    at = folder / "in"
    for name in ("a", "b", "c"):
        at.mkdir()
        for number, source in enumerate(sorted(host.iterdir())):
            (at / f"{number}_{source.name}").symlink_to(source)
        at /= name
    return folder / "in"


def _ranks_that_are_links(folder: Path, host: Path) -> Path:
    (folder / "in").mkdir()
    for rank in range(4):
        (folder / f"in/rank{rank}.json").symlink_to(host / "kineto/trace.json")
    return folder / "in"


def _the_path_is_a_link(folder: Path, host: Path) -> Path:
    (folder / "in").symlink_to(host)
    return folder / "in"


def _the_path_is_a_pipe(folder: Path, host: Path) -> Path:
    os.mkfifo(folder / "1_results.db")
    return folder / "1_results.db"


def _the_path_is_a_device(folder: Path, host: Path) -> Path:
    return Path("/dev/zero")


def _the_path_is_a_socket(folder: Path, host: Path) -> Path:
    (folder / "1_results.db").touch()
    _socket(folder / "1_results.db", host)
    return folder / "1_results.db"


def _names_that_steer(folder: Path, host: Path) -> Path:
    path = folder / "in\n\x1b[2J\x1b]0;owned\x07\u202e"
    path.mkdir()
    (path / "1_results.db\n\x1b[31m").write_bytes(b"SQLite format 3\0rocpd_metadata_x")
    return path


def _names_of_no_text(folder: Path, host: Path) -> Path:
    path = folder / os.fsdecode(b"in\xff\xfe")
    path.mkdir()
    content = b"SQLite format 3\0rocpd_metadata_x rocpd_kernel_dispatch" + bytes(4096)
    (path / os.fsdecode(b"1_results\xff.db")).write_bytes(content)
    return path


def _archive_with_links(folder: Path, host: Path) -> Path:
    (folder / "in").mkdir()
    with tarfile.open(folder / "in/1_results.tar.gz", "w:gz") as archive:
        link = tarfile.TarInfo("1_kernel_trace.csv")
        link.type, link.linkname = tarfile.SYMTYPE, str(host / "secret.txt")
        archive.addfile(link)
    return folder / "in"


def _archive_bomb(folder: Path, host: Path) -> Path:
    (folder / "in").mkdir()
    with zipfile.ZipFile(folder / "in/1_results.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(50):
            archive.writestr(f"{number}.json", b" " * (8 * MIB))
    return folder / "in"


def _onnx(content: bytes, folder: Path) -> Path:
    return _bytes(folder, folder, file="model.onnx", content=content)


def _model_with_weights_of_the_host(folder: Path, host: Path) -> Path:
    from onnx import TensorProto, helper

    weight = helper.make_tensor("w", TensorProto.FLOAT, [4], [0.0] * 4)
    weight.ClearField("float_data")
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value=str(host / "secret.txt"))
    graph = helper.make_graph([helper.make_node("Relu", ["w"], ["y"])], "graph", [], [], [weight])
    return _onnx(helper.make_model(graph).SerializeToString(), folder)


def _model_without_end(folder: Path, host: Path) -> Path:
    """A graph within a graph within a graph: every level is one length before the next."""
    inner = b""
    for _ in range(20_000):
        inner = b"\x3a" + _varint(len(inner)) + inner
    return _onnx(inner, folder)


def _varint(value: int) -> bytes:
    content = bytearray()
    while value > 127:
        content.append(value & 127 | 128)
        value >>= 7
    return bytes([*content, value])


_LAUGHS: Final = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(99 + n)}: &{chr(99 + n)} [{','.join(['*' + ('a' if n == 0 else chr(98 + n))] * 9)}]\n" for n in range(20)
)


def _yaml_alone(folder: Path, host: Path) -> Path:
    return _bytes(folder, host, file="profiling_config.yaml", content=_LAUGHS.encode())


def _pickle(folder: Path, host: Path) -> Path:
    return _bytes(folder, host, file="1_results.db", content=b"\x80\x04cos\nsystem\n(S'touch /tmp/owned'\ntR.")


# --- taken, and harmless ---------------------------------------------------------------------------------------------


def _taken() -> Iterator[Case]:
    trigger = "CREATE TRIGGER t AFTER UPDATE ON rocpd_metadata_1 BEGIN INSERT INTO rocpd_metadata_1 VALUES (1, 2); END"

    def with_view(folder: Path, host: Path) -> Path:
        _sql(_example("rocpd", folder), f"CREATE VIEW everything AS {_WITHOUT_END} x FROM n", trigger)
        return folder / "in"

    yield Case("taken: a database with triggers and a view without end", with_view, "neither is in the copy")
    yield Case(
        "taken: settings that are a YAML bomb",
        partial(_yaml_beside, content=_LAUGHS),
        "the settings are not read, and said so",
    )
    yield Case(
        "taken: settings that would run a program",
        partial(_yaml_beside, content="a: !!python/object/apply:os.system ['touch /tmp/owned']\n"),
        "nothing is run",
    )
    yield Case("taken: a name of ten million characters", _long_name, "it is cut, and said so")
    yield Case("taken: sources that are the host's", _sources_of_the_host, "they are not looked for outside")
    yield Case("taken: links beside a whole capture", _links_beside, "they are listed and not followed")


def _yaml_beside(folder: Path, host: Path, *, content: str) -> Path:
    file = _example("rocprof_compute", folder)
    (file.parent / "profiling_config.yaml").write_text(content)
    return folder / "in"


def _long_name(folder: Path, host: Path) -> Path:
    file = _example("rocpd", folder)
    with closing(sqlite3.connect(file)) as database:
        database.execute("INSERT INTO rocpd_metadata_1 VALUES ('name', ?)", ("x" * _LONG,))
        database.commit()
    return folder / "in"


def _sources_of_the_host(folder: Path, host: Path) -> Path:
    file = _example("thread_trace", folder)
    names: dict[str, Any] = {
        str(host / "secret.txt"): f"../../../../{host.name}/secret.txt",
        "/etc/passwd": "/etc/passwd",
    }
    (file.parent / "snapshots.json").write_text(json.dumps(names))
    return folder / "in"


def _links_beside(folder: Path, host: Path) -> Path:
    _example("rocprofv3_csv", folder)
    (folder / "in/2_kernel_trace.csv").symlink_to(host / "rocprofv3_csv/1_kernel_trace.csv")
    (folder / "in/deeper").symlink_to(host)
    return folder / "in"
