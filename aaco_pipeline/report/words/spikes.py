"""Why iterations took longer, and how quiet the machine was, in words: for a terminal and for the page."""

from collections.abc import Callable, Mapping
from typing import Final

from aaco_pipeline.analysis.thresholds import MOST_DISTURBED
from aaco_pipeline.report.words.session import Document, Row, value
from aaco_pipeline.report.words.units import counted, duration, grouped, share

#: What each cause is called, as one would say it after `because`.
CAUSES: Final[Mapping[str, str]] = {
    "preempted": "another thread had the CPU",
    "throttled": "its CPU quota was used up",
    "stopped": "it was stopped by a signal",
    "queued": "it waited for a CPU",
    "major_fault": "a page came from storage",
    "disk": "it waited for storage",
    "lock": "it waited for a lock",
    "sleep": "it slept",
    "blocked": "it was blocked",
    "timer": "timer ticks",
    "interrupts": "interrupts",
    "minor_faults": "page faults",
    "on_cpu_longer": "longer on the CPU",
    "on_cpu": "on the CPU",
    "unknown": "events were lost",
}
_RULE: Final = (
    "An iteration is disturbed when causes outside the program took more than 50 µs of it and more than 1 % of the "
    "median; its own latency has no part in that. Both figures are kept."
)


def spikes_answer(document: Document) -> str:
    """How many spikes there are, what caused most of them, and what P99 would be without that."""
    quiet = document["quietness"][0] if document["quietness"] else None
    if not quiet or not quiet["iterations"]:
        return "Nothing was recorded of what the kernel did with the threads; record it with `--kernel-plane`."
    if not quiet["spikes"]:
        return f"None of {counted(quiet['iterations'], 'iteration')} is a spike."
    spikes = document["spikes"]
    said = [f"{counted(len(spikes), 'spike')} in {counted(quiet['iterations'], 'iteration')}"]
    known = [row for row in document["delay_causes"] if row["spikes"]]
    for row in known[:3]:
        name = CAUSES.get("on_cpu_longer" if row["cause"] == "on_cpu" else row["cause"], row["cause"])
        said.append(f"{row['spikes']:,} because {_clause(name)}")
    if others := sum(row["spikes"] for row in known[3:]):
        said.append(f"{others:,} for other reasons")
    unexplained = sum(row["spike_cause"] is None for row in spikes)
    if unexplained:
        said.append(f"{unexplained:,} unexplained")
    sentences = f"{'; '.join(said)}."
    first = next((row for row in known if row["p99_without_ns"] is not None and row["cause"] != "on_cpu"), None)
    p99 = value(document, "latency_p99", "latency")
    if first is not None and p99 is not None:
        low, high = duration(first["ci_low_ns"]), duration(first["ci_high_ns"])
        without = f"P99 is {duration(p99)}; without {_noun(first['cause'])} it would be "
        sentences += f" {without}{duration(first['p99_without_ns'])} (95 %: {low} to {high})."
    return sentences


def quietness(document: Document) -> str | None:
    """One sentence on how quiet the machine was; None where nothing was recorded."""
    quiet = document["quietness"][0] if document.get("quietness") else None
    if not quiet or not quiet["iterations"]:
        return None
    disturbed = quiet["disturbed"] / quiet["iterations"]
    by = f", most by {_noun(quiet['disturbed_by'])}" if quiet["disturbed_by"] else ""
    said = f"The machine disturbed {share(disturbed)} of the iterations{by}"
    if quiet["unknown"]:
        said += f"; of {share(quiet['unknown'] / quiet['iterations'])} it is unknown, as events were lost"
    unseen = value(document, "unseen_pause_ratio")
    if unseen is not None:
        how_much = f"{share(unseen)} of the" if share(unseen) != share(0) else "no"
        said += f"; {how_much} CPU time vanished without the kernel doing anything"
    noise = value(document, "disturbed_ratio", "latency") or 0
    too = "; too noisy to compare with" if noise > MOST_DISTURBED else ""
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
    disturbed it, `unknown` where events were lost.
    """
    cause: str | None = row["spike_cause"] if row["is_spike"] else row["disturbed_by"] or "unknown"
    return cause


def mark_in_words(row: Row) -> str:
    """What is said of one iteration that is a spike, or disturbed, or of which nothing is known."""
    if row["is_spike"]:
        cause = CAUSES.get(row["spike_cause"])
        because = f"because {_clause(cause)}" if cause else "for a reason that was not recorded"
        return f"{duration(row['excess_ns'])} too long, {because}"
    if row["disturbed_by"] is None:
        return "events were lost meanwhile"
    return f"disturbed for {duration(row['disturbed_ns'])} by {_noun(row['disturbed_by'])}"


def rule() -> str:
    """When an iteration counts as disturbed."""
    return _RULE


def who(row: Row) -> str | None:
    """The thread or interrupt that was in the way."""
    if row["by_name"] is None:
        return None
    number = f" ({row['by_thread_id']})" if row["by_thread_id"] is not None else ""
    return f"{row['by_name']}{number}"


FIGURES: Final[Mapping[str, Callable[[Row], str | None]]] = {
    "latency": lambda row: row["figure"],
    "*all iterations": lambda row: duration(row["every"]),
    "*undisturbed": lambda row: duration(row["clean"]),
}
SPIKES: Final[Mapping[str, Callable[[Row], str | None]]] = {
    "*iteration": lambda row: grouped(row["iteration"]),
    "*latency": lambda row: duration(row["latency_ns"]),
    "*too long by": lambda row: duration(row["excess_ns"]),
    "because": lambda row: CAUSES.get(row["spike_cause"], "unexplained"),
    "*of it": lambda row: duration(row["explained_ns"]) if row["spike_cause"] else None,
    "who": who,
    "*times": lambda row: grouped(row["occurrences"] or None),
    "evidence": lambda row: row["evidence_grade"] if row["spike_cause"] else None,
}
CAUSE_FIGURES: Final[Mapping[str, Callable[[Row], str | None]]] = {
    "cause": lambda row: CAUSES.get(row["cause"], row["cause"]),
    "*spikes": lambda row: grouped(row["spikes"]),
    "*in all": lambda row: duration(row["total_ns"]),
    "*of the variance": lambda row: share(row["variance_share_ratio"]),
    "*of P99 - P50": lambda row: share(row["tail_share_ratio"]),
    "*P99 without": lambda row: duration(row["p99_without_ns"]),
}


def _clause(name: str) -> str:
    of = {name: f"of {name}" for name in ("timer ticks", "interrupts", "page faults")}
    return of.get(name, f"it was {name}" if name == CAUSES["on_cpu_longer"] else name)


def _noun(cause: str) -> str:
    return {
        **{"preempted": "preemption", "throttled": "throttling", "stopped": "stops", "queued": "waits for a CPU"},
        **{"major_fault": "pages from storage", "disk": "waits for storage", "lock": "locks", "sleep": "sleep"},
        **{"timer": "timer ticks", "minor_faults": "page faults", "blocked": "blocking", "unknown": "lost events"},
    }.get(cause, cause)
