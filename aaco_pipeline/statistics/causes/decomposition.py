"""The change of an iteration's time, split exactly: how often kernels ran, how long each took, and what lay between.

For each group of matched kernels with count c and mean time m the change of c*m is split at the midpoint (Bennet's
indicator, the Shapley value of two factors): count dc*(m0+m1)/2, duration dm*(c0+c1)/2. Idle time is split likewise by
the kernel that ended it, at the pace of a typical launch: so much comes with more launches, the rest is idle time of
its cause. What is added or removed is all count. The rows add up to the change.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl
from scipy import stats

from aaco_pipeline.statistics.causes.accounts import UNKNOWN
from aaco_pipeline.statistics.causes.arms import Arm
from aaco_pipeline.statistics.causes.changed_calls import changed_calls
from aaco_pipeline.statistics.causes.matching import Replaced, groups_of
from aaco_pipeline.statistics.causes.split import CLOCK, HIDDEN_HOST, Means, Row, Side, Subjects, pace_ns, rows_of

Floats = npt.NDArray[np.float64]

#: Of fewer sessions an arm no interval is given.
LEAST_SESSIONS: Final = 3
#: What is left of sums of floating-point numbers that cancel.
_ROUNDING_NS: Final = 1e-6
_RESAMPLES: Final = 999
_SEED: Final = 20_170
_CONFIDENCE: Final = 0.95
SCHEMA: Final[Mapping[str, pl.DataType]] = {
    "kind": pl.String(),
    "subject": pl.String(),
    "short_subject": pl.String(),
    "delta_ns": pl.Float64(),
    "ci_low_ns": pl.Float64(),
    "ci_high_ns": pl.Float64(),
    "count_part_ns": pl.Float64(),
    "duration_part_ns": pl.Float64(),
    "baseline_count": pl.Float64(),
    "candidate_count": pl.Float64(),
    "baseline_ns": pl.Float64(),
    "candidate_ns": pl.Float64(),
    "share_of_change": pl.Float64(),
    "matched_by": pl.String(),
    "in_sum": pl.Boolean(),
}


@dataclass(frozen=True)
class Decomposition:
    """Where the change of an iteration's recorded time between two arms went, in ns an iteration.

    `causes` has the columns of `SCHEMA`; causes that push the way of the change come first, by the end of their
    interval that is nearer to zero where there are intervals, else by size. Rows that are `in_sum` add up to
    `change_ns`; `closure_ratio` is what they miss of it, over it. `hidden_host` and `host_calls` lie beside the sum.
    Intervals hold for all rows together at 95 %; they are null below three sessions an arm and for `host_calls`, and
    `interval` says how they were made.
    """

    baseline_ns: float
    candidate_ns: float
    ci_low_ns: float | None
    ci_high_ns: float | None
    causes: pl.DataFrame
    closure_ratio: float
    interval: str | None

    @property
    def change_ns(self) -> float:
        """Candidate minus baseline."""
        return self.candidate_ns - self.baseline_ns

    def named(self) -> pl.DataFrame:
        """The causes whose interval excludes zero, without what is unexplained; all without intervals."""
        rows = self.causes.filter(pl.col("kind") != "unexplained")
        if self.interval is None:
            return rows
        return rows.filter((pl.col("ci_low_ns") > 0) | (pl.col("ci_high_ns") < 0))


def decompose(baseline: Arm, candidate: Arm, replaced: Sequence[Replaced]) -> Decomposition:
    """Split the change of the time of one traced iteration between two arms, each of at least one account.

    Intervals come from resampling sessions through the whole split: blocks where both arms ran in the same ones, else
    the sessions of each arm. The standard deviation of the resampled rows times Student's t, at the level that holds
    for all rows together (Bonferroni), is the half width: percentiles of so few sessions would be too narrow. The
    split is of recorded times and takes the recorder's own cost for a part of the program.
    """
    arms = baseline.accounts, candidate.accounts
    groups = groups_of(*arms, replaced)
    subjects = Subjects.of(groups, arms, replaced)
    causes = sorted({cause for side in arms for one in side for cause in one.idle.get_column("cause")} | {UNKNOWN})
    sides = Side.of(arms[0], groups, causes), Side.of(arms[1], groups, causes)
    point = [side.means(np.full((1, side.sessions), 1 / side.sessions)) for side in sides]
    split = partial(rows_of, subjects=subjects, causes=causes, pace=pace_ns(sides))
    rows = split(*point)
    shown = [at for at, row in enumerate(rows) if abs(row.delta[0]) > _ROUNDING_NS or row.kind in (CLOCK, HIDDEN_HOST)]
    change = point[1].time - point[0].time
    half, total_half, how = _half_widths(sides, (baseline.blocks, candidate.blocks), split, len(shown) + 1)
    explained = sum(float(rows[at].delta[0]) for at in shown if rows[at].in_sum)
    total = float(change[0])
    told = [_told(rows[at], None if half is None else half[at], total) for at in shown]
    told += [_told(row, None, total) for row in changed_calls(*arms, total)]
    frame = pl.DataFrame(told, schema=dict(SCHEMA), orient="row")
    return Decomposition(
        baseline_ns=float(point[0].time[0]),
        candidate_ns=float(point[1].time[0]),
        ci_low_ns=None if total_half is None else total - total_half,
        ci_high_ns=None if total_half is None else total + total_half,
        causes=_ordered(frame, total),
        closure_ratio=abs(total - explained) / abs(total) if total else abs(explained),
        interval=how,
    )


# ---- inside ----------------------------------------------------------------------------------------------------------


def _half_widths(
    sides: tuple[Side, Side],
    blocks: tuple[Sequence[int | None], Sequence[int | None]],
    split: Callable[[Means, Means], list[Row]],
    rows: int,
) -> tuple[Floats | None, float | None, str | None]:
    """Half the width of each row's interval and of the change's, and how they were made; none for too few sessions."""
    if min(side.sessions for side in sides) < LEAST_SESSIONS:
        return None, None, None
    random = np.random.default_rng(_SEED)
    shared = sorted({block for block in blocks[0] if block is not None})
    paired = len(shared) >= LEAST_SESSIONS and set(blocks[0]) == set(blocks[1]) == set(shared)
    if paired:
        drawn = random.multinomial(len(shared), np.full(len(shared), 1 / len(shared)), _RESAMPLES).astype(float)
        weights = [_of_blocks(drawn, side, shared) for side in blocks]
        units = len(shared)
    else:
        weights = [
            random.multinomial(side.sessions, np.full(side.sessions, 1 / side.sessions), _RESAMPLES) / side.sessions
            for side in sides
        ]
        units = min(side.sessions for side in sides)
    means = [side.means(weight) for side, weight in zip(sides, weights, strict=True)]
    spread = np.array([row.delta.std() for row in split(means[0], means[1])])
    # Resampling n units shows (n - 1) / n of their variance.
    wider = float(np.sqrt(units / (units - 1)) * stats.t.ppf(1 - (1 - _CONFIDENCE) / (2 * rows), units - 1))
    how = f"{units} blocks resampled" if paired else f"{sides[0].sessions} and {sides[1].sessions} sessions resampled"
    alone = float(np.sqrt(units / (units - 1)) * stats.t.ppf((1 + _CONFIDENCE) / 2, units - 1))
    return spread * wider, float((means[1].time - means[0].time).std()) * alone, how


def _of_blocks(drawn: Floats, blocks: Sequence[int | None], shared: Sequence[int]) -> Floats:
    """Weights of sessions from how often each block was drawn, adding up to one in each resample."""
    at = np.array([shared.index(block) for block in blocks if block is not None])
    weight: Floats = drawn[:, at] / np.bincount(at, minlength=len(shared))[at]
    weight /= weight.sum(axis=1, keepdims=True)
    return weight


def _told(row: Row, half: float | None, total: float) -> dict[str, Any]:
    delta = float(row.delta[0])
    return {
        "kind": row.kind,
        "subject": row.subject,
        "short_subject": row.short,
        "delta_ns": delta,
        "ci_low_ns": None if half is None else delta - float(half),
        "ci_high_ns": None if half is None else delta + float(half),
        "count_part_ns": _first(row.count_part),
        "duration_part_ns": _first(row.duration_part),
        "baseline_count": _first(row.counts[0]),
        "candidate_count": _first(row.counts[1]),
        "baseline_ns": _first(row.times[0]),
        "candidate_ns": _first(row.times[1]),
        "share_of_change": delta / total if total and row.in_sum else None,
        "matched_by": row.matched_by,
        "in_sum": row.in_sum,
    }


def _first(values: Floats | None) -> float | None:
    return None if values is None or np.isnan(values[0]) else float(values[0])


def _ordered(causes: pl.DataFrame, change: float) -> pl.DataFrame:
    """What pushes the way of the change first, by how sure and how large it is; what is unexplained last."""
    way = -1.0 if change < 0 else 1.0
    size = pl.col("delta_ns") * way
    low, high = (pl.col(one) * way for one in (("ci_low_ns", "ci_high_ns") if way > 0 else ("ci_high_ns", "ci_low_ns")))
    sure = pl.when(low > 0).then(low).when(high < 0).then(high).otherwise(0.0).fill_null(0.0)
    order = [~pl.col("in_sum"), pl.col("kind") == "unexplained", sure, size, pl.col("kind"), pl.col("subject")]
    return causes.sort(order, descending=[False, False, True, True, False, False])
