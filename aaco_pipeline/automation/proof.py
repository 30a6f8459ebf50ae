"""Whether what is published of a session is what its raw capture gives: all tables computed again and compared.

The lake stays as it is; the tables made for the comparison are thrown away.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from aaco_pipeline.assets.stage import Session, publish, stages
from aaco_pipeline.errors import LakeError
from aaco_pipeline.lake.layout import CALIBRATIONS
from aaco_pipeline.lake.manifest import Entry
from aaco_pipeline.lake.store import TraceLake


@dataclass(frozen=True)
class Proof:
    """What came of computing a session again: how much was compared, and every table that differs, with how."""

    session: str
    stages: int
    tables: int
    differences: tuple[str, ...]

    @property
    def holds(self) -> bool:
        return not self.differences

    def __str__(self) -> str:
        compared = f"{self.stages} stages, {self.tables} tables"
        if self.holds:
            return f"{self.session}: {compared}, reproduced bit for bit"
        return f"{self.session}: {compared}, {len(self.differences)} differ: {'; '.join(self.differences)}"


def prove(lake: TraceLake, session: str, configs: Path, show: Callable[[str, int, int], None]) -> Proof:
    """Compute every stage of a session anew from its raw capture, and compare with what is published.

    LakeError when the session has no complete capture; CaptureError when that is damaged. `show` is told how far it is.
    """
    if not lake.raw(session).is_dir():
        raise LakeError(f"session {session} has no raw capture in {lake.path}; there is nothing to compute it from")
    with TemporaryDirectory(prefix="aaco-proof-") as folder:
        again = TraceLake(folder)
        for place in (lake.raw(session), lake.path / CALIBRATIONS):
            link = again.path / place.relative_to(lake.path)
            link.parent.mkdir(parents=True, exist_ok=True)
            if place.is_dir():
                link.symlink_to(place)
        opened = Session(again, session, configs)
        every = stages()
        for number, (name, one) in enumerate(every.items()):
            show(f"computing {name} of {session}", number, len(every))
            publish(opened, one, one(opened))
        published, made = lake.manifest(session).entries, again.manifest(session).entries
    return Proof(session, len(every), len(made), tuple(_differences(published, made)))


def _differences(published: tuple[Entry, ...], made: tuple[Entry, ...]) -> list[str]:
    """Tables by stage that are not the same bytes on both sides."""
    before, after = ({(one.stage, one.table): one for one in side} for side in (published, made))
    found = []
    for stage, table in sorted(before.keys() | after.keys()):
        old, new = before.get((stage, table)), after.get((stage, table))
        if old is None or new is None:
            found.append(f"{table} of {stage} is {'not published' if old is None else 'no longer made'}")
        elif (old.rows, old.sha256) != (new.rows, new.sha256):
            found.append(f"{table} of {stage}: {old.rows} rows published, {new.rows} computed, other content")
    return found
