"""What is derived from model, trace and counters: statistics, timeline, path, roofline, occupancy and stalls.

No opinion belongs here, neither a bottleneck's name nor a verdict between sessions; those live in `judgement`.
"""

from typing import Final

from aaco_pipeline.lake.contracts import Table, column

TABLES: Final[tuple[Table, ...]] = (
    Table(
        name="kernel_stats",
        section="Analysis",
        meaning=("One row sums up all dispatches of one kernel. Filled by the stage timeline."),
        columns=(
            column("kernel_id", "int32", "id", False, "Kernel that is summed up, in `kernels`."),
            column("dispatch_count", "int64", "count", False, "Dispatches of the kernel in the session."),
            column(
                "total_ns",
                "int64",
                "ns",
                False,
                "Sum of self_ns over the dispatches, so that a nested dispatch is counted once; overlapping "
                "dispatches each count in full.",
            ),
            column(
                "mean_ns",
                "int64",
                "ns",
                False,
                "Mean self_ns of one dispatch, total_ns / dispatch_count rounded to the nanosecond.",
            ),
            column("min_ns", "int64", "ns", False, "Shortest self_ns among the dispatches."),
            column("p50_ns", "int64", "ns", False, "Median self_ns among the dispatches."),
            column(
                "p99_ns",
                "int64",
                "ns",
                False,
                "99th percentile of self_ns among the dispatches; near max_ns when there are fewer than a hundred.",
            ),
            column("max_ns", "int64", "ns", False, "Longest self_ns among the dispatches."),
            column(
                "share_ratio",
                "float64",
                "ratio",
                True,
                "total_ns divided by its sum over all kernels of the session, 0..1; null when that sum is zero.",
            ),
        ),
        sort_by=("kernel_id",),
    ),
    Table(
        name="operator_kernels",
        section="Analysis",
        meaning=(
            "One row says how much of one kernel's work was done for one model operator. Filled by the stage "
            "model_graph."
        ),
        columns=(
            column(
                "node_id",
                "int32",
                "id",
                True,
                "Operator the work was done for, in `model_nodes`; null when match is `unattributed`.",
            ),
            column("kernel_id", "int32", "id", False, "Kernel that did the work, in `kernels`."),
            column(
                "dispatch_count",
                "int64",
                "count",
                False,
                "Dispatches of the kernel that were attributed to the operator.",
            ),
            column(
                "total_ns",
                "int64",
                "ns",
                False,
                "Sum of self_ns over those dispatches; over all rows it equals the sum in `kernel_stats`.",
            ),
            column(
                "match",
                "string",
                "name",
                False,
                "What the attribution rests on: `name` of the operator in the event, `order` of execution, enclosing "
                "`marker`, or `unattributed`.",
            ),
            column(
                "score",
                "float64",
                "ratio",
                True,
                "Trust in the attribution, 0..1, where 1 means that the event itself named the operator; null when "
                "match is `unattributed`.",
            ),
        ),
        sort_by=(
            "node_id",
            "kernel_id",
            "match",
        ),
    ),
    Table(
        name="timeline",
        section="Analysis",
        meaning=(
            "One row says how one device spent one window: an iteration, or the whole. Filled by the stage timeline."
        ),
        columns=(
            column("device_id", "int32", "id", False, "Device the row is about, in `devices`."),
            column(
                "iteration",
                "int32",
                "id",
                True,
                "Iteration of the pass `trace` that the window covers; null for the row over the whole window.",
            ),
            column(
                "window_start_ns",
                "int64",
                "ns",
                False,
                "Start of the window, on the session's axis; activities are clipped to the window.",
            ),
            column("window_end_ns", "int64", "ns", False, "End of the window, exclusive, on the session's axis."),
            column(
                "window_rule",
                "string",
                "name",
                False,
                "How the window's ends were chosen, such as from the iteration's own times, from markers, or from the "
                "first and last activity.",
            ),
            column(
                "busy_ns",
                "int64",
                "ns",
                True,
                "Length of the union over all device activities in the window, kernels, copies and fills; overlap "
                "counts once; null without device events.",
            ),
            column(
                "active_ratio",
                "float64",
                "ratio",
                True,
                "busy_ns divided by the window's length, 0..1; null when busy_ns is null or the window is empty.",
            ),
            column(
                "compute_ns",
                "int64",
                "ns",
                True,
                "Length of the union of compute dispatches in the window, communication kernels excluded; null "
                "without dispatch events.",
            ),
            column(
                "exposed_copy_ns",
                "int64",
                "ns",
                True,
                "Time in which a copy ran while neither compute nor communication did; null when copies were not "
                "traced.",
            ),
            column(
                "exposed_communication_ns",
                "int64",
                "ns",
                True,
                "Time in which a communication kernel ran while no compute did; null when communication cannot be "
                "told apart.",
            ),
            column(
                "overlapped_ns",
                "int64",
                "ns",
                True,
                "Time in which a copy or communication ran while compute did, and so was hidden by it; null when "
                "neither was traced.",
            ),
            column(
                "activity_time_sum_ns",
                "int64",
                "ns",
                True,
                "Sum of the durations of all device activities in the window, nested dispatches by self_ns; exceeds "
                "busy_ns where activities overlap.",
            ),
            column(
                "linked_ratio",
                "float64",
                "ratio",
                True,
                "Share of the window's device activities whose launching host call was found by correlation_id, 0..1; "
                "null when there are no activities.",
            ),
            column(
                "activity_count",
                "int64",
                "count",
                False,
                "Device activities that touch the window; zero when events were recorded and none fell in it.",
            ),
        ),
        sort_by=(
            "device_id",
            "iteration",
        ),
    ),
    Table(
        name="gaps",
        section="Analysis",
        meaning=(
            "One row is one stretch of the whole window in which a device had no activity at all. Filled by the stage "
            "timeline."
        ),
        columns=(
            column("device_id", "int32", "id", False, "Device that was idle, in `devices`."),
            column("start_ns", "int64", "ns", False, "When the device fell idle, on the session's axis."),
            column(
                "end_ns",
                "int64",
                "ns",
                False,
                "When its next activity began or the window ended, exclusive, on the session's axis.",
            ),
            column(
                "cause",
                "string",
                "name",
                False,
                "Why the device was idle: `sync`, `host_wait`, `launch_latency`, `dependency`, `kernel_kernel`, or "
                "`unknown` when the trace does not tell.",
            ),
            column(
                "previous_activity_kind",
                "string",
                "name",
                True,
                "Kind of the activity that ended the busy stretch before: `dispatch` or `memory_copy`; null at the "
                "start of the window.",
            ),
            column(
                "previous_activity_id",
                "int32",
                "id",
                True,
                "Number of that activity in the table of its kind; null at the start of the window.",
            ),
            column(
                "next_activity_kind",
                "string",
                "name",
                True,
                "Kind of the activity that ended the gap: `dispatch` or `memory_copy`; null at the end of the window.",
            ),
            column(
                "next_activity_id",
                "int32",
                "id",
                True,
                "Number of that activity in the table of its kind; null at the end of the window.",
            ),
            column(
                "host_call_id",
                "int32",
                "id",
                True,
                "Host call that the cause was concluded from, in `api_calls`; null when there is none.",
            ),
        ),
        sort_by=(
            "device_id",
            "start_ns",
        ),
    ),
    Table(
        name="critical_path",
        section="Analysis",
        meaning=(
            "One row gives one activity's place in the dependency graph of the run. Filled by the stage critical_path."
        ),
        columns=(
            column(
                "activity_kind",
                "string",
                "name",
                False,
                "Kind of the activity: `dispatch`, `memory_copy` or `api_call`.",
            ),
            column("activity_id", "int32", "id", False, "Number of the activity in the table of its kind."),
            column(
                "slack_ns",
                "int64",
                "ns",
                False,
                "How much later the activity could end without the window ending later; zero on the path.",
            ),
            column(
                "free_slack_ns",
                "int64",
                "ns",
                False,
                "How much later the activity could end without any activity that follows it starting later; never "
                "above slack_ns.",
            ),
            column(
                "is_critical",
                "bool",
                "bool",
                False,
                "True when the activity lies on the longest path through the window.",
            ),
            column(
                "binding_edge",
                "string",
                "name",
                False,
                "Dependency that set its start: `launch`, `stream`, `queue`, `event`, `sync`, `program` for host "
                "order, or `none` when nothing recorded did.",
            ),
            column(
                "unexplained_wait_ns",
                "int64",
                "ns",
                False,
                "Time between the end of the binding dependency and the activity's start that no recorded activity "
                "explains.",
            ),
            column(
                "criticality",
                "float64",
                "ratio",
                True,
                "Share of the time of the activity's kernel, over all its dispatches, that lies on a longest path, "
                "0..1; null for activities without a kernel.",
            ),
        ),
        sort_by=(
            "activity_kind",
            "activity_id",
        ),
    ),
    Table(
        name="critical_path_summary",
        section="Analysis",
        meaning=(
            "One row gives one category's part of the longest path of one scope; the scope's own figures repeat in "
            "each of its rows. Filled by the stage critical_path."
        ),
        columns=(
            column(
                "scope",
                "string",
                "name",
                False,
                "What the path runs through: `session` for the whole traced window, or a name for a part of it, such "
                "as one iteration.",
            ),
            column("window_ns", "int64", "ns", False, "Length of the window that the path runs through."),
            column(
                "path_ns",
                "int64",
                "ns",
                False,
                "Sum of the activities' own time on the path, unexplained waits excluded; never above window_ns.",
            ),
            column(
                "unexplained_ns",
                "int64",
                "ns",
                False,
                "Sum of the waits on the path that no recorded activity explains.",
            ),
            column(
                "category",
                "string",
                "name",
                False,
                "Kind of time on the path, such as compute, copy, communication, launch, synchronisation or host work.",
            ),
            column(
                "category_ns",
                "int64",
                "ns",
                False,
                "Time on the path that falls in the category; over all categories of a scope it adds up to path_ns.",
            ),
            column(
                "category_ratio",
                "float64",
                "ratio",
                True,
                "category_ns divided by path_ns, 0..1; null when the path is empty.",
            ),
        ),
        sort_by=(
            "scope",
            "category",
        ),
    ),
    Table(
        name="ceilings",
        section="Analysis",
        meaning=(
            "One row is one limit of a device: a rate it cannot exceed, or was never measured to. Filled by the stage "
            "roofline."
        ),
        columns=(
            column("device_id", "int32", "id", False, "Device the limit holds for, in `devices`."),
            column(
                "resource",
                "string",
                "name",
                False,
                "What is limited, such as vector or matrix arithmetic, the memory fabric, DRAM, L2, vL1D or LDS.",
            ),
            column(
                "dtype",
                "string",
                "name",
                True,
                "Number format an arithmetic limit holds for; null for limits of bandwidth.",
            ),
            column(
                "value",
                "float64",
                "varies",
                False,
                "The limit in the unit of its row, for the device as partitioned and at the clock the reference "
                "states.",
            ),
            column("unit", "string", "name", False, "Unit of value: `flop/s` or `byte/s`."),
            column(
                "source",
                "string",
                "name",
                False,
                "`spec` when published or computed from published figures, `measured` when a benchmark found it on "
                "this device.",
            ),
            column(
                "reference",
                "string",
                "text",
                True,
                "Document, or benchmark run, that the value comes from; null only when a capture gave the value "
                "without one.",
            ),
        ),
        sort_by=(
            "device_id",
            "resource",
            "dtype",
            "source",
        ),
    ),
    Table(
        name="roofline",
        section="Analysis",
        meaning=(
            "One row places one kernel, or one dispatch of it, on the roofline. Filled by the stage roofline; "
            "durations come from the base trace, never from a counter pass."
        ),
        columns=(
            column("kernel_id", "int32", "id", False, "Kernel that is placed, in `kernels`."),
            column(
                "dispatch_id",
                "int32",
                "id",
                True,
                "Dispatch that is placed, in `dispatches`; null for the kernel's aggregate over its counted "
                "dispatches.",
            ),
            column(
                "duration_ns",
                "int64",
                "ns",
                True,
                "Duration in the base trace, summed over the dispatches the row covers; null when they could not be "
                "matched to the base trace.",
            ),
            column(
                "flops",
                "float64",
                "flop",
                True,
                "Floating-point operations executed, over all number formats; null when no counter gives them.",
            ),
            column(
                "flops_by_type",
                "list<flops_of_type>",
                "flop",
                True,
                "The same operations split by number format; null when the counters do not tell the formats apart.",
            ),
            column(
                "flops_is_lower_bound",
                "bool",
                "bool",
                True,
                "True when some operations could not be counted, so that flops and what follows from it may be too "
                "low; null when flops is null.",
            ),
            column(
                "fabric_read_bytes",
                "int64",
                "bytes",
                True,
                "Bytes the L2 read from the memory side, whether Infinity Cache or DRAM served them; null when not "
                "counted.",
            ),
            column(
                "fabric_write_bytes",
                "int64",
                "bytes",
                True,
                "Bytes the L2 wrote to the memory side, atomics included; null when not counted.",
            ),
            column(
                "dram_read_bytes",
                "int64",
                "bytes",
                True,
                "Bytes read from DRAM itself; null where the architecture cannot count them or the pass was not taken.",
            ),
            column(
                "l2_traffic_bytes",
                "int64",
                "bytes",
                True,
                "Bytes requested of the L2 in either direction, hits included; null when not counted.",
            ),
            column(
                "vl1d_traffic_bytes",
                "int64",
                "bytes",
                True,
                "Bytes requested of the vector L1 data caches in either direction, hits included; null when not "
                "counted.",
            ),
            column(
                "lds_traffic_bytes",
                "int64",
                "bytes",
                True,
                "Bytes moved between registers and the local data share in either direction; null when not counted.",
            ),
            column(
                "achieved_flops_per_s",
                "float64",
                "flop/s",
                True,
                "flops divided by duration_ns in seconds; null when either is missing or the duration is zero.",
            ),
            column(
                "achieved_bytes_per_s",
                "float64",
                "byte/s",
                True,
                "Fabric bytes, read and written, divided by duration_ns in seconds; null when any of them is missing "
                "or the duration is zero.",
            ),
            column(
                "fabric_arithmetic_intensity",
                "float64",
                "flop/byte",
                True,
                "flops per byte the L2 exchanged with the memory side; null when either is missing or no bytes moved.",
            ),
            column(
                "dram_arithmetic_intensity",
                "float64",
                "flop/byte",
                True,
                "flops per byte exchanged with DRAM, reads alone where only they are counted, which quality_flags "
                "then says; null when not counted.",
            ),
            column(
                "l2_arithmetic_intensity",
                "float64",
                "flop/byte",
                True,
                "flops per byte requested of the L2; null when either is missing or no bytes moved.",
            ),
            column(
                "vl1d_arithmetic_intensity",
                "float64",
                "flop/byte",
                True,
                "flops per byte requested of the vector L1 data caches; null when either is missing or no bytes moved.",
            ),
            column(
                "lds_arithmetic_intensity",
                "float64",
                "flop/byte",
                True,
                "flops per byte moved to or from the local data share; null when either is missing or no bytes moved.",
            ),
            column(
                "bound",
                "string",
                "name",
                True,
                "Resource in `ceilings` whose roof is lowest for this row and so limits it; null when the evidence "
                "does not decide.",
            ),
            column(
                "efficiency_ratio",
                "float64",
                "ratio",
                True,
                "Achieved rate divided by what the limiting roof allows; above 1 means that a ceiling or a counter is "
                "wrong; null when bound is null.",
            ),
            column(
                "quality_flags",
                "list<string>",
                "name",
                False,
                "Named reservations about the row, such as few samples or a counter from another execution; empty "
                "when there are none.",
            ),
        ),
        sort_by=(
            "kernel_id",
            "dispatch_id",
        ),
    ),
    Table(
        name="occupancy",
        section="Analysis",
        meaning=(
            "One row gives the wavefront occupancy of one kernel, or of one dispatch of it. Filled by the stage "
            "roofline."
        ),
        columns=(
            column("kernel_id", "int32", "id", False, "Kernel the row is about, in `kernels`."),
            column(
                "dispatch_id",
                "int32",
                "id",
                True,
                "Dispatch the row is about, in `dispatches`; null for the kernel's aggregate.",
            ),
            column(
                "theoretical_ratio",
                "float64",
                "ratio",
                True,
                "Wavefronts per SIMD that registers, LDS and workgroup size admit, divided by the architecture's "
                "limit, 0..1; null when a resource is not stated.",
            ),
            column(
                "limiter",
                "string",
                "name",
                True,
                "Resource that admits the fewest wavefronts, such as vector registers, scalar registers, LDS or the "
                "workgroup's size; null when theoretical_ratio is.",
            ),
            column(
                "achieved_ratio",
                "float64",
                "ratio",
                True,
                "Mean resident wavefronts per SIMD from counters while the kernel ran, divided by the architecture's "
                "limit, 0..1; null when not counted.",
            ),
        ),
        sort_by=(
            "kernel_id",
            "dispatch_id",
        ),
    ),
    Table(
        name="att_instructions",
        section="Analysis",
        meaning=(
            "One row is one instruction of a traced or sampled kernel with what it cost. Filled by the stage "
            "att_enrichment; cycles here never become durations."
        ),
        columns=(
            column(
                "kernel_id",
                "int32",
                "id",
                True,
                "Kernel the instruction belongs to, in `kernels`; null when the code could not be matched to one.",
            ),
            column(
                "dispatch_id",
                "int32",
                "id",
                True,
                "Dispatch that was traced, in `dispatches`; null when several are summed or it could not be matched.",
            ),
            column(
                "code_object_id",
                "uint64",
                "id",
                True,
                "The capture's number of the code object that holds the instruction; never a key across sessions; "
                "null when not stated.",
            ),
            column(
                "address",
                "uint64",
                "id",
                True,
                "Address of the instruction in its code object as the capture states it; null for rows the decoder "
                "gives without one.",
            ),
            column(
                "line",
                "int64",
                "id",
                True,
                "Position of the instruction in the decoder's listing of the code; null when there is no listing.",
            ),
            column(
                "instruction",
                "string",
                "text",
                True,
                "Disassembled instruction with its operands; null when the code object was not at hand.",
            ),
            column(
                "instruction_class",
                "string",
                "name",
                True,
                "Unit that executes it, such as vector, scalar, matrix, vector memory, scalar memory, LDS, branch or "
                "wait; null when instruction is null.",
            ),
            column(
                "hits",
                "int64",
                "count",
                True,
                "Times the traced wavefronts executed the instruction; null when it was sampled and not traced.",
            ),
            column(
                "latency_cycles",
                "int64",
                "cycles",
                True,
                "Cycles from the wavefront reaching the instruction to it being done, summed over hits, stall_cycles "
                "included; null when not traced.",
            ),
            column(
                "stall_cycles",
                "int64",
                "cycles",
                True,
                "Cycles in which the wavefront could not issue the instruction, summed over hits; null when not "
                "traced.",
            ),
            column(
                "idle_cycles",
                "int64",
                "cycles",
                True,
                "Cycles between the end of the instruction before and the wavefront reaching this one, summed over "
                "hits; null when not traced.",
            ),
            column(
                "samples",
                "int64",
                "count",
                True,
                "Program-counter samples that fell on the instruction; null when it was traced and not sampled.",
            ),
            column(
                "source",
                "string",
                "text",
                True,
                "Source file and line that the compiler's debug information gives for the instruction; null when "
                "there is none.",
            ),
        ),
        sort_by=(
            "kernel_id",
            "dispatch_id",
            "code_object_id",
            "address",
            "line",
        ),
    ),
    Table(
        name="att_stalls",
        section="Analysis",
        meaning=("One row is one reason for which wavefronts of a kernel stalled. Filled by the stage att_enrichment."),
        columns=(
            column(
                "kernel_id",
                "int32",
                "id",
                True,
                "Kernel that stalled, in `kernels`; null when the code could not be matched to one.",
            ),
            column(
                "dispatch_id",
                "int32",
                "id",
                True,
                "Dispatch that was traced, in `dispatches`; null when several are summed or it could not be matched.",
            ),
            column(
                "reason",
                "string",
                "name",
                False,
                "What the wavefronts waited for, such as vector memory, LDS, an instruction fetch, a barrier or a "
                "busy execution unit.",
            ),
            column(
                "stall_cycles",
                "int64",
                "cycles",
                True,
                "Stalled cycles with this reason, summed over the traced wavefronts; null when the kernel was sampled "
                "and not traced.",
            ),
            column(
                "samples",
                "int64",
                "count",
                True,
                "Samples that found a wavefront stalled for this reason; null when the kernel was traced and not "
                "sampled.",
            ),
            column(
                "share_ratio",
                "float64",
                "ratio",
                True,
                "This reason's part of all stalled cycles, or samples, of the same kernel and dispatch, 0..1; null "
                "when there are none.",
            ),
        ),
        sort_by=(
            "kernel_id",
            "dispatch_id",
            "reason",
        ),
    ),
)
