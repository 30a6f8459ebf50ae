"""Show a search for the build that introduced a change, and the plan of a measurement.

`aaco_pipeline.statistics.bisection` computes the answer; this module collects it and puts it into words.
"""

from collections.abc import Mapping
from typing import Any, Final

import polars as pl

from aaco_pipeline.errors import UsageError
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.report.comparing import verdict
from aaco_pipeline.report.comparing.campaign import time_spent, verdict_document
from aaco_pipeline.report.formatting import counted, long_duration
from aaco_pipeline.report.view import Columns, Part, Sentence, Table, View, sentences

Row = Mapping[str, Any]

#: Maximum number of failed builds within the range that are listed by name.
_NAMED: Final = 5
#: Largest change that a negative answer may leave possible without suggesting another search.
SMALL: Final = 0.01


def sentence(document: Row) -> str:
    """Return the answer in one sentence: which build, by how much, and the state of the previous build."""
    answer, builds = document["answer"], document["builds"]
    change = f"{_own(document)} {_interval(document)}"
    if answer["answer"] == "no change":
        return f"No change was found between the first and the last build: {change}."
    first, last = builds[answer["after"]], builds[answer["until"]]
    before = "the first build" if answer["after"] == 0 else f"build {first['build']}'s {_own(first)}"
    if answer["answer"] == "step":
        return f"The change came with {_named(last)}: {_own(last)} {_interval(last)} against {before}."
    if answer["answer"] == "several steps":
        return (
            f"The change came in several steps, all of them after {_named(first)} and with {_named(last)} at the "
            f"latest: {change} in all."
        )
    return f"The change came after {_named(first)}, with {_named(last)} at the latest: {change}."


def remarks(document: Row) -> list[str]:
    """Explain why the answer is a range, and name the likeliest build."""
    answer, builds = document["answer"], document["builds"]
    told = []
    if answer["answer"] == "range" and answer["likeliest"] is not None:
        chance = f"{100 * answer['probability']:.0f} %"
        told.append(f"Most likely it was {_named(builds[answer['likeliest']])}, by a chance of {chance}.")
    failed = [row for row in builds if row["state"] == "failed"]
    told += [f"Build {row['build']} ({row['label']}) {row['reason']}." for row in failed[:_NAMED]]
    if len(failed) > _NAMED:
        told.append(f"{len(failed) - _NAMED} more could not be made or run; `--json` names them.")
    if answer["answer"] == "no change" and not is_decided(document):
        told.append("That many blocks do not rule out a change of 1 %: the host is too noisy for it.")
    return told


def is_decided(document: Row) -> bool:
    """Return whether the answer names one build or rules out a relevant change."""
    if document["answer"]["answer"] == "no change":
        return bool(document["ci_low"] >= 1 - SMALL and document["ci_high"] <= 1 + SMALL)
    return bool(document["answer"]["answer"] == "step")


def against_each_other(document: Row) -> str | None:
    """Name the two builds that are compared by the verdict after the answer."""
    if document["pair"] is None:
        return None
    answer = document["answer"]
    return f"Build {answer['until']} (candidate) against build {answer['after']} (baseline), fresh sessions of both:"


def spent(document: Row) -> str:
    """Compare the time spent with its estimate."""
    took = document["spent"]
    told = f"Spent: {counted(took['blocks'], 'block')}"
    told += f", {counted(took['sessions'], 'session')} with the two builds' own" if document["pair"] is not None else ""
    told += f", {'' if took['all_timed'] else 'at least '}{long_duration(took['time_ns'])}"
    return f"{told}. {estimate(document['foretold'])}"


def estimate(row: Row) -> str:
    """State the search's estimate, or that there was none."""
    if row["blocks"] is None:
        return "Nothing was estimated: this host had no history of the workload with these options."
    took = "" if row["time_ns"] is None else f" and {long_duration(row['time_ns'])}"
    return (
        f"Estimated: {counted(row['blocks'], 'block')}{took}, for a change of {_percent(row['detectable_ratio'])}, the "
        "least that is found four times in five; a larger one takes less."
    )


def _named(row: Row) -> str:
    if row["revision"] is None:
        return f"build {row['build']} ({row['label']})"
    return f"build {row['build']} (revision {row['label']}, “{row['title']}”)"


