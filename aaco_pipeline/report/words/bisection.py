"""The answer of a search for a build in words: its sentences, and the columns of its table."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from aaco_pipeline.report.words.units import counted, long_duration

Row = Mapping[str, Any]

#: Builds that failed within the range, named one by one up to so many.
_NAMED: Final = 5
#: What is ruled out when nothing was found, and no more than this: then nobody needs to look again.
SMALL: Final = 0.01


def sentence(document: Row) -> str:
    """The answer in one sentence: which build, by how much, and what the one before it was."""
    answer, builds = document["answer"], document["builds"]
    change = _change(document)
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
    """What makes the answer a range, and which build is the likeliest."""
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
    """Whether one build is named, or a change that matters is ruled out."""
    if document["answer"]["answer"] == "no change":
        return bool(document["ci_low"] >= 1 - SMALL and document["ci_high"] <= 1 + SMALL)
    return bool(document["answer"]["answer"] == "step")


def against_each_other(document: Row) -> str | None:
    """Which two builds the verdict after the answer is on."""
    if document["pair"] is None:
        return None
    answer = document["answer"]
    return f"Build {answer['until']} (candidate) against build {answer['after']} (baseline), fresh sessions of both:"


def spent(document: Row) -> str:
    """What was foretold and what it took."""
    took = document["spent"]
    told = f"Spent: {counted(took['blocks'], 'block')}"
    told += f", {counted(took['sessions'], 'session')} with the two builds' own" if document["pair"] is not None else ""
    told += f", {'' if took['all_timed'] else 'at least '}{long_duration(took['time_ns'])}"
    return f"{told}. {foretold(document['foretold'])}"


def foretold(row: Row) -> str:
    """What was foretold of the search, or that nothing was."""
    if row["blocks"] is None:
        return "Nothing was foretold: this host had no history of the workload with these options."
    took = "" if row["time_ns"] is None else f" and {long_duration(row['time_ns'])}"
    return (
        f"Foretold: {counted(row['blocks'], 'block')}{took}, for a change of {_percent(row['detectable_ratio'])}, the "
        "least that is found four times in five; a larger one takes less."
    )


# ---- inside ----------------------------------------------------------------------------------------------------------


def _named(row: Row) -> str:
    if row["revision"] is None:
        return f"build {row['build']} ({row['label']})"
    return f"build {row['build']} (revision {row['label']}, “{row['title']}”)"


def _change(row: Row) -> str:
    return f"{_own(row)} {_interval(row)}"


def _own(row: Row) -> str:
    return f"{100 * (row['effect_ratio'] - 1):+.1f} %"


def _interval(row: Row) -> str:
    return f"[{100 * (row['ci_low'] - 1):.1f}, {100 * (row['ci_high'] - 1):.1f}]"


def _percent(ratio: float) -> str:
    return f"{100 * ratio:.2g} %"


BUILDS: Final[Mapping[str, Callable[[Any], str | None]]] = {
    "*build": lambda row: str(row["build"]),
    "what": lambda row: row["label"] if row["title"] is None else f"{row['label']} {row['title']}",
    "state": lambda row: row["state"],
    "*change": lambda row: None if row["effect_ratio"] is None else _own(row),
    "*95 % interval": lambda row: None if row["effect_ratio"] is None else _interval(row),
    "*blocks": lambda row: str(row["blocks"]) if row["blocks"] else None,
}
