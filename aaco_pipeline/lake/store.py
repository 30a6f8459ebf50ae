"""The TraceLake on disk: publishing by manifest, raw captures, requests, removing.

What a table must look like is `aaco_pipeline.lake.contracts`; reading, which this adds to, is
`aaco_pipeline.lake.reading`, and what is torn is found by `aaco_pipeline.lake.health`. Nothing here knows what the
tables mean, and nothing here imports Dagster.
"""

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from aaco_pipeline import __version__
from aaco_pipeline.errors import LakeError
from aaco_pipeline.lake.contracts import contract
from aaco_pipeline.lake.declaration import Scope, Table
from aaco_pipeline.lake.files import (
    file_digest,
    lake_errors,
    make_folder,
    sync_file,
    sync_folder,
    write_atomically,
)
from aaco_pipeline.lake.identity import new_session_id, time_of
from aaco_pipeline.lake.layout import MANIFESTS, SESSION_FOLDERS, table_file
from aaco_pipeline.lake.manifest import Artifact, Entry, Manifest
from aaco_pipeline.lake.reading import LakeReader
from aaco_pipeline.lake.verified import RAW_LIST, described, raw_digests, raw_list
from aaco_pipeline.lake.writers import temporary_beside

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
        with lake_errors(final):
            make_folder(final.parent)
            temporary = temporary_beside(final)
            temporary.mkdir()
        try:
            yield temporary
            with lake_errors(final):
                (temporary / RAW_LIST).write_bytes(raw_list(raw_digests(temporary)))
                for file in sorted(temporary.rglob("*")):
                    sync_file(file)
                sync_folder(temporary)
                with self.locked(session, "session"):
                    if final.exists():
                        raise LakeError(f"{final}: the capture is already complete; a new measurement is a new session")
                    temporary.rename(final)
                    sync_folder(final.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def request(self, session: str, launch: str) -> None:
        """Keep the text of what is to be measured for `session` until its capture is complete."""
        with lake_errors(path := self.request_path(session)):
            write_atomically(path, launch.encode())

    def requested(self, session: str) -> str | None:
        """The text kept by `request`; None when nothing is waiting to be measured under that id."""
        with lake_errors(path := self.request_path(session)):
            try:
                return path.read_text(encoding="utf-8")
            except FileNotFoundError:
                return None

    def withdraw(self, session: str) -> None:
        """Forget the request for `session`, if there is one."""
        with lake_errors(path := self.request_path(session)):
            path.unlink(missing_ok=True)

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

        Running them again publishes the files anew. Until then what is whole of theirs stays: a stage that reads what
        it published before, as the report does its evidence, can run.
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
    def new_artifact(self, session: str, stage: str, final: Path) -> Iterator[Path]:
        """A path to write a stage's file beside its tables to; it is `final`, and stated, when the block ends well."""
        with lake_errors(final):
            make_folder(final.parent)
        temporary = temporary_beside(final)
        try:
            yield temporary
            with lake_errors(final):
                sync_file(temporary)
                file = final.relative_to(self.path).as_posix()
                artifact = Artifact(stage, file, temporary.stat().st_size, file_digest(temporary))
                with self.locked(session, "session"):
                    after = self.manifest(session).with_artifact(artifact)
                    temporary.replace(final)
                    sync_folder(final.parent)
                    write_atomically(self.manifest_path(session, "session"), after.to_bytes())
        finally:
            temporary.unlink(missing_ok=True)

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
        path = self.manifest_path(identifier, scope)
        with lake_errors(self.path), self.locked(identifier, scope):
            before = self.manifest(identifier, scope)
            entries = [self._write(contract(name), frame, identifier, stage) for name, frame in frames.items()]
            after = before.with_stage(stage, entries, code_version)
            if after != before or not path.exists():
                write_atomically(path, after.to_bytes())
            self._delete_unpublished(after, {e.table for e in (*before.of_stage(stage), *entries)})
        return after.of_stage(stage)

    def remove(self, session: str) -> int:
        """Delete everything of `session`: first from the manifest's view, then the files. Returns the bytes freed.

        A kill leaves nothing half: the raw capture goes last and at once, so what is left is a whole session, a whole
        capture without tables, or files that `aaco_pipeline.lake.health` finds. What is in segments leaves the disk
        with the next compaction; nobody reads it from now on, and it is not counted.
        """
        freed = self.disk_bytes(session) - self.segment_bytes(session)
        with lake_errors(self.path), self.locked(session, "session"):
            self.manifest_path(session, "session").unlink(missing_ok=True)
            if (self.path / MANIFESTS).is_dir():
                sync_folder(self.path / MANIFESTS)
            own = {self.path / name / f"session_id={session}" for name in SESSION_FOLDERS}
            for folder in sorted(set(self.path.glob(f"*/session_id={session}")) - own):
                shutil.rmtree(folder)
            for folder in sorted(own - {self.raw(session)}):
                _remove_at_once(folder)
            self.request_path(session).unlink(missing_ok=True)
            _remove_at_once(self.raw(session))
            self.forget_run_locks(session)
            self.lock_path(session).unlink(missing_ok=True)
        return freed

    def remove_campaign(self, campaign: str) -> int:
        """Delete all that is published of a campaign, and none of its sessions. Returns the bytes freed.

        Its manifest goes first: killed at any instant there is all of it or none.
        """
        with lake_errors(self.path), self.locked(campaign, "campaign"):
            stated = sum(entry.bytes for entry in self.manifest(campaign, "campaign").entries)
            freed = stated - self.segment_bytes(campaign, "campaign")
            self.manifest_path(campaign, "campaign").unlink(missing_ok=True)
            if (self.path / MANIFESTS).is_dir():
                sync_folder(self.path / MANIFESTS)
            for folder in sorted(self.path.glob(f"*/campaign_id={campaign}")):
                shutil.rmtree(folder)
            self.lock_path(campaign).unlink(missing_ok=True)
        return freed

    def _restate(self, session: str, change: Callable[[Manifest], Manifest]) -> None:
        """Replace the session's manifest by what `change` makes of it, when that is another."""
        path = self.manifest_path(session, "session")
        with lake_errors(self.path), self.locked(session, "session"):
            before = self.manifest(session)
            after = change(before)
            if after != before:
                write_atomically(path, after.to_bytes())

    def _write(self, table: Table, frame: "pl.DataFrame", identifier: str, stage: str) -> Entry:
        """Write the table's file, if it has rows.

        The key is left out of the columns and stands in the path alone: readers of partitioned data sets take it from
        there, and pyarrow and pandas refuse a data set that has it in both places.
        """
        if frame.is_empty():
            return Entry(table.name, stage, "", 0, 0, "", table.version)
        from aaco_pipeline.lake.on_disk import write_parquet

        folder = self.path / table.name / f"{table.key}={identifier}"
        make_folder(folder)
        temporary = temporary_beside(folder / "file")
        metadata = {
            "aaco.contract_version": str(table.version),
            "aaco.table": table.name,
            f"aaco.{table.key}": identifier,
            "aaco.stage": stage,
            "aaco.writer": f"aaco_pipeline {__version__}",
        }
        try:
            with _polars_os_errors(temporary):
                write_parquet(frame.drop(table.key), temporary, metadata)
            sync_file(temporary)
            digest = file_digest(temporary)
            file = table_file(table.name, table.scope, identifier, stage, digest)
            final = self.path / file
            temporary.replace(final)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_folder(folder)
        return Entry(table.name, stage, file, frame.height, final.stat().st_size, digest, table.version)

    def _delete_unpublished(self, manifest: Manifest, tables: set[str]) -> None:
        """Delete what the manifest no longer names. The caller holds the lock, so no other writer's file is here."""
        published = {self.path / file for file in manifest.files}
        for table in tables:
            for file in (self.path / table / f"{manifest.scope}_id={manifest.id}").glob("*"):
                if file not in published:
                    file.unlink(missing_ok=True)


def _remove_at_once(folder: Path) -> None:
    """Remove a folder of a session, if there is one: it vanishes whole, and what a kill leaves is a dead writer's."""
    if folder.is_dir():
        doomed = temporary_beside(folder)
        folder.rename(doomed)
        sync_folder(folder.parent)
        shutil.rmtree(doomed)


def _require_stage(stage: str) -> None:
    if _STAGE.fullmatch(stage) is None:
        raise LakeError(f"{stage!r} is not a stage's name; expected lower-case letters, digits and '_'")


@contextmanager
def _polars_os_errors(path: Path) -> Iterator[None]:
    """Polars reports a full disk as the text of a ComputeError; raise the operating system's error it stands for."""
    import polars as pl

    try:
        yield
    except pl.exceptions.ComputeError as error:
        number = re.search(r"\(os error (\d+)\)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error
