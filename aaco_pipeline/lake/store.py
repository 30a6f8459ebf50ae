"""The TraceLake on disk: publishing by manifest, raw captures, requests, removing.

What a table must look like is `aaco_pipeline.lake.contracts`; reading, which this adds to, is
`aaco_pipeline.lake.reading`, and what is torn is found by `aaco_pipeline.lake.health`. Nothing here knows what the
tables mean, and nothing here imports Dagster.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from aaco_pipeline import __version__
from aaco_pipeline.errors import LakeError
from aaco_pipeline.lake.contracts import contract
from aaco_pipeline.lake.declaration import Scope, Table
from aaco_pipeline.lake.files import file_digest, lake_errors
from aaco_pipeline.lake.layout import MANIFESTS, MARKED, RAW, SESSION_FOLDERS, new_session_id, table_file, time_of
from aaco_pipeline.lake.manifest import Artifact, Entry, Manifest
from aaco_pipeline.lake.reading import LakeReader
from aaco_pipeline.lake.verified import RAW_LIST, described, raw_digests, raw_list

if TYPE_CHECKING:
    import polars as pl

#: A stage's name becomes part of file names.
_STAGE: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")


class TraceLake(LakeReader):
    """A lake at a local path. Creating the object touches nothing; the first publication makes the folders."""

    def sql(self, statement: str) -> "pl.DataFrame":
        """The rows of one SELECT statement over the views of this lake; see `aaco_pipeline.lake.sql`."""
        from aaco_pipeline.lake.sql import select_frame

        return select_frame(self, statement)

    def new_session(self, workload: str | None = None) -> str:
        """A new session's id, a second or more after every other of the lake: `latest` is the last begun.

        Where the clock has stepped back, or two sessions begin within a second, the id is ahead of the clock.
        """
        known = sorted({*self.sessions(), *self.captured(), *self.requests()}, reverse=True)
        newest = next((time for time in map(time_of, known) if time is not None), None)
        now = datetime.now(UTC)
        return new_session_id(workload, now if newest is None else max(now, newest + timedelta(seconds=1)))

    @contextmanager
    def receive_raw(self, session: str) -> Iterator[Path]:
        """A folder to fill with a capture, which becomes `raw(session)` at once and whole when the block ends well.

        A list of the files' digests is put beside them, by which they are verified when they are read.
        LakeError if the session's capture is already complete: captures are never overwritten.
        """
        final = self.raw(session)
        with ExitStack() as taken:
            with lake_errors(final):
                temporary = taken.enter_context(self.storage.new_folder(final))
            yield temporary
            with lake_errors(final):
                (temporary / RAW_LIST).write_bytes(raw_list(raw_digests(temporary)))
                with self.locked(session, "session"):
                    if self.storage.state(final) is not None:
                        raise LakeError(f"{final}: the capture is already complete; a new measurement is a new session")
                    self.storage.place(temporary, final)

    def request(self, session: str, launch: str) -> None:
        """Keep the text of what is to be measured for `session` until its capture is complete."""
        with lake_errors(path := self.request_path(session)):
            self.storage.write(path, launch.encode())

    def requested(self, session: str) -> str | None:
        """The text kept by `request`; None when nothing is waiting to be measured under that id."""
        with lake_errors(path := self.request_path(session)):
            try:
                return self.storage.read(path).decode("utf-8")
            except FileNotFoundError:
                return None

    def withdraw(self, session: str) -> None:
        """Forget the request for `session`, if there is one."""
        with lake_errors(path := self.request_path(session)):
            self.storage.remove(path)

    def expect(self, session: str, stages: Sequence[str]) -> None:
        """State which stages the session is to have, in the order they run."""
        for stage in stages:
            _require_stage(stage)
        self._restate(session, lambda manifest: manifest.expecting(stages))

    def state(self, session: str, facts: Mapping[str, str]) -> None:
        """Keep facts of the session that a person states; later ones take the place of those of the same names."""
        self._restate(session, lambda manifest: manifest.stating(facts))

    def record_failure(self, session: str, stage: str, code_version: str, reason: str) -> None:
        """State that the last run of a stage failed, and why; what it had published before stays as it is."""
        _require_stage(stage)
        self._restate(session, lambda manifest: manifest.with_failure(stage, code_version, reason))

    def record_due(self, session: str, stages: Sequence[str], reason: str) -> None:
        """State that stages are to run again, and why: until then the session is not whole."""

        def due(manifest: Manifest) -> Manifest:
            for stage in stages:
                manifest = manifest.with_failure(stage, "", reason)
            return manifest

        self._restate(session, due)

    def record_torn(self, session: str) -> tuple[str, ...]:
        """Withdraw every torn or missing file and state that its stage failed, so that the session is not whole; these.

        Running them again publishes the files anew. Until then what is whole of theirs stays.
        """
        reasons: dict[str, str] = {}

        def failed(manifest: Manifest) -> Manifest:
            for one in manifest.on_disk:
                try:
                    self.require_whole(one)
                except LakeError:
                    reasons[one.stage] = f"torn or missing: {described(self.path / one.file)}; run it again"
                    manifest = manifest.without_file(one.file)
            for stage, reason in reasons.items():
                manifest = manifest.with_failure(stage, "", reason)
            return manifest

        self._restate(session, failed)
        return tuple(sorted(reasons))

    @contextmanager
    def new_view(self, session: str, stage: str, final: Path, rests_on: str) -> Iterator[Path]:
        """A path to write a view to; it is `final`, and stated with what it rests on, when the block ends well.

        LakeError when the session was removed meanwhile.
        """
        with ExitStack() as taken:
            with lake_errors(final):
                temporary = taken.enter_context(self.storage.new_file(final))
            yield temporary
            with lake_errors(final):
                file = final.relative_to(self.path).as_posix()
                artifact = Artifact(stage, file, temporary.stat().st_size, file_digest(temporary), rests_on)
                with self.locked(session, "session"):
                    if self.storage.state(self.manifest_path(session, "session")) is None:
                        raise LakeError(f"session {session} is no longer in {self.path}")
                    after = self.manifest(session).with_artifact(artifact)
                    self.storage.place(temporary, final)
                    self.commit(after)

    def publish(
        self,
        identifier: str,
        stage: str,
        tables: Mapping[str, "pl.DataFrame"],
        scope: Scope = "session",
        code_version: str = "",
    ) -> tuple[Entry, ...]:
        """Publish all `tables` of one stage at once, replacing whatever that stage published before.

        Every table is checked against its contract before anything is written; files get names that hold their
        digest, then the manifest is replaced by rename, then superseded files are deleted. A kill at any instant
        leaves the old state or the new. The same input gives the same bytes. `code_version` says which version of the
        stage made them. Returns the stage's entries.
        """
        from aaco_pipeline.lake.validation import conform

        _require_stage(stage)
        for name in tables:
            if contract(name).scope != scope:
                raise LakeError(f"table {name} belongs to a {contract(name).scope}, and was published for a {scope}")
        frames = {name: conform(contract(name), frame, identifier) for name, frame in tables.items()}
        with lake_errors(self.path), self.locked(identifier, scope):
            before = self.manifest(identifier, scope)
            entries = [self._write(contract(name), frame, identifier, stage) for name, frame in frames.items()]
            after = before.with_stage(stage, entries, code_version)
            self.commit(after, before)
            self._delete_unpublished(after, {e.table for e in (*before.of_stage(stage), *entries)})
        return after.of_stage(stage)

    def remove(self, session: str) -> int:
        """Delete everything of `session`: marker, manifest, then the files. Returns the bytes freed.

        A kill leaves nothing half: the raw capture goes last and at once, so what is left is a whole session, a whole
        capture without tables, or files that `aaco_pipeline.lake.health` finds. What is in segments leaves the disk
        with the next compaction; nobody reads it from now on, and it is not counted.
        """
        freed = self.disk_bytes(session) - self.segment_bytes(session)
        with lake_errors(self.path), self.locked(session, "session"):
            self._uncommit(session, "session")
            self._remove_tables("session", session)
            for name in sorted({*SESSION_FOLDERS} - {RAW}):
                self.storage.remove_folder(self.path / name / f"session_id={session}")
            self.storage.remove(self.request_path(session))
            self.storage.remove_folder(self.raw(session))
            self.forget_run_locks(session)
            self.storage.drop_lock(self.lock_path(session))
        return freed

    def remove_campaign(self, campaign: str) -> int:
        """Delete all that is published of a campaign, and none of its sessions. Returns the bytes freed.

        Its marker and manifest go first: killed at any instant there is all of it or none.
        """
        with lake_errors(self.path), self.locked(campaign, "campaign"):
            freed = self.table_bytes(campaign, "campaign") - self.segment_bytes(campaign, "campaign")
            self._uncommit(campaign, "campaign")
            self._remove_tables("campaign", campaign)
            for name in SESSION_FOLDERS:
                self.storage.remove_folder(self.path / name / f"campaign_id={campaign}")
            self.storage.drop_lock(self.lock_path(campaign))
        return freed

    def commit(self, manifest: Manifest, before: Manifest | None = None) -> None:
        """Replace a manifest that was `before`, and mark its session or campaign, whose lock the caller holds.

        A kill between the two leaves it whole and without a marker, which the next commit makes.
        """
        path, marker = (place(manifest.id, manifest.scope) for place in (self.manifest_path, self.marker_path))
        is_marked = self.storage.state(marker) is not None
        if not is_marked and self.storage.state(self.path / MANIFESTS / MARKED) is None:
            from aaco_pipeline.lake.markers import mark_earlier

            mark_earlier(self, but=manifest.id)
        if manifest != before or self.storage.state(path) is None:
            self.storage.write(path, manifest.to_bytes())
        if not is_marked:
            self.storage.create(marker.parent, [marker.name])

    def _uncommit(self, identifier: str, scope: Scope) -> None:
        """Remove a marker, then its manifest: a kill between them leaves it whole without a marker, never lost."""
        self.storage.remove(self.marker_path(identifier, scope))
        self.storage.remove(self.manifest_path(identifier, scope))

    def _restate(self, session: str, change: Callable[[Manifest], Manifest]) -> None:
        """Replace the session's manifest by what `change` makes of it, when that is another."""
        with lake_errors(self.path), self.locked(session, "session"):
            before = self.manifest(session)
            after = change(before)
            if after != before:
                self.commit(after)

    def _remove_tables(self, scope: Scope, identifier: str) -> None:
        """Remove the files of all tables of a session or campaign, also of those that only a later version has."""
        for name in self.storage.names(self.path):
            if name not in SESSION_FOLDERS:
                folder = self.path / name / f"{scope}_id={identifier}"
                if self.storage.state(folder) is not None:
                    self.storage.clear(folder, self.storage.names(folder))

    def _write(self, table: Table, frame: "pl.DataFrame", identifier: str, stage: str) -> Entry:
        """Write the table's file, if it has rows.

        The key is left out of the columns and stands in the path alone: readers of partitioned data sets take it from
        there, and pyarrow and pandas refuse a data set that has it in both places.
        """
        if frame.is_empty():
            return Entry(table.name, stage, "", 0, 0, "", table.version)
        from aaco_pipeline.lake.on_disk import write_parquet

        folder = self.path / table.name / f"{table.key}={identifier}"
        metadata = {
            "aaco.contract_version": str(table.version),
            "aaco.table": table.name,
            f"aaco.{table.key}": identifier,
            "aaco.stage": stage,
            "aaco.writer": f"aaco_pipeline {__version__}",
        }
        with self.storage.new_file(folder / "file") as temporary:
            with _polars_os_errors(temporary):
                write_parquet(frame.drop(table.key), temporary, metadata)
            digest, size = file_digest(temporary), temporary.stat().st_size
            file = table_file(table.name, table.scope, identifier, stage, digest)
            self.storage.place(temporary, self.path / file)
        return Entry(table.name, stage, file, frame.height, size, digest, table.version)

    def _delete_unpublished(self, manifest: Manifest, tables: set[str]) -> None:
        """Delete what the manifest no longer names. The caller holds the lock, so no other writer's file is here."""
        published = manifest.files
        for table in tables:
            folder = f"{table}/{manifest.scope}_id={manifest.id}"
            stale = [name for name in self.storage.names(self.path / folder) if f"{folder}/{name}" not in published]
            if stale:
                self.storage.clear(self.path / folder, stale)


def _require_stage(stage: str) -> None:
    if _STAGE.fullmatch(stage) is None:
        raise LakeError(f"{stage!r} is not a stage's name; expected lower-case letters, digits and '_'")


@contextmanager
def _polars_os_errors(path: Path) -> Iterator[None]:
    """Raise the operating system's error for what Polars tells of it as a text alone, with the file it failed on."""
    import polars as pl

    try:
        yield
    except (pl.exceptions.ComputeError, OSError) as error:
        number = re.search(r"\(os error (\d+)\)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error
