"""Derive the state of alerts from their events, classify findings, and confirm them in a second time slot."""

from collections.abc import Iterator, Mapping
from datetime import date, timedelta
from typing import Any, Final

import polars as pl

from aaco_pipeline.statistics.verdicts.comparison import Plan, compare
from aaco_pipeline.statistics.verdicts.decision import EQUIVALENT, HARDWARE_DIFFERS, IMPROVED, INCONCLUSIVE, REGRESSED

SUSPECTED: Final = "suspected"
CONFIRMED: Final = "confirmed"
UNCONFIRMED: Final = "unconfirmed"
CLEARED: Final = "cleared"
ACKNOWLEDGED: Final = "acknowledged"
RECOVERING: Final = "recovering"
RESOLVED: Final = "resolved"
MISSING: Final = "missing"

#: Events that set the state of an alert; the state has the event's name.
STATES: Final = (SUSPECTED, CONFIRMED, CLEARED, ACKNOWLEDGED, RESOLVED, MISSING)
#: States in which an alert is over.
OVER: Final = (CLEARED, RESOLVED)
#: Key of a benchmark, which has at most one open suspicion at a time.
BENCHMARK: Final = ("workload", "backend", "host")
#: Events that report a difference of the candidate.
_FINDINGS: Final = (SUSPECTED, CONFIRMED)


