"""The search for the build that brought a change, on known truth, and its posterior against plain integration."""

from collections.abc import Collection

import numpy as np
import numpy.typing as npt
import pytest

from aaco_pipeline.errors import UsageError
from aaco_pipeline.statistics.bisection import (
    LEVEL,
    LOOKS,
    MOST_BLOCKS,
    POLICY_RATIO,
    Answer,
    Measure,
    _Evidence,
    blocks_predicted,
    build_effect,
    least_detectable_ratio,
    most_measured,
    next_move,
)

Floats = npt.NDArray[np.float64]


def search(
    effects: Floats, noise: float, seed: int, failing: Collection[int] = (), lost: float = 0.0
) -> tuple[Answer, dict[int, Floats]]:
    """A whole search among builds of these log effects, the first one's apart; its answer and what was measured."""
    random = np.random.default_rng(seed)
    measured: dict[int, Floats] = {}
    failed: set[int] = set()
    while isinstance(move := next_move(len(effects), measured, failed), Measure):
        if move.build in failing:
            failed.add(move.build)
            continue
        assert move.blocks > 0
        fresh = effects[move.build - 1] + noise * random.standard_normal(move.blocks)
        fresh[random.random(move.blocks) < lost] = np.nan
        measured[move.build] = np.concatenate((measured.get(move.build, np.array([])), fresh))
    return move, measured


def one_step(last: int, step: int, effect: float) -> Floats:
    return np.where(np.arange(1, last + 1) >= step, np.log1p(effect), 0.0)


def test_a_plain_step_is_found_in_as_few_builds_as_halving_takes() -> None:
    found = []
    for seed in range(400):
        random = np.random.default_rng(seed)
        last, effect = int(random.integers(1, 201)), float(random.choice([-0.05, 0.03, 0.2]))
        step = int(random.integers(1, last + 1))
        answer, measured = search(one_step(last, step, effect), 0.002, seed)
        assert len(measured) <= most_measured(last) <= 1 + np.ceil(np.log2(last)) if last > 1 else len(measured) == 1
        found.append((answer.state, answer.after, answer.until, answer.likeliest) == ("step", step - 1, step, step))
        if found[-1]:
            assert answer.effect_ratio == pytest.approx(1 + effect, abs=0.005)
            assert answer.probability is not None and answer.probability > 0.99
    # Noise alone makes a second step of one in about a thousand: a promise of a rate, not of every search.
    assert np.mean(found) >= 0.99


def test_64_builds_need_eight_with_the_first() -> None:
    assert 1 + most_measured(64) == 8


def test_builds_that_fail_widen_the_answer_to_what_they_leave_open() -> None:
    last, right = 32, []
    for seed in range(100):
        random = np.random.default_rng(seed)
        step = int(random.integers(1, last + 1))
        failing = set(random.choice(np.arange(1, last), int(random.integers(0, 21)), replace=False).tolist())
        answer, measured = search(one_step(last, step, 0.05), 0.002, seed, failing)
        below = max((build for build in range(step) if build not in failing), default=0)
        above = min(build for build in range(step, last + 1) if build not in failing)
        assert not failing & {answer.after, answer.until}
        assert not failing & set(measured)
        right.append(answer.after <= below < above <= answer.until)
        if len(measured) < most_measured(last):
            right.append((answer.after, answer.until) == (below, above))
        if above - below > 1:
            right.append((answer.state, answer.likeliest, answer.probability) == ("range", None, None))
    # As above: noise alone makes a second step of one search in about a thousand.
    assert np.mean(right) >= 0.99


def test_a_noisy_search_stays_within_its_blocks_and_covers_the_step() -> None:
    answers = [search(one_step(64, 1 + seed % 64, 0.03), 0.045, seed, lost=0.1) for seed in range(200)]
    inside = [a.state != "no change" and a.after < 1 + seed % 64 <= a.until for seed, (a, _) in enumerate(answers)]
    assert np.mean(inside) >= 0.95
    assert any(answer.state == "range" for answer, _ in answers)
    assert max(len(ratios) for _, measured in answers for ratios in measured.values()) == MOST_BLOCKS
    assert max(len(measured) for _, measured in answers) <= most_measured(64)


def test_identical_code_is_called_changed_as_rarely_as_promised() -> None:
    changed = [search(np.zeros(4), 0.03, seed)[0].state != "no change" for seed in range(2_000)]
    assert LEVEL / 4 < np.mean(changed) <= LEVEL


def test_no_change_says_what_is_ruled_out_and_stops_early_where_it_is_quiet() -> None:
    answer, measured = search(np.zeros(64), 0.001, 3)
    assert (answer.state, answer.after, answer.until, answer.likeliest) == ("no change", 0, 64, None)
    assert answer.ci_low < 1 < answer.ci_high < 1.01
    assert {build: len(ratios) for build, ratios in measured.items()} == {64: LOOKS[0]}
    noisy, measured = search(np.zeros(64), 0.04, 3)
    assert noisy.state == "no change" and len(measured[64]) == MOST_BLOCKS
    assert noisy.ci_high - noisy.ci_low > 0.01


def test_two_steps_are_not_reported_as_one() -> None:
    effects = one_step(64, 20, 0.03) + one_step(64, 50, 0.03)
    answer, _ = search(effects, 0.003, 1)
    assert answer.state == "several steps"
    assert answer.after < 20 and answer.until >= 50
    assert (answer.likeliest, answer.probability) == (None, None)
    assert answer.ci_low < 1.03**2 < answer.ci_high


