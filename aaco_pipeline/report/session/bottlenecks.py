"""Describe what limits a kernel or an operator, and which evidence was missing.

`aaco_pipeline.analysis.bottlenecks` assigns the labels.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from aaco_pipeline.report.formatting import counted, duration, number, share, size
from aaco_pipeline.report.labels import LABELS
from aaco_pipeline.report.session.answer import CLASSES

Row = Mapping[str, Any]

_NAMED_SIGNALS: Final = 3
#: Prefix of signals among the evidence of the stage `classification`.
_SIGNAL_ITEM: Final = "signal "
#: Unexplained time below this fraction is not given as the reason for a missing label.
_WORTH_SAYING: Final = 0.01

RESOURCES: Final = {
    "dram": "DRAM",
    "fabric": "memory fabric",
    "infinity_cache": "Infinity Cache",
    "l1": "L1",
    "l2": "L2",
    "l3": "L3",
    "lds": "LDS",
    "matrix": "matrix units",
    "scalar_issue": "scalar issue",
    "vector": "vector units",
    "vector_integer": "integer units",
    "vector_issue": "vector issue",
    "vector_packed": "packed vector units",
    "vl1d": "vL1D",
}
_SIGNALS: Final = {
    "share_busy_unexplained": "time in kernels that nothing explains",
    "share_idle_unexplained": "idle time that nothing explains",
    "share_idle_unrecorded": "time in which most likely work ran that was not recorded",
    "nearest_roof": "nearness to the nearest roof",
    "roof_sure": "a roof that limits beyond doubt",
    "vector_busy": "vector units busy",
    "matrix_busy": "matrix units busy",
    "scalar_busy": "scalar unit busy",
    "lds_busy": "LDS busy",
    "l2_busy": "L2 busy",
    "scratch_busy": "address units busy with scratch",
    "achieved_occupancy": "achieved occupancy",
    "theoretical_occupancy": "theoretical occupancy",
    "grid_rounds": "rounds the grid takes on the device",
    "clock_below_highest": "clock below its highest",
    "active_threads": "lanes active",
}
#: Signal of the stage `classification` for kernels as short as a launch.
_TOO_SHORT: Final = "too_short_to_judge"
#: Prefixes of signals that exist only if the nearest roof is known.
_OF_A_ROOF: Final = ("share_", "at_", "near_", "second_", "roof_", "cost_of_")
#: Signals named after a label, with their meaning.
_PREFIXES: Final = (
    ("at_", "nearness to the roof of"),
    ("near_", "nearness to the roof of"),
    ("second_", "nearness to the roof of"),
    ("cost_of_", "cost at most of"),
)


def bottleneck_fields(bottleneck: Sequence[Row]) -> dict[str, Any]:
    """Return the session's verdict as fields of the document; nulls and empty lists without one.

    top_evidence lists signals by descending weight; signals with weight 0 were only conditions of a rule.
    """
    row = bottleneck[0] if bottleneck else {}
    return {
        "bottleneck_class": row.get("label"),
        "score": row.get("score"),
        "runner_up": row.get("runner_up"),
        "top_evidence": strongest(row.get("evidence") or []),
        "missing_signals": row.get("missing_signals") or [],
        "recommendation": row.get("recommendation"),
    }


def strongest(evidence: Sequence[Row]) -> list[Row]:
    """Sort evidence by descending weight; for equal weights keep the stage's order, with the label's evidence first."""
    return sorted(evidence, key=lambda one: -one["weight"])


def verdict(row: Row, of: str) -> str:
    """Describe a row of `bottlenecks`; `of` is the judged scope, such as `session`. The text has no full stop."""
    evidence = strongest(row["evidence"] or [])
    if row["label"] is None:
        lacks = lacking(row)
        return f"What limits this {of} is not known: {lacks}" if lacks else f"What limits this {of} is not known"
    aside = [f"score {row['score']:.2f}"] if row["score"] is not None else []
    aside += [f"runner-up: {briefly(row['runner_up'])}"] if row["runner_up"] is not None else []
    text = f"This {of} is limited by {briefly(row['label'])}"
    text += f" ({', '.join(aside)})" if aside else ""
    if evidence and evidence[0]["signal"] == f"share_{row['label']}":
        text += f", which takes {amount(evidence[0])} of the time"
    elif evidence:
        text += f"; the largest evidence is {signal(evidence[0]['signal'])}: {amount(evidence[0])}"
    # A recommendation ends with the bound on its saving.
    return f"{text}. {row['recommendation'].rstrip('.')}" if row["recommendation"] else text


def _class(name: str) -> str:
    """Return a session's class in words; for sessions of earlier versions, the limit that was stated."""
    return CLASSES.get(name) or briefly(name)


def lacking(row: Row) -> str:
    """Explain why a row has no label: unexplained time, missing recordings, and unmeasured signals.

    Empty if nothing is missing. For a kernel too short to judge, nothing else is listed.
    """
    if any(one["signal"] == _TOO_SHORT for one in row.get("evidence") or []):
        return "too short to judge: a dispatch takes about as long as a launch"
    parts = [
        f"{signal(one['signal'])} is {amount(one)}"
        for one in row.get("evidence") or []
        if one["signal"].endswith(("_unexplained", "_unrecorded")) and one["value"] >= _WORTH_SAYING
    ]
    named = unmeasured(row["missing_signals"] or [])
    if named:
        rest = len(named) - _NAMED_SIGNALS
        more = f" and {counted(rest, 'more signal')}" if rest > 0 else ""
        parts.append(f"not measured: {', '.join(named[:_NAMED_SIGNALS])}{more}")
    return "; ".join(parts)


