"""Describe a search for a faster kernel or configuration: its answer and the table of its attempts.

`document` collects the document. Nothing here loads polars.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from aaco_pipeline.report.formatting import counted, listed, long_duration, share
from aaco_pipeline.report.view import Columns, Sentence, Table, Tone, View, sentences

Row = Mapping[str, Any]
ATTEMPTS_INTRO: Final = (
    "In the order in which they were tried, each compared with the model as accepted so far. The guard is what stopped "
    "an attempt, or the last that it passed. A larger batch is judged by the time of each item."
)
BLOCKS_INTRO: Final = (
    "Time before divided by time after: right of 1 is faster. Each mark is one block: a session of each configuration, "
    "both of them fresh processes, at the ratio of their median iterations, of a larger batch for each item. Rings are "
    "of the search, which only chooses what is worth a confirmation; dots are of the confirmation, which decides in "
    "sessions that no search has seen."
)


def _model_sentence(document: Row) -> str:
    """State the answer in one sentence: how much faster an iteration is, with which options, and where."""
    model, where, ended = document["source_name"], document["executed_on"], document["ended_by"]
    decided = [row for row in document["attempts"] if row["decision"] != "undecided"]
    if ended is None:
        return f"The search for a faster configuration of {model} was broken off; what it decided by then is below."
    if document["gain"] is not None:
        with_options = " ".join(row["transformation"] for row in _accepted_by(document, "iteration"))
        gain = _figures(document["gain"])
        return f"{model} runs {gain} times as fast with {with_options} on {where}: the median iteration of a process."
    if ended in ("baseline", "noise") or (ended == "time" and not decided):
        return f"Nothing was decided about {model}: {document['reason']}."
    tried = counted(len(document["attempts"]), "candidate")
    return f"No configuration was found that runs {model} faster on {where} beyond doubt ({tried} tried)."


def _model_remarks(document: Row) -> list[str]:
    """Add remarks: larger batches, undecided candidates, why the search ended, and how to run the result."""
    told, accepted = [], _accepted_by(document, "iteration")
    if len(accepted) > 1:
        told.append(
            f"{len(accepted)} changes were accepted, each compared with those before it; the gain is their product."
        )
    batches = _accepted_by(document, "item")
    if batches:
        best = max(batches, key=lambda row: (row["speedup_ratio"], row["attempt"]))
        told.append(
            f"With {best['transformation']} it gets through {_figures(best)} times as many items in the same time. "
            "That is throughput: an iteration is then the whole batch, and no item is there before all of it."
        )
    undecided = [row for row in document["attempts"] if row["guard"] == "budget"]
    if undecided:
        told.append(f"{counted(len(undecided), 'candidate')} could not be decided in the time: give a larger --budget.")
    if document["ended_by"] in ("searched", "attempts", "time") and document["attempts"]:
        told.append(f"The search ended: {document['reason']}.")
    if accepted:
        told.append(f"No file was changed. To run it so: `aaco run {document['run_options']}`")
    return told


def _accepted_by(document: Row, ratio_of: str) -> list[Row]:
    return [row for row in document["attempts"] if row["decision"] == "accepted" and row["ratio_of"] == ratio_of]


#: If the saving is below this fraction of the kernel's own saving, other work limits it.
_BESIDE: Final = 0.95
#: Resource columns in words.
_RESOURCES: Final = {
    "vgprs": "VGPRs",
    "sgprs": "SGPRs",
    "lds_bytes": "bytes of LDS",
    "scratch_bytes": "bytes of scratch",
}
#: Prefix of a timing rule's reason: the ratio and its interval.
_FIGURES_FIRST: Final = re.compile(
    r"\A[0-9.]+ times as fast(?: for each item)?(?: \[[^]]*\])?(?:, (?=confirmed)| (?=in the ))"
)


def title(document: Row) -> str:
    """Name the optimized kernel of a source, or model."""
    kernel = "" if document["kernel"] is None else f"{document['kernel']} of "
    return f"{kernel}{document['source_name']}"


def sentence(document: Row) -> str:
    """State the answer in one sentence: the gain and where it was measured, static results, and unmeasured claims."""
    return _of_a_kernel(document) if document["kernel"] is not None else _model_sentence(document)


def gain_alone(document: Row) -> tuple[str, str] | None:
    """Return the gain and its interval separately; None if nothing was accepted."""
    gain = document["gain"]
    return None if gain is None else (f"{gain['speedup_ratio']:.2f}", _interval(gain, 2))


def remarks(document: Row) -> list[str]:
    """Add remarks: number of changes, effect on the session, why the search ended, and what happened to the source."""
    if document["kernel"] is None:
        return _model_remarks(document)
    told, accepted, gain = [], _accepted(document), document["gain"]
    if accepted > 1 and gain is not None:
        if gain["of"] == "whole":
            how = "that of all of them, timed once more as a whole"
        else:
            late = ": there was no time left to time them as a whole" if document["whole_decision"] is not None else ""
            how = f"the product of theirs{late}"
        told.append(
            f"{accepted} changes were accepted, each compared with what was accepted before it; the gain is {how}."
        )
    told += _effect(document)
    undecided = [row for row in document["attempts"] if row["guard"] == "budget"]
    if undecided:
        told.append(f"{counted(len(undecided), 'candidate')} could not be decided in the time: give a larger --budget.")
    if document["ended_by"] == "baseline" and accepted:
        told.append(f"The search ended early: {document['reason']}.")
    if document["patch"] is not None:
        done = "The source was replaced" if document["is_applied"] else "The source is as it was"
        what = "the patch is" if gain is not None else "what did not hold as a whole is kept as"
        told.append(f"{done}; {what} {document['patch']} in the lake.")
    elif gain is not None:
        told.append("The source needs no change: launch it as the accepted attempt says.")
    return told


def spent(document: Row) -> str:
    """State the number of candidates, the time, and the journal's path."""
    time = "" if document["spent_ns"] is None else f" in {long_duration(document['spent_ns'])}"
    return (
        f"{counted(len(document['attempts']), 'candidate')} tried{time}; every decision is in {document['journal']}: "
        f"`aaco optimize --replay {document['optimization_id']}`"
    )


