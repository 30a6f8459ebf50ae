"""What a finding is: a way in which a recording falls short, with its evidence, its consequence and the remedy.

What shows each of them is a module beside this one; all of them together is `examination`.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Final, Literal, get_args

import polars as pl

from aaco_pipeline.analysis.completeness.recording_tools import Tool, in_words
from aaco_pipeline.lake.contracts import polars_types

Severity = Literal["fault", "bound", "note"]
Grade = Literal["observed", "inferred"]
Name = Literal[
    "false_idle_at_edges",
    "wait_for_unrecorded_work",
    "graph_kernels_missing",
    "graphs_recorded_whole",
    "no_device_events",
    "first_kernels_dropped",
    "launches_unrecorded",
    "launch_calls_missing",
    "stream_missing",
    "counters_impossible",
    "impossible_durations",
    "counters_summed",
    "thread_trace_empty",
    "thread_trace_partial",
    "clocks_apart",
    "clock_resynchronized",
    "xcd_shares_missing",
    "cpu_fallback",
    "ranks_missing",
    "slices_cut",
    "launched_before_recording",
    "counters_multiplexed",
    "dropped_by_tool",
    "file_truncated",
]
NAMES: Final[tuple[Name, ...]] = get_args(Name)
SEVERITIES: Final[tuple[Severity, ...]] = ("fault", "bound", "note")
#: Busy time of a device, where work ran that is not recorded.
BUSY: Final = (
    *("timeline.busy_ns", "timeline.active_ratio", "timeline.compute_ns", "timeline.activity_time_sum_ns"),
    "session_metrics.active_ratio",
)
#: Idle time and its causes, which such work makes too long or wrong.
IDLE: Final = ("gaps.end_ns",)
#: Sums over the kernels that were recorded.
KERNEL_SUMS: Final = ("kernel_stats.dispatch_count", "kernel_stats.total_ns")
#: The answer itself, where what is missing may be most of what ran.
ANSWER: Final = ("bottlenecks.label",)
#: What counters and durations of dispatches become together.
FROM_COUNTERS: Final = ("roofline.flops", "roofline.bound", "counter_metrics.value")


@dataclass(frozen=True)
class Finding:
    """One row of `completeness_findings` without its number; what each field means is said there."""

    finding: Name
    severity: Severity
    subject: str
    evidence: str
    mend: str
    grade: Grade = "observed"
    process_id: int | None = None
    device_id: int | None = None
    start_ns: int | None = None
    end_ns: int | None = None
    records: int | None = None
    voids: tuple[str, ...] = ()
    at_least: tuple[str, ...] = ()
    at_most: tuple[str, ...] = ()


def findings_frame(found: Iterable[Finding], tool: Tool) -> pl.DataFrame:
    """The table `completeness_findings` without its session: the gravest first, of equals by name and subject.

    What mends them is said for the `tool` that made the recording.
    """
    ordered = sorted(found, key=lambda one: (SEVERITIES.index(one.severity), one.finding, one.subject, one.evidence))
    rows = [
        {"finding_id": number, **_listed(one), "evidence": f"{one.evidence[:1].upper()}{one.evidence[1:]}"}
        | {"mend": in_words(one.mend, tool)}
        for number, one in enumerate(ordered)
    ]
    return pl.DataFrame(rows, schema=polars_types("completeness_findings"))


def _listed(one: Finding) -> dict[str, object]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(one).items()}


def counted(number: int, what: str, several: str | None = None) -> str:
    """A number with its noun, in words: 1 launch, 2,048 launches."""
    return f"{number:,} {what if number == 1 else several or what + 's'}"


def of_total(part: int, total: int) -> str:
    """A part of a total with its share, in words."""
    return f"{part:,} of {total:,} ({part / total:.1%})" if total else f"{part:,} of 0"


def milliseconds(nanoseconds: float) -> str:
    """A time in ms, in as many digits as tell it."""
    value = nanoseconds / 1e6
    return f"{value:,.2f} ms" if abs(value) >= 0.01 else f"{nanoseconds:,.0f} ns"
