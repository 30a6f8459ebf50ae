"""Whether two configurations of the runtime compute the same: a model's outputs on the same drawn inputs.

Rewriting a graph, another number of threads or another kernel may change the order of sums, and so the rounding of an
output. Half of the digits of its type have to agree all the same: an element may be off by at most the square root of
the type's machine epsilon (3.5e-4 for float32, 3.1e-2 for float16, 1.5e-8 for float64) times the largest magnitude of
its output. Where one is NaN, Inf or -Inf, so must be the other; whatever is no floating-point number must be equal.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from aaco_pipeline.optimization.candidates import Refused

#: Of one run of a model, its outputs by name.
Outputs = Mapping[str, NDArray[Any]]
GUARD: Final = "outputs"


def bound_of(dtype: np.dtype[Any]) -> float:
    """The largest difference allowed, as a share of the largest magnitude of the output; 0 for what has no rounding."""
    return math.sqrt(float(np.finfo(dtype).eps)) if np.issubdtype(dtype, np.floating) else 0.0


def compare_outputs(baseline: Sequence[Outputs], candidate: Sequence[Outputs]) -> dict[str, Any]:
    """Facts for the journal: `runs`, `largest_error_ratio` over all outputs, and `bound_ratio`, the widest bound.

    Refused with guard `outputs` where an output is missing, has another type or shape, or is off by more than its
    bound. Both have the outputs of the same runs in the same order.
    """
    largest, widest = 0.0, 0.0
    for run, (before, after) in enumerate(zip(baseline, candidate, strict=True)):
        if before.keys() != after.keys():
            raise Refused(GUARD, f"it gives {', '.join(after)} instead of {', '.join(before)}")
        for name, expected in before.items():
            bound, error = bound_of(expected.dtype), _error(name, expected, after[name])
            if error > bound:
                raise Refused(
                    GUARD,
                    f"output {name!r} is off by {error:.2g} of its largest magnitude in run {run}; {bound:.2g} may be",
                )
            largest, widest = max(largest, error), max(widest, bound)
    return {"runs": len(baseline), "largest_error_ratio": largest, "bound_ratio": widest}


def joined(runs: Sequence[Outputs], times: int) -> list[Outputs]:
    """The outputs of a batch `times` as large, from those of runs one after the other: joined by first dimension.

    Refused with guard `outputs` where an output has no such dimension.
    """
    groups = [runs[first : first + times] for first in range(0, len(runs), times)]
    if times > 1 and any(not value.ndim for one in runs for value in one.values()):
        raise Refused(GUARD, "an output has no dimension that a batch could be seen by")
    return [
        {name: np.concatenate([one[name] for one in group]) if times > 1 else group[0][name] for name in group[0]}
        for group in groups
    ]


def depend_on_inputs(runs: Sequence[Outputs]) -> bool:
    """Whether any output differs between runs on different inputs; if none does, equal outputs say little."""
    first = runs[0]
    return any(
        not np.array_equal(first[name], one[name], equal_nan=_is_float(first[name])) for one in runs for name in first
    )


def _error(name: str, expected: NDArray[Any], found: NDArray[Any]) -> float:
    """The largest difference as a share of the largest finite magnitude; infinite where it cannot be said."""
    if (expected.dtype, expected.shape) != (found.dtype, found.shape):
        told = (f"{one.dtype} {list(one.shape)}" for one in (found, expected))
        raise Refused(GUARD, f"output {name!r} is {' instead of '.join(told)}")
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
