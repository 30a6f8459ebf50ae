"""What the events of alerts add up to: which are open, in which state, and which nights they keep from the baseline.

Events are only ever added, as rows of `alerts`; which ones a night adds is `night`.
"""

from datetime import date
from typing import Final

import polars as pl

SUSPECTED: Final = "suspected"
CONFIRMED: Final = "confirmed"
UNCONFIRMED: Final = "unconfirmed"
CLEARED: Final = "cleared"
ACKNOWLEDGED: Final = "acknowledged"
RECOVERING: Final = "recovering"
RESOLVED: Final = "resolved"
MISSING: Final = "missing"

#: Events that set the state of an alert, which is called after them; the others leave it as it is.
STATES: Final = (SUSPECTED, CONFIRMED, CLEARED, ACKNOWLEDGED, RESOLVED, MISSING)
#: States in which an alert is over.
OVER: Final = (CLEARED, RESOLVED)
#: What a benchmark is, within which at most one suspicion is open at a time.
BENCHMARK: Final = ("workload", "backend", "host")
#: Whether what was found of a night is a difference of the candidate, and not that nothing was found.
_FINDINGS: Final = (SUSPECTED, CONFIRMED)


def alerts(events: pl.DataFrame) -> pl.DataFrame:
    """One row an alert: where it stands.

    Parameters
    ----------
    events : rows of `alerts`, in any order.

    Returns
    -------
    alert, the columns of BENCHMARK, metric, state, is_open, is_recovering (its end was seen once and waits for a second
    sight), is_gap (nights are missing, and nothing was found), began_at, began_campaign and began_night (of the event
    that opened it), last_at, last_campaign (the last campaign that said anything of it), last_night, sorted_as and
    alert_grade (the last that were said), effect_ratio, ci_low and ci_high (of its confirmation, before that of its
    suspicion), reasons (of the last event that set its state), who (the last person to acknowledge it); sorted by
    began_at and alert.
    """
    of_state = pl.col("event").is_in(STATES)
    measured = pl.col("event").is_in(_FINDINGS)
    of_alert = events.sort("at", maintain_order=True).group_by("alert", maintain_order=True)
    return (
        of_alert.agg(
            pl.col(*BENCHMARK).last(),
            pl.col("metric").drop_nulls().last(),
            state=pl.col("event").filter(of_state).last(),
            is_recovering=pl.col("event").last() == RECOVERING,
            is_gap=(pl.col("event") == MISSING).any(),
            began_at=pl.col("at").first(),
            began_campaign=pl.col("campaign").first(),
            began_night=pl.col("night").first(),
            last_at=pl.col("at").last(),
            last_campaign=pl.col("campaign").drop_nulls().last(),
            last_night=pl.col("night").drop_nulls().last(),
            sorted_as=pl.col("sorted_as").drop_nulls().last(),
            alert_grade=pl.col("alert_grade").drop_nulls().last(),
            effect_ratio=pl.col("effect_ratio").filter(measured).last(),
            ci_low=pl.col("ci_low").filter(measured).last(),
            ci_high=pl.col("ci_high").filter(measured).last(),
            reasons=pl.col("reasons").filter(of_state).last(),
            who=pl.col("who").drop_nulls().last(),
        )
        .with_columns(is_open=~pl.col("state").is_in(OVER))
        .sort("began_at", "alert")
    )


def may_enter_rolling(events: pl.DataFrame, night: date) -> bool:
    """Whether a night of one benchmark may become what later nights are held against.

    Parameters
    ----------
    events : rows of `alerts` of that benchmark alone.
    night : the night.

    Returns
    -------
    False while an alert that was open on that night is neither over nor acknowledged, and for a night that is missing.
    A night whose suspicion was cleared may enter.
    """
    if events.filter((pl.col("event") == MISSING) & (pl.col("night") == night)).height:
        return False
    standing = alerts(events).filter(pl.col("state").is_in([SUSPECTED, CONFIRMED]))
    return standing.filter(pl.col("began_night") <= night).is_empty()
