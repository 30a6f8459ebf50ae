"""Alerts over simulated nights: how often identical code is suspected, and how soon +5 % is confirmed.

Nights are recomposed from real sessions of identical code or simulated on three levels, and judged by the product's
own verdicts, night table, confirming slot and state machine. Exits with 1 when a limit is missed.
"""

import argparse
import sys
import time
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import polars as pl

from aaco_pipeline.lake.contracts import polars_types
from aaco_pipeline.lake.validation import empty_table
from aaco_pipeline.statistics.alerts.events import CONFIRMED, CONFIRMING_BLOCKS, RESOLVED, SUSPECTED, alerts, both_slots
from aaco_pipeline.statistics.alerts.night import SIGHTINGS, night_events
from aaco_pipeline.statistics.verdicts.comparison import Plan, compare
from aaco_pipeline.statistics.verdicts.decision import false_discoveries
from aaco_pipeline.statistics.verdicts.effects import slow_sessions
from benchmarks.accuracy.verdicts import (
    ALL_BLOCKS,
    BASELINE,
    CANDIDATE,
    HELD_OUT,
    TUNED_ON,
    WORKLOADS,
    local_sessions,
    three_levels,
    times_longer,
)
from benchmarks.common import SHARED, Claims

PLACEBO: Final = "placebo"
ARMS: Final = (BASELINE, CANDIDATE, PLACEBO)
BLOCKS: Final = 10
#: Nights that a slowdown lasts, and more trials than there ever are.
LASTING: Final = 3
MOST: Final = 100_000
FIRST: Final = date(2026, 11, 1)
HERE: Final = {"host": "h", "device": "d", "fingerprint": "f", "boot_id": "b", "cache_state": "warm"}

Picks = npt.NDArray[np.int64]


class Source(Protocol):
    """Where the sessions of nights come from: identical code in all three arms."""

    def slot(self, workload: str, trials: Picks, night: int, second: bool) -> pl.DataFrame:
        """The sessions of one time slot: 10 blocks, or 20 of the second, with the place of the trial in campaign_id."""
        ...


class Recomposed:
    """Nights of real sessions: blocks drawn without repetition within a night, its two slots disjoint.

    Every block has four sessions of identical code; three of them, in random order, are the arms. Nights of different
    trials share blocks: of 60 there are 6 disjoint nights a workload.
    """

    def __init__(self, sessions: pl.DataFrame, blocks: Picks, trials: int, nights: int) -> None:
        self._sessions = sessions.drop("arm", "block")
        self._places = {}
        for number, workload in enumerate(WORKLOADS):
            own = sessions.filter((pl.col("workload") == workload) & (pl.col("arm") == "a")).sort("block", "place")
            four = own.get_column("place").to_numpy().reshape(-1, 4)
            for night in range(nights):
                random = np.random.default_rng((number, night, len(blocks)))
                order = random.permuted(np.tile(blocks, (trials, 1)), axis=1)[:, : BLOCKS + CONFIRMING_BLOCKS]
                self._places[workload, night] = random.permuted(four[order], axis=2)[:, :, : len(ARMS)]

    def places(self, workload: str, trials: Picks, night: int, second: bool) -> Picks:
        """Places of the sessions in `local_sessions`, (trials, blocks, arms)."""
        of_night: Picks = self._places[workload, night][trials]
        return of_night[:, BLOCKS:] if second else of_night[:, :BLOCKS]

    def slot(self, workload: str, trials: Picks, night: int, second: bool) -> pl.DataFrame:
        places = self.places(workload, trials, night, second)
        count, size, arms = places.shape
        picked = pl.DataFrame(
            {
                "place": places.ravel(),
                "campaign_id": np.repeat(trials, size * arms),
                "block": np.tile(np.repeat(np.arange(size, dtype=np.int32), arms), count),
                "arm": np.tile(ARMS, count * size),
            }
        ).with_columns(pl.col("campaign_id").cast(pl.String))
        found = picked.join(self._sessions, on="place", maintain_order="left")
        return found.with_columns(pl.lit(value).alias(name) for name, value in HERE.items())


