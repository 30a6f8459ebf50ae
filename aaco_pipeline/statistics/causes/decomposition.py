"""Split the change of an iteration's time exactly into launch counts, durations and idle time, with intervals.

Changed host calls are reported in addition. `split` has the arithmetic.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl
from scipy import stats

from aaco_pipeline.lake.validation import to_contract
from aaco_pipeline.statistics.causes.accounts import UNKNOWN, Account
from aaco_pipeline.statistics.causes.arms import OBSERVED, Arm
from aaco_pipeline.statistics.causes.matching import Replaced, groups_of
from aaco_pipeline.statistics.causes.split import (
    CLOCK,
    HIDDEN_HOST,
    HOST_CALLS,
    Means,
    Row,
    Side,
    Subjects,
    pace_ns,
    rows_of,
)

#: Minimum fraction of the total change and of an iteration for a reported call.
_OF_CHANGE: Final = 0.1
_OF_ITERATION: Final = 0.02
#: Minimum ratio of the mean duration of a reported call whose count is unchanged.
_TIMES: Final = 2.0


def changed_calls(before: Sequence[Account], after: Sequence[Account], change_ns: float) -> Iterator[Row]:
    """One row for each device runtime call that explains part of the change, largest first.

    These rows show, for example, allocations in each step. Their times are not in the sum: their effect on the device
    is part of its idle time.
    """
    sides = []
    for side in (before, after):
        rows = pl.concat([one.calls.with_columns(pl.col("count", "busy_ns") / one.steps) for one in side])
        sides.append(rows.group_by("name").agg(pl.col("count", "busy_ns").sum() / len(side)))
    if sides[0].height and sides[1].height and sides[0].join(sides[1], on="name").is_empty():
        return  # runtimes of two vendors share no calls
    both = sides[0].join(sides[1], on="name", how="full", coalesce=True, suffix="_after").fill_null(0.0)
    longer = pl.col("busy_ns_after") - pl.col("busy_ns")
    each, each_after = (pl.col(f"busy_ns{one}") / pl.col(f"count{one}") for one in ("", "_after"))
    other_count = pl.col("count").round(1) != pl.col("count_after").round(1)
    other_time = pl.max_horizontal(each / each_after, each_after / each) >= _TIMES
    iteration = min(one.time_ns / one.steps for one in (*before, *after))
    least = max(_OF_CHANGE * abs(change_ns), _OF_ITERATION * iteration)
    # A longer wait is an effect of the change, not a cause.
    other_time &= ~pl.col("name").str.contains("Synchronize")
    found = both.filter((longer.abs() >= least) & (other_count | other_time))
    for name, count, busy, count_after, busy_after in found.sort(longer.abs(), "name", descending=[True, False]).rows():
        yield Row(
            HOST_CALLS,
            name,
            name,
            np.array([busy_after - busy]),
            counts=(np.array([count]), np.array([count_after])),
            times=(np.array([busy]), np.array([busy_after])),
            in_sum=False,
        )


Floats = npt.NDArray[np.float64]

#: Minimum number of sessions per arm for an interval.
LEAST_SESSIONS: Final = 3
#: Smaller differences are rounding errors.
_ROUNDING_NS: Final = 1e-6
_RESAMPLES: Final = 999
_SEED: Final = 20_170
_CONFIDENCE: Final = 0.95
SCHEMA: Final[Mapping[str, pl.DataType]] = {
    **dict.fromkeys(("kind", "subject", "short_subject"), pl.String()),
    **dict.fromkeys(("delta_ns", "ci_low_ns", "ci_high_ns", "count_part_ns", "duration_part_ns"), pl.Float64()),
    **dict.fromkeys(("baseline_count", "candidate_count", "baseline_ns", "candidate_ns"), pl.Float64()),
    "share_of_change": pl.Float64(),
    "matched_by": pl.String(),
    "in_sum": pl.Boolean(),
}


@dataclass(frozen=True)
class Decomposition:
    """Split of the change of an iteration's recorded time between two arms, in ns per iteration.

    `causes` has the columns of `SCHEMA`. Causes in the direction of the change come first, sorted by the end of their
    interval that is closer to zero, or by size without intervals. Rows that are `in_sum` add up to `change_ns`;
    `closure_ratio` is the relative difference. `hidden_host` and `host_calls` are not in the sum. Intervals hold
    jointly for all rows at 95 %; they are null for `host_calls` and with fewer than three sessions in an arm.
    `interval` describes their method.
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
        """Explained causes whose interval excludes zero; all explained causes if there are no intervals."""
        rows = self.causes.filter(pl.col("kind") != "unexplained")
        if self.interval is None:
            return rows
        return rows.filter((pl.col("ci_low_ns") > 0) | (pl.col("ci_high_ns") < 0))


