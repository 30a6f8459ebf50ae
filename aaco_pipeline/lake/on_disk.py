"""Tables and columns larger than memory should hold: in files without names, mapped, a piece looked at at a time.

Pages of such a file are the disk's, and the system takes them back when it needs them; `release` gives them back at
once. What is no larger than a piece stays in memory, and nothing here is loaded for it.
"""

import mmap
import os
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl
from numpy.typing import DTypeLike, NDArray

if TYPE_CHECKING:
    import pyarrow as pa

#: Rows that are looked at at once.
PIECE_ROWS: Final = 1 << 19
#: A column of numbers that is larger goes to the disk.
_COLUMN_BYTES: Final = 4 << 20
#: A stream that is smaller is read at once.
_MAPPED_FROM: Final = 32 << 20
_MAPPED: Final[weakref.WeakSet[mmap.mmap]] = weakref.WeakSet()


def pieces_of(count: int) -> Iterator[slice]:
    """The rows of a table of so many, a piece at a time; what was mapped for a piece is released behind it."""
    for first in range(0, count, PIECE_ROWS):
        yield slice(first, min(first + PIECE_ROWS, count))
        release()


def release() -> None:
    """Give the pages of everything mapped back; they are read again when they are looked at again."""
    for one in list(_MAPPED):
        one.madvise(mmap.MADV_DONTNEED)


def with_columns(frame: pl.DataFrame, changes: Sequence[pl.Expr]) -> pl.DataFrame:
    """`frame.with_columns` of changes that each row has of itself alone."""
    if frame.height <= PIECE_ROWS or not changes:
        return frame.with_columns(changes)
    names = [change.meta.output_name() for change in changes]
    grown = GrowingTable()
    for rows in pieces_of(frame.height):
        grown.add(_piece(frame, rows).with_columns(changes).select(names))
    return frame.with_columns(grown.table().get_columns())


def pieces(frame: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """A frame's rows, a piece at a time; a frame without rows is one piece."""
    if frame.height <= PIECE_ROWS:
        yield frame
        return
    for rows in pieces_of(frame.height):
        yield _piece(frame, rows)


def _piece(frame: pl.DataFrame, rows: slice) -> pl.DataFrame:
    return frame.slice(rows.start, rows.stop - rows.start)


class GrowingColumn:
    """Numbers that are added block by block, and are one array in the end."""

    def __init__(self, dtype: DTypeLike) -> None:
        self._dtype = np.dtype(dtype)
        self._held: list[NDArray[Any]] = []
        self._bytes = 0
        self._file: IO[bytes] | None = None

    def add(self, values: NDArray[Any]) -> None:
        self._held.append(values)
        self._bytes += values.nbytes
        if self._bytes > _COLUMN_BYTES:
            self._put()

    def array(self) -> NDArray[Any]:
        """All of them, asked for once; it may be changed in place."""
        if self._file is None:
            return np.concatenate(self._held) if len(self._held) != 1 else self._held[0]
        self._put()
        with self._file as file:
            return np.frombuffer(_mapped(file, writable=True), self._dtype)

    def _put(self) -> None:
        if self._file is None:
            self._file = _unnamed(self)
        for values in self._held:
            self._file.write(values.tobytes())
        self._held, self._bytes = [], 0


class GrowingTable:
    """Frames of one schema that are added one after another, and are one in the end."""

    def __init__(self) -> None:
        self._held: list[pl.DataFrame] = []
        self._file: IO[bytes] | None = None
        self._writer: pa.ipc.RecordBatchStreamWriter | None = None

    def add(self, frame: pl.DataFrame) -> None:
        self._held.append(frame)
        if sum(one.height for one in self._held) > PIECE_ROWS:
            self._put()

    def table(self) -> pl.DataFrame:
        """All of them, asked for once."""
        if self._file is None or self._writer is None:
            return pl.concat(self._held)
        self._put()
        with self._file as file:
            self._writer.close()
            return _read_mapped(file)

    def _put(self) -> None:
        import pyarrow as pa

        for frame in self._held:
            rows = frame.to_arrow(compat_level=pl.CompatLevel.newest())
            if self._writer is None:
                self._file = _unnamed(self)
                self._writer = pa.ipc.new_stream(self._file, rows.schema)
            self._writer.write_table(rows)
        self._held = []


def write_pieces(frame: pl.DataFrame, file: IO[bytes]) -> None:
    """The frame as an Arrow stream, a large one a piece at a time."""
    if frame.height <= PIECE_ROWS:
        frame.write_ipc_stream(file, compression="uncompressed")
        return
    import pyarrow as pa

    writer: pa.ipc.RecordBatchStreamWriter | None = None
    for piece in pieces(frame):
        rows = piece.to_arrow(compat_level=pl.CompatLevel.newest())
        writer = writer or pa.ipc.new_stream(file, rows.schema)
        writer.write_table(rows)
    if writer is not None:
        writer.close()


def read_pieces(file: IO[bytes]) -> pl.DataFrame:
    """The frame that `write_pieces` wrote, a large one mapped.

    ValueError or Polars' error for a file that is no such stream, or contradicts itself.
    """
    small = os.fstat(file.fileno()).st_size <= _MAPPED_FROM
    return pl.read_ipc_stream(file) if small else _read_mapped(file)


def write_parquet(frame: pl.DataFrame, path: Path, metadata: Mapping[str, str]) -> None:
    """The frame as a Parquet file, a large one a piece at a time."""
    stated = dict(metadata)
    if frame.height <= PIECE_ROWS:
        frame.write_parquet(path, compression="zstd", metadata=stated)
        return
    from polars.io.plugins import register_io_source

    def taken(
        columns: list[str] | None, chosen: pl.Expr | None, rows: int | None, batch: int | None
    ) -> Iterator[pl.DataFrame]:
        """What Polars asks of a source; of one that is written as it is, it asks for everything."""
        for piece in pieces(frame):
            # In one chunk: the bytes depend on the rows alone.
            yield (piece if columns is None else piece.select(columns)).rechunk()

    source = register_io_source(taken, schema=frame.schema, is_pure=True)
    source.sink_parquet(path, compression="zstd", metadata=stated, maintain_order=True)


def _read_mapped(file: IO[bytes]) -> pl.DataFrame:
    """The frame that an Arrow stream holds, of which only what is looked at is read.

    pyarrow's ArrowInvalid, a ValueError, for a file that is no such stream, or contradicts itself.
    """
    import pyarrow as pa

    batches = []
    stream = pa.ipc.open_stream(pa.py_buffer(_mapped(file)))
    for batch in stream:
        batch.validate(full=True)
        batches.append(batch)
        release()
    frame = pl.from_arrow(pa.Table.from_batches(batches, stream.schema), rechunk=False)
    assert isinstance(frame, pl.DataFrame)
    return frame


def _unnamed(owner: object) -> IO[bytes]:
    """A file that nobody else sees, closed with what holds it at the latest."""
    file = tempfile.TemporaryFile()  # noqa: SIM115
    weakref.finalize(owner, file.close)
    return file


def _mapped(file: IO[bytes], *, writable: bool = False) -> mmap.mmap:
    """The whole of an open file, mapped; it need not stay open."""
    file.flush()
    access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    found = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_SHARED, prot=access)
    _MAPPED.add(found)
    return found
