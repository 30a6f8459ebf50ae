"""Explain why single iterations took longer: the spikes, their causes and how quiet the host was.

The causes are found by `aaco_pipeline.analysis.delays`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from aaco_pipeline.analysis.thresholds import MOST_DISTURBED
from aaco_pipeline.report.formatting import counted, duration, grouped, share
from aaco_pipeline.report.session.sentences import Document, Row, interval, value
from aaco_pipeline.report.session.statements import SUMMARY

#: What each cause is called, as one would say it after `because`.
CAUSES: Final[Mapping[str, str]] = {
    "preempted": "another thread had the CPU",
    "throttled": "its CPU quota was used up",
    "stopped": "it was stopped by a signal",
    "queued": "it waited for a CPU",
    "major_fault": "pages were read from storage",
    "disk": "it waited for storage",
    "lock": "it waited for a lock",
    "sleep": "it slept",
    "blocked": "it was blocked",
    "timer": "timer ticks",
    "interrupts": "interrupts",
    "minor_faults": "minor page faults",
    "on_cpu_longer": "longer on the CPU",
    "on_cpu": "on the CPU",
    "unknown": "not known",
}
#: Of a spike of which no part grew by half of what it is too long by.
NO_SINGLE_CAUSE: Final = "no single cause"
_NOUNS: Final[Mapping[str, str]] = {
    **{"preempted": "preemption", "throttled": "throttling", "stopped": "stops", "queued": "waits for a CPU"},
    **{"major_fault": "pages read from storage", "disk": "waits for storage", "lock": "locks", "sleep": "sleep"},
    **{"timer": "timer ticks", "minor_faults": "minor page faults", "blocked": "blocking"},
    "on_cpu_longer": "longer work on the CPU",
}
#: What to do about each cause before anything else.
_FIRST: Final[Mapping[str, str]] = {
    "preempted": "keep other threads off its CPUs",
    "throttled": "raise the CPU quota of its control group",
    "stopped": "find out who stops it",
    "queued": "give its threads CPUs of their own",
    "major_fault": "have its data in memory before it is measured",
    "disk": "take what waits for storage (`fsync`, reads) out of the iteration",
    "lock": "look at who holds the lock",
    "sleep": "look for the sleep in the program",
    "blocked": "look at which call it blocks in: `syscall` in `kernel_events`",
    "timer": "look at what runs in its timer softirqs: `kernel_events` has each",
    "interrupts": "steer interrupts to other CPUs (`/proc/irq/*/smp_affinity`)",
    "minor_faults": "allocate memory once, before it is measured, and reuse it",
    "on_cpu_longer": "look at the program itself; a slower clock or contention for memory would look the same",
}
#: Causes of which it is known only who ended them.
_ENDED_BY: Final[Mapping[str, str]] = {"stopped": "resumed by ", "blocked": "woken by "}
_FIRST_OF_A_CALL: Final[Mapping[str, str]] = {
    "on_cpu_longer": "take `{}` out of the iteration, or ask less of it",
    "blocked": "look at what `{}` waits for",
}
_RULE: Final = (
    "A spike exceeds the median by more than a tenth of it and five widths of the noise; its cause is the part that "
    "grew most, if that is at least half of the excess. An iteration is disturbed when causes outside the program took "
    "more than 50 µs of it and more than 1 % of the median; its own latency has no part in that. Both figures are kept."
)


def spikes_answer(document: Document) -> str:
    """How many spikes there are, what caused most, what P99 would be without the worst cause, and what to do first."""
    quiet = document["quietness"][0] if document["quietness"] else None
    if not quiet or not quiet["iterations"]:
        return "Nothing was recorded of what the kernel did with the threads; record it with `--kernel-plane`."
    if not quiet["spikes"]:
        return f"None of {counted(quiet['iterations'], 'iteration')} is a spike."
    spikes = document["spikes"]
    known = [{**row, "cause": _as_grown(row["cause"])} for row in document["delay_causes"] if row["spikes"]]
    said = [
        f"{row['spikes']:,} because {_clause(row['cause'])}{_most_often(row['cause'], spikes)}" for row in known[:3]
    ]
    if others := sum(row["spikes"] for row in known[3:]):
        said.append(f"{others:,} for other reasons")
    if unexplained := sum(row["spike_cause"] is None for row in spikes):
        said.append(f"{unexplained:,} without a single cause")
    sentences = [f"{counted(len(spikes), 'spike')} in {counted(quiet['iterations'], 'iteration')}: {'; '.join(said)}."]
    worst = min(known, key=lambda row: row["p99_without_ns"] or 0, default=None)
    if worst is not None:
        p99 = value(document, "latency_p99", "latency")
        if p99 is not None and worst["p99_without_ns"] is not None:
            within = interval({"ci_low": worst["ci_low_ns"], "ci_high": worst["ci_high_ns"]})
            without = f"without {noun(worst['cause'])} it would be {duration(worst['p99_without_ns'])}"
            sentences.append(f"P99 is {duration(p99)}; {without} (95 % interval {within}).")
        if (do := _first(worst["cause"], spikes)) is not None:
            sentences.append(f"First {do}.")
    return " ".join(sentences)


def quietness(document: Document) -> str | None:
    """One sentence on how quiet the machine was; None where nothing was recorded."""
    quiet = document["quietness"][0] if document.get("quietness") else None
    if not quiet or not quiet["iterations"]:
        return None
    judged = quiet["clean"] + quiet["disturbed"]
    if not judged:
        return "How quiet the machine was is unknown: the kernel's events are not whole in any iteration."
    by = f", most often by {noun(quiet['disturbed_by'])}" if quiet["disturbed_by"] else ""
    of = f"{judged:,} of {quiet['iterations']:,} iterations that can be judged" if quiet["unknown"] else "iterations"
    said = f"The machine disturbed {share(quiet['disturbed'] / judged)} of the {of}{by}"
    if quiet["unknown"]:
        said += "; in the others the kernel's events are not whole"
    unseen = value(document, "unseen_pause_ratio")
    if unseen is not None:
        some = "less than 0.1 %" if share(unseen) == share(0) else share(unseen)
        said += (
            f"; probes between blocks lost {f'{some} of their time' if unseen else 'no time'} without a kernel event"
        )
    noise = value(document, "disturbed_ratio", "latency") or 0
    too = "; the session is too noisy to compare with others" if noise > MOST_DISTURBED else ""
    return f"{said}{too}."


def both_figures(document: Document) -> list[Row]:
    """P50, P99 and mean over all iterations, and over the clean ones."""
    rows = []
    for name, told in (("latency_p50", "P50"), ("latency_p99", "P99"), ("latency_mean", "mean")):
        every, clean = (value(document, one, "latency") for one in (name, f"{name}_undisturbed"))
        if clean is not None:
            rows.append({"figure": told, "every": every, "clean": clean})
    return rows


def marking_cause(row: Row) -> str | None:
    """What an iteration is coloured by: a spike by what made it one, None where nothing did; any other by what
    disturbed it, `unknown` where events are not whole.
    """
    cause: str | None = row["spike_cause"] if row["is_spike"] else row["disturbed_by"] or "unknown"
    return cause


def mark_in_words(row: Row) -> str:
    """What is said of one iteration that is a spike, or disturbed, or of which nothing is known."""
    if row["is_spike"]:
        cause = CAUSES.get(row["spike_cause"])
        because = f"because {_clause(row['spike_cause'])}" if cause else NO_SINGLE_CAUSE
        return f"{duration(row['excess_ns'])} too long, {because}"
    if row["disturbed_by"] is None:
        return "not judged: the kernel's events are not whole"
    return f"disturbed for {duration(row['disturbed_ns'])} by {noun(row['disturbed_by'])}"


def rule() -> str:
    """When an iteration counts as disturbed."""
    return _RULE


def who(row: Row) -> str | None:
    """The thread or interrupt that was in the way, or the system call in which the time went by."""
    if row["by_name"] is None:
        return None
    if row["by_kind"] == "call":
        return f"in {row['by_name']}"
    number = f" ({row['by_thread_id']})" if row["by_thread_id"] is not None else ""
    return f"{row['by_name']}{number}"


def evidence(row: Row) -> str | None:
    """How a spike's cause is known."""
    return {"rest": "what is left"}.get(row["evidence_grade"], row["evidence_grade"]) if row["spike_cause"] else None


