"""Compaction: merge small table files of many sessions into segments, and remove files that segments replaced.

Manifests do not change, and after a kill every row is in its old or its new place. `format` reads segments; `writing`
writes them.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from aaco_pipeline import __version__
from aaco_pipeline.errors import LakeError
from aaco_pipeline.lake.contracts import all_tables
from aaco_pipeline.lake.declaration import Scope, Table
from aaco_pipeline.lake.files import lake_errors
from aaco_pipeline.lake.layout import MANIFESTS, SEGMENTS, LakeFolder, table_file
from aaco_pipeline.lake.manifest import Entry
from aaco_pipeline.lake.reading import LakeReader
from aaco_pipeline.lake.segments.format import (
    Held,
    NewerSegmentError,
    Part,
    PartKey,
    Segment,
    SegmentList,
    readable_lists,
    torn_sections,
    where_held,
)
from aaco_pipeline.lake.segments.writing import Source, write_segments
from aaco_pipeline.lake.store import TraceLake

if TYPE_CHECKING:
    from aaco_pipeline.lake.catalogue import Catalogue


@dataclass(frozen=True)
class Amount:
    """A number of files and their bytes."""

    files: int = 0
    bytes: int = 0

    def and_one(self, bytes_: int) -> "Amount":
        """Add one file."""
        return Amount(self.files + 1, self.bytes + bytes_)


@dataclass(frozen=True)
class TableRound:
    """The actions of one compaction on one table, completed or planned.

    `taken` are sessions' files merged into segments, `sessions` the number of their owners, `rewritten` the segments
    merged with them, `written` the resulting segments (None in a dry run). `gone` are sessions' files replaced by
    segments, `waiting` files still in their grace period, which first ends at `waiting_until`; `dropped` are unneeded
    segments. Each line of `left` names an item that stayed and the reason.
    """

    table: str
    taken: Amount = Amount()
    sessions: int = 0
    rewritten: Amount = Amount()
    written: Amount | None = Amount()
    gone: Amount = Amount()
    waiting: Amount = Amount()
    waiting_until: datetime | None = None
    dropped: Amount = Amount()
    left: tuple[str, ...] = field(default=())

    @property
    def is_nothing(self) -> bool:
        """True if there was nothing to do and nothing to report."""
        return self in (TableRound(self.table), TableRound(self.table, written=None))

    def and_left(self, line: str) -> "TableRound":
        """Add a line about something that stayed."""
        return replace(self, left=(*self.left, line))

    def and_waiting(self, bytes_: int, until: datetime) -> "TableRound":
        """Add one waiting file."""
        soonest = until if self.waiting_until is None else min(until, self.waiting_until)
        return replace(self, waiting=self.waiting.and_one(bytes_), waiting_until=soonest)


class Published:
    """Everything published according to the catalogue; unknown for `unreadable` manifests."""

    def __init__(self, lake: LakeReader, known: "Catalogue") -> None:
        self._known = known
        self._last: tuple[str, dict[PartKey, Entry]] = ("", {})
        self.unreadable: Final = frozenset(known.errors)
        names = lake.storage.names(lake.path / MANIFESTS)
        self._owners: Final = {name.removesuffix(".json") for name in names} | self.unreadable

    def entries(self, table: Table) -> Mapping[PartKey, Entry]:
        """Return all non-empty published entries of a table, by the key of the part."""
        if self._last[0] != table.name:
            found = self._known.entries(table.name, table.scope, lambda owner: owner not in self.unreadable)
            keyed = {(owner, entry.stage, entry.sha256): entry for owner, entry in found if entry.file}
            self._last = (table.name, keyed)
        return self._last[1]

    def unknown_tables(self) -> list[str]:
        """Return tables unknown to this package; not determined if a manifest is unreadable."""
        return [] if self.unreadable else sorted(self._known.rows_of_tables().keys() - all_tables().keys())

    def may_need(self, table: Table, part: Part) -> bool:
        """Return whether a manifest names the part, or could name it because it is unreadable."""
        return part.id in self.unreadable or part[:3] in self.entries(table)

    def is_removed(self, part: Part) -> bool:
        """Return whether the session or campaign of the part was removed."""
        return part.id not in self._owners

    def needed(self, table: Table, one: SegmentList, held: Mapping[PartKey, Held]) -> list[Part]:
        """Return the parts of a segment that may be published and are in no later segment."""
        return [
            part for part in one.parts if held[part[:3]].segment.name == one.segment.name and self.may_need(table, part)
        ]


def made_of_lake(lake: LakeReader, known: "Catalogue") -> str:
    """Return a digest that changes whenever compaction may find new work, apart from waiting files.

    It covers manifests, segments, folders with own files, and the versions of code and contracts.
    """
    found = sha256(repr((__version__, sorted((one.name, one.version) for one in all_tables().values()))).encode())
    found.update(known.digest().encode())
    for name in sorted(all_tables()):
        with lake_errors(lake.path / SEGMENTS / name):
            segments = [(one.name, one.version) for one in lake.storage.listed(lake.path / SEGMENTS / name)]
            found.update(repr((name, segments, lake.storage.names(lake.path / name))).encode())
    return found.hexdigest()


class Replaced(NamedTuple):
    """A table's own file of a session or campaign that a segment has replaced."""

    table: Table
    entry: Entry
    segment: Segment


