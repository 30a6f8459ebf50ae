"""Lay out a session for the terminal: the answer first, then the tables.

The columns here are shared with the page and Markdown; the document is gathered by `document`.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TextIO

from aaco_pipeline.report.formatting import counted, duration, grouped, in_a_line, share, shortened, size, work
from aaco_pipeline.report.labels import kind_in_words, rate_alone, roof_counts
from aaco_pipeline.report.session import bottlenecks
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
)
from aaco_pipeline.report.session.spikes import (
    CAUSE_FIGURES,
    FIGURES,
    SPIKES,
    both_figures,
    quietness,
    rule,
    spikes_answer,
)
from aaco_pipeline.report.terminal import open_screen, print_prose, print_table, print_trimmed

if TYPE_CHECKING:
    from rich.console import Console


Columns = Mapping[str, Callable[[Row], str | None]]
#: Up to here a kernel is called by its own name; a longer one by its short form.
_LONGEST_NAME: Final = 48


def kernel_in_words(row: Row) -> str:
    """A kernel as a line has room for it: what it does with its own name, or of a long name the short form.

    A short form keeps its template arguments where there is room: they tell kernels apart that are called the same.
    """
    name, short = str(row["name"]), row["operator"]
    if short is None or (len(name) <= _LONGEST_NAME and name.startswith(str(short))):
        return name
    if len(name) <= _LONGEST_NAME and " " not in name and "<" not in name:
        return f"{short} {name}"
    return _without_parameters(name, str(short))


def _without_parameters(name: str, short: str) -> str:
    """The short form with the template arguments that follow it in the name, if both together are short."""
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
KERNELS: Final[Columns] = {
    "kernel": kernel_in_words,
    "library": lambda row: row["library"],
    **_TIMES,
}
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
    """The shares of the window that took any time, with what explains a part of each."""
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
    """The quantiles and the mean of both passes, as far as the unprofiled one has them."""
    rows = [
        {"name": name} | {key: metric(document, f"latency_{name}", of) for key, of in _PASSES.items()}
        for name in ("p50", "p90", "p99", "mean")
    ]
    return [row for row in rows if row["unprofiled"] is not None]


_PASSES: Final = {"unprofiled": "latency", "profiled": "trace"}


_LONGEST: Final = 60


def shapes_text(row: Row) -> str:
    """The shapes of the inputs with extents, such as `8944×1024, 1024×2816`, and what else tells the calls apart."""
    try:
        dims = json.loads(row["shapes"])
    except ValueError:
        dims = []
    shown = ", ".join(_shape(one) for one in dims if one) if isinstance(dims, list) else ""
    return "; ".join(part for part in (shortened(shown, _LONGEST), row["detail"]) if part)


def rate_text(row: Row) -> str | None:
    """Operations a second, where any are counted."""
    rate = row["achieved_flops_per_s"]
    return f"{work(rate)}/s" if rate else None


def bandwidth_text(row: Row) -> str | None:
    """Least bytes a second."""
    rate = row["achieved_bytes_per_s"]
    return None if rate is None else f"{size(rate)}/s"


def roof_text(row: Row) -> str | None:
    """How much of which roof, such as `58.6 % of matrix arithmetic`."""
    if row["share_ratio"] is None:
        return None
    return f"{share(row['share_ratio'])} of {bottlenecks.resource(row['bound'])}"


def bus_text(row: Row) -> str:
    """Bus bandwidth as nccl-tests counts it."""
    return f"{row['bus_bytes_per_s'] / 1e9:,.4g} GB/s"


SHAPES: Final[Mapping[str, Callable[[Row], str | None]]] = {
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


#: Collectives of one operation, size and group; the rows of the part `collective_rates`.
COLLECTIVES: Final[Mapping[str, Callable[[Row], str | None]]] = {
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
    """Of how much of the operators' time it is known what they had to do, and which took longest."""
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
    """`8944×1024`; of a list of tensors the first, and how many more."""
    if isinstance(dims, list) and dims and isinstance(dims[0], list):
        return f"[{_shape(dims[0])}{f' and {len(dims) - 1} more' if len(dims) > 1 else ''}]"
    return "×".join(str(size) for size in dims) if isinstance(dims, list) else "?"


