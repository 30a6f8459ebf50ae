"""Create the alert events of one night, including benchmarks without a verdict; `events` derives the state."""

import hashlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, Final

import polars as pl

from aaco_pipeline.lake.contracts import polars_types
from aaco_pipeline.statistics.alerts.events import (
    ACKNOWLEDGED,
    BENCHMARK,
    CLEARED,
    CONFIRMED,
    METHOD_CHANGED,
    MISSING,
    REAL,
    RECOVERING,
    RESOLVED,
    SUSPECTED,
    UNCONFIRMED,
    alerts,
    are_apart,
    changes,
    confirmation,
    grade,
    is_over,
    sorted_as,
)
from aaco_pipeline.statistics.verdicts.decision import HARDWARE_DIFFERS, REGRESSED, WITHHELD

Row = Mapping[str, Any]

#: Columns of a campaign of a night. Lists of hosts, devices and boots are null if a session did not record its own;
#: `is_identical` is True if both arms are the same code; `method` contains key-value pairs; the last four columns cover
#: both time slots together.
SIGHTINGS: Final = {
    "campaign_id": pl.String(),
    **{name: pl.String() for name in BENCHMARK},
    "night": pl.Date(),
    "confirms": pl.String(),
    "metric": pl.String(),
    "first_at": pl.Datetime("us", "UTC"),
    "last_at": pl.Datetime("us", "UTC"),
    "verdict": pl.String(),
    **{name: pl.Float64() for name in ("q_value", "effect_ratio", "ci_low", "ci_high")},
    "placebo_verdict": pl.String(),
    **{name: pl.List(pl.String()) for name in ("hosts", "devices", "boots", "slow_arms")},
    "is_identical": pl.Boolean(),
    "baseline_sha256": pl.String(),
    "method": pl.List(pl.List(pl.String())),
    **{name: pl.List(pl.String()) for name in ("selections", "reasons")},
    "both_verdict": pl.String(),
    **{f"both_{name}": pl.Float64() for name in ("effect_ratio", "ci_low", "ci_high")},
}
_EVENTS: Final = polars_types("alerts")
_NOTHING_TO_JUDGE: Final = (HARDWARE_DIFFERS, WITHHELD)


def night_events(sightings: pl.DataFrame, events: pl.DataFrame, earlier: pl.DataFrame) -> pl.DataFrame:
    """Return the events of one time slot.

    Parameters
    ----------
    sightings : SIGHTINGS of one time slot of one night, at most one for each benchmark, with the verdicts after
        `decision.false_discoveries`.
    events : earlier rows of `alerts`.
    earlier : SIGHTINGS of earlier campaigns: at least those of open alerts, and the last one of each benchmark.

    Returns
    -------
    Rows of `alerts`, each with its campaign.

    Notes
    -----
    A benchmark that regressed is suspected. A suspicion becomes confirmed, cleared, or unconfirmed in another time
    slot. An open alert is recovering when an interval lies below it, and resolved when another slot shows the same.
    During an open alert only a difference above it is suspected. A campaign without a verdict is a missing night. An
    acknowledged alert ends when the baseline or the method changes; other alerts stay open.
    """
    known = {row["campaign_id"]: row for row in earlier.iter_rows(named=True)}
    standing: defaultdict[tuple[str, str], list[Row]] = defaultdict(list)
    for alert in alerts(events).filter("is_open").iter_rows(named=True):
        standing[alert["workload"], alert["backend"]].append(alert)
    before = _last_of_each(earlier)
    rows = [
        event
        for now in sightings.iter_rows(named=True)
        for event in _of_campaign(now, standing[now["workload"], now["backend"]], known, before.get(_benchmark(now)))
    ]
    return pl.DataFrame(rows, schema=_EVENTS)


def missing_alert(night: date, workload: str, backend: str) -> str:
    """Return the id of the alert for a benchmark's missing verdicts from that night on."""
    name = hashlib.sha256(f"{workload}\n{backend}".encode()).hexdigest()[:8]
    return f"missing-{night:%Y%m%d}-{name}"


def _benchmark(row: Row) -> tuple[str | None, ...]:
    return tuple(row[name] for name in BENCHMARK)


def _last_of_each(earlier: pl.DataFrame) -> dict[tuple[str | None, ...], Row]:
    """Return the last first-slot campaign of each benchmark."""
    firsts = earlier.filter(pl.col("confirms").is_null()).sort("first_at", maintain_order=True)
    return {_benchmark(row): row for row in firsts.iter_rows(named=True)}


def _of_campaign(now: Row, standing: list[Row], known: Mapping[str, Row], before: Row | None) -> Iterator[Row]:
    """Return the events of one campaign, given the open alerts of its workload and backend."""
    gaps = [alert for alert in standing if alert["is_gap"]]
    findings = [alert for alert in standing if not alert["is_gap"] and _benchmark(alert) == _benchmark(now)]
    above = _above(findings)
    if now["confirms"] is not None:
        findings = [alert for alert in findings if alert["last_campaign"] == now["confirms"]]
    elif now["verdict"] in _NOTHING_TO_JUDGE:
        yield _missing(now, gaps)
        return
    else:
        yield from (_event(now, gap["alert"], RESOLVED, reasons=["there is a verdict again"]) for gap in gaps)
    added = [event for alert in findings for event in _of_alert(now, alert, known, above)]
    yield from added
    over = {event["alert"] for event in added if event["event"] in (CLEARED, RESOLVED)}
    left = [alert for alert in findings if alert["alert"] not in over]
    is_new = now["confirms"] is None and now["verdict"] == REGRESSED
    if is_new and not any(alert["state"] == SUSPECTED for alert in left) and now["ci_low"] > above:
        kind, why = sorted_as(now, before)
        reasons = [why, *now["reasons"]] if why else now["reasons"]
        yield _event(now, f"alert-{now['campaign_id']}", SUSPECTED, sorted_as=kind, reasons=reasons)


