"""Collect the document of a search and the evidence for its answer.

`aaco_pipeline.optimization` makes the decisions.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl

from aaco_pipeline.lake.files import lake_errors
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.optimization.first_to_fix import same_kernel
from aaco_pipeline.optimization.journal import Journal, JournalError, read_journal
from aaco_pipeline.optimization.loop.search import gain_of
from aaco_pipeline.optimization.loop.timing import logs_of
from aaco_pipeline.optimization.timing_rule import Pairs, log_ratio

Document = dict[str, Any]
_FIGURES = ("speedup_ratio", "ci_low", "ci_high")
#: Columns of `optimizations` that a session's page shows for a search.
_TOLD = (
    *("executed_on", "ended_by", *_FIGURES, "speedup_of", "effect_scope", "critical_share_ratio", "shorter_ratio"),
    *("shorter_low_ratio", "shorter_high_ratio", "effect_reason"),
)


def optimization_document(lake: TraceLake, name: str) -> Document:
    """Collect the question, the answer, and every attempt of one search.

    `gain` is the combined gain of all accepted changes, and `of` states how it was determined, like `speedup_of` in the
    table; null if nothing was accepted or the combination was not confirmed. `resources` are those before the first and
    after the last accepted change.
    """
    question = lake.read("optimizations", name).drop("campaign_id").row(0, named=True)
    attempts = lake.read("optimization_attempts", name).drop("campaign_id").to_dicts()
    accepted = [row for row in attempts if row["decision"] == "accepted"]
    return {
        "optimization_id": name,
        **question,
        "gain": _gain(question, accepted),
        "resources": _resources(accepted),
        "attempts": attempts,
    }


def searches_of(lake: TraceLake, session: str, kernel: str) -> list[Document]:
    """List the searches for one kernel of a session, by its recorded name; newest first.

    Each has optimization_id, executed_on, ended_by, gain and effect, and its numbers of attempted and accepted changes.
    """
    of_kernels = lake.read("optimizations").filter(pl.col("session") == session, pl.col("kernel").is_not_null())
    asked = of_kernels.sort("began_at", descending=True)
    found = []
    for row in asked.iter_rows(named=True):
        if same_kernel(kernel, row["kernel"]):
            decisions = lake.read("optimization_attempts", row["campaign_id"]).get_column("decision")
            counts = {"attempts": decisions.len(), "accepted": int((decisions == "accepted").sum())}
            found.append({"optimization_id": row["campaign_id"], **counts, **{name: row[name] for name in _TOLD}})
    return found


def _gain(question: Mapping[str, Any], accepted: Sequence[Mapping[str, Any]]) -> Document | None:
    if question["speedup_of"] is not None:
        return {"of": question["speedup_of"], **{name: question[name] for name in _FIGURES}}
    # Searches of earlier versions did not time the combination, so their rows have no gain.
    gain = gain_of(accepted, None) if question["whole_decision"] is None else None
    return None if gain is None else asdict(gain)


def _resources(accepted: Sequence[Mapping[str, Any]]) -> Document | None:
    """Return resources before and after by name, with the source of the figures; null if no compiler stated any."""
    if not accepted or accepted[-1]["resources_of"] is None:
        return None
    names = [name.removesuffix("_before") for name in accepted[0] if name.endswith("_before")]
    figures = {name: [accepted[0][f"{name}_before"], accepted[-1][f"{name}_after"]] for name in names}
    return {"of": accepted[-1]["resources_of"], **figures}


#: Facts about the measurement in the first line of a journal; null if a search lacks them.
_BEGUN: Final = ("clock", "writer", "floor", "block", "environment", "run_options")
_INTERVAL: Final = ("speedup_ratio", "ci_low", "ci_high")


def optimization_report(lake: TraceLake, name: str) -> Document:
    """Collect the document of a search with `evidence`: the contents of its journal and its patch.

    `timings` has one entry per timed step: identical code (`aa`) first and the combination of accepted changes
    (`whole`) last, both without an attempt. It has the ratio of each layout, baseline / candidate, and the deciding
    interval. For a model's search, layouts are blocks of sessions, null if one has no two steady medians; figures are
    null if no look led to a decision. `static` compares the accepted source's figures by architecture with the
    original's, or has only the latter; `run_options` are the model's original ones. If the journal is missing or
    unreadable, everything is empty and `lacking` gives the reason.
    """
    document = optimization_document(lake, name)
    return document | {"evidence": _evidence(lake.path, document)}


# ---- inside ----------------------------------------------------------------------------------------------------------


def _evidence(lake: Path, document: Document) -> Document:
    content = _read(lake / document["journal"])
    journal, lacking = None, f"{document['journal']} is not in the lake any more"
    if content is not None:
        try:
            journal = read_journal(content)
        except JournalError as error:
            lacking = f"{document['journal']}: {error}"
    patch = None if document["patch"] is None else _read(lake / document["patch"])
    found = {"patch_text": None if patch is None else patch.decode("utf-8", "replace")}
    if journal is None:
        nothing: Document = {
            "timings": [],
            "static": [],
            "static_lacking": None,
            "compiler_unconfined": None,
            "not_applicable": [],
            "builds": [],
        }
        return {"lacking": lacking, "notes": [], **nothing, **dict.fromkeys(_BEGUN), "launched_in": None, **found}
    accepted = [line for line in journal.of_kind("attempt") if line["decision"] == "accepted"]
    return {
        "lacking": None,
        "notes": list(journal.notes),
        "timings": list(_timings(journal)),
        "static": _static(journal, accepted),
        "static_lacking": journal.begin.get("static", {}).get("lacking"),
        "compiler_unconfined": journal.begin.get("compiler_files", {}).get("lacking"),
        "not_applicable": [
            {name: line[name] for name in ("proposer", "reason")} for line in journal.of_kind("not_applicable")
        ],
        "builds": _builds(journal),
        **{name: journal.begin.get(name) for name in _BEGUN},
        "launched_in": accepted[-1].get("block") or accepted[-1].get("baseline_block") if accepted else None,
        **found,
    }


def _read(file: Path) -> bytes | None:
    """Read a file of the search; None if it is missing. LakeError if it cannot be read."""
    with lake_errors(file):
        try:
            return file.read_bytes()
        except FileNotFoundError:
            return None


def _timings(journal: Journal) -> Iterator[Document]:
    for line in journal.of_kind("aa"):
        if line["evidence"] is not None:
            yield _timing(None, "aa", line, "itself")
    for line in journal.of_kind("attempt"):
        for step, timed in line.get("timings", {}).items():
            if timed["evidence"]["pairs"]["candidate"]:  # no pairs if the time limit was reached before the first block
                yield _timing(line["attempt"], step, timed)
    for line in journal.of_kind("whole"):
        for timed in line["timings"].values():
            yield _timing(None, "whole", timed)


def _timing(attempt: int | None, step: str, timed: Mapping[str, Any], arm: str = "candidate") -> Document:
    ruling = timed["ruling"] or {}
    return {
        "attempt": attempt,
        "step": step,
        **{name: ruling.get(name) for name in _INTERVAL},
        "layouts": [None if log is None else math.exp(log) for log in _logs(timed["evidence"], arm)],
    }


def _logs(evidence: Mapping[str, Any], arm: str) -> Sequence[float | None]:
    """Return the log of baseline/candidate for each layout, or model block, as used by the decision rule."""
    if "items" in evidence:
        return logs_of(evidence, arm)
    return [log_ratio(_pairs(one)) for one in evidence["pairs"][arm]]


def _pairs(taken: Mapping[str, Any]) -> Pairs:
    return Pairs(
        baseline_ns=np.asarray(taken["baseline_ns"], dtype=np.int64),
        candidate_ns=np.asarray(taken["candidate_ns"], dtype=np.int64),
        candidate_first=np.asarray(taken["candidate_first"], dtype=np.bool_),
    )


def _static(journal: Journal, accepted: list[Mapping[str, Any]]) -> list[Document]:
    """Return figures by architecture for the original source and, after an accepted change, the last one."""
    before = next((line.get("static") for line in journal.of_kind("baseline")), None) or {}
    last = (accepted[-1]["static"] or {}).get("after") if accepted else None
    return [
        {"architecture": name, "before": figures, "after": last and last[name]}
        for name, figures in sorted(before.items())
    ]


def _builds(journal: Journal) -> list[Document]:
    """Return the distinct compilers with flags: the target's, and those of the static figures."""
    target = [line["build"] for line in journal.of_kind("baseline") if "build" in line]
    static = [one for line in journal.of_kind("baseline") for one in (line.get("static") or {}).values()]
    named = [("", one) for one in target] + [(one["architecture"], one) for one in static]
    return [{"of": of or None, "compiler": one["compiler"], "flags": list(one["flags"])} for of, one in named]
