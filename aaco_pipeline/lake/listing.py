"""List the sessions of a lake: progress, workload, latency and disk use.

Facts from tables and folders are cached in this host's catalogue with their sources, so that only changes are read
again; retention uses the same mechanism. The printer decides how a list looks.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from aaco_pipeline.errors import LakeError
from aaco_pipeline.lake.catalogue import Catalogue
from aaco_pipeline.lake.layout import RAW, SESSION_ID, LakeFolder
from aaco_pipeline.lake.manifest import Progress
from aaco_pipeline.lake.reading import LakeReader
from aaco_pipeline.lake.sql import select_rows

#: Columns besides id, progress and disk use.
FACTS: Final = (
    *("started_at", "model_name", "workload", "backend", "batch_size", "latency_p50_ns", "latency_p90_ns"),
    "disturbed_ratio",
)
#: Sessions per SQL statement.
_AT_A_TIME: Final = 200


@dataclass(frozen=True)
class Question:
    """A question about each session: `statement` selects the id and then `columns` from the tables `read_from`.

    Answers are cached under the name `kind`.
    """

    kind: str
    columns: tuple[str, ...]
    read_from: tuple[str, ...]
    statement: str


_LISTED: Final = Question(
    "facts and quietness",
    FACTS,
    ("sessions", "session_metrics"),
    """
SELECT session_id, s.started_at, s.model_name, s.workload, s.backend, s.batch_size, l.latency_p50_ns, l.latency_p90_ns,
       (SELECT max(value) FROM session_metrics AS m WHERE m.session_id = s.session_id AND m.metric = 'disturbed_ratio'
        AND m."pass" = 'latency') AS disturbed_ratio
FROM sessions AS s LEFT JOIN latest_sessions AS l USING (session_id) ORDER BY s.session_id
""",
)


@dataclass
class Listing:
    """Sessions, newest first, and the errors of unreadable sessions and campaigns by id.

    Each row has `session_id`, the facts (times in ISO 8601), `progress` and `disk_bytes`; the last two are None if the
    manifest is unreadable.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    progress: dict[str, Progress] = field(default_factory=dict)
    errors: dict[str, LakeError] = field(default_factory=dict)


def listed(lake: LakeReader, newest: int | None = None) -> Listing:
    """List the sessions of a lake, or the `newest` ones; lost and unreadable manifests become errors."""
    found = Listing()
    with lake.catalogue() as known:
        progress, published = known.progress(), known.published_bytes()
        sessions = sorted({*progress, *filter(SESSION_ID.fullmatch, known.errors)}, reverse=True)[:newest]
        found.errors.update(known.errors)
        facts = answers(lake, known, _LISTED, [one for one in sessions if one in progress], found.errors)
        captures = capture_bytes(lake, known, [one for one in sessions if one in progress])
    nothing = dict.fromkeys(FACTS)
    for session in sessions:
        one = progress.get(session)
        if one is not None:
            found.progress[session] = one
        elif session not in found.errors:
            continue  # removed since it was listed
        found.rows.append(
            {
                "session_id": session,
                **(facts.get(session) or nothing),
                "progress": None if one is None else one.as_document(),
                "disk_bytes": None if one is None else published[session] + captures[session],
            }
        )
    return found


def answers(
    lake: LakeReader, known: Catalogue, question: Question, sessions: Sequence[str], errors: dict[str, LakeError]
) -> dict[str, dict[str, Any]]:
    """Answer a question for each session that published one of its tables; unreadable ones go to `errors`."""
    digests = known.digests(question.read_from)
    remembered = known.remembered(question.kind)
    found_before = {}
    due = []
    for session in sessions:
        made_of, value = remembered.get(session, ("", ""))
        if session not in digests:
            continue  # none of the tables is published
        if made_of == digests[session]:
            found_before[session] = dict(zip(question.columns, json.loads(value), strict=True))
        else:
            due.append(session)
    found = {session: row for some in _portions(due) for session, row in _read(lake, question, some, errors)}
    nothing: list[Any] = [None] * len(question.columns)
    found |= {session: nothing for session in due if session not in found and session not in errors}
    known.remember(question.kind, {session: (digests[session], json.dumps(row)) for session, row in found.items()})
    return found_before | {session: dict(zip(question.columns, row, strict=True)) for session, row in found.items()}


def capture_bytes(lake: LakeFolder, known: Catalogue, sessions: Sequence[str]) -> dict[str, int]:
    """Return the bytes of each session's capture; unchanged folders are not scanned again."""
    remembered = known.remembered("captures")
    folder = lake.path / RAW
    versions = {one.name: one.version for one in lake.storage.listed(folder)}
    found, bytes_of = dict[str, tuple[str, str]](), {}
    for session in sessions:
        name = f"session_id={session}"
        made_of = versions.get(name, "")
        before, value = remembered.get(session, (None, ""))
        if before != made_of:
            value = str(lake.storage.bytes_below(folder / name) if made_of else 0)
            found[session] = (made_of, value)
        bytes_of[session] = int(value)
    known.remember("captures", found)
    return bytes_of


def _read(
    lake: LakeReader, question: Question, sessions: Sequence[str], errors: dict[str, LakeError]
) -> Iterator[tuple[str, list[Any]]]:
    """Read the answers from the tables; an unreadable session does not affect the others."""
    try:
        rows = select_rows(lake, question.statement, sessions).rows
    except LakeError as error:
        if len(sessions) == 1:
            errors[sessions[0]] = error
            return
        for session in sessions:
            yield from _read(lake, question, [session], errors)
        return
    for session, *row in rows:
        yield session, [one.isoformat() if isinstance(one, datetime) else one for one in row]


def _portions(sessions: Sequence[str]) -> Iterator[Sequence[str]]:
    return (sessions[first : first + _AT_A_TIME] for first in range(0, len(sessions), _AT_A_TIME))