_LIMITED_KERNELS: Final = 10
_SPARE: Final = ("*mean", "*dispatches", "library")
_SPARE_OF_KINDS: Final = ("*dispatches", "*of the peak", "heaviest")
_SPARE_OF_STALLS: Final = ("*samples", "*dispatch", "*cycles", "thread trace")


def print_session(document: Document, stream: TextIO | None = None) -> None:
    """Print a short or a long document, on standard output unless told otherwise."""
    screen = open_screen(stream)
    print_head(screen, document, run_description(document), answer(document))
    for what, command in sharpening(document):
        print_prose(screen, f"To sharpen it, record {what}: {command}", "dim")
    if (measured := facts(document)) and measured != answer(document):
        print_prose(screen, measured)
    for sentence in history(document):
        print_prose(screen, sentence)
    if (noise := quietness(document)) is not None:
        print_prose(screen, f"{noise} Why single iterations took longer: `aaco show {document['session_id']} --spikes`")
    print_table(screen, SHARES, shares(document), title="Where the time went")
    kinds = document.get("kinds_of_work", [])
    print_table(screen, KINDS, kinds, title="By kind of work", names=("heaviest",), spare=_SPARE_OF_KINDS)
    print_table(screen, LATENCIES, latencies(document))
    print_table(screen, PHASES, document["phases"], title="Phases, in the runs without a profiler")
    print_table(screen, KERNELS, document["top_kernels"], title="By kernel", spare=_SPARE)
    heading = "What the wavefronts stalled for; the instructions with `aaco show --kernel NAME`"
    print_table(screen, STALLS, document.get("stalls", []), title=heading, spare=_SPARE_OF_STALLS)
    _print_limits(screen, document["optimization_priority"])
    rest = len(document.get("kernels", [])) - len(document["top_kernels"])
    if rest > 0:
        print_prose(screen, f"{counted(rest, 'further kernel')} in `aaco report --format markdown`", "dim")


def print_evidence(document: Document, stream: TextIO | None = None) -> None:
    """Print what the answer rests on and what was missing, with why."""
    screen = open_screen(stream)
    print_head(screen, document, run_description(document), answer(document))
    print_table(screen, SIGNALS, document["top_evidence"], title="What the answer rests on")
    missing = [*bottlenecks.without_repetition(document["missing"]), *bottlenecks.unpublished(document)]
    print_table(screen, MISSING, missing, title="What was missing, and why")


def print_head(screen: "Console", document: Document, subject: str, sentences: str) -> None:
    """The session's id with what is shown of it, what it lacks where it is not whole, and the answer."""
    from rich.text import Text

    print_trimmed(screen, Text.assemble((document["session_id"], "bold"), "  ", in_a_line(subject)))
    if (lacking := half(document)) is not None:
        print_prose(screen, lacking, "bold yellow")
    print_prose(screen, sentences, "bold green")


def _print_limits(screen: "Console", kernels: Sequence[Row]) -> None:
    """The kernels most worth a look, with what limits each; nothing when nothing is known of any."""
    if not any(row["label"] or row["bound"] for row in kernels):
        return
    print_table(
        screen,
        {
            "kernel": kernel_in_words,
            "*share": lambda row: share(row["share_ratio"]),
            "limited by": lambda row: row["label"] and bottlenecks.briefly(row["label"]),
            "bound": lambda row: bottlenecks.resource(row["bound"]),
            "*of that roof": lambda row: share(row["efficiency_ratio"]),
            "*a faster one saves": _saving,
        },
        kernels[:_LIMITED_KERNELS],
        title="Kernels that could save most; more of one with `aaco show --kernel NAME`",
        spare=("bound", "*of that roof"),
    )


def _saving(row: Row) -> str | None:
    """What a kernel at its roof would save; where no roof is known, all that it takes of the critical path.

    They are ordered by that. Of a session that has neither it is what a kernel of some speed would save.
    """
    if row["saves_at_most_ns"] is not None:
        return f"at most {duration(row['saves_at_most_ns'])}"
    if row["critical_ns"] is not None:
        return f"at most {duration(row['critical_ns'])}, no roof"
    return None if row["saved_ns"] is None else f"{duration(row['saved_ns'])} at {row['speedup_ratio']:g}×"


