"""Estimate each night's level of a benchmark, detect changes, and attribute them to code or host."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl

from aaco_pipeline.lake.contracts import polars_types
from aaco_pipeline.statistics.history.levels import DRIFT, Change, Levels, Places, find_levels
from aaco_pipeline.statistics.verdicts.comparison import METRICS, why_left_out
from aaco_pipeline.statistics.verdicts.effects import LEVEL, Floats, block_effects, t_interval

#: Reference arms of unchanged code, the better one first: a canary's file never changes.
REFERENCES: Final = ("canary", "baseline")
#: Columns of `nights` that do not depend on other nights.
OF_THE_NIGHT: Final = (
    *("workload", "backend", "host", "metric", "arm", "campaign", "started_at"),
    *("sessions", "level_ns", "ci_low_ns", "ci_high_ns", "error_ratio", "paired_with", "paired_artefact_sha256"),
    *("paired_blocks", "paired_ratio", "paired_ci_low", "paired_ci_high", "paired_error_ratio", "fingerprint"),
)
_ARM: Final = ("campaign", "host", "arm")


def night_levels(sessions: pl.DataFrame) -> pl.DataFrame:
    """One row for each campaign, host, metric and arm: its level that night, and its ratio to the reference.

    Parameters
    ----------
    sessions : rows of `session_quantiles` with campaign, started_at, workload, backend, host, fingerprint and
        artefact_sha256 (of the file that the arm measured); the last three may be null.

    Returns
    -------
    The columns OF_THE_NIGHT of the table `nights`. A metric without values in an arm has no row.

    Notes
    -----
    A level is the mean log over sessions with a t interval; a ratio is the mean over blocks of the log ratio of both
    arms' sessions, as in a verdict. The reference is the canary, else the baseline. Arms on different hosts are not
    paired.
    """
    frames = [_of_metric(sessions, metric, column) for metric, column in METRICS.items()]
    rows = pl.concat(frames)
    return rows.select(OF_THE_NIGHT).cast(polars_types("nights", *OF_THE_NIGHT))  # type: ignore[arg-type]


def _of_metric(sessions: pl.DataFrame, metric: str, column: str) -> pl.DataFrame:
    valued = sessions.with_columns(value=pl.when(why_left_out(metric, column).is_null()).then(column))
    same = pl.col("fingerprint").n_unique() == 1
    levels = (
        valued.group_by(_ARM, maintain_order=True)
        .agg(
            pl.col("started_at", "workload", "backend", "artefact_sha256").first(),
            sessions=pl.col("value").count(),
            mean=pl.col("value").log().mean(),
            error_ratio=pl.col("value").log().std() / pl.col("value").count().sqrt(),
            fingerprint=pl.when(same).then(pl.col("fingerprint").first()),
        )
        .filter(pl.col("sessions") > 0)
    )
    ends = _interval(levels, "mean", "error_ratio", "sessions")
    levels = levels.with_columns(
        metric=pl.lit(metric),
        level_ns=pl.col("mean").exp().round(),
        ci_low_ns=ends[0].floor(),
        ci_high_ns=ends[1].ceil(),
    )
    return levels.join(_paired(valued, levels), on=_ARM, how="left", nulls_equal=True, maintain_order="left")


def _paired(valued: pl.DataFrame, levels: pl.DataFrame) -> pl.DataFrame:
    """campaign, host, arm and the columns of its ratio to the best reference of its campaign."""
    frames = []
    left = levels.select(_ARM)
    for reference in REFERENCES:
        files = levels.filter(pl.col("arm") == reference).select("campaign", "host", "artefact_sha256")
        arms = left.filter(pl.col("arm") != reference).join(files, on=["campaign", "host"], nulls_equal=True)
        for arm in arms.get_column("arm").unique(maintain_order=True):
            of_arm = arms.filter(pl.col("arm") == arm)
            for host in of_arm.get_column("host").unique(maintain_order=True):
                here = valued.filter(pl.col("host").eq_missing(host)).rename({"campaign": "campaign_id"})
                effects = block_effects(here, reference, arm, "value").rename({"campaign_id": "campaign"})
                known = of_arm.filter(pl.col("host").eq_missing(host)).join(effects, on="campaign")
                frames.append(_ratios(known.filter(pl.col("paired") > 0), reference))
        left = left.filter(pl.col("arm") != reference).join(arms, on=_ARM, how="anti", nulls_equal=True)
    types = polars_types("nights", *_ARM, *(name for name in OF_THE_NIGHT if name.startswith("paired_")))
    return pl.concat(frames) if frames else pl.DataFrame(schema=types)


def _ratios(effects: pl.DataFrame, reference: str) -> pl.DataFrame:
    rows = effects.with_columns(paired_error_ratio=pl.col("deviation") / pl.col("paired").sqrt())
    low, high = _interval(rows, "mean", "paired_error_ratio", "paired")
    return rows.select(
        *_ARM,
        pl.lit(reference).alias("paired_with"),
        pl.col("artefact_sha256").alias("paired_artefact_sha256"),
        pl.col("paired").alias("paired_blocks"),
        pl.col("mean").exp().alias("paired_ratio"),
        low.alias("paired_ci_low"),
        high.alias("paired_ci_high"),
        "paired_error_ratio",
    )


def _interval(rows: pl.DataFrame, mean: str, error: str, count: str) -> tuple[pl.Series, pl.Series]:
    """Both ends of the 95 % interval of each level or ratio; null below two."""
    middle, spread = (rows.get_column(name).fill_null(np.nan).to_numpy().astype(np.float64) for name in (mean, error))
    freedom: Floats = np.maximum(rows.get_column(count).to_numpy().astype(np.float64) - 1, 1)
    ends = t_interval(middle, spread, freedom, np.array(LEVEL))
    low, high = (pl.Series(np.exp(end), dtype=pl.Float64).fill_nan(None) for end in ends)
    return low, high


#: Key of a series, and the order of its nights.
SERIES: Final = ("workload", "backend", "host", "metric", "arm")
_ORDER: Final = ("started_at", "campaign")
RAW: Final = "raw"
PAIRED: Final = "paired"
CODE: Final = "code"
HOST: Final = "host"
CANARY: Final = REFERENCES[0]
#: Maximum distance in nights between the intervals of the same change in the raw and the paired series.
_TOGETHER: Final = 2
#: Number of nights before a change in the search for its delay.
_BEFORE: Final = 60
_FLAGS: Final = polars_types("nights", "is_outlier", "segment", "paired_is_outlier", "paired_segment")


@dataclass(frozen=True)
class _Part:
    """Nights of one search: their indices in the series, the values, and the levels found."""

    of: str
    places: Places
    values: Floats
    errors: Floats
    found: Levels


def with_levels(nights: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the nights with their levels and outliers, and every change of level.

    Parameters
    ----------
    nights : rows of `night_levels`, of any number of series and nights.

    Returns
    -------
    Rows of `nights` and of `change_points`, in the order of the series and the nights.

    Notes
    -----
    Ratios are searched like levels, separately for each file of the reference. A change of the level is attributed to
    the code when the ratio changed with it, within two nights; to the host when the ratio did not: the interval of its
    difference across that night excludes half the change. Otherwise it is not attributed. A change of the host that
    affects only one arm's code is attributed to the code.
    """
    ordered = nights.sort(*SERIES, *_ORDER, nulls_last=False)
    frames, rows = [], []
    for series in ordered.partition_by(SERIES, maintain_order=True):
        parts = _parts(series)
        frames.append(_flagged(series, parts))
        rows += [row for part in parts for row in _rows(series, part, parts)]
    names = polars_types("nights")
    flagged = pl.concat(frames).select(names.keys()).cast(names) if frames else pl.DataFrame(schema=names)  # type: ignore[arg-type]
    return flagged, pl.DataFrame(rows, schema=polars_types("change_points"), orient="row")


