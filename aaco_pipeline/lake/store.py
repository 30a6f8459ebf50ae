"""Write to the TraceLake: publish tables by manifest, receive raw captures, store requests, remove sessions.

`aaco_pipeline.lake.contracts` defines the tables, `aaco_pipeline.lake.reading` reads, and `aaco_pipeline.lake.health`
finds damage. This module is independent of the tables' meaning.
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

#: Stage names become part of file names.
_STAGE: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")


class TraceLake(LakeReader):
    """A lake at a local path. Creating the object touches nothing; the first publication creates the folders."""

    def sql(self, statement: str) -> "pl.DataFrame":
        """Run one SELECT statement over the views of this lake; see `aaco_pipeline.lake.sql`."""
        from aaco_pipeline.lake.sql import select_frame

        return select_frame(self, statement)

    def new_session(self, workload: str | None = None) -> str:
        """Create a session id at least a second after all others of the lake, so that `latest` is the newest.

        The id is ahead of the clock if the clock has stepped back, or if two sessions begin within a second.
        """
        known = sorted({*self.sessions(), *self.captured(), *self.requests()}, reverse=True)
        newest = next((time for time in map(time_of, known) if time is not None), None)
        now = datetime.now(UTC)
        return new_session_id(workload, now if newest is None else max(now, newest + timedelta(seconds=1)))

    @contextmanager
    def receive_raw(self, session: str) -> Iterator[Path]:
        """Yield a folder to fill with a capture; if the block succeeds it becomes `raw(session)` atomically.

        A list of the files' digests is added and used to verify them on reading. LakeError if the session's capture is
        already complete: captures are never overwritten.
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
        """Store the request to measure `session` until its capture is complete."""
        with lake_errors(path := self.request_path(session)):
            self.storage.write(path, launch.encode())

    def requested(self, session: str) -> str | None:
        """Return the text stored by `request`; None if no measurement is pending under that id."""
        with lake_errors(path := self.request_path(session)):
            try:
                return self.storage.read(path).decode("utf-8")
            except FileNotFoundError:
                return None

    def withdraw(self, session: str) -> None:
        """Remove the request for `session` if there is one."""
        with lake_errors(path := self.request_path(session)):
            self.storage.remove(path)

    def expect(self, session: str, stages: Sequence[str]) -> None:
        """Record the session's expected stages, in execution order."""
        for stage in stages:
            _require_stage(stage)
        self._restate(session, lambda manifest: manifest.expecting(stages))

    def state(self, session: str, facts: Mapping[str, str]) -> None:
        """Store facts about the session stated by the user; later ones replace those with the same names."""
        self._restate(session, lambda manifest: manifest.stating(facts))

    def record_failure(self, session: str, stage: str, code_version: str, reason: str) -> None:
        """Record that the last run of a stage failed, and why; its earlier publications stay."""
        _require_stage(stage)
        self._restate(session, lambda manifest: manifest.with_failure(stage, code_version, reason))

    def record_due(self, session: str, stages: Sequence[str], reason: str) -> None:
        """Record that stages must run again, and why; until then the session is incomplete."""

        self._restate(session, lambda manifest: _with_failures(manifest, dict.fromkeys(stages, reason)))

    def record_torn(self, session: str) -> tuple[str, ...]:
        """Withdraw every torn or missing file and record that its stage failed; return these stages.

        Running them again republishes the files. Until then their intact tables stay.
        """
        reasons: dict[str, str] = {}

        def failed(manifest: Manifest) -> Manifest:
            for one in manifest.on_disk:
                try:
                    self.require_whole(one)
                except LakeError:
                    reasons[one.stage] = f"torn or missing: {described(self.path / one.file)}; run it again"
                    manifest = manifest.without_file(one.file)
            return _with_failures(manifest, reasons)

        self._restate(session, failed)
        return tuple(sorted(reasons))

    @contextmanager
    def new_view(self, session: str, stage: str, final: Path, rests_on: str) -> Iterator[Path]:
        """Yield a path to write a view to; if the block succeeds it becomes `final` and is recorded.

        LakeError if the session was removed meanwhile.
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
        """Publish all `tables` of one stage atomically, replacing whatever that stage published before.

        Every table is checked against its contract before anything is written. Files are named by their digest, then
        the manifest is replaced by rename, then superseded files are deleted: a kill at any time leaves the old state
        or the new. The same input gives the same bytes. Returns the stage's entries.
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
        """Delete everything of `session`: marker, manifest, then the files. Returns the freed bytes.

        The raw capture goes last and atomically, so a kill leaves a complete session, a complete capture without
        tables, or files that `aaco_pipeline.lake.health` finds. Rows in segments are deleted by the next compaction;
        until then they are neither read nor counted.
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
        """Delete everything a campaign published, but none of its sessions. Returns the freed bytes.

        Marker and manifest go first: a kill at any time leaves all of it or nothing.
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
        """Replace the manifest `before` and mark its session or campaign; the caller holds the lock.

        A kill between the two leaves it complete but without a marker, which the next commit creates.
        """
        path, marker = (place(manifest.id, manifest.scope) for place in (self.manifest_path, self.marker_path))
        is_marked = self.storage.state(marker) is not None
        if not is_marked and self.storage.state(self.path / MANIFESTS / MARKED) is None:
            from aaco_pipeline.lake.catalogue import mark_earlier

            mark_earlier(self, but=manifest.id)
        if manifest != before or self.storage.state(path) is None:
            self.storage.write(path, manifest.to_bytes())
        if not is_marked:
            self.storage.create(marker.parent, [marker.name])

    def _uncommit(self, identifier: str, scope: Scope) -> None:
        """Remove a marker, then its manifest: a kill in between leaves it complete without a marker, never lost."""
        self.storage.remove(self.marker_path(identifier, scope))
        self.storage.remove(self.manifest_path(identifier, scope))

    def _restate(self, session: str, change: Callable[[Manifest], Manifest]) -> None:
        """Apply `change` to the session's manifest and commit it if it differs."""
        with lake_errors(self.path), self.locked(session, "session"):
            before = self.manifest(session)
            after = change(before)
            if after != before:
                self.commit(after)

    def _remove_tables(self, scope: Scope, identifier: str) -> None:
        """Remove the files of all tables of a session or campaign, including tables of later versions."""
        for name in self.storage.names(self.path):
            if name not in SESSION_FOLDERS:
                folder = self.path / name / f"{scope}_id={identifier}"
                if self.storage.state(folder) is not None:
                    self.storage.clear(folder, self.storage.names(folder))

    def _write(self, table: Table, frame: "pl.DataFrame", identifier: str, stage: str) -> Entry:
        """Write the table's file if it has rows.

        The key is only in the path, not a column: pyarrow and pandas reject a data set that has it in both places.
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
        """Delete files that the manifest no longer names. The caller holds the lock, so there is no other writer."""
        published = manifest.files
        for table in tables:
            folder = f"{table}/{manifest.scope}_id={manifest.id}"
            stale = [name for name in self.storage.names(self.path / folder) if f"{folder}/{name}" not in published]
            if stale:
                self.storage.clear(self.path / folder, stale)


def _with_failures(manifest: Manifest, reasons: Mapping[str, str]) -> Manifest:
    for stage, reason in reasons.items():
        manifest = manifest.with_failure(stage, "", reason)
    return manifest


def _require_stage(stage: str) -> None:
    if _STAGE.fullmatch(stage) is None:
        raise LakeError(f"{stage!r} is not a stage's name; expected lower-case letters, digits and '_'")


@contextmanager
def _polars_os_errors(path: Path) -> Iterator[None]:
    """Restore the operating-system error that Polars reports only as text, with the file it occurred on."""
    import polars as pl

    try:
        yield
    except (pl.exceptions.ComputeError, OSError) as error:
        number = re.search(r"\(os error (\d+)\)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error
