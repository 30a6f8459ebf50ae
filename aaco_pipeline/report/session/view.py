"""Lay out a session for the terminal: the answer first, then the tables.

The page and Markdown share these columns; `document` collects the document.
"""

import json
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any, Final

from aaco_pipeline.report.formatting import counted, duration, grouped, share, shortened, size, work
from aaco_pipeline.report.labels import kind_in_words, rate_alone, roof_counts
from aaco_pipeline.report.session import bottlenecks, spikes
from aaco_pipeline.report.session.answer import class_in_words, sharpening
from aaco_pipeline.report.session.sentences import (
    Document,
    Row,
    answer,
    facts,
    half,
    history,
    interval,
    metric,
    run_description,
    title,
)
from aaco_pipeline.report.view import Columns, Part, Sentence, Table, View, sentences

#: Maximum length of a kernel's own name; longer names are replaced by the short form.
_LONGEST_NAME: Final = 48


def kernel_in_words(row: Row) -> str:
    """Shorten a kernel's description to fit a line: its purpose with its own name, or the short form of a long name.

    A short form keeps its template arguments if there is room, because they distinguish kernels with the same name.
    """
    name, short = str(row["name"]), row["operator"]
    if short is None or (len(name) <= _LONGEST_NAME and name.startswith(str(short))):
        return name
    if len(name) <= _LONGEST_NAME and " " not in name and "<" not in name:
        return f"{short} {name}"
    return _without_parameters(name, str(short))


def _without_parameters(name: str, short: str) -> str:
    """Return the short form with the name's template arguments, if both together are short."""
    before, found, after = name.partition(short)
    if not found or after[:1] not in ("<", "("):
        return name if found and not before else short
    depth = 0
    for at, one in enumerate(after[: _LONGEST_NAME - len(short)]):
        depth += (one == "<") - (one == ">" and after[at - 1] != "-")
        if depth == 0:
            return short + after[: at + 1] if one == ">" else short
    return short


_TIMES: Final[Columns] = {
    "*dispatches": lambda row: grouped(row["dispatch_count"]),
    "*total": lambda row: duration(row["total_ns"]),
    "*mean": lambda row: duration(row["mean_ns"]),
    "*share": lambda row: share(row["share_ratio"]),
}
LATENCIES: Final[Columns] = {
    "latency": lambda row: row["name"],
    "*unprofiled": lambda row: duration(row["unprofiled"]["value"]),
    "*95 % interval": lambda row: interval(row["unprofiled"]),
    "*profiled": lambda row: row["profiled"] and duration(row["profiled"]["value"]),
}
PHASES: Final[Columns] = {
    "phase": lambda row: row["name"] or "without a name",
    "*times": lambda row: grouped(row["times"]),
    "*median": lambda row: duration(row["median_ns"]),
    "*longest": lambda row: duration(row["longest_ns"]),
    "*in a run": lambda row: duration(row["run_ns"]),
    "*of the iterations": lambda row: share(row["iterations_ratio"]),
}
KERNELS: Final[Columns] = {"kernel": kernel_in_words, "library": lambda row: row["library"], **_TIMES}
SHARES: Final[Columns] = {
    "the time went to": lambda row: class_in_words(row["share"]),
    "*time": lambda row: duration(row["time_ns"]),
    "*share": lambda row: share(row["share_ratio"]),
    "of it": lambda row: row["explained"],
}
KINDS: Final[Columns] = {
    "kind of work": lambda row: kind_in_words(row["kind"]),
    "*time": lambda row: duration(row["time_ns"]),
    "*of all": lambda row: share(row["whole_ratio"]),
    "*dispatches": lambda row: grouped(row["dispatch_count"]),
    "heaviest": lambda row: row["operator"] or row["kernel"],
    "*achieved": rate_alone,
    "*of the best": lambda row: share(row["roof_ratio"]) if roof_counts(row) else None,
    "*of the peak": lambda row: share(row["peak_ratio"]) if roof_counts(row) else None,
}
STALLS: Final[Columns] = {
    "kernel": lambda row: kernel_in_words(row) if row["name"] else "matched to no kernel",
    "*dispatch": lambda row: grouped(row["dispatch_id"]),
    "thread trace": lambda row: row["capture"],
    "stalled for": lambda row: row["reason"],
    "*cycles": lambda row: grouped(row["stall_cycles"]),
    "*samples": lambda row: grouped(row["samples"]),
    "*share": lambda row: share(row["share_ratio"]),
}
SIGNALS: Final[Columns] = {
    "signal": lambda row: bottlenecks.signal(row["signal"]),
    "*value": bottlenecks.amount,
    "table": lambda row: row["source"],
}
MISSING: Final[Columns] = {
    "evidence": lambda row: row["item"],
    "status": lambda row: row["status"],
    "why": lambda row: row["reason"],
}


