"""The figures behind the report's plots, as its script draws them: points, bins of a histogram, lanes of a timeline.

Only layout is computed: which points to draw when there are more than a screen holds, and where activities lie.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from aaco_pipeline.report.words.session import Document, Row, metric, title, value
from aaco_pipeline.report.words.units import capital, size

#: More points or activities than this are not told apart on a screen; the extremes of each stretch are kept.
_DRAWN_POINTS: Final = 4000
_DRAWN_ACTIVITIES: Final = 4000
_DRAWN_SAMPLES: Final = 2000
TRACE_NAME: Final = "trace.pftrace.gz"
_BINS: Final = 64
#: A latency axis is logarithmic when the slowest iteration is so many times the fastest.
_LOGARITHMIC_FROM: Final = 8
#: Columns of the samples that are drawn under the iterations, with what they are called there and their unit.
_HOST_STRIPS: Final = (
    ("cpu_ratio", "Host CPUs busy", "ratio"),
    ("cpu_pressure_ratio", "CPU pressure: a task waits", "ratio"),
    ("clock_mhz", "CPU clock", "MHz"),
    ("run_delay_ns", "Run delay since the process began", "ns"),
    ("rss_bytes", "Resident memory", "bytes"),
)
_DEVICE_STRIPS: Final = (
    ("power_w", "Power", "W"),
    ("gfx_clock_mhz", "Engine clock", "MHz"),
    ("gfx_activity_ratio", "Engine busy", "ratio"),
    ("temperature_hotspot_c", "Hot spot", "°C"),
    ("memory_used_bytes", "Device memory used", "bytes"),
)
PASSES: Final = {"latency": "Unprofiled pass", "trace": "Profiled pass"}
QUANTILES: Final = {"latency_p50": "P50", "latency_p90": "P90", "latency_p99": "P99"}


def plotted(document: Document, trace: bytes | None) -> dict[str, Any]:
    """The figures behind the plots; times are whole nanoseconds."""
    kinds = [row["operator"] for row in document["operators"]]
    kernels = {row["kernel_id"]: row for row in document["kernels"]}
    everything = [row["latency_ns"] for row in document["iterations"] if row["latency_ns"] is not None]
    return {
        "session": document["session_id"],
        "range": [min(everything), max(everything)] if everything else None,
        "logarithmic": wide(everything),
        "title": f"{title(document)} {document['session_id']}",
        "kinds": kinds[:8],
        "passes": [plotted for name in PASSES if (plotted := _plotted_pass(document, name)) is not None],
        "histogram": _histogram(document),
        "moments": [_plotted_moment(moment, kernels, kinds) for moment in document["moments"]],
        "trace": None
        if trace is None
        else {
            "bytes": len(trace),
            "file": TRACE_NAME,
            "url": f"../../traces/session_id={document['session_id']}/{TRACE_NAME}",
        },
    }


def _plotted_pass(document: Document, name: str) -> dict[str, Any] | None:
    rows = [row for row in document["iterations"] if row["pass"] == name and row["latency_ns"] is not None]
    if not rows:
        return None
    timed = all(row["start_ns"] is not None for row in rows)
    origin = rows[0]["start_ns"] if timed else 0
    drawn = _extremes(rows, "latency_ns", _DRAWN_POINTS)
    places = [row["start_ns"] - origin if timed else row["iteration"] for row in drawn]
    measured = [row for row in rows if row["phase"] != "warmup"]
    warm = (measured[0]["start_ns"] - origin if timed else measured[0]["iteration"]) if measured else None
    strips = []
    if any(row["run_delay_ns"] is not None for row in drawn):
        delays = [row["run_delay_ns"] for row in drawn]
        strips.append({"label": "Run delay: waited for a CPU", "unit": "ns", "x": places, "y": delays, "dots": True})
    if timed:
        end = max(row["end_ns"] or row["start_ns"] for row in rows)
        strips += _strips(document["system_samples"], _HOST_STRIPS, origin, end, "")
        for device in sorted({row["device_id"] for row in document["gpu_samples"]}):
            own = [row for row in document["gpu_samples"] if row["device_id"] == device]
            strips += _strips(own, _DEVICE_STRIPS, origin, end, f"device {device}: ")
    return {
        "pass": name,
        "timed": timed,
        "count": len(rows),
        "x": places,
        "iteration": [row["iteration"] for row in drawn],
        "latency": [row["latency_ns"] for row in drawn],
        "cpu": [row["cpu_time_ns"] for row in drawn],
        "warmup": warm,
        "median": value(document, "latency_p50", name),
        "strips": strips,
    }


def _strips(
    samples: Sequence[Row], wanted: Iterable[tuple[str, str, str]], origin: int, end: int, prefix: str
) -> list[dict[str, Any]]:
    """A line for each wanted column that holds anything while the pass ran."""
    inside = [row for row in samples if origin <= row["time_ns"] <= end]
    strips = []
    for column, label, unit in wanted:
        known = [row for row in inside if row.get(column) is not None]
        if known:
            drawn = _extremes(known, column, _DRAWN_SAMPLES)
            places = [row["time_ns"] - origin for row in drawn]
            named = capital(
                f"{prefix}{label[:1].lower()}{label[1:]}" if prefix and label[1:2].islower() else f"{prefix}{label}"
            )
            strips.append(
                {"label": named, "unit": unit, "x": places, "y": [row[column] for row in drawn], "dots": False}
            )
    return strips


def _extremes(rows: Sequence[Row], column: str, limit: int) -> Sequence[Row]:
    """At most about `limit` of the rows, in order: of each stretch the one with the least and the most of `column`."""
    if len(rows) <= limit:
        return rows
    stretch = math.ceil(2 * len(rows) / limit)
    kept: list[Row] = []
    for first in range(0, len(rows), stretch):
        part = range(first, min(first + stretch, len(rows)))
        ends = {min(part, key=lambda index: rows[index][column]), max(part, key=lambda index: rows[index][column])}
        kept.extend(rows[index] for index in sorted(ends))
    return kept


def wide(latencies: Sequence[int]) -> bool:
    return bool(latencies) and min(latencies) > 0 and max(latencies) > _LOGARITHMIC_FROM * min(latencies)


def _histogram(document: Document) -> dict[str, Any] | None:
    """Counts of measured iterations in bins of equal width, or of equal ratio when latencies span a wide range."""
    by_pass = {
        name: [
            row["latency_ns"]
            for row in document["iterations"]
            if (row["pass"], row["phase"]) == (name, "measure") and row["latency_ns"] is not None
        ]
        for name in PASSES
    }
    everything = [latency for latencies in by_pass.values() for latency in latencies]
    if not everything:
        return None
    logarithmic = wide(everything)
    low, high = float(min(everything)), float(max(everything))
    if low == high:
        low, high = low * 0.99 - 1, high * 1.01 + 1

    def place(latency: float) -> float:
        return math.log(latency / low) / math.log(high / low) if logarithmic else (latency - low) / (high - low)

    counts = {name: [0] * _BINS for name, latencies in by_pass.items() if latencies}
    for name, bins in counts.items():
        for latency in by_pass[name]:
            bins[min(int(place(latency) * _BINS), _BINS - 1)] += 1
    quantiles = []
    for name, label in QUANTILES.items():
        row = metric(document, name, "latency")
        if row is not None and row["value"] is not None:
            quantiles.append({"label": label, "value": row["value"], "low": row["ci_low"], "high": row["ci_high"]})
    return {"low": low, "high": high, "logarithmic": logarithmic, "counts": counts, "quantiles": quantiles}


def _plotted_moment(moment: Row, kernels: Mapping[int, Row], kinds: Sequence[str]) -> dict[str, Any]:
    """One iteration's activities in lanes, as columns; times count from the iteration's start."""
    activities = _activities(moment, kernels, kinds)
    drawn = sorted(activities, key=lambda a: a["start"] - a["end"])[:_DRAWN_ACTIVITIES]
    drawn.sort(key=lambda a: (a["start"], -a["end"]))
    lanes: dict[str, list[int]] = {}
    level_of: dict[tuple[str, int], int] = {}
    names: dict[str, int] = {}
    columns: dict[str, list[Any]] = {
        key: [] for key in ("start", "took", "lane", "level", "name", "kind", "self", "short")
    }
    for activity in drawn:
        ends = lanes.setdefault(activity["lane"], [])
        # The first level that is free, but always beneath the operator that contains this one.
        level = level_of.get((activity["lane"], activity["inside"]), -1) + 1 if activity["inside"] is not None else 0
        while level < len(ends) and ends[level] > activity["start"]:
            level += 1
        ends.extend([0] * (level + 1 - len(ends)))
        ends[level] = activity["end"]
        if activity["id"] is not None:
            level_of[activity["lane"], activity["id"]] = level
        columns["start"].append(activity["start"] - moment["start_ns"])
        columns["took"].append(activity["end"] - activity["start"])
        columns["lane"].append(list(lanes).index(activity["lane"]))
        columns["level"].append(level)
        columns["name"].append(names.setdefault(activity["name"], len(names)))
        columns["kind"].append(activity["kind"])
        columns["self"].append(activity["self"])
        columns["short"].append(1 if activity["short"] else 0)
    return {
        "iteration": moment["iteration"],
        "start": moment["start_ns"],
        "span": moment["end_ns"] - moment["start_ns"],
        "lanes": [{"label": label, "levels": len(ends)} for label, ends in lanes.items()],
        "names": list(names),
        "left_out": len(activities) - len(drawn),
        **columns,
    }


def _activities(moment: Row, kernels: Mapping[int, Row], kinds: Sequence[str]) -> list[dict[str, Any]]:
    """Host calls, kernels and copies alike: when, in which lane, inside which other, and what they are called."""
    found = [
        {
            "start": call["start_ns"],
            "end": call["end_ns"],
            "lane": f"Host calls{_of_thread(call)}",
            "name": call["name"],
            "kind": -1,
            "self": None,
            "short": False,
            "id": None,
            "inside": None,
        }
        for call in moment["api_calls"]
    ]
    for dispatch in moment["dispatches"]:
        kernel = kernels.get(dispatch["kernel_id"], {"name": f"kernel {dispatch['kernel_id']}", "operator": ""})
        # Names of operators often repeat the type; a lane shows the type in its colour, so the name leads.
        kind = kinds.index(kernel["operator"]) if kernel["operator"] in kinds else len(kinds)
        name = f"{kernel['operator']}: {kernel['name']}" if kernel["operator"] != kernel["name"] else kernel["name"]
        found.append(
            {
                "start": dispatch["start_ns"],
                "end": dispatch["end_ns"],
                "lane": _lane(dispatch),
                "name": name,
                "kind": min(kind, 7),
                "self": dispatch["self_ns"],
                "short": dispatch["below_resolution"],
                "id": dispatch["dispatch_id"],
                "inside": dispatch["parent_dispatch_id"],
            }
        )
    for copy in moment["memory_copies"]:
        name = f"{copy['direction'] or 'copy'}, {size(copy['size_bytes']) or 'size unknown'}"
        found.append(
            {
                "start": copy["start_ns"],
                "end": copy["end_ns"],
                "lane": f"Copies, device {copy['device_id']}" if copy["device_id"] is not None else "Copies",
                "name": name,
                "kind": -2,
                "self": None,
                "short": False,
                "id": None,
                "inside": None,
            }
        )
    return found


def _lane(dispatch: Row) -> str:
    if dispatch["queue_id"] is not None or dispatch["stream_id"] is not None:
        parts = [
            f"{name} {dispatch[key]}"
            for name, key in (("queue", "queue_id"), ("stream", "stream_id"))
            if dispatch[key] is not None
        ]
        return f"Kernels, device {dispatch['device_id']}, {', '.join(parts)}"
    return f"Kernels, device {dispatch['device_id']}{_of_thread(dispatch)}"


def _of_thread(row: Row) -> str:
    return f", thread {row['thread_id']}" if row["thread_id"] is not None else ""
