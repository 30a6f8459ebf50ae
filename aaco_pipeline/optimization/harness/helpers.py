"""What makes a harness short: arguments with their contents, grids, and bounds of rounding errors."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from aaco_pipeline.optimization.calls import Argument, Buffer, Call, Content, Launch, Scalar
from aaco_pipeline.optimization.harness.declaration import Expected

Block = tuple[int, int, int]


@dataclass(frozen=True)
class Filled:
    """A buffer with what it holds before the call."""

    buffer: Buffer
    values: Content


def buffer(name: str, values: NDArray[Any], role: Literal["in", "inout"] = "in") -> Filled:
    """A buffer that the kernel reads, or reads and writes (`inout`): its type and length are those of `values`."""
    flat = np.ascontiguousarray(values).reshape(-1)
    return Filled(Buffer(name, flat.dtype.name, flat.size, role), flat)


def output(name: str, elements: int, dtype: DTypeLike = "float32") -> Buffer:
    """A buffer that the kernel writes without reading it."""
    return Buffer(name, np.dtype(dtype).name, elements, "out")


def scalar(name: str, value: float | int, dtype: DTypeLike | None = None) -> Scalar:
    """An argument by value: `int` for an integer, `float` for any other number, unless `dtype` says otherwise."""
    kind = np.dtype(dtype) if dtype is not None else np.dtype("int32" if isinstance(value, int) else "float32")
    return Scalar(name, kind.name, value)


def make_call(launch: Launch, *arguments: Filled | Argument) -> Call:
    """A call, its arguments in the kernel's order."""
    plain = tuple(argument.buffer if isinstance(argument, Filled) else argument for argument in arguments)
    contents = {argument.buffer.name: argument.values for argument in arguments if isinstance(argument, Filled)}
    return Call(launch, plain, contents)


def grid_for(items: int | tuple[int, ...], block: Block) -> Block:
    """Workgroups so that each item of up to three dimensions has a work-item: items / block, rounded up."""
    each = (items,) if isinstance(items, int) else items
    x, y, z = (*each, 1, 1, 1)[:3]
    return (-(-x // block[0]), -(-y // block[1]), -(-z // block[2]))


def rounding_bound(magnitude: ArrayLike, operations: int, dtype: DTypeLike = "float32") -> NDArray[np.float64]:
    """The most that `operations` roundings in a row add up to, in results whose terms sum to `magnitude` absolutely.

    For a dot product of n terms: `rounding_bound(sum(abs(a * b)), n)`, in any order of summation. It is
    `operations · u · magnitude`, u half the type's machine epsilon, times 1.01 for the terms of second order, and
    `operations` of the smallest number, where underflow makes errors absolute (Higham, 2nd ed., eqs. 2.8 and 3.5).
    """
    limits = np.finfo(np.dtype(dtype))
    unit = float(limits.eps) / 2
    least = float(limits.smallest_subnormal)
    return np.asarray(1.01 * operations * (unit * np.asarray(magnitude, dtype=np.float64) + least), dtype=np.float64)


def exact(values: ArrayLike) -> Expected:
    """Results that have no rounding error, such as counts."""
    expected = np.asarray(values, dtype=np.float64)
    return expected, np.zeros_like(expected)
