"""Whether what is published of a session is what its raw capture gives: all tables computed again and compared.

The lake stays as it is; the tables made for the comparison are thrown away.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from aaco_pipeline.assets.stage import Session, publish, stages, standing
from aaco_pipeline.errors import LakeError
from aaco_pipeline.lake.layout import CALIBRATIONS
from aaco_pipeline.lake.manifest import VIEWS
from aaco_pipeline.lake.store import TraceLake


@dataclass(frozen=True)
class Proof:
    """What came of computing a session again: how much was compared, and every table that differs, with how.

    `rewritten` tables hold the same values, in the bytes of an earlier version of this package.
    """

    session: str
    stages: int
    tables: int
    rewritten: int
    differences: tuple[str, ...]

    @property
    def holds(self) -> bool:
        return not self.differences

    def __str__(self) -> str:
        compared = f"{self.stages} stages, {self.tables} tables"
        if self.holds and self.rewritten:
            return f"{self.session}: {compared}, same values; {self.rewritten} are in an earlier version's bytes"
        if self.holds:
            return f"{self.session}: {compared}, reproduced bit for bit"
        return f"{self.session}: {compared}, {len(self.differences)} differ: {'; '.join(self.differences)}"


class _Again(TraceLake):
    """A lake of its own that takes its captures from another one."""

    def __init__(self, path: str, captured: TraceLake) -> None:
        super().__init__(path)
        self._captured = captured

    def raw(self, session: str) -> Path:
        return self._captured.raw(session)


def prove(lake: TraceLake, session: str, configs: Path, show: Callable[[str, int, int], None]) -> Proof:
    """Compute the stages that a session has or is to have from its raw capture, and compare with what is published.

    LakeError when the session has no complete capture; CaptureError when that is damaged. `show` is told how far it is.
    """
    if not lake.raw(session).is_dir():
        raise LakeError(f"session {session} has no raw capture in {lake.path}; there is nothing to compute it from")
    with TemporaryDirectory(prefix="aaco-proof-") as folder:
        again = _Again(folder, lake)
        measured = lake.path / CALIBRATIONS
        if measured.is_dir():
            (again.path / CALIBRATIONS).symlink_to(measured)
        again.state(session, dict(lake.manifest(session).stated))
        opened = Session(again, session, configs)
        wanted = {*standing(lake, session).expected, *(entry.stage for entry in lake.manifest(session).entries)}
        every = {name: one for name, one in stages().items() if name in wanted}
        for number, (name, one) in enumerate(every.items()):
            show(f"computing {name} of {session}", number, len(every))
            publish(opened, one, one(opened))
        # An earlier version published evidence of its views, too.
        published, made = (
            [one for one in side.manifest(session).entries if one.stage not in VIEWS] for side in (lake, again)
        )
        before, after = ({(one.stage, one.table): one for one in side} for side in (published, made))
        rewritten, differences = 0, []
        for stage, table in sorted(before.keys() | after.keys()):
            old, new = before.get((stage, table)), after.get((stage, table))
            if old is None or new is None:
                differences.append(f"{table} of {stage} is {'not published' if old is None else 'no longer made'}")
            elif (old.rows, old.sha256) == (new.rows, new.sha256):
                continue
            elif lake.read_entry(old).equals(again.read_entry(new)):
                rewritten += 1
            else:
                differences.append(f"{table} of {stage}: {old.rows} rows published, {new.rows} computed")
    return Proof(session, len(every), len(made), rewritten, tuple(differences))
