"""A recorded program in sentences: how it failed, or how long a run takes, on which CPU time, and where the time went.

Its figures are rows of `program_runs`; where a run was traced, the answer is `answer`'s.
"""

from statistics import median
from typing import Any, Final

from aaco_pipeline.report.words.answer import paragraph
from aaco_pipeline.report.words.units import duration, number, size

Document = dict[str, Any]
#: A spread below this part of the median is not worth two figures.
_SAME: Final = 0.001


def of_program(document: Document) -> str:
    """What a recorded program did, in a paragraph; its failure first, where it failed."""
    runs = document["program_runs"]
    failed = next((run for run in runs if run["failure"] is not None and run["pass"] != "counters"), None)
    if failed is not None:
        return _failed(document, failed)
    timed = [run for run in runs if (run["pass"], run["phase"]) == ("latency", "measure")]
    told = [_run(document, timed)] if timed else ["No run was timed: all were under a profiler or for warm-up."]
    return " ".join([*told, *_traced(document, runs, timed)])


def whole_runs(document: Document) -> list[Document]:
    """The unprofiled runs that are the session's iterations; none where the program marks iterations in them."""
    row = next((one for one in document["metrics"] if (one["metric"], one["pass"]) == ("latency_p50", "latency")), None)
    runs = document.get("program_runs") or []
    timed = [run for run in runs if (run["pass"], run["phase"]) == ("latency", "measure")]
    shortest, longest = (
        min((one["wall_ns"] for one in timed), default=0),
        max((one["wall_ns"] for one in timed), default=0),
    )
    is_whole = row is not None and row["n"] == len(timed) and shortest <= (row["value"] or 0) <= longest
    return timed if is_whole else []


def _failed(document: Document, run: Document) -> str:
    text = f"The program failed: {run['name']} {run['failure']} after {duration(run['wall_ns'])}"
    if run["stderr_end"] is not None:
        text += f"; its last words: {run['stderr_end']}"
    return f"{text.rstrip('.')}. This session is compared with no other."


def _run(document: Document, timed: list[Document]) -> str:
    """How long a run takes, with its spread, and what of the CPUs it uses."""
    walls = [run["wall_ns"] for run in timed]
    middle, low, high = median(walls), min(walls), max(walls)
    spread = "" if high - low <= _SAME * middle else f", {duration(low)} … {duration(high)}"
    text = f"A run of {document['workload']} takes {duration(middle)} (median of {len(timed)}{spread})"
    used = [(run["user_ns"], run["system_ns"]) for run in timed if None not in (run["user_ns"], run["system_ns"])]
    if used and middle:
        user, system = median(one for one, _ in used), median(one for _, one in used)
        text += f", on {duration(user)} of CPU time in the program and {duration(system)} in the operating system"
        text += f": {(user + system) / middle:.2g} CPUs on average"
    memory = [run["max_rss_bytes"] for run in timed if run["max_rss_bytes"] is not None]
    return f"{text}, and at most {size(max(memory))} of memory." if memory else f"{text}."


def _traced(document: Document, runs: list[Document], timed: list[Document]) -> list[str]:
    """Where the time of the traced run went, or why nobody can say."""
    traced = next((run for run in runs if run["pass"] == "trace"), None)
    if traced is None:
        why = [row["reason"] for row in document["missing"] if row["item"].startswith("profiler ") and row["reason"]]
        reason = f" ({'; '.join(dict.fromkeys(why))})" if why else ""
        return [f"Where the time went is not known: no run was traced{reason}."]
    if not document["timeline"]:
        return ["The traced run recorded nothing on a device: the time is the host's."]
    told = [said] if (said := paragraph(document)) is not None else []
    if timed and traced["wall_ns"] > (middle := median(run["wall_ns"] for run in timed)):
        longer = number(traced["wall_ns"] / middle)
        told.append(f"Under {traced['profiler'] or 'the profiler'} a run took {longer} times as long.")
    return told
