"""A hostile case, the host beside it that must not leak, and small changes to files."""

import gzip
import os
import socket
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from tests.formats.examples import EXAMPLES

#: Stands in every file of the host; found in a lake, a capture has brought it there.
MARKER: Final = "host_file_marker_5f1c"

MIB: Final = 1 << 20

LONG: Final = 10_000_000

Maker = Callable[[Path, Path], Path]


@dataclass(frozen=True)
class Case:
    """A hostile capture: its name, how it is made, and, where it may be taken all the same, why that is harmless."""

    name: str
    make: Maker
    harmless: str | None = None


_LEFT_OUT: Final = "the row is left out, and counted as such in evidence"

#: What may be taken all the same, by the end of the case's name, and why that is harmless.
HARMLESS: Final = {
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


def case_of(name: str, make: Maker) -> Case:
    return Case(name, make, HARMLESS.get(name.partition(": ")[2]))


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
                run_sql(file, _MARKED[name])
            elif file.suffix != ".bin":
                marked = file.read_bytes().replace(b'"k"', f'"{MARKER}"'.encode())
                file.write_bytes(marked.replace(b"kernel(int)", MARKER.encode()))
    (host / "secret.txt").write_text(f"{MARKER}\n")


def _files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.is_file()]


def example_of(name: str, folder: Path) -> Path:
    """The example of a format in the folder `in`, and its main file: the one without which it is nothing."""
    (folder / "in").mkdir()
    EXAMPLES[name](folder / "in")
    files = _files(folder / "in")
    return next((file for file in files if file.name in ("code.json", "pmc_perf.csv")), files[0])


def run_sql(file: Path, *statements: str) -> None:
    with closing(sqlite3.connect(file, isolation_level=None)) as database:
        for statement in statements:
            database.execute(statement)


@cache
def bomb_of(content: bytes, size: int = 2 << 30) -> bytes:
    """A gzip member that `size` bytes come out of, made of the same few."""
    piece = content * (MIB // len(content))
    packed = gzip.compress(piece, 9)
    return packed * (size // len(piece))


def put_socket(file: Path, host: Path) -> None:
    file.unlink()
    here = Path.cwd()
    os.chdir(file.parent)  # the path of a socket may be no longer than a hundred characters
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(file.name)
    finally:
        os.chdir(here)


WITHOUT_END: Final = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT"

DISPATCHES: Final = "rocpd_kernel_dispatch_1"


def file_of_bytes(folder: Path, host: Path, *, file: str, content: bytes) -> Path:
    (folder / "in").mkdir()
    (folder / "in" / file).write_bytes(content)
    return folder / "in"
