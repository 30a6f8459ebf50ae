"""A session's document as one self-contained HTML page: text and tables made here, plots drawn by its own script.

The page's style, script and frame are the files in `page/`; what it says comes from `document`. Only layout is
computed: bins of a histogram, lanes of a timeline, and which points to draw when there are more than a screen holds.
"""

import base64
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import Any, Final

from aaco_pipeline.report.document.session import Document, answer, interval, metric, steadiness, title, value, what
from aaco_pipeline.report.html.cells import (
    LISTED_ROWS,
    SHOWN_ROWS,
    Cell,
    bar_cell,
    count_cell,
    exact,
    folds,
    hover,
    name_cell,
    number_cell,
    operators_together,
    plain_cell,
    share_cell,
    share_table,
    size_cell,
    status_cell,
    table,
    text_cell,
    time_cell,
    unit_cell,
)
from aaco_pipeline.report.html.limits import instructions_section, limits_section
from aaco_pipeline.report.html.plots import PASSES, QUANTILES, plotted
from aaco_pipeline.report.html.sections import NOTHING, empty, section, why_empty
from aaco_pipeline.report.words import bottleneck_text as limits
from aaco_pipeline.report.words import scaling
from aaco_pipeline.report.words.units import capital, counted, duration, number, share, work

#: A trace up to this size travels inside the page, so that the file alone can hand it to Perfetto.
EMBEDDED_TRACE_BYTES: Final = 700_000
_GENERATION: Final = {
    "time_to_first_token_p50": "First token",
    "time_per_output_token_p50": "Further token",
    "request_latency_p50": "Request",
}
#: The space between a number and its unit, where no line may end.
_UNIT: Final = re.compile(r"(?<=[0-9]) (?=(?:%|[mµn]?s|inferences)\b|%)")


def render_html(document: Document, trace: bytes | None) -> str:
    """The page of a long document. `trace` is the session's unified trace as its file holds it, None without one.

    The same arguments give the same page. It contacts no network; opening the trace in Perfetto does, on a click.
    """
    style, script = _page_file("report.css"), _page_file("report.js")
    embedded = trace is not None and len(trace) <= EMBEDDED_TRACE_BYTES
    sections = _sections(document)
    return Template(_page_file("report.html")).substitute(
        title=escape(f"{title(document)} · {document['session_id']}"),
        script_digest=_digest(script),
        style_digest=_digest(style),
        style=style,
        script=script,
        nav="".join(f'<a href="#{name}">{label}</a>' for name, label, _ in sections),
        header=_header(document, trace),
        sections="".join(html for _, _, html in sections),
        footer=_footer(document),
        data=_as_json(plotted(document, trace)),
        trace=base64.b64encode(trace).decode() if trace is not None and embedded else "",
    )


# ---- the sections ----------------------------------------------------------------------------------------------------


def _header(document: Document, trace: bytes | None) -> str:
    holes = len(limits.without_repetition(document["missing"])) + len(document["unpublished_stages"])
    ready = "" if trace is not None else " disabled"
    described = capital(what(document).removeprefix(f"{title(document)}, "))
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
            f"<div><dt>{escape(label)}</dt><dd>{hover(text, exact)}</dd>"
            + (f'<dd class="aside">{escape(aside)}</dd>' if aside else "")
            + "</div>"
        )

    generates = document.get("output_tokens") is not None
    for name, label in (_GENERATION if generates else QUANTILES).items():
        row = metric(document, name, "latency")
        if row is not None:
            yield tile(
                label if generates else f"{label} latency",
                duration(row["value"]),
                interval(row),
                exact(row["value"], "ns"),
            )
    throughput = metric(document, "output_tokens_per_s" if generates else "throughput", "latency")
    if throughput is not None:
        unit = "tokens / s" if generates else "inferences / s"
        yield tile("Throughput", number(throughput["value"]), unit, exact(throughput["value"], "per s"))
    for row in document["timeline"][:1]:
        yield tile("Device busy", share(row["active_ratio"]), "while profiled", exact(row["active_ratio"], "ratio"))
    distortion = value(document, "profiler_distortion")
    if distortion is not None:
        yield tile("Profiler distortion", f"× {distortion:.3g}", "on the median", exact(distortion, "ratio"))
    judged = value(document, "steady_state", "latency")
    told = "too short to tell" if metric(document, "steady_state", "latency") is not None else "not judged"
    yield tile("Steady", None if judged is None else "yes" if judged >= 1 else "no", told if judged is None else None)


