"""What the lake holds about one session, gathered into one document that every report is rendered from.

The renderings live beside it (`terminal`, `markdown`, `html`). Nothing is computed here that a table does not hold:
the statements below select, join and sum, so a reader can run each of them and see the same rows.
"""

import math
from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final

from aaco_pipeline import __version__
from aaco_pipeline.lake.identity import require_session_id
from aaco_pipeline.lake.manifest import Manifest
from aaco_pipeline.lake.sql import select_rows
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.report.words import bottleneck_text as limits
from aaco_pipeline.report.words.units import counted, duration, number, share

Document = dict[str, Any]
Row = dict[str, Any]

TRACE_NAME: Final = "trace.pftrace.gz"
_TOP_KERNELS: Final = 10
_LONGEST_NAME_IN_WORDS: Final = 80

#: The statements of the short document; `{session}` is the session's id.
_SUMMARY: Final[Mapping[str, str]] = {
    "session": "SELECT * FROM sessions WHERE session_id = '{session}'",
    "metrics": (
        'SELECT metric, "pass", phase, value, unit, n, ci_low, ci_high FROM session_metrics '
        "WHERE session_id = '{session}' ORDER BY ALL"
    ),
    "timeline": (
        "SELECT device_id, window_rule, window_end_ns - window_start_ns AS window_ns, busy_ns, active_ratio, "
        "overlapped_ns, activity_count FROM timeline "
        "WHERE session_id = '{session}' AND iteration IS NULL AND window_rule = 'first_to_last_activity' "
        "ORDER BY ALL"
    ),
    "top_kernels": (
        "SELECT k.name, k.short_name AS operator, k.library, t.dispatch_count, t.total_ns, t.mean_ns, t.share_ratio "
        "FROM kernel_stats AS t JOIN kernels AS k USING (session_id, kernel_id) "
        f"WHERE session_id = '{{session}}' ORDER BY t.total_ns DESC, k.kernel_id LIMIT {_TOP_KERNELS}"
    ),
    "missing": (
        "SELECT DISTINCT item, status, reason FROM evidence "
        "WHERE session_id = '{session}' AND status <> 'present' ORDER BY status DESC, item, reason"
    ),
    **limits.SUMMARY,
}

