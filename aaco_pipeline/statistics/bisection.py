"""Bisection over an ordered list of builds: the next measurement, and when to stop.

Every build is measured in blocks together with the first one. This module neither measures nor builds: the caller
passes the measurements so far and gets the next build with a number of blocks, or the answer.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from aaco_pipeline.errors import UsageError

Floats = npt.NDArray[np.float64]
State = Literal["step", "range", "several steps", "no change"]

#: Two-sided probability of reporting identical code as different, over all looks at the last build.
LEVEL: Final = 0.02
#: Block counts at which the last build is compared with the first; the last one is also the maximum for any build.
LOOKS: Final = (10, 20, 30, 40, 50, 60)
MOST_BLOCKS: Final = LOOKS[-1]
#: A build is settled when its probability of being good or bad is below this.
DOUBT: Final = 0.001
#: Probability that the answer's range contains the step.
CONFIDENCE: Final = 0.95
#: Minimum number of blocks of a build: with fewer, one slow session could change the result.
LEAST_BLOCKS: Final = 5
#: The search ends when the blocks rule out a difference above this.
POLICY_RATIO: Final = 0.01
#: Several steps are reported if a single step would fit the builds this badly with a lower probability.
_MISFIT: Final = 0.001
#: Fraction of the blocks that is trimmed at both ends.
_TRIMMED: Final = 0.1
#: Smallest standard deviation of log ratios: clocks count whole nanoseconds.
_RESOLUTION: Final = 1e-9
#: Number of simulated searches whose median is the prediction.
_SIMULATED_SEARCHES: Final = 101


@dataclass(frozen=True)
class Measure:
    """Measure `build` together with the first one in this many more blocks."""

    build: int
    blocks: int


@dataclass(frozen=True)
class Answer:
    """The builds between which the change was introduced: after `after`, at the latest with `until` (probability 95 %).

    A step has `until` = `after` + 1. `likeliest` is the build that most likely introduced it, with its `probability`
    given that there is only one step; both are None if no single build is the likeliest, nothing was found, or there
    are several steps. `effect_ratio` is the last build's time over the first one's, from all builds on both sides of
    the step, with its 95 % interval. For "no change", `after` and `until` are the first and last build, and the
    interval is the last look's: effects outside it are ruled out.
    """

    state: State
    after: int
    until: int
    likeliest: int | None
    probability: float | None
    effect_ratio: float
    ci_low: float
    ci_high: float


def next_move(last: int, log_ratios: Mapping[int, Floats], failed: Collection[int] = ()) -> Measure | Answer:
    r"""Return the next measurement, or the answer.

    Parameters
    ----------
    last : number of the last build; the first, which is known to be good, is 0.
    log_ratios : for each build from 1 to `last`, one value for each block measured so far: the log of the build's
        session median over that of build 0 in the same block; NaN for a block without a pair.
    failed : builds that could not be built or run.

    Returns
    -------
    `Measure`, or `Answer` when no measurement could narrow it further.

    Raises
    ------
    UsageError when the last build failed, and for build numbers out of range.

    Notes
    -----
    First the last build is compared with the first at each of `LOOKS`, by a t test of the trimmed mean (Tukey and
    McLaughlin, Less vulnerable confidence and significance procedures for location based on a single sample, 1963),
    each at its part of `LEVEL`; the parts add up to it, so repeated looks do not raise the error rate. Then the
    posterior of the step's place decides, with a uniform prior: the middle build between those known to be good and
    bad is measured until it is known too. For a step after build k the builds up to k equal the first and all others
    share one unknown effect, so with the effect and the noise integrated out

    .. math:: p(k) \propto W_k^{-1/2} (1 + Q_k / \nu)^{-(\nu + M - 1) / 2}

    with Q the least weighted sum of squares of the M builds' means, W the weight of the builds behind the step and
    :math:`\nu` the degrees of freedom of the noise (Box and Tiao, Bayesian Inference in Statistical Analysis, 1973,
    2.4 and 2.7). A posterior stays valid however often it is looked at, and a settled build is measured again when
    later ones cast doubt on it. The model assumes one step and equally noisy builds; when builds fit one step badly,
    the answer is several steps.
    """
    _require_builds(last, log_ratios, failed)
    end = log_ratios.get(last, np.array([]))
    if (verdict := _last_against_first(last, end)) is not None:
        return verdict
    evidence = _Evidence.of(last, log_ratios)
    bad = evidence.chance_bad()
    in_doubt = [build for build in log_ratios if DOUBT < bad[build] < 1 - DOUBT]
    with_room = [build for build in in_doubt if len(log_ratios[build]) < MOST_BLOCKS]
    if with_room:
        build = min(with_room, key=lambda one: (abs(bad[one] - 0.5), one))
        wanted = evidence.blocks_to_settle(float(bad[build]))
        return Measure(build, min(wanted, MOST_BLOCKS - len(log_ratios[build])))
    if in_doubt and len(end) < MOST_BLOCKS:
        # More blocks of the last build make its effect, the reference for doubtful builds, more precise.
        return Measure(last, min(LEAST_BLOCKS, MOST_BLOCKS - len(end)))
    # Builds that stay in doubt count as good or bad by probability; the answer's probability reflects the doubt.
    after = int(np.flatnonzero((bad <= DOUBT) | _at(in_doubt, bad < 0.5)).max())
    until = int(np.flatnonzero((bad >= 1 - DOUBT) | _at(in_doubt, bad >= 0.5)).min())
    left = [build for build in range(after + 1, until) if build not in failed and build not in log_ratios]
    if left and len(log_ratios) < most_measured(last):
        middle = min(left, key=lambda one: (abs(2 * one - after - until), one))
        return Measure(middle, evidence.blocks_to_settle(0.5))
    return evidence.answer()


def _at(builds: Collection[int], among: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Return `among` with False for all builds except these."""
    chosen = np.zeros_like(among)
    chosen[list(builds)] = among[list(builds)]
    return chosen


