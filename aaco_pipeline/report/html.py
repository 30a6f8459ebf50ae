"""A session's document as one self-contained HTML page: text and tables made here, plots drawn by its own script.

The page's style, script and frame are the files in `page/`; what it says comes from `document`. Only layout is
computed: bins of a histogram, lanes of a timeline, and which points to draw when there are more than a screen holds.
"""

import base64
import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from string import Template
from typing import Any, Final

from aaco_pipeline.lake.contracts import all_tables
from aaco_pipeline.report import scaling
from aaco_pipeline.report.document import (
    TRACE_NAME,
    Document,
    Row,
    answer,
    interval,
    metric,
    steadiness,
    title,
    value,
    what,
)
from aaco_pipeline.report.units import counted, duration, number, share, size, work

#: A trace up to this size travels inside the page, so that the file alone can hand it to Perfetto.
EMBEDDED_TRACE_BYTES: Final = 700_000
#: More points or activities than this are not told apart on a screen; the extremes of each stretch are kept.
_DRAWN_POINTS: Final = 4000
_DRAWN_ACTIVITIES: Final = 4000
_DRAWN_SAMPLES: Final = 2000
_LISTED_ROWS: Final = 200
_SHOWN_ROWS: Final = 12
_BINS: Final = 64
#: A latency axis is logarithmic when the slowest iteration is so many times the fastest.
_LOGARITHMIC_FROM: Final = 8
_PASSES: Final = {"latency": "Unprofiled pass", "trace": "Profiled pass"}
_GENERATION: Final = {
    "time_to_first_token_p50": "First token",
    "time_per_output_token_p50": "Further token",
    "request_latency_p50": "Request",
}
_QUANTILES: Final = {"latency_p50": "P50", "latency_p90": "P90", "latency_p99": "P99"}
#: The space between a number and its unit, where no line may end.
_UNIT: Final = re.compile(r"(?<=[0-9]) (?=(?:%|[mµn]?s|inferences)\b|%)")
_DASH: Final = '<span class="none">–</span>'
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


def render_html(document: Document, trace: bytes | None) -> str:
    """The page of a long document. `trace` is the session's unified trace as its file holds it, None without one.

    The same arguments give the same page. It contacts no network; opening the trace in Perfetto does, on a click.
    """
    style, script = _page_file("report.css"), _page_file("report.js")
    embedded = trace is not None and len(trace) <= EMBEDDED_TRACE_BYTES
    return Template(_page_file("report.html")).substitute(
        title=escape(f"{title(document)} · {document['session_id']}"),
        script_digest=_digest(script),
        style_digest=_digest(style),
        style=style,
        script=script,
        nav="".join(
            f'<a href="#{name}">{label}</a>'
            for name, label in _NAVIGATION
            if name != "scaling" or document.get("scaling")
        ),
        header=_header(document, trace),
        sections="".join(section(document) for section in _SECTIONS),
        footer=_footer(document),
        data=_as_json(_plotted(document, trace)),
        trace=base64.b64encode(trace).decode() if trace is not None and embedded else "",
    )


# ---- the sections ----------------------------------------------------------------------------------------------------


def _header(document: Document, trace: bytes | None) -> str:
    holes = len(document["missing"]) + len(document["unpublished_stages"])
    ready = "" if trace is not None else " disabled"
    described = _capital(what(document).removeprefix(f"{title(document)}, "))
    hint = (
        "Loads ui.perfetto.dev in a new tab, which reads the trace inside this browser."
        if trace is not None
        else "This session has no unified trace yet, so there is nothing to open in Perfetto."
    )
    return (
        f"<h1>{escape(title(document))}</h1>"
        f'<p class="what">{escape(described)}<br><code>{escape(document["session_id"])}</code></p>'
        f'<p class="answer" id="answer">{_UNIT.sub(chr(0xA0), escape(answer(document)))}</p>'
        f'<dl class="tiles">{"".join(_tiles(document))}</dl>'
        f'<p class="links"><a href="#missing">{counted(holes, "thing")} missing, and why</a>'
        f'<button type="button" id="perfetto" aria-describedby="perfetto-note"{ready}>Open in Perfetto</button>'
        f'<span id="perfetto-note" role="status">{hint}</span></p>'
    )


