"""reduction: sums of squares of equal shares of x, one a workgroup. A size is the length of x."""

import numpy as np

from aaco_pipeline.optimization.harness import Harness, Launch, buffer, draw, make_call, output, rounding_bound, scalar

MOST_SHARE = 16384


def share_of(size):
    """Any share that leaves 64 workgroups or fewer, or is 2048 at least: what varies in use varies here."""
    if size % MOST_SHARE == 0:
        return MOST_SHARE
    least, most = min(max(size // 64, 1), 2048), min(2 * size, MOST_SHARE)
    return least + size * 40503 % (most - least + 1)


def call(size, distribution, rng):
    share = share_of(size)
    groups = -(-size // share)
    return make_call(
        Launch((groups, 1, 1), (256, 1, 1)),
        buffer("x", draw(distribution, rng, size)),
        output("sums", groups),
        scalar("n", size),
        scalar("share", share),
    )


def reference(call):
    x, share = call.contents["x"].astype(np.float64), call.arguments[3].value
    sums = np.add.reduceat(x * x, np.arange(0, x.size, share))
    return {"sums": (sums, rounding_bound(sums, min(x.size, share)))}


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
