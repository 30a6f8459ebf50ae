"""What a number of blocks with a given spread would find, and how many blocks a difference needs.

Whether a difference was found is said by `comparison`.
"""

from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

#: Chance with which a minimum detectable effect is found.
POWER: Final = 0.8
#: Numbers of blocks looked up exactly; beyond, the normal distribution differs by less than a block.
_MOST_LISTED: Final = 2_000


def minimum_detectable_ratio(error: Floats, freedom: Floats, level: Floats) -> Floats:
    r"""The smallest difference from 1 that the t test of a mean log ratio would find with power 0.8.

    Parameters
    ----------
    error : standard error of the mean log ratio, each.
    freedom : its degrees of freedom, above 0 (blocks - 1).
    level : two-sided level of the test.

    Returns
    -------
    `exp(nc * error) - 1`, a ratio (infinite where nothing would be found), where nc is the noncentrality at which a t
    of that freedom exceeds its critical value with probability 0.8. Source: J. Cohen, Statistical Power Analysis for
    the Behavioral Sciences, 2nd ed., 1988, section 2; the other tail, below 0.0001, is left out.

    Notes
    -----
    It is as uncertain as the error: from 5 blocks that is off by a third in one case of three. It says nothing about
    blocks that are noisier than these.
    """
    from scipy.special import nctdtrinc, stdtrit

    noncentrality = nctdtrinc(freedom, 1 - POWER, stdtrit(freedom, 1 - level / 2))
    with np.errstate(over="ignore"):
        ratio: Floats = np.expm1(noncentrality * error)
    return ratio


def blocks_needed(deviation: float, ratio: float, level: float) -> int:
    """The least number of blocks of that spread whose minimum detectable ratio is at most `ratio`; 2 or more.

    `deviation` is that of the blocks' log ratios; `ratio` is above 0.
    """
    wanted = np.log1p(ratio)
    unit = _detectable_by_blocks(level)
    if unit[-1] * deviation <= wanted:
        return int(np.argmax(unit * deviation <= wanted)) + 2
    # By the last listed one: detectable effects shrink with the square root of the blocks.
    return int(np.ceil(_MOST_LISTED * (unit[-1] * deviation / wanted) ** 2))


@lru_cache(maxsize=64)
def _detectable_by_blocks(level: float) -> Floats:
    """Detectable log ratio for a deviation of 1, for 2 blocks and each number above."""
    blocks = np.arange(2.0, _MOST_LISTED + 1)
    return np.log1p(minimum_detectable_ratio(1 / np.sqrt(blocks), blocks - 1, np.full_like(blocks, level)))
