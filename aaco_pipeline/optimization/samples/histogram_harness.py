"""histogram: counts of 256 bins, added to what is there. A size is the number of values."""

import numpy as np

from aaco_pipeline.optimization.harness import (
    Harness,
    Launch,
    buffer,
    exact,
    grid_for,
    indices,
    integers,
    make_call,
    scalar,
)

BINS = 256
MOST = 1 << 32
MOST_GROUPS = 32


def launch(size, block):
    return Launch((min(grid_for(size, block)[0], MOST_GROUPS), 1, 1), block)


def call(size, distribution, rng):
    return make_call(
        launch(size, (256, 1, 1)),
        buffer("values", indices(distribution, rng, size, BINS)),
        buffer("counts", integers("uniform", rng, BINS, low=MOST - size, high=MOST, dtype="uint32"), role="inout"),
        scalar("n", size),
    )


def reference(call):
    """Counts begin near the end of their type, so that some pass it, and go on from 0 there."""
    counted = call.contents["counts"].astype(np.int64) + np.bincount(call.contents["values"], minlength=BINS)
    return {"counts": exact(counted % MOST)}


def floor(size):
    return 0.0, 4.0 * size


HARNESS = Harness(
    kernel="histogram",
    sizes=(1, 31, 509, 8192, 40961),
    timing_size=1 << 18,
    gpu_timing_size=1 << 24,
    call=call,
    reference=reference,
    floor=floor,
    launch=launch,
)
