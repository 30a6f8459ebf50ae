"""The effect of one arm against another, block by block: what the two were in the same minutes on the same device.

Thresholds and verdicts are not here; they are `comparison`.
"""

from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

Floats = npt.NDArray[np.float64]

#: Blocks from which an interval is given, and from which all sign flips can reach a level of 0.05 on both sides.
LEAST_BLOCKS: Final = 5
LEAST_BLOCKS_FOR_FLIPS: Final = 6
#: Above this number of blocks the 2^blocks flips are not counted, and the t interval needs no second opinion.
MOST_BLOCKS_FOR_FLIPS: Final = 40


def block_effects(sessions: pl.DataFrame, baseline: str, candidate: str, value: str) -> pl.DataFrame:
    """One row a campaign: its paired blocks and how their log ratios are spread.

    Parameters
    ----------
    sessions : campaign_id, arm, block and the column `value`, a positive time or null for a session that is left out.
    baseline, candidate : the two arms; others are passed over.

    Returns
    -------
    campaign_id, sessions_baseline, sessions_candidate (with a value), log_ratios (one for each block with both arms:
    mean log of the candidate's sessions less that of the baseline's), paired (how many), mean, deviation (n - 1; null
    below two blocks), unpaired_mean (over all sessions, for a description where nothing is paired).

    Notes
    -----
    A block stands for what the host did in those minutes: sessions of one block share it, so it cancels. It lies when
    arms are not in random order within blocks, or when what an arm does outlasts its own session (heat, caches).
    """
    logs = sessions.filter(pl.col("arm").is_in([baseline, candidate])).with_columns(log=pl.col(value).log())
    is_candidate = pl.col("arm") == candidate
    arms = ("baseline", ~is_candidate), ("candidate", is_candidate)
    blocks = (
        logs.group_by("campaign_id", "block", maintain_order=True)
        .agg(**{name: pl.col("log").filter(of_arm).mean() for name, of_arm in arms})
        .with_columns(log_ratio=pl.col("candidate") - pl.col("baseline"))
    )
    paired = blocks.group_by("campaign_id", maintain_order=True).agg(
        log_ratios=pl.col("log_ratio").drop_nulls(),
        paired=pl.col("log_ratio").count().cast(pl.Int64),
        mean=pl.col("log_ratio").mean(),
        deviation=pl.col("log_ratio").std(),
    )
    counted = logs.group_by("campaign_id", maintain_order=True).agg(
        **{f"sessions_{name}": pl.col("log").filter(of_arm).count().cast(pl.Int64) for name, of_arm in arms},
        unpaired_mean=pl.col("log").filter(is_candidate).mean() - pl.col("log").filter(~is_candidate).mean(),
    )
    return counted.join(paired, on="campaign_id", maintain_order="left")


def t_interval(mean: Floats, error: Floats, freedom: Floats, level: Floats) -> tuple[Floats, Floats]:
    """The two-sided interval of a mean at that level (0.05 for 95 %), from its standard error.

    Student, The probable error of a mean, 1908. For paired blocks it assumes that the blocks' log ratios are
    independent and near normal in the mean: one extreme block widens it, so it errs to silence.
    """
    from scipy.special import stdtrit

    reach = stdtrit(freedom, 1 - level / 2) * error
    return mean - reach, mean + reach


def t_test_p(mean: Floats, error: Floats, freedom: Floats) -> Floats:
    """Two-sided p of no difference; 1 where both mean and error are 0."""
    from scipy.special import stdtr

    with np.errstate(divide="ignore", invalid="ignore"):
        score = np.where(mean == 0, 0.0, np.abs(mean) / error)
    p: Floats = 2 * stdtr(freedom, -score)
    return p


def sign_flip_p(log_ratios: Floats) -> float:
    """One-sided p that the mean of these is above 0 by chance alone: exact, over all flips of their signs.

    Parameters
    ----------
    log_ratios : (n,) with n from 1 to 40; less a threshold's log to test against that.

    Returns
    -------
    The share of the 2^n sign patterns whose sum is at least the one seen, ties counted; at least 2^-n.

    Notes
    -----
    It assumes that each would be as likely with its sign turned round, nothing about the shape: Fisher, The design of
    experiments, 1935. The sums of two halves are counted against each other, so that 20 blocks are 2 x 1,024 sums.
    """
    half = len(log_ratios) // 2
    first, second = _signed_sums(log_ratios[:half]), np.sort(_signed_sums(log_ratios[half:]))
    # Rounding may not take the pattern that was seen, or a tie with it, from the count.
    seen = float(log_ratios.sum()) - 1e-12 * float(np.abs(log_ratios).sum())
    reaching = len(second) - np.searchsorted(second, seen - first, side="left")
    return float(reaching.sum()) / 2.0 ** len(log_ratios)


def _signed_sums(values: Floats) -> Floats:
    """The sum of the values under each pattern of signs."""
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate((sums + value, sums - value))
    return sums
