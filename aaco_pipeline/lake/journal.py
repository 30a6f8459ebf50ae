"""The journal of ingestion: which capture is which session, by the digest of its content, and how far it has come.

One small file for each digest, and one lock, so that the same capture handed over twice at once is one session. Taking
a capture in is `aaco_pipeline.pipeline.ingestion`; whether a session is whole says its manifest and not the journal.
No paths are kept here but those of files below what was handed over: where that lay is known by a digest alone.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from aaco_pipeline.lake.files import lake_errors
from aaco_pipeline.lake.layout import SESSION_ID, LakeFolder

JOURNAL: Final = "journal"
JOURNAL_VERSION: Final = 1
#: Whoever holds a capture's lock may be copying and analysing a large one.
WAIT_SECONDS: Final = 600.0
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_PLACE: Final = "place-"
_SEEN: Final = "seen-"
_COMPLETE: Final = "complete"


@dataclass(frozen=True)
class JournalEntry:
    """One capture: its session, how often it was begun, and whether its raw files are in the lake.

    `version` counts what arrived at one place one after the other; `follows` is the session of the version before.
    `writer` is the code of the last attempt.
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
        self._storage: Final = lake.storage

    @contextmanager
    def held(self, digest: str) -> Iterator[None]:
        """A block in which nobody else takes this capture in; the lock dies with its holder. LakeError after a wait."""
        path = self._path(digest).with_suffix(".lock")
        lock = self._storage.hold(path, WAIT_SECONDS, f"the capture {digest[:12]}")
        with ExitStack() as taken:
            with lake_errors(path):
                taken.enter_context(lock)
            taken.callback(self._storage.drop_lock, path)  # while it is held: whoever waits for it makes a new one
            yield

    def entry(self, digest: str) -> JournalEntry | None:
        """What is known of a capture; None when nothing is, or when its file is damaged."""
        content = self._read(self._path(digest))
        if content is None:
            return None
        try:
            entry = JournalEntry(**content)
        except TypeError:
            return None
        return entry if entry.digest == digest and SESSION_ID.fullmatch(entry.session_id) else None

    def entries(self) -> Iterator[JournalEntry]:
        """Every entry that can be read, in the order of the digests."""
        for name in self._storage.names(self.folder):
            digest, is_file, _ = name.partition(".json")
            if is_file and _DIGEST.fullmatch(digest) and (entry := self.entry(digest)) is not None:
                yield entry

    def sessions_held(self) -> set[str]:
        """The sessions whose capture somebody is taking in right now, of those that have an entry."""
        named = (name.removesuffix(".lock") for name in self._storage.names(self.folder) if name.endswith(".lock"))
        entries = [self.entry(digest) for digest in named if _DIGEST.fullmatch(digest) and self.is_held(digest)]
        return {entry.session_id for entry in entries if entry is not None}

    def is_held(self, digest: str) -> bool:
        """Whether somebody is taking this capture in right now."""
        with lake_errors(path := self._path(digest).with_suffix(".lock")):
            return self._storage.is_held(path)

    def keep(self, entry: JournalEntry) -> None:
        """Keep an entry, in place of the one before."""
        self._write(self._path(entry.digest), asdict(entry))

    def forget(self, digest: str) -> None:
        """Drop the entry of a capture that did not become a session."""
        with lake_errors(path := self._path(digest)):
            self._storage.remove(path)

    def forget_removed(self, raw: Callable[[str], Path]) -> None:
        """Drop the entries of captures whose session was removed, and locks that a kill has left behind.

        `raw` says where a session's raw files would be. Handed in again, such a capture becomes a new session.
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
        """Whether every capture of the lake has been entered; a lake of before the journal has to be looked through."""
        return self._storage.state(self.folder / _COMPLETE) is not None

    def complete(self) -> None:
        """State that every capture of the lake is entered."""
        with lake_errors(path := self.folder / _COMPLETE):
            self._storage.write(path, b"")

    def at(self, place: Path) -> dict[str, str]:
        """The digests of the runs that were last taken from a place, by their names inside it."""
        runs = (self._read(self._place(place)) or {}).get("runs", {})
        return {name: digest for name, digest in runs.items() if isinstance(digest, str) and _DIGEST.fullmatch(digest)}

    def keep_place(self, place: Path, runs: Mapping[str, str]) -> None:
        """Remember which runs lie at a place, so that what arrives there later is known as their next version."""
        self._write(self._place(place), {"runs": dict(runs)})

    def leave_place(self, place: Path) -> None:
        """Forget a place: what comes to lie there is a capture of its own."""
        with lake_errors(path := self._place(place)):
            self._storage.remove(path)

    def seen(self, path: Path) -> dict[str, Any]:
        """Read what was kept of the captures under a path; empty when there is nothing, or it is damaged."""
        return self._read(self._place(path, _SEEN)) or {}

    def keep_seen(self, path: Path, content: Mapping[str, Any]) -> None:
        """Keep how the captures under a path were found, in place of what was kept before."""
        self._write(self._place(path, _SEEN), content)

    def _path(self, digest: str) -> Path:
        assert _DIGEST.fullmatch(digest), digest
        return self.folder / f"{digest}.json"

    def _place(self, place: Path, kind: str = _PLACE) -> Path:
        name = hashlib.sha256(str(place.absolute()).encode(errors="surrogateescape")).hexdigest()
        return self.folder / f"{kind}{name[:32]}.json"

    def _read(self, path: Path) -> dict[str, Any] | None:
        """The content of a file of the journal; None when there is none, or it is not what was written."""
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
