"""The steady state of a session: whether each process's iterations ran at one level, and since when."""

from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from aaco_pipeline.lake.contracts import polars_types
from aaco_pipeline.statistics.segmentation import Floats, starts_of_many

Counts = npt.NDArray[np.int64]

STEADY: Final = "steady"
UNSTEADY: Final = "unsteady"
BIMODAL: Final = "bimodal"
TOO_SHORT: Final = "too_short"

#: Minimum number of iterations with a level.
LEAST_ITERATIONS: Final = 30
#: Maximum relative difference at which a level counts as equal to the last one.
LEVEL_TOLERANCE: Final = 0.05
#: Minimum fraction of the measured iterations at the last level for steady_from.
LEAST_LAST_SHARE: Final = 1 / 3
#: Minimum fraction of the steady part in a steady session: a later level has few iterations, and one that starts
#: halfway is not the end of a warm-up.
LEAST_STEADY_SHARE: Final = 1 / 2
#: Minimum fraction of a level, except for the first one; shorter ones are interruptions.
LEAST_LEVEL_SHARE: Final = 1 / 10
#: Two modes: the fraction of the variance of log latencies (2.5 % to 97.5 % quantiles) that the two means explain, and
#: the fraction of iterations in the smaller mode. One normal mode explains 0.66, a uniform one 0.75; two normal modes
#: reach 0.85 at a distance of five standard deviations.
LEAST_EXPLAINED: Final = 0.85
LEAST_MODE_SHARE: Final = 0.2
#: Minimum fraction of units that follow one of the other mode; below it the modes are levels.
LEAST_JUMPS: Final = 1 / 20
_PROBABILITIES: Final = np.linspace(0.025, 0.975, 64)
_PENALTY: Final = 15.0
_FILTER_WIDTH: Final = 5
#: Longer series are reduced to medians of equal blocks first.
_MOST_POINTS: Final = 100
#: Standard deviation over the median absolute difference of neighbours, for normal values: 1 / (0.6745 * sqrt(2)).
_DIFFERENCE_TO_DEVIATION: Final = 1.0483


def steady_state_metrics(units: pl.DataFrame) -> pl.DataFrame:
    """Rows of `session_metrics` on units of work in the order they ran: steady_state and steady_from.

    `units` has `iteration` (the first of the unit), `time_ns` and `run` (the process of a recorded program, null when
    there is only one), for measured units of the unprofiled pass. Processes differ, so each run has its own levels;
    runs of one unit each form one series. steady_state is 1 when in every run all levels lie within 5 % of the run's
    last one, else 0; null with fewer than 30 units in a run. steady_from is the first iteration of that steady part, in
    the run in which it comes latest; null when it is less than the last third of a run. No units give no rows.
    """
    schema = polars_types("session_metrics")
    if units.is_empty():
        return pl.DataFrame(schema=schema)
    counts = units.group_by("run", maintain_order=True).len().get_column("len").to_numpy().astype(np.int64)
    if counts.max() == 1:
        counts = np.array([units.height])
    state: float | None = None
    first: float | None = None
    if counts.min() >= LEAST_ITERATIONS:
        since = levels_since(units.get_column("time_ns").to_numpy(), counts)
        state = float(not since.any())
        latest = int(since.argmax())
        if ((counts - since) / counts >= LEAST_LAST_SHARE).all():
            first = float(units.get_column("iteration")[int(counts[:latest].sum() + since[latest])])
    rows = [
        {"metric": "steady_state", "value": state, "unit": "flag"},
        {"metric": "steady_from", "value": first, "unit": "iteration"},
    ]
    return pl.DataFrame(
        [{"pass": "latency", "phase": "measure", "n": units.height, **row} for row in rows], schema=schema
    )


def states_of(times: Counts, counts: Counts) -> tuple[npt.NDArray[np.str_], Counts]:
    """Return the state of each session, and the index of its first steady unit.

    Parameters
    ----------
    times : (sum of counts,) positive times in ns, each session's in the order they ran, one session after the other.
    counts : (sessions,) the number of units of each session, 1 or more.

    Returns
    -------
    States and indices from 0. `too_short` below 30 units; `unsteady` when the last level, with earlier ones within 5 %
    of it, lasts for less than half of them; `bimodal` when the steady part, or without one the whole session, jumps
    between two modes; else `steady`. The index is 0 without a steady part.

    Notes
    -----
    A drift slower than the tolerance of levels counts as steady, and long-lasting modes count as levels. `bimodal` is
    decided on quantiles, split in two where the means of both sides explain most of their variance (exact, as in
    Fisher, On grouping for maximum homogeneity, 1958): 0.85 explained, a fifth of the units in the smaller mode, 5 %
    between the modes, and a jump from one to the other at one unit in twenty or more.
    """
    long_enough = counts >= LEAST_ITERATIONS
    since = np.zeros(len(counts), np.int64)
    if long_enough.any():
        since[long_enough] = levels_since(times[np.repeat(long_enough, counts)], counts[long_enough])
    lasting = (counts - since) / counts >= LEAST_STEADY_SHARE
    states = np.where(long_enough, np.where(lasting, STEADY, UNSTEADY), TOO_SHORT)
    since[states != STEADY] = 0
    states[long_enough & _jumps_between_modes(times, counts, since)] = BIMODAL
    return states, since


