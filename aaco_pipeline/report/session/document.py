"""Collect a session's document: everything shown on its page, on the terminal and in its JSON.

`statements` has the SQL, `sentences` and `answer` have the sentences.
"""

import math
from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from aaco_pipeline import __version__
from aaco_pipeline.lake.layout import require_session_id
from aaco_pipeline.lake.sql import select_rows
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.report.session import statements as sql
from aaco_pipeline.report.session.answer import answer_fields
from aaco_pipeline.report.session.bottlenecks import bottleneck_fields
from aaco_pipeline.report.session.sentences import Document, Row, value


def session_summary(lake: TraceLake, session: str) -> Document:
    """Return the short document, as shown by `aaco show`: workload, figures, top kernels, and missing evidence."""
    wanted = _filled_in({**sql.SUMMARY, "quietness": sql.DELAYS["quietness"]}, session)
    document = _head(lake, session, read_parts(lake, session, wanted))
    campaign = document.get("campaign_id")
    of_campaign = _filled_in(sql.OF_CAMPAIGN, session) if campaign else {}
    return {**document, "campaign_verdicts": [], **read_parts(lake, session, of_campaign, campaign)}


def session_document(lake: TraceLake, session: str) -> Document:
    """Return the long document: the short one and the content of a report, as JSON-able values.

    Unpublished tables give empty lists; `unpublished_stages` and `evidence` give the reason. `statements` has the SQL
    of each part. `moments` are up to three iterations of the traced pass: the median, the slowest and the first
    measured one. `drawn_timeline` is the page's timeline data; None if no activity has times.
    """
    # Polars is only needed for the long document.
    from aaco_pipeline.report.html.timeline import TABLES, drawn_timeline

    everything = {**sql.SUMMARY, **sql.OF_CAMPAIGN, **sql.SECTIONS, **sql.DELAYS, **sql.KERNEL_PAGES, **sql.RANKS}
    statements = _filled_in(everything, session)
    document = _head(lake, session, read_parts(lake, session, statements, campaign_of(lake, session)))
    document["moments"] = _moments(document)
    tables = {name: lake.read(name, session, columns) for name, columns in TABLES.items()}
    document["drawn_timeline"] = drawn_timeline(tables, document)
    entries = lake.manifest(session).entries
    document["published"] = [{"stage": entry.stage, "table": entry.table, "rows": entry.rows} for entry in entries]
    published = {entry.stage for entry in entries}
    document["unpublished_stages"] = [
        {"stage": stage, "gives": gives} for stage, gives in sql.STAGES if stage not in published
    ]
    document["statements"] = {**statements, **_filled_in(sql.TIMELINE, session)}
    document["written_by"] = f"aaco_pipeline {__version__}"
    return document


def campaign_of(lake: TraceLake, session: str) -> str | None:
    """Return the session's campaign, if its capture is described and names one."""
    found: list[str | None] = lake.read("sessions", session, ("campaign_id",)).get_column("campaign_id").to_list()
    return found[0] if found else None


def path_document(lake: TraceLake, session: str) -> Document:
    """Return the session's facts with its critical path and the causes of its gaps (`aaco show --critical-path`)."""
    wanted = ("path_categories", "path_kernels", "savings", "gap_causes")
    return _part(lake, session, {name: sql.SECTIONS[name] for name in wanted})


def shapes_document(lake: TraceLake, session: str) -> Document:
    """Return the session's facts with the work of its operators, derived from shapes, as in `aaco show --shapes`."""
    wanted = {name: sql.SECTIONS[name] for name in ("operator_shapes", "collective_rates")}
    return _part(lake, session, {**wanted, "missing": sql.MISSING["shapes"]})


def spikes_document(lake: TraceLake, session: str) -> Document:
    """Return the session's facts with the delays of its iterations, as in `aaco show --spikes`."""
    wanted = {name: sql.DELAYS[name] for name in ("quietness", "spikes", "delay_causes")}
    return _part(lake, session, {**wanted, "metrics": sql.SUMMARY["metrics"], "missing": sql.MISSING["spikes"]})


def _part(lake: TraceLake, session: str, wanted: Mapping[str, str]) -> Document:
    statements = _filled_in({"session": sql.SUMMARY["session"], **wanted}, session)
    return _head(lake, session, read_parts(lake, session, statements))


def _filled_in(statements: Mapping[str, str], session: str) -> dict[str, str]:
    require_session_id(session)
    return {name: statement.format(session=session) for name, statement in statements.items()}


def read_parts(
    lake: TraceLake, session: str, statements: Mapping[str, str], campaign: str | None = None
) -> dict[str, list[Row]]:
    """Run all statements together, so that they see the same state of the lake; each result keeps its order."""
    if not statements:
        return {}
    columns = (
        # The alias must differ from every column name, or the column would take precedence.
        "(SELECT coalesce(list(whole_row_ ORDER BY place_), []) FROM "
        f'(SELECT whole_row_, row_number() OVER () AS place_ FROM ({statement}) AS whole_row_)) AS "{name}"'
        for name, statement in statements.items()
    )
    # Only files of the session and its campaign are opened.
    only = [session] if campaign is None else [session, campaign]
    result = select_rows(lake, f"SELECT {', '.join(columns)}", only)
    return {name: _plain(rows) for name, rows in zip(result.columns, result.rows[0], strict=True)}


def _head(lake: TraceLake, session: str, parts: dict[str, list[Row]]) -> Document:
    """Return the parts, preceded by the session's own facts as separate keys."""
    facts = parts.pop("session")
    verdict = bottleneck_fields(parts["bottleneck"]) if "bottleneck" in parts else {}
    head = facts[0] if facts else {"session_id": session}
    progress = lake.progress(session).as_document()
    verdict |= {"answer": answer_fields(parts)} if "answers" in parts else {}
    return {**head, **verdict, **parts, "progress": progress, "disk_bytes": lake.disk_bytes(session)}


def _plain(cell: Any) -> Any:
    """Convert a value for JSON: times to ISO 8601, non-finite numbers to null."""
    if isinstance(cell, float | Decimal):
        return float(cell) if math.isfinite(cell) else None
    if isinstance(cell, list):
        return [_plain(part) for part in cell]
    if isinstance(cell, dict):
        return {name: _plain(part) for name, part in cell.items()}
    return cell.isoformat() if isinstance(cell, datetime | date) else cell


def _moments(document: Document) -> list[Row]:
    """Return the median, the slowest and the first measured iteration of the traced pass, without duplicates, with
    roles.
    """
    keys = ("iteration", "start_ns", "end_ns", "latency_ns")
    measured = [
        {key: row[key] for key in keys}
        for row in document["iterations"]
        if (row["pass"], row["phase"]) == ("trace", "measure") and None not in [row[key] for key in keys]
    ]
    median = value(document, "latency_p50", "trace")  # a nearest-rank quantile, so one iteration took exactly this time
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