def alerts(events: pl.DataFrame) -> pl.DataFrame:
    """Return the current state of each alert.

    Parameters
    ----------
    events : rows of `alerts`, in any order.

    Returns
    -------
    alert, the columns of BENCHMARK, metric, state, is_open, is_recovering (its end was seen once), is_gap (nights are
    missing), began_at, began_campaign and began_night (of the first event), last_at, last_campaign and last_night (of
    the last event that has them), sorted_as and alert_grade (the last ones), effect_ratio, ci_low and ci_high (of its
    confirmation, or else its suspicion), reasons (of the last event that set its state), who (the last one to
    acknowledge it); sorted by began_at and alert.
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
    """Return whether a night of one benchmark may enter the rolling baseline.

    `events` are the benchmark's rows of `alerts`. Missing nights may not enter, nor may nights with an alert that is
    neither over nor acknowledged; a night whose suspicion was cleared may.
    """
    if events.filter((pl.col("event") == MISSING) & (pl.col("night") == night)).height:
        return False
    standing = alerts(events).filter(pl.col("state").is_in([SUSPECTED, CONFIRMED]))
    return standing.filter(pl.col("began_night") <= night).is_empty()


REAL: Final = "real"
METHOD_CHANGED: Final = "method changed"
SELECTION_CHANGED: Final = "selection changed"
NOISE: Final = "noise"

Row = Mapping[str, Any]


def sorted_as(now: Row, before: Row | None) -> tuple[str, str | None]:
    """Classify a campaign's finding, with a sentence: the first explanation that applies.

    Parameters
    ----------
    now : the campaign's row of `night.SIGHTINGS`.
    before : the row of the benchmark's previous campaign, or None.

    Returns
    -------
    `hardware differs`, `method changed`, `noise`, `selection changed` or `real`, and a sentence; None for `real`.

    Notes
    -----
    The order is from the most to the least misleading: arms on different hardware cannot be compared; with another
    method the difference may always have been there; when identical code differs, the host caused it. A change of
    selection is a cause by itself. Facts that were not recorded are not considered.
    """
    return next(_explanations(now, before), (REAL, None))


def _explanations(now: Row, before: Row | None) -> Iterator[tuple[str, str]]:
    if now["verdict"] == HARDWARE_DIFFERS:
        yield HARDWARE_DIFFERS, "the sessions of its arms ran on unlike hardware"
    changed = [] if before is None else method_changes(before, now)
    if changed:
        yield METHOD_CHANGED, f"measured otherwise than before: {', '.join(changed)}"
    if now["is_identical"]:
        yield NOISE, "both arms are the same file, measured in the same way"
    if now["placebo_verdict"] in ("regressed", "improved"):
        yield NOISE, f"the placebo, which is the baseline once more, {now['placebo_verdict']} as well"
    if now["selections"]:
        yield SELECTION_CHANGED, f"something else was selected: {now['selections'][0]}"


def method_changes(before: Row, now: Row) -> list[str]:
    """Describe method differences of two campaigns as `key: before → now`; facts missing on one side are ignored."""
    earlier, later = (dict(one["method"]) for one in (before, now))
    shared = sorted(earlier.keys() & later.keys())
    return [f"{key}: {earlier[key]} → {later[key]}" for key in shared if earlier[key] != later[key]]


#: Minimum time between the last session of the first slot and the first session of the second: other work on the host
#: has usually ended by then.
BETWEEN_SLOTS: Final = timedelta(minutes=30)
#: Blocks of a confirming campaign: twice as many as in a night.
CONFIRMING_BLOCKS: Final = 20
#: False discovery rate of a confirmation.
CONFIRMED_AT: Final = 0.01
#: Facts that every session must have recorded for a confirmation.
_RECORDED: Final = {"hosts": "host", "devices": "device", "boots": "boot"}


def both_slots(
    first: pl.DataFrame, second: pl.DataFrame, plan: Plan, policy_ratio: float, ledger: pl.DataFrame
) -> pl.DataFrame:
    """Return the verdict over the blocks of both slots, one row for each campaign of the second.

    Parameters
    ----------
    first, second : sessions as in `comparison.compare`. `first` has the campaign_id of its second slot.
    plan : arms and metric; its looks are ignored.
    policy_ratio : the difference from 1 that does not matter.
    ledger : rows of `aa_ledger`.

    Returns
    -------
    campaign_id, both_verdict, both_effect_ratio, both_ci_low, both_ci_high: `hardware differs` when the slots ran on
    different devices or in different environments.

    Notes
    -----
    Blocks of the second slot are numbered after those of the first. The first slot was chosen because it was slow, so
    this effect is biased upwards; only the second slot decides whether there is one.
    """
    offset = 1 + pl.col("block").max()
    after = first.group_by("campaign_id").agg(offset.alias("offset"))
    moved = second.join(after, on="campaign_id").with_columns(pl.col("block") + pl.col("offset")).drop("offset")
    both = pl.concat([first, moved.select(first.columns)])
    blocks = both.group_by("campaign_id").agg(pl.col("block").n_unique())
    found = []
    for (count,), of_size in blocks.group_by("block", maintain_order=True):
        looked = Plan(plan.baseline, plan.candidate, (int(str(count)),), policy_ratio, plan.primary)
        verdicts = compare(both.join(of_size.select("campaign_id"), on="campaign_id", how="semi"), looked, ledger)
        found.append(verdicts.filter(pl.col("role") == "primary"))
    named = ("verdict", "effect_ratio", "ci_low", "ci_high")
    return pl.concat(found).select("campaign_id", *(pl.col(name).alias(f"both_{name}") for name in named))


def confirmation(first: Row, second: Row, above: float) -> tuple[str, list[str]]:
    """Return `confirmed`, `cleared`, or `unconfirmed` if the second slot is inconclusive, with reasons as sentences.

    Parameters
    ----------
    first, second : rows of `night.SIGHTINGS`, the second with the figures of both slots.
    above : the ratio that is already known: 1, or the upper limit of an open alert.

    Notes
    -----
    Confirmed: the second slot alone lies above `above` and differs with a false discovery rate of at most 1 % over its
    table, and the interval over the blocks of both lies beyond the threshold; or, on two devices, the second slot
    regressed by itself. Its placebo, identical code in the same blocks, did not differ, and every session recorded its
    host, device and boot. Any other decision of the second slot clears the alert, and so does a change of the method or
    the baseline: such a difference is a new finding. The second slot must not be chosen for its result.
    """
    changed = changes(first, second)
    if changed:
        return CLEARED, [f"it was measured otherwise afterwards: {', '.join(changed)}"]
    if not are_apart(first, second):
        why = "the second look did not begin 30 minutes after the first time slot's last session, nor on another night"
        return UNCONFIRMED, [why]
    doubt = next(_doubts(second), None)
    if doubt is not None:
        return UNCONFIRMED, [doubt]
    interval = f"{second['ci_low']:.4f} to {second['ci_high']:.4f}"
    if second["ci_low"] <= above or second["q_value"] > CONFIRMED_AT:
        return CLEARED, [f"the second time slot, {interval}, does not show a slowdown beyond {above:.4f} by itself"]
    if second["both_verdict"] == HARDWARE_DIFFERS and second["verdict"] == REGRESSED:
        shown = f"the second time slot regressed by itself, {interval}, on another device than the first"
    elif second["both_verdict"] == REGRESSED and second["both_ci_low"] > above:
        over = f"{second['both_ci_low']:.4f} to {second['both_ci_high']:.4f}"
        shown = f"the second time slot, {interval}, shows it by itself; with the first it is {over}"
    else:
        return CLEARED, [f"the second time slot, {interval}, shows a slowdown, but none that matters with the first"]
    lack = next(_lacks(first, second), None)
    return (CONFIRMED, [shown]) if lack is None else (UNCONFIRMED, [lack, shown])


def changes(first: Row, second: Row) -> list[str]:
    """Describe changes of baseline and method between two campaigns of a benchmark."""
    replaced = ["the baseline was replaced"] if first["baseline_sha256"] != second["baseline_sha256"] else []
    return replaced + method_changes(first, second)


def is_over(alert: Row, now: Row) -> bool:
    """Return whether a campaign shows the end of an alert: its whole interval is below the alert's.

    `alert` is a row of `alerts`. False for a campaign without an interval, on a busy host or with a differing placebo.
    """
    if alert["ci_low"] is None or next(_doubts(now), None) is not None:
        return False
    return bool(now["ci_high"] < alert["ci_low"])


def are_apart(first: Row, second: Row) -> bool:
    """Return whether two campaigns are separate time slots: different nights, or at least half an hour apart."""
    if first["night"] != second["night"]:
        return True
    began = (first["last_at"], second["first_at"])
    return None not in began and bool(began[1] - began[0] >= BETWEEN_SLOTS)


def grade(first: Row, second: Row) -> str:
    """Return the grade of both slots together: `one boot`, `two boots` or `two devices`."""
    devices, boots = ({*first[name], *second[name]} for name in ("devices", "boots"))
    return "two devices" if len(devices) > 1 else "two boots" if len(boots) > 1 else "one boot"


def _doubts(now: Row) -> Iterator[str]:
    """Reasons why a campaign is inconclusive, most serious first."""
    if now["ci_low"] is None or now["q_value"] is None:
        yield f"it came to no interval: {now['verdict']}"
    if len(now["slow_arms"]) > 1:
        yield f"a busy host: sessions of {' and '.join(now['slow_arms'])} ran slower throughout"
    if now["placebo_verdict"] in (REGRESSED, IMPROVED):
        yield f"its placebo, identical code in the same blocks, {now['placebo_verdict']} as well"


def _lacks(first: Row, second: Row) -> Iterator[str]:
    """Reasons why a difference in both slots cannot be attributed to the candidate."""
    if second["is_identical"]:
        yield "both arms are the same file, measured in the same way: there is no change to blame"
    lacking = [word for name, word in _RECORDED.items() if not (first[name] and second[name])]
    if lacking:
        yield f"not every session recorded its {', '.join(lacking)}, so nobody can say on what it was seen again"
    if second["placebo_verdict"] not in (EQUIVALENT, INCONCLUSIVE):
        why = "there is none" if second["placebo_verdict"] is None else f"it is {second['placebo_verdict']}"
        yield f"a placebo is to show what identical code did in the same blocks, and {why}"
