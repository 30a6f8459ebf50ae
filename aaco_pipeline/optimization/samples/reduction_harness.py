"""reduction: sums of squares of equal shares of x, one a workgroup. A size is the length of x."""

import numpy as np

from aaco_pipeline.optimization.harness import Harness, Launch, buffer, draw, make_call, output, rounding_bound, scalar

SHARE = 16384


def call(size, distribution, rng):
    groups = -(-size // SHARE)
    return make_call(
        Launch((groups, 1, 1), (256, 1, 1)),
        buffer("x", draw(distribution, rng, size)),
        output("sums", groups),
        scalar("n", size),
        scalar("share", SHARE),
    )


def reference(call):
    x = call.contents["x"].astype(np.float64)
    sums = np.add.reduceat(x * x, np.arange(0, x.size, SHARE))
    return {"sums": (sums, rounding_bound(sums, min(x.size, SHARE)))}


def floor(size):
    return 2.0 * size, 4.0 * size


HARNESS = Harness(
    kernel="reduction",
    sizes=(1, 7, 257, 16384, 40961),
    timing_size=1 << 19,
    gpu_timing_size=1 << 24,
    call=call,
    reference=reference,
    floor=floor,
)