def decompose(baseline: Arm, candidate: Arm, replaced: Sequence[Replaced]) -> Decomposition:
    """Split the change of one traced iteration's time between two arms, each with at least one account.

    Intervals come from resampling sessions through the complete split: blocks if both arms ran in the same ones, else
    the sessions of each arm. The half width is the standard deviation of the resampled rows times Student's t at the
    level for all rows together (Bonferroni); percentiles of so few sessions would be too narrow. Recorded times include
    the recorder's overhead.
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
    listed = [_listed(rows[at], None if half is None else half[at], total) for at in shown]
    listed += [_listed(row, None, total) for row in changed_calls(*arms, total)]
    frame = pl.DataFrame(listed, schema=dict(SCHEMA), orient="row")
    return Decomposition(
        baseline_ns=float(point[0].time[0]),
        candidate_ns=float(point[1].time[0]),
        ci_low_ns=None if total_half is None else total - total_half,
        ci_high_ns=None if total_half is None else total + total_half,
        causes=_ordered(frame, total),
        closure_ratio=abs(total - explained) / abs(total) if total else abs(explained),
        interval=how,
    )


def _half_widths(
    sides: tuple[Side, Side],
    blocks: tuple[Sequence[int | None], Sequence[int | None]],
    split: Callable[[Means, Means], list[Row]],
    rows: int,
) -> tuple[Floats | None, float | None, str | None]:
    """Half the width of each row's interval and of the change's, and their method; None for too few sessions."""
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
    # Resampling n units underestimates their variance by the factor (n - 1) / n.
    wider = float(np.sqrt(units / (units - 1)) * stats.t.ppf(1 - (1 - _CONFIDENCE) / (2 * rows), units - 1))
    how = f"{units} blocks resampled" if paired else f"{sides[0].sessions} and {sides[1].sessions} sessions resampled"
    alone = float(np.sqrt(units / (units - 1)) * stats.t.ppf((1 + _CONFIDENCE) / 2, units - 1))
    return spread * wider, float((means[1].time - means[0].time).std()) * alone, how


def _of_blocks(drawn: Floats, blocks: Sequence[int | None], shared: Sequence[int]) -> Floats:
    """Weights of sessions from the number of draws of each block, adding up to one in each resample."""
    at = np.array([shared.index(block) for block in blocks if block is not None])
    weight: Floats = drawn[:, at] / np.bincount(at, minlength=len(shared))[at]
    weight /= weight.sum(axis=1, keepdims=True)
    return weight


def _listed(row: Row, half: float | None, total: float) -> dict[str, Any]:
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
    """Causes in the direction of the change first, by certainty and size; the unexplained rest last."""
    way = -1.0 if change < 0 else 1.0
    size = pl.col("delta_ns") * way
    low, high = (pl.col(one) * way for one in (("ci_low_ns", "ci_high_ns") if way > 0 else ("ci_high_ns", "ci_low_ns")))
    sure = pl.when(low > 0).then(low).when(high < 0).then(high).otherwise(0.0).fill_null(0.0)
    order = [~pl.col("in_sum"), pl.col("kind") == "unexplained", sure, size, pl.col("kind"), pl.col("subject")]
    return causes.sort(order, descending=[False, False, True, True, False, False])


def attribution_rows(baseline: str, candidate: str, split: Decomposition, environment: pl.DataFrame) -> pl.DataFrame:
    """Rows of `attributions`: the split's causes, and environment differences, which have no time.

    `baseline` and `candidate` name the sides as in `verdicts`; `environment` comes from `environment_differences`.
    """
    causes = split.causes.with_columns(
        pl.col("^.*_ns$").round().cast(pl.Int64), share_ratio="share_of_change", evidence_grade=pl.lit(OBSERVED)
    ).drop("short_subject", "share_of_change")
    change = pl.concat_str(pl.col("baseline"), pl.lit(" → "), pl.col("candidate"))
    facts = environment.select(
        "evidence_grade",
        kind=pl.lit("environment"),
        subject=pl.concat_str(pl.col("category"), pl.lit(" "), pl.col("key"), pl.lit(": "), change),
        in_sum=pl.lit(False),
    )
    rows = pl.concat([causes, facts], how="diagonal_relaxed")
    return to_contract("attributions", rows.with_columns(baseline=pl.lit(baseline), candidate=pl.lit(candidate)))


def selection_rows(baseline: str, candidate: str, found: pl.DataFrame) -> pl.DataFrame:
    """Rows of `selections` from the result of `selection.selections`, in its order."""
    ranked = found.with_row_index("rank").with_columns(pl.col("rank").cast(pl.Int32))
    return to_contract("selections", ranked.with_columns(baseline=pl.lit(baseline), candidate=pl.lit(candidate)))
