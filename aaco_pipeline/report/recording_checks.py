"""Describe how quiet a machine is (`aaco quiet`) and the gaps of a recording (`aaco check`).

`aaco_pipeline.analysis` computes the findings.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from aaco_pipeline.report.formatting import counted, duration, grouped, share
from aaco_pipeline.report.session.sentences import Row, interval

_TIMER: Final = "local_timer"
#: Reasons why the number of runnable threads is unknown.
NO_RUNNABLE: Final = "/proc/stat does not say procs_running"
_NAMELESS: Final = {"unseen": "nothing that was seen", "beside": "around handlers and switches"}


def machine_sentences(
    rows: Sequence[Row], runnable: Sequence[int] | None, seconds: float, reason: str | None
) -> list[str]:
    """Report lost time, the timer, other threads and interrupts, and the number of runnable threads.

    `rows` are `machine_takes`; `reason` is why the kernel was not recorded, or None; `runnable` is None if the host
    does not report it.
    """
    whole = {row["cpu"]: row["of_ns"] for row in rows}
    total = sum(whole.values()) or 1
    on = f"{counted(len(whole), 'CPU')} for {seconds:g} s"
    if reason is not None:
        gaps = sum(row["taken_ns"] for row in rows)
        elsewhere = f"On {on}, {share(gaps / total)} of the CPU time went elsewhere. By what is unknown: {reason}."
        return [elsewhere, *_wanted(runnable, len(whole))]
    unseen = share(_sum(rows, "unseen") / total)
    said = [f"On {on}, {unseen} of the CPU time vanished unseen: no event of the kernel explains it."]
    threads = [row for row in rows if row["kind"] == "thread"]
    ticks = [row for row in rows if row["kind"] == "interrupt" and row["name"] == _TIMER]
    if ticks:
        count, taken = sum(row["occurrences"] for row in ticks), sum(row["taken_ns"] for row in ticks)
        # While another thread has the CPU, the timer interrupts that thread.
        rate = count / max((total - _sum(rows, "thread") - _sum(rows, "state")) / 1e9, 1e-9)
        tick = f"The timer interrupts {rate:.0f} times a second; its handler takes {duration(taken / max(count, 1))}"
        said.append(f"{tick}{_typically([row['typical_gap_ns'] for row in ticks])}.")
    if taken := _sum(rows, "beside"):
        outside = f"Another {share(taken / total)} went in the gaps around handlers and switches"
        said.append(f"{outside}: entering and leaving them, or a pause that nothing tells apart.")
    if taken := sum(row["taken_ns"] for row in threads):
        said.append(f"Other threads took {share(taken / total)}, most of it {_most(threads)}.")
    else:
        said.append("No other thread took a CPU.")
    if states := [row for row in rows if row["kind"] == "state"]:
        said.append(f"For {share(_sum(rows, 'state') / total)} the probes were off a CPU otherwise: {_most(states)}.")
    further = [row for row in rows if row["kind"] in ("interrupt", "softirq") and row not in ticks]
    if taken := sum(row["taken_ns"] for row in further):
        said.append(f"Other handlers took {share(taken / total)}, most of it {_most(further)}.")
    return [*said, *_wanted(runnable, len(whole))]


TAKES: Final[Mapping[str, Callable[[Row], str | None]]] = {
    "*CPU": lambda row: grouped(row["cpu"]),
    "taken by": lambda row: row["name"] or _NAMELESS.get(row["kind"], "unknown"),
    "as": lambda row: row["kind"],
    "*times": lambda row: grouped(row["occurrences"]),
    "*time": lambda row: duration(row["taken_ns"]),
    "*share": lambda row: share(row["taken_ns"] / row["of_ns"]) if row["of_ns"] else None,
}


def _sum(rows: Sequence[Row], kind: str) -> int:
    return sum(row["taken_ns"] for row in rows if row["kind"] == kind)


def _most(rows: Sequence[Row]) -> str:
    taken: dict[str, int] = {}
    for row in rows:
        name = f"softirq {row['name']}" if row["kind"] == "softirq" else row["name"]
        taken[name] = taken.get(name, 0) + row["taken_ns"]
    return max(sorted(taken), key=lambda name: taken[name])


def _typically(gaps: Sequence[int | None]) -> str:
    """Return the typical length of a gap caused only by the timer, from the medians of the CPUs with such gaps."""
    known = [gap for gap in gaps if gap is not None]
    if not known:
        return ""
    low, high = min(known), max(known)
    long = duration(low) if duration(low) == duration(high) else interval({"ci_low": low, "ci_high": high})
    return f", and a gap that holds it alone is typically {long} long"


def _wanted(runnable: Sequence[int] | None, cpus: int) -> list[str]:
    if not runnable:
        return [f"How many threads wanted a CPU is unknown: {NO_RUNNABLE}."] if runnable is None else []
    mean = sum(runnable) / len(runnable)
    return [f"On average {mean:.1f} threads wanted a CPU, {cpus} of them the probes."]


#: Findings by their names in `completeness_findings`.
TITLES: Final[Mapping[str, str]] = {
    "false_idle_at_edges": "idle time at the edges may be false",
    "wait_for_unrecorded_work": "a wait for work that is not in the recording",
    "graph_kernels_missing": "kernels of replayed graphs are missing",
    "graphs_recorded_whole": "graphs were recorded as one piece each",
    "no_device_events": "nothing of the device was recorded",
    "first_kernels_dropped": "the first kernels are missing",
    "launches_unrecorded": "launches left no record",
    "launch_calls_missing": "records have no launch",
    "stream_missing": "a stream is missing",
    "counters_impossible": "counter values that cannot be",
    "impossible_durations": "durations that cannot be",
    "counters_summed": "counters were added up over replay passes",
    "thread_trace_empty": "the thread trace is empty",
    "thread_trace_partial": "the thread trace holds a part",
    "clocks_apart": "clocks are apart",
    "clock_resynchronized": "a clock was set within the recording",
    "xcd_shares_missing": "active cycles of the XCDs are missing",
    "cpu_fallback": "operators fell back to the CPU",
    "ranks_missing": "ranks of the job are missing",
    "slices_cut": "ends of kernels were moved",
    "launched_before_recording": "work was launched before the recording",
    "counters_multiplexed": "counters were multiplexed",
    "dropped_by_tool": "the tool dropped records",
    "file_truncated": "a file is cut or damaged",
}
#: Effects of a finding on figures, by the column that lists them.
CONSEQUENCES: Final[Mapping[str, str]] = {
    "voids": "Void",
    "at_least": "The truth is at least",
    "at_most": "The truth is at most",
}


def headline(findings: Sequence[Mapping[str, Any]]) -> str:
    """State in one sentence whether the recording supports an answer."""
    if not findings:
        return "Nothing that it states shows a loss: it can carry the answer as far as a recording can tell."
    counts = {name: sum(one["severity"] == name for one in findings) for name in ("fault", "bound", "note")}
    said = ", ".join(counted(count, name) for name, count in counts.items() if count)
    if counts["fault"]:
        return (
            f"It cannot carry every answer ({said}): what is listed as void or as a bound below is no more than that."
        )
    return f"It can carry the answer with care ({said}): it does not contradict itself, and some figures are bounds."


def consequences(finding: Mapping[str, Any]) -> list[str]:
    """List the affected figures of a finding and the effect on each, one per line."""
    return [f"{words}: {', '.join(finding[name])}." for name, words in CONSEQUENCES.items() if finding[name]]
