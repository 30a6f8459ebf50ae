"""Helpers for tests of the catalogue: manifests and lists to write, all questions, and the true answers."""

from collections.abc import Callable
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path
from typing import Final

from aaco_pipeline.errors import LakeError
from aaco_pipeline.lake.declaration import Scope
from aaco_pipeline.lake.manifest import Entry, Manifest, progress_of
from aaco_pipeline.lake.reading import read_manifest
from aaco_pipeline.lake.segments.format import (
    Part,
    RowGroup,
    Segment,
    SegmentList,
    columns_of,
)
from aaco_pipeline.lake.storage import LocalStorage
from aaco_pipeline.lake.store import TraceLake
from tests.lake.published import LATER, SESSION

SESSIONS: Final = (SESSION, LATER, "20250103T000000Z-0000000c-small")
CAMPAIGNS: Final = ("nightly", "nightly-2")
OWNERS: Final[tuple[tuple[Scope, str], ...]] = (
    *(("session", one) for one in SESSIONS),
    *(("campaign", one) for one in CAMPAIGNS),
)
PAGE: Final = 4096
TABLES: Final = ("sessions", "kernels", "verdicts")
SEGMENT_NAMES: Final = ("aa", "bb")


def cache_files(caches: Path) -> list[Path]:
    return sorted(caches.glob("*/*.sqlite"))


def entry(table: str, owner: tuple[Scope, str], stage: str, rows: int, digest: str) -> Entry:
    scope, identifier = owner
    file = f"{table}/{scope}_id={identifier}/{stage}-{digest[:12]}.parquet" if rows else ""
    return Entry(table, stage, file, rows, 10 * rows, digest if rows else "", 1)


def write(lake: TraceLake, manifest: Manifest) -> Path:
    path = lake.manifest_path(manifest.id, manifest.scope)
    lake.storage.write(path, manifest.to_bytes())
    return path


def list_path(lake: TraceLake, table: str, name: str) -> Path:
    return lake.path / "segments" / table / f"{name}.json"


def write_list(lake: TraceLake, table: str, name: str, parts: list[Part], day: int) -> None:
    groups = tuple(RowGroup(10, part.rows, "ab") for part in parts)
    made = datetime(2026, 1, day, tzinfo=UTC)
    segment = Segment(table, name, made, 1, len(parts), groups, RowGroup(3, 0, "cd"))
    lake.storage.write(list_path(lake, table, name), SegmentList(segment, columns_of(Part, parts)).to_bytes())


def answers(lake: TraceLake) -> dict[str, object]:
    """All that can be asked of the catalogue."""

    def asked(question: Callable[[], object]) -> object:
        try:
            return question()
        except LakeError as error:
            return str(error)

    with lake.catalogue() as known:
        return {
            "errors": {name: str(error) for name, error in known.errors.items()},
            "progress": known.progress(),
            "bytes": known.published_bytes(),
            "rows": asked(known.rows_of_tables),
            **{
                f"{question} of {scope} {table}": asked(answer)
                for scope in ("session", "campaign")
                for table in TABLES
                for question, answer in (
                    ("manifests", lambda scope=scope: list(known.manifests(scope))),
                    ("entries", lambda scope=scope, table=table: known.entries(table, scope)),
                    ("some", lambda scope=scope, table=table: known.entries(table, scope, lambda one: one != SESSION)),
                )
            },
        }


BYTES: Final = attrgetter("bytes")


def truth(lake: TraceLake) -> dict[str, object]:
    """The same from the manifests alone."""
    manifests: dict[str, Manifest] = {}
    errors: dict[str, LakeError] = {}
    for name in lake.storage.names(lake.path / "manifests"):
        if not name.endswith(".json"):
            continue
        try:
            if (found := read_manifest(lake.storage, lake.path / "manifests" / name)) is not None:
                manifests[found.id] = found
        except LakeError as error:
            errors[name.removesuffix(".json")] = error
    sessions = {name: one for name, one in sorted(manifests.items()) if one.scope == "session"}

    def unreadable(scope: Scope, but: str = "") -> str | None:
        of_scope = [one for one in sorted(errors) if (one in SESSIONS) == (scope == "session") and one != but]
        return str(errors[of_scope[0]]) if of_scope else None

    def entries(scope: Scope, table: str, but: str = "") -> list[tuple[str, Entry]]:
        of_scope = [one for _, one in sorted(manifests.items()) if one.scope == scope and one.id != but]
        return [(one.id, each) for one in of_scope for each in one.of_table(table)]

    rows: dict[str, int] = {}
    for each in (each for one in manifests.values() for each in one.entries):
        rows[each.table] = rows.get(each.table, 0) + each.rows
    return {
        "errors": {name: str(error) for name, error in errors.items()},
        "progress": {name: progress_of(one) for name, one in sessions.items()},
        "bytes": {name: sum(map(BYTES, (*one.entries, *one.artifacts))) for name, one in sessions.items()},
        "rows": unreadable("session") or unreadable("campaign") or rows,
        **{
            f"{question} of {scope} {table}": answer
            for scope in ("session", "campaign")
            for table in TABLES
            for question, answer in (
                (
                    "manifests",
                    unreadable(scope) or [one for _, one in sorted(manifests.items()) if one.scope == scope],
                ),
                ("entries", unreadable(scope) or entries(scope, table)),
                ("some", unreadable(scope, SESSION) or entries(scope, table, SESSION)),
            )
        },
    }


class Counting(LocalStorage):
    """A storage that counts the manifests that are read."""

    def __init__(self) -> None:
        self.read_now: list[str] = []

    def read(self, path: Path) -> bytes:
        self.read_now.append(path.stem)
        return super().read(path)