def build_effect(log_ratios: Floats) -> tuple[float, float, float] | None:
    """Return one build's time over the first one's with its 95 % interval, from its own blocks alone.

    Both use the trimmed mean, as in `next_move`. None with fewer than two pairs.
    """
    from scipy.special import stdtrit

    mean, squares, kept = _trimmed(log_ratios)
    if kept < 2:
        return None
    reach = float(stdtrit(kept - 1, 0.975)) * float(np.sqrt(max(squares / (kept - 1), _RESOLUTION**2) / kept))
    return float(np.exp(mean)), float(np.exp(mean - reach)), float(np.exp(mean + reach))


def least_detectable_ratio(deviation: float) -> float:
    """Return the smallest difference from 1 of the last build that about four in five searches detect.

    `deviation` is the standard deviation of a block's log ratio. The result is the minimum detectable effect of the
    last look alone, at its part of `LEVEL`, and at least `POLICY_RATIO`.
    """
    from aaco_pipeline.statistics.verdicts.effects import minimum_detectable_ratio

    kept = MOST_BLOCKS - 2 * int(_TRIMMED * MOST_BLOCKS)
    level = LEVEL * (1 - (LOOKS[-2] / MOST_BLOCKS) ** 3)
    error, freedom, levels = (np.array([each]) for each in (deviation / np.sqrt(MOST_BLOCKS), kept - 1.0, level))
    return max(POLICY_RATIO, float(minimum_detectable_ratio(error, freedom, levels)[0]))


def blocks_predicted(last: int, deviation: float, ratio: float) -> int:
    """Median number of blocks per search for a step, over all builds.

    Parameters
    ----------
    last : number of the last build.
    deviation : standard deviation of a block's log ratio, above 0.
    ratio : the step's difference from 1, above 0.

    Notes
    -----
    The median is over simulated searches with normal noise and the step's place spread over all builds; equal arguments
    give equal results. It is too low when some blocks are far noisier than others.
    """
    random = np.random.default_rng(last)
    spent = []
    for trial in range(_SIMULATED_SEARCHES):
        step = 1 + trial * last // _SIMULATED_SEARCHES
        known: dict[int, Floats] = {}
        while isinstance(move := next_move(last, known), Measure):
            fresh = deviation * random.standard_normal(move.blocks) + (np.log1p(ratio) if move.build >= step else 0.0)
            known[move.build] = np.concatenate((known.get(move.build, np.array([])), fresh))
        spent.append(sum(len(ratios) for ratios in known.values()))
    return int(np.median(spent))


