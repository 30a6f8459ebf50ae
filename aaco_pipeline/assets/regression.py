"""The stage `regression`: the session's rank among earlier similar ones, and changes since the most recent of them.

Computed by `aaco_pipeline.statistics.session_history`. Other sessions are read as they are and may be incomplete.
"""

from typing import Any, Final

import polars as pl

from aaco_pipeline.analysis.sessions.metrics import units_of_work
from aaco_pipeline.analysis.thresholds import MOST_DISTURBED
from aaco_pipeline.assets.stage import ALL_KINDS, Outcome, Session, stage
from aaco_pipeline.errors import AacoError
from aaco_pipeline.lake.evidence import Evidence
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.lake.validation import empty_table, to_contract
from aaco_pipeline.report.formatting import counted
from aaco_pipeline.report.session.sentences import against_earlier
from aaco_pipeline.statistics.causes.accounts import ACCOUNTED_FROM
from aaco_pipeline.statistics.causes.arms import FACTS, Arm, arm
from aaco_pipeline.statistics.session_history import MOST_EARLIER, alike, changes, newest, place
from aaco_pipeline.statistics.verdicts.session_quantiles import (
    UNUSABLE,
    disturbed_ratios,
    leave_out_disturbed,
    session_quantiles,
)

#: Number of most recent sessions of the same workload to search for similar ones.
_MOST_LOOKED_AT: Final = 60
#: Above this number of dispatches, kernels are left to `aaco diff`: this stage must not read two large traces.
_MOST_DISPATCHES: Final = 500_000
_READ: Final = tuple(dict.fromkeys((*FACTS, *ACCOUNTED_FROM)))
#: Tables needed to compute a session's level.
_LEVEL: Final = ("iterations", "session_metrics")


@stage(
    reads=(*_READ, "session_metrics"),
    publishes=("history_places", "session_changes"),
    group="judgement",
    kinds=("polars", "parquet"),
    session_kinds=ALL_KINDS,
)
def regression(session: Session) -> Outcome:
    """How does this session rank among earlier similar ones, and what changed since the most recent of them?"""
    own = session.tables("sessions")["sessions"].row(0, named=True)
    unread: dict[str, str] = {}
    names = newest(session.lake.sessions(), session.id, _MOST_LOOKED_AT)
    like = alike(_of_others(session.lake, "sessions", names, unread), own)
    value, why = _level(session)
    wanted = like.get_column("session_id").to_list()[: 2 * MOST_EARLIER]
    found = _levels(session.lake, wanted, unread)
    row = place(value, why, like.join(found, on="session_id", how="left", maintain_order="left"))
    previous = _previous(session, [name for name in wanted if name not in unread])
    row["previous_session"] = previous
    differing, skipped = (empty_table("session_changes"), None) if previous is None else _changes(session, previous)
    tables = {
        "history_places": to_contract("history_places", pl.DataFrame([row])),
        "session_changes": to_contract("session_changes", differing),
    }
    return Outcome(
        tables,
        _evidence(row, unread, found.filter(~pl.col("is_usable")).height, skipped),
        {
            "against_earlier": against_earlier(row, differing.to_dicts()),
            "earlier_sessions": row["earlier_sessions"],
            "median_ratio": row.get("median_ratio"),
            "changes": differing.height,
        },
        differing.select("what", "subject", "from_value", "to_value"),
        "what changed since the session before",
    )


# ---- inside ----------------------------------------------------------------------------------------------------------


def _level(session: Session) -> tuple[int | None, str | None]:
    """Return the session's own steady-state median, or the reason why there is none."""
    iterations, figures = session.tables(*_LEVEL).values()
    measured = _measured(session.id, iterations)
    if measured.is_empty():
        return None, "no unprofiled iterations: times of a profiled run are not compared with others"
    (found,) = _usable(measured, figures.with_columns(session_id=pl.lit(session.id))).to_dicts()
    why = None if found["p50_ns"] is not None else "; ".join(found["reasons"]) or found["state"]
    return found["p50_ns"], why