def _tiles(document: Document) -> Iterable[str]:
    def tile(label: str, text: str | None, aside: str | None, exact: str | None = None) -> str:
        return (
            f"<div><dt>{escape(label)}</dt><dd>{_hover(text, exact)}</dd>"
            + (f'<dd class="aside">{escape(aside)}</dd>' if aside else "")
            + "</div>"
        )

    generates = document.get("output_tokens") is not None
    for name, label in (_GENERATION if generates else _QUANTILES).items():
        row = metric(document, name, "latency")
        if row is not None:
            yield tile(
                label if generates else f"{label} latency",
                duration(row["value"]),
                interval(row),
                _exact(row["value"], "ns"),
            )
    throughput = metric(document, "output_tokens_per_s" if generates else "throughput", "latency")
    if throughput is not None:
        unit = "tokens / s" if generates else "inferences / s"
        yield tile("Throughput", number(throughput["value"]), unit, _exact(throughput["value"], "per s"))
    for row in document["timeline"][:1]:
        yield tile("Device busy", share(row["active_ratio"]), "while profiled", _exact(row["active_ratio"], "ratio"))
    distortion = value(document, "profiler_distortion")
    if distortion is not None:
        yield tile("Profiler distortion", f"× {distortion:.3g}", "on the median", _exact(distortion, "ratio"))
    judged = value(document, "steady_state", "latency")
    told = "too short to tell" if metric(document, "steady_state", "latency") is not None else "not judged"
    yield tile("Steady", None if judged is None else "yes" if judged >= 1 else "no", told if judged is None else None)


def _latency(document: Document) -> str:
    passes = [name for name in _PASSES if any(row["pass"] == name for row in document["iterations"])]
    samples = len(document["system_samples"]) + len(document["gpu_samples"])
    telemetry = (
        f"Beneath them, on the same time axis, {counted(samples, 'sample')} of the host and the devices."
        if samples
        else "No samples of the host or the devices lie beneath them: "
        + _why_empty(document, "telemetry", "it recorded none")
    )
    figures = "".join(
        f'<figure class="plot" data-pass="{name}"><figcaption>{_PASSES[name]}</figcaption><div></div></figure>'
        for name in passes
    )
    return _section(
        document,
        "latency",
        "Latency over the run",
        "Each dot is one iteration, placed when it began. Shaded: warm-up, which no figure counts. Line: the median of "
        f"the measured iterations. Only the unprofiled pass judges speed. {escape(telemetry)}",
        f'<div class="pair">{figures}</div>' if figures else _empty(document, "inference_run"),
        statements=(
            "iterations",
            *(("system_samples",) if samples else ()),
            *(("gpu_samples",) if document["gpu_samples"] else ()),
        ),
    )


def _distribution(document: Document) -> str:
    body = _empty(document, "inference_run")
    if document["iterations"]:
        rows = []
        for row in document["metrics"]:
            unit = row["unit"]
            cell = _of_unit(row["value"], unit)
            rows.append(
                (
                    _text(row["metric"]),
                    _text({"latency": "unprofiled", "trace": "profiled"}.get(row["pass"], "both")),
                    cell,
                    _of_unit(row["ci_low"], unit),
                    _of_unit(row["ci_high"], unit),
                    _count(row["n"]),
                )
            )
        columns = ("Figure", "Pass", "*Value", "*Interval from", "*to", "*Values")
        body = (
            '<figure class="plot" id="histogram"><figcaption>How many iterations took how long; above, the quantiles '
            "of the unprofiled pass with their 95 % intervals</figcaption><div></div></figure>"
            f"<details><summary>All {len(rows)} figures of the session</summary>{_table(columns, rows)}</details>"
        )
    return _section(
        document,
        "distribution",
        "Distribution",
        "Measured iterations only. The intervals say how well this session's own quantiles are known, as if its "
        "iterations were independent; they say nothing about another session. An open end means too few iterations.",
        body,
        statements=("iterations", "metrics"),
    )


