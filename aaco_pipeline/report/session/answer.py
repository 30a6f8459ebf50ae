"""State in at most three sentences where the time went, what to fix first and the resulting saving.

Its figures are rows of `answers`, `time_shares` and `kinds_of_work`; `answer_fields` is the contract of `--json`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from aaco_pipeline.analysis.answer.terms import AT_ROOF, PACK, each_of, one_of
from aaco_pipeline.providers import CPU_PROVIDER
from aaco_pipeline.report.formatting import bounded, capital, duration
from aaco_pipeline.report.labels import is_one, kind_in_words, limits_in_words, percent, rate_in_words

Row = Mapping[str, Any]

#: Sentences for classes; `{share}` is a fraction of `{window}`.
_SENTENCES: Final[Mapping[str, str]] = {
    "device": "The {device} is the limit: kernels run {share} of {window}",
    "device, in part": "Kernels run {share} of {window}, the largest share",
    "communication": "Collectives that nothing hides take {share} of {window}",
    "copy": "Copies that no kernel hides take {share} of {window}",
    "copy, in pieces": "Small copies and their calls, which no kernel hides, take {share} of {window}",
    "sync": "The {device} is idle {share} of {window} because the host waits for it before it launches more",
    "sync, inferred": "The {device} is idle {share} of {window}, most likely because the host waits for it unrecorded",
    "launch": "The {device} is idle {share} of {window} while the host launches under the profiler",
    "host": "The {device} is idle {share} of {window} while the host neither launches nor waits for it",
    "unknown": "The {device} is idle {share} of {window}, and nothing recorded says why",
    "contention": "Other work on the CPUs costs {share} of {window}",
    "imbalance": "Waiting for the last rank costs {share} of {window}",
    "throttling": "A clock held down costs {share} of {window}",
    "allocation": "Allocating and freeing memory costs {share} of {window}",
    "compilation": "Compiling costs {share} of {window}",
    "page_faults": "Page faults cost {share} of {window}",
}
#: Host and device are the same on the CPU provider.
_ON_CPU: Final[Mapping[str, str]] = {
    "device": "The operators are the limit: they run {share} of {window}",
    "launch": "The runtime between operators takes {share} of {window}",
    "host": "The threads sleep or wait {share} of {window}",
    "unknown": "The process runs {share} of {window}, and nothing recorded says in what",
}
#: Classes in which the device works or is idle: a bound on busy time also bounds their shares.
_BUSY: Final = ("device", "communication", "copy")
_IDLE: Final = ("sync", "launch", "host", "unknown")
_OTHER_SIDE: Final[Mapping[str, str]] = {"at_least": "at_most", "at_most": "at_least"}
#: Short names of classes, for a class mentioned second.
CLASSES: Final[Mapping[str, str]] = {
    "incomplete": "an incomplete recording",
    "cold_start": "a cold start",
    "device": "the device's own work",
    "communication": "communication between devices",
    "copy": "copies",
    "sync": "waits that drain the device",
    "launch": "launching",
    "host": "the host's other work",
    "unknown": "idle time of unknown cause",
    "contention": "other work on the CPUs",
    "imbalance": "a late rank",
    "throttling": "a clock held down",
    "allocation": "memory allocation",
    "compilation": "compilation",
    "page_faults": "page faults",
}
#: Sentences about the main cause of each class other than the device's own time.
_ABOUT: Final[Mapping[str, str]] = {
    "sync": "The longest waits are in {subject}.",
    "copy": "The heaviest are {subject}.",
    "communication": "The heaviest is {subject}.",
    "launch": "There are {subject}.",
    "host": "There are {subject}.",
    "allocation": "Most of it is in {subject}.",
}
#: Maximum number of words in the paragraph.
MOST_WORDS: Final = 70
#: Maximum number of kinds of work in a sentence.
_NAMED_KINDS: Final = 2
_UNNAMED: Final = "unnamed"
#: Above this share, a sentence says `all`.
_ALL: Final = 0.995
#: Below this busy fraction of the window, the device is not the limit.
_LIMITING: Final = 0.8
#: Minimum share for also naming the second class.
_WORTH_ADDING: Final = 0.15
#: Minimum fraction of the kernel time for naming a kind of work.
_WORTH_NAMING: Final = 0.05


def answer_fields(document: Row) -> dict[str, Any] | None:
    """Return the answer for programs; None if no stage has published one. Times in ns, shares 0..1."""
    if not document.get("answers"):
        return None
    row = document["answers"][0]
    kinds = document.get("kinds_of_work") or []
    first = next((kind for kind in kinds if kind["kind"] == row["kind"]), None)
    return {
        "class": row["class"],
        "second_class": row["second_class"],
        "reason": row["reason"],
        "shares": {one["share"]: one["share_ratio"] for one in document["time_shares"] if one["reason"] is None},
        "reasons": [
            {"share": one["share"], "reason": one["reason"], "share_ratio": one["share_ratio"]}
            for one in document["time_shares"]
            if one["reason"] is not None
        ],
        "resource": row["resource"],
        "kinds": {kind["kind"]: kind["share_ratio"] for kind in kinds},
        "first_to_fix": {"kind": row["kind"], "subject": row["subject"], "advice": row["advice"]},
        "rate": first and {"value": first["rate"], "unit": first["rate_unit"], "dtype": first["dtype"]},
        "roof": first
        and {
            "resource": first["roof"],
            "ratio": first["roof_ratio"],
            "source": first["roof_source"],
            "peak_ratio": first["peak_ratio"],
        },
        "saves_at_most": {
            "window_ns": row["saves_at_most_ns"],
            "repetition_ns": _each(row),
            "unprofiled_ns": row["saves_unprofiled_ns"],
        },
        "sharpen": [
            {"what": what, "command": command}
            for what, command in zip(row["sharpen"], row["sharpen_commands"], strict=True)
        ],
        "window": {
            "device_id": row["device_id"],
            "start_ns": row["window_start_ns"],
            "end_ns": row["window_end_ns"],
            "judged_ns": row["window_ns"],
            "beside_ns": row["beside_ns"],
            "repetitions": row["repetitions"],
            "period_ns": row["period_ns"],
            "unprofiled_period_ns": row["unprofiled_period_ns"],
            "rule": row["window_rule"],
            "busy_ratio": row["busy_ratio"],
        },
    }


def paragraph(document: Row) -> str | None:
    """Write the answer in at most three sentences and `MOST_WORDS` words; None if no stage has published one."""
    if not document.get("answers"):
        return None
    row, kinds = document["answers"][0], document.get("kinds_of_work") or []
    first = _invalid(row) if row["class"] in ("incomplete", "cold_start") else _class(document, row)
    forms: list[list[str | None]]
    if row["class"] in ("incomplete", "cold_start", "unknown"):
        recorded = _recorded(document, kinds)
        forms = [[first, recorded, _instead(row)], [first, _instead(row)], [first, recorded]]
    else:
        forms = [
            [first, _went_into(row, kinds, told), _first(row, kinds, told, whole=whole)]
            for told, whole in ((_NAMED_KINDS, True), (_NAMED_KINDS, False), (1, True), (1, False))
        ]
        forms += [[_class(document, row, alone=True), *forms[-1][1:]], [first, forms[-1][-1]]]
    forms.append([first])
    # Use the first form that is short enough: the least important text is dropped first.
    texts = [" ".join(one for one in form if one) for form in forms]
    return next((text for text in texts if len(text.split()) <= MOST_WORDS), texts[-1])


def sharpening(document: Row) -> list[tuple[str, str]]:
    """List ways to make the answer more precise, each with its command."""
    if not document.get("answers"):
        return []
    row, said = document["answers"][0], paragraph(document) or ""
    wanted = zip(row["sharpen"], row["sharpen_commands"], strict=True)
    # The paragraph may already end with the first of them.
    return [(what, command) for what, command in wanted if f"To see {what}: " not in said]


def class_in_words(name: str | None) -> str:
    """Return a class in a few words; unknown classes are shown by name."""
    return "not known" if name is None else CLASSES.get(name, name.replace("_", " "))


# ---- inside ----------------------------------------------------------------------------------------------------------


def _class(document: Row, row: Row, *, alone: bool = False) -> str:
    """Name the largest class and, unless `alone`, others that are as large or substantial."""
    on_cpu = document.get("provider") == CPU_PROVIDER
    sentences = {**_SENTENCES, **(_ON_CPU if on_cpu else {})}
    window = duration(row["window_ns"])
    what = f"the measured {window}" if on_cpu else f"the steady {window}" if row["beside_ns"] else f"{window}"
    if row.get("saves_unprofiled_ns") is not None and row["repetitions"]:
        # The saving relates to an iteration without the tracer, not to this time.
        what = f"{row['repetitions']:,} traced {one_of(row['window_rule'])}s ({window})"
    text = sentences[_form(document, row)].format(
        device="GPU", share=bounded(percent(row["class_ratio"]), _side(document, row)), window=what
    )
    if row["second_class"] is not None:
        text += f"; {_beside(row['second_class'], on_cpu=on_cpu)} costs as much"
    elif not alone and (other := _next(document, row["class"])) is not None:
        named = _beside(other["share"], on_cpu=on_cpu)
        text += f"; {named} {_verb(other['share'])} another {percent(other['share_ratio'])}"
    if row["class"] == "device" and row["reason"] is not None:
        text += f"; {row['reason']}"
    return text + "."


def _beside(name: str, *, on_cpu: bool) -> str:
    """Describe a second class in a few words; launch times in a trace include the profiler's overhead."""
    return class_in_words(name) + (" under the profiler" if name == "launch" and not on_cpu else "")


