"""Find and repair damaged segments, and tell whether a table without its own file is intact in one.

Faults of everything else, and the form of all reports, are `aaco_pipeline.lake.health`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import Final

from aaco_pipeline.errors import LakeError
from aaco_pipeline.lake.contracts import all_tables
from aaco_pipeline.lake.files import lake_errors
from aaco_pipeline.lake.layout import SEGMENTS, LakeFolder
from aaco_pipeline.lake.manifest import Entry
from aaco_pipeline.lake.segments.compaction import clear_unlisted, rewrite, unlisted
from aaco_pipeline.lake.segments.format import (
    Held,
    NewerSegmentError,
    PartKey,
    SegmentList,
    list_names,
    read_list,
    torn_sections,
)
from aaco_pipeline.lake.store import TraceLake

TORN_SEGMENT: Final = "torn segment"
UNFINISHED_SEGMENT: Final = "unfinished segment"


@dataclass(frozen=True)
class Fault:
    """Damage in the lake, and whether it can be repaired.

    With a `session`, repairing marks the session as not whole, and running its stages again repairs the fault.
    """

    kind: str
    path: Path
    explanation: str
    mendable: bool
    session: str | None = None


class Segments:
    """Every segment of a lake, each read once from disk and verified by its list."""

    def __init__(self, lake: LakeFolder) -> None:
        self.faults: list[Fault] = []
        self._torn: dict[str, set[int]] = {}
        #: Short digests of the keys of intact parts, by table: a large lake has half a million of them.
        self._whole: dict[str, set[bytes]] = {}
        for table in lake.storage.names(lake.path / SEGMENTS):
            lists = [one for name in list_names(lake.path, table) if (one := self._look_at(lake, table, name))]
            whole = self._whole[table] = set()
            for one in sorted(lists, key=lambda one: (one.segment.made, one.segment.name)):
                for key, held in one.held():  # of several segments, the one made last counts
                    (whole.add if self._is_whole(held) else whole.discard)(_short(key))
        self.faults += unfinished_segments(lake)

    def hold(self, owner: str, entry: Entry) -> bool:
        """Tell whether a published table is intact in a segment."""
        return _short((owner, entry.stage, entry.sha256)) in self._whole.get(entry.table, ())

    def _is_whole(self, held: Held) -> bool:
        torn = self._torn[held.segment.file]
        row_groups = held.segment.row_groups
        return not torn or not torn & {*held.segment.row_groups_of(held.first_row, held.rows), len(row_groups)}

    def _look_at(self, lake: LakeFolder, table: str, name: str) -> SegmentList | None:
        path = lake.path / SEGMENTS / table / name
        try:
            one = read_list(lake.path, table, name)
        except LakeError as error:
            is_newer = isinstance(error, NewerSegmentError)  # intact, not to be touched
            kind = "newer segment" if is_newer else TORN_SEGMENT
            self.faults.append(Fault(kind, path, str(error), not is_newer))
            return None
        if one is not None:
            torn = self._torn[one.segment.file] = set(torn_sections(lake.path, one.segment))
            if torn:
                told = f"{len(torn)} of its {len(one.segment.sections)} sections are not what was written"
                self.faults.append(Fault(TORN_SEGMENT, path, f"{told}; the others are written anew", True))
        return one


def _short(key: PartKey) -> bytes:
    """A short digest of a part's key."""
    return blake2b("\n".join(key).encode(), digest_size=16).digest()


def unfinished_segments(lake: LakeFolder) -> Iterator[Fault]:
    """Yield leftovers of killed compactions; none while one is running."""
    left = list(unlisted(lake))
    if not lake.is_compacting():
        for path in left:
            yield Fault(UNFINISHED_SEGMENT, path, "left by a compaction that was killed", True)


def mend_segment(lake: TraceLake, path: Path) -> bool:
    """Repair a torn or unfinished segment as far as possible; return whether it is gone.

    Readable parts of a torn one are rewritten. It stays while a session or campaign needs an unreadable part, which
    must be published again first.
    """
    if path.suffix != ".json":  # a torn one is named by its list
        with lake.compacting():
            clear_unlisted(lake)
        return lake.storage.state(path) is None
    table = path.parent.name
    try:
        one = read_list(lake.path, table, path.name)
    except LakeError:
        if not _is_whole_without(lake, table):
            return False
        with lake.compacting(), lake_errors(path):
            lake.storage.remove(path)
            clear_unlisted(lake)
        return True
    return one is None or rewrite(lake, one.segment, datetime.now(UTC))


def _is_whole_without(lake: TraceLake, table: str) -> bool:
    """Tell whether everything published of a table is intact elsewhere; False if a manifest is torn."""
    declared = all_tables()[table]
    try:
        lake.places(declared, lake.published([declared])[table])
    except LakeError:
        return False
    return True
