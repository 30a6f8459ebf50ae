"""Describe the causes of a change, and arrange them so that they add up to it.

`aaco_pipeline.statistics.causes` finds the causes.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from aaco_pipeline.report.formatting import capital, counted, duration, number, shortened

Row = Mapping[str, Any]

#: Longer names are shortened; the table and JSON have the full name.
_WIDTH: Final = 90
_WHAT: Final[Mapping[str, str]] = {
    "execution_provider": "execution provider",
    "backend": "backend",
    "precision": "precision",
    "graph_replay": "way of launching",
    "compilation": "compilation",
    "node_placement": "node placement",
    "attention_backend": "attention backend",
    "gemm_backend": "GEMM backend",
    "library": "library",
    "data_layout": "data layout",
    "datatype": "datatype",
    "fusion": "fusion",
    "kernel": "kernel",
    "copy_path": "host memory",
    "input_shape": "input shape",
    "cache": "cache",
    "library_version": "version",
}
_GAPS: Final[Mapping[str, str]] = {
    "sync": "idle after a synchronization",
    "host_wait": "idle, waiting for the host to launch",
    "launch_latency": "idle while a launch is on its way",
    "dependency": "idle, waiting for other device work",
    "kernel_kernel": "idle between kernels back to back",
    "ends_of_steps": "idle before the first and after the last work of a step",
}

#: Counted things, singular and plural.
_COUNTED: Final[Mapping[str, tuple[str, str]]] = {
    "launches": ("launch", "launches"),
    "communication": ("collective", "collectives"),
    "copies": ("copy", "copies"),
}


def selection_in_words(row: Row) -> str:
    """Describe a changed selection: `GEMM backend at aten::addmm: A → B, 24 an iteration, 1.2 ms → 2 ms`."""
    place = f" at {shortened(row['operator'], _WIDTH)}" if row["operator"] else ""
    if not place and row["position"] is not None:
        place = f" at launch {row['position']:,} of a step"
    text = f"{capital(_WHAT[row['what']])}{place}: {' → '.join(_apart(row['from_value'], row['to_value']))}"
    if row["count"] is not None:
        text += f", {number(round(row['count'], 1))} an iteration"
    if row["baseline_ns"] is not None and row["candidate_ns"] is not None:
        text += f", {duration(row['baseline_ns'])} → {duration(row['candidate_ns'])}"
    return text


def cause_in_words(row: Row) -> str:
    """Describe a cause with its contribution: `40 more launches an iteration of K: +0.21 ms [+0.2 ms, +0.22 ms]`."""
    text = _cause(row)
    # Kernel names keep their spelling.
    told = text if text.startswith(_name(row)) else capital(text)
    return f"{told}: {signed(row['delta_ns'])}{_interval(row)}"


def difference_in_words(row: Row) -> str:
    """Describe a difference between environments, and how strong its evidence is."""
    return (
        f"{row['category']} {row['key']}: {shortened(row['baseline'], _WIDTH)} → {shortened(row['candidate'], _WIDTH)} "
        f"({row['evidence_grade']})"
    )


def signed(nanoseconds: float | None) -> str:
    """Format a time difference with its sign."""
    if nanoseconds is None:
        return "–"
    text = duration(abs(nanoseconds))
    return f"{'−' if nanoseconds < 0 else '+'}{text}"


def _interval(row: Row) -> str:
    if row["ci_low_ns"] is None:
        return ""
    return f" [{signed(row['ci_low_ns'])}, {signed(row['ci_high_ns'])}]"


def _apart(before: str, after: str) -> tuple[str, str]:
    """Shorten two values to fit a line; if long ones share a prefix, show where they differ."""
    before, after = (re.sub(r"\bvoid |\(anonymous namespace\)::", "", one) for one in (before, after))
    heads = [one.partition("<")[0].partition("(")[0] for one in (before, after)]
    if max(len(before), len(after)) > _WIDTH and heads[0] != heads[1] and all(heads):
        before, after = (head if len(one) > _WIDTH else one for one, head in zip((before, after), heads, strict=True))
    alike = next((at for at, pair in enumerate(zip(before, after, strict=False)) if pair[0] != pair[1]), 0)
    if max(len(before), len(after)) > _WIDTH and alike > _WIDTH // 3:
        begin = max(0, alike - _WIDTH // 3)
        before, after = (f"…{one[begin:]}" if begin else one for one in (before, after))
    return shortened(before, _WIDTH), shortened(after, _WIDTH)


def _cause(row: Row) -> str:
    name = _name(row)
    if row["kind"] == "host_calls":
        more = f"{_more(row, 'call', 'calls')} an iteration" if _changed(row) else "as many calls"
        times = " → ".join(duration(row[f"{side}_ns"]) or "" for side in ("baseline", "candidate"))
        return f"not part of the sum: {name} on the host: {more}, {times}"
    if row["kind"] in _COUNTED:
        kind, plural = ("memset", "memsets") if (row["kind"], name) == ("copies", "fill") else _COUNTED[row["kind"]]
        if not _changed(row) and (row["count_part_ns"] or row["kind"] == "launches"):
            return f"{name} ({plural}), launched about as often"
        if row["count_part_ns"] or row["kind"] == "launches":
            of = "" if kind == "memset" else f" of {name}"
            return f"{_more(row, kind, plural)} an iteration{_with_idle(row)}{of}"
        return f"{name} ({plural}) takes {_each(row, 'candidate')} each instead of {_each(row, 'baseline')}"
    if row["kind"] == "gaps":
        changed = row["baseline_count"] != row["candidate_count"]
        more = f", {_more(row, 'synchronization', 'synchronizations')} an iteration" if changed else ""
        return f"device {_GAPS.get(row['subject'], row['subject'])}{more}"
    rises = row["delta_ns"] >= 0
    return {
        "selection": f"replaced{_with_idle(row)}, {name}",
        "duration": f"{name} takes {_each(row, 'candidate')} each instead of {_each(row, 'baseline')}",
        "overlap": f"{'less' if rises else 'more'} overlap of device work",
        "clock": f"engine clock {number(row['baseline_count'])} → {number(row['candidate_count'])} MHz",
        "hidden_host": f"not part of the sum: the host works {'longer' if rises else 'less'}, hidden behind the device",
        "unexplained": "unexplained, idle time of unknown cause",
    }[row["kind"]]


def _name(row: Row) -> str:
    """Shorten the subject to fit a line; only the lake's rows have the full name."""
    return shortened(row.get("short_subject") or row["subject"], _WIDTH)


