"""Describe how two sessions differ, or how one differs from a baseline file.

`two_sessions` collects the documents. Nothing here loads polars.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from aaco_pipeline.analysis.thresholds import MOST_DISTURBED
from aaco_pipeline.report.comparing.causes import of_change, signed, steps
from aaco_pipeline.report.formatting import capital, counted, duration, number
from aaco_pipeline.report.labels import kind_in_words, percent
from aaco_pipeline.report.view import Columns, Lines, Sentence, Table, View, sentences

Row = Mapping[str, Any]

#: Hidden work below this fraction of an iteration is not shown.
_LEAST: Final = 0.01
#: Idle time caused by the host, and the fraction of a change above which it counts as most of it.
_HOST: Final = ("host_wait", "launch_latency", "ends_of_steps")
_MOST: Final = 0.5
_MADE_BY_RECORDER: Final = (
    " Most of the change is the device waiting for its host, and a recorder slows the host: measure both without one "
    "before you believe it."
)
#: Maximum number of selections and of environment facts listed.
LISTED: Final = 12
CAUSES: Final[Columns] = {
    "cause": lambda row: row["in_words"],
    "*part": lambda row: signed(row["delta_ns"]),
    "*of the change": lambda row: of_change(row["share_ratio"]),
    "*iteration then": lambda row: duration(row["then_ns"]),
}
KINDS: Final[Columns] = {
    "kind of work": lambda row: capital(kind_in_words(row["kind"])),
    "*baseline": lambda row: duration(row["time_ns"]),
    "of its roof": lambda row: _roof(row, ""),
    "*candidate": lambda row: duration(row["time_ns_candidate"]),
    "of its own": lambda row: _roof(row, "_candidate"),
}
SIDES: Final[Columns] = {
    "": lambda row: row["what"],
    "baseline": lambda row: row["baseline"],
    "candidate": lambda row: row["candidate"],
}


def title(document: Row) -> str:
    """Return the title: the work of both sessions, and their devices if these differ."""
    pair = [document[side] for side in ("candidate", "baseline")]
    works = [one["model_name"] or one["workload"] or one["session_id"] for one in pair]
    if document["hardware_differs"]:
        works = [f"{work} on {one['product'] or one['arch']}" for work, one in zip(works, pair, strict=True)]
    return " against ".join(dict.fromkeys(works)) if len(set(works)) > 1 else f"{works[0]}, two sessions"


def opening(document: Row) -> list[str]:
    """Return the first sentences: different hardware or work, then different selections."""
    lines = []
    if document["hardware_differs"]:
        pair = [_device(document[side]) for side in ("baseline", "candidate")]
        lines.append(f"Hardware differs: {' → '.join(pair)}.")
    if document["workload_differs"]:
        lines.append(f"The work differs: {'; '.join(document['workload_differs'])}.")
    if document["other_work"]:
        return [*lines, f"The work differs: {document['other_work']}."]
    chosen = document["selections"]
    if not chosen and document["not_split"]:
        return [*lines, "What was selected cannot be compared: see below."]
    if not chosen:
        return [*lines, "As far as both recordings show, nothing was selected differently."]
    if document["hardware_differs"]:
        # Kernels differ between architectures, so only selections for the complete session are compared.
        whole = [row for row in chosen if row["operator"] is None and row["position"] is None]
        apart = counted(len(chosen) - len(whole), "place")
        lines += [f"{row['in_words']}." for row in whole[:LISTED]]
        told = f"Kernels or inputs differ at {apart}, as they do on other hardware: `--json`."
        return [*lines, told] if len(chosen) > len(whole) else lines
    lines.append(f"{counted(len(chosen), 'thing')} {'was' if len(chosen) == 1 else 'were'} selected differently:")
    lines += [f"{row['in_words']}." for row in chosen[:LISTED]]
    return [*lines, *([f"{len(chosen) - LISTED} more in `--json`."] if len(chosen) > LISTED else [])]


def verdict(document: Row) -> list[str]:
    """State that this is not a verdict, and by how much the two differ."""
    lines = [f"Described, no verdict: {document['verdict_reason']}."]
    rules = [document[side]["step"] for side in ("baseline", "candidate")]
    if document["latency_delta_pct"] is not None:
        lines.append(_latency(document))
    elif None not in rules and rules[0] != rules[1]:
        lines.append(f"Their times cannot be compared: the baseline's cover {rules[0]}, the candidate's {rules[1]}.")
    for side in ("baseline", "candidate"):
        if (disturbed := document[side].get("disturbed_ratio") or 0.0) > MOST_DISTURBED:
            what = f"The machine disturbed {percent(disturbed)} of the {side}'s iterations"
            lines.append(f"{what}: measure it again on a quiet one before you believe the difference.")
    lines += [f"{session}: {why}." for session, why in document["not_split"].items()]
    least = _LEAST * (document["baseline"]["iteration_ns"] or 0.0)
    beside = ("hidden_host", "host_calls")
    hidden = [row["in_words"] for row in document["causes"] if row["kind"] in beside and _size(row) > least]
    return [*lines, *(f"{one}." for one in hidden)]


def waterfall(document: Row) -> list[dict[str, Any]]:
    """Lay out the causes of the change per iteration: small ones combined, the unexplained remainder separate."""
    change = document["change"]
    return [] if change is None else steps(document["causes"], change["baseline_ns"])


def sides(document: Row) -> list[dict[str, str | None]]:
    """Compare facts of the two sessions: device, precision, clock, busy and idle time."""
    pair = document["baseline"], document["candidate"]
    told: dict[str, Callable[[Row], str | None]] = {
        "device": lambda one: one["product"] or one["arch"],
        "precision": lambda one: one["precision"],
        "engine clock": lambda one: one["clock_mhz"] and f"{number(one['clock_mhz'])} MHz",
        "iteration, recorded": lambda one: duration(one["iteration_ns"]),
        "iteration, unprofiled": lambda one: duration(one["latency_ns"]),
        "iterations disturbed": lambda one: (
            None if one.get("disturbed_ratio") is None else percent(one["disturbed_ratio"])
        ),
        "device busy": lambda one: None if one["busy_ratio"] is None else percent(one["busy_ratio"]),
        "device idle, an iteration": _idle,
        **{f"{name}, of the time": _share_of(name) for name in ("launch", "host", "sync", "copy", "communication")},
    }
    rows = [{"what": what, "baseline": show(pair[0]), "candidate": show(pair[1])} for what, show in told.items()]
    return [row for row in rows if row["baseline"] or row["candidate"]]


def environment(document: Row) -> list[str]:
    """List other differences, one per line."""
    rows: Sequence[Row] = document["environment"]
    more = [f"{len(rows) - LISTED} more in `--json`"] if len(rows) > LISTED else []
    return [*(row["in_words"] for row in rows[:LISTED]), *more]


def _device(side: Row) -> str:
    """Format a device as its product and architecture: `AMD Instinct MI300X (gfx942)`."""
    product, arch = side["product"], side["arch"]
    return f"{product} ({arch})" if product and arch else str(product or arch or "a device that is not named")


def _size(row: Row) -> float:
    return abs(float(row["delta_ns"]))


def _idle(one: Row) -> str | None:
    if one["busy_ratio"] is None or one["iteration_ns"] is None:
        return None
    return duration(one["iteration_ns"] * (1 - one["busy_ratio"]))


def _share_of(name: str) -> Callable[[Row], str | None]:
    return lambda one: percent(one["shares"][name]) if one["shares"].get(name) else None


def _latency(document: Row) -> str:
    change, source = document["latency_delta_pct"], document["latency_from"]
    pair = document["baseline"], document["candidate"]
    recorded = [duration(side["iteration_ns"]) for side in pair]
    if source == "unprofiled iterations":
        before, after = (duration(side["latency_ns"]) for side in pair)
        text = f"An iteration takes {after} instead of {before} ({change:+.1f} %), unprofiled."
        return f"{text} The rest compares the recorded ones: {recorded[1]} instead of {recorded[0]}."
    stepped = all(side["step"] == "measured iterations" for side in pair)
    whole = any(side["step"] == "the whole recording" for side in pair)
    what = "An iteration" if stepped else "The recording" if whole else "A repetition"
    text = f"{what} takes {recorded[1]} instead of {recorded[0]} ({change:+.1f} %) under the recorder."
    return text + (_MADE_BY_RECORDER if _of_the_host(document) else "")


def _of_the_host(document: Row) -> bool:
    """Return whether most of the change is device time spent waiting for the host, which recording slows down."""
    change = document["change"]
    if change is None:
        return False
    waiting = sum(row["delta_ns"] for row in document["causes"] if row["kind"] == "gaps" and row["subject"] in _HOST)
    return bool(waiting / change["delta_ns"] > _MOST if change["delta_ns"] else False)


def _roof(row: Row, side: str) -> str | None:
    if row[f"roof_ratio{side}"] is None:
        return None
    return f"{percent(row[f'roof_ratio{side}'])} of {row[f'roof{side}']}" + (
        f" ({row[f'dtype{side}']})" if row[f"dtype{side}"] else ""
    )


#: Maximum number of unmatched figures that are named.
_NAMED: Final = 5
STORED_METRICS: Final[Columns] = {
    "metric": lambda row: row["metric"].replace("_", " "),
    "*baseline file": lambda row: duration(row["baseline_ns"]),
    "*session": lambda row: duration(row["candidate_ns"]),
    "*ratio": lambda row: None if row["ratio"] is None else f"{row['ratio']:.3f}",
}


def stored_title(document: Row) -> str:
    """Return the title for a session compared with a baseline file."""
    return f"{document['candidate']['session_id']} against the file {document['baseline']['name']}"


def stored_sentence(document: Row) -> str:
    """Explain why there is no verdict."""
    return f"Inconclusive: {document['verdict_reason']}."


def stored_lines(document: Row) -> list[str]:
    """List differences, refused parts of the file, and figures without a counterpart."""
    told = [f"Not the same work or hardware: {'; '.join(document['differs'])}."] if document["differs"] else []
    told += [f"Refused: {one}." for one in document["refused"]]
    if more := document["not_compared"]:
        rest = f" and {len(more) - _NAMED} more in `--json`" if len(more) > _NAMED else ""
        told.append(f"Not compared: {', '.join(more[:_NAMED])}{rest}.")
    return told


def stored_next_step(document: Row) -> str:
    """Name the command that gives a verdict."""
    return f"Next: {document['recommendation']}."


def difference_view(document: Row) -> View:
    """Lay out changed selections, the slowdown, its causes, other differences, and the next command."""
    kinds = Table(KINDS, document["kinds"], title="Kinds of work, an iteration", names=("kind of work",))
    both = [Table(SIDES, sides(document), heading="The two sessions", names=()), kinds]
    causes = Table(CAUSES, waterfall(document), heading="Causes", names=("cause",), spare=("*iteration then",))
    return View(
        " against ".join(f"`{document[side]['session_id']}`" for side in ("candidate", "baseline")),
        [
            *sentences(opening(document), "good"),
            *sentences(verdict(document)),
            causes,
            *(both if document["hardware_differs"] else ()),
            Lines("Environment that differs (no cause by itself)", environment(document)),
            Sentence(f"Next: {document['recommendation']}.", "strong"),
        ],
    )


def stored_difference_view(document: Row) -> View:
    """Lay out why there is no verdict, both sides' figures, refused parts, and the next command."""
    return View(
        stored_title(document),
        [
            Sentence(stored_sentence(document), "open"),
            *sentences(stored_lines(document)),
            Table(STORED_METRICS, document["metrics"], heading="Latency", names=()),
            Sentence(stored_next_step(document), "strong"),
        ],
    )