def shares(document: Document) -> Sequence[Row]:
    """Return the window's non-zero shares, with a partial explanation of each."""
    rows = document.get("time_shares", [])
    explained: dict[str, list[str]] = {}
    for row in rows:
        if row["reason"] is not None:
            explained.setdefault(row["share"], []).append(
                f"{class_in_words(row['reason'])} {share(row['share_ratio'])}"
            )
    return [
        {**row, "explained": ", ".join(explained.get(row["share"], [])) or None}
        for row in rows
        if row["reason"] is None and row["time_ns"]
    ]


def latencies(document: Document) -> Sequence[Row]:
    """Return quantiles and mean of both passes, limited to those available for the unprofiled one."""
    rows = [
        {"name": name} | {key: metric(document, f"latency_{name}", of) for key, of in _PASSES.items()}
        for name in ("p50", "p90", "p99", "mean")
    ]
    return [row for row in rows if row["unprofiled"] is not None]


_PASSES: Final = {"unprofiled": "latency", "profiled": "trace"}


_LONGEST: Final = 60


def shapes_text(row: Row) -> str:
    """Format the inputs' shapes, such as `8944×1024, 1024×2816`, and other properties that distinguish the calls."""
    try:
        dims = json.loads(row["shapes"])
    except ValueError:
        dims = []
    shown = ", ".join(_shape(one) for one in dims if one) if isinstance(dims, list) else ""
    return "; ".join(part for part in (shortened(shown, _LONGEST), row["detail"]) if part)


def rate_text(row: Row) -> str | None:
    """Format operations per second, if any are counted."""
    rate = row["achieved_flops_per_s"]
    return f"{work(rate)}/s" if rate else None


def bandwidth_text(row: Row) -> str | None:
    """Format minimum bytes per second."""
    rate = row["achieved_bytes_per_s"]
    return None if rate is None else f"{size(rate)}/s"


def roof_text(row: Row) -> str | None:
    """Format the fraction of the nearest roof, such as `58.6 % of matrix arithmetic`."""
    if row["share_ratio"] is None:
        return None
    return f"{share(row['share_ratio'])} of {bottlenecks.resource(row['bound'])}"


def bus_text(row: Row) -> str:
    """Format bus bandwidth as defined by nccl-tests."""
    return f"{row['bus_bytes_per_s'] / 1e9:,.4g} GB/s"


SHAPES: Final[Columns] = {
    "operator": lambda row: row["operator"],
    "inputs": shapes_text,
    "format": lambda row: row["dtype"],
    "*calls": lambda row: grouped(row["call_count"]),
    "*time": lambda row: duration(row["kernel_ns"] + row["copy_ns"]),
    "*share": lambda row: share(row["share_of_time"]),
    "*work a call": lambda row: work(row["flops"]),
    "*rate": rate_text,
    "*least bytes": lambda row: size(row["least_bytes"]),
    "*bandwidth": bandwidth_text,
    "*of its roof": lambda row: share(row["share_ratio"]),
    "roof": lambda row: bottlenecks.resource(row["bound"]),
}


#: Collectives with the same operation, size and group; the rows of the part `collective_rates`.
COLLECTIVES: Final[Columns] = {
    "collective": lambda row: row["name"],
    "*ranks": lambda row: grouped(row["expected_participants"]),
    "*message": lambda row: size(row["size_bytes"]),
    "*parts": lambda row: grouped(row["parts"]),
    "*median": lambda row: duration(row["median_ns"]),
    "*bus bandwidth": bus_text,
    "*of the links": lambda row: share(row["share_ratio"]),
    "what that says": lambda row: row["remark"],
}


