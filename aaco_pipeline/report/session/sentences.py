"""Describe a session in sentences: title, run, steadiness, and how it compares with earlier ones.

`answer` covers where the time went, `bottlenecks` what limits kernels.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from statistics import median
from typing import Any, Final

from aaco_pipeline.report.formatting import bounded, capital, counted, duration, number, share, shortened, size
from aaco_pipeline.report.session.answer import paragraph
from aaco_pipeline.report.view import Columns

Document = dict[str, Any]
Row = dict[str, Any]

#: If the spread is below this fraction of the median, one figure is shown instead of two.
_SAME: Final = 0.001


def of_program(document: Document) -> str:
    """Describe the result of a recorded program in a paragraph, starting with its failure if it failed."""
    runs = document["program_runs"]
    failed = next((run for run in runs if run["failure"] is not None and run["pass"] != "counters"), None)
    if failed is not None:
        return _failed(document, failed)
    timed = [run for run in runs if (run["pass"], run["phase"]) == ("latency", "measure")]
    told = [_run(document, timed)] if timed else ["No run was timed: all were under a profiler or for warm-up."]
    return " ".join([*told, *_traced(document, runs, timed)])


def whole_runs(document: Document) -> list[Document]:
    """Return the unprofiled runs that count as the session's iterations; none if the program marks iterations."""
    row = next((one for one in document["metrics"] if (one["metric"], one["pass"]) == ("latency_p50", "latency")), None)
    runs = document.get("program_runs") or []
    timed = [run for run in runs if (run["pass"], run["phase"]) == ("latency", "measure")]
    shortest, longest = (
        min((one["wall_ns"] for one in timed), default=0),
        max((one["wall_ns"] for one in timed), default=0),
    )
    is_whole = row is not None and row["n"] == len(timed) and shortest <= (row["value"] or 0) <= longest
    return timed if is_whole else []


def _failed(document: Document, run: Document) -> str:
    text = f"The program failed: {run['name']} {run['failure']} after {duration(run['wall_ns'])}"
    if run["stderr_end"] is not None:
        text += f"; its last words: {run['stderr_end']}"
    return f"{text.rstrip('.')}. This session is compared with no other."


def _run(document: Document, timed: list[Document]) -> str:
    """State how long a run takes, with its spread, and its CPU use."""
    walls = [run["wall_ns"] for run in timed]
    middle, low, high = median(walls), min(walls), max(walls)
    spread = "" if high - low <= _SAME * middle else f", {duration(low)} … {duration(high)}"
    text = f"A run of {document['workload']} takes {duration(middle)} (median of {len(timed)}{spread})"
    used = [(run["user_ns"], run["system_ns"]) for run in timed if None not in (run["user_ns"], run["system_ns"])]
    if used and middle:
        user, system = median(one for one, _ in used), median(one for _, one in used)
        text += f", on {duration(user)} of CPU time in the program and {duration(system)} in the operating system"
        text += f": {(user + system) / middle:.2g} CPUs on average"
    memory = [run["max_rss_bytes"] for run in timed if run["max_rss_bytes"] is not None]
    return f"{text}, and at most {size(max(memory))} of memory." if memory else f"{text}."


def _traced(document: Document, runs: list[Document], timed: list[Document]) -> list[str]:
    """State where the time of the traced run went, or why this is unknown."""
    traced = next((run for run in runs if run["pass"] == "trace"), None)
    if traced is None:
        why = [row["reason"] for row in document["missing"] if row["item"].startswith("profiler ") and row["reason"]]
        reason = f" ({'; '.join(dict.fromkeys(why))})" if why else ""
        return [f"Where the time went is not known: no run was traced{reason}."]
    if not document["timeline"]:
        return ["The traced run recorded nothing on a device: the time is the host's."]
    told = [said] if (said := paragraph(document)) is not None else []
    if timed and traced["wall_ns"] > (middle := median(run["wall_ns"] for run in timed)):
        longer = number(traced["wall_ns"] / middle)
        told.append(f"Under {traced['profiler'] or 'the profiler'} a run took {longer} times as long.")
    return told


