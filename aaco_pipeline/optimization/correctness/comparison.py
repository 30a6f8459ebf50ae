"""Decide whether two results agree: a candidate's outputs, the float64 reference and the baseline's outputs.

An element passes when

* it was written, or is none of the kernel's (`NOT_AN_OUTPUT`) and was left as it was;
* it is NaN, Inf or -Inf where the reference is. Where the baseline differs from the reference in that (an overflow in
  float32, a maximum that passes over NaN), the baseline's own behaviour is right too: NaN for NaN, Inf for Inf; where
  it overflowed, any other overflow, since the order of a sum decides between Inf and NaN. Where the bound is that of
  terms as large as the greatest number, the order decides whether a sum overflows at all; and where Inf stands among
  such terms (`_OVERFLOWING`), NaN is as right;
* it is within the bound of the reference otherwise.

Beyond single elements a candidate may be at most twice as far off as the baseline, in root mean square and at the
worst, with errors as shares of their bounds: a bound for the worst case has room for a lower precision, the baseline's
own error has not. A candidate's error counts only beyond a few units in the last place of the value, so that a baseline
that happens to be exact refuses nobody.

Bit-exact candidates equal the baseline bit for bit, except that one NaN is as good as another: instruction selection
decides which operand's payload and sign survive. Otherwise -0 equals 0.

Outputs are poisoned before a call, so that an element that was never written is recognized: floating-point numbers are
NaN with a payload that no arithmetic makes, integers a number in no usual range. A target may have a poison of its own,
drawn for each call, and says so in `Execution.poison`.

Two configurations of the runtime compute the same when half of the digits of the outputs' type agree on the same drawn
inputs: rewriting a graph, another number of threads or another kernel may change the order of sums. An element may be
off by at most the square root of the type's machine epsilon (3.5e-4 for float32, 3.1e-2 for float16, 1.5e-8 for
float64) times the largest magnitude of its output. NaN, Inf and -Inf must agree; other types must be equal.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from aaco_pipeline.errors import UsageError
from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.optimization.harness.contents import Distribution
from aaco_pipeline.optimization.harness.declaration import NOT_AN_OUTPUT, Expected, Harness, Size
from aaco_pipeline.optimization.harness.validation import checked_reference
from aaco_pipeline.optimization.targets import Buffer, Call, Content, Execution

#: The bits of one poisoned element, by its size in bytes. The exponent is that of a quiet NaN in float16, 32 and 64.
_FLOATING: Final = {2: 0x7EA5, 4: 0x7FE5A5A5, 8: 0x7FFDA5A5A5A5A5A5}
_OTHER: Final = 0xA5A5A5A5A5A5A5A5


def poison(dtype: str, elements: int) -> NDArray[Any]:
    """Make `elements` values of the numpy type `dtype` that are all poison."""
    kind = np.dtype(dtype)
    return np.full(elements, _bits(kind), dtype=_unsigned(kind)).view(kind)


def untouched(values: NDArray[Any], element: bytes | None = None) -> NDArray[np.bool_]:
    """Mark the elements that are still poison, bit for bit: the bytes `element`, or those that `poison` returns."""
    held = _bits(values.dtype) if element is None else np.frombuffer(element, _unsigned(values.dtype))
    return np.asarray(bits(values) == held)


def bits(values: NDArray[Any]) -> NDArray[Any]:
    """View `values` as unsigned integers of the same bits."""
    return np.ascontiguousarray(values).view(_unsigned(values.dtype))


def _bits(kind: np.dtype[Any]) -> int:
    return _FLOATING[kind.itemsize] if kind.kind == "f" else _OTHER >> (64 - 8 * kind.itemsize)


def _unsigned(kind: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(f"u{kind.itemsize}")


Flags = NDArray[np.bool_]
Floats = NDArray[np.float64]

#: How much less accurate than the baseline a candidate may be.
MOST_TIMES_THE_BASELINE: Final = 2.0
#: Units in the last place of the value that do not count as a candidate's error.
FLOOR_ULPS: Final = 4
#: Elements needed for a meaningful ratio of errors: for two equally good roundings of 256 values, neither has twice the
#: root mean square error of the other (F test, 256 and 256 degrees of freedom: p < 1e-25).
ENOUGH_ELEMENTS: Final = 256
#: Distributions whose finite terms may overflow next to an infinite one: a partial sum of -Inf turns Inf into NaN.
_OVERFLOWING: Final = ("masked", "overflow", "mixed")
#: Distributions in which many elements may have the same error.
_REPEATING: Final = ("constant", "ties", "runs", "masked", "infinite_mask", "mixed")
#: Distributions that exceed the range of float32 but not of float64.
_BEYOND_RANGE: Final = (
    *("tiny", "denormal", "huge", "nan", "inf", "spread", "scales", "masked", "infinite_mask", "overflow", "mixed"),
)


@dataclass
class Level:
    """Errors of an output so far, as fractions of the bound, for the baseline and the candidate."""

    elements: int = 0
    squares: list[float] = field(default_factory=lambda: [0.0, 0.0])
    largest: list[float] = field(default_factory=lambda: [0.0, 0.0])

    def add(self, baseline: Floats, candidate: Floats) -> None:
        self.elements += baseline.size
        for which, shares in enumerate((baseline, candidate)):
            self.squares[which] += float(np.square(shares).sum())
            self.largest[which] = max(self.largest[which], float(shares.max(initial=0.0)))

    @property
    def exceeded(self) -> bool:
        most = MOST_TIMES_THE_BASELINE
        return self.squares[1] > most**2 * self.squares[0] or self.largest[1] > most * self.largest[0]


@dataclass
class Comparison:
    """Compares the outputs of calls of one size and distribution as they are added, and sums up their errors.

    With `baseline_checked`, a call whose outputs equal the baseline's bits needs no reference, which makes the
    comparison cheap enough to follow every timed call.
    """

    harness: Harness
    size: Size
    distribution: Distribution
    _: KW_ONLY
    bit_exact: bool
    baseline_checked: bool = False
    levels: dict[str, Level] = field(default_factory=dict)

    def add(self, call: Call, baseline: Execution, candidate: Execution) -> None:
        """Raise Refused (`result`, `outputs`) with the worst element; UsageError if the baseline itself is wrong."""
        outputs = outputs_of(call)
        _whole(outputs, candidate.outputs)
        same = (same_bits(baseline.outputs[one.name], candidate.outputs[one.name]) for one in outputs)
        if self.baseline_checked and all(same):
            return
        expected = checked_reference(self.harness, call)
        for one in outputs:
            initial, overflows = call.contents.get(one.name), self.distribution in _OVERFLOWING
            self._output(_Output(one, expected[one.name], initial, overflows), baseline, candidate)

    def undecided(self) -> bool:
        """Return whether the candidate looks too inaccurate, but on too few elements to be sure.

        Repeating contents have repeating errors, so many calls are needed for them.
        """
        repeats = self.distribution in _REPEATING
        return any(level.exceeded and (repeats or level.elements < ENOUGH_ELEMENTS) for level in self.levels.values())

    def conclude(self) -> None:
        """Raise Refused (`outputs`) if the candidate was more than twice as far off as the baseline over all calls."""
        for name, level in self.levels.items():
            if level.exceeded:
                off = [float(np.sqrt(squares / level.elements)) for squares in level.squares]
                raise Refused(
                    "outputs",
                    f"{name} is less accurate than the baseline's: {off[1]:.3g} of the bound in root mean square and "
                    f"{level.largest[1]:.3g} at worst, against {off[0]:.3g} and {level.largest[0]:.3g}; at most "
                    f"{MOST_TIMES_THE_BASELINE:g} times as far off is right ({self._where})",
                )

    @property
    def _where(self) -> str:
        return f"size {self.size}, {self.distribution}"

    def _output(self, output: "_Output", baseline: Execution, candidate: Execution) -> None:
        name = output.buffer.name
        before, after = baseline.outputs[name], candidate.outputs[name]
        poison = candidate.poison.get(name)
        filled = replace(output, initial=candidate.before.get(name, output.initial))
        if not self.baseline_checked:
            self._baseline(output, before, baseline.poison.get(name))
        if self.bit_exact:
            other = output.meant & differs(before, after)
            self._first_wrong(output, after, other, f"the baseline's bits, {name} being bit-exact")
        self._first_wrong(output, after, filled.never_written(after, poison), "a result; the element was never written")
        self._first_wrong(output, after, filled.overwritten(after, poison), "what it was: it is none of the outputs")
        self._worst(output, after, output.wrong(after, before))
        counted = output.finite & np.isfinite(before.astype(np.float64)) & np.isfinite(after.astype(np.float64))
        self.levels.setdefault(name, Level()).add(
            output.shares(before, 0)[counted], output.shares(after, FLOOR_ULPS)[counted]
        )

    def _baseline(self, output: "_Output", before: Content, poison: bytes | None) -> None:
        """Compare the unchanged kernel with the reference too, because otherwise a changed one could not be judged."""
        never = output.never_written(before, poison)
        values = before.astype(np.float64)
        off = output.finite & (np.isfinite(values) | (self.distribution not in _BEYOND_RANGE))
        off &= ~(output.errors(before) <= output.bound)
        for wrong, why in ((never, "is never written"), (off, "is wrong")):
            if wrong.any():
                at = int(np.argmax(wrong))
                raise UsageError(
                    f"{self.harness.path or 'harness'}: {output.buffer.name}[{at}] of the unchanged kernel {why}: "
                    f"{output.described(before, at)} ({self._where}); mend the kernel or reference()"
                )

    def _first_wrong(self, output: "_Output", after: Content, wrong: Flags, wanted: str) -> None:
        if wrong.any():
            at = int(np.argmax(wrong))
            where = f"{self._where}; {int(wrong.sum())} of {wrong.size} elements"
            raise Refused("outputs", f"{output.buffer.name}[{at}] is {after[at]!r}, expected {wanted} ({where})")

    def _worst(self, output: "_Output", after: Content, wrong: Flags) -> None:
        if not wrong.any():
            return
        with np.errstate(all="ignore"):
            off = np.where(wrong, np.nan_to_num(output.errors(after) / output.bound, nan=np.inf), -1.0)
        at = int(np.argmax(off))
        where = f"{self._where}; {int(wrong.sum())} of {wrong.size} elements are wrong, this is the worst"
        raise Refused("outputs", f"{output.buffer.name}[{at}] is {output.described(after, at)} ({where})")


@dataclass(frozen=True)
class _Output:
    """One output of one call: the expected values, and its previous content (poison if None)."""

    buffer: Buffer
    expected: Expected
    initial: Content | None
    overflows: bool

    @property
    def values(self) -> Floats:
        return self.expected[0]

    @property
    def bound(self) -> Floats:
        return self.expected[1]

    @property
    def meant(self) -> Flags:
        return np.asarray(self.bound != NOT_AN_OUTPUT)

    @property
    def finite(self) -> Flags:
        """Elements whose error is a number."""
        return np.asarray(self.meant & np.isfinite(self.values))

    def never_written(self, given: Content, poison: bytes | None) -> Flags:
        """Mark elements that were never written. For integers, the poison can be a legitimate result."""
        if self.initial is not None:
            return np.zeros(given.size, dtype=np.bool_)
        right = given.dtype.kind != "f"
        return np.asarray(self.meant & untouched(given, poison) & ~(right & (given.astype(np.float64) == self.values)))

    def overwritten(self, given: Content, poison: bytes | None) -> Flags:
        """Mark elements that are not outputs but changed. If the poison is unknown, any NaN or integer may be it."""
        if self.initial is not None:
            kept = np.asarray(bits(given) == bits(self.initial))
        elif poison is not None:
            kept = untouched(given, poison)
        else:
            kept = np.isnan(given) if given.dtype.kind == "f" else np.ones(given.size, dtype=np.bool_)
        return np.asarray(~self.meant & ~kept)

    def errors(self, given: Content) -> Floats:
        with np.errstate(all="ignore"):
            return np.asarray(np.abs(given.astype(np.float64) - self.values))

    def shares(self, given: Content, floor_ulps: int) -> Floats:
        """Return errors as fractions of their bounds, minus `floor_ulps` of the value; 0 if the bound is 0."""
        errors = self.errors(given)
        with np.errstate(all="ignore"):
            if floor_ulps and given.dtype.kind == "f":
                errors = np.maximum(errors - floor_ulps * np.spacing(np.abs(self.values).astype(given.dtype)), 0.0)
            return np.where(self.bound > 0, errors / self.bound, 0.0)

    def wrong(self, given: Content, baseline: Content) -> Flags:
        values, before = given.astype(np.float64), baseline.astype(np.float64)
        right = _same_kind(values, self.values) & ~self.finite
        right |= self.finite & (self.errors(given) <= self.bound)
        right |= self.overflows & np.isinf(self.values) & np.isnan(values)
        astray = ~_same_kind(before, self.values)
        right |= astray & ~np.isfinite(before) & (_same_kind(values, before) | (self.finite & ~np.isfinite(values)))
        near = np.nan_to_num(np.where(np.isfinite(self.bound), self.bound, 0.0))
        if given.dtype.kind == "f":
            with np.errstate(all="ignore"):
                near = np.maximum(near, FLOOR_ULPS * np.nan_to_num(np.spacing(np.abs(baseline)), posinf=0.0))
                right |= astray & np.isfinite(before) & (np.abs(values - before) <= near)
                # The order of terms as large as the greatest number decides whether a partial sum overflows.
                limits: Any = np.finfo(given.dtype.name)
                right |= self.finite & ~np.isfinite(values) & (self.bound >= float(limits.eps) / 2 * float(limits.max))
        return np.asarray(self.meant & ~right)

    def described(self, given: Content, at: int) -> str:
        return f"{given[at]!r}, expected {self.values[at]!r} within {self.bound[at]:.3g}"


def outputs_of(call: Call) -> tuple[Buffer, ...]:
    """Return the buffers that a call may change."""
    return tuple(one for one in call.arguments if isinstance(one, Buffer) and one.role != "in")


def left_as_it_was(execution: Execution, buffer: Buffer) -> Flags:
    """Mark the elements of an `out` buffer that still hold their previous content; none in other buffers."""
    values = execution.outputs[buffer.name]
    if buffer.role != "out":
        return np.zeros(values.size, dtype=np.bool_)
    if (old := execution.before.get(buffer.name)) is not None:
        return np.asarray(bits(values) == bits(old))
    return untouched(values, execution.poison.get(buffer.name))


def differs(one: NDArray[Any], other: NDArray[Any]) -> Flags:
    """Mark the elements whose bits differ; every NaN counts as the same."""
    different = np.asarray(bits(one) != bits(other))
    if one.dtype.kind == "f":
        different &= ~(np.isnan(one) & np.isnan(other))
    return different


def same_bits(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Return whether two outputs are the same, bit for bit, NaN payloads included."""
    return bool(np.array_equal(bits(one), bits(other)))


