"""A fault of a harness is reported in one line that names its file and says what to do."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aaco_pipeline.errors import UsageError
from aaco_pipeline.optimization.harness import Expected, Harness, Size, buffer, exact, output, scalar
from aaco_pipeline.optimization.harness.validation import MOST_BYTES, checked_call, validate, with_block
from aaco_pipeline.optimization.targets import Buffer, Call, Launch, Parameter
from tests.optimization.harness.row_dot import HARNESS, call, reference

FILE = Path("kernels/row_dot_harness.py")
PARAMETERS = (
    Parameter("a", "const float*", pointer=True, const=True),
    Parameter("b", "const float*", pointer=True, const=True),
    Parameter("out", "float*", pointer=True, const=False),
    Parameter("rows", "int", pointer=False, const=False),
    Parameter("n", "int", pointer=False, const=False),
)


def fault(harness: Harness, parameters: tuple[Parameter, ...] | None = None) -> str:
    with pytest.raises(UsageError) as caught:
        validate(replace(harness, path=FILE), parameters)
    said = str(caught.value)
    assert said.startswith(f"{FILE}: ") and "\n" not in said
    return said


def changed(**fields: Any) -> Harness:
    return replace(HARNESS, **fields)


def launched(**fields: Any) -> Harness:
    """The row dot with another launch."""

    def other(size: Size, distribution: Any, rng: np.random.Generator) -> Call:
        made = call(size, distribution, rng)
        return replace(made, launch=replace(made.launch, **fields))

    return changed(call=other, launch=None)


def called(change: Callable[[Call], Call]) -> Harness:
    return changed(call=lambda size, distribution, rng: change(call(size, distribution, rng)))


def expecting(change: Callable[[Expected], Any]) -> Harness:
    return changed(reference=lambda made: {"out": change(reference(made)["out"])})


def without(made: Call, name: str) -> Call:
    return replace(made, arguments=tuple(one for one in made.arguments if one.name != name))


def shared_memory(made: Call) -> Call:
    return replace(made, contents={"a": made.contents["a"], "b": made.contents["a"]})


def always_the_same(size: Size, distribution: Any, rng: np.random.Generator) -> Call:
    return call(size, distribution, np.random.default_rng(0))


def fails(size: Size) -> tuple[float, float]:
    raise ZeroDivisionError("by nothing")


def huge(made: Call) -> Call:
    return replace(made, arguments=(*made.arguments[:2], output("out", MOST_BYTES), *made.arguments[3:]))


def test_a_whole_harness_has_no_fault() -> None:
    validate(HARNESS, PARAMETERS)


@pytest.mark.parametrize(
    ("harness", "said"),
    [
        (changed(kernel="row dot"), "give the name of the __global__ function"),
        (changed(sizes=()), "sizes is empty"),
        (changed(sizes=((0, 3),)), "the size (0, 3) is neither"),
        (changed(timing_size=(1.5, 2)), "the size (1.5, 2) is neither"),
        (changed(distributions=("uniform",)), "take normal and any of"),
        (changed(distributions=("normal", "gaussian")), "distributions gaussian, normal"),
        (changed(deterministic="no"), "deterministic is neither"),
        (changed(floor=lambda size: 3.0), "give (floating-point operations, bytes)"),
        (changed(floor=lambda size: (1.0, 0.0)), "count the outputs at least"),
        (changed(floor=fails), "floor() failed: ZeroDivisionError: by nothing"),
        (changed(call=None), "call is no function"),
        (changed(call=lambda size, distribution, rng: 3), "call() failed: AttributeError"),
        (changed(call=always_the_same), "draw them from rng"),
        (changed(launch=lambda size, block: Launch((1, 1, 1), block)), "use one for both"),
        (changed(launch=3), "launch is no function"),
        (changed(takes=(3, 7)), "takes is no function"),
        (changed(takes=lambda size: "yes"), "takes((1, 1)) gives 'yes'; give True or False"),
        (changed(takes=lambda size: size != (5, 257)), "takes((5, 257)) is False, and the harness lists that size"),
        (changed(takes=lambda size: size != (9, 9), gpu_timing_size=(9, 9)), "takes((9, 9)) is False"),
        (launched(block=(64, 32, 1)), "more than 1024 work-items"),
        (launched(block=(64, 1)), "is not three positive integers"),
        (launched(grid=(0, 1, 1)), "is not three positive integers"),
        (launched(grid=(1, 65536, 1)), "larger than HIP allows"),
        (launched(dynamic_lds_bytes=1 << 20), "bytes of dynamic LDS"),
        (called(huge), "choose a smaller size"),
        (called(shared_memory), "a and b are the same memory"),
        (called(lambda made: without(made, "out")), "no buffer is an output"),
        (called(lambda made: replace(made, contents={})), "contents are given for nothing; they are needed for a, b"),
        (called(lambda made: replace(made, arguments=(*made.arguments, scalar("n", 3)))), "gives n twice"),
        (
            called(lambda made: replace(made, contents={**made.contents, "a": made.contents["a"].astype("f8")})),
            "the contents of a are not 1 values of float32",
        ),
        (
            called(lambda made: replace(made, arguments=(*made.arguments[:2], output("out", 0), *made.arguments[3:]))),
            "out has no element",
        ),
        (changed(reference=lambda made: None), "return {output: (values, bound)}"),
        (changed(reference=lambda made: {}), "reference() gives nothing; the outputs of the call are out"),
        (expecting(lambda one: one[0]), "no pair (values, bound) for out"),
        (expecting(lambda one: (one[0].astype("f4"), one[1])), "compute them in float64"),
        (expecting(lambda one: (one[0], one[1][:0])), "the bound of out are 0; the buffer has 1 elements"),
        (expecting(lambda one: (one[0], one[1] * np.nan)), "a finite value has a finite bound"),
        (expecting(lambda one: (one[0], one[1] * 0 - 2)), "a finite value has a finite bound"),
        (expecting(lambda one: (one[0], one[1] * 0 - 1)), "no element of out is an output"),
    ],
)
def test_each_fault_says_what_to_do(harness: Harness, said: str) -> None:
    assert said in fault(harness)


@pytest.mark.parametrize(
    ("at", "parameter", "said"),
    [
        (0, Parameter("x", "const float*", pointer=True, const=True), "the kernel takes (x, b, out, rows, n)"),
        (1, Parameter("b", "const double*", pointer=True, const=True), "b is float32; the kernel's const double* is"),
        (2, Parameter("out", "const float*", pointer=True, const=True), "out is const in the kernel"),
        (3, Parameter("rows", "int*", pointer=True, const=True), "takes rows as a pointer; give it by buffer()"),
        (4, Parameter("n", "long", pointer=False, const=False), "n is int32; the kernel's long is int64"),
    ],
)
def test_arguments_are_the_kernels_own(at: int, parameter: Parameter, said: str) -> None:
    assert said in fault(HARNESS, (*PARAMETERS[:at], parameter, *PARAMETERS[at + 1 :]))


def test_a_type_that_nobody_knows_is_left_to_the_compiler() -> None:
    validate(HARNESS, (Parameter("a", "const T*", pointer=True, const=True), *PARAMETERS[1:]))


def test_one_output_may_be_read_first() -> None:
    def counting(size: Size, distribution: Any, rng: np.random.Generator) -> Call:
        counts = buffer("counts", rng.integers(0, 9, 4).astype("uint32"), role="inout")
        return Call(Launch((1, 1, 1), (4, 1, 1)), (counts.buffer,), {"counts": counts.values})

    def counted(made: Call) -> Mapping[str, Expected]:
        return {"counts": exact(made.contents["counts"] + 1)}

    harness = Harness("count", (1,), 4, counting, counted, lambda size: (0.0, 16.0))
    validate(harness, (Parameter("counts", "unsigned int *", pointer=True, const=False),))


def test_contents_are_for_reading_alone() -> None:
    made = checked_call(HARNESS, (3, 7), "normal", np.random.default_rng(1))
    with pytest.raises(ValueError, match="read-only"):
        made.contents["a"][0] = 1
    assert [one.elements for one in made.arguments if isinstance(one, Buffer)] == [21, 21, 3]


def test_a_workgroup_changes_where_the_harness_can_launch_it() -> None:
    made = checked_call(HARNESS, (100, 7), "normal", np.random.default_rng(1))
    other = with_block(HARNESS, made, (100, 7), (32, 1, 1))
    assert (made.launch.grid, other.launch.grid) == ((2, 1, 1), (4, 1, 1))
    assert other.contents is made.contents
    with pytest.raises(UsageError, match="its workgroup stays as it is"):
        with_block(changed(launch=None), made, (100, 7), (32, 1, 1))
    with pytest.raises(UsageError, match="more than 1024 work-items"):
        with_block(HARNESS, made, (100, 7), (2048, 1, 1))