def _warmup(document: Document) -> str:
    by_pass = {
        name: [row for row in document["iterations"] if (row["pass"], row["phase"]) == (name, "warmup")]
        for name in _PASSES
    }
    count = max(map(len, by_pass.values()), default=0)
    medians = {name: value(document, "latency_p50", name) for name in _PASSES}
    latencies = [row["latency_ns"] or 0 for rows in by_pass.values() for row in rows]
    longest = max([*latencies, *(median or 0 for median in medians.values())], default=0)
    rows = []
    for index in range(min(count, _SHOWN_ROWS)):
        cells = [_number_cell(f"{index}", index)]
        for listed in by_pass.values():
            latency = listed[index]["latency_ns"] if index < len(listed) else None
            cells.append(_bar(latency, longest, duration(latency), _exact(latency, "ns")))
        rows.append(cells)
    last = [_text("median"), *(_bar(m, longest, duration(m), _exact(m, "ns")) for m in medians.values())]
    more = (
        f"<p>{counted(count - _SHOWN_ROWS, 'further warm-up iteration')} not listed.</p>" if count > _SHOWN_ROWS else ""
    )
    body = (
        _table(("*Iteration", *(f"{label}" for label in _PASSES.values())), rows, foot=[last], name="warmup") + more
        if document["iterations"]
        else _empty(document, "inference_run")
    )
    judged = steadiness(document)
    return _section(
        document,
        "warmup",
        "Warm-up and steady state",
        "The warm-up iterations one by one, against the median of the measured ones: a bar much longer than the last "
        f"is what warming up costs. {escape(judged)}.",
        body,
        statements=("iterations",),
    )


def _hot(document: Document) -> str:
    if not document["kernels"]:
        body = _empty(document, "timeline")
    else:
        body = "<h3>By kind of operator</h3>" + _share_table(
            ("Operator", "*Kernels"),
            document["operators"],
            lambda row: [_name(row["operator"]), _count(row["kernels"])],
            "operator",
        )
        body += "<h3>By kernel</h3>" + _share_table(
            ("Kernel", "Operator"),
            document["kernels"],
            lambda row: [_name(row["name"]), _name(row["operator"])],
            "kernel",
        )
    distortion = value(document, "profiler_distortion")
    warning = (
        f" The profiler makes this pass {distortion:.3g} times as slow, so shares of short kernels are exaggerated."
        if distortion is not None and distortion >= 1.5
        else ""
    )
    return _section(
        document,
        "kernels",
        "Where the kernel time went",
        "Self time over the measured iterations of the profiled pass: an operator that contains others counts only "
        f"its own part, so the shares add up to 100 %.{warning}",
        body,
        statements=("operators", "kernels"),
    )


def _path(document: Document) -> str:
    """Where the time went: the longest path by category, its kernels, and why the device was idle."""
    categories = document.get("path_categories", [])
    if not categories:
        body = _empty(document, "critical_path")
        return _section(document, "path", "Where the time went", "", body, statements=())
    longest = categories[0]["category_ns"]
    window, left = categories[0]["window_ns"], categories[0]["unexplained_ns"]

    def line(name: str, amount: int) -> list[_Cell]:
        return [_text(name), _bar(amount, longest, duration(amount), _exact(amount, "ns")), _share(amount / window)]

    rows = [line(row["category"], row["category_ns"]) for row in categories]
    whole = [_text("the whole window"), _cell(duration(window), window, _exact(window, "ns")), _share(1.0)]
    body = "<h3>On the critical path</h3>" + _table(
        ("Time", "*Length", "*Of the window"), rows, foot=[line("unexplained", left), whole]
    )
    if document["path_kernels"]:
        body += "<h3>Kernels on the path</h3>" + _table(
            ("Kernel", "Family", "*On the path", "*Dispatches", "*Share of it that is critical"),
            [
                [
                    _name(row["name"]),
                    _text(row["family"]),
                    _time(row["critical_ns"]),
                    _count(row["dispatch_count"]),
                    _share(row["criticality"]),
                ]
                for row in document["path_kernels"]
            ],
        )
    if document["gap_causes"]:
        body += "<h3>Why the device was idle</h3>" + _table(
            ("Device", "Cause", "*Idle", "*Gaps", "*Longest"),
            [
                [
                    _count(row["device_id"]),
                    _text(_CAUSES.get(row["cause"], row["cause"])),
                    _time(row["idle_ns"]),
                    _count(row["gaps"]),
                    _time(row["longest_ns"]),
                ]
                for row in document["gap_causes"]
            ],
        )
    return _section(
        document,
        "path",
        "Where the time went",
        "The longest chain of activities that waited for one another: only what lies on it makes the run shorter when "
        "it becomes faster. What no recorded activity explains is a line of its own; together they are the window.",
        body,
        statements=("path_categories", "path_kernels", "gap_causes"),
    )


