"""Figures derived from model and trace, and the completeness of the recording that they rest on.

Figures against a device's limits are `device_limits`, conclusions `judgement`.
"""

from typing import Final

from aaco_pipeline.lake.declaration import (
    BOOL,
    BYTE_PER_S,
    BYTES,
    COUNT,
    FLOAT64,
    ID,
    INT32,
    INT64,
    NAME,
    NS,
    RATIO,
    STRING,
    STRINGS,
    TEXT,
    TRUTH,
    Table,
    column,
    nullable,
)

# A column is one call of at most three lines.
# fmt: off
TABLES: Final[tuple[Table, ...]] = (
    Table(
        name="completeness", section="Completeness",
        meaning="One row counts what one device, process and kind of record was to have and has. Filled by the stage "
                "completeness.",
        sort_by=("record_kind", "process_id", "device_id"),
        columns=(
            column("record_kind", STRING, NAME, "Table whose records are counted: `dispatches`, `memory_copies`, "
                "`api_calls`, `counters` or `att_instructions`."),
            nullable("process_id", INT32, ID, "Process whose records they are, in `processes`; null for records of no "
                "known process."),
            nullable("device_id", INT32, ID, "Device of the records, in `devices`; null where none is known, as of "
                "host calls, and of launches that left no record in a process with several devices."),
            nullable("launched", INT64, COUNT, "Host calls that launch work of this kind, those inside a graph capture "
                "left out; null when no host calls were recorded."),
            nullable("unrecorded", INT64, COUNT, "Of these, launches of which no record is there; of graphs, records "
                "that other replays of the graph have. Null when launches are not known."),
            column("recorded", INT64, COUNT, "Records of the kind."),
            nullable("linked", INT64, COUNT, "Records whose launching call was recorded; null when no host calls "
                "were."),
            nullable("counted", INT64, COUNT, "Dispatches with a value of at least one counter; null for other "
                "kinds."),
            nullable("dropped", INT64, COUNT, "Records that the tool itself says it dropped; null when it says "
                "nothing either way."),
            nullable("out_of_range", INT64, COUNT, "Records that the tool itself left out because they lay outside its "
                "recording; null when it says nothing."),
            nullable("out_of_order", INT64, COUNT, "Records that begin before the call that launched them, or end "
                "before they begin; null when neither can be told."),
            nullable("before_recording", INT64, COUNT, "Records whose launch came before the recording of host calls "
                "began; null when no host calls were recorded."),
            nullable("before_recording_ns", INT64, NS, "Summed durations of those records; null as before_recording."),
            nullable("clock_step_ns", INT64, NS, "Least jump between host and device clock within the recording that "
                "its own order demands; zero when one offset fits; null without links."),
            nullable("passes", INT64, COUNT, "Counter passes that the records come from; null for other kinds."),
            nullable("repetitions", INT64, COUNT, "Most often that one counter of one dispatch was taken in one pass; "
                "null for other kinds."),
            nullable("reason", STRING, TEXT, "Why counts of the row are null; null when there is nothing to explain."),
        ),
    ),
    Table(
        name="completeness_findings", section="Completeness",
        meaning="One row is one way in which the recording falls short, with what that does to which figures and how "
                "to record again. Filled by the stage completeness; empty when nothing was found.",
        sort_by=("finding_id",),
        columns=(
            column("finding_id", INT32, ID, "Dense number of the finding within the session, the gravest first."),
            column("finding", STRING, NAME, "What was found, by the names listed in the documentation, such as "
                "`launches_unrecorded`."),
            column("severity", STRING, NAME, "`fault` when the capture contradicts itself or the tool says so, `bound` "
                "when figures become bounds, `note` when no figure changes."),
            column("grade", STRING, NAME, "`observed` when records show it, `inferred` when it is the best explanation "
                "of what they show."),
            column("subject", STRING, TEXT, "What the finding is about: a device, a process, a file, a counter."),
            nullable("process_id", INT32, ID, "Process that it is about, in `processes`; null for all."),
            nullable("device_id", INT32, ID, "Device that it is about, in `devices`; null for all."),
            nullable("start_ns", INT64, NS, "Start of the time that it is about, on the session's axis; null for all "
                "of it."),
            nullable("end_ns", INT64, NS, "End of that time, exclusive; null for all of it."),
            nullable("records", INT64, COUNT, "Records, launches or values concerned; null if uncountable."),
            column("evidence", STRING, TEXT, "What shows it, in a sentence with its numbers."),
            column("voids", STRINGS, NAME, "Figures (table.column) that it makes void: they are null."),
            column("at_least", STRINGS, NAME, "Figures that it makes a lower bound: the truth is at least as much."),
            column("at_most", STRINGS, NAME, "Figures that it makes an upper bound: the truth is at most as much."),
            column("mend", STRING, TEXT, "The command or setting that records it whole."),
        ),
    ),
    Table(
        name="kernel_stats", section="Analysis",
        meaning="One row sums up all dispatches of one kernel. Filled by the stage timeline.",
        sort_by=("kernel_id",),
        columns=(
            column("kernel_id", INT32, ID, "Kernel that is summed up, in `kernels`."),
            column("dispatch_count", INT64, COUNT, "Dispatches of the kernel in the session."),
            column("total_ns", INT64, NS, "Sum of self_ns over the dispatches, so that a nested dispatch is counted "
                "once; overlapping dispatches each count in full."),
            column("mean_ns", INT64, NS, "Mean self_ns of one dispatch, total_ns / dispatch_count rounded to the "
                "nanosecond."),
            column("min_ns", INT64, NS, "Shortest self_ns among the dispatches."),
            column("p50_ns", INT64, NS, "Median self_ns among the dispatches."),
            column("p99_ns", INT64, NS, "99th percentile of self_ns among the dispatches; near max_ns when there are "
                "fewer than a hundred."),
            column("max_ns", INT64, NS, "Longest self_ns among the dispatches."),
            nullable("share_ratio", FLOAT64, RATIO, "total_ns divided by its sum over all kernels of the session, "
                "0..1; null when that sum is zero."),
        ),
    ),
    Table(
        name="operator_kernels", section="Analysis",
        meaning="One row says how much of one kernel's work was done for one operator, of the model or of the "
                "framework that launched it. Filled by the stage model_graph.",
        sort_by=("node_id", "kernel_id", "match"), version=2,
        columns=(
            nullable("node_id", INT32, ID, "Operator of the model the work was done for, in `model_nodes`; null when "
                "match is `correlation` or `unattributed`."),
            column("kernel_id", INT32, ID, "Kernel that did the work, in `kernels`."),
            column("dispatch_count", INT64, COUNT, "Dispatches of the kernel that were attributed to the operator."),
            column("total_ns", INT64, NS, "Sum of self_ns over those dispatches; over all rows it equals the sum in "
                "`kernel_stats`."),
            column("match", STRING, NAME, "What the attribution rests on: `name` of the operator in the event, `order` "
                "of execution, enclosing `marker`, `correlation` with a launch inside a call of the operator, or "
                "`unattributed`."),
            nullable("score", FLOAT64, RATIO, "Trust in the attribution, 0..1, where 1 means that the capture itself "
                "recorded it; null when match is `unattributed`."),
            nullable("operator", STRING, NAME, "Framework operator that launched the kernel, the innermost one open on "
                "the launching thread, such as `aten::addmm`; null unless match is `correlation`.", since=2),
            nullable("outermost_operator", STRING, NAME, "Framework operator that encloses all others around the "
                "launch, such as `aten::linear`; the operator itself when none does; null unless match is "
                "`correlation`.", since=2),
        ),
    ),
    Table(
        name="timeline", section="Analysis",
        meaning="One row says how one device spent one window: an iteration, or the whole. Filled by the stage "
                "timeline.",
        sort_by=("device_id", "iteration"), version=2,
        columns=(
            column("device_id", INT32, ID, "Device the row is about, in `devices`."),
            nullable("iteration", INT32, ID, "Iteration of the pass `trace` that the window covers; null for the row "
                "over the whole window."),
            column("window_start_ns", INT64, NS, "Start of the window, on the session's axis; activities are clipped "
                "to the window."),
            column("window_end_ns", INT64, NS, "End of the window, exclusive, on the session's axis."),
            column("window_rule", STRING, NAME, "How the window's ends were chosen, such as from the iteration's own "
                "times, from markers, or from the first and last activity."),
            nullable("busy_ns", INT64, NS, "Length of the union over all device activities in the window, kernels, "
                "copies and fills; overlap counts once; null without device events."),
            nullable("active_ratio", FLOAT64, RATIO, "busy_ns divided by the window's length, 0..1; null when busy_ns "
                "is null or the window is empty."),
            nullable("compute_ns", INT64, NS, "Length of the union of compute dispatches in the window, communication "
                "kernels excluded; null without dispatch events."),
            nullable("exposed_copy_ns", INT64, NS, "Time in which a copy ran while neither compute nor communication "
                "did; null when copies were not traced."),
            nullable("exposed_communication_ns", INT64, NS, "Time in which a communication kernel ran while no compute "
                "did; null when communication cannot be told apart."),
            nullable("overlapped_ns", INT64, NS, "Time in which a copy or communication ran while compute did, and so "
                "was hidden by it; null when neither was traced."),
            nullable("activity_time_sum_ns", INT64, NS, "Sum of the durations of all device activities in the window, "
                "nested dispatches by self_ns; exceeds busy_ns where activities overlap."),
            nullable("linked_ratio", FLOAT64, RATIO, "Share of the window's device activities whose launching host "
                "call was found by correlation_id, 0..1; null when there are no activities."),
            column("activity_count", INT64, COUNT, "Device activities that touch the window; zero when events were "
                "recorded and none fell in it."),
            nullable("busy_bound", STRING, NAME, "`at_least` where `completeness_findings` says that work ran in the "
                "window that was not recorded, so that busy time is at least this; null otherwise.", since=2),
        ),
    ),
    Table(
        name="gaps", section="Analysis",
        meaning="One row is one interval of the whole window in which a device had no activity at all. Filled by the "
                "stage timeline.",
        sort_by=("device_id", "start_ns"), version=3,
        columns=(
            column("device_id", INT32, ID, "Device that was idle, in `devices`."),
            column("start_ns", INT64, NS, "When the device fell idle, on the session's axis."),
            column("end_ns", INT64, NS, "When its next activity began or the window ended, exclusive, on the session's "
                "axis."),
            column("cause", STRING, NAME, "Why the device was idle: `sync`, `host_wait`, `launch_latency`, "
                "`dependency`, `kernel_kernel`, or `unknown` when the trace does not tell."),
            nullable("previous_activity_kind", STRING, NAME, "Kind of the activity that ended the busy interval before "
                "it: `dispatch` or `memory_copy`; null at the start of the window."),
            nullable("previous_activity_id", INT32, ID, "Number of that activity in the table of its kind; null at the "
                "start of the window."),
            nullable("next_activity_kind", STRING, NAME, "Kind of the activity that ended the gap: `dispatch` or "
                "`memory_copy`; null at the end of the window."),
            nullable("next_activity_id", INT32, ID, "Number of that activity in the table of its kind; null at the end "
                "of the window."),
            nullable("host_call_id", INT32, ID, "Host call that the cause was concluded from, in `api_calls`; null "
                "when there is none."),
            nullable("in_launch_calls_ns", INT64, NS, "Part of the gap that the thread of the next launch was in "
                "launching calls; null when none is known.", since=2),
            nullable("in_launching_operators_ns", INT64, NS, "Part it spent in operators that launch, outside their "
                "launching calls; null when no launch is known.", since=2),
            nullable("outside_ns", INT64, NS, "Rest of the gap: neither in a launch nor in an operator that launches; "
                "null when none is known.", since=2),
            nullable("launches_since_wait", INT64, COUNT, "Launches between the blocking calls around the next launch, "
                "on its thread; null when it never waits.", since=2),
            nullable("doubt", STRING, NAME, "Finding in `completeness_findings` by which the device may have run work "
                "here that was not recorded; null when nothing speaks against idleness.", since=3),
        ),
    ),
    Table(
        name="critical_path", section="Analysis",
        meaning="One row gives one activity's place in the dependency graph of the run. Filled by the stage "
                "critical_path.",
        sort_by=("activity_kind", "activity_id"),
        columns=(
            column("activity_kind", STRING, NAME, "Kind of the activity: `dispatch`, `memory_copy` or `api_call`."),
            column("activity_id", INT32, ID, "Number of the activity in the table of its kind."),
            column("slack_ns", INT64, NS, "How much later the activity could end without the window ending later; zero "
                "on the path."),
            column("free_slack_ns", INT64, NS, "How much later the activity could end without any activity that "
                "follows it starting later; never above slack_ns."),
            column("is_critical", BOOL, TRUTH, "True when the activity lies on the longest path through the window."),
            column("binding_edge", STRING, NAME, "Dependency that set its start: `launch`, `stream`, `queue`, `event`, "
                "`sync`, `program` for host order, or `none` when nothing recorded did."),
            column("unexplained_wait_ns", INT64, NS, "Time between the end of the binding dependency and the "
                "activity's start that no recorded activity explains."),
            nullable("criticality", FLOAT64, RATIO, "Share of the time of the activity's kernel, over all its "
                "dispatches, that lies on a longest path, 0..1; null for activities without a kernel."),
        ),
    ),
    Table(
        name="critical_path_summary", section="Analysis",
        meaning="One row gives one category's part of the longest path of one scope; the scope's own figures repeat in "
                "each of its rows. Filled by the stage critical_path.",
        sort_by=("scope", "category"),
        columns=(
            column("scope", STRING, NAME, "What the path runs through: `session` for the whole traced window, or a "
                "name for a part of it, such as one iteration."),
            column("window_ns", INT64, NS, "Length of the window that the path runs through."),
            column("path_ns", INT64, NS, "Sum of the activities' own time on the path, unexplained waits excluded; "
                "never above window_ns."),
            column("unexplained_ns", INT64, NS, "Sum of the waits on the path that no recorded activity explains."),
            column("category", STRING, NAME, "Kind of time on the path, such as compute, copy, communication, launch, "
                "synchronisation or host work."),
            column("category_ns", INT64, NS, "Time on the path that falls in the category; over all categories of a "
                "scope it adds up to path_ns."),
            nullable("category_ratio", FLOAT64, RATIO, "category_ns divided by path_ns, 0..1; null when the path is "
                "empty."),
        ),
    ),
    Table(
        name="what_if", section="Analysis",
        meaning="One row says how much shorter the longest path would be if one kernel ran faster, by computing the "
                "path anew. Filled by the stage critical_path for the kernels that hold most of the path.",
        sort_by=("kernel_id", "speedup_ratio"),
        columns=(
            column("kernel_id", INT32, ID, "Kernel that is imagined to be faster, in `kernels`."),
            column("speedup_ratio", FLOAT64, RATIO, "How many times as fast every dispatch of it becomes."),
            column("critical_ns", INT64, NS, "Time of the kernel on activities without slack, as measured."),
            column("saved_ns", INT64, NS, "What the longest path becomes shorter by; below critical_ns x (1 - 1 / "
                "speedup_ratio) where another chain of activities becomes the longest."),
            nullable("saved_ratio", FLOAT64, RATIO, "saved_ns divided by the session's window; null if it is empty."),
        ),
    ),
    Table(
        name="rank_clocks", section="Analysis",
        meaning="One row says how the clock of one process of a job lies on the axis of the process with the lowest "
                "rank. Filled by the stage critical_path.",
        sort_by=("process_id",),
        columns=(
            column("process_id", INT32, ID, "Process whose clock is meant, in `processes`."),
            column("reference_process_id", INT32, ID, "Process whose clock the offset leads to; itself too."),
            column("method", STRING, NAME, "What aligns the clocks: `same_process`, `same_host` for one clock by "
                "construction, `collectives` for an estimate from collectives that processes of both clocks took part "
                "in, or `none`."),
            nullable("offset_ns", INT64, NS, "What to add to times of the process to have them on the reference's "
                "axis; null when method is `none`."),
            nullable("uncertainty_ns", INT64, NS, "The offset is right within this much either way, over the time of "
                "the collectives; null when method is `none`."),
            nullable("drift_ratio", FLOAT64, RATIO, "How much the offset grows per nanosecond of the process's time; "
                "null when a constant describes it."),
            nullable("anchor_ns", INT64, NS, "Time of the process, on the session's axis, at which a drifting offset "
                "is offset_ns; null without drift."),
            column("collectives", INT64, COUNT, "Collectives that the estimate rests on."),
            nullable("reason", STRING, TEXT, "Why there is no alignment, or what limits it; null otherwise."),
        ),
    ),
    Table(
        name="collectives", section="Analysis",
        meaning="One row is one process's part in one collective operation. Filled by the stage critical_path; the "
                "rows of one collective share collective_id.",
        sort_by=("collective_id", "process_id", "dispatch_id"), version=2,
        columns=(
            column("collective_id", INT32, ID, "Dense number of the collective within the session."),
            column("process_id", INT32, ID, "Process that took part, in `processes`."),
            column("dispatch_id", INT32, ID, "Communication kernel of that process, in `dispatches`."),
            nullable("name", STRING, NAME, "Operation, such as `all_reduce`; null when nothing states it."),
            nullable("communicator", STRING, NAME, "Group of ranks, as the capture names it; `unnamed group N` where "
                "it describes no collective and streams tell who takes part; null if neither does."),
            column("participants", INT64, COUNT, "Processes of the session whose part was found."),
            nullable("expected_participants", INT64, COUNT, "Size of the group, if the capture states it."),
            nullable("size_bytes", INT64, BYTES, "Bytes the process put in; null when not stated."),
            column("arrival_ns", INT64, NS, "When the process's kernel began, on the session's axis, moved by the "
                "offset in `rank_clocks`; not moved where there is none."),
            nullable("wait_ns", INT64, NS, "How much later the last process arrived; null when clocks are not aligned, "
                "parts are missing, or neither the capture nor streams tell the group's size."),
            nullable("arrival_spread_ns", INT64, NS, "Last arrival minus first, the same on all rows of the "
                "collective; null as wait_ns is."),
            nullable("is_straggler", BOOL, TRUTH, "True for the process that arrived last by more than the clocks' "
                "uncertainty; null when that cannot be told."),
            column("exposed_ns", INT64, NS, "Part of the kernel's time in which its device ran no compute: nothing hid "
                "the communication."),
            nullable("duration_ns", INT64, NS, "How long the process's kernel took, waiting for others included; null "
                "in tables of before.", since=2),
            nullable("algorithm_bytes_per_s", FLOAT64, BYTE_PER_S, "Bytes of the whole array, as nccl-tests counts "
                "them, divided by duration_ns in seconds; null when the size is not stated.", since=2),
            nullable("bus_bytes_per_s", FLOAT64, BYTE_PER_S, "algorithm_bytes_per_s times nccl-tests' factor for the "
                "operation and its ranks; null when name or expected_participants is, or there is no factor.", since=2),
            nullable("share_ratio", FLOAT64, RATIO, "bus_bytes_per_s divided by what a device's links to the others of "
                "the group carry in one direction; null when that is not known.", since=2),
            nullable("remark", STRING, TEXT, "What the rate says, such as `a late rank or a broken transport` below a "
                "tenth of the links' rate, or why it says nothing; null when nothing is to be said.", since=2),
        ),
    ),
)
