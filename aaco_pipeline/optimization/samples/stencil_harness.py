"""stencil: second derivatives of a box of values. Sizes are (nx, ny, nz); rows are padded, and padding is not
output."""

import numpy as np

from aaco_pipeline.optimization.harness import (
    NOT_AN_OUTPUT,
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

RADIUS = 4
#: As the kernel has them, rounded to float32: of the value itself, and of the six at each distance from it.
WEIGHTS = [float(np.float32(weight)) for weight in (-8.541667, 1.6, -0.2, 0.025396825, -0.0017857143)]


def launch(size, block):
    return Launch(grid_for(size[:2], block), block)


def call(size, distribution, rng):
    nx, ny, nz = size
    pitch = nx + (nx + 3 * ny + nz) % 41  # no padding, or some: what varies in use varies here
    return make_call(
        launch(size, (32, 8, 1)),
        buffer("in", draw(distribution, rng, pitch * ny * nz)),
        output("out", pitch * ny * nz),
        scalar("nx", nx),
        scalar("ny", ny),
        scalar("nz", nz),
        scalar("pitch", pitch),
    )


def reference(call):
    nx, ny, nz, pitch = (argument.value for argument in call.arguments[2:])
    values = call.contents["in"].astype(np.float64).reshape(nz, ny, pitch)
    expected = values.copy()
    bound = np.zeros_like(values)
    bound[:, :, nx:] = NOT_AN_OUTPUT
    if min(nx, ny, nz) > 2 * RADIUS:
        inner = (slice(RADIUS, nz - RADIUS), slice(RADIUS, ny - RADIUS), slice(RADIUS, nx - RADIUS))
        expected[inner] = weighted(values[:, :, :nx], WEIGHTS)
        bound[inner] = rounding_bound(weighted(np.abs(values[:, :, :nx]), np.abs(WEIGHTS)), 12)
    return {"out": (expected, bound)}


def weighted(values, weights):
    """Sums over the values around each inner one."""
    total = weights[0] * around(values, 0, 0)
    for distance in range(1, RADIUS + 1):
        for axis in range(3):
            total = total + weights[distance] * (around(values, axis, -distance) + around(values, axis, distance))
    return total


def around(values, axis, offset):
    ends = [slice(RADIUS, length - RADIUS) for length in values.shape]
    ends[axis] = slice(RADIUS + offset, values.shape[axis] - RADIUS + offset)
    return values[tuple(ends)]


def floor(size):
    nx, ny, nz = size
    inner = max(nx - 2 * RADIUS, 0) * max(ny - 2 * RADIUS, 0) * max(nz - 2 * RADIUS, 0)
    return 29.0 * inner, 8.0 * nx * ny * nz


HARNESS = Harness(
    kernel="stencil",
    sizes=((1, 1, 1), (9, 11, 13), (17, 8, 10), (37, 19, 12)),
    timing_size=(64, 48, 40),
    gpu_timing_size=(256, 256, 256),
    call=call,
    reference=reference,
    floor=floor,
    launch=launch,
)