def _more(row: Row, one: str, several: str) -> str:
    """`40 more launches`."""
    change = round(row["candidate_count"] - row["baseline_count"], 1)
    return f"{number(abs(change))} {'more' if change >= 0 else 'fewer'} {one if abs(change) == 1 else several}"


def _changed(row: Row) -> bool:
    """Return whether the printed counts differ."""
    return round(float(row["candidate_count"] - row["baseline_count"]), 1) != 0.0


def _with_idle(row: Row) -> str:
    """Return a remark if most of the change is idle time before the launches."""
    own = abs((row["candidate_ns"] or 0.0) - (row["baseline_ns"] or 0.0))
    return " (with idle)" if abs(row["delta_ns"]) > 2 * own else ""


def _each(row: Row, side: str) -> str | None:
    count, time = row[f"{side}_count"], row[f"{side}_ns"]
    return duration(time / count) if count and time is not None else None


#: Maximum number of causes shown individually, in total and among those whose interval includes zero.
_SHOWN: Final = 12
_UNSURE: Final = 3
#: Causes below this fraction of the change are not shown individually.
_LEAST: Final = 0.01


def steps(causes: Sequence[Row], begins_at: float = 0.0) -> list[dict[str, Any]]:
    """List the causes in order, then the small and uncertain ones combined, then the unexplained remainder.

    Each has kind (None if combined), in_words without its figure, delta_ns, ci_low_ns, ci_high_ns, share_ratio,
    is_certain (False if its interval includes zero, None without an interval), and from_ns and then_ns: the running sum
    before and after it.
    """
    rows = [row for row in causes if row["in_sum"]]
    named = [row for row in rows if row["kind"] != "unexplained"]
    change = sum(row["delta_ns"] for row in rows)
    largest = sorted(named, key=_size, reverse=True)
    unsure = [row for row in largest if _is_certain(row) is False]
    chosen = [row for row in largest if row not in unsure[_UNSURE:]][:_SHOWN]
    rest = [row for row in named if row not in chosen or _size(row) < _LEAST * abs(change)]
    # A single small cause is shown by itself.
    shown = [_shown(row) for row in named if row not in rest or len(rest) == 1]
    if count := len(named) - len(shown):
        delta = sum(row["delta_ns"] for row in named) - sum(row["delta_ns"] for row in shown)
        what = "smaller or uncertain cause" if len(unsure) > _UNSURE else "smaller cause"
        told = {"in_words": f"{counted(count, what)} together", "delta_ns": delta}
        shown.append({**told, **dict.fromkeys(("kind", "ci_low_ns", "ci_high_ns", "is_certain"))})
    shown += [_shown(row) for row in rows if row["kind"] == "unexplained"]
    then = begins_at
    for row in shown:
        row["from_ns"] = then
        then += row["delta_ns"]
        row["then_ns"] = then
        row["share_ratio"] = row["delta_ns"] / change if change else None
    return shown


def of_change(ratio: float | None) -> str | None:
    """Format a contribution as a percentage of the change; opposing causes can exceed 100 %."""
    return None if ratio is None else f"{round(100 * ratio):d} %".replace("-", "−")


# ---- inside ----------------------------------------------------------------------------------------------------------


def _shown(row: Row) -> dict[str, Any]:
    figures = {name: row[name] for name in ("kind", "delta_ns", "ci_low_ns", "ci_high_ns")}
    return {"in_words": row["in_words"].rsplit(": ", 1)[0], **figures, "is_certain": _is_certain(row)}


def _is_certain(row: Row) -> bool | None:
    low, high = row["ci_low_ns"], row["ci_high_ns"]
    return None if low is None else bool(low > 0 or high < 0)


def _size(row: Row) -> float:
    return abs(float(row["delta_ns"]))