def _missing(now: Row, gaps: list[Row]) -> Row:
    alert = gaps[0]["alert"] if gaps else missing_alert(now["night"], now["workload"], now["backend"])
    kind = HARDWARE_DIFFERS if now["verdict"] == HARDWARE_DIFFERS else None
    return _event(now, alert, MISSING, sorted_as=kind, reasons=now["reasons"])


def _above(standing: list[Row]) -> float:
    """Return the highest upper limit of the open alerts; 1 if there are none."""
    return max((alert["ci_high"] for alert in standing if alert["state"] != SUSPECTED), default=1.0)


def _of_alert(now: Row, alert: Row, known: Mapping[str, Row], above: float) -> Iterator[Row]:
    first = known[alert["began_campaign"]]
    changed = changes(first, now)
    if alert["state"] == ACKNOWLEDGED and changed:
        why = f"it was acknowledged, and is measured otherwise since: {', '.join(changed)}"
        yield _event(now, alert["alert"], RESOLVED, sorted_as=METHOD_CHANGED, reasons=[why])
    elif alert["state"] == SUSPECTED:
        yield _second_sight(now, alert, first, above)
    elif not changed:
        yield from _towards_its_end(now, alert, known[alert["last_campaign"]])


def _second_sight(now: Row, alert: Row, first: Row, above: float) -> Row:
    event, reasons = confirmation(first, now, above)
    kind, why = sorted_as(now, None)
    of_both = event == CONFIRMED and now["both_verdict"] == REGRESSED
    return _event(
        now,
        alert["alert"],
        event,
        sorted_as=alert["sorted_as"] if kind == REAL else kind,
        alert_grade=grade(first, now) if event == CONFIRMED else None,
        reasons=[*reasons, *([why] if why else [])],
        **({name: now[f"both_{name}"] for name in _FIGURES} if of_both else {}),
    )


_FIGURES: Final = ("effect_ratio", "ci_low", "ci_high")


def _towards_its_end(now: Row, alert: Row, last: Row) -> Iterator[Row]:
    """Return the event if the end of an alert is seen once or twice, or if a second slot does not show it."""
    interval = f"{now['ci_high']:.4f}" if now["ci_high"] is not None else "unknown"
    held = f"its upper limit, {interval}, against the alert's lower limit, {alert['ci_low']:.4f}"
    if not is_over(alert, now):
        if alert["is_recovering"] and are_apart(last, now):
            yield _event(now, alert["alert"], UNCONFIRMED, reasons=[f"a second look does not show the end: {held}"])
    elif not alert["is_recovering"]:
        yield _event(now, alert["alert"], RECOVERING, reasons=[f"the end was seen once: {held}"])
    elif are_apart(last, now):
        yield _event(now, alert["alert"], RESOLVED, reasons=[f"the end was seen twice: {held}"])


def _event(now: Row, alert: str, event: str, **columns: Any) -> Row:
    """Build a row of `alerts` with the campaign's figures, overridden by `columns`."""
    return {
        **dict.fromkeys(_EVENTS),
        **{name: now[name] for name in (*BENCHMARK, "metric", "night", "q_value", *_FIGURES)},
        "alert": alert,
        "event": event,
        "at": now["last_at"],
        "campaign": now["campaign_id"],
        **columns,
    }


#: Time from the start of its UTC day to the end of a night.
OVER_AFTER: Final = timedelta(hours=24)
#: Number of past nights that are checked; a longer outage of the pipeline raises no further alerts.
LOOKED_BACK: Final = 7


def nights_over(now: datetime, weekdays: Collection[int]) -> list[date]:
    """Return the calendar nights that are over at `now`, oldest first; weekdays are numbers, Monday is 0."""
    last = (now.astimezone(UTC) - OVER_AFTER).date()
    nights = [last - timedelta(days=back) for back in reversed(range(LOOKED_BACK))]
    return [night for night in nights if night.weekday() in weekdays]


def missing_events(
    benchmarks: Iterable[tuple[str, str]], seen: pl.DataFrame, events: pl.DataFrame, nights: list[date]
) -> pl.DataFrame:
    """Create `missing` events for every benchmark and night without a verdict.

    Parameters
    ----------
    benchmarks : workload and backend of each nightly benchmark.
    seen : workload, backend, night and is_judged, one row for each campaign planned for a night.
    events : rows of `alerts`.
    nights : the nights that are over, ascending.

    Returns
    -------
    Rows of `alerts`. Nights before a benchmark's first one are not missing; a benchmark without any night misses only
    the last one. Consecutive missing nights are one alert.
    """
    gaps = alerts(events).filter("is_gap", "is_open")
    reported = events.filter(pl.col("event") == MISSING)
    rows = []
    for workload, backend in benchmarks:
        own = (pl.col("workload") == workload) & (pl.col("backend") == backend)
        planned = seen.filter(own)
        known = planned.get_column("night").to_list()
        since = min(known) if known else max(nights, default=date.max)
        past = {*planned.filter("is_judged").get_column("night"), *reported.filter(own).get_column("night")}
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
    return pl.DataFrame(rows, schema=_EVENTS)