#: The statements that make the long document of the short one.
_SECTIONS: Final[Mapping[str, str]] = {
    "iterations": (
        'SELECT "pass", iteration, phase, start_ns, end_ns, latency_ns, cpu_time_ns, run_delay_ns FROM iterations '
        "WHERE session_id = '{session}' ORDER BY \"pass\", iteration"
    ),
    "kernels": (
        "SELECT k.kernel_id, k.name, k.short_name AS operator, k.family, k.library, t.dispatch_count, t.total_ns, "
        "t.mean_ns, t.min_ns, t.p50_ns, t.p99_ns, t.max_ns, t.share_ratio "
        "FROM kernel_stats AS t JOIN kernels AS k USING (session_id, kernel_id) "
        "WHERE session_id = '{session}' ORDER BY t.total_ns DESC, k.kernel_id"
    ),
    "operators": (
        "SELECT k.short_name AS operator, count(*) AS kernels, sum(t.dispatch_count) AS dispatch_count, "
        "sum(t.total_ns) AS total_ns, sum(t.total_ns) // sum(t.dispatch_count) AS mean_ns, "
        "sum(t.share_ratio ORDER BY k.kernel_id) AS share_ratio "
        "FROM kernel_stats AS t JOIN kernels AS k USING (session_id, kernel_id) "
        "WHERE session_id = '{session}' GROUP BY k.short_name ORDER BY total_ns DESC, operator"
    ),
    "model_operators": (
        'SELECT n.node_id, coalesce(n.name, o.operator) AS name, n.op_type, o."match", '
        "sum(o.dispatch_count) AS dispatch_count, "
        "sum(o.total_ns) AS total_ns, sum(o.total_ns) / sum(sum(o.total_ns)) OVER () AS share_ratio, "
        "n.flops, n.read_bytes, n.written_bytes, n.flops / nullif(n.read_bytes + n.written_bytes, 0) "
        "AS flops_per_byte, n.shape_source "
        "FROM (SELECT * FROM operator_kernels WHERE session_id = '{session}') AS o "
        "FULL JOIN (SELECT * FROM model_nodes WHERE session_id = '{session}') AS n USING (session_id, node_id) "
        'GROUP BY ALL ORDER BY total_ns DESC NULLS LAST, n.node_id, name, "match"'
    ),
    "path_categories": (
        "SELECT scope, window_ns, path_ns, unexplained_ns, category, category_ns, category_ns / window_ns "
        "AS window_ratio FROM critical_path_summary WHERE session_id = '{session}' AND scope = 'session' "
        "AND category_ns > 0 ORDER BY category_ns DESC, category"
    ),
    "path_kernels": (
        "SELECT k.short_name AS name, k.family, count(*) AS dispatch_count, sum(d.self_ns) AS critical_ns, "
        "max(c.criticality) AS criticality FROM (SELECT * FROM critical_path WHERE session_id = '{session}' "
        "AND activity_kind = 'dispatch' AND is_critical) AS c "
        "JOIN (SELECT * FROM dispatches WHERE session_id = '{session}') AS d ON d.dispatch_id = c.activity_id "
        "JOIN (SELECT * FROM kernels WHERE session_id = '{session}') AS k USING (kernel_id) "
        "GROUP BY k.short_name, k.family ORDER BY critical_ns DESC, name, k.family LIMIT 10"
    ),
    "savings": (
        "SELECT if(length(k.name) <= 80, k.name, k.short_name) AS name, w.speedup_ratio, w.critical_ns, w.saved_ns, "
        "w.saved_ratio FROM what_if AS w JOIN kernels AS k USING (session_id, kernel_id) "
        "WHERE session_id = '{session}' ORDER BY w.saved_ns DESC, k.kernel_id, w.speedup_ratio"
    ),
    "gap_causes": (
        "SELECT device_id, cause, count(*) AS gaps, sum(end_ns - start_ns) AS idle_ns, max(end_ns - start_ns) "
        "AS longest_ns FROM gaps WHERE session_id = '{session}' GROUP BY device_id, cause "
        "ORDER BY device_id, idle_ns DESC, cause"
    ),
    "scaling": (
        "SELECT c.* EXCLUDE (campaign_id) FROM scaling AS c JOIN sessions AS s USING (campaign_id) "
        "WHERE s.session_id = '{session}' ORDER BY c.point"
    ),
    "system_samples": "SELECT * EXCLUDE (session_id) FROM system_samples WHERE session_id = '{session}' ORDER BY ALL",
    "gpu_samples": "SELECT * EXCLUDE (session_id) FROM gpu_samples WHERE session_id = '{session}' ORDER BY ALL",
    "devices": "SELECT * EXCLUDE (session_id) FROM devices WHERE session_id = '{session}' ORDER BY device_id",
    "processes": "SELECT * EXCLUDE (session_id) FROM processes WHERE session_id = '{session}' ORDER BY process_id",
    "environment": (
        "SELECT category, key, value, in_fingerprint FROM environment WHERE session_id = '{session}' ORDER BY ALL"
    ),
    "clock_domains": (
        "SELECT domain, offset_ns, uncertainty_ns, anchor FROM clock_domains WHERE session_id = '{session}' "
        "ORDER BY ALL"
    ),
    "evidence": (
        # Not the page itself: whether it was written before changes nothing of what it says.
        "SELECT stage, item, status, reason, source, rows FROM evidence WHERE session_id = '{session}' "
        "AND stage <> 'report' ORDER BY status, stage, item, reason, source, rows"
    ),
    **limits.SECTIONS,
}

#: The statements that give one iteration in full; `{iteration}`, `{start}` and `{end}` are the iteration's.
_MOMENT: Final[Mapping[str, str]] = {
    "dispatches": (
        "SELECT dispatch_id, kernel_id, process_id, thread_id, device_id, queue_id, stream_id, start_ns, end_ns, "
        "self_ns, parent_dispatch_id, below_resolution FROM dispatches "
        "WHERE session_id = '{session}' AND iteration = {iteration} ORDER BY start_ns, dispatch_id"
    ),
    "memory_copies": (
        "SELECT copy_id, direction, size_bytes, device_id, queue_id, stream_id, start_ns, end_ns FROM memory_copies "
        "WHERE session_id = '{session}' AND start_ns < {end} AND end_ns > {start} ORDER BY start_ns, copy_id"
    ),
    "api_calls": (
        "SELECT call_id, domain, name, process_id, thread_id, start_ns, end_ns FROM api_calls "
        "WHERE session_id = '{session}' AND start_ns < {end} AND end_ns > {start} ORDER BY start_ns, call_id"
    ),
}