#: From this length on, a sentence uses a kernel's short name.
_LONGEST_NAME_IN_WORDS: Final = 80
#: Minimum fraction of the measured time between iterations (`gap_ratio`) that is mentioned.
_NOTICEABLE_GAPS: Final = 0.02
#: Note for a session whose stages ran before answers existed.
OUTDATED: Final = "An earlier version judged this session: `aaco doctor --mend` has it say where the time went."
#: Minimum fraction of the recording outside the judged window that is mentioned.
_WORTH_SAYING_BESIDE: Final = 0.1
#: Fraction of the time from which contention disturbs a run, and factor from which a profiler does.
_DISTURBING: Final = 0.1
_DISTORTED: Final = 2.0
#: Maximum number of stall reasons in the answer.
_REASONS: Final = 3


def title(document: Document) -> str:
    """Return a session's name: its model, else its workload, else its id."""
    return str(document.get("model_name") or document.get("workload") or document["session_id"])


def run_description(document: Document) -> str:
    """Describe in one line what ran, where and when."""
    if "source_kind" not in document:
        return "(the capture has no description yet)"
    started = document["started_at"]
    imported = document["source_kind"] == "capture"
    parts = [
        document["model_name"] or document["workload"],
        f"imported from {document['source_format']}" if imported else None,
        f"on {document['provider']}" if document["provider"] is not None else None,
        f"batch {document['batch_size']}" if document["batch_size"] is not None else None,
        document["precision"],
        None if document["threads"] is None else counted(document["threads"], "thread"),
        f"{datetime.fromisoformat(started):%Y-%m-%d %H:%M:%S} UTC" if started is not None else None,
        f"host {document['host']}" if document["host"] is not None else None,
    ]
    return ", ".join(part for part in parts if part)


def half(document: Document) -> str | None:
    """State which stages an incomplete session lacks, what failed and what to do; None for a complete one."""
    progress = document.get("progress")
    if progress is None or not (progress["failed"] or progress["missing"]):
        return None
    said = f"Not whole: {progress['published']} of {progress['expected']} stages"
    failed = [f"{one['stage']} failed: {one['reason']}" for one in progress["failed"]]
    if failed:
        return f"{said}; {'; '.join(failed)}. Put that right, then `aaco doctor --mend` runs what is missing."
    return f"{said}. `aaco doctor --mend` runs what is missing."


def answer(document: Document) -> str:
    """State where the time went, what to fix first and the maximum saving; for a thread trace alone, its stalls."""
    if document.get("program_runs"):
        return of_program(document)
    said, measured = paragraph(document), facts(document)
    if said is not None:
        untimed = document["answers"][0]["window_ns"] is None and _stalled(document) is not None
        return measured if untimed else said
    if document.get("bottleneck"):
        return f"{OUTDATED} {measured}".rstrip()
    return measured or "Nothing was measured yet."


def facts(document: Document) -> str:
    """Summarize the measurement in a line: latency, time between iterations, stalls, and steadiness."""
    told = (_beside(document), _speed(document), _between(document), _stalled(document), _distortion(document))
    sentences = [sentence for sentence in told if sentence is not None]
    if not sentences:
        return ""
    judged = [steadiness(document)] if metric(document, "latency_p50", "latency") is not None else []
    return ". ".join([*sentences, *judged]) + "."


def history(document: Document) -> list[str]:
    """Rank the session among earlier ones, report its campaign's result and suggest what to run, a sentence each."""
    told: list[str | None] = []
    for place in document.get("place") or []:
        told.append(against_earlier(place, document["changes"]))
        told.append(advice(document["session_id"], place, document["changes"]))
    of_campaign = of_its_campaign(document.get("arm"), document.get("campaign_verdicts") or [])
    return [sentence for sentence in (*told[:1], *of_campaign, *told[1:]) if sentence is not None]


def _beside(document: Document) -> str | None:
    """Report the time outside the judged window, if it is a substantial fraction of the recording."""
    row = next(iter(document.get("answers") or []), None)
    if row is None or not row["beside_ns"] or row["window_ns"] is None:
        return None
    whole = row["beside_ns"] + row["window_ns"]
    traced = next((one for one in document.get("program_runs") or [] if one["pass"] == "trace"), None)
    if row["beside_ns"] < _WORTH_SAYING_BESIDE * whole and traced is None:
        return None
    text = f"The answer is of {duration(row['window_ns'])} of {duration(whole)}: set-up, interruptions and tear-down"
    text += f" take {duration(row['beside_ns'])} beside it"
    if traced is not None:
        text = f"The answer is of {duration(row['window_ns'])} of the traced run's {duration(traced['wall_ns'])}"
        text += ", the rest of which is start, set-up and end"
    busy = next((one for one in document["timeline"] if one["device_id"] == row["device_id"]), None)
    if busy is not None and busy["active_ratio"] is not None:
        part = bounded(share(busy["active_ratio"]), busy["busy_bound"])
        text += f"; from its first activity to its last the device is busy {part}"
    return text