def shapes_answer(document: Document) -> str:
    """State for which fraction of the operators' time their work is known, and which took longest."""
    rows = document["operator_shapes"]
    if not rows:
        return "No kernel of the session was launched by a framework operator whose inputs are recorded."
    total = sum(_time(row) for row in rows)
    known = sum(_time(row) for row in rows if row["flops"] is not None or row["least_bytes"] is not None)
    longest = rows[0]
    parts = [
        f"Operators and shapes: {len(rows):,}, on {duration(total)} of device time; what had to be done is known for "
        f"{share(known / total)} of it."
        if total
        else f"Operators and shapes: {len(rows):,}, without any time.",
        f"{longest['operator']} on {shapes_text(longest)} took longest, {share(longest['share_of_time'])}"
        + (f", at {rate}" if (rate := rate_text(longest)) else "")
        + (f", {roof}" if (roof := roof_text(longest)) else "")
        + ".",
    ]
    if captured := sum(_time(row) for row in rows if row["inputs_from"] != "trace"):
        parts.append(f"Of {share(captured / total)} of the time the inputs are those of captured graphs.")
    return " ".join(parts)


def _time(row: Row) -> int:
    return int(row["kernel_ns"] + row["copy_ns"])


def _shape(dims: Any) -> str:
    """Format a shape as `8944×1024`; for a list of tensors, the first and the number of others."""
    if isinstance(dims, list) and dims and isinstance(dims[0], list):
        return f"[{_shape(dims[0])}{f' and {len(dims) - 1} more' if len(dims) > 1 else ''}]"
    return "×".join(str(size) for size in dims) if isinstance(dims, list) else "?"


def _saving(row: Row) -> str | None:
    """Return the saving if a kernel reached its roof or, without a known roof, its total time on the critical path.

    The rows are sorted by this value. Without either, it is the saving if the kernel were faster by a given factor.
    """
    if row["saves_at_most_ns"] is not None:
        return f"at most {duration(row['saves_at_most_ns'])}"
    if row["critical_ns"] is not None:
        return f"at most {duration(row['critical_ns'])}, no roof"
    return None if row["saved_ns"] is None else f"{duration(row['saved_ns'])} at {row['speedup_ratio']:g}×"


_ROOFS: Final[Columns] = {
    "kernel": kernel_in_words,
    "*share": lambda row: share(row["share_ratio"]),
    "limited by": lambda row: row["label"] and bottlenecks.briefly(row["label"]),
    "bound": lambda row: bottlenecks.resource(row["bound"]),
    "*of that roof": lambda row: share(row["efficiency_ratio"]),
}
_LIMITS: Final[Columns] = {**_ROOFS, "*a faster one saves": _saving}
_ALL_LIMITS: Final[Columns] = {
    **_ROOFS,
    "kernel": itemgetter("name"),
    "limited by": bottlenecks.of_kernel,
    "nearest lower bounds": lambda row: ", ".join(bottlenecks.nearest(row)) or None,
    "occupancy": bottlenecks.occupied,
}
_MODEL_OPERATORS: Final[Columns] = {
    "operator": lambda row: row["name"] or "unattributed",
    "type": lambda row: row["op_type"],
    "*time": lambda row: duration(row["total_ns"]),
    "*work": lambda row: work(row["flops"]),
    "*reads": lambda row: size(row["read_bytes"]),
    "*writes": lambda row: size(row["written_bytes"]),
}
ENVIRONMENT: Final[Columns] = {
    "category": itemgetter("category"),
    "fact": itemgetter("key"),
    "value": itemgetter("value"),
}
_CLOCKS: Final[Columns] = {
    "clock": lambda row: row["domain"],
    "*uncertainty": lambda row: duration(row["uncertainty_ns"]),
    "anchor": lambda row: row["anchor"],
}
_PATH: Final[Columns] = {
    "on the path": lambda row: row["category"],
    "*time": lambda row: duration(row["category_ns"]),
    "*of the window": lambda row: share(row["window_ratio"]),
}
_PATH_KERNELS: Final[Columns] = {
    "kernel": lambda row: row["name"],
    "family": lambda row: row["family"],
    "*on the path": lambda row: duration(row["critical_ns"]),
    "*dispatches": lambda row: grouped(row["dispatch_count"]),
    "*of it critical": lambda row: share(row["criticality"]),
}
_SAVINGS: Final[Columns] = {
    "kernel": lambda row: row["name"],
    "*times as fast": lambda row: f"{row['speedup_ratio']:g}",
    "*the path is shorter by": lambda row: duration(row["saved_ns"]),
    "*of the window": lambda row: share(row["saved_ratio"]),
}
_IDLE: Final[Columns] = {
    "device": lambda row: str(row["device_id"]),
    "cause": lambda row: row["cause"],
    "*idle": lambda row: duration(row["idle_ns"]),
    "*gaps": lambda row: grouped(row["gaps"]),
    "*longest": lambda row: duration(row["longest_ns"]),
}
_PHASES_TITLE: Final = "Phases, in the runs without a profiler"
_LIMITED_KERNELS: Final = 10
_LISTED_SHAPES: Final = 40
_LISTED_SPIKES: Final = 20


