"""A search for a faster kernel or configuration as one document, from the lake's tables: what `aaco optimize` prints.

The decisions are made by `aaco_pipeline.optimization`; here they are only gathered.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import polars as pl

from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.optimization.first_to_fix import same_kernel
from aaco_pipeline.optimization.loop.whole import gain_of

Document = dict[str, Any]
_FIGURES = ("speedup_ratio", "ci_low", "ci_high")
#: Columns of `optimizations` that a session's page tells of a search.
_TOLD = (
    *("executed_on", "ended_by", *_FIGURES, "speedup_of", "effect_scope", "critical_share_ratio", "shorter_ratio"),
    *("shorter_low_ratio", "shorter_high_ratio", "effect_reason"),
)


def optimization_document(lake: TraceLake, name: str) -> Document:
    """The question, the answer, and every attempt of one search.

    `gain` is that of all accepted changes together, and `of` says how it was found, as `speedup_of` of the table does;
    null where nothing was accepted, or it did not hold as a whole. `resources` are those before the first and after the
    last accepted change.
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
    """The searches that were made for one kernel of a session, by its recorded name; the newest first.

    Each has optimization_id, its question's executed_on, ended_by, gain and effect, and how many attempts it made and
    accepted.
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
    # A search of an earlier version timed nothing as a whole, and its row holds no gain.
    gain = gain_of(accepted, None) if question["whole_decision"] is None else None
    return None if gain is None else asdict(gain)


def _resources(accepted: Sequence[Mapping[str, Any]]) -> Document | None:
    """By resource what the kernel took and takes, with whose figures they are; null where no compiler stated any."""
    if not accepted or accepted[-1]["resources_of"] is None:
        return None
    names = [name.removesuffix("_before") for name in accepted[0] if name.endswith("_before")]
    figures = {name: [accepted[0][f"{name}_before"], accepted[-1][f"{name}_after"]] for name in names}
    return {"of": accepted[-1]["resources_of"], **figures}
