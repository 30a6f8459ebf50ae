"""What a finding does to the figures that it touches: null where it makes them void, told where it makes them a bound.

A figure is named as in the findings, by table and column; of `session_metrics` by the metric. A finding of one device
touches the rows of that device alone, where the table tells devices apart.
"""

from collections.abc import Iterator
from typing import Final

import polars as pl

from aaco_pipeline.analysis.completeness.counters import UNTRUSTED
from aaco_pipeline.analysis.timeline.gap_causes import UNKNOWN
from aaco_pipeline.lake.evidence import Evidence

AT_LEAST: Final = "at_least"
AT_MOST: Final = "at_most"
_METRICS: Final = "session_metrics"
#: Made of counter values that `counters.trusted` has let pass: what was wrong is not in them.
_FROM_TRUSTED: Final = ("roofline", "counter_metrics")
#: What goes with the label of a session.
_ANSWER: Final = ("label", "runner_up", "score", "recommendation")
_SIDES: Final = {AT_LEAST: "at least what it says", AT_MOST: "at most what it says"}


def obeying(table: str, frame: pl.DataFrame, findings: pl.DataFrame) -> pl.DataFrame:
    """The rows of `table` as `completeness_findings` leave them."""
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
    """Which figures of `tables` the findings make void or a bound, and by which finding."""
    told: dict[tuple[str, str], list[str]] = {}
    for finding in findings.iter_rows(named=True):
        for side in ("voids", AT_LEAST, AT_MOST):
            for figure in finding[side]:
                if figure.partition(".")[0] in tables:
                    told.setdefault((figure, side), []).append(f"{finding['finding']}: {finding['evidence']}")
    for (figure, side), reasons in sorted(told.items()):
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
    """`timeline` with `busy_bound`: on which side of the truth busy time is."""
    for side in (AT_MOST, AT_LEAST):
        for finding in findings.iter_rows(named=True):
            if "timeline.busy_ns" in finding[side]:
                rows = _rows(frame, finding["device_id"]) & pl.col("busy_ns").is_not_null()
                frame = frame.with_columns(busy_bound=pl.when(rows).then(pl.lit(side)).otherwise("busy_bound"))
    return frame


def _with_doubt(frame: pl.DataFrame, findings: pl.DataFrame) -> pl.DataFrame:
    """`gaps` with `doubt`, and no cause, where a finding says that work may have run that was not recorded."""
    # The gravest finding comes first, and is the one that a gap names.
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
