"""The operations under fault injection, a tiny ingest among them, and the state by which a lake is judged."""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import polars as pl

from aaco_pipeline.errors import LakeError
from aaco_pipeline.lake.files import file_digest, lake_errors
from aaco_pipeline.lake.journal import Journal, JournalEntry
from aaco_pipeline.lake.layout import SEGMENTS
from aaco_pipeline.lake.retention import ACCOUNT, Account, Limits
from aaco_pipeline.lake.segments.compaction import GRACE, compact
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.lake.verified import raw_digests
from aaco_pipeline.pipeline.doctor import examine
from aaco_pipeline.pipeline.ingestion import discovered, ingest
from aaco_pipeline.pipeline.retention import clean_up
from aaco_pipeline.pipeline.session_stages import finish_session
from aaco_pipeline.resources.confinement import client
from benchmarks.common import CONFIGS
from benchmarks.performance.ingest_cost import write_capture
from benchmarks.reliability.fault_injection.library import STATE_FILE
from benchmarks.reliability.kill_publishing import GENERATION_COLUMNS, OTHER_STAGE, STAGE, generation_frames

Shown = Mapping[str, Any]
"""By aspect what a lake shows: of each session its tables and its capture, of the journal each entry."""
Step = Callable[[TraceLake], object]

_SESSIONS: Final = [f"2025010{number}T000000Z-0000000{number}" for number in range(1, 7)]
_NOW: Final = datetime(2030, 1, 1, tzinfo=UTC)
_ROWS: Final = 20
_FIRST, _SECOND, _PLACE = "a" * 64, "b" * 64, Path("/inbox/capture")


def shown(lake: TraceLake, called: Callable[[str], str] = str) -> Shown:
    """All that readers see, with texts as `called` renames them. RuntimeError where two ways of reading disagree."""
    seen: dict[str, Any] = {}
    rows: dict[str, list[tuple[Any, ...]]] = {table: [] for table in GENERATION_COLUMNS}
    for manifest in lake.manifests("session"):
        tables: dict[str, str] = {}
        for entry in manifest.entries:
            read = lake.read_entry(entry).rows()
            rows.setdefault(entry.table, []).extend(read)
            tables[f"{entry.table} by {entry.stage}"] = hashlib.sha256(called(repr(read)).encode()).hexdigest()
        seen[called(f"tables of {manifest.id}")] = tables
    listed = [name.removeprefix("tables of ") for name in seen]
    if [called(session) for session in lake.sessions()] != sorted(listed):
        raise RuntimeError(f"{lake.sessions()} are listed")
    for table in GENERATION_COLUMNS:
        if sorted(map(repr, lake.read(table).rows())) != sorted(map(repr, rows[table])):
            raise RuntimeError(f"{table} of all sessions does not have the rows of each")
    for session in lake.captured():
        seen[called(f"capture of {session}")] = called(str(raw_digests(lake.raw(session))))
    journal = Journal(lake)
    for known in journal.entries():
        seen[f"journal of {known.digest}"] = called(str((known.session_id, known.is_captured)))
    return {**seen, "place": journal.at(_PLACE), "whole journal": journal.is_complete}


def files(lake: TraceLake) -> dict[str, str]:
    """Every file of a lake with its digest, "" where its content depends on the time or the process."""
    found = {}
    for path in sorted(lake.path.rglob("*")):
        name = path.relative_to(lake.path).as_posix()
        depends = path.is_dir() or path.suffix == ".lock" or name == ACCOUNT or name.startswith(SEGMENTS)
        found[name] = "" if depends else file_digest(path)
    return found


@dataclass(frozen=True)
class Operation:
    """`prepare` makes the lake; `steps` are done one after another, and each can be done again after it was struck.

    `mend` is what `aaco doctor --mend` does beyond the faults of the lake. After a fault each aspect that is shown is
    as before the step or as after it; of a step that `is_gradual` part of a session's tables may be there.
    """

    prepare: Step
    steps: Sequence[Step]
    mend: Step = lambda lake: None
    show: Callable[[TraceLake], Shown] = shown
    files: Callable[[TraceLake], dict[str, str]] = files
    is_gradual: bool = False


def _frames(generation: int) -> dict[str, pl.DataFrame]:
    return {name: frame.head(_ROWS) for name, frame in generation_frames(generation).items()}


def _published(*sessions: str, generation: int = 0) -> Step:
    def publish(lake: TraceLake) -> None:
        for session in sessions:
            lake.publish(session, STAGE, _frames(generation))

    return publish


def _prepare_publishing(lake: TraceLake) -> None:
    other = generation_frames(5)["evidence"].with_columns(stage=pl.lit(OTHER_STAGE))
    lake.publish(_SESSIONS[0], OTHER_STAGE, {"evidence": other})
    _published(*_SESSIONS[:2])(lake)


def _prepare_compaction(lake: TraceLake) -> None:
    """Sessions in segments, of which one was removed since and one published anew, and sessions with own files."""
    _published(*_SESSIONS[:4])(lake)
    compact(lake, _NOW)
    compact(lake, _NOW + GRACE)
    lake.remove(_SESSIONS[0])
    _published(_SESSIONS[1], generation=1)(lake)
    _published(*_SESSIONS[4:6])(lake)


def _compacted(graces: int) -> Step:
    def step(lake: TraceLake) -> None:
        left = [line for one in compact(lake, _NOW + graces * GRACE) for line in one.left]
        if left:
            raise LakeError("; ".join(left))

    return step


