"""A benchmark's nights in a row and where its level is going, and one session's place among earlier ones.

All rows of a benchmark are published anew every night, because what an older night was (an outlier, the first of a new
level) is known only from those after it. Where a level changed is `judgement.change_points`.
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
    STRING,
    TEXT,
    TIMESTAMP,
    TRUTH,
    Column,
    Table,
    column,
    nullable,
)

# A column is one call of at most three lines.
# fmt: off
#: What makes one series of nights.
_SERIES: Final[tuple[Column, ...]] = (
    column("workload", STRING, NAME, "Model or program that is measured."),
    column("backend", STRING, NAME, "Where it runs, a name from configs/backends.yaml."),
    nullable("host", STRING, NAME, "Host that the night's sessions ran on; null when not recorded."),
    column("metric", STRING, NAME, "Metric of the series, as named in `verdicts`."),
    column("arm", STRING, NAME, "Arm of the campaigns whose sessions make the series, as in `campaign_arms`."),
)

TABLES: Final[tuple[Table, ...]] = (
    Table(
        name="nights", section="Judgement",
        meaning="One row is one night of one series: the level of an arm's fresh sessions on one host in one campaign; "
                "a second time slot of a night has its own. Filled by the stage history of every campaign, for all its "
                "benchmark's nights up to it.",
        sort_by=("workload", "backend", "host", "metric", "arm", "night"), scope="campaign",
        columns=(
            *_SERIES,
            column("night", INT32, ID, "Place in the series in the order of time, from 0."),
            column("campaign", STRING, ID, "Campaign that measured the night."),
            column("started_at", TIMESTAMP, DATE, "When that campaign was planned: the night's date."),
            column("sessions", INT64, COUNT, "Sessions that entered level_ns; those without a steady level are not "
                "in P50."),
            nullable("level_ns", INT64, NS, "Geometric mean of the metric over the sessions; null without any."),
            nullable("ci_low_ns", INT64, NS, "Lower end of the 95 % interval of level_ns over that night's sessions; "
                "it knows nothing of how nights differ. Null below two."),
            nullable("ci_high_ns", INT64, NS, "Upper end of the same; null below two sessions."),
            nullable("error_ratio", FLOAT64, RATIO, "Standard error of the logarithm of the level; null below two "
                "sessions."),
            nullable("paired_with", STRING, NAME, "Arm of the same blocks that paired_ratio is relative to: `canary`, "
                "else `baseline`; null when the night had neither, or is itself that."),
            nullable("paired_artefact_sha256", STRING, TEXT, "SHA-256 of the file that that arm measured: ratios to "
                "different files are not one series."),
            nullable("paired_blocks", INT64, COUNT, "Blocks with sessions of both arms; null when nothing is paired."),
            nullable("paired_ratio", FLOAT64, RATIO, "The arm divided by the one it is paired with, block by block, "
                "geometric mean; what the host did that night cancels. Null when nothing is paired."),
            nullable("paired_ci_low", FLOAT64, RATIO, "Lower end of the 95 % interval of paired_ratio over that "
                "night's blocks; null below two."),
            nullable("paired_ci_high", FLOAT64, RATIO, "Upper end of the same; null below two blocks."),
            nullable("paired_error_ratio", FLOAT64, RATIO, "Standard error of the logarithm of paired_ratio; null "
                "below two blocks."),
            nullable("is_outlier", BOOL, TRUTH, "True when the night lies apart from the level before and after it, "
                "and so enters no level; null when that is not yet known, or there is no level_ns."),
            nullable("paired_is_outlier", BOOL, TRUTH, "The same of paired_ratio."),
            nullable("segment", INT32, ID, "Level that the night belongs to, from 0 in the order of time; null without "
                "level_ns or in a series too short to have levels."),
            nullable("paired_segment", INT32, ID, "The same of paired_ratio."),
            nullable("fingerprint", STRING, ID, "Environment of the arm's sessions, as in `sessions`; null when they "
                "differ or none is recorded."),
            nullable("is_new_fingerprint", BOOL, TRUTH, "True when the environment is not that of the series' night "
                "before; null on the first, or when either is unknown."),
        ),
    ),
    Table(
        name="forecasts", section="Judgement",
        meaning="One row is one series' trend since its last change of level, and when it would reach the limit of its "
                "service level. Filled by the stage history.",
        sort_by=("workload", "backend", "host", "metric", "arm"), scope="campaign",
        columns=(
            *_SERIES,
            column("nights", INT64, COUNT, "Nights since the last change of level that the trend rests on."),
            nullable("level_ns", INT64, NS, "Level of the last night as the trend has it; that of the last level when "
                "there is no trend. Null without a night."),
            nullable("slope_ratio", FLOAT64, RATIO, "Change of level from one night to the next, as a difference from "
                "1 (Theil and Sen); null when there are too few nights."),
            nullable("slope_ci_low", FLOAT64, RATIO, "Lower end of the 95 % interval of slope_ratio; null without it."),
            nullable("slope_ci_high", FLOAT64, RATIO, "Upper end of the same; null without it."),
            nullable("p_value", FLOAT64, RATIO, "Two-sided p that there is no trend (Mann and Kendall, corrected for "
                "autocorrelation by Hamed and Rao); null when there are too few nights."),
            nullable("limit_ns", INT64, NS, "Limit of the service level; null when none is set."),
            column("state", STRING, NAME, "`foretold` when the level moves towards the limit, `reached` when it is "
                "beyond it, `no trend`, `moving away`, `no limit`, or `too few nights`."),
            nullable("nights_to_limit", INT64, COUNT, "Nights until the level reaches the limit; null unless forecast, "
                "0 when it is reached."),
            nullable("nights_to_limit_low", INT64, COUNT, "Lower end of its 90 % interval; null unless forecast."),
            nullable("nights_to_limit_high", INT64, COUNT, "Upper end of the same; null unless forecast, and when it "
                "may never be reached."),
            nullable("coverage_ratio", FLOAT64, RATIO, "Share of this series' own nights that lay in the 90 % band "
                "forecast for them from the nights before; null when too few could be forecast."),
            nullable("pinball_ratio", FLOAT64, RATIO, "Pinball loss of those bands over that of bands round the last "
                "value; below 1 the trend forecasts better. Null as coverage_ratio."),
            column("reason", STRING, TEXT, "What the state rests on, in words."),
        ),
    ),
    Table(
        name="history_places", section="Judgement",
        meaning="One row says where the session's steady level lies among earlier sessions of the same work on the "
                "same host, candidates of campaigns excepted. It describes and judges nothing. Filled by the stage "
                "regression.",
        sort_by=("metric",),
        columns=(
            column("metric", STRING, NAME, "What is compared with earlier sessions: `latency_p50`, of the iterations "
                "since the session was steady."),
            nullable("value_ns", INT64, NS, "The session's own; null when it has no steady level, and reason says "
                "why."),
            nullable("compared_within", STRING, NAME, "`environment` when earlier sessions of the same fingerprint are "
                "enough, else `host`: then what differs on it is in `session_changes`. Null without an earlier one."),
            column("earlier_sessions", INT64, COUNT, "Earlier sessions with a steady level that it is compared with, "
                "at most the 30 newest."),
            nullable("rank", INT64, COUNT, "Its place among them and itself, 1 for the fastest; null without one."),
            nullable("low_ns", INT64, NS, "The fastest of them; null without one."),
            nullable("median_ns", INT64, NS, "Their median; null without one."),
            nullable("high_ns", INT64, NS, "The slowest of them; null without one."),
            nullable("median_ratio", FLOAT64, RATIO, "value_ns over median_ns; above 1 is slower."),
            nullable("robust_z", FLOAT64, RATIO, "Distance of its logarithm from the median of theirs, over 1.4826 "
                "times their median absolute deviation; null below 8 of them."),
            nullable("previous_session", STRING, ID, "The session that `session_changes` compares it with: of those "
                "like it on this host the last one before it; null when there is none."),
            nullable("reason", STRING, TEXT, "Why figures above are null; null when none is."),
        ),
    ),
    Table(
        name="session_changes", section="Judgement",
        meaning="One row is one thing that differs from `history_places.previous_session`: what was selected "
                "differently, then facts of the environment. None is said to have caused anything. Filled by the "
                "stage regression.",
        sort_by=("rank",),
        columns=(
            column("rank", INT32, ID, "Place in the order in which they are reported, from 0."),
            column("kind", STRING, NAME, "`selection` when something else stands at the same place, or `environment`."),
            column("what", STRING, NAME, "Of a selection what was selected, as in `selections`; of the environment the "
                "fact's category."),
            nullable("subject", STRING, NAME, "Of a selection the operator at which it is so, null when everywhere or "
                "not known; of the environment the fact's key."),
            column("from_value", STRING, TEXT, "What the previous session had."),
            column("to_value", STRING, TEXT, "What this one has in its place."),
            column("evidence", STRING, TEXT, "Table and column that it was read from."),
        ),
    ),
)
