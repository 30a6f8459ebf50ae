"""At what level each look at a growing campaign may be taken, so that looking again does not raise false alarms."""

from collections.abc import Callable
from functools import lru_cache, partial
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from aaco_pipeline.errors import UsageError

Floats = npt.NDArray[np.float64]
#: Two-sided chance that identical code is called different by any look of a campaign.
LEVEL: Final = 0.05
#: A bound beyond so many deviations is never reached, and a finer grid over it would be spent on nothing.
_FARTHEST: Final = 8.0


@lru_cache(maxsize=256)
def levels_at_looks(looks: tuple[int, ...]) -> tuple[float, ...]:
    r"""The two-sided level that each look is taken at, for 5 % over all of them.

    Parameters
    ----------
    looks : numbers of blocks at which a verdict is taken, ascending, fixed before the first session; the last is the
        end of the campaign.

    Returns
    -------
    One level a look; 0.05 for a single one.

    Raises
    ------
    UsageError for looks that do not ascend from 1 or more.

    Notes
    -----
    Alpha spending in the form of O'Brien and Fleming: by the information share t the two sides have spent
    :math:`4 (1 - \Phi(z_{1 - \alpha/4} / \sqrt{t}))` (Lan and DeMets, Discrete sequential boundaries for clinical
    trials, 1983). The boundaries follow by integrating the score's density from look to look (Armitage, McPherson and
    Rowe, Repeated significance tests on accumulating data, 1969), here by Gauss-Legendre quadrature. It lies when looks
    are added or left out because of what was seen. The bounds are those of normal scores, taken here as levels of a t
    test: simulated campaigns that look at 5, 10 and 20 blocks raise 5.3 % false alarms, 11.6 % without the rule.
    """
    from scipy.optimize import brentq
    from scipy.special import ndtr, ndtri

    if not looks or looks[0] < 1 or any(b <= a for a, b in pairwise(looks)):
        raise UsageError(f"a campaign looks at {list(looks)} blocks: give ascending numbers from 1 on")
    if len(looks) == 1:
        return (LEVEL,)
    shares = np.array(looks) / looks[-1]
    spent = 4 * ndtr(ndtri(LEVEL / 4) / np.sqrt(shares))
    spent[-1] = LEVEL
    # Narrow enough for the shortest step from look to look.
    nodes = 64 + int(64 / np.sqrt(np.diff(shares, prepend=0.0).min()))
    points, weights = np.array([0.0]), np.array([1.0])
    levels = []
    before = 0.0
    for share, new in zip(shares, np.diff(spent, prepend=0.0), strict=True):
        step = np.sqrt(share - before)

        def crossing(bound: float, step: float = step, points: Floats = points, weights: Floats = weights) -> float:
            return float(weights @ ndtr((points - bound) / step))

        farthest = _FARTHEST * float(np.sqrt(share))
        excess = partial(_excess, crossing, new / 2)
        bound = farthest if excess(farthest) >= 0 else float(brentq(excess, 0.0, farthest))
        levels.append(float(2 * ndtr(-bound / np.sqrt(share))))
        points, weights = _continued(points, weights, bound, step, nodes)
        before = share
    return tuple(levels)


def _excess(crossing: Callable[[float], float], allowed: float, bound: float) -> float:
    return crossing(bound) - allowed


def _continued(points: Floats, weights: Floats, bound: float, step: float, nodes: int) -> tuple[Floats, Floats]:
    """The score's density inside the bound after one more look, as points and their weights."""
    places, shares = np.polynomial.legendre.leggauss(nodes)
    inside = bound * places
    density = np.exp(-(((inside[:, None] - points) / step) ** 2) / 2) / (step * np.sqrt(2 * np.pi))
    return inside, bound * shares * (density @ weights)
