"""Wrong workers of numpy are named by their guard, in all circumstances and at drawn sizes; honest ones pass."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from aaco_pipeline.errors import UsageError
from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.optimization.correctness.checking import (
    Checked,
    Drawn,
    check,
    described,
    draw_deeply,
    draw_pair,
    draw_sizes,
)
from aaco_pipeline.optimization.correctness.comparison import poison
from aaco_pipeline.optimization.harness import DISTRIBUTIONS, Harness, Launch, Size, buffer, make_call, output
from aaco_pipeline.optimization.targets import ASCENDING, DESCENDING, Call, Circumstances, Content, Execution, Worker
from tests.optimization.harness.row_dot import HARNESS, Numpy, factors, in_order, pairwise, reference, shape_of


def judged(
    candidate: Callable[[Call], Content] | Worker,
    *,
    bit_exact: bool = False,
    harness: Harness = HARNESS,
    seed: int = 20261123,
    baseline: Callable[[Call], Content] = in_order,
    is_deep: bool = False,
) -> Checked:
    worker, size = candidate if not callable(candidate) else Numpy(candidate), harness.timing_size
    return check(harness, Numpy(baseline), worker, seed=seed, bit_exact=bit_exact, timed_size=size, is_deep=is_deep)


def refusal(candidate: Callable[[Call], Content] | Worker, *, bit_exact: bool = False) -> Refused:
    with pytest.raises(Refused) as caught:
        judged(candidate, bit_exact=bit_exact)
    return caught.value


def test_the_same_kernel_is_bit_exact() -> None:
    done = judged(in_order, bit_exact=True)
    assert done.seed == 20261123
    assert done.calls == 5 * (2 * 21 + 1) + len(done.drawn) * (2 * 4 + 1)
    assert done.largest_error <= done.baseline_largest_error < 1


@pytest.mark.parametrize("seed", range(12))
def test_another_order_of_summation_is_right_whatever_the_seed(seed: int) -> None:
    assert judged(pairwise, seed=seed).elements > 0


def test_another_order_of_summation_is_not_bit_exact() -> None:
    refused = refusal(pairwise, bit_exact=True)
    assert refused.guard == "outputs" and "the baseline's bits" in refused.reason


def beyond_the_bound(call: Call) -> Content:
    """The first element just outside its bound."""
    answered = in_order(call).copy()
    values, bound = reference(call)["out"]
    if np.isfinite(values[0]) and bound[0] > 0:
        answered[0] = np.nextafter(np.float32(values[0] + bound[0]), np.float32(np.inf))
    return answered


def one_element_wrong(call: Call) -> Content:
    answered = in_order(call).copy()
    if shape_of(call) == 67:
        answered[66] += np.float32(1)
    return answered


def constant_for_one_shape(call: Call) -> Content:
    remembered = np.full(128, 0.25, dtype=np.float32)
    return remembered if shape_of(call) == 128 else in_order(call)


def nan_lost(call: Call) -> Content:
    return np.asarray(np.nan_to_num(in_order(call), nan=0.0, posinf=np.inf, neginf=-np.inf))


def last_row_not_written(call: Call) -> Content:
    rows = shape_of(call)
    return in_order(call)[: rows - 1 if rows == 67 else rows]


def reads_poison(call: Call) -> Content:
    return np.asarray(in_order(call) + poison("float32", shape_of(call)))


def half_precision(call: Call) -> Content:
    with np.errstate(all="ignore"):
        a, b = (one.astype(np.float16).astype(np.float32) for one in factors(call))
        return np.asarray((a * b).sum(axis=1, dtype=np.float32), dtype=np.float32)


@pytest.mark.parametrize(
    ("candidate", "said"),
    [
        (beyond_the_bound, "is the worst"),
        (one_element_wrong, "out[66]"),
        (constant_for_one_shape, "0.25"),
        (nan_lost, "expected np.float64(nan)"),
        (last_row_not_written, "out[66] is np.float32(nan), expected a result; the element was never written"),
        (reads_poison, "never written"),
        (half_precision, "out"),
    ],
)
def test_wrong_outputs_are_refused_with_an_element(candidate: Callable[[Call], Content], said: str) -> None:
    refused = refusal(candidate)
    assert refused.guard == "outputs" and said in refused.reason and "size " in refused.reason


def test_a_lower_precision_within_the_bound_is_refused_beside_the_baselines_own_error() -> None:
    """4,096 terms have a bound that half precision keeps; the float32 kernel is far better than its bound."""

    def half_of_long_rows(call: Call) -> Content:
        return half_precision(call) if factors(call)[0].shape[1] == 4096 else in_order(call)

    long = replace(HARNESS, sizes=((1, 1),), timing_size=(64, 4096), distributions=("normal",))
    with pytest.raises(Refused, match="less accurate than the baseline's"):
        judged(half_of_long_rows, harness=long)
    assert judged(pairwise, harness=long)


def from_the_end(call: Call) -> Content:
    a, b = factors(call)
    with np.errstate(all="ignore"):
        return np.asarray(np.cumsum((a * b)[:, ::-1], axis=1, dtype=np.float32)[:, -1], dtype=np.float32)


def test_where_one_number_comes_out_more_calls_say_how_accurate_it_is() -> None:
    """One of two equally good sums is often twice as far off as the other; with many sums, hardly ever."""
    single = replace(HARNESS, sizes=((1, 4096),), timing_size=(1, 4096), distributions=("normal", "uniform"))
    drawn = [judged(from_the_end, harness=single, seed=seed).elements for seed in range(20)]
    assert min(drawn) == 2 < max(drawn)


def wrong_from(rows: int) -> Callable[[Call], Content]:
    """Right at every listed and timed size: the last row is lost of `rows` and more that no four divide."""

    def lost(call: Call) -> Content:
        answered = in_order(call)
        return answered[:-1] if shape_of(call) >= rows and shape_of(call) % 4 else answered

    return lost


def test_what_is_wrong_at_sizes_that_nobody_listed_is_refused() -> None:
    for seed in range(5):
        with pytest.raises(Refused, match="never written"):
            judged(wrong_from(70), seed=seed, is_deep=True)
    found = 0
    for seed in range(5):
        try:
            judged(wrong_from(70), seed=seed)
        except Refused:
            found += 1
    assert found >= 4


def test_a_deep_check_finds_what_is_wrong_at_large_sizes_alone() -> None:
    large = replace(HARNESS, gpu_timing_size=(4097, 31))
    assert judged(wrong_from(400), harness=large)
    with pytest.raises(Refused, match="never written"):
        judged(wrong_from(400), harness=large, is_deep=True)


@pytest.mark.parametrize("seed", range(6))
def test_an_honest_change_passes_at_every_size(seed: int) -> None:
    done = judged(from_the_end, seed=seed, is_deep=True)
    assert len(done.drawn) >= 32 and done.note is None


def test_a_baseline_that_is_not_made_for_a_drawn_size_gets_the_advice_to_say_so() -> None:
    """One that works on rows in fours, which all listed sizes are."""

    def in_fours(call: Call) -> Content:
        return in_order(call)[: shape_of(call) // 4 * 4]

    fours = replace(HARNESS, sizes=((4, 1), (8, 7), (64, 33)))
    with pytest.raises(UsageError, match=r"unchanged kernel .*drawn between .*takes=lambda size: … in HARNESS$"):
        judged(in_fours, harness=fours, baseline=in_fours)
    taking = replace(fours, takes=lambda size: isinstance(size, tuple) and size[0] % 4 == 0)
    assert len(judged(in_fours, harness=taking, baseline=in_fours).drawn) == 12


class Drifting(Numpy):
    """Right at first, another answer within the bound from the eighth call on."""

    def run(self, call: Call) -> Execution:
        answered = super().run(call)
        if self.calls < 8:
            return answered
        out: NDArray[np.float32] = answered.outputs["out"].astype(np.float32)
        return Execution({"out": out * np.float32(1 + 2**-20)}, None)


class Alternating(Numpy):
    """Every second answer summed in another order."""

    def run(self, call: Call) -> Execution:
        self.kernel = in_order if self.calls % 2 else pairwise
        return super().run(call)


def test_answers_that_change_from_call_to_call_are_refused() -> None:
    assert refusal(Alternating(in_order)).guard == "determinism"
    assert refusal(Drifting(in_order)).guard in ("determinism", "outputs")


def test_a_kernel_whose_sums_have_no_order_may_answer_twice_differently() -> None:
    assert judged(Alternating(in_order), harness=replace(HARNESS, deterministic=False)).elements > 0


def test_inputs_cannot_be_changed() -> None:
    def doubles_its_input(call: Call) -> Content:
        try:
            call.contents["a"][0] *= 2
        except ValueError as error:
            raise Refused("inputs", f"wrote to a: {error}") from error
        return in_order(call)

    assert refusal(doubles_its_input).guard == "inputs"


def test_outputs_of_another_shape_are_no_result() -> None:
    class Short(Numpy):
        def run(self, call: Call) -> Execution:
            return Execution({"out": super().run(call).outputs["out"][:-1]}, None)

    assert refusal(Short(in_order)).guard == "result"


def test_what_the_worker_refuses_stays_refused() -> None:
    def dies(call: Call) -> Content:
        raise Refused("memory", "read beyond b")

    assert refusal(dies).guard == "memory"
    with pytest.raises(UsageError, match=r"the unchanged kernel fails .*read beyond b"):
        judged(in_order, baseline=dies)


def test_a_wrong_baseline_is_for_the_user_to_mend() -> None:
    with pytest.raises(UsageError, match=r"out\[\d+\] of the unchanged kernel is wrong.*mend the kernel or reference"):
        judged(in_order, baseline=one_element_wrong)
    with pytest.raises(UsageError, match=r"out\[66\] of the unchanged kernel is never written"):
        judged(in_order, baseline=last_row_not_written)


CALL = make_call(
    Launch((1, 1, 1), (1, 1, 1)),
    buffer("x", np.ones(3, np.float32)),
    output("out", 3),
    output("found", 3, "uint8"),
    buffer("kept", np.ones(3, np.float32), role="inout"),
)


class Obliging(Numpy):
    """A worker whose outputs hold what the call says, and whose kernel is wrong under some circumstances."""

    def __init__(self, is_wrong: Callable[[Circumstances], bool], *, writes: bool = True) -> None:
        super().__init__(in_order)
        self.is_wrong, self.writes = is_wrong, writes
        self.seen: list[Circumstances] = []

    def run(self, call: Call) -> Execution:
        given = call.circumstances
        self.seen.append(given)
        out = super().run(call).outputs["out"].copy()
        if self.is_wrong(given):
            old = given.before.get("out")
            out[0] = old[0] if old is not None and not self.writes else np.float32(3.0e30)
        return Execution({"out": out}, None, before=given.before)


def checked(worker: Obliging, seed: int) -> None:
    size = HARNESS.timing_size
    baseline = Obliging(lambda given: False)
    check(HARNESS, baseline, worker, seed=seed, bit_exact=False, timed_size=size)
    assert set(map(described, baseline.seen)) == {""}, "the baseline is called as in use"


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(
    "worker",
    [
        Obliging(lambda given: given.order == DESCENDING),
        Obliging(lambda given: given.order > DESCENDING),
        Obliging(lambda given: given.order == ASCENDING),
        Obliging(lambda given: given.is_aligned),
        Obliging(lambda given: not given.is_aligned),
        Obliging(lambda given: given.keeps_lds),
        Obliging(lambda given: bool(given.before), writes=False),
        Obliging(lambda given: given.is_aligned and given.keeps_lds and given.order > DESCENDING),
    ],
    ids=["descending", "random", "ascending", "aligned", "displaced", "left", "old", "several"],
)
def test_what_is_right_in_some_circumstances_alone_is_refused(worker: Obliging, seed: int) -> None:
    with pytest.raises(Refused) as caught:
        checked(worker, seed)
    assert caught.value.guard in ("outputs", "determinism")


def test_a_right_kernel_is_called_in_all_of_them_and_passes() -> None:
    worker = Obliging(lambda given: False)
    checked(worker, 5)
    seen = {(min(one.order, 2), one.is_aligned, one.keeps_lds, bool(one.before)) for one in worker.seen}
    assert len(seen) == 3 * 2 * 2 * 2
    assert len({one.order for one in worker.seen}) > 50


def test_the_two_calls_of_a_pair_have_opposite_circumstances() -> None:
    rng = np.random.default_rng(1)
    for _ in range(20):
        one, other = draw_pair(CALL, None, rng)
        assert one.order != other.order
        assert one.is_aligned != other.is_aligned and one.keeps_lds != other.keeps_lds
        assert bool(one.before) != bool(other.before)
        (old,) = (given for given in (one.before, other.before) if given)
        kinds = {name: (values.dtype.name, values.size) for name, values in old.items()}
        assert kinds == {"out": ("float32", 3), "found": ("uint8", 3)}


def test_old_values_are_an_earlier_calls_and_finite() -> None:
    earlier: dict[str, Content] = {
        "out": np.array([np.nan, -np.inf, 5.0], np.float32),
        "found": np.array([7, 8, 9], np.uint8),
    }
    pair = draw_pair(CALL, earlier, np.random.default_rng(1))
    (old,) = (given.before for given in pair if given.before)
    assert np.isfinite(old["out"]).all() and old["out"][2] == 5 and old["found"].tolist() == [7, 8, 9]


def test_a_refusal_says_under_what_it_was_called() -> None:
    given = Circumstances(DESCENDING, is_aligned=True, keeps_lds=True, before={"out": np.ones(1, np.float32)})
    assert described(given) == (
        "work-items in descending order, buffers at multiples of 256 bytes, local data share as it was left, "
        "outputs with old values"
    )
    with pytest.raises(Refused, match=r"buffers at multiples of 256 bytes, .*outputs with old values"):
        checked(Obliging(lambda one: one.is_aligned and bool(one.before)), 1)


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
    """One in 256 sizes has only multiples of 16: multiples are drawn, not waited for."""

    def in_tiles(size: Any) -> bool:
        return all(number % 16 == 0 for number in size)

    tiles = replace(HARNESS, sizes=((16, 16), (48, 80)), timing_size=(512, 512), takes=in_tiles)
    given = drawn(tiles, seed)
    assert len(given.trials) >= 10 and all(in_tiles(size) for size in sizes_of(given))
    assert given.note is None


def test_a_note_says_where_few_sizes_are_taken() -> None:
    listed = replace(HARNESS, takes=lambda size: size in (*HARNESS.sizes, HARNESS.timing_size, (64, 64)))
    assert len(drawn(listed).trials) <= 1
    assert "takes() left" in str(drawn(listed).note) and "list more" in str(drawn(listed).note)


def test_a_note_says_where_only_one_size_is_declared() -> None:
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
    listed = replace(HARNESS, floor=floor, takes=lambda size: size in HARNESS.declared_sizes)
    assert drawn(listed).trials == ()