def test_a_gain_is_searched_as_a_loss_is() -> None:
    slower, measured = search(one_step(40, 13, 0.04), 0.02, 5)
    mirrored = next_move(40, {build: -ratios for build, ratios in measured.items()})
    assert isinstance(mirrored, Answer)
    assert (mirrored.after, mirrored.until, mirrored.likeliest) == (slower.after, slower.until, slower.likeliest)
    assert mirrored.effect_ratio == pytest.approx(1 / slower.effect_ratio)


def test_one_slow_session_overturns_nothing() -> None:
    random = np.random.default_rng(2)
    measured = {build: 0.002 * random.standard_normal(10) + (0.03 if build >= 3 else 0) for build in (2, 3, 4)}
    measured[2][4] = 0.7
    answer = next_move(4, measured)
    assert isinstance(answer, Answer)
    assert (answer.state, answer.likeliest) == ("step", 3)


def test_a_settled_build_is_measured_again_when_others_cast_doubt_on_it() -> None:
    """Build 2 looked bad; build 3, behind it, is as the first, so build 2 cannot be."""
    spread = 0.01 * np.array([-1.5, -1, -0.5, -0.2, 0, 0.2, 0.5, 1, 1.5, 0])
    settled = {4: np.tile(spread, 2) + 0.03, 2: spread + 0.022}
    first = next_move(4, settled)
    assert isinstance(first, Measure) and first.build == 1
    again = next_move(4, {**settled, 3: spread})
    assert isinstance(again, Measure) and again.build in (2, 3)


def test_the_posterior_is_that_of_integrating_effect_and_noise() -> None:
    random = np.random.default_rng(1)
    measured = {
        build: 0.02 * random.standard_normal(8) + shift for build, shift in ((2, 0.0), (4, 0.01), (5, 0.03), (8, 0.03))
    }
    evidence = _Evidence.of(8, measured)
    found = np.diff(evidence.chance_bad())
    deviations = np.geomspace(0.003, 0.2, 800)[:, None]
    effects = np.linspace(-0.15, 0.2, 3_001)
    squares = evidence.freedom * evidence.variance
    expected = np.empty(8)
    for step in range(1, 9):
        distance = evidence.means[:, None] - effects * (evidence.builds >= step)[:, None]
        total = squares + (evidence.kept[:, None] * distance**2).sum(axis=0)
        # Jeffreys' prior of the noise: even in the logarithm of its deviation, along which these points are even.
        power = evidence.freedom + len(evidence.builds)
        expected[step - 1] = np.exp(-power * np.log(deviations / 0.02) - total / (2 * deviations**2)).sum()
    np.testing.assert_allclose(found, expected / expected.sum(), rtol=1e-3)


@pytest.mark.parametrize(
    ("last", "measured", "failed", "words"),
    [
        (0, {}, [], "two or more"),
        (4, {5: np.zeros(10)}, [], "build 5"),
        (4, {}, [0], "build 0"),
        (4, {}, [4], "the last"),
        (4, {4: np.full(MOST_BLOCKS, np.nan)}, [], "fewer than two pairs"),
    ],
)
def test_invalid_searches_are_refused(last: int, measured: dict[int, Floats], failed: list[int], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        next_move(last, measured, failed)


@pytest.mark.parametrize("deviation", [0.002, 0.01, 0.03, 0.1])
def test_the_least_detectable_change_is_found_about_four_times_in_five_or_is_the_policy(deviation: float) -> None:
    ratio, random = least_detectable_ratio(deviation), np.random.default_rng(1)
    found = 0
    for _ in range(400):
        ratios = deviation * random.standard_normal(MOST_BLOCKS) + np.log1p(ratio)
        known: dict[int, Floats] = {}
        while isinstance(move := next_move(2, known), Measure) and move.build == 2:
            known = {2: ratios[: len(known.get(2, ())) + move.blocks]}
        found += isinstance(move, Measure)
    assert found >= 0.95 * 400 if ratio == POLICY_RATIO else 0.7 * 400 <= found <= 0.88 * 400


@pytest.mark.parametrize(("last", "deviation", "ratio"), [(7, 0.03, 0.03), (64, 0.01, 0.02)])
def test_half_of_the_searches_take_no_more_blocks_than_predicted(last: int, deviation: float, ratio: float) -> None:
    predicted = blocks_predicted(last, deviation, ratio)
    assert predicted == blocks_predicted(last, deviation, ratio)
    spent = []
    for seed in range(100):
        _, measured = search(one_step(last, 1 + seed % last, ratio), deviation, seed)
        spent.append(sum(map(len, measured.values())))
    assert np.quantile(spent, 0.35) <= predicted <= np.quantile(spent, 0.65)


def test_the_effect_of_a_build_is_its_trimmed_mean_with_an_interval_that_covers_it() -> None:
    random, inside = np.random.default_rng(3), 0
    for _ in range(400):
        effect = build_effect(np.log(1.03) + 0.02 * random.standard_normal(20))
        assert effect is not None
        inside += effect[1] <= 1.03 <= effect[2]
    assert 0.92 * 400 <= inside <= 0.98 * 400
    spoilt = build_effect(np.append(np.full(10, np.log(1.03)), [np.log(9.0), np.nan]))
    assert spoilt is not None and spoilt[0] == pytest.approx(1.03)
    assert build_effect(np.array([0.1, np.nan])) is None
