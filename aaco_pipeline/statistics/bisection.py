"""Which of many builds, in order, brought a change: what to measure next, and when to stop.

Every build is measured in blocks beside the first one. Nothing is measured or made here: the caller gives what it has
and is told the next build with a number of blocks, or the answer.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from aaco_pipeline.errors import UsageError

Floats = npt.NDArray[np.float64]
State = Literal["step", "range", "several steps", "no change"]

#: Two-sided chance that identical code is called different at all, over all looks at the last build.
LEVEL: Final = 0.02
#: Blocks of the last build at which it is held against the first; the last of them is the most for any build.
LOOKS: Final = (10, 20, 30, 40, 50, 60)
MOST_BLOCKS: Final = LOOKS[-1]
#: A build whose chance of being good or bad is below this is settled, for the search to go on.
DOUBT: Final = 0.001
#: Chance with which the step lies in the range that is answered.
CONFIDENCE: Final = 0.95
#: Fewer blocks of a build than this say nothing that one slow session could not overturn.
LEAST_BLOCKS: Final = 5
#: A difference below this is none that anybody would search for, where the blocks rule out more.
POLICY_RATIO: Final = 0.01
#: How rarely one step gives builds that fit it so badly; then several are told.
_MISFIT: Final = 0.001
_TRIMMED: Final = 0.1
#: Log ratios are not told apart below this: clocks count whole nanoseconds.
_RESOLUTION: Final = 1e-9
#: Searches that a forecast is the median of: more do not change what a person plans by.
_FORETOLD_SEARCHES: Final = 101


@dataclass(frozen=True)
class Measure:
    """Measure this build beside the first one in so many more blocks."""

    build: int
    blocks: int


@dataclass(frozen=True)
class Answer:
    """Where the change came in: after build `after`, with build `until` at the latest, by a chance of 95 % or more.

    A step has `until` = `after` + 1. `likeliest` is the one build that most likely brought it, with its `probability`
    given that there is one step alone; both are None where no build is the likeliest, where nothing was found, and
    where there are several steps. `effect_ratio` is the last build's time over the first one's, from all builds on
    both sides of the step, with its 95 % interval. Of "no change" `after` and `until` are the first and last build,
    and the interval is that of the last look, which says what is ruled out.
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
    r"""What to measure next, or the answer.

    Parameters
    ----------
    last : number of the last build; the first, which is known to be good, is 0.
    log_ratios : by build, from 1 to `last`: of each block measured so far the log of the build's session median over
        that of build 0 in the same block; NaN for a block that was spent without a pair.
    failed : builds that could not be made or run.

    Returns
    -------
    `Measure`, or `Answer` once nothing is left that could narrow it.

    Raises
    ------
    UsageError where the last build failed, and for builds that are none of these.

    Notes
    -----
    First the last build is held against the first at each of `LOOKS`, by a t test of the trimmed mean (Tukey and
    McLaughlin, Less vulnerable confidence and significance procedures for location based on a single sample, 1963),
    each at its part of `LEVEL`; parts add up, so looking again raises no more alarms than that. Then the posterior of
    the step's place decides, every place being as likely before: the middle build between those known to be good and
    bad is measured until it is one of both. For a step after build k the builds up to k are as the first and all
    others share one unknown effect, so with the effect and the noise integrated out

    .. math:: p(k) \propto W_k^{-1/2} (1 + Q_k / \nu)^{-(\nu + M - 1) / 2}

    with Q the least weighted sum of squares of the M builds' means, W the weight of the builds behind the step and
    :math:`\nu` the degrees of freedom of the noise (Box and Tiao, Bayesian Inference in Statistical Analysis, 1973,
    2.4 and 2.7). A posterior may be looked at as often as one likes, and a build that was settled is measured again
    when later ones cast doubt on it. It lies when there is more than one step: where builds fit one badly, that is the
    answer. It takes builds to be equally noisy.
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
        # What a doubtful build is held against can be known better.
        return Measure(last, min(LEAST_BLOCKS, MOST_BLOCKS - len(end)))
    # Builds that stay in doubt count as what they more likely are; the answer says how doubtful all of it is.
    after = int(np.flatnonzero((bad <= DOUBT) | _at(in_doubt, bad < 0.5)).max())
    until = int(np.flatnonzero((bad >= 1 - DOUBT) | _at(in_doubt, bad >= 0.5)).min())
    left = [build for build in range(after + 1, until) if build not in failed and build not in log_ratios]
    if left and len(log_ratios) < most_measured(last):
        middle = min(left, key=lambda one: (abs(2 * one - after - until), one))
        return Measure(middle, evidence.blocks_to_settle(0.5))
    return evidence.answer()


def _at(builds: Collection[int], among: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """The same, but only for these builds."""
    chosen = np.zeros_like(among)
    chosen[list(builds)] = among[list(builds)]
    return chosen


def build_effect(log_ratios: Floats) -> tuple[float, float, float] | None:
    """One build's time over the first one's with its 95 % interval, from its own blocks alone.

    The mean is the one the search goes by, without the tenth at either end, and its t interval that of `next_move`.
    None below two pairs.
    """
    from scipy.special import stdtrit

    mean, squares, kept = _trimmed(log_ratios)
    if kept < 2:
        return None
    reach = float(stdtrit(kept - 1, 0.975)) * float(np.sqrt(max(squares / (kept - 1), _RESOLUTION**2) / kept))
    return float(np.exp(mean)), float(np.exp(mean - reach)), float(np.exp(mean + reach))


def least_detectable_ratio(deviation: float) -> float:
    """The difference from 1 that the last build is told from the first by, in about four searches of five.

    `deviation` is that of a block's log ratio. It is the minimum detectable effect of the last look alone, at its part
    of `LEVEL`, and no less than `POLICY_RATIO`: below that a search ends as soon as blocks rule out more.
    """
    from aaco_pipeline.statistics.verdicts.effects import minimum_detectable_ratio

    kept = MOST_BLOCKS - 2 * int(_TRIMMED * MOST_BLOCKS)
    level = LEVEL * (1 - (LOOKS[-2] / MOST_BLOCKS) ** 3)
    error, freedom, levels = (np.array([each]) for each in (deviation / np.sqrt(MOST_BLOCKS), kept - 1.0, level))
    return max(POLICY_RATIO, float(minimum_detectable_ratio(error, freedom, levels)[0]))


def blocks_predicted(last: int, deviation: float, ratio: float) -> int:
    """Blocks that half of the searches for a step of `ratio` need at most, all builds together.

    Parameters
    ----------
    last : number of the last build.
    deviation : that of a block's log ratio, above 0.
    ratio : the step's difference from 1, above 0.

    Returns
    -------
    The median over `_FORETOLD_SEARCHES` searches with normal noise, the step's place spread over all builds; the same
    for the same question. It lies where some blocks are far noisier than others: there a search takes longer.
    """
    random = np.random.default_rng(last)
    spent = []
    for trial in range(_FORETOLD_SEARCHES):
        step = 1 + trial * last // _FORETOLD_SEARCHES
        known: dict[int, Floats] = {}
        while isinstance(move := next_move(last, known), Measure):
            fresh = deviation * random.standard_normal(move.blocks) + (np.log1p(ratio) if move.build >= step else 0.0)
            known[move.build] = np.concatenate((known.get(move.build, np.array([])), fresh))
        spent.append(sum(len(ratios) for ratios in known.values()))
    return int(np.median(spent))


def most_measured(last: int) -> int:
    """How many builds are measured beside the first at most: the last, those of a search by halves, and no more."""
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
    """What is left to do before it is known that the last build differs; None once it does."""
    from scipy.special import stdtrit

    spent = len(ratios)
    # Spent as the cube of the blocks (Kim and DeMets, Design and analysis of group sequential tests based on the type I
    # error spending rate function, 1987): few blocks show only what is plain, and enough is left for the last look.
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
    """Mean without the tenth at either end, sum of squares of the winsorized values, and how many the mean is of."""
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
    """The measured builds, ascending: (M,) each, with the noise of all of them together."""

    last: int
    builds: npt.NDArray[np.int64]
    means: Floats
    #: How many blocks each mean is of, trimmed ones apart.
    kept: Floats
    #: Variance of one such block, and its degrees of freedom.
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
        """(last + 1,) for each build the posterior that the step lies at it or before."""
        behind = self._behind(np.arange(1, self.last + 1))
        _, errors, least = self._fits(behind)
        log_chance = np.log(errors) - (self.freedom + len(self.builds) - 1) / 2 * np.log1p(least / self.freedom)
        chance = np.exp(log_chance - log_chance.max())
        bad = np.concatenate(([0.0], np.cumsum(chance / chance.sum())))
        # The last build is bad by what was found before, whatever rounding makes of the sum.
        bad[-1] = 1.0
        return bad

    def blocks_to_settle(self, bad: float) -> int:
        """Blocks after which a build so doubtful is expected to be one of both, by the information of one block."""
        effect = self._fits(self._behind(np.array([self.last])))[0][0]
        each = (1 - 2 * _TRIMMED) * effect**2 / (2 * self.variance)
        missing = np.log((1 - DOUBT) / DOUBT) - abs(np.log(bad / (1 - bad)))
        return int(np.clip(np.ceil(missing / each), LEAST_BLOCKS, MOST_BLOCKS))

    def answer(self) -> Answer:
        """The fewest builds between which the step lies with the chance asked for, or around all steps."""
        from scipy.special import fdtrc, stdtrit

        bad = self.chance_bad()
        # Between builds that were not measured nothing tells one place from another.
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
        """The last build up to which all are as the first, and the first from which all are as the last."""
        from scipy.special import stdtrit

        reach = float(stdtrit(self.freedom, 1 - DOUBT / len(self.builds) / 2)) * np.sqrt(self.variance)
        as_first = np.abs(self.means) <= reach / np.sqrt(self.kept)
        as_last = np.abs(self.means - self.means[-1]) <= reach * np.sqrt(1 / self.kept + 1 / self.kept[-1])
        run = np.logical_and.accumulate(as_first)
        after = int(self.builds[run][-1]) if run.any() else 0
        return after, int(self.builds[np.logical_and.accumulate(as_last[::-1])[::-1]][0])

    def _behind(self, steps: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """(steps, M) whether a build has the change of a step that came with that build."""
        behind: npt.NDArray[np.bool_] = self.builds >= steps[:, None]
        return behind

    def _fits(self, behind: npt.NDArray[np.bool_]) -> tuple[Floats, Floats, Floats]:
        """For each step its effect with its standard error, and the weighted squares that it leaves of the means."""
        weights = self.kept / self.variance
        weight = behind @ weights
        weighted = behind @ (weights * self.means)
        effect = weighted / weight
        return effect, 1 / np.sqrt(weight), (weights * self.means**2).sum() - weighted * effect
