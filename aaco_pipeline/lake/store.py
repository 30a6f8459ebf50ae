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
from pathlib import Path
from typing import TYPE_CHECKING, Final

from aaco_pipeline import __version__
from aaco_pipeline.errors import LakeError
from aaco_pipeline.lake.contracts import contract
from aaco_pipeline.lake.declaration import Scope, Table
from aaco_pipeline.lake.files import (
    file_digest,
    lake_errors,
    sync_file,
    sync_folder,
    temporary_beside,
    write_atomically,
)
from aaco_pipeline.lake.layout import MANIFESTS, SESSION_FOLDERS
from aaco_pipeline.lake.manifest import Entry, Manifest
from aaco_pipeline.lake.reading import LakeReader

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

    @contextmanager
    def receive_raw(self, session: str) -> Iterator[Path]:
        """A folder to fill with a capture, which becomes `raw(session)` at once and whole when the block ends well.

        LakeError if the session's capture is already complete: captures are never overwritten.
        """
        final = self.raw(session)
        with lake_errors(final):
            final.parent.mkdir(parents=True, exist_ok=True)
            temporary = temporary_beside(final)
            temporary.mkdir()
        try:
            yield temporary
            with lake_errors(final):
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

    def record_failure(self, session: str, stage: str, code_version: str, reason: str) -> None:
        """State that the last run of a stage failed, and why; what it had published before stays as it is."""
        _require_stage(stage)
        self._restate(session, lambda manifest: manifest.with_failure(stage, code_version, reason))

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
        capture without tables, or files that `aaco_pipeline.lake.health` finds.
        """
        freed = self.disk_bytes(session)
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
            self.lock_path(session).unlink(missing_ok=True)
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
        folder = self.path / table.name / f"{table.key}={identifier}"
        folder.mkdir(parents=True, exist_ok=True)
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
                frame.drop(table.key).write_parquet(temporary, compression="zstd", metadata=metadata)
            sync_file(temporary)
            digest = file_digest(temporary)
            final = folder / f"{stage}-{digest[:12]}.parquet"
            temporary.replace(final)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_folder(folder)
        file = final.relative_to(self.path).as_posix()
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