def noun(cause: str) -> str:
    """A cause as one would say it after `without` or `by`."""
    return _NOUNS.get(cause, cause)


FIGURES: Final[Mapping[str, Callable[[Row], str | None]]] = {
    "latency": lambda row: row["figure"],
    "*all iterations": lambda row: duration(row["every"]),
    "*undisturbed": lambda row: duration(row["clean"]),
}
SPIKES: Final[Mapping[str, Callable[[Row], str | None]]] = {
    "*iteration": lambda row: grouped(row["iteration"]),
    "*latency": lambda row: duration(row["latency_ns"]),
    "*too long by": lambda row: duration(row["excess_ns"]),
    "because": lambda row: CAUSES.get(row["spike_cause"], NO_SINGLE_CAUSE),
    "*of it": lambda row: duration(row["explained_ns"]) if row["spike_cause"] else None,
    "who": who,
    "*times": lambda row: grouped(row["occurrences"] or None),
    "evidence": evidence,
}
CAUSE_FIGURES: Final[Mapping[str, Callable[[Row], str | None]]] = {
    "cause": lambda row: CAUSES.get(row["cause"], row["cause"]),
    "*spikes": lambda row: grouped(row["spikes"]),
    "*in all": lambda row: duration(row["total_ns"]),
    "*of the variance": lambda row: share(row["variance_share_ratio"]),
    "*of P99 - P50": lambda row: share(row["tail_share_ratio"]),
    "*P99 without": lambda row: duration(row["p99_without_ns"]),
}


def _as_grown(cause: str) -> str:
    return "on_cpu_longer" if cause == "on_cpu" else cause


