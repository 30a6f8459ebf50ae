"""Nights whose truth is known, for `alerts.py`: their sessions, recomposed from real ones or simulated, slot by slot.

A trial is one pipeline of three benchmarks; every benchmark of a trial is one of its own to the state machine.
"""

from datetime import UTC, date, datetime, timedelta
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import polars as pl

from aaco_pipeline.statistics.alerts.night import SIGHTINGS
from aaco_pipeline.statistics.alerts.slots import CONFIRMING_BLOCKS
from benchmarks.accuracy.verdict_trials import BASELINE, CANDIDATE, WORKLOADS, three_levels

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