def most_measured(last: int) -> int:
    """Return the largest number of builds to measure besides the first: the last one and those of a binary search."""
    return 1 + int(last - 1).bit_length()


def _require_builds(last: int, log_ratios: Mapping[int, Floats], failed: Collection[int]) -> None:
    if last < 1:
        raise UsageError("there is nothing between one build and itself: give two or more")
    unknown = sorted({*log_ratios, *failed} - set(range(1, last + 1)))
    if unknown:
        raise UsageError(f"build {unknown[0]} is none of those after the first, 1 to {last}")
    if last in failed:
        raise UsageError(f"build {last}, the last, could not be made or run: give a last build that can")


def _last_against_first(last: int, ratios: Floats) -> Measure | Answer | None:
    """Return the next measurement of the last build, or "no change"; None once it is known to differ."""
    from scipy.special import stdtrit

    spent = len(ratios)
    # Spent as the cube of the blocks (Kim and DeMets, Design and analysis of group sequential tests based on the type I
    # error spending rate function, 1987): early looks find only large effects, and most is left for the last look.
    spent_levels = LEVEL * (np.array((0, *LOOKS)) / MOST_BLOCKS) ** 3
    for look, level in zip(LOOKS, np.diff(spent_levels), strict=True):
        if look > spent:
            return Measure(last, look - spent)
        mean, squares, kept = _trimmed(ratios[:look])
        if kept < 2:
            continue
        error = float(np.sqrt(max(squares / (kept - 1), _RESOLUTION**2) / kept))
        reach = float(stdtrit(kept - 1, 1 - level / 2)) * error
        if abs(mean) > reach:
            return None
        if look == MOST_BLOCKS or abs(mean) + reach < np.log1p(POLICY_RATIO):
            shown = float(stdtrit(kept - 1, 0.975)) * error
            return Answer(
                "no change", 0, last, None, None, *(float(np.exp(mean + each)) for each in (0, -shown, shown))
            )
    raise UsageError(f"{spent} blocks of build {last} gave fewer than two pairs: its sessions cannot be compared")


def _trimmed(ratios: Floats) -> tuple[float, float, int]:
    """Return the trimmed mean, the sum of squares of the winsorized values, and the number of values in the mean."""
    values = np.sort(ratios[~np.isnan(ratios)])
    cut = int(_TRIMMED * len(values))
    kept = len(values) - 2 * cut
    if kept < 1:
        return 0.0, 0.0, 0
    middle = values[cut : cut + kept]
    drawn_in = np.clip(values, middle[0], middle[-1])
    return float(middle.mean()), float(((drawn_in - drawn_in.mean()) ** 2).sum()), kept


