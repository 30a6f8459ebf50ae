"""What common rules say of the nights of `alerts.py`, through the same state machine; nothing is claimed of it.

Rules that compare two sets of runs see all sessions of a time slot. Those that hold one run against history see the
candidate's first session and 64 sessions of identical code from random blocks.
"""

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl
from scipy import stats

from aaco_pipeline.lake.validation import empty_table
from aaco_pipeline.statistics.alerts.events import CONFIRMED, SUSPECTED, alerts
from aaco_pipeline.statistics.alerts.night import SIGHTINGS, night_events
from benchmarks.alert_nights import Picks, Recomposed, as_sightings
from benchmarks.verdict_trials import WORKLOADS

TRIALS: Final = 1_000
#: Pooled iterations are ranked for so many trials only.
RANKED: Final = 100
HISTORY: Final = 64
LEVEL: Final = 0.05
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
#: One side, the other, what the other is multiplied with, history: whether the other is slower, and faster, by slot.
Rule = Callable[[Picks, Picks, float, Picks], tuple[Flags, Flags]]


class Rules:
    """The rules on sessions by their places; each says where `other` times `factor` is slower than `one`, or faster."""

    def __init__(self, latency: Picks) -> None:
        values = latency.astype(np.float64)
        self._latency, self._mean = values, values.mean(axis=1)
        self._square, self._median, self._best = (values**2).mean(axis=1), np.median(values, axis=1), values.min(axis=1)

    def welch_iterations(self, one: Picks, other: Picks, factor: float, _: Picks) -> tuple[Flags, Flags]:
        count = self._latency.shape[1] * one.shape[1]
        mean, deviation = [], []
        for places, scale in ((one, 1.0), (other, factor)):
            pooled = self._mean[places].mean(axis=1)
            spread = np.sqrt((self._square[places].mean(axis=1) - pooled**2) * count / (count - 1))
            mean.append(pooled * scale)
            deviation.append(spread * scale)
        sides = mean[0], deviation[0], count, mean[1], deviation[1], count
        p_value = stats.ttest_ind_from_stats(*sides, equal_var=False).pvalue
        return _told(p_value < LEVEL, mean[1] > mean[0])

    def welch_medians(self, one: Picks, other: Picks, factor: float, _: Picks) -> tuple[Flags, Flags]:
        sides = np.log(self._median[one]), np.log(self._median[other] * factor)
        p_value = stats.ttest_ind(*sides, axis=1, equal_var=False).pvalue
        return _told(p_value < LEVEL, sides[1].mean(axis=1) > sides[0].mean(axis=1))

    def mann_whitney(self, one: Picks, other: Picks, factor: float, _: Picks) -> tuple[Flags, Flags]:
        pairs = [(self._latency[a].ravel(), self._latency[b].ravel() * factor) for a, b in zip(one, other, strict=True)]
        p_value = np.array([stats.mannwhitneyu(*pair).pvalue for pair in pairs])
        return _told(p_value < LEVEL, np.array([np.median(b) > np.median(a) for a, b in pairs]))

    def relative_change(self, one: Picks, other: Picks, factor: float, past: Picks) -> tuple[Flags, Flags]:
        """rustc-perf: one run against one, beyond the upper fence of earlier changes."""
        change = self._mean[other[:, 0]] * factor / self._mean[one[:, 0]] - 1
        earlier = np.abs(self._mean[past[:, 1::2]] / self._mean[past[:, ::2]] - 1)
        low, high = np.quantile(earlier, [0.25, 0.75], axis=1)
        return _told(np.abs(change) > high + 3 * (high - low), change > 0)

    def prediction_interval(self, one: Picks, other: Picks, factor: float, past: Picks) -> tuple[Flags, Flags]:
        """Bencher: one run outside the 99 % t prediction interval of earlier ones."""
        known, now = self._mean[past], self._mean[other[:, 0]] * factor
        count = known.shape[1]
        error = known.std(axis=1, ddof=1) * np.sqrt(1 + 1 / count)
        score = (now - known.mean(axis=1)) / error
        return _told(np.abs(score) > stats.t.ppf(0.995, count - 1), score > 0)

    def best_against_history(self, one: Picks, other: Picks, factor: float, past: Picks) -> tuple[Flags, Flags]:
        """Conbench: the best repetition, five standard deviations from the mean of earlier ones."""
        known, now = self._best[past], self._best[other[:, 0]] * factor
        score = (now - known.mean(axis=1)) / known.std(axis=1, ddof=1)
        return _told(np.abs(score) > 5, score > 0)


