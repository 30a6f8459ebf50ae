"""The calls that a candidate has to pass: listed and drawn sizes, in random order, under random circumstances.

The baseline is called normally; for the candidate, the order of work-items, the positions of buffers and their old
contents are drawn from the check's seed. `comparison` judges the outputs.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

import numpy as np

from aaco_pipeline.errors import UsageError
from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.optimization.correctness.comparison import Comparison, differs, left_as_it_was, outputs_of
from aaco_pipeline.optimization.harness.contents import Distribution
from aaco_pipeline.optimization.harness.declaration import Harness, Size
from aaco_pipeline.optimization.harness.validation import checked_call, checked_floor, checked_takes, with_block
from aaco_pipeline.optimization.targets import (
    ASCENDING,
    DESCENDING,
    MOST_ORDER,
    Buffer,
    Call,
    Circumstances,
    Content,
    Execution,
    Worker,
)

#: Largest old integer in an output: about as many values as a count or an index often has.
_MOST_OLD_INTEGER = 1000


def draw_pair(
    call: Call, earlier: Mapping[str, Content] | None, rng: np.random.Generator
) -> tuple[Circumstances, Circumstances]:
    """Draw the circumstances of two calls with the same inputs.

    `earlier` are the outputs of a call with other inputs, if there was one: old output values are then those, all
    finite, or random numbers.
    """
    some = int(rng.integers(DESCENDING + 1, MOST_ORDER, endpoint=True))
    orders = rng.permutation([ASCENDING, DESCENDING, some])
    aligned, keeps, poisoned = (bool(one) for one in rng.random(3) < 0.5)
    outs = [one for one in call.arguments if isinstance(one, Buffer) and one.role == "out"]
    old = {one.name: _old(one, (earlier or {}).get(one.name), rng) for one in outs}
    first = Circumstances(int(orders[0]), aligned, keeps, {} if poisoned else old)
    return first, Circumstances(int(orders[1]), not aligned, not keeps, old if poisoned else {})


def described(circumstances: Circumstances) -> str:
    """Describe the circumstances of a call; empty if they were the usual ones."""
    order = {ASCENDING: None, DESCENDING: "work-items in descending order"}
    words = (
        order.get(circumstances.order, "work-items in a random order"),
        "buffers at multiples of 256 bytes" if circumstances.is_aligned else None,
        "local data share as it was left" if circumstances.keeps_lds else None,
        "outputs with old values" if circumstances.before else None,
    )
    return ", ".join(filter(None, words))


def _old(buffer: Buffer, earlier: Content | None, rng: np.random.Generator) -> Content:
    kind = np.dtype(buffer.dtype)
    if earlier is not None:
        if kind.kind != "f":
            return earlier
        return np.nan_to_num(earlier, nan=1.0, posinf=2.0, neginf=-2.0)
    if kind.kind == "f":
        return rng.standard_normal(buffer.elements).astype(kind)
    most = 1 if kind.kind == "b" else min(_MOST_OLD_INTEGER, int(np.iinfo(kind).max))
    return rng.integers(0, most, buffer.elements, endpoint=True).astype(kind)


#: Sizes in every check: neighbours of declared ones, half of them of the timed one, and sizes anywhere.
_NEIGHBOURS, _ANYWHERE = 4, 8
#: Sizes in a deep check; another `_DEEP_ANYWHERE` may be as large in one dimension as any declared size.
_DEEP_NEIGHBOURS, _DEEP_ANYWHERE = 8, 12
#: Distances of a neighbour's numbers from the declared ones: the remainders of blocks of four, and one more.
_NEAR: Final = 4
#: A third of the numbers drawn anywhere are multiples of one of these, because shortcuts for full tiles test for them.
_WHOLE: Final = (4, 8, 16, 32, 64)
#: Distributions used for a drawn size: normal, mixed, and two of the others.
_DISTRIBUTIONS: Final = 4
#: Rounds of `mixed` if every distribution is tried: it covers more contents than any other.
_MIXED_ROUNDS: Final = 3
#: Tries for one new size before giving up.
_MOST_TRIES: Final = 200
#: Time of one call's round (contents, three runs, the reference) on an ordinary core, within a factor of three of the
#: samples' rounds between a thousand and 16 million elements on the cpu target.
_NS_A_BYTE, _NS_AN_OPERATION = 20.0, 5.0
#: Estimated seconds: for one round at a drawn size of a deep check, for the largest declared size with as many
#: distributions as fit, and for the largest size that can be tried with all of them.
_MOST_EACH, _MOST_LARGEST, _MOST_EVERY = 0.1, 3.0, 5.0


@dataclass(frozen=True)
class Trial:
    """A size and the distributions with which it is tried."""

    size: Size
    distributions: tuple[Distribution, ...]


@dataclass(frozen=True)
class Drawn:
    """Drawn sizes, none of them listed; `note` explains why there are too few of them to be conclusive."""

    trials: tuple[Trial, ...]
    note: str | None


def every_distribution(harness: Harness) -> tuple[Distribution, ...]:
    """Return the distributions of a harness, `mixed` several times."""
    more = [one for one in harness.distributions if one == "mixed"] * (_MIXED_ROUNDS - 1)
    return (*harness.distributions, *more)


def draw_sizes(harness: Harness, timed_size: Size, rng: np.random.Generator) -> Drawn:
    """Draw a dozen sizes for every check, none with more work than `timed_size`."""
    drawing = _Drawing(harness, timed_size, rng)
    limit = drawing.seconds(timed_size)
    sizes = [
        *drawing.neighbours(_NEIGHBOURS, limit),
        *drawing.many(_ANYWHERE, lambda: drawing.anywhere(drawing.near, limit), limit),
    ]
    return drawing.drawn([Trial(size, drawing.some()) for size in sizes], _NEIGHBOURS + _ANYWHERE)


def draw_deeply(harness: Harness, timed_size: Size, rng: np.random.Generator) -> Drawn:
    """Draw three dozen sizes for a candidate about to be accepted, and large ones up to the largest declared size.

    The largest is tried with as many distributions as its time limit allows, or is reduced until two fit; if necessary,
    a smaller size is tried with every distribution.
    """
    drawing = _Drawing(harness, timed_size, rng)
    limit = min(drawing.seconds(timed_size), _MOST_EACH)
    sizes = [
        *drawing.neighbours(_DEEP_NEIGHBOURS, limit),
        *drawing.many(_DEEP_ANYWHERE, lambda: drawing.anywhere(drawing.near, limit), limit),
        *drawing.many(_DEEP_ANYWHERE, lambda: drawing.anywhere(drawing.wide, _MOST_EACH), _MOST_EACH),
    ]
    trials = [Trial(size, drawing.some()) for size in sizes]
    largest = max(harness.declared_sizes, key=drawing.seconds)
    every = every_distribution(harness)
    each = _MOST_EVERY / len(every)
    for size in drawing.many(1, lambda: drawing.affordable(largest, each), each):
        trials.append(Trial(size, every))
    # If all values are equal, counts and sums reach their maximum.
    each = _MOST_LARGEST / 2
    for size in drawing.many(1, lambda: drawing.affordable(largest, each), each):
        affordable = max(int(_MOST_LARGEST / drawing.seconds(size)), 2)
        trials.append(Trial(size, drawing.some("constant", count=affordable)))
    return drawing.drawn(trials, _DEEP_NEIGHBOURS + 2 * _DEEP_ANYWHERE)


def at_a_drawn_size(error: UsageError) -> UsageError:
    """Add advice to an error if the kernel was not written for the drawn size."""
    return UsageError(
        f"{error}; this size was drawn between those that the harness declares: where the kernel is not made for it, "
        "say which it takes by takes=lambda size: … in HARNESS"
    )


@dataclass(frozen=True)
class _Range:
    """The range of one number of a size; every declared one is a multiple of `step`."""

    low: int
    high: int
    step: int


_Box = tuple[_Range, ...]
_Item = TypeVar("_Item")


class _Drawing:
    """Draws sizes without repetition. `near` holds the ranges of listed and timed sizes, `wide` those of all sizes."""

    def __init__(self, harness: Harness, timed_size: Size, rng: np.random.Generator) -> None:
        self._harness, self._rng, self._timed = harness, rng, timed_size
        self._listed = tuple(dict.fromkeys((*harness.sizes, timed_size)))
        self._seen = set(self._listed)
        self._refused = 0
        self.near = _boxes(self._listed, harness.declared_sizes)
        self.wide = _boxes(harness.declared_sizes, harness.declared_sizes)

    def seconds(self, size: Size) -> float:
        """Estimate the time of one round at a size; infinite if the kernel does not accept it."""
        try:
            operations, moved = checked_floor(self._harness, size)
        except UsageError as error:
            if not checked_takes(self._harness, size):
                return math.inf
            raise at_a_drawn_size(error) from error
        return (_NS_AN_OPERATION * operations + _NS_A_BYTE * moved) / 1e9

    def neighbours(self, count: int, limit: float) -> Iterator[Size]:
        """Draw up to `count` sizes near the timed one, then near any listed one."""
        yield from self.many(count // 2, lambda: self._neighbour(self._timed), limit)
        yield from self.many(count - count // 2, lambda: self._neighbour(self._one_of(self._listed)), limit)

    def anywhere(self, boxes: dict[int | None, _Box], limit: float) -> Size:
        """Draw a size; each number is uniform or log-uniform."""
        like = self._one_of(self._listed)
        return self.affordable(_as(like, [self._within(one) for one in boxes[_shape(like)]]), limit)

    def affordable(self, size: Size, limit: float) -> Size:
        """Reduce a size's numbers by up to a half, one after the other in random order, until it meets the limit."""
        numbers, box = list(_numbers(size)), self.wide[_shape(size)]
        while self.seconds(_as(size, numbers)) > limit:
            longer = [place for place, one in enumerate(box) if numbers[place] > one.low]
            if not longer:
                break
            place = self._one_of(longer)
            numbers[place] = max(int(numbers[place] * self._rng.uniform(0.5, 1)), box[place].low)
        return _as(size, numbers)

    def many(self, count: int, draw: Callable[[], Size], limit: float) -> Iterator[Size]:
        """Draw up to `count` new sizes that the kernel accepts and whose estimated round takes at most `limit`."""
        for _ in range(count):
            for _ in range(_MOST_TRIES):
                size = self._taken(draw())
                if size not in self._seen and self.seconds(size) <= limit and checked_takes(self._harness, size):
                    self._seen.add(size)
                    yield size
                    break
            else:
                return

    def some(self, second: Distribution = "mixed", *, count: int = _DISTRIBUTIONS) -> tuple[Distribution, ...]:
        """Draw `count` distributions: normal, the second if the harness has it, and any of the others."""
        allowed = self._harness.distributions
        first = [one for one in ("normal", second) if one in allowed]
        others = [one for one in allowed if one not in first]
        return (*first, *(others[place] for place in self._rng.permutation(len(others))[: count - len(first)]))

    def drawn(self, trials: Sequence[Trial], wanted: int) -> Drawn:
        note = None
        if all(one.low == one.high for box in self.wide.values() for one in box):
            note = "the harness declares one size alone, so no other is tried: list more"
        elif self._refused and len(trials) < wanted / 2:
            note = (
                f"takes() left {len(trials)} sizes to be drawn where {wanted} were wanted: what is wrong at others may "
                "pass, so list more of those that you use"
            )
        return Drawn(tuple(trials), note)

    def _neighbour(self, of: Size) -> Size:
        box = self.near[_shape(of)]
        around = [
            (max(one.low, at - _NEAR), min(one.high, at + _NEAR)) for one, at in zip(box, _numbers(of), strict=True)
        ]
        return _as(of, [int(self._rng.integers(low, high + 1)) for low, high in around])

    def _within(self, one: _Range) -> int:
        if self._rng.random() < 0.5:
            number = int(self._rng.integers(one.low, one.high + 1))
        else:
            number = min(int(math.exp(self._rng.uniform(math.log(one.low), math.log(one.high + 1)))), one.high)
        whole = self._one_of(_WHOLE)
        is_whole = self._rng.random() < 1 / 3
        return number // whole * whole if is_whole and number // whole * whole >= one.low else number

    def _taken(self, size: Size) -> Size:
        """Return the size or, if the kernel rejects it, one with multiples of the declared sizes' factors."""
        if checked_takes(self._harness, size):
            return size
        self._refused += 1
        box = self.wide[_shape(size)]
        shared = zip(_numbers(size), (one.step for one in box), strict=True)
        return _as(size, [max(number // step, 1) * step for number, step in shared])

    def _one_of(self, several: Sequence[_Item]) -> _Item:
        return several[int(self._rng.integers(len(several)))]


def _boxes(sizes: Sequence[Size], declared: Sequence[Size]) -> dict[int | None, _Box]:
    """Find the range of each number by shape: from 1, or from its only declared value, up to the largest."""
    boxes = {}
    for shape in {_shape(size) for size in declared}:
        columns = zip(*(_numbers(size) for size in declared if _shape(size) == shape), strict=True)
        highest = zip(*(_numbers(size) for size in sizes if _shape(size) == shape), strict=True)
        boxes[shape] = tuple(
            _Range(column[0] if len(set(column)) == 1 else 1, max(high), math.gcd(*column))
            for column, high in zip(columns, highest, strict=False)
        )
    return boxes


def _shape(size: Size) -> int | None:
    return len(size) if isinstance(size, tuple) else None


def _numbers(size: Size) -> tuple[int, ...]:
    return size if isinstance(size, tuple) else (size,)


def _as(like: Size, numbers: Sequence[int]) -> Size:
    return tuple(numbers) if isinstance(like, tuple) else numbers[0]


#: Draws of one size and distribution while errors over too few elements look worse than the baseline's.
_MOST_DRAWS = 64


@dataclass(frozen=True)
class Checked:
    """The result of a passed check: calls and compared elements, and the largest errors as fractions of their bounds.

    A candidate's errors count only beyond `comparison.FLOOR_ULPS`, the baseline's in full. `drawn` are the sizes that
    the harness does not list; `note` explains why there were too few of them.
    """

    seed: int
    calls: int
    elements: int
    largest_error: float
    baseline_largest_error: float
    drawn: tuple[Size, ...]
    note: str | None


def check(
    harness: Harness,
    baseline: Worker,
    candidate: Worker,
    *,
    seed: int,
    bit_exact: bool,
    timed_size: Size,
    block: tuple[int, int, int] | None = None,
    is_deep: bool = False,
) -> Checked:
    """Check every size of the harness and `timed_size` with every distribution, drawn sizes with some of them.

    Each call is made twice, under different circumstances. A deep check uses only drawn sizes, three times as many,
    including large ones (`draw_deeply`).

    Args:
        seed: from `random.SystemRandom` after the candidate was built; recorded, as it fixes sizes, contents and order.
        block: the candidate's own workgroup, where it has one.

    Raises:
        Refused: `outputs`, `determinism`, `result`, or what the worker says, when the candidate is wrong.
        UsageError: the unchanged kernel or the harness is wrong.
    """
    rng = np.random.default_rng(seed)
    drawn = (draw_deeply if is_deep else draw_sizes)(harness, timed_size, rng)
    listed = () if is_deep else dict.fromkeys((*harness.sizes, timed_size))
    trials = [*(Trial(size, every_distribution(harness)) for size in listed), *drawn.trials]
    run = _Rounds(harness, baseline, candidate, rng, bit_exact, block)
    # All calls of one size together: a target has other buffers for another size, often in another process.
    for position in rng.permutation(len(trials)):
        trial = trials[position]
        try:
            for place in rng.permutation(len(trial.distributions)):
                run.round(trial.size, trial.distributions[place])
        except UsageError as error:
            raise at_a_drawn_size(error) if trial in drawn.trials else error from error
        run.the_first_again()
    sizes = tuple(trial.size for trial in drawn.trials)
    return Checked(seed, run.calls, run.elements, run.largest[1], run.largest[0], sizes, drawn.note)


@dataclass
class _Rounds:
    harness: Harness
    baseline: Worker
    candidate: Worker
    rng: np.random.Generator
    bit_exact: bool
    block: tuple[int, int, int] | None
    first: tuple[Call, Execution, str] | None = None
    earlier: Mapping[str, Content] | None = None
    calls: int = 0
    elements: int = 0
    largest: list[float] = field(default_factory=lambda: [0.0, 0.0])

    def round(self, size: Size, distribution: Distribution) -> None:
        comparison = Comparison(self.harness, size, distribution, bit_exact=self.bit_exact)
        for _ in range(_MOST_DRAWS):
            self._draw(size, distribution, comparison)
            if not comparison.undecided():
                break
        comparison.conclude()
        for level in comparison.levels.values():
            self.elements += level.elements
            self.largest = [max(pair) for pair in zip(self.largest, level.largest, strict=True)]

    def _draw(self, size: Size, distribution: Distribution, comparison: Comparison) -> None:
        call = checked_call(self.harness, size, distribution, self.rng)
        first, second = draw_pair(call, self.earlier, self.rng)
        changed = call if self.block is None else with_block(self.harness, call, size, self.block)
        changed = replace(changed, circumstances=first)
        where = f"size {size}, {distribution}"
        try:
            before = self.baseline.run(call)
        except Refused as refused:
            what = f"the unchanged kernel fails ({where}): {refused}"
            raise UsageError(f"{self.harness.path or 'harness'}: {what}") from refused
        try:
            after = self.candidate.run(changed)
            comparison.add(call, before, after)
        except Refused as refused:
            raise _under(refused, changed) from refused
        self.calls += 1
        self._again(replace(changed, circumstances=second), after, where)
        if self.first is None:
            self.first = changed, after, where
        self.earlier = after.outputs

    def the_first_again(self) -> None:
        """Repeat a size's first call after all others: results must not depend on the number of calls."""
        if self.first is not None:
            call, answered, where = self.first
            _, other = draw_pair(call, None, self.rng)
            self._again(replace(call, circumstances=other), answered, where)
        self.first = self.earlier = None

    def _again(self, call: Call, answered: Execution, where: str) -> None:
        if not self.harness.deterministic:
            return
        self.calls += 1
        try:
            again = self.candidate.run(call)
        except Refused as refused:
            raise _under(refused, call) from refused
        for one in outputs_of(call):
            values = answered.outputs[one.name], again.outputs[one.name]
            different = differs(*values) & ~(left_as_it_was(answered, one) & left_as_it_was(again, one))
            if different.any():
                at = int(np.argmax(different))
                raise Refused(
                    "determinism",
                    f"{one.name}[{at}] is {values[0][at]!r} in one call and {values[1][at]!r} in another with the same "
                    f"inputs ({where}; {described(call.circumstances) or 'as in use'} there)",
                )


def _under(refused: Refused, call: Call) -> Refused:
    """Add the circumstances of the call to a refusal, if they were unusual."""
    words = described(call.circumstances)
    return Refused(refused.guard, f"{refused.reason}; called with {words}") if words else refused
