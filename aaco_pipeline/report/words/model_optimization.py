"""A search for a faster configuration of a model in words; what is the same of a kernel's is `optimization`."""

from collections.abc import Mapping
from typing import Any, Final

from aaco_pipeline.report.words.units import counted

Row = Mapping[str, Any]
ATTEMPTS_INTRO: Final = (
    "In the order in which they were tried; each is held against the model with what was accepted before it. The guard "
    "is what stopped an attempt, or the last that it passed. A larger batch is judged by the time of each item."
)
BLOCKS_INTRO: Final = (
    "Time before divided by time after: right of 1 is faster. Each mark is one block: a session of each configuration, "
    "both of them fresh processes, at the ratio of their median iterations, of a larger batch for each item. Rings are "
    "of the search, which only chooses what is worth a confirmation; dots are of the confirmation, which decides in "
    "sessions that no search has seen."
)


def sentence(document: Row) -> str:
    """The answer in one sentence: how much faster an iteration is, with which options, and where."""
    model, where, ended = document["source_name"], document["executed_on"], document["ended_by"]
    decided = [row for row in document["attempts"] if row["decision"] != "undecided"]
    if ended is None:
        return f"The search for a faster configuration of {model} was broken off; what it decided by then is below."
    if document["gain"] is not None:
        with_options = " ".join(row["transformation"] for row in _accepted(document, "iteration"))
        gain = _figures(document["gain"])
        return f"{model} runs {gain} times as fast with {with_options} on {where}: the median iteration of a process."
    if ended in ("baseline", "noise") or (ended == "time" and not decided):
        return f"Nothing was decided about {model}: {document['reason']}."
    tried = counted(len(document["attempts"]), "candidate")
    return f"No configuration was found that runs {model} faster on {where} beyond doubt ({tried} tried)."


def remarks(document: Row) -> list[str]:
    """What else is to be known: larger batches, what could not be decided, why it ended, and how to run it so."""
    told, accepted = [], _accepted(document, "iteration")
    if len(accepted) > 1:
        told.append(
            f"{len(accepted)} changes were accepted, each held against those before it; the gain is their product."
        )
    batches = _accepted(document, "item")
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


def _accepted(document: Row, ratio_of: str) -> list[Row]:
    return [row for row in document["attempts"] if row["decision"] == "accepted" and row["ratio_of"] == ratio_of]


def _figures(row: Row) -> str:
    return f"{row['speedup_ratio']:.2f} [{row['ci_low']:.2f}, {row['ci_high']:.2f}]"
