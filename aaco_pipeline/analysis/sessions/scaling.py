"""How throughput and latency change with the batch size and the prompt length over the sessions of one campaign.

Each point is one session, so an interval says how well that session's median is known, not how it would repeat.
"""

from typing import Final

import polars as pl

#: A batch is enough when its throughput is this part of the best one.
SATURATION_RATIO: Final = 0.95
#: A curve that leaves its chord by less than this (of the range of both axes) has no knee.
LEAST_KNEE_DISTANCE: Final = 0.1


def scaling_curve(points: pl.DataFrame) -> pl.DataFrame:
    """Canonical rows of `scaling` from one row per session.

    `points` has session_id, batch_size, prompt_tokens, output_tokens (null unless tokens are generated), the median
    time of one iteration, or of one request where tokens are generated, with its interval (`time_ns`, `time_ci_low_ns`,
    `time_ci_high_ns`), time_to_first_token_ns and time_per_output_token_ns.

    throughput = batch x (output tokens, else 1) / median time, its interval from the time's. Within one prompt length:
    speedup = throughput / that of the smallest batch; efficiency = speedup / (batch / smallest batch). The knee is the
    batch where the curve, scaled to the unit square, lies farthest above its chord (Satopaa et al., Finding a "Kneedle"
    in a Haystack, 2011), if by 0.1 or more. Saturation is the smallest batch with 95 % of the best throughput, unless
    that is the largest one measured: then the end was not reached.
    """
    work = pl.col("batch_size") * pl.col("output_tokens").fill_null(1)
    curve = points.sort("prompt_tokens", "batch_size", "session_id", nulls_last=False).with_columns(
        throughput_per_s=work * 1e9 / pl.col("time_ns"),
        throughput_ci_low_per_s=work * 1e9 / pl.col("time_ci_high_ns"),
        throughput_ci_high_per_s=work * 1e9 / pl.col("time_ci_low_ns"),
        throughput_unit=pl.when(pl.col("output_tokens").is_null())
        .then(pl.lit("inference/s"))
        .otherwise(pl.lit("token/s")),
    )
    groups = [_with_landmarks(group) for _, group in curve.group_by("prompt_tokens", maintain_order=True)]
    return pl.concat(groups).with_row_index("point") if groups else curve


def _with_landmarks(curve: pl.DataFrame) -> pl.DataFrame:
    """One prompt length's points with speedup, efficiency, knee and saturation."""
    batch, rate = pl.col("batch_size"), pl.col("throughput_per_s")
    scaled = curve.with_columns(
        speedup_ratio=rate / rate.first(),
        efficiency_ratio=rate / rate.first() / (batch / batch.first()),
        enough=rate >= SATURATION_RATIO * rate.max(),
        above=(rate - rate.min()) / (rate.max() - rate.min()) - (batch - batch.min()) / (batch.max() - batch.min()),
    )
    first_enough = pl.col("enough").arg_max()
    place = pl.int_range(pl.len())
    return scaled.with_columns(
        is_saturated=(place == first_enough) & (first_enough < pl.len() - 1) & (batch.n_unique() > 1),
        is_knee=(
            (place == pl.col("above").arg_max())
            & (pl.col("above") >= LEAST_KNEE_DISTANCE)
            & pl.col("above").is_finite()
        ).fill_null(False),
    ).drop("enough", "above")
