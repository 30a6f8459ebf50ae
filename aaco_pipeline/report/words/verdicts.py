"""A campaign's verdict in words: its sentences, and the columns of its tables."""

from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any, Final

from aaco_pipeline.report.words import history
from aaco_pipeline.report.words.causes import signed
from aaco_pipeline.report.words.units import capital, counted, duration, long_duration
from aaco_pipeline.report.words.waterfall import steps

Row = Mapping[str, Any]
Columns = Mapping[str, Callable[[Any], str | None]]

#: The design and the error of a single look as `aaco_pipeline.statistics.verdicts` has them; a test holds them
#: together, because words import nothing that is slow to load.
BETWEEN_NIGHTS: Final = "between nights"
LEVEL: Final = 0.05
#: Selections, causes and facts that are listed.
LISTED: Final = 10
#: Metrics as a sentence names them.
_NAMES: Final[Mapping[str, str]] = {
    "latency_p50": "the median",
    "latency_p90": "the P90",
    "latency_p99": "the P99",
    "latency_trimmed_mean": "the trimmed mean",
}


def title(document: Row) -> str:
    """What was compared: `new.onnx against old.onnx on cpu`, or `resnet50 on migraphx` where the model is one."""
    names = [PurePath(one["artefact"]).name for arm in ("candidate", "baseline") for one in _of_arm(document, arm)]
    model = document["workload"] if len(set(names)) < 2 else " against ".join(names)
    return f"{model} on {document['backend']}"


def sentence(document: Row) -> str:
    """The verdict in one sentence, with the effect, its interval, and what would have been found."""
    row = document["verdicts"][0]
    name = metric_in_words(row["metric"])
    effect = row["effect_ratio"]
    if effect is None:
        return f"{capital(row['verdict'])}: there is no {name.removeprefix('the ')} of both arms to compare."
    return f"{capital(row['verdict'])}: {_effect(row)}.{_found(row)}"


def placebo(document: Row) -> str | None:
    """What the baseline's own copy in the same blocks shows; None when there was none.

    It ought not to differ: where it does, the difference between the arms is the measurement's.
    """
    row = document["placebo"]
    if row is None:
        return None
    if row["verdict"] in ("regressed", "improved"):
        return f"Do not trust this verdict: the placebo, the baseline once more, {row['verdict']} too: {_effect(row)}."
    if row["effect_ratio"] is None:
        return f"Of the placebo, the baseline once more, the verdict is {row['verdict']}."
    return f"The placebo, the baseline once more, does not differ ({row['verdict']}): {_effect(row)}."


def asked(document: Row) -> str:
    """In what the arms differ: by that alone a difference between them is explained."""
    told = document["asked_differently"]
    if not told:
        return "Both arms are the same request of the same file."
    return f"The arms differ in {'; '.join(told)}."


def reasons(document: Row) -> list[str]:
    """Why the verdict is what it is, a sentence each."""
    row = document["verdicts"][0]
    told = [f"{capital(one)}." for one in row["reasons"] or []]
    if row["design"] == BETWEEN_NIGHTS:
        seen = "" if row["alert_grade"] is None else f", seen on {row['alert_grade']}"
        told.append(
            f"The arms are nights before and after the host's stack changed{seen}: what else changed with it counts."
        )
    return told


def selected(document: Row) -> list[str]:
    """What was selected differently, a line each; what is told first of a change."""
    return _listed([f"{row['in_words']}." for row in document["selections"]])


def environment(document: Row) -> list[str]:
    """What else differs between the arms' sessions, a line each with what it can prove."""
    return _listed([f"{row['subject']} ({row['evidence_grade']})" for row in document["environment"]])


def waterfall(document: Row) -> list[dict[str, Any]]:
    """The causes that add up to the change, the surest first, the unexplained last."""
    return steps(document["causes"])


def certainty(document: Row) -> str | None:
    """That no part of the change is certain, where that is so; None where one is, or where there are none."""
    parts = waterfall(document)
    known = [row["is_certain"] for row in parts if row["is_certain"] is not None]
    if parts and not known:
        return "None of these parts is certain: so few traced sessions tell nothing of how much the parts vary."
    # What is put together has no interval of its own, but every certain part is shown by itself.
    return None if any(known) or not known else "None of these parts is certain: the interval of each holds zero."


