"""Explain why individual iterations took longer: spikes, their causes and how quiet the host was.

`aaco_pipeline.analysis.delays` finds the causes.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from aaco_pipeline.analysis.thresholds import MOST_DISTURBED
from aaco_pipeline.report.formatting import counted, duration, grouped, share
from aaco_pipeline.report.session.sentences import Document, Row, interval, value

#: Causes in words, as clauses after `because`.
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
#: Clause for a spike in which no component grew by half of the excess.
NO_SINGLE_CAUSE: Final = "no single cause"
_NOUNS: Final[Mapping[str, str]] = {
    **{"preempted": "preemption", "throttled": "throttling", "stopped": "stops", "queued": "waits for a CPU"},
    **{"major_fault": "pages read from storage", "disk": "waits for storage", "lock": "locks", "sleep": "sleep"},
    **{"timer": "timer ticks", "minor_faults": "minor page faults", "blocked": "blocking"},
    "on_cpu_longer": "longer work on the CPU",
}
#: Suggested first step for each cause.
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
#: Causes for which only the resuming or waking thread is known.
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
    """Count the spikes, name the most frequent cause, P99 without the worst cause, and the first step."""
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
    """Describe in one sentence how quiet the machine was; None if nothing was recorded."""
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
    """Format P50, P99 and mean over all iterations, and over the clean ones."""
    rows = []
    for name, told in (("latency_p50", "P50"), ("latency_p99", "P99"), ("latency_mean", "mean")):
        every, clean = (value(document, one, "latency") for one in (name, f"{name}_undisturbed"))
        if clean is not None:
            rows.append({"figure": told, "every": every, "clean": clean})
    return rows


def marking_cause(row: Row) -> str | None:
    """Return the cause that colours an iteration: for a spike its cause, None if unexplained; otherwise the
    disturbance, or `unknown` if events are incomplete.
    """
    cause: str | None = row["spike_cause"] if row["is_spike"] else row["disturbed_by"] or "unknown"
    return cause


def mark_in_words(row: Row) -> str:
    """Describe an iteration that is a spike, disturbed or unknown."""
    if row["is_spike"]:
        cause = CAUSES.get(row["spike_cause"])
        because = f"because {_clause(row['spike_cause'])}" if cause else NO_SINGLE_CAUSE
        return f"{duration(row['excess_ns'])} too long, {because}"
    if row["disturbed_by"] is None:
        return "not judged: the kernel's events are not whole"
    return f"disturbed for {duration(row['disturbed_ns'])} by {noun(row['disturbed_by'])}"


def rule() -> str:
    """Explain when an iteration counts as disturbed."""
    return _RULE


def who(row: Row) -> str | None:
    """Name the delaying thread or interrupt, or the system call in which the time passed."""
    if row["by_name"] is None:
        return None
    if row["by_kind"] == "call":
        return f"in {row['by_name']}"
    number = f" ({row['by_thread_id']})" if row["by_thread_id"] is not None else ""
    return f"{row['by_name']}{number}"


def evidence(row: Row) -> str | None:
    """State the evidence for a spike's cause."""
    return {"rest": "what is left"}.get(row["evidence_grade"], row["evidence_grade"]) if row["spike_cause"] else None


def noun(cause: str) -> str:
    """Return a cause as a noun, for use after `without` or `by`."""
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
    """Return a cause as a clause after `because`."""
    name = CAUSES.get(cause, cause)
    of = {name: f"of {name}" for name in ("timer ticks", "interrupts", "minor page faults")}
    return of.get(name, f"it was {name}" if cause == "on_cpu_longer" else name)


def _first(cause: str, spikes: Sequence[Row]) -> str | None:
    """Suggest the first step against a cause, or against the call in which most of its spikes occurred."""
    called = [row["by_name"] if row["by_kind"] == "call" else None for row in spikes if row["spike_cause"] == cause]
    most = max(sorted(set(called), key=str), key=called.count, default=None)
    return _FIRST_OF_A_CALL[cause].format(most) if most and cause in _FIRST_OF_A_CALL else _FIRST.get(cause)


def _most_often(cause: str, spikes: Sequence[Row]) -> str:
    """Name the most frequent source of delay in the explained spikes; empty if unknown."""
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
