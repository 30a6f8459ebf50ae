"""Compaction: which files of the lake are put together into segments.

No manifest changes: what is published is read before and after, from the one place or the other. Reading segments is
`format`, writing one `writing`; what they have replaced is removed by `replaced`. A kill at any instant leaves every
row where it was or where it will be; the next call goes on.
"""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from aaco_pipeline.errors import LakeError
from aaco_pipeline.lake.contracts import all_tables
from aaco_pipeline.lake.declaration import Table
from aaco_pipeline.lake.files import lake_errors
from aaco_pipeline.lake.layout import SEGMENTS, LakeFolder, table_file
from aaco_pipeline.lake.segments.facts import Amount, Published, TableRound, made_of_lake
from aaco_pipeline.lake.segments.format import (
    NewerSegmentError,
    Part,
    Segment,
    SegmentList,
    readable_lists,
    torn_stretches,
    where_held,
)
from aaco_pipeline.lake.segments.replaced import Removal, drop_segment
from aaco_pipeline.lake.segments.writing import Source, write_segments
from aaco_pipeline.lake.store import TraceLake

#: A segment that is smaller is written anew with whatever has come since.
UNDERSIZED_BYTES: Final = 64 << 20
#: A session's own file that is larger gains nothing in a segment, and stays as it is.
LARGE_BYTES: Final = 16 << 20
#: A segment of whose rows a larger share is dead is written anew without them.
MOST_DEAD_RATIO: Final = 0.2
GRACE: Final = timedelta(days=1)

#: What this host remembers of a lake in which a round found nothing to do.
_DONE: Final = "compacted"

Progress = Callable[[str, int, int], None]


def compact(
    lake: TraceLake,
    now: datetime,
    grace: timedelta = GRACE,
    *,
    dry_run: bool = False,
    progress: Progress = lambda doing, done, total: None,
) -> list[TableRound]:
    """One round over all tables; what there was to do or to say of each, by name.

    LakeError when another round is under way, or the lake cannot be read or written.
    """
    with nullcontext() if dry_run else lake.compacting(), lake.catalogue() as known:
        if not dry_run:
            clear_unlisted(lake)
        made_of = made_of_lake(lake, known)
        if known.remembered(_DONE).get("") == (made_of, ""):
            return []
        state = Published(lake, known)
        names = sorted(all_tables())
        rounds: dict[str, TableRound] = {}
        for number, name in enumerate(names):
            progress("compacting tables", number, len(names))
            rounds[name] = _compact_table(lake, all_tables()[name], state, now, dry_run=dry_run)
        progress("compacting tables", len(names), len(names))
        for name in state.unknown_tables():
            rounds[name] = TableRound(name).and_left("this aaco_pipeline does not know the table; it stays as it is")
        removal = Removal(lake, state, rounds, (now, grace), dry_run=dry_run)
        for name in names:
            if (lists := _lists(lake, all_tables()[name])) is not None:
                removal.look_at(all_tables()[name], lists)
        for done, total in removal.remove_files():
            progress("removing replaced files", done, total)
        found = [one for one in rounds.values() if not one.is_nothing]
        if not found and not known.errors:  # nor does anything wait: until something changes there is nothing to do
            known.remember(_DONE, {"": (made_of, "")})
    return found


def rewrite(lake: TraceLake, segment: Segment, now: datetime) -> bool:
    """Write anew what can be read of a torn segment; whether it is gone, or was made whole from sessions' own files.

    It stays while something that it alone has is needed and cannot be read.
    """
    with lake.compacting(), lake.catalogue() as known:
        state, table = Published(lake, known), all_tables()[segment.table]
        _compact_table(lake, table, state, now, force=segment.name)
        lists = readable_lists(lake.path, segment.table)
        held = where_held(lists)
        for one in lists:
            if one.segment.name == segment.name and state.needed(table, one, held):
                return not torn_stretches(lake.path, one.segment)
        drop_segment(lake, segment)
    return True


