"""From a folder that a person hands over to sessions: one for each run, none for a run the lake already holds.

Recognizing runs is `aaco_pipeline.capture.discovery`, copying them minus secrets `aaco_pipeline.resources.ingestion`.
Nothing here is Dagster's: a session's partition is `sessions`, its stages are `session_runs`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from aaco_pipeline.capture import ingested, open_capture
from aaco_pipeline.capture.discovery import DiscoveredRuns, Run
from aaco_pipeline.capture.merging import row_accounts
from aaco_pipeline.errors import CaptureError
from aaco_pipeline.lake.identity import new_session_id
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.resources.ingestion import capture_digest, copy_capture


@dataclass(frozen=True)
class Ingested:
    """What became of one run: the session that holds it, or why there is none.

    `rows` says for each record kind of each part how many rows the source has, how many were taken, and why not all.
    """

    run: Run
    session: str | None
    is_new: bool
    reason: str | None = None
    rows: Sequence[dict[str, object]] = ()


def ingest(lake: TraceLake, found: DiscoveredRuns, workload: str | None = None) -> Iterator[Ingested]:
    """Copy every run into the lake, one at a time: its session can be analysed before the next run is read.

    A run whose files the lake already holds gives that session. A run that cannot be read leaves nothing behind.
    """
    known = {
        ingested.read(lake.raw(session)).digest: session
        for session in lake.captured()
        if ingested.probe(lake.raw(session))
    }
    for run in found.runs:
        try:
            digest = capture_digest(run)
            if digest in known:
                yield Ingested(run, known[digest], is_new=False)
                continue
            session = new_session_id(workload or run.folder.name)
            with lake.receive_raw(session) as folder:
                copy_capture(run, folder, workload or run.folder.name)
                # Read while the folder is still the receiver's: what cannot be read never becomes a session.
                capture = open_capture(folder)
                capture.tables()
        except CaptureError as error:
            yield Ingested(run, None, is_new=False, reason=str(error))
        except OSError as error:
            reason = f"{error.filename or run.folder}: {error.strerror or error}; check the file and its permissions"
            yield Ingested(run, None, is_new=False, reason=reason)
        else:
            known[digest] = session
            assert isinstance(capture, ingested.IngestedCapture)
            yield Ingested(run, session, is_new=True, rows=row_accounts(capture.contents))
