"""Nights that said nothing: a benchmark that is to be measured and has no verdict alerts by that alone.

That a campaign came to no verdict although it was judged is `night`; here nothing was judged at all.
"""

from collections.abc import Collection, Iterable
from datetime import UTC, date, datetime, time, timedelta
from typing import Final

import polars as pl

from aaco_pipeline.lake.contracts import polars_types
from aaco_pipeline.statistics.alerts.events import MISSING, alerts
from aaco_pipeline.statistics.alerts.night import missing_alert

#: A night is over so long after its day began, in UTC.
OVER_AFTER: Final = timedelta(hours=24)
#: Nights that are looked back upon: a pipeline that was switched off for longer has a gap, and not one alert a night.
LOOKED_BACK: Final = 7


def nights_over(now: datetime, weekdays: Collection[int]) -> list[date]:
    """The nights of the calendar that are over at `now`, the oldest first; weekdays as numbers, Monday is 0."""
    last = (now.astimezone(UTC) - OVER_AFTER).date()
    nights = [last - timedelta(days=back) for back in reversed(range(LOOKED_BACK))]
    return [night for night in nights if night.weekday() in weekdays]


def missing_events(
    benchmarks: Iterable[tuple[str, str]], seen: pl.DataFrame, events: pl.DataFrame, nights: list[date]
) -> pl.DataFrame:
    """A `missing` event for every benchmark and night without a verdict that was not told yet.

    Parameters
    ----------
    benchmarks : workload and backend of each that is to be measured every night.
    seen : workload, backend, night and is_judged, one row a campaign that was planned for a night.
    events : rows of `alerts`.
    nights : the nights that are over, ascending.

    Returns
    -------
    Rows of `alerts`. Nights before a benchmark's first one are not missing; of a benchmark that never had any, the last
    one is. Nights on end that are missing are one alert.
    """
    gaps = alerts(events).filter("is_gap", "is_open")
    told = events.filter(pl.col("event") == MISSING)
    rows = []
    for workload, backend in benchmarks:
        own = (pl.col("workload") == workload) & (pl.col("backend") == backend)
        planned = seen.filter(own)
        known = planned.get_column("night").to_list()
        since = min(known) if known else max(nights, default=date.max)
        past = {*planned.filter("is_judged").get_column("night"), *told.filter(own).get_column("night")}
        open_gaps = gaps.filter(own).get_column("alert").to_list()
        for night in nights:
            if night < since or night in past:
                continue
            open_gaps = open_gaps or [missing_alert(night, workload, backend)]
            rows.append(
                {
                    "alert": open_gaps[0],
                    "workload": workload,
                    "backend": backend,
                    "event": MISSING,
                    "at": datetime.combine(night, time(), UTC) + OVER_AFTER,
                    "night": night,
                    "reasons": ["its campaign came to no verdict" if night in known else "nothing was measured"],
                }
            )
    return pl.DataFrame(rows, schema=polars_types("alerts"))
