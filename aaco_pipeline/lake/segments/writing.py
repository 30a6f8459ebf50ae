"""Write a segment: read many published tables, concatenate them, write the file, verify and publish it.

`compaction` decides what goes into a segment, and `format` defines its format.
"""

import hashlib
import io
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from itertools import chain, groupby, pairwise
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, NamedTuple

import polars as pl

from aaco_pipeline import __version__
from aaco_pipeline.errors import LakeError
from aaco_pipeline.lake.contracts import polars_schema, polars_types
from aaco_pipeline.lake.declaration import Table
from aaco_pipeline.lake.files import lake_errors, sync_file
from aaco_pipeline.lake.layout import SEGMENTS
from aaco_pipeline.lake.segments.format import (
    PART_COLUMN,
    Held,
    NewerSegmentError,
    Part,
    RowGroup,
    Segment,
    SegmentList,
    columns_of,
    read_list,
    read_rows,
    require_part_intact,
)
from aaco_pipeline.lake.storage import STORAGE
from aaco_pipeline.lake.validation import to_contract
from aaco_pipeline.lake.verified import missing, section_digest, torn

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

#: A segment is closed once it reaches this size.
TARGET_BYTES: Final = 256 << 20
#: A row group holds complete small parts up to this many rows; a reader of one session decodes all of it.
ROW_GROUP_ROWS: Final = 1 << 15
_DIGITS_IN_NAME: Final = 16


class Source(NamedTuple):
    """A part to be written: its own file, relative to the lake, and its place in a segment if it has one."""

    part: Part
    file: str
    held: Held | None


def write_segments(
    lake: Path, table: Table, sources: Sequence[Source], made: datetime, left: Callable[[Source, LakeError], None]
) -> Iterator[SegmentList]:
    """Write the sources, in the order of their parts, to segments of a table, and yield each once published.

    `left` is called with each unreadable source and the reason; the source stays in place. LakeError if the disk cannot
    be written; unpublished segments leave nothing behind.
    """
    rows = (one for batch in _batches(sources) for one in _read(lake, table, batch, left))
    for first in rows:
        yield _write_one(lake, table, chain([first], rows), made)


def _write_one(
    lake: Path, table: Table, rows: Iterator[tuple[list[Part], pl.DataFrame]], made: datetime
) -> SegmentList:
    """Write rows until the segment is full, sync and reread it, and publish its list, which makes it visible."""
    import pyarrow.parquet as pq

    storage = STORAGE
    folder = lake / SEGMENTS / table.name
    parts: list[Part] = []
    stated = {
        "aaco.segment": table.name,
        "aaco.contract_version": str(table.version),
        "aaco.writer": f"aaco_pipeline {__version__}",
    }
    with lake_errors(folder), storage.new_file(folder / "segment") as path:
        with path.open("xb") as file:
            writer: pq.ParquetWriter | None = None
            for some, frame in rows:
                keyed = _keyed(table, len(parts), some, frame)
                if writer is None:
                    schema = keyed.schema.with_metadata(stated)
                    writer = pq.ParquetWriter(file, schema, compression="zstd", compression_level=3)
                writer.write_table(keyed.cast(writer.schema), row_group_size=ROW_GROUP_ROWS)
                parts += some
                if file.tell() >= TARGET_BYTES:
                    break
            assert writer is not None
            writer.close()
        sync_file(path)
        sections = list(_sections(path))
        segment = Segment(
            table=table.name,
            name=hashlib.sha256(repr((sections, parts)).encode()).hexdigest()[:_DIGITS_IN_NAME],
            made=made,
            table_version=table.version,
            parts=len(parts),
            row_groups=tuple(sections[:-1]),
            footer=sections[-1],
        )
        storage.place(path, lake / segment.file)
        done = SegmentList(segment, columns_of(Part, parts))
        # A segment with the same content keeps its age, so the files it replaced need not wait again.
        if not _is_listed(lake, segment):
            storage.write(lake / segment.list_file, done.to_bytes())
    return done


def _is_listed(lake: Path, segment: Segment) -> bool:
    """Return whether the segment has a readable list. NewerSegmentError if a later version wrote it."""
    try:
        return read_list(lake, segment.table, f"{segment.name}.json") is not None
    except NewerSegmentError:
        raise
    except LakeError:
        return False


def _keyed(table: Table, first: int, parts: Sequence[Part], frame: pl.DataFrame) -> "pa.Table":
    """Add the columns of part and owner to the rows of parts, numbered from `first`."""
    counts = pl.Series([part.rows for part in parts], dtype=pl.UInt32)
    numbers = pl.Series(range(first, first + len(parts)), dtype=pl.Int32)
    owners = pl.Series([part.id for part in parts], dtype=pl.String)
    whose = frame.with_columns(
        _repeated(numbers, counts).alias(PART_COLUMN), _repeated(owners, counts).alias(table.key)
    )
    return whose.select(PART_COLUMN, *polars_schema(table)).to_arrow()


