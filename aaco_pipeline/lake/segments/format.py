"""Segments: many sessions' files of one table in one Parquet file, and the list beside it that says whose rows it has.

The manifests stay the truth: a published table whose digest is that of a part of a segment can be read from its own
file or from the segment, and a part that no manifest names is dead. Which is taken is decided by
`aaco_pipeline.lake.reading`, what is put into segments by `aaco_pipeline.lake.segments.compaction`.
"""

import json
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from aaco_pipeline.errors import LakeError
from aaco_pipeline.lake.files import lake_errors
from aaco_pipeline.lake.layout import SEGMENTS
from aaco_pipeline.lake.manifest import is_sealed, seal
from aaco_pipeline.lake.storage import STORAGE
from aaco_pipeline.lake.verified import require_stretch, stretch_digest

if TYPE_CHECKING:
    import polars as pl

SEGMENT_VERSION: Final = 1
#: The column that says of each row to which part it belongs, by the part's place in the list.
PART_COLUMN: Final = "aaco_part"


class Part(NamedTuple):
    """One published table in a segment: whose, of which stage, and of its own file digest, rows, bytes and version."""

    id: str
    stage: str
    sha256: str
    rows: int
    bytes: int
    contract_version: int


PartKey = tuple[str, str, str]
"""Session or campaign, stage, and the digest of its own file: of one table these name what is published."""


class RowGroup(NamedTuple):
    """A stretch of a segment: its bytes with what lies between it and the one before, their digest, and its rows."""

    bytes: int
    rows: int
    sha256: str


@dataclass(frozen=True)
class Segment:
    """A segment without its parts: the file's stretches, which follow one another, and the footer that ends it.

    `made` is when it was published, `table_version` the contract that its columns have, `parts` how many it holds.
    """

    table: str
    name: str
    made: datetime
    table_version: int
    parts: int
    row_groups: tuple[RowGroup, ...]
    footer: RowGroup

    @property
    def file(self) -> str:
        """The Parquet file, relative to the lake."""
        return f"{SEGMENTS}/{self.table}/{self.name}.parquet"

    @property
    def list_file(self) -> str:
        """The list, relative to the lake."""
        return f"{SEGMENTS}/{self.table}/{self.name}.json"

    @property
    def stretches(self) -> tuple[RowGroup, ...]:
        """The row groups, and the footer last: all of the file."""
        return (*self.row_groups, self.footer)

    @cached_property
    def bytes(self) -> int:
        return sum(one.bytes for one in self.stretches)

    @cached_property
    def begins(self) -> tuple[int, ...]:
        """Where each stretch begins, in bytes from the file's beginning."""
        return tuple(accumulate((one.bytes for one in self.stretches[:-1]), initial=0))

    @property
    def rows(self) -> int:
        return self.first_rows[-1]

    @cached_property
    def first_rows(self) -> tuple[int, ...]:
        """The first row of each row group, and how many rows there are in all."""
        return (0, *accumulate(one.rows for one in self.row_groups))

    def row_groups_of(self, first: int, rows: int) -> range:
        """The row groups in which rows lie."""
        begin = bisect_right(self.first_rows, first) - 1
        return range(begin, bisect_left(self.first_rows, first + rows))


class Held(NamedTuple):
    """Where the rows of a part are: in which segment, as which of its parts, and which rows."""

    segment: Segment
    part: int
    first_row: int
    rows: int


@dataclass(frozen=True)
class SegmentList:
    """A segment and its parts, in the order of their rows: one column for each field of `Part`."""

    segment: Segment
    columns: Mapping[str, Sequence[Any]]

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """The parts as records: only who looks at all of them needs these."""
        return tuple(map(Part._make, zip(*(self.columns[name] for name in Part._fields), strict=True)))

    def held(self, ids: Collection[str] | None = None) -> Iterator[tuple[PartKey, Held]]:
        """What names each part, or each of the sessions or campaigns `ids`, with where it lies."""
        owners, stages, digests, rows = (self.columns[name] for name in ("id", "stage", "sha256", "rows"))
        first_rows = list(accumulate(rows, initial=0))
        for at, owner in enumerate(owners):
            if ids is None or owner in ids:
                yield (owner, stages[at], digests[at]), Held(self.segment, at, first_rows[at], rows[at])

    def to_bytes(self) -> bytes:
        segment = self.segment
        return seal(
            {
                "segment_version": SEGMENT_VERSION,
                "table": segment.table,
                "table_version": segment.table_version,
                "made": segment.made.isoformat(),
                "row_groups": columns_of(RowGroup, segment.row_groups),
                "footer": segment.footer._asdict(),
                "parts": self.columns,
            }
        )

    @staticmethod
    def from_bytes(content: bytes, source: str) -> "SegmentList":
        """Parse and check a list read from `source`, after which the segment is named; LakeError when it is damaged."""
        try:
            if not is_sealed(content):
                raise ValueError("it does not begin with its digest")
            document = json.loads(content)
            version = document["segment_version"]
            if version > SEGMENT_VERSION:
                raise NewerSegmentError(
                    f"{source}: segment version {version} is newer than {SEGMENT_VERSION}, the newest this "
                    "aaco_pipeline reads; upgrade aaco_pipeline"
                )
            columns = {name: document["parts"][name] for name in Part._fields}
            if len({len(column) for column in columns.values()}) != 1:
                raise ValueError("its columns differ in length")
            wrong = [name for name, kind in Part.__annotations__.items() if {*map(type, columns[name])} - {kind}]
            if wrong:
                raise ValueError(f"its column {wrong[0]} holds something else")
            row_groups = [document["row_groups"][name] for name in RowGroup._fields]
            segment = Segment(
                table=document["table"],
                name=Path(source).stem,
                made=datetime.fromisoformat(document["made"]),
                table_version=document["table_version"],
                parts=len(columns["id"]),
                row_groups=tuple(map(RowGroup._make, zip(*row_groups, strict=True))),
                footer=RowGroup(**document["footer"]),
            )
            if segment.table != Path(source).parent.name or segment.rows != sum(columns["rows"]):
                raise ValueError("its parts, its rows or its table are not those of the segment")
            return SegmentList(segment, columns)
        except (ValueError, KeyError, TypeError) as error:
            raise LakeError(f"{source}: not a segment's list ({error}); `aaco doctor --mend` helps") from error