def _parts(series: pl.DataFrame) -> list[_Part]:
    """Return the series of levels, and the ratios to each file of the reference."""
    file = series.get_column("paired_artefact_sha256").fill_null("").to_numpy()
    runs = np.cumsum(np.concatenate(([0], file[1:] != file[:-1]))) if len(file) else np.zeros(0, int)
    ratio = series.get_column("paired_ratio").is_not_null().to_numpy()
    chosen = [(RAW, "level_ns", "error_ratio", series.get_column("level_ns").is_not_null().to_numpy())]
    chosen += [(PAIRED, "paired_ratio", "paired_error_ratio", ratio & (runs == run)) for run in np.unique(runs[ratio])]
    parts = []
    for of, value, error, here in chosen:
        logs = series.get_column(value).cast(pl.Float64).log().fill_null(np.nan).to_numpy()[here]
        errors = series.get_column(error).fill_null(np.nan).to_numpy()[here]
        parts.append(_Part(of, np.flatnonzero(here), logs, errors, find_levels(logs, errors, paired=of == PAIRED)))
    return parts


def _flagged(series: pl.DataFrame, parts: list[_Part]) -> pl.DataFrame:
    """Return the series with the index, level and outlier flag of each night."""
    flags: dict[str, list[Any]] = {name: [None] * series.height for name in _FLAGS}
    levels = {RAW: 0, PAIRED: 0}
    for part in parts:
        prefix = "" if part.of == RAW else "paired_"
        segment = np.searchsorted(part.found.starts, np.arange(len(part.values)), side="right") - 1 + levels[part.of]
        for place, outlier, undecided, level in zip(
            part.places, part.found.outliers, part.found.undecided, segment, strict=True
        ):
            flags[f"{prefix}is_outlier"][place] = None if undecided else bool(outlier)
            flags[f"{prefix}segment"][place] = None if outlier or undecided else int(level)
        levels[part.of] += len(part.found.starts)
    fingerprint = pl.col("fingerprint")
    return series.with_columns(
        *(pl.Series(name, values, dtype=_FLAGS[name]) for name, values in flags.items()),
        night=pl.int_range(pl.len(), dtype=pl.Int32),
        is_new_fingerprint=fingerprint != fingerprint.shift(1),
    )


