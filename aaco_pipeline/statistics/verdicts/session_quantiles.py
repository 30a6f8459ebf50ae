"""Classify each session's state, and compute the quantiles of its steady iterations.

Sessions are the units when comparing arms (`comparison`).
"""

from typing import Final

import numpy as np
import polars as pl

from aaco_pipeline.errors import UsageError
from aaco_pipeline.statistics.steady_state import STEADY, TOO_SHORT, Counts, states_of

#: State of a session with impossible latencies.
UNUSABLE: Final = "unusable"
#: Quantiles and the number of iterations that each requires, so that ten exceed it.
QUANTILES: Final = {"p50_ns": (0.50, 1), "p90_ns": (0.90, 100), "p99_ns": (0.99, 1_000)}
#: Fraction of the iterations that the trimmed mean omits on each side.
TRIMMED: Final = 0.1
_KEY: Final = ("session_id", "arm", "block")
_SCHEMA: Final = pl.Schema(
    {
        **{"session_id": pl.String(), "arm": pl.String(), "block": pl.Int32(), "state": pl.String()},
        **dict.fromkeys(("iterations", "steady_from", "n", *QUANTILES, "trimmed_mean_ns"), pl.Int64()),
        "reasons": pl.List(pl.String()),
    }
)


def session_quantiles(iterations: pl.DataFrame) -> pl.DataFrame:
    """One row for each session: its state and the quantiles of its steady iterations.

    Parameters
    ----------
    iterations : measured iterations of unprofiled passes, of any number of sessions, in any order: session_id, arm,
        block, iteration, latency_ns, and optionally start_ns. A session without iterations has one row whose iteration
        and latency are null.

    Returns
    -------
    session_id, arm, block; state (`steady`, `unsteady`, `bimodal`, `too_short` as in `steady_state.states_of`, or
    `unusable`); iterations (their number), steady_from (an iteration, or null), n (iterations from there on); p50_ns,
    p90_ns (from 100 iterations on), p99_ns (from 1,000 on), trimmed_mean_ns without the outer tenths; reasons for every
    null. Sorted by session_id.

    Raises
    ------
    UsageError when a session is in two arms or blocks.

    Notes
    -----
    Quantiles are observed values of nearest rank, as in `latency_p50`. A quantile with few iterations beyond it differs
    between processes by more than most regressions: a P99 of 1,000 iterations rests on ten. A session is `unusable`
    when an iteration has no latency, a latency that is not a number or not above 0, a repeated number, or a start
    before the previous end (a clock that was stepped). Nothing is removed from it or repaired.
    """
    ordered = _ordered(iterations)
    faults = _faults(ordered)
    sound = ordered.join(faults, on="session_id", how="anti")
    frames = [frame for frame in (_of_sound(sound), _of_unusable(ordered, faults)) if frame.height]
    return pl.concat(frames).sort("session_id") if frames else pl.DataFrame(schema=_SCHEMA)


def disturbed_ratios(figures: pl.DataFrame) -> pl.DataFrame:
    """session_id and disturbed_ratio from rows of `session_metrics`."""
    is_share = (pl.col("metric") == "disturbed_ratio") & (pl.col("pass") == "latency")
    return figures.filter(is_share).select("session_id", disturbed_ratio="value")


def leave_out_disturbed(sessions: pl.DataFrame, disturbed: pl.DataFrame, most: float) -> pl.DataFrame:
    """Rows of `session_quantiles`, with `unusable` sessions if too many iterations were disturbed.

    `most` is the maximum fraction of disturbed iterations. `disturbed` has session_id and disturbed_ratio, which is
    known only for sessions whose kernel plane was recorded.
    """
    too = (pl.col("disturbed_ratio") > most).fill_null(False)
    share = (100 * pl.col("disturbed_ratio")).round(1)
    limit = f"more than {100 * most:.0f} %"
    reason = pl.format(f"the machine disturbed {{}} % of its iterations, {limit}", share)
    return (
        sessions.join(disturbed, on="session_id", how="left", maintain_order="left")
        .with_columns(
            state=pl.when(too).then(pl.lit(UNUSABLE)).otherwise("state"),
            reasons=pl.when(too).then(pl.concat_list(reason)).otherwise("reasons"),
        )
        .drop("disturbed_ratio")
    )


def _ordered(iterations: pl.DataFrame) -> pl.DataFrame:
    """Return the iterations by session and number; UsageError if a session is in two arms or blocks."""
    places = iterations.select(_KEY).unique().filter(pl.col("session_id").is_duplicated())
    if places.height:
        raise UsageError(f"session {places.item(0, 'session_id')} stands in two arms or blocks: give each session one")
    return iterations.sort("session_id", "iteration")