def _same_kind(one: Floats, other: Floats) -> Flags:
    """Mark elements that are both NaN, both Inf of one sign, or both finite."""
    same_infinity = np.isinf(one) & (one == other)
    return np.asarray(
        (np.isnan(one) & np.isnan(other)) | same_infinity | (np.isfinite(one) & np.isfinite(other)), dtype=np.bool_
    )


def _whole(outputs: tuple[Buffer, ...], given: Mapping[str, Content]) -> None:
    for one in outputs:
        values = given.get(one.name)
        if values is None or values.dtype != np.dtype(one.dtype) or values.shape != (one.elements,):
            raise Refused("result", f"{one.name} did not come back as {one.elements} values of {one.dtype}")


#: Outputs of one run of a model by name.
Outputs = Mapping[str, NDArray[Any]]
GUARD: Final = "outputs"


def bound_of(dtype: np.dtype[Any]) -> float:
    """Return the largest allowed difference as a fraction of the output's largest magnitude; 0 without rounding."""
    return math.sqrt(float(np.finfo(dtype).eps)) if np.issubdtype(dtype, np.floating) else 0.0


def compare_outputs(baseline: Sequence[Outputs], candidate: Sequence[Outputs]) -> dict[str, Any]:
    """Compare runs; returns facts: `runs`, `largest_error_ratio` over all outputs, `bound_ratio`, the widest bound.

    Raises Refused with guard `outputs` if an output is missing, has another type or shape, or is off by more than its
    bound. Both contain the outputs of the same runs in the same order.
    """
    largest, widest = 0.0, 0.0
    for run, (before, after) in enumerate(zip(baseline, candidate, strict=True)):
        if before.keys() != after.keys():
            raise Refused(GUARD, f"it gives {', '.join(after)} instead of {', '.join(before)}")
        for name, expected in before.items():
            bound, error = bound_of(expected.dtype), _error(name, expected, after[name])
            if error > bound:
                off = f"is off by {error:.2g} of its largest magnitude in run {run}; {bound:.2g} may be"
                raise Refused(GUARD, f"output {name!r} {off}")
            largest, widest = max(largest, error), max(widest, bound)
    return {"runs": len(baseline), "largest_error_ratio": largest, "bound_ratio": widest}