def changes(document: Row) -> list[str]:
    """The changes of level in the benchmark's nights, the latest first, and where it is going; a sentence each."""
    told = document["history"]
    if told is None:
        return []
    forecast = told["forecast"]
    return [*history.changes_in_words(told["changes"]), *([history.forecast_in_words(forecast)] if forecast else [])]


def next_step(document: Row) -> str | None:
    """What to do next; None when nothing follows."""
    advice, traced = document["recommendation"], document["traced"]
    if advice is None and document["regression"] and len(traced) == 2:
        pair = (traced[arm][-1] for arm in ("baseline", document["verdicts"][0]["candidate"]))
        advice = f"look at two of the traced sessions, `aaco diff {' '.join(pair)}`"
    return None if advice is None else f"Next: {advice}."


def spent(document: Row) -> str | None:
    """What measuring took beside what was foretold of it; None of what was never timed, and of a step of a search."""
    took = document["spent"]
    if document["campaign_kind"] in ("bisect", "configure") or not took["time_ns"]:
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


def kept(document: Row) -> list[str]:
    """Whether the candidate keeps to the limits that were agreed, a sentence each."""
    return [row["in_words"] for row in document["service_levels"] if row["arm"] == "candidate"]


def metric_in_words(name: str) -> str:
    """A metric as a sentence names it: `the median`."""
    return _NAMES.get(name, name.removeprefix("latency_").replace("_", " "))


# ---- inside ----------------------------------------------------------------------------------------------------------


def _of_arm(document: Row, arm: str) -> list[Row]:
    return [one for one in document["arms"] if one["arm"] == arm]


def _effect(row: Row) -> str:
    """`the median of candidate is 1.050 times that of baseline (95 % interval 1.030 … 1.070, 10 blocks)`."""
    told = f"{metric_in_words(row['metric'])} of {row['candidate']} is {_ratio(row['effect_ratio'])} times that of "
    told = f"{told}{row['baseline']}"
    if row["ci_low"] is None:
        return told
    # Arms that cannot alternate have nights in the place of blocks.
    unit = "night" if row["design"] == BETWEEN_NIGHTS else "block"
    sure = 100 * (1 - (row["level"] or LEVEL))
    return f"{told} ({sure:.4g} % interval {_interval(row)}, {counted(row['blocks'], unit)})"


def _found(row: Row) -> str:
    if row["minimum_detectable_ratio"] is None:
        return ""
    ratio = row["minimum_detectable_ratio"]
    if ratio >= 1:
        return " So few or unlike sessions find no difference of less than double four times in five."
    return f" A difference of {_percent(ratio)} would be found four times in five."


def _listed(lines: list[str]) -> list[str]:
    return [*lines[:LISTED], *([f"{len(lines) - LISTED} more in `--json`."] if len(lines) > LISTED else [])]


def _standing(row: Row) -> str:
    return (", left out" if row["is_excluded"] else "") + (", slow throughout" if row["is_slow"] else "")


def _ratio(value: float | None) -> str | None:
    return None if value is None else f"{value:.3f}"


def _interval(row: Row) -> str | None:
    return None if row["ci_low"] is None else f"{row['ci_low']:.3f} … {row['ci_high']:.3f}"


def _percent(ratio: float | None) -> str | None:
    if ratio is not None and ratio >= 1:
        return "more than double"
    return None if ratio is None else f"{float(f'{100 * ratio:.2g}'):g} %"


METRICS: Final[Columns] = {
    "latency": lambda row: row["metric"].removeprefix("latency_").replace("_", " "),
    "verdict": lambda row: row["verdict"],
    "*ratio": lambda row: _ratio(row["effect_ratio"]),
    "*interval": _interval,
    "*matters": lambda row: _percent(row["threshold_ratio"]),
    "*detectable": lambda row: _percent(row["minimum_detectable_ratio"]),
    "*blocks": lambda row: None if row["blocks"] is None else f"{row['blocks']:,}",
}
SESSIONS: Final[Columns] = {
    "block": lambda row: str(row["block"]),
    "arm": lambda row: row["arm"],
    "*value": lambda row: duration(row["value_ns"]),
    "state": lambda row: (row["state"] or "").replace("_", " ") + _standing(row),
    "session": lambda row: row["session_id"],
}
CAUSES: Final[Columns] = {
    "cause": lambda row: row["in_words"],
    "*part": lambda row: signed(row["delta_ns"]),
    "*95 % interval": lambda row: (
        None if row["ci_low_ns"] is None else f"{signed(row['ci_low_ns'])} … {signed(row['ci_high_ns'])}"
    ),
}