def _speed(document: Document) -> str | None:
    """State the duration of an inference, or of a language model's tokens."""
    first, median = (metric(document, name, "latency") for name in ("time_to_first_token_p50", "latency_p50"))
    whole = f" for a batch of {document['batch_size']}" if (document.get("batch_size") or 0) > 1 else ""
    if first is not None and first["value"] is not None:
        each = metric(document, "time_per_output_token_p50", "latency")
        rate = value(document, "output_tokens_per_s", "latency")
        text = f"The median first token comes {duration(first['value'])} after a prompt of {document['prompt_tokens']}"
        text += whole + (f" (95 % interval {interval(first)})" if interval(first) else "")
        if each is not None and each["value"] is not None:
            text += f", each further one {duration(each['value'])} after the one before"
            text += f" ({interval(each)})" if interval(each) else ""
        return text + (f": {number(rate)} tokens/s in all" if rate is not None else "")
    if median is None or median["value"] is None or whole_runs(document):
        # The duration of a run comes first.
        return None
    throughput = value(document, "throughput", "latency")
    aside = [f"95 % interval {interval(median)}"] if interval(median) else []
    aside += [f"{number(throughput)} inferences/s"] if throughput is not None else []
    unit = "iteration" if document.get("program_runs") else "inference"
    return f"The median {unit} takes {duration(median['value'])}{whole}" + (f" ({', '.join(aside)})" if aside else "")


def _between(document: Document) -> str | None:
    """Report the time outside all latencies, if it is substantial."""
    part, longest = (value(document, name, "latency") for name in ("gap_ratio", "gap_longest"))
    if part is None or part < _NOTICEABLE_GAPS:
        return None
    text = f"{share(part)} of the measured time lies between iterations, in no latency"
    return f"{text} (at most {duration(longest)} at once)"


def _stalled(document: Document) -> str | None:
    """State the wait reasons of wavefronts in the longest thread trace, if no kernel was timed."""
    stalls = document.get("stalls") or []
    if document["top_kernels"] or not stalls:
        return None
    first = stalls[0]
    whole = first["trace_cycles"] if first["trace_cycles"] is not None else first["trace_samples"]
    unit = "cycles" if first["trace_cycles"] is not None else "samples"
    trace = (first["name"], first["dispatch_id"], first["capture"])
    reasons = [row for row in stalls if (row["name"], row["dispatch_id"], row["capture"]) == trace]
    told = ", ".join(f"{share(row['share_ratio'])} {row['reason']}" for row in reasons[:_REASONS])
    kernel = "code that is matched to no kernel" if first["name"] is None else _name(first)
    return f"Of {whole:,} stalled {unit} of {kernel}, {told}"


def _name(kernel: Document) -> str:
    operator, name = kernel["operator"], kernel["name"]
    if len(name) > _LONGEST_NAME_IN_WORDS:
        return f"kernel {operator}"
    return f"kernel {name}" if operator in (None, name) else f"{operator} {name}"


def _distortion(document: Document) -> str | None:
    ratio = value(document, "profiler_distortion")
    if ratio is None:
        return None
    if ratio >= 1:
        return f"Profiling increases the median by a factor of {ratio:.3g}"
    return f"The profiled median is {ratio:.3g} of the unprofiled one"


def steadiness(document: Document) -> str:
    """State whether the iterations were steady (the metric `steady_state`), and what disturbed them."""
    row = metric(document, "steady_state", "latency")
    disturbed = " and ".join(disturbances(document))
    if row is not None and row["value"] is not None and row["value"] >= 1:
        return f"Its level held, but {disturbed}" if disturbed else "It ran steadily"
    if row is None:
        told = "Whether it ran steadily was not checked"
    elif row["value"] is None:
        runs = len(whole_runs(document))
        told = "It ran too briefly to tell whether it was steady"
        told = f"{counted(runs, 'run')} cannot tell whether it is steady" if runs else told
    else:
        told = _unsteady(document)
    return f"{told}; {disturbed}" if disturbed else told


