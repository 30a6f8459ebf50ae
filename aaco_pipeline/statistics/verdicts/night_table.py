"""All verdicts of one night together: what so many comparisons would show by chance is taken back."""

import polars as pl

from aaco_pipeline.statistics.verdicts.decision import IMPROVED, INCONCLUSIVE, REGRESSED
from aaco_pipeline.statistics.verdicts.sequential import LEVEL


def false_discoveries(verdicts: pl.DataFrame) -> pl.DataFrame:
    """A night's table with q_value, and without the differences that so many comparisons show by chance.

    Parameters
    ----------
    verdicts : the rows of all comparisons of one night, as `comparison.compare` gives them.

    Returns
    -------
    The same rows, sorted by campaign and metric. q_value is null where p_value is. A regressed or improved one whose q
    exceeds 0.05 is inconclusive, with the reason first.

    Notes
    -----
    Benjamini and Hochberg, Controlling the false discovery rate, 1995: of what is left at most one in twenty is
    expected to be none, if benchmarks are independent or move together. Primary metrics are one family and supporting
    ones another, so that adding a supporting metric never costs a primary one its verdict. It lies when comparisons
    are dropped from the table because of what they showed.
    """
    from scipy.stats import false_discovery_control

    families = []
    for family in verdicts.partition_by("role", maintain_order=True):
        tested = family.filter(pl.col("p_value").is_not_null())
        untested = family.filter(pl.col("p_value").is_null())
        adjusted = false_discovery_control(tested.get_column("p_value").to_numpy())
        families.append(pl.concat([tested.with_columns(q_value=pl.Series(adjusted, dtype=pl.Float64)), untested]))
    table = pl.concat(families) if families else verdicts
    taken_back = pl.col("verdict").is_in([REGRESSED, IMPROVED]) & (pl.col("q_value") > LEVEL)
    compared = pl.col("p_value").count().over("role")
    reason = pl.format("among the night's {} comparisons a difference as clear as this is no rarity", compared)
    return table.with_columns(
        verdict=pl.when(taken_back).then(pl.lit(INCONCLUSIVE)).otherwise("verdict"),
        reasons=pl.when(taken_back).then(pl.concat_list(reason, "reasons")).otherwise("reasons"),
        **{name: pl.when(~taken_back).then(name) for name in ("confidence", "confidence_source", "alert_grade")},
    ).sort("campaign_id", "metric")