#: Causes of gaps in words.
_CAUSES: Final = {
    "sync": "sync: the host waited in a blocking call",
    "host_wait": "host wait: the next launch came late",
    "launch_latency": "launch latency: the launch was on its way",
    "dependency": "dependency: it waited for another stream",
    "kernel_kernel": "kernel to kernel: the device's own turnaround",
    "unknown": "unknown",
}


def _timeline(document: Document) -> str:
    moments = document["moments"]
    body = _empty(document, "kernel_trace")
    if moments:
        buttons = "".join(
            f'<button type="button" data-moment="{index}" aria-pressed="{"true" if index == 0 else "false"}">'
            f"{escape(_capital(' and '.join(moment['roles'])))} <small>iteration {moment['iteration']}, "
            f"{duration(moment['latency_ns'])}</small></button>"
            for index, moment in enumerate(moments)
        )
        zoom = "".join(
            f'<button type="button" data-zoom="{name}" aria-label="{label}" title="{label}">{sign}</button>'
            for name, label, sign in (("in", "Zoom in", "+"), ("out", "Zoom out", "−"), ("all", "Show all", "⤢"))
        )
        body = (
            f'<div class="toolbar"><div role="group" aria-label="Iteration">{buttons}</div>'
            f'<div role="group" aria-label="Zoom">{zoom}</div></div>'
            '<div id="legend" class="legend"></div>'
            '<canvas id="strip" tabindex="0" role="application" aria-label="Timeline of one iteration. Arrow keys pan, '
            'plus and minus zoom, 0 shows all, n and p step through the activities."></canvas>'
            '<p class="hint">Drag to pan; pinch, Ctrl + wheel or + and − to zoom; n and p step through the activities. '
            "Paler boxes are too short for the clock to be trusted singly.</p>"
            '<p id="spoken" class="spoken" aria-live="polite"></p>'
            '<figure class="plot" id="overview"><figcaption>All iterations of the profiled pass, as tall as they took '
            "long; click one of the marks</figcaption><div></div></figure>"
        )
    return _section(
        document,
        "timeline",
        "Iterations in full",
        "Every kernel of the median, the slowest and the first measured iteration of the profiled pass; what an "
        "operator contains lies beneath it. Empty space is time in which no kernel ran.",
        body,
        statements=("dispatches", "api_calls") if moments else (),
    )


def _operators(document: Document) -> str:
    listed = document["model_operators"]
    body = _empty(document, "model_graph")
    if listed:
        rows = [
            (
                _name(row["name"]) if row["name"] is not None else _text("unattributed"),
                _text(row["op_type"]),
                _time(row["total_ns"]),
                _share(row["share_ratio"]),
                _cell(work(row["flops"]), row["flops"], _exact(row["flops"], "flop")),
                _size(row["read_bytes"]),
                _size(row["written_bytes"]),
                _number_cell(number(row["flops_per_byte"]), row["flops_per_byte"]),
                _text(row["match"]),
            )
            for row in listed[:_LISTED_ROWS]
        ]
        columns = ("Operator", "Type", "*Time", "*Share", "*Work", "*Reads", "*Writes", "*flop / byte", "Matched by")
        foot = [_operators_together("other", listed[_SHOWN_ROWS:])] if _folds(listed) else []
        foot.append(_operators_together("all", listed))
        body = _table(columns, rows, foot=foot, folds=_folds(listed))
    return _section(
        document,
        "operators",
        "Work and traffic of the model's operators",
        "Work and traffic are what one execution needs at least, from the shapes: every input read once, every output "
        "written once. Time is the profiled pass's, as far as kernels could be matched to operators.",
        body,
        statements=("model_operators",),
    )


