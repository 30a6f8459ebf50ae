"""What a HIP or CUDA source says: kernels, parameters, loops and whether they may be unrolled, launches.

`parse` reads a source; nothing here compiles, runs or changes one.
"""

from aaco_pipeline.optimization.source.parsing import parse
from aaco_pipeline.optimization.source.unit import Kernel, Launch, LaunchBounds, Loop, LoopKind, Span, Unit

__all__ = ["Kernel", "Launch", "LaunchBounds", "Loop", "LoopKind", "Span", "Unit", "parse"]