def _faults(ordered: pl.DataFrame) -> pl.DataFrame:
    """session_id and reason of every session with impossible latencies: its first fault."""
    latency = pl.col("latency_ns").cast(pl.Float64)
    before = pl.col("session_id") == pl.col("session_id").shift(1)
    faults = [
        (pl.col("iteration").is_null() & latency.is_null(), pl.lit("it has no measured iterations")),
        (latency.is_null(), pl.format("iteration {} has no latency", "iteration")),
        (~latency.is_finite(), pl.format("the latency of iteration {} is not a number", "iteration")),
        (
            latency <= 0,
            pl.format("iteration {} took {} ns: a clock that was stepped", "iteration", latency.cast(pl.Int64)),
        ),
        (
            before & (pl.col("iteration") == pl.col("iteration").shift(1)),
            pl.format("iteration {} is there twice", "iteration"),
        ),
    ]
    if "start_ns" in ordered.columns:
        ended = pl.col("start_ns").shift(1) + latency.shift(1)
        reason = pl.format("iteration {} starts before the end of the one before: a stepped clock", "iteration")
        faults.append((before & (pl.col("start_ns") < ended), reason))
    named = pl.coalesce(pl.when(condition).then(reason) for condition, reason in faults)
    found = ordered.select("session_id", reason=named).filter(pl.col("reason").is_not_null())
    return found.group_by("session_id", maintain_order=True).agg(pl.col("reason").first())


def _of_unusable(ordered: pl.DataFrame, faults: pl.DataFrame) -> pl.DataFrame:
    counted = ordered.group_by(*_KEY).agg(iterations=pl.col("latency_ns").count().cast(pl.Int64))
    rows = counted.join(faults, on="session_id").with_columns(state=pl.lit(UNUSABLE), reasons=pl.concat_list("reason"))
    return _in_schema(rows.with_columns(n=pl.lit(0)))


def _of_sound(sound: pl.DataFrame) -> pl.DataFrame:
    rows = sound.group_by(*_KEY, maintain_order=True).agg(
        iterations=pl.len().cast(pl.Int64), first=pl.col("iteration").first()
    )
    if rows.is_empty():
        return pl.DataFrame(schema=_SCHEMA)
    counts = rows.get_column("iterations").to_numpy()
    times = sound.get_column("latency_ns").cast(pl.Int64).to_numpy()
    states, since = states_of(times, counts)
    starts = np.cumsum(counts) - counts
    steady_from = sound.get_column("iteration").gather(starts + since)
    rows = rows.with_columns(
        state=pl.Series(states), n=pl.Series(counts - since), steady_from=steady_from.cast(pl.Int64)
    ).with_columns(steady_from=pl.when(pl.col("state") == STEADY).then("steady_from"))
    return _in_schema(rows.with_columns(**_quantiles(times, counts, since)).with_columns(reasons=_reasons()))


def _quantiles(times: Counts, counts: Counts, since: Counts) -> dict[str, pl.Expr | pl.Series]:
    """Return the quantiles and the trimmed mean of every session's times from the index `since` on."""
    row = np.repeat(np.arange(len(counts)), counts)
    place = np.arange(len(times)) - np.repeat(np.cumsum(counts) - counts, counts)
    kept = place >= since[row]
    ordered = pl.DataFrame({"row": row[kept], "time": times[kept]}).sort("row", "time").get_column("time").to_numpy()
    left = counts - since
    begin = np.cumsum(left) - left
    found: dict[str, pl.Expr | pl.Series] = {}
    for name, (quantile, least) in QUANTILES.items():
        values = pl.Series(ordered[begin + np.ceil(left * quantile).astype(np.int64) - 1])
        found[name] = pl.when(pl.col("n") >= least).then(values)
    sums = np.concatenate(([0], np.cumsum(ordered)))
    cut = (left * TRIMMED).astype(np.int64)
    trimmed = (sums[begin + left - cut] - sums[begin + cut]) / (left - 2 * cut)
    found["trimmed_mean_ns"] = pl.Series(np.rint(trimmed).astype(np.int64))
    return found


def _reasons() -> pl.Expr:
    """The reasons why quantiles are null."""
    words = [
        pl.when(pl.col("n") < least).then(
            pl.format("{} needs {} iterations, there are {}", pl.lit(name.removesuffix("_ns")), pl.lit(least), "n")
        )
        for name, (_, least) in QUANTILES.items()
    ]
    words.append(
        pl.when(pl.col("state") == TOO_SHORT).then(pl.format("{} iterations show no level", pl.col("iterations")))
    )
    return pl.concat_list(words).list.drop_nulls()


def _in_schema(rows: pl.DataFrame) -> pl.DataFrame:
    missing = [pl.lit(None).alias(name) for name in _SCHEMA if name not in rows.columns]
    return rows.with_columns(missing).select(_SCHEMA.names()).cast(_SCHEMA)