def _rows(series: pl.DataFrame, part: _Part, parts: list[_Part]) -> list[dict[str, Any]]:
    """Rows of `change_points` for one part of a series."""
    of_series = series.row(0, named=True)
    campaigns, dates = series.get_column("campaign").to_list(), series.get_column("started_at").to_list()
    named = " · ".join(str(of_series[name]) for name in SERIES if of_series[name] is not None)
    rows = []
    for change in part.found.changes:
        first, low, high = (int(part.places[place]) for place in (change.start, change.earliest, change.latest))
        interval = t_interval(*(np.array(x) for x in (change.effect, change.error, change.freedom, LEVEL)))
        is_drift = change.kind == DRIFT
        rows.append(
            {
                "series": named,
                "campaign": campaigns[first],
                "first_location": campaigns[low],
                "last_location": campaigns[high],
                "effect_ratio": float(np.exp(change.effect)),
                "ci_low": float(np.exp(interval[0])),
                "ci_high": float(np.exp(interval[1])),
                **{name: of_series[name] for name in SERIES},
                "kind": change.kind,
                "of": part.of,
                "owed_to": _owed_to(of_series["arm"], part, change, parts),
                "started_at": dates[first],
                "nights_before": None if is_drift else change.before,
                "nights_after": change.after,
                "delay_nights": len({date.date() for date in dates[first : int(part.places[_shown(part, change)]) + 1]})
                - 1,
            }
        )
    return rows


def _owed_to(arm: str, raw: _Part, change: Change, parts: list[_Part]) -> str | None:
    """Return `code` or `host` from the ratios across the change, or None. A canary is unchanged code."""
    if raw.of == PAIRED:
        return CODE
    if arm == CANARY:
        return HOST
    low, high = (int(raw.places[place]) for place in (change.earliest, change.latest))
    for part in parts:
        for other in part.found.changes if part.of == PAIRED else []:
            first, last = (int(part.places[place]) for place in (other.earliest, other.latest))
            near = first <= high + _TOGETHER and last >= low - _TOGETHER
            if near and (other.effect > 0) == (change.effect > 0):
                return CODE
    start = int(raw.places[change.start])
    end = int(raw.places[change.latest]) if change.kind == DRIFT else start
    for part in parts:
        sides = _sides(part, start, end, change) if part.of == PAIRED else None
        if sides is None:
            continue
        before, after = sides
        error = np.sqrt(before.var(ddof=1) / len(before) + after.var(ddof=1) / len(after))
        freedom = np.array(min(len(before), len(after)) - 1.0)
        interval = t_interval(np.array(after.mean() - before.mean()), np.array(error), freedom, np.array(LEVEL))
        low_share, high_share = sorted(float(end / change.effect) for end in interval)
        if high_share < 0.5:
            return HOST
        if low_share > 0.5:
            return CODE
    return None


def _sides(part: _Part, start: int, end: int, change: Change) -> tuple[Floats, Floats] | None:
    """Return the ratios of the nights before and after, without outliers; None with fewer than two on a side."""
    usable = ~(part.found.outliers | part.found.undecided)
    inside = [
        usable & (part.places < start) & (part.places >= start - max(change.before, 2)),
        usable & (part.places >= end) & (part.places < end + max(change.after, 2)),
    ]
    before, after = (part.values[here] for here in inside)
    return (before, after) if min(len(before), len(after)) >= 2 else None


def _shown(part: _Part, change: Change) -> int:
    """Return the index of the first night at which a search finds the change."""
    first = max(change.start - _BEFORE, 0)
    last = len(part.values) - 1
    for end in range(change.start, last):
        window = slice(first, end + 1)
        for seen in find_levels(part.values[window], part.errors[window], paired=part.of == PAIRED).changes:
            same_way = (seen.effect > 0) == (change.effect > 0)
            if same_way and seen.latest + first >= change.earliest and seen.earliest + first <= change.latest:
                return int(part.places[end])
    return int(part.places[last])
