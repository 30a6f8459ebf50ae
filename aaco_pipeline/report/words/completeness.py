"""How people say what a recording lacks: a title for each finding, and the sentence over all of them."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from aaco_pipeline.report.words.units import counted

#: Each finding by its name in `completeness_findings`.
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
#: What a finding does to figures, by the column that lists them.
CONSEQUENCES: Final[Mapping[str, str]] = {
    "voids": "Void",
    "at_least": "The truth is at least",
    "at_most": "The truth is at most",
}


def headline(findings: Sequence[Mapping[str, Any]]) -> str:
    """Whether the recording can carry the answer, in one sentence."""
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
    """What a finding does to which figures, a line each."""
    return [f"{words}: {', '.join(finding[name])}." for name, words in CONSEQUENCES.items() if finding[name]]
