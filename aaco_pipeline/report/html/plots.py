"""Prepare the data that the page's script plots, and draw small plots as SVG.

The roofline plot is in `roofline_plot`, the timeline in `timeline`.
"""

import base64
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import polars as pl

from aaco_pipeline.report.formatting import capital, duration
from aaco_pipeline.report.session import ranks, view
from aaco_pipeline.report.session.sentences import Document, Row, metric, title, value
from aaco_pipeline.report.session.spikes import mark_in_words, marking_cause

#: More points cannot be distinguished on a screen; the extremes of each section are kept.
_DRAWN_POINTS: Final = 4000
_DRAWN_SAMPLES: Final = 2000
TRACE_NAME: Final = "trace.pftrace.gz"
_BINS: Final = 64
#: The latency axis is logarithmic if the slowest iteration takes at least this many times as long as the fastest.
_LOGARITHMIC_FROM: Final = 8
#: Sample columns that are plotted below the iterations, with label and unit.
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
#: Colour of each cause: its index in the page's palette, or the text colour. All other causes are grey.
_COLOURS: Final = {
    **{"preempted": "1", "minor_faults": "2", "stopped": "3", "interrupts": "4", "throttled": "5", "major_fault": "6"},
    **{"disk": "6", "on_cpu_longer": "own"},
}
_OTHER_COLOUR: Final = "7"
PASSES: Final = {"latency": "Unprofiled pass", "trace": "Profiled pass"}
QUANTILES: Final = {"latency_p50": "P50", "latency_p90": "P90", "latency_p99": "P99"}


def plotted(document: Document, trace: bytes | None) -> dict[str, Any]:
    """Return the data for the plots; times are whole nanoseconds."""
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
    """Return the CSS class for a cause's colour; None is an unexplained spike."""
    return f"cause-{_COLOURS.get(cause or '', _OTHER_COLOUR)}"


def _marks(document: Document, drawn: Sequence[Row]) -> dict[str, Any]:
    """Colour points by cause, with spikes larger than disturbed iterations and a tooltip each."""
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
    """Return the samples of the host and each device during the pass, one line per column with data."""
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
    """Return about `limit` rows, in order: the minimum and maximum of `column` in each section."""
    if len(rows) <= limit:
        return rows
    section = math.ceil(2 * len(rows) / limit)
    kept: list[Row] = []
    for first in range(0, len(rows), section):
        part = range(first, min(first + section, len(rows)))
        ends = {min(part, key=lambda index: rows[index][column]), max(part, key=lambda index: rows[index][column])}
        kept.extend(rows[index] for index in sorted(ends))
    return kept


def _wide(latencies: Sequence[int]) -> bool:
    return bool(latencies) and min(latencies) > 0 and max(latencies) > _LOGARITHMIC_FROM * min(latencies)


def _histogram(document: Document) -> dict[str, Any] | None:
    """Count measured iterations in bins of equal width, or of equal ratio if latencies span a wide range."""
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


_WIDTH: Final = 640
_HEIGHT: Final = 180
_LEFT: Final = 70
_MOST_POINTS: Final = 600
#: Readable on white and on Dagster's dark grey.
_INK: Final = "#8a94a3"
_POINT: Final = "#4477aa"
_MEDIAN: Final = "#ee6677"


def latency_plot(iterations: pl.DataFrame) -> str | None:
    """Plot the measured iterations of the unprofiled pass (or else the traced one) with their median as SVG; None if
    there are none. Long runs are thinned evenly, but the slowest iteration is always drawn.
    """
    measured = iterations.filter((pl.col("phase") == "measure") & pl.col("latency_ns").is_not_null())
    for name in ("latency", "trace"):
        shown = measured.filter(pl.col("pass") == name).sort("iteration")
        if shown.height:
            return _plot(shown.get_column("latency_ns").to_list())
    return None


def latency_of_session(tables: Mapping[str, pl.DataFrame]) -> str | None:
    """Plot a session's table `iterations`."""
    return latency_plot(tables["iterations"])


def as_markdown_image(svg: str, text: str) -> str:
    """Embed the plot in Markdown as an inline image, without a separate file."""
    return f"![{text}](data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()})"


def _plot(latencies: Sequence[int]) -> str:
    count = len(latencies)
    step = -(-count // _MOST_POINTS)
    slowest = max(range(count), key=latencies.__getitem__)
    drawn = sorted({*range(0, count, step), slowest})
    low, high = min(latencies), max(latencies)
    span = (high - low) or 1
    median = sorted(latencies)[(count - 1) // 2]

    def x(index: int) -> float:
        return _LEFT + (index / max(count - 1, 1)) * (_WIDTH - _LEFT - 10)

    def y(latency: int) -> float:
        return _HEIGHT - 30 - (latency - low) / span * (_HEIGHT - 45)

    dots = "".join(f'<circle cx="{x(i):.1f}" cy="{y(latencies[i]):.1f}" r="1.8"/>' for i in drawn)
    ticks = "".join(
        f'<text x="{_LEFT - 8}" y="{y(value) + 4:.1f}" text-anchor="end">{duration(value)}</text>'
        for value in dict.fromkeys((low, high))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}"'
        f' font-family="sans-serif" font-size="11"><g fill="{_INK}">{ticks}'
        f'<text x="{_LEFT}" y="{_HEIGHT - 8}">iteration 0</text>'
        f'<text x="{_WIDTH - 10}" y="{_HEIGHT - 8}" text-anchor="end">{count - 1:,}</text></g>'
        f'<g fill="{_POINT}" fill-opacity="0.7">{dots}</g>'
        f'<path d="M{_LEFT} {y(median):.1f}H{_WIDTH - 10}" stroke="{_MEDIAN}"/>'
        f'<text x="{_WIDTH - 12}" y="{y(median) - 5:.1f}" text-anchor="end" fill="{_MEDIAN}">'
        f"median {duration(median)}</text></svg>"
    )


#: Segments of a rank's bar, with their columns in `timeline`.
PARTS: Final = {"compute": "compute_ns", "communication": "exposed_communication_ns", "copy": "exposed_copy_ns"}


def rank_values(document: Document) -> dict[str, Any]:
    """Return the values for the section's template; bars only for several ranks, because one has nothing to compare."""
    times, waits = document["rank_times"], document["rank_waits"]
    several = len({row["process_id"] for row in times}) > 1
    by_process = {row["process_id"]: row for row in waits}
    longest = max((row["window_ns"] for row in times), default=0)
    rows = [(row, [*_segments(row, longest)], by_process.get(row["process_id"])) for row in times] if several else []
    return {
        "words": view,
        "ranks": ranks,
        "sentences": ranks.told_of_ranks(document),
        "rows": rows,
        "scope": ranks.scope(document, waits),
        "waited": any(row["compared_count"] for row in waits),
        "shown": [part for part in (*PARTS, "idle") if any(one == part for _, drawn, _ in rows for one, *_ in drawn)],
    }


def _segments(row: Row, longest: int) -> Iterator[tuple[str, float, float, int]]:
    """Return each known segment: name, position and width in percent of the longest window, and time."""
    if not longest:
        return
    known = {part: row[column] for part, column in PARTS.items() if row[column]}
    if row["busy_ns"] is not None:
        known["idle"] = row["window_ns"] - row["busy_ns"]
    begin = 0.0
    for part, time in known.items():
        width = 100 * time / longest
        yield part, begin, width, time
        begin += width
