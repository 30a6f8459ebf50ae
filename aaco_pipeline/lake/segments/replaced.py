"""Removing what segments have replaced: sessions' own files, and earlier segments, once nobody may still look for them.

Nothing goes before the segment in its place was read back from the disk and found whole.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import NamedTuple

from aaco_pipeline.lake.declaration import Scope, Table
from aaco_pipeline.lake.files import lake_errors
from aaco_pipeline.lake.layout import LakeFolder
from aaco_pipeline.lake.manifest import Entry
from aaco_pipeline.lake.segments.facts import Published, TableRound
from aaco_pipeline.lake.segments.format import Held, PartKey, Segment, SegmentList, torn_stretches, where_held
from aaco_pipeline.lake.store import TraceLake


class Replaced(NamedTuple):
    """A session's or campaign's own file of a table that a segment has replaced."""

    table: Table
    entry: Entry
    segment: Segment


class Removal:
    """One round of removing; what it did is put down in `rounds`, by table. With `dry_run` nothing goes."""

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
        """Drop the table's segments that nothing needs, and see which sessions' files `remove_files` may remove."""
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
        """Remove the files; how many sessions and campaigns have been looked at, and of how many."""
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
        """Drop a segment that nothing needs: at once when all of it is dead or some of it was removed.

        One that later segments have replaced waits for the grace, as its readers may not know of them yet.
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
        """Whether all of a segment is as it was written, on the disk, now; told once of one that is not."""
        if segment.file not in self._torn:
            self._torn[segment.file] = bool(torn_stretches(self._lake.path, segment))
            if self._torn[segment.file]:
                told = f"{self._lake.path / segment.file}: torn; what it replaced stays, `aaco doctor --mend` helps"
                self._rounds[segment.table] = self._rounds[segment.table].and_left(told)
        return not self._torn[segment.file]

    def _remove(self, scope: Scope, owner: str, files: Sequence[Replaced]) -> list[Replaced]:
        """Remove those of a session's or campaign's files that are still published; these."""
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
    """Since when each part has been in a segment: those in which it is now are younger where it was moved since."""
    return {key: one.segment.made for one in reversed(lists) for key, _ in one.held()}


def drop_segment(lake: LakeFolder, segment: Segment) -> None:
    """Remove a segment: first its list, from then on nobody looks for it, then its rows."""
    with lake_errors(lake.path / segment.file):
        lake.storage.remove(lake.path / segment.list_file)
        lake.storage.remove(lake.path / segment.file)
