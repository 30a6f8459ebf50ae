"""Everything that a recording shows of what it lacks, in one pass: the ledger and the findings."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

import polars as pl

from aaco_pipeline.analysis.completeness import clocks, counters, edges, files, graphs, launches, thread_trace
from aaco_pipeline.analysis.completeness.findings import Finding, findings_frame
from aaco_pipeline.analysis.completeness.ledger import ledger
from aaco_pipeline.analysis.kernels.statistics import timed
from aaco_pipeline.analysis.timeline.activities import device_activities, host_calls
from aaco_pipeline.analysis.timeline.host_waits import Waits, waits
from aaco_pipeline.lake.evidence import DROPPED, OUT_OF_RANGE, Evidence

#: The tables that `examined` looks at.
EXAMINED: Final = (
    *("sessions", "environment", "devices", "processes", "kernels", "dispatches", "api_calls", "memory_copies"),
    *("markers", "counters", "synchronizations", "reported_statistics"),
)


@dataclass(frozen=True)
class Completeness:
    """Rows of `completeness` and of `completeness_findings`, without their session."""

    ledger: pl.DataFrame
    findings: pl.DataFrame


@dataclass(frozen=True)
class _Run:
    """The recording as the checks of launches look at it."""

    tables: Mapping[str, pl.DataFrame]
    activities: pl.DataFrame
    calls: pl.DataFrame
    waits: Waits
    launched: pl.DataFrame
    early: pl.DataFrame


def examined(tables: Mapping[str, pl.DataFrame], evidence: Sequence[Evidence]) -> Completeness:
    """What the recording lacks. `tables` are `EXAMINED` and `att_instructions` with the details of thread traces, as a
    capture gives them; `evidence` is what its readers say of its files and its trace."""
    dispatches = timed(tables["dispatches"])
    calls = host_calls(tables["api_calls"])
    activities = device_activities(dispatches, tables["memory_copies"], tables["kernels"], calls)
    launched = launches.launches(calls, activities)
    early = launches.before_recording(activities, calls)
    run = _Run(tables, activities, calls, waits(activities, calls, tables["synchronizations"]), launched, early)
    fits = clocks.fits(activities, calls)
    counts = files.tool_counts(evidence)
    losses = {"dropped": counts[DROPPED], "out_of_range": counts[OUT_OF_RANGE]}
    found = chain(
        _of_launches(run),
        clocks.of_clocks(fits),
        clocks.of_epochs(activities, tables["api_calls"]),
        clocks.of_reversed(activities),
        _of_counters(tables),
        thread_trace.of_thread_traces(tables, evidence),
        files.of_evidence(evidence),
        files.of_outside(evidence),
        files.of_statistics(tables["reported_statistics"], dispatches, tables["kernels"]),
        files.of_ranks(tables["processes"], tables["markers"]),
        files.of_fallback(tables["sessions"], tables["dispatches"], tables["kernels"]),
    )
    return Completeness(ledger(tables, activities, launched, early, fits, losses), findings_frame(found))


def _of_launches(run: _Run) -> Iterator[Finding]:
    dispatches = run.tables["dispatches"]
    unnamed = dispatches.filter(pl.col("correlation_id").is_null()).group_by("process_id").len()
    nameless = {int(process): int(count) for process, count in unnamed.iter_rows()}
    yield from launches.of_unrecorded(
        run.launched, run.activities, run.calls, run.tables["synchronizations"], nameless
    )
    replayed = graphs.replays(run.launched, run.activities, dispatches)
    yield from graphs.of_replays(replayed, run.launched, run.tables["kernels"])
    yield from launches.of_before_recording(run.early)
    yield from launches.of_calls_missing(run.activities, run.early, run.launched)
    yield from edges.of_first_waits(run.activities, run.waits)


def _of_counters(tables: Mapping[str, pl.DataFrame]) -> Iterator[Finding]:
    values, dispatches, devices = tables["counters"], tables["dispatches"], tables["devices"]
    if values.height:
        yield from counters.of_values(counters.judged(values, dispatches, devices))
        yield from counters.of_coverage(values, dispatches, devices, tables["environment"])
