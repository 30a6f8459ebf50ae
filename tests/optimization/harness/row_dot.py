"""A harness of a row dot in plain numpy, and workers that answer it rightly and wrongly. Nothing is compiled here."""

from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np

from aaco_pipeline.optimization.correctness.comparison import poison
from aaco_pipeline.optimization.harness import (
    Distribution,
    Expected,
    Harness,
    Size,
    buffer,
    draw,
    grid_for,
    make_call,
    output,
    rounding_bound,
    scalar,
)
from aaco_pipeline.optimization.targets import Buffer, Call, Content, Execution, Launch

Block = tuple[int, int, int]


def shape(size: Size) -> tuple[int, int]:
    rows, n = cast("tuple[int, int]", size)
    return rows, n


def launch(size: Size, block: Block) -> Launch:
    return Launch(grid_for(shape(size)[0], block), block)


def call(size: Size, distribution: Distribution, rng: np.random.Generator) -> Call:
    rows, n = shape(size)
    return make_call(
        launch(size, (64, 1, 1)),
        buffer("a", draw(distribution, rng, rows * n)),
        buffer("b", draw(distribution, rng, rows * n)),
        output("out", rows),
        scalar("rows", rows),
        scalar("n", n),
    )


def factors(call: Call) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    rows = next(one.elements for one in call.arguments if isinstance(one, Buffer) and one.name == "out")
    a, b = (call.contents[name].reshape(rows, -1) for name in ("a", "b"))
    return a, b


def reference(call: Call) -> Mapping[str, Expected]:
    a, b = (one.astype(np.float64) for one in factors(call))
    return {"out": ((a * b).sum(axis=1), rounding_bound(np.abs(a * b).sum(axis=1), a.shape[1]))}


def floor(size: Size) -> tuple[float, float]:
    rows, n = shape(size)
    return 2.0 * rows * n, 4.0 * (2 * rows * n + rows)


HARNESS = Harness(
    kernel="row_dot",
    sizes=((1, 1), (3, 7), (5, 257), (67, 33)),
    timing_size=(128, 64),
    call=call,
    reference=reference,
    floor=floor,
    launch=launch,
)


def in_order(call: Call) -> Content:
    """Each row summed from left to right in float32, as the kernel does."""
    a, b = factors(call)
    with np.errstate(all="ignore"):
        return np.asarray(np.cumsum(a * b, axis=1, dtype=np.float32)[:, -1], dtype=np.float32)


def pairwise(call: Call) -> Content:
    """Another order of summation: an honest change."""
    a, b = factors(call)
    with np.errstate(all="ignore"):
        return np.asarray((a * b).sum(axis=1, dtype=np.float32), dtype=np.float32)


class Numpy:
    """A worker that answers with a function. It keeps its buffers, as every target does, and counts its calls."""

    def __init__(self, kernel: Callable[[Call], Content]) -> None:
        self.kernel = kernel
        self.calls = 0

    def run(self, call: Call) -> Execution:
        self.calls += 1
        out = poison("float32", shape_of(call))
        answered = self.kernel(call)
        out[: answered.size] = answered
        return Execution({"out": out}, None)


def shape_of(call: Call) -> int:
    return int(factors(call)[0].shape[0])
