"""Two answers are compared element by element, and outputs of models by half of their digits."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as some
from numpy.typing import NDArray

from aaco_pipeline.errors import UsageError
from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.optimization.correctness.comparison import (
    Comparison,
    compare_outputs,
    depend_on_inputs,
    joined,
    left_as_it_was,
    poison,
    untouched,
)
from aaco_pipeline.optimization.harness import (
    NOT_AN_OUTPUT,
    Distribution,
    Expected,
    Harness,
    Size,
    buffer,
    draw,
    make_call,
    output,
)
from aaco_pipeline.optimization.targets import Buffer, Call, Execution, Launch

ONE: Launch = Launch((1, 1, 1), (1, 1, 1))
Floats = NDArray[np.float32]
EVERY_FLOAT = st.floats(width=32, allow_nan=True, allow_infinity=True)
ARRAYS = some.arrays(np.float32, st.integers(1, 20), elements=EVERY_FLOAT)


def copying(bound: float = 0.0, *, pitch: bool = False) -> Harness:
    """A kernel that copies x to out; with `pitch` the last element is none of its outputs."""

    def call(size: Size, distribution: Distribution, rng: np.random.Generator) -> Call:
        assert isinstance(size, int)
        return make_call(ONE, buffer("x", draw(distribution, rng, size)), output("out", size))

    def reference(call: Call) -> Mapping[str, Expected]:
        values = call.contents["x"].astype(np.float64)
        bounds = np.full(values.size, bound)
        if pitch:
            bounds[-1] = NOT_AN_OUTPUT
        return {"out": (values, bounds)}

    return Harness("copy", (1,), 1, call, reference, floor=lambda size: (0.0, 8.0))


def of(x: Any) -> Call:
    values = np.asarray(x, dtype=np.float32)
    return make_call(ONE, buffer("x", values), output("out", values.size))


def float32(values: list[float]) -> Floats:
    return np.array(values, dtype=np.float32)


def executed(out: Any) -> Execution:
    values = np.asarray(out)
    element = poison(values.dtype.name, 1).tobytes()
    return Execution({"out": values}, None, {"out": element})


def compared(
    x: Any, baseline: Any, candidate: Any, *, bit_exact: bool = False, bound: float = 0.0, pitch: bool = False
) -> None:
    comparison = Comparison(copying(bound, pitch=pitch), 3, "huge", bit_exact=bit_exact)
    comparison.add(of(x), executed(np.asarray(baseline, np.float32)), executed(np.asarray(candidate, np.float32)))
    comparison.conclude()


def refused(*arguments: Any, **options: Any) -> str:
    with pytest.raises(Refused) as caught:
        compared(*arguments, **options)
    assert caught.value.guard == "outputs"
    return caught.value.reason


@given(x=ARRAYS, bit_exact=st.booleans())
def test_what_equals_the_baseline_is_right_whatever_it_holds(x: Floats, bit_exact: bool) -> None:
    compared(x, x, x.copy(), bit_exact=bit_exact)


@given(x=ARRAYS, at=st.integers(0, 19), other=EVERY_FLOAT)
def test_one_other_element_is_found_where_nothing_is_rounded(x: Floats, at: int, other: float) -> None:
    """With a bound of 0 another number, NaN or Inf is wrong, and nothing else: -0 equals 0, any NaN any NaN."""
    changed = x.copy()
    changed[at % x.size] = other
    if np.array_equal(x, changed, equal_nan=True):
        compared(x, x, changed)
    else:
        assert f"out[{at % x.size}]" in refused(x, x, changed)


@given(x=some.arrays(np.float32, st.integers(1, 9), elements=st.floats(-100, 100, width=32)), at=st.integers(0, 8))
def test_the_bound_is_the_last_right_error(x: Floats, at: int) -> None:
    """The candidate's error alone: a baseline that is as far off leaves nothing but the bound to say."""
    bound, place = 2.0**-4, at % x.size
    off = x.astype(np.float64)
    off[place] = np.round(off[place] * 16) / 16
    x = off.astype(np.float32)
    off[place] += bound
    compared(x, off, off, bound=bound)
    off[place] = np.nextafter(np.float32(off[place]), np.float32(np.inf))
    with pytest.raises(UsageError, match="unchanged kernel is wrong"):
        compared(x, off, off, bound=bound)
    assert f"out[{place}]" in refused(x, x, off, bound=bound)


def test_negative_zero_equals_zero_unless_bits_are_promised() -> None:
    compared([0.0], [0.0], [-0.0])
    assert "the baseline's bits" in refused([0.0], [0.0], [-0.0], bit_exact=True)


def test_one_nan_is_as_good_as_another_even_where_bits_are_promised() -> None:
    other = np.array([0xFFC00001], dtype=np.uint32).view(np.float32)
    compared([np.nan], [np.nan], other, bit_exact=True)