def page(document: Row) -> str:
    """Name the command that shows more."""
    held = "layouts, static figures, the change" if document["kernel"] is not None else "every block, and the host"
    return f"`aaco report {document['optimization_id']}` makes a page of it: {held}."


def search_in_a_line(row: Row) -> str:
    """Summarize a search on the page of a session's kernel: attempts, gain, where measured, and predicted effect."""
    made = f"{counted(row['attempts'], 'attempt')} on {row['executed_on']}, {row['accepted']} accepted"
    if row["speedup_ratio"] is None:
        return f"{made} ({row['optimization_id']})"
    shorter = row["shorter_ratio"]
    scope = {"iteration": "an iteration", "recording": "the recording"}.get(row["effect_scope"])
    effect = f"; {scope} would be {share(shorter)} shorter" if shorter is not None else ""
    return f"{made}: {_figures(row)} times as fast{effect} ({row['optimization_id']})"


def is_decided(document: Row) -> bool:
    """Return whether every candidate was decided, on a machine that allows decisions."""
    ended = document["ended_by"] in ("searched", "attempts")
    decisions = (document["whole_decision"], *(row["decision"] for row in document["attempts"]))
    return ended and "undecided" not in decisions


def what(row: Row) -> str:
    """Name an attempt's change, without repeated parameters."""
    return str(row["transformation"]).split(" (")[0]


def _gain(row: Row) -> str | None:
    """Format a ratio with its interval, if there were enough layouts for one."""
    if row["speedup_ratio"] is None:
        return None
    has_interval = row["ci_low"] is not None and row["ci_high"] is not None
    item = " per item" if row["ratio_of"] == "item" else ""
    return f"{row['speedup_ratio']:.3f}" + (f" {_interval(row)}" if has_interval else "") + item


def _reason(row: Row) -> str:
    """Give the reason, without figures that are shown next to it."""
    told = str(row["reason"])
    return told if row["speedup_ratio"] is None else _FIGURES_FIRST.sub("", told)


ATTEMPTS: Final[Columns] = {
    "*#": lambda row: str(row["attempt"]),
    "what": what,
    "decision": lambda row: row["decision"],
    "guard": lambda row: row["guard"],
    "*times as fast": _gain,
    "reason": _reason,
}
#: Columns omitted on narrow screens; the guard summarizes the reason in one word.
SPARE: Final = ("reason",)

REPLAYED: Final[Columns] = {
    "*attempt": lambda row: {"aa": "A/A", "whole": "the whole"}.get(row["kind"], str(row["attempt"])),
    "decision": lambda row: row["decision"],
    "guard": lambda row: row["guard"],
    "as recorded": lambda row: "yes" if row["differs"] is None else f"no: {row['differs']}",
}


def replayed(document: Row) -> str:
    """Summarize the result of recomputing a journal's decisions."""
    wrong = sum(row["differs"] is not None for row in document["decisions"])
    made = counted(len(document["decisions"]), "decision")
    if wrong:
        return f"{wrong} of {made} came out otherwise than the journal says."
    return f"{made} made again from the journal: all came out as recorded."


