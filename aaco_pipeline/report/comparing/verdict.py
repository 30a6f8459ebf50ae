"""Put a campaign's verdict into words: its sentences and the columns of its tables.

`campaign` collects the document. Nothing here loads polars.
"""

from collections.abc import Mapping
from datetime import datetime
from pathlib import PurePath
from typing import Any, Final

from aaco_pipeline.report.comparing.causes import signed, steps
from aaco_pipeline.report.formatting import capital, counted, duration, long_duration, number
from aaco_pipeline.report.view import Columns, Lines, Sentence, Table, Tone, View, sentences

Row = Mapping[str, Any]

_UNCHANGED: Final = "unchanged code of the same nights"
#: Maximum number of days between a raw and a paired change that are reported as one.
_SAME_DAYS: Final = 7


def changes_in_words(changes: list[Row]) -> list[str]:
    """Return a sentence for each change of an arm, latest first.

    `changes` are rows of `change_points` for one benchmark. A change in both the paired and the raw series is reported
    once, as the raw one.
    """
    told = [row for row in changes if row["of"] == "raw" or not _shown_raw(row, changes)]
    return [change_in_words(row) for row in sorted(told, key=lambda row: row["started_at"], reverse=True)]


def change_in_words(row: Row) -> str:
    """Describe a row of `change_points`: since when, by how much, and the cause."""
    when = night(row["started_at"])
    whom = f"{row['workload']} ({row['arm']}, {_metric(row['metric'])})"
    many = _difference(row)
    if row["kind"] == "drift":
        began = f"From the night of {when} on, within {counted(row['nights_after'] + 1, 'night')}, {whom}"
        what = f"{began} drifted to {many}"
    else:
        what = f"Since the night of {when} {whom} takes {many}"
    against = f" than {_UNCHANGED}" if row["of"] == "paired" else ""
    return f"{what}{against}{_owed(row)}."


def forecast_in_words(row: Row) -> str:
    """Describe a row of `forecasts` in a sentence."""
    whom = f"{_metric(row['metric'])} of {row['workload']} ({row['arm']})"
    if row["state"] == "foretold":
        latest = row["nights_to_limit_high"]
        until = f"{row['nights_to_limit_low']} {'or more' if latest is None else f'to {latest}'}"
        return (
            f"The {whom} reaches its limit of {duration(row['limit_ns'])} in about "
            f"{counted(row['nights_to_limit'], 'night')} [{until}] if it goes on as it does: {row['reason']}."
        )
    if row["state"] == "reached":
        return f"The {whom} is at {duration(row['level_ns'])}, its limit of {duration(row['limit_ns'])} or beyond."
    return f"No forecast for the {whom}: {row['state']}, {row['reason']}."


def night(at: datetime) -> str:
    """Format a night's date: `12 March 2026`."""
    return f"{at.day} {at:%B %Y}"


def _difference(row: Row) -> str:
    """Format the effect with its interval: `4.8 % [3.9, 5.7] longer`."""
    effect = row["effect_ratio"]
    if effect is None:
        return "another time"
    shares = [100 * (part - 1) for part in (effect, row["ci_low"], row["ci_high"]) if part is not None]
    longer = effect > 1
    signed = [share if longer else -share for share in shares]
    interval = f" [{min(signed[1:]):.1f}, {max(signed[1:]):.1f}]" if len(signed) == 3 else ""
    return f"{signed[0]:.1f} %{interval} {'longer' if longer else 'shorter'}"


def _owed(row: Row) -> str:
    if row["of"] == "paired":
        return ": the code did"
    if row["owed_to"] == "code":
        return "; what ran beside it unchanged in the same nights did not move with it: the code did"
    if row["owed_to"] == "host":
        return "; what ran beside it unchanged in the same nights moved as much: the host did"
    return "; whether code or host did it cannot be told: nothing unchanged ran beside it, or too few nights of it"


def _metric(metric: str) -> str:
    return metric.replace("latency_p50", "median").replace("latency_", "").replace("_", " ")


def _shown_raw(row: Row, changes: list[Row]) -> bool:
    """Return whether a raw change of the same arm, attributed to the code, already covers this paired one."""
    series = ("workload", "backend", "host", "metric", "arm")
    return any(
        other["of"] == "raw"
        and other["owed_to"] == "code"
        and all(other[name] == row[name] for name in series)
        and (other["effect_ratio"] > 1) == (row["effect_ratio"] > 1)
        and abs((other["started_at"] - row["started_at"]).days) <= _SAME_DAYS
        for other in changes
    )