def levels_since(times: Counts, counts: Counts) -> Counts:
    """For each session, the index from which every level is within the tolerance of the last one.

    `times` and `counts` as in `states_of`. Levels come from the exact search of `segmentation` on the series' medians
    of up to 100 equal blocks, median-filtered, with a penalty of 15 log n noise variances for each level; the noise
    is estimated from neighbouring differences, so a slow drift counts as levels. Source of the penalty: Traini et al.,
    Towards effective assessment of steady state performance in Java software, 2023.
    """
    values, lengths, widths = _block_medians(times, counts)
    noise = _noise(values, lengths)
    smooth = _median_filtered(values, lengths)
    starts = starts_of_many(smooth / noise[:, None], lengths, _PENALTY * np.log(lengths))
    level = np.cumsum(starts, axis=1) - 1
    rows, columns = np.nonzero(np.arange(values.shape[1]) < lengths[:, None])
    levels = (
        pl.DataFrame({"row": rows, "level": level[rows, columns], "column": columns, "value": values[rows, columns]})
        .group_by("row", "level", maintain_order=True)
        .agg(pl.col("value").median(), pl.col("column").first(), pl.len())
        .with_columns(share=pl.col("len") / pl.col("len").sum().over("row"))
        .filter((pl.col("level") == 0) | (pl.col("share") >= LEAST_LEVEL_SHARE))
        .with_columns(last=pl.col("value").last().over("row"))
        .with_columns(near=(pl.col("value") / pl.col("last") - 1).abs() <= LEVEL_TOLERANCE)
        # Keep the levels after the last one that differs.
        .filter(pl.col("near").reverse().cum_min().reverse().over("row"))
    )
    first = levels.group_by("row", maintain_order=True).agg(pl.col("column").first())
    since: Counts = first.get_column("column").to_numpy() * widths
    return since


def _block_medians(times: Counts, counts: Counts) -> tuple[Floats, Counts, Counts]:
    """Return each session as at most 100 medians of equal blocks, their number, and the units per block."""
    widths = -(-counts // _MOST_POINTS)
    lengths = counts // widths
    row = np.repeat(np.arange(len(counts)), counts)
    place = np.arange(len(times)) - np.repeat(np.cumsum(counts) - counts, counts)
    block = place // widths[row]
    whole = block < lengths[row]
    medians = (
        pl.DataFrame({"row": row[whole], "block": block[whole], "time": times[whole]})
        .group_by("row", "block", maintain_order=True)
        .agg(pl.col("time").median())
    )
    values = np.zeros((len(counts), int(lengths.max(initial=0))))
    values[medians.get_column("row").to_numpy(), medians.get_column("block").to_numpy()] = medians.get_column("time")
    return values, lengths, widths


def _noise(values: Floats, lengths: Counts) -> Floats:
    """The standard deviation of each row from its neighbouring differences; 1 when all values are equal."""
    difference = np.abs(np.diff(values, axis=1))
    difference[np.arange(1, values.shape[1]) >= lengths[:, None]] = np.nan
    noise = np.nanmedian(difference, axis=1) * _DIFFERENCE_TO_DEVIATION
    noise = np.where(noise == 0, np.nanmean(difference, axis=1), noise)
    return np.where(noise == 0, 1.0, noise)


def _median_filtered(values: Floats, lengths: Counts) -> Floats:
    """Return the running median of each row, so that single outliers do not form levels."""
    half = _FILTER_WIDTH // 2
    # Rows are padded with their first and last value.
    places = np.minimum(np.arange(-half, values.shape[1] + half), lengths[:, None] - 1)
    padded = np.take_along_axis(values, np.maximum(places, 0), axis=1)
    windows = np.lib.stride_tricks.sliding_window_view(padded, _FILTER_WIDTH, axis=1)
    filtered: Floats = np.median(windows, axis=2)
    return filtered


def _jumps_between_modes(times: Counts, counts: Counts, since: Counts) -> npt.NDArray[np.bool_]:
    """Return which sessions' units from the index `since` on jump between two modes; see `states_of`."""
    row = np.repeat(np.arange(len(counts)), counts)
    place = np.arange(len(times)) - np.repeat(np.cumsum(counts) - counts, counts)
    kept = place >= since[row]
    ordered = pl.DataFrame({"row": row[kept], "time": times[kept]}).sort("row", "time").get_column("time").to_numpy()
    left = counts - since
    begin = np.cumsum(left) - left
    places = begin[:, None] + np.rint(_PROBABILITIES * (left[:, None] - 1)).astype(np.int64)
    values = np.log(ordered[places])
    size = values.shape[1]
    low = np.cumsum(values, axis=1)[:, :-1]
    below = np.arange(1, size)
    low_mean = low / below
    high_mean = (values.sum(axis=1, keepdims=True) - low) / (size - below)
    between = below * (size - below) / size * (high_mean - low_mean) ** 2
    split = between.argmax(axis=1)
    each = np.arange(len(counts))
    total = ((values - values.mean(axis=1, keepdims=True)) ** 2).sum(axis=1)
    share = np.minimum(below[split], size - below[split]) / size
    modes = low_mean[each, split], high_mean[each, split]
    above = times > np.exp((modes[0] + modes[1]) / 2)[row]
    jump = kept[1:] & kept[:-1] & (row[1:] == row[:-1]) & (above[1:] != above[:-1])
    found: npt.NDArray[np.bool_] = (
        (between[each, split] >= LEAST_EXPLAINED * total)
        & (share >= LEAST_MODE_SHARE)
        & (modes[1] - modes[0] >= np.log1p(LEVEL_TOLERANCE))
        & (np.bincount(row[1:][jump], minlength=len(counts)) >= LEAST_JUMPS * left)
    )
    return found
