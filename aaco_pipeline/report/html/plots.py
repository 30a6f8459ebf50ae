"""The figures behind the report's plots, as its script draws them: points, and bins of a histogram.

Only layout is computed: which points to draw when there are more than a screen holds. The timeline is
`aaco_pipeline.report.timeline`.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

from aaco_pipeline.report.words.session import Document, Row, metric, title, value
from aaco_pipeline.report.words.spikes import mark_in_words, marking_cause
from aaco_pipeline.report.words.units import capital

#: More points than this are not told apart on a screen; the extremes of each stretch are kept.
_DRAWN_POINTS: Final = 4000
_DRAWN_SAMPLES: Final = 2000
TRACE_NAME: Final = "trace.pftrace.gz"
_BINS: Final = 64
#: A latency axis is logarithmic when the slowest iteration is at least this many times the fastest.
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
    ("temperature_gpu_c", "Die temperature", "°C"),
    ("memory_used_bytes", "Device memory used", "bytes"),
)
#: The colour of each cause in the page's palette: its place, or the text's own. What else there is shares the grey one.
_COLOURS: Final = {
    **{"preempted": "1", "minor_faults": "2", "stopped": "3", "interrupts": "4", "throttled": "5", "major_fault": "6"},
    **{"disk": "6", "on_cpu_longer": "own"},
}
_OTHER_COLOUR: Final = "7"
PASSES: Final = {"latency": "Unprofiled pass", "trace": "Profiled pass"}
QUANTILES: Final = {"latency_p50": "P50", "latency_p90": "P90", "latency_p99": "P99"}


def plotted(document: Document, trace: bytes | None) -> dict[str, Any]:
    """The figures behind the plots; times are whole nanoseconds."""
    everything = [row["latency_ns"] for row in document["iterations"] if row["latency_ns"] is not None]
    return {
        "session": document["session_id"],
        "range": [min(everything), max(everything)] if everything else None,
        "logarithmic": _wide(everything),
        "title": f"{title(document)} {document['session_id']}",
        "passes": [plotted for name in PASSES if (plotted := _plotted_pass(document, name)) is not None],
        "histogram": _histogram(document),
        "timeline": document["drawn_timeline"],
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

    def place(row: Row) -> int:
        return int(row["start_ns"] - origin if timed else row["iteration"])

    places = [place(row) for row in drawn]
    delays = _strip("Run delay: waited for a CPU", "ns", "run_delay_ns", drawn, places)
    return {
        "pass": name,
        "timed": timed,
        "count": len(rows),
        "x": places,
        "iteration": [row["iteration"] for row in drawn],
        "latency": [row["latency_ns"] for row in drawn],
        "cpu": [row["cpu_time_ns"] for row in drawn],
        "warmup": next((place(row) for row in rows if row["phase"] != "warmup"), None),
        "median": value(document, "latency_p50", name),
        **(_marks(document, drawn) if name == "latency" else {"marks": [], "told": {}}),
        "strips": [
            *([{**delays, "dots": True}] if any(delay is not None for delay in delays["y"]) else ()),
            *(_sampled(document, rows, origin) if timed else ()),
        ],
    }


def cause_colour(cause: str | None) -> str:
    """The class of the colour that marks a cause, None that of a spike that nothing explains."""
    return f"cause-{_COLOURS.get(cause or '', _OTHER_COLOUR)}"


def _marks(document: Document, drawn: Sequence[Row]) -> dict[str, Any]:
    """Which of the points are coloured by a cause, spikes larger than what was only disturbed, and what each tells."""
    graded = {row["iteration"]: row for row in document["grades"]}
    marked: dict[tuple[bool, str], list[int]] = {}
    told = {}
    for index, row in enumerate(drawn):
        grade = graded.get(row["iteration"])
        if grade is not None:
            marked.setdefault((grade["is_spike"], cause_colour(marking_cause(grade))), []).append(index)
            told[index] = mark_in_words(grade)
    marks = [{"spike": spike, "colour": colour, "at": at} for (spike, colour), at in sorted(marked.items())]
    return {"marks": marks, "told": told}


def _sampled(document: Document, rows: Sequence[Row], origin: int) -> Iterator[dict[str, Any]]:
    """The samples of the host and of each device while the pass ran, a line for each column that holds anything."""
    end = max(row["end_ns"] or row["start_ns"] for row in rows)
    devices = sorted({row["device_id"] for row in document["gpu_samples"]})
    sources = [("", document["system_samples"], _HOST_STRIPS)] + [
        (f"device {device}: ", [row for row in document["gpu_samples"] if row["device_id"] == device], _DEVICE_STRIPS)
        for device in devices
    ]
    for prefix, samples, wanted in sources:
        inside = [row for row in samples if origin <= row["time_ns"] <= end]
        for column, label, unit in wanted:
            known = _extremes([row for row in inside if row.get(column) is not None], column, _DRAWN_SAMPLES)
            named = f"{label[:1].lower()}{label[1:]}" if prefix and label[1:2].islower() else label
            if known:
                places = [row["time_ns"] - origin for row in known]
                yield _strip(capital(f"{prefix}{named}"), unit, column, known, places)


def _strip(label: str, unit: str, column: str, rows: Sequence[Row], places: Sequence[int]) -> dict[str, Any]:
    return {"label": label, "unit": unit, "x": places, "y": [row[column] for row in rows], "dots": False}


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


def _wide(latencies: Sequence[int]) -> bool:
    return bool(latencies) and min(latencies) > 0 and max(latencies) > _LOGARITHMIC_FROM * min(latencies)


def _histogram(document: Document) -> dict[str, Any] | None:
    """Counts of measured iterations in bins of equal width, or of equal ratio when latencies span a wide range."""
    measured = [row for row in document["iterations"] if row["phase"] == "measure" and row["latency_ns"] is not None]
    by_pass = {name: [row["latency_ns"] for row in measured if row["pass"] == name] for name in PASSES}
    everything = [latency for latencies in by_pass.values() for latency in latencies]
    if not everything:
        return None
    logarithmic = _wide(everything)
    low, high = float(min(everything)), float(max(everything))
    if low == high:
        low, high = low * 0.99 - 1, high * 1.01 + 1

    def place(latency: float) -> float:
        return math.log(latency / low) / math.log(high / low) if logarithmic else (latency - low) / (high - low)

    placed = {
        name: Counter(min(int(place(latency) * _BINS), _BINS - 1) for latency in latencies)
        for name, latencies in by_pass.items()
    }
    counts = {name: [bins[place] for place in range(_BINS)] for name, bins in placed.items() if bins}
    quantiles = [
        {"label": label, "value": row["value"], "low": row["ci_low"], "high": row["ci_high"]}
        for name, label in QUANTILES.items()
        if (row := metric(document, name, "latency")) is not None and row["value"] is not None
    ]
    return {"low": low, "high": high, "logarithmic": logarithmic, "counts": counts, "quantiles": quantiles}