def _levels(lake: TraceLake, names: list[str], unread: dict[str, str]) -> pl.DataFrame:
    """Return session_id, level_ns (the steady-state median) and is_usable for sessions with unprofiled iterations."""
    parts = [_measured(name, _of_others(lake, "iterations", [name], unread)) for name in names]
    measured = pl.concat(parts) if parts else _measured("", empty_table("iterations"))
    figures = _of_others(lake, "session_metrics", names, unread)
    is_usable = pl.col("state") != UNUSABLE
    return _usable(measured, figures).select("session_id", level_ns="p50_ns", is_usable=is_usable)


def _usable(measured: pl.DataFrame, figures: pl.DataFrame) -> pl.DataFrame:
    """Return rows of `session_quantiles`; sessions disturbed too often to compare have no level."""
    rows = leave_out_disturbed(session_quantiles(measured), disturbed_ratios(figures), MOST_DISTURBED)
    return rows.with_columns(p50_ns=pl.when(pl.col("state") != UNUSABLE).then("p50_ns"))


def _measured(name: str, iterations: pl.DataFrame) -> pl.DataFrame:
    """Return units of work in the format of `session_quantiles`."""
    units = units_of_work(iterations).select("iteration", latency_ns="time_ns")
    where = {"session_id": pl.lit(name), "arm": pl.lit(None, pl.String), "block": pl.lit(None, pl.Int32)}
    return units.with_columns(**where)


def _of_others(lake: TraceLake, table: str, names: list[str], unread: dict[str, str]) -> pl.DataFrame:
    """Read a table of other sessions; unreadable sessions are skipped and added to `unread`."""
    frames = []
    for name in names:
        try:
            frames.append(lake.read(table, name))
        except AacoError as error:
            unread[name] = str(error)
    return pl.concat(frames) if frames else lake.read(table, [])


def _previous(session: Session, names: list[str]) -> str | None:
    """Return the most recent similar session, preferably one with kernels if this session has any."""
    if not _dispatches(session.lake, session.id):
        return names[0] if names else None
    return next((name for name in names if _dispatches(session.lake, name)), names[0] if names else None)


def _dispatches(lake: TraceLake, name: str) -> int:
    return sum(entry.rows for entry in lake.manifest(name).of_table("dispatches"))


def _changes(session: Session, previous: str) -> tuple[pl.DataFrame, str | None]:
    """Return rows of `session_changes`, and the reason if not everything was compared."""
    most = max(_dispatches(session.lake, name) for name in (session.id, previous))
    skipped = f"{most:,} dispatches: `aaco diff {previous} {session.id}`" if most > _MOST_DISPATCHES else None
    names = FACTS if skipped else _READ
    try:
        before = {name: session.lake.read(name, previous) for name in names}
    except AacoError as error:
        return empty_table("session_changes"), f"{previous} cannot be read: {error}"
    after = {name: frame.with_columns(session_id=pl.lit(session.id)) for name, frame in session.tables(*names).items()}
    return changes(_side(previous, before), _side(session.id, after)), skipped


def _side(name: str, tables: dict[str, Any]) -> Arm:
    return arm({name: {**{each: empty_table(each) for each in ACCOUNTED_FROM}, **tables}})


def _evidence(row: dict[str, Any], unread: dict[str, str], left_out: int, skipped: str | None) -> list[Evidence]:
    placed = row.get("median_ratio") is not None
    items = [
        Evidence(
            "place among earlier sessions",
            "present" if placed else "absent",
            row["reason"] if not placed else None,
            "history_places",
            row["earlier_sessions"],
        )
    ]
    if unread:
        name, why = next(iter(unread.items()))
        told = f"{counted(len(unread), 'earlier session')} cannot be read, {name} first: {why}"
        items.append(Evidence("earlier sessions", "partial", told, "sessions"))
    if left_out:
        told = f"{counted(left_out, 'earlier session')} left out: too noisy a machine, or times that cannot be right"
        items.append(Evidence("levels of earlier sessions", "partial", told, "history_places"))
    if skipped is not None:
        items.append(Evidence("changes since the session before", "partial", skipped, "session_changes"))
    return items