def test_poison_is_no_nan_of_the_kernel() -> None:
    left = poison("float32", 1)
    assert np.isnan(left[0]) and untouched(left)[0] and not untouched(float32([np.nan]))[0]
    assert "never written" in refused([np.nan], [np.nan], left)


def test_a_whole_number_that_looks_like_poison_may_be_the_answer() -> None:
    value = int(poison("uint8", 1)[0])

    def call(size: Size, distribution: Distribution, rng: np.random.Generator) -> Call:
        raise AssertionError

    def reference(call: Call) -> Mapping[str, Expected]:
        return {"out": (np.array([float(value), 3.0]), np.zeros(2))}

    harness = Harness("count", (1,), 1, call, reference, lambda size: (0.0, 1.0))
    made = make_call(ONE, output("out", 2, "uint8"))
    comparison = Comparison(harness, 2, "normal", bit_exact=False)
    right = executed(np.array([value, 3], dtype=np.uint8))
    comparison.add(made, right, right)
    with pytest.raises(Refused, match=r"out\[1\].*never written"):
        comparison.add(made, right, executed(np.array([value, value], dtype=np.uint8)))


def test_what_lies_between_rows_stays_as_it_is() -> None:
    """The last element belongs to no output; the kernel may neither write there nor is it asked what it holds."""
    kept = np.append(float32([1.0]), poison("float32", 1))
    compared([1.0, 2.0], kept, kept, pitch=True)
    assert "none of the outputs" in refused([1.0, 2.0], kept, [1.0, 2.0], pitch=True)


@pytest.mark.parametrize("candidate", [np.nan, np.inf, -np.inf, 5.0])
def test_where_the_baseline_overflows_any_overflow_is_right_and_so_is_the_right_value(candidate: float) -> None:
    compared([5.0], [np.inf], [candidate])


@pytest.mark.parametrize(("baseline", "candidate"), [(np.inf, 6.0), (5.0, np.nan), (5.0, np.inf)])
def test_a_wrong_number_and_an_overflow_of_the_candidates_own_are_wrong(baseline: float, candidate: float) -> None:
    assert "expected np.float64(5.0)" in refused([5.0], [baseline], [candidate])


def test_a_baseline_that_passes_over_nan_may_be_followed_or_mended() -> None:
    compared([np.nan], [7.0], [7.0])
    compared([np.nan], [7.0], [np.nan])
    assert "out[0]" in refused([np.nan], [7.0], [8.0])
    assert "out[0]" in refused([np.inf], [np.inf], [-np.inf])


def test_a_checked_baselines_bits_need_no_reference() -> None:
    """The check after every timed call is cheap, and passes no answer of another call."""

    def reference(call: Call) -> Mapping[str, Expected]:
        raise AssertionError("computed")

    harness = Harness("copy", (1,), 1, copying().call, reference, lambda size: (0.0, 1.0))
    comparison = Comparison(harness, 1, "normal", bit_exact=False, baseline_checked=True)
    comparison.add(of([1.0]), executed(float32([1.0])), executed(float32([1.0])))
    with pytest.raises(UsageError, match="computed"):
        comparison.add(of([1.0]), executed(float32([1.0])), executed(float32([2.0])))


def test_accuracy_is_not_judged_on_few_elements_before_more_are_drawn() -> None:
    comparison = Comparison(copying(1.0), 1, "normal", bit_exact=False)
    comparison.add(of([1.0]), executed(float32([1.0])), executed(float32([1.01])))
    assert comparison.undecided()
    wide = np.ones(300, dtype=np.float32)
    comparison.add(of(wide), executed(wide + np.float32(0.1)), executed(wide - np.float32(0.1)))
    assert not comparison.undecided()
    comparison.conclude()
    comparison.add(of(wide), executed(wide), executed(wide + np.float32(0.9)))
    with pytest.raises(Refused, match="less accurate than the baseline's"):
        comparison.conclude()


def test_many_small_errors_are_as_bad_as_one_large_one() -> None:
    """The worst is the same; in root mean square the candidate is ten times as far off."""
    x = np.ones(1000, dtype=np.float32)
    baseline, candidate = x.copy(), x + np.float32(0.5)
    baseline[::100] += np.float32(0.5)
    comparison = Comparison(copying(1.0), 1000, "normal", bit_exact=False)
    comparison.add(of(x), executed(baseline), executed(candidate))
    with pytest.raises(Refused, match=r"out is less accurate than the baseline's: 0.5 of the bound .* against 0.05"):
        comparison.conclude()


def test_terms_as_large_as_the_greatest_number_may_overflow_in_another_order() -> None:
    beyond = 2.0**-24 * float(np.finfo(np.float32).max)
    compared([1e38], [1e38], [np.inf], bound=beyond)
    compared([1e38], [1e38], [np.nan], bound=beyond)
    with pytest.raises(Refused, match="is the worst"):
        compared([1e38], [1e38], [np.inf], bound=beyond / 2)


