"""Sessions that ran slower throughout than others of their arm: what a busy host does to fresh processes.

Single slow iterations are not here; a session's own levels are `steady_state`.
"""

from typing import Final

import polars as pl

#: How far above its arm's fast sessions a session lies that is called slow, as a difference from 1: above what quiet
#: hosts show between identical processes (0.15), below what neighbours cost (0.4 and more).
SLOWER_BY: Final = 0.2
_FAST_QUANTILE: Final = 0.25


def slow_sessions(sessions: pl.DataFrame) -> pl.DataFrame:
    """The sessions whose median lies a fifth or more above the fast ones of their own arm.

    Parameters
    ----------
    sessions : campaign_id, arm, session_id, p50_ns (null where unknown).

    Returns
    -------
    campaign_id, arm, session_id and times_slower (its median over the arm's lower quartile), of the slow ones alone.

    Notes
    -----
    Each arm is held against itself, so that an arm that is slower as a whole has no slow session. Where several arms
    have some, the modes belong to the host and not to the code, and no share of them may decide. It lies when more
    than three quarters of an arm's sessions are slow (then those are its level), and misses a host whose modes lie
    less than a fifth apart. The lower quartile of few sessions is the second fastest, so that one
    that was fast by luck does not make the others slow.
    """
    fast = pl.col("p50_ns").quantile(_FAST_QUANTILE, "higher").over("campaign_id", "arm")
    return (
        sessions.with_columns(times_slower=pl.col("p50_ns") / fast)
        .filter(pl.col("times_slower") >= 1 + SLOWER_BY)
        .select("campaign_id", "arm", "session_id", "times_slower")
    )