class Removal:
    """One round of removals, recorded in `rounds` by table. With `dry_run`, nothing is removed."""

    def __init__(
        self,
        lake: TraceLake,
        published: Published,
        rounds: dict[str, TableRound],
        until: tuple[datetime, timedelta],
        *,
        dry_run: bool,
    ) -> None:
        self._lake = lake
        self._published = published
        self._rounds = rounds
        self._now, self._grace = until
        self._dry_run = dry_run
        self._torn: dict[str, bool] = {}
        self._ripe: dict[tuple[Scope, str], list[Replaced]] = defaultdict(list)

    def look_at(self, table: Table, lists: Sequence[SegmentList]) -> None:
        """Drop unneeded segments of the table, and collect the files that `remove_files` may remove."""
        held, first_held = where_held(lists), _first_held(lists)
        for key, entry in self._with_own_file(table):
            if (where := held.get(key)) is None:
                continue
            until = first_held[key] + self._grace
            if until <= self._now:
                self._ripe[table.scope, key[0]].append(Replaced(table, entry, where.segment))
            else:
                self._rounds[table.name] = self._rounds[table.name].and_waiting(entry.bytes, until)
        for one in lists:
            if not self._published.needed(table, one, held):
                later = [other for other in lists if other.segment.made > one.segment.made]
                self._drop(table, one, held, _first_held(later))

    def remove_files(self) -> Iterator[tuple[int, int]]:
        """Remove the files; yield how many sessions and campaigns were handled, and their total number."""
        for number, ((scope, owner), files) in enumerate(sorted(self._ripe.items())):
            whole = [one for one in files if self._is_intact(one.segment)]
            for one in whole if self._dry_run else self._remove(scope, owner, whole):
                done = self._rounds[one.table.name]
                self._rounds[one.table.name] = replace(done, gone=done.gone.and_one(one.entry.bytes))
            yield number + 1, len(self._ripe)

    def _with_own_file(self, table: Table) -> Iterator[tuple[PartKey, Entry]]:
        folder = self._lake.path / table.name
        with lake_errors(folder):
            present = {name.partition("=")[2] for name in self._lake.storage.names(folder)}
            for key, entry in self._published.entries(table).items():
                if key[0] in present and self._lake.storage.state(self._lake.path / entry.file) is not None:
                    yield key, entry

    def _drop(
        self,
        table: Table,
        one: SegmentList,
        held: Mapping[PartKey, Held],
        replaced_at: Mapping[PartKey, datetime],
    ) -> None:
        """Drop an unneeded segment: at once if it is completely dead or some of it was removed.

        A segment replaced by later ones waits for the grace period, because its readers may not know them yet.
        """
        segment = one.segment
        live = [part for part in one.parts if self._published.may_need(table, part)]
        later = {holder.name: holder for holder in (held[part[:3]].segment for part in live)}
        until = max((replaced_at[part[:3]] + self._grace for part in live), default=self._now)
        done = self._rounds[segment.table]
        if until > self._now and not any(map(self._published.is_removed, one.parts)):
            self._rounds[segment.table] = done.and_waiting(segment.bytes, until)
        elif all(map(self._is_intact, later.values())):
            if not self._dry_run:
                drop_segment(self._lake, segment)
            self._rounds[segment.table] = replace(done, dropped=done.dropped.and_one(segment.bytes))

    def _is_intact(self, segment: Segment) -> bool:
        """Verify a segment on disk; a damaged one is reported once."""
        if segment.file not in self._torn:
            self._torn[segment.file] = bool(torn_sections(self._lake.path, segment))
            if self._torn[segment.file]:
                told = f"{self._lake.path / segment.file}: torn; what it replaced stays, `aaco doctor --mend` helps"
                self._rounds[segment.table] = self._rounds[segment.table].and_left(told)
        return not self._torn[segment.file]

    def _remove(self, scope: Scope, owner: str, files: Sequence[Replaced]) -> list[Replaced]:
        """Remove an owner's files that are still published, and return them."""
        path = self._lake.manifest_path(owner, scope)
        with lake_errors(path):
            if self._lake.storage.state(path) is None:
                return []
            with self._lake.locked(owner, scope):
                named = set(self._lake.manifest(owner, scope).entries)
                gone = [one for one in files if one.entry in named]
                for one in gone:
                    file = self._lake.path / one.entry.file
                    self._lake.storage.clear(file.parent, [file.name])
        return gone