def unlisted(lake: LakeFolder) -> Iterator[Path]:
    """What killed rounds left in the folders of segments: half a segment, or one whose list was not written yet."""
    with lake_errors(lake.path / SEGMENTS):
        for table in lake.storage.names(lake.path / SEGMENTS):
            folder = lake.path / SEGMENTS / table
            yield from lake.storage.unfinished(folder)
            names = {*lake.storage.names(folder)}
            for name in sorted(name for name in names if name.endswith(".parquet")):
                if f"{name.removesuffix('.parquet')}.json" not in names:
                    yield folder / name


def clear_unlisted(lake: LakeFolder) -> None:
    """Remove what killed rounds left; the caller holds the lock, so that nobody is writing."""
    for path in unlisted(lake):
        with lake_errors(path):
            lake.storage.discard(path)


def _lists(lake: TraceLake, table: Table) -> list[SegmentList] | None:
    """The lists of a table's segments; None when a later version of this package wrote one: it sees to the table."""
    try:
        lists = readable_lists(lake.path, table.name)
    except NewerSegmentError:
        return None
    return None if any(one.segment.table_version > table.version for one in lists) else lists


def _compact_table(
    lake: TraceLake, table: Table, state: Published, now: datetime, *, dry_run: bool = False, force: str = ""
) -> TableRound:
    """Put a table's loose files and its unfit segments together; `force` is a segment that is unfit in any case."""
    done = TableRound(table.name, written=None if dry_run else Amount())
    if (lists := _lists(lake, table)) is None:
        return done.and_left("a later aaco_pipeline has written its segments; upgrade aaco_pipeline to compact it")
    entries = state.entries(table)
    newer = sum(entry.contract_version > table.version for entry in entries.values())
    if newer:
        done = done.and_left(f"{newer} files are of a newer contract; upgrade aaco_pipeline to compact them")
    held = where_held(lists)
    loose = [
        Source(Part(*key, entry.rows, entry.bytes, entry.contract_version), entry.file, None)
        for key, entry in entries.items()
        if key not in held and entry.contract_version <= table.version and entry.bytes <= LARGE_BYTES
    ]
    unfit: list[tuple[Segment, list[Part]]] = []
    must = False
    for one in lists:
        if needed := state.needed(table, one, held):
            dead_ratio = 1 - sum(part.rows for part in needed) / one.segment.rows
            removed = any(map(state.is_removed, one.parts))
            urgent = removed or dead_ratio > MOST_DEAD_RATIO or one.segment.name == force
            if urgent or one.segment.bytes < UNDERSIZED_BYTES:
                unfit.append((one.segment, needed))
            must = must or urgent
    if not must and len(loose) + len(unfit) < 2:
        return done
    done = replace(
        done,
        taken=Amount(len(loose), sum(source.part.bytes for source in loose)),
        sessions=len({source.part.id for source in loose}),
        rewritten=Amount(len(unfit), sum(segment.bytes for segment, _ in unfit)),
    )
    if dry_run:
        return done
    sources = [
        Source(part, table_file(table.name, table.scope, *part[:3]), held[part[:3]])
        for _, needed in unfit
        for part in needed
    ]
    left: list[str] = []

    def tell(source: Source, error: LakeError) -> None:
        entries = lake.manifest(source.part.id, table.scope).of_table(table.name)
        if source.part.sha256 in {entry.sha256 for entry in entries}:  # and not superseded or removed meanwhile
            left.append(str(error))

    # Later than those that it replaces, though the clock be behind.
    made = max([now, *(one.segment.made + timedelta(microseconds=1) for one in lists)])
    written = Amount()
    for one in write_segments(lake.path, table, sorted([*loose, *sources]), made, tell):
        written = written.and_one(one.segment.bytes)
    return replace(done, written=written, left=(*done.left, *left))
