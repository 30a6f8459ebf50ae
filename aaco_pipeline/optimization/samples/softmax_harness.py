"""softmax: each row of y is that of x. Sizes are (rows, elements of a row)."""

import numpy as np

from aaco_pipeline.optimization.harness import (
    Harness,
    Launch,
    buffer,
    draw,
    grid_for,
    make_call,
    output,
    rounding_bound,
    scalar,
)


def launch(size, block):
    return Launch(grid_for(size[0], block), block)


def call(size, distribution, rng):
    rows, n = size
    return make_call(
        launch(size, (64, 1, 1)),
        buffer("x", draw(distribution, rng, rows * n)),
        output("y", rows * n),
        scalar("rows", rows),
        scalar("n", n),
    )


def reference(call):
    """Bound each power: expf is within 2 ulp, rounding its argument d moves it |d| units. Then n sums, a division."""
    rows, n = (argument.value for argument in call.arguments[2:])
    x = call.contents["x"].astype(np.float64).reshape(rows, n)
    below = x - x.max(axis=1, keepdims=True)
    powers = np.exp(below)
    total = powers.sum(axis=1, keepdims=True)
    moved = 4 + np.where(powers > 0, np.abs(below), 0.0)
    units = moved + (moved * powers).sum(axis=1, keepdims=True) / total + n + 2
    values = powers / total
    return {"y": (values, rounding_bound(values * units, 1) + np.finfo(np.float32).tiny)}


def floor(size):
    rows, n = size
    return 5.0 * rows * n, 8.0 * rows * n


HARNESS = Harness(
    kernel="softmax",
    sizes=((1, 1), (3, 7), (67, 31), (5, 509), (100, 64)),
    timing_size=(128, 1000),
    gpu_timing_size=(8192, 512),
    call=call,
    reference=reference,
    floor=floor,
    launch=launch,
)
