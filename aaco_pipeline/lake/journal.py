"""The journal of ingestion: the session of each capture, by content digest, and its progress.

There is one small file and one lock per digest, so that a capture submitted twice at once becomes one session.
`aaco_pipeline.pipeline.ingestion` ingests captures. The journal stores only relative file paths; their original
location is stored as a digest.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from aaco_pipeline.lake.files import lake_errors
from aaco_pipeline.lake.layout import SESSION_ID, LakeFolder

JOURNAL: Final = "journal"
JOURNAL_VERSION: Final = 1
#: The holder of a capture's lock may be copying and analysing a large one.
WAIT_SECONDS: Final = 600.0
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_PLACE: Final = "place-"
_SEEN: Final = "seen-"
_COMPLETE: Final = "complete"


@dataclass(frozen=True)
class JournalEntry:
    """One capture: its session, the number of attempts, and whether its raw files are in the lake.

    `version` counts successive captures at one location; `follows` is the session of the previous version. `writer` is
    the code version of the last attempt.
    """

    digest: str
    session_id: str
    attempts: int
    is_captured: bool
    writer: str
    version: int = 1
    follows: str | None = None


class Journal:
    """The journal of one lake. Creating the object touches nothing."""

    def __init__(self, lake: LakeFolder) -> None:
        self.folder: Final = lake.path / JOURNAL
        self._lake: Final = lake
        self._storage: Final = lake.storage

    def held(self, digest: str) -> AbstractContextManager[None]:
        """Keep others from ingesting this capture. LakeError if the wait times out."""
        return self._lake.holding(self._path(digest).with_suffix(".lock"), f"the capture {digest[:12]}", WAIT_SECONDS)

    def entry(self, digest: str) -> JournalEntry | None:
        """Return the entry of a capture; None if there is none or its file is damaged."""
        content = self._read(self._path(digest))
        if content is None:
            return None
        try:
            entry = JournalEntry(**content)
        except TypeError:
            return None
        return entry if entry.digest == digest and SESSION_ID.fullmatch(entry.session_id) else None

    def entries(self) -> Iterator[JournalEntry]:
        """Yield every readable entry, in the order of the digests."""
        for name in self._storage.names(self.folder):
            digest, is_file, _ = name.partition(".json")
            if is_file and _DIGEST.fullmatch(digest) and (entry := self.entry(digest)) is not None:
                yield entry

    def sessions_held(self) -> set[str]:
        """Return the sessions whose capture is being ingested right now."""
        named = (name.removesuffix(".lock") for name in self._storage.names(self.folder) if name.endswith(".lock"))
        entries = [self.entry(digest) for digest in named if _DIGEST.fullmatch(digest) and self.is_held(digest)]
        return {entry.session_id for entry in entries if entry is not None}

    def is_held(self, digest: str) -> bool:
        """Return whether any process is ingesting this capture right now."""
        with lake_errors(path := self._path(digest).with_suffix(".lock")):
            return self._storage.is_held(path)

    def keep(self, entry: JournalEntry) -> None:
        """Write an entry, replacing the previous one."""
        self._write(self._path(entry.digest), asdict(entry))

    def forget(self, digest: str) -> None:
        """Remove the entry of a capture that did not become a session."""
        with lake_errors(path := self._path(digest)):
            self._storage.remove(path)

    def forget_removed(self, raw: Callable[[str], Path]) -> None:
        """Remove the entries of captures whose session was removed, and locks that killed processes left behind.

        `raw` locates a session's raw files. If submitted again, such a capture becomes a new session.
        """
        for entry in self.entries():
            if (
                entry.is_captured
                and self._storage.state(raw(entry.session_id)) is None
                and not self.is_held(entry.digest)
            ):
                with self.held(entry.digest):
                    if self.entry(entry.digest) == entry:
                        self.forget(entry.digest)
        with lake_errors(self.folder):
            for name in self._storage.names(self.folder):
                if name.endswith(".lock"):
                    self._storage.drop_free_lock(self.folder / name)
                elif name.startswith(_SEEN) and not self._is_of_present(name, raw):
                    self._storage.remove(self.folder / name)

    def _is_of_present(self, name: str, raw: Callable[[str], Path]) -> bool:
        sessions = (self._read(self.folder / name) or {}).get("sessions", {})
        return bool(sessions) and all(self._storage.state(raw(one)) is not None for one in sessions)

    @property
    def is_complete(self) -> bool:
        """True if every capture of the lake has an entry; older lakes must be searched first."""
        return self._storage.state(self.folder / _COMPLETE) is not None

    def complete(self) -> None:
        """Record that every capture of the lake has an entry."""
        with lake_errors(path := self.folder / _COMPLETE):
            self._storage.write(path, b"")

    def at(self, place: Path) -> dict[str, str]:
        """Return the digests of the runs last ingested from a location, by their names inside it."""
        runs = (self._read(self._place(place)) or {}).get("runs", {})
        return {name: digest for name, digest in runs.items() if isinstance(digest, str) and _DIGEST.fullmatch(digest)}

    def keep_place(self, place: Path, runs: Mapping[str, str]) -> None:
        """Remember the runs at a location, so that later captures there are recognised as their next version."""
        self._write(self._place(place), {"runs": dict(runs)})

    def leave_place(self, place: Path) -> None:
        """Forget a location: the next capture there is a new one."""
        with lake_errors(path := self._place(place)):
            self._storage.remove(path)

    def seen(self, path: Path) -> dict[str, Any]:
        """Return the value stored by `keep_seen` for a path; empty if there is none or it is damaged."""
        return self._read(self._place(path, _SEEN)) or {}

    def keep_seen(self, path: Path, content: Mapping[str, Any]) -> None:
        """Store how the captures under a path were found, replacing any earlier value."""
        self._write(self._place(path, _SEEN), content)

    def _path(self, digest: str) -> Path:
        assert _DIGEST.fullmatch(digest), digest
        return self.folder / f"{digest}.json"

    def _place(self, place: Path, kind: str = _PLACE) -> Path:
        name = hashlib.sha256(str(place.absolute()).encode(errors="surrogateescape")).hexdigest()
        return self.folder / f"{kind}{name[:32]}.json"

    def _read(self, path: Path) -> dict[str, Any] | None:
        """Return the content of a file of the journal; None if it is missing or damaged."""
        with lake_errors(path):
            try:
                text = self._storage.read(path)
            except FileNotFoundError:
                return None
        try:
            document = json.loads(text)
            content = document["content"]
            is_intact = document["sha256"] == _digest(content) and document["journal_version"] == JOURNAL_VERSION
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
        return content if is_intact and isinstance(content, dict) else None

    def _write(self, path: Path, content: Mapping[str, Any]) -> None:
        document = {"journal_version": JOURNAL_VERSION, "content": content, "sha256": _digest(content)}
        with lake_errors(path):
            self._storage.write(path, (json.dumps(document, indent=1, sort_keys=True) + "\n").encode())


def _digest(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