#: Design and error of a single look, copied from `aaco_pipeline.statistics.verdicts`, whose import is slow; a test
#: keeps both equal.
BETWEEN_NIGHTS: Final = "between nights"
LEVEL: Final = 0.05
#: Maximum number of selections, causes and facts listed.
LISTED: Final = 10
#: Names of metrics in sentences.
_NAMES: Final[Mapping[str, str]] = {
    "latency_p50": "the median",
    "latency_p90": "the P90",
    "latency_p99": "the P99",
    "latency_trimmed_mean": "the trimmed mean",
}


def title(document: Row) -> str:
    """Return the title: `new.onnx against old.onnx on cpu`, or `resnet50 on migraphx` for identical models."""
    names = [PurePath(one["artefact"]).name for arm in ("candidate", "baseline") for one in _of_arm(document, arm)]
    model = document["workload"] if len(set(names)) < 2 else " against ".join(names)
    return f"{model} on {document['backend']}"


def sentence(document: Row) -> str:
    """State the verdict in one sentence, with the effect, its interval, and the detectable effect."""
    row = document["verdicts"][0]
    name = metric_in_words(row["metric"])
    effect = row["effect_ratio"]
    if effect is None:
        return f"{capital(row['verdict'])}: there is no {name.removeprefix('the ')} of both arms to compare."
    return f"{capital(row['verdict'])}: {_effect(row)}.{_found(row)}"


def placebo(document: Row) -> str | None:
    """Report the result for the baseline's copy in the same blocks; None if there is none.

    The copy should not differ: if it does, differences between the arms are measurement errors.
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
    """Name the differences between the arms, the only possible causes of a difference in time."""
    told = document["asked_differently"]
    if not told:
        return "Both arms are the same request of the same file."
    return f"The arms differ in {'; '.join(told)}."


def reasons(document: Row) -> list[str]:
    """Give the reasons for the verdict, one sentence each."""
    row = document["verdicts"][0]
    told = [f"{capital(one)}." for one in row["reasons"] or []]
    if row["design"] == BETWEEN_NIGHTS:
        seen = "" if row["alert_grade"] is None else f", seen on {row['alert_grade']}"
        told.append(
            f"The arms are nights before and after the host's stack changed{seen}: what else changed with it counts."
        )
    return told


def selected(document: Row) -> list[str]:
    """List changed selections, one per line."""
    return _listed([f"{row['in_words']}." for row in document["selections"]])


def environment(document: Row) -> list[str]:
    """List other differences between the arms' sessions, one per line with the strength of their evidence."""
    return _listed([f"{row['subject']} ({row['evidence_grade']})" for row in document["environment"]])


def waterfall(document: Row) -> list[dict[str, Any]]:
    """List the causes that add up to the change, most certain first, the unexplained remainder last."""
    return steps(document["causes"])


def certainty(document: Row) -> str | None:
    """Say that no cause is certain; None if one is, or if there are none."""
    parts = waterfall(document)
    known = [row["is_certain"] for row in parts if row["is_certain"] is not None]
    if parts and not known:
        return "None of these parts is certain: so few traced sessions tell nothing of how much the parts vary."
    # Combined causes have no interval, but every certain cause is shown by itself.
    return None if any(known) or not known else "None of these parts is certain: the interval of each holds zero."


def changes(document: Row) -> list[str]:
    """Describe level changes in the benchmark's nights, latest first, and the forecast; one sentence each."""
    told = document["history"]
    if told is None:
        return []
    forecast = told["forecast"]
    return [*changes_in_words(told["changes"]), *([forecast_in_words(forecast)] if forecast else [])]


def next_step(document: Row) -> str | None:
    """Suggest the next step; None if there is none."""
    advice, traced = document["recommendation"], document["traced"]
    if advice is None and document["regression"] and len(traced) == 2:
        pair = (traced[arm][-1] for arm in ("baseline", document["verdicts"][0]["candidate"]))
        advice = f"look at two of the traced sessions, `aaco diff {' '.join(pair)}`"
    return None if advice is None else f"Next: {advice}."


def spent(document: Row) -> str | None:
    """Compare the time spent with its estimate; None if it was never timed, and for a step of a search."""
    took = document["spent"]
    if document["campaign_kind"] in ("bisect", "configure") or not took["time_ns"]:
        return None
    time = f"{'' if took['all_timed'] else 'at least '}{long_duration(took['time_ns'])}"
    return f"Spent: {time} on {counted(took['sessions'], 'session')}. {estimate(document['foretold'])}"