class NewerSegmentError(LakeError):
    """A later version of this package wrote the segment: it is whole, and not to be touched."""


def list_names(lake: Path, table: str) -> list[str]:
    """The names of the lists of a table's segments, as they are published now."""
    folder = lake / SEGMENTS / table
    with lake_errors(folder):
        names = STORAGE.names(folder)
    return [name for name in names if name.endswith(".json") and not name.startswith(".")]


def read_list(lake: Path, table: str, name: str) -> SegmentList | None:
    """A list by its name; None when there is no such file. LakeError when it is torn."""
    path = lake / SEGMENTS / table / name
    with lake_errors(path):
        try:
            content = STORAGE.read(path)
        except FileNotFoundError:
            return None
    return SegmentList.from_bytes(content, str(path))


def readable_lists(lake: Path, table: str) -> list[SegmentList]:
    """The lists of a table's segments that can be read, the last made last.

    The parts of a torn one are looked for elsewhere; `aaco_pipeline.lake.health` tells of it.
    """
    found = []
    for name in list_names(lake, table):
        try:
            one = read_list(lake, table, name)
        except NewerSegmentError:
            raise
        except LakeError:
            continue
        if one is not None:
            found.append(one)
    return sorted(found, key=lambda one: (one.segment.made, one.segment.name))


def where_held(lists: Iterable[SegmentList], ids: Collection[str] | None = None) -> dict[PartKey, Held]:
    """Where each part lies, or each of the sessions or campaigns `ids`: of several segments in that made last."""
    return {key: held for one in lists for key, held in one.held(ids)}


def require_part_intact(lake: Path, held: Held, told: str, seen: set[tuple[str, int]]) -> None:
    """LakeError when the footer or a row group in which the part lies is not what was written; `told` says whose it is.

    A process hashes each row group once, and no other than those that it needs; of those in `seen` it does not even
    look whether they are another's by now.
    """
    segment = held.segment
    wanted = (*segment.row_groups_of(held.first_row, held.rows), len(segment.row_groups))
    for number in wanted:
        if (segment.file, number) not in seen:
            one = segment.stretches[number]
            require_stretch(lake / segment.file, segment.bytes, (segment.begins[number], one.bytes), one.sha256, told)
            seen.add((segment.file, number))


def torn_stretches(lake: Path, segment: Segment) -> list[int]:
    """The row groups, and as the last number the footer, that are not what was written; read now from the disk."""
    path = lake / segment.file
    with lake_errors(path):
        state = STORAGE.state(path)
        if state is None or state.bytes != segment.bytes:
            return list(range(len(segment.stretches)))
        return [
            number
            for number, (begin, one) in enumerate(zip(segment.begins, segment.stretches, strict=True))
            if stretch_digest(path, begin, one.bytes) != one.sha256
        ]


def read_rows(
    lake: Path, segment: Segment, runs: Sequence[tuple[int, int]], columns: Sequence[str]
) -> "list[pl.DataFrame]":
    """The rows of a segment in `runs` of first row and number, one frame each; each row group is decoded once.

    Columns that the segment does not have are left out. What is torn is found by `require_part_intact`.
    """
    import polars as pl

    path = lake / segment.file
    wanted = sorted({number for first, rows in runs for number in segment.row_groups_of(first, rows)})
    begins = [number for number in wanted if number - 1 not in wanted]
    spans = zip(begins, [number + 1 for number in wanted if number + 1 not in wanted], strict=True)
    read: dict[int, pl.DataFrame] = {}
    try:
        rows_of = pl.scan_parquet(path, hive_partitioning=False, glob=False, cache=False)
        held = rows_of.collect_schema().names()
        chosen = rows_of.select([name for name in columns if name in held] or [PART_COLUMN])
        for begin, end in spans:
            first, rows = segment.first_rows[begin], segment.first_rows[end] - segment.first_rows[begin]
            read[first] = chosen.slice(first, rows).collect()
    except (pl.exceptions.PolarsError, OSError) as error:
        raise LakeError(f"{path}: cannot be read ({str(error).splitlines()[0]}); `aaco doctor` tells why") from error
    frames = []
    for first, rows in runs:
        span = max(begin for begin in read if begin <= first)
        frames.append(read[span].slice(first - span, rows))
    return frames


def columns_of(kind: type[Part] | type[RowGroup], records: Sequence[Any]) -> dict[str, list[Any]]:
    """Records as one array for each field: short, and a frame to any tool."""
    return {name: [getattr(one, name) for one in records] for name in kind._fields}
