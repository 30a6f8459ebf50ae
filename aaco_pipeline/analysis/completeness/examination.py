"""Examine a recording once for missing data: the ledger, the findings and their effect on other figures.

A finding nulls the figures that it invalidates and marks those that it only affects. Other modules of this package
implement the individual checks.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

import polars as pl

from aaco_pipeline.analysis.completeness import clocks, counters, files, graphs, launches
from aaco_pipeline.analysis.completeness.clocks import TOLERANCE_NS, Fit
from aaco_pipeline.analysis.completeness.counters import UNTRUSTED
from aaco_pipeline.analysis.completeness.findings import Finding, findings_frame, tool_of
from aaco_pipeline.analysis.roofline.operators.graph_replays import replays as match_replays
from aaco_pipeline.analysis.timeline.activities import Recorded, timed
from aaco_pipeline.analysis.timeline.gap_causes import UNKNOWN
from aaco_pipeline.lake.contracts import polars_types
from aaco_pipeline.lake.evidence import DROPPED, OUT_OF_RANGE, Evidence

_WHO: Final = ("process_id", "device_id")
#: Kinds of records that host calls launch, by kind of activity.
_LAUNCHED: Final = {"dispatches": "dispatch", "memory_copies": "memory_copy"}
_NO_CALLS: Final = "no host calls were recorded, so that launches are not known"
_SILENT: Final = "the tool says nothing of what it dropped"


def ledger(
    tables: Mapping[str, pl.DataFrame],
    activities: pl.DataFrame,
    aside: pl.DataFrame,
    launched: pl.DataFrame,
    early: pl.DataFrame,
    *,
    fits: Mapping[int, Fit],
    losses: Mapping[str, int | None],
) -> pl.DataFrame:
    """Compute rows of the table `completeness` without the session.

    Args:
        tables: The tables of the capture.
        activities: From `timeline.activities`.
        aside: Dispatches that are not activities, because their times are unusable or they are part of another
            dispatch.
        launched: From `launches.launches`.
        early: From `launches.before_recording`.
        fits: From `clocks.fits`, by process.
        losses: The tool's own counts (`dropped`, `out_of_range`).
    """
    counted = tables["counters"].select("dispatch_id").unique()
    parts = [
        _launched_kind(
            kind, _records(kind, activities.filter(pl.col("activity_kind") == name), aside), launched, early, counted
        )
        for kind, name in _LAUNCHED.items()
    ]
    parts += [_calls(tables["api_calls"]), _counters(tables), _instructions(tables)]
    frame = pl.concat(parts, how="diagonal_relaxed")
    steps = pl.DataFrame(
        [(process, fit.step_ns, fit.early.height) for process, fit in fits.items()],
        schema={"process_id": pl.Int32, "clock_step_ns": pl.Int64, "early": pl.Int64},
        orient="row",
    )
    device = pl.col("record_kind").is_in(list(_LAUNCHED))
    frame = frame.join(steps, on="process_id", how="left").with_columns(
        clock_step_ns=pl.when(device).then("clock_step_ns"),
        **{name: pl.when(device).then(pl.lit(count, pl.Int64)) for name, count in losses.items()},
    )
    types = polars_types("completeness")
    missing = [pl.lit(None, dtype).alias(name) for name, dtype in types.items() if name not in frame.columns]
    frame = frame.with_columns(missing).with_columns(
        reason=pl.when(device).then(
            pl.concat_str(
                pl.when(pl.col("launched").is_null()).then(pl.lit(_NO_CALLS)),
                pl.when(pl.col("dropped").is_null()).then(pl.lit(_SILENT)),
                separator="; ",
                ignore_nulls=True,
            ).replace("", None)
        )
    )
    return frame.select(pl.col(name).cast(dtype) for name, dtype in types.items()).sort(
        "record_kind", *_WHO, nulls_last=True
    )


def _records(kind: str, own: pl.DataFrame, aside: pl.DataFrame) -> pl.DataFrame:
    """Return the activities of a kind; for dispatches, including those that are not activities."""
    if kind != "dispatches":
        return own
    others = aside.select(*_WHO, "start_ns", "end_ns", activity_id=pl.col("dispatch_id").cast(pl.Int32))
    return pl.concat([own, others], how="diagonal")


def _launched_kind(
    kind: str, own: pl.DataFrame, launched: pl.DataFrame, early: pl.DataFrame, counted: pl.DataFrame
) -> pl.DataFrame:
    """Return records by process and device, and launches of single-device processes."""
    length = pl.col("end_ns") - pl.col("start_ns")
    odd = (pl.col("call_start_ns") - pl.col("start_ns") > TOLERANCE_NS).fill_null(False) | (length < 0)
    records = own.join(
        counted.with_columns(is_counted=pl.lit(True)), left_on="activity_id", right_on="dispatch_id", how="left"
    )
    rows = records.group_by(_WHO).agg(
        recorded=pl.len().cast(pl.Int64),
        linked=pl.col("call_id").count().cast(pl.Int64),
        counted=pl.col("is_counted").count().cast(pl.Int64),
        out_of_order=odd.sum().cast(pl.Int64),
    )
    first = early.filter(pl.col("activity_kind") == _LAUNCHED[kind])
    rows = rows.join(
        first.group_by(_WHO).agg(before_recording=pl.len().cast(pl.Int64), before_recording_ns=length.sum()),
        on=_WHO,
        how="left",
        nulls_equal=True,
    )
    wanted = "copy" if kind == "memory_copies" else "kernel"
    run = launched.filter((pl.col("kind") == wanted) & pl.col("capture").is_null())
    lost = (pl.col("records") == 0).sum().cast(pl.Int64)
    calls = run.group_by("process_id").agg(launched=pl.len().cast(pl.Int64), unrecorded=lost)
    known = launched.select("process_id").unique()
    alone = rows.filter(pl.len().over("process_id") == 1).select("process_id")
    at_device = calls.join(alone, on="process_id", how="semi")
    rows = rows.join(at_device, on="process_id", how="left")
    elsewhere = calls.join(alone, on="process_id", how="anti").with_columns(recorded=pl.lit(0, pl.Int64))
    rows = pl.concat([rows, elsewhere], how="diagonal")
    is_known = pl.col("process_id").is_in(known.get_column("process_id").implode())
    zero = [pl.when(is_known).then(pl.col(name).fill_null(0)).alias(name) for name in _OF_CALLS]
    hidden = [pl.when(is_known).then(name).alias(name) for name in ("linked", "launched", "unrecorded")]
    rows = rows.with_columns(zero).with_columns(hidden)
    if kind == "memory_copies":
        # A call may move nothing or use a kernel, so launches without a record prove nothing.
        rows = rows.with_columns(counted=pl.lit(None, pl.Int64), unrecorded=pl.lit(None, pl.Int64))
    return rows.with_columns(record_kind=pl.lit(kind))


_OF_CALLS: Final = ("before_recording", "before_recording_ns")


def _calls(api_calls: pl.DataFrame) -> pl.DataFrame:
    odd = (pl.col("end_ns") < pl.col("start_ns")).sum().cast(pl.Int64)
    rows = api_calls.group_by("process_id").agg(recorded=pl.len().cast(pl.Int64), out_of_order=odd)
    return rows.with_columns(record_kind=pl.lit("api_calls"))


def _counters(tables: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    counters = tables["counters"]
    times = counters.group_by("dispatch_id", "counter", "pass").agg(times=pl.len().cast(pl.Int64))
    own = times.join(tables["dispatches"].select("dispatch_id", *_WHO), on="dispatch_id")
    rows = own.group_by(_WHO).agg(
        recorded=pl.col("times").sum(),
        passes=pl.col("pass").n_unique().cast(pl.Int64),
        repetitions=pl.col("times").max(),
    )
    return rows.with_columns(record_kind=pl.lit("counters"))


def _instructions(tables: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    own = tables["att_instructions"]
    schema = {"process_id": pl.Int32, "recorded": pl.Int64, "record_kind": pl.String}
    return pl.DataFrame([(None, own.height, "att_instructions")] if own.height else [], schema=schema, orient="row")


AT_LEAST: Final = "at_least"
AT_MOST: Final = "at_most"
_METRICS: Final = "session_metrics"
#: Computed from counter values that `counters.trusted` has filtered, so they contain no known errors.
_FROM_TRUSTED: Final = ("roofline", "counter_metrics")
#: Columns that depend on a session's label.
_ANSWER: Final = ("label", "runner_up", "score", "recommendation")
_SIDES: Final = {AT_LEAST: "at least what it says", AT_MOST: "at most what it says"}


def obeying(table: str, frame: pl.DataFrame, findings: pl.DataFrame) -> pl.DataFrame:
    """Apply `completeness_findings` to the rows of `table`."""
    for finding in findings.iter_rows(named=True):
        if finding["finding"] in UNTRUSTED and table in _FROM_TRUSTED:
            continue
        rows = _rows(frame, finding["device_id"])
        for name in _of_table(finding["voids"], table):
            frame = _void(frame, table, name, rows)
    if table == "timeline":
        frame = _with_bound(frame, findings)
    return _with_doubt(frame, findings) if table == "gaps" else frame


def obeyed(tables: frozenset[str], findings: pl.DataFrame) -> Iterator[Evidence]:
    """Return the figures of `tables` that findings invalidate or turn into a bound, with the findings."""
    because: dict[tuple[str, str], list[str]] = {}
    for finding in findings.iter_rows(named=True):
        for side in ("voids", AT_LEAST, AT_MOST):
            for figure in finding[side]:
                if figure.partition(".")[0] in tables:
                    because.setdefault((figure, side), []).append(f"{finding['finding']}: {finding['evidence']}")
    for (figure, side), reasons in sorted(because.items()):
        words = "void" if side == "voids" else _SIDES[side]
        status = "invalid" if side == "voids" else "partial"
        yield Evidence(f"{figure} ({words})", status, " ".join(dict.fromkeys(reasons)), "completeness_findings")  # type: ignore[arg-type]


def _of_table(figures: list[str], table: str) -> list[str]:
    return [name for owner, _, name in (figure.partition(".") for figure in figures) if owner == table]


def _rows(frame: pl.DataFrame, device: int | None) -> pl.Expr:
    if device is None or "device_id" not in frame.columns:
        return pl.lit(True)
    return pl.col("device_id") == device


def _void(frame: pl.DataFrame, table: str, name: str, rows: pl.Expr) -> pl.DataFrame:
    if table == _METRICS:
        return frame.with_columns(value=pl.when(~(pl.col("metric") == name)).then("value"))
    if table == "gaps":
        return frame.with_columns(cause=pl.when(rows).then(pl.lit(UNKNOWN)).otherwise("cause"))
    if table == "bottlenecks":
        of_kernel = pl.col("scope") != "session"
        return frame.with_columns(pl.when(of_kernel).then(column).alias(column) for column in _ANSWER)
    return frame.with_columns(pl.when(~rows).then(name).alias(name))


def _with_bound(frame: pl.DataFrame, findings: pl.DataFrame) -> pl.DataFrame:
    """Add `busy_bound` to `timeline`: whether busy time is a lower or an upper bound."""
    for side in (AT_MOST, AT_LEAST):
        for finding in findings.iter_rows(named=True):
            if "timeline.busy_ns" in finding[side]:
                rows = _rows(frame, finding["device_id"]) & pl.col("busy_ns").is_not_null()
                frame = frame.with_columns(busy_bound=pl.when(rows).then(pl.lit(side)).otherwise("busy_bound"))
    return frame


def _with_doubt(frame: pl.DataFrame, findings: pl.DataFrame) -> pl.DataFrame:
    """Add `doubt` to `gaps`, and remove the cause if a finding says that unrecorded work may have run."""
    # The most severe finding comes first, and the gap names that one.
    for finding in reversed(list(findings.iter_rows(named=True))):
        if not _of_table(finding[AT_MOST], "gaps"):
            continue
        rows = _rows(frame, finding["device_id"])
        if finding["start_ns"] is not None:
            rows &= pl.col("end_ns") > finding["start_ns"]
        if finding["end_ns"] is not None:
            rows &= pl.col("start_ns") < finding["end_ns"]
        frame = frame.with_columns(
            doubt=pl.when(rows).then(pl.lit(finding["finding"])).otherwise("doubt"),
            cause=pl.when(rows).then(pl.lit(UNKNOWN)).otherwise("cause"),
            host_call_id=pl.when(~rows).then("host_call_id"),
        )
    return frame


#: Tables that `examined` reads.
EXAMINED: Final = (
    *("sessions", "environment", "devices", "processes", "kernels", "dispatches", "api_calls", "memory_copies"),
    *("markers", "counters", "synchronizations", "reported_statistics", "captured_launches"),
)


@dataclass(frozen=True)
class Completeness:
    """Rows of `completeness` and `completeness_findings`, without their session."""

    ledger: pl.DataFrame
    findings: pl.DataFrame


def examined(tables: Mapping[str, pl.DataFrame], run: Recorded, evidence: Sequence[Evidence]) -> Completeness:
    """Examine the recording for missing data.

    Args:
        tables: `EXAMINED`, and `att_instructions` with the capture's thread-trace details.
        run: `timeline.activities.everything` for these tables.
        evidence: The readers' statements on the capture's files and its trace.
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
        counters.of_thread_traces(tables, evidence),
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
    yield from launches.of_first_waits(activities, run.waits)


def _short(tables: Mapping[str, pl.DataFrame]) -> pl.DataFrame | None:
    """Return the number of kernels missing from replays of captured graphs; None if no capture is known."""
    captured, kernels = tables["captured_launches"], tables["kernels"]
    if captured.is_empty():
        return None
    found = match_replays(tables["dispatches"], tables["memory_copies"], tables["api_calls"], kernels, captured)
    return graphs.shortfalls(found, captured, kernels)


def _of_counters(tables: Mapping[str, pl.DataFrame]) -> Iterator[Finding]:
    values, dispatches, devices = tables["counters"], tables["dispatches"], tables["devices"]
    if values.height:
        yield from counters.of_values(counters.judged(values, dispatches, devices))
        yield from counters.of_coverage(values, dispatches, devices, tables["environment"])
