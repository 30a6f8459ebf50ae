"""A campaign's verdict in words: its sentences, and the columns of its tables."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from aaco_pipeline.report.words.causes import signed
from aaco_pipeline.report.words.units import capital, counted, long_duration

Row = Mapping[str, Any]
Columns = Mapping[str, Callable[[Any], str | None]]

#: Causes that are shown.
LISTED: Final = 10


def sentence(document: Row) -> str:
    """The verdict in one sentence, with the effect, its interval, and what would have been found."""
    row = document["verdicts"][0]
    name = row["metric"].replace("latency_p50", "the median").replace("latency_", "").replace("_", " ")
    effect = row["effect_ratio"]
    if effect is None:
        return f"{capital(row['verdict'])}: there is no {name.removeprefix('the ')} of both arms to compare."
    change = f"{name} of {row['candidate']} is {_ratio(effect)} times that of {row['baseline']}"
    if row["ci_low"] is not None:
        change += f" (95 % interval {_interval(row)}, {counted(row['blocks'], 'block')})"
    found = ""
    if row["minimum_detectable_ratio"] is not None:
        found = f" A difference of {_percent(row['minimum_detectable_ratio'])} would be found four times in five."
    return f"{capital(row['verdict'])}: {change}.{found}"


def asked(document: Row) -> str:
    """In what the arms differ: by that alone a difference between them is explained."""
    told = document["asked_differently"]
    if not told:
        return "Both arms are the same request of the same file."
    return f"The arms differ in {'; '.join(told)}."


def reasons(document: Row) -> list[str]:
    """Why the verdict is what it is, a sentence each."""
    return [f"{capital(one)}." for one in document["verdicts"][0]["reasons"] or []]


def selected(document: Row) -> list[str]:
    """What was selected differently, a line each; what is told first of a change."""
    return [f"{row['in_words']}." for row in document["selections"][:LISTED]]


def waterfall(document: Row) -> list[Row]:
    """The largest causes that add up to the change, the unexplained last."""
    rows = [row for row in document["causes"] if row["in_sum"]]
    named = [row for row in rows if row["kind"] != "unexplained"][:LISTED]
    return [*named, *(row for row in rows if row["kind"] == "unexplained")]


def next_step(document: Row) -> str | None:
    """What to do next; None when nothing follows."""
    advice = document["recommendation"]
    return None if advice is None else f"Next: {advice}."


def spent(document: Row) -> str | None:
    """What measuring took beside what was foretold of it; None of what was never timed, and of a step of a search."""
    took = document["spent"]
    if document["kind"] == "bisect" or not took["time_ns"]:
        return None
    time = f"{'' if took['all_timed'] else 'at least '}{long_duration(took['time_ns'])}"
    return f"Spent: {time} on {counted(took['sessions'], 'session')}. {foretold(document['foretold'])}"


def foretold(row: Row) -> str:
    """What was foretold of a campaign, or that nothing was."""
    if row["time_ns"] is None and row["detectable_ratio"] is None:
        return "Nothing was foretold: this host had no history of the workload with these options."
    told = [] if row["time_ns"] is None else [f"{long_duration(row['time_ns'])}"]
    if row["detectable_ratio"] is not None:
        told.append(f"a difference of {_percent(row['detectable_ratio'])} found four times in five")
    return f"Foretold: {', and '.join(told)}."


def _ratio(value: float | None) -> str | None:
    return None if value is None else f"{value:.3f}"


def _interval(row: Row) -> str | None:
    return None if row["ci_low"] is None else f"{row['ci_low']:.3f} … {row['ci_high']:.3f}"


def _percent(ratio: float | None) -> str | None:
    return None if ratio is None else f"{100 * ratio:.2g} %"


METRICS: Final[Columns] = {
    "metric": lambda row: row["metric"].replace("_", " "),
    "verdict": lambda row: row["verdict"],
    "*ratio": lambda row: _ratio(row["effect_ratio"]),
    "*interval": _interval,
    "*matters from": lambda row: _percent(row["threshold_ratio"]),
    "*detectable": lambda row: _percent(row["minimum_detectable_ratio"]),
    "*blocks": lambda row: None if row["blocks"] is None else f"{row['blocks']:,}",
}
CAUSES: Final[Columns] = {
    "cause": lambda row: row["in_words"].rsplit(": ", 1)[0],
    "*part": lambda row: signed(row["delta_ns"]),
    "*95 % interval": lambda row: (
        None if row["ci_low_ns"] is None else f"{signed(row['ci_low_ns'])} … {signed(row['ci_high_ns'])}"
    ),
}
