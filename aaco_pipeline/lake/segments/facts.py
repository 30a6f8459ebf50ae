"""What compaction goes by, and what it tells: everything published by table, and what a round did with each table.

What is done is decided by `aaco_pipeline.lake.segments.compaction` and `aaco_pipeline.lake.segments.replaced`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from aaco_pipeline import __version__
from aaco_pipeline.lake.contracts import all_tables
from aaco_pipeline.lake.declaration import Table
from aaco_pipeline.lake.files import lake_errors
from aaco_pipeline.lake.layout import MANIFESTS, SEGMENTS
from aaco_pipeline.lake.manifest import Entry
from aaco_pipeline.lake.reading import LakeReader
from aaco_pipeline.lake.segments.format import Held, Part, PartKey, SegmentList

if TYPE_CHECKING:
    from aaco_pipeline.lake.catalogue.manifests import Catalogue


@dataclass(frozen=True)
class Amount:
    """So many files, and their bytes."""

    files: int = 0
    bytes: int = 0

    def and_one(self, bytes_: int) -> "Amount":
        """This with one file more."""
        return Amount(self.files + 1, self.bytes + bytes_)


@dataclass(frozen=True)
class TableRound:
    """What one round did, or would do, with one table.

    `taken` are sessions' files that came into segments, `sessions` whose they were; `rewritten` segments that were put
    together with them, and `written` those that came of it: None where it was only asked what would be. `gone` are
    sessions' files that segments have replaced, `waiting` files that wait until they may go, the first of them at
    `waiting_until`; `dropped` are segments that nothing needs any more. `left` says in a line each what stayed and why.
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
        """Whether there was nothing to do and is nothing to say."""
        return self in (TableRound(self.table), TableRound(self.table, written=None))

    def and_left(self, line: str) -> "TableRound":
        """This with one thing more that stayed."""
        return replace(self, left=(*self.left, line))

    def and_waiting(self, bytes_: int, until: datetime) -> "TableRound":
        """This with one file more that waits."""
        soonest = until if self.waiting_until is None else min(until, self.waiting_until)
        return replace(self, waiting=self.waiting.and_one(bytes_), waiting_until=soonest)


class Published:
    """What is published, as the catalogue has it; of `unreadable` manifests it is not known."""

    def __init__(self, lake: LakeReader, known: "Catalogue") -> None:
        self._known = known
        self._last: tuple[str, dict[PartKey, Entry]] = ("", {})
        self.unreadable: Final = frozenset(known.errors)
        names = lake.storage.names(lake.path / MANIFESTS)
        self._owners: Final = {name.removesuffix(".json") for name in names} | self.unreadable

    def entries(self, table: Table) -> Mapping[PartKey, Entry]:
        """All that has rows of a table, by what names a part."""
        if self._last[0] != table.name:
            found = self._known.entries(table.name, table.scope, lambda owner: owner not in self.unreadable)
            keyed = {(owner, entry.stage, entry.sha256): entry for owner, entry in found if entry.file}
            self._last = (table.name, keyed)
        return self._last[1]

    def unknown_tables(self) -> list[str]:
        """Tables that this package does not know; they are not looked for where a manifest cannot be read."""
        return [] if self.unreadable else sorted(self._known.rows_of_tables().keys() - all_tables().keys())

    def may_need(self, table: Table, part: Part) -> bool:
        """Whether a manifest names the part, or may name it because it cannot be read."""
        return part.id in self.unreadable or part[:3] in self.entries(table)

    def is_removed(self, part: Part) -> bool:
        """Whether the session or campaign of the part is in the lake no more."""
        return part.id not in self._owners

    def needed(self, table: Table, one: SegmentList, held: Mapping[PartKey, Held]) -> list[Part]:
        """The parts of a segment that may be published, and are `held` by no segment made later."""
        return [
            part for part in one.parts if held[part[:3]].segment.name == one.segment.name and self.may_need(table, part)
        ]


def made_of_lake(lake: LakeReader, known: "Catalogue") -> str:
    """What is another text whenever a round may find something else to do, but for files that wait.

    It tells of every manifest's content, of the segments, of whose own files there are, and of what decides.
    """
    found = sha256(repr((__version__, sorted((one.name, one.version) for one in all_tables().values()))).encode())
    found.update(known.digest().encode())
    for name in sorted(all_tables()):
        with lake_errors(lake.path / SEGMENTS / name):
            segments = [(one.name, one.version) for one in lake.storage.listed(lake.path / SEGMENTS / name)]
            found.update(repr((name, segments, lake.storage.names(lake.path / name))).encode())
    return found.hexdigest()