def unmeasured(signals: Sequence[str]) -> list[str]:
    """List missing signals in words, without those that only follow from another missing signal.

    Without a roof there is no nearest one, and a share of the time is missing if no kernel has that label.
    """
    return [signal(name) for name in _independent(signals)]


def _independent(signals: Sequence[str]) -> list[str]:
    following = _OF_A_ROOF if "nearest_roof" in signals else ("share_",)
    return [name for name in signals if name == "nearest_roof" or not name.startswith(following)]


def without_repetition(missing: Sequence[Row]) -> list[dict[str, Any]]:
    """Merge rows of missing evidence whose signals have the same reason, and put them last.

    Each row has item, status and reason. Signals that only follow from another missing one are left out.
    """
    kept = [dict(row) for row in missing if not row["item"].startswith(_SIGNAL_ITEM)]
    by_name = {row["item"].removeprefix(_SIGNAL_ITEM): row for row in missing if row["item"].startswith(_SIGNAL_ITEM)}
    told: dict[tuple[str, str | None], list[str]] = {}
    for name in _independent(list(by_name)):
        told.setdefault((by_name[name]["status"], by_name[name]["reason"]), []).append(name)
    return kept + [{**by_name[names[0]], "item": ", ".join(map(signal, names))} for names in told.values()]


def unpublished(document: Row) -> list[dict[str, Any]]:
    """List stages that published nothing, as rows of missing evidence."""
    return [
        {"item": row["gives"], "status": "absent", "stage": row["stage"]}
        | {"reason": f"the stage {row['stage']} has published nothing for this session"}
        for row in document.get("unpublished_stages", [])
    ]


def flags(names: Sequence[str] | None) -> str:
    """Return named caveats in words."""
    return ", ".join(name.replace("_", " ").replace(":", ": ") for name in names or [])


def label(name: str | None) -> str:
    """Return a label in words; unknown labels, from the user's own rules, are shown by name."""
    return "not known" if name is None else LABELS.get(name) or CLASSES.get(name) or name.replace("_", " ")


def briefly(name: str) -> str:
    """Return a label in words, without its explanation."""
    return label(name).split(":")[0].split(",")[0]


def resource(name: str | None, dtype: str | None = None) -> str | None:
    """Return a resource of `ceilings` in words."""
    if name is None:
        return None
    return " ".join(part for part in (RESOURCES.get(name, name.replace("_", " ")), dtype) if part)


def signal(name: str) -> str:
    """Return a signal of `bottlenecks` in words."""
    if name in _SIGNALS:
        return _SIGNALS[name]
    if name.startswith("share_"):
        return f"time that goes to {_class(name.removeprefix('share_'))}"
    for prefix, words in _PREFIXES:
        if name.startswith(prefix) and name.removeprefix(prefix) in LABELS:
            return f"{words} {briefly(name.removeprefix(prefix))}"
    return name.replace("_", " ")


def amount(evidence: Row) -> str:
    """Format the value of a signal in a readable unit."""
    return measure(evidence["value"], evidence["unit"])


def measure(value: float | None, unit: str | None) -> str:
    """Format a value in a readable unit, or a dash if there is none."""
    if value is None:
        return "–"
    if unit == "flag":
        return "yes" if value else "no"
    if unit == "byte/s":
        return f"{number(value / 1e9)} GB/s"
    if unit == "flop/s":
        return f"{number(value / 1e9)} GFLOP/s"
    forms = {"ratio": share(value), "ns": duration(value), "bytes": size(round(value)), "byte": size(round(value))}
    return forms.get(unit or "") or (f"{number(value)} {unit}" if unit not in (None, "count") else str(number(value)))


def nearest(row: Row) -> list[str]:
    """Format the two lower bounds closest to a kernel's time, such as `DRAM 79.1 %`, as fractions of its time."""
    return [
        f"{resource(one['resource'], one['dtype'])} {share(one['share_ratio']) or duration(one['lower_bound_ns'])}"
        for one in row["nearest_bounds"] or []
    ]


def occupied(row: Row) -> str | None:
    """Format a kernel's occupancy, relative to the maximum that its resources allow, with the limiting resource."""
    parts = [share(row["achieved_ratio"])] if row["achieved_ratio"] is not None else []
    if row["theoretical_ratio"] is not None:
        parts.append(f"of {share(row['theoretical_ratio'])}" if parts else f"at most {share(row['theoretical_ratio'])}")
    limited = f" by {row['limiter']}" if row["limiter"] else ""
    return " ".join(part for part in parts if part) + limited if parts else None


def of_kernel(row: Row) -> str:
    """Return a kernel's label in words with its score, or why it has none."""
    if row["label"] is not None:
        return briefly(row["label"])
    if row["missing_signals"] is None:
        return "not judged: the stage classification has no row for it"
    return f"no label; {lacking(row) or 'no rule fits what was measured'}"
