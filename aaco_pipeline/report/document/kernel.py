"""What the lake holds about one kernel of a session, as `aaco show --kernel` prints it.

Nothing is computed here that a table does not hold; `aaco_pipeline.report.terminal.kernel` prints it.
"""

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Final

from aaco_pipeline.errors import UsageError
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.report.document.session import read_parts
from aaco_pipeline.report.words.bottleneck_text import bottleneck_fields
from aaco_pipeline.report.words.printable import in_a_line
from aaco_pipeline.report.words.session import Document, Row
from aaco_pipeline.report.words.units import counted, shortened

_NAMED: Final = 5
_LONGEST_NAME: Final = 70

_NAMES: Final = (
    "SELECT k.kernel_id, k.name, k.short_name, k.symbol FROM kernels AS k "
    "LEFT JOIN kernel_stats AS t USING (session_id, kernel_id) "
    "WHERE session_id = '{session}' ORDER BY t.total_ns DESC NULLS LAST, kernel_id"
)
_OF_KERNEL: Final = "WHERE session_id = '{session}' AND kernel_id = {kernel}"
_COSTS: Final = "count(*) AS instructions, " + ", ".join(
    f"sum({name}) AS {name}"
    for name in ("hits", "latency_cycles", "stall_cycles", "idle_cycles", "charged_stall_cycles", "samples")
)
_STATEMENTS: Final[Mapping[str, str]] = {
    "session": "SELECT * FROM sessions WHERE session_id = '{session}'",
    "kernel": (
        "SELECT k.* EXCLUDE (session_id), t.dispatch_count, t.total_ns, t.mean_ns, t.min_ns, t.p50_ns, t.p99_ns, "
        "t.max_ns, t.share_ratio FROM kernels AS k LEFT JOIN kernel_stats AS t USING (session_id, kernel_id) "
        + _OF_KERNEL
    ),
    "bottleneck": (
        "SELECT label, score, runner_up, recommendation, evidence, missing AS missing_signals FROM bottlenecks "
        f"{_OF_KERNEL} AND scope = 'kernel' ORDER BY ALL"
    ),
    "roofline": f"SELECT * EXCLUDE (session_id) FROM roofline {_OF_KERNEL} AND dispatch_id IS NULL ORDER BY ALL",
    "resource_bounds": (
        f"SELECT * EXCLUDE (session_id, kernel_id) FROM resource_bounds {_OF_KERNEL} "
        "ORDER BY lower_bound_ns DESC, resource, dtype, ceiling_source"
    ),
    "occupancy": f"SELECT * EXCLUDE (session_id) FROM occupancy {_OF_KERNEL} AND dispatch_id IS NULL ORDER BY ALL",
    "counter_metrics": f"SELECT * EXCLUDE (session_id, kernel_id) FROM counter_metrics {_OF_KERNEL} ORDER BY ALL",
    "critical_path": (
        "SELECT count(*) AS dispatch_count, count_if(c.is_critical) AS critical_count, "
        "sum(d.self_ns) FILTER (c.is_critical) AS critical_ns, max(c.criticality) AS criticality "
        "FROM (SELECT * FROM critical_path WHERE session_id = '{session}' AND activity_kind = 'dispatch') AS c "
        f"JOIN (SELECT dispatch_id, self_ns FROM dispatches {_OF_KERNEL}) AS d ON d.dispatch_id = c.activity_id "
        "HAVING count(*) > 0"
    ),
    "what_if": f"SELECT * EXCLUDE (session_id, kernel_id) FROM what_if {_OF_KERNEL} ORDER BY speedup_ratio",
    "operators": (
        "SELECT coalesce(n.name, o.operator) AS name, coalesce(n.op_type, o.outermost_operator) AS op_type, "
        'o.dispatch_count, o.total_ns, o."match", o.score '
        f"FROM (SELECT * FROM operator_kernels {_OF_KERNEL}) AS o "
        "LEFT JOIN (SELECT * FROM model_nodes WHERE session_id = '{session}') AS n USING (node_id) "
        'ORDER BY o.total_ns DESC, name, op_type, o.dispatch_count, o."match", o.score'
    ),
    "instructions": (
        f"SELECT * EXCLUDE (session_id) FROM att_instructions {_OF_KERNEL} "
        "ORDER BY dispatch_id, capture, code_object_id, address, line, instruction"
    ),
    "instruction_classes": (
        f"SELECT dispatch_id, capture, instruction_class, {_COSTS} FROM att_instructions {_OF_KERNEL} GROUP BY ALL "
        "ORDER BY dispatch_id, capture, stall_cycles DESC NULLS LAST, samples DESC NULLS LAST, instruction_class"
    ),
    "source_lines": (
        f"SELECT dispatch_id, capture, source, {_COSTS} FROM att_instructions {_OF_KERNEL} AND source IS NOT NULL "
        "GROUP BY ALL ORDER BY dispatch_id, capture, stall_cycles DESC NULLS LAST, samples DESC NULLS LAST, source"
    ),
    "stall_reasons": (
        f"SELECT * EXCLUDE (session_id) FROM att_stalls {_OF_KERNEL} "
        "ORDER BY dispatch_id, capture, share_ratio DESC, reason"
    ),
}


