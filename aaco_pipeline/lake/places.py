"""Where a published table is read: from its own file, or from a segment that has its rows.

Either is verified first, and the other is taken where one is torn or gone: it is an error only when both are.
"""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from aaco_pipeline.errors import LakeError
from aaco_pipeline.lake.contracts import polars_schema
from aaco_pipeline.lake.declaration import Table
from aaco_pipeline.lake.layout import LakeFolder, owner_of
from aaco_pipeline.lake.manifest import Entry
from aaco_pipeline.lake.segments.format import (
    Held,
    PartKey,
    Segment,
    list_names,
    read_rows,
    readable_lists,
    require_part_intact,
    where_held,
)
from aaco_pipeline.lake.storage import STORAGE
from aaco_pipeline.lake.verified import missing, require_intact

if TYPE_CHECKING:
    import polars as pl

Place = Path | Held
"""A file of its own, or a part of a segment."""


class Places:
    """The places of one table's rows, for one reading. Segments are looked for when the first is needed.

    With `segments_first` a part of a segment is taken before a file: what reads many reads few files then.
    """

    def __init__(
        self, lake: Path, table: Table, ids: Collection[str] | None = None, *, segments_first: bool = False
    ) -> None:
        self._lake = lake
        self._table = table
        self._ids = ids
        self._segments_first = segments_first
        self._seen: set[tuple[str, int]] = set()
        self._held: dict[PartKey, Held] | None = None
        self._is_of_lists = False

    def of(self, owner: str, entry: Entry) -> Place:
        """Where the rows of a published table that has some are, verified. LakeError when they are nowhere whole."""
        try:
            return self._found(owner, entry)
        except LakeError:
            if self._is_of_lists:
                raise
        # What this host keeps of the lists may be damaged unseen: that rows are nowhere is for the lists to say.
        self._held = where_held(readable_lists(self._lake, self._table.name), self._ids)
        self._is_of_lists = True
        return self._found(owner, entry)

    def _found(self, owner: str, entry: Entry) -> Place:
        if not self._segments_first:
            try:
                return require_intact(self._lake, entry)
            except LakeError as error:
                if (held := self._part(owner, entry)) is None:
                    raise error
                return held
        try:
            held = self._part(owner, entry)
        except LakeError as error:
            try:
                return require_intact(self._lake, entry)
            except LakeError:
                raise error from None
        return require_intact(self._lake, entry) if held is None else held

    def _part(self, owner: str, entry: Entry) -> Held | None:
        if self._held is None:
            self._held = self._kept()
        held = self._held.get((owner, entry.stage, entry.sha256))
        if held is not None:
            told = f"table {entry.table} of {self._table.scope} {owner}, stage {entry.stage}"
            require_part_intact(self._lake, held, told, self._seen)
        return held

    def _kept(self) -> dict[PartKey, Held]:
        """Where the parts lie by what this host keeps of the lists."""
        if not list_names(self._lake, self._table.name):
            return {}
        from aaco_pipeline.lake.catalogue.segments import SegmentCatalogue

        with SegmentCatalogue(LakeFolder(self._lake), self._table.name) as known:
            return known.held(self._ids)


def read_places(
    lake: Path, table: Table, places: Sequence[Place], columns: Sequence[str] | None
) -> "list[pl.DataFrame]":
    """The rows at these places, in their order, in the contract's columns or those named."""
    asked = list(polars_schema(table)) if columns is None else [*columns]
    segments: dict[str, Segment] = {}
    runs: dict[str, list[tuple[int, int]]] = {}
    order: list[Path | str] = []
    for place in places:
        if isinstance(place, Path):
            order.append(place)
            continue
        file = place.segment.file
        segments[file] = place.segment
        own = runs.setdefault(file, [])
        if order and order[-1] == file and own and sum(own[-1]) == place.first_row:
            own[-1] = (own[-1][0], own[-1][1] + place.rows)
        else:
            own.append((place.first_row, place.rows))
            order.append(file)
    read = {file: iter(read_rows(lake, segment, runs[file], asked)) for file, segment in segments.items()}
    return [
        _in_columns(table, next(read[one]), asked) if isinstance(one, str) else _read_file(table, one, columns)
        for one in order
    ]


def read_batch(lake: Path, table: Table, place: Place, columns: Sequence[str], rows: tuple[int, int]) -> "pl.DataFrame":
    """Some of the rows at a place, the first of them and how many, in these columns."""
    if isinstance(place, Path):
        return _read_file(table, place, columns, rows)
    first, count = rows
    part = place._replace(first_row=place.first_row + first, rows=count)
    (frame,) = read_places(lake, table, [part], columns)
    return frame


def _read_file(
    table: Table, path: Path, columns: Sequence[str] | None, rows: tuple[int, int] | None = None
) -> "pl.DataFrame":
    """A table's own file, or some of its rows; the key comes from the path, as only older files hold it, too."""
    import polars as pl

    asked = list(polars_schema(table)) if columns is None else [*columns]
    try:
        held = [name for name in pl.read_parquet_schema(path) if name in asked] if columns is not None else None
        # Of columns that it does not hold it still says how many rows there are.
        if rows is None:
            frame = pl.read_parquet(path, columns=held or None, hive_partitioning=False, glob=False)
        else:
            scan = pl.scan_parquet(path, hive_partitioning=False, glob=False).slice(*rows)
            frame = (scan.select(held) if held else scan).collect()
    except (pl.exceptions.PolarsError, OSError) as error:
        if STORAGE.state(path) is None:
            raise missing(path) from error
        raise LakeError(f"{path}: cannot be read ({str(error).splitlines()[0]}); `aaco doctor` tells why") from error
    return _in_columns(table, frame.with_columns(pl.lit(owner_of(path)[1]).alias(table.key)), asked)


def _in_columns(table: Table, frame: "pl.DataFrame", columns: Sequence[str]) -> "pl.DataFrame":
    """The frame's columns in this order; those that an older contract did not have are null."""
    import polars as pl

    schema = polars_schema(table)
    absent = [pl.lit(None, schema[name]).alias(name) for name in columns if name not in frame.columns]
    return frame.with_columns(absent).select(columns)
