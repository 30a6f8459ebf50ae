"""Buffer contents: numbers of many kinds, because an invalid shortcut is often correct for a single kind.

Each kind is drawn from a generator whose seed a candidate cannot know. Scales depend on the type, so that `huge`
squared does not overflow and `tiny` squared is not zero. Inputs of a single kind hide errors that only a combination
reveals, such as a zero and an infinity: `mixed` gives each input its own kind and scale.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, cast, get_args

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

Floats = NDArray[np.floating[Any]]

Distribution = Literal[
    "normal", "uniform", "tiny", "denormal", "huge", "constant", "zeros", "sparse", "negative_zero", "nan", "inf",
    "ties", "runs", "spread", "scales", "masked", "infinite_mask", "overflow", "mixed",
]  # fmt: skip
DISTRIBUTIONS: Final[tuple[Distribution, ...]] = get_args(Distribution)
#: At most one in this many elements is nonzero in `sparse`, or planted in `nan`, `inf` and `overflow`.
_ONE_IN: Final = 37
#: Families of kinds between which shortcuts fail: ordinary, with zeros, not a number, or of another scale.
_FAMILIES: Final[tuple[tuple[Distribution, ...], ...]] = (
    ("normal", "uniform", "constant", "ties", "runs"),
    ("zeros", "sparse", "negative_zero"),
    ("nan", "inf", "infinite_mask", "overflow"),
    ("tiny", "denormal", "huge", "spread", "scales", "masked"),
)
#: Kinds that are multiplied by a power of two if each input has its own scale: the others have an inherent scale.
_WITHOUT_SCALE: Final = (*_FAMILIES[0], "sparse", "nan", "inf")


class Mixture(str):
    """The distribution `mixed` of one call: every buffer drawn from it gets another kind, of another family.

    `kinds` are those that the harness allows. It is accepted like any `Distribution`, and reads as "mixed".
    """

    _families: list[list[Distribution]]
    _order: list[int]
    _given: int

    def __new__(cls, kinds: Sequence[Distribution], rng: np.random.Generator) -> "Mixture":
        """Draw the order of families once per call; kinds are drawn when buffers request them."""
        self = super().__new__(cls, "mixed")
        allowed = [[kind for kind in family if kind in kinds] for family in _FAMILIES]
        self._families = [family for family in allowed if family]
        self._order = [int(place) for place in rng.permutation(len(self._families))]
        self._given = 0
        return self

    def next(self, rng: np.random.Generator) -> Distribution:
        """Return the kind of the next buffer."""
        family = self._families[self._order[self._given % len(self._families)]]
        self._given += 1
        return family[int(rng.integers(len(family)))]


def mixture(kinds: Sequence[Distribution], rng: np.random.Generator) -> Distribution:
    """Return a `Mixture` as the distribution that a harness's `call` receives."""
    return cast(Distribution, Mixture(kinds, rng))


def draw(
    distribution: Distribution, rng: np.random.Generator, elements: int, dtype: DTypeLike = "float32"
) -> NDArray[Any]:
    """`elements` floating-point numbers of type `dtype`.

    normal: mean 0, deviation 1. uniform: 0 to 1. tiny and huge: normal, times 2 to a third of the least and of the
    greatest exponent. denormal: multiples of the smallest number. constant: one number drawn for all. zeros.
    sparse: normal, most of them 0. negative_zero: -0 and 0 by halves. nan and inf: normal, with some planted, one at
    least; Inf of both signs. ties: two to five of the numbers -2 to 2. runs: sections of one normal value each.
    spread: even over a range that is drawn between 0.23 and 0.98 of the logarithm of the greatest number (20 to 87 in
    float32), where powers of e neither all vanish nor are all alike. scales: normal times any power of two, 1e-4 to 1e4
    in float32. masked: normal, with sections of the least finite number or of 0.29 of it (-1e38 in float32).
    infinite_mask: the same with -Inf, as attention masks have it; in half of the draws all of it.
    overflow: normal times half the greatest number, with NaN and Inf beside. mixed: one of the others, times a power of
    two.
    """
    kind = np.dtype(dtype)
    if distribution == "mixed":
        which = _kind(distribution, rng)
        drawn = draw(which, rng, elements, kind)
        return np.ldexp(drawn, rng.integers(*_powers(kind))) if which in _WITHOUT_SCALE else drawn
    normal = rng.standard_normal(elements)
    # A few among very many, or many: rare values show whether one is lost behind another.
    rare = math.exp(rng.uniform(-math.log(max(elements, _ONE_IN)), -math.log(_ONE_IN)))
    planted = rng.random(elements) < rare
    if elements:
        planted[rng.integers(elements)] = True
    with np.errstate(over="ignore"):
        return _MADE[distribution](_Given(rng, kind, normal, planted)).astype(kind)


