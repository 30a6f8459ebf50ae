"""What one night says of each arm: the level of its fresh sessions, and its ratio to unchanged code in the same blocks.

Nights are not looked at together here; that is `changes`.
"""

from typing import Final

import numpy as np
import polars as pl

from aaco_pipeline.lake.contracts import polars_types
from aaco_pipeline.statistics.verdicts.block_effects import Floats, block_effects, t_interval
from aaco_pipeline.statistics.verdicts.comparison import METRICS, why_left_out
from aaco_pipeline.statistics.verdicts.sequential import LEVEL

#: Arms of unchanged code that others are held against, the better one first: a canary's file never changes.
REFERENCES: Final = ("canary", "baseline")
#: What a night's row holds of the night alone, without those before and after it.
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
        artefact_sha256 (of the file that the arm measured) added; the last three may be null.

    Returns
    -------
    The columns OF_THE_NIGHT of the table `nights`. A metric that no session of the arm has leaves no row.

    Notes
    -----
    A level is the mean log over sessions with a t interval; a ratio the mean over blocks of the log ratio of both
    arms' sessions, as in a verdict. The reference is the canary, else the baseline. It lies when arms of one campaign
    ran on different hosts: then nothing is paired.
    """
    frames = [_of_metric(sessions, metric, column) for metric, column in METRICS.items()]
    rows = pl.concat(frames)
    return rows.select(OF_THE_NIGHT).cast(polars_types("nights", *OF_THE_NIGHT))  # type: ignore[arg-type]


# ---- inside ----------------------------------------------------------------------------------------------------------


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
    """campaign, host, arm and the columns of its ratio to the best reference that its campaign has."""
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
