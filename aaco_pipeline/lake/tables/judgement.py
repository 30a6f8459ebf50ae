"""Conclusions: where the time went and what to fix first, bottlenecks, verdicts between sets of sessions and causes.

The figures that they rest on are `analysis` and `device_limits`.
"""

from typing import Final

from aaco_pipeline.lake.declaration import (
    BOOL,
    COUNT,
    DATE,
    FLOAT64,
    ID,
    INT32,
    INT64,
    NAME,
    NS,
    RATIO,
    RECORD,
    SIGNALS,
    STRING,
    STRINGS,
    TEXT,
    TIMESTAMP,
    TRUTH,
    VARIES,
    Table,
    column,
    nullable,
)

# A column is one call of at most three lines.
# fmt: off
#: The classes of a session, in words of the table `answers`.
_CLASSES: Final = (
    "`incomplete` and `cold_start` when the recording carries no answer, a share (`device`, `communication`, `copy`, "
    "`sync`, `launch`, `host`, `unknown`), or the reason for most of one (`contention`, `imbalance`, `throttling`, "
    "`allocation`, `compilation`, `page_faults`)"
)

TABLES: Final[tuple[Table, ...]] = (
    Table(
        name="session_parts", section="Answer",
        meaning="One row is one section of a device's first-to-last window: set-up, steady part, an interruption of "
                "it, or tear-down. The sections cover the window exactly. Filled by the stage timeline.",
        sort_by=("device_id", "start_ns"), version=2,
        columns=(
            column("device_id", INT32, ID, "Device whose window it is, in `devices`."),
            column("part", STRING, NAME, "`set_up`, `steady`, `interruption` or `tear_down`."),
            column("start_ns", INT64, NS, "Start of the section, on the session's axis."),
            column("end_ns", INT64, NS, "End of the section, exclusive."),
            nullable("repetitions", INT64, COUNT, "How often the device's steady work repeats over all its steady "
                "sections; null for other parts, and where nothing repeats."),
            nullable("period_ns", INT64, NS, "Median time from the beginning of a repetition's device work to that of "
                "the next one; null where repetitions is, and in sessions judged by an earlier version.", since=2),
            nullable("phase", INT32, ID, "Number of a section beside the steady part that repeats something else, such "
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
            nullable("call_id", INT32, ID, "The host call, in `api_calls`; null for an interval of several."),
            column("kind", STRING, NAME, "`compilation`, `module_load`, `initialization`, `allocation`, "
                "`graph_capture`, `first_touch` or `autotuning`; `set_up_copy` and `read_back_copy` are copies before "
                "and after the steady part, and no first calls."),
            nullable("name", STRING, NAME, "Name of the call."),
            nullable("process_id", INT32, ID, "Process that made it, in `processes`."),
            nullable("thread_id", INT64, ID, "Thread that made it, as the system numbers it."),
            column("start_ns", INT64, NS, "When it began, on the session's axis."),
            column("end_ns", INT64, NS, "When it ended, on the session's axis."),
            column("reason", STRING, TEXT, "The evidence for this kind."),
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
    Table(
        name="bottlenecks", section="Judgement",
        meaning="One row names what the session's time went to, or what limits one of its kernels. Filled by the stage "
                "classification. Since version 2 the row of a session is its row of `answers` in this table's form.",
        sort_by=("scope", "kernel_id"), version=2,
        columns=(
            column("scope", STRING, NAME, "What the row judges: `session` or `kernel`."),
            nullable("kernel_id", INT32, ID, "Kernel that is judged, in `kernels`; null when scope is `session`."),
            nullable("label", STRING, NAME, "Of a kernel the bottleneck that the evidence supports best; null when "
                "there is too little evidence, and missing then says what to collect. Of a session `answers.class`: "
                f"{_CLASSES}."),
            nullable("runner_up", STRING, NAME, "Bottleneck the evidence supports second best; of a session "
                "`answers.second_class`. Null when there is no other."),
            nullable("score", FLOAT64, RATIO, "Of a kernel the support for label, 0..1, from the weights in evidence; "
                "of a session the share of the window that label has. Null when label is, or has no share."),
            column("evidence", SIGNALS, RECORD, "Each signal that counted, with its value and unit, the threshold it "
                "was compared with, its weight and the table it comes from."),
            column("missing", STRINGS, NAME, "Signals that would have counted but were not measured; of a session what "
                "would sharpen its answer. Empty when nothing was missing."),
            nullable("recommendation", STRING, TEXT, "The next step that the label suggests to an engineer; null when "
                "there is none."),
        ),
    ),
    Table(
        name="verdicts", section="Judgement",
        meaning="One row is the verdict on one metric between two sets of sessions. Filled by the stage regression; "
                "comparing two single sessions is a campaign of two.",
        sort_by=("baseline", "candidate", "metric"), scope="campaign", version=2,
        columns=(
            column("baseline", STRING, NAME, "What the candidate is compared with: an arm of the campaign, or the id "
                "of a single session."),
            column("candidate", STRING, NAME, "What is judged: an arm of the campaign, or the id of a single session."),
            column("metric", STRING, NAME, "Metric that is compared, as named in `session_metrics`, but of each "
                "session's iterations since it was steady."),
            column("verdict", STRING, NAME, "`regressed`, `improved`, `equivalent` when the whole 90 % interval lies "
                "within the threshold, `inconclusive` when the sessions do not decide; `regressed between nights` when "
                "arms could not alternate; `hardware differs`; or `withheld` when there is nothing to judge."),
            nullable("effect_ratio", FLOAT64, RATIO, "Candidate divided by baseline, estimated over sessions as "
                "replicates; above 1 is slower for a latency; null when it cannot be estimated."),
            nullable("ci_low", FLOAT64, RATIO, "Lower end of the confidence interval of effect_ratio; null when there "
                "are too few sessions for one."),
            nullable("ci_high", FLOAT64, RATIO, "Upper end of the confidence interval of effect_ratio; null when there "
                "are too few sessions for one."),
            nullable("threshold_ratio", FLOAT64, RATIO, "Difference from 1 below which an effect is held to be "
                "irrelevant; null when none was set."),
            nullable("minimum_detectable_ratio", FLOAT64, RATIO, "Smallest difference from 1 that this many sessions "
                "with this spread would find; null when the spread is unknown."),
            column("sessions_candidate", INT64, COUNT, "Sessions of the candidate that entered the comparison."),
            column("sessions_baseline", INT64, COUNT, "Sessions of the baseline that entered the comparison."),
            nullable("sessions_needed", INT64, COUNT, "Sessions on each side, those there are included, that would "
                "make threshold_ratio detectable with power 0.8; null when the spread is unknown."),
            nullable("confidence", FLOAT64, RATIO, "Measured trust in the verdict, 0..1; null when no calibration "
                "covers this metric and design."),
            nullable("confidence_source", STRING, TEXT, "Calibration that confidence was read from; null when "
                "confidence is null."),
            nullable("suspected_cause", STRING, TEXT, "Largest cause that `attributions` supports, in words; null when "
                "none is supported."),
            nullable("recommendation", STRING, TEXT, "What to do next, such as run more sessions or look at a named "
                "kernel; null when nothing follows."),
            nullable("role", STRING, NAME, "`primary` for the one metric that decides, as the plan says, or "
                "`supporting`.", since=2),
            nullable("design", STRING, NAME, "`interleaved` when both arms ran in the same blocks, `stored baseline` "
                "when it was not run again, `between nights` when arms cannot alternate.", since=2),
            nullable("blocks", INT64, COUNT, "Blocks with sessions of both arms that entered the comparison; nights of "
                "both arms when the design is `between nights`.", since=2),
            nullable("level", FLOAT64, RATIO, "Two-sided error that the plan allows at this look; the interval is that "
                "of 1 - level. Null when this number of blocks is no planned look.", since=2),
            nullable("p_value", FLOAT64, RATIO, "Two-sided p of the t test that nothing changed; null without an "
                "interval.", since=2),
            nullable("q_value", FLOAT64, RATIO, "Least false discovery rate over the night's table at which the "
                "difference counts; null without a p_value, or when no table of a night was judged.", since=2),
            nullable("floor_ratio", FLOAT64, RATIO, "95 % quantile of the difference from 1 between identical code of "
                "this design, from `aa_ledger`; null below 100 comparisons: then policy alone is threshold_ratio.",
                since=2),
            nullable("excluded_sessions", STRINGS, ID, "Sessions of both arms that were left out of this metric, with "
                "why in reasons.", since=2),
            nullable("slow_sessions", STRINGS, ID, "Sessions that ran slower throughout than their arm's fast ones by "
                "a fifth or more; in several arms of the campaign they speak for a busy host.", since=2),
            nullable("alert_grade", STRING, NAME, "What a regression was seen on: `one boot`, `two boots` or `two "
                "devices`; null when nothing regressed or no boot was recorded.", since=2),
            nullable("reasons", STRINGS, TEXT, "Why the verdict is what it is, one sentence each, the deciding one "
                "first.", since=2),
        ),
    ),
    Table(
        name="attributions", section="Judgement",
        meaning="One row assigns a part of the difference between two sets of sessions to one subject, in recorded "
                "time an iteration. Rows that are in_sum add up to the change. Filled by the stage regression.",
        sort_by=("baseline", "candidate", "kind", "subject"), scope="campaign", version=2,
        columns=(
            column("baseline", STRING, NAME, "What the candidate is compared with, as in `verdicts`."),
            column("candidate", STRING, NAME, "What is judged, as in `verdicts`."),
            column("kind", STRING, NAME, "`selection` of other kernels at the same place, `launches` more or fewer, "
                "`duration` of each, `communication`, `copies`, `gaps`, `overlap`, `clock`, `unexplained`; beside the "
                "sum `hidden_host` and `environment`."),
            column("subject", STRING, NAME, "The subject by a name that holds across sessions, such as `kernels.name` "
                "or an environment key."),
            nullable("delta_ns", INT64, NS, "Candidate minus baseline in time per iteration that the subject accounts "
                "for; positive is slower; null for a subject that has no time of its own."),
            nullable("ci_low_ns", INT64, NS, "Lower end of the confidence interval of delta_ns over sessions; null "
                "when there are too few sessions for one."),
            nullable("ci_high_ns", INT64, NS, "Upper end of the confidence interval of delta_ns over sessions; null "
                "when there are too few sessions for one."),
            column("evidence_grade", STRING, NAME, "`observed` when the subject itself changed, `correlated` when it "
                "moved with the metric, `isolated` when changing it alone moved the metric."),
            nullable("count_part_ns", INT64, NS, "Part of delta_ns by how often it ran: difference of counts times the "
                "mean of both durations, with the idle time that it ends; null for what has no count.", since=2),
            nullable("duration_part_ns", INT64, NS, "Part of delta_ns by how long each took: difference of durations "
                "times the mean of both counts; null for what has none.", since=2),
            nullable("baseline_count", FLOAT64, COUNT, "How often it ran in an iteration of the baseline, on average; "
                "waits for `gaps` of `sync`; null for what has no count.", since=2),
            nullable("candidate_count", FLOAT64, COUNT, "The same of the candidate.", since=2),
            nullable("baseline_ns", INT64, NS, "Its time in an iteration of the baseline; null without one.", since=2),
            nullable("candidate_ns", INT64, NS, "The same of the candidate.", since=2),
            nullable("share_ratio", FLOAT64, RATIO, "delta_ns over the whole change; above 1 and negative ones occur "
                "where causes work against each other; null beside the sum.", since=2),
            nullable("matched_by", STRING, NAME, "How the two sides' kernels were matched: `name` and launch shape, "
                "`launch` (another shape), `operator`, `position`, `normalized_name`, or `added`, `removed`.", since=2),
            nullable("in_sum", BOOL, TRUTH, "True for the rows that add up to the change.", since=2),
        ),
    ),
    Table(
        name="selections", section="Judgement",
        meaning="One row is one thing that the candidate selected differently: something else at the same place. Added "
                "work is none. Filled by the stage regression.",
        sort_by=("baseline", "candidate", "rank"), scope="campaign",
        columns=(
            column("baseline", STRING, NAME, "What the candidate is compared with, as in `verdicts`."),
            column("candidate", STRING, NAME, "What is judged, as in `verdicts`."),
            column("rank", INT32, ID, "Place in the order in which they are reported, from 0."),
            column("what", STRING, NAME, "`execution_provider`, `backend`, `precision`, `graph_replay`, `compilation`, "
                "`node_placement`, `attention_backend`, `gemm_backend`, `library`, `data_layout`, `datatype`, "
                "`fusion`, `kernel`, `copy_path`, `input_shape`, `cache` or `library_version`."),
            column("from_value", STRING, TEXT, "What the baseline had: names of kernels, or a value."),
            column("to_value", STRING, TEXT, "What the candidate had in its place."),
            nullable("operator", STRING, NAME, "Operator at which it is so; null when everywhere, or not known."),
            nullable("position", INT32, ID, "First place in the baseline's step at which it is so, where no operator "
                "is known; null otherwise."),
            nullable("count", FLOAT64, COUNT, "Launches an iteration that it concerns; null when it has none."),
            nullable("baseline_ns", INT64, NS, "Time in these places an iteration of the baseline; null when it has "
                "no time of its own."),
            nullable("candidate_ns", INT64, NS, "The same of the candidate."),
            nullable("matched_by", STRING, NAME, "What tells that it is the same place: `operator`, `position`, "
                "`normalized_name` or `name`; null for what holds for the whole session."),
            column("evidence", STRING, TEXT, "Table and column that it was read from."),
        ),
    ),
    Table(
        name="change_points", section="Judgement",
        meaning="One row is one change of level in a series of sessions over time or revisions, or one drift of many "
                "small steps. Filled by the stage history of every campaign, for all nights up to it.",
        sort_by=("series", "first_location"), scope="campaign", version=2,
        columns=(
            column("series", STRING, NAME, "Series that was searched: the metric and what is held fixed along it, such "
                "as workload and host."),
            nullable("campaign", STRING, ID, "Campaign whose sessions hold the change: of nights the first of the new "
                "level; null when it belongs to no single one."),
            column("first_location", STRING, ID, "Earliest place in the series where the change may have happened: a "
                "session id, a revision, or the campaign of a night."),
            column("last_location", STRING, ID, "Latest place in the series where the change may have happened, of the "
                "same kind; equal to first_location when it is pinned down."),
            nullable("effect_ratio", FLOAT64, RATIO, "Level after the change divided by the level before it; of a "
                "drift its end over its beginning. Null when it cannot be estimated."),
            nullable("ci_low", FLOAT64, RATIO, "Lower end of the confidence interval of effect_ratio; null when there "
                "are too few sessions for one."),
            nullable("ci_high", FLOAT64, RATIO, "Upper end of the confidence interval of effect_ratio; null when there "
                "are too few sessions for one."),
            nullable("workload", STRING, NAME, "Model or program of the series; null when it is none of nights.",
                since=2),
            nullable("backend", STRING, NAME, "Where it runs, a name from configs/backends.yaml.", since=2),
            nullable("host", STRING, NAME, "Host of the series; null when not recorded.", since=2),
            nullable("metric", STRING, NAME, "Metric of the series, as named in `verdicts`.", since=2),
            nullable("arm", STRING, NAME, "Arm of the series, as in `nights`.", since=2),
            nullable("kind", STRING, NAME, "`level` for one step, `drift` for many small ones in one direction.",
                since=2),
            nullable("of", STRING, NAME, "`raw` when the arm's own level changed, `paired` when its ratio to the "
                "canary or baseline of the same blocks did.", since=2),
            nullable("owed_to", STRING, NAME, "`code` when the paired series changed too, `host` when it did not; null "
                "when nothing was paired, or the paired nights could not have shown it.", since=2),
            nullable("started_at", TIMESTAMP, DATE, "Date of the first night of the new level, or of a drift.",
                since=2),
            nullable("nights_before", INT64, COUNT, "Nights of the level before it; of a drift null.", since=2),
            nullable("nights_after", INT64, COUNT, "Nights of the level after it; of a drift those that it took.",
                since=2),
            nullable("delay_nights", INT64, COUNT, "Nights after the first of the new level until the series could "
                "show it; 0 is the same night.", since=2),
        ),
    ),
    Table(
        name="kernels_to_fix", section="Judgement",
        meaning="One row is one kernel, in the order in which making it faster can save most: by its time on the "
                "critical path and its distance from its roof. Filled by the stage optimization_loop.",
        sort_by=("rank",),
        columns=(
            column("rank", INT32, COUNT, "Place in the order, 1 first: by saves_at_most_ns, else critical_ns, else "
                "total_ns."),
            column("kernel_id", INT32, ID, "The kernel, in `kernels`."),
            column("total_ns", INT64, NS, "Time of all its dispatches, as in `kernel_stats`."),
            nullable("share_ratio", FLOAT64, RATIO, "Its share of all kernels' time, as in `kernel_stats`."),
            nullable("criticality", FLOAT64, RATIO, "Share of its time that lies on a longest path, 0..1; null when "
                "there is no path."),
            nullable("critical_ns", INT64, NS, "criticality x total_ns: what the run would be shorter by without it at "
                "most; null when criticality is."),
            nullable("bound", STRING, NAME, "Nearest roof, as in `roofline`; null when the evidence does not decide."),
            nullable("roof_ratio", FLOAT64, RATIO, "Shortest time at that roof divided by the time taken; null when "
                "bound is."),
            nullable("headroom_ratio", FLOAT64, RATIO, "1 - roof_ratio, at least 0: the part of its time that its roof "
                "does not ask for; null when roof_ratio is."),
            nullable("saves_at_most_ns", INT64, NS, "The lesser of critical_ns and total_ns x headroom_ratio; null "
                "when either is: critical_ns alone bounds it."),
            nullable("speedup_ratio", FLOAT64, RATIO, "How many times as fast it is imagined to be for saved_ns, as in "
                "`what_if`; null when it was not asked there."),
            nullable("saved_ns", INT64, NS, "What the longest path becomes shorter by then; null when not asked."),
            nullable("label", STRING, NAME, "What limits it, as in `bottlenecks`; null when undecided."),
            nullable("library", STRING, NAME, "Library that it comes from, as in `kernels`: its source is not the "
                "program's own; null when the name gives no sign."),
            column("proposers", STRINGS, NAME, "Proposers of `aaco optimize` that address the label, the likeliest "
                "first; empty when none does, or there is no label."),
            column("missing", STRINGS, TEXT, "What was not known, and would sharpen the row; empty when nothing."),
        ),
    ),
)