def _unsteady(document: Document) -> str:
    """State the iteration from which the level was steady, if there is one."""
    since = value(document, "steady_from", "latency")
    if since is None:
        return "It did not run steadily"
    runs = {run["run"] for run in document.get("program_runs") or [] if run["pass"] == "latency"}
    several, from_then = (
        f"Each run came to one level, the last at iteration {since:.0f}",
        f"from iteration {since:.0f} on",
    )
    return several if len(runs) > 1 else f"It ran steadily {from_then}"


def disturbances(document: Document) -> list[str]:
    """List other reasons to distrust a run: CPU contention, and a profiler with high overhead."""
    shares = document.get("time_shares") or []
    taken = sum(one["share_ratio"] for one in shares if one["reason"] == "contention")
    told = [f"other work took its CPUs {share(taken)} of the time"] if taken >= _DISTURBING else []
    distortion = value(document, "profiler_distortion")
    if distortion is not None and distortion >= _DISTORTED:
        told.append("profiling slowed it, so that what was profiled is another run")
    return told


def metric(document: Document, name: str, of_pass: str | None = None) -> Row | None:
    """Return the row of `session_metrics` with that name and pass over measured iterations, if any."""
    found = (m for m in document["metrics"] if (m["metric"], m["pass"]) == (name, of_pass) and m["phase"] != "warmup")
    return next(found, None)


def value(document: Document, name: str, of_pass: str | None = None) -> float | None:
    """Return the value of `metric`; None if there is none."""
    row = metric(document, name, of_pass)
    return None if row is None else row["value"]


def interval(row: Row) -> str | None:
    """Format a metric's interval, with the unit once if both ends share it; None if neither end is known."""
    low, high = duration(row["ci_low"]), duration(row["ci_high"])
    if low is None and high is None:
        return None
    if low is not None and high is not None and low.split()[1] == high.split()[1]:
        low = low.split()[0]
    return f"{low or '–'} … {high or '–'}"


#: Maximum number of changes in the sentence, and maximum length of a value.
_TOLD: Final = 3
_WIDTH: Final = 40
#: Differences below this fraction of the median are ignored.
_AS_FAST: Final = 0.0005
#: From here on a difference is stated as a factor, not as a percentage.
_IN_TIMES: Final = 2
#: Environment categories, most relevant first; unlisted ones follow.
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
    """Rank a session among earlier ones and name what changed, in a sentence; None if there is nothing to report."""
    parts = [part for part in (_placed(place), _changed(changes)) if part is not None]
    return f"{capital('; '.join(parts))}." if parts else None


def advice(session: str, place: Row, changes: Sequence[Row]) -> str | None:
    """Suggest a command if a session stands out or its stack changed; otherwise None."""
    previous = place["previous_session"]
    if previous is None or not (_stands_out(place) or changes):
        return None
    return (
        f"One session is no verdict: `aaco diff {previous} {session}` describes the two, and "
        "`aaco compare --baseline SPEC --candidate SPEC` judges fresh ones."
    )


def of_its_campaign(arm: str | None, verdicts: Sequence[Row]) -> list[str]:
    """Report the result of the session's campaign, one sentence per judged arm."""
    return [_verdict(arm, row) for row in verdicts]


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
    """Compare a session's time with others; from a factor of two on as a factor, because percentages above 100 % are
    hard to read.
    """
    if abs(ratio - 1) < _AS_FAST:
        return "is as fast as"
    if ratio >= _IN_TIMES:
        return f"takes {number(ratio)} times as long as"
    if ratio <= 1 / _IN_TIMES:
        return f"is {number(1 / ratio)} times as fast as"
    return f"is {share(abs(ratio - 1))} {'slower' if ratio > 1 else 'faster'} than"


def _stands_out(place: Row) -> bool:
    """Return whether it lies beyond every earlier session, if there are several."""
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
    told += f" compares {row['candidate']} with {row['baseline']}: {row['verdict']}"
    if row["effect_ratio"] is not None:
        told += f", {row['effect_ratio']:.3f} times as long"
    if row["ci_low"] is not None:
        told += f" (95 % interval {row['ci_low']:.3f} … {row['ci_high']:.3f})"
    return f"{told}."