def _prepare_retention(lake: TraceLake) -> None:
    journal = Journal(lake)
    for number, session in enumerate(_SESSIONS[:4]):
        with lake.receive_raw(session) as folder:
            (folder / "part").mkdir()
            (folder / "part" / "trace.json").write_text(session)
        journal.keep(JournalEntry(f"{number:x}" * 64, session, 1, is_captured=True, writer="x"))
        lake.expect(session, [STAGE])
        _published(session)(lake)
        lake.storage.write(lake.report(session), session.encode())
        if number == 1:
            compact(lake, _NOW)
            compact(lake, _NOW + GRACE)


def _kept(newest: int) -> Step:
    def step(lake: TraceLake) -> None:
        failed = clean_up(lake, Limits(keep_last=newest), _NOW + timedelta(days=30)).failed
        if failed:
            raise LakeError("; ".join(failed))

    return step


def _gone_on_with(lake: TraceLake) -> None:
    """Finish what was begun to be removed."""
    failed = clean_up(lake, Limits(), _NOW + timedelta(days=30)).failed
    if failed:
        raise LakeError("; ".join(failed))


def _prepare_journal(lake: TraceLake) -> None:
    """A capture that is known, and one whose session was removed."""
    with lake.receive_raw(_SESSIONS[0]) as folder:
        (folder / "trace.json").write_text("{}")
    for digest, session in (("c" * 64, _SESSIONS[0]), ("d" * 64, _SESSIONS[5])):
        Journal(lake).keep(JournalEntry(digest, session, 1, is_captured=True, writer="x"))


def _kept_entry(digest: str, session: str, *, is_captured: bool) -> Step:
    def step(lake: TraceLake) -> None:
        journal = Journal(lake)
        with journal.held(digest):
            journal.keep(JournalEntry(digest, session, 1, is_captured=is_captured, writer="x"))

    return step


def _forgotten(lake: TraceLake) -> None:
    journal = Journal(lake)
    with journal.held(_SECOND):
        journal.forget(_SECOND)


def _received(lake: TraceLake) -> None:
    if not lake.has_raw(_SESSIONS[1]):
        with lake.receive_raw(_SESSIONS[1]) as folder, lake_errors(folder):
            (folder / "trace.json").write_text("{}")


OPERATIONS: Final = {
    "publish": Operation(_prepare_publishing, (_published(_SESSIONS[0], generation=1), _published(_SESSIONS[2]))),
    "journal": Operation(
        _prepare_journal,
        (
            lambda lake: Journal(lake).complete(),
            _kept_entry(_FIRST, _SESSIONS[1], is_captured=False),
            _received,
            _kept_entry(_FIRST, _SESSIONS[1], is_captured=True),
            lambda lake: Journal(lake).keep_place(_PLACE, {"0" * 16: _FIRST}),
            _kept_entry(_SECOND, _SESSIONS[2], is_captured=False),
            _forgotten,
            lambda lake: Journal(lake).leave_place(_PLACE),
            lambda lake: Journal(lake).forget_removed(lake.raw),
        ),
    ),
    "gc": Operation(_prepare_retention, (_kept(2),), mend=_gone_on_with),
    "compaction": Operation(_prepare_compaction, (_compacted(3), _compacted(5))),
}


def operation(folder: Path) -> Operation:
    """Taking in the second of two captures, which lie in `folder`, into a lake that has the first."""
    # What the reader of captures writes is struck as well.
    patch.object(client, "_PASSED_ON", (*client._PASSED_ON, "LD_PRELOAD", STATE_FILE)).start()
    first, second = (write_capture(folder / f"capture_{number}", number) for number in (1, 2))

    def taken_in(capture: Path, lake: TraceLake) -> None:
        for one in ingest(lake, discovered(lake, capture), finish=lambda session: _finish(lake, session)):
            if one.error is not None:
                raise one.error

    return Operation(
        lambda lake: taken_in(first, lake),
        (lambda lake: taken_in(second, lake),),
        mend=_mend,
        show=_shown,
        files=_files,
        is_gradual=True,
    )


def _finish(lake: TraceLake, session: str) -> None:
    finish_session(lake, session, CONFIGS)


def _mend(lake: TraceLake) -> None:
    """Mend as `aaco doctor --mend` does."""
    treated: set[tuple[str, str]] = set()
    while True:
        found = [
            one
            for one in examine(lake, lambda session: _finish(lake, session))
            if (one.kind, one.subject) not in treated
        ]
        if not found:
            return
        for one in found:
            treated.add((one.kind, one.subject))
            if one.mend is None or not one.mend():
                raise LakeError(f"{one.kind} of {one.subject} was not mended: {one.explanation}")


def _shown(lake: TraceLake) -> Shown:
    """Read the lake as its readers do; of the journal only whether it has an entry, since entries change in steps."""
    seen = shown(lake, _called(lake))
    return {aspect: "" if aspect.startswith("journal of") else value for aspect, value in seen.items()}


def _files(lake: TraceLake) -> dict[str, str]:
    """The names of all files, those of tables without their digests, and what is not whole or pending."""
    called = _called(lake)
    names = (re.sub(r"-[0-9a-f]{12}\.parquet$", "", called(name)) for name in files(lake))
    left = {"unfinished": str(lake.unfinished()), "pending": str(Account(lake).pending())}
    return {**dict.fromkeys(names, ""), **left}


def _called(lake: TraceLake) -> Callable[[str], str]:
    """Give each session a name that is the same in every run."""
    known = {*lake.sessions(), *lake.captured(), *(one.session_id for one in Journal(lake).entries())}
    names = {session: f"session {number}" for number, session in enumerate(sorted(known), 1)}

    def called(text: str) -> str:
        for session, name in names.items():
            text = text.replace(session, name)
        return text

    return called
