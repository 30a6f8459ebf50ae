"""Causes and selections as the lake's tables have them."""

import polars as pl

from aaco_pipeline.lake.validation import to_contract
from aaco_pipeline.statistics.causes.decomposition import Decomposition
from aaco_pipeline.statistics.causes.environment import OBSERVED

_TIMES = ("delta_ns", "ci_low_ns", "ci_high_ns", "count_part_ns", "duration_part_ns", "baseline_ns", "candidate_ns")


def attribution_rows(baseline: str, candidate: str, split: Decomposition, environment: pl.DataFrame) -> pl.DataFrame:
    """Rows of `attributions`: the split's causes, and differences of the environment, which have no time.

    `baseline` and `candidate` name the sides as in `verdicts`; `environment` is what `environment_differences` gives.
    """
    causes = split.causes.with_columns(
        *(pl.col(one).round().cast(pl.Int64) for one in _TIMES),
        share_ratio="share_of_change",
        evidence_grade=pl.lit(OBSERVED),
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
    """Rows of `selections` from what `selection.selections` gives, in its order."""
    ranked = found.with_row_index("rank").with_columns(pl.col("rank").cast(pl.Int32))
    return to_contract("selections", ranked.with_columns(baseline=pl.lit(baseline), candidate=pl.lit(candidate)))