def _side(document: Row, row: Row) -> str | None:
    """Return the direction in which the class's share is a bound, if a finding made the busy time a bound."""
    own = (one for one in document.get("timeline") or [] if one["device_id"] == row["device_id"])
    side = next((one["busy_bound"] for one in own), None)
    if side is not None and row["class"] in _IDLE:
        side = _OTHER_SIDE[side]
    # A lower bound of 100 % is exact.
    whole = percent(row["class_ratio"]) == percent(1.0)
    return side if row["class"] in (*_BUSY, *_IDLE) and not (side == "at_least" and whole) else None


def _next(document: Row, name: str) -> Row | None:
    """Return the largest other share if it is large enough to mention; None if the class is not a share itself."""
    shares = [one for one in document.get("time_shares") or [] if one["reason"] is None]
    if name not in {one["share"] for one in shares}:
        return None
    # Time without idleness is obviously the device's own work.
    known = (name, "device") if name in ("sync", "launch", "host", "unknown") else (name,)
    others = [one for one in shares if one["share"] not in known and one["share_ratio"] >= _WORTH_ADDING]
    return max(others, key=lambda one: one["share_ratio"], default=None)


def _verb(name: str) -> str:
    return "take" if name in ("copy", "sync") else "takes"


def _form(document: Row, row: Row) -> str:
    """Return the sentence for a class: a mostly idle device is not the limit, and inferred shares are marked."""
    name = str(row["class"])
    if name == "device" and document.get("provider") != CPU_PROVIDER and (row["class_ratio"] or 0.0) < _LIMITING:
        return "device, in part"
    if name == "copy" and row["advice"] == PACK:
        return "copy, in pieces"
    rows = document.get("time_shares") or []
    inferred = any(one["share"] == name and one["reason"] is None and one["grade"] == "inferred" for one in rows)
    return f"{name}, inferred" if inferred and f"{name}, inferred" in _SENTENCES else name