#: The stages whose tables a report shows, with what a reader lacks when one has published nothing.
_STAGES: Final = (
    ("capture", "what was run"),
    ("session_environment", "the environment, the devices and the clocks"),
    ("inference_run", "the iterations and their figures"),
    ("kernel_trace", "the kernels and when they ran"),
    ("timeline", "the kernels' shares and the device's busy time"),
    ("critical_path", "the chain that the run could not be shorter than"),
    ("model_graph", "the model's operators, their work and their traffic"),
    *limits.STAGES,
    ("telemetry", "what the host and the devices did beside the iterations"),
)


def session_summary(lake: TraceLake, session: str) -> Document:
    """The short document, as `aaco show` tells it: what was run, its figures, its top kernels, and what was missing."""
    return _head(lake, session, read_parts(lake, session, _filled_in(_SUMMARY, session)))


def session_document(lake: TraceLake, session: str) -> Document:
    """The long document: the short one, and all that a report shows, as JSON-able values.

    A table that no stage has published gives an empty list; `unpublished_stages` and `evidence` say why. `statements`
    holds the SQL of each part. `moments` are up to three iterations of the traced pass in full: the median, the
    slowest and the first measured one.
    """
    statements = _filled_in({**_SUMMARY, **_SECTIONS}, session)
    document = _head(lake, session, read_parts(lake, session, statements, _campaign(lake, session)))
    moments = _moments(document)
    in_full = {
        f"{name} {moment['iteration']}": statement
        for moment in moments
        for name, statement in _filled_in(_MOMENT, session, moment).items()
    }
    found = read_parts(lake, session, in_full) if in_full else {}
    document["moments"] = [
        {**moment, **{name: found[f"{name} {moment['iteration']}"] for name in _MOMENT}} for moment in moments
    ]
    entries = lake.manifest(session).entries
    document["published"] = [{"stage": entry.stage, "table": entry.table, "rows": entry.rows} for entry in entries]
    published = {entry.stage for entry in entries}
    document["unpublished_stages"] = [
        {"stage": stage, "gives": gives} for stage, gives in _STAGES if stage not in published
    ]
    trace = lake.trace(session)
    document["trace"] = {"bytes": trace.stat().st_size} if trace.is_file() else None
    # The statements of an iteration in full are shown for the first one; the others differ in its numbers alone.
    document["statements"] = {**statements, **(_filled_in(_MOMENT, session, moments[0]) if moments else {})}
    document["written_by"] = f"aaco_pipeline {__version__}"
    return document


def path_document(lake: TraceLake, session: str) -> Document:
    """The session's facts with its critical path and the causes of its gaps, as `aaco show --critical-path` tells."""
    wanted = ("path_categories", "path_kernels", "savings", "gap_causes")
    statements = {"session": _SUMMARY["session"], **{name: _SECTIONS[name] for name in wanted}}
    return _head(lake, session, read_parts(lake, session, _filled_in(statements, session)))


# ---- the document in words -------------------------------------------------------------------------------------------


def title(document: Document) -> str:
    """What the session is called: its model, else its workload, else its id."""
    return str(document.get("model_name") or document.get("workload") or document["session_id"])


def what(document: Document) -> str:
    """What was run, where and when, in one line."""
    if "source_kind" not in document:
        return "(the capture is not described yet)"
    started = document["started_at"]
    taken_in = document["source_kind"] == "capture"
    parts = [
        document["model_name"] or document["workload"],
        f"taken in from {document['source_format']}" if taken_in else None,
        f"on {document['provider']}" if document["provider"] is not None else None,
        f"batch {document['batch_size']}" if document["batch_size"] is not None else None,
        document["precision"],
        None if document["threads"] is None else counted(document["threads"], "thread"),
        f"{datetime.fromisoformat(started):%Y-%m-%d %H:%M:%S} UTC" if started is not None else None,
        f"host {document['host']}" if document["host"] is not None else None,
    ]
    return ", ".join(part for part in parts if part)


