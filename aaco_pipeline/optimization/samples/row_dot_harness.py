"""row_dot: every row of a with the vector b. Sizes are (rows, elements of a row)."""

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
        launch(size, (256, 1, 1)),
        buffer("a", draw(distribution, rng, rows * n)),
        buffer("b", draw(distribution, rng, n)),
        output("out", rows),
        scalar("rows", rows),
        scalar("n", n),
    )


def reference(call):
    rows, n = (argument.value for argument in call.arguments[3:])
    terms = call.contents["a"].astype(np.float64).reshape(rows, n) * call.contents["b"]
    return {"out": (terms.sum(axis=1), rounding_bound(np.abs(terms).sum(axis=1), n))}


def floor(size):
    rows, n = size
    return 2.0 * rows * n, 4.0 * (rows * n + n + rows)


HARNESS = Harness(
    kernel="row_dot",
    sizes=((1, 1), (3, 7), (257, 31), (61, 509), (300, 64)),
    timing_size=(1024, 1000),
    gpu_timing_size=(16384, 512),
    call=call,
    reference=reference,
    floor=floor,
    launch=launch,
)
