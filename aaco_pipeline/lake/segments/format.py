"""The format of a segment: a Parquet file with one table's rows of many sessions, and a list of their owners.

The manifests remain authoritative: a published table whose digest matches a part can be read from its own file or from
the segment, and a part that no manifest names is dead. `aaco_pipeline.lake.reading` chooses between the two;
`aaco_pipeline.lake.segments.compaction` decides what goes into segments.
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
from aaco_pipeline.lake.verified import require_section, section_digest

if TYPE_CHECKING:
    import polars as pl

SEGMENT_VERSION: Final = 1
#: Column with each row's part, as its index in the list.
PART_COLUMN: Final = "aaco_part"


class Part(NamedTuple):
    """One published table in a segment: owner, stage, and digest, rows, bytes and version of its own file."""

    id: str
    stage: str
    sha256: str
    rows: int
    bytes: int
    contract_version: int


PartKey = tuple[str, str, str]
"""Session or campaign, stage, and digest of the own file: together they identify a published table."""


class RowGroup(NamedTuple):
    """A section of a segment: its bytes, including any gap before it, their digest, and its rows."""

    bytes: int
    rows: int
    sha256: str


@dataclass(frozen=True)
class Segment:
    """A segment without its parts: the consecutive sections of the file, and its footer.

    `made` is the publication time, `table_version` the contract of its columns, `parts` the number of parts.
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
        """Return the Parquet file, relative to the lake."""
        return f"{SEGMENTS}/{self.table}/{self.name}.parquet"

    @property
    def list_file(self) -> str:
        """Return the list, relative to the lake."""
        return f"{SEGMENTS}/{self.table}/{self.name}.json"

    @property
    def sections(self) -> tuple[RowGroup, ...]:
        """Return the row groups and the footer: the complete file."""
        return (*self.row_groups, self.footer)

    @cached_property
    def bytes(self) -> int:
        return sum(one.bytes for one in self.sections)

    @cached_property
    def begins(self) -> tuple[int, ...]:
        """Return the offset of each section in bytes."""
        return tuple(accumulate((one.bytes for one in self.sections[:-1]), initial=0))

    @property
    def rows(self) -> int:
        return self.first_rows[-1]

    @cached_property
    def first_rows(self) -> tuple[int, ...]:
        """Return the first row of each row group, and the total number of rows."""
        return (0, *accumulate(one.rows for one in self.row_groups))

    def row_groups_of(self, first: int, rows: int) -> range:
        """Return the row groups that contain these rows."""
        begin = bisect_right(self.first_rows, first) - 1
        return range(begin, bisect_left(self.first_rows, first + rows))


class Held(NamedTuple):
    """The place of a part: its segment, its number there, and its rows."""

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
        """Return the parts as records, for callers that need all of them."""
        return tuple(map(Part._make, zip(*(self.columns[name] for name in Part._fields), strict=True)))

    def held(self, ids: Collection[str] | None = None) -> Iterator[tuple[PartKey, Held]]:
        """Yield the key and place of each part, or of each part of the owners `ids`."""
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
        """Parse and check the list read from `source`, which names the segment. LakeError if it is damaged."""
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
    """A segment written by a later version of this package: it is intact and must not be touched."""


def list_names(lake: Path, table: str) -> list[str]:
    """Return the names of the lists of a table's currently published segments."""
    folder = lake / SEGMENTS / table
    with lake_errors(folder):
        names = STORAGE.names(folder)
    return [name for name in names if name.endswith(".json") and not name.startswith(".")]


def read_list(lake: Path, table: str, name: str) -> SegmentList | None:
    """Read a list by its name; None if there is no such file. LakeError if it is torn."""
    path = lake / SEGMENTS / table / name
    with lake_errors(path):
        try:
            content = STORAGE.read(path)
        except FileNotFoundError:
            return None
    return SegmentList.from_bytes(content, str(path))


def readable_lists(lake: Path, table: str) -> list[SegmentList]:
    """Read the lists of a table's segments in order of creation, skipping torn ones.

    Parts of a torn list are searched for elsewhere; `aaco_pipeline.lake.health` reports it.
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
    """Locate each part, or each part of the owners `ids`; if several segments hold it, the newest counts."""
    return {key: held for one in lists for key, held in one.held(ids)}


def require_part_intact(lake: Path, held: Held, told: str, seen: set[tuple[str, int]]) -> None:
    """Raise LakeError if the footer or a row group of the part is damaged; `told` describes the part.

    A process hashes only the row groups it needs, once each; those in `seen` are not even checked for replacement.
    """
    segment = held.segment
    wanted = (*segment.row_groups_of(held.first_row, held.rows), len(segment.row_groups))
    for number in wanted:
        if (segment.file, number) not in seen:
            one = segment.sections[number]
            require_section(lake / segment.file, segment.bytes, (segment.begins[number], one.bytes), one.sha256, told)
            seen.add((segment.file, number))


def torn_sections(lake: Path, segment: Segment) -> list[int]:
    """Verify a segment completely on disk; return the numbers of damaged row groups (the footer is the last number)."""
    path = lake / segment.file
    with lake_errors(path):
        state = STORAGE.state(path)
        if state is None or state.bytes != segment.bytes:
            return list(range(len(segment.sections)))
        return [
            number
            for number, (begin, one) in enumerate(zip(segment.begins, segment.sections, strict=True))
            if section_digest(path, begin, one.bytes) != one.sha256
        ]


def read_rows(
    lake: Path, segment: Segment, runs: Sequence[tuple[int, int]], columns: Sequence[str]
) -> "list[pl.DataFrame]":
    """Read `runs` (first row and row count) of a segment, one frame each; each row group is decoded once.

    Columns missing from the segment are omitted. `require_part_intact` detects damage.
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
    """Turn records into one list per field, which is compact and can be used as a data frame by any tool."""
    return {name: [getattr(one, name) for one in records] for name in kind._fields}
