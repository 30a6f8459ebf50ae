"""Harnesses: the file next to a source that defines how to call its kernel. See docs/optimize_harness.md.

A harness imports everything from here. Targets run kernels, `correctness` judges outputs.
"""

from aaco_pipeline.optimization.harness.contents import DISTRIBUTIONS, Distribution, draw, indices, integers
from aaco_pipeline.optimization.harness.declaration import (
    NOT_AN_OUTPUT,
    Expected,
    Harness,
    Size,
    buffer,
    exact,
    grid_for,
    make_call,
    output,
    rounding_bound,
    scalar,
)
from aaco_pipeline.optimization.harness.loading import NoHarness, load_harness, skeleton
from aaco_pipeline.optimization.targets import Call, Launch

__all__ = [
    "DISTRIBUTIONS", "NOT_AN_OUTPUT", "Call", "Distribution", "Expected", "Harness", "Launch", "NoHarness", "Size",
    "buffer", "draw", "exact", "grid_for", "indices", "integers", "load_harness", "make_call", "output",
    "rounding_bound", "scalar", "skeleton",
]  # fmt: skip