@dataclass(frozen=True)
class _Given:
    """Return input of each kind: normal numbers, with other values planted in rare places (at least one)."""

    rng: np.random.Generator
    kind: np.dtype[Any]
    normal: Floats
    planted: NDArray[np.bool_]

    @property
    def limits(self) -> Any:
        return np.finfo(self.kind)

    @property
    def count(self) -> int:
        return self.normal.size

    def with_planted(self, values: ArrayLike) -> Floats:
        return np.where(self.planted, values, self.normal)

    def one_of(self, *values: float) -> Floats:
        return self.rng.choice(values, self.count)


def _runs(given: _Given) -> Floats:
    return np.asarray(given.normal[_sections(given.rng, given.count)])


def _spread(given: _Given) -> Floats:
    return (given.rng.random(given.count) - 0.5) * given.rng.uniform(0.23, 0.98) * math.log(float(given.limits.max))


def _masked(given: _Given) -> Floats:
    low = float(given.limits.min) * (1.0 if given.rng.random() < 0.5 else 0.29387)
    return np.where(_sections(given.rng, given.count) % 2 == 0, low, given.normal)


def _infinite_mask(given: _Given) -> Floats:
    masked = _sections(given.rng, given.count) % 2 == 0
    return np.where(masked | (given.rng.random() < 0.5), -np.inf, given.normal)


def _overflow(given: _Given) -> Floats:
    large = given.normal * (float(given.limits.max) / 2)
    return np.where(given.planted, given.one_of(np.nan, -np.inf, np.inf), large)


_MADE: Final[Mapping[Distribution, Callable[[_Given], Floats]]] = {
    "normal": lambda given: given.normal,
    "uniform": lambda given: given.rng.random(given.count),
    "tiny": lambda given: np.ldexp(given.normal, int(given.limits.minexp) // 3),
    "denormal": lambda given: given.rng.integers(-1000, 1001, given.count) * float(given.limits.smallest_subnormal),
    "huge": lambda given: np.ldexp(given.normal, int(given.limits.maxexp) // 3),
    "constant": lambda given: np.full(given.count, given.rng.standard_normal()),
    "zeros": lambda given: np.zeros(given.count),
    "sparse": lambda given: np.where(given.planted, given.normal, 0.0),
    "negative_zero": lambda given: given.one_of(-0.0, 0.0),
    "nan": lambda given: given.with_planted(np.nan),
    "inf": lambda given: given.with_planted(given.one_of(-np.inf, np.inf)),
    "ties": lambda given: given.one_of(*given.rng.permutation(np.arange(-2.0, 3.0))[: given.rng.integers(2, 6)]),
    "runs": _runs,
    "spread": _spread,
    "scales": lambda given: np.ldexp(given.normal, given.rng.integers(*_powers(given.kind), given.count)),
    "masked": _masked,
    "infinite_mask": _infinite_mask,
    "overflow": _overflow,
}


def _powers(kind: np.dtype[Any]) -> tuple[int, int]:
    """Return the exponent range of drawn scales, upper end excluded: a ninth of the exponents each way."""
    most = int(np.finfo(kind).maxexp) // 9
    return -most, most + 1


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
    huge and tiny the upper and the lower end, sparse `low` mostly, ties five numbers, runs and masked sections of one
    number each; mixed one of the others; what is left is even.
    """
    if distribution == "mixed":
        distribution = _kind(distribution, rng)
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
        case "ties":
            offsets = rng.integers(0, span, 5)[rng.integers(0, 5, elements)].astype(np.float64)
        case "runs" | "masked":
            offsets = rng.integers(0, span, elements).astype(np.float64)[_sections(rng, elements)]
        case _:
            offsets = rng.integers(0, span, elements).astype(np.float64)
    return (low + np.clip(offsets, 0, span - 1).astype(np.int64)).astype(dtype)


def _kind(distribution: Distribution, rng: np.random.Generator) -> Distribution:
    """Choose the kind that `mixed` stands for; outside a harness's call every kind is allowed."""
    mixed = distribution if isinstance(distribution, Mixture) else Mixture(DISTRIBUTIONS, rng)
    return mixed.next(rng)


def _sections(rng: np.random.Generator, elements: int) -> NDArray[np.int64]:
    """Number the section of each element: section lengths from 2 to half of all elements, log-uniform."""
    length = math.exp(rng.uniform(math.log(2), math.log(max(elements / 2, 3))))
    begins = rng.random(elements) < 1 / length
    return np.cumsum(begins, dtype=np.int64) % max(elements, 1)


def indices(
    distribution: Distribution, rng: np.random.Generator, elements: int, below: int, dtype: DTypeLike = "int32"
) -> NDArray[Any]:
    """Return `elements` indices from 0 up to, not including, `below`: always inside the array that they index."""
    return integers(distribution, rng, elements, low=0, high=below, dtype=dtype)