def _clause(cause: str) -> str:
    """A cause as a clause after `because`."""
    name = CAUSES.get(cause, cause)
    of = {name: f"of {name}" for name in ("timer ticks", "interrupts", "minor page faults")}
    return of.get(name, f"it was {name}" if cause == "on_cpu_longer" else name)


def _first(cause: str, spikes: Sequence[Row]) -> str | None:
    """What to do before anything else about a cause: about the call in which most of its spikes went by, if one did."""
    called = [row["by_name"] if row["by_kind"] == "call" else None for row in spikes if row["spike_cause"] == cause]
    most = max(sorted(set(called), key=str), key=called.count, default=None)
    return _FIRST_OF_A_CALL[cause].format(most) if most and cause in _FIRST_OF_A_CALL else _FIRST.get(cause)


def _most_often(cause: str, spikes: Sequence[Row]) -> str:
    """Who was in the way in most of the spikes that a cause explains, nothing where nobody is known to have been."""
    named: dict[str, list[Row]] = {}
    for row in spikes:
        if row["spike_cause"] == cause and row["by_name"] is not None:
            named.setdefault(row["by_name"], []).append(row)
    if not named:
        return ""
    name, rows = min(named.items(), key=lambda one: (-len(one[1]), -sum(row["explained_ns"] for row in one[1]), one[0]))
    numbers = {row["by_thread_id"] for row in rows}
    which = f" {numbers.pop()}" if len(numbers) == 1 and None not in numbers else ""
    told = f"{_ENDED_BY.get(cause, '')}{'an interrupt' if name == 'interrupt' else name}"
    if rows[0]["by_kind"] == "call":
        told = f"in `{name}`"
    of = sum(row["spike_cause"] == cause for row in spikes)
    in_how_many = "" if of == 1 else " in all" if len(rows) == of else f" in {len(rows):,}"
    return f" ({told}{which}{in_how_many})"


#: How many iterations the machine disturbed.
QUIETNESS: Final[Mapping[str, str]] = {
    "quietness": (
        "SELECT count(*) AS iterations, count(*) FILTER (g.grade = 'clean') AS clean, "
        "count(*) FILTER (g.grade = 'disturbed') AS disturbed, count(*) FILTER (g.grade = 'unknown') AS unknown, "
        "mode(g.disturbed_by) AS disturbed_by, count(*) FILTER (g.is_spike) AS spikes "
        'FROM iteration_grades AS g JOIN iterations AS i USING (session_id, "pass", iteration) '
        "WHERE g.session_id = '{session}' AND g.\"pass\" = 'latency' AND i.phase = 'measure' ORDER BY ALL"
    ),
}
#: The spikes with what explains each, and what each cause did to all iterations.
DELAYS: Final[Mapping[str, str]] = {
    **QUIETNESS,
    "spikes": (
        "SELECT g.iteration, i.latency_ns, g.excess_ns, g.spike_cause, g.explained_ns, g.grade, g.disturbed_by, "
        "d.occurrences, d.grade AS evidence_grade, d.by_kind, d.by_name, d.by_thread_id, i.start_ns "
        'FROM iteration_grades AS g JOIN iterations AS i USING (session_id, "pass", iteration) '
        'LEFT JOIN iteration_delays AS d ON d.session_id = g.session_id AND d."pass" = g."pass" AND '
        "d.iteration = g.iteration AND d.cause = CASE g.spike_cause WHEN 'on_cpu_longer' THEN 'on_cpu' "
        "ELSE g.spike_cause END WHERE g.session_id = '{session}' AND g.\"pass\" = 'latency' AND g.is_spike "
        "AND i.phase = 'measure' ORDER BY g.excess_ns DESC, g.iteration"
    ),
    "delay_causes": (
        "SELECT cause, iterations, spikes, total_ns, variance_share_ratio, tail_share_ratio, p99_without_ns, "
        "ci_low_ns, ci_high_ns FROM delay_figures WHERE session_id = '{session}' AND \"pass\" = 'latency' "
        "ORDER BY spikes DESC, coalesce(variance_share_ratio, 0) DESC, cause"
    ),
}
#: What the report's plot of latencies is coloured by.
GRADES: Final[Mapping[str, str]] = {
    "grades": (
        "SELECT g.iteration, g.is_spike, g.spike_cause, g.excess_ns, g.grade, g.disturbed_by, g.disturbed_ns "
        'FROM iteration_grades AS g JOIN iterations AS i USING (session_id, "pass", iteration) '
        "WHERE g.session_id = '{session}' AND g.\"pass\" = 'latency' AND i.phase = 'measure' "
        "AND (g.is_spike OR g.grade <> 'clean') ORDER BY g.iteration"
    ),
}
#: All that `aaco show --spikes` says.
SPIKES_SPIKES: Final[Mapping[str, str]] = {
    **DELAYS,
    "metrics": SUMMARY["metrics"],
    "missing": (
        "SELECT DISTINCT item, status, reason FROM evidence WHERE session_id = '{session}' AND status <> 'present' "
        "AND (stage = 'kernel_plane' OR stage = 'iteration_delays') ORDER BY ALL"
    ),
}
