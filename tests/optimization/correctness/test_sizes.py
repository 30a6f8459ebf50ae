"""Drawn sizes: none that is listed, within what the harness declares and what a check may cost, only what is taken."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from aaco_pipeline.errors import UsageError
from aaco_pipeline.optimization.correctness.sizes import Drawn, draw_deeply, draw_sizes
from aaco_pipeline.optimization.harness import DISTRIBUTIONS, Harness, Size
from tests.optimization.harness.row_dot import HARNESS

WIDE = replace(HARNESS, gpu_timing_size=(1 << 14, 512))
SEEDS = range(20)


def drawn(harness: Harness = HARNESS, seed: int = 1) -> Drawn:
    return draw_sizes(harness, harness.timing_size, np.random.default_rng(seed))


def deep(harness: Harness = WIDE, seed: int = 1) -> Drawn:
    return draw_deeply(harness, harness.timing_size, np.random.default_rng(seed))


def sizes_of(given: Drawn) -> list[Any]:
    return [trial.size for trial in given.trials]


def bytes_of(harness: Harness, size: Size) -> float:
    return harness.floor(size)[1]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_dozen_sizes_are_drawn_that_nobody_listed_within_what_is_declared(seed: int) -> None:
    found = sizes_of(drawn(seed=seed))
    assert len({*found, *HARNESS.sizes, HARNESS.timing_size}) == 12 + 5
    assert all(1 <= rows <= 128 and 1 <= n <= 257 for rows, n in found)
    assert all(isinstance(number, int) for size in found for number in size)
    assert max(bytes_of(HARNESS, size) for size in found) <= bytes_of(HARNESS, HARNESS.timing_size)


def test_they_follow_from_the_seed_and_no_two_seeds_draw_the_same() -> None:
    assert drawn(seed=1) == drawn(seed=1)
    assert len({drawn(seed=seed) for seed in SEEDS}) == len(SEEDS)


@pytest.mark.parametrize("seed", SEEDS)
def test_neighbours_of_the_timed_size_are_among_them(seed: int) -> None:
    near = [(rows, n) for rows, n in sizes_of(drawn(seed=seed)) if abs(rows - 128) <= 4 and abs(n - 64) <= 4]
    assert len(near) >= 2


def test_short_and_long_are_drawn_alike() -> None:
    """Half of the numbers come evenly, which are mostly long, half evenly over orders of magnitude."""
    lengths = np.array([n for seed in SEEDS for _, n in sizes_of(drawn(seed=seed))[4:]])
    assert 0.1 < (lengths <= 16).mean() < 0.6 and 0.1 < (lengths > 64).mean() < 0.7


def test_every_drawn_size_is_tried_with_telling_distributions() -> None:
    for trial in drawn().trials:
        assert trial.distributions[:2] == ("normal", "mixed") and len({*trial.distributions}) == 4
    plain = replace(HARNESS, distributions=("normal", "zeros"))
    assert {trial.distributions for trial in drawn(plain).trials} == {("normal", "zeros")}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_deep_check_goes_up_to_the_largest_declared_size_on_any_target(seed: int) -> None:
    trials = deep(seed=seed).trials
    assert len(trials) == 8 + 2 * 12 + 2
    by_size = {trial.size: trial.distributions for trial in trials}
    assert by_size[(1 << 14, 512)][:2] == ("normal", "constant")
    every = [size for size, distributions in by_size.items() if {*distributions} == {*DISTRIBUTIONS}]
    assert max(bytes_of(WIDE, size) for size in every) > 90 * bytes_of(WIDE, WIDE.timing_size)


def test_the_largest_size_is_tried_with_every_distribution_where_that_is_cheap() -> None:
    cheap = replace(HARNESS, gpu_timing_size=(512, 512))
    assert {trial.size: {*trial.distributions} for trial in deep(cheap).trials}[(512, 512)] == {*DISTRIBUTIONS}


def test_what_would_cost_too_much_is_made_smaller() -> None:
    """20 ns a byte and 5 ns an operation: rounds at a drawn size are estimated to take five seconds in all."""
    vast = replace(HARNESS, gpu_timing_size=(1 << 20, 1 << 20))
    for trial in deep(vast).trials:
        operations, moved = vast.floor(trial.size)
        assert len(trial.distributions) * (5e-9 * operations + 20e-9 * moved) <= 5.0


def test_a_number_that_every_declared_size_shares_stays() -> None:
    heads = replace(HARNESS, sizes=((1, 64), (33, 64)), timing_size=(128, 64))
    assert {n for _, n in sizes_of(drawn(heads))} == {64}


def test_sizes_of_several_kinds_are_drawn_as_each_kind() -> None:
    mixed = replace(HARNESS, sizes=(9, 30, (40, 50)), timing_size=(60, 70), floor=lambda size: (0.0, 1.0))
    kinds = {type(size) for seed in SEEDS for size in sizes_of(drawn(mixed, seed))}
    assert kinds == {int, tuple}


@pytest.mark.parametrize("seed", SEEDS)
def test_only_sizes_that_the_kernel_takes_are_drawn(seed: int) -> None:
    """Of sizes that all are multiples of 16, one in 256 is taken: multiples are drawn, not waited for."""

    def in_tiles(size: Any) -> bool:
        return all(number % 16 == 0 for number in size)

    tiles = replace(HARNESS, sizes=((16, 16), (48, 80)), timing_size=(512, 512), takes=in_tiles)
    given = drawn(tiles, seed)
    assert len(given.trials) >= 10 and all(in_tiles(size) for size in sizes_of(given))
    assert given.note is None


def test_it_is_told_where_few_sizes_are_taken() -> None:
    listed = replace(HARNESS, takes=lambda size: size in (*HARNESS.sizes, HARNESS.timing_size, (64, 64)))
    assert len(drawn(listed).trials) <= 1
    assert "takes() left" in str(drawn(listed).note) and "list more" in str(drawn(listed).note)


def test_it_is_told_where_one_size_is_all_that_is_declared() -> None:
    single = replace(HARNESS, sizes=((64, 64),), timing_size=(64, 64))
    assert drawn(single).trials == () and "one size alone" in str(drawn(single).note)


def test_a_space_that_is_used_up_needs_no_word() -> None:
    few = replace(HARNESS, sizes=((1, 1),), timing_size=(2, 2))
    given = drawn(few)
    assert sorted(sizes_of(given)) == [(1, 2), (2, 1)] and given.note is None


def test_a_floor_that_fails_at_a_drawn_size_says_what_to_do() -> None:
    def floor(size: Any) -> tuple[float, float]:
        return {size: HARNESS.floor(size) for size in HARNESS.declared_sizes}[size]

    with pytest.raises(UsageError, match=r"floor.. failed: KeyError.*takes=lambda size"):
        drawn(replace(HARNESS, floor=floor))
    told = replace(HARNESS, floor=floor, takes=lambda size: size in HARNESS.declared_sizes)
    assert drawn(told).trials == ()
