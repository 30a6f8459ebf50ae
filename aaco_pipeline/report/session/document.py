"""Gather a session's document: everything that its page, its terminal output and its JSON show.

The SQL is in `statements`, the sentences in `sentences` and `answer`.
"""

import math
from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final

from aaco_pipeline import __version__
from aaco_pipeline.lake.layout import require_session_id
from aaco_pipeline.lake.sql import select_rows
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.report.session.answer import answer_fields
from aaco_pipeline.report.session.bottlenecks import bottleneck_fields
from aaco_pipeline.report.session.ranks import RANKS
from aaco_pipeline.report.session.sentences import Document, Row, value
from aaco_pipeline.report.session.spikes import DELAYS, GRADES, QUIETNESS, SPIKES_SPIKES
from aaco_pipeline.report.session.statements import KERNEL_PAGES, OF_CAMPAIGN, SECTIONS, STAGES, SUMMARY, TIMELINE


def session_summary(lake: TraceLake, session: str) -> Document:
    """The short document, as `aaco show` prints it: the workload, its figures, its top kernels, and what is missing."""
    document = _head(lake, session, read_parts(lake, session, _filled_in({**SUMMARY, **QUIETNESS}, session)))
    campaign = document.get("campaign_id")
    of_campaign = _filled_in(OF_CAMPAIGN, session) if campaign else {}
    return {**document, "campaign_verdicts": [], **read_parts(lake, session, of_campaign, campaign)}


def session_document(lake: TraceLake, session: str) -> Document:
    """The long document: the short one, and all that a report shows, as JSON-able values.

    A table that no stage has published gives an empty list; `unpublished_stages` and `evidence` say why. `statements`
    holds the SQL of each part. `moments` are up to three iterations of the traced pass: the median, the slowest and the
    first measured one. `drawn_timeline` is what a page draws of the activities; None where none has times.
    """
    # What only the long document needs, and Polars with it.
    from aaco_pipeline.report.html.timeline import TABLES, drawn_timeline

    everything = {**SUMMARY, **OF_CAMPAIGN, **SECTIONS, **DELAYS, **GRADES, **KERNEL_PAGES, **RANKS}
    statements = _filled_in(everything, session)
    document = _head(lake, session, read_parts(lake, session, statements, campaign_of(lake, session)))
    document["moments"] = _moments(document)
    tables = {name: lake.read(name, session, columns) for name, columns in TABLES.items()}
    document["drawn_timeline"] = drawn_timeline(tables, document)
    entries = lake.manifest(session).entries
    document["published"] = [{"stage": entry.stage, "table": entry.table, "rows": entry.rows} for entry in entries]
    published = {entry.stage for entry in entries}
    document["unpublished_stages"] = [
        {"stage": stage, "gives": gives} for stage, gives in STAGES if stage not in published
    ]
    document["statements"] = {**statements, **_filled_in(TIMELINE, session)}
    document["written_by"] = f"aaco_pipeline {__version__}"
    return document


def campaign_of(lake: TraceLake, session: str) -> str | None:
    """The campaign that the session belongs to, if its capture is described and names one."""
    found: list[str | None] = lake.read("sessions", session, ("campaign_id",)).get_column("campaign_id").to_list()
    return found[0] if found else None


def path_document(lake: TraceLake, session: str) -> Document:
    """The session's facts with its critical path and the causes of its gaps, as `aaco show --critical-path` prints."""
    wanted = ("path_categories", "path_kernels", "savings", "gap_causes")
    statements = {"session": SUMMARY["session"], **{name: SECTIONS[name] for name in wanted}}
    return _head(lake, session, read_parts(lake, session, _filled_in(statements, session)))


def shapes_document(lake: TraceLake, session: str) -> Document:
    """The session's facts with what its operators had to do by their shapes, as `aaco show --shapes` prints."""
    wanted = ("operator_shapes", "collective_rates")
    statements = {"session": SUMMARY["session"], **{name: SECTIONS[name] for name in wanted}}
    statements["missing"] = _WHY_NO_SHAPES
    return _head(lake, session, read_parts(lake, session, _filled_in(statements, session)))


