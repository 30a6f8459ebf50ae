"""Where the parts of a table's segments lie, as this host keeps it: reading one session parses no list of all.

How it is compared with the lists, which stay the truth, is `documents`, in what form it is kept `segment_rows`.
"""

import sqlite3
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Final

from aaco_pipeline.errors import LakeError
from aaco_pipeline.lake.catalogue import segment_rows as kept
from aaco_pipeline.lake.catalogue.documents import KeptDocuments
from aaco_pipeline.lake.layout import SEGMENTS, LakeFolder
from aaco_pipeline.lake.segments.format import Held, NewerSegmentError, PartKey, SegmentList

#: Of more owners than this, all parts are looked at.
_MOST_NAMED: Final = 200


class SegmentCatalogue(KeptDocuments[SegmentList]):
    """What the lists of one table's segments say at one instant, to be asked within a `with`.

    `errors` holds why a list cannot be read, by the segment's name.
    """

    def __init__(self, lake: LakeFolder, table: str) -> None:
        self._table = table
        super().__init__(lake, f"{SEGMENTS}/{table}")

    def held(self, ids: Collection[str] | None = None) -> dict[PartKey, Held]:
        """Where each part lies, or each of the sessions or campaigns `ids`: of several segments in that made last.

        Where the cache is damaged unseen, some may lack. The parts of a torn list are looked for elsewhere;
        `aaco_pipeline.lake.health` tells of it. NewerSegmentError where a later version of this package wrote one.
        """
        for error in self.errors.values():
            if isinstance(error, NewerSegmentError):
                raise error
        segments = self._decoded(kept.segment, kept.SEGMENTS_OF_FOLDER, *self._names)
        named = [] if ids is None or len(ids) > _MOST_NAMED else sorted(ids)
        statement = kept.parts_of(len(named))
        return {
            key: held
            for segment in sorted(segments, key=lambda one: (one.made, one.name))
            for key, held in self._decoded(partial(kept.held, segment), statement, self._table, segment.name, *named)
            if ids is None or key[0] in ids
        }

    def _parse(self, content: bytes, path: Path) -> SegmentList:
        return SegmentList.from_bytes(content, str(path))

    def _keep(self, at: sqlite3.Connection, document: int, parsed: SegmentList) -> None:
        kept.keep(at, document, parsed)

    def _forget(self, at: sqlite3.Connection, document: int) -> None:
        kept.forget(at, document)

    def _forget_unused(self, at: sqlite3.Connection) -> None:
        """Names are all that is left of a segment, and those stay in use."""

    def _unkeepable(self, path: Path, reason: Exception) -> LakeError:
        return LakeError(f"{path}: not a segment's list ({reason}); `aaco doctor --mend` helps")
