"""Tables and columns too large for memory, stored in unnamed mapped files and processed in pieces.

The system reclaims such a file's pages when it needs memory; `release` returns them immediately. Anything that fits in
one piece stays in memory.
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

#: Rows per piece.
PIECE_ROWS: Final = 1 << 19
#: Larger numeric columns go to disk.
_COLUMN_BYTES: Final = 4 << 20
#: Smaller streams are read in one go.
_MAPPED_FROM: Final = 32 << 20
_MAPPED: Final[weakref.WeakSet[mmap.mmap]] = weakref.WeakSet()


def pieces_of(count: int) -> Iterator[slice]:
    """Split `count` rows into pieces, and release mapped pages after each."""
    for first in range(0, count, PIECE_ROWS):
        yield slice(first, min(first + PIECE_ROWS, count))
        release()


def release() -> None:
    """Return the pages of all mapped files to the system; they are read again when needed."""
    for one in list(_MAPPED):
        one.madvise(mmap.MADV_DONTNEED)


def with_columns(frame: pl.DataFrame, changes: Sequence[pl.Expr]) -> pl.DataFrame:
    """Apply `frame.with_columns` in pieces, for expressions that only depend on the same row."""
    if frame.height <= PIECE_ROWS or not changes:
        return frame.with_columns(changes)
    names = [change.meta.output_name() for change in changes]
    grown = GrowingTable()
    for rows in pieces_of(frame.height):
        grown.add(_piece(frame, rows).with_columns(changes).select(names))
    return frame.with_columns(grown.table().get_columns())


def pieces(frame: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Split a frame into pieces; a frame without rows is one piece."""
    if frame.height <= PIECE_ROWS:
        yield frame
        return
    for rows in pieces_of(frame.height):
        yield _piece(frame, rows)


def _piece(frame: pl.DataFrame, rows: slice) -> pl.DataFrame:
    return frame.slice(rows.start, rows.stop - rows.start)


class GrowingColumn:
    """Numbers appended in blocks and read once as one array."""

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
        """Return all numbers as a writable array; call only once."""
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
    """Frames of one schema, appended one after another and read once as one frame."""

    def __init__(self) -> None:
        self._held: list[pl.DataFrame] = []
        self._file: IO[bytes] | None = None
        self._writer: pa.ipc.RecordBatchStreamWriter | None = None

    def add(self, frame: pl.DataFrame) -> None:
        self._held.append(frame)
        if sum(one.height for one in self._held) > PIECE_ROWS:
            self._put()

    def table(self) -> pl.DataFrame:
        """Return all rows as one frame; call only once."""
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
    """Write a frame as an Arrow stream, a large one in pieces."""
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
    """Read a frame written by `write_pieces`, mapping a large one.

    ValueError or a Polars error if the file is not such a stream or is inconsistent.
    """
    small = os.fstat(file.fileno()).st_size <= _MAPPED_FROM
    return pl.read_ipc_stream(file) if small else _read_mapped(file)


def write_parquet(frame: pl.DataFrame, path: Path, metadata: Mapping[str, str]) -> None:
    """Write a frame as a Parquet file, a large one in pieces."""
    stated = dict(metadata)
    if frame.height <= PIECE_ROWS:
        frame.write_parquet(path, compression="zstd", metadata=stated)
        return
    from polars.io.plugins import register_io_source

    def taken(
        columns: list[str] | None, chosen: pl.Expr | None, rows: int | None, batch: int | None
    ) -> Iterator[pl.DataFrame]:
        """Serve as a Polars source; when writing, Polars requests all columns and rows."""
        for piece in pieces(frame):
            # One chunk, so that the bytes depend only on the rows.
            yield (piece if columns is None else piece.select(columns)).rechunk()

    source = register_io_source(taken, schema=frame.schema, is_pure=True)
    source.sink_parquet(path, compression="zstd", metadata=stated, maintain_order=True)


def _read_mapped(file: IO[bytes]) -> pl.DataFrame:
    """Map the frame in an Arrow stream, so that only accessed parts are read.

    ArrowInvalid, a ValueError, if the file is not such a stream or is inconsistent.
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
    """Create a file without a name, closed no later than its owner."""
    file = tempfile.TemporaryFile()  # noqa: SIM115
    weakref.finalize(owner, file.close)
    return file


def _mapped(file: IO[bytes], *, writable: bool = False) -> mmap.mmap:
    """Map an entire open file, which may be closed afterwards."""
    file.flush()
    access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    found = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_SHARED, prot=access)
    _MAPPED.add(found)
    return found