def _missing(document: Document) -> str:
    rows = [
        (_text(row["item"]), _status(row["status"]), _text(row["reason"]), _text(row["stage"]))
        for row in document["evidence"]
        if row["status"] != "present"
    ]
    rows += [
        (
            _text(row["gives"]),
            _status("absent"),
            _text(f"the stage {row['stage']} has published nothing for this session"),
            _text(row["stage"]),
        )
        for row in document["unpublished_stages"]
    ]
    present = [
        (_text(row["item"]), _text(row["stage"]), _text(row["source"]), _count(row["rows"]))
        for row in document["evidence"]
        if row["status"] == "present"
    ]
    body = (
        _table(("What", "Status", "Why", "Stage"), rows, name="stack")
        if rows
        else "<p>Nothing that was looked for is missing.</p>"
    )
    if present:
        body += (
            f"<details><summary>Looked for and found: {len(present)}</summary>"
            f"{_table(('What', 'Stage', 'Source', '*Rows'), present, name='stack')}</details>"
        )
    return _section(
        document,
        "missing",
        "What was missing, and why",
        "What this report does not rest on. Missing is never shown as zero.",
        body,
        statements=("evidence",),
    )


def _environment(document: Document) -> str:
    fingerprint = document.get("fingerprint")
    facts = [
        (
            _text(row["category"]),
            _text(row["key"]),
            _text(row["value"]),
            _text("yes" if row["in_fingerprint"] else "no"),
        )
        for row in document["environment"]
    ]
    devices = [
        (
            _text(str(row["device_id"])),
            *(_text(row[key]) for key in ("vendor", "product", "arch")),
            _count(row["compute_units"]),
            _size(row["memory_bytes"]),
        )
        for row in document["devices"]
    ]
    body = _table(("Device", "Vendor", "Product", "Architecture", "*Units", "*Memory"), devices) if devices else ""
    if facts:
        body += (
            f"<details><summary>{counted(len(facts), 'fact')} about the host and its software</summary>"
            f"{_table(('Category', 'Fact', 'Value', 'In the fingerprint'), facts)}</details>"
        )
    return _section(
        document,
        "environment",
        "Environment",
        f"Sessions with the same fingerprint ran on the same stack; this one's is <code>{escape(fingerprint)}</code>."
        if fingerprint
        else "The environment has no fingerprint: none of its facts is known.",
        body or _empty(document, "session_environment"),
        statements=("environment", "devices"),
    )


def _clocks(document: Document) -> str:
    rows = [
        (
            _text(row["domain"]),
            _number_cell(None if row["offset_ns"] is None else f"{row['offset_ns']:,} ns", row["offset_ns"]),
            _cell(
                None if row["uncertainty_ns"] is None else f"± {duration(row['uncertainty_ns'])}",
                row["uncertainty_ns"],
                _exact(row["uncertainty_ns"], "ns"),
            ),
            _text(row["anchor"]),
        )
        for row in document["clock_domains"]
    ]
    return _section(
        document,
        "clocks",
        "Clocks",
        "How each source's clock maps onto the one axis that all times of this page lie on. Times from two sources "
        "are comparable to within the sum of their uncertainties.",
        _table(("Clock", "*Offset", "*Uncertainty", "Tied by"), rows, name="stack")
        if rows
        else _empty(document, "session_environment"),
        statements=("clock_domains",),
    )


def _scaling(document: Document) -> str:
    """The curve of the session's campaign; nothing for a session that belongs to none."""
    curve = document.get("scaling", [])
    if not curve:
        return ""
    filled = [i for i in range(len(scaling.COLUMNS)) if any(scaling.cells(row)[i] is not None for row in curve)]
    rows = []
    for row in curve:
        listed = scaling.cells(row)
        mark = "this session" if row["session_id"] == document["session_id"] else row["session_id"]
        rows.append([*(_cell(listed[i], row.get(_SCALING_ORDER.get(i, "")), None) for i in filled), _name(mark)])
    columns = [_capital(scaling.COLUMNS[i].lstrip("*")) for i in filled]
    heads = [
        ("*" if scaling.COLUMNS[i].startswith("*") else "") + name for i, name in zip(filled, columns, strict=True)
    ]
    return _section(
        document,
        "scaling",
        "How it scales",
        f"{escape(scaling.sentences(curve))} Each point is one session; bars are the 95 % interval of that session's "
        "own median and say nothing about another day.",
        scaling.plot(curve) + _table((*heads, "Session"), rows),
        statements=("scaling",),
    )


