"""From a folder somebody hands over to registered sessions: one for each run, none for a run the lake already holds.

Recognizing runs is `aaco_pipeline.capture.discovery`, copying them minus secrets `aaco_pipeline.resources.ingestion`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import dagster as dg

from aaco_pipeline.automation.sessions import PARTITIONS_NAME
from aaco_pipeline.capture import discovery as detection
from aaco_pipeline.capture import ingested as ingested_capture
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

    run: detection.Run
    session: str | None
    is_new: bool
    reason: str | None = None
    rows: Sequence[dict[str, object]] = ()


def ingest(
    lake: TraceLake, instance: dg.DagsterInstance, discover_runs: detection.DiscoveredRuns, workload: str | None = None
) -> list[Ingested]:
    """Take every run of the survey into the lake and register its session; a run that cannot be read is said so.

    A run whose files the lake already holds gives that session. Nothing is registered for a run that cannot be read.
    """
    known = {
        ingested_capture.read(lake.raw(session)).digest: session
        for session in lake.captured()
        if ingested_capture.probe(lake.raw(session))
    }
    found: list[Ingested] = []
    for run in discover_runs.runs:
        try:
            digest = capture_digest(run)
            if digest in known:
                found.append(Ingested(run, known[digest], is_new=False))
                continue
            session = new_session_id()
            with lake.receive_raw(session) as folder:
                copy_capture(run, folder, workload or run.folder.name)
                reading = ingested_capture.read(folder).reading()
        except CaptureError as error:
            found.append(Ingested(run, None, is_new=False, reason=str(error)))
            continue
        except OSError as error:
            reason = f"{error.filename or run.folder}: {error.strerror or error}; check the file and its permissions"
            found.append(Ingested(run, None, is_new=False, reason=reason))
            continue
        known[digest] = session
        instance.add_dynamic_partitions(PARTITIONS_NAME, [session])
        found.append(Ingested(run, session, is_new=True, rows=row_accounts(reading)))
    return found
