"""The answer to where the time went: the steady part of a recording, its time shared out, and what to fix first."""

from typing import Final

from aaco_pipeline.lake.declaration import (
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
    VARIES,
    Table,
    column,
    nullable,
)

# A column is one call of at most three lines.
# fmt: off
TABLES: Final[tuple[Table, ...]] = (
    Table(
        name="session_parts", section="Answer",
        meaning="One row is one stretch of a device's first-to-last window: set-up, steady part, an interruption of "
                "it, or tear-down. The stretches cover the window exactly. Filled by the stage timeline.",
        sort_by=("device_id", "start_ns"), version=2,
        columns=(
            column("device_id", INT32, ID, "Device whose window it is, in `devices`."),
            column("part", STRING, NAME, "`set_up`, `steady`, `interruption` or `tear_down`."),
            column("start_ns", INT64, NS, "Start of the stretch, on the session's axis."),
            column("end_ns", INT64, NS, "End of the stretch, exclusive."),
            nullable("repetitions", INT64, COUNT, "How often the device's steady work repeats over all its steady "
                "stretches; null for other parts, and where nothing repeats."),
            nullable("period_ns", INT64, NS, "Median time from the beginning of a repetition's device work to that of "
                "the next one; null where repetitions is, and in sessions judged by an earlier version.", since=2),
            nullable("phase", INT32, ID, "Number of a stretch beside the steady part that repeats something else, such "
                "as prefill beside decode; null for all others."),
            nullable("lacking", STRING, NAME, "`cold_start` or `incomplete` for a device without any steady part: why "
                "there is none; null for the others."),
            column("reason", STRING, TEXT, "What tells that it is this part."),
        ),
    ),
    Table(
        name="first_calls", section="Answer",
        meaning="One row is one host call that does what only a first call does, such as loading code or creating a "
                "context. Filled by the stage timeline.",
        sort_by=("start_ns", "call_id"),
        columns=(
            nullable("call_id", INT32, ID, "The host call, in `api_calls`; null for a stretch of several."),
            column("kind", STRING, NAME, "`compilation`, `module_load`, `initialization`, `allocation`, "
                "`graph_capture`, `first_touch` or `autotuning`; `set_up_copy` and `read_back_copy` are copies before "
                "and after the steady part, and no first calls."),
            nullable("name", STRING, NAME, "Name of the call."),
            nullable("process_id", INT32, ID, "Process that made it, in `processes`."),
            nullable("thread_id", INT64, ID, "Thread that made it, as the system numbers it."),
            column("start_ns", INT64, NS, "When it began, on the session's axis."),
            column("end_ns", INT64, NS, "When it ended, on the session's axis."),
            column("reason", STRING, TEXT, "What tells that it is of this kind."),
        ),
    ),
    Table(
        name="outlier_dispatches", section="Answer",
        meaning="One row is one dispatch that took far longer than its kernel's warm ones. Filled by the stage "
                "timeline.",
        sort_by=("dispatch_id",),
        columns=(
            column("dispatch_id", INT32, ID, "The dispatch, in `dispatches`."),
            column("kernel_id", INT32, ID, "Its kernel, in `kernels`."),
            column("device_id", INT32, ID, "Device it ran on, in `devices`."),
            column("part", STRING, NAME, "Part of the recording that it lies in, as in `session_parts`."),
            column("start_ns", INT64, NS, "When it began, on the session's axis."),
            column("duration_ns", INT64, NS, "How long it took."),
            column("warm_median_ns", INT64, NS, "Median of the kernel's warm dispatches."),
            column("warm_spread_ns", INT64, NS, "Third less first quartile of those dispatches' durations."),
            column("warm_dispatches", INT64, COUNT, "How many warm dispatches there are."),
            column("possible_causes", STRINGS, NAME, "Possible causes, such as first touch or page faults; empty when "
                "nothing recorded hints at one."),
        ),
    ),
    Table(
        name="time_shares", section="Answer",
        meaning="One row is a share of a device's steady window, or the part of a share that one reason explains. Rows "
                "without a reason add up to the window. Filled by the stage classification.",
        sort_by=("device_id", "share", "reason"),
        columns=(
            column("device_id", INT32, ID, "Device whose time it is, in `devices`."),
            column("share", STRING, NAME, "`device`, `communication`, `copy`, `sync`, `launch`, `host` or `unknown`."),
            nullable("reason", STRING, NAME, "What explains this part of the share: `contention`, `throttling`, "
                "`imbalance`, `allocation`, `compilation`, `page_faults`; null for the share as a whole."),
            column("time_ns", INT64, NS, "Time of the share, or of the part."),
            column("share_ratio", FLOAT64, RATIO, "time_ns divided by the steady window."),
            column("grade", STRING, NAME, "`observed` when records show it, `inferred` when it is the best explanation "
                "of what they show."),
        ),
    ),
    Table(
        name="kinds_of_work", section="Answer",
        meaning="One row is one kind of work in the judged device's steady window (in all of the recording where it "
                "carries no answer), with its heaviest kernel or operator and how near that came to a roof. Filled by "
                "the stage classification.",
        sort_by=("kind",), version=2,
        columns=(
            column("kind", STRING, NAME, "Kind of work: families of `kernels`, those that fuse into others together as "
                "`elementwise_and_copies`; `unnamed` for kernels of no known family."),
            column("time_ns", INT64, NS, "Summed duration of its kernels."),
            column("share_ratio", FLOAT64, RATIO, "time_ns divided by that of all kernels but collectives; of "
                "communication by that of all kernels."),
            column("dispatch_count", INT64, COUNT, "Number of dispatches and copies of it."),
            column("alone_ns", INT64, NS, "Time in which no kernel of another kind ran: without it the device is busy "
                "for so much less."),
            nullable("kernel_id", INT32, ID, "Its kernel that takes most time, in `kernels`."),
            nullable("operator", STRING, NAME, "The framework operator of this kind that takes most time; null when "
                "operators that were recorded are less than half of the kind's time."),
            nullable("shapes", STRING, TEXT, "Shapes of that operator's inputs as `operator_shapes` has them."),
            nullable("dtype", STRING, NAME, "Number format of the rate; null for bytes and where none is known."),
            nullable("rate", FLOAT64, VARIES, "What the operator, else the kernel, achieved, in rate_unit."),
            nullable("rate_unit", STRING, NAME, "`flop/s` or `byte/s`; null when rate is."),
            nullable("roof", STRING, NAME, "Resource in `ceilings` whose roof is nearest; null when not known."),
            nullable("roof_ratio", FLOAT64, RATIO, "Shortest time at that roof divided by the time taken."),
            nullable("reached_ratio", FLOAT64, RATIO, "roof_ratio of all its operators, else kernels, weighted by "
                "their time; null when it is known for less than half of the kind's time.", since=2),
            nullable("roof_source", STRING, NAME, "Whose figure the roof is: `measured`, `reported` of the product, or "
                "`spec`."),
            nullable("peak_ratio", FLOAT64, RATIO, "rate divided by the published ceiling; decides nothing."),
        ),
    ),
    Table(
        name="answers", section="Answer",
        meaning="One row is the session's answer, and its only one: whether the recording carries one, where the time "
                "went, and what to fix first. Filled by the stage classification.",
        sort_by=("class",), version=3,
        columns=(
            column("class", STRING, NAME, "`incomplete` or `cold_start` when the recording carries no answer; else the "
                "largest share of the steady window, or one that leads before the device's own, or the reason that "
                "explains more than half of it."),
            nullable("second_class", STRING, NAME, "Another share within 0.05 of the largest; null when none is."),
            nullable("reason", STRING, TEXT, "Why the recording carries no answer, or which rank the others wait for "
                "and why it is late; null when the shares say it all."),
            nullable("device_id", INT32, ID, "The judged device: the busiest; null without one."),
            nullable("window_start_ns", INT64, NS, "Start of the judged window; null without times."),
            nullable("window_end_ns", INT64, NS, "End of the judged window, exclusive."),
            nullable("window_ns", INT64, NS, "Time judged: the window without interruptions."),
            column("window_rule", STRING, TEXT, "How the window was found."),
            nullable("beside_ns", INT64, NS, "Set-up, interruptions and tear-down beside it; null without times."),
            nullable("repetitions", INT64, COUNT, "Iterations, tokens or other repetitions within the window; null "
                "when nothing repeats."),
            nullable("period_ns", INT64, NS, "Time of one of them: of marked iterations the median from the device's "
                "work of one to that of the next, of others window_ns over repetitions; null where nothing repeats.",
                since=2),
            nullable("class_ratio", FLOAT64, RATIO, "The class's share of the window; null when it is not one."),
            nullable("busy_ratio", FLOAT64, RATIO, "Share of the window in which the device did anything."),
            nullable("resource", STRING, NAME, "Label by which most of the device's share is limited, as kernels are "
                "labelled; null when less than half has one."),
            nullable("kind", STRING, NAME, "Kind of work to fix first, in `kinds_of_work`; null unless kernels are."),
            nullable("subject", STRING, TEXT, "What to fix first by its name: operator, kernel, call or copy; null "
                "when nothing is known of it."),
            nullable("saves_at_most_ns", INT64, NS, "What that can save of the traced window at most; null when not "
                "known."),
            nullable("unprofiled_period_ns", INT64, NS, "What one repetition takes without a profiler, from its "
                "beginning to the next one's; null unless runs without one mark the same iterations.", since=3),
            nullable("saves_unprofiled_ns", INT64, NS, "What that can save of unprofiled_period_ns at most; null when "
                "that is, or saves_at_most_ns.", since=3),
            nullable("advice", STRING, TEXT, "What to do about it; null when nothing is known to do."),
            column("sharpen", STRINGS, TEXT, "What would sharpen the answer, the most useful first; at most three."),
            column("sharpen_commands", STRINGS, TEXT, "The command or setting for each, in the same order."),
        ),
    ),
)