#: The column of `scaling` that a column of the table is sorted by.
_SCALING_ORDER: Final = {
    0: "prompt_tokens",
    1: "batch_size",
    2: "throughput_per_s",
    4: "speedup_ratio",
    5: "efficiency_ratio",
    6: "time_ns",
    7: "time_to_first_token_ns",
}
_SECTIONS: Final[Sequence[Callable[[Document], str]]] = (
    _latency,
    _distribution,
    _warmup,
    _scaling,
    _path,
    _hot,
    _timeline,
    _operators,
    _missing,
    _environment,
    _clocks,
)
_NAVIGATION: Final = (
    ("latency", "Latency"),
    ("distribution", "Distribution"),
    ("warmup", "Warm-up"),
    ("scaling", "Scaling"),
    ("path", "Path"),
    ("kernels", "Kernels"),
    ("timeline", "Timeline"),
    ("operators", "Operators"),
    ("missing", "Missing"),
    ("environment", "Environment"),
    ("clocks", "Clocks"),
)


def _footer(document: Document) -> str:
    session = escape(document["session_id"])
    return (
        f"<p>Written by {escape(document['written_by'])} from the lake's tables. Every section ends with the SQL that "
        "gave it; hover or tap a number for its exact value. To make this page again: "
        f"<code>aaco report {session}</code></p>"
    )


def _section(document: Document, name: str, heading: str, intro: str, body: str, *, statements: Sequence[str]) -> str:
    """A section; `intro` and `body` are HTML, `statements` name the parts of the document it was made from."""
    snippets = [document["statements"][part] for part in statements if part in document["statements"]]
    tables = [table for table in all_tables() if any(re.search(rf"\b{table}\b", text) for text in snippets)]
    codes = "".join(
        f'<div class="snippet"><pre tabindex="0"><code>{escape(_command(text))}</code></pre>'
        '<button type="button" class="copy">Copy</button></div>'
        for text in snippets
    )
    source = ", ".join(f"<code>{table}</code>" for table in tables)
    return (
        f'<section id="{name}" aria-labelledby="{name}-heading"><h2 id="{name}-heading">{heading}</h2>'
        f'<p class="intro">{intro}</p>{body}'
        + (f'<details class="source"><summary>From {source}: the SQL</summary>{codes}</details>' if codes else "")
        + "</section>"
    )


def _command(statement: str) -> str:
    """The statement as a command for a shell."""
    return 'aaco sql "' + re.sub(r'(["\\$`])', r"\\\1", statement) + '"'


def _empty(document: Document, stage: str) -> str:
    """What stands where a section has nothing to show."""
    return f'<p class="empty">Nothing to show: {escape(_why_empty(document, stage, "it has no rows"))}</p>'


def _why_empty(document: Document, stage: str, otherwise: str) -> str:
    if any(row["stage"] == stage for row in document["unpublished_stages"]):
        return f"the stage {stage} has published nothing for this session."
    reasons = [
        f"{row['item']}: {row['reason']}"
        for row in document["evidence"]
        if row["stage"] == stage and row["status"] != "present"
    ]
    return ("; ".join(reasons) or f"the stage {stage} ran, and {otherwise}").rstrip(".") + "."


# ---- tables ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Cell:
    """One cell: `html` is escaped already, `order` is what the column sorts by, `exact` is shown on hover."""

    html: str
    order: float | None = None
    exact: str | None = None


def _cell(text: str | None, order: float | None, exact: str | None) -> _Cell:
    return _Cell(_DASH if text is None else escape(text), order, exact)


def _text(text: str | None) -> _Cell:
    return _cell(text, None, None)


def _name(text: str) -> _Cell:
    """A name that may be hundreds of characters long: the page cuts it, hovering shows it whole."""
    return _Cell(f'<span class="name">{escape(text)}</span>', None, text)


def _number_cell(text: str | None, order: float | None) -> _Cell:
    return _cell(text, order, _exact(order, None))


