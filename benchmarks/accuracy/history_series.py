"""Series of nights whose changes are known, and rules of other tools restated, for `benchmarks.accuracy.history`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl
from scipy import stats

from aaco_pipeline.statistics.verdicts.comparison import why_left_out
from benchmarks.accuracy.verdict_trials import WORKLOADS, local_sessions

Floats = npt.NDArray[np.float64]
Blocks = npt.NDArray[np.int64]

NIGHTS: Final = 60
#: Places of a change that is found, in nights.
TOLERANCE: Final = 3
#: No change is put nearer to an end of the series than this.
_FROM_END: Final = 10
#: The arms that do more work by 2, 5 and 10 %.
SLOWER: Final = ("b2", "b5", "b10")


@dataclass(frozen=True)
class Series:
    """Log levels of a candidate and of unchanged code in the same nights; the night of its change, None without."""

    workload: str
    arm: str | None
    at: int | None
    candidate: Floats
    canary: Floats

    @property
    def paired(self) -> Floats:
        return self.candidate - self.canary


def composed(shared: Path, blocks: Blocks, each: int, canary_sessions: int, seed: int) -> list[Series]:
    """`each` series without a change and as many for each slower arm, of each workload, from those blocks alone.

    A night is a block: one session of the candidate, and the mean of one to three other `a` sessions. Where there are
    fewer blocks than nights they are gone through again in their order, with the block's `a` sessions changed round;
    of a slower arm a block has one session, which then stands for two nights.
    """
    sessions, _ = local_sessions(shared)
    random = np.random.default_rng(seed)
    nights = np.tile(blocks, -(-NIGHTS // len(blocks)))[:NIGHTS]
    again = np.arange(NIGHTS) // len(blocks)
    made = []
    for workload in WORKLOADS:
        logs = {arm: _logs(sessions, workload, arm) for arm in ("a", *SLOWER)}
        for _ in range(each):
            order = np.argsort(random.random((60, 4)), axis=1)[nights]
            order = np.take_along_axis(order, (np.arange(4)[None, :] + again[:, None]) % 4, 1)
            of_blocks = np.take_along_axis(logs["a"][nights], order, 1)
            canary = of_blocks[:, 1 : 1 + canary_sessions].mean(axis=1)
            made.append(Series(workload, None, None, of_blocks[:, 0], canary))
            for arm in SLOWER:
                at = int(random.integers(_FROM_END, NIGHTS - _FROM_END))
                candidate = np.where(np.arange(NIGHTS) >= at, logs[arm][nights, 0], of_blocks[:, 0])
                made.append(Series(workload, arm, at, candidate, canary))
    return made


def _logs(sessions: pl.DataFrame, workload: str, arm: str) -> Floats:
    """Log medians by block; a session whose median means nothing takes that of all its arm's, so that none is lost."""
    usable = why_left_out("latency_p50", "p50_ns").is_null()
    rows = sessions.filter((pl.col("workload") == workload) & (pl.col("arm") == arm)).sort("block", "place")
    logs = rows.select(pl.when(usable).then(pl.col("p50_ns").log())).to_series()
    return logs.fill_null(logs.median()).to_numpy().reshape(60, -1)


def simulated(count: int, seed: int, correlation: float = 0.5, sessions: int = 10) -> tuple[Floats, Floats, Floats]:
    """Nights of ten sessions an arm: raw log levels, log ratios to a canary, and standard errors of both.

    Nights wander by 2 %, sessions differ by 2.5 % with the tails of a t of 5 degrees.
    """
    random = np.random.default_rng(seed)
    wander = random.standard_normal((count, NIGHTS))
    for night in range(1, NIGHTS):
        wander[:, night] = correlation * wander[:, night - 1] + np.sqrt(1 - correlation**2) * wander[:, night]
    drawn = 0.025 / np.sqrt(5 / 3) * random.standard_t(5, (count, NIGHTS, 2, sessions))
    raw = 0.02 * wander + drawn[:, :, 0].mean(axis=2)
    apart = drawn[:, :, 0] - drawn[:, :, 1]
    errors = np.stack([drawn[:, :, 0].std(axis=2, ddof=1), apart.std(axis=2, ddof=1)]) / np.sqrt(sessions)
    return raw, apart.mean(axis=2), errors


def sliding_welch(values: Floats, window: int = 10, level: float = 0.01) -> list[int]:
    """Welch's test of the ten nights before against the ten after; the least p of its neighbourhood below 1 %."""
    count = len(values)
    p_values = np.ones(count)
    for night in range(3, count - 2):
        before, after = values[max(0, night - window) : night], values[night : night + window]
        p_values[night] = stats.ttest_ind(before, after, equal_var=False).pvalue
    return _peaks(-p_values, -level, window // 2)


def perfherder(values: Floats, back: int = 12, fore: int = 12, threshold: float = 7.0) -> list[int]:
    """A t statistic of linearly weighted windows, nearer nights more, above 7; the highest of its neighbourhood."""
    count = len(values)
    score = np.zeros(count)
    for night in range(2, count - fore + 1):
        sides = values[max(0, night - back) : night][::-1], values[night : night + fore]
        weights = [np.arange(len(side), 0, -1) / len(side) for side in sides]
        means = [float(np.average(side, weights=w)) for side, w in zip(sides, weights, strict=True)]
        spread = [
            float(w @ (side - mean) ** 2 / w.sum() / (len(side) - 1))
            for side, w, mean in zip(sides, weights, means, strict=True)
        ]
        score[night] = abs(means[1] - means[0]) / max(np.sqrt(sum(spread)), 1e-12)
    return _peaks(score, threshold, fore // 2)


def _peaks(score: Floats, threshold: float, reach: int) -> list[int]:
    """Places above the threshold that are the highest within so many on either side."""
    return [
        place
        for place in np.flatnonzero(score > threshold).tolist()
        if score[place] == score[max(0, place - reach) : place + reach + 1].max()
    ]


@dataclass(frozen=True)
class Score:
    """What a rule found of many series: hits and false ones where there is a change, false ones where there is none."""

    hits: int
    false: int
    missed: int
    false_per_null: float
    detected: dict[str, float]

    @property
    def f1(self) -> float:
        return 2 * self.hits / max(2 * self.hits + self.false + self.missed, 1)

    def __str__(self) -> str:
        precision, recall = self.hits / max(self.hits + self.false, 1), self.hits / max(self.hits + self.missed, 1)
        each = ", ".join(f"+{arm[1:]} % {share:.2f}" for arm, share in self.detected.items())
        return (
            f"F1 {self.f1:.3f} (precision {precision:.2f}, recall {recall:.2f}; {each}), "
            f"{self.false_per_null:.3f} false a series without a change"
        )


def score(series: list[Series], found: list[list[int]]) -> Score:
    """Hits within three nights, one a change; all else that was found is false."""
    hit = [
        one.at is not None and any(abs(place - one.at) <= TOLERANCE for place in places)
        for one, places in zip(series, found, strict=True)
    ]
    changed = [one.at is not None for one in series]
    false = [len(places) - got for places, got in zip(found, hit, strict=True)]
    null = [many for many, is_changed in zip(false, changed, strict=True) if not is_changed]
    of_arm = {arm: [got for one, got in zip(series, hit, strict=True) if one.arm == arm] for arm in SLOWER}
    return Score(
        sum(hit),
        sum(false) - sum(null),
        sum(changed) - sum(hit),
        float(np.mean(null)),
        {arm: float(np.mean(each)) for arm, each in of_arm.items()},
    )