def estimate(row: Row) -> str:
    """State the estimate of a campaign, or that there was none."""
    if row["time_ns"] is None and row["detectable_ratio"] is None:
        return "Nothing was estimated: this host had no history of the workload with these options."
    told = [] if row["time_ns"] is None else [f"{long_duration(row['time_ns'])}"]
    if row["detectable_ratio"] is not None:
        told.append(f"a difference of {_percent(row['detectable_ratio'])} found four times in five")
    return f"Estimated: {', and '.join(told)}."


def kept(document: Row) -> list[str]:
    """State whether the candidate meets each service level, one sentence each."""
    return [row["in_words"] for row in document["service_levels"] if row["arm"] == "candidate"]


def metric_in_words(name: str) -> str:
    """Return a metric's name in sentences: `the median`."""
    return _NAMES.get(name, name.removeprefix("latency_").replace("_", " "))


def _of_arm(document: Row, arm: str) -> list[Row]:
    return [one for one in document["arms"] if one["arm"] == arm]


def _effect(row: Row) -> str:
    """Format `the median of candidate is 1.050 times that of baseline (95 % interval 1.030 … 1.070, 10 blocks)`."""
    told = f"{metric_in_words(row['metric'])} of {row['candidate']} is {_ratio(row['effect_ratio'])} times that of "
    told = f"{told}{row['baseline']}"
    if row["ci_low"] is None:
        return told
    # Arms that cannot alternate have nights instead of blocks.
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


def service_level(row: Row) -> str:
    """Describe one row: a bound on the quantile, and the used fraction of the error budget."""
    quantile, limit = row["metric"].removeprefix("latency_").upper(), duration(row["limit_ns"])
    whose = row["workload"] if row["arm"] == "candidate" else f"{row['workload']} ({row['arm']})"
    sessions = counted(row["sessions"], "session")
    low, high = duration(row["ci_low_ns"]), duration(row["ci_high_ns"])
    said = {
        "ok": f"{quantile} of {whose} keeps to {limit}: at most {high} (95 %, {sessions})",
        "at_risk": f"{quantile} of {whose} may not keep to {limit}: {low} to {high} (95 %, {sessions})",
        "breached": f"{quantile} of {whose} does not keep to {limit}: {low} to {high} (95 %, {sessions})",
        "not_enough_data": f"It is not known whether {quantile} of {whose} keeps to {limit}: {_lacking(row)}",
    }[row["state"]]
    return f"{said}{_budget(row)}."


def _lacking(row: Row) -> str:
    """Name the evidence that is missing in a state."""
    quantile = row["metric"].removeprefix("latency_").upper()
    if row["ci_high_ns"] is None:
        return f"{counted(row['sessions'], 'session')} had iterations enough for a {quantile}, and it takes five"
    return f"{counted(row['iterations'], 'iteration')} cannot show so small a share"


def _budget(row: Row) -> str:
    if row["over_limit_ratio"] is None:
        return ""
    over, may = (f"{number(100 * row[name])} %" for name in ("over_limit_ratio", "budget_ratio"))
    low, high = (number(100 * row[f"over_limit_{end}_ratio"]) for end in ("low", "high"))
    return f"; {over} of the iterations took longer ({low} … {high} %), and {may} may"


_TONES: Final[Mapping[str, Tone]] = {
    **{"regressed": "bad", "regressed between nights": "bad"},
    **{"improved": "good", "equivalent": "good"},
}


def verdict_view(document: Row) -> View:
    """Lay out the verdict, its reasons, changed selections, the causes of the change, and next steps."""
    return View(
        title(document),
        [
            Sentence(sentence(document), tone(document)),
            *sentences((asked(document), placebo(document), *reasons(document), *kept(document))),
            Lines("Selected differently", selected(document), headed=False),
            Table(METRICS, document["verdicts"], heading="Metrics", names=(), spare=("*blocks",)),
            Table(CAUSES, waterfall(document), title="Breakdown of the change", names=("cause",)),
            *sentences([certainty(document)]),
            Lines("Environment that differs (no cause by itself)", environment(document)),
            Lines("History", changes(document), only="markdown"),
            *sentences([next_step(document)], "strong"),
            *sentences([spent(document)], only="terminal"),
            Sentence(f"`aaco report {document['campaign_id']}` makes the page with the plots.", only="markdown"),
        ],
        identifier=document["campaign_id"],
    )


def tone(document: Row) -> Tone:
    """Return the tone of a verdict, `open` if undecided."""
    return _TONES.get(document["verdict"], "open")