def spikes_document(lake: TraceLake, session: str) -> Document:
    """The session's facts with what delayed its iterations, as `aaco show --spikes` prints."""
    return _head(
        lake, session, read_parts(lake, session, _filled_in({"session": SUMMARY["session"], **SPIKES_SPIKES}, session))
    )


# ---- inside ----------------------------------------------------------------------------------------------------------


_WHY_NO_SHAPES: Final = (
    "SELECT DISTINCT item, status, reason FROM evidence WHERE session_id = '{session}' AND stage = 'roofline' "
    "AND item = 'work by operators'' shapes' AND status <> 'present' ORDER BY ALL"
)


def _filled_in(statements: Mapping[str, str], session: str) -> dict[str, str]:
    require_session_id(session)
    return {name: statement.format(session=session) for name, statement in statements.items()}


def read_parts(
    lake: TraceLake, session: str, statements: Mapping[str, str], campaign: str | None = None
) -> dict[str, list[Row]]:
    """The rows of all statements, read together, so that they are of one state of the lake, in each one's order."""
    if not statements:
        return {}
    columns = (
        # No column of a table is called as the row is here, or it would stand for the row.
        "(SELECT coalesce(list(whole_row_ ORDER BY place_), []) FROM "
        f'(SELECT whole_row_, row_number() OVER () AS place_ FROM ({statement}) AS whole_row_)) AS "{name}"'
        for name, statement in statements.items()
    )
    # Only the files of that session and of its campaign are opened, whatever else is there.
    only = [session] if campaign is None else [session, campaign]
    result = select_rows(lake, f"SELECT {', '.join(columns)}", only)
    return {name: _plain(rows) for name, rows in zip(result.columns, result.rows[0], strict=True)}


def _head(lake: TraceLake, session: str, parts: dict[str, list[Row]]) -> Document:
    """The parts with the session's own facts spread out in front of them."""
    facts = parts.pop("session")
    verdict = bottleneck_fields(parts["bottleneck"]) if "bottleneck" in parts else {}
    head = facts[0] if facts else {"session_id": session}
    progress = lake.progress(session).as_document()
    verdict |= {"answer": answer_fields(parts)} if "answers" in parts else {}
    return {**head, **verdict, **parts, "progress": progress, "disk_bytes": lake.disk_bytes(session)}


def _plain(cell: Any) -> Any:
    """A value as JSON has it: times in ISO 8601, and what is not a finite number as null."""
    if isinstance(cell, float | Decimal):
        return float(cell) if math.isfinite(cell) else None
    if isinstance(cell, list):
        return [_plain(part) for part in cell]
    if isinstance(cell, dict):
        return {name: _plain(part) for name, part in cell.items()}
    return cell.isoformat() if isinstance(cell, datetime | date) else cell


def _moments(document: Document) -> list[Row]:
    """The median, the slowest and the first measured iteration of the traced pass, each once, with its roles."""
    keys = ("iteration", "start_ns", "end_ns", "latency_ns")
    measured = [
        {key: row[key] for key in keys}
        for row in document["iterations"]
        if (row["pass"], row["phase"]) == ("trace", "measure") and None not in [row[key] for key in keys]
    ]
    median = value(document, "latency_p50", "trace")  # the nearest rank, so one iteration took exactly that
    roles = {
        "median": [row for row in measured if row["latency_ns"] == median],
        "slowest": sorted(measured, key=lambda row: -row["latency_ns"]),
        "first measured": measured,
    }
    moments: dict[int, Row] = {}
    for role, rows in roles.items():
        for row in rows[:1]:
            moments.setdefault(row["iteration"], {"roles": [], **row})["roles"].append(role)
    return list(moments.values())
