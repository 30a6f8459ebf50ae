"""tiled_gemm: c = a · b. Sizes are (m, n, k); the workgroup is the kernel's tile, so it stays as it is."""

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

TILE = 16


def call(size, distribution, rng):
    m, n, k = size
    return make_call(
        Launch(grid_for((n, m), (TILE, TILE, 1)), (TILE, TILE, 1)),
        buffer("a", draw(distribution, rng, m * k)),
        buffer("b", draw(distribution, rng, k * n)),
        output("c", m * n),
        scalar("m", m),
        scalar("n", n),
        scalar("k", k),
    )


def reference(call):
    m, n, k = (argument.value for argument in call.arguments[3:])
    a = call.contents["a"].astype(np.float64).reshape(m, k)
    b = call.contents["b"].astype(np.float64).reshape(k, n)
    return {"c": (a @ b, rounding_bound(np.abs(a) @ np.abs(b), k))}


def floor(size):
    m, n, k = size
    return 2.0 * m * n * k, 4.0 * (m * k + k * n + m * n)


HARNESS = Harness(
    kernel="tiled_gemm",
    sizes=((1, 1, 1), (17, 5, 33), (31, 61, 7), (48, 32, 64)),
    timing_size=(96, 96, 96),
    gpu_timing_size=(1024, 1024, 1024),
    call=call,
    reference=reference,
    floor=floor,
)
