"""Proposers of changes to a kernel, in the order in which they are asked.

Each one explains why it leaves something unchanged. None moves code across a barrier, a cross-lane operation, an
atomic, dynamic local data share or a volatile value. `language_model` is asked last, if it is configured; `onnx`
proposes changes for models, not for kernels. `reductions` and `syntax` contain shared code.
"""

from typing import Final

from aaco_pipeline.optimization.candidates import Proposer
from aaco_pipeline.optimization.proposers.hints import BlockSize, LaunchBounds, Restrict, Unrolling
from aaco_pipeline.optimization.proposers.lds_padding import LdsPadding
from aaco_pipeline.optimization.proposers.reductions import Accumulators, VectorLoads

#: Largest gains first, where they apply: chains of additions, then loads, then hints to the compiler.
PROPOSERS: Final[tuple[Proposer, ...]] = (
    Accumulators(),
    VectorLoads(),
    LdsPadding(),
    Unrolling(),
    Restrict(),
    BlockSize(),
    LaunchBounds(),
)