def _repeated(values: pl.Series, counts: pl.Series) -> pl.Series:
    """Repeat each value by its count."""
    return pl.select(pl.lit(values).repeat_by(pl.lit(counts)).explode()).to_series()


def _sections(path: Path) -> Iterator[RowGroup]:
    """Yield the sections of a Parquet file: each row group with any bytes before it, then the footer."""
    import pyarrow.parquet as pq

    metadata = pq.read_metadata(path)
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    begins = [min(_begin(group.column(at)) for at in range(group.num_columns)) for group in groups]
    last = groups[-1]
    ends = (_begin(last.column(at)) + last.column(at).total_compressed_size for at in range(last.num_columns))
    bounds = [0, *begins[1:], max(ends), path.stat().st_size]
    for (begin, end), rows in zip(pairwise(bounds), [*(group.num_rows for group in groups), 0], strict=True):
        yield RowGroup(end - begin, rows, section_digest(path, begin, end - begin))


def _begin(column: "pq.ColumnChunkMetaData") -> int:
    begin: int = column.data_page_offset
    return begin if column.dictionary_page_offset is None else min(begin, column.dictionary_page_offset)


def _batches(sources: Sequence[Source]) -> Iterator[list[Source]]:
    """Split the sources by row group; a large source gets row groups of its own."""
    batch: list[Source] = []
    rows = 0
    for source in sources:
        if batch and rows + source.part.rows > ROW_GROUP_ROWS:
            yield batch
            batch, rows = [], 0
        batch.append(source)
        rows += source.part.rows
    if batch:
        yield batch


def _read(
    lake: Path, table: Table, batch: Sequence[Source], left: Callable[[Source, LakeError], None]
) -> Iterator[tuple[list[Part], pl.DataFrame]]:
    """Read a batch in order and yield its readable parts with their rows."""
    try:
        found = [_read_all(lake, table, batch)]
    except LakeError:  # one by one, to find the unreadable ones
        found = []
        for source in batch:
            try:
                found.append(_read_either(lake, table, source))
            except LakeError as error:
                left(source, error)
    if found:
        yield [source.part for sources, _ in found for source in sources], pl.concat([frame for _, frame in found])


def _read_either(lake: Path, table: Table, source: Source) -> tuple[Sequence[Source], pl.DataFrame]:
    """Read one part from its segment or its own file."""
    try:
        return _read_all(lake, table, [source])
    except LakeError:
        if source.held is None or STORAGE.state(lake / source.file) is None:
            raise
    return _read_all(lake, table, [source._replace(held=None)])


def _read_all(lake: Path, table: Table, batch: Sequence[Source]) -> tuple[Sequence[Source], pl.DataFrame]:
    """Read a batch in the contract's columns without the key. LakeError if any of it is unreadable."""
    columns = list(polars_types(table.name))
    held = [source.held for source in batch if source.held is not None]
    of_segment: dict[str, Iterator[pl.DataFrame]] = {}
    seen: set[tuple[str, int]] = set()
    for source in batch:
        if source.held is not None:
            told = f"table {table.name} of {table.scope} {source.part.id}, stage {source.part.stage}"
            require_part_intact(lake, source.held, told, seen)
    for file, group in groupby(sorted(held, key=lambda one: one.segment.file), lambda one: one.segment.file):
        runs = list(group)
        frames = read_rows(lake, runs[0].segment, [(one.first_row, one.rows) for one in runs], columns)
        of_segment[file] = iter(frames)
    frames = []
    for is_held, sources in groupby(batch, lambda source: source.held is not None):
        if is_held:
            frames += [next(of_segment[source.held.segment.file]) for source in sources if source.held is not None]
        else:
            frames.append(_read_files(lake, table, list(sources)))
    return batch, pl.concat([to_contract(table.name, frame) for frame in frames])


def _read_files(lake: Path, table: Table, sources: Sequence[Source]) -> pl.DataFrame:
    """Read several published files at once. LakeError if one differs from what was published."""
    contents: list[IO[bytes]] = []
    for source in sources:
        path = lake / source.file
        with lake_errors(path):
            try:
                content = STORAGE.read(path)
            except FileNotFoundError as error:
                raise missing(path) from error
        if hashlib.sha256(content).hexdigest() != source.part.sha256:
            raise torn(path)
        contents.append(io.BytesIO(content))
    schema = pl.Schema(polars_types(table.name))
    try:
        frame = pl.scan_parquet(
            contents, schema=schema, missing_columns="insert", extra_columns="ignore", hive_partitioning=False
        ).collect()
    except pl.exceptions.PolarsError as error:
        told = f"{lake / sources[0].file}: cannot be compacted ({str(error).splitlines()[0]})"
        raise LakeError(f"{told}; it stays as it is") from error
    if frame.height != sum(source.part.rows for source in sources):
        raise LakeError(f"{lake / sources[0].file}: it has not the rows that were published; it stays as it is")
    return frame