@dataclass(frozen=True)
class _Evidence:
    """The measured builds, ascending ((M,) arrays), with the pooled noise."""

    last: int
    builds: npt.NDArray[np.int64]
    means: Floats
    #: Number of blocks in each mean, without the trimmed ones.
    kept: Floats
    #: Variance of one block, and its degrees of freedom.
    variance: float
    freedom: int

    @classmethod
    def of(cls, last: int, log_ratios: Mapping[int, Floats]) -> "_Evidence":
        known = [(build, *_trimmed(log_ratios[build])) for build in sorted(log_ratios)]
        known = [each for each in known if each[3] > 0]
        builds, means, squares, kept = (np.array(each) for each in zip(*known, strict=True))
        freedom = int((kept - 1).sum())
        return cls(last, builds, means, kept.astype(float), max(squares.sum() / freedom, _RESOLUTION**2), freedom)

    def chance_bad(self) -> Floats:
        """(last + 1,) posterior probability of each build that the step is at it or before."""
        behind = self._behind(np.arange(1, self.last + 1))
        _, errors, least = self._fits(behind)
        log_chance = np.log(errors) - (self.freedom + len(self.builds) - 1) / 2 * np.log1p(least / self.freedom)
        chance = np.exp(log_chance - log_chance.max())
        bad = np.concatenate(([0.0], np.cumsum(chance / chance.sum())))
        # The last build is known to be bad; the sum may differ from 1 by rounding.
        bad[-1] = 1.0
        return bad

    def blocks_to_settle(self, bad: float) -> int:
        """Return the expected number of blocks that settle a build whose probability of being bad is `bad`."""
        effect = self._fits(self._behind(np.array([self.last])))[0][0]
        each = (1 - 2 * _TRIMMED) * effect**2 / (2 * self.variance)
        missing = np.log((1 - DOUBT) / DOUBT) - abs(np.log(bad / (1 - bad)))
        return int(np.clip(np.ceil(missing / each), LEAST_BLOCKS, MOST_BLOCKS))

    def answer(self) -> Answer:
        """Return the shortest range of builds that contains the step with `CONFIDENCE`, or the range of all steps."""
        from scipy.special import fdtrc, stdtrit

        bad = self.chance_bad()
        # Positions between two measured builds are equally likely.
        edges = np.concatenate(([0], self.builds))
        first = np.searchsorted(bad[edges], bad[edges] + CONFIDENCE, side="left")
        reached = first < len(edges)
        widths = edges[first[reached]] - edges[reached]
        shortest = int(np.argmin(widths))
        after = int(edges[reached][shortest])
        until = after + int(widths[shortest])
        chances = np.diff(bad[edges])
        heaviest = int(np.argmax(chances))
        effects, errors, least = self._fits(self._behind(self.builds))
        effect, error = float(effects[heaviest]), float(errors[heaviest])
        state: State = "step" if until == after + 1 else "range"
        alone = edges[heaviest + 1] - edges[heaviest] == 1
        likeliest = int(edges[heaviest + 1]) if alone else None
        others = len(self.builds) - 1
        if others and fdtrc(others, self.freedom, least[heaviest] / others) < _MISFIT:
            state, likeliest = "several steps", None
            after, until = self._around_all_steps()
            effect, error = float(effects[-1]), float(errors[-1])
        probability = None if likeliest is None else float(chances[heaviest])
        reach = float(stdtrit(self.freedom, 0.975)) * error
        bounds = (float(np.exp(effect + each)) for each in (0, -reach, reach))
        return Answer(state, after, until, likeliest, probability, *bounds)

    def _around_all_steps(self) -> tuple[int, int]:
        """Return the last build up to which all equal the first, and the first build from which all equal the last."""
        from scipy.special import stdtrit

        reach = float(stdtrit(self.freedom, 1 - DOUBT / len(self.builds) / 2)) * np.sqrt(self.variance)
        as_first = np.abs(self.means) <= reach / np.sqrt(self.kept)
        as_last = np.abs(self.means - self.means[-1]) <= reach * np.sqrt(1 / self.kept + 1 / self.kept[-1])
        run = np.logical_and.accumulate(as_first)
        after = int(self.builds[run][-1]) if run.any() else 0
        return after, int(self.builds[np.logical_and.accumulate(as_last[::-1])[::-1]][0])

    def _behind(self, steps: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """(steps, M) True for builds at or after the build that introduced the step."""
        behind: npt.NDArray[np.bool_] = self.builds >= steps[:, None]
        return behind

    def _fits(self, behind: npt.NDArray[np.bool_]) -> tuple[Floats, Floats, Floats]:
        """Return each step's effect, standard error, and remaining weighted sum of squares of the means."""
        weights = self.kept / self.variance
        weight = behind @ weights
        weighted = behind @ (weights * self.means)
        effect = weighted / weight
        return effect, 1 / np.sqrt(weight), (weights * self.means**2).sum() - weighted * effect
