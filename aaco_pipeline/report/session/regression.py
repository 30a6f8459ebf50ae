"""Describe how a session compares with the history of its workload.

Whether it regressed is decided in `aaco_pipeline.statistics`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from aaco_pipeline.report.formatting import capital, counted, duration, number, share, shortened

Row = Mapping[str, Any]
Columns = Mapping[str, Callable[[Any], str | None]]

#: Changes that stand in the sentence, and how much of a value does.
_TOLD: Final = 3
_WIDTH: Final = 40
#: Below this part of the median a session is as fast as the others.
_AS_FAST: Final = 0.0005
#: From here on a difference is told in times, not as a share.
_IN_TIMES: Final = 2
#: Categories of the environment by how likely a person wants to hear of them; what is not named comes after them.
_FIRST: Final = ("rocm", "identity", "host", "package", "firmware", "gpu", "device", "nvidia", "python", "kernel")
_NAMES: Final[Mapping[tuple[str, str | None], str]] = {
    ("rocm", "version"): "ROCm",
    ("rocm", "amdgpu_driver"): "the amdgpu driver",
    ("python", "version"): "Python",
    ("kernel", "release"): "the kernel",
    ("identity", "machine"): "the machine",
}
_PLAIN: Final = ("package", "host")
CHANGES: Final[Columns] = {
    "what": lambda row: capital(_what(row)),
    "before": lambda row: shortened(row["from_value"], 2 * _WIDTH),
    "here": lambda row: shortened(row["to_value"], 2 * _WIDTH),
}


def against_earlier(place: Row, changes: Sequence[Row]) -> str | None:
    """Where a session lies among earlier ones and what changed, in a sentence; None when there is nothing to say."""
    parts = [part for part in (_placed(place), _changed(changes)) if part is not None]
    return f"{capital('; '.join(parts))}." if parts else None


def advice(session: str, place: Row, changes: Sequence[Row]) -> str | None:
    """What to run where a session stands out or its stack changed; None where nothing follows."""
    previous = place["previous_session"]
    if previous is None or not (_stands_out(place) or changes):
        return None
    return (
        f"One session is no verdict: `aaco diff {previous} {session}` describes the two, and "
        "`aaco compare --baseline SPEC --candidate SPEC` judges fresh ones."
    )


def of_campaign(arm: str | None, verdicts: Sequence[Row]) -> list[str]:
    """What the campaign that a session was measured for came to, a sentence for each arm it judged."""
    return [_verdict(arm, row) for row in verdicts]


# ---- inside ----------------------------------------------------------------------------------------------------------


def _placed(place: Row) -> str | None:
    if place.get("median_ratio") is None:
        return None
    is_slower = _compared(place["median_ratio"])
    where = "in this environment" if place["compared_within"] == "environment" else "on this host"
    count = place["earlier_sessions"]
    if count == 1:
        return f"it {is_slower} the one earlier session {where} ({duration(place['median_ns'])})"
    spread = "beyond all of them" if _stands_out(place) else "within their spread"
    return f"it {is_slower} the median of {count} earlier sessions {where} ({duration(place['median_ns'])}), {spread}"


def _compared(ratio: float) -> str:
    """How a session's time is to that of others; from twice on in times, as shares beyond 100 % are hard to read."""
    if abs(ratio - 1) < _AS_FAST:
        return "is as fast as"
    if ratio >= _IN_TIMES:
        return f"takes {number(ratio)} times as long as"
    if ratio <= 1 / _IN_TIMES:
        return f"is {number(1 / ratio)} times as fast as"
    return f"is {share(abs(ratio - 1))} {'slower' if ratio > 1 else 'faster'} than"


def _stands_out(place: Row) -> bool:
    """Whether it lies beyond every earlier session, where there are several."""
    value = place["value_ns"]
    several = place["earlier_sessions"] > 1 and value is not None
    return bool(several and not place["low_ns"] <= value <= place["high_ns"])


def _changed(changes: Sequence[Row]) -> str | None:
    if not changes:
        return None
    ordered = sorted(changes, key=_by_weight)
    told = [_change(row) for row in ordered[:_TOLD]]
    more = f", and {counted(len(ordered) - _TOLD, 'fact')} more" if len(ordered) > _TOLD else ""
    return f"since the session before {', '.join(told)}{more}"


def _by_weight(row: Row) -> int:
    if row["kind"] == "selection":
        return -1
    return _FIRST.index(row["what"]) if row["what"] in _FIRST else len(_FIRST)


def _change(row: Row) -> str:
    if (row["what"], row["subject"]) == ("boot", "time"):
        return "the host was booted again"
    return f"{_what(row)} changed from {shortened(row['from_value'], _WIDTH)} to {shortened(row['to_value'], _WIDTH)}"


def _what(row: Row) -> str:
    subject = row["subject"]
    if row["kind"] == "selection":
        return str(row["what"]).replace("_", " ") + (f" at {shortened(subject, _WIDTH)}" if subject else "")
    if row["what"] in _PLAIN and subject != "name":
        return str(subject)
    return _NAMES.get((row["what"], subject), f"{row['what']} {subject}".replace("_", " "))


def _verdict(arm: str | None, row: Row) -> str:
    told = f"Its campaign {row['campaign_id']}"
    if arm is not None:
        told += f", of which it is a session of the {arm},"
    told += f" holds {row['candidate']} against {row['baseline']}: {row['verdict']}"
    if row["effect_ratio"] is not None:
        told += f", {row['effect_ratio']:.3f} times as long"
    if row["ci_low"] is not None:
        told += f" (95 % interval {row['ci_low']:.3f} … {row['ci_high']:.3f})"
    return f"{told}."