def answer(document: Document) -> str:
    """The session in a few sentences; only what was measured, and whether it was steady or nobody judged it."""
    median = metric(document, "latency_p50", "latency")
    sentences = []
    first = metric(document, "time_to_first_token_p50", "latency")
    if first is not None and first["value"] is not None:
        sentences.append(_generation_answer(document, first))
    elif median is not None and median["value"] is not None:
        batch = document.get("batch_size")
        whole = f" for a batch of {batch}" if batch is not None and batch > 1 else ""
        aside = [f"95 % interval {interval(median)}"] if interval(median) else []
        throughput = value(document, "throughput", "latency")
        aside += [f"{number(throughput)} inferences/s"] if throughput is not None else []
        sentences.append(
            f"The median inference takes {duration(median['value'])}{whole}"
            + (f" ({', '.join(aside)})" if aside else "")
        )
    if document["timeline"] and document["top_kernels"]:
        ratio = document["timeline"][0]["active_ratio"]
        top = document["top_kernels"][0]
        busy = f"the device is busy {share(ratio)} of the time, and " if ratio is not None else ""
        sentences.append(
            f"While profiled, {busy}{share(top['share_ratio'])} of the kernel time is {_kernel_in_words(top)}"
        )
    limited = limits.sentence(document)
    if limited is not None:
        sentences.append(limited)
    distortion = value(document, "profiler_distortion")
    if distortion is not None:
        sentences.append(
            f"Profiling stretches the median by a factor of {distortion:.3g}"
            if distortion >= 1
            else f"The profiled median is {distortion:.3g} of the unprofiled one"
        )
    if not sentences:
        return "Nothing was measured yet."
    if metric(document, "latency_p50", "latency") is not None:
        sentences.append(steadiness(document))
    return ". ".join(sentences) + "."


def _kernel_in_words(kernel: Row) -> str:
    """A kernel's operator and name; of a long name the short form says it all."""
    if len(kernel["name"]) > _LONGEST_NAME_IN_WORDS:
        return f"kernel {kernel['operator']}"
    return f"{kernel['operator'] or 'kernel'} {kernel['name']}"


def _generation_answer(document: Document, first: Row) -> str:
    batch, prompt = document.get("batch_size"), document.get("prompt_tokens")
    each = metric(document, "time_per_output_token_p50", "latency")
    rate = value(document, "output_tokens_per_s", "latency")
    text = f"The median first token comes {duration(first['value'])} after a prompt of {prompt}"
    text += f" for a batch of {batch}" if batch is not None and batch > 1 else ""
    text += f" (95 % interval {interval(first)})" if interval(first) else ""
    if each is not None and each["value"] is not None:
        text += f", each further one {duration(each['value'])} after the one before"
        text += f" ({interval(each)})" if interval(each) else ""
    return text + (f": {number(rate)} tokens/s in all" if rate is not None else "")


def steadiness(document: Document) -> str:
    """Whether the iterations were steady, in words, from the metric `steady_state`."""
    judged = value(document, "steady_state", "latency")
    if judged is None and metric(document, "steady_state", "latency") is not None:
        return "It ran too briefly to tell whether steadily"
    if judged is None:
        return "Whether it ran steadily has not been judged"
    return "It ran steadily" if judged >= 1 else "It did not run steadily"


def metric(document: Document, name: str, of_pass: str | None = None) -> Row | None:
    """The row of `session_metrics` with that name and pass over measured iterations, if there is one."""
    found = (m for m in document["metrics"] if (m["metric"], m["pass"]) == (name, of_pass) and m["phase"] != "warmup")
    return next(found, None)


def value(document: Document, name: str, of_pass: str | None = None) -> float | None:
    """The value of `metric`; None when there is none."""
    row = metric(document, name, of_pass)
    return None if row is None else row["value"]


