"""The account of what retention removed from a lake, and removal that goes on where a kill stopped it.

Each line of the account is one JSON object, written through to the disk before (`begun`) and after (`removed`) a thing
goes; what was begun and not removed is gone on with by the next call. What goes is `aaco_pipeline.lake.retention`.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal

from aaco_pipeline.lake.files import lake_errors
from aaco_pipeline.lake.layout import LakeFolder

ACCOUNT: Final = "removals.jsonl"
#: Somebody else's round over the same lake is waited for so long.
WAIT_SECONDS: Final = 10.0
Kind = Literal["session", "campaign", "leftover", "run"]
_KINDS: Final = ("session", "campaign", "leftover", "run")
#: The rule by which goes what a person named: once begun it is gone on with, whatever limits would keep.
ASKED: Final = "asked"


@dataclass(frozen=True)
class Removal:
    """One thing that goes: a session or campaign by its id, a leftover by its path. Runs are of earlier versions."""

    kind: Kind
    name: str
    bytes: int
    rule: str
    reason: str


class Account:
    """The account of one lake. Creating the object touches nothing."""

    def __init__(self, lake: LakeFolder) -> None:
        self.path: Final = lake.path / ACCOUNT
        self._lock: Final = lake.path / ".locks" / "removals.lock"
        self._storage: Final = lake.storage

    @contextmanager
    def held(self) -> Iterator[None]:
        """A block in which nobody else removes by this account. LakeError after a wait."""
        with ExitStack() as taken:
            with lake_errors(self._lock):
                taken.enter_context(self._storage.hold(self._lock, WAIT_SECONDS, "the lake's retention"))
            taken.callback(self._storage.drop_lock, self._lock)
            yield

    def pending(self) -> list[Removal]:
        """What was begun and is not stated to be gone, in the order it was begun."""
        open_: dict[tuple[str, str], Removal] = {}
        for event, removal in self._lines():
            if event == "begun":
                open_[removal.kind, removal.name] = removal
            else:
                open_.pop((removal.kind, removal.name), None)
        return list(open_.values())

    def named(self, kind: Kind) -> set[str]:
        """The names of all of a kind whose removal was ever begun: they have been in this lake."""
        return {removal.name for _, removal in self._lines() if removal.kind == kind}

    def begin(self, removals: Sequence[Removal]) -> None:
        """State what is removed next."""
        self._append("begun", removals)

    def end(self, removals: Sequence[Removal]) -> None:
        """State that what was begun is gone."""
        self._append("removed", removals)

    def _append(self, event: str, removals: Sequence[Removal]) -> None:
        at = datetime.now(UTC).isoformat(timespec="seconds")
        lines = [json.dumps({"at": at, "event": event, **vars(removal)}) + "\n" for removal in removals]
        with lake_errors(self.path):
            self._storage.append(self.path, "".join(lines).encode())

    def _lines(self) -> Iterator[tuple[str, Removal]]:
        """What each whole line says."""
        with lake_errors(self.path):
            try:
                lines = self._storage.read(self.path).splitlines()
            except FileNotFoundError:
                return
        for line in lines:
            try:
                content = json.loads(line)
                event = content["event"]
                removal = Removal(*(content[name] for name in ("kind", "name", "bytes", "rule", "reason")))
            except (ValueError, KeyError, TypeError):
                continue  # cut off by a kill
            if removal.kind in _KINDS and isinstance(removal.name, str) and isinstance(removal.bytes, int):
                yield event, removal
