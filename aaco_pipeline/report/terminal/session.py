"""A session's document for a terminal: the answer first, then tables.

What it says comes from `document` and `words`; the command's other output is `aaco_pipeline.cli.output`.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, TextIO

from aaco_pipeline.report.terminal.screen import open_screen, print_prose, print_table, print_trimmed
from aaco_pipeline.report.words import bottleneck_text, tables
from aaco_pipeline.report.words.answer import sharpening
from aaco_pipeline.report.words.printable import in_a_line
from aaco_pipeline.report.words.session import Document, Row, answer, facts, half, history, run_description
from aaco_pipeline.report.words.spikes import quietness
from aaco_pipeline.report.words.units import counted, duration, grouped, share

if TYPE_CHECKING:
    from rich.console import Console

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
    print_table(screen, tables.SHARES, tables.shares(document), title="Where the time went")
    kinds = document.get("kinds_of_work", [])
    print_table(screen, tables.KINDS, kinds, title="By kind of work", names=("heaviest",), spare=_SPARE_OF_KINDS)
    print_table(screen, tables.LATENCIES, tables.latencies(document))
    print_table(screen, tables.PHASES, document["phases"], title="Phases, in the runs without a profiler")
    print_table(screen, tables.KERNELS, document["top_kernels"], title="By kernel", spare=_SPARE)
    heading = "What the wavefronts stalled for; the instructions with `aaco show --kernel NAME`"
    print_table(screen, tables.STALLS, document.get("stalls", []), title=heading, spare=_SPARE_OF_STALLS)
    _print_limits(screen, document["optimization_priority"])
    rest = len(document.get("kernels", [])) - len(document["top_kernels"])
    if rest > 0:
        print_prose(screen, f"{counted(rest, 'further kernel')} in `aaco report --format markdown`", "dim")


def print_evidence(document: Document, stream: TextIO | None = None) -> None:
    """Print what the answer rests on and what was missing, with why."""
    screen = open_screen(stream)
    print_head(screen, document, run_description(document), answer(document))
    print_table(screen, tables.SIGNALS, document["top_evidence"], title="What the answer rests on")
    missing = [*bottleneck_text.without_repetition(document["missing"]), *bottleneck_text.unpublished(document)]
    print_table(screen, tables.MISSING, missing, title="What was missing, and why")


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
            "kernel": tables.kernel_in_words,
            "*share": lambda row: share(row["share_ratio"]),
            "limited by": lambda row: row["label"] and bottleneck_text.briefly(row["label"]),
            "bound": lambda row: bottleneck_text.resource(row["bound"]),
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
