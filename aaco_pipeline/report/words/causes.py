"""What changed between two sets of sessions, in words: a sentence for each selection, cause and fact."""

import re
from collections.abc import Mapping
from typing import Any, Final

from aaco_pipeline.report.words.units import capital, duration, number, shortened

Row = Mapping[str, Any]

#: Longer names are cut: the table and JSON have them whole.
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

#: What is counted, one and several.
_COUNTED: Final[Mapping[str, tuple[str, str]]] = {
    "launches": ("launch", "launches"),
    "communication": ("collective", "collectives"),
    "copies": ("copy", "copies"),
}


def selection_in_words(row: Row) -> str:
    """One thing that was selected differently: `GEMM backend at aten::addmm: A → B, 24 an iteration, 1.2 ms → 2 ms`."""
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
    """One cause with its part of the change: `40 more launches an iteration of K: +0.21 ms [+0.2 ms, +0.22 ms]`."""
    text = _cause(row)
    # A kernel's name stays as it is spelt.
    told = text if text.startswith(_name(row)) else capital(text)
    return f"{told}: {signed(row['delta_ns'])}{_interval(row)}"


def difference_in_words(row: Row) -> str:
    """One fact of the environment that differs, with what it can prove."""
    return (
        f"{row['category']} {row['key']}: {shortened(row['baseline'], _WIDTH)} → {shortened(row['candidate'], _WIDTH)} "
        f"({row['evidence_grade']})"
    )


def signed(nanoseconds: float | None) -> str:
    """A difference in time with its sign."""
    if nanoseconds is None:
        return "–"
    text = duration(abs(nanoseconds))
    return f"{'−' if nanoseconds < 0 else '+'}{text}"


# ---- inside ----------------------------------------------------------------------------------------------------------


def _interval(row: Row) -> str:
    if row["ci_low_ns"] is None:
        return ""
    return f" [{signed(row['ci_low_ns'])}, {signed(row['ci_high_ns'])}]"


def _apart(before: str, after: str) -> tuple[str, str]:
    """Two values as a line has room for them: of long ones that begin alike what differs."""
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
        return f"beside the sum, {name} on the host: {more}, {times}"
    if row["kind"] in _COUNTED:
        kind, plural = ("memset", "memsets") if (row["kind"], name) == ("copies", "fill") else _COUNTED[row["kind"]]
        if not _changed(row) and (row["count_part_ns"] or row["kind"] == "launches"):
            return f"{name} ({plural}), launched about as often"
        if row["count_part_ns"] or row["kind"] == "launches":
            of = "" if kind == "memset" else f" of {name}"
            return f"{_more(row, kind, plural)} an iteration{_with_idle(row)}{of}"
        return f"{name} ({plural}) takes {_each(row, 'candidate')} each in place of {_each(row, 'baseline')}"
    if row["kind"] == "gaps":
        changed = row["baseline_count"] != row["candidate_count"]
        more = f", {_more(row, 'synchronization', 'synchronizations')} an iteration" if changed else ""
        return f"device {_GAPS.get(row['subject'], row['subject'])}{more}"
    rises = row["delta_ns"] >= 0
    return {
        "selection": f"replaced{_with_idle(row)}, {name}",
        "duration": f"{name} takes {_each(row, 'candidate')} each in place of {_each(row, 'baseline')}",
        "overlap": f"{'less' if rises else 'more'} overlap of device work",
        "clock": f"engine clock {number(row['baseline_count'])} → {number(row['candidate_count'])} MHz",
        "hidden_host": f"beside the sum, the host works {'longer' if rises else 'less'}, hidden behind the device",
        "unexplained": "unexplained, idle time of unknown cause",
    }[row["kind"]]


def _name(row: Row) -> str:
    """The subject as a line has room for it; rows of the lake have the whole name alone."""
    return shortened(row.get("short_subject") or row["subject"], _WIDTH)


def _more(row: Row, one: str, several: str) -> str:
    """`40 more launches`."""
    change = round(row["candidate_count"] - row["baseline_count"], 1)
    return f"{number(abs(change))} {'more' if change >= 0 else 'fewer'} {one if abs(change) == 1 else several}"


def _changed(row: Row) -> bool:
    """Whether the count is another one as far as it is told."""
    return round(float(row["candidate_count"] - row["baseline_count"]), 1) != 0.0


def _with_idle(row: Row) -> str:
    """That the part of launches is mostly the idle time before them, where it is."""
    own = abs((row["candidate_ns"] or 0.0) - (row["baseline_ns"] or 0.0))
    return " (with idle)" if abs(row["delta_ns"]) > 2 * own else ""


def _each(row: Row, side: str) -> str | None:
    count, time = row[f"{side}_count"], row[f"{side}_ns"]
    return duration(time / count) if count and time is not None else None
