"""The sessions of a lake as a list shows them: how far each has come, what was run, how long it took, what it takes up.

What tables and folders say is remembered in this host's catalogue, with what it was read from; so only what changed is
read again. How a list looks is decided by who prints it; retention asks for other facts in the same way.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from aaco_pipeline.errors import LakeError
from aaco_pipeline.lake.catalogue.manifests import Catalogue
from aaco_pipeline.lake.layout import RAW, SESSION_ID, LakeFolder
from aaco_pipeline.lake.manifest import Progress
from aaco_pipeline.lake.reading import LakeReader
from aaco_pipeline.lake.sql import select_rows

#: What is told of a session besides its id, progress and disk use.
FACTS: Final = (
    *("started_at", "model_name", "workload", "backend", "batch_size", "latency_p50_ns", "latency_p90_ns"),
    "disturbed_ratio",
)
#: Sessions whose tables are asked at once.
_AT_A_TIME: Final = 200


@dataclass(frozen=True)
class Question:
    """What to ask of each session: `statement` gives a session's id and then `columns`, from the tables `read_from`.

    `kind` is the name under which the answers are remembered.
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
    """Sessions, newest first, and by id why something of one, or of a campaign, could not be read.

    Each row has `session_id`, the facts (times in ISO 8601), `progress` (None where the manifest cannot be read) and
    `disk_bytes`, None in the same case.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    progress: dict[str, Progress] = field(default_factory=dict)
    errors: dict[str, LakeError] = field(default_factory=dict)


def listed(lake: LakeReader, newest: int | None = None) -> Listing:
    """The sessions of a lake, or so many of the newest; every manifest that is lost or cannot be read is an error."""
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
    """The answer of each session whose tables can be read and of which one of them is published; else its error."""
    digests = known.digests(question.read_from)
    remembered = known.remembered(question.kind)
    found_before = {}
    due = []
    for session in sessions:
        made_of, value = remembered.get(session, ("", ""))
        if session not in digests:
            continue  # nothing says what was run
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
    """Bytes of each session's capture; a folder that is as it was is not looked through."""
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
    """The answers as the tables have them now; where they cannot be read of one session, of the others all the same."""
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
