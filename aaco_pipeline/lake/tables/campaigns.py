"""Sets of sessions: plans and measurements, baselines, scaling, and bisections of a change over builds.

Verdicts on sets of sessions are `judgement`.
"""

from typing import Final

from aaco_pipeline.lake.declaration import (
    BOOL,
    CALENDAR,
    COUNT,
    DATE,
    DAY,
    FLOAT64,
    ID,
    INT32,
    INT64,
    NAME,
    NS,
    PER_S,
    RATIO,
    STRING,
    STRINGS,
    TEXT,
    TIMESTAMP,
    TRUTH,
    Table,
    column,
    nullable,
)

# A column is one call of at most three lines.
# fmt: off
TABLES: Final[tuple[Table, ...]] = (
    Table(
        name="campaigns", section="Judgement",
        meaning="One row is one campaign: what is compared with what, and how it is measured. Written before the first "
                "session, so that nothing of the design is chosen after a result was seen. Filled by the stage plan.",
        sort_by=("kind",), scope="campaign", version=2,
        columns=(
            column("kind", STRING, NAME, "`compare` when a user asked, `nightly`, `bisect` for a step of a "
                "bisection, `configure` for one of a search for a faster configuration, `stack` when the host's stack "
                "changed, or `between_nights` for nights before and after that, compared with each other."),
            column("design", STRING, NAME, "How sessions are laid out: `interleaved` when every block holds one "
                "session of each arm in random order, so that a drift of the host strikes all arms alike."),
            column("workload", STRING, NAME, "Model or program that is measured."),
            column("backend", STRING, NAME, "Where the baseline runs, a name from configs/backends.yaml."),
            column("metric", STRING, NAME, "The one metric that decides, as named in `session_metrics`; verdicts on "
                "others support it."),
            column("threshold_ratio", FLOAT64, RATIO, "Difference from 1 below which an effect does not matter to the "
                "people who asked."),
            column("seed", INT64, ID, "Seed of the order of arms within each block."),
            column("blocks", INT32, COUNT, "Blocks that are planned: sessions of each arm without a trace."),
            column("traced_blocks", INT32, COUNT, "Blocks of traced sessions that follow the last of the others; the "
                "causes of a change are read from them."),
            column("planned_at", TIMESTAMP, DATE, "When the plan was written."),
            nullable("night", DAY, CALENDAR, "Night that the campaign is part of: the day, in UTC, on which it was "
                "asked for; null for one that a user asked for.", since=2),
            nullable("confirms", STRING, ID, "Campaign of the same night whose verdict this one measures again, some "
                "time later; null for any other.", since=2),
            nullable("foretold_ns", INT64, NS, "Time that its sessions with their stages were estimated to take; null "
                "without a history of the workload on this host.", since=2),
            nullable("foretold_detectable_ratio", FLOAT64, RATIO, "Difference from 1 that its blocks were estimated to "
                "find four times in five; null without a history of the workload on this host.", since=2),
        ),
    ),
    Table(
        name="campaign_limits", section="Judgement",
        meaning="One row is one limit that the arms of a campaign are checked against, agreed before the first "
                "session. Filled by the stage plan.",
        sort_by=("metric",), scope="campaign",
        columns=(
            column("metric", STRING, NAME, "Quantile that is to keep to the limit: `latency_p50`, `latency_p90` or "
                "`latency_p99`."),
            column("limit_ns", INT64, NS, "Longest time that it may take."),
            column("budget_ratio", FLOAT64, RATIO, "Share of iterations that may take longer, such as 0.01."),
        ),
    ),
    Table(
        name="service_levels", section="Judgement",
        meaning="One row says whether one arm of a campaign keeps to a limit, which knows no baseline. Filled by the "
                "stage judging.",
        sort_by=("metric", "arm"), scope="campaign",
        columns=(
            column("workload", STRING, NAME, "Model or program that is measured."),
            column("metric", STRING, NAME, "Quantile that is to keep to the limit, as in `campaign_limits`."),
            column("arm", STRING, NAME, "Arm whose sessions are checked against it, in `campaign_arms`."),
            column("limit_ns", INT64, NS, "Longest time that the quantile may take."),
            column("state", STRING, NAME, "`ok` when quantile and share keep to the limit with their whole intervals, "
                "`breached` when one of them lies beyond with its whole interval, `at_risk` in between, or "
                "`not_enough_data`."),
            nullable("quantile_ns", INT64, NS, "The quantile in a typical session, the geometric mean over sessions; "
                "null when no session has iterations enough for it."),
            nullable("ci_low_ns", INT64, NS, "Lower end of its 95 % interval over sessions; null below five."),
            nullable("ci_high_ns", INT64, NS, "Upper end of its 95 % interval over sessions; null below five."),
            column("budget_ratio", FLOAT64, RATIO, "Share of iterations that may take longer than limit_ns."),
            nullable("over_limit_ratio", FLOAT64, RATIO, "Share of steady iterations that took longer than limit_ns; "
                "null without any."),
            nullable("over_limit_low_ratio", FLOAT64, RATIO, "Lower end of its 95 % interval, widened by how much "
                "sessions differ; null without iterations."),
            nullable("over_limit_high_ratio", FLOAT64, RATIO, "Upper end of that interval; null without iterations."),
            nullable("burn_ratio", FLOAT64, RATIO, "over_limit_ratio over budget_ratio: 1 spends the budget exactly; "
                "null without iterations."),
            column("sessions", INT64, COUNT, "Sessions whose quantile entered."),
            column("iterations", INT64, COUNT, "Steady iterations that were compared with limit_ns."),
        ),
    ),
    Table(
        name="campaign_arms", section="Judgement",
        meaning="One row is one arm of a campaign: what is measured under that name. Filled by the stage plan.",
        sort_by=("arm",), scope="campaign",
        columns=(
            column("arm", STRING, NAME, "`baseline`, `candidate`, `placebo` (the baseline once more, from a fresh copy "
                "of its artefact) or `canary`."),
            column("specification", STRING, TEXT, "The measurement request of the arm's sessions, as JSON."),
            column("artefact_sha256", STRING, TEXT, "The model that the arm measures, its weights included, as in "
                "`sessions.artefact_sha256`."),
            column("artefact", STRING, TEXT, "Where that file was when the plan was written."),
            nullable("baseline", STRING, ID, "Baseline that the arm was taken from, in `baselines`; null where it was "
                "named by its specification."),
        ),
    ),
    Table(
        name="campaign_sessions", section="Judgement",
        meaning="One row is one session of a campaign, in the order they were begun. Filled by the stage measuring, "
                "anew before and after each block: a block that was begun and is not finished was killed.",
        sort_by=("block", "position"), scope="campaign", version=2,
        columns=(
            column("block", INT32, ID, "Block, from 0 in the order they were begun. One that was killed is repeated "
                "whole under a new number."),
            column("position", INT32, ID, "Place of the session in its block, from 0: the order in which they ran."),
            column("arm", STRING, NAME, "Arm the session belongs to, in `campaign_arms`."),
            column("session_id", STRING, ID, "The session, in `sessions`."),
            column("purpose", STRING, NAME, "`latency` when it was measured without a trace, and enters the verdict; "
                "`trace` when it was traced, and tells the causes."),
            column("state", STRING, NAME, "`begun`, `finished`, or `killed` when its block did not finish; "
                "what was measured of a killed block is removed."),
            nullable("spent_ns", INT64, NS, "Time that measuring it took, from before its process was started until "
                "its capture was in the lake; null until then.", since=2),
            nullable("stages_ns", INT64, NS, "Time that its stages took after the last block; null until then, and "
                "when another process ran them.", since=2),
        ),
    ),
    Table(
        name="baselines", section="Judgement",
        meaning="One row is the baseline of a workload from a moment on: one that was pinned stays until it is "
                "replaced. Filled by the stage baseline.",
        sort_by=("workload", "backend"), scope="campaign",
        columns=(
            column("workload", STRING, NAME, "Model or program that is compared with it."),
            column("backend", STRING, NAME, "Where it runs, a name from configs/backends.yaml."),
            column("kind", STRING, NAME, "`pinned` by a user, a release say; or `rolling`, the candidate of the last "
                "night that was shown to be no slower, or that a user acknowledged."),
            column("specification", STRING, TEXT, "The measurement request that reproduces it, as JSON."),
            column("artefact", STRING, TEXT, "The model's file as the lake keeps it, relative to the lake."),
            column("artefact_sha256", STRING, TEXT, "What tells it from others, weights beside it included, as in "
                "`sessions.artefact_sha256`."),
            nullable("fingerprint", STRING, ID, "Environment it was measured in, `sessions.fingerprint`; null until a "
                "session of it was measured."),
            nullable("campaign", STRING, ID, "Campaign whose night it was; null when it was pinned by hand."),
            column("since", TIMESTAMP, DATE, "When it became the workload's baseline."),
            column("is_retired", BOOL, TRUTH, "True when another took its place; it is kept for what was compared with "
                "it."),
        ),
    ),
    Table(
        name="scaling", section="Judgement",
        meaning="One row is one session of a sweep: one batch size and prompt length of a scaling curve. Filled by the "
                "stage sweep of `aaco sweep`.",
        sort_by=("point",), scope="campaign",
        columns=(
            column("point", INT32, ID, "Place on the curve: by prompt length, then by batch size, from 0."),
            column("session_id", STRING, ID, "Session that was measured at this point, in `sessions`."),
            column("batch_size", INT64, COUNT, "Inferences or requests carried out together."),
            nullable("prompt_tokens", INT32, COUNT, "Tokens of each prompt; null when no tokens are generated."),
            nullable("output_tokens", INT32, COUNT, "Tokens generated for each request; null when none are."),
            column("time_ns", INT64, NS, "Median time of one iteration, or of one request where tokens are generated, "
                "unprofiled."),
            nullable("time_ci_low_ns", INT64, NS, "Lower end of the 95 % interval of time_ns within that session; null "
                "when it has too few iterations."),
            nullable("time_ci_high_ns", INT64, NS, "Upper end of the 95 % interval of time_ns within that session; "
                "null when it has too few iterations."),
            nullable("time_to_first_token_ns", INT64, NS, "Median time to the first token; null without tokens."),
            nullable("time_per_output_token_ns", INT64, NS, "Median over requests of the time per token after the "
                "first; null without tokens."),
            column("throughput_per_s", FLOAT64, PER_S, "Batch size, times output tokens where there are any, divided "
                "by time_ns, a second."),
            nullable("throughput_ci_low_per_s", FLOAT64, PER_S, "The same from time_ci_high_ns, if it is known."),
            nullable("throughput_ci_high_per_s", FLOAT64, PER_S, "The same from time_ci_low_ns, if it is known."),
            column("throughput_unit", STRING, NAME, "What is counted: `inference/s` or `token/s`."),
            column("speedup_ratio", FLOAT64, RATIO, "Throughput over that of the smallest batch of the prompt."),
            column("efficiency_ratio", FLOAT64, RATIO, "speedup_ratio over how many times the smallest batch this one "
                "is; 1 is perfect scaling."),
            column("is_knee", BOOL, TRUTH, "True where the curve lies farthest above its chord, and by a tenth of its "
                "range or more."),
            column("is_saturated", BOOL, TRUTH, "True for the smallest batch with 95 % of the best throughput, unless "
                "it is the largest measured."),
        ),
    ),
    Table(
        name="aa_ledger", section="Judgement",
        meaning="One row is one metric of one comparison of identical code, such as a baseline with its placebo in the "
                "same blocks: what a verdict's threshold and confidence are measured on. Filled by the stage "
                "regression.",
        sort_by=("workload", "metric"), scope="campaign",
        columns=(
            column("workload", STRING, NAME, "What was run in both arms, as in `sessions`."),
            nullable("host", STRING, NAME, "Host that both arms ran on, as in `sessions`; null when not recorded."),
            column("metric", STRING, NAME, "Metric that was compared, as in `verdicts`."),
            column("design", STRING, NAME, "How the arms ran, as in `verdicts`."),
            column("blocks", INT64, COUNT, "Blocks that were run at this look; comparisons of other numbers say "
                "nothing about this one."),
            column("sessions_per_block", INT64, COUNT, "Sessions of each arm in a block."),
            column("effect_ratio", FLOAT64, RATIO, "One arm divided by the other, both of identical code; what differs "
                "from 1 is noise."),
            column("level", FLOAT64, RATIO, "Two-sided error that the plan allowed at this look."),
            column("p_value", FLOAT64, RATIO, "Two-sided p of the t test that nothing changed; at most level where "
                "identical code was called different."),
        ),
    ),
    Table(
        name="alerts", section="Judgement",
        meaning="One row is one event of an alert: rows are only ever added, and the state of an alert is what its "
                "events say. Filled by the stages alerting, acknowledging and missing.",
        sort_by=("alert", "at"), scope="campaign",
        columns=(
            column("alert", STRING, ID, "The alert: one finding on one benchmark, from when it was first seen to its "
                "end."),
            column("workload", STRING, NAME, "Benchmark that alerts: its model or program, as in `campaigns`."),
            column("backend", STRING, NAME, "Where it runs, as in `campaigns`."),
            nullable("host", STRING, NAME, "Class of hosts of the benchmark: the names of their devices, or the host "
                "itself where none was recorded; null when no session was."),
            nullable("metric", STRING, NAME, "The metric that decides, as in `verdicts`; null when nothing was "
                "planned."),
            column("event", STRING, NAME, "`suspected`, `confirmed`, `unconfirmed` when a second time slot could "
                "not decide, `cleared`, `acknowledged`, `recovering` at the first sight of its end, `resolved`, or "
                "`missing`."),
            column("at", TIMESTAMP, DATE, "When the last session that it rests on began; when it was said, of what a "
                "user or a calendar says."),
            nullable("night", DAY, CALENDAR, "Night that it belongs to, as in `campaigns`; null for what a user "
                "says."),
            nullable("campaign", STRING, ID, "Campaign that it was read from; null when it was read from none."),
            nullable("sorted_as", STRING, NAME, "What it is held to be before code is blamed: `real`, `method "
                "changed`, `hardware differs`, `selection changed` or `noise`; null for what is no finding."),
            nullable("alert_grade", STRING, NAME, "What a confirmed regression was seen on: `one boot`, `two boots` "
                "or `two devices`; null while it is not confirmed."),
            nullable("effect_ratio", FLOAT64, RATIO, "Candidate divided by baseline; of a confirmed one over the "
                "blocks of both time slots; null when it cannot be estimated."),
            nullable("ci_low", FLOAT64, RATIO, "Lower end of the 95 % interval of effect_ratio; null without one."),
            nullable("ci_high", FLOAT64, RATIO, "Upper end of the 95 % interval of effect_ratio; null without one."),
            nullable("q_value", FLOAT64, RATIO, "Least false discovery rate over its time slot's table at which the "
                "difference counts; null without one."),
            column("reasons", STRINGS, TEXT, "Why, one sentence each, the deciding one first; what a user gave as "
                "the reason."),
            nullable("who", STRING, NAME, "Who said it; null for what was measured."),
        ),
    ),
    Table(
        name="bisections", section="Judgement",
        meaning="One row is one search for the build that brought a change: what was asked, written before the first "
                "session, and the answer once there is one. Filled by the stage bisection.",
        sort_by=("began_at",), scope="campaign",
        columns=(
            column("began_at", TIMESTAMP, DATE, "When it was asked."),
            column("workload", STRING, NAME, "Model that is measured, as the first build calls it."),
            column("backend", STRING, NAME, "Where the first build runs, a name from configs/backends.yaml."),
            column("builds", INT32, COUNT, "Builds, the first and the last included."),
            nullable("repository", STRING, TEXT, "Folder of the git repository that builds are made from; null when "
                "they were there."),
            nullable("make_command", STRING, TEXT, "Command that makes a build; null when they were there."),
            nullable("make_limit_ns", INT64, NS, "Time that making one build may take; null when they were there."),
            nullable("specification", STRING, TEXT, "The measurement request of every made build as JSON, with "
                "`{output}` instead of what is made; null when they were there."),
            nullable("foretold_blocks", INT32, COUNT, "Blocks that a search for the least detectable change was "
                "estimated to need, half of such searches fewer; null without a history."),
            nullable("foretold_ns", INT64, NS, "Time that sessions and stages of these blocks, and of the two builds "
                "that are reported at the end, were estimated to take; null without a history."),
            nullable("foretold_detectable_ratio", FLOAT64, RATIO, "Least difference from 1 between the last and the "
                "first build that was estimated to be found four times in five; null without a history."),
            nullable("answer", STRING, NAME, "`step` when one build brought the change, `range` when it is one of "
                "several, `several steps`, or `no change`; null until it is answered."),
            nullable("after", INT32, ID, "Last build that has nothing of the change; null until it is answered."),
            nullable("until", INT32, ID, "First build that has all of it; of `no change` the last build."),
            nullable("likeliest", INT32, ID, "Build that most likely brought it; null where none is the likeliest."),
            nullable("probability", FLOAT64, RATIO, "Chance of that, given that there is one step; null without one."),
            nullable("effect_ratio", FLOAT64, RATIO, "Last build's time divided by the first one's, from all builds "
                "behind the step; above 1 is slower."),
            nullable("ci_low", FLOAT64, RATIO, "Lower end of the 95 % interval of effect_ratio."),
            nullable("ci_high", FLOAT64, RATIO, "Upper end of the 95 % interval of effect_ratio."),
            nullable("pair_campaign", STRING, ID, "Campaign that compares build `until` with build `after`, with "
                "traces for the causes; null when nothing changed, or not yet."),
        ),
    ),
    Table(
        name="bisection_builds", section="Judgement",
        meaning="One row is one build of a search, in their order. Filled by the stage bisection.",
        sort_by=("build",), scope="campaign",
        columns=(
            column("build", INT32, ID, "Place in the order, from 0: the build that all others are measured beside."),
            column("label", STRING, TEXT, "Name: its SPEC, or its abbreviated revision."),
            nullable("revision", STRING, ID, "Commit that it is made from; null when it was there."),
            nullable("title", STRING, TEXT, "First line of that commit's message; null when it was there."),
            nullable("specification", STRING, TEXT, "The measurement request of its sessions, as JSON; null until it "
                "is made."),
            nullable("artefact", STRING, TEXT, "The model's file that it runs, relative to the lake where that keeps "
                "it; null until it is made."),
            nullable("artefact_sha256", STRING, TEXT, "SHA-256 of that file."),
            column("state", STRING, NAME, "`planned`, `made`, `measured`, `failed` to be made or run; at the end "
                "`good` as the first or `bad` as the last, or `skipped` when the answer needed nothing of it."),
            nullable("reason", STRING, TEXT, "Why it failed; null when it did not."),
            column("blocks", INT32, COUNT, "Blocks that it was measured in beside the first build."),
            nullable("effect_ratio", FLOAT64, RATIO, "Its time divided by the first one's: mean over blocks without "
                "the outer tenths; null when it was not measured."),
            nullable("ci_low", FLOAT64, RATIO, "Lower end of the 95 % interval of effect_ratio."),
            nullable("ci_high", FLOAT64, RATIO, "Upper end of the 95 % interval of effect_ratio."),
        ),
    ),
    Table(
        name="bisection_steps", section="Judgement",
        meaning="One row is one thing that was measured of a search: some blocks of one build beside the first, a "
                "campaign of its own. Filled by the stage bisection, each before its first session.",
        sort_by=("step",), scope="campaign",
        columns=(
            column("step", INT32, ID, "Place in the order in which they were measured, from 0."),
            column("build", INT32, ID, "Build that was measured, in `bisection_builds`."),
            column("blocks", INT32, COUNT, "Blocks that were asked for."),
            column("campaign", STRING, ID, "The campaign, in `campaigns`."),
        ),
    ),
)
