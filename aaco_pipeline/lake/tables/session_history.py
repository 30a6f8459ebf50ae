"""One session against those before it: where it lies among them, and what changed since the last.

Judging sets of sessions is `judgement`; nothing here is a verdict.
"""

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
    TEXT,
    Table,
    column,
    nullable,
)

# A column is one call of at most three lines.
# fmt: off
TABLES: Final[tuple[Table, ...]] = (
    Table(
        name="history_places", section="Judgement",
        meaning="One row says where the session's steady level lies among earlier sessions of the same work on the "
                "same host, candidates of campaigns excepted. It describes and judges nothing. Filled by the stage "
                "regression.",
        sort_by=("metric",),
        columns=(
            column("metric", STRING, NAME, "What is held against earlier sessions: `latency_p50`, of the iterations "
                "since the session was steady."),
            nullable("value_ns", INT64, NS, "The session's own; null when it has no steady level, and reason says "
                "why."),
            nullable("compared_within", STRING, NAME, "`environment` when earlier sessions of the same fingerprint are "
                "enough, else `host`: then what differs on it is in `session_changes`. Null without an earlier one."),
            column("earlier_sessions", INT64, COUNT, "Earlier sessions with a steady level that it is held against, at "
                "most the 30 newest."),
            nullable("rank", INT64, COUNT, "Its place among them and itself, 1 for the fastest; null without one."),
            nullable("low_ns", INT64, NS, "The fastest of them; null without one."),
            nullable("median_ns", INT64, NS, "Their median; null without one."),
            nullable("high_ns", INT64, NS, "The slowest of them; null without one."),
            nullable("median_ratio", FLOAT64, RATIO, "value_ns over median_ns; above 1 is slower."),
            nullable("robust_z", FLOAT64, RATIO, "Distance of its logarithm from the median of theirs, over 1.4826 "
                "times their median absolute deviation; null below 8 of them."),
            nullable("previous_session", STRING, ID, "The session that `session_changes` holds it against: of those "
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
            column("rank", INT32, ID, "Place in the order in which they are told, from 0."),
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
