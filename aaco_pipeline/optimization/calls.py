"""One call of a kernel: how it is launched and what it is given. What a harness makes, and a target runs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

Role = Literal["in", "out", "inout"]
Content = NDArray[np.generic]
#: Orders of work-items and workgroups; a greater number is what a permutation is drawn from, up to `MOST_ORDER`.
ASCENDING: Final = 0
DESCENDING: Final = 1
MOST_ORDER: Final = 2**32 - 1


@dataclass(frozen=True)
class Launch:
    """Workgroups, work-items per workgroup and dynamic local data share of one launch."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    dynamic_lds_bytes: int = 0


@dataclass(frozen=True)
class Buffer:
    """A device pointer: `elements` values of the numpy type `dtype`. An `out` buffer is poisoned before each call."""

    name: str
    dtype: str
    elements: int
    role: Role


@dataclass(frozen=True)
class Scalar:
    """An argument by value, of the numpy type `dtype`."""

    name: str
    dtype: str
    value: float | int


Argument = Buffer | Scalar


@dataclass(frozen=True)
class Circumstances:
    """What differs from use to use, and a right answer does not depend on. A target that cannot vary one leaves it.

    `order` is that in which workgroups run, and the work-items of each between its barriers. `is_aligned`: all buffers
    begin at a multiple of 256 bytes, as device memory does, in place of ending where a page ends. `keeps_lds`: local
    data share holds what the process's call before this one left, in place of poison. `before` is what `out` buffers
    hold before the call, by name; poison where it has none.
    """

    order: int = ASCENDING
    is_aligned: bool = False
    keeps_lds: bool = False
    before: Mapping[str, Content] = field(default_factory=dict)


@dataclass(frozen=True)
class Call:
    """A launch with its arguments in the kernel's order, and the contents of every `in` and `inout` buffer by name.

    Two calls of the same `arguments`, `launch` and `circumstances` run in the same buffers, at the same addresses.
    """

    launch: Launch
    arguments: tuple[Argument, ...]
    contents: Mapping[str, Content]
    circumstances: Circumstances = field(default_factory=Circumstances)


@dataclass(frozen=True)
class Execution:
    """What a target measured and read back: each `out` and `inout` buffer as it was left, and the call's duration.

    `duration_ns` is what the target says it is (`Target.clock`): the process's CPU time on `cpu`, the GPU's own time on
    a GPU, null where a target measures no time. `poison` has the bytes that each element of an `out` buffer held before
    the call, by name; a target whose poison is `correctness.poison`'s leaves it empty. `before` is what it held in
    place of poison, where the call asked for that and the target did it. `conditions` is the state of the device as the
    call ended (clocks in MHz, power in mW, °C, throttle reasons), where the target can read it; a value that could not
    be read is null.
    """

    outputs: Mapping[str, Content]
    duration_ns: int | None
    poison: Mapping[str, bytes] = field(default_factory=dict)
    conditions: Mapping[str, int | str | None] = field(default_factory=dict)
    before: Mapping[str, Content] = field(default_factory=dict)
