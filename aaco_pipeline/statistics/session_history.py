"""Compare one session with earlier ones: comparable sessions, the rank of its level, and what changed.

Two processes of identical code differ by more than most regressions, so the result is only descriptive;
`aaco_pipeline.statistics.verdicts` gives verdicts on sets of sessions.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import polars as pl

from aaco_pipeline.lake.contracts import polars_types
from aaco_pipeline.statistics.causes.arms import Arm, environment_differences
from aaco_pipeline.statistics.causes.matching import replaced_kernels
from aaco_pipeline.statistics.causes.selection import selections

#: Maximum number of earlier sessions; the newest ones are used.
MOST_EARLIER: Final = 30
#: Minimum number of sessions for a median absolute deviation.
LEAST_FOR_Z: Final = 8
METRIC: Final = "latency_p50"
#: Standard deviation of normal values over their median absolute deviation.
_TO_DEVIATION: Final = 1.4826
#: Columns that identify the same work, together with the model's name.
_SAME_WORK: Final = (
    *("workload", "backend", "provider", "precision", "batch_size", "prompt_tokens", "output_tokens", "threads"),
    "host",
)
_CANDIDATE: Final = "candidate"
#: Selections that are also environment facts.
_OF_THE_ENVIRONMENT: Final = ("library_version", "cache")
#: Facts that differ between any two boots or branches.
_NO_CHANGE: Final = (("boot", "id"), ("git", "branch"))


def alike(earlier: pl.DataFrame, own: Mapping[str, Any]) -> pl.DataFrame:
    """Return the rows of `sessions` with the same work on the same host as `own`, newest first.

    Models are equal if their names are, or if both sessions belong to one campaign. Candidates of campaigns, which may
    be slow, and failed sessions are omitted. `same_environment` is True for sessions with the fingerprint of `own`. A
    session that failed, or whose host is not recorded, has no comparable ones.
    """
    work = pl.all_horizontal(pl.col(name).eq_missing(pl.lit(own[name])) for name in _SAME_WORK)
    model = pl.col("model_name").eq_missing(pl.lit(own["model_name"]))
    campaign = (pl.col("campaign_id") == pl.lit(own["campaign_id"])).fill_null(False)
    arm = pl.col("arm").cast(pl.String).ne_missing(pl.lit(_CANDIDATE))
    whole = pl.col("failure").is_null() & pl.lit(own["failure"] is None)
    found = earlier.filter(work & (model | campaign) & arm & whole & pl.col("host").is_not_null())
    same = (pl.col("fingerprint") == pl.lit(own["fingerprint"])).fill_null(False)
    return found.with_columns(same_environment=same).sort("session_id", descending=True)


def place(value_ns: int | None, why_none: str | None, earlier: pl.DataFrame) -> dict[str, Any]:
    """A row of `history_places` without previous_session.

    Parameters
    ----------
    value_ns : the session's own level, or None with the reason `why_none`.
    earlier : session_id, level_ns (null when a session has none) and same_environment of the comparable sessions, the
        newest first.

    Notes
    -----
    The session is placed among up to 30 sessions of the same environment, or of the same host when fewer than 8 of them
    have the environment.
    """
    known = earlier.filter(pl.col("level_ns").is_not_null())
    own = known.filter("same_environment")
    within = "environment" if own.height >= LEAST_FOR_Z or own.height == known.height else "host"
    levels = (own if within == "environment" else known).head(MOST_EARLIER).get_column("level_ns").to_numpy()
    row: dict[str, Any] = {"metric": METRIC, "value_ns": value_ns, "earlier_sessions": len(levels)}
    if len(levels) == 0:
        return {**row, "reason": why_none or "no earlier session of the same work on this host has a steady level"}
    median = float(np.median(levels))
    row |= {
        "compared_within": within,
        "low_ns": int(levels.min()),
        "median_ns": round(median),
        "high_ns": int(levels.max()),
    }
    if value_ns is None:
        return {**row, "reason": why_none}
    distance, why = _robust_z(value_ns, levels.astype(np.float64))
    return {
        **row,
        "rank": 1 + int((levels < value_ns).sum()),
        "median_ratio": value_ns / median,
        "robust_z": distance,
        "reason": why,
    }


def changes(previous: Arm, own: Arm) -> pl.DataFrame:
    """Rows of `session_changes` between two sessions, each treated as an arm; selections come first."""
    known = previous.accounts and own.accounts
    replaced = replaced_kernels(previous.accounts, own.accounts) if known else []
    found = selections(previous, own, replaced).filter(~pl.col("what").is_in(_OF_THE_ENVIRONMENT))
    chosen = found.select(
        "from_value", "to_value", "evidence", kind=pl.lit("selection"), what="what", subject="operator"
    )
    facts = environment_differences(previous, own, interleaved=False).select(
        from_value="baseline",
        to_value="candidate",
        evidence=pl.lit("environment.value"),
        kind=pl.lit("environment"),
        what="category",
        subject="key",
    )
    silent = [(pl.col("what") == category) & (pl.col("subject") == key) for category, key in _NO_CHANGE]
    rows = pl.concat([chosen, facts.filter(~pl.any_horizontal(silent))], how="diagonal_relaxed").with_row_index("rank")
    schema = polars_types("session_changes")
    return rows.select(pl.col(name).cast(dtype) for name, dtype in schema.items() if name in rows.columns)


def _robust_z(value: float, levels: "np.ndarray[Any, np.dtype[np.float64]]") -> tuple[float | None, str | None]:
    """Return the robust z score of a level among others, or None with a reason."""
    if len(levels) < LEAST_FOR_Z:
        return None, f"robust_z: fewer than {LEAST_FOR_Z} earlier sessions ({len(levels)})"
    logs = np.log(levels)
    spread = _TO_DEVIATION * float(np.median(np.abs(logs - np.median(logs))))
    if spread == 0:
        return None, "robust_z: more than half of the earlier sessions have the same level"
    return float((np.log(value) - np.median(logs)) / spread), None


def newest(sessions: Sequence[str], before: str, most: int) -> list[str]:
    """Return the `most` newest session ids before `before` with the same workload name, newest first."""
    name = _name(before)
    return sorted((one for one in sessions if one < before and _name(one) == name), reverse=True)[:most]


def _name(session: str) -> str:
    """Return the workload from a session's id, which begins with time and random digits."""
    return session[len("YYYYMMDDTHHMMSSZ-01234567") :]
