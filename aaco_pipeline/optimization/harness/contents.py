"""What buffers are filled with: numbers of many kinds, since a shortcut is often right for one kind alone.

Each kind is drawn from a generator whose seed a candidate cannot know. Scales depend on the type, so that `huge`
squared does not overflow and `tiny` squared is no zero.
"""

from typing import Any, Final, Literal, get_args

import numpy as np
from numpy.typing import DTypeLike, NDArray

Distribution = Literal[
    "normal",
    "uniform",
    "tiny",
    "denormal",
    "huge",
    "constant",
    "zeros",
    "sparse",
    "negative_zero",
    "nan",
    "inf",
]
DISTRIBUTIONS: Final[tuple[Distribution, ...]] = get_args(Distribution)
#: One in so many elements is not zero in `sparse`, or planted in `nan` and `inf`.
_ONE_IN: Final = 37


def draw(
    distribution: Distribution, rng: np.random.Generator, elements: int, dtype: DTypeLike = "float32"
) -> NDArray[Any]:
    """`elements` floating-point numbers of type `dtype`.

    normal: mean 0, deviation 1. uniform: 0 to 1. tiny and huge: normal, times 2 to a third of the least and of the
    greatest exponent. denormal: multiples of the smallest number. constant: one number drawn for all. zeros.
    sparse: normal, most of them 0. negative_zero: -0 and 0 by halves. nan and inf: normal, with some planted, one at
    least; Inf of both signs.
    """
    limits = np.finfo(np.dtype(dtype))
    values: NDArray[np.floating[Any]] = rng.standard_normal(elements)
    planted = rng.random(elements) < 1 / _ONE_IN
    if elements:
        planted[rng.integers(elements)] = True
    match distribution:
        case "normal":
            pass
        case "uniform":
            values = rng.random(elements)
        case "tiny":
            values = np.ldexp(values, int(limits.minexp) // 3)
        case "denormal":
            values = rng.integers(-1000, 1001, elements) * float(limits.smallest_subnormal)
        case "huge":
            values = np.ldexp(values, int(limits.maxexp) // 3)
        case "constant":
            values = np.full(elements, rng.standard_normal())
        case "zeros":
            values = np.zeros(elements)
        case "sparse":
            values[~planted] = 0.0
        case "negative_zero":
            values = np.where(rng.random(elements) < 0.5, -0.0, 0.0)
        case "nan":
            values[planted] = np.nan
        case "inf":
            values[planted] = np.where(rng.random(int(planted.sum())) < 0.5, -np.inf, np.inf)
    return values.astype(dtype)


def integers(
    distribution: Distribution,
    rng: np.random.Generator,
    elements: int,
    *,
    low: int,
    high: int,
    dtype: DTypeLike = "int32",
) -> NDArray[Any]:
    """`elements` integers from `low` up to, not including, `high`, whatever the distribution.

    constant, zeros and negative_zero give one number for all (`low` for the latter two), normal a heap in the middle,
    huge and tiny the upper and the lower end, sparse `low` mostly; the others are even.
    """
    if high <= low:
        raise ValueError(f"no integer lies from {low} up to, not including, {high}")
    span = high - low
    match distribution:
        case "normal":
            offsets = np.rint(span / 2 + rng.standard_normal(elements) * span / 8)
        case "constant":
            offsets = np.full(elements, float(rng.integers(span)))
        case "zeros" | "negative_zero":
            offsets = np.zeros(elements)
        case "sparse":
            offsets = np.where(rng.random(elements) < 1 / _ONE_IN, rng.integers(0, span, elements), 0)
        case "huge":
            offsets = span - 1.0 - rng.integers(0, max(span // 8, 1), elements)
        case "tiny":
            offsets = rng.integers(0, max(span // 8, 1), elements).astype(np.float64)
        case _:
            offsets = rng.integers(0, span, elements).astype(np.float64)
    return (low + np.clip(offsets, 0, span - 1).astype(np.int64)).astype(dtype)


def indices(
    distribution: Distribution, rng: np.random.Generator, elements: int, below: int, dtype: DTypeLike = "int32"
) -> NDArray[Any]:
    """`elements` indices from 0 up to, not including, `below`: always inside what they point into."""
    return integers(distribution, rng, elements, low=0, high=below, dtype=dtype)