class Simulated:
    """Nights on three levels: what blocks share wanders, sessions differ, and so do iterations."""

    def slot(self, workload: str, trials: Picks, night: int, second: bool) -> pl.DataFrame:
        size = CONFIRMING_BLOCKS if second else BLOCKS
        frames = []
        for part in np.array_split(trials, 1 + len(trials) // 500):
            seed = ((WORKLOADS.index(workload) * (LASTING + 1) + night) * 2 + second) * MOST + int(part[0])
            made = three_levels(len(part), size, seed, ARMS)
            number = pl.col("campaign_id").str.strip_prefix("trial ").cast(pl.Int64)
            named = number.replace_strict(np.arange(len(part)), part).cast(pl.String)
            frames.append(made.with_columns(campaign_id=named, workload=pl.lit(workload)))
        return pl.concat(frames)


def named(sessions: pl.DataFrame, workload: str, night: int, second: bool) -> pl.DataFrame:
    """The sessions with the whole name of their campaign, in which the trial is their benchmark."""
    slot = 2 if second else 1
    whole = pl.format("{}-{}-{}-{}", pl.lit(workload), "campaign_id", pl.lit(night), pl.lit(slot))
    return sessions.with_columns(campaign_id=whole)


def as_sightings(verdicts: pl.DataFrame, night: int, second: bool) -> pl.DataFrame:
    """Rows of `night.SIGHTINGS` from campaign_id, verdict, q_value, effect_ratio, ci_low, ci_high, placebo_verdict."""
    day = FIRST + timedelta(days=night)
    began = datetime(day.year, day.month, day.day, 3 if second else 2, tzinfo=UTC)
    parts = pl.col("campaign_id").str.split("-")
    constants = {
        "backend": "b", "host": "h", "night": day, "metric": "latency_p50",
        "first_at": began, "last_at": began + timedelta(minutes=10), "baseline_sha256": "a", "is_identical": False,
    }  # fmt: skip
    lists = {"hosts": ["h"], "devices": ["d"], "boots": ["b"], "selections": [], "method": []}
    first = pl.format("{}-{}-{}-1", parts.list.get(0), parts.list.get(1), pl.lit(night)) if second else pl.lit(None)
    known = {"slow_arms", "reasons", *(name for name in SIGHTINGS if name.startswith("both_"))}
    absent = [name for name in known if name not in verdicts.columns]
    return verdicts.with_columns(
        pl.format("{} {}", parts.list.get(0), parts.list.get(1)).alias("workload"),
        first.alias("confirms"),
        *(pl.lit(value).alias(name) for name, value in constants.items()),
        *(pl.lit(value, SIGHTINGS[name]).alias(name) for name, value in lists.items()),
        *(pl.lit([] if name in ("slow_arms", "reasons") else None, SIGHTINGS[name]).alias(name) for name in absent),
    ).select(pl.col(name).cast(dtype) for name, dtype in SIGHTINGS.items())


NIGHTS: Final = 3_000
SLOWER: Final = 600
POLICY: Final = 0.01
_TIMES: Final = ("p50_ns", "p90_ns", "p99_ns", "trimmed_mean_ns")
#: What is done to the sessions of a time slot of identical code.
Change = Callable[[pl.DataFrame], pl.DataFrame]
_LEDGER: Final = pl.DataFrame(schema={"campaign_id": pl.String(), **polars_types("aa_ledger")})


def unchanged(sessions: pl.DataFrame) -> pl.DataFrame:
    return sessions


def five_percent_slower(sessions: pl.DataFrame) -> pl.DataFrame:
    return times_longer(sessions, 1.05)


def verdicts_of(sessions: pl.DataFrame, candidate: str) -> pl.DataFrame:
    blocks = sessions.get_column("block").n_unique()
    rows = compare(sessions, Plan(BASELINE, candidate, (blocks,), POLICY), _LEDGER)
    return rows.filter(pl.col("role") == "primary")


def seen(sessions: pl.DataFrame, night: int, second: bool) -> pl.DataFrame:
    """Sightings, as the state machine takes them, of the sessions of one time slot of many trials."""
    found = verdicts_of(sessions, CANDIDATE)
    # The placebo is asked where it could matter, as its verdict is read nowhere else.
    asked = found.filter(pl.col("verdict") == "regressed").select("campaign_id") if not second else found
    of_asked = sessions.join(asked.select("campaign_id"), on="campaign_id", how="semi")
    placebo = verdicts_of(of_asked, PLACEBO) if asked.height else found.clear()
    trial = pl.col("campaign_id").str.split("-").list.get(1)
    tables = found.with_columns(trial=trial).partition_by("trial", maintain_order=True)
    table = pl.concat([false_discoveries(one.drop("trial")) for one in tables])
    slow = slow_sessions(sessions).group_by("campaign_id").agg(slow_arms=pl.col("arm").unique().sort())
    told = (
        table.join(placebo.select("campaign_id", placebo_verdict="verdict"), on="campaign_id", how="left")
        .join(slow, on="campaign_id", how="left")
        .with_columns(pl.col("slow_arms").fill_null([]))
    )
    return as_sightings(told, night, second)


def trials_of(campaigns: pl.Series) -> dict[str, Picks]:
    """The trials of each workload that these campaigns are of."""
    parts = campaigns.str.split("-")
    frame = pl.DataFrame({"workload": parts.list.get(0), "trial": parts.list.get(1).cast(pl.Int64)})
    return {
        workload: frame.filter(pl.col("workload") == workload).get_column("trial").sort().to_numpy()
        for workload in WORKLOADS
    }


def sessions_of(source: Source, trials: dict[str, Picks], night: int, second: bool, change: Change) -> pl.DataFrame:
    frames = [
        named(source.slot(workload, own, night, second), workload, night, second)
        for workload, own in trials.items()
        if len(own)
    ]
    return change(pl.concat(frames, how="diagonal"))


def with_both(now: pl.DataFrame, first: pl.DataFrame, second: pl.DataFrame) -> pl.DataFrame:
    """Second sights with the figures of both slots."""
    moved = first.with_columns(campaign_id=pl.col("campaign_id").str.replace(r"-1$", "-2"))
    both = both_slots(moved, second.select(moved.columns), Plan(BASELINE, CANDIDATE, (1,)), POLICY, _LEDGER)
    figures = [name for name in both.columns if name != "campaign_id"]
    return now.drop(figures).join(both, on="campaign_id", how="left").select(*SIGHTINGS)


def nights(source: Source, trials: int, *changes: Change) -> pl.DataFrame:
    """All events of so many trials of consecutive nights, each with a confirming slot where something is suspected."""
    events, earlier = empty_table("alerts"), pl.DataFrame(schema=SIGHTINGS)
    everywhere = dict.fromkeys(WORKLOADS, np.arange(trials))
    for night, change in enumerate(changes):
        first = sessions_of(source, everywhere, night, False, change)
        now = seen(first, night, False)
        events = pl.concat([events, night_events(now, events, earlier)])
        earlier = pl.concat([earlier, now])
        waits = (pl.col("state") == SUSPECTED) | pl.col("is_recovering")
        standing = alerts(events).filter(waits, pl.col("last_night") == now.item(0, "night"))
        waiting = standing.get_column("last_campaign")
        if waiting.is_empty():
            continue
        second = sessions_of(source, trials_of(waiting), night, True, change)
        again = seen(second, night, True)
        again = with_both(again, first.filter(pl.col("campaign_id").is_in(waiting.implode())), second)
        events = pl.concat([events, night_events(again, events, earlier)])
        earlier = pl.concat([earlier, again])
    return events


def counted(events: pl.DataFrame, event: str, workload: str = "", night: int | None = None) -> int:
    """Benchmarks that an event befell, by its end of that night."""
    rows = events.filter((pl.col("event") == event) & pl.col("workload").str.starts_with(workload))
    if night is not None:
        rows = rows.filter(pl.col("night") <= pl.lit(events.get_column("night").min()) + pl.duration(days=night))
    return rows.get_column("workload").n_unique()


def identical(claims: Claims, what: str, source: Source) -> None:
    events = nights(source, NIGHTS, unchanged)
    suspected, confirmed = counted(events, SUSPECTED), counted(events, CONFIRMED)
    trials = events.filter(pl.col("event") == SUSPECTED).get_column("workload").str.split(" ").list.get(1)
    tables = trials.n_unique()
    share, of_tables = suspected / (3 * NIGHTS), tables / NIGHTS
    told = f"{share:.2%} of a benchmark's nights ({suspected}; at most 0.5 %), in {of_tables:.2%} any of the three"
    claims.state(f"{NIGHTS} nights of identical code, {what}: suspected", told, share <= 0.005)
    claims.state("  confirmed", f"{confirmed} (0)", confirmed == 0)


def slower(claims: Claims, what: str, source: Source, counts: bool) -> None:
    events = nights(source, SLOWER, *[five_percent_slower] * LASTING)
    same = {w: counted(events, CONFIRMED, w, 0) / SLOWER for w in WORKLOADS}
    third = {w: counted(events, CONFIRMED, w) / SLOWER for w in WORKLOADS}
    effect = events.filter(pl.col("event") == CONFIRMED)
    inside = (pl.col("ci_low") <= 1.05) & (pl.col("ci_high") >= 1.05)
    median, covers = effect.select(pl.col("effect_ratio").median(), inside.mean().alias("covers")).row(0)
    told = [", ".join(f"{w} {share:.3f}" for w, share in each.items()) for each in (same, third)]
    for words, line, least, found in (("the same night", told[0], 0.75, same), ("by the third", told[1], 0.95, third)):
        if counts:
            claims.state(f"+5 %, {what}: confirmed {words}", f"{line} (each {least})", min(found.values()) >= least)
        else:
            print(f"       +5 %, {what}: confirmed {words} {line}")
    print(f"       effect of confirmed ones, median {median:.4f}; 1.05 inside {covers:.1%}")


def mended(claims: Claims, what: str, source: Source) -> None:
    """Confirmed ones of one night, whose slowdown is gone from the next on: over by when, and none told again."""
    events = nights(source, SLOWER, five_percent_slower, *[unchanged] * LASTING)
    confirmed = events.filter(pl.col("event") == CONFIRMED, pl.col("night") == events.get_column("night").min())
    of_confirmed = events.join(confirmed.select("alert"), on="alert", how="semi")
    over = [counted(of_confirmed, RESOLVED, "", night) / confirmed.height for night in range(1, LASTING + 1)]
    told = ", ".join(f"{share:.3f}" for share in over)
    asked = f"mended after a night of +5 %, {what}: resolved by the 1st, 2nd, 3rd night"
    claims.state(asked, f"{told} (0.95 by the third)", over[-1] >= 0.95)
    again = events.filter(pl.col("event") == CONFIRMED).height - confirmed.height
    claims.state("  confirmed once more", f"{again} (0)", again == 0)


def other_hosts(claims: Claims, source: Source) -> None:
    """A factor in one night of ten: both arms on another host, arms split between hosts, moved halfway."""
    few = NIGHTS // 10
    factors = np.random.default_rng(3).uniform(0.7, 1.3, few)
    scale = pl.DataFrame({"trial": [str(trial) for trial in range(few)], "factor": factors})
    halfway = pl.col("block") >= pl.col("block").max().over("campaign_id") / 2
    places = {
        "both arms on another host": pl.lit(True),
        "arms split between hosts": pl.col("arm") == CANDIDATE,
        "moved halfway": halfway,
    }
    for what, moved in places.items():
        events = nights(source, few, partial(elsewhere, scale, moved))
        confirmed, suspected = counted(events, CONFIRMED), counted(events, SUSPECTED)
        told = f"{confirmed} (0), suspected {suspected}"
        claims.state(f"{what}, factor 0.7 to 1.3, {3 * few} benchmarks: confirmed", told, confirmed == 0)
        if what != "both arms on another host":
            differs = events.filter(pl.col("sorted_as") == "hardware differs").height / (3 * few)
            claims.state("  ends 'hardware differs'", f"{differs:.1%} (100 %)", differs == 1)


def elsewhere(scale: pl.DataFrame, moved: pl.Expr, sessions: pl.DataFrame) -> pl.DataFrame:
    """The sessions with some of them on another host that is slower by its trial's factor."""
    trial = pl.col("campaign_id").str.split("-").list.get(1)
    scaled = sessions.with_columns(trial=trial, moved=moved).join(scale, on="trial", maintain_order="left")
    other = [pl.when("moved").then(pl.lit("other")).otherwise(name).alias(name) for name in ("host", "device")]
    by = pl.when("moved").then("factor").otherwise(1.0)
    times = [(pl.col(name) * by).round().cast(pl.Int64) for name in _TIMES]
    return scaled.with_columns(*other, *times).drop("trial", "factor", "moved")


def main() -> int:
    argparse.ArgumentParser(description=__doc__).parse_args()
    if not (SHARED / "regression" / "local_sessions.npz").is_file():
        print(f"{SHARED}: no regression/local_sessions.npz there; set AACO_SHARED")
        return 2
    began = time.process_time()
    claims = Claims()
    sessions, _ = local_sessions(SHARED)
    for what, blocks in (("odd blocks", HELD_OUT), ("even blocks", TUNED_ON), ("all blocks", ALL_BLOCKS)):
        source = Recomposed(sessions, blocks, NIGHTS, LASTING + 1)
        identical(claims, f"recomposed of {what}", source)
        slower(claims, f"recomposed of {what}", source, counts=blocks is not TUNED_ON)
    mended(claims, "recomposed of all blocks", source)
    other_hosts(claims, source)
    identical(claims, "simulated", Simulated())
    slower(claims, "simulated", Simulated(), counts=True)
    print(f"{claims.missed} missed, {time.process_time() - began:.0f} s CPU")
    return int(claims.missed > 0)


if __name__ == "__main__":
    sys.exit(main())
