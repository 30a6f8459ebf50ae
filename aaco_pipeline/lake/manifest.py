"""The manifest: what is published for one session or campaign, and nothing else says so.

Its text form and its checks live here; when it is replaced is decided in `aaco_pipeline.lake.store`.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from operator import itemgetter
from typing import Any, Final, NamedTuple

from aaco_pipeline.errors import LakeError
from aaco_pipeline.lake.declaration import Scope

#: 2: a table without rows has no file, and the key column is in a file's path alone. Version 1 is read as well.
MANIFEST_VERSION: Final = 2
#: A stage reads a dozen tables of the same few sessions; each manifest is then parsed once.
_REMEMBERED: Final = 64


class Entry(NamedTuple):
    """One published table: `file` is relative to the lake, `sha256` covers its bytes; both are "" without rows."""

    table: str
    stage: str
    file: str
    rows: int
    bytes: int
    sha256: str
    contract_version: int


_VALUES: Final = itemgetter(*Entry._fields)
_TYPES: Final = (str, str, str, int, int, str, int)


@dataclass(frozen=True)
class Manifest:
    """All entries of one session or campaign, sorted, so that equal content is equal bytes."""

    scope: Scope
    id: str
    entries: tuple[Entry, ...] = field(default=())

    def with_stage(self, stage: str, entries: Iterable[Entry]) -> "Manifest":
        """This manifest with everything `stage` published before replaced by `entries`."""
        kept = [entry for entry in self.entries if entry.stage != stage]
        return Manifest(self.scope, self.id, tuple(sorted([*kept, *entries])))

    def of_table(self, table: str) -> tuple[Entry, ...]:
        return tuple(entry for entry in self.entries if entry.table == table)

    def of_stage(self, stage: str) -> tuple[Entry, ...]:
        return tuple(entry for entry in self.entries if entry.stage == stage)

    @property
    def files(self) -> set[str]:
        """Every published file, relative to the lake."""
        return {entry.file for entry in self.entries if entry.file}

    def to_bytes(self) -> bytes:
        document = {
            "manifest_version": MANIFEST_VERSION,
            "scope": self.scope,
            "id": self.id,
            "entries": [entry._asdict() for entry in self.entries],
        }
        return (json.dumps(document, indent=1, sort_keys=True) + "\n").encode()

    @staticmethod
    @lru_cache(_REMEMBERED)
    def from_bytes(content: bytes, source: str) -> "Manifest":
        """Parse and check a manifest read from `source`; LakeError when it is newer or damaged."""
        try:
            document = json.loads(content)
            version = document["manifest_version"]
            if version > MANIFEST_VERSION:
                raise LakeError(
                    f"{source}: manifest version {version} is newer than {MANIFEST_VERSION}, the newest this "
                    "aaco_pipeline reads; upgrade aaco_pipeline"
                )
            scope, identifier = document["scope"], document["id"]
            if scope not in ("session", "campaign") or not isinstance(identifier, str):
                raise ValueError("scope or id is not as expected")
            return Manifest(scope, identifier, tuple(sorted(map(_entry, document["entries"]))))
        except (ValueError, KeyError, TypeError) as error:
            raise LakeError(f"{source}: not a manifest ({error}); `aaco doctor` tells what can be mended") from error


def _entry(item: dict[str, Any]) -> Entry:
    entry = Entry._make(_VALUES(item))
    if tuple(map(type, entry)) != _TYPES or (entry.rows and not entry.file):
        raise TypeError(f"entry {tuple(entry)!r} is not as expected")
    if entry.file.startswith("/") or ".." in entry.file.split("/"):
        raise ValueError(f"file {entry.file!r} leaves the lake")
    return entry