def kernel_document(lake: TraceLake, session: str, wanted: str) -> Document:
    """All that is known of the kernel that `wanted` names, as JSON-able values; UsageError unless it names one.

    `kernel`, `roofline`, `occupancy` and `critical_path` are one object, or null where no stage has such a row; the
    others are lists, `searches` of those made to make it faster. The verdict's fields are those of `aaco show`.
    """
    from aaco_pipeline.report.document.optimization import searches_of  # Polars, which a command's help does not need

    names = read_parts(lake, session, {"names": _NAMES.format(session=session)})["names"]
    kernel = find_kernel(names, wanted)
    fields = {"session": session, "kernel": kernel}
    parts = read_parts(lake, session, {name: text.format(**fields) for name, text in _STATEMENTS.items()})
    facts = parts.pop("session")
    single = {name: _only(parts.pop(name)) for name in ("kernel", "roofline", "occupancy", "critical_path")}
    return {
        **(facts[0] if facts else {"session_id": session}),
        **bottleneck_fields(parts["bottleneck"]),
        **single,
        **parts,
        "searches": [] if single["kernel"] is None else searches_of(lake, session, single["kernel"]["name"]),
        "progress": lake.progress(session).as_document(),
    }


def find_kernel(names: list[Row], wanted: str) -> int:
    """The number of the kernel that `wanted` means: a name, short name or symbol, a unique beginning or part, or the
    number.

    `names` has kernel_id, name, short_name and symbol, the longest kernel first. Letters' case only counts in a whole
    name.
    """
    asked = wanted.casefold()
    keys = ("name", "short_name", "symbol")
    rules: tuple[Callable[[Row], bool], ...] = (
        lambda row: wanted.removesuffix(".kd") in [row[key] for key in keys] or wanted in [row[key] for key in keys],
        lambda row: wanted == str(row["kernel_id"]),
        lambda row: any((row[key] or "").casefold().startswith(asked) for key in keys),
        lambda row: any(asked in (row[key] or "").casefold() for key in keys),
    )
    for rule in rules:
        found = [row for row in names if rule(row)]
        if len(found) == 1:
            return int(found[0]["kernel_id"])
        if found:
            raise UsageError(_ambiguous(wanted, found))
    raise UsageError(_unknown(wanted, names))


def _ambiguous(wanted: str, found: list[Row]) -> str:
    listed = "; ".join(f"{row['kernel_id']}: {_brief(row['name'])}" for row in found[:_NAMED])
    more = f"; and {len(found) - _NAMED:,} more" if len(found) > _NAMED else ""
    return f"{wanted!r} names {counted(len(found), 'kernel')}: {listed}{more}; give more of the name, or the number"


def _unknown(wanted: str, names: list[Row]) -> str:
    if not names:
        return f"no kernel {wanted!r}: the session has no kernels"
    by_name = {row["short_name"].casefold(): row["short_name"] for row in reversed(names)}
    near = [by_name[name] for name in get_close_matches(wanted.casefold(), by_name, n=3, cutoff=0.4)]
    listed = near or list(by_name.values())[::-1][:3]
    return f"no kernel {wanted!r}; {'near it' if near else 'the longest'}: {', '.join(map(_brief, listed))}"


def _brief(name: str) -> str:
    return shortened(in_a_line(name), _LONGEST_NAME)


def _only(rows: list[Row]) -> Row | None:
    return rows[0] if rows else None
