"""Everything that a recording shows of what it lacks, in one pass: the ledger and the findings."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

import polars as pl

from aaco_pipeline.analysis.completeness import (
    captured_graphs,
    clocks,
    counters,
    edges,
    files,
    graphs,
    launches,
    thread_trace,
)
from aaco_pipeline.analysis.completeness.findings import Finding, findings_frame
from aaco_pipeline.analysis.completeness.ledger import ledger
from aaco_pipeline.analysis.completeness.recording_tools import tool_of
from aaco_pipeline.analysis.kernels.statistics import timed
from aaco_pipeline.analysis.roofline.operators.graphs.replays import replays as match_replays
from aaco_pipeline.analysis.timeline.recorded import Recorded
from aaco_pipeline.lake.evidence import DROPPED, OUT_OF_RANGE, Evidence

#: The tables that `examined` looks at.
EXAMINED: Final = (
    *("sessions", "environment", "devices", "processes", "kernels", "dispatches", "api_calls", "memory_copies"),
    *("markers", "counters", "synchronizations", "reported_statistics", "captured_launches"),
)


@dataclass(frozen=True)
class Completeness:
    """Rows of `completeness` and of `completeness_findings`, without their session."""

    ledger: pl.DataFrame
    findings: pl.DataFrame


def examined(tables: Mapping[str, pl.DataFrame], run: Recorded, evidence: Sequence[Evidence]) -> Completeness:
    """What the recording lacks.

    `tables` are `EXAMINED`, and `att_instructions` with the details of thread traces as a capture gives them; `run` is
    `timeline.recorded.everything` of them, `evidence` what readers say of the capture's files and of its trace.
    """
    activities, calls = run.activities, run.calls
    whole = timed(tables["dispatches"])
    run_ids = activities.filter(pl.col("activity_kind") == "dispatch").select(dispatch_id="activity_id")
    aside = tables["dispatches"].join(run_ids, on="dispatch_id", how="anti")
    launched = launches.launches(calls, activities, aside)
    early = launches.before_recording(activities, calls)
    fits = clocks.fits(activities, calls)
    counts = files.tool_counts(evidence)
    losses = {"dropped": counts[DROPPED], "out_of_range": counts[OUT_OF_RANGE]}
    found = chain(
        _of_launches(tables, run, launched, early),
        clocks.of_clocks(fits),
        clocks.of_epochs(activities, tables["api_calls"]),
        clocks.of_reversed(tables["dispatches"], tables["memory_copies"]),
        _of_counters(tables),
        thread_trace.of_thread_traces(tables, evidence),
        files.of_evidence(evidence),
        files.of_outside(evidence),
        files.of_statistics(tables["reported_statistics"], whole, tables["kernels"]),
        files.of_ranks(tables["processes"], tables["markers"]),
        files.of_fallback(tables["sessions"], tables["dispatches"], tables["kernels"]),
    )
    return Completeness(
        ledger(tables, activities, aside, launched, early, fits=fits, losses=losses),
        findings_frame(found, tool_of(tables["sessions"])),
    )


def _of_launches(
    tables: Mapping[str, pl.DataFrame], run: Recorded, launched: pl.DataFrame, early: pl.DataFrame
) -> Iterator[Finding]:
    dispatches, activities = tables["dispatches"], run.activities
    unnamed = dispatches.filter(pl.col("correlation_id").is_null()).group_by("process_id").len()
    nameless = {int(process): int(count) for process, count in unnamed.iter_rows()}
    yield from launches.of_unrecorded(launched, activities, run.calls, tables["synchronizations"], nameless)
    replayed = graphs.replays(launched, activities, dispatches)
    yield from graphs.of_replays(replayed, _short(tables))
    yield from graphs.of_whole(dispatches, tables["kernels"])
    yield from launches.of_before_recording(early)
    yield from launches.of_calls_missing(activities, early, launched)
    yield from edges.of_first_waits(activities, run.waits)


def _short(tables: Mapping[str, pl.DataFrame]) -> pl.DataFrame | None:
    """What replays lack of the graphs that were captured; None where no capture is known."""
    captured, kernels = tables["captured_launches"], tables["kernels"]
    if captured.is_empty():
        return None
    found = match_replays(tables["dispatches"], tables["memory_copies"], tables["api_calls"], kernels, captured)
    return captured_graphs.shortfalls(found, captured, kernels)


def _of_counters(tables: Mapping[str, pl.DataFrame]) -> Iterator[Finding]:
    values, dispatches, devices = tables["counters"], tables["dispatches"], tables["devices"]
    if values.height:
        yield from counters.of_values(counters.judged(values, dispatches, devices))
        yield from counters.of_coverage(values, dispatches, devices, tables["environment"])
