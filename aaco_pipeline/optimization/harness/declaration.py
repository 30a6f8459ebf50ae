"""What a harness says of its kernel. Whether what it says holds together is asked in `validation`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from aaco_pipeline.optimization.calls import Call, Launch
from aaco_pipeline.optimization.harness.contents import DISTRIBUTIONS, Distribution, mixture
from aaco_pipeline.optimization.targets import TargetName

#: What a problem's size is, is the harness' own: elements, or rows and columns.
Size = int | tuple[int, ...]
#: Of one output: its values in float64, and how far from each a right result may be. Both have the buffer's elements.
Expected = tuple[NDArray[np.float64], NDArray[np.float64]]
#: As a bound: the kernel leaves this element as it is (the pitch of a row, say). Writing there is a fault.
NOT_AN_OUTPUT: Final = -1.0


@dataclass(frozen=True)
class Harness:
    """How `kernel` is called at any size, and what comes out.

    `call(size, distribution, rng)` draws all contents from `rng`, so that two generators give two contents.
    `reference(call)` computes in float64 and states the bound of the error of the kernel's own precision, in the
    manner of `c · n · eps · Σ|a||b|` (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., eq. 3.5).
    `floor(size)` is the least work that any right kernel does: floating-point operations and bytes to and from memory.

    `launch(size, block)` says how the kernel is launched with another workgroup; without it the workgroup is never
    changed. A kernel that adds floating-point numbers in an order that is not its own (atomics) sets
    `deterministic=False`. `distributions` leaves out those that the kernel is not made for. `gpu_timing_size` is the
    size that is timed on a GPU, where `timing_size` is too small a problem for one. `takes(size)` says of a kernel that
    is made for certain sizes alone whether that is one; without it the kernel takes every size up to the declared ones.
    `path` is the file that says all this.
    """

    kernel: str
    sizes: tuple[Size, ...]
    timing_size: Size
    call: Callable[[Size, Distribution, np.random.Generator], Call]
    reference: Callable[[Call], Mapping[str, Expected]]
    floor: Callable[[Size], tuple[float, float]]
    launch: Callable[[Size, tuple[int, int, int]], Launch] | None = None
    distributions: tuple[Distribution, ...] = DISTRIBUTIONS
    deterministic: bool = True
    gpu_timing_size: Size | None = None
    takes: Callable[[Size], bool] | None = None
    path: Path | None = None

    @property
    def declared_sizes(self) -> tuple[Size, ...]:
        """Every size that the harness names, whatever it is for."""
        on_a_gpu = () if self.gpu_timing_size is None else (self.gpu_timing_size,)
        return (*self.sizes, self.timing_size, *on_a_gpu)

    def timed_size(self, target: TargetName) -> Size:
        """The size that is timed on `target`."""
        on_a_gpu = target in ("amd", "cuda")
        return self.gpu_timing_size if on_a_gpu and self.gpu_timing_size is not None else self.timing_size

    def drawn(self, size: Size, distribution: Distribution, rng: np.random.Generator) -> Call:
        """A call with fresh contents that nobody may write to."""
        given = mixture(self.distributions, rng) if distribution == "mixed" else distribution
        call = self.call(size, given, rng)
        for values in call.contents.values():
            values.flags.writeable = False
        return call

    def relaunched(self, call: Call, size: Size, block: tuple[int, int, int]) -> Call:
        """`call` with another workgroup. ValueError where the harness does not say how to launch one."""
        if self.launch is None:
            raise ValueError(f"the harness of {self.kernel} has no launch(size, block): its workgroup stays as it is")
        return replace(call, launch=self.launch(size, block))
