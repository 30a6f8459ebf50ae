"""The manifest: what is published for one session or campaign, and nothing else says so.

Its text form and its checks live here; when it is replaced is decided in `aaco_pipeline.lake.store`.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import PurePosixPath
from typing import Any, Final

from aaco_pipeline.errors import LakeError
from aaco_pipeline.lake.declaration import Scope

MANIFEST_VERSION: Final = 1


@dataclass(frozen=True, order=True)
class Entry:
    """One published file: `file` is relative to the lake, `sha256` covers its bytes."""

    table: str
    stage: str
    file: str
    rows: int
    bytes: int
    sha256: str
    contract_version: int


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

    def to_bytes(self) -> bytes:
        document = {
            "manifest_version": MANIFEST_VERSION,
            "scope": self.scope,
            "id": self.id,
            "entries": [asdict(entry) for entry in self.entries],
        }
        return (json.dumps(document, indent=1, sort_keys=True) + "\n").encode()

    @staticmethod
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
            entries = tuple(sorted(_entry(item) for item in document["entries"]))
            scope, identifier = document["scope"], document["id"]
            if scope not in ("session", "campaign") or not isinstance(identifier, str):
                raise ValueError("scope or id is not as expected")
            return Manifest(scope, identifier, entries)
        except (ValueError, KeyError, TypeError) as error:
            raise LakeError(f"{source}: not a manifest ({error}); `aaco doctor` tells what can be mended") from error


def _entry(item: dict[str, Any]) -> Entry:
    values = {f.name: item[f.name] for f in fields(Entry)}
    for f in fields(Entry):
        if not isinstance(values[f.name], f.type if isinstance(f.type, type) else object):
            raise TypeError(f"entry field {f.name} is {values[f.name]!r}")
    path = PurePosixPath(values["file"])
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f"file {values['file']!r} leaves the lake")
    return Entry(**values)
