"""What comparisons of identical code have shown: the floor below which nothing is claimed, and measured trust.

The comparisons themselves are made as all are, in `comparison`; here they are kept and looked up.
"""

from collections.abc import Sequence
from typing import Final

import polars as pl

from aaco_pipeline.lake.contracts import polars_types

#: What two comparisons share whose noise is the same.
DESIGN: Final = ("workload", "host", "metric", "design", "blocks", "sessions_per_block")
#: Comparisons of identical code from which a floor is taken, and from which a confidence of 0.95 can be reached.
LEAST_FOR_FLOOR: Final = 100
LEAST_FOR_CONFIDENCE: Final = 19
_FLOOR_QUANTILE: Final = 0.95


def ledger_rows(verdicts: pl.DataFrame, designs: pl.DataFrame) -> pl.DataFrame:
    """Rows of `aa_ledger` from the verdict rows of comparisons whose two arms are identical code.

    Parameters
    ----------
    verdicts : rows of `comparison.compare` with campaign_id; those without a p value leave no row.
    designs : campaign_id and the columns of DESIGN that a verdict has not: workload, host, blocks (run, not only
        those that entered), sessions_per_block.

    Returns
    -------
    Rows in the columns of `aa_ledger` with campaign_id.
    """
    judged = verdicts.filter(pl.col("p_value").is_not_null() & pl.col("level").is_not_null()).drop("blocks")
    columns = {"campaign_id": pl.String, **polars_types("aa_ledger")}
    return judged.join(designs, on="campaign_id").select(columns.keys()).cast(columns)  # type: ignore[arg-type]


def floors(ledger: pl.DataFrame) -> pl.DataFrame:
    """For each design the size of its ledger and the floor that it sets.

    Returns
    -------
    The columns of DESIGN; comparisons; floor_ratio, the 95 % quantile of the difference from 1 in either direction
    (observed, the higher of two), null below 100 comparisons: the largest of few says little about one in twenty.

    Notes
    -----
    Slower and faster are taken alike, as the size of the log effect. It lies after the host or its neighbours have
    changed: keep the ledger of the present host.
    """
    size = pl.col("effect_ratio").log().abs().quantile(_FLOOR_QUANTILE, "higher").exp() - 1
    return ledger.group_by(DESIGN, maintain_order=True).agg(
        comparisons=pl.len().cast(pl.Int64),
        floor_ratio=pl.when(pl.len() >= LEAST_FOR_FLOOR).then(size),
        p_values=pl.col("p_value").sort(),
    )


def confidence(p_value: float, known: Sequence[float]) -> tuple[float | None, str | None]:
    """Measured trust that a difference with this p value is none of identical code, and what it was read from.

    Parameters
    ----------
    p_value : of the comparison that is judged.
    known : p values of comparisons of identical code of the same design.

    Returns
    -------
    1 less the share of `known` at or below p_value, at most 1 - 1/(m + 1) for m of them, with the words that give m
    and the upper 95 % limit of the share (Clopper and Pearson, The use of confidence or fiducial limits, 1934); both
    None with fewer than 19, which cannot show 0.95.

    Notes
    -----
    This is a rate of false alarms measured, not the chance that this alarm is true: that depends on how often code
    gets slower. It lies when the ledger's nights were quieter than this one.
    """
    count = len(known)
    if count < LEAST_FOR_CONFIDENCE:
        return None, None
    from scipy.special import betaincinv

    reaching = sum(known_p <= p_value for known_p in known)
    upper = float(betaincinv(reaching + 1, count - reaching, 0.975)) if reaching < count else 1.0
    source = f"{reaching} of {count} comparisons of identical code differ as clearly (at most {upper:.1%} of such)"
    return 1 - max(reaching / count, 1 / (count + 1)), source