def _went_into(row: Row, kinds: Sequence[Row], most: int) -> str | None:
    """Name the largest kinds of work for the device's own time, or the cause for other classes."""
    if row["class"] != "device" and row["reason"] is not None:
        return capital(row["reason"]) + "."
    if row["class"] != "device":
        about = _ABOUT.get(row["class"])
        if about is None or row["subject"] is None:
            return None
        one = row["class"] in ("launch", "host") and row["subject"].startswith("1 ")
        about = "There are {subject}." if row["advice"] == PACK else about
        return (about.replace("are", "is") if one else about).format(subject=row["subject"])
    named = _named(kinds, most)
    if not named:
        return None
    told = [_takes(named[0])]
    told += [f"{kind_in_words(one['kind'])} {percent(one['share_ratio'])}{_heaviest(one)}" for one in named[1:]]
    return capital(", ".join(told)) + "."


def _named(kinds: Sequence[Row], most: int) -> list[Row]:
    return [one for one in kinds if one["kind"] != "communication" and one["share_ratio"] >= _WORTH_NAMING][:most]


def _takes(kind: Row) -> str:
    """`matrix products take 39 % of the kernel time (aten::mm at 466 TFLOP/s)`."""
    verb = "takes" if is_one(kind["kind"]) else "take"
    share = "all" if kind["share_ratio"] >= _ALL else percent(kind["share_ratio"])
    return f"{kind_in_words(kind['kind'])} {verb} {share} of the kernel time{_heaviest(kind)}"