def _time(nanoseconds: int | None) -> _Cell:
    return _cell(duration(nanoseconds), nanoseconds, _exact(nanoseconds, "ns"))


def _size(bytes_: int | None) -> _Cell:
    return _cell(size(bytes_), bytes_, _exact(bytes_, "bytes"))


def _count(count: int | None) -> _Cell:
    return _cell(None if count is None else f"{count:,}", count, None)


def _share(ratio: float | None) -> _Cell:
    return _cell(share(ratio), ratio, _exact(ratio, None))


def _of_unit(amount: float | None, unit: str | None) -> _Cell:
    if unit == "ns":
        return _cell(duration(amount), amount, _exact(amount, "ns"))
    shown = number(amount)
    return _cell(
        shown and (shown if unit in ("ratio", "count", None) else f"{shown} {unit}"), amount, _exact(amount, unit)
    )


def _status(status: str) -> _Cell:
    return _Cell(f'<span class="status {escape(status)}">{escape(status)}</span>')


def _bar(amount: float | None, whole: float, text: str | None, exact: str | None) -> _Cell:
    """A bar as long as `amount` is of `whole`, with the figure beside it."""
    if amount is None or text is None:
        return _Cell(_DASH)
    width = 100 * amount / whole if whole else 0
    bar = f'<svg class="bar" aria-hidden="true"><rect width="{width:.2f}%" height="100%" rx="2"/></svg>'
    return _Cell(f'<span class="barred">{bar}<span>{escape(text)}</span></span>', amount, exact)


def _exact(amount: float | None, unit: str | None) -> str | None:
    """The number as the table holds it."""
    if amount is None:
        return None
    digits = f"{int(amount):,}" if float(amount).is_integer() else repr(float(amount))
    return f"{digits} {unit}" if unit else digits


def _hover(text: str | None, exact: str | None) -> str:
    if text is None:
        return _DASH
    return f'<span title="{escape(exact)}">{escape(text)}</span>' if exact else escape(text)


def _share_table(first: Sequence[str], rows: Sequence[Row], cells: Callable[[Row], list[_Cell]], noun: str) -> str:
    """A table of shares of the kernel time: the largest rows, the others as one row, and the whole."""
    longest = max((row["share_ratio"] or 0 for row in rows), default=0)

    def figures(count: int | None, total: int | None, mean: int | None, ratio: float | None) -> list[_Cell]:
        return [_bar(ratio, longest, share(ratio), _exact(ratio, None)), _time(total), _count(count), _time(mean)]

    body = [
        [*cells(row), *figures(row["dispatch_count"], row["total_ns"], row["mean_ns"], row["share_ratio"])]
        for row in rows[:_LISTED_ROWS]
    ]

    def together(label: str, some: Sequence[Row]) -> list[_Cell]:
        count, total = (sum(row[key] for row in some) for key in ("dispatch_count", "total_ns"))
        ratios = [row["share_ratio"] for row in some if row["share_ratio"] is not None]
        ratio = math.fsum(ratios) if ratios else None
        blank = [_Cell("")] * (len(first) - 1)
        return [_text(label), *blank, _Cell(escape(share(ratio) or "–"), ratio), _time(total), _count(count), _Cell("")]

    foot = []
    if _folds(rows):
        foot.append(together(f"other ({counted(len(rows) - _SHOWN_ROWS, noun)})", rows[_SHOWN_ROWS:]))
    if len(rows) > _LISTED_ROWS:
        foot.append(together(f"not listed ({counted(len(rows) - _LISTED_ROWS, noun)})", rows[_LISTED_ROWS:]))
    foot.append(together(f"all ({counted(len(rows), noun)})", rows))
    columns = (*first, "*Share", "*Total", "*Dispatches", "*Mean")
    return _table(columns, body, foot=foot, folds=_folds(rows), name="shares")


def _operators_together(label: str, rows: Sequence[Row]) -> list[_Cell]:
    """A last row for several operators: their time, which adds up, and not their work, which is of one execution."""
    total = sum(row["total_ns"] or 0 for row in rows)
    ratio = math.fsum(row["share_ratio"] or 0 for row in rows)
    named = _text(f"{label} ({counted(len(rows), 'row')})")
    return [named, _Cell(""), _time(total), _share(ratio), *[_Cell("")] * 5]


