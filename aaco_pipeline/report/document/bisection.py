"""A search for the build that brought a change as one document, from the lake's tables: what `aaco bisect` prints.

The answer itself is made by `aaco_pipeline.statistics.bisection`; here it is only gathered.
"""

from typing import Any

import polars as pl

from aaco_pipeline.errors import UsageError
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.report.document.verdict import time_spent, verdict_document

Document = dict[str, Any]


def bisection_document(lake: TraceLake, name: str) -> Document:
    """The question, the answer, what is known of each build, and the two builds' verdict with its causes.

    `spent` counts finished blocks and the time that their sessions took with stages; `regression` is true when the last
    build is slower than the first and a change was found. UsageError when there is no such search, or no answer yet.
    """
    asked = lake.read("bisections", name)
    if asked.is_empty() or asked.item(0, "answer") is None:
        raise UsageError(f"search {name} has no answer in {lake.path}; `aaco bisect --resume {name}` goes on")
    row = asked.row(0, named=True)
    builds = lake.read("bisection_builds", name).drop("campaign_id").to_dicts()
    steps = lake.read("bisection_steps", name).drop("campaign_id")
    found = row["answer"] != "no change"
    return {
        "bisection_id": name,
        **{key: row[key] for key in ("workload", "backend", "repository", "make_command")},
        "answer": {key: row[key] for key in ("answer", "after", "until", "likeliest", "probability")},
        **{key: row[key] for key in ("effect_ratio", "ci_low", "ci_high")},
        "regression": found and row["effect_ratio"] > 1,
        "builds": builds,
        "steps": steps.to_dicts(),
        "pair": _pair(lake, row["pair_campaign"]) if row["pair_campaign"] is not None else None,
        "foretold": {
            "blocks": row["foretold_blocks"],
            "time_ns": row["foretold_ns"],
            "detectable_ratio": row["foretold_detectable_ratio"],
        },
        "spent": _spent(lake, steps.get_column("campaign").to_list(), row["pair_campaign"]),
    }


def _spent(lake: TraceLake, steps: list[str], pair: str | None) -> Document:
    campaigns = [*steps, *([] if pair is None else [pair])]
    rows = lake.read("campaign_sessions").filter(pl.col("campaign_id").is_in(campaigns), pl.col("state") == "finished")
    blocks = rows.filter(pl.col("campaign_id").is_in(steps)).select("campaign_id", "block").n_unique()
    return {"blocks": blocks, **time_spent(rows)}


def _pair(lake: TraceLake, campaign: str) -> Document:
    """The verdict on the two builds, which are named already: where the lake keeps them is no news."""
    document = verdict_document(lake, campaign)
    asked = [one for one in document["asked_differently"] if not one.startswith("model: ")]
    told = ["the interpreter" if one.startswith("interpreter: ") else one for one in asked]
    return {**document, "asked_differently": told}