def _heaviest(kind: Row) -> str:
    """Return in brackets the heaviest operator of a kind with its rate; the rates of other operators may differ."""
    rate = rate_in_words(kind)
    if rate is None:
        return ""
    return f" ({_short(kind['operator'])} at {rate})" if kind["operator"] else f" (the heaviest kernel at {rate})"


def _first(row: Row, kinds: Sequence[Row], most: int, *, whole: bool) -> str | None:
    """State what to do first and the maximum saving, in the `whole` window, too."""
    if row["advice"] is None:
        return None
    fixed = next((one for one in kinds if row["kind"] is not None and one["kind"] == row["kind"]), None)
    said = fixed is not None and any(one is fixed and _heaviest(one) for one in _named(kinds, most))
    named = row["kind"] is not None and row["subject"] is not None and not said
    advice = row["advice"] + (f", {_short(row['subject'])} first" if named else "")
    amount = _amount(row, whole=whole)
    if row["saves_at_most_ns"] is None and fixed is not None:
        return f"{advice}: no roof is known that says how much that saves."
    if amount is None:
        return f"{advice}."
    if row["advice"] == AT_ROOF:
        return f"{advice} than {amount}."
    hidden = (row["saves_at_most_ns"] or 0) / row["window_ns"] - (row["class_ratio"] or 0.0)
    beside = ", with what it holds up," if row["class"] != "device" and hidden > _WORTH_NAMING else ""
    return f"{advice}: that saves{beside} at most {amount}."


def _amount(row: Row, *, whole: bool) -> str | None:
    """State the saving and its share, relative to an iteration without the profiler if known."""
    saves, without = row["saves_at_most_ns"], row.get("saves_unprofiled_ns")
    an = each_of(row["window_rule"])
    if without is not None and row["unprofiled_period_ns"]:
        period = row["unprofiled_period_ns"]
        text = f"{duration(without)} of the {duration(period)} that {an} takes without the profiler"
        return f"{text}, {percent(without / period)}"
    if saves is None or not row["window_ns"]:
        return None
    each = _each(row)
    amount = duration(saves) if each is None else f"{duration(each)} {an}"
    if each is not None and whole:
        amount = f"{amount} ({duration(saves)} in all)"
    return f"{amount}, {percent(saves / row['window_ns'])}"


def _invalid(row: Row) -> str:
    what = "a cold start" if row["class"] == "cold_start" else "incomplete"
    cause, _, detail = row["reason"].partition(": ")
    return f"This recording is {what}: {cause}" + (f" ({detail})." if detail else ".")


def _recorded(document: Row, kinds: Sequence[Row]) -> str | None:
    """Describe the recorded kernels: a kind of work with its rate, or else what limits them."""
    if not kinds:
        return None
    has_rate = kinds[0]["kind"] != _UNNAMED and _heaviest(kinds[0])
    limits = None if has_rate else limits_in_words(document.get("time_by_limit") or [])
    return f"Of what was recorded, {limits or _takes(kinds[0])}."


def _instead(row: Row) -> str | None:
    if not row["sharpen"]:
        return None
    return f"To see {row['sharpen'][0]}: {row['sharpen_commands'][0].replace(': ', ', ')}."


def _each(row: Row) -> int | None:
    """Return the saving of the first fix per repetition, from its share of the window.

    It is not divided by the number of repetitions, because a window can contain device work outside marked iterations.
    """
    saves, window, period = row["saves_at_most_ns"], row["window_ns"], row["period_ns"]
    if saves is None or not window or not period or (row["repetitions"] or 0) < 2:
        return None
    each: int = round(saves / window * period)
    return each


def _short(name: str) -> str:
    return name if len(name) <= 60 else f"{name[:59]}…"