def interval(row: Row) -> str | None:
    """A metric's interval in words, the unit once where both ends share it; None when no end is known."""
    low, high = duration(row["ci_low"]), duration(row["ci_high"])
    if low is None and high is None:
        return None
    if low is not None and high is not None and low.split()[1] == high.split()[1]:
        low = low.split()[0]
    return f"{low or '–'} … {high or '–'}"


# ---- inside ----------------------------------------------------------------------------------------------------------


class _OneSession(TraceLake):
    """The lake as a statement about one session needs it: only the files of that session and of its campaign are
    opened, whatever else is there."""

    def __init__(self, lake: TraceLake, session: str, campaign: str | None = None) -> None:
        super().__init__(lake.path)
        self._session, self._campaign = session, campaign

    def manifests(self) -> list[Manifest]:
        of_campaign = [] if self._campaign is None else [self.manifest(self._campaign, "campaign")]
        return [self.manifest(self._session), *of_campaign]


def _filled_in(statements: Mapping[str, str], session: str, moment: Row | None = None) -> dict[str, str]:
    fields = {"session": require_session_id(session)}
    if moment is not None:
        fields |= {"iteration": moment["iteration"], "start": moment["start_ns"], "end": moment["end_ns"]}
    return {name: statement.format(**fields) for name, statement in statements.items()}


def _campaign(lake: TraceLake, session: str) -> str | None:
    """The campaign that the session belongs to, if its capture is described and names one."""
    statement = f"SELECT campaign_id FROM sessions WHERE session_id = '{require_session_id(session)}'"
    found = select_rows(_OneSession(lake, session), statement).rows
    return found[0][0] if found else None


def read_parts(
    lake: TraceLake, session: str, statements: Mapping[str, str], campaign: str | None = None
) -> dict[str, list[Row]]:
    """The rows of all statements, read together, so that they are of one state of the lake, in each one's order."""
    columns = (
        "(SELECT coalesce(list(part ORDER BY place), []) FROM "
        f'(SELECT part, row_number() OVER () AS place FROM ({statement}) AS part)) AS "{name}"'
        for name, statement in statements.items()
    )
    result = select_rows(_OneSession(lake, session, campaign), f"SELECT {', '.join(columns)}")
    return {name: _plain(rows) for name, rows in zip(result.columns, result.rows[0], strict=True)}


def _head(lake: TraceLake, session: str, parts: dict[str, list[Row]]) -> Document:
    """The parts with the session's own facts spread out in front of them."""
    facts = parts.pop("session")
    verdict = limits.told(parts["bottleneck"]) if "bottleneck" in parts else {}
    head = facts[0] if facts else {"session_id": session}
    return {**head, **verdict, **parts, "disk_bytes": lake.disk_bytes(session)}


def _plain(cell: Any) -> Any:
    """A value as JSON has it: times in ISO 8601, and what is not a finite number as null."""
    if isinstance(cell, float):
        return cell if math.isfinite(cell) else None
    if isinstance(cell, datetime | date):
        return cell.isoformat()
    if isinstance(cell, Decimal):
        return float(cell)
    if isinstance(cell, list):
        return [_plain(part) for part in cell]
    if isinstance(cell, dict):
        return {name: _plain(part) for name, part in cell.items()}
    return cell


def _moments(document: Document) -> list[Row]:
    """The median, the slowest and the first measured iteration of the traced pass, each once, with its roles."""
    measured = [
        row
        for row in document["iterations"]
        if (row["pass"], row["phase"]) == ("trace", "measure")
        and None not in (row["start_ns"], row["end_ns"], row["latency_ns"])
    ]
    if not measured:
        return []
    median = value(document, "latency_p50", "trace")  # the nearest rank, so one iteration took exactly that
    roles = (
        ("median", next((row for row in measured if row["latency_ns"] == median), None)),
        ("slowest", max(measured, key=lambda row: row["latency_ns"])),
        ("first measured", measured[0]),
    )
    moments: dict[int, Row] = {}
    for role, row in roles:
        if row is not None:
            keys = ("iteration", "start_ns", "end_ns", "latency_ns")
            moment = moments.setdefault(row["iteration"], {"roles": [], **{key: row[key] for key in keys}})
            moment["roles"].append(role)
    return list(moments.values())