def _first_held(lists: Sequence[SegmentList]) -> dict[PartKey, datetime]:
    """Return when each part first entered a segment; its current segment may be newer."""
    return {key: one.segment.made for one in reversed(lists) for key, _ in one.held()}


def drop_segment(lake: LakeFolder, segment: Segment) -> None:
    """Remove a segment: first its list, so that nobody searches for it, then its rows."""
    with lake_errors(lake.path / segment.file):
        lake.storage.remove(lake.path / segment.list_file)
        lake.storage.remove(lake.path / segment.file)


#: A smaller segment is rewritten together with newer files.
UNDERSIZED_BYTES: Final = 64 << 20
#: A larger file gains nothing from a segment and stays as it is.
LARGE_BYTES: Final = 16 << 20
#: A segment with a larger fraction of dead rows is rewritten without them.
MOST_DEAD_RATIO: Final = 0.2
GRACE: Final = timedelta(days=1)

#: The key under which this host records that a round found nothing to do.
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
    """Run one round over all tables; return by name the rounds that did or reported something.

    LakeError if another round is running, or the lake cannot be read or written.
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
        if not found and not known.errors:  # nothing is waiting either: no work until something changes
            known.remember(_DONE, {"": (made_of, "")})
    return found


def rewrite(lake: TraceLake, segment: Segment, now: datetime) -> bool:
    """Rewrite the readable parts of a torn segment; return whether it is gone or intact again.

    It stays while it is the only copy of a needed part that is unreadable.
    """
    with lake.compacting(), lake.catalogue() as known:
        state, table = Published(lake, known), all_tables()[segment.table]
        _compact_table(lake, table, state, now, force=segment.name)
        lists = readable_lists(lake.path, segment.table)
        held = where_held(lists)
        for one in lists:
            if one.segment.name == segment.name and state.needed(table, one, held):
                return not torn_sections(lake.path, one.segment)
        drop_segment(lake, segment)
    return True


def unlisted(lake: LakeFolder) -> Iterator[Path]:
    """Yield leftovers of killed rounds: half-written segments, and segments without a list."""
    with lake_errors(lake.path / SEGMENTS):
        for table in lake.storage.names(lake.path / SEGMENTS):
            folder = lake.path / SEGMENTS / table
            yield from lake.storage.unfinished(folder)
            names = {*lake.storage.names(folder)}
            for name in sorted(name for name in names if name.endswith(".parquet")):
                if f"{name.removesuffix('.parquet')}.json" not in names:
                    yield folder / name


def clear_unlisted(lake: LakeFolder) -> None:
    """Remove leftovers of killed rounds; the caller holds the lock, so there is no other writer."""
    for path in unlisted(lake):
        with lake_errors(path):
            lake.storage.discard(path)


def _lists(lake: TraceLake, table: Table) -> list[SegmentList] | None:
    """Return the lists of a table's segments; None if a later version, which then handles the table, wrote one."""
    try:
        lists = readable_lists(lake.path, table.name)
    except NewerSegmentError:
        return None
    return None if any(one.segment.table_version > table.version for one in lists) else lists


def _compact_table(
    lake: TraceLake, table: Table, state: Published, now: datetime, *, dry_run: bool = False, force: str = ""
) -> TableRound:
    """Merge a table's loose files and unfit segments; the segment `force` is always treated as unfit."""
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
        if source.part.sha256 in {entry.sha256 for entry in entries}:  # not superseded or removed meanwhile
            left.append(str(error))

    # Newer than the segments it replaces, even if the clock is behind.
    made = max([now, *(one.segment.made + timedelta(microseconds=1) for one in lists)])
    written = Amount()
    for one in write_segments(lake.path, table, sorted([*loose, *sources]), made, tell):
        written = written.and_one(one.segment.bytes)
    return replace(done, written=written, left=(*done.left, *left))