def headed(document: Document, text: str, parts: Iterable[Part], subject: str | None = None) -> View:
    """Build a view of a session: its id and subject, missing stages if incomplete, then the answer."""
    head = [*sentences([half(document)], "open"), Sentence(text, "good")]
    return View(subject or run_description(document), [*head, *parts], identifier=document["session_id"])


def session_view(document: Document) -> View:
    """Lay out a short or a long document for a terminal."""
    text, measured, noise = answer(document), facts(document), spikes.quietness(document)
    why = f"Why single iterations took longer: `aaco show {document['session_id']} --spikes`"
    limited = document["optimization_priority"][:_LIMITED_KERNELS]
    # No list if nothing is known about any entry.
    limited = limited if any(row["label"] or row["bound"] for row in document["optimization_priority"]) else []
    rest = len(document.get("kernels", [])) - len(document["top_kernels"])
    more = f"{counted(rest, 'further kernel')} in `aaco report --format markdown`"
    parts = [
        *sentences((f"To sharpen it, record {what}: {command}" for what, command in sharpening(document)), "aside"),
        *sentences([measured] if measured and measured != text else []),
        *sentences(history(document)),
        *sentences([noise and f"{noise} {why}"]),
        Table(SHARES, shares(document), "Where the time went"),
        Table(
            *(KINDS, document.get("kinds_of_work", []), "By kind of work"),
            names=("heaviest",),
            spare=("*dispatches", "*of the peak", "heaviest"),
        ),
        Table(LATENCIES, latencies(document)),
        Table(PHASES, document["phases"], _PHASES_TITLE),
        Table(KERNELS, document["top_kernels"], "By kernel", spare=("*mean", "*dispatches", "library")),
        Table(
            *(STALLS, document.get("stalls", [])),
            "What the wavefronts stalled for; the instructions with `aaco show --kernel NAME`",
            spare=("*samples", "*dispatch", "*cycles", "thread trace"),
        ),
        Table(
            *(_LIMITS, limited, "Kernels that could save most; more of one with `aaco show --kernel NAME`"),
            spare=("bound", "*of that roof"),
        ),
        *sentences([more] if rest > 0 else [], "aside"),
    ]
    return headed(document, text, parts)


def report_view(document: Document) -> View:
    """Lay out a long document for Markdown."""
    judged = any(row["label"] or row["bound"] or row["nearest_bounds"] for row in document["limits"])
    # Names and times are already listed per kernel; operators are only listed if their work or traffic is known.
    amounts = ("flops", "read_bytes", "written_bytes")
    operators = document["model_operators"]
    has_work = any(row[name] is not None for row in operators for name in amounts)
    missing, environment = _missing(document), document["environment"]
    name = document["session_id"]
    return View(
        title(document),
        [
            Sentence(f"`{name}` — {run_description(document)}"),
            *sentences([half(document)], "open"),
            Sentence(answer(document), "good"),
            *sentences([*history(document), spikes.quietness(document)]),
            Table(LATENCIES, latencies(document), "Latency"),
            *sentences([spikes.spikes_answer(document)] if document["spikes"] else []),
            Table(spikes.SPIKES, document["spikes"], "Spikes, the longest first"),
            Table(PHASES, document["phases"], _PHASES_TITLE),
            Table(SHARES, shares(document), "Where the time went"),
            Table(KINDS, document["kinds_of_work"], "By kind of work"),
            Table(KERNELS, document["kernels"], "Kernel time by kernel"),
            Table(_ALL_LIMITS, document["limits"] if judged else [], "Kernels and what limits them"),
            Table(_MODEL_OPERATORS, operators if has_work else [], "Work and traffic of the model's operators"),
            Table(MISSING, missing, "What was missing, and why", most=len(missing)),
            Table(ENVIRONMENT, environment, "Environment", most=len(environment)),
            Table(_CLOCKS, document["clock_domains"], "Clocks"),
            Sentence(f"Written by {document['written_by']}; `aaco report {name}` makes the page with the plots."),
        ],
    )


