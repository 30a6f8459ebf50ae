"""What is derived from model and trace: statistics, timeline, gaps, path, operators' kernels, ranks.

What counters and thread traces say against a device's limits lives in `device_limits`, and conclusions in `judgement`.
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
            "One row says how much of one kernel's work was done for one operator, of the model or of the framework "
            "that launched it. Filled by the stage model_graph."
        ),
        columns=(
            column(
                "node_id",
                "int32",
                "id",
                True,
                "Operator of the model the work was done for, in `model_nodes`; null when match is `correlation` or "
                "`unattributed`.",
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
                "`marker`, `correlation` with a launch inside a call of the operator, or `unattributed`.",
            ),
            column(
                "score",
                "float64",
                "ratio",
                True,
                "Trust in the attribution, 0..1, where 1 means that the capture itself recorded it; null when match "
                "is `unattributed`.",
            ),
            column(
                "operator",
                "string",
                "name",
                True,
                "Framework operator that launched the kernel, the innermost one open on the launching thread, such as "
                "`aten::addmm`; null unless match is `correlation`.",
                since=2,
            ),
            column(
                "outermost_operator",
                "string",
                "name",
                True,
                "Framework operator that encloses all others around the launch, such as `aten::linear`; the operator "
                "itself when none does; null unless match is `correlation`.",
                since=2,
            ),
        ),
        sort_by=(
            "node_id",
            "kernel_id",
            "match",
        ),
        version=2,
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
            column(
                "in_launch_calls_ns",
                "int64",
                "ns",
                True,
                "Part of the gap that the thread of the next launch was in launching calls; null when none is known.",
                since=2,
            ),
            column(
                "in_launching_operators_ns",
                "int64",
                "ns",
                True,
                "Part it spent in operators that launch, outside their launching calls; null when no launch is known.",
                since=2,
            ),
            column(
                "outside_ns",
                "int64",
                "ns",
                True,
                "Rest of the gap: neither in a launch nor in an operator that launches; null when none is known.",
                since=2,
            ),
            column(
                "launches_since_wait",
                "int64",
                "count",
                True,
                "Launches between the blocking calls around the next launch, on its thread; null when it never waits.",
                since=2,
            ),
        ),
        sort_by=(
            "device_id",
            "start_ns",
        ),
        version=2,
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
        name="what_if",
        section="Analysis",
        meaning=(
            "One row says how much shorter the longest path would be if one kernel ran faster, by computing the path "
            "anew. Filled by the stage critical_path for the kernels that hold most of the path."
        ),
        columns=(
            column("kernel_id", "int32", "id", False, "Kernel that is imagined to be faster, in `kernels`."),
            column("speedup_ratio", "float64", "ratio", False, "How many times as fast every dispatch of it becomes."),
            column("critical_ns", "int64", "ns", False, "Time of the kernel on activities without slack, as measured."),
            column(
                "saved_ns",
                "int64",
                "ns",
                False,
                "What the longest path becomes shorter by; below critical_ns x (1 - 1 / speedup_ratio) where another "
                "chain of activities becomes the longest.",
            ),
            column(
                "saved_ratio",
                "float64",
                "ratio",
                True,
                "saved_ns divided by the session's window; null if it is empty.",
            ),
        ),
        sort_by=("kernel_id", "speedup_ratio"),
    ),
    Table(
        name="rank_clocks",
        section="Analysis",
        meaning=(
            "One row says how the clock of one process of a job lies on the axis of the process with the lowest rank. "
            "Filled by the stage critical_path."
        ),
        columns=(
            column("process_id", "int32", "id", False, "Process whose clock is meant, in `processes`."),
            column(
                "reference_process_id", "int32", "id", False, "Process whose clock the offset leads to; itself too."
            ),
            column(
                "method",
                "string",
                "name",
                False,
                "What aligns the clocks: `same_process`, `same_host` for one clock by construction, `collectives` for "
                "an estimate from collectives that processes of both clocks took part in, or `none`.",
            ),
            column(
                "offset_ns",
                "int64",
                "ns",
                True,
                "What to add to times of the process to have them on the reference's axis; null when method is `none`.",
            ),
            column(
                "uncertainty_ns",
                "int64",
                "ns",
                True,
                "The offset is right within this much either way, over the time of the collectives; null when method "
                "is `none`.",
            ),
            column(
                "drift_ratio",
                "float64",
                "ratio",
                True,
                "How much the offset grows per nanosecond of the process's time; null when a constant describes it.",
            ),
            column(
                "anchor_ns",
                "int64",
                "ns",
                True,
                "Time of the process, on the session's axis, at which a drifting offset is offset_ns; null without "
                "drift.",
            ),
            column("collectives", "int64", "count", False, "Collectives that the estimate rests on."),
            column("reason", "string", "text", True, "Why there is no alignment, or what limits it; null otherwise."),
        ),
        sort_by=("process_id",),
    ),
    Table(
        name="collectives",
        section="Analysis",
        meaning=(
            "One row is one process's part in one collective operation. Filled by the stage critical_path; the rows "
            "of one collective share collective_id."
        ),
        columns=(
            column("collective_id", "int32", "id", False, "Dense number of the collective within the session."),
            column("process_id", "int32", "id", False, "Process that took part, in `processes`."),
            column("dispatch_id", "int32", "id", False, "Communication kernel of that process, in `dispatches`."),
            column("name", "string", "name", True, "Operation, such as `all_reduce`; null when nothing states it."),
            column("communicator", "string", "name", True, "Group of ranks, as the capture names it; null if unnamed."),
            column("participants", "int64", "count", False, "Processes of the session whose part was found."),
            column("expected_participants", "int64", "count", True, "Size of the group, if the capture states it."),
            column("size_bytes", "int64", "bytes", True, "Bytes the process put in; null when not stated."),
            column(
                "arrival_ns",
                "int64",
                "ns",
                False,
                "When the process's kernel began, on the session's axis, moved by the offset in `rank_clocks`; not "
                "moved where there is none.",
            ),
            column(
                "wait_ns",
                "int64",
                "ns",
                True,
                "How much later the last process arrived; null when clocks are not aligned, parts are missing, or the "
                "group's size is not stated.",
            ),
            column(
                "arrival_spread_ns",
                "int64",
                "ns",
                True,
                "Last arrival minus first, the same on all rows of the collective; null as wait_ns is.",
            ),
            column(
                "is_straggler",
                "bool",
                "bool",
                True,
                "True for the process that arrived last by more than the clocks' uncertainty; null when that cannot "
                "be told.",
            ),
            column(
                "exposed_ns",
                "int64",
                "ns",
                False,
                "Part of the kernel's time in which its device ran no compute: nothing hid the communication.",
            ),
        ),
        sort_by=("collective_id", "process_id", "dispatch_id"),
    ),
)