def _latency(document: Document) -> str:
    passes = [name for name in PASSES if any(row["pass"] == name for row in document["iterations"])]
    samples = len(document["system_samples"]) + len(document["gpu_samples"])
    telemetry = (
        f"Beneath them, on the same time axis, {counted(samples, 'sample')} of the host and the devices."
        if samples
        else "No samples of the host or the devices lie beneath them: "
        + why_empty(document, "telemetry", "it recorded none")
    )
    figures = "".join(
        f'<figure class="plot" data-pass="{name}"><figcaption>{PASSES[name]}</figcaption><div></div></figure>'
        for name in passes
    )
    return section(
        document,
        "latency",
        "Latency over the run",
        "Each dot is one iteration, placed when it began. Shaded: warm-up, which no figure counts. Line: the median of "
        f"the measured iterations. Only the unprofiled pass judges speed. {escape(telemetry)}",
        f'<div class="pair">{figures}</div>' if figures else empty(document, "inference_run"),
        statements=(
            "iterations",
            *(("system_samples",) if samples else ()),
            *(("gpu_samples",) if document["gpu_samples"] else ()),
        ),
    )


def _distribution(document: Document) -> str:
    body = empty(document, "inference_run")
    if document["iterations"]:
        rows = []
        for row in document["metrics"]:
            unit = row["unit"]
            cell = unit_cell(row["value"], unit)
            rows.append(
                (
                    text_cell(row["metric"]),
                    text_cell({"latency": "unprofiled", "trace": "profiled"}.get(row["pass"], "both")),
                    cell,
                    unit_cell(row["ci_low"], unit),
                    unit_cell(row["ci_high"], unit),
                    count_cell(row["n"]),
                )
            )
        columns = ("Figure", "Pass", "*Value", "*Interval from", "*to", "*Values")
        body = (
            '<figure class="plot" id="histogram"><figcaption>How many iterations took how long; above, the quantiles '
            "of the unprofiled pass with their 95 % intervals</figcaption><div></div></figure>"
            f"<details><summary>All {len(rows)} figures of the session</summary>{table(columns, rows)}</details>"
        )
    return section(
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
        for name in PASSES
    }
    count = max(map(len, by_pass.values()), default=0)
    medians = {name: value(document, "latency_p50", name) for name in PASSES}
    latencies = [row["latency_ns"] or 0 for rows in by_pass.values() for row in rows]
    longest = max([*latencies, *(median or 0 for median in medians.values())], default=0)
    rows = []
    for index in range(min(count, SHOWN_ROWS)):
        cells = [number_cell(f"{index}", index)]
        for listed in by_pass.values():
            latency = listed[index]["latency_ns"] if index < len(listed) else None
            cells.append(bar_cell(latency, longest, duration(latency), exact(latency, "ns")))
        rows.append(cells)
    last = [text_cell("median"), *(bar_cell(m, longest, duration(m), exact(m, "ns")) for m in medians.values())]
    more = (
        f"<p>{counted(count - SHOWN_ROWS, 'further warm-up iteration')} not listed.</p>" if count > SHOWN_ROWS else ""
    )
    body = (
        table(("*Iteration", *(f"{label}" for label in PASSES.values())), rows, foot=[last], name="warmup") + more
        if document["iterations"]
        else empty(document, "inference_run")
    )
    judged = steadiness(document)
    return section(
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
        body = empty(document, "timeline")
    else:
        body = "<h3>By kind of operator</h3>" + share_table(
            ("Operator", "*Kernels"),
            document["operators"],
            lambda row: [name_cell(row["operator"]), count_cell(row["kernels"])],
            "operator",
        )
        body += "<h3>By kernel</h3>" + share_table(
            ("Kernel", "Operator"),
            document["kernels"],
            lambda row: [name_cell(row["name"]), name_cell(row["operator"])],
            "kernel",
        )
    distortion = value(document, "profiler_distortion")
    warning = (
        f" The profiler makes this pass {distortion:.3g} times as slow, so shares of short kernels are exaggerated."
        if distortion is not None and distortion >= 1.5
        else ""
    )
    return section(
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
        body = empty(document, "critical_path")
        return section(document, "path", "Where the time went", "", body, statements=())
    longest = categories[0]["category_ns"]
    window, left = categories[0]["window_ns"], categories[0]["unexplained_ns"]

    def line(name: str, amount: int) -> list[Cell]:
        return [
            text_cell(name),
            bar_cell(amount, longest, duration(amount), exact(amount, "ns")),
            share_cell(amount / window),
        ]

    rows = [line(row["category"], row["category_ns"]) for row in categories]
    whole = [text_cell("the whole window"), plain_cell(duration(window), window, exact(window, "ns")), share_cell(1.0)]
    body = "<h3>On the critical path</h3>" + table(
        ("Time", "*Length", "*Of the window"), rows, foot=[line("unexplained", left), whole]
    )
    if document["path_kernels"]:
        body += "<h3>Kernels on the path</h3>" + table(
            ("Kernel", "Family", "*On the path", "*Dispatches", "*Share of it that is critical"),
            [
                [
                    name_cell(row["name"]),
                    text_cell(row["family"]),
                    time_cell(row["critical_ns"]),
                    count_cell(row["dispatch_count"]),
                    share_cell(row["criticality"]),
                ]
                for row in document["path_kernels"]
            ],
        )
    if document["savings"]:
        body += "<h3>If one kernel ran faster</h3>" + table(
            ("Kernel", "*Speed-up", "*On the path now", "*The path is shorter by", "*Of the window"),
            [
                [
                    name_cell(row["name"]),
                    unit_cell(row["speedup_ratio"], "ratio"),
                    time_cell(row["critical_ns"]),
                    time_cell(row["saved_ns"]),
                    share_cell(row["saved_ratio"]),
                ]
                for row in document["savings"]
            ],
        )
    if document["gap_causes"]:
        body += "<h3>Why the device was idle</h3>" + table(
            ("Device", "Cause", "*Idle", "*Gaps", "*Longest"),
            [
                [
                    count_cell(row["device_id"]),
                    text_cell(_CAUSES.get(row["cause"], row["cause"])),
                    time_cell(row["idle_ns"]),
                    count_cell(row["gaps"]),
                    time_cell(row["longest_ns"]),
                ]
                for row in document["gap_causes"]
            ],
        )
    return section(
        document,
        "path",
        "Where the time went",
        "The longest chain of activities that waited for one another: only what lies on it makes the run shorter when "
        "it becomes faster. What no recorded activity explains is a line of its own; together they are the window.",
        body,
        statements=("path_categories", "path_kernels", "savings", "gap_causes"),
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
    body = empty(document, "kernel_trace")
    if moments:
        buttons = "".join(
            f'<button type="button" data-moment="{index}" aria-pressed="{"true" if index == 0 else "false"}">'
            f"{escape(capital(' and '.join(moment['roles'])))} <small>iteration {moment['iteration']}, "
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
    return section(
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
    body = empty(document, "model_graph")
    if listed:
        rows = [
            (
                name_cell(row["name"]) if row["name"] is not None else text_cell("unattributed"),
                text_cell(row["op_type"]),
                time_cell(row["total_ns"]),
                share_cell(row["share_ratio"]),
                plain_cell(work(row["flops"]), row["flops"], exact(row["flops"], "flop")),
                size_cell(row["read_bytes"]),
                size_cell(row["written_bytes"]),
                number_cell(number(row["flops_per_byte"]), row["flops_per_byte"]),
                text_cell(row["match"]),
            )
            for row in listed[:LISTED_ROWS]
        ]
        columns = ("Operator", "Type", "*Time", "*Share", "*Work", "*Reads", "*Writes", "*flop / byte", "Matched by")
        foot = [operators_together("other", listed[SHOWN_ROWS:])] if folds(listed) else []
        foot.append(operators_together("all", listed))
        body = table(columns, rows, foot=foot, folds=folds(listed))
    return section(
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
        (text_cell(row["item"]), status_cell(row["status"]), text_cell(row["reason"]), text_cell(row["stage"]))
        for row in limits.without_repetition([row for row in document["evidence"] if row["status"] != "present"])
    ]
    rows += [
        (
            text_cell(row["gives"]),
            status_cell("absent"),
            text_cell(f"the stage {row['stage']} has published nothing for this session"),
            text_cell(row["stage"]),
        )
        for row in document["unpublished_stages"]
    ]
    present = [
        (text_cell(row["item"]), text_cell(row["stage"]), text_cell(row["source"]), count_cell(row["rows"]))
        for row in document["evidence"]
        if row["status"] == "present"
    ]
    body = (
        table(("What", "Status", "Why", "Stage"), rows, name="stack")
        if rows
        else "<p>Nothing that was looked for is missing.</p>"
    )
    if present:
        body += (
            f"<details><summary>Looked for and found: {len(present)}</summary>"
            f"{table(('What', 'Stage', 'Source', '*Rows'), present, name='stack')}</details>"
        )
    return section(
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
            text_cell(row["category"]),
            text_cell(row["key"]),
            text_cell(row["value"]),
            text_cell("yes" if row["in_fingerprint"] else "no"),
        )
        for row in document["environment"]
    ]
    devices = [
        (
            text_cell(str(row["device_id"])),
            *(text_cell(row[key]) for key in ("vendor", "product", "arch")),
            count_cell(row["compute_units"]),
            size_cell(row["memory_bytes"]),
        )
        for row in document["devices"]
    ]
    body = table(("Device", "Vendor", "Product", "Architecture", "*Units", "*Memory"), devices) if devices else ""
    if facts:
        body += (
            f"<details><summary>{counted(len(facts), 'fact')} about the host and its software</summary>"
            f"{table(('Category', 'Fact', 'Value', 'In the fingerprint'), facts)}</details>"
        )
    return section(
        document,
        "environment",
        "Environment",
        f"Sessions with the same fingerprint ran on the same stack; this one's is <code>{escape(fingerprint)}</code>."
        if fingerprint
        else "The environment has no fingerprint: none of its facts is known.",
        body or empty(document, "session_environment"),
        statements=("environment", "devices"),
    )


def _clocks(document: Document) -> str:
    rows = [
        (
            text_cell(row["domain"]),
            number_cell(None if row["offset_ns"] is None else f"{row['offset_ns']:,} ns", row["offset_ns"]),
            plain_cell(
                None if row["uncertainty_ns"] is None else f"± {duration(row['uncertainty_ns'])}",
                row["uncertainty_ns"],
                exact(row["uncertainty_ns"], "ns"),
            ),
            text_cell(row["anchor"]),
        )
        for row in document["clock_domains"]
    ]
    return section(
        document,
        "clocks",
        "Clocks",
        "How each source's clock maps onto the one axis that all times of this page lie on. Times from two sources "
        "are comparable to within the sum of their uncertainties.",
        table(("Clock", "*Offset", "*Uncertainty", "Tied by"), rows, name="stack")
        if rows
        else empty(document, "session_environment"),
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
        rows.append(
            [*(plain_cell(listed[i], row.get(_SCALING_ORDER.get(i, "")), None) for i in filled), name_cell(mark)]
        )
    columns = [capital(scaling.COLUMNS[i].lstrip("*")) for i in filled]
    heads = [
        ("*" if scaling.COLUMNS[i].startswith("*") else "") + name for i, name in zip(filled, columns, strict=True)
    ]
    return section(
        document,
        "scaling",
        "How it scales",
        f"{escape(scaling.sentences(curve))} Each point is one session; bars are the 95 % interval of that session's "
        "own median and say nothing about another day.",
        scaling.plot(curve) + table((*heads, "Session"), rows),
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
#: Name, label in the navigation, and what makes it, in the order of the page; one that makes nothing is left out.
_SECTIONS: Final[Sequence[tuple[str, str, Callable[[Document], str]]]] = (
    ("latency", "Latency", _latency),
    ("distribution", "Distribution", _distribution),
    ("warmup", "Warm-up", _warmup),
    ("scaling", "Scaling", _scaling),
    ("path", "Path", _path),
    ("limits", "Bottleneck", limits_section),
    ("kernels", "Kernels", _hot),
    ("instructions", "Instructions", instructions_section),
    ("timeline", "Timeline", _timeline),
    ("operators", "Operators", _operators),
    ("missing", "Missing", _missing),
    ("environment", "Environment", _environment),
    ("clocks", "Clocks", _clocks),
)


def _sections(document: Document) -> list[tuple[str, str, str]]:
    """Name, label and HTML of every section; those that have nothing to show come last, and say why."""
    made = [(name, label, make(document)) for name, label, make in _SECTIONS]
    return sorted((one for one in made if one[2]), key=lambda one: NOTHING in one[2])


def _footer(document: Document) -> str:
    session = escape(document["session_id"])
    return (
        f"<p>Written by {escape(document['written_by'])} from the lake's tables. Every section ends with the SQL that "
        "gave it; hover or tap a number for its exact value. To make this page again: "
        f"<code>aaco report {session}</code></p>"
    )


def _as_json(plotted: dict[str, Any]) -> str:
    """JSON that may stand in a script element: names from a capture may hold `</script>` or `<!--`."""
    text = json.dumps(plotted, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _page_file(name: str) -> str:
    return files("aaco_pipeline.report").joinpath("page", name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    """What the page's security policy names its own style and script by, so that it runs no other."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
