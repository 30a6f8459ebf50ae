"""Every way of being wrong that a worker of numpy can have is named by its guard; the honest ways pass."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from aaco_pipeline.errors import UsageError
from aaco_pipeline.optimization.calls import Call, Content, Execution
from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.optimization.correctness.checking import Checked, check
from aaco_pipeline.optimization.correctness.poison import poison
from aaco_pipeline.optimization.harness import Harness
from aaco_pipeline.optimization.targets import Worker
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
    assert refused.guard == "outputs"
    assert "the baseline's bits" in refused.reason


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
    assert refused.guard == "outputs"
    assert said in refused.reason
    assert "size " in refused.reason


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
    """Of two equally good sums, one is often twice as far off as the other; of many, hardly ever."""
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


def test_a_baseline_that_is_not_made_for_a_drawn_size_is_told_to_say_so() -> None:
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


def test_a_wrong_baseline_is_the_persons_to_mend() -> None:
    with pytest.raises(UsageError, match=r"out\[\d+\] of the unchanged kernel is wrong.*mend the kernel or reference"):
        judged(in_order, baseline=one_element_wrong)
    with pytest.raises(UsageError, match=r"out\[66\] of the unchanged kernel is never written"):
        judged(in_order, baseline=last_row_not_written)