def test_beside_an_infinity_what_overflows_may_make_nan_and_nothing_else() -> None:
    for distribution, is_right in (("mixed", True), ("overflow", True), ("masked", True), ("inf", False)):
        comparison = Comparison(copying(), 3, distribution, bit_exact=False)  # type: ignore[arg-type]
        if is_right:
            comparison.add(of([np.inf]), executed(float32([np.inf])), executed(float32([np.nan])))
        wrong = [(np.nan, np.inf), (np.inf, 1.0), (np.inf, -np.inf), *([] if is_right else [(np.inf, np.nan)])]
        for value, answer in wrong:
            with pytest.raises(Refused, match="is the worst"):
                comparison.add(of([value]), executed(float32([value])), executed(float32([answer])))


def test_of_contents_that_repeat_many_calls_say_how_accurate_a_candidate_is() -> None:
    """A thousand elements with one and the same error say no more than one of them."""
    x = np.ones(1000, np.float32)
    for distribution, decides in (("normal", True), ("constant", False)):
        comparison = Comparison(copying(1e-3), 3, distribution, bit_exact=False)  # type: ignore[arg-type]
        comparison.add(of(x), executed(x + np.float32(1e-5)), executed(x + np.float32(1e-4)))
        assert comparison.undecided() is not decides


def test_padding_that_is_left_alone_is_the_same_whatever_it_held() -> None:
    """Old values in one call and poison in the other; and no promise of bits is broken there."""
    old = float32([7.0, 8.0, 9.0])
    kept = Execution({"out": float32([1.0, 2.0, 9.0])}, None, before={"out": old})
    (out,) = (one for one in of([1.0, 2.0, 3.0]).arguments if one.name == "out")
    assert isinstance(out, Buffer) and left_as_it_was(kept, out).tolist() == [False, False, True]
    poisoned = float32([1.0, 2.0, 0.0])
    poisoned[2:] = poison("float32", 1)
    assert left_as_it_was(executed(poisoned), out).tolist() == [False, False, True]
    comparison = Comparison(copying(pitch=True), 3, "normal", bit_exact=True)
    comparison.add(of([1.0, 2.0, 3.0]), executed(poisoned), kept)
    with pytest.raises(Refused, match="none of the outputs"):
        comparison.add(of([1.0, 2.0, 3.0]), executed(poisoned), replace(kept, before={"out": -old}))


def outputs(*values: Any, dtype: str = "float32") -> dict[str, Any]:
    return {"y": np.array(values, dtype)}


@pytest.mark.parametrize(
    ("dtype", "off"), [("float32", 1e-4), ("float16", 1e-2), ("float64", 1e-9), ("float32", 0.0), ("int64", 0.0)]
)
def test_rounding_is_no_difference(dtype: str, off: float) -> None:
    facts = compare_outputs([outputs(100, 0, -3, dtype=dtype)], [outputs(100, 100 * off, -3, dtype=dtype)])
    assert facts["largest_error_ratio"] == pytest.approx(off, rel=0.01) and facts["runs"] == 1


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (outputs(1, 2), outputs(1, 2.01)),
        (outputs(1, 2, dtype="float64"), outputs(1, 2 + 1e-6, dtype="float64")),
        (outputs(0, 0), outputs(0, 1e-30)),
        (outputs(1, np.nan), outputs(1, 2)),
        (outputs(1, 2), outputs(1, np.inf)),
        (outputs(np.inf), outputs(-np.inf)),
        (outputs(1, 2, dtype="int64"), outputs(1, 3, dtype="int64")),
        (outputs(1, 2), outputs(1, 2, dtype="float64")),
        (outputs(1, 2), outputs(1)),
        (outputs(1), {"z": np.ones(1, np.float32)}),
    ],
)
def test_whatever_else_differs_is_refused(before: Any, after: Any) -> None:
    with pytest.raises(Refused, match=r"^outputs: "):
        compare_outputs([outputs(0), before], [outputs(0), after])


def test_one_nan_or_infinity_is_as_good_as_the_same() -> None:
    assert compare_outputs([outputs(np.nan, np.inf, 1)], [outputs(np.nan, np.inf, 1)])["largest_error_ratio"] == 0


def test_a_batch_is_compared_with_its_items_one_after_the_other() -> None:
    runs = [{"y": np.full((1, 2), number, np.float32)} for number in range(4)]
    assert [one["y"][:, 0].tolist() for one in joined(runs, 2)] == [[0, 1], [2, 3]]
    assert joined(runs, 1) == runs
    with pytest.raises(Refused, match="no dimension"):
        joined([{"y": np.float32(1) * np.ones(())}] * 2, 2)


def test_outputs_that_never_change_are_reported() -> None:
    assert depend_on_inputs([outputs(1), outputs(2)])
    assert not depend_on_inputs([outputs(1, np.nan), outputs(1, np.nan)])