def _of_a_kernel(document: Row) -> str:
    kernel, where, ended = document["kernel"], document["executed_on"], document["ended_by"]
    decided = [row for row in document["attempts"] if row["decision"] != "undecided"]
    if ended is None:
        return f"The search for a faster {kernel} was broken off; what it decided by then is below."
    if document["gain"] is not None:
        gain = _figures(document["gain"])
        return f"{kernel} is {gain} times as fast on {where}{_static(document)}{_unmeasured(document)}."
    if document["whole_decision"] is not None:
        changes = counted(_accepted(document), "change")
        return (
            f"{kernel} was not changed: each of {changes} was proved faster than the source before it, but all of them "
            f"together were not proved faster than the source as it was: {document['whole_reason']}."
        )
    if ended == "baseline":
        return f"{kernel} was not changed: {document['reason']}."
    if ended == "noise" or (ended == "time" and not decided):
        return f"Nothing was decided about {kernel}: {document['reason']}."
    return f"No change was found that makes {kernel} faster on {where} beyond doubt{_tried(document)}."


def _accepted(document: Row) -> int:
    return sum(row["decision"] == "accepted" for row in document["attempts"])


def _effect(document: Row) -> list[str]:
    """Predict the gain's effect on the given session, or explain why there is no prediction."""
    session, part, shorter = document["session"], document["critical_share_ratio"], document["shorter_ratio"]
    reason = document["effect_reason"] if document["gain"] is not None else None
    if session is None or (part is None and reason is None):
        return []
    if part is None:
        return [f"What this does to session {session} is not predicted: {reason}."]
    scope = {"iteration": "an iteration", "recording": "the recording"}[document["effect_scope"]]
    takes = f"{document['kernel']} takes {share(part)} of {scope} of session {session} on its critical path"
    if shorter is None:
        return [f"{takes}{f'; what it would be shorter by is not predicted: {reason}' if reason else ''}."]
    low, high = document["shorter_low_ratio"], document["shorter_high_ratio"]
    alone = part * (1 - 1 / document["gain"]["speedup_ratio"])
    beside = ", no more for the work beside it" if shorter < _BESIDE * alone else ""
    return [
        f"{takes}: {_figures(document['gain'])} times as fast would make it {100 * shorter:.1f} [{100 * low:.1f}, "
        f"{100 * high:.1f}] % shorter{beside}, if the gain is the same at the session's sizes. This is predicted; "
        f"after a run with the change `aaco diff {session} latest` shows what became of it, and `aaco compare` judges "
        "it."
    ]


def _tried(document: Row) -> str:
    """State how far an unsuccessful search came."""
    if not document["attempts"]:
        return ": no proposer had anything to propose"
    ended = {"time": "; its time was spent", "attempts": "; as many were tried as may be"}
    return f" ({counted(len(document['attempts']), 'candidate')} tried{ended.get(document['ended_by'], '')})"


def _static(document: Row) -> str:
    resources = document["resources"]
    if resources is None:
        return ""
    changed = [
        f"{after} instead of {before} {_RESOURCES[name]}"
        for name, (before, after) in ((name, resources[name]) for name in _RESOURCES)
        if before != after and None not in (before, after)
    ]
    if not changed:
        return f"; on {resources['of']} its static figures are unchanged"
    return f"; on {resources['of']} it takes {listed(changed)}"


def _unmeasured(document: Row) -> str:
    return "" if document["target"] == "amd" else "; its speed on an AMD GPU was not measured"


def _figures(row: Row) -> str:
    return f"{row['speedup_ratio']:.2f} {_interval(row, 2)}"


def _interval(row: Row, digits: int = 3) -> str:
    return f"[{row['ci_low']:.{digits}f}, {row['ci_high']:.{digits}f}]"


def search_view(document: Row) -> View:
    """Lay out every attempt with its decision and reason, then the answer."""
    return View(
        title(document),
        [
            Table(ATTEMPTS, document["attempts"], names=("what",), spare=SPARE),
            Sentence(""),
            Sentence(sentence(document), tone(document)),
            *sentences((*remarks(document), spent(document), page(document))),
        ],
        identifier=document["optimization_id"],
    )


def replay_view(document: Row) -> View:
    """Lay out every recomputed decision, and whether it matches the recorded one."""
    return View(
        "",
        [
            Table(REPLAYED, document["decisions"]),
            Sentence(""),
            *sentences(document["notes"]),
            Sentence(replayed(document), "good" if document["is_same"] else "bad"),
        ],
    )


def tone(document: Row) -> Tone:
    """Return the tone of the answer, `open` if nothing was gained."""
    return "good" if document["gain"] is not None else "open"