def _own(row: Row) -> str:
    return f"{100 * (row['effect_ratio'] - 1):+.1f} %"


def _interval(row: Row) -> str:
    return f"[{100 * (row['ci_low'] - 1):.1f}, {100 * (row['ci_high'] - 1):.1f}]"


def _percent(ratio: float) -> str:
    return f"{100 * ratio:.2g} %"


BUILDS: Final[Columns] = {
    "*build": lambda row: str(row["build"]),
    "what": lambda row: row["label"] if row["title"] is None else f"{row['label']} {row['title']}",
    "state": lambda row: row["state"],
    "*change": lambda row: None if row["effect_ratio"] is None else _own(row),
    "*95 % interval": lambda row: None if row["effect_ratio"] is None else _interval(row),
    "*blocks": lambda row: str(row["blocks"]) if row["blocks"] else None,
}


Document = dict[str, Any]


def bisection_document(lake: TraceLake, name: str) -> Document:
    """Collect the question, the answer, the results of each build, and the verdict on two builds with its causes.

    `spent` counts finished blocks and the time of their sessions with stages; `regression` is true if a change was
    found and the last build is slower than the first. UsageError if there is no such search, or no answer yet.
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
    """Return the verdict on the two builds without their paths in the lake."""
    document = verdict_document(lake, campaign)
    asked = [one for one in document["asked_differently"] if not one.startswith("model: ")]
    told = ["the interpreter" if one.startswith("interpreter: ") else one for one in asked]
    return {**document, "asked_differently": told}


def bisection_view(document: Document) -> View:
    """Lay out the answer, each build's results, the verdict on the two builds at the change, and the time spent."""
    # Only a few of possibly thousands of revisions were measured; the others are left out.
    looked_at = [row for row in document["builds"] if row["state"] != "skipped"]
    pair: list[Part] = []
    if (title := against_each_other(document)) is not None:
        pair = [Sentence(""), Sentence(title, "strong"), verdict.verdict_view(document["pair"])]
    return View(
        f"{document['workload']} on {document['backend']}",
        [
            Sentence(
                sentence(document), "bad" if document["regression"] else "good" if is_decided(document) else "open"
            ),
            *sentences(remarks(document)),
            Table(BUILDS, looked_at, names=("what",)),
            *pair,
            Sentence(""),
            Sentence(spent(document)),
        ],
        identifier=document["bisection_id"],
    )


def campaign_plan(document: Row) -> list[str]:
    """Describe the plan of `aaco compare --plan`: its size, and the estimate with its basis."""
    blocks, traced = document["blocks"], document["traced_blocks"]
    told = f"{document['workload']} on {document['backend']}: {counted(blocks, 'block')} of {document['arms']} sessions"
    told += f", then {counted(traced, 'traced block')}." if traced else "."
    return [told, history(document["history"]), verdict.estimate(document["foretold"])]


def search_plan(document: Row) -> list[str]:
    """Describe the plan of `aaco bisect --plan`: the builds, how many are measured, and the estimate with its basis."""
    builds = document["builds"]
    told = f"{document['workload']} on {document['backend']}: {counted(len(builds), 'build')}, "
    told += f"{_called(builds[0])} to {_called(builds[-1])}."
    most = document["most_measured"]
    bounds = (
        f"At most {most} of them {'is' if most == 1 else 'are'} measured beside the first, in "
        f"{document['least_blocks']} to {document['most_blocks']} blocks of two sessions altogether."
    )
    return [told, bounds, history(document["history"]), estimate(document["foretold"])]


def history(row: Row) -> str:
    """Summarize results of earlier campaigns, or why nothing can be estimated."""
    if not row["campaigns"]:
        return "No campaign of this workload with these options was measured on this host: the first one tells."
    told = f"From {counted(row['campaigns'], 'campaign')} on this host: "
    spread = "none had the five blocks that show a spread"
    if row["deviation"] is not None:
        spread = f"blocks are spread by {100 * row['deviation']:.2g} %"
    kinds = (("a session", row["session_ns"]), ("a traced one", row["traced_ns"]))
    times = [f"{kind} takes {long_duration(time)}" for kind, time in kinds if time is not None]
    return f"{told}{', '.join([spread, *times])}."


def _called(build: Row) -> str:
    return str(build["label"]) if build["title"] is None else f"{build['label']} “{build['title']}”"