def print_critical_path(document: Document, stream: TextIO | None = None) -> None:
    """Print where the time went: the longest path by category, its kernels, and why the devices were idle."""
    screen = open_screen(stream)
    categories = document["path_categories"]
    if not categories:
        nothing = "The session has no timed device activity, so it has no critical path."
        return print_head(screen, document, run_description(document), nothing)
    window, path = categories[0]["window_ns"], categories[0]["path_ns"]
    told = f"The critical path takes {duration(path)} of the window's {duration(window)}; "
    print_head(
        screen, document, run_description(document), f"{told}nothing recorded explains {duration(window - path)} of it."
    )
    rest = {"category": "unexplained", "category_ns": window - path, "window_ratio": (window - path) / window}
    print_table(
        screen,
        {
            "on the path": lambda row: row["category"],
            "*time": lambda row: duration(row["category_ns"]),
            "*of the window": lambda row: share(row["window_ratio"]),
        },
        [*categories, rest],
    )
    print_table(
        screen,
        {
            "kernel": lambda row: row["name"],
            "family": lambda row: row["family"],
            "*on the path": lambda row: duration(row["critical_ns"]),
            "*dispatches": lambda row: grouped(row["dispatch_count"]),
            "*of it critical": lambda row: share(row["criticality"]),
        },
        document["path_kernels"],
        title="Kernels on the path",
        spare=("family", "*of it critical"),
    )
    print_table(
        screen,
        {
            "kernel": lambda row: row["name"],
            "*times as fast": lambda row: f"{row['speedup_ratio']:g}",
            "*the path is shorter by": lambda row: duration(row["saved_ns"]),
            "*of the window": lambda row: share(row["saved_ratio"]),
        },
        document["savings"],
        title="What a faster kernel would save (the path recomputed)",
    )
    print_table(
        screen,
        {
            "device": lambda row: str(row["device_id"]),
            "cause": lambda row: row["cause"],
            "*idle": lambda row: duration(row["idle_ns"]),
            "*gaps": lambda row: grouped(row["gaps"]),
            "*longest": lambda row: duration(row["longest_ns"]),
        },
        document["gap_causes"],
        title="Why the devices were idle",
    )
    return None


_SHOWN: Final = 40
_SPARE_SHAPES: Final = ("roof", "*bandwidth", "*least bytes", "format", "*calls", "*work a call", "*share")


def print_shapes(document: Document, stream: TextIO | None = None) -> None:
    """Print the operators that took longest, on standard output unless told otherwise."""
    screen = open_screen(stream)
    rows = document["operator_shapes"]
    print_head(screen, document, run_description(document), shapes_answer(document))
    print_table(
        screen, SHAPES, rows[:_SHOWN], names=("operator", "inputs"), spare=_SPARE_SHAPES, whole="--json or --csv"
    )
    if len(rows) > _SHOWN:
        print_prose(screen, f"{counted(len(rows) - _SHOWN, 'further row')}; `--csv` and `--json` have all", "dim")
    print_table(screen, COLLECTIVES, document["collective_rates"][:_SHOWN], title="Collectives (nccl-tests' bandwidth)")
    print_table(screen, MISSING, document["missing"], title="What was missing")


_SHOWN_SPIKES: Final = 20
_SPARE_SPIKES: Final = ("evidence", "*times", "*of it")


def print_spikes(document: Document, stream: TextIO | None = None) -> None:
    """Print the longest spikes with their causes, on standard output unless told otherwise."""
    screen = open_screen(stream)
    print_head(screen, document, run_description(document), spikes_answer(document))
    if (said := quietness(document)) is not None:
        print_prose(screen, said)
    spikes = document["spikes"]
    print_table(
        screen, SPIKES, spikes[:_SHOWN_SPIKES], title="Spikes, the longest first", names=("who",), spare=_SPARE_SPIKES
    )
    if len(spikes) > _SHOWN_SPIKES:
        print_prose(screen, f"{counted(len(spikes) - _SHOWN_SPIKES, 'further spike')}; `--json` has all", "dim")
    print_table(screen, CAUSE_FIGURES, document["delay_causes"], title="What each cause did to the measured iterations")
    if figures := both_figures(document):
        print_table(screen, FIGURES, figures, title="With and without disturbed iterations")
        print_prose(screen, rule(), "dim")
    print_table(screen, MISSING, document["missing"], title="What was missing")
