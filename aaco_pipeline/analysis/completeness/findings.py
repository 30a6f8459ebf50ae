"""Findings: defects of a recording, each with evidence, consequence and remedy.

The remedy names the tool that made the recording. Each kind of finding is detected in its own module of this package.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Final, Literal, get_args

import polars as pl

from aaco_pipeline.lake.contracts import polars_types

Tool = Literal[
    "rocprofv3", "torch.profiler", "nsys", "rocprof", "rpd", "rocprof-compute", "onnxruntime", "aaco", "aaco record"
]
#: `sessions.source_format` lists the formats of the parts, joined by a plus sign.
_TOOL_OF: Final[Mapping[str, Tool]] = {
    "rocpd": "rocprofv3",
    "rocprofv3-json": "rocprofv3",
    "rocprofv3-csv": "rocprofv3",
    "rocprofv3-thread-trace": "rocprofv3",
    "kineto": "torch.profiler",
    "nsys": "nsys",
    "rocprof-csv": "rocprof",
    "rocprof-database": "rocprof",
    "rpd": "rpd",
    "rocprof-compute": "rocprof-compute",
    "onnxruntime-profile": "onnxruntime",
    "cupti": "aaco record",
    "ncu-csv": "aaco record",
    "aaco-program": "aaco record",
}
#: Start of advice that names a tool other than the one that made the recording.
ANOTHER: Final = "with another tool, "
_ROCPROFV3: Final = "rocprofv3 --hip-trace --kernel-trace --memory-copy-trace -- COMMAND"
_TORCH: Final = "torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])"
_NSYS: Final = "nsys profile --trace=cuda,nvtx COMMAND"
_EVERYTHING: Final[Mapping[Tool, str]] = {
    "rocprofv3": _ROCPROFV3,
    "torch.profiler": f"{_TORCH} in a process that no other profiler is attached to",
    "nsys": _NSYS,
    "rocprof": "rocprof --hip-trace COMMAND",
    "rpd": "runTracer.sh -o trace.rpd COMMAND",
    "rocprof-compute": f"{ANOTHER}{_ROCPROFV3}",
    "onnxruntime": f"{ANOTHER}{_ROCPROFV3}",
    "aaco": "aaco run --profile",
    "aaco record": "aaco record -- COMMAND, on a host with a profiler of its GPUs",
}
_DURATIONS: Final[Mapping[Tool, str]] = {
    **_EVERYTHING,
    "rocprofv3": "rocprofv3 --kernel-trace --stats -- COMMAND",
    "nsys": f"{_NSYS}, and nsys stats --report cuda_gpu_kern_sum REPORT",
    "rocprof": "rocprof --stats COMMAND",
    "rocprof-compute": "rocprof-compute profile -n NAME -- COMMAND",
    "onnxruntime": "SessionOptions.enable_profiling=True",
}
_COUNTERS: Final = "aaco capture --print --counters basic,memory,compute -- COMMAND, and run what it prints"
_ATT: Final = "rocprofv3 --att --kernel-include-regex KERNEL -- COMMAND"
_OF_EACH_TOOL: Final[Mapping[str, Mapping[Tool, str]]] = {
    "everything": _EVERYTHING,
    "durations": _DURATIONS,
    "kernel_times": {**_DURATIONS, "rocprofv3": "rocprofv3 --kernel-trace -- COMMAND"},
    "few_steps": {
        **_EVERYTHING,
        "torch.profiler": "torch.profiler.schedule(wait=1, warmup=1, active=3)",
        "aaco": "aaco run --profile with fewer --iterations",
    },
    "warm_up": {
        "rocprofv3": "rocprofv3 --hip-trace --kernel-trace --collection-period 10:5:1 --collection-period-unit sec -- "
        "COMMAND, which begins after 10 s",
        "torch.profiler": "torch.profiler.schedule(wait=1, warmup=3, active=3)",
        "nsys": "nsys profile --capture-range=cudaProfilerApi COMMAND, with cudaProfilerStart() after the warm-up",
        "rocprof": "rocprof --hip-trace --trace-start off COMMAND, with roctracer_start() after the warm-up",
        "rpd": "RPDT_AUTOSTART=0 runTracer.sh -o trace.rpd COMMAND, with rpdTracerControl().start() after the warm-up",
        "rocprof-compute": "rocprof-compute profile -n NAME --dispatch N -- COMMAND, with dispatches after the warm-up",
        "onnxruntime": "more runs with SessionOptions.enable_profiling=True",
        "aaco": "aaco run --profile with more --warmup",
        "aaco record": "aaco record -- COMMAND, with the warm-up in a phase of that name (docs/marks.md)",
    },
    "one_clock": {**_EVERYTHING, "torch.profiler": f"{_TORCH}; on AMD devices from one clock {ANOTHER}{_ROCPROFV3}"},
    "more_room": {
        "rocprofv3": "rocprofv3 with fewer traces at once",
        "torch.profiler": "KINETO_CONFIG with ACTIVITIES_MAX_GPU_BUFFER_SIZE_MB",
        "nsys": "nsys profile --cuda-flush-interval=100 COMMAND",
        "rocprof": "rocprof with fewer traces at once",
        "rpd": "runTracer.sh for a shorter run",
        "rocprof-compute": "rocprof-compute profile with fewer blocks (-b)",
        "onnxruntime": "a shorter run with SessionOptions.enable_profiling=True",
        "aaco": "aaco run with fewer --iterations",
        "aaco record": "aaco record of a shorter run",
    },
    "each_rank": {
        "rocprofv3": "rocprofv3 -d OUT -o %hostname%_%rank% --hip-trace --kernel-trace -- COMMAND",
        "torch.profiler": "torch.profiler.tensorboard_trace_handler(DIR, worker_name=f'rank{rank}')",
        "nsys": "nsys profile -o OUT/rank%q{RANK} COMMAND, each exported with nsys export --type sqlite",
        "rocprof": "rocprof -o OUT/rank$RANK.csv --hip-trace COMMAND",
        "rpd": "runTracer.sh -o OUT/rank$RANK.rpd COMMAND",
        "rocprof-compute": f"{ANOTHER}rocprofv3 -d OUT -o %hostname%_%rank% --kernel-trace -- COMMAND",
        "onnxruntime": "SessionOptions.profile_file_prefix with the rank",
        "aaco": f"{ANOTHER}rocprofv3 -d OUT -o %hostname%_%rank% --kernel-trace -- COMMAND",
        "aaco record": "aaco record -- COMMAND that starts all ranks",
    },
    "graph_nodes": {
        **dict.fromkeys(_EVERYTHING, "record without graphs: enforce_eager=True, --disable-cuda-graph"),
        "nsys": "nsys profile --cuda-graph-trace=node COMMAND",
    },
    "without_pictures": {**_EVERYTHING, "rocprofv3": "rocprofv3 -f rocpd csv, or rocpd convert -f csv of the database"},
    "no_fallback": {
        **dict.fromkeys(_EVERYTHING, "session.disable_cpu_ep_fallback=1 in ONNX Runtime"),
        "aaco": "aaco run --backend BACKEND without --allow-fallback",
    },
    "counters": {
        **dict.fromkeys(_EVERYTHING, _COUNTERS),
        "rocprof": "rocprof -i INPUT with one line of pmc a run -- COMMAND",
        "rocprof-compute": "rocprof-compute profile -n NAME -- COMMAND",
        "aaco": "aaco run --counters basic,memory,compute",
        "aaco record": "aaco record --counters basic,memory,compute -- COMMAND",
    },
    "cycles": {
        **dict.fromkeys(_EVERYTHING, f"{ANOTHER}rocprofv3 --pmc GRBM_GUI_ACTIVE SQ_WAVES -- COMMAND"),
        "rocprofv3": "rocprofv3 --pmc GRBM_GUI_ACTIVE SQ_WAVES -- COMMAND",
        "rocprof": "rocprof -i INPUT with the line `pmc: GRBM_GUI_ACTIVE SQ_WAVES` COMMAND",
        "rocprof-compute": "rocprof-compute profile -n NAME -b 2 -- COMMAND",
        "aaco": "aaco run --counters basic",
        "aaco record": "aaco record --counters basic -- COMMAND",
    },
    "instructions": {
        **dict.fromkeys(_EVERYTHING, f"{ANOTHER}{_ATT}"),
        "rocprofv3": _ATT,
        "aaco": "aaco run --thread-trace auto",
    },
}


def tool_of(sessions: pl.DataFrame) -> Tool:
    """Return the tool that made the recording, from the first known format; rocprofv3 for ambiguous formats."""
    if not sessions.height:
        return "rocprofv3"
    if sessions.item(0, "source_kind") == "live":
        return "aaco record" if sessions.item(0, "workload_kind") == "program" else "aaco"
    formats = str(sessions.item(0, "source_format") or "").split("+")
    return next((_TOOL_OF[one] for one in formats if one in _TOOL_OF), "rocprofv3")


def in_words(advice: str, tool: Tool) -> str:
    """Replace names in braces by the tool's own commands.

    Raises `KeyError` for a need for which no tool has a command, which is an error in the advice.
    """
    return re.sub(r"\{(\w+)\}", lambda need: _OF_EACH_TOOL[need[1]][tool], advice)


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
#: Busy time of a device on which unrecorded work ran.
BUSY: Final = (
    *("timeline.busy_ns", "timeline.active_ratio", "timeline.compute_ns", "timeline.activity_time_sum_ns"),
    "session_metrics.active_ratio",
)
#: Idle time and its causes, which unrecorded work makes too long or wrong.
IDLE: Final = ("gaps.end_ns",)
#: Sums over the recorded kernels.
KERNEL_SUMS: Final = ("kernel_stats.dispatch_count", "kernel_stats.total_ns")
#: The answer itself, if the missing part may be most of the work.
ANSWER: Final = ("bottlenecks.label",)
#: Figures computed from counters and dispatch durations.
FROM_COUNTERS: Final = ("roofline.flops", "roofline.bound", "counter_metrics.value")


@dataclass(frozen=True)
class Finding:
    """Build one row of `completeness_findings` without its number; the contract describes the fields."""

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
    """Build the table `completeness_findings` without its session, most severe first, then by name and subject.

    Remedies use the commands of `tool`, which made the recording.
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


def whole_number(value: object) -> int | None:
    """Return the value if it is an integer, else None."""
    return int(value) if isinstance(value, int) else None


def counted(number: int, what: str, several: str | None = None) -> str:
    """Format a number with its noun: 1 launch, 2,048 launches."""
    return f"{number:,} {what if number == 1 else several or what + 's'}"


def of_total(part: int, total: int) -> str:
    """Format a part of a total with its percentage."""
    return f"{part:,} of {total:,} ({part / total:.1%})" if total else f"{part:,} of 0"


def milliseconds(nanoseconds: float) -> str:
    """Format a time in ms with two decimals, or in ns if it is very short."""
    value = nanoseconds / 1e6
    return f"{value:,.2f} ms" if abs(value) >= 0.01 else f"{nanoseconds:,.0f} ns"