def _folds(rows: Sequence[Row]) -> bool:
    """Whether a table is so long that its tail is better folded; two or three rows more are not worth a click."""
    return len(rows) > _SHOWN_ROWS + 3


def _table(
    columns: Sequence[str],
    rows: Sequence[Sequence[_Cell]],
    *,
    foot: Sequence[Sequence[_Cell]] = (),
    folds: bool = False,
    name: str = "",
) -> str:
    """A sortable table; a column whose name begins with `*` holds numbers. One that folds shows its tail on a click."""
    numeric = [column.startswith("*") for column in columns]
    heads = "".join(
        f'<th scope="col"{_class(("number", is_number))}>'
        f'<button type="button">{escape(column.lstrip("*"))}</button></th>'
        for column, is_number in zip(columns, numeric, strict=True)
    )

    def line(cells: Sequence[_Cell], classes: str = "") -> str:
        parts = []
        for cell, is_number in zip(cells, numeric, strict=True):
            order = "" if cell.order is None else f' data-order="{cell.order!r}"'
            exact = "" if cell.exact is None else f' title="{escape(cell.exact)}"'
            parts.append(f"<td{_class(('number', is_number))}{order}{exact}>{cell.html}</td>")
        return f"<tr{classes}>{''.join(parts)}</tr>"

    body = "".join(
        line(cells, ' class="more"' if folds and index >= _SHOWN_ROWS else "") for index, cells in enumerate(rows)
    )
    ends = "".join(
        line(cells, ' class="other"' if folds and cells[0].html.startswith("other") else "") for cells in foot
    )
    more = f'<button type="button" class="expand" aria-expanded="false">Show all {len(rows)}</button>' if folds else ""
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="Table, scrolls sideways">'
        f"<table{_class((name, bool(name)))}>"
        f"<thead><tr>{heads}</tr></thead><tbody>{body}</tbody>"
        + (f"<tfoot>{ends}</tfoot>" if ends else "")
        + f"</table></div>{more}"
    )


def _class(*named: tuple[str, bool]) -> str:
    names = " ".join(name for name, wanted in named if wanted)
    return f' class="{names}"' if names else ""


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


# ---- what the script plots -------------------------------------------------------------------------------------------


def _plotted(document: Document, trace: bytes | None) -> dict[str, Any]:
    """The figures behind the plots; times are whole nanoseconds."""
    kinds = [row["operator"] for row in document["operators"]]
    kernels = {row["kernel_id"]: row for row in document["kernels"]}
    everything = [row["latency_ns"] for row in document["iterations"] if row["latency_ns"] is not None]
    return {
        "session": document["session_id"],
        "range": [min(everything), max(everything)] if everything else None,
        "logarithmic": _wide(everything),
        "title": f"{title(document)} {document['session_id']}",
        "kinds": kinds[:8],
        "passes": [plotted for name in _PASSES if (plotted := _plotted_pass(document, name)) is not None],
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
            named = _capital(
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


def _wide(latencies: Sequence[int]) -> bool:
    return bool(latencies) and min(latencies) > 0 and max(latencies) > _LOGARITHMIC_FROM * min(latencies)


def _histogram(document: Document) -> dict[str, Any] | None:
    """Counts of measured iterations in bins of equal width, or of equal ratio when latencies span a wide range."""
    by_pass = {
        name: [
            row["latency_ns"]
            for row in document["iterations"]
            if (row["pass"], row["phase"]) == (name, "measure") and row["latency_ns"] is not None
        ]
        for name in _PASSES
    }
    everything = [latency for latencies in by_pass.values() for latency in latencies]
    if not everything:
        return None
    logarithmic = _wide(everything)
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
    for name, label in _QUANTILES.items():
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


def _as_json(plotted: dict[str, Any]) -> str:
    """JSON that may stand in a script element: names from a capture may hold `</script>` or `<!--`."""
    text = json.dumps(plotted, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _page_file(name: str) -> str:
    return files("aaco_pipeline.report").joinpath("page", name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    """What the page's security policy names its own style and script by, so that it runs no other."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