def evidence_view(document: Document) -> View:
    """Lay out the evidence for the answer, and missing evidence with reasons."""
    rests_on = Table(SIGNALS, document["top_evidence"], "What the answer rests on")
    missing = Table(MISSING, _missing(document), "What was missing, and why")
    return headed(document, answer(document), [rests_on, missing])


def _missing(document: Document) -> list[Row]:
    return [*bottlenecks.without_repetition(document["missing"]), *bottlenecks.unpublished(document)]


def path_view(document: Document) -> View:
    """Lay out where the time went: the longest path by category, its kernels, and why the devices were idle."""
    categories = document["path_categories"]
    if not categories:
        return headed(document, "The session has no timed device activity, so it has no critical path.", [])
    window, path = categories[0]["window_ns"], categories[0]["path_ns"]
    text = f"The critical path takes {duration(path)} of the window's {duration(window)}; "
    rest_ns = window - path
    text += f"no record explains the other {duration(rest_ns)}." if rest_ns else "the records explain all of it."
    rest = {"category": "unexplained", "category_ns": rest_ns, "window_ratio": rest_ns / window}
    parts = [
        Table(_PATH, [*categories, rest]),
        Table(_PATH_KERNELS, document["path_kernels"], "Kernels on the path", spare=("family", "*of it critical")),
        Table(_SAVINGS, document["savings"], "What a faster kernel would save (the path recomputed)"),
        Table(_IDLE, document["gap_causes"], "Why the devices were idle"),
    ]
    return headed(document, text, parts)


def shapes_view(document: Document) -> View:
    """Lay out the longest operators."""
    rows, rates = document["operator_shapes"], document["collective_rates"]
    spare = ("roof", "*bandwidth", "*least bytes", "format", "*calls", "*work a call", "*share")
    shown = rows[:_LISTED_SHAPES]
    parts = [
        Table(SHAPES, shown, names=("operator", "inputs"), spare=spare, whole="--json or --csv"),
        *_rest(rows, _LISTED_SHAPES, "row", "; `--csv` and `--json` have all"),
        Table(COLLECTIVES, rates[:_LISTED_SHAPES], "Collectives (nccl-tests' bandwidth)"),
        Table(MISSING, document["missing"], "What was missing"),
    ]
    return headed(document, shapes_answer(document), parts)


def spikes_view(document: Document) -> View:
    """Lay out the longest spikes with their causes."""
    rows, figures = document["spikes"], spikes.both_figures(document)
    spare = ("evidence", "*times", "*of it")
    parts = [
        *sentences([spikes.quietness(document)]),
        Table(spikes.SPIKES, rows[:_LISTED_SPIKES], "Spikes, the longest first", names=("who",), spare=spare),
        *_rest(rows, _LISTED_SPIKES, "spike", "; `--json` has all"),
        Table(spikes.CAUSE_FIGURES, document["delay_causes"], "What each cause did to the measured iterations"),
        Table(spikes.FIGURES, figures, "With and without disturbed iterations"),
        *sentences([spikes.rule()] if figures else [], "aside"),
        Table(MISSING, document["missing"], "What was missing"),
    ]
    return headed(document, spikes.spikes_answer(document), parts)


def _rest(rows: Sequence[Row], shown: int, noun: str, where: str) -> list[Part]:
    rest = len(rows) - shown
    return sentences([f"{counted(rest, f'further {noun}')}{where}"] if rest > 0 else [], "aside")
