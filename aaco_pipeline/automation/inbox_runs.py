"""Decide which finished captures of the inbox to request, and when to retry after a kill or a failing system.

`aaco_pipeline.pipeline.inbox` looks at the inbox; here it is compared with the runs of the job `ingest_capture`. Every
attempt is a run of its own: Dagster starts nothing for a run key that it has seen.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import dagster as dg

from aaco_pipeline.automation.runs import MOST_ATTEMPTS, UNFINISHED, delay_seconds
from aaco_pipeline.errors import LakeError
from aaco_pipeline.lake.journal import Journal
from aaco_pipeline.lake.layout import LakeFolder
from aaco_pipeline.pipeline.inbox import STAYS_SECONDS, STILL_SECONDS, Arrival, Memory, Seen, look, put_away

INGEST_JOB: Final = "ingest_capture"
#: Run tag: state of the inbox entry that the run ingests.
INBOX_TAG: Final = "aaco/inbox"
#: Run tag: a reader refused the capture; it is not retried until it changes.
REFUSED_TAG: Final = "aaco/refused"
#: Maximum number of captures ingested at once; the others wait.
MOST_AT_ONCE: Final = 4
#: Maximum number of captures whose runs are looked up per tick.
_MOST_LOOKED_UP: Final = 100
_NAMED: Final = 3


@dataclass
class Due:
    """Captures to request, each with its attempt number, and a description of the rest of the inbox."""

    requests: list[tuple[Arrival, int]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    @property
    def message(self) -> str:
        counted = [f"{count} {what}" for what, count in sorted(self.counts.items())]
        notes = self.notes[:_NAMED]
        if len(self.notes) > _NAMED:
            notes.append(f"and {len(self.notes) - _NAMED} more")
        return "; ".join([*counted, *notes])


def due(lake: LakeFolder, instance: dg.DagsterInstance, inbox: Path, memory: Memory, now: float) -> Due:
    """Look at the inbox and decide what to request now; updates `memory`. `now` is defined as in `look`."""
    answer, now = Due(), round(now, 1)
    finished = look(inbox, memory, now)
    running = {run.tags.get(INBOX_TAG) for run in _unfinished(instance)}
    free, lookups = MOST_AT_ONCE - len(running - {None}), _MOST_LOOKED_UP
    for arrival in finished:
        seen = memory.entries[arrival.path.name]
        if seen.settled == "taken" and (arrival.is_done or now - seen.since >= STILL_SECONDS + STAYS_SECONDS):
            seen = _put_away(lake, arrival, seen)
        elif not seen.settled and arrival.key in running:
            answer.counts["being taken in"] += 1
        elif not seen.settled and _is_delayed(seen, now):
            answer.notes.append(_waits(arrival, seen, now))
        elif not seen.settled and (free <= 0 or lookups <= 0):
            answer.counts["waiting their turn"] += 1
        elif not seen.settled:
            lookups -= 1
            seen = _looked_up(instance, arrival, seen, now)
            if not seen.settled and _is_delayed(seen, now):
                answer.notes.append(_waits(arrival, seen, now))
            elif not seen.settled:
                free -= 1
                answer.requests.append((arrival, seen.failures + 1))
        memory.entries[arrival.path.name] = seen
    answer.counts["not finished yet"] = len(memory.entries) - len(finished)
    answer.counts.update(seen.settled for seen in memory.entries.values() if seen.settled)
    answer.notes += _given_up(memory)
    answer.counts = Counter({what: count for what, count in answer.counts.items() if count})
    return answer


def settle(lake: LakeFolder, path: Path, not_taken: Sequence[str] = ()) -> Path:
    """Move an ingested capture out of the inbox; new content under the same name is a new capture."""
    Journal(lake).leave_place(path)  # first: if killed in between, the capture is ingested again and recognized
    return put_away(path, not_taken)


def _put_away(lake: LakeFolder, arrival: Arrival, seen: Seen) -> Seen:
    try:
        settle(lake, arrival.path)
    except LakeError:
        return seen._replace(settled="taken, and cannot be moved")
    return seen


def _looked_up(instance: dg.DagsterInstance, arrival: Arrival, seen: Seen, now: float) -> Seen:
    """Update the entry with the outcome of its runs, all of which have ended."""
    asked = dg.RunsFilter(job_name=INGEST_JOB, tags={INBOX_TAG: arrival.key})
    runs = instance.get_runs(asked)
    if not runs:
        return seen
    if runs[0].status == dg.DagsterRunStatus.SUCCESS:
        return seen._replace(settled="taken")
    if REFUSED_TAG in runs[0].tags:
        return seen._replace(settled="refused")
    if len(runs) >= MOST_ATTEMPTS:
        return seen._replace(settled="given up", failures=len(runs))
    if seen.failures < len(runs):
        return seen._replace(failures=len(runs), again=now + delay_seconds(len(runs)))
    return seen


def _is_delayed(seen: Seen, now: float) -> bool:
    """Return whether the next attempt is still delayed; an implausibly late time comes from an earlier boot."""
    return now < seen.again <= now + delay_seconds(seen.failures)


def _waits(arrival: Arrival, seen: Seen, now: float) -> str:
    return f"{arrival.path.name}: attempt {seen.failures + 1} of {MOST_ATTEMPTS} in {seen.again - now:.0f} s"


def _given_up(memory: Memory) -> Iterator[str]:
    for name, seen in sorted(memory.entries.items()):
        if seen.settled == "given up":
            yield (
                f"{name}: {seen.failures} attempts failed, look at its runs; "
                "`touch` a file in it to have it tried again"
            )


def _unfinished(instance: dg.DagsterInstance) -> list[dg.DagsterRun]:
    return list(instance.get_runs(dg.RunsFilter(job_name=INGEST_JOB, statuses=list(UNFINISHED))))
