"""Conclusions and what they rest on: bottlenecks, verdicts between sets of sessions, causes, optimization decisions.

The measurements and derived figures that conclusions rest on do not belong here; they live in the other modules.
"""

from typing import Final

from aaco_pipeline.lake.contracts import Table, column

TABLES: Final[tuple[Table, ...]] = (
    Table(
        name="bottlenecks",
        section="Judgement",
        meaning=("One row names what limits the session, or one of its kernels. Filled by the stage classification."),
        columns=(
            column("scope", "string", "name", False, "What the row judges: `session` or `kernel`."),
            column(
                "kernel_id", "int32", "id", True, "Kernel that is judged, in `kernels`; null when scope is `session`."
            ),
            column(
                "label",
                "string",
                "name",
                True,
                "Bottleneck the evidence supports best; null when there is too little evidence to name one, and "
                "missing then says what to collect.",
            ),
            column(
                "runner_up",
                "string",
                "name",
                True,
                "Bottleneck the evidence supports second best; null when no other has support.",
            ),
            column(
                "score",
                "float64",
                "ratio",
                True,
                "Support for label, 0..1, from the weights in evidence; comparable between rows of one session only; "
                "null when label is null.",
            ),
            column(
                "evidence",
                "list<evidence>",
                "record",
                False,
                "Each signal that counted, with its value and unit, the threshold it was held against, its weight and "
                "the table it comes from.",
            ),
            column(
                "missing",
                "list<string>",
                "name",
                False,
                "Signals that would have counted but were not measured; empty when nothing was missing.",
            ),
            column(
                "recommendation",
                "string",
                "text",
                True,
                "The next step that the label suggests to an engineer; null when there is none.",
            ),
        ),
        sort_by=(
            "scope",
            "kernel_id",
        ),
    ),
    Table(
        name="verdicts",
        section="Judgement",
        meaning=(
            "One row is the verdict on one metric between two sets of sessions. Filled by the stage regression; "
            "comparing two single sessions is a campaign of two."
        ),
        columns=(
            column(
                "baseline",
                "string",
                "name",
                False,
                "What the candidate is held against: an arm of the campaign, or the id of a single session.",
            ),
            column(
                "candidate",
                "string",
                "name",
                False,
                "What is judged: an arm of the campaign, or the id of a single session.",
            ),
            column("metric", "string", "name", False, "Metric that is compared, as named in `session_metrics`."),
            column(
                "verdict",
                "string",
                "name",
                False,
                "`regressed`, `improved`, `equivalent` when the whole interval lies within the threshold, or "
                "`inconclusive` when the sessions do not decide.",
            ),
            column(
                "effect_ratio",
                "float64",
                "ratio",
                True,
                "Candidate divided by baseline, estimated over sessions as replicates; above 1 is slower for a "
                "latency; null when it cannot be estimated.",
            ),
            column(
                "ci_low",
                "float64",
                "ratio",
                True,
                "Lower end of the confidence interval of effect_ratio; null when there are too few sessions for one.",
            ),
            column(
                "ci_high",
                "float64",
                "ratio",
                True,
                "Upper end of the confidence interval of effect_ratio; null when there are too few sessions for one.",
            ),
            column(
                "threshold_ratio",
                "float64",
                "ratio",
                True,
                "Difference from 1 below which an effect is held to be irrelevant; null when none was set.",
            ),
            column(
                "minimum_detectable_ratio",
                "float64",
                "ratio",
                True,
                "Smallest difference from 1 that this many sessions with this spread would find; null when the spread "
                "is unknown.",
            ),
            column(
                "sessions_candidate", "int64", "count", False, "Sessions of the candidate that entered the comparison."
            ),
            column(
                "sessions_baseline", "int64", "count", False, "Sessions of the baseline that entered the comparison."
            ),
            column(
                "sessions_needed",
                "int64",
                "count",
                True,
                "Sessions on each side that would make threshold_ratio detectable; null when the spread is unknown.",
            ),
            column(
                "confidence",
                "float64",
                "ratio",
                True,
                "Measured trust in the verdict, 0..1; null when no calibration covers this metric and design.",
            ),
            column(
                "confidence_source",
                "string",
                "text",
                True,
                "Calibration that confidence was read from; null when confidence is null.",
            ),
            column(
                "suspected_cause",
                "string",
                "text",
                True,
                "Largest cause that `attributions` supports, in words; null when none is supported.",
            ),
            column(
                "recommendation",
                "string",
                "text",
                True,
                "What to do next, such as run more sessions or look at a named kernel; null when nothing follows.",
            ),
        ),
        sort_by=(
            "baseline",
            "candidate",
            "metric",
        ),
        scope="campaign",
    ),
    Table(
        name="attributions",
        section="Judgement",
        meaning=(
            "One row assigns a part of the difference between two sets of sessions to one subject. Filled by the "
            "stage regression."
        ),
        columns=(
            column("baseline", "string", "name", False, "What the candidate is held against, as in `verdicts`."),
            column("candidate", "string", "name", False, "What is judged, as in `verdicts`."),
            column(
                "kind",
                "string",
                "name",
                False,
                "Kind of subject, such as a kernel, an operator, the gaps, the host or a fact of the environment.",
            ),
            column(
                "subject",
                "string",
                "name",
                False,
                "The subject by a name that holds across sessions, such as `kernels.name` or an environment key.",
            ),
            column(
                "delta_ns",
                "int64",
                "ns",
                True,
                "Candidate minus baseline in time per iteration that the subject accounts for; positive is slower; "
                "null for a subject that has no time of its own.",
            ),
            column(
                "ci_low_ns",
                "int64",
                "ns",
                True,
                "Lower end of the confidence interval of delta_ns over sessions; null when there are too few sessions "
                "for one.",
            ),
            column(
                "ci_high_ns",
                "int64",
                "ns",
                True,
                "Upper end of the confidence interval of delta_ns over sessions; null when there are too few sessions "
                "for one.",
            ),
            column(
                "evidence_grade",
                "string",
                "name",
                False,
                "`observed` when the subject itself changed, `correlated` when it moved with the metric, `isolated` "
                "when changing it alone moved the metric.",
            ),
        ),
        sort_by=(
            "baseline",
            "candidate",
            "kind",
            "subject",
        ),
        scope="campaign",
    ),
    Table(
        name="change_points",
        section="Judgement",
        meaning=(
            "One row is one change of level in a series of sessions over time or revisions. Filled by the stage "
            "regression."
        ),
        columns=(
            column(
                "series",
                "string",
                "name",
                False,
                "Series that was searched: the metric and what is held fixed along it, such as workload and host.",
            ),
            column(
                "campaign",
                "string",
                "id",
                True,
                "Campaign whose sessions hold the change; differs from campaign_id when the series spans several; "
                "null when it belongs to no single one.",
            ),
            column(
                "first_location",
                "string",
                "id",
                False,
                "Earliest place in the series where the change may have happened: a session id or a revision.",
            ),
            column(
                "last_location",
                "string",
                "id",
                False,
                "Latest place in the series where the change may have happened: a session id or a revision; equal to "
                "first_location when it is pinned down.",
            ),
            column(
                "effect_ratio",
                "float64",
                "ratio",
                True,
                "Level after the change divided by the level before it; null when it cannot be estimated.",
            ),
            column(
                "ci_low",
                "float64",
                "ratio",
                True,
                "Lower end of the confidence interval of effect_ratio; null when there are too few sessions for one.",
            ),
            column(
                "ci_high",
                "float64",
                "ratio",
                True,
                "Upper end of the confidence interval of effect_ratio; null when there are too few sessions for one.",
            ),
        ),
        sort_by=(
            "series",
            "first_location",
        ),
        scope="campaign",
    ),
    Table(
        name="optimization_attempts",
        section="Judgement",
        meaning=("One row is one attempt to make a kernel faster, kept or not. Filled by the stage optimization."),
        columns=(
            column(
                "attempt",
                "int32",
                "id",
                False,
                "Dense number of the attempt within the session, in the order they were made, starting at 0.",
            ),
            column("kernel", "string", "name", False, "Name of the kernel that was to be made faster."),
            column(
                "transformation",
                "string",
                "text",
                False,
                "What was changed, by the name of the transformation and its parameters.",
            ),
            column(
                "proposer",
                "string",
                "name",
                False,
                "Who proposed it: a search strategy, or a language model by its name and version.",
            ),
            column(
                "guard",
                "string",
                "text",
                True,
                "Guard that stopped the attempt or, when none did, the last one it passed; null when it never reached "
                "one.",
            ),
            column(
                "decision",
                "string",
                "name",
                False,
                "What was decided on the attempt, such as to accept, to reject or to leave it undecided.",
            ),
            column(
                "reason",
                "string",
                "text",
                False,
                "Why it was so decided, in words that name the guard, the figure or the fault.",
            ),
            column(
                "speedup_ratio",
                "float64",
                "ratio",
                True,
                "Duration before divided by duration after; above 1 is faster, the inverse of an effect_ratio; null "
                "when it was not measured.",
            ),
            column(
                "ci_low",
                "float64",
                "ratio",
                True,
                "Lower end of the confidence interval of speedup_ratio; null when it was not measured.",
            ),
            column(
                "ci_high",
                "float64",
                "ratio",
                True,
                "Upper end of the confidence interval of speedup_ratio; null when it was not measured.",
            ),
            column(
                "executed_on",
                "string",
                "name",
                True,
                "Device architecture, or emulation, on which the attempt ran; null when it was never executed.",
            ),
            column(
                "compiler",
                "string",
                "version",
                True,
                "Compiler with version and options that built the attempt; null when it was not built.",
            ),
            column(
                "source_sha256",
                "string",
                "text",
                True,
                "SHA-256 of the attempt's source; null when no source came about.",
            ),
            column(
                "binary_sha256",
                "string",
                "text",
                True,
                "SHA-256 of the binary that was built; null when it was not built.",
            ),
            column(
                "vgprs_before",
                "int64",
                "count",
                True,
                "Vector registers per work-item, accumulation registers included, before the change; null when not "
                "stated by the compiler.",
            ),
            column(
                "vgprs_after",
                "int64",
                "count",
                True,
                "Vector registers per work-item, accumulation registers included, after the change; null when it was "
                "not built.",
            ),
            column(
                "sgprs_before",
                "int64",
                "count",
                True,
                "Scalar registers per wavefront before the change; null when not stated by the compiler.",
            ),
            column(
                "sgprs_after",
                "int64",
                "count",
                True,
                "Scalar registers per wavefront after the change; null when it was not built.",
            ),
            column(
                "lds_bytes_before",
                "int64",
                "bytes",
                True,
                "Static local data share per workgroup before the change; null when not stated by the compiler.",
            ),
            column(
                "lds_bytes_after",
                "int64",
                "bytes",
                True,
                "Static local data share per workgroup after the change; null when it was not built.",
            ),
            column(
                "scratch_bytes_before",
                "int64",
                "bytes",
                True,
                "Scratch memory per work-item before the change; null when not stated by the compiler.",
            ),
            column(
                "scratch_bytes_after",
                "int64",
                "bytes",
                True,
                "Scratch memory per work-item after the change; null when it was not built.",
            ),
        ),
        sort_by=(
            "attempt",
            "kernel",
        ),
    ),
)
