"""The declaration of a harness, and helpers that keep it short.

`validation` checks that the declaration is consistent.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from aaco_pipeline.optimization.harness.contents import DISTRIBUTIONS, Distribution, mixture
from aaco_pipeline.optimization.targets import Argument, Block, Buffer, Call, Content, Launch, Scalar, TargetName

#: A problem's size, in the harness's own terms: elements, or rows and columns.
Size = int | tuple[int, ...]
#: One output: its float64 values, and the allowed error of each. Both have as many elements as the buffer.
Expected = tuple[NDArray[np.float64], NDArray[np.float64]]
#: As a bound: the kernel leaves this element unchanged (row padding, for example). Writing it is an error.
NOT_AN_OUTPUT: Final = -1.0


@dataclass(frozen=True)
class Harness:
    """Defines how to call `kernel` at any size, and its expected results.

    `call(size, distribution, rng)` draws all contents from `rng`, so different generators give different contents.
    `reference(call)` computes in float64 and returns an error bound for the kernel's own precision, such as `c · n ·
    eps · Σ|a||b|` (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., eq. 3.5). `floor(size)` is the
    minimum work of any correct kernel: floating-point operations and bytes to and from memory.

    `launch(size, block)` defines the launch with another workgroup; without it the workgroup is never changed. A kernel
    that adds floating-point numbers in an unspecified order (atomics) sets `deterministic=False`. `distributions` omits
    those that the kernel does not support. `gpu_timing_size` is the size timed on a GPU, if `timing_size` is too small
    for one. `takes(size)` returns whether a kernel limited to certain sizes accepts that size; without it the kernel
    accepts every size up to the declared ones. `path` is the file of this harness.
    """

    kernel: str
    sizes: tuple[Size, ...]
    timing_size: Size
    call: Callable[[Size, Distribution, np.random.Generator], Call]
    reference: Callable[[Call], Mapping[str, Expected]]
    floor: Callable[[Size], tuple[float, float]]
    launch: Callable[[Size, Block], Launch] | None = None
    distributions: tuple[Distribution, ...] = DISTRIBUTIONS
    deterministic: bool = True
    gpu_timing_size: Size | None = None
    takes: Callable[[Size], bool] | None = None
    path: Path | None = None

    @property
    def declared_sizes(self) -> tuple[Size, ...]:
        """Return every size that the harness names for any purpose."""
        on_a_gpu = () if self.gpu_timing_size is None else (self.gpu_timing_size,)
        return (*self.sizes, self.timing_size, *on_a_gpu)

    def timed_size(self, target: TargetName) -> Size:
        """Return the size that is timed on `target`."""
        on_a_gpu = target in ("amd", "cuda")
        return self.gpu_timing_size if on_a_gpu and self.gpu_timing_size is not None else self.timing_size

    def drawn(self, size: Size, distribution: Distribution, rng: np.random.Generator) -> Call:
        """Draw a call with fresh, read-only contents."""
        given = mixture(self.distributions, rng) if distribution == "mixed" else distribution
        call = self.call(size, given, rng)
        for values in call.contents.values():
            values.flags.writeable = False
        return call

    def relaunched(self, call: Call, size: Size, block: Block) -> Call:
        """Return `call` with another workgroup. ValueError if the harness does not define how to launch one."""
        if self.launch is None:
            raise ValueError(f"the harness of {self.kernel} has no launch(size, block): its workgroup stays as it is")
        return replace(call, launch=self.launch(size, block))


@dataclass(frozen=True)
class Filled:
    """A buffer with its content before the call."""

    buffer: Buffer
    values: Content


def buffer(name: str, values: NDArray[Any], role: Literal["in", "inout"] = "in") -> Filled:
    """Return a buffer that the kernel reads, or reads and writes (`inout`), with type and length of `values`."""
    flat = np.ascontiguousarray(values).reshape(-1)
    return Filled(Buffer(name, flat.dtype.name, flat.size, role), flat)


def output(name: str, elements: int, dtype: DTypeLike = "float32") -> Buffer:
    """Return a buffer that the kernel writes without reading it."""
    return Buffer(name, np.dtype(dtype).name, elements, "out")


def scalar(name: str, value: float | int, dtype: DTypeLike | None = None) -> Scalar:
    """Return an argument by value: `int` for an integer, `float` for any other number, unless `dtype` is given."""
    kind = np.dtype(dtype) if dtype is not None else np.dtype("int32" if isinstance(value, int) else "float32")
    return Scalar(name, kind.name, value)


def make_call(launch: Launch, *arguments: Filled | Argument) -> Call:
    """Return a call with its arguments in the kernel's order."""
    plain = tuple(argument.buffer if isinstance(argument, Filled) else argument for argument in arguments)
    contents = {argument.buffer.name: argument.values for argument in arguments if isinstance(argument, Filled)}
    return Call(launch, plain, contents)


def grid_for(items: int | tuple[int, ...], block: Block) -> Block:
    """Return enough workgroups for one work-item per item in up to three dimensions: items / block, rounded up."""
    each = (items,) if isinstance(items, int) else items
    x, y, z = (*each, 1, 1, 1)[:3]
    return (-(-x // block[0]), -(-y // block[1]), -(-z // block[2]))


def rounding_bound(magnitude: ArrayLike, operations: int, dtype: DTypeLike = "float32") -> NDArray[np.float64]:
    """Bound the error of `operations` successive roundings in results whose terms have the absolute sum `magnitude`.

    For a dot product of n terms: `rounding_bound(sum(abs(a * b)), n)`, in any order of summation. It is `operations · u
    · magnitude`, with u half the type's machine epsilon, times 1.01 for second-order terms, plus `operations` times the
    smallest number, because underflow makes errors absolute (Higham, 2nd ed., eqs. 2.8 and 3.5).
    """
    limits = np.finfo(np.dtype(dtype))
    unit = float(limits.eps) / 2
    least = float(limits.smallest_subnormal)
    return np.asarray(1.01 * operations * (unit * np.asarray(magnitude, dtype=np.float64) + least), dtype=np.float64)


def exact(values: ArrayLike) -> Expected:
    """Return results that have no rounding error, such as counts."""
    expected = np.asarray(values, dtype=np.float64)
    return expected, np.zeros_like(expected)