def joined(runs: Sequence[Outputs], times: int) -> list[Outputs]:
    """Join outputs of successive runs along their first dimension, like the outputs of a batch `times` as large.

    Raises Refused with guard `outputs` if an output has no such dimension.
    """
    groups = [runs[first : first + times] for first in range(0, len(runs), times)]
    if times > 1 and any(not value.ndim for one in runs for value in one.values()):
        raise Refused(GUARD, "an output has no dimension that a batch could be seen by")
    return [
        {name: np.concatenate([one[name] for one in group]) if times > 1 else group[0][name] for name in group[0]}
        for group in groups
    ]


def depend_on_inputs(runs: Sequence[Outputs]) -> bool:
    """Return whether any output differs between runs on different inputs; if not, equal outputs mean little."""
    first = runs[0]
    return any(
        not np.array_equal(first[name], one[name], equal_nan=_is_float(first[name])) for one in runs for name in first
    )


def _error(name: str, expected: NDArray[Any], found: NDArray[Any]) -> float:
    """Return the largest difference as a fraction of the largest finite magnitude; infinite if undefined."""
    if (expected.dtype, expected.shape) != (found.dtype, found.shape):
        kinds = (f"{one.dtype} {list(one.shape)}" for one in (found, expected))
        raise Refused(GUARD, f"output {name!r} is {' instead of '.join(kinds)}")
    if not _is_float(expected):
        return 0.0 if np.array_equal(expected, found) else math.inf
    before, after = expected.astype(np.float64), found.astype(np.float64)
    finite = np.isfinite(before)
    if not np.array_equal(np.where(finite, 0, before), np.where(np.isfinite(after), 0, after), equal_nan=True):
        return math.inf
    off = float(np.abs(before[finite] - after[finite]).max(initial=0.0))
    scale = float(np.abs(before[finite]).max(initial=0.0))
    return 0.0 if off == 0 else off / scale if scale else math.inf


def _is_float(values: NDArray[Any]) -> bool:
    return bool(np.issubdtype(values.dtype, np.floating))