def _told(different: Flags, is_slower: Flags) -> tuple[Flags, Flags]:
    return different & is_slower, different & ~is_slower


def peers(source: Recomposed, latency: Picks) -> None:
    """Print what each rule suspects and confirms of identical code, and confirms of +5 % the same night."""
    rules = Rules(latency)
    told = {
        "Welch on iterations": (rules.welch_iterations, TRIALS),
        "Welch on session medians": (rules.welch_medians, TRIALS),
        "Mann-Whitney on iterations": (rules.mann_whitney, RANKED),
        "rustc-perf, one run against one": (rules.relative_change, TRIALS),
        "Bencher, t prediction interval": (rules.prediction_interval, TRIALS),
        "Conbench, z above 5": (rules.best_against_history, TRIALS),
    }
    print(f"peers through the same state machine, {TRIALS} nights of three benchmarks ({RANKED} of the ranks):")
    for name, (rule, trials) in told.items():
        same, slower = (_events(source, rule, trials, factor) for factor in (1.0, 1.05))
        shares = [
            events.filter(pl.col("event") == event).get_column("workload").n_unique() / (3 * trials)
            for events, event in ((same, SUSPECTED), (same, CONFIRMED), (slower, CONFIRMED))
        ]
        print(
            f"       {name}: of identical code {shares[0]:.2%} suspected and {shares[1]:.2%} confirmed, "
            f"of +5 % {shares[2]:.0%} confirmed the same night",
            flush=True,
        )


def _events(source: Recomposed, rule: Rule, trials: int, factor: float) -> pl.DataFrame:
    def seen(workload: str, own: Picks, second: bool) -> pl.DataFrame:
        flagged = _flagged(source.places(workload, own, 0, second), rule, factor)
        slot = 2 if second else 1
        return _seen(flagged.with_columns(campaign_id=pl.format(f"{workload}-{{}}-0-{slot}", pl.Series(own))), second)

    first = pl.concat([seen(workload, np.arange(trials), False) for workload in WORKLOADS])
    events = night_events(first, empty_table("alerts"), pl.DataFrame(schema=SIGHTINGS))
    waiting = alerts(events).get_column("last_campaign").str.split("-")
    frame = pl.DataFrame({"workload": waiting.list.get(0), "trial": waiting.list.get(1).cast(pl.Int64)})
    seconds = [
        seen(str(workload), of_workload.get_column("trial").sort().to_numpy(), True)
        for (workload,), of_workload in frame.group_by("workload", maintain_order=True)
    ]
    return pl.concat([events, night_events(pl.concat(seconds), events, first)]) if seconds else events


def _flagged(places: Picks, rule: Rule, factor: float) -> pl.DataFrame:
    """What the rule says of each slot: `slower` of the candidate, `placebo` where identical code differs."""
    # Sessions of the workload, whatever the night: history is longer than any trial here.
    past = np.random.default_rng(len(places)).choice(np.unique(places), (len(places), HISTORY))
    base = places[:, :, 0]
    slower, _ = rule(base, places[:, :, 1], factor, past)
    return pl.DataFrame({"slower": slower, "placebo": np.logical_or(*rule(base, places[:, :, 2], 1.0, past))})


def _seen(flagged: pl.DataFrame, second: bool) -> pl.DataFrame:
    """The same as the state machine sees it: what is slower lies beyond the threshold, and beyond chance."""
    rows = flagged.select(
        "campaign_id",
        verdict=pl.when("slower").then(pl.lit("regressed")).otherwise(pl.lit("inconclusive")),
        q_value=pl.when("slower").then(0.001).otherwise(0.5),
        effect_ratio=pl.lit(1.04),
        ci_low=pl.when("slower").then(1.02).otherwise(0.99),
        ci_high=pl.lit(1.06),
        placebo_verdict=pl.when("placebo").then(pl.lit("regressed")).otherwise(pl.lit("equivalent")),
    )
    both = {f"both_{name}": pl.col(name) for name in ("verdict", "effect_ratio", "ci_low", "ci_high")}
    return as_sightings(rows.with_columns(**both), 0, second)
